#!/bin/sh
# cuda.sh device | toolkit | archs | report | compile | link [NVCC] - finds what the CUDA build needs on this machine.
# device:  prints cuda if this machine has nvcc and a GPU, else cpu.
# toolkit: prints the toolkit's folder.
# archs:   prints the architectures of this machine's GPUs, or without a GPU 80 90 100.
# report:  prints one line about the libraries that were found, and those that are missing.
# compile: prints flags for nvcc and cc.    link: prints paths of libraries and their run paths.
# It searches for NCCL and cuDNN in NCCL_HOME and CUDNN_HOME, in the toolkit (CUDA_HOME, else nvcc's), in
# /usr and /usr/local, and in Python's `nvidia` packages. A HOME of `none` leaves the library out.
set -u
what=${1:-} NVCC=${2:-nvcc}

toolkit() {
    path=$(command -v "$NVCC" 2>/dev/null) || path=
    [ -n "$path" ] && path=$(dirname "$(dirname "$(readlink -f "$path")")")
    echo "${CUDA_HOME:-${path:-/usr/local/cuda}}"
}

# Prints the folders of Python's packages, one a line. Those of CUDA 13 share one folder, cu13.
python_folders() {
    "${PYTHON:-python3}" -c 'import importlib.util as u
s = u.find_spec("nvidia")
print("\n".join(s.submodule_search_locations) if s else "")' 2>/dev/null | while read -r folder; do
        for package in "$folder"/*/; do echo "${package%/}"; done
    done
}

# Prints the folders to search, one a line. If HOME is set, only that folder.
folders() { # HOME
    if [ -n "$1" ]; then echo "$1"; return; fi
    toolkit
    printf '/usr\n/usr/local\n'
    python_folders
}

# Prints the header's folder and the library's path, from the first folder that has both.
# Library names in Python's packages always have a version.
find_both() { # HOME HEADER NAME
    [ "$1" = none ] || folders "$1" | while read -r folder; do
        include='' library=''
        for sub in targets/x86_64-linux/include include/x86_64-linux-gnu include; do
            [ -f "$folder/$sub/$2" ] && include=$folder/$sub
        done
        for sub in lib64 lib lib/x86_64-linux-gnu targets/x86_64-linux/lib; do
            for file in "$folder/$sub/lib$3.so" "$folder/$sub/lib$3.so".*; do
                [ -z "$library" ] && [ -f "$file" ] && library=$file
            done
        done
        [ -n "$include" ] && [ -n "$library" ] && { echo "$include $library"; exit; }
    done
}

defined() { # HEADER NAME: prints the number of a #define
    sed -n "s/^#define $2  *\([0-9][0-9]*\).*/\1/p" "$1" 2>/dev/null | head -n 1
}

compute_capabilities() {
    nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d ' .' | sort -un
}

has_gpu() {
    [ -n "$(ls /proc/driver/nvidia/gpus 2>/dev/null)" ] || nvidia-smi -L 2>/dev/null | grep -q '^GPU'
}

# Sets four variables to the found paths, or to "".
search() {
    cuda=$(find_both "${CUDA_HOME:-}" cuda_runtime.h cudart)
    cublas=$(find_both "${CUDA_HOME:-}" cublasLt.h cublasLt)
    nccl=$(find_both "${NCCL_HOME:-}" nccl.h nccl)
    cudnn=$(find_both "${CUDNN_HOME:-}" cudnn_backend.h cudnn)
}

report() {
    nccl_text='without NCCL: one rank, or threads of one process'
    cudnn_text="without cuDNN: attention by the kernels of attention_cuda.cu"
    if [ -n "$nccl" ]; then
        header=${nccl%% *}/nccl.h
        nccl_text="NCCL $(defined "$header" NCCL_MAJOR).$(defined "$header" NCCL_MINOR) (${nccl#* })"
    fi
    if [ -n "$cudnn" ]; then
        header=${cudnn%% *}/cudnn_version.h
        cudnn_text="cuDNN $(defined "$header" CUDNN_MAJOR).$(defined "$header" CUDNN_MINOR) (${cudnn#* })"
    fi
    version=$("$NVCC" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    cublas_text=${cublas#* }
    echo "CUDA ${version:-without nvcc}, ${cublas_text:-without cuBLASLt}; $nccl_text; $cudnn_text"
}

compile() {
    for folder in $(printf '%s\n' "${cuda%% *}" "${cublas%% *}" "${nccl%% *}" "${cudnn%% *}" | awk '!seen[$0]++'); do
        # Naming a folder that compilers search by default would change their order.
        case $folder in /usr/include | /usr/local/include) ;; *) printf ' -isystem %s' "$folder" ;; esac
    done
    [ -n "$nccl" ] && printf ' -DZERO_WITH_NCCL -DLAUNCH_WITH_NCCL'
    [ -n "$cudnn" ] && printf ' -DGPT2_WITH_CUDNN'
    echo
}

link() {
    for file in "${cublas#* }" "${nccl#* }" "${cudnn#* }" "${cuda#* }"; do
        [ -n "$file" ] && printf ' %s -Wl,-rpath,%s' "$file" "$(dirname "$file")"
    done
    # The driver's library may be missing on a machine that only builds.
    echo ' -Wl,--allow-shlib-undefined -lstdc++ -ldl'
}

case $what in
device) if command -v "$NVCC" >/dev/null 2>&1 && has_gpu; then echo cuda; else echo cpu; fi ;;
toolkit) toolkit ;;
archs)
    found=$(compute_capabilities | tr '\n' ' ')
    echo "${found:-80 90 100}" ;;
report) search; report ;;
compile) search; compile ;;
link) search; link ;;
*) echo "cuda.sh: expected device, toolkit, archs, report, compile or link, found '$what'" >&2; exit 2 ;;
esac
