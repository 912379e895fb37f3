#!/bin/sh
# golden.sh BUILD - the CPU's losses that gpu.sh compares a GPU's with, as text (make golden):
#     data CHECKSUM               of the token file that was trained on
#     run TYPE TOLERANCE FLAGS    a run; the losses below are its
#     STEP LOSS
# 16 bit: what CPU and GPU round differs, the more the longer they train.
set -u
B=$1
data=$B/data/tiny_char_train.bin
echo "# Written by make golden; compared with by tests/cuda/gpu.sh."
echo "data $(cksum <"$data")"
for run in "f32 0.001" "bf16 0.02" "fp16 0.02"; do
    flags="-e char:4x128x4 -t 64 -b 12 -x 50 -u 10 -l 1e-3 -sh 2 -v -1 -g 0 -f 0 -ls 128 -dt ${run% *}"
    [ "${run% *}" = f32 ] && flags="${flags% -ls*} -dt f32"
    echo "run $run $flags"
    # shellcheck disable=SC2086
    "$B/train_gpt2_zero" $flags -i "$data" -j "$B/data/tiny_char_val.bin" |
        sed -n 's/^step *\([0-9]*\)\/.* loss \([0-9.]*\) .*/\1 \2/p'
done
