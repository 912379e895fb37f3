#!/bin/sh
# test_experts.sh - the trainer with experts: the same weights at every stage, beside every way to divide a
# model and to update it, layouts compared, checkpoints that go on at any layout, what is refused.
# TRAINER: the program.
# Flags are several words on purpose.
# shellcheck disable=SC2086
set -u
cd "$(dirname "$0")/../.." || exit 1
TRAINER=${TRAINER:-build/unmeasured/train_gpt2_zero}
passed=0 failed=0 work=$(mktemp -d "${TMPDIR:-/tmp}/experts.XXXXXX")
trap 'rm -rf "$work"' EXIT

pass() { passed=$((passed + 1)); }
fail() {
    failed=$((failed + 1))
    printf 'FAILED: %s\n' "$*"
}
train() { "$TRAINER" -e char:4x32x4 -t 32 -b 2 -v -1 -g 0 -nt 1 -lp 1 -en 4 "$@" >"$work/out" 2>&1; }
weights() { sed -n 's/^weights //p' "$work/out"; }
steps() { sed -n 's/^step *\([0-9]*\).*loss \([0-9.]*\).*\(aux [0-9.]* | dropped [0-9]*\).*/\1 \2 \3/p' "$work/out"; }
refused() { # words, flags
    words=$1
    shift
    if train -x 1 "$@"; then fail "taken: $*"; return; fi
    if grep -q -e "$words" "$work/out"; then pass; else fail "$* without '$words': $(head -c 300 "$work/out")"; fi
}

# ---- the same at every stage ----
for group in 1 2; do
    for stage in 0 1 2 3; do
        train -pn 2 -eg $group -ek 2 -x 4 -z $stage -za sharded -d 256 || fail "stage $stage: $(tail -n 2 "$work/out")"
        [ $stage = 0 ] && first=$(weights) lines=$(steps)
        if [ -n "$first" ] && [ "$(weights)" = "$first" ] && [ "$(steps)" = "$lines" ]; then pass; else
            fail "group $group, stage $stage: $(weights), stage 0: $first"
        fi
    done
    if [ "$(printf '%s\n' "$lines" | grep -c dropped)" = 4 ]; then pass; else fail "lines of steps: $lines"; fi
done

# ---- beside tensor and pipeline parallelism, with other updates, in tiles ----
near() { # FLAGS: the losses, auxiliary losses and dropped choices of $lines
    train "$@" || fail "$*: $(tail -n 2 "$work/out")"
    printf '%s\n' "$lines" >"$work/a"
    steps >"$work/b"
    if paste -d' ' "$work/a" "$work/b" | awk '
        { for (i = 2; i <= 7; i++) { d = $i - $(i + 7); if (i != 3 && i != 5 && i != 6 && (d < 0 ? -d : d) > 2e-4) bad = 1 } }
        END { exit bad || NR != 4 || NF != 14 }'; then pass; else fail "$*: $(cat "$work/b"), not $lines"; fi
}
train -pn 2 -eg 2 -ek 2 -x 4 -d 256 -z 1 || fail "two ranks: $(tail -n 2 "$work/out")"
lines=$(steps)
for way in "-pn 4 -tp 2" "-pn 8 -tp 4 -sp 1 -z 3 -r 3" "-pn 4 -pp 2 -z 2" "-pn 8 -tp 2 -pp 2 -z 3 -sp 1 -r 2" "-pn 2 -zl 32" "-pn 4 -tp 2 -zl 32 -z 3 -zos host" "-pn 4 -pp 2 -z 3 -zl 32 -r 4"; do
    near $way -eg 2 -ek 2 -x 4 -d 256
done
train -pn 4 -eg 2 -ek 2 -x 4 -d 256 -z 1 -k constant -u 0 || fail "four ranks: $(tail -n 2 "$work/out")"
lines=$(steps) neighbours=$(weights)
near -pn 4 -eg 2 -ek 2 -x 4 -d 256 -z 1 -k constant -u 0 -ego 1
apart=$(weights)
cat >"$work/ds.json" <<JSON
{"train_batch_size": 8, "expert_parallel": {"enabled": true, "autoep_size": 2, "top_k": 2}, "use_data_before_expert_parallelism": true,
 "gradient_clipping": "auto", "zero_optimization": {"stage": 1},
 "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}}
JSON
train -pn 4 -x 4 -ds "$work/ds.json" || fail "-ds: $(tail -n 2 "$work/out")"
if [ -n "$apart" ] && [ "$(weights)" = "$apart" ] && [ "$apart" != "$neighbours" ]; then pass; else
    fail "-ds: $(weights), -ego 1: $apart, -ego 0: $neighbours"
fi
refused 'is 2, which does not divide 3' -pn 3 -b 2 -d 192 -ds "$work/ds.json"
refused 'autoep_size: -eg 2; leave one of the two out' -pn 4 -eg 4 -ds "$work/ds.json"

for update in "-op lamb" "-op muon" "-zod 2"; do
    train -pn 2 -eg 1 -x 4 -d 256 -z 1 $update || fail "$update: $(tail -n 2 "$work/out")"
    lines=$(steps)
    [ "$update" = "-zod 2" ] || near -pn 4 -tp 2 -eg 2 -x 4 -d 256 -z 1 $update
    for stage in 0 1 2 3; do
        near -pn 2 -eg 2 -x 4 -d 256 -z $stage -za sharded $update
        [ $stage = 0 ] && first=$(weights)
        if [ -n "$first" ] && [ "$(weights)" = "$first" ]; then pass; else fail "$update, stage $stage: $(weights), stage 0: $first"; fi
    done
done

# ---- copies of a node's own, and second shards: the bits of ranks that are summed node by node ----
for group in "-eg 2" "-eg 2 -ego 1" "-eg 4" "-eg 1"; do
    train -pn 4 $group -ek 2 -x 4 -d 256 -ns 2 -z 1 || fail "$group -ns 2: $(tail -n 2 "$work/out")"
    first=$(weights) lines=$(steps)
    for way in "-z 1 -zs 2" "-z 2 -zs 2 -zm 0" "-z 3 -zs 2" "-z 3 -zh 2 -zm 0" "-z 3 -zs 2 -zh 2 -zm 0" "-z 3 -zs 2 -zod 99 -zos file -zfd $work"; do
        train -pn 4 $group -ek 2 -x 4 -d 256 -ns 2 $way || fail "$group $way: $(tail -n 2 "$work/out")"
        if [ -n "$first" ] && [ "$(weights)" = "$first" ] && [ "$(steps)" = "$lines" ]; then pass; else
            fail "$group $way: $(weights), without copies $first"
        fi
    done
done
near -pn 8 -tp 2 -eg 2 -ek 2 -x 4 -d 256 -z 3 -zs 2
near -pn 8 -pp 2 -eg 2 -ek 2 -x 4 -d 256 -z 2 -zs 2 -zl 32
refused 'use a multiple or a divisor of 2' -pn 6 -b 1 -d 192 -eg 2 -z 1 -zs 3

# ---- stages and layouts side by side ----
if train -pn 4 -x 4 -rd 2 -z 1 -layouts "dp4 ep2dp4 ep4" -csv "$work/csv" && grep -q ep2dp4 "$work/csv" && grep -q ep4dp4 "$work/csv"; then pass; else
    fail "-layouts: $(tail -n 3 "$work/out")"
fi
if train -pn 8 -ec 4 -ea 0 -d 512 -b 1 -x 4 -rd 2 -layouts "dp8 ep2dp8 ep2tp2dp4 ep2pp2dp4 tp2pp2ep2" -csv "$work/csv" \
    && sed 1d "$work/csv" | awk -F, '{ if (NR == 1) loss = $13; d = $13 - loss; s = $10 / $11 - 1; if (d < 0) d = -d; if (s < 0) s = -s
            if (d > 1e-4 || s > 0.05) bad = 1 } END { exit bad || NR != 5 }'; then pass; else
    fail "-layouts in parts: $(tail -n 3 "$work/out") $(cut -d, -f 10,11,13,17 "$work/csv")"
fi
if train -pn 2 -eg 2 -x 4 -rd 2 -z 0,1,2,3 -csv "$work/csv"; then pass; else fail "-z 0,1,2,3: $(tail -n 3 "$work/out")"; fi
for bytes in "-dt bf16 -os 8bit" "-op muon -os bf16 -oe f32" "-dt bf16 -w 0 -op lion -os 8bit -zod 1"; do
    if train -pn 2 -eg 2 -x 4 -rd 1 -z 0,1,2,3 $bytes; then pass; else fail "stages, $bytes: $(tail -n 3 "$work/out")"; fi
done

# ---- checkpoints ----
train -pn 4 -eg 2 -z 2 -x 6 -o "$work/whole" -n 3 || fail "saves: $(tail -n 2 "$work/out")"
want=$(weights)
train -pn 4 -eg 2 -z 2 -x 3 -o "$work/parts" -n 3 || fail "a part: $(tail -n 2 "$work/out")"
train -pn 4 -eg 2 -z 2 -x 6 -o "$work/parts" -n 3 -y 1 || fail "goes on: $(tail -n 2 "$work/out")"
if [ -n "$want" ] && [ "$(weights)" = "$want" ]; then pass; else fail "goes on to $(weights), expected $want"; fi
train -pn 4 -eg 2 -z 2 -x 6 -o "$work/aside" -n 1 -nk 2 -na 1 || fail "saves aside: $(tail -n 2 "$work/out")"
rm -rf "$work/aside/step_00000006" # as if it had been killed in the last one
train -pn 4 -eg 2 -z 2 -x 6 -o "$work/aside" -n 1 -nk 2 -na 1 -y 1 || fail "aside: $(tail -n 2 "$work/out")"
if [ "$(weights)" = "$want" ]; then pass; else fail "goes on to $(weights) from what was saved aside, expected $want"; fi
train -pn 2 -eg 2 -b 4 -z 3 -x 6 -o "$work/whole" -n 3 -y 1 || fail "fewer ranks: $(tail -n 2 "$work/out")"
if [ "$(weights)" = "$want" ]; then pass; else fail "fewer ranks: $(weights), saved $want"; fi
train -pn 4 -eg 2 -z 3 -zs 2 -ns 2 -x 3 -o "$work/near" -n 3 || fail "saves copies: $(tail -n 2 "$work/out")"
near_want=$(weights)
train -pn 4 -eg 1 -z 1 -x 3 -o "$work/near" -n 3 -y 1 || fail "goes on from copies: $(tail -n 2 "$work/out")"
if [ -n "$near_want" ] && [ "$(weights)" = "$near_want" ]; then pass; else fail "from copies: $(weights), saved $near_want"; fi
at() { # FOLDER STEPS FLAGS: from a copy of it to that step
    rm -rf "$work/copy"
    cp -r "$work/$1" "$work/copy"
    to=$2
    shift 2
    train -x "$to" -o "$work/copy" -n 99 -y 1 "$@" || fail "goes on as $*: $(tail -n 2 "$work/out")"
}
train -pn 8 -tp 2 -pp 2 -sp 1 -eg 2 -z 3 -d 256 -x 2 -o "$work/cut" -n 2 || fail "in parts: $(tail -n 2 "$work/out")"
for from in parts cut; do
    total=$([ $from = parts ] && echo 6 || echo 2)
    at $from "$total" -pn 4 -eg 2 -z 2 && want=$(weights)
    at $from $((total + 4)) -pn 4 -eg 2 -z 2 && lines=$(steps)
    for way in "-pn 4 -eg 4 -z 3" "-pn 4 -eg 1" "-pn 8 -tp 2 -eg 4 -z 1" "-pn 8 -pp 2 -eg 2" "-pn 8 -tp 2 -pp 2 -eg 2 -z 3 -d 256"; do
        at $from "$total" $way
        if [ -n "$want" ] && [ "$(weights)" = "$want" ]; then pass; else fail "$from as $way: $(weights), saved $want"; fi
    done
    rm -rf "$work/copy" && cp -r "$work/$from" "$work/copy"
    near -pn 4 -eg 4 -x $((total + 4)) -o "$work/copy" -y 1 -n 99
    rm -rf "$work/copy" && cp -r "$work/$from" "$work/copy"
    near -pn 8 -tp 2 -eg 2 -x $((total + 4)) -o "$work/copy" -y 1 -n 99
done
train -pn 8 -tp 2 -pp 2 -sp 1 -eg 2 -z 3 -d 256 -x 4 || fail "in parts: $(tail -n 2 "$work/out")"
want=$(weights)
at cut 4 -pn 8 -tp 2 -pp 2 -sp 1 -eg 2 -z 3 -d 256
if [ -n "$want" ] && [ "$(weights)" = "$want" ]; then pass; else fail "in parts goes on to $(weights), expected $want"; fi

# ---- no dense model's file has a place for them ----
tool=$(dirname "$TRAINER")/../zero_ckpt
if [ -x "$tool" ]; then
    if "$tool" export "$work/parts" "$work/dense.bin" --heads 4 --vocab 65 >"$work/out" 2>&1; then fail "exported"
    elif grep -q 'experts' "$work/out"; then pass; else fail "export: $(cat "$work/out")"; fi
    if "$tool" convert "$work/parts" "$work/one" >"$work/out" 2>&1; then fail "converted"
    elif grep -q 'experts are in a folder of their own' "$work/out" && [ ! -e "$work/one" ]; then pass; else fail "convert: $(cat "$work/out")"; fi
fi

# ---- what cannot be ----
refused 'nearest size is -eg 2' -pn 2 -eg 3
refused 'divide 4 experts' -pn 8 -b 1 -eg 8
refused 'use at most 2 stages' -pn 3 -pp 3 -b 2 -d 192
refused 'use at most 1 chunk' -pn 2 -pp 2 -ppv 2 -d 256
refused 'no experts to share' -en 0 -eg 2 -pn 2
echo "$passed passed, $failed failed"
[ $failed = 0 ]
