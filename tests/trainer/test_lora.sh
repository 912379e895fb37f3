#!/bin/sh
# test_lora.sh BUILD [PYTHON] - fine-tuning with low-rank adapters: the same weights at every stage; with -tp and -pp the
# same losses up to rounding; checkpoints with and without the frozen weights, resumed to the same weights; adapters
# merged into model files, and exported and imported as peft's. With torch, transformers and peft (PYTHONPATH may lead
# there) also peft's losses over some steps, from its own adapter file, and peft's loss with our file. What is not
# installed is counted as skipped. Last line: N passed, N failed[, N skipped].
# Lists of arguments are split at blanks on purpose.
# shellcheck disable=SC2086
set -u
B=$1 python=${2:-python3}
trainer=${TRAINER:-$B/train_gpt2_zero}
work=$(mktemp -d "${TMPDIR:-/tmp}/test_lora.XXXXXX") || exit 1
# shellcheck source=tests/shared/jobs.sh
. "$(dirname "$0")/../shared/jobs.sh"
at_end "$work"
passed=0 failed=0 skipped=0
export OMP_NUM_THREADS=1
small="-i $B/data/tiny_char_train.bin -j $B/data/tiny_char_val.bin -t 16 -v 0 -m 2 -g 0 -u 0 -l 1e-2 -d 64 -b 2 -nt 1"
lora="--lora 4 --lora-alpha 8 --lora-on qkv,proj,fc,fcproj"

# same NAME EXPECTED FOUND
same() {
    if [ -n "$2" ] && [ "$2" = "$3" ]; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED: $1: expected '$2', found '$3'"; fi
}
# says NAME PATTERN: what the last run wrote
says() { if grep -qe "$2" "$work/out"; then passed=$((passed + 1)); else same "$1" "$2" "$(tail -n 2 "$work/out")"; fi; }
# train ARGUMENT... : the weights at its end
train() {
    timeout -k 1 60 "$trainer" $small "$@" >"$work/out" 2>&1
    sed -n 's/^weights //p' "$work/out"
}
ckpt() { "$B/zero_ckpt" "$@" >"$work/out" 2>&1 || same "zero_ckpt $*" good "$(tail -n 1 "$work/out")"; }
losses() { sed -n 's/.*| loss \([0-9.]*\).*/\1/p' "$work/out" | tr '\n' ' '; }
# near NAME LOSSES LOSSES: equal up to 1e-4
near() {
    same "$1: losses" near "$(echo "$2/$3" | tr / '\n' | awk 'NR == 1 { n = split($0, a, " ") }
        NR == 2 { bad = split($0, b, " ") != n || n < 2; for (i = 1; i <= n; i++) { d = a[i] - b[i]; bad += d > 1.5e-4 || d < -1.5e-4 }
                  print bad ? $0 : "near" }')"
}

# header EXPECTED ARGUMENT...: the number of trained parameters, in both tables of settings
header() {
    expected=$1
    shift
    for table in short all; do
        train "$@" -x 1 -st $table >/dev/null
        same "$*, -st $table: trained" "$expected" "$(sed -n 's/.*, \([0-9]*\) trained .*/\1/p; s/^|   trained *| \([0-9]*\) .*/\1/p' "$work/out")"
    done
}

# the base: a model file
train -e char:2x32x2 -x 2 -o "$work/first" -n 2 >/dev/null
mkdir "$work/base" "$work/adapter" "$work/merged" "$work/other" "$work/theirs"
ckpt export "$work/first" "$work/base/model.safetensors"
ckpt export "$work/first" "$work/base/model.bin"
base="-e $work/base/model.safetensors"

test_headers() { # one layer has 12 x 32^2 + 13 x 32 parameters, its adapters of rank 4 have 4 x 512
    header 4096 $base $lora
    header 4096 $base $lora -tp 2 -pn 2
    header 12768 $base --train 'h.1.*,lnf*' -pp 2 -pn 2
    train $base -x 1 -st all >/dev/null
    same "all tensors are trained" 0 "$(grep -c trained "$work/out")"
}

# A comparison fails if the stages have other weights.
test_stages() {
    for run in "-dt bf16 -d 128 -op lamb --train ln*" "-zl 32 -r 3 -ut 1"; do
        timeout -k 1 60 "$trainer" $small $base $lora $run -z 0,1,2,3 -pn 2 -x 4 -rd 1 -v -1 -g 0 >"$work/out" 2>&1
        same "stages, $run" 0 $?
    done
    one=$(train $base $lora -x 3 -pn 2 -z 2)
    same "offload" "$one" "$(train $base $lora -x 3 -pn 2 -z 3 -zos file -zop file -zfd "$work")"
}

test_layouts() {
    train $base $lora -x 4 -pn 1 >/dev/null
    one=$(losses)
    for run in "-pn 2 -tp 2" "-pn 2 -tp 2 -sp 1" "-pn 2 -pp 2" "-pn 4 -tp 2 -pp 2 -z 3"; do
        train $base $lora -x 4 $run >/dev/null
        near "$run" "$one" "$(losses)"
    done
}

test_resume() {
    whole=$(train $base $lora -x 6 -pn 2 -z 2 -o "$work/whole" -n 3)
    for z in 2 3; do
        rm -rf "$work/parts"
        train $base $lora -x 6 -pn 2 -z $z -nz 0 -o "$work/parts" -n 3 >/dev/null
        same "stage $z, adapters alone: tensors" 8 "$(ls "$work/parts/step_00000006" >/dev/null && "$B/zero_ckpt" show "$work/parts" | grep -c '^tensor .*lora_')"
        same "stage $z, adapters alone: no others" 0 "$("$B/zero_ckpt" show "$work/parts" | grep '^tensor ' | grep -vc lora_)"
        rm -rf "$work/parts/step_00000006"
        same "stage $z, adapters alone: resumed" "$whole" "$(train $base $lora -x 6 -pn 2 -z $z -nz 0 -o "$work/parts" -n 3 -y 1)"
    done
    cp -r "$work/whole" "$work/more"
    rm -rf "$work/more/step_00000006"
    same "a full checkpoint, resumed with adapters alone" "$whole" "$(train $base $lora -x 6 -pn 2 -z 1 -nz 0 -o "$work/more" -n 3 -y 1)"
    train $base $lora -x 6 -pn 2 -o "$work/parts" -n 3 -y 1 >/dev/null
    says "adapters alone, without -nz 0" 'saved without frozen tensors (it has no wte); leave them out here, too (train_gpt2_zero: -nz 0)'
    for other in "" "--train ln* -nz 0"; do
        train $base $other -x 6 -pn 2 -o "$work/parts" -n 3 -y 1 >/dev/null
        says "adapters alone, without --lora, $other" 'has no tensor [a-z1]*, and this one has no tensor qkvw.lora_a; load it with the settings'
    done
    train -e "$work/base/model.bin" $lora -x 6 -pn 2 -nz 0 -o "$work/parts" -n 3 -y 1 >/dev/null
    says "another base" 'saved without the frozen weights of a file of hash'
    train $base --lora 3 -x 6 -pn 2 -nz 0 -o "$work/parts" -n 3 -y 1 >/dev/null
    says "another rank" 'qkvw.lora_a'
    train $base --lora 4 --lora-alpha 16 --lora-on qkv,proj,fc,fcproj -x 6 -pn 2 -nz 0 -o "$work/parts" -n 3 -y 1 >/dev/null
    says "another alpha" 'the adapters of the checkpoint have alpha 8, and it is 16 here; use --lora-alpha 8'
    train $base --lora-alpha 8 -x 1 >/dev/null
    says "alpha without adapters" 'lora-alpha: there are no adapters; give --lora RANK'
    train $base --lora-on nonsense -x 1 >/dev/null
    says "matrices without adapters" 'lora-on: there are no adapters; give --lora RANK'
    train $base --freeze ,wte -x 1 >/dev/null
    says "an empty pattern" 'a pattern is empty; leave a comma out'
    train $base --lora 3 --lora-on qkv,all -x 1 >/dev/null
    says "another matrix" 'lora-on qkv,all: expected one or several of qkv, proj, fc and fcproj'
}

test_files() {
    ckpt export "$work/whole" "$work/merged/model.safetensors"
    ckpt export "$work/parts" "$work/other/model.safetensors" --model "$work/base/model.safetensors"
    same "merged, from both checkpoints" same "$(cmp "$work/merged/model.safetensors" "$work/other/model.safetensors" && echo same)"
    train $base $lora -x 6 -nz 0 -o "$work/parts" -y 1 -v 1 -n 100 >/dev/null
    one=$(sed -n 's/^val loss //p' "$work/out" | tail -n 1)
    train -e "$work/merged/model.safetensors" -x 0 -v 1 >/dev/null
    same "merged: loss" "$one" "$(sed -n 's/^val loss //p' "$work/out" | tail -n 1)"
    ckpt export "$work/parts" "$work/adapter/adapter_model.safetensors"
    ckpt convert "$work/adapter/adapter_model.safetensors" "$work/imported" --step 6
    # After the first 4096 bytes, the file has 4096 weights, and twice as many moments, which are 0.
    bytes=$(tail -c +4097 "$work/imported/step_00000006/shard_00000.bin" | tr -d '\000' | wc -c)
    same "imported: bytes other than 0, at most 16384 of the weights" yes "$([ "$bytes" -gt 8192 ] && [ "$bytes" -le 16384 ] && echo yes || echo "$bytes")"
    same "imported" "$whole" "$(train $base $lora -x 6 -nz 0 -o "$work/imported" -n 100 -y 1)"
    for how in "-pn 2 -tp 2" "-pn 4 -tp 2 -sp 1 -z 3" "-pn 4 -tp 2 -pp 2 -z 1"; do
        rm -rf "$work/tp"
        "$B/zero_ckpt" convert "$work/adapter/adapter_model.safetensors" "$work/tp" --step 6 >/dev/null
        train $base $lora $how -l 0 -x 7 -nz 0 -o "$work/tp" -n 100 -y 1 >/dev/null
        ckpt export "$work/tp/step_00000007" "$work/other/adapter_model.safetensors"
        same "peft's files from $how" same "$(cmp "$work/other/adapter_model.safetensors" "$work/adapter/adapter_model.safetensors" \
            && cmp "$work/other/adapter_config.json" "$work/adapter/adapter_config.json" && echo same)"
    done
    train $base --lora 4 --train 'ln*' -x 1 -o "$work/norms" -n 1 >/dev/null
    "$B/zero_ckpt" export "$work/norms" "$work/adapter/adapter_model.safetensors" >"$work/out" 2>&1
    says "norms have no place" 'ln1w was trained next to the adapters'
    "$B/zero_ckpt" export "$work/first" "$work/adapter/adapter_model.safetensors" >"$work/out" 2>&1
    says "no adapters" 'the checkpoint has no adapters'
    for change in 's/"use_rslora":.*,/"use_rslora": true,/' 's/"lora_A/"lora_C/'; do
        mkdir -p "$work/damaged"
        sed 's/"bias":/"use_rslora": false, "bias":/' "$work/adapter/adapter_config.json" | sed "s/\"use_rslora\": false/\"use_rslora\": true/" >"$work/damaged/adapter_config.json"
        case $change in *lora_A*) cp "$work/adapter/adapter_config.json" "$work/damaged/" ;; esac
        sed 's/c_attn.lora_A/c_attn.lora_C/' "$work/adapter/adapter_model.safetensors" >"$work/damaged/adapter_model.safetensors"
        "$B/zero_ckpt" convert "$work/damaged/adapter_model.safetensors" "$work/none" >"$work/out" 2>&1
        case $change in *lora_A*) says "a tensor of another name" 'no matrix of an adapter' ;; *) says "another setting" 'use_rslora is missing, or has a value' ;; esac
    done
}

# ---- peft's own ----

# The trainer's losses from the adapters and tokens that Python wrote, and its adapters after these steps.
train_theirs() {
    ckpt convert "$work/theirs/adapter_model.safetensors" "$work/from_theirs"
    train $base $lora -i "$work/tokens.bin" -j "$work/tokens.bin" -a 1 -sh 0 -x 4 -d 32 -c 0 -q 1 -nz 0 -o "$work/from_theirs" -n 4 -y 1 \
        -tcd "$work/csv" >/dev/null
    ckpt export "$work/from_theirs" "$work/adapter/adapter_model.safetensors" --model "$work/base"
}

cat >"$work/compare_peft.py" <<'PYTHON'
import json, os, sys
work, step = sys.argv[1:3]
passed = failed = 0
def check(ok, what):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok: print("FAILED:", what)
try:
    import numpy as np, torch
    from transformers import GPT2LMHeadModel
    from peft import LoraConfig, PeftModel, get_peft_model
except ImportError as e:
    print("skipped:", e)
    print("0 passed, 0 failed, 2 skipped")
    sys.exit()
torch.manual_seed(3)
torch.set_num_threads(1)
model = GPT2LMHeadModel.from_pretrained(os.path.join(work, "base"), attn_implementation="eager")
rng = np.random.default_rng(5)
tokens = rng.integers(0, 65, 4096).astype(np.uint16)
batch = torch.from_numpy(tokens[:33].astype(np.int64))
inputs, targets = batch[:32].view(2, 16), batch[1:33].view(2, 16)
def loss_of(m):
    return torch.nn.functional.cross_entropy(m(inputs).logits.view(-1, 65), targets.reshape(-1))
if step == "write":
    config = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, fan_in_fan_out=True, task_type="CAUSAL_LM",
                        target_modules=["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"])
    m = get_peft_model(model, config)
    with torch.no_grad():
        for name, p in m.named_parameters():
            if "lora_B" in name: p.normal_(0, 0.05)
    m.save_pretrained(os.path.join(work, "theirs"))
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, tokens.size
    with open(os.path.join(work, "tokens.bin"), "wb") as f:
        f.write(header.tobytes() + tokens.tobytes())
    optimizer = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    losses = []
    m.eval()
    for i in range(5):
        loss = loss_of(m)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    json.dump(losses, open(os.path.join(work, "losses.json"), "w"))
    check(losses[4] < losses[0], f"peft's losses {losses}")
else:
    theirs = json.load(open(os.path.join(work, "losses.json")))
    rows = [l.split(",") for l in open(sys.argv[3]).read().split("\n")[1:] if l]
    ours = [float(r[1]) for r in rows]
    check(len(ours) == 4 and all(abs(a - b) < 1e-5 for a, b in zip(ours, theirs)), f"losses {ours}, peft's {theirs}")
    m = PeftModel.from_pretrained(model, os.path.join(work, "adapter"))
    m.eval()
    loss = loss_of(m).item()
    check(abs(loss - theirs[4]) < 1e-5, f"peft with our adapters: loss {loss}, expected {theirs[4]}")
print(f"{passed} passed, {failed} failed")
PYTHON
# count FILE: adds up a last line `N passed, N failed[, N skipped]`
count() {
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$1" | tail -n 1)
    grep -v -E '^[0-9]+ passed, [0-9]+ failed' "$1" | grep -E 'FAILED|skipped|Error' 
    [ -n "$line" ] || { failed=$((failed + 1)); echo "FAILED: no result"; tail -n 3 "$1"; return; }
    set -- $(echo "$line" | tr -dc '0-9 ')
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + ${3:-0}))
}
test_peft() {
    "$python" -B "$work/compare_peft.py" "$work" write >"$work/log" 2>&1
    count "$work/log"
    [ -e "$work/theirs/adapter_model.safetensors" ] || return
    train_theirs
    "$python" -B "$work/compare_peft.py" "$work" compare "$(find "$work/csv" -name '*train_loss*' | head -n 1)" >"$work/log" 2>&1
    count "$work/log"
}

test_headers
test_stages
test_layouts
test_resume
test_files
test_peft
if [ $skipped -gt 0 ]; then echo "$passed passed, $failed failed, $skipped skipped"; else echo "$passed passed, $failed failed"; fi
[ $failed = 0 ]
