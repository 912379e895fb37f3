#!/bin/sh
# test_cublaslt.sh BUILD [CXX] - builds test_cublaslt.c with the toolkit's cuBLASLt, and runs it. It needs neither a GPU nor
# a driver. Last line: N passed, N failed[, N skipped].
set -u
B=$1 CXX=${2:-c++}
cd "$(dirname "$0")/../.." || exit 1
flags=$(sh adapters/cuda.sh compile 2>/dev/null) libraries=$(sh adapters/cuda.sh link 2>/dev/null)
case $libraries in *cublasLt*) ;; *) echo "skipped: cuBLASLt is not installed"; echo "0 passed, 0 failed, 1 skipped"; exit 0 ;; esac
mkdir -p "$B/cublaslt"
# shellcheck disable=SC2086
"$CXX" -std=c++17 -x c++ -O1 -Wall -Wextra -Wshadow -Wno-unused-function -Werror -pthread -I. $flags -o "$B/cublaslt/test_cublaslt" tests/cuda/test_cublaslt.c -x none \
    $libraries -lm || { echo "0 passed, 1 failed"; exit 1; }
"$B/cublaslt/test_cublaslt"
