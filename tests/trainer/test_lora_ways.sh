#!/bin/sh
# test_lora_ways.sh BUILD - adapters (--lora) and frozen tensors (--train, --freeze) with fewer bytes of state, split
# masters, accumulation, delayed updates, files, groups of shards, quantized traffic, tensor and pipeline parallelism: the
# same weights at every stage, and after a save at one stage and tier that another one resumes. SEED chooses which runs
# have which ways; ALL=1 tries all pairs. Last line: N passed, N failed.
# Lists of arguments are split at blanks on purpose.
# shellcheck disable=SC2086
set -u
B=$1
trainer=${TRAINER:-$B/train_gpt2_zero}
work=$(mktemp -d "${TMPDIR:-/tmp}/test_lora_ways.XXXXXX") || exit 1
# shellcheck source=tests/shared/jobs.sh
. "$(dirname "$0")/../shared/jobs.sh"
at_end "$work"
passed=0 failed=0
export OMP_NUM_THREADS=1
small="-i $B/data/tiny_char_train.bin -j $B/data/tiny_char_val.bin -e char:2x32x2 -t 16 -v -1 -m 2 -g 0 -u 0 -l 1e-2 -b 2 -nt 1 -zfd $work"
matrices="--lora-alpha 8 --lora-on qkv,proj,fc,fcproj"

# check NAME WHAT-RAN EXPECTED FOUND
check() {
    if [ -n "$3" ] && [ "$3" = "$4" ]; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED: $1, $2: expected '$3', found '$4': $(tail -n 2 "$work/out")"; fi
}
# Runs what is trained, by number: adapters in both types, some layers, a part of all tensors.
runs() {
    case $1 in
    0) echo "--lora 4 $matrices -dt bf16 -w split -os 8bit -nz 0" ;;
    1) echo "--freeze wte,h.0.*,*b -dt bf16 -w 1 -os bf16" ;;
    2) echo "--lora 4 $matrices --train ln* -os bf16" ;;
    3) echo "--train h.1.*,lnf* -os 8bit -nz 0" ;;
    esac
}
# each COMMAND: calls it with the run and the way of each line on standard input.
each() {
    row=$((${SEED:-0} % 4))
    while IFS= read -r way; do
        for k in 0 1 2 3; do
            if [ -n "${ALL:-}" ] || [ $(((k + row) % 4)) = 0 ]; then "$1" "$(runs $k)" "$way" </dev/null; fi
        done
        row=$((row + 1))
    done
}

# The trainer fails if the stages end with other weights.
stages() {
    timeout -k 1 60 "$trainer" $small $1 $2 -x 4 -rd 1 >"$work/out" 2>&1
    check "stages of $1" "$2" 0 $?
}
train() {
    timeout -k 1 60 "$trainer" $small -x 6 "$@" >"$work/out" 2>&1
    sed -n 's/^weights //p' "$work/out"
}
# saves RUN WAY:WAY: the second way, resumed from the first one's checkpoint, ends as the first one does. Nothing is
# converted, and no tensor changes between frozen and trained.
saves() {
    rm -rf "$work/saves"
    whole=$(train $1 ${2%:*} -o "$work/saves" -n 3)
    rm -rf "$work/saves/step_00000006"
    check "saves of $1" "$2" "$whole" "$(train $1 ${2#*:} -o "$work/saves" -n 3 -y 1)"
    check "notes of $1" "$2" 1 "$(grep -Ec 'resuming from step 3|converted|frozen now|trained now' "$work/out")"
}
# Parts of the model save and load the weights that the whole model does.
parts() {
    rm -rf "$work/saves"
    train $1 -d 64 -pn 2 -o "$work/saves" -n 6 >/dev/null
    train $1 $2 -l 0 -x 7 -o "$work/saves" -n 7 -y 1 >/dev/null
    train $1 -d 64 -pn 1 -l 0 -x 8 -o "$work/saves" -n 8 -y 1 >/dev/null
    check "parts of $1" "$2" 0 "$("$B/zero_ckpt" diff "$work/saves/step_00000006" "$work/saves/step_00000008" >"$work/diff" 2>&1
        grep -c ', weight: \|only in\|of another size\|zero_ckpt:' "$work/diff")"
}

each stages <<WAYS
-d 128 -za sharded -z 0,1,2,3 -pn 2
-d 128 -za local -zod 2 -z 0,1,2,3 -pn 2
-d 64 -zos file -zog file -zop file -z 0,1,2,3 -pn 2
-d 128 -za sharded -zod 1 -zos file -zop file -zor 0.5 -z 0,1,2,3 -pn 2
-d 64 -qg 8 -z 1,2,3 -pn 2
-d 128 -zs 2 -qg 4 -z 1,2,3 -pn 4
-d 64 -tp 2 -z 0,1,2,3 -pn 4
-d 128 -tp 2 -sp 1 -zod 2 -zos file -z 0,1,2,3 -pn 4
-d 128 -pp 2 -z 0,1,2,3 -pn 4
-d 128 -mo layers -z 0,1,2,3 -pn 2
WAYS
each saves <<WAYS
-d 64 -z 0 -pn 2:-d 64 -z 3 -pn 2 -zos file -zop file
-d 128 -za sharded -zod 2 -z 3 -pn 2 -zos file:-d 128 -za sharded -zod 2 -z 1 -pn 2
-d 64 -z 3 -pn 2 -qw 8:-d 64 -z 3 -pn 2 -qw 8 -zo 0 -zp 0 -zos file
-d 64 -z 3 -pn 2 -qwf 4 -zos file:-d 64 -z 3 -pn 2 -qwf 4
-d 64 -z 1 -pn 2 -qg 8:-d 64 -z 3 -pn 2 -qg 8
-d 128 -z 2 -pn 4:-d 128 -z 3 -zh 2 -zm 0 -pn 4
-d 128 -z 2 -zs 2 -pn 4:-d 128 -z 3 -zs 2 -pn 4
-d 64 -tp 2 -z 0 -pn 4:-d 64 -tp 2 -z 3 -pn 4
-d 128 -pp 2 -z 1 -pn 4:-d 128 -pp 2 -z 3 -pn 4
WAYS
each parts <<WAYS
-d 128 -pp 2 -tp 2 -z 2 -pn 4
WAYS
echo "$passed passed, $failed failed"
[ $failed = 0 ]
