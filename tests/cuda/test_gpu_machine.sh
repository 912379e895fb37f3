#!/bin/sh
# test_gpu_machine.sh BUILD - builds for a GPU as on a rented machine: the CUDA toolkit is there, NCCL and cuDNN are only in
# Python's `nvidia` packages, and make, xxHash, cJSON, oneDNN, MPI, git and the network are missing. What such a machine
# lacks comes along in a folder (gpu.sh carry). The machine is a chroot over this machine's /usr. Its programs are built
# there, and then taken along to another such machine. ARCHS (90): GPUs to compile for; they bound the time.
# Without root, mount namespaces, overlays, nvcc, NCCL or cuDNN the test is skipped.
# Last line: N passed, N failed[, N skipped].
set -u
B=$1 CARRY=
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
skip() { echo "skipped: $1"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
if [ "$(id -u)" != 0 ] || ! unshare -mn true 2>/dev/null; then skip "needs root and namespaces of mounts and of the network"; fi
mkdir -p "$B" && machine=$(cd "$B" && pwd)/gpu_machine.$$ log=$(cd "$B" && pwd)/gpu_machine.txt
trap 'rm -rf "$machine"' EXIT
mkdir -p "$machine/upper" "$machine/work" "$machine/root" || exit 1
unshare -m mount -t overlay overlay -o "lowerdir=/usr,upperdir=$machine/upper,workdir=$machine/work" "$machine/root" 2>/dev/null || skip "needs overlayfs"
toolkit=$(sh adapters/cuda.sh toolkit "${NVCC:-nvcc}")
case $(readlink -f "$toolkit/bin/nvcc") in /usr/*) ;; *) skip "nvcc is not installed in /usr" ;; esac
library_of() { sh adapters/cuda.sh report | sed -n "s/.*$1 [0-9.]* (\([^)]*\)).*/\1/p"; }
nccl=$(library_of NCCL) cudnn=$(library_of cuDNN)
if [ -z "$nccl" ] || [ -z "$cudnn" ]; then skip "NCCL and cuDNN are not installed"; fi
ARCHS=${ARCHS:-90}
passed=0 failed=0
check() { if [ "$1" = 1 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $2"; fi; }

# ---- the machine: this machine's /usr, without what is removed below ----
for folder in bin lib lib64 sbin; do ln -s "usr/$folder" "$machine/root/$folder"; done
mkdir -p "$machine/root/usr" "$machine/root/etc" "$machine/root/proc" "$machine/root/dev" "$machine/root/tmp" "$machine/root/root"
packages=usr/lib/python3/dist-packages/nvidia
# inside COMMAND: runs it as root of the machine, in the tree, without a network
inside() {
    # shellcheck disable=SC2016 # they are the inner shell's
    unshare -mn sh -c 'mount -t overlay overlay -o "lowerdir=/usr,upperdir=$0/upper,workdir=$0/work" "$0/root/usr" &&
        mount --bind /etc "$0/root/etc" && mount -o remount,bind,ro "$0/root/etc" && mount -t proc proc "$0/root/proc" && mount --rbind /dev "$0/root/dev" &&
        exec env -i PATH="$1/bin:/usr/sbin:/usr/bin:/sbin:/bin" HOME=/root TERM=dumb LIMIT=2400 ARCHS="$2" CARRY="$3" CUDA_HOME= chroot "$0/root" sh -c "cd /tree && $4"' \
        "$machine" "$toolkit" "$ARCHS" "${CARRY:-}" "$1" >"$log" 2>&1 </dev/null
}
mkdir "$machine/root/tree"
# Moves NCCL and cuDNN to Python's packages, where libraries have versions in their names; removes the rest.
remove() {
    cat <<'COMMANDS'
set -e
package() { # NAME HEADERS LIBRARY
    mkdir -p "$packages/$1/include" "$packages/$1/lib"
    for header in $2; do mv "$header" "$packages/$1/include/"; done
    for library in "${3%/*}/lib$1"*.so*; do
        if [ -L "$library" ]; then rm "$library"; else mv "$library" "$packages/$1/lib/"; fi
    done
}
COMMANDS
    echo "packages=/$packages"
    echo "package nccl '$(header_folder "$nccl" nccl.h)/nccl*' '$nccl'"
    echo "package cudnn '$(header_folder "$cudnn" cudnn.h)/cudnn*' '$cudnn'"
    cat <<'COMMANDS'
for program in make gmake git cmake mpicc mpirun apt-get apt dpkg pip pip3; do rm -f "/usr/bin/$program" "/usr/local/bin/$program"; done
rm -f /usr/bin/mpicc.* /usr/bin/mpirun.*
for folder in /usr/include /usr/local/include; do rm -rf "$folder/xxhash.h" "$folder/cjson" "$folder/oneapi" "$folder/dnnl.h" "$folder/pcre2.h"; done
find /usr/lib /usr/local/lib -name 'libxxhash*' -o -name 'libcjson*' -o -name 'libdnnl*' | xargs rm -f
COMMANDS
}
header_folder() { # LIBRARY HEADER: the folder of a library's header
    for folder in "$(dirname "$(dirname "$1")")/include" "$toolkit/include" /usr/include /usr/local/include; do
        [ -f "$folder/$2" ] && { echo "$folder"; return; }
    done
}
remove >"$machine/root/tree/remove.sh"
inside 'sh -x ./remove.sh' || skip "the machine cannot be made: $(tail -n 1 "$log")"
tar --exclude=./build --exclude=./.git --exclude='./train_gpt2_zero' --exclude=./zero_ckpt --exclude=./zero_plan -cf - . | tar -C "$machine/root/tree" -xf -

# ---- what is there, and what is not ----
inside 'command -v make git mpicc mpirun; ls /usr/include/xxhash.h /usr/include/cjson/cJSON.h; exit 0'
check "$(grep -c '^/' "$log" | awk '{ print ($1 == 0) }')" "the machine lacks make and libraries: $(cat "$log")"
inside 'sh adapters/cuda.sh report'
check "$(grep -c "NCCL 2.[0-9]* (/$packages/nccl/lib/libnccl.so.[0-9.]*).*cuDNN 9.[0-9]* (/$packages/cudnn/lib/libcudnn.so.[0-9.]*)" "$log")" \
    "NCCL and cuDNN are found in Python's packages: $(cat "$log")"
inside 'sh tests/cuda/gpu.sh build'
check "$(grep -c '^-- build: FAILED' "$log")" "without a carried folder nothing is built: $(grep -e '-- build' "$log")"

# ---- the build ----
done=0
B=$B sh tests/cuda/gpu.sh carry "$machine/root/carried" >"$log" 2>&1 && done=1
check $done "gpu.sh carry: $(tail -n 1 "$log")"
CARRY=/carried
inside 'sh tests/cuda/gpu.sh build'
check "$(grep -c '^-- build: [0-9]* s with' "$log")" "gpu.sh build: $(grep -e '-- build' "$log"; tail -n 3 "$machine/root/tree/build/gpu/build.log")"
programs="train_gpt2_zero gpu_kernels test_cuda test_groups_cuda test_start_cuda test_attention test_gpt2_ops test_gpt2 test_gpt2_tiles test_gpt2_layers test_gpt2_frozen test_gpt2_lora test_gpt2_parallel test_gpt2_context test_gpt2_experts test_gpt2_pipeline"
# libraries FOLDER: prints the programs that lack a library, other than the driver's
libraries() { inside "for p in $programs; do ldd $1/\$p 2>&1 | grep -v libcuda.so.1 | sed -n \"s/^\\(.*\\)not found.*/\$p \\1/p; s/.*No such file.*/\$p/p\"; done"; }
libraries build/cuda
check "$([ ! -s "$log" ] && echo 1)" "every program finds its libraries: $(head -n 3 "$log")"
inside 'ldd build/cuda/train_gpt2_zero'
check "$(grep -c "/$packages/nccl/lib/libnccl.so\|/$packages/cudnn/lib/libcudnn.so" "$log" | awk '{ print ($1 == 2) }')" "the trainer has NCCL and cuDNN of Python's packages: $(cat "$log")"
inside './build/cuda/train_gpt2_zero -x 1 -i /carried/data/tiny_char_train.bin -j /carried/data/tiny_char_val.bin'
check "$([ "$(grep -c '^train_gpt2_zero: ' "$log")" = 1 ] && echo 1)" "without a GPU the trainer says so in one line: $(tail -n 2 "$log")"

# ---- programs that were built on another machine ----
cp -r "$machine/root/tree/build/cuda" "$machine/built" && rm -rf "$machine/root/tree/build" "$machine/root/carried"
mkdir -p "$machine/prebuilt" && mv "$machine/built" "$machine/prebuilt/cuda" && ln -s "$(cd "$B" && pwd)/data" "$machine/prebuilt/data"
done=0
B=$machine/prebuilt BUILT=1 sh tests/cuda/gpu.sh carry "$machine/root/carried" >"$log" 2>&1 && done=1
check $done "gpu.sh carry with programs: $(tail -n 1 "$log")"
inside 'sh tests/cuda/gpu.sh build'
check "$(grep -c '^-- build: programs that were carried' "$log")" "the carried programs are taken: $(grep -e '-- build' "$log")"
inside "to=\$(python3 -c 'import site; print(site.getsitepackages()[0])') && mkdir -p \$to && mv /$packages \$to/nvidia"
inside "sh tests/cuda/gpu.sh ops losses-f32; cat build/gpu/losses-f32.log"
check "$(grep -c 'CUDA\|device' "$log" | awk '{ print ($1 > 0) }')" "a carried program starts, and finds no GPU: $(tail -n 3 "$log")"
check "$(grep -c 'cannot open shared object' "$log" | awk '{ print ($1 == 0) }')" "it finds its libraries in another folder: $(tail -n 1 "$log")"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
