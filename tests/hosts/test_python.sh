#!/bin/sh
# test_python.sh BUILD [PYTHON] - numpy trains through the plugin as a shared library
# (test_python.py). Skipped without Python or numpy. Last line: N passed, N failed[, N skipped].
set -u
B=$1 python=${2:-python3}
here=$(dirname "$0")
if ! command -v "$python" >/dev/null 2>&1; then
    echo "skipped: $python is not installed"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
if ! make -s B="$B" lib; then
    echo "0 passed, 1 failed"
    exit 1
fi
library=$(ls "$B"/lib/libzero_plugin.so.*)
# One thread each: ranks are what runs side by side here.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
exec "$python" -B "$here/test_python.py" "$library"
