#!/bin/sh
# gpu.sh build | ops | bench | ranks | resume | offload [NAME...] | table | carry DIR - the project on one GPU, in parts of
# at most 8 minutes each, and one table of what was seen. Needs the CUDA toolkit and no network. Where time is
# short, in this order: each part begins with what is worth most. NAME: only what begins with it, as in `ops memcheck`.
#
#   build   the CUDA trainer and the tests, for the card that is here
#   ops     operations, attention and plugin on the device, losses against the CPU's (tests/tools/golden.txt),
#           compute-sanitizer on a small model
#   bench   bandwidth of kernels, rates of a block's operations; GPT-2 124M and 1558M in bf16: tokens/s, MFU,
#           memory; stages 0-3
#   ranks   stages 0-3 on 2 and 4 threads that share the card, NCCL with 1 rank and, where the library
#           can, with 2 processes on the card
#   resume  stages 0-3 in three types: a run that goes on from a checkpoint, against one without a stop
#   offload state and parameters in the host's memory and in files: the weights of the same run on the
#           device; rate and memory of GPT-2 1558M, bytes over the link and what of it is beside computing; the
#           largest model that trains
#   table   what was measured so far; every part ends with it. What was not says so
#   carry   copies to DIR what another machine may lack: xxHash, cJSON, token files. There: CARRY=DIR
#
# Logs, results.txt and table.md are in B/gpu.
# Settings: B (build), CARRY, LLMC (llm.c's train_gpt2cu, to run beside), LIMIT (480 seconds a part),
# DRY=1 (print what would run), TRAINER and KERNELS (other programs), SMALL=1 (models of a test); PYTHON
# (python3), NCCL_HOME, CUDNN_HOME: where NCCL and cuDNN are (see adapters/cuda.sh).
set -u
cd "$(dirname "$0")/../.." || exit 1
part=${1:-} names=
[ $# -gt 1 ] && [ "$part" != carry ] && { shift; names=$*; set -- "$part"; }
B=${B:-build} CARRY=${CARRY:-} LLMC=${LLMC:-} LIMIT=${LIMIT:-480} DRY=${DRY:-} SMALL=${SMALL:-}
C=$B/cuda G=$B/gpu
TRAINER=${TRAINER:-$C/train_gpt2_zero} KERNELS=${KERNELS:-$C/gpu_kernels}
results=$G/results.txt
started=$(date +%s)
mkdir -p "$G" || exit 1

# ---- running and noting --------------------------------------------------------------------------

wanted() { # NAME
    [ -z "$names" ] && return 0
    for begin in $names; do case $1 in "$begin"*) return 0 ;; esac; done
    return 1
}

# note NAME VALUE: a row of the table, instead of an older one of that name
note() {
    { [ -n "$DRY" ] || ! wanted "$1"; } && return
    touch "$results"
    grep -v "^$1|" "$results" >"$results.new"
    echo "$1|$2" >>"$results.new"
    mv "$results.new" "$results"
    echo "-- $1: $2"
}

# run NAME SECONDS COMMAND...: its output goes to $G/NAME.log. late=1: the part had less time left than that,
# and it was used up
run() {
    name=$1 most=$2 late=
    shift 2
    wanted "$name" || { : >>"$G/$name.log"; return 0; }
    if [ -n "$DRY" ]; then echo "$name: $*"; : >"$G/$name.log"; return 0; fi
    left=$((LIMIT - ($(date +%s) - started)))
    [ "$left" -lt "$most" ] && most=$left late=1
    [ "$most" -lt 5 ] && { echo "no time left in this part" >"$G/$name.log"; return 124; }
    timeout -k 5 "$most" "$@" >"$G/$name.log" 2>&1 </dev/null
    code=$?
    [ $code -eq 124 ] || late=
    return $code
}

# Why a command gave nothing: its last line.
why() { echo "not measured: $(tail -n 1 "$G/$1.log" | cut -c 1-100 | tr '|' ' ')"; }

# suite NAME SECONDS COMMAND...: a program whose last line is `N passed, N failed`
suite() {
    run "$@"
    code=$?
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$G/$1.log" | tail -n 1)
    if [ -n "$line" ]; then note "$1" "$line"; elif [ -n "$late" ]; then note "$1" "not measured: no time"; else note "$1" "FAILED, exit code $code: $(tail -n 1 "$G/$1.log" | cut -c 1-100)"; fi
}

# ---- data ----------------------------------------------------------------------------------------

find_data() { # NAME: its path, here or carried
    for folder in "$B/data" "${CARRY:-.}/data"; do
        [ -f "$folder/$1" ] && { echo "$folder/$1"; return; }
    done
}

# Without GPT-2's tokens at hand: 2 million random ones, all below 32640.
random_tokens() {
    file=$G/random.bin
    [ -f "$file" ] || {
        printf '\350\117\064\001\001\000\000\000\200\204\036\000'
        head -c 1012 /dev/zero
        LC_ALL=C tr -dc '\000-\177' </dev/urandom | head -c 4000000
    } >"$file"
    echo "$file"
}
tokens() {
    found=$(find_data tiny_gpt2_train.bin)
    echo "${found:-$(random_tokens)}"
}

# ---- parts ---------------------------------------------------------------------------------------

part_build() {
    jobs=$(nproc 2>/dev/null || echo 2)
    run build 470 make -j "$jobs" -k B="$B" CARRY="$CARRY" DEVICE=cuda cuda cuda-tests
    code=$?
    took=$(($(date +%s) - started))
    if [ $code -eq 0 ]; then note build "$took s with $jobs jobs"
    else note build "FAILED after $took s: $(grep -E 'error:|undefined reference|cannot find|\*\*\*' "$G/build.log" | head -n 1 | cut -c 1-100)"; fi
    note found "$(sh adapters/cuda.sh report | tr '|' ' ')"
}

# golden TYPE: losses against the CPU's
golden() {
    data=$(find_data tiny_char_train.bin)
    head=$(grep "^run $1 " tests/tools/golden.txt)
    tolerance=$(echo "$head" | cut -d' ' -f3)
    flags=$(echo "$head" | cut -d' ' -f4-)
    if [ -z "$data" ] || [ "data $(cksum <"$data")" != "$(grep '^data' tests/tools/golden.txt)" ]; then
        note "losses-$1$3" "not measured: no tiny Shakespeare tokens (make data, or gpu.sh carry)"
        return
    fi
    # shellcheck disable=SC2086
    run "losses-$1$3" 120 "$TRAINER" $flags $2 -i "$data" -j "$data" -zw 60
    [ -n "$DRY" ] && return
    line=$(awk -v type="$1" -v tolerance="$tolerance" '
        FNR == NR { if ($1 == "run") on = ($2 == type); else if (on && $1 > 0) want[$1] = $2; next }
        /^step/ { split($0, part, "loss "); n++; d = part[2] - want[n]; if (d < 0) d = -d; if (d > worst) worst = d }
        END { if (n < 1) print "none"
              else printf "%s: %d losses, largest difference %.6f, allowed %s\n", (n == 50 && worst <= tolerance) ? "as the CPU" : "FAILED", n, worst, tolerance }
    ' tests/tools/golden.txt "$G/losses-$1$3.log")
    [ "$line" = none ] && [ -z "$late" ] && line="FAILED: $(tail -n 1 "$G/losses-$1$3.log" | cut -c 1-100)"
    [ -n "$late" ] && line="not measured: no time"
    note "losses-$1$3" "$line"
}

# sanitizer TOOL FLAGS
sanitizer() {
    command -v compute-sanitizer >/dev/null 2>&1 || [ -n "$DRY" ] ||
        { note "$1" "not measured: compute-sanitizer is not installed"; return; }
    # shellcheck disable=SC2086
    run "$1" 110 compute-sanitizer --tool "${1%-*}" --error-exitcode 9 "$TRAINER" -e char:2x64x2 -t 32 -b 2 -x 2 \
        -v -1 -g 0 -i "$(find_data tiny_char_train.bin)" -j "$(find_data tiny_char_train.bin)" $2
    code=$?
    summary=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$G/$1.log" | tail -n 1 | tr -d '=')
    if [ -n "$summary" ]; then note "$1" "${summary# }"
    elif [ -n "$late" ]; then note "$1" "not measured: no time"
    else note "$1" "$(why "$1")"; fi
}

part_ops() {
    suite test_gpt2_ops 150 "$C/test_gpt2_ops"
    suite test_attention 120 "$C/test_attention"
    suite test_gpt2 100 "$C/test_gpt2"
    suite test_gpt2_tiles 100 "$C/test_gpt2_tiles"
    suite test_gpt2_parallel 100 "$C/test_gpt2_parallel"
    suite test_cuda 120 "$C/test_cuda"
    for type in f32 bf16 fp16; do golden $type "" ""; done
    sanitizer memcheck "-dt bf16 -z 3 -pn 2"
    sanitizer racecheck "-dt bf16 -z 0"
    sanitizer racecheck-f32 "-dt f32 -z 0" # the own attention kernels
}

weights_of() { sed -n 's/^weights //p' "$G/$1.log" | tail -n 1; }

# Several ranks on one card: the losses of each stage, and the same weights at all.
ranks_of() { # N
    all=
    for stage in 0 1 2 3; do
        golden f32 "-pn $1 -b $((12 / $1)) -z $stage" "-n$1-z$stage"
        all="$all $(weights_of "losses-f32-n$1-z$stage")"
    done
    golden f32 "-pn $1 -b $((12 / $1)) -z 2 -zos host -zou host" "-n$1-host"
    all="$all $(weights_of "losses-f32-n$1-host")"
    [ -n "$DRY" ] && return
    different=$(echo "$all" | tr ' ' '\n' | sed '/^$/d' | sort -u | wc -l)
    if [ "$(echo "$all" | wc -w)" -lt 5 ]; then note "weights-n$1" "not measured: a stage did not end"
    elif [ "$different" -eq 1 ]; then note "weights-n$1" "the same bits at stages 0-3, and with state in the host's memory:$(echo "$all" | cut -d' ' -f1-2)"
    else note "weights-n$1" "FAILED: different weights at stages 0-3, and with state in the host's memory:$all"; fi
}

# NCCL from torchrun's environment: N processes, all on this card. Asks for its own port.
nccl_ranks() { # N STAGE
    port=$((20000 + $$ % 20000))
    echo "for r in \$(seq 0 $(($1 - 1))); do RANK=\$r LOCAL_RANK=\$r WORLD_SIZE=$1 LOCAL_WORLD_SIZE=$1 \
MASTER_ADDR=127.0.0.1 MASTER_PORT=$port NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=4 \
'$TRAINER' \$FLAGS & pids=\"\$pids \$!\"; done; code=0; for p in \$pids; do wait \$p || code=\$?; done; exit \$code"
}

nccl_golden() { # N STAGE
    data=$(find_data tiny_char_train.bin)
    script=$(nccl_ranks "$1" "$2")
    FLAGS="$(grep '^run f32 ' tests/tools/golden.txt | cut -d' ' -f4-) -b $((12 / $1)) -z $2 -zw 60 -i $data -j $data"
    export FLAGS
    kept=$TRAINER
    TRAINER=$G/nccl.sh
    printf '#!/bin/sh\npids=\n%s\n' "$script" >"$TRAINER"
    chmod +x "$TRAINER"
    golden f32 "" "-nccl$1-z$2"
    TRAINER=$kept
    unset FLAGS
    grep -q 'started alone' "$G/losses-f32-nccl$1-z$2.log" &&
        note "losses-f32-nccl$1-z$2" "not measured: one rank was started without a communicator"
    grep -q "^losses-f32-nccl$1-z$2|as the CPU" "$results" 2>/dev/null
}

part_ranks() {
    ranks_of 2
    ranks_of 4
    for stage in 0 3; do nccl_golden 1 $stage; done
    version=$(sh adapters/cuda.sh report | sed -n 's/.*NCCL 2\.\([0-9]*\).*/\1/p')
    for stage in 0 3; do
        if [ "${version:-0}" -ge 30 ] || [ -n "$DRY" ]; then
            nccl_golden 2 $stage || note "losses-f32-nccl2-z$stage" "not measured (experimental in NCCL): $(tail -n 1 "$G/losses-f32-nccl2-z$stage.log" | cut -c 1-80)"
        else
            note "losses-f32-nccl2-z$stage" "not measured: NCCL 2.${version:-?} takes one rank per GPU, 2.30 takes two"
        fi
    done
}

# resumed NAME FLAGS...: the weights of four steps, and of two with two more from a checkpoint
resumed() {
    which=resume-$1 data=$(find_data tiny_char_train.bin)
    shift
    rm -rf "$G/saves"
    flags="-e char:2x32x2 -t 16 -b 4 -d 256 -u 0 -v -1 -g 0 -x 4 -i $data -j $data -o $G/saves"
    # shellcheck disable=SC2086
    run "$which-whole" 60 "$TRAINER" $flags -n 2 "$@"
    rm -rf "$G/saves/step_00000004"
    # shellcheck disable=SC2086
    run "$which" 60 "$TRAINER" $flags -y 1 "$@"
    [ -n "$DRY" ] && return
    if ! grep -q 'going on from step 2' "$G/$which.log"; then note "$which" "FAILED: $(tail -n 1 "$G/$which.log" | cut -c 1-100)"
    elif [ -n "$(weights_of "$which")" ] && [ "$(weights_of "$which")" = "$(weights_of "$which-whole")" ]; then note "$which" "the same bits"
    else note "$which" "FAILED: other weights than without a stop"; fi
}

part_resume() {
    resumed f32-0 -z 0
    resumed bf16-1 -z 1 -dt bf16 -pn 2
    resumed fp16-2 -z 2 -dt fp16 -ls 64 -pn 2
    resumed bf16-3 -z 3 -dt bf16 -pn 2 -na 1
    resumed bf16-host -z 3 -dt bf16 -pn 2 -zos host -zou host
}

# Where state and parameters are kept, and who updates: NAME FLAGS, one a line.
tiers() {
    cat <<TABLE
device
host -zos host -zou host
through -zos host -zou device
params -zos host -zop host
file -zos file
disk -zos file -zop file
all -zos file -zog file -zop file
TABLE
}
# link_of NAME: from rank 0's timeline $G/NAME.json: what a step copies between host and device, and the share of the
# copies' time in which the device computes and waits for nothing. Parameters from the file and gradients to it, on the
# tracks 2 and 1, cross the link, too. The first two steps do not count.
link_of() {
    awk 'function of(key, at) { at = index($0, "\"" key "\":"); return at ? substr($0, at + length(key) + 3) + 0 : -1 }
         /"ph":"X"/ && of("pid") == 0 && of("step") >= 2 {
             what = /"cat":"copy"|"cat":"read".*"tid":258|"cat":"write".*"tid":257/ ? "copy" : ""
             if (what == "" && of("tid") == 256) what = /"cat":"wait"/ ? "wait" : "work"
             if (what == "copy") { bytes += of("bytes"); seen[of("step")] = 1 }
             if (what != "") printf "%.3f %s 1\n%.3f %s -1\n", of("ts"), what, of("ts") + of("dur"), what
         }
         END { for (step in seen) n++; if (n) print "-1 bytes " bytes / n }' "$G/$1.json" 2>/dev/null | sort -n |
        awk '$2 == "bytes" { bytes = $3; next }
             { if (on["copy"] > 0) { all += $1 - last; if (on["work"] > 0 && on["wait"] <= 0) beside += $1 - last }
               last = $1; on[$2] += $3 }
             END { if (all > 0) printf "%.6f GB a step, %.0f %% of the time beside computing\n", bytes / 1e9, 100 * beside / all }'
}

# The largest of these that trains, in the time that there is: what does not fit says so before anything is allocated.
largest() { # NAME FLAGS...
    name=largest-$1
    shift
    for size in $sizes; do
        model "$name" 300 -i "$data" -j "$data" -v -1 -g 0 -dt bf16 -u 2 -e "$size" -b 1 -t "$T" -x 2 -r 3 -z 3 -zfd "$G" "$@" &&
            { note "$name" "$size: $speed"; break; }
    done
}

part_offload() {
    sizes="gpt3:c12288 gpt2:d84 gpt2:d72 gpt3:c4096 gpt2:d60 gpt2:d48"
    all="" large=d48 T=1024
    tiers >"$G/tiers.txt"
    while [ -z "$SMALL" ] && read -r tier flags; do
        golden f32 "-pn 2 -b 6 -z 3 -zfd $G $flags" "-tier-$tier" </dev/null
        all="$all $(weights_of "losses-f32-tier-$tier" 2>/dev/null)"
    done <"$G/tiers.txt"
    different=$(echo "$all" | tr ' ' '\n' | sed '/^$/d' | sort -u | wc -l)
    if [ -n "$DRY$SMALL" ]; then :
    elif [ "$different" -eq 1 ]; then note weights-tiers "the same bits at every tier:$(echo "$all" | cut -d' ' -f1-2)"
    else note weights-tiers "FAILED: different weights at tiers:$all"; fi
    data=$(tokens)
    [ -n "$SMALL" ] && large=char:3x32x2 sizes=char:3x32x2 T=8 data=$(find_data tiny_char_train.bin)
    while read -r tier flags; do
        # shellcheck disable=SC2086
        model "gpt2-1558M-tier-$tier" 60 -i "$data" -j "$data" -v -1 -g 0 -dt bf16 -u 2 -e $large -b 4 -t $T -x 5 -r 1 -z 3 -zfd "$G" -tr "$G/gpt2-1558M-tier-$tier.json" $flags </dev/null
        moved=$(link_of "gpt2-1558M-tier-$tier")
        [ -z "$moved" ] || note "gpt2-1558M-tier-$tier-link" "$moved"
    done <"$G/tiers.txt"
    largest device
    largest host -zos host
    largest all -zos file -zog file -zop file
}

# The mean of the last step lines' rates and utilisation.
speed_of() {
    awk '/^step/ { n = split($0, f, "|"); rate = ""; mfu = ""
             for (i = 1; i <= n; i++) { if (f[i] ~ /tok\/s/) rate = f[i] + 0; if (f[i] ~ /MFU|of matmul/) mfu = f[i] }
             if (rate > 0) { last = rate; what = mfu } }
         /^total average/ { ms = $5 }
         END { if (last > 0) printf "%.0f tokens/s,%s, %.2f ms a step", last, what, ms }' "$G/$1.log"
}

# model NAME SECONDS FLAGS...
model() {
    name=$1 most=$2
    shift 2
    run "$name" "$most" "$TRAINER" "$@"
    speed=$(speed_of "$name")
    [ -n "$DRY" ] && return 0
    if [ -z "$speed" ]; then note "$name" "$(why "$name")"; return 1; fi
    note "$name" "$speed"
    note "$name-memory" "$(sed -n 's/^device memory: //p' "$G/$name.log" | tail -n 1)"
}

# llm.c beside it, on the same tokens and batch.
llmc() { # NAME MODEL B T RECOMPUTE
    [ -n "$LLMC" ] || { note "$1-llmc" "not measured: LLMC= was not given"; return; }
    run "$1-llmc" 120 "$LLMC" -i "$(tokens)" -j "$(tokens)" -e "$2" -b "$3" -t "$4" -d $(($3 * $4)) -x 20 -v 1000 -m 1 -s 0 -z 0 -r "$5" -ge 2
    rate=$(grep -oE '[0-9.]+ tok/s' "$G/$1-llmc.log" | tail -n 1)
    [ -n "$DRY" ] || note "$1-llmc" "${rate:-$(why "$1-llmc")}"
}

# Batch and recompute of the large model, what is fastest first; what does not fit says so at once.
large_runs() {
    [ -n "$SMALL" ] && { echo 1:1; return; }
    megabytes=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null | head -n 1)
    [ "${megabytes:-0}" -gt 120000 ] && echo 32:0
    echo 16:0 16:1 8:1 4:1
}

part_bench() {
    data=$(tokens)
    [ -n "$SMALL" ] && data=$(find_data tiny_char_train.bin)
    common="-i $data -j $data -v -1 -g 0 -dt bf16 -u 2"
    run kernels 90 "$KERNELS" ${SMALL:+0.01}
    if [ -z "$DRY" ] && grep -q '^copy ' "$G/kernels.log"; then
        while read -r name value unit; do note "kernel-$name" "$value $unit"; done <"$G/kernels.log"
        grep -q '^op-.*-products' "$G/kernels.log" || note kernel-op "$(why kernels)"
    else note kernel-copy "$(why kernels)"; fi
    small=d12 large=d48 B124=32 T=1024 steps=20
    [ -n "$SMALL" ] && small=char:2x32x2 large=char:3x32x2 B124=1 T=8 steps=4
    # shellcheck disable=SC2086
    model gpt2-124M 100 $common -e $small -b $B124 -t $T -x $steps -r 0
    # shellcheck disable=SC2086
    model gpt2-124M-any-order 60 $common -e $small -b $B124 -t $T -x $steps -r 0 -ao 1
    for each in $(large_runs); do
        rows=${each%:*} recompute=${each#*:}
        # shellcheck disable=SC2086
        model gpt2-1558M 130 $common -e $large -b $rows -t $T -x $((steps / 2)) -r $recompute && break
    done
    [ -n "$DRY" ] || note gpt2-1558M-batch "$rows windows, -r $recompute"
    # shellcheck disable=SC2086
    model gpt2-1558M-any-order 100 $common -e $large -b $rows -t $T -x $((steps / 2)) -r $recompute -ao 1
    # shellcheck disable=SC2086
    model gpt2-1558M-micro 100 $common -e $large -b $rows -t $T -d $((4 * rows * T)) -x 4 -r $recompute
    # shellcheck disable=SC2086
    model gpt2-1558M-host 130 $common -e $large -b $rows -t $T -d $((4 * rows * T)) -x 4 -r $recompute -zos host -zou host
    llmc gpt2-124M d12 $B124 $T 0
    llmc gpt2-1558M d48 "$rows" $T "$recompute"
    # shellcheck disable=SC2086
    run stages 110 "$TRAINER" $common -e $small -b $((B124 / 4 + 1)) -t $T -z 0,1,2,3 -pn 1 -x 16 -rd 8 -csv "$G/stages.csv"
    if [ -z "$DRY" ]; then
        ratios=$(tail -n +2 "$G/stages.csv" 2>/dev/null | cut -d, -f1,4 | tr '\n,' ' :')
        note stages "${ratios:-$(why stages)}"
    fi
    # shellcheck disable=SC2086
    run gpt2-124M-save 60 "$TRAINER" $common -e $small -b $B124 -t $T -x 9 -n 3 -nk 1 -na 1 -o "$G/saves"
    [ -n "$DRY" ] || note gpt2-124M-save "$(grep '^checkpoint of step 6' "$G/gpt2-124M-save.log" | cut -d: -f2- || why gpt2-124M-save)"
}

# ---- table ---------------------------------------------------------------------------------------

row() { # NAME TEXT
    value=$(grep "^$1|" "$results" 2>/dev/null | tail -n 1 | cut -d'|' -f2-)
    echo "| $2 | ${value:-not measured} |"
}

table() {
    card=$(nvidia-smi --query-gpu=name,memory.total --format=csv,noheader 2>/dev/null | head -n 1)
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
    echo "| $(date -u +%Y-%m-%d), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown) | ${card:-no card}, driver ${driver:-none} |"
    echo "|---|---|"
    row build "build"
    row found "libraries"
    for test in test_gpt2_ops test_attention test_gpt2 test_gpt2_tiles test_gpt2_parallel test_cuda; do row $test "tests/$test on the device"; done
    for type in f32 bf16 fp16; do row losses-$type "50 losses in $type, against the CPU's"; done
    row memcheck "compute-sanitizer memcheck, 2 ranks, stage 3"
    row racecheck "compute-sanitizer racecheck, bf16"
    row racecheck-f32 "compute-sanitizer racecheck, f32"
    for n in 2 4; do
        for stage in 0 1 2 3; do row losses-f32-n$n-z$stage "$n ranks that share the card, stage $stage"; done
        row losses-f32-n$n-host "$n ranks that share the card, stage 2, state in the host's memory"
        row weights-n$n "weights of $n ranks"
    done
    for n in 1 2; do
        for stage in 0 3; do row losses-f32-nccl$n-z$stage "NCCL, $n rank(s) on the card, stage $stage"; done
    done
    for run in f32-0 bf16-1 fp16-2 bf16-3 bf16-host; do row resume-$run "goes on from a checkpoint: type and stage $run"; done
    tiers | while read -r tier flags; do row "losses-f32-tier-$tier" "2 ranks that share the card, stage 3, ${flags:-all on the device}"; done
    row weights-tiers "weights of these"
    tiers | while read -r tier flags; do
        row "gpt2-1558M-tier-$tier" "GPT-2 1558M, bf16, B 4, T 1024, stage 3, ${flags:-all on the device}"
        row "gpt2-1558M-tier-$tier-memory" "its device memory"
        [ "$tier" = device ] || row "gpt2-1558M-tier-$tier-link" "between host and device"
    done
    row largest-device "largest of GPT-2's and GPT-3's models that trains, bf16, T 1024, B 1, stage 3, 1 rank"
    row largest-host "the same, state in the host's memory"
    row largest-all "the same, everything in files"
    row kernel-copy "copy, bytes read and written"
    coded=$(for of in f32-8 f32-4 bf16-8 bf16-4; do echo "encode-$of decode-$of sum-$of"; done)
    for kernel in adamw-f32 adamw-bf16 norm-f32 norm-bf16 $coded layer-norm-768 layer-norm-backward-768 layer-norm-1600 layer-norm-backward-1600; do
        row "kernel-$kernel" "$kernel"
        row "kernel-$kernel-share" "$kernel, share of copy"
    done
    row gpt2-124M "GPT-2 124M, bf16, B 32, T 1024"
    row gpt2-124M-memory "its device memory"
    row gpt2-124M-any-order "the same, attention's gradients in any order"
    row gpt2-124M-save "its checkpoint, written aside"
    row gpt2-124M-llmc "llm.c, the same"
    row gpt2-1558M "GPT-2 1558M, bf16, T 1024"
    row gpt2-1558M-batch "its batch"
    row gpt2-1558M-memory "its device memory"
    row gpt2-1558M-any-order "the same, attention's gradients in any order"
    row gpt2-1558M-micro "the same, 4 micro-steps a step"
    row gpt2-1558M-host "the same, 4 micro-steps a step, state in the host's memory"
    row gpt2-1558M-host-memory "its device memory"
    row gpt2-1558M-llmc "llm.c, the same"
    row stages "tokens/s at stages 0-3 on one rank, of stage 0"
    sed -n 's/^kernel-\(op[^|]*\)|\(.*\)/| \1 | \2 |/p' "$results" 2>/dev/null
}

carry() { # DIR
    mkdir -p "$1/include/cjson" "$1/lib" "$1/data" || exit 1
    for header in xxhash.h cjson/cJSON.h; do
        for folder in /usr/include /usr/local/include; do
            [ -f "$folder/$header" ] && cp "$folder/$header" "$1/include/$header" && break
        done
    done
    for library in xxhash cjson; do
        file=$(echo "int main(void) { return 0; }" | ${CC:-cc} -x c - -Wl,--trace -Wl,--no-as-needed -l$library -o /dev/null | grep "lib$library\." | head -n 1)
        [ -n "$file" ] || { echo "gpu.sh: lib$library is not installed" >&2; exit 1; }
        cp "$(readlink -f "$file")" "$1/lib/lib$library.so"
        name=$(readelf -d "$file" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
        cp "$(readlink -f "$file")" "$1/lib/${name:-lib$library.so}"
    done
    cp "$B"/data/tiny_char_train.bin "$B"/data/tiny_char_val.bin "$B"/data/tiny_gpt2_train.bin "$B"/data/tiny_gpt2_val.bin "$1/data/" || exit 1
    du -sh "$1"
}

case $part in
build | ops | bench | ranks | resume | offload) "part_$part"; [ -n "$DRY" ] || table | tee "$G/table.md" ;;
table) table ;;
carry) carry "${2:?gpu.sh carry: a folder is expected}" ;;
*) echo "gpu.sh: expected build, ops, bench, ranks, resume, offload, table or carry, found '$part'" >&2; exit 2 ;;
esac
