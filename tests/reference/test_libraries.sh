#!/bin/sh
# test_libraries.sh [PYTHON] - the figures of optimizers.txt and states.txt are what torch, optax, torchao and
# bitsandbytes say now. What is not installed is skipped. Last line: N passed, N failed[, N skipped].
set -u
python=${1:-python3}
here=$(dirname "$0")
passed=0 failed=0 skipped=0
# figures NAME MODULES: those of NAME.txt
figures() {
    if ! "$python" -c "import numpy, $2" >/dev/null 2>&1; then
        echo "skipped: $python lacks a module of numpy, $2"
        skipped=$((skipped + 1))
        return
    fi
    said=$(TORCHDYNAMO_DISABLE=1 "$python" -B "$here/$1.py" --check "$here/$1.txt")
    echo "$said"
    counts=$(echo "$said" | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed\(, \([0-9]*\) skipped\)*$/\1 \2 0\4/p')
    # shellcheck disable=SC2086
    set -- ${counts:-0 1 0} # none: the program failed
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}
figures optimizers "optax, torch.optim._muon"
figures states torch
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
