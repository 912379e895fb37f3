#!/bin/sh
# deps.sh install [check] | check CC [cuda NVCC]
# install: installs missing packages with apt, if this machine has apt and allows it. Otherwise prints
#          the packages' names for the usual package managers. `check` adds the linters.
# check:   prints every missing header or program with its package, and installs nothing. `cuda` checks
#          the CUDA build, which needs neither oneDNN nor PCRE2; NCCL and cuDNN are optional.
set -u

# name          how it is found            apt              dnf            pacman   brew
needs() { cat <<'END'
C-compiler      program:cc                 gcc              gcc            gcc      gcc
oneDNN          header:oneapi/dnnl/dnnl.h  libdnnl-dev      onednn-devel   onednn   onednn
PCRE2           header:pcre2.h             libpcre2-dev     pcre2-devel    pcre2    pcre2
xxHash          header:xxhash.h            libxxhash-dev    xxhash-devel   xxhash   xxhash
cJSON           header:cjson/cJSON.h       libcjson-dev     cjson-devel    cjson    cjson
END
}
cuda_needs() { cat <<'END'
C-compiler      program:cc                 gcc              gcc            gcc      gcc
xxHash          header:xxhash.h            libxxhash-dev    xxhash-devel   xxhash   xxhash
cJSON           header:cjson/cJSON.h       libcjson-dev     cjson-devel    cjson    cjson
nvcc            nvcc:                      cuda-toolkit     cuda-toolkit   cuda     -
cuBLASLt        cuda:cuBLASLt              cuda-toolkit     cuda-toolkit   cuda     -
END
}
cuda_wants() { cat <<'END'
NCCL            cuda:NCCL                  libnccl-dev      libnccl-devel  nccl     -
cuDNN           cuda:cuDNN                 libcudnn9-dev-cuda-13  libcudnn9-devel-cuda-13  cudnn  -
END
}
wants() { cat <<'END'
C++-compiler    program:c++                g++              gcc-c++        gcc      gcc
Open-MPI        program:mpicc.openmpi,mpicc  libopenmpi-dev   openmpi-devel  openmpi  open-mpi
mpirun          program:mpirun             openmpi-bin      openmpi        openmpi  open-mpi
MPICH           program:mpicc.mpich        libmpich-dev     mpich-devel    mpich    mpich
mpirun.mpich    program:mpirun.mpich       mpich            mpich          mpich    mpich
liburing        header:liburing.h          liburing-dev     liburing-devel liburing -
ip              program:ip                 iproute2         iproute        iproute2 iproute2mac
END
}
linters() { cat <<'END'
clang           program:clang              clang            clang          clang    llvm
libFuzzer       fuzzer:                    libclang-rt-dev  compiler-rt    compiler-rt  llvm
clang-format    program:clang-format       clang-format     clang-tools-extra  clang  clang-format
clang-tidy      program:clang-tidy         clang-tidy       clang-tools-extra  clang  llvm
cppcheck        program:cppcheck           cppcheck         cppcheck       cppcheck cppcheck
shellcheck      program:shellcheck         shellcheck       ShellCheck     shellcheck  shellcheck
END
}

there() {
    case $1 in
    program:*) for p in $(echo "${1#program:}" | tr ',' ' '); do command -v "$p" >/dev/null 2>&1 && return 0; done
               return 1 ;;
    fuzzer:*)  echo 'int LLVMFuzzerTestOneInput(const char *p, long n) { return !p && n; }' |
                   clang -fsanitize=fuzzer -x c -o /dev/null - >/dev/null 2>&1 ;;
    nvcc:)     command -v "$NVCC" >/dev/null 2>&1 ;;
    cuda:*)    ! sh "$(dirname "$0")/cuda.sh" report "$NVCC" | grep -q "without ${1#cuda:}" ;;
    header:*)  [ -n "${CARRY:-}" ] && [ -f "$CARRY/include/${1#header:}" ] && return 0
               printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <%s>\n' "${1#header:}" | "${CC:-cc}" -E -x c - >/dev/null 2>&1 ;;
    esac
}

# Prints the missing rows of the given lists.
missing() {
    for list in "$@"; do $list; done | while read -r what how apt dnf pacman brew; do
        there "$how" || echo "$what $apt $dnf $pacman $brew"
    done
}

column() { printf '%s\n' "$1" | awk -v c="$2" 'NF && $c != "-" { if (!seen[$c]++) printf " %s", $c }'; }

name_packages() {
    echo "missing:$(column "$1" 1)" >&2
    echo "  Debian, Ubuntu  apt-get install$(column "$1" 2)" >&2
    echo "  Fedora          dnf install$(column "$1" 3)" >&2
    echo "  Arch            pacman -S$(column "$1" 4)" >&2
    brew=$(column "$1" 5)
    [ -z "$brew" ] || echo "  macOS           brew install$brew" >&2
}

case ${1:-} in
check)
    [ -n "${2:-}" ] && CC=$2
    NVCC=${4:-nvcc}
    if [ "${3:-}" = cuda ]; then
        rows=$(missing cuda_wants)
        [ -n "$rows" ] && { echo "optional (they are found in Python's nvidia packages as well):" >&2; name_packages "$rows"; }
        rows=$(missing cuda_needs)
        [ -z "$rows" ] && exit 0
        name_packages "$rows"
        echo "CUDA's packages are NVIDIA's: https://developer.nvidia.com/cuda-downloads" >&2
        exit 1
    fi
    rows=$(missing needs)
    [ -z "$rows" ] && exit 0
    name_packages "$rows"
    echo "or: make deps" >&2
    exit 1 ;;
install)
    lists="needs wants"
    [ "${2:-}" = check ] && lists="$lists linters"
    rows=$(missing $lists)
    [ -z "$rows" ] && exit 0
    sudo=
    [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null && sudo="sudo -n"; }
    if ! command -v apt-get >/dev/null 2>&1 || { [ "$(id -u)" != 0 ] && [ -z "$sudo" ]; }; then
        [ -z "$(missing needs)" ] && echo "MPI is optional: without it ranks start with -pn alone" >&2
        name_packages "$rows"
        [ -z "$(missing needs)" ]
        exit
    fi
    echo "installing:$(column "$rows" 2)"
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    # shellcheck disable=SC2046
    if ! { $sudo apt-get update && $sudo apt-get install -y --no-install-recommends $(column "$rows" 2); } >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        rm -f "$log"
        name_packages "$rows"
        exit 1
    fi
    rm -f "$log"
    rows=$(missing needs)
    [ -z "$rows" ] || { name_packages "$rows"; exit 1; } ;;
*)
    echo "deps.sh: expected install or check, found '${1:-}'" >&2
    exit 2 ;;
esac
