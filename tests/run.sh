#!/bin/sh
# run.sh quick|main|long|all BUILD - builds what the parts of a set need and runs them, each within its budget.
# quick: `make test-quick`, an answer in a minute. main: `make test`. long: what CI adds. all: main and long with
# all parts and whole ones, hours.
# run.sh times BUILD - the table of what every part took when it was last run, as in figures.md.
# SEED=N chooses the samples, and the parts that take turns (otherwise the time does, and is printed); JOBS:
# processors to use; PATIENCE=N: budgets are N times as long, on a machine that is so much slower or busier.
# Last line: N passed, N failed[, N skipped].
set -u
set=$1 B=$2 part=${3:-}
here=$(dirname "$0")
log=$B/log
SEED=${SEED:-$(date +%s)} PATIENCE=${PATIENCE:-1} JOBS=${JOBS:-$(nproc 2>/dev/null || echo 2)}
# The settings of the make that called stay, its job server is not reached from here.
MAKEFLAGS=$(echo " ${MAKEFLAGS:-}" | sed 's/ -j[0-9]*//; s/ --jobserver-[a-z]*=[^ ]*//')
# OpenMP's threads wait asleep: awake they take the processors of other ranks, parts and programs.
export SEED JOBS PATIENCE MAKEFLAGS OMP_WAIT_POLICY=passive
mkdir -p "$log"

# ---- the sets: NAME BUDGET HOW COMMAND ----
# BUDGET: seconds, with room for a slow, busy machine. HOW:
#   beside       JOBS at a time and one more: what neither looks at the clock nor fills every processor
#   waits        two at a time, in addition to those: what mostly sleeps, or waits for a disk
#   alone        after them: what measures time or the memory of processes, or spins
#   skip REASON
build() { echo "$1 $2 alone make -j$JOBS $3 && echo '1 passed, 0 failed'"; }

# Prints every Nth of the rows on standard input; SEED chooses the first. MORE shifts the choice, so that two sets
# run different rows. The set `all` prints every row, once.
sample() { # N [MORE]
    case $set in
    all | times) if [ "${2:-0}" = 0 ]; then cat; else cat >/dev/null; fi ;;
    *) awk -v n="$1" -v at=$(((SEED + ${2:-0}) % $1)) 'NR % n == at' ;;
    esac
}
# Each of the two MPIs is tried in one of the sets.
one_mpi() { [ "$1" = 0 ] && echo openmpi || echo mpich; }

# A developer runs this set after a change of one file. It has its own build folder, which compiles quickly.
quick_build() {
    build quick-build 300 "-s B=$B/quick OPT='-O1 -march=native' MPICC= $(printf " $B/quick/%s" test_unit test_errors test_plans test_steps test_skips test_model test_bits test_optimizers test_order test_gpt2)"
}
quick() {
    cat <<TABLE
quick-optimizers 60 beside $B/quick/test_optimizers
quick-bits 60 beside $B/quick/test_bits 1 $SEED
quick-unit 60 beside $B/quick/test_unit
quick-errors 60 beside $B/quick/test_errors
quick-plans 60 beside $B/quick/test_plans
quick-steps 60 beside $B/quick/test_steps
quick-skips 60 beside $B/quick/test_skips
quick-model 60 beside $B/quick/test_model 60 $SEED
quick-order 60 beside $B/quick/test_order $SEED
quick-gpt2 60 beside $B/quick/test_gpt2
TABLE
}

# Programs of light and heavy rows that this set does not run are not built (scripts run test_model_files). The library, the trainer's plugin once more,
# is compiled quickly.
[ "$set" = all ] || export LIBFLAGS=-O1
main_build() { build build 500 "-s tests WITHOUT='$(unused)'"; }
unused() {
    case $set in main | long) rows=$("$set") ;; *) return ;; esac
    { light; heavy; } | grep -v test_model_files | sed -n "s|.* $B/\([a-z]*_[a-z0-9_]*\).*|\1|p" | sort -u | while read -r program; do
        echo "$rows" | grep -q " $B/$program\( \|$\)" || printf '%s ' "$program"
    done
}
# The parts that cost most: `make test` runs a ninth of them, every ninth row, and `make test-long` another
# ninth. In this order, each ninth costs about as much as the others. Many have a program that is long to compile.
heavy() {
    cat <<TABLE
mpi 300 alone env SAMPLE=4 sh $here/comm/test_mpi.sh $B $(one_mpi $((SEED % 2)))
elastic 300 beside env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/trainer/test_elastic.sh $B 8 $SEED
docs-pages 500 alone env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/docs/test_docs.sh $B
drop 600 beside sh $here/install/test_drop.sh $B
process-memory 300 alone sh $here/trainer/test_process_memory.sh $B
foreign 300 beside sh $here/hosts/test_foreign.sh $B
memory 300 beside $B/test_memory
offload-rings 120 beside $B/test_offload_rings 8 $SEED $B
bits 300 beside $B/test_bits 12 $SEED
llmc 600 beside LLMC= sh $here/llmc/test_llmc.sh $B
transport 300 waits $B/test_transport
recipes 200 alone env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/docs/test_recipes.sh $B
experts 200 beside env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/trainer/test_experts.sh $B
gpt2-experts 300 beside $B/test_gpt2_experts
codec 200 beside $B/test_codec $SEED $B
allocations 240 beside sh $here/trainer/test_allocations.sh $B
resume 400 beside env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/trainer/test_resume.sh $B
gpt2-pipeline 120 beside $B/test_gpt2_pipeline
deepspeed-import 600 beside sh $here/checkpoint/test_deepspeed_import.sh $B
growth 60 beside $B/test_growth
virtual-ranks 600 beside env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/trainer/test_virtual.sh $B
tensors 300 beside $B/test_tensors $B
rows-checked 200 beside $B/test_rows_checked
gpt2-ops 300 beside $B/test_gpt2_ops
layouts 200 beside env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/trainer/test_layouts.sh $B
states 120 beside $B/test_states $B
checkpoint-faults 600 waits sh $here/checkpoint/test_checkpoint_faults.sh $B fast $SEED
libraries 200 beside sh $here/reference/test_libraries.sh
checkpoint-tool 300 beside env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/checkpoint/test_checkpoint_tool.sh $B
resize 120 beside $B/test_resize
lora-ways 200 beside env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/trainer/test_lora_ways.sh $B
micro-order 300 beside env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/trainer/test_micro_order.sh $B
build-settings 60 beside sh $here/install/test_build.sh $B
delay 300 beside env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/trainer/test_delay.sh $B
rows 120 beside $B/test_rows
host-guide 200 beside sh $here/hosts/test_host_guide.sh $B
python 200 beside sh $here/hosts/test_python.sh $B
suggest 60 beside $B/test_suggest
fast-math 120 beside $B/test_fast_math
observe-trainer 200 beside env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/report/test_observe.sh $B
bounds 120 beside $B/test_bounds
proofs 60 beside $B/test_proofs $SEED
virtual 120 beside $B/test_virtual
integrity 120 beside env SEED=$SEED $B/test_integrity 200
split 60 beside $B/test_split
layout-kills 120 alone env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/trainer/test_layout_kills.sh $B
extra 60 beside $B/test_extra
fast-math-scale 120 beside $B/test_scale_fast 300 $SEED
model-files-python 200 beside sh $here/checkpoint/test_model_files.sh $B
lora 300 beside env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/trainer/test_lora.sh $B
joined-ranks 300 beside env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/trainer/test_joined_ranks.sh $B
new-ranks 300 beside env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/trainer/test_new_ranks.sh $B
TABLE
}
# Of these, `make test` runs every third row, and `make test-long` another third.
light() {
    cat <<TABLE
frozen 300 beside $B/test_frozen $B
auto-runs 300 beside env MODELS=char:2x64x2 STEPS=3 RUNS=2 python3 $here/bench/auto.py $B 2 $SEED
offload 300 beside $B/test_offload 8 $SEED $B
losses 400 beside sh $here/gpt2/test_losses.sh $B
groups 300 waits $B/test_groups
hierarchy 300 beside $B/test_hierarchy 24 $SEED $B
gpt2-parallel 120 beside $B/test_gpt2_parallel
gpt2-context 120 beside $B/test_gpt2_context
scale 120 beside $B/test_scale 1000 $SEED
orders-sample 120 beside $B/test_orders sample $SEED
model-files 120 beside OMP_NUM_THREADS=1 $B/test_model_files
checkpoint-kill 200 beside $B/test_checkpoint_kill 100 $SEED
gpt2-tiles 120 beside $B/test_gpt2_tiles
faults 300 waits $B/test_faults
install 200 beside sh $here/install/test_install.sh $B
ds-config-fuzz 60 beside $B/fuzz_ds_config 10 $SEED $here/ds_config/*.json
lend-checked 120 beside $B/test_lend_checked
order-checked 120 beside $B/test_order_checked $SEED
host-layers 120 beside $B/test_host_layers
host-llama 120 beside $B/test_host_llama
host-groups 120 beside sh $here/hosts/test_host_groups.sh $B
world 120 beside $B/test_world
products 60 beside $B/test_products
order 60 beside $B/test_order $SEED
machine-fuzz 60 beside $B/fuzz_machine 5 $SEED adapters/plan/card.txt
lend 60 beside $B/test_lend
auto 120 beside $B/test_auto
gpt2-attention-vectors 60 beside env ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 $B/test_gpt2_ops attention
gpt2-attention-f32 60 beside env ONEDNN_MAX_CPU_ISA=AVX512_CORE $B/test_gpt2_ops attention
data-fuzz 60 beside $B/fuzz_data 5 $SEED
page 120 beside sh $here/report/test_page.sh $B
auto-program 240 beside sh $here/plan/test_auto.sh $B
ease 60 beside $B/test_ease
ease-checked 60 beside $B/test_ease_checked
gpt2-frozen 120 beside $B/test_gpt2_frozen
gpt2-layers 120 beside $B/test_gpt2_layers
gpt2-lora 120 beside $B/test_gpt2_lora
gpt2-recheck 60 beside $B/test_gpt2_recheck 8 $SEED
recheck 120 beside env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/trainer/test_recheck.sh $B
pipeline 120 alone $B/test_pipeline $SEED
check 120 beside $B/test_check
trace 60 beside $B/test_trace
wire 60 beside $B/test_wire
checkpoint-device 60 beside $B/test_checkpoint_device
group 120 beside $B/test_group
run 60 waits $B/test_run
TABLE
}
main() {
    cat <<TABLE
trainer 600 beside env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/trainer/test_trainer.sh $B
unit 300 beside $B/test_unit
errors 60 beside $B/test_errors
plans 60 beside $B/test_plans
steps 60 beside $B/test_steps
skips 120 beside $B/test_skips
model 300 beside $B/test_model 300 $SEED
products-trainer 120 beside env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/gpt2/test_products.sh $B
gpt2 120 beside $B/test_gpt2
launch 60 beside $B/test_launch
report 30 beside $B/test_report
observe 30 beside $B/test_observe
plan 60 beside $B/test_plan $B
plan-program 120 beside sh $here/plan/test_plan.sh $B
schedule 60 beside $B/test_schedule
ds-config 60 beside $B/test_ds_config
optimizers 120 beside $B/test_optimizers
abi 20 beside $B/test_abi
hashes 60 beside sh $here/plugin/test_hashes.sh $B
host-own 120 beside $B/test_host_own
docs 300 alone env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/docs/test_docs.sh $B README.md
docs-links 60 beside env WITHOUT_COMMANDS=1 TRAINER=$B/unmeasured/train_gpt2_zero sh $here/docs/test_docs.sh $B
checkpoint 300 beside $B/test_checkpoint sample $SEED
data 120 beside sh $here/data/test_data.sh $B
converge-sample 120 beside env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/bench/converge.sh $B sample
TABLE
    light | sample 3
    heavy | sample 9
}

# Builds programs with other compiler settings: PROGRAMS, and those that the rows of the function ROWS run.
variant() { # NAME OPT MORE ROWS PROGRAMS...
    v=$1 opt=$2 more=$3 rows=$4
    shift 4
    build "build-$v" 600 "-s B=$B/$v OPT='$opt' MPICC= WARN= $more $({ $rows | sed -n "s|.*/$v/\([a-z0-9_]*\).*|\1|p"; printf '%s\n' "$@"; } | sort -u | sed "/./s|^|$B/$v/|" | tr '\n' ' ')"
}
long_build() {
    fuzzers=
    case $(turn_is 2 && seldom) in *soak*) fuzzers="fuzz_checkpoint fuzz_model_files fuzz_data fuzz_machine fuzz_ds_config" ;; esac
    if turn_is 0 || [ "$fuzzers" ]; then
        # shellcheck disable=SC2086 # names
        variant asan "-O1 -march=native -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer" "" asan $fuzzers
    fi
    threads && variant tsan "-O1 -march=native -fsanitize=thread" OMP= tsan test_trace
    fuzzes && build build-libfuzzer 600 "-s $(printf " $B/libfuzzer/%s" ds_config checkpoint model_files data machine)"
    turn_is 1 && has_cuda && build build-emulated 600 "-s $(emulated | sed -n "s|.* \($B/emulated/[a-z0-9_]*\).*|\1|p; s|.*test_emulated.*|$B/emulated/train_gpt2_zero $B/emulated/gpu_kernels|p; s|.*test_example_cuda.*|$B/emulated/test_example_cuda|p" | sort -u | tr '\n' ' ')"
    if ! turn_is 2; then :
    elif command -v nvcc >/dev/null 2>&1; then nvcc_builds | sample 5
    else echo "cuda-build 0 skip nvcc is not installed"; fi
}
# Checks that nvcc compiles the CUDA version and its tests.
nvcc_builds() {
    for arch in 80 89 100 120; do build cuda-build-$arch 400 "-s B=$B/archs ARCHS=$arch cuda"; done
    build cuda-tests 600 "-s B=$B/nvcc ARCHS=90 cuda cuda-tests"
    echo "machine-code 600 alone python3 $here/cuda/machine_code.py $B"
}
asan() {
    sample 9 <<TABLE
asan-tensors 900 beside $B/asan/test_tensors $B
asan-gpt2-ops 600 beside $B/asan/test_gpt2_ops
asan-gpt2-experts 600 beside $B/asan/test_gpt2_experts
asan-checkpoint 300 beside $B/asan/test_checkpoint sample $SEED
asan-gpt2-parallel 600 beside $B/asan/test_gpt2_parallel
asan-gpt2-context 600 beside $B/asan/test_gpt2_context
asan-optimizers 600 beside $B/asan/test_optimizers
asan-unit 600 beside $B/asan/test_unit
asan-errors 300 beside $B/asan/test_errors
asan-groups 300 beside $B/asan/test_groups
asan-plans 300 beside $B/asan/test_plans
asan-steps 300 beside $B/asan/test_steps
asan-skips 300 beside $B/asan/test_skips
asan-codec 600 beside $B/asan/test_codec $SEED $B
asan-model 600 beside $B/asan/test_model 300 $SEED
asan-host-own 300 beside $B/asan/test_host_own
asan-gpt2-tiles 600 beside $B/asan/test_gpt2_tiles
asan-gpt2-layers 600 beside $B/asan/test_gpt2_layers
asan-gpt2 600 beside $B/asan/test_gpt2
asan-host-llama 300 beside $B/asan/test_host_llama
asan-model-files 300 beside OMP_NUM_THREADS=1 $B/asan/test_model_files
asan-checkpoint-fuzz 120 beside $B/asan/fuzz_checkpoint 15 $SEED
asan-schedule 60 beside $B/asan/test_schedule
asan-scale 300 beside $B/asan/test_scale 300 $SEED
asan-model-fuzz 120 beside $B/asan/fuzz_model_files 15 $SEED
asan-data-fuzz 60 beside $B/asan/fuzz_data 10 $SEED
asan-machine-fuzz 60 beside $B/asan/fuzz_machine 10 $SEED adapters/plan/card.txt
asan-ds-fuzz 120 beside $B/asan/fuzz_ds_config 15 $SEED $here/ds_config/*.json
asan-ds-config 120 beside $B/asan/test_ds_config
asan-faults 600 alone $B/asan/test_faults
asan-resize 600 beside $B/asan/test_resize
asan-integrity 600 beside $B/asan/test_integrity 200
TABLE
}
tsan() {
    echo "tsan-trace 300 beside $B/tsan/test_trace"
    sample 3 <<TABLE
tsan-bits 600 beside $B/tsan/test_bits 3 $SEED
tsan-rows 600 beside $B/tsan/test_rows
tsan-resize 600 beside $B/tsan/test_resize
tsan-integrity 600 beside $B/tsan/test_integrity 100
tsan-checkpoint 300 beside $B/tsan/test_checkpoint sample $SEED
tsan-model 600 beside $B/tsan/test_model 150 $SEED
TABLE
}
# The CUDA version, run on the CPU.
has_cuda() { [ -n "$(make -s has-cuda)" ]; }
emulated() {
    cat <<TABLE
emulation 120 beside $B/emulated/test_emulation
emulated-groups 120 beside $B/emulated/test_groups_cuda
emulated-start 60 beside $B/emulated/test_start_cuda
emulated-example 120 beside sh $here/cuda/test_example_cuda.sh $B
emulated-cuda 900 beside $B/emulated/test_cuda seeds 1 $SEED 2
TABLE
    # Every seventh row: the plan needs the program of the trainer.
    sample 7 <<TABLE
emulated-trainer 900 beside sh $here/cuda/test_emulated.sh $B
emulated-gpt2-experts 600 beside $B/emulated/test_gpt2_experts
emulated-gpt2-tiles 600 beside $B/emulated/test_gpt2_tiles
emulated-gpt2-frozen 600 beside $B/emulated/test_gpt2_frozen
emulated-gpt2-layers 600 beside $B/emulated/test_gpt2_layers
emulated-gpt2-lora 600 beside $B/emulated/test_gpt2_lora
emulated-gpt2-parallel 600 beside $B/emulated/test_gpt2_parallel
emulated-gpt2-context 600 beside $B/emulated/test_gpt2_context
emulated-plan 120 beside env GPU=$B/emulated/train_gpt2_zero sh $here/plan/test_plan.sh $B
emulated-attention 120 beside $B/emulated/test_attention
emulated-cuda-faults 900 beside $B/emulated/test_cuda faults 4
cudnn-plans 900 beside sh $here/cuda/test_cudnn.sh $B
emulated-gpt2 600 beside $B/emulated/test_gpt2
emulated-gpt2-ops 300 beside $B/emulated/test_gpt2_ops
emulated-gpt2-pipeline 600 beside $B/emulated/test_gpt2_pipeline
cublaslt 60 beside sh $here/cuda/test_cublaslt.sh $B
TABLE
}
long() {
    light | sample 3 1
    heavy | sample 9 1
    if turn_is 0; then asan; fi
    if threads; then tsan; fi
    if ! can_fuzz; then echo "fuzz 0 skip clang with libFuzzer is not installed"; elif fuzzes; then fuzz 10; fi
    if ! turn_is 1; then :; elif has_cuda; then emulated; else echo "emulated 0 skip the CUDA toolkit's headers are not installed"; fi
    if turn_is 2; then seldom; fi
    cat <<TABLE
checkpoint-slow 200 waits sh $here/checkpoint/test_checkpoint_faults.sh $B slow
launchers 300 waits sh $here/launch/test_launchers.sh $B
mpi-other 300 alone env SAMPLE=6 sh $here/comm/test_mpi.sh $B $(one_mpi $((1 - SEED % 2)))
TABLE
    [ -z "${LLMC:-}" ] || echo "llmc-real 1800 alone sh $here/llmc/test_llmc.sh $B"
}
# One of these, where it is their turn; the stage is another one the next time that its type is chosen.
seldom() {
    {
        cat <<TABLE
layout-saves 500 beside env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/trainer/test_layout_saves.sh $B
prove 400 beside sh $here/proofs/prove.sh $B quick
hosts 400 alone sh $here/launch/test_hosts.sh $B
soak 400 alone python3 $here/tools/soak.py $B 0.033 $SEED
orders 600 beside $B/test_orders
orders-lane 300 beside $B/test_orders_lane
TABLE
        converge $((SEED / 8 % 2 * 3))
    } | sample 8
}
converge() { # STAGE
    for type in f32 bf16 fp16; do echo "converge-$type-$1 900 beside sh $here/gpt2/test_converge.sh $B $1 $type"; done
}
# What costs most takes turns, which SEED chooses:
#   0   the address sanitizer, and either the thread sanitizer or libFuzzer, on everything that reads files of others
#   1   the CUDA version on the CPU
#   2   nvcc, and a row of `seldom`
turn_is() { case $set in all | times) ;; *) [ $((SEED / 7 % 3)) -eq "$1" ] ;; esac; }
second_time() { case $set in all | times) ;; *) [ $((SEED / 21 % 2)) -eq "$1" ] ;; esac; }
threads() { turn_is 0 && second_time 0; }
fuzzes() { turn_is 0 && second_time 1 && can_fuzz; }
can_fuzz() {
    echo 'int LLVMFuzzerTestOneInput(const char *p, long n) { return !p && n; }' |
        clang -fsanitize=fuzzer -x c -o /dev/null - >/dev/null 2>&1
}
fuzz() { # SECONDS of each
    for target in ds_config checkpoint model_files data machine; do
        echo "fuzz-$target-$1 $(($1 + 200)) beside mkdir -p $B/corpus/$target &&" \
            "$B/libfuzzer/$target -seed=$((SEED % 4294967296)) -max_total_time=$1 -max_len=65536 -len_control=0 $B/corpus/$target" \
            "$([ $target = ds_config ] && echo "$here/ds_config") && echo '1 passed, 0 failed'"
    done
}
whole() {
    can_fuzz && fuzz 600
    converge $((3 - SEED / 6 % 2 * 3))
    cat <<TABLE
checkpoint-faults-all 600 alone sh $here/checkpoint/test_checkpoint_faults.sh $B
checkpoint-all 1800 beside $B/test_checkpoint all
prove-all 3600 beside sh $here/proofs/prove.sh $B all
planted 900 beside python3 $here/emulation/planted.py $B
cudnn-plans-all 1800 beside sh $here/cuda/test_cudnn.sh $B cc all
launches-attention 300 beside python3 $here/cuda/machine_code.py $B launches $B/emulated/test_attention
launches-ops 600 beside python3 $here/cuda/machine_code.py $B launches $B/emulated/test_gpt2_ops
emulated-cuda-mutants 3600 beside $B/emulated/test_cuda mutants 8
emulated-cuda-all 3600 beside $B/emulated/test_cuda all 0 $SEED
checkpoint-bench 900 alone make -s $B/test_checkpoint_bench && sh $here/checkpoint/test_checkpoint_bench.sh $B
soak-hour 9000 alone python3 $here/tools/soak.py $B 1 $SEED
mutants 6000 alone env BUDGET=60 SEED=$SEED python3 $here/tools/mutants.py $B
checkpoint-kills 7200 beside sh $here/checkpoint/kill_many.sh $B 10000 $SEED
elastic-kills 7200 beside env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/trainer/test_elastic.sh $B 1000 $SEED kills
new-ranks-all 7200 beside env TRAINER=$B/unmeasured/train_gpt2_zero sh $here/trainer/test_new_ranks.sh $B 500 $SEED
integrity-all 1200 beside env SEED=$SEED $B/test_integrity 10000
resize-all 3600 beside env RESIZES=1000 SEED=$SEED $B/test_resize
offload-all 1200 beside $B/test_offload 1 $SEED $B
offload-rings-all 1200 beside $B/test_offload_rings 1 $SEED $B
model-all 3600 beside $B/test_model 100000 1
orders-all 80000 beside $B/test_orders all
orders-lane-all 3600 beside $B/test_orders_lane all
split-all 600 beside $B/test_split all
rows-all 600 beside $B/test_rows all
bits-all 7200 beside $B/test_bits all
emulated-cuda-seeds 900 beside $B/emulated/test_cuda seeds 10 $SEED
fast-math-full 600 alone make -s B=$B/ofast FASTOPT=-Ofast $B/ofast/test_fast_math && $B/ofast/test_fast_math
mpi-whole 1200 alone sh $here/comm/test_mpi.sh $B
check-all 1800 alone make check
library-versions 1200 beside sh $here/cuda/test_library_versions.sh $B
fresh-machine 3600 alone sh $here/install/test_fresh_machine.sh $B
gpu-machine 3600 alone sh $here/cuda/test_gpu_machine.sh $B
TABLE
}

# ---- one part, in a process of its own, so that another can run beside it ----
number() { echo "$line" | sed -n "s/.*$1.*/\1/p"; }
run() { # NAME: its row, found in $log/rows; what it counted and took goes to $log/NAME.result
    read -r name budget how command <<ROW
$(grep "^$1 " "$log/rows")
ROW
    budget=$((budget * PATIENCE))
    start=$(date +%s)
    # Programs that sample by SEED run everything without it.
    [ "$set" = all ] && unset_seed='-u SEED' || unset_seed=
    # shellcheck disable=SC2086
    timeout -k 10 "$budget" env $unset_seed sh -c "$command" >"$log/$name.txt" 2>&1 </dev/null
    code=$? took=$(($(date +%s) - start))
    times >"$log/$name.result"
    cpu=$(awk 'NR == 2 { gsub("[ms]", " "); printf "%.0f", 60 * ($1 + $3) + $2 + $4 }' "$log/$name.result")
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log/$name.txt" | tail -n 1)
    p=${line%% passed*} f=$(number 'passed, \([0-9]*\) failed') s=$(number 'failed, \([0-9]*\) skipped')
    report=$(printf '%-24s %4d s of %4d  %s' "$name" "$took" "$budget" "${line:-no result, exit code $code}")
    if [ "$took" -ge "$budget" ]; then
        f=$((${f:-0} + 1)) report="$report
    FAILED: $name passed its budget of $budget s: ended after $took s"
    elif { [ -z "$line" ] || [ $code -ne 0 ]; } && [ "${f:-0}" -eq 0 ]; then f=1; fi
    if [ "${f:-0}" -gt 0 ]; then report="$report
    SEED=$SEED: $command
$(tail -n 15 "$log/$name.txt" | sed 's/^/    /')"
        { echo "FAILED: $name, SEED=$SEED: $command"; grep -E '^ *FAILED' "$log/$name.txt" | head -n 3; tail -n 3 "$log/$name.txt"; } >"$log/$name.failed"
    fi
    printf '%s\n' "$report"
    echo "${p:-0} ${f:-0} ${s:-0} $took $cpu $budget" >"$log/$name.result"
}
if [ "$part" ]; then run "$part"; exit; fi

# ---- a set ----
passed=0 failed=0 skipped=0
count() { # NAME: adds what it left
    { read -r p f s _ <"$log/$1.result"; } 2>/dev/null || { p=0 f=1 s=0; echo "FAILED: $1 ended without a result"; }
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}
# Runs the rows named on standard input, N at a time.
pool() { xargs -r -P "$1" -n 1 sh "$0" "$set" "$B"; } # N
# The seconds that a row took when it last ran, or a sixth of its budget.
lasts() { # NAME BUDGET
    { read -r _ _ _ last _ <"$log/$1.result"; } 2>/dev/null && [ -n "$last" ] && echo "$last" || echo $(($2 / 6))
}
# The names of the rows with this HOW, the longest first, so that no processor waits for the last one.
longest() { # HOW
    while read -r name budget how _; do
        [ "$how" != "$1" ] || echo "$(lasts "$name" "$budget") $name"
    done <"$log/rows" | sort -rn | cut -d ' ' -f 2
}
# Runs the rows of a function: first those that run beside others, then the others, one by one.
go() { # ROWS
    "$1" >"$log/rows"
    waits=$(longest waits) beside=$(longest beside)
    while read -r name _; do rm -f "$log/$name.result" "$log/$name.failed"; done <"$log/rows"
    echo "$waits" | pool 2 &
    echo "$beside" | pool $((JOBS + 1))
    wait
    while read -r name _ how reason; do
        case $how in
        beside | waits) ;;
        alone) echo "$name" | pool 1 ;;
        *) skipped=$((skipped + 1)); echo "skipped $name: $reason"; continue ;;
        esac
        count "$name"
    done <"$log/rows"
}
processor() { sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo 2>/dev/null | head -n 1; }
table() {
    echo "$(date +%F), $(processor || uname -m), $JOBS processors; load now $(cut -d ' ' -f 1 /proc/loadavg 2>/dev/null)"
    printf '\n| part | seconds | of processors | budget |\n|---|--:|--:|--:|\n'
    for rows in quick_build quick main_build main long_build long whole; do $rows; done | while read -r name _; do
        [ -f "$log/$name.result" ] || continue
        read -r _ _ _ took cpu budget <"$log/$name.result"
        echo "| $name | $took | $cpu | $budget |"
    done
}

limit=0
case $set in
times) table; exit ;;
quick) limit=60 sets="quick_build quick" ;;
main) limit=360 sets="main_build main" ;;
long) limit=600 sets="main_build long_build long" ;;
all) sets="main_build main long_build long whole" ;;
*) echo "run.sh: expected quick, main, long, all or times, found '$set'" >&2; exit 2 ;;
esac
limit=$((limit * PATIENCE))
echo "SEED=$SEED chooses the samples"
begun=$(date +%s)
rm -f "$log"/*.failed
for rows in $sets; do
    go "$rows"
    case $rows in quick_build | main_build) [ $failed -eq 0 ] || break ;; esac
done
took=$(($(date +%s) - begun))
if [ $limit -gt 0 ] && [ $took -gt $limit ]; then
    echo "OVER: the set $set passed its budget of $limit s: it took $took s"
fi
table >"$log/times.txt"
echo "$set: $took s, by part in $log/times.txt"
cat "$log"/*.failed 2>/dev/null # again, where a reader of the last lines sees them
[ $skipped -gt 0 ] && more=", $skipped skipped" || more=
echo "$passed passed, $failed failed$more"
[ $failed -eq 0 ]
