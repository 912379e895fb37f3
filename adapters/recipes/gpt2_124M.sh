#!/bin/sh
# gpt2_124M.sh [FLAG VALUE]... - trains GPT-2 124M on FineWeb with the flags of llm.c's run_gpt2_124M.sh, except for
# -dt bf16 (llm.c is built for it), -nk 3, and no -h 1.
# Flags that follow replace those below.
#   RANKS       GPUs of this machine (8)
#   TRAIN, VAL  token files of llm.c's dev/data/fineweb.py
# Memory of a rank by the plan (zero_plan with the flags below and -pn 8): 21.0 GiB, of which 20 are activations.
# A smaller -b takes less; -d keeps the tokens of a step.
# Speed and loss: not measured here, because no GPU was available.
set -eu
: "${RANKS:=8}" "${TRAIN:=dev/data/fineweb10B/fineweb_train_*.bin}" "${VAL:=dev/data/fineweb10B/fineweb_val_*.bin}"
exec "${TRAINER:-./train_gpt2_zero}" -pn "$RANKS" -z 1 -dt bf16 -e d12 -i "$TRAIN" -j "$VAL" -o log124M \
    -b 64 -t 1024 -d 524288 -r 0 -x -1 \
    -l 6e-4 -q 0 -u 700 -c 0.1 -b2 0.95 \
    -v 250 -m 20 -s 20000 -g 144 -n 5000 -nk 3 -y 1 "$@"
