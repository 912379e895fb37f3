#!/bin/sh
# check_parts.sh BUILD CC "CUDA FLAGS" - the plugin compiles without a part. For each part of the list below, this
# copies the plugin, removes the part's files, the lines that include them and the lines that name their rows
# (zp_FILE_row,), and compiles the rest for the CPU, with MPI, and for the emulated CUDA.
# CUDA FLAGS: as of cuda.sh; "": no CUDA. Exit code 1: something does not compile.
# Flags are several words on purpose.
# shellcheck disable=SC2086
set -u
B=$1/check/parts CC=$2 cuda=$3 failed=0
parts="state:core/state,api/access nccl:comm/nccl,comm/nccl_watch mpi:comm/mpi,comm/mpi_nodes groups:api/groups,comm/collectives,extras/world
pipe:comm/pipe,api/groups,comm/collectives,extras/world,extras/packed,extras/codec_kernels,extras/codec_blocks,extras/codec
transports:comm/nccl,comm/nccl_watch,comm/mpi,comm/mpi_nodes"

# compiles COMMAND...: in the copy, with the plugin's warnings as errors
compiles() {
    (cd "$B" && "$@" -Wall -Wextra -Werror -O0 -c -o plugin.o zero_plugin.cu) && return
    echo "without $part: $1 does not compile it"
    failed=1
}
for entry in $parts; do
    part=${entry%%:*}
    rm -rf "$B" && mkdir -p "$B" && cp -r zero_plugin.h zero_plugin.cu zero_plugin "$B" || exit 1
    for path in $(echo "${entry#*:}" | tr ',' ' '); do
        file=${path##*/}
        rm "$B/zero_plugin/$path.h" || exit 1
        sed -i "/zp_${file}_row,/d; /^#include \"\(.*\/\)\{0,1\}$file\.h\"/d" "$B/zero_plugin.cu" "$B"/zero_plugin/*/*.h
    done
    compiles "$CC" -std=c11 -D_GNU_SOURCE -fopenmp -x c
    case " $part " in
    *mpi*|*transports*) ;;
    *) command -v mpicc >/dev/null 2>&1 && compiles mpicc -std=c11 -D_GNU_SOURCE -DZERO_WITH_MPI -DOMPI_SKIP_MPICXX -x c ;;
    esac
    [ -z "$cuda" ] || compiles "${CXX:-c++}" -std=c++17 -D__CUDACC__ -I"$PWD/tests/emulation" $cuda -include cuda_runtime.h -x c++
done
exit $failed
