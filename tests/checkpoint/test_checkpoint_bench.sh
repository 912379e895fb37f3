#!/bin/sh
# test_checkpoint_bench.sh BUILD [ROUNDS [FOLDER]] - saving and loading GPT-2 124M with AdamW on 2 ranks
# against dd with direct I/O of as many bytes, in turns on the same disk, and the copy of a save that
# is written aside against memcpy: at least 80% of their speed, as medians of the rounds (5).
# STEP_S: seconds of a step, which the stall is to be related to. 5 GB of disk, 8 GB of memory.
# Last line: N passed, N failed.
set -u
B=$1 rounds=${2:-5} folder=${3:-$1}
work=$folder/checkpoint_bench.$$
mkdir -p "$work" || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

# seconds COMMAND...
seconds() {
    start=$(date +%s.%N)
    "$@" 2>/dev/null || { echo "$* failed" >&2; exit 1; }
    echo "$start $(date +%s.%N)" | awk '{print $2 - $1}'
}
median() { sort -n "$1" | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'; }

for round in $(seq "$rounds"); do
    line=$("$B/test_checkpoint_bench" "$work/run" 3) || { echo "0 passed, 1 failed"; exit 1; }
    aside=$("$B/test_checkpoint_bench" "$work/run" 3 1) || { echo "0 passed, 1 failed"; exit 1; }
    bytes=$(echo "$line" | awk '{print $2}')
    blocks=$((bytes / 8388608))
    seconds dd if=/dev/zero of="$work/dd" bs=8M count=$blocks oflag=direct conv=fsync >>"$work/dd_write"
    seconds dd if="$work/dd" of=/dev/null bs=8M iflag=direct >>"$work/dd_read"
    rm -f "$work/dd"
    echo "$line" | awk '{print $4}' >>"$work/save"
    echo "$line" | awk '{print $6}' >>"$work/load"
    echo "$aside" | awk '{print $4}' >>"$work/stall"
    echo "$aside" | awk '{print $6}' >>"$work/copy"
    echo "$aside" | awk '{print $8}' >>"$work/memcpy"
done

passed=0 failed=0
# compare OURS THEIRS NAME
compare() {
    ours=$(median "$work/$1") theirs=$(median "$work/$2")
    echo "$1: $ours s, $3 $theirs s for $bytes bytes: $(echo "$theirs $ours" | awk '{printf "%.0f%%", 100 * $1 / $2}') of its speed"
    if echo "$theirs $ours" | awk '{exit !($1 >= 0.8 * $2)}'; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}
compare save dd_write dd
compare load dd_read dd
compare copy memcpy memcpy
stall=$(median "$work/stall")
echo "stall of a save written aside: $stall s, 5% of a step of $(echo "$stall" | awk '{print $1 * 20}') s"
[ -z "${STEP_S:-}" ] ||
    echo "$stall $STEP_S" | awk '{printf "stall: %.1f%% of a step of %s s; ", 100 * $1 / $2, $2}
        {printf "of its time %.2f%% with a save every 10 steps, %.2f%% every 100\n", 10 * $1 / $2, $1 / $2}'
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
