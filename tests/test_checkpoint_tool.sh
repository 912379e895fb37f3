#!/bin/sh
# test_checkpoint_tool.sh BUILD - zero_ckpt on what a training leaves: lists,
# shows, verifies and compares generations, good ones and spoilt ones. Last line: N passed, N failed.
set -u
B=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/test_tool.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

# says CODE TEXT COMMAND...: the exit code, and output that holds TEXT
says() {
    code=$1 text=$2
    shift 2
    out=$("$B/zero_ckpt" "$@" 2>&1)
    got=$?
    if [ $got -eq "$code" ] && echo "$out" | grep -q -e "$text"; then passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "zero_ckpt $*: exit code $got, expected $code and '$text' in: $out"
    fi
}

CHECKPOINT_KEEP=$work/a "$B/test_checkpoint" tool >/dev/null || { echo "0 passed, 1 failed"; exit 1; }
says 0 "step_00000004 .*step 4, 5 tensors, 2126 elements, adamw" list "$work/a"
says 0 "tensor w  *3 x 333  *bf16 f32 f32" show "$work/a/step_00000004"
says 0 "value position = " show "$work/a/step_00000004"
says 0 "step_00000002: good" verify "$work/a"
says 0 "the same" diff "$work/a/step_00000002" "$work/a/step_00000002"
says 1 "wte, moment_1: [0-9]* of 1037 elements differ" diff "$work/a/step_00000002" "$work/a/step_00000004"
says 2 "cannot open the folder" list "$work/none"
says 2 "zero_ckpt list" list
printf X | dd of="$work/a/step_00000004/shard_00000.bin" bs=1 seek=4100 conv=notrunc 2>/dev/null
says 1 "step_00000004: .*corrupt in bytes 0 to" verify "$work/a"
says 1 "corrupt in bytes" diff "$work/a/step_00000002" "$work/a/step_00000004"
rm "$work/a/step_00000002/manifest.json"
says 1 "step_00000002 .*manifest.json" list "$work/a"
says 1 "manifest.json" show "$work/a/step_00000002"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
