#!/bin/sh
# test_micro_order.sh BUILD - with -mo layers, in which all micro-batches pass a layer before the next layer begins, the
# weights have the bits of a run with -za local, in which the micro-batches pass the model one after the other. The cases
# differ in types, offload, delayed updates, groups of ranks, quantized traffic, experts and adapters. Each of the two
# kinds of runs resumes from the other's checkpoint. Settings that -mo layers excludes are refused in one line. TRAINER
# names another program than BUILD/train_gpt2_zero. Last line: N passed, N failed.
# Lists of arguments are split at blanks on purpose.
# shellcheck disable=SC2086
set -u
B=$1
trainer=${TRAINER:-$B/train_gpt2_zero}
work=$(mktemp -d "${TMPDIR:-/tmp}/test_micro_order.XXXXXX") || exit 1
here=$(dirname "$0")
# shellcheck source=tests/shared/jobs.sh
. "$here/../shared/jobs.sh"
# shellcheck source=tests/shared/sampled.sh
. "$here/../shared/sampled.sh"
at_end "$work"
passed=0 failed=0
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT ZERO_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT
# 12 windows a step: 3 micro-steps on 2 ranks
small="-e char:4x32x2 -t 16 -u 2 -k constant -l 0.01 -b 2 -d 192 -nt 1 -v -1 -g 0 -zfd $work"
layers="-mo layers"

# same NAME EXPECTED FOUND
same() {
    if [ -n "$2" ] && [ "$2" = "$3" ]; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED: $1: expected '$2', found '$3': $(tail -n 1 "$work/out")"; fi
}
# train ARGUMENT... : loss and norm of the last step, and the weights
train() {
    timeout -k 1 120 "$trainer" $small -x 3 "$@" >"$work/out" 2>&1
    sed -n 's/^step  *3.*| \(loss .*\) | lr.*/\1/p; s/^weights //p' "$work/out" | tr '\n' ' '
}
# alike COMMON PASSES LAYERS: both runs have COMMON, and settings of their own that change no bit
alike() {
    sampled 3 || return
    same "$1, $3" "$(train $1 -za local $2)" "$(train $1 $layers $3)"
}

test_bits() {
    untied="-ut 1 -pn 2"
    alike "$untied" "-z 0" "-z 3"
    alike "$untied -zl 32" "-z 1" "-z 2 -r 3"
    alike "-pn 2 -zl 64 -dt bf16" "-z 0" "-z 3 -r 4"
    alike "$untied -dt fp16" "-z 2" "-z 3 -zm 0"
    alike "$untied -dt bf16 -w 0" "-z 1" "-z 3 -zos file -zop file"
    alike "$untied -dt bf16 -w split -os bf16" "-z 1 -zos file" "-z 3 -zos file -zog file -zop file -r 4"
    alike "$untied" "-z 0" "-z 3 -zos file -zog file -zop file"
    alike "$untied -op muon" "-z 0" "-z 3"
    alike "$untied -op lamb" "-z 1" "-z 2"
    alike "$untied -zod 2" "-z 0" "-z 3"
    alike "$untied -zod 2 -dt bf16" "-z 1" "-z 3 -zos file -zop file"
    alike "-ut 1 -pn 4 -b 1" "-z 3 -zs 2" "-z 3 -zs 2 -r 3"
    alike "-ut 1 -pn 4 -b 1" "-z 0" "-z 3 -zm 0 -zh 2"
    alike "-ut 1 -pn 4 -b 1 -ns 2 -z 3 -zm 0 -qw 8 -qg 4" "" "-r 2"
    alike "$untied -z 2 -qg 8 -qf 0.8" "" "-r 0"
    alike "-ut 1 -pn 4 -tp 2 -sp 1" "-z 0" "-z 3 -r 3"
    alike "-pn 4 -tp 2 -zl 32" "-z 1" "-z 2"
    alike "$untied -en 4 -eg 2" "-z 0" "-z 3 -zm 0"
    alike "-ut 1 -pn 4 -en 4 -eg 2 -tp 2 -ek 2" "-z 1" "-z 2 -r 3"
    alike "$untied -lo 4 -lot qkv,fc" "-z 0" "-z 3 -r 3"
    alike "$untied -fz wte,wpe,h.0.*,h.1.*" "-z 1" "-z 3"
    alike "-ut 1 -pn 1" "-z 3" "-z 3 -r 4"
    alike "$untied -pt 1" "-z 2" "-z 3"
    alike "$untied" "-z 0" "-z 3 -r 3 -mog 2"
    alike "$untied -zl 32 -dt bf16" "-z 1" "-z 3 -zm 0 -r 4 -mog 3 -zos file -zop file"
    alike "-ut 1 -pn 4 -tp 2" "-z 0" "-z 3 -r 3 -mog 4"
    alike "-pn 4 -tp 2 -sp 1 -zl 32" "-z 1" "-z 2 -r 4 -mog 2"
}

# A tied wte adds up in another order: printed losses and norms are the same.
test_tied() {
    passes=$(train -pn 2 -z 0 -za local)
    found=$(train -pn 2 -z 3 $layers)
    same 'a tied wte' "${passes% * }" "${found% * }"
    same 'a tied wte at stage 1' "$found" "$(train -pn 2 -z 1 $layers)"
    same 'one micro-step has one order' "$(train -pn 2 -z 1 -d 64)" "$(train -pn 2 -z 1 -d 64 $layers)"
}

# A comparison checks that all stages have the same weights. A run resumes with the same or the other order.
test_runs() {
    timeout -k 1 120 "$trainer" $small -ut 1 -pn 2 -z 0,1,2,3 -x 2 -rd 2 -csv "$work/csv" $layers >"$work/out" 2>&1
    same 'a comparison of stages' "0 4" "$? $(grep -c '^[0-3],' "$work/csv")"
    straight=$(train -ut 1 -pn 2 -z 1 -za local)
    for order in "$layers" "-za local"; do
        rm -rf "$work/log"
        (train -ut 1 -pn 2 -z 3 $layers -x 2 -o "$work/log" -n 2) >/dev/null
        same "resumed with $order" "$straight" "$(train -ut 1 -pn 2 -z 2 $order -o "$work/log" -y 1)"
    done
    train -ut 1 -pn 2 -z 3 $layers -st all >/dev/null
    same 'the settings' 1 "$(grep -c 'all micro-steps, before the next layer (-mo layers)' "$work/out")"
    train -ut 1 -pn 2 -z 3 $layers -r 3 -mog 2 -st all >/dev/null
    same 'the setting of groups' 1 "$(grep -c 'layers of a group .*2 (-mog)' "$work/out")"
    same 'the row of gathers' 1 "$(grep -c 'to gather weights .* forward and backward' "$work/out")"
}

# refused WORDS ARGUMENTS
refused() {
    words=$1
    shift
    timeout -k 1 60 "$trainer" $small -x 1 $layers "$@" >"$work/out" 2>"$work/err"
    same "refused: $*" "1 1 1" "$? $(wc -l <"$work/err") $(grep -cF -- "$words" "$work/err")"
}
test_refused() {
    refused '-mo layers: the schedule of a pipeline (-pp 2) orders the micro-batches' -pn 2 -pp 2
    refused '-mo layers: the schedule of a pipeline (-pp 2)' -pn 2 -layouts 'dp2 pp2'
    refused '(found -za sharded); use -za auto, or -mo passes' -za sharded
    refused '(found -zg type); use -zg f32, or -mo passes' -dt bf16 -zg type
    refused '-mog 2: only the input of the first of 2 layers is kept' -mog 2
    refused '-mog 5: the model has 4 layers' -mog 5 -r 3
    refused '-mog 2: the experts of a layer (-en) are in memory together' -mog 2 -r 3 -en 4
    refused '-mog 2: the lowest 1 layers are frozen' -mog 2 -r 3 -ut 1 -fz 'wte,wpe,h.0.*'
    refused '-mog 2: micro-steps pass groups of layers only with -mo layers' -mog 2 -r 3 -mo passes
}

test_bits
test_tied
test_runs
test_refused
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
