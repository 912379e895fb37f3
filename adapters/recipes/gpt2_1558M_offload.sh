#!/bin/sh
# gpt2_1558M_offload.sh [FLAG VALUE]... - trains GPT-2 1558M with little memory: parameters, gradients and optimizer state in
# files, the embedding in tiles, activation checkpointing to a file. Flags that follow replace those below.
#   FOLDER  on a disk with 24 GiB of room, not a tmpfs (.)
#   RANKS   processes of this machine (2)
#   TRAIN, VAL  token files; those of tiny Shakespeare by default (`make data`)
# Memory of a rank by the plan (zero_plan with the flags below and -pn 2): 0.7 GiB; measured: 1,523 MiB of two ranks, with
# program and libraries. Files: 23.2 GiB.
# A step reads 35 and writes 23 GiB; it took 15 and 28 s on an Intel Xeon with two cores (tests/figures.md).
set -eu
: "${FOLDER:=.}" "${RANKS:=2}" "${TRAIN:=build/data/tiny_gpt2_train.bin}" "${VAL:=build/data/tiny_gpt2_val.bin}"
exec "${TRAINER:-./train_gpt2_zero}" -e d48 -i "$TRAIN" -j "$VAL" -pn "$RANKS" -z 3 \
    -zos file -zog file -zop file -zfd "$FOLDER" -zl 16768 -r 4 \
    -t 64 -b 1 -x 10 -l 1e-4 -v -1 -g 0 "$@"
