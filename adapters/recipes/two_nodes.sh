#!/bin/sh
# two_nodes.sh [FLAG VALUE]... - trains GPT-2 1558M on two nodes with ZeRO stage 3 and a secondary partition inside each node
# (hpZ), so that only a step's first gather of a layer leaves the node. Run it on both nodes. Flags that follow replace those
# below.
#   HOST0  name or address of the first node
#   NODE   0 on the first node, 1 on the second
#   GPUS   ranks of a node (8)
#   TRAIN, VAL  token files, the same on both nodes
# Memory of a rank by the plan (zero_plan with the flags below and -pn 16): 10.5 GiB, of which 7.5 are activations.
# Speed: not measured here. With torchrun or mpirun instead, start ./train_gpt2_zero with the last two lines of flags.
set -eu
: "${HOST0:?name of the first node}" "${NODE:?0 or 1}" "${GPUS:=8}"
: "${TRAIN:=dev/data/fineweb10B/fineweb_train_*.bin}" "${VAL:=dev/data/fineweb10B/fineweb_val_*.bin}"
rank=$((NODE * GPUS)) last=$((NODE * GPUS + GPUS - 1)) jobs=
while [ $rank -le $last ]; do
    "${TRAINER:-./train_gpt2_zero}" -pi tcp -ps "$HOST0" -pn $((2 * GPUS)) -pr $rank -pg "$GPUS" \
        -z 3 -zh "$GPUS" -dt bf16 -e d48 -i "$TRAIN" -j "$VAL" -o log1558M -b 4 -t 1024 -d 1048576 \
        -x -1 -l 6e-4 -q 0 -u 700 -c 0.1 -v 250 -m 20 -g 0 -n 1000 -nk 3 -y 1 "$@" &
    jobs="$jobs $!" rank=$((rank + 1))
done
failed=0
for job in $jobs; do wait "$job" || failed=1; done
exit $failed
