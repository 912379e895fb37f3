#!/bin/sh
# test_deepspeed_import.sh BUILD - DeepSpeed's checkpoints in: made-up ones where PYTHON (python3)
# has torch and numpy, and DeepSpeed's own, trained here on 2 and 3 ranks, where it has DeepSpeed
# too. What is not installed is counted as skipped. Last line: N passed, N failed[, N skipped].
set -u
B=$1 python=${PYTHON:-python3}
here=$(dirname "$0")
passed=0 failed=0 skipped=0
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
export OMP_NUM_THREADS=1 DS_ACCELERATOR=cpu

has() {
    command -v "$python" >/dev/null 2>&1 && "$python" -c "import importlib.util as u, sys
sys.exit(not all(map(u.find_spec, sys.argv[1:])))" "$@"
}
skip() { skipped=$((skipped + 1)); echo "skipped: $1"; }

# part MADE|REAL: adds up its last line
part() {
    "$python" -B "$here/test_deepspeed_import.py" "$1" "$B" "$folder" >"$folder/log" 2>&1 </dev/null
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$folder/log" | tail -n 1)
    grep -v -E '^[0-9]+ passed, [0-9]+ failed' "$folder/log"
    [ -n "$line" ] || { failed=$((failed + 1)); echo "FAILED: $1: no result"; return; }
    set -- $(echo "$line" | tr -dc '0-9 ')
    passed=$((passed + $1)) failed=$((failed + $2))
}

# trained RANKS CASES...: with DeepSpeed; then what it has saved is imported
trained() {
    ranks=$1
    shift
    if "$python" -m torch.distributed.run --standalone --nproc-per-node "$ranks" \
        "$here/test_deepspeed_import.py" train "$folder" "$@" >"$folder/log" 2>&1 </dev/null
    then part real
    else
        failed=$((failed + 1))
        echo "FAILED: DeepSpeed on $ranks ranks:"
        tail -n 20 "$folder/log"
    fi
    rm -rf "$folder"/s[0-3]_*
}

if ! has torch numpy; then skip "$python has no torch and numpy"
else
    mkdir "$folder/made"
    folder=$folder/made part made
fi
if ! has torch numpy deepspeed; then skip "$python has no DeepSpeed"
else
    trained 2 s0_f32_g1 s0_f32_g2 s0_bf16_g1 s1_f32_g2 s1_bf16_g1 s1_bf16_g2_acc s2_f32_g1 \
        s2_bf16_g2 s3_f32_g2 s3_bf16_g1
    trained 3 s1_bf16_g2 s2_f32_g2 s2_f32_g2_rr s3_f32_g1
fi
[ $skipped -gt 0 ] && more=", $skipped skipped" || more=
echo "$passed passed, $failed failed$more"
[ $failed -eq 0 ]
