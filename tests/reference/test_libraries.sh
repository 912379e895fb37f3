#!/bin/sh
# test_libraries.sh [PYTHON] - the figures of tests/reference/optimizers.txt are what torch and optax
# say now. Skipped without them. Last line: N passed, N failed[, N skipped].
set -u
python=${1:-python3}
here=$(dirname "$0")
if ! "$python" -c 'import numpy, optax, torch.optim._muon' >/dev/null 2>&1; then
    echo "skipped: $python has no torch with Muon, or no optax"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
exec "$python" -B "$here/optimizers.py" --check "$here/optimizers.txt"
