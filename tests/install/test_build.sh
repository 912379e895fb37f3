#!/bin/sh
# test_build.sh BUILD - checks that make rebuilds every object when a setting changes, and that `make deps GOAL` uses
# the packages that it installs. The compilers here are scripts that log their arguments and create the output
# file; they work in a tree of symbolic links.
# Last line: N passed, N failed.
set -u
B=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$B" && dir=$(cd "$B" && pwd)/test_build.$$
mkdir -p "$dir/tree" "$dir/tools" "$dir/bin" || exit 1
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0
check() { if [ "$1" = "$2" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $3: $1, expected $2"; fi; }
for each in "$root"/*; do
    case ${each##*/} in build | train_gpt2_zero | zero_ckpt | zero_plan) ;; *) ln -s "$each" "$dir/tree/" ;; esac
done
unset MAKEFLAGS MAKELEVEL OMPI_CC MPICH_CC WERROR

# This compiler writes its name and arguments to $dir/log, and to the output file, which is a program that does nothing.
cat >"$dir/tools/stub" <<STUB
#!/bin/sh
case \$* in
*--version* | -show | --list-gpu* ) echo "\${0##*/} 1"; exit ;;
*" -E "* | "-E "*) exit 0 ;;
esac
echo "\${0##*/} \$*" >>"$dir/log"
before=
for word; do
    if [ "\$before" = -o ]; then
        printf '#!/bin/sh\nexit\n%s\n' "\${0##*/} \$*" >"\$word"
        chmod +x "\$word"
        case "\$* " in *-MMD*".c "* | *-MMD*".cu "*) echo "\$word: $dir/header.h" >"\${word%.o}.d" ;; esac
    fi
    before=\$word
done
STUB
chmod +x "$dir/tools/stub"
touch "$dir/header.h"
for name in one two c++ mpi nvcc; do ln -s stub "$dir/tools/$name"; done
export CUDA_HOME="$dir/none" NCCL_HOME=none CUDNN_HOME=none

programs="train_gpt2_zero zero_ckpt zero_plan"
for name in test_unit test_products test_ease_checked test_offload_rings test_fast_math test_host_layers test_host_own page; do programs="$programs $dir/b/$name"; done
build() { # ARGUMENTS...: makes the programs; $dir/log has the calls of the compilers
    : >"$dir/log"
    # shellcheck disable=SC2086 # names are words
    make -s -j2 -C "$dir/tree" B="$dir/b" CC="$dir/tools/one" CXX="$dir/tools/c++" NVCC="$dir/tools/nvcc" MPICC= DEVICE=cpu "$@" $programs >"$dir/said" 2>&1 ||
        { failed=$((failed + 1)); echo "FAILED: make $*"; tail -n 5 "$dir/said"; }
}
calls() { wc -l <"$dir/log" | tr -d ' '; }
build
all=$(calls)
check "$([ "$all" -gt 60 ] && echo many)" many "calls of the compiler, $all"
again() { # WORD ARGUMENTS...: all is made again, with WORD in each call; afterwards nothing is
    word=$1
    shift
    build "$@"
    check "$(calls)" "$all" "make $*: calls"
    check "$(grep -c -e "$word" "$dir/log")" "$all" "make $*: calls with $word"
    build "$@"
    check "$(calls)" 0 "make $* once more: calls"
}
build
check "$(calls)" 0 "the same again: calls"
touch "$dir/header.h"
build
check "$([ "$(calls)" -gt 60 ] && grep -c 'header.h' "$dir/log")" 0 "a header has changed: it is not compiled by itself"
again ' -O0' OPT=-O0
again ' -fopenmp=other' OMP=-fopenmp=other
again ' -Werror' WERROR=1
again 'page_text.o\|-O2' OPT=-O2
again ' -DX=a b' OPT="'-DX=a b'"
build CC="$dir/tools/two"
check "$(grep -c '^two ' "$dir/log") $(grep -c '^one ' "$dir/log")" "$((all - 1)) 0" "another CC" # one is the compiler of C++
build URING=1
check "$(grep -c 'ZERO_WITH_URING' "$dir/log")" "$((all - $(grep -c '^c++ \|-fPIC' "$dir/log")))" "URING=1"
build
build MPICC="$dir/tools/mpi"
check "$(grep -c '^mpi .*ZERO_WITH_MPI' "$dir/log")" "$(grep -vc '^c++\|-fPIC' "$dir/log")" "MPICC=mpi: calls"
check "$(grep -c 'ZERO_WITH_MPI' "$dir/tree/train_gpt2_zero")" 1 "MPICC=mpi: the program is that of MPI"
build
check "$(grep -c '^one ' "$dir/log")" "$((all - 1))" "MPICC=, after it was there: calls"
check "$(grep -c 'ZERO_WITH_MPI' "$dir/tree/train_gpt2_zero")" 0 "MPICC=, after it was there: the program"

# Another version replaces the compiler at the same path.
sed 's/ 1"; exit/ 2"; exit/' "$dir/tools/stub" >"$dir/tools/stub2" && chmod +x "$dir/tools/stub2" && mv "$dir/tools/stub2" "$dir/tools/stub"
build
check "$(calls)" "$all" "a new version of the compiler: calls"

# With both devices built, the program in the root is always that of the DEVICE of the last make.
device() { sed -n 's|.*-o [^ ]*/b/\(cuda/\)\{0,1\}train_gpt2_zero .*|\1|p' "$dir/tree/train_gpt2_zero"; }
mkdir -p "$dir/none/include" "$dir/none/lib64"
touch "$dir/none/include/cuda_runtime.h" "$dir/none/include/cublasLt.h" "$dir/none/lib64/libcudart.so" "$dir/none/lib64/libcublasLt.so"
programs=train_gpt2_zero
for which in cuda cpu cuda cpu cpu cuda; do
    build DEVICE=$which
    check "$(device)" "$([ $which = cuda ] && echo cuda/)" "DEVICE=$which: the program is of"
done
build DEVICE=cuda ARCHS=80
check "$([ "$(grep -c 'sm_80' "$dir/log")" -gt 5 ] && echo made)" made "other ARCHS"

# The first command of README on a machine without MPI and without headers: it installs both and uses them.
# PATH has only standard tools here, and an apt-get that is a script of this test.
for each in sh env sed awk grep mkdir rm mv cp cat cmp cut dirname basename printf echo wc tr tail head sort uname id mktemp touch chmod ls make date readlink true find; do
    path=$(command -v "$each")
    case $path in /*) ;; *) path=/usr/bin/$each ;; esac # a word of the shell is a program, too
    [ ! -x "$path" ] || ln -sf "$path" "$dir/bin/$each"
done
sed "s#^\*\" -E .*#*' -E '* | '-E '*) [ -e '$dir/installed' ]; exit ;;#" "$dir/tools/stub" >"$dir/bin/cc"
chmod +x "$dir/bin/cc"
cp "$dir/bin/cc" "$dir/bin/c++"
cat >"$dir/bin/apt-get" <<APT
#!/bin/sh
[ "\$1" = install ] || exit 0
cp "$dir/bin/cc" "$dir/bin/mpicc"
touch "$dir/installed"
APT
printf '#!/bin/sh\necho 0\n' >"$dir/id" && rm -f "$dir/bin/id" && mv "$dir/id" "$dir/bin/id"
chmod +x "$dir/bin/apt-get" "$dir/bin/id"
fresh() { # ARGUMENTS...
    : >"$dir/log"
    rm -rf "$dir/tree/build"
    env -i PATH="$dir/bin" HOME="$dir" make -C "$dir/tree" DEVICE=cpu "$@" >"$dir/said" 2>&1
}
for jobs in -j1 -j2; do
    rm -f "$dir/installed" "$dir/bin/mpicc" "$dir/tree/train_gpt2_zero"
    fresh $jobs train_gpt2_zero
    check "$? $(calls) $(grep -c 'make deps' "$dir/said")" "2 0 1" "without the headers"
    fresh $jobs deps train_gpt2_zero
    check "$?" 0 "make deps train_gpt2_zero"
    check "$([ "$(calls)" -gt 50 ] && grep -vc '^mpicc .*ZERO_WITH_MPI' "$dir/log")" 0 "make $jobs deps train_gpt2_zero: calls without the MPI that it installed"
done
# README's two commands, as they stand there, on such a machine.
sed -n '/^## Quick start/,/^## [^Q]/{s/ *#.*//; /^make/p;}' "$root/README.md" >"$dir/commands"
check "$(tr '\n' , <"$dir/commands")" "make deps,make," "the first commands of README"
rm -rf "$dir/installed" "$dir/bin/mpicc" "$dir/tree/train_gpt2_zero" "$dir/tree/build"
while read -r line; do
    (cd "$dir/tree" && env -i PATH="$dir/bin" HOME="$dir" sh -c "$line") >"$dir/said" 2>&1 </dev/null
    check "$?" 0 "README: $line: $(tail -n 1 "$dir/said")"
done <"$dir/commands"
check "$([ -e "$dir/installed" ] && [ -x "$dir/tree/train_gpt2_zero" ] && grep -c 'Try:  ./train_gpt2_zero' "$dir/said")" 1 "README's commands install, build and end"

# MPI is installed after the first build; the second build uses it.
rm -f "$dir/bin/mpicc"
fresh train_gpt2_zero
check "$(grep -c ZERO_WITH_MPI "$dir/log")" 0 "without MPI"
cp "$dir/bin/cc" "$dir/bin/mpicc"
count=$(calls)
: >"$dir/log"
env -i PATH="$dir/bin" HOME="$dir" make -s -C "$dir/tree" DEVICE=cpu train_gpt2_zero >"$dir/said" 2>&1
check "$(grep -c '^mpicc .*ZERO_WITH_MPI' "$dir/log")" "$count" "MPI was installed later: calls"

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
