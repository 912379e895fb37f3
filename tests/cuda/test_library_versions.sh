#!/bin/sh
# test_library_versions.sh BUILD [NCCL|CUDNN=VERSION...] - the plugin compiles with the headers of each NCCL version that
# it supports, sets its fields, and links with its library; attention_cudnn.c compiles with the headers of the oldest cuDNN
# that it supports and of a new one. The versions come from the Python package index, and stay in BUILD/versions. Skipped
# without a network. Last line: N passed, N failed[, N skipped].
set -u
B=$1
cd "$(dirname "$0")/../.." || exit 1
shift
versions=${*:-nccl=2.19.3 nccl=2.27.7 nccl=2.30.7 nccl=2.31.2 nccl=2.32.3 cudnn=9.0.0.312 cudnn=9.8.0.87 cudnn=9.28.0.42}
python=${PYTHON:-python3} toolkit=$(sh adapters/cuda.sh toolkit "${NVCC:-nvcc}" 2>/dev/null)
[ -f "$toolkit/include/cuda_runtime_api.h" ] || { echo "skipped: the CUDA toolkit's headers are not installed"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
passed=0 failed=0 skipped=0
mkdir -p "$B/versions" || exit 1
pass() { passed=$((passed + 1)); }
miss() { failed=$((failed + 1)); echo "FAILED: $*"; }

# Unpacks a version of a package, once.
fetch() { # PACKAGE VERSION
    folder=$B/versions/$1-$2
    [ -d "$folder/nvidia" ] && return 0
    rm -rf "$folder" && mkdir -p "$folder" || return 1
    "$python" -m pip download -q --no-deps --disable-pip-version-check -d "$folder" "nvidia-$1-cu12==$2" >"$folder/log" 2>&1 || return 1
    "$python" -m zipfile -e "$folder"/*.whl "$folder" && rm -f "$folder"/*.whl
    [ "$1" = nccl ] || rm -rf "$folder/nvidia/$1/lib" # its headers are enough
}

for each in $versions; do
    name=${each%%=*} version=${each#*=}
    if ! fetch "$name" "$version"; then
        echo "skipped: $name $version cannot be downloaded: $(tail -n 1 "$B/versions/$name-$version/log" 2>/dev/null)"
        rm -rf "$B/versions/$name-$version"
        skipped=$((skipped + 1))
        continue
    fi
    include=$B/versions/$name-$version/nvidia/$name/include object=$B/versions/$name.o
    if [ "$name" = cudnn ]; then
        if ${CC:-cc} -std=c11 -D_GNU_SOURCE -DGPT2_WITH_CUDNN -Wall -Wextra -Werror -I. -I"$include" -isystem "$toolkit/include" -fsyntax-only \
            adapters/gpt2/attention_cudnn.c; then pass; else miss "attention_cudnn.c does not compile with cuDNN $version"; fi
        continue
    fi
    if ! ${CXX:-c++} -std=c++17 -O0 -D__CUDACC__ -DZERO_WITH_NCCL -Itests/emulation -I"$include" -isystem "$toolkit/include" -Wall -Wextra -Werror \
        -include cuda_runtime.h -x c++ -c -o "$object" zero_plugin.cu; then
        miss "the plugin does not compile with NCCL $version"
        continue
    fi
    pass
    # A header with the field launchOrderImplicit has it set, once.
    want=$(grep -q 'int launchOrderImplicit;' "$include/nccl.h" && echo 1 || echo 0)
    sets=$(${CXX:-c++} -std=c++17 -E -P -D__CUDACC__ -DZERO_WITH_NCCL -Itests/emulation -I"$include" -isystem "$toolkit/include" \
        -include cuda_runtime.h -x c++ zero_plugin.cu | grep -c 'launchOrderImplicit = 1;')
    if [ "$sets" = "$want" ]; then pass; else miss "with NCCL $version the plugin sets launchOrderImplicit $sets times, not $want"; fi
    library=$B/versions/$name-$version/nvidia/nccl/lib/libnccl.so.2
    nm -D --defined-only "$library" | sed -n 's/.* [TW] \(nccl[A-Za-z0-9_]*\).*/\1/p' | sort -u >"$B/versions/has"
    nm -u "$object" | sed -n 's/.* U \(nccl[A-Za-z0-9_]*\).*/\1/p' | sort -u >"$B/versions/needs"
    lacking=$(comm -13 "$B/versions/has" "$B/versions/needs" | tr '\n' ' ')
    if [ -s "$B/versions/needs" ] && [ -z "$lacking" ]; then pass; else miss "NCCL $version lacks $lacking of $(wc -l <"$B/versions/needs") functions"; fi
    # What gpu.sh carries of a version that lets two ranks share a GPU.
    [ "$version" != 2.30.7 ] && continue
    if small=$("$python" tests/cuda/slim_nccl.py "$library" "$B/versions/small.xz" 90 && "$python" tests/cuda/slim_nccl.py check "$library" "$B/versions/small.xz" 90); then pass
    else miss "slim_nccl.py, NCCL $version: $small"; fi
    if [ "$(wc -c <"$B/versions/small.xz")" -lt 45000000 ]; then pass; else miss "NCCL $version, made small, has $(wc -c <"$B/versions/small.xz") bytes"; fi
done
[ $skipped -gt 0 ] && more=", $skipped skipped" || more=
echo "$passed passed, $failed failed$more"
[ $failed -eq 0 ]
