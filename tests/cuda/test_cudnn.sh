#!/bin/sh
# test_cudnn.sh [BUILD [CC [all] [SM90]]] - makes the plans of attention_cudnn.c with the real cuDNN library, which needs no
# GPU for it, only a libcuda.so.1 to load: driver.c.
# CUDNN=DIR: where include/cudnn.h and lib/libcudnn.so.9 are; else the usual places, Python's nvidia
# packages among them. Last line: N passed, N failed[, N skipped].
set -u
# Flags are split at blanks on purpose.
# shellcheck disable=SC2086
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
# The driver of the tests: driver.c, and what it does not define refuses (801: not supported).
stub=
for file in "$cuda"/lib64/stubs/libcuda.so "$cuda"/lib/stubs/libcuda.so "$cuda"/targets/*/lib/stubs/libcuda.so; do
    [ -n "$stub" ] || { [ -f "$file" ] && stub=$file; }
done
[ -n "$stub" ] || skip "the toolkit's stub of the driver, which names its functions, is not there"
flags="-std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Wpedantic -Wshadow -Werror -pthread"
"$CC" $flags -fPIC -isystem "$cuda/include" -c -o "$B/cudnn/driver.o" "$here/tests/cuda/driver.c" || { echo "0 passed, 1 failed"; exit 1; }
nm --defined-only "$B/cudnn/driver.o" | sed -n 's/.* T //p' | sort >"$B/cudnn/defined"
nm -D --defined-only "$stub" | sed -n 's/.* T \(cu.*\)/\1/p' | sort -u | comm -23 - "$B/cudnn/defined" |
    sed 's/.*/int &(void); int &(void) { return 801; }/' >"$B/cudnn/refusals.c"
"$CC" $flags -fPIC -shared -Wl,-soname,libcuda.so.1 -o "$B/cudnn/libcuda.so.1" "$B/cudnn/driver.o" "$B/cudnn/refusals.c" &&
    "$CC" $flags -DGPT2_WITH_CUDNN -I"$here" -isystem "$root/include" -isystem "$cuda/include" \
        -o "$B/cudnn/test_cudnn" "$here/tests/cuda/test_cudnn.c" "$libs/libcudnn.so.9" -lm -ldl || {
    echo "0 passed, 1 failed"
    exit 1
}
# Where no driver is installed: without the driver of the tests, too.
if ! { ldconfig -p 2>/dev/null || /sbin/ldconfig -p; } 2>/dev/null | grep -q 'libcuda\.so\.1'; then
    LD_LIBRARY_PATH=$libs "$B/cudnn/test_cudnn" alone >"$B/cudnn/alone.log" || { cat "$B/cudnn/alone.log"; exit 1; }
fi
LD_LIBRARY_PATH=$(cd "$B/cudnn" && pwd):$libs:${LD_LIBRARY_PATH:-} "$B/cudnn/test_cudnn" ${3:-} ${4:-}
