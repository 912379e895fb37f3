#!/bin/sh
# bench.sh BUILD - figures of README and figures.md: tokens/s of every stage (stages take turns in one run), peak
# memory per rank, the optimizer step against this machine's bandwidth, the reduce-scatter against
# MPI's, steps over a slow link. 2 ranks of one thread. Timings on a shared machine are noisy: compare within one run.
set -u
B=$1
here=$(dirname "$0")
trainer=$B/train_gpt2_zero
rows() { awk -F, 'NR > 1 { printf "  stage %s  %8.0f tokens/s  ratio %s  exposed %s ms\n", $1, $3, $4, $12 }' "$1"; }
for model in "char4 -e char:4x128x4 -t 64 -b 12 -x 64" "char6 -e char:6x384x6 -t 256 -b 8 -x 16" \
             "d12 -e d12 -t 64 -b 4 -x 8 -rd 4"; do
    set -- $model
    name=$1
    shift
    for type in f32 bf16; do
        echo "$name in $type (2 ranks, $*):"
        "$trainer" -pn 2 -nt 1 -z 0,1,2,3 -dt $type -csv "$B/bench_$name.csv" "$@" >"$B/log/bench_$name.txt" 2>&1 \
            && rows "$B/bench_$name.csv" || tail -n 3 "$B/log/bench_$name.txt"
    done
done
echo "operations of a step against their limits, one thread:"
for type in f32 bf16; do "$B/bench_ops" $type | sed 's/^/  /'; done
echo "d12, peak memory per rank:"
for stage in 0 1 2 3; do
    printf '  stage %s  ' $stage
    sh "$here/bench_pss.sh" "$trainer" -pn 2 -nt 1 -z $stage -e d12 -t 64 -b 4 -x 4 -v -1 -g 0 2>&1 | tail -n 1
done
echo "steps as they are planned (zero_plan --machine):"
sh "$here/bench_plan.sh" "$B" | sed 's/^/  /'
echo "idle stages of pipelines whose layers sleep:"
"$B/test_pipeline" bubble | sed 's/^/  /'
echo "what recording costs a step (-tr, -tb, -tc, -tbd), and of processor time:"
sh "$here/bench_trace.sh" "$B" | sed -n '$s/^/  /p'
echo "what copies in memory cost a step (-pm 1):"
sh "$here/bench_copies.sh" "$B" 3 | sed 's/^/  /'
echo "state on a disk:"
sh "$here/bench_offload.sh" "$B" | sed 's/^/  /'
echo "checkpoints of d12 (2 ranks):"
sh "$here/../checkpoint/test_checkpoint_bench.sh" "$B"
echo "optimizer step:"
for type in f32 bf16 f16 bf16-alone bf16-split; do OMP_NUM_THREADS=2 "$B/bench_step" $type adamw 10 100 500; done
echo "reduce-scatter, 2 ranks:"
if command -v mpirun.openmpi >/dev/null 2>&1; then mpirun.openmpi --allow-run-as-root -np 2 "$B/bench_reduce"
else echo "  not measured: Open MPI is not installed"; fi
echo "packing and unpacking:"
"$B/bench_codec" | sed 's/^/  /'
echo "what more ranks, hosts and tensors take:"
sh "$here/bench_ranks.sh" "$B" | sed '$d; s/^/  /'
echo "a step over a slow link between two hosts:"
HOSTS=2 RANKS=1 RATES='2000 1000 500' CASES='0:exact 2:exact 3:exact' OUT="$B/links-bench.csv" sh "$here/links.sh" "$B" table | sed '$d; s/^/  /'
