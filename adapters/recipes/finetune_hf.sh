#!/bin/sh
# finetune_hf.sh [FLAG VALUE]... - fine-tunes a GPT-2 of Hugging Face on a text, and writes the result as safetensors, which
# `transformers` loads. Flags that follow replace those below.
#   MODEL  model.safetensors of gpt2, gpt2-medium, gpt2-large or gpt2-xl
#   TEXT   a text file (data/tinyshakespeare.txt)
#   OUT    folder for tokens, checkpoints and the result (finetuned)
#   RANKS  processes of this machine (2)
# Needs `make zero_ckpt build/tokens`. Memory of a rank by the plan, gpt2 in f32 on 2 ranks: 1.3 GiB at stage 3.
# Speed and loss: not measured here.
set -eu
: "${MODEL:?a model.safetensors}" "${TEXT:=data/tinyshakespeare.txt}" "${OUT:=finetuned}" "${RANKS:=2}"
mkdir -p "$OUT"
"${TOKENS:-build/tokens}" gpt2 "$TEXT" "$OUT/text" data/gpt2.tiktoken
"${TRAINER:-./train_gpt2_zero}" -pn "$RANKS" -z 3 -e "$MODEL" -i "$OUT/text_train.bin" -j "$OUT/text_val.bin" \
    -o "$OUT/log" -n 50 -nk 1 -y 1 -t 256 -b 1 -x 200 -l 3e-5 -u 10 -q 0.1 -c 0.1 -v 50 -m 20 -g 0 "$@"
"${ZERO_CKPT:-./zero_ckpt}" export "$OUT/log" "$OUT/model.safetensors"
echo "wrote $OUT/model.safetensors"
