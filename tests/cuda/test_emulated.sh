#!/bin/sh
# test_emulated.sh BUILD - the trainer's CUDA version, run on the CPU by tests/emulation, against the CPU
# version: the same losses at every stage, number of ranks, recompute and type, and the same bits where
# they are promised; comparison, outlier rules, memory that is too small; then gpu.sh itself, whose parts
# run with the emulated trainer. Last line: N passed, N failed.
# Lists of arguments are split at blanks on purpose.
# shellcheck disable=SC2086
set -u
B=$1
cd "$(dirname "$0")/../.." || exit 1
cuda=$B/emulated/train_gpt2_zero
cpu=$B/unmeasured/train_gpt2_zero
scratch=$B/test_emulated.$$
mkdir -p "$scratch" || exit 1
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0 skipped=0
check() { if [ "$1" = 1 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $2"; fi; }
data="-i $B/data/tiny_char_train.bin -j $B/data/tiny_char_val.bin"
small="$data -e char:2x32x2 -t 16 -v 3 -m 1 -g 4 -x 4 -u 0 -d 256 -f 0"
losses() { sed -n 's/^step .* loss \([0-9.]*\) .* norm \([0-9.]*\) .*/\1 \2/p; s/^val loss //p' "$1"; }

# near NAME TOLERANCE: losses and norms of $scratch/NAME against those of $scratch/cpu
near() {
    losses "$scratch/$1" >"$scratch/a"
    losses "$scratch/cpu" >"$scratch/b"
    far=$(paste "$scratch/a" "$scratch/b" | awk '
        { for (i = 1; i <= NF / 2; i++) { d = $i - $(i + NF / 2); if (d < 0) d = -d; if (d > m) m = d }; n += (NF == 2 || NF == 4) }
        END { print (n == NR && n >= 6) ? m + 0 : 99 }')
    check "$(awk "BEGIN { print ($far <= $2) ? 1 : 0 }")" "$1: losses or norms differ by $far, expected at most $2: $(tail -n 1 "$scratch/$1")"
}
weights() { sed -n 's/^weights //p' "$scratch/$1"; }

for type in f32 bf16 fp16; do
    flags="$small -dt $type -ls 64"
    [ $type = f32 ] && flags=$small
    tolerance=0.02
    [ $type = f32 ] && tolerance=0.00002
    "$cpu" $flags -b 4 -pn 2 >"$scratch/cpu" 2>&1
    for stage in 0 1 2 3; do
        timeout 100 "$cuda" $flags -b 4 -pn 2 -z $stage >"$scratch/z$stage" 2>&1
        near z$stage $tolerance
    done
    check "$([ -n "$(weights z0)" ] && [ "$(weights z0)" = "$(weights z1)" ] && echo 1)" "$type: stage 1 has the weights of stage 0"
    check "$([ -n "$(weights z2)" ] && [ "$(weights z2)" = "$(weights z3)" ] && echo 1)" "$type: stage 3 has the weights of stage 2"
    for tier in '-zos host -zou host' '-zos host -zou device' '-zos file' '-zos host -zop host' '-zos file -zop file' '-zos host -zog file' \
        '-zos file -zog file -zop file'; do
        timeout 100 "$cuda" $flags -b 4 -pn 2 -z 3 -zfd "$scratch" $tier >"$scratch/tier" 2>&1
        check "$([ "$(weights tier)" = "$(weights z3)" ] && echo 1)" "$type: $tier gives the same weights: $(tail -n 1 "$scratch/tier")"
    done
done
# Who updates what the host keeps: what both ways take is in the plan, and either can be demanded. What is pinned, too.
for way in '-zom 1:GPU, with a copy of the state' '-zol 0.1:CPU' '-zou host:CPU, as asked for' '-zou device:GPU, with a copy of the state, as asked for'; do
    timeout 100 "$cuda" $small -b 4 -pn 2 -z 2 -dt bf16 -zos host -st all ${way%%:*} >"$scratch/update" 2>&1
    check "$([ "$(grep -c "^| update  *| by the ${way#*:}  *|\|^|   by the CPU  *| [0-9.]* ms at \|^|   by the GPU  *| [0-9.]* ms\|^|   pinned  *| [0-9.]* MiB, exactly" "$scratch/update")" = 4 ] && echo 1)" \
        "the plan with ${way%%:*}: $(grep '^| update' "$scratch/update")"
done
# DeepSpeed's files that offload, as they are, also to a disk.
for file in zero2_offload:fp16 zero3_host:bf16 zero3_host:f32; do
    json=tests/ds_config/${file%:*}.json type=${file#*:}
    flags="$data -e char:2x32x2 -t 16 -v -1 -g 0 -x 4 -b 3 -d 192 -pn 2 -dt $type"
    sed 's|"cpu"|"none"|' $json >"$scratch/none.json"
    sed "s|\"cpu\"|\"nvme\", \"nvme_path\": \"$scratch\"|" $json >"$scratch/nvme.json"
    for where in "$scratch/none.json" $json "$scratch/nvme.json"; do
        timeout 100 "$cuda" $flags -ds "$where" >"$scratch/ds" 2>&1
        [ "$where" = "$scratch/none.json" ] && expected=$(weights ds)
        check "$([ -n "$expected" ] && [ "$(weights ds)" = "$expected" ] && echo 1)" "-ds ${where##*/}, $type: $(tail -n 1 "$scratch/ds")"
    done
done
"$cpu" $small -b 8 -r 0 >"$scratch/cpu" 2>&1
for r in 0 1 2 3; do
    timeout 60 "$cuda" $small -b 8 -r $r >"$scratch/r$r" 2>&1
    near r$r 0.00002
    [ $r = 0 ] || check "$([ -n "$(weights r0)" ] && [ "$(weights r$r)" = "$(weights r0)" ] && echo 1)" "-r $r has the weights of -r 0"
done
for stage in 0 3; do
    for graphs in 0 1; do timeout 100 "$cuda" $small -b 4 -pn 2 -z $stage -r $stage -cg $graphs >"$scratch/graphs$graphs" 2>&1; done
    check "$([ -n "$(weights graphs0)" ] && [ "$(weights graphs1)" = "$(weights graphs0)" ] && [ "$(losses "$scratch/graphs1")" = "$(losses "$scratch/graphs0")" ] && echo 1)" \
        "-cg 1 has the losses and weights of -cg 0 at stage $stage: $(tail -n 1 "$scratch/graphs1")"
done
# Touched rows alone are sent: 2 ranks add f32, so weights are those of -sr 0; the trace has fewer bytes for unit 0.
sent() { # NAME: the bytes of the reductions of unit 0
    awk '/"cat":"reduction"/ && /"unit":0,/ { sub(/.*"sent":/, ""); n += $1 + 0 } END { print n + 0 }' "$scratch/$1.json"
}
for stage in 0 3; do
    for rows in 0 1; do
        timeout 100 "$cuda" $small -d 32 -b 1 -pn 2 -ut 1 -z $stage -sr $rows -tr "$scratch/rows$rows.json" >"$scratch/rows$rows" 2>&1
    done
    check "$([ -n "$(weights rows0)" ] && [ "$(weights rows1)" = "$(weights rows0)" ] && echo 1)" \
        "-sr 1 has the weights of -sr 0 at stage $stage: $(tail -n 1 "$scratch/rows1")"
    check "$(awk "BEGIN { print ($(sent rows1) > 0 && $(sent rows1) < $(sent rows0)) }")" \
        "-sr 1 sends less at stage $stage: $(sent rows1) bytes, densely $(sent rows0)"
done
timeout 60 "$cuda" $small -b 4 -pn 2 -tp 2 -cg 1 >"$scratch/graphs" 2>&1
check "$(grep -c 'train_gpt2_zero: -cg 1: graphs of blocks: not with' "$scratch/graphs")" "-cg 1 is refused with -tp 2: $(tail -n 1 "$scratch/graphs")"
# The host never touches device memory: it is inaccessible after every call of CUDA.
for way in '-z 3 -zos host -zop host' '-z 2 -dt bf16 -os 8bit -lo 4' '-z 3 -ut 1 -sr 1' '-z 3 -cp 2 -ca ring'; do
    for hide in 0 1; do EMULATION_HIDE=$hide timeout 100 "$cuda" $small -x 1 -d 64 -v -1 -g 0 -b 2 -pn 2 $way >"$scratch/hide$hide" 2>&1; done
    check "$([ -n "$(weights hide0)" ] && [ "$(weights hide1)" = "$(weights hide0)" ] && echo 1)" "device memory is hidden from the host, $way: $(tail -n 1 "$scratch/hide1")"
done
wide="$data -e char:5x32x2 -t 16 -v 3 -m 1 -g 4 -x 4 -u 0 -d 256 -f 0 -b 4 -pn 2 -zl 32"
"$cpu" $wide -r 3 >"$scratch/cpu" 2>&1
for way in "-r 3" "-r 4" "-r 4 -z 3"; do
    name=tiles$(echo $way | tr -d ' ')
    timeout 60 "$cuda" $wide $way >"$scratch/$name" 2>&1
    near "$name" 0.00002
done
check "$([ -n "$(weights tiles-r3)" ] && [ "$(weights tiles-r3)" = "$(weights tiles-r4)" ] && echo 1)" "-r 4 has the weights of -r 3"
timeout 60 "$cuda" $small -b 4 -sl 100 -sg 100 >"$scratch/judged" 2>&1
timeout 60 "$cuda" $small -b 4 >"$scratch/plain" 2>&1
check "$(grep -c "$(sed -n "s/.*grep -q '\(launched [a-z ]*\)'.*/\1/p" tests/cuda/gpu.sh)," "$scratch/plain")" "gpu.sh recognises a rank that was launched alone: $(grep '^| ranks' "$scratch/plain")"
check "$([ "$(losses "$scratch/judged")" = "$(losses "$scratch/plain")" ] && [ "$(weights judged)" = "$(weights plain)" ] && echo 1)" \
    "-sl and -sg that skip nothing change nothing"
timeout 100 "$cuda" $data -z 0,1,2,3 -e char:2x32x2 -t 16 -b 2 -x 2 -rd 2 -csv "$scratch/csv" >"$scratch/compare" 2>&1
check "$(tail -n +2 "$scratch/csv" | cut -d, -f14 | sort | uniq -c | awk '$1 == 4 { print 1 }')" "a comparison ends with equal weights: $(tail -n 1 "$scratch/compare")"
timeout 60 "$cuda" -e d48 -t 1024 -b 64 -i "$B/data/tiny_gpt2_train.bin" -j "$B/data/tiny_gpt2_val.bin" -g 0 >"$scratch/large" 2>&1
check "$(grep -c '^train_gpt2_zero: .*memory free of' "$scratch/large")" "a model larger than the device is refused: $(tail -n 1 "$scratch/large")"
# A GPU with a little less memory than planned: attention's backward runs in pieces, with the same bits; with too little the
# run is refused.
pieces="$small -dt bf16 -b 16 -z 0 -st all"
for short in 0 300000 700000; do
    [ $short = 0 ] || EMULATION_MEMORY=$(awk -v of="$whole" -v short=$short 'BEGIN { printf "%d", of * 1048576 - short }')
    [ $short = 0 ] || export EMULATION_MEMORY
    timeout 60 "$cuda" $pieces >"$scratch/short$short" 2>&1
    whole=$(sed -n 's/^device memory: .* \([0-9.]*\) MiB planned.*/\1/p' "$scratch/short0")
done
unset EMULATION_MEMORY
check "$(grep -c 'flash attention, deterministic, [0-9]* pieces' "$scratch/short300000")" "attention in pieces: $(tail -n 1 "$scratch/short300000")"
check "$([ -n "$(weights short0)" ] && [ "$(weights short300000)" = "$(weights short0)" ] && ! grep -q 'pieces' "$scratch/short0" && echo 1)" \
    "pieces have the weights of one call: $(weights short300000)"
taken() { sed -n 's/^device memory: \([0-9.]*\) MiB taken.*/\1/p' "$scratch/short$1"; }
check "$(awk -v whole="$(taken 0)" -v less="$(taken 300000)" 'BEGIN { print (less > 0 && less < whole) }')" "pieces take less: $(taken 300000), not $(taken 0)"
check "$(grep -c '^train_gpt2_zero: .*memory free of' "$scratch/short700000")" "less than one head's memory is refused: $(tail -n 1 "$scratch/short700000")"
# of the host as well, which a /proc/meminfo of its own has
if unshare -m true 2>/dev/null; then
    echo "MemAvailable: 64 kB" >"$scratch/meminfo"
    # shellcheck disable=SC2016 # it is the inner shell's
    unshare -m sh -c 'mount --bind "$0" /proc/meminfo && exec "$@"' "$scratch/meminfo" timeout 100 "$cuda" $small -b 4 -pn 2 -z 2 \
        -zos file -zfd "$scratch" >"$scratch/little" 2>&1
    check "$(grep -c '^gradients go to the file' "$scratch/little")" "gradients leave the host: $(tail -n 1 "$scratch/little")"
    check "$(grep -c 'MiB are available' "$scratch/little")" "a state larger than the host is refused: $(tail -n 1 "$scratch/little")"
else echo "skipped: a host of little memory needs root and mount namespaces"; skipped=1; fi

for part in build ops ranks resume check offload bench all; do
    B=$B DRY=1 sh tests/cuda/gpu.sh $part >"$scratch/dry" 2>&1
    check "$([ "$(wc -l <"$scratch/dry")" -ge 1 ] && ! grep -q 'not found' "$scratch/dry" && echo 1)" "gpu.sh $part, dry"
done
# Every test that is built for a GPU has a row, and is carried.
B=$B DRY=1 sh tests/cuda/gpu.sh ops >"$scratch/dry" 2>&1
for name in $(sed -n 's/^cuda-tests: .*,\(.*\))$/\1/p' adapters/cuda.mk | tr ' ' '\n' | grep '^test_'); do
    check "$([ "$(grep -c "^$name: " "$scratch/dry")" = 1 ] && [ "$(sed -n '/^table/,/^}/p; /^carry_programs/,/^}/p' tests/cuda/gpu.sh | grep -cw "$name")" = 2 ] && echo 1)" "gpu.sh runs $name"
done
mkdir -p "$scratch/gpu"
ln -s "$(cd "$B" && pwd)/data" "$scratch/gpu/data"
export KERNELS="$B/emulated/gpu_kernels"
B=$scratch/gpu TRAINER=$cuda SMALL=1 LIMIT=60 sh tests/cuda/gpu.sh bench >"$scratch/bench" 2>&1
check "$(grep -c '^| GPT-2 124M, bf16, B 32, T 1024 | [0-9]* tokens/s' "$scratch/bench")" "gpu.sh bench: $(grep 'GPT-2 124M' "$scratch/bench")"
check "$(grep -c '^| its attention | cuDNN .* flash attention, deterministic' "$scratch/bench" | awk '{ print ($1 == 2) }')" "gpu.sh bench, attention: $(grep 'its attention' "$scratch/bench")"
check "$(grep -c '^| tokens/s at stages 0-3 on one rank, of stage 0 | 0:1.0000 1:' "$scratch/bench")" "gpu.sh bench, stages: $(grep 'stages 0-3' "$scratch/bench")"
check "$(grep -c '^| \(4 layers of 128 channels, bf16, B 12, T 64\|the same, blocks as CUDA graphs\) | [0-9]* tokens/s' "$scratch/bench" | awk '{ print ($1 == 2) }')" \
    "gpu.sh bench, graphs: $(grep -e 'char4' "$scratch/bench")"
for kernel in adamw-bf16 encode-f32-8 decode-bf16-4 sum-bf16-8; do
    check "$(grep -c "^| $kernel, share of copy | [0-9.]* of-copy" "$scratch/bench")" "gpu.sh bench, $kernel"
done
B=$scratch/gpu TRAINER=$cuda sh tests/cuda/gpu.sh resume >"$scratch/resume" 2>&1
check "$(grep -c '^| goes on from a checkpoint.*| the same bits |$' "$scratch/resume" | awk '{ print ($1 == 5) }')" "gpu.sh resume: $(grep -e '-- resume' "$scratch/resume")"
B=$scratch/gpu TRAINER=$cuda SMALL=1 sh tests/cuda/gpu.sh offload >"$scratch/offload" 2>&1
check "$(grep -c '^| GPT-2 355M, bf16, B 4, T 1024, stage 3, .* | [0-9]* tokens/s' "$scratch/offload" | awk '{ print ($1 == 7) }')" "gpu.sh offload: $(grep 'stage 3, ' "$scratch/offload")"
# AdamW in bf16 with split masters: 10 bytes of state each way through the GPU; else a gradient down and a parameter up
numel=$(sed -n 's/^| parameters  *| \([0-9]*\).*/\1/p' "$scratch/gpu/gpu/gpt2-355M-tier-host.log" | head -n 1)
for way in host:4 through:20 disk:4 all:4; do
    check "$(sed -n "s/^-- gpt2-355M-tier-${way%:*}-link: \([0-9.]*\) GB.*/\1/p" "$scratch/offload" |
        awk -v n="$numel" -v each="${way#*:}" '{ of = 1e9 * $1 / (each * n); print (of > 0.99 && of < 1.05) }')" \
        "gpu.sh offload, ${way%:*}: $(grep -e '-link' "$scratch/offload")"
done
check "$(grep -q '"tid":260' "$scratch/gpu/gpu/gpt2-355M-tier-through.json" && ! grep -q '"cat":"copy".*"tid":256' "$scratch/gpu/gpu/gpt2-355M-tier-through.json" && echo 1)" \
    "copies have a track of their own"
check "$(grep -c '^| the same, .* | char:3x32x2: [0-9]* tokens/s' "$scratch/offload" | awk '{ print ($1 == 2) }')" "gpu.sh offload, largest: $(grep 'the same, ' "$scratch/offload")"
check "$(grep -c '^| its checkpoint, written aside |.*being written' "$scratch/bench")" "gpu.sh bench, checkpoint: $(grep 'written aside' "$scratch/bench")"
check "$(awk '/ rows were not measured yet: see table.md/ { print ($1 > 10) }' "$scratch/bench")" "gpu.sh says how much was not measured: $(tail -n 1 "$scratch/bench")"
# ---- gpu.sh on a machine that lacks what another one carried, and with little time ----
mkdir "$scratch/bare" "$scratch/results"
B=$B COMMIT=abc1234 sh tests/cuda/gpu.sh carry "$scratch/carried" >"$scratch/carry" 2>&1
check "$([ -x "$scratch/carried/bin/make" ] && [ -f "$scratch/carried/data/tiny_char_train.bin" ] && [ -f "$scratch/carried/include/xxhash.h" ] && echo 1)" \
    "gpu.sh carry: $(tail -n 1 "$scratch/carry")"
# without GPT-2's tokens the model of its vocabulary trains on random ones
B=$scratch/bare TRAINER=$cuda SMALL=tokens RESULTS=$scratch/results sh tests/cuda/gpu.sh bench gpt2-124M-any >"$scratch/random" 2>&1
check "$(grep -c '^| the same, .*any order | [0-9]* tokens/s' "$scratch/random")" "gpu.sh on random tokens: $(tail -n 3 "$scratch/random")"
all_again() { B=$scratch/bare CARRY=$scratch/carried RESULTS=$scratch/results TRAINER=$cuda MINUTES=$1 sh tests/cuda/gpu.sh all resume-f >"$scratch/$2" 2>&1; }
all_again 5 first
check "$(grep -c '^-- resume.*the same bits' "$scratch/first" | awk '{ print ($1 == 2) }')" "gpu.sh all: $(grep -e '-- resume' "$scratch/first")"
check "$(grep -cx 'abc1234' "$scratch/carried/commit")" "the carried commit: $(cat "$scratch/carried/commit")"
check "$(COMMIT=def5678 B=$scratch/bare RESULTS=$scratch/results sh tests/cuda/gpu.sh table | grep -c 'commit def5678 ')" "the table names the commit that was given"
check "$(tar -tzf "$scratch/results/logs-resume.tar.gz" | grep -c 'resume-f32-0.log')" "an archive of the part's logs"
all_again 5 second
check "$(grep -c '^-- ' "$scratch/second" | awk '{ print ($1 == 0) }')" "gpu.sh all leaves out what was measured: $(grep -e '^-- ' "$scratch/second")"
check "$(grep -c '| the same bits |' "$scratch/second" | awk '{ print ($1 == 2) }')" "it prints the earlier results"
rm "$scratch/results/results.txt"
B=$scratch/bare CARRY=$scratch/carried RESULTS=$scratch/results TRAINER=$cuda LIMIT=6 sh tests/cuda/gpu.sh resume >"$scratch/late" 2>&1
check "$(grep -c '^-- resume.*not measured: no time' "$scratch/late" | awk '{ print ($1 >= 4) }')" "rows without time: $(grep -e '-- ' "$scratch/late")"
check "$(grep -c 'FAILED' "$scratch/late" | awk '{ print ($1 == 0) }')" "no row fails for lack of time: $(grep FAILED "$scratch/late")"
check "$([ "$(wc -c <"$scratch/late")" -lt 8000 ] && echo 1)" "the table is short"
[ $skipped -gt 0 ] && more=", $skipped skipped" || more=
echo "$passed passed, $failed failed$more"
[ $failed -eq 0 ]
