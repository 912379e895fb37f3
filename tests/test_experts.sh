#!/bin/sh
# test_experts.sh - the trainer with experts: the same weights at every stage, layouts compared,
# checkpoints that go on with the same bits, what is refused. TRAINER: the program.
set -u
cd "$(dirname "$0")/.." || exit 1
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

# ---- stages and layouts side by side ----
if train -pn 4 -x 4 -rd 2 -z 1 -layouts "dp4 ep2dp4 ep4" -csv "$work/csv" && grep -q ep2dp4 "$work/csv" && grep -q ep4dp4 "$work/csv"; then pass; else
    fail "-layouts: $(tail -n 3 "$work/out")"
fi
if train -pn 2 -eg 2 -x 4 -rd 2 -z 0,1,2,3 -csv "$work/csv"; then pass; else fail "-z 0,1,2,3: $(tail -n 3 "$work/out")"; fi

# ---- checkpoints ----
train -pn 4 -eg 2 -z 2 -x 6 -o "$work/whole" -n 3 || fail "saves: $(tail -n 2 "$work/out")"
want=$(weights)
train -pn 4 -eg 2 -z 2 -x 3 -o "$work/parts" -n 3 || fail "a part: $(tail -n 2 "$work/out")"
train -pn 4 -eg 2 -z 2 -x 6 -o "$work/parts" -n 3 -y 1 || fail "goes on: $(tail -n 2 "$work/out")"
if [ -n "$want" ] && [ "$(weights)" = "$want" ]; then pass; else fail "goes on to $(weights), expected $want"; fi
train -pn 2 -eg 2 -b 4 -z 3 -x 6 -o "$work/whole" -n 3 -y 1 || fail "fewer ranks: $(tail -n 2 "$work/out")"
if [ "$(weights)" = "$want" ]; then pass; else fail "fewer ranks: $(weights), saved $want"; fi
refused experts -pn 4 -eg 4 -x 9 -o "$work/whole" -n 3 -y 1

# ---- no dense model's file has a place for them ----
tool=$(dirname "$TRAINER")/../zero_ckpt
if [ -x "$tool" ]; then
    if "$tool" export "$work/parts" "$work/dense.bin" --heads 4 --vocab 65 >"$work/out" 2>&1; then fail "exported"
    elif grep -q 'experts' "$work/out"; then pass; else fail "export: $(cat "$work/out")"; fi
    if "$tool" convert "$work/parts" "$work/one" >"$work/out" 2>&1; then fail "converted"
    elif grep -q 'experts are saved beside it' "$work/out" && [ ! -e "$work/one" ]; then pass; else fail "convert: $(cat "$work/out")"; fi
fi

# ---- what cannot be ----
refused 'nearest that can is -eg 2' -pn 2 -eg 3
refused 'divide 4 experts' -pn 8 -b 1 -eg 8
refused 'nearest that can be is -tp 1' -pn 2 -tp 2
refused 'nearest that can be is -tp 1' -pn 2 -pp 2
refused 'adamw is' -op lamb
refused 'are not delayed' -zod 2
refused '-na 0' -na 1 -n 1 -o "$work/none"
refused 'no experts to share' -en 0 -eg 2 -pn 2
echo "$passed passed, $failed failed"
[ $failed = 0 ]
