#!/bin/sh
# test_recheck.sh BUILD - the trainer's -ck, blocks that another rank computes again: the weights are those of a run
# without it, at every stage and with each division of the model that it supports; what it does not support is
# refused; a processor that computes wrongly (BUILD/flipped, tests/gpt2/flips.h) ends the run with a sentence, and with
# -pe 1 the other ranks go on. TRAINER names another program than BUILD/train_gpt2_zero. Last line: N passed, N failed.
# Lists of arguments are split at blanks on purpose.
# shellcheck disable=SC2086
set -u
B=$1
trainer=${TRAINER:-$B/train_gpt2_zero}
work=$(mktemp -d "${TMPDIR:-/tmp}/test_recheck.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
unset FLIP
small="-e char:3x32x2 -t 16 -v -1 -g 0 -u 3 -b 2 -nt 1 -x 6"

# is NAME EXPECTED FOUND
is() {
    if [ -n "$2" ] && [ "$2" = "$3" ]; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED: $1: expected '$2', found '$3'"; fi
}
# says NAME PATTERN: the last run
says() {
    if grep -qe "$2" "$work/out"; then passed=$((passed + 1))
    else is "$1" "$2" "$(tail -n 2 "$work/out" | tr '\n' '|')"; fi
}
run() { timeout -k 1 60 "$trainer" $small "$@" >"$work/out" 2>&1 </dev/null; }
weights() { run "$@"; sed -n 's/^weights //p' "$work/out"; }
# equal ARGUMENT...: the weights without and with checks
equal() {
    without=$(weights "$@")
    is "$* -ck 2" "$without" "$(weights "$@" -ck 2)"
}
equal -pn 2 -z 0 -d 192
equal -pn 3 -z 1 -r 3 -dt bf16
equal -pn 2 -z 2 -r 0 -dt fp16 -d 128
equal -pn 2 -z 3 -r 4 -mt 8
equal -pn 2 -z 3 -qw 8 -zod 2
equal -pn 4 -tp 2 -sp 1 -z 3 -r 2
equal -pn 4 -cp 2 -z 2
equal -pn 4 -cp 2 -ca ring -z 1
equal -pn 2 -z 3 -d 192 -mo layers -mog 2 -r 3
equal -pn 2 -z 3 -lo 4 -lot qkv,fc
equal -pn 2 -fz 'h.0.*,wte,wpe,h.2.qkvw' -pt 1
equal -pn 2 -vr 4 -z 2
equal -pn 2 -zos file -zop file -zog file -z 3

# refused PATTERN ARGUMENT...
refused() {
    pattern=$1
    shift
    run -ck 2 "$@"
    is "$*: exit code" 1 $?
    says "$*" "$pattern"
}
refused '-ck 2: no rank can compute blocks again, because there is one data-parallel rank (1 rank); use' -pn 1
refused 'one data-parallel rank (2 ranks)' -pn 2 -tp 2
refused '-ck 2: -pp is not supported, because' -pn 2 -pp 2 -d 64
refused '-ck 2: -en is not supported, because' -pn 2 -en 2
refused '-ck 2: -ao 1 is not supported, because' -pn 2 -ao 1
refused '-ck 2: a comparison is not supported, because' -pn 2 -z 0,1
refused '-pnf: -ck is not supported, because' -pn 2 -pnf "$work/ranks" -d 192
run -pn 1 -ck 2 -d 192 -pe 1 -n 6 -o "$work/alone"
is 'one rank with -pe: exit code' 0 $?
says 'one rank with -pe' 'products are not checked, because one data-parallel rank is left'
run -pn 2 -ck 7
says 'no check' '^-ck 7 changes nothing here: this run makes 6 steps, after step 0'

# Step 4 is the second that checks, so it checks block 1, in unit 2.
trainer=$B/flipped/train_gpt2_zero
FLIP="1 4 2 9" run -pn 2 -z 3 -ck 2
is 'two ranks: exit code' 1 $?
says 'two ranks' 'train_gpt2_zero: step 4: rank 0 computed block 1 of rank 1 again, and the bits of the .* differ. Two ranks cannot'
is 'two ranks: steps' 3 "$(grep -c '^step ' "$work/out")"
FLIP="1 3 2 9" run -pn 2 -z 3 -ck 2
is 'a step without a check: exit code' 0 $?
FLIP="2 4 2 2" run -pn 3 -ck 2
says 'three ranks' 'step 4: rank 0 computed block 1 of rank 2 again, and the bits of its output.* differ. Rank 1 computed what rank 0 did: rank 2 is wrong'
calm=$(weights -pn 3 -d 192 -ck 2)
FLIP="1 4 2 9" run -pn 3 -d 192 -ck 2 -pe 1 -n 3 -o "$work/elastic"
is 'with -pe: exit code' 0 $?
says 'with -pe: the rank' 'rank 1 is wrong; this rank ends, and the others resume$'
says 'with -pe: goes on' '^train_gpt2_zero: 2 ranks are left: going on$'
says 'with -pe: from' '^resuming from step 3 .* with 2 ranks$'
is 'with -pe: ends with step 6' 1 "$(grep -c '^step  *6/6' "$work/out")"
is 'without a flip, the same program: exit code' 16 "$(printf %s "$calm" | wc -c)"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
