#!/bin/sh
# test_checkpoint_bench.sh BUILD [ROUNDS [FOLDER]] - saving and loading GPT-2 124M with AdamW on 2 ranks
# against dd with direct I/O of as many bytes, in turns on the same disk: at least 80% of its speed, as
# medians of the rounds (5). 5 GB of disk, 8 GB of memory. Last line: N passed, N failed.
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
    echo "$line" | awk '{print $10}' >>"$work/load"
    echo "$aside" | awk '{print $6}' >>"$work/stall"
done

passed=0 failed=0
# compare NAME OURS THEIRS
compare() {
    ours=$(median "$work/$2") theirs=$(median "$work/$3")
    echo "$1: $ours s, dd $theirs s for $bytes bytes: $(echo "$theirs $ours" | awk '{printf "%.0f%%", 100 * $1 / $2}') of its speed"
    if echo "$theirs $ours" | awk '{exit !($1 >= 0.8 * $2)}'; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}
compare save save dd_write
compare load load dd_read
echo "stall of a save written aside: $(median "$work/stall") s"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
