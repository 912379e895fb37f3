#!/bin/sh
# test_model_files.sh BUILD [PYTHON] - model files against the libraries that others read and write
# them with: safetensors and numpy, and torch and transformers where they are installed (PYTHONPATH
# may lead there). What is not installed is counted as skipped. Last line: N passed, N failed[, N
# skipped].
set -u
B=$1 python=${2:-python3}
program=$B/test_model_files
passed=0 failed=0 skipped=0
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT

# Adds up a last line `N passed, N failed, N skipped`.
count() {
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$1" | tail -n 1)
    grep -v -E '^[0-9]+ passed, [0-9]+ failed' "$1"
    [ -n "$line" ] || { failed=$((failed + 1)); echo "FAILED: no result"; return; }
    set -- $(echo "$line" | tr -dc '0-9 ')
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + ${3:-0}))
}

OMP_NUM_THREADS=1 "$program" write "$folder" >"$folder/log" 2>&1
count "$folder/log"
# the same model through a checkpoint, with the config.json that zero_ckpt writes
mkdir "$folder/exported"
if "$B/zero_ckpt" convert "$folder/model.bin" "$folder/generations" >"$folder/log" 2>&1 &&
    "$B/zero_ckpt" export "$folder/generations" "$folder/exported/model.safetensors" >>"$folder/log" 2>&1
then passed=$((passed + 1)); else failed=$((failed + 1)); cat "$folder/log"; fi
"$python" -B - "$folder" >"$folder/log" 2>&1 <<'PYTHON'
import os, sys

passed = failed = skipped = 0
folder = sys.argv[1]
TOKENS = [1, 64, 3, 0, 17, 33, 9, 2, 60, 41, 5, 8]  # as in test_model_files.c
V, VP, T, L, C = 65, 128, 16, 2, 8

def check(ok, what):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok: print("FAILED:", what)

def finish():
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit()

def at(name): return os.path.join(folder, name)

try:
    import numpy as np
    from safetensors.numpy import load_file, save_file
except ImportError as e:
    skipped += 3
    print("skipped:", e)
    finish()

def llmc(path):
    """transformers' names and shapes, from the plain order of llm.c's file."""
    flat, out, at = np.fromfile(path, dtype="<f4")[256:], {}, 0
    shapes = [("wte.weight", (VP, C)), ("wpe.weight", (T, C)),
              ("ln_1.weight", (L, C)), ("ln_1.bias", (L, C)),
              ("attn.c_attn.weight", (L, 3 * C, C)), ("attn.c_attn.bias", (L, 3 * C)),
              ("attn.c_proj.weight", (L, C, C)), ("attn.c_proj.bias", (L, C)),
              ("ln_2.weight", (L, C)), ("ln_2.bias", (L, C)),
              ("mlp.c_fc.weight", (L, 4 * C, C)), ("mlp.c_fc.bias", (L, 4 * C)),
              ("mlp.c_proj.weight", (L, C, 4 * C)), ("mlp.c_proj.bias", (L, C)),
              ("ln_f.weight", (C,)), ("ln_f.bias", (C,))]
    for name, shape in shapes:
        x = flat[at:at + int(np.prod(shape))].reshape(shape)
        at += x.size
        if not name.startswith(("wte", "wpe", "ln_f")):
            for l in range(L):
                out[f"transformer.h.{l}.{name}"] = x[l].T.copy() if x.ndim == 3 else x[l].copy()
        else:
            out["transformer." + name] = x[:V].copy() if name == "wte.weight" else x.copy()
    assert at == flat.size
    return out

want = llmc(at("model.bin"))
for name, dtype in (("f32", np.float32), ("f16", np.float16)):
    got = load_file(at(f"{name}.safetensors"))
    check(got.keys() == want.keys(), f"{name}: names")
    check(all(got[k].dtype == dtype and np.array_equal(got[k], want[k].astype(dtype)) for k in want
              if k in got), f"{name}: values")
metadata = {"format": "pt", "n_head": "2"}
save_file(want, at("numpy_f32.safetensors"), metadata)
# a file as OpenAI's was converted: no prefix, buffers, a head of its own name
plain = {k.removeprefix("transformer."): v.astype(np.float16) for k, v in want.items()}
for l in range(L):
    plain[f"h.{l}.attn.bias"] = np.tril(np.ones((1, 1, T, T), np.uint8))
plain["lm_head.weight"] = plain["wte.weight"].copy()
save_file(plain, at("numpy_f16.safetensors"), metadata)

try:
    import torch
    from safetensors.torch import load_file as load_torch, save_file as save_torch
except ImportError as e:
    skipped += 2
    print("skipped:", e)
    finish()
got = load_torch(at("bf16.safetensors"))
bf16 = {k: torch.from_numpy(v).to(torch.bfloat16) for k, v in want.items()}
check(got.keys() == want.keys() and all(torch.equal(got[k], bf16[k]) for k in want), "bf16")
save_torch(bf16, at("torch_bf16.safetensors"), metadata)

try:
    from transformers import GPT2LMHeadModel
except ImportError as e:
    skipped += 1
    print("skipped:", e)
    finish()
os.mkdir(at("hf"))
os.rename(at("f32.safetensors"), at("hf/model.safetensors"))
os.rename(at("config.json"), at("hf/config.json"))
ours = np.fromfile(at("logits.bin"), dtype="<f4").astype(np.float64)
for name in ("exported", "hf"):
    model, info = GPT2LMHeadModel.from_pretrained(at(name), output_loading_info=True)
    check(not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"],
          f"transformers, {name}: {info}")
    model.eval()
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS])).logits[0, -1].double().numpy()
    distance = np.abs(ours - logits).max() / np.abs(logits).max()
    check(distance < 1e-5, f"transformers, {name}: logits differ by {distance}")
model.save_pretrained(at("hf"), safe_serialization=True)  # read again by the program
model.save_pretrained(at("parts"), safe_serialization=True, max_shard_size="4KB")
check(os.path.exists(at("parts/model.safetensors.index.json")), "transformers: several files")
finish()
PYTHON
count "$folder/log"
if [ -f "$folder/numpy_f32.safetensors" ]; then
    OMP_NUM_THREADS=1 "$program" read "$folder" >"$folder/log" 2>&1
    count "$folder/log"
fi
[ $skipped -gt 0 ] && more=", $skipped skipped" || more=
echo "$passed passed, $failed failed$more"
[ $failed -eq 0 ]
