#!/bin/sh
# test_products.sh BUILD - the trainer's -pc: a choice of ways is measured once, written, read again and the same
# for all ranks; its hash goes into main.log and checkpoints; another one is told, and a bad file refused.
# TRAINER names another program than BUILD/train_gpt2_zero. Last line: N passed, N failed.
# Lists of arguments are split at blanks on purpose.
# shellcheck disable=SC2086
set -u
B=$1
trainer=${TRAINER:-$B/train_gpt2_zero}
work=$(mktemp -d "${TMPDIR:-/tmp}/test_products.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
small="-e char:2x32x2 -t 16 -b 4 -v -1 -g 0 -nt 1 -st all"

# same NAME EXPECTED FOUND
same() {
    if [ -n "$2" ] && [ "$2" = "$3" ]; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED: $1: expected '$2', found '$3'"; fi
}
says() { if grep -qe "$2" "$work/out"; then passed=$((passed + 1)); else same "$1" "$2" "$(tail -n 2 "$work/out")"; fi; }
train() {
    timeout -k 1 60 "$trainer" $small "$@" >"$work/out" 2>&1
    sed -n 's/^weights //p' "$work/out"
}

one=$(train -x 6 -pn 2 -pc "$work/choice" -o "$work/a" -n 4)
says "the choice is told" '^| GEMM algorithms .* f32 by the choice of hash '
hash=$(sed -n 's/^s:0 products:\([0-9a-f]*\) t:.*/\1/p' "$work/a/main.log")
says "the hash of main.log" "choice of hash $hash"
same "lines of the choice" 12 "$(grep -c '^[NT][NT] [0-9]* [0-9]* [0-9]* [a-z]* # ' "$work/choice")"
cp "$work/choice" "$work/first"
same "equal commands, equal bits" "$one" "$(train -x 6 -pn 2 -pc "$work/choice" -o "$work/b" -n 4)"
same "it is not written again" same "$(cmp "$work/first" "$work/choice" && echo same)"

# All products the other way: told, as a checkpoint goes on.
for way in sgemm packed; do sed "s/ [a-z]* #/ $way #/" "$work/first" >"$work/$way"; done
all=$(train -x 6 -pc "$work/packed" -o "$work/c" -n 4)
rm -rf "$work/c/step_00000006"
same "goes on with the same choice" "$all" "$(train -x 6 -pc "$work/packed" -o "$work/c" -n 4 -y 1)"
same "nothing differs" no "$(grep -q 'it was saved with' "$work/out" && echo yes || echo no)"
same "one line of main.log" 1 "$(grep -c products: "$work/c/main.log")"
rm -rf "$work/c/step_00000006"
train -x 6 -pc "$work/sgemm" -o "$work/c" -n 4 -y 1 >/dev/null
says "another choice is told" 'it was saved with GEMM algorithms: choice of hash .*; now it is choice of hash '
same "and so is it in main.log" 2 "$(grep -c products: "$work/c/main.log")"
rm -rf "$work/c/step_00000006"
train -x 6 -o "$work/c" -n 4 -y 1 >/dev/null
says "and none" 'it was saved with GEMM algorithms: choice of hash .*; now it is table for '

echo 'NT 1 2 3 mkl' >"$work/bad"
train -x 1 -pn 2 -pc "$work/bad" >/dev/null
says "a bad file" "^train_gpt2_zero: -pc: $work/bad:1: the GEMM algorithms are sgemm, matmul, packed and apart\$"
mkfifo "$work/pipe"
train -x 1 -pn 2 -pc "$work/pipe" >/dev/null
says "a named pipe" "^train_gpt2_zero: -pc: $work/pipe: it is not a regular file\$"
train -x 1 -dt bf16 -pc "$work/choice" >/dev/null
says "16 bit" '^train_gpt2_zero: -pc: GEMM algorithms are chosen for f32 only'
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
