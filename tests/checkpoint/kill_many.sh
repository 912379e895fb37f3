#!/bin/sh
# kill_many.sh BUILD [KILLS [SEED]] - tests/checkpoint/test_checkpoint_kill.c with KILLS (10,000) kills, in parts of
# 250 with seeds of their own, from SEED on (the time): a part that fails names its seed. 10,000 take
# about 20 minutes. Last line: N passed, N failed.
set -u
B=$1 kills=${2:-10000} seed=${3:-$(date +%s)}
passed=0 failed=0 done=0 saving=0 starts=0 resumed=0
log=$(mktemp "${TMPDIR:-/tmp}/kill_many.XXXXXX") || exit 1
trap 'rm -f "$log"' EXIT
while [ "$done" -lt "$kills" ]; do
    part=$((kills - done < 250 ? kills - done : 250))
    "$B/test_checkpoint_kill" "$part" "$seed" >"$log" 2>&1
    code=$?
    # "250 kills, 130 of them inside a save; 200 of 240 starts that came so far resumed ..."
    counts=$(sed -n 's/^\([0-9]*\) kills, \([0-9]*\) of .*; \([0-9]*\) of \([0-9]*\) starts .*/\1 \2 \3 \4/p' "$log")
    line=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$log")
    if [ $code -ne 0 ] || [ -z "$line" ] || [ -z "$counts" ]; then
        echo "test_checkpoint_kill $part $seed: exit code $code"
        grep -v ' passed, ' "$log"
    fi
    # shellcheck disable=SC2086 # words
    set -- ${line:-0 1} ${counts:-$part 0 0 0}
    [ $code -ne 0 ] && [ "$2" -eq 0 ] && failed=$((failed + 1))
    passed=$((passed + $1)) failed=$((failed + $2)) done=$((done + $3))
    saving=$((saving + $4)) resumed=$((resumed + $5)) starts=$((starts + $6)) seed=$((seed + 1))
done
echo "$done kills, $saving of them inside a save; $resumed of $starts starts that came so far resumed"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
