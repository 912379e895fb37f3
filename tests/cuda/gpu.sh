#!/bin/sh
# gpu.sh build | ops | bench | ranks | resume | check | offload | all [NAME...] | table | carry DIR - tests and
# measures the project on one GPU, in parts, and prints one table of the results. It needs the CUDA toolkit and no
# network. Each part begins with the rows that are worth most. NAME: only rows that begin with it, as in `ops test_cuda`.
#
# A first half hour on a card, in three calls of at most 10 minutes, and a second one: each call is
#     MINUTES=9 RESULTS=folder sh tests/cuda/gpu.sh all
#   call 1  build (8 minutes on 2 processors, 2 on 16), losses, attention, operations, test_cuda
#   call 2  the other tests, kernels, GPT-2 124M and 1558M
#   call 3  several ranks on the card, checkpoints
#   call 4  compute-sanitizer
#   call 5  offload: the same weights at each tier, then rates
#   call 6  offload: the largest model
# `all` takes the parts in this order, leaves out what RESULTS has from earlier calls, and begins only what fits into
# MINUTES. Bring results.txt of the earlier calls along in RESULTS.
#
#   build   the CUDA trainer and the tests, for the GPU of this machine          at most 470 s
#   ops     losses against the CPU's (tests/tools/golden.txt), attention, operations and plugin   at most 480 s
#   bench   bandwidth of kernels, rates of a block's operations; GPT-2 124M and 1558M in bf16: tokens/s, MFU,
#           memory; stages 0-3                                                   at most 480 s
#   ranks   stages 0-3 on 2 and 4 threads that share the card, NCCL with 1 rank and, where the library
#           can, with 2 processes on the card; stages 2 and 3 with types of state, adapters, frozen tensors,
#           layers in order, touched rows, quantized traffic, parallel layouts; sequences of
#           65,536 tokens over 1, 2 and 4 threads   at most 480 s
#   resume  stages 0-3 in three types: a run that resumes from a checkpoint, against one without a stop   at most 480 s
#   check   compute-sanitizer on a small model                                   at most 330 s
#   offload state and parameters in CPU memory and in files: the weights of the same run on the device; rate and
#           memory of GPT-2 355M, bytes over the link and the share of their time that overlaps with computing; the
#           largest model that trains                                            at most 480 s
#   all     all of these, see above
#   table   what was measured so far; every part ends with it. What was not measured is listed
#   carry   copies to DIR what another machine may lack: make, xxHash, cJSON, token files, and, if given, llm.c's
#           trainer (LLMC) and NCCL (NCCL_LIBRARY: libnccl.so.2 next to ../include; ARCH=90: the GPU that it keeps).
#           BUILT=1: also the programs of B/cuda, so that the other machine builds nothing. Build them before, for its
#           GPU and any processor: make DEVICE=cuda ARCHS=90 OPT="-O3 -march=x86-64-v3" cuda cuda-tests.
#           DIR stays below 60 MiB. On the other machine: CARRY=DIR
#
# Logs and table.md are in B/gpu. RESULTS=folder: results.txt, table.md and one archive of logs for each part are
# written to that folder after every row, and earlier results are read from there.
# Settings: B (build), RESULTS, CARRY, LLMC (llm.c's train_gpt2cu, to compare with), LIMIT (480 seconds for a part),
# MINUTES (for `all`), AGAIN=1 (`all` also repeats what was measured), DRY=1 (print what would run), TRAINER and KERNELS
# (other programs), SMALL=1 (models of a test; SMALL=tokens: with GPT-2's vocabulary), COMMIT (its name, where there is
# no .git); PYTHON (python3), NCCL_HOME, CUDNN_HOME: where NCCL and cuDNN are (see adapters/cuda.sh).
set -u
cd "$(dirname "$0")/../.." || exit 1
part=${1:-} names=
[ $# -gt 1 ] && [ "$part" != carry ] && { shift; names=$*; set -- "$part"; }
B=${B:-build} CARRY=${CARRY:-} LLMC=${LLMC:-} LIMIT=${LIMIT:-480} DRY=${DRY:-} SMALL=${SMALL:-}
C=$B/cuda G=$B/gpu
TRAINER=${TRAINER:-$C/train_gpt2_zero} KERNELS=${KERNELS:-$C/gpu_kernels}
RESULTS=${RESULTS:-} AGAIN=${AGAIN:-} MINUTES=${MINUTES:-} now=$part
results=${RESULTS:-$G}/results.txt
[ "$part" = all ] && LIMIT=$((${MINUTES:-9} * 60 - 15)) # archives and table take the rest
started=$(date +%s)
mkdir -p "$G" ${RESULTS:+"$RESULTS"} || exit 1
[ -n "$CARRY" ] && [ -x "$CARRY/bin/make" ] && PATH=$PATH:$(cd "$CARRY" && pwd)/bin
if [ -n "$CARRY" ] && [ -f "$CARRY/nccl/lib/libnccl.so.2.xz" ]; then # a library that was made small: see carry
    NCCL_HOME=$(cd "$CARRY/nccl" && pwd)
    export NCCL_HOME
    [ -f "$NCCL_HOME/lib/libnccl.so.2" ] || ${PYTHON:-python3} -c 'import lzma, shutil, sys
shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"))' "$NCCL_HOME/lib/libnccl.so.2.xz" "$NCCL_HOME/lib/libnccl.so.2"
fi
if [ -n "$CARRY" ] && [ -f "$CARRY/programs.tar.xz" ]; then # they look for libraries where cuda.sh finds them here
    LD_LIBRARY_PATH=$(sh adapters/cuda.sh link | tr ' ' '\n' | sed -n 's/^-Wl,-rpath,//p' | tr '\n' ':')$(cd "$CARRY" && pwd)/lib
    export LD_LIBRARY_PATH
fi
[ -n "$LLMC" ] || { [ -n "$CARRY" ] && [ -x "$CARRY/bin/train_gpt2cu" ] && LLMC=$CARRY/bin/train_gpt2cu; }

# ---- running and noting --------------------------------------------------------------------------

# measured NAME: a row that has a value and has not failed
measured() { grep "^$1|" "$results" 2>/dev/null | grep -qv "^$1|\(not measured\|FAILED\)"; }

wanted() { # NAME
    [ "$part" = all ] && [ -z "$AGAIN" ] && [ "$1" != build ] && measured "$1" && return 1
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
    [ -z "$RESULTS" ] || tar -czf "$RESULTS/logs-$now.tar.gz" -C "$G" --exclude='*.bin' --exclude=saves . 2>/dev/null
}

# run NAME SECONDS COMMAND...: its output goes to $G/NAME.log. SECONDS is its worst time. late=1: the time ended
# first. A command for which less than a quarter of its worst time is left does not begin.
run() {
    name=$1 most=$2 late=
    shift 2
    wanted "$name" || { : >>"$G/$name.log"; return 0; }
    if [ -n "$DRY" ]; then echo "$name: $*"; : >"$G/$name.log"; return 0; fi
    left=$((LIMIT - ($(date +%s) - started)))
    if [ "$left" -lt 5 ] || [ $((4 * left)) -lt "$most" ]; then late=1; echo "no time left" >"$G/$name.log"; return 124; fi
    [ "$left" -lt "$most" ] && most=$left
    timeout -k 5 "$most" "$@" >"$G/$name.log" 2>&1 </dev/null
    code=$?
    # 137: it did not end when it was told to
    if [ $code -eq 124 ] || [ $code -eq 137 ]; then late=1; fi
    return $code
}

# Prints why a command gave nothing: the time, or its last line.
why() {
    if [ -n "$late" ]; then echo "not measured: no time"
    else echo "not measured: $(tail -n 1 "$G/$1.log" | cut -c 1-100 | tr '|' ' ')"; fi
}

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
        printf '\210\330\064\001\001\000\000\000\200\204\036\000'
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

# Programs that were carried, instead of a build.
unpack_programs() {
    ${PYTHON:-python3} -c 'import sys, tarfile
tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$CARRY/programs.tar.xz" "$B" >"$G/build.log" 2>&1
}
part_build() {
    if [ -n "$CARRY" ] && [ -f "$CARRY/programs.tar.xz" ] && [ -z "$DRY" ]; then
        if unpack_programs; then note build "programs that were carried"; else note build "FAILED: $(tail -n 1 "$G/build.log" | cut -c 1-100)"; fi
        note found "$(sh adapters/cuda.sh report | tr '|' ' ')"
        return
    fi
    jobs=$(nproc 2>/dev/null || echo 2)
    run build $((LIMIT > 490 ? LIMIT - 20 : 470)) make -j "$jobs" -k B="$B" CARRY="$CARRY" DEVICE=cuda cuda cuda-tests
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
    seen=$(weights_in "losses-$1$3")
    note "losses-$1$3" "$line${seen:+, weights $seen}"
}

# sanitizer TOOL FLAGS [OPTIONS of the tool]
sanitizer() {
    command -v compute-sanitizer >/dev/null 2>&1 || [ -n "$DRY" ] ||
        { note "$1" "not measured: compute-sanitizer is not installed"; return; }
    # shellcheck disable=SC2086
    run "$1" 110 compute-sanitizer --tool "${1%-*}" --error-exitcode 9 ${3:-} "$TRAINER" -e char:2x64x2 -t 32 -b 2 -x 2 \
        -v -1 -g 0 -i "$(find_data tiny_char_train.bin)" -j "$(find_data tiny_char_train.bin)" $2
    code=$?
    summary=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$G/$1.log" | tail -n 1 | tr -d '=')
    if [ -n "$summary" ]; then note "$1" "${summary# }"; else note "$1" "$(why "$1")"; fi
}

part_ops() {
    for type in f32 bf16 fp16; do golden $type "" ""; done
    suite test_attention 120 "$C/test_attention"
    suite test_gpt2_ops 150 "$C/test_gpt2_ops"
    suite test_cuda 150 "$C/test_cuda" seeds 5
    for name in test_gpt2 test_groups_cuda test_start_cuda test_gpt2_parallel test_gpt2_tiles test_gpt2_layers test_gpt2_frozen test_gpt2_lora test_gpt2_context test_gpt2_experts test_gpt2_pipeline; do
        suite $name 100 "$C/$name"
    done
}

part_check() {
    sanitizer memcheck "-dt bf16 -z 3 -pn 2"
    ours="--kernel-name-exclude regex=cublas|cudnn|cutlass|nvjet|gemm|xmma|splitK" # kernels of libraries are not checked
    sanitizer racecheck "-dt bf16 -z 0" "$ours"
    sanitizer racecheck-f32 "-dt f32 -z 0" "$ours" # the project's own attention kernels
}

weights_in() { sed -n 's/^weights //p' "$G/$1.log" | tail -n 1; }             # of a log
weights_of() { sed -n "s/^$1|.*, weights \(.*\)/\1/p" "$results" 2>/dev/null; } # of a row

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
nccl_ranks() { # N STAGE [SETTINGS]
    port=$((20000 + $$ % 20000))
    echo "for r in \$(seq 0 $(($1 - 1))); do RANK=\$r LOCAL_RANK=\$r WORLD_SIZE=$1 LOCAL_WORLD_SIZE=$1 \
MASTER_ADDR=127.0.0.1 MASTER_PORT=$port NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=4 ${3:-} \
'$TRAINER' \$FLAGS & pids=\"\$pids \$!\"; done; code=0; for p in \$pids; do wait \$p || code=\$?; done; exit \$code"
}

nccl_golden() { # N STAGE [SETTINGS of NCCL]
    data=$(find_data tiny_char_train.bin)
    script=$(nccl_ranks "$1" "$2" "${3:-}")
    FLAGS="$(grep '^run f32 ' tests/tools/golden.txt | cut -d' ' -f4-) -b $((12 / $1)) -z $2 -zw 60 -i $data -j $data"
    export FLAGS
    kept=$TRAINER
    TRAINER=$G/nccl.sh
    printf '#!/bin/sh\npids=\n%s\n' "$script" >"$TRAINER"
    chmod +x "$TRAINER"
    golden f32 "" "-nccl$1-z$2"
    TRAINER=$kept
    unset FLAGS
    [ -n "$DRY" ] && return
    grep -q 'launched alone' "$G/losses-f32-nccl$1-z$2.log" &&
        note "losses-f32-nccl$1-z$2" "not measured: one rank was started without a communicator"
    grep -q "^losses-f32-nccl$1-z$2|as the CPU" "$results" 2>/dev/null
}

# What 2 ranks that share the card train with: NAME FLAGS, one a line.
ways() {
    cat <<TABLE
bf16 -dt bf16
state-bf16 -dt bf16 -os bf16
state-8bit -dt bf16 -os 8bit
no-master -dt bf16 -w 0
lora -dt bf16 -lo 4
frozen -dt bf16 -tn h.1.*
layers -dt bf16 -mo layers
rows -dt f32 -ut 1 -sr 1
quantized -dt bf16 -qg 8
context -dt bf16 -cp 2
ring -dt bf16 -cp 2 -ca ring
rings -dt fp16 -pn 4 -cp 4 -ca both
tensor -dt bf16 -pn 4 -tp 2
TABLE
}
# Sequences of 65,536 tokens: NAME FLAGS, one a line.
long_ways() {
    cat <<TABLE
one -pn 1
ulysses -pn 2 -cp 2 -ca ulysses
ring -pn 4 -cp 4 -ca ring
both -pn 4 -cp 4 -ca both
TABLE
}
long_rows() {
    T=65536 size=char:6x384x6
    [ -n "$SMALL" ] && T=64 size=char:2x32x2
    long_ways >"$G/long.txt"
    while read -r name flags; do
        # shellcheck disable=SC2086
        model "long-$name" 120 -i "$data" -j "$data" -v -1 -g 0 -dt bf16 -u 2 -e $size -b 1 -t $T -x 4 -r 3 -z 3 $flags </dev/null
    done <"$G/long.txt"
}
# way NAME FLAGS...: the weights of four steps at stages 2 and 3
way() {
    which=way-$1 all=
    shift
    wanted "$which" || return 0
    for stage in 2 3; do
        # shellcheck disable=SC2086
        run "$which-z$stage" 60 "$TRAINER" -e char:2x32x2 -t 16 -b 2 -d 256 -u 0 -v -1 -g 0 -x 4 -i "$data" -j "$data" -pn 2 -z $stage "$@"
        [ -n "$late" ] && { note "$which" "not measured: no time"; return; }
        all="$all $(weights_in "$which-z$stage")"
    done
    [ -n "$DRY" ] && return
    if [ "$(echo "$all" | wc -w)" -lt 2 ]; then note "$which" "FAILED: $(tail -n 1 "$G/$which-z3.log" | cut -c 1-100)"
    elif [ "$(echo "$all" | tr ' ' '\n' | sed '/^$/d' | sort -u | wc -l)" -eq 1 ]; then note "$which" "the same bits"
    else note "$which" "FAILED: different weights at stages 2 and 3:$all"; fi
}

part_ranks() {
    ranks_of 2
    ranks_of 4
    for stage in 0 3; do nccl_golden 1 $stage; done
    version=$(sh adapters/cuda.sh report | sed -n 's/.*NCCL 2\.\([0-9]*\).*/\1/p')
    for stage in 0 3; do
        if [ "${version:-0}" -ge 30 ] || [ -n "$DRY" ]; then
            # what is new, or rare on one card: windows, and peers that are the same card
            nccl_golden 2 $stage || nccl_golden 2 $stage "NCCL_WIN_ENABLE=0 NCCL_P2P_DISABLE=1" || note "losses-f32-nccl2-z$stage" "not measured (experimental in NCCL): $(tail -n 1 "$G/losses-f32-nccl2-z$stage.log" | cut -c 1-80)"
        else
            note "losses-f32-nccl2-z$stage" "not measured: NCCL 2.${version:-?} takes one rank per GPU, 2.30 takes two"
        fi
    done
    data=$(find_data tiny_char_train.bin)
    ways >"$G/ways.txt"
    # shellcheck disable=SC2086
    while read -r name flags; do way "$name" $flags; done <"$G/ways.txt"
    long_rows
}

# resumed NAME FLAGS...: the weights of four steps, and of two with two more from a checkpoint
resumed() {
    which=resume-$1 data=$(find_data tiny_char_train.bin)
    shift
    rm -rf "$G/saves"
    flags="-e char:2x32x2 -t 16 -b 4 -d 256 -u 0 -v -1 -g 0 -x 4 -i $data -j $data -o $G/saves"
    wanted "$which" || return 0
    # shellcheck disable=SC2086
    run "$which-whole" 60 "$TRAINER" $flags -n 2 "$@"
    rm -rf "$G/saves/step_00000004"
    # shellcheck disable=SC2086
    run "$which" 60 "$TRAINER" $flags -y 1 "$@"
    [ -n "$DRY" ] && return
    if [ -n "$late" ]; then note "$which" "not measured: no time"
    elif ! grep -q 'resuming from step 2' "$G/$which.log"; then note "$which" "FAILED: $(tail -n 1 "$G/$which.log" | cut -c 1-100)"
    elif [ -n "$(weights_in "$which")" ] && [ "$(weights_in "$which")" = "$(weights_in "$which-whole")" ]; then note "$which" "the same bits"
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
    all="" large=d24 T=1024
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
        model "gpt2-355M-tier-$tier" 200 -i "$data" -j "$data" -v -1 -g 0 -dt bf16 -u 2 -e $large -b 4 -t $T -x 5 -r 1 -z 3 -zfd "$G" -tr "$G/gpt2-355M-tier-$tier.json" $flags </dev/null
        moved=$(link_of "gpt2-355M-tier-$tier")
        [ -z "$moved" ] || note "gpt2-355M-tier-$tier-link" "$moved"
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
    run "$name" "$most" "$TRAINER" -st all "$@"
    speed=$(speed_of "$name")
    [ -n "$DRY" ] && return 0
    if [ -z "$speed" ]; then note "$name" "$(why "$name")"; return 1; fi
    note "$name" "$speed"
    note "$name-memory" "$(sed -n 's/^device memory: //p' "$G/$name.log" | tail -n 1)"
    note "$name-attention" "$(sed -n 's/^| attention  *| \(.*[^ ]\)  *|$/\1/p' "$G/$name.log" | tail -n 1)"
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
    [ "$SMALL" = 1 ] && data=$(find_data tiny_char_train.bin)
    common="-i $data -j $data -v -1 -g 0 -dt bf16 -u 2"
    run kernel-copy 90 "$KERNELS" ${SMALL:+0.01}
    if [ -z "$DRY" ] && grep -q '^copy ' "$G/kernel-copy.log"; then
        while read -r name value unit; do note "kernel-$name" "$value $unit"; done <"$G/kernel-copy.log"
        grep -q '^op-.*-products' "$G/kernel-copy.log" || note kernel-op "$(why kernel-copy)"
    else note kernel-copy "$(why kernel-copy)"; fi
    small=d12 large=d48 B124=32 T=1024 steps=20
    [ "$SMALL" = 1 ] && small=char:2x32x2 large=char:3x32x2 B124=1 T=8 steps=4
    [ "$SMALL" = tokens ] && small=d6 large=d6 B124=1 T=8 steps=4
    # shellcheck disable=SC2086
    model gpt2-124M 100 $common -e $small -b $B124 -t $T -x $steps -r 0
    # shellcheck disable=SC2086
    model gpt2-124M-any-order 60 $common -e $small -b $B124 -t $T -x $steps -r 0 -ao 1
    chars=$(find_data tiny_char_train.bin) batch="-e char:4x128x4 -b 12 -t 64 -x 200"
    [ -n "$SMALL" ] && batch="-e char:2x32x2 -b 1 -t 8 -x 5"
    for graphs in 0 1; do
        # shellcheck disable=SC2086
        [ -z "$chars" ] || model char4-graphs$graphs 40 -i "$chars" -j "$chars" -v -1 -g 0 -dt bf16 -u 2 $batch -cg $graphs
    done
    batch=$(sed -n 's/^gpt2-1558M-batch|\([0-9]*\) .*-r \([0-9]*\)$/\1:\2/p' "$results" 2>/dev/null) # of an earlier call
    for each in ${batch:-$(large_runs)}; do
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

# Prints the commit: of .git, as given, as carried, or a checksum of the sources.
commit() {
    name=${COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || cat "${CARRY:-.}/commit" 2>/dev/null)}
    echo "${name:-unknown, sources $(cat zero_plugin.h zero_plugin.cu zero_plugin/*/*.h train_gpt2_zero.cu adapters/gpt2/* | cksum | cut -d' ' -f1)}"
}

# Prints what was measured in at most 6,000 bytes, and how many rows were not. table.md has all rows.
short_table() {
    awk -F'|' '/\| not measured \|$/ { missing++; next } { size += length($0) + 1; if (size < 5800) print; else cut++ }
        END { if (cut) print cut " more rows are in table.md."; if (missing) print missing " rows were not measured yet: see table.md." }' "$1"
}

table() {
    card=$(nvidia-smi --query-gpu=name,memory.total --format=csv,noheader 2>/dev/null | head -n 1)
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
    echo "| $(date -u +%Y-%m-%d), commit $(commit) | ${card:-no card}, driver ${driver:-none} |"
    echo "|---|---|"
    row build "build"
    row found "libraries"
    for test in test_attention test_gpt2_ops test_cuda test_gpt2 test_groups_cuda test_start_cuda test_gpt2_parallel test_gpt2_tiles test_gpt2_layers test_gpt2_frozen test_gpt2_lora test_gpt2_context test_gpt2_experts test_gpt2_pipeline; do row $test "tests/$test on the device"; done
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
    ways | while read -r name flags; do row "way-$name" "2 ranks that share the card, stages 2 and 3, weights with $flags"; done
    long_ways | while read -r name flags; do
        row "long-$name" "6 layers of 384 channels, bf16, B 1, T 65,536, threads on the card, $flags"
        row "long-$name-memory" "its device memory"
    done
    for run in f32-0 bf16-1 fp16-2 bf16-3 bf16-host; do row resume-$run "goes on from a checkpoint: type and stage $run"; done
    tiers | while read -r tier flags; do row "losses-f32-tier-$tier" "2 ranks that share the card, stage 3, ${flags:-all on the device}"; done
    row weights-tiers "weights of these"
    tiers | while read -r tier flags; do
        row "gpt2-355M-tier-$tier" "GPT-2 355M, bf16, B 4, T 1024, stage 3, ${flags:-all on the device}"
        row "gpt2-355M-tier-$tier-memory" "its device memory"
        [ "$tier" = device ] || row "gpt2-355M-tier-$tier-link" "between host and device"
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
    row gpt2-124M-attention "its attention"
    row gpt2-124M-any-order "the same, attention's gradients in any order"
    row gpt2-124M-save "its checkpoint, written aside"
    row gpt2-124M-llmc "llm.c, the same"
    row char4-graphs0 "4 layers of 128 channels, bf16, B 12, T 64"
    row char4-graphs1 "the same, blocks as CUDA graphs"
    row gpt2-1558M "GPT-2 1558M, bf16, T 1024"
    row gpt2-1558M-batch "its batch"
    row gpt2-1558M-memory "its device memory"
    row gpt2-1558M-attention "its attention"
    row gpt2-1558M-any-order "the same, attention's gradients in any order"
    row gpt2-1558M-micro "the same, 4 micro-steps a step"
    row gpt2-1558M-host "the same, 4 micro-steps a step, state in the host's memory"
    row gpt2-1558M-host-memory "its device memory"
    row gpt2-1558M-llmc "llm.c, the same"
    row stages "tokens/s at stages 0-3 on one rank, of stage 0"
    sed -n 's/^kernel-\(op[^|]*\)|\(.*\)/| \1 | \2 |/p' "$results" 2>/dev/null
}

carry_programs() { # DIR
    rm -rf "$G/programs" && mkdir -p "$G/programs/cuda" || return 1
    for program in train_gpt2_zero gpu_kernels test_attention test_gpt2_ops test_cuda test_gpt2 test_groups_cuda test_start_cuda test_gpt2_parallel \
        test_gpt2_tiles test_gpt2_layers test_gpt2_frozen test_gpt2_lora test_gpt2_context test_gpt2_experts test_gpt2_pipeline; do
        [ -x "$C/$program" ] || { echo "gpu.sh carry: $C/$program is not built" >&2; return 1; }
        strip -o "$G/programs/cuda/$program" "$C/$program" || return 1
    done
    # the programs have most of their code in common: a window of 8 MiB would see little of it
    tar -C "$G/programs" -cf - cuda | xz --lzma2=preset=6,dict=64MiB >"$1/programs.tar.xz"
    rm -rf "$G/programs"
}
carry() { # DIR
    mkdir -p "$1/include/cjson" "$1/lib" "$1/data" "$1/bin" || exit 1
    commit >"$1/commit"
    cp "$(command -v make)" "$1/bin/" || exit 1
    [ -z "$LLMC" ] || cp "$LLMC" "$1/bin/train_gpt2cu" || exit 1
    if [ -n "${NCCL_LIBRARY:-}" ]; then
        mkdir -p "$1/nccl/lib" "$1/nccl/include"
        ${PYTHON:-python3} tests/cuda/slim_nccl.py "$NCCL_LIBRARY" "$1/nccl/lib/libnccl.so.2.xz" "${ARCH:-90}" &&
            cp "$(dirname "$NCCL_LIBRARY")"/../include/nccl*.h "$1/nccl/include/" || exit 1
    fi
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
    [ -z "${BUILT:-}" ] || carry_programs "$1" || exit 1
    du -sh "$1"
    [ "$(du -sm "$1" | cut -f1)" -lt 60 ] || { echo "gpu.sh carry: more than 60 MiB" >&2; exit 1; }
}

finish() {
    [ -n "$DRY" ] && return
    table >"$G/table.md"
    [ -z "$RESULTS" ] || cp "$G/table.md" "$RESULTS/table.md"
    short_table "$G/table.md"
}

case $part in
build | ops | bench | ranks | resume | check | offload)
    "part_$part"
    finish
    ;;
all)
    for now in build ops bench ranks resume check offload; do "part_$now"; done
    finish
    ;;
table) table ;;
carry) carry "${2:?gpu.sh carry: a folder is expected}" ;;
*) echo "gpu.sh: expected build, ops, bench, ranks, resume, check, offload, all, table or carry, found '$part'" >&2; exit 2 ;;
esac
