#!/bin/sh
# test_recipes.sh BUILD - each of adapters/recipes trains for two steps, with a small model instead of its own. The numbers of
# memory in their comments are those of zero_plan. Last line: N passed, N failed.
# shellcheck disable=SC2015 # ok returns 0
# shellcheck disable=SC2010,SC2013,SC2016,SC2018,SC2019,SC2046 # names without blanks
set -u
B=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")" && while [ ! -f zero_plugin.h ] && [ "$PWD" != / ]; do cd ..; done && pwd)
TRAINER=${TRAINER:-$B/train_gpt2_zero}
case $TRAINER in /*) ;; *) TRAINER=$PWD/$TRAINER ;; esac
dir=$B/recipes.$$
passed=0 failed=0
ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAILED: $*"; }
mkdir -p "$dir" || exit 1
trap 'rm -rf "$dir"' EXIT
ln -s "$root/data" "$dir/data"
export TRAINER OMP_NUM_THREADS=1 TOKENS="$B/tokens" ZERO_CKPT="$B/zero_ckpt"
export TRAIN="$B/data/tiny_gpt2_train.bin" VAL="$B/data/tiny_gpt2_val.bin"
small="-e d6 -t 16 -b 1 -d 64 -x 2 -v -1 -g 0 -nt 1"
hash_of() { grep -E '^weights [0-9a-f]{16}$' "$dir/$1" | tail -n 1; }
# recipe NAME FLAGS...: it succeeds, takes both steps, and ends with a hash
recipe() {
    name=$1
    shift
    (cd "$dir" && timeout 300 sh "$root/adapters/recipes/$name.sh" "$@") >"$dir/$name.out" 2>&1 </dev/null && ok ||
        bad "$name: $(tail -n 3 "$dir/$name.out")"
    grep -qE '^step +2/2 ' "$dir/$name.out" && [ -n "$(hash_of "$name.out")" ] && ok || bad "$name does not take two steps"
}
# shellcheck disable=SC2086
{
RANKS=2 recipe gpt2_124M $small -n 2
[ -d "$dir/log124M/step_00000002" ] && ok || bad "gpt2_124M saves no checkpoint"
FOLDER=$dir recipe gpt2_1558M_offload $small -d 32
grep -q 'file' "$dir/gpt2_1558M_offload.out" && ok || bad "gpt2_1558M_offload prints nothing about files"
"$ZERO_CKPT" export "$dir/log124M" "$dir/model.safetensors" >"$dir/export" 2>&1 && ok || bad "export: $(cat "$dir/export")"
MODEL=$dir/model.safetensors OUT=$dir/tuned recipe finetune_hf -t 16 -x 2 -v -1 -nt 1
[ -s "$dir/tuned/model.safetensors" ] && ok || bad "finetune_hf writes no model"
# both nodes are this machine, with a rank each
(cd "$dir" && HOST0=127.0.0.1 NODE=1 GPUS=1 timeout 300 sh "$root/adapters/recipes/two_nodes.sh" $small -zh 0 -dt f32 >two_1.out 2>&1 </dev/null) &
HOST0=127.0.0.1 NODE=0 GPUS=1 recipe two_nodes $small -zh 0 -dt f32
wait $! && ok || bad "two_nodes: the second node fails: $(tail -n 3 "$dir/two_1.out")"
}
# plan NAME FLAGS...: the comment has the GiB of the device that zero_plan computes at the stage of -z
plan() { # NAME STAGE ON FLAGS...
    name=$1 stage=$2 on=$3
    shift 3
    gib=$("$B/zero_plan" --on "$on" --memory 80G "$@" | awk -v stage="$stage" '{ sub(/as typed/, "device") } $1 == stage && $2 == "device" { printf "%.1f", $8 }')
    grep -q "by the plan.* $gib GiB" "$root/adapters/recipes/$name.sh" && ok || bad "$name: the plan has $gib GiB, the comment does not"
}
plan gpt2_124M 1 gpu -e d12 -dt bf16 -b 64 -t 1024 -d 524288 -r 0 -pn 8
plan gpt2_1558M_offload 3 cpu -e d48 -t 64 -b 1 -r 4 -zos file -zog file -zop file -zl 16768 -pn 2
plan two_nodes 3 gpu -e d48 -dt bf16 -b 4 -t 1024 -d 1048576 -zh 8 -zm 0 -pn 16
plan finetune_hf 3 cpu -e d12 -t 256 -b 1 -pn 2
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
