#!/bin/sh
# run.sh quick|long|all BUILD - runs the tests, each within its budget (seconds), and adds up their
# last lines. quick: `make test`. long: what CI adds. all: without samples, hours.
set -u
set=$1 B=$2
here=$(dirname "$0")
passed=0 failed=0 skipped=0
mkdir -p "$B/log"

# run NAME BUDGET COMMAND...: the budget ends what hangs; it has room for a slow, busy machine
run() {
    name=$1 budget=$2
    shift 2
    log=$B/log/$name.txt
    start=$(date +%s)
    timeout -k 10 "$budget" "$@" >"$log" 2>&1 </dev/null
    code=$?
    took=$(($(date +%s) - start))
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
    p=$(echo "${line:-0 passed}" | sed 's/ passed.*//')
    f=$(echo "$line" | sed -n 's/.* passed, \([0-9]*\) failed.*/\1/p')
    s=$(echo "$line" | sed -n 's/.* failed, \([0-9]*\) skipped.*/\1/p')
    [ -z "$line" ] || [ $code -ne 0 ] && [ "${f:-0}" -eq 0 ] && f=1
    passed=$((passed + p)) failed=$((failed + ${f:-0})) skipped=$((skipped + ${s:-0}))
    printf '%-24s %4d s of %4d  %s\n' "$name" "$took" "$budget" "${line:-no result, exit code $code}"
    if [ "${f:-0}" -gt 0 ]; then tail -n 15 "$log" | sed 's/^/    /'; fi
}

# The same programs under another compiler setting.
variant() { # NAME OPT OMP MPICC TARGETS...
    v=$1 opt=$2 omp=$3 mpicc=$4
    shift 4
    run "build-$v" 600 sh -c 'make -s B="$0" OPT="$1" OMP="$2" MPICC="$3" WARN= $4 && echo "1 passed, 0 failed"' \
        "$B/$v" "$opt" "$omp" "$mpicc" "$*"
}

# libFuzzer on everything that reads files of others, with clang where it is installed.
fuzz() { # SECONDS of each
    echo 'int LLVMFuzzerTestOneInput(const char *p, long n) { return !p && n; }' |
        clang -fsanitize=fuzzer -x c -o /dev/null - >/dev/null 2>&1 ||
        { skipped=$((skipped + 3)); echo "skipped fuzz: clang with libFuzzer is not installed"; return; }
    for target in ds_config checkpoint model_files; do
        seeds=
        [ $target = ds_config ] && seeds=tests/ds_config
        run fuzz-$target $(($1 + 200)) sh -c 'mkdir -p "$0/corpus/$2" && make -s B="$0" "$0/libfuzzer/$2" &&
            "$0/libfuzzer/$2" -max_total_time=$1 -max_len=65536 "$0/corpus/$2" $3 && echo "1 passed, 0 failed"' \
            "$B" "$1" $target "$seeds"
    done
}

# The CUDA version, run on the CPU; and whether nvcc takes it and its tests, for one architecture.
emulated() {
    [ -x "$B/emulated/train_gpt2_zero" ] ||
        { skipped=$((skipped + 1)); echo "skipped emulated: the CUDA toolkit's headers are not installed"; return; }
    run emulation 120 "$B/emulated/test_emulation"
    run emulated-cuda 300 "$B/emulated/test_cuda" seeds 20
    run emulated-gpt2-ops 300 "$B/emulated/test_gpt2_ops"
    run emulated-attention 120 "$B/emulated/test_attention"
    run emulated-trainer 400 sh "$here/test_emulated.sh" "$B"
    run cudnn-graphs 120 sh "$here/test_cudnn.sh" "$B"
    command -v nvcc >/dev/null 2>&1 || { skipped=$((skipped + 1)); echo "skipped cuda-build: nvcc is not installed"; return; }
    run cuda-build 400 sh -c 'make -s B="$0/nvcc" ARCHS=90 cuda cuda-tests && echo "1 passed, 0 failed"' "$B"
}

quick() {
    run unit 120 "$B/test_unit"
    run model 300 "$B/test_model" 1000
    run bits 300 "$B/test_bits"
    run memory 120 "$B/test_memory"
    run faults 300 "$B/test_faults"
    run gpt2-ops 120 "$B/test_gpt2_ops"
    run gpt2 120 "$B/test_gpt2"
    run launch 60 "$B/test_launch"
    run schedule 60 "$B/test_schedule"
    run ds-config 60 "$B/test_ds_config"
    run ds-config-fuzz 60 "$B/fuzz_ds_config" 10 1 "$here"/ds_config/*.json
    run scale 120 "$B/test_scale"
    run fast-math 120 "$B/test_fast_math"
    run fast-math-scale 120 "$B/test_scale_fast" 300
    run optimizers 120 "$B/test_optimizers"
    run check 120 "$B/test_check"
    run abi 20 "$B/test_abi"
    run host-own 120 "$B/test_host_own"
    run host-llama 120 "$B/test_host_llama"
    run host-layers 120 "$B/test_host_layers"
    run host-guide 200 sh "$here/test_host_guide.sh" "$B"
    run python 200 sh "$here/test_python.sh" "$B"
    run drop 200 sh "$here/test_drop.sh" "$B"
    run install 200 sh "$here/test_install.sh" "$B"
    run llmc 400 env LLMC= sh "$here/test_llmc.sh" "$B"
    run checkpoint 120 "$B/test_checkpoint"
    run checkpoint-faults 300 sh "$here/test_checkpoint_faults.sh" "$B"
    run checkpoint-kill 200 "$B/test_checkpoint_kill" 100 1
    run checkpoint-device 60 "$B/test_checkpoint_device"
    run checkpoint-tool 300 sh "$here/test_checkpoint_tool.sh" "$B"
    run resume 400 sh "$here/test_resume.sh" "$B"
    run model-files 120 env OMP_NUM_THREADS=1 "$B/test_model_files"
    run model-files-python 200 sh "$here/test_model_files.sh" "$B"
    run deepspeed-import 600 sh "$here/test_deepspeed_import.sh" "$B"
    run allocations 120 sh "$here/test_allocations.sh" "$B"
    run data 120 sh "$here/test_data.sh" "$B"
    run losses 200 sh "$here/test_losses.sh" "$B"
    run mpi 500 sh "$here/test_mpi.sh" "$B"
    emulated
    run trainer 600 env TRAINER="$B/train_gpt2_zero" sh "$here/test_trainer.sh" "$B"
}

long() {
    asan="-O1 -march=native -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
    variant asan "$asan" -fopenmp "" \
        "$B/asan/test_unit $B/asan/test_model $B/asan/test_faults $B/asan/test_gpt2 $B/asan/test_gpt2_ops \
        $B/asan/test_checkpoint $B/asan/fuzz_checkpoint $B/asan/test_model_files $B/asan/fuzz_model_files $B/asan/test_host_own $B/asan/test_host_llama $B/asan/test_scale $B/asan/test_optimizers $B/asan/test_schedule $B/asan/test_ds_config $B/asan/fuzz_ds_config"
    run asan-scale 300 "$B/asan/test_scale" 300
    run asan-optimizers 600 "$B/asan/test_optimizers"
    run asan-checkpoint 300 "$B/asan/test_checkpoint"
    run asan-checkpoint-fuzz 120 "$B/asan/fuzz_checkpoint" 15 7
    run asan-model-files 300 env OMP_NUM_THREADS=1 "$B/asan/test_model_files"
    run asan-model-fuzz 120 "$B/asan/fuzz_model_files" 15 7
    run asan-host-own 300 "$B/asan/test_host_own"
    run asan-host-llama 300 "$B/asan/test_host_llama"
    run asan-schedule 60 "$B/asan/test_schedule"
    run asan-ds-config 120 "$B/asan/test_ds_config"
    run asan-ds-fuzz 120 "$B/asan/fuzz_ds_config" 15 2 "$here"/ds_config/*.json
    fuzz 20
    run asan-unit 600 "$B/asan/test_unit"
    run asan-model 600 "$B/asan/test_model" 300 5000
    run asan-faults 600 "$B/asan/test_faults"
    run asan-gpt2-ops 600 "$B/asan/test_gpt2_ops"
    run asan-gpt2 600 "$B/asan/test_gpt2"
    variant tsan "-O1 -march=native -fsanitize=thread" "" "" "$B/tsan/test_model $B/tsan/test_bits $B/tsan/test_checkpoint"
    run tsan-model 600 "$B/tsan/test_model" 150 9000
    run tsan-checkpoint 300 "$B/tsan/test_checkpoint"
    run tsan-bits 600 "$B/tsan/test_bits" 6
    if [ -x "$B/emulated/test_cuda" ]; then
        run emulated-cuda-all 900 "$B/emulated/test_cuda"
        run emulated-gpt2 600 "$B/emulated/test_gpt2"
    fi
    [ -f "$here/test_launchers.sh" ] && run launchers 300 sh "$here/test_launchers.sh" "$B"
    [ -z "${LLMC:-}" ] || run llmc-real 1800 sh "$here/test_llmc.sh" "$B"
    run hosts 400 sh "$here/test_hosts.sh" "$B"
    for type in f32 bf16 fp16; do
        for stage in 0 3; do run converge-$type-$stage 900 sh "$here/test_converge.sh" "$B" $stage $type; done
    done
}

case $set in
quick) quick ;;
long) long ;;
all)
    quick
    long
    fuzz 600
    run checkpoint-all 1800 "$B/test_checkpoint" all
    run checkpoint-bench 900 sh "$here/test_checkpoint_bench.sh" "$B"
    run checkpoint-kills 7200 sh "$here/kill_many.sh" "$B" 10000
    run model-all 3600 "$B/test_model" 100000 1
    run bits-all 7200 "$B/test_bits" all
    ;;
*) echo "run.sh: expected quick, long or all, found '$set'" >&2; exit 2 ;;
esac
[ "$skipped" -gt 0 ] && more=", $skipped skipped" || more=
echo "$passed passed, $failed failed$more"
[ "$failed" -eq 0 ]
