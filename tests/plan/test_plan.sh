#!/bin/sh
# test_plan.sh BUILD - zero_plan as a program: the same memory as the trainer's own plan, on the CPU and,
# where it was built, of the CUDA version (run on the CPU); one line for what is wrong; CSV, advice,
# a DeepSpeed file. Last line: N passed, N failed[, N skipped].
# Lists of arguments are split at blanks on purpose.
# shellcheck disable=SC2086
set -u
B=$1
cd "$(dirname "$0")/../.." || exit 1
plan=$B/zero_plan
scratch=$B/test_plan.$$
mkdir -p "$scratch" || exit 1
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0 skipped=0
check() { if [ "$1" = 1 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $2"; fi; }
column() { awk -F, -v name="$1" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i } NR == 2 { print $at }' "$scratch/csv"; }
mib() { echo "$1" | awk '{ printf "%.1f", $1 / 1048576 }'; }
said() { sed -n "s/^| *$1  *| \([0-9.]*\) MiB.*/\1/p" "$scratch/said" | head -n 1; }

# ---- the trainer's plan: same ARGUMENTS, same numbers ----
data="-i $B/data/tiny_char_train.bin -j $B/data/tiny_char_val.bin"
same() { # TRAINER ON ARGUMENTS
    trainer=$1 on=$2
    shift 2
    "$trainer" $data -x 0 -v -1 -g 0 -nt 1 -st all "$@" >"$scratch/said" 2>&1
    "$plan" --on "$on" -nt 1 -csv "$scratch/csv" "$@" >"$scratch/out" 2>&1
    for pair in "parameters:param_bytes" "gradients:grad_bytes" "optimizer state:optimizer_bytes" \
                "buffers:buffer_bytes" "by the formula:formula_bytes" "activations:activation_bytes" \
                "sent per step:sent_bytes"; do
        theirs=$(said "${pair%%:*}") mine=$(mib "$(column "${pair##*:}")")
        check "$([ -n "$theirs" ] && [ "$theirs" = "$mine" ] && echo 1)" \
            "$on, $*: ${pair%%:*}: planned '$mine' MiB, the trainer says '$theirs'"
    done
    theirs=$(said "file of a rank")
    [ -z "$theirs" ] || check "$([ "$theirs" = "$(mib "$(column file_bytes)")" ] && echo 1)" "$on, $*: file"
    theirs=$(said "host, of a rank")
    [ -z "$theirs" ] || check "$([ "$theirs" = "$(mib "$(column host_bytes)")" ] && echo 1)" "$on, $*: host"
}
small="-e char:3x128x4 -t 64 -b 4"
cpu=$B/unmeasured/train_gpt2_zero
for stage in 0 1 2 3; do same "$cpu" cpu $small -pn 2 -z $stage; done
same "$cpu" cpu $small -pn 3 -z 3 -dt bf16 -r 3 -zm 0
same "$cpu" cpu $small -pn 2 -z 2 -dt bf16 -d 1024 -zos file -zfd "$scratch"
same "$cpu" cpu $small -pn 2 -z 3 -zos file -zog file -zop file -zod 3 -zfd "$scratch"
same "$cpu" cpu $small -pn 4 -z 3 -dt bf16 -qw 8 -qg 4 -qf 0.8 -ns 2
same "$cpu" cpu $small -pn 3 -z 1 -qg 8
same "$cpu" cpu $small -pn 1 -op sgd -zl 32 -r 2
same "$cpu" cpu $small -pn 2 -z 3 -zl 32 -zm 0 -fz 'h.0.*,h.1.*,wte,wpe'
same "$cpu" cpu $small -pn 2 -z 3 -d 2048 -mo layers -r 3 -dt bf16
same "$cpu" cpu $small -pn 2 -z 3 -d 2048 -mo layers -r 3 -zl 32 -zos file -zog file -zop file -zfd "$scratch"
# layouts: the trainer's plan is rank 0's, and so is the first line of bytes
for layout in "-pn 4 -en 4 -eg 2 -z 2" "-pn 4 -tp 2 -sp 1 -z 3" "-pn 4 -pp 2 -d 2048 -z 1" "-pn 8 -tp 2 -pp 2 -d 2048 -ut 1 -z 2 -dt bf16" \
              "-pn 4 -pp 2 -d 2048 -z 3 -za sharded" "-pn 4 -pp 2 -d 2048 -z 2 -zos file -zog file -zfd $scratch" \
              "-pn 4 -tp 2 -sp 1 -z 3 -d 2048 -mo layers -r 2" "-pn 4 -en 4 -eg 2 -z 3 -d 4096 -mo layers" "-pn 4 -en 4 -tp 2 -z 2 -d 2048 -mo layers" \
              "-pn 4 -tp 4 -op lamb" "-pn 4 -tp 2 -op muon -z 2" "-pn 2 -pp 2 -ppv 2 -d 1024 -e char:4x128x4"; do
    same "$cpu" cpu $small $layout
    theirs=$(said "among parts")
    check "$([ "$theirs" = "$(mib "$(column among_bytes)")" ] && echo 1)" "$layout: among parts: planned $(column among_bytes), said $theirs MiB"
done
check "$([ "$(sed 1d "$scratch/csv" | cut -d, -f19 | sort -u | tr '\n' ' ')" = '0 1 ' ] && echo 1)" "a line of bytes for each stage of a pipeline"
# checkpoints, what is written aside, and two copies in memory that outlives ranks
saves() { # ARGUMENTS
    rm -rf "$scratch/saves"
    same "$cpu" cpu $small "$@" -n 5 -o "$scratch/saves"
    theirs=$(said checkpoints)
    check "$([ -n "$theirs" ] && [ "$theirs" = "$(mib "$(column save_bytes)")" ] && echo 1)" "$*: checkpoints: planned $(column save_bytes), said $theirs MiB"
}
saves -pn 2
saves -pn 2 -z 3 -na 1
saves -pn 3 -z 2 -d 768 -pe 1 -pm 2
saves -pn 3 -z 3 -dt bf16 -d 768 -na 1 -pe 1 -pm 1
saves -pn 4 -tp 2 -sp 1 -z 2 -d 512 -pe 1 -pm 1
saves -pn 4 -pp 2 -d 2048 -z 1 -na 1 -pe 1 -pm 1
saves -pn 4 -en 4 -eg 2 -z 2 -d 1024 -na 1 -pe 1 -pm 1
check "$(grep -q 'of device    for checkpoints and copies in memory 0.0' "$scratch/out" && echo 1)" "zero_plan tells of copies: $(cat "$scratch/out")"
gpu=$B/emulated/train_gpt2_zero
if [ -x "$gpu" ]; then
    export OMP_NUM_THREADS=1
    # -zm 0: as ranks on GPUs of their own
    for stage in 0 3; do same "$gpu" gpu $small -pn 2 -pt 1 -zm 0 -z $stage -dt bf16; done
    same "$gpu" gpu $small -pn 2 -z 2 -zos host -dt bf16
else
    skipped=$((skipped + 1))
    echo "skipped the CUDA version's plan: $gpu was not built"
fi

# ---- what is wrong is told in one line ----
refused() { # WORDS ARGUMENTS
    words=$1
    shift
    "$plan" "$@" >"$scratch/out" 2>"$scratch/err"
    code=$?
    check "$([ $code = 1 ] && [ "$(wc -l <"$scratch/err")" = 1 ] && [ ! -s "$scratch/out" ] && grep -qF -- "$words" "$scratch/err" && echo 1)" \
        "zero_plan $*: code $code: $(cat "$scratch/err" "$scratch/out")"
}
refused "'d11' is not a model" -e d11
refused "zero_plan: -zop is file: at stage 1" -e d12 -z 1 -zop file --on cpu
refused "--memory: expected a size, for example 80G or 640M, found '8X'" --memory 8X
refused "context-parallel ranks divide attention (found -cp 1)" -e d12 -pn 4 -ca ring -b 1
refused "--memory: expected a size" --memory=-4G
refused "--host-memory: expected a size" --host-memory nanG
refused "whole number of parameters" -e 7.5e99
refused "--machine: /none: cannot be read" --machine /none
refused "do not divide the 3 ranks" -pn 3 -ns 2
refused "-z: expected a stage" -z 5
refused "unknown flag '--memry'" --memry 8G
refused "-zop is file: at stage 1 parameters are not sharded; use stage 3" -zop file -z 1 --on cpu
refused "the tokens per step are not a multiple" -d 100 -t 64
refused "-on: expected one of: auto gpu cpu" -on tpu
refused "the nearest size is -tp 2" -pn 4 -tp 3
refused "-pp 3: 4 ranks cannot be divided" -pn 4 -pp 3
refused "-mo layers: the schedule of a pipeline (-pp 2) orders" -pn 2 -pp 2 -mo layers
refused "use at most 8 stages" -e char:8x128x4 -pn 9 -pp 9 -d 576 -b 1 -t 64
refused "--memory: expected a value, found the end" --memory
printf 'flops.f32=1e11\nspeed=3\n' >"$scratch/machine"
refused "machine:2: unknown key 'speed'" --machine "$scratch/machine"
printf 'flops.f32=1e11\n' >"$scratch/machine"
refused "lacks update" -e d12 --machine "$scratch/machine"
mkfifo "$scratch/pipe"
refused "cannot be read (it is not a regular file)" -e d12 --machine "$scratch/pipe"
refused "cannot be written: it is not a regular file" -e d12 -dt bf16 --machine adapters/plan/card.txt --scale "$scratch/pipe" --pictures "$scratch"
refused "cannot be written" --measure /none/machine -dt f32
refused "--scale: the rates of the machine are missing" -e d12 --scale "$scratch/scale.csv"
refused "lacks flops of this type" -e d12 -dt fp16 --machine adapters/plan/card.txt --scale "$scratch/scale.csv"
refused "one micro-step" -e d12 -dt bf16 -b 1 -d 16384 -pn 8 --machine adapters/plan/card.txt --scale "$scratch/scale.csv"
refused "cannot be written" -e d12 -dt bf16 --machine adapters/plan/card.txt --scale /none/scale.csv --pictures "$scratch"

# ---- what is right ----
says() { # WORDS ARGUMENTS
    words=$1
    shift
    "$plan" "$@" >"$scratch/out" 2>&1
    code=$?
    check "$([ $code = 0 ] && grep -qF -- "$words" "$scratch/out" && echo 1)" "zero_plan $*: code $code, without '$words': $(cat "$scratch/out")"
}
says "7500000000 parameters, bf16 and f32 masters, adamw, 64 ranks on GPUs" -e 7.5e9 -pn 64 -dt bf16 -w 1
says "  stage 0: 120, 1: 31.4, 2: 16.6, 3: 1.88" -e 7.5e9 -pn 64 -dt bf16 -w 1
says "Advice: the cheapest that fits is" -e gpt2:d48 -pn 64 -dt bf16 --memory 80G
says "  -z 0 -b 2 -t 1024" -e gpt2:d48 -pn 64 -dt bf16 --memory 80G
says "  -z 1 -b 2 -t 1024" -e gpt2:d48 -pn 64 -dt bf16 --memory 12G
says "-zos host" -e gpt2:d48 -pn 1 -dt bf16 --memory 16G
says "Advice: nothing fits" -e gpt2:d48 -pn 1 -dt bf16 --memory 512M
says "-zos file -zog file -zop file" -e d24 -pn 2 -t 64 -b 1 --on cpu --memory 1G
says "    1 state file " -e d12
says "2 stages x 4 tensor-parallel, rows between layers cut x 8 data-parallel ranks" -e gpt2:d36 -pn 64 -tp 4 -pp 2 -sp 1 -d 524288 -b 1 -dt bf16
says "4 context-parallel (2 Ulysses x 2 ring) x 2 data-parallel ranks, each with 256 tokens" -e d12 -pn 8 -cp 4 -ca both -t 1024 -b 1 --on cpu
says "4 context-parallel (ring) x 1 data-parallel ranks, each with 256 tokens" -e d12 -pn 4 -cp 4 -ca ring -t 1024 -b 1 --on gpu
says "2 tensor-parallel x 2 context-parallel (ring) x 2 data-parallel ranks" -e d12 -pn 8 -tp 2 -cp 2 -ca ring -t 1024 -b 1 --on cpu
says "  rank 0" -e gpt2:d36 -pn 64 -tp 4 -pp 2 -d 524288 -b 1 -dt bf16 --memory 80G
says "Largest models that fit" -e gpt2:d36 -pn 64 -tp 4 -pp 2 -d 524288 -b 1 -dt bf16 --memory 80G
says "    3 and params " -e d12
printf '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 3}' >"$scratch/ds.json"
says "bf16 and split masters" -e d12 -ds "$scratch/ds.json"
says "-b 3 -t 1024" -e d12 -ds "$scratch/ds.json"
printf 'flops.f32=1e12\nupdate=1e11\nlink=1e10\n' >"$scratch/machine"
says "step: compute + send + update" -e d12 -pn 2 --machine "$scratch/machine"
printf 'device=cpu\nflops.f32=1e12\nflops.bf16=8e11\nupdate=1e11\nlink=1e10\n' >"$scratch/machine"
says "-dt f32 is faster on this machine: " -e d12 -pn 2 -dt bf16 --machine "$scratch/machine"
says "step: compute" -e d12 -pn 2 --machine "$scratch/machine"
check "$(grep -q 'is faster' "$scratch/out" || echo 1)" "f32 is said to be faster than f32"
sed 's/8e11/2e12/' "$scratch/machine" >"$scratch/bf16"
says "step: compute" -e d12 -pn 2 -dt bf16 --machine "$scratch/bf16"
check "$(grep -q 'is faster' "$scratch/out" || echo 1)" "f32 is said to be faster than bf16 at twice its rate"
says "usage: ./zero_plan" --help

# -zog auto: as the trainer, gradients that memory has no room for are in the file; the advice has what was typed
grads() { # ARGUMENTS
    "$plan" -e char:4x512x4 -t 16 -b 1 -pn 2 -z 2 -zos file --on cpu -csv "$scratch/csv" "$@" >"$scratch/out" 2>&1
    echo "$([ "$(column grad_bytes)" = 0 ] && echo file || echo memory), fits $(column fits)"
}
for case in "--memory 140M:memory, fits 1" "--memory 110M:file, fits 1" "--memory 110M -zog device:memory, fits 0" ":memory, fits 1"; do
    found=$(grads ${case%%:*})
    check "$([ "$found" = "${case#*:}" ] && echo 1)" "gradients with ${case%%:*}: expected ${case#*:}, found $found"
done
grads --memory 110M >/dev/null
check "$(grep -qx '  -z [0-3] .* -zos file' "$scratch/out" && echo 1)" "advice with typed tiers: $(cat "$scratch/out")"
largest() { grads --memory 1G "$@" >/dev/null && grep '^  stage 2:  as typed' "$scratch/out"; }
check "$([ "$(largest)" = "$(largest -zog file)" ] && [ "$(largest)" != "$(largest -zog device)" ] && echo 1)" \
    "largest models with typed tiers: $(largest), $(largest -zog file), $(largest -zog device)"
"$plan" -e char:4x512x4 -t 16 -b 1 -pn 2 --on cpu --memory 1G >"$scratch/out" 2>&1
check "$(sed -n 's/^  stage 2: .*state file \([^ ]*\)  all file \([^ ]*\)$/\1 \2/p' "$scratch/out" | awk '$2 > 1.1 * $1 { print 1 }')" \
    "the largest model of a row with gradients in memory: $(grep -A4 Largest "$scratch/out")"
# the planner's own flags are none of the trainer's
both=$({ "$plan" --help; "$cpu" --help all; } | sed -n 's/^  \(-[a-z0-9-]*\) *\(--[a-z-]*\) .*/\1\n\2/p' | sort | uniq -d)
check "$([ "$("$plan" --help | grep -c '^  -[a-z]* *--')" -gt 5 ] && [ -z "$both" ] && echo 1)" "flags of trainer and planner: $both"

# ---- attention's memory on this machine's GPU: cuDNN has no kernels for heads of 256 channels but Hopper's ----
cat >"$scratch/driver.c" <<'CODE'
#include <stdlib.h>
int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGet(int *device, int number) { *device = 7; return number; }
int cuDeviceGetAttribute(int *value, int what, int device) { *value = atoi(getenv("MAJOR")); return what != 75 || device != 7; }
CODE
mkdir "$scratch/driver" && ${CC:-cc} -w -shared -fPIC -o "$scratch/driver/libcuda.so.1" "$scratch/driver.c"
on_8=0 on_9=0
for major in 8 9; do
    LD_LIBRARY_PATH=$scratch/driver MAJOR=$major "$plan" --on gpu -e char:2x512x2 -t 64 -b 4 -dt bf16 -csv "$scratch/csv" >"$scratch/out" 2>&1
    check "$(grep -c "compute capability $major\$" "$scratch/out")" "the plan names the GPU: $(head -n 3 "$scratch/out")"
    eval "on_$major=$(column device_bytes)"
done
# 4 sequences, 2 heads: 64 x 128 scores of 16 bits for each, and 256 bytes
check "$([ "$((on_9 - on_8))" = $((4 * 2 * 64 * 128 * 2 + 256)) ] && echo 1)" "attention's memory on Hopper: $on_9, on others $on_8"

# ---- weak scaling ----
says "400 Gbit/s" -e gpt2:d12 -b 4 -dt bf16 --machine adapters/plan/card.txt --scale "$scratch/scale.csv" --pictures "$scratch"
# each link x 8 numbers of ranks x 7 methods; no step is shorter than its compute; a faster link is no slower; all
# three methods send a quarter of what exact stage 3 does, or a little more: embeddings are gathered once
check "$(awk -F, 'NR > 1 { n++; if ($4 < $5) bad++; step[$1, $2, $3] = $4; far[$2, $3] = $8 }
    END { for (r = 8; r <= 1024; r *= 2) {
            if (step[400, r, "exact"] > step[100, r, "exact"] || step[100, r, "all"] > step[100, r, "exact"]) bad++
            if (r > 8 && !(far[r, "all"] >= 0.25 * far[r, "exact"] && far[r, "all"] < 0.34 * far[r, "exact"])) bad++ }
          if (far[8, "exact"] != 0) bad++
          print (n == 112 && !bad) ? 1 : 0 }' "$scratch/scale.csv")" "scale.csv: $(sed -n 1,9p "$scratch/scale.csv")"
check "$(grep -c '<path class="line' "$scratch/scale_100.svg" | grep -qx 6 && grep -q '>1024<' "$scratch/scale_400.svg" && echo 1)" "pictures"
more=
[ $skipped = 0 ] || more=", $skipped skipped"
echo "$passed passed, $failed failed$more"
[ $failed -eq 0 ]
