#!/bin/sh
# test_python.sh BUILD [PYTHON] - builds the plugin as a shared library, and numpy trains through it
# (test_python.py). Skipped without Python or numpy. Last line: N passed, N failed[, N skipped].
set -u
B=$1 python=${2:-python3}
here=$(dirname "$0")
library=$B/python/libzero_plugin.so
flags="-std=c11 -D_GNU_SOURCE -O2 -ffp-contract=off -fno-math-errno -fopenmp -pthread -fPIC -shared
       -Wall -Wextra -Wpedantic -Wshadow -Werror"
if ! command -v "$python" >/dev/null 2>&1; then
    echo "skipped: $python is not installed"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
mkdir -p "$B/python"
if ! ${CC:-cc} $flags -o "$library" -x c "$here/../zero_plugin.cu" -x none -lm; then
    echo "0 passed, 1 failed"
    exit 1
fi
# One thread each: ranks are what runs side by side here.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
exec "$python" -B "$here/test_python.py" "$library"
