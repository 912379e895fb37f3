#!/bin/sh
# test_converge.sh BUILD STAGE - the run without flags, on 2 ranks, reaches val loss <= 1.92 (an
# independent PyTorch run on windows at random offsets gives 1.888) and ends with a sample and a hash.
set -u
B=$1 stage=$2
passed=0 failed=0
check() { if [ "$1" = 1 ]; then passed=$((passed + 1)); echo "$2"; else failed=$((failed + 1)); echo "FAILED: $2"; fi; }
out=$("$B/train_gpt2_zero" -pn 2 -z "$stage")
loss=$(echo "$out" | sed -n 's/^val loss \([0-9.]*\).*/\1/p' | tail -n 1)
check "$(awk "BEGIN { print (${loss:-9} <= 1.92) ? 1 : 0 }")" "val loss ${loss:-none} at stage $stage, expected at most 1.92"
check "$(echo "$out" | tail -n 1 | grep -cE '^weights [0-9a-f]{16}$')" "last line is the hash of the weights"
echo "$out" | tail -n 1
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
