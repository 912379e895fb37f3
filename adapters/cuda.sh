#!/bin/sh
# cuda.sh device | toolkit | archs | report | compile | link [NVCC] - what the CUDA build needs of this machine.
# device:  cuda where nvcc and a GPU are, else cpu.
# toolkit: its folder.
# archs:   the architectures of the GPUs here; without one 80 90 100, and PTX of the last for others.
# report:  one line: what was found, and what the build goes without.
# compile: flags for nvcc and cc.    link: libraries, by path, with the folders to find them in.
# NCCL and cuDNN are looked for in NCCL_HOME and CUDNN_HOME, in the toolkit (CUDA_HOME, else nvcc's), in
# /usr and /usr/local, and in Python's `nvidia` packages; a HOME of `none` leaves the library out.
set -u
what=${1:-} NVCC=${2:-nvcc}

toolkit() {
    path=$(command -v "$NVCC" 2>/dev/null) || path=
    [ -n "$path" ] && path=$(dirname "$(dirname "$(readlink -f "$path")")")
    echo "${CUDA_HOME:-${path:-/usr/local/cuda}}"
}

# Folders of Python's packages, one a line; those of CUDA 13 share one called cu13.
python_folders() {
    "${PYTHON:-python3}" -c 'import importlib.util as u
s = u.find_spec("nvidia")
print("\n".join(s.submodule_search_locations) if s else "")' 2>/dev/null | while read -r folder; do
        for package in "$folder"/*/; do echo "${package%/}"; done
    done
}

# Folders to look in, one a line. With its HOME given, that alone counts.
folders() { # HOME
    if [ -n "$1" ]; then echo "$1"; return; fi
    toolkit
    printf '/usr\n/usr/local\n'
    python_folders
}

# Folder of the header and path of the library, both from the first place that has both.
# Python's packages have libraries only by names with a version.
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

defined() { # HEADER NAME: its number
    sed -n "s/^#define $2  *\([0-9][0-9]*\).*/\1/p" "$1" 2>/dev/null | head -n 1
}

compute_capabilities() {
    nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d ' .' | sort -un
}

has_gpu() {
    [ -n "$(ls /proc/driver/nvidia/gpus 2>/dev/null)" ] || nvidia-smi -L 2>/dev/null | grep -q '^GPU'
}

# What was found of the four; each "" where it is not there.
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
        # What compilers search by themselves must not be named: it would change the order.
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
    # The driver's library is the machine's own, and may be missing where nothing is run.
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
