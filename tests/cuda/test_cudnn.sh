#!/bin/sh
# test_cudnn.sh [BUILD [CC]] - the graphs of attention_cudnn.c against the real cuDNN library, which
# needs no GPU for it, only a libcuda.so.1 to load: where there is no driver, the toolkit's stub.
# CUDNN=DIR: where include/cudnn.h and lib/libcudnn.so.9 are; else the usual places, Python's nvidia
# packages among them. Last line: N passed, N failed[, N skipped].
set -u
B=${1:-build} CC=${2:-cc}
here=$(cd "$(dirname "$0")/../.." && pwd)
skip() { echo "0 passed, 0 failed, 1 skipped: $1"; exit 0; }

ask='import site, sys; print(*site.getsitepackages(), site.getusersitepackages(), *sys.path)'
sites=$(python3 -c "$ask" 2>/dev/null)
root=
for place in ${CUDNN:-} ${CUDA:-} ${CUDA_HOME:-} /usr/local/cuda /usr/local/cuda-* /usr/local /usr \
    $(for s in $sites; do echo "$s/nvidia/cudnn"; done); do
    for lib in lib lib64 lib/x86_64-linux-gnu lib/aarch64-linux-gnu; do
        [ -z "$root" ] && [ -e "$place/include/cudnn.h" ] && [ -e "$place/$lib/libcudnn.so.9" ] \
            && root=$place libs=$place/$lib
    done
done
[ -n "$root" ] || skip "cuDNN 9 is not installed"

cuda=
for place in ${CUDA:-} ${CUDA_HOME:-} /usr/local/cuda /usr/local/cuda-* /usr; do
    [ -z "$cuda" ] && [ -e "$place/include/cuda_runtime_api.h" ] && cuda=$place
done
[ -n "$cuda" ] || skip "the CUDA toolkit is not installed"

mkdir -p "$B/cudnn"
path=$libs
if ! ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
    stub=$(ls "$cuda"/lib64/stubs/libcuda.so "$cuda"/lib/stubs/libcuda.so \
        "$cuda"/targets/*/lib/stubs/libcuda.so 2>/dev/null | head -n 1)
    [ -n "$stub" ] || skip "there is neither a driver nor the toolkit's stub of it"
    ln -sf "$stub" "$B/cudnn/libcuda.so.1"
    path=$libs:$(cd "$B/cudnn" && pwd)
fi

"$CC" -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Wpedantic -Wshadow -Werror -pthread \
    -DGPT2_WITH_CUDNN -I"$here" -isystem "$root/include" -isystem "$cuda/include" \
    -o "$B/cudnn/test_cudnn" "$here/tests/cuda/test_cudnn.c" "$libs/libcudnn.so.9" -lm || {
    echo "0 passed, 1 failed"
    exit 1
}
LD_LIBRARY_PATH=$path:${LD_LIBRARY_PATH:-} "$B/cudnn/test_cudnn"
