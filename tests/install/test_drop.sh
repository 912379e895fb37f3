#!/bin/sh
# test_drop.sh BUILD - tests `make drop`. The written unit preprocesses to the same text as the
# repository's, with every compiler of this machine. Its first line names version and commit. drop.sh
# refuses to replace other files, and refuses rooms in another order. The repository's two files without
# the rooms are one #error. Last line: N passed, N failed[, N skipped].
# Commands in single quotes are for another shell.
# shellcheck disable=SC2015,SC2016
set -u
mkdir -p "$1" && B=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.." || exit 1
passed=0 failed=0 skipped=0
# shellcheck source=tests/shared/sampled.sh
. tests/shared/sampled.sh
scratch=$B/test_drop.$$
mkdir -p "$scratch" || exit 1
trap 'rm -rf "$scratch"' EXIT
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
pass() { passed=$((passed + 1)); }
miss() { failed=$((failed + 1)); echo "FAILED: $*"; }
skip() { skipped=$((skipped + 1)); echo "skipped $*"; }
# check NAME COMMAND...: passes if the command does
check() { name=$1; shift; if "$@" >"$scratch/log" 2>&1; then pass; else miss "$name"; head -n 10 "$scratch/log" | sed 's/^/    /'; fi; }
# refused NAME TEXT COMMAND...: passes if the command fails and prints TEXT
refused() {
    name=$1 text=$2
    shift 2
    if "$@" >"$scratch/log" 2>&1; then miss "$name: not refused"
    elif grep -qF -- "$text" "$scratch/log"; then pass
    else miss "$name does not print '$text'"; head -n 5 "$scratch/log" | sed 's/^/    /'; fi
}
has() { command -v "$1" >/dev/null 2>&1; }
first() { head -n 1 "$1"; }
drop() { sh zero_plugin/drop.sh "$@"; }
copy() { mkdir -p "$1" && cp -r zero_plugin zero_plugin.cu zero_plugin.h "$1/"; }

# ---- the drop is the unit ----
hosts="$scratch/a host's folder"
check "make drop, into a path with blanks and a quote" make -s B="$B" drop DIR="$hosts"
# same NAME COMPILER...: passes if the unit and the drop preprocess to the same text
same() {
    name=$1
    shift
    "$@" "$PWD/zero_plugin.cu" >"$scratch/unit" 2>"$scratch/log" && "$@" "$hosts/zero_plugin.cu" >"$scratch/drop" 2>>"$scratch/log" ||
        { miss "$name: does not preprocess"; head -n 5 "$scratch/log"; return; }
    for text in unit drop; do sed '/^# [0-9]/d; /^#line/d; /^[[:space:]]*$/d' "$scratch/$text" >"$scratch/$text.text"; done
    # A text with few names of the plugin was not read whole.
    if [ "$(grep -c 'zp_' "$scratch/unit.text")" -gt 1000 ] && cmp "$scratch/unit.text" "$scratch/drop.text" >"$scratch/log"; then pass
    else miss "$name: unit and drop differ: $(cat "$scratch/log")"; diff "$scratch/unit.text" "$scratch/drop.text" | head -n 5; fi
}
for compiler in "${CC:-cc}" clang; do
    has "$compiler" || { skip "the texts of $compiler: it is not installed"; continue; }
    same "$compiler" "$compiler" -E -P -x c -std=c11 -D_GNU_SOURCE -fopenmp
    same "$compiler, without OpenMP" "$compiler" -E -P -x c -std=c11
    same "$compiler, checked" "$compiler" -E -P -x c -std=c11 -DZERO_CHECK=1
    same "$compiler, sanitized" "$compiler" -E -P -x c -std=c11 -fsanitize=thread
    same "$compiler, own optimizers" "$compiler" -E -P -x c -std=c11 "-DZERO_OWN_OPTIMIZERS=\"$PWD/tests/plugin/rmsprop.h\""
done
if has mpicc; then
    same "MPI" mpicc -E -P -x c -std=c11 -DZERO_WITH_MPI -DOMPI_SKIP_MPICXX
    same "MPI, checked" mpicc -E -P -x c -std=c11 -DZERO_WITH_MPI -DOMPI_SKIP_MPICXX -DZERO_CHECK=1
else skip "the text with MPI: mpicc is not installed"; fi
toolkit=$(sh adapters/cuda.sh toolkit "${NVCC:-nvcc}" 2>/dev/null)
nccl=$(sh adapters/cuda.sh compile "${NVCC:-nvcc}" 2>/dev/null | tr ' ' '\n' | grep -x -- -DZERO_WITH_NCCL)
if [ -f "$toolkit/include/cuda_runtime_api.h" ]; then
    # shellcheck disable=SC2046
    set -- "${CXX:-c++}" -E -P -std=c++17 -D__CUDACC__ -Itests/emulation $(sh adapters/cuda.sh compile "${NVCC:-nvcc}" | sed 's/-D[A-Z_0-9]*//g') -x c++ -include cuda_runtime.h
    same "CUDA, emulated" "$@"
    same "CUDA, emulated, checked" "$@" -DZERO_CHECK=1
    if [ -n "$nccl" ]; then same "CUDA and NCCL, emulated" "$@" -DZERO_WITH_NCCL; else skip "the text with NCCL: it is not installed"; fi
else skip "the text with CUDA: its headers are not installed"; fi
if has "${NVCC:-nvcc}"; then
    same "nvcc" "${NVCC:-nvcc}" -E -Xcompiler -P -std=c++17 -arch=sm_80 ${nccl:+-DZERO_WITH_NCCL}
else skip "the text of nvcc: it is not installed"; fi

# ---- files that drop.sh replaces, and files that it leaves alone ----
check "another drop over the first" drop "$hosts"
cp "$hosts/zero_plugin.cu" "$scratch/was"
touch -d '2001-01-01' "$hosts/zero_plugin.cu"
check "a second drop changes nothing" sh -c 'sh zero_plugin/drop.sh "$1" && cmp "$1/zero_plugin.cu" "$2"' sh "$hosts" "$scratch/was"
check "an unchanged file keeps its time" [ "$hosts/zero_plugin.cu" -ot "$scratch/was" ]
sed -i 's/$/\r/' "$hosts/zero_plugin.h"
check "line ends that your git changed are no edit" drop "$hosts"
echo "/* mine */" >>"$hosts/zero_plugin.h"
refused "a drop that was edited" "zero_plugin.h was edited since make drop wrote it" drop "$hosts"
check "it is as it was" grep -q mine "$hosts/zero_plugin.h"
check "the other file is as it was" cmp "$hosts/zero_plugin.cu" "$scratch/was"
mkdir "$scratch/other"
echo "int theirs;" >"$scratch/other/zero_plugin.cu"
refused "a file that drop.sh did not write" "zero_plugin.cu was not written by make drop" drop "$scratch/other"
check "it is as it was" grep -qx "int theirs;" "$scratch/other/zero_plugin.cu"
check "no other file was written" [ "$(find "$scratch/other" | wc -l)" = 2 ]
mkdir -p "$scratch/pipe"
mkfifo "$scratch/pipe/zero_plugin.cu"
refused "a named pipe" "zero_plugin.cu is not a regular file" timeout 10 make -s B="$B" drop DIR="$scratch/pipe"
refused "a named pipe, without make" "zero_plugin.cu is not a regular file" timeout 10 sh zero_plugin/drop.sh "$scratch/pipe"
refused "the repository itself" "was not written by make drop" drop .
refused "no DIR" "make drop DIR=folder" make -s B="$B" drop
refused "a file for a folder" "File exists" drop "$scratch/other/zero_plugin.cu"

# ---- the first line: version and commit ----
version=$(sed -n 's/^#define ZERO_VERSION *"\(.*\)"/\1/p' zero_plugin.h)
copy "$scratch/plain"
check "relative, outside git" sh -c 'cd "$1" && sh zero_plugin/drop.sh ours' sh "$scratch/plain"
for file in zero_plugin.h zero_plugin.cu; do
    check "$file names the version and an unknown commit" sh -c 'head -n 1 "$1" | grep -qF "C $2, commit unknown: $3, sum "' sh "$scratch/plain/ours/$file" "$version" "$file"
done
if has git; then
    git="git -c user.name=x -c user.email=x@x -c commit.gpgsign=false"
    host=$scratch/host
    copy "$host/vendor/zero"
    (cd "$host" && git init -q . && $git add . && $git commit -qm host) >/dev/null 2>&1
    check "vendored: the commit of your repository is not the plugin's" sh -c 'cd "$1" && sh vendor/zero/zero_plugin/drop.sh src && head -n 1 src/zero_plugin.cu | grep -q "commit unknown"' sh "$host"
    (cd "$host/vendor/zero" && git init -q . && $git add . && $git commit -qm zero) >/dev/null 2>&1
    commit=$(git -C "$host/vendor/zero" rev-parse --short=12 HEAD)
    check "a repository inside yours" sh -c 'cd "$1" && GIT_DIR="$1/.git" sh vendor/zero/zero_plugin/drop.sh src && head -n 1 src/zero_plugin.cu | grep -q "commit $2:"' sh "$host" "$commit"
    echo >>"$host/vendor/zero/zero_plugin/machine/base.h"
    check "with changes" sh -c 'cd "$1" && sh vendor/zero/zero_plugin/drop.sh src && head -n 1 src/zero_plugin.h | grep -q "commit $2-dirty:"' sh "$host" "$commit"
else skip "commits: git is not installed"; fi

# ---- rooms ----
plain=$scratch/plain
plain_drop() { sh "$plain/zero_plugin/drop.sh" "$plain/ours"; }
sed -i '/^#include "\.\.\/\.\.\/zero_plugin.h"/a #include "../core/ctx.h"' "$plain/zero_plugin/machine/base.h"
check "a room was changed" grep -q ctx.h "$plain/zero_plugin/machine/base.h"
cp "$plain/ours/zero_plugin.cu" "$scratch/was"
refused "a later room" "base.h includes ctx.h, which comes later" plain_drop
check "the file is as it was" cmp "$plain/ours/zero_plugin.cu" "$scratch/was"
check "no temporary file is left" [ "$(find "$plain/ours" -type f | wc -l)" = 2 ]
cp zero_plugin/machine/base.h "$plain/zero_plugin/machine/"
sed -i 's/^#include "zero_plugin\/core\/ctx.h".*/&\n&/' "$plain/zero_plugin.cu"
refused "a room twice" "ctx.h is included twice" plain_drop
cp zero_plugin.cu "$plain/"
mv "$plain/zero_plugin/core/hooks.h" "$plain/"
refused "a room that is not there" "hooks.h is missing" plain_drop

# ---- make drop WITH="...": parts that are left out ----
# Each choice compiles without a warning and passes the model-based test; what it lacks answers UNSUPPORTED. Each part alone
# is left out in a compilation for the CPU and for emulated CUDA. SEED=N chooses samples of both.
every=$(drop "$scratch/none" nonsense 2>&1 | sed -n 's/.*the parts are: core \([^;]*\);.*/\1/p')
compile="${CC:-cc} -std=c11 -D_GNU_SOURCE -O1 -march=native -ffp-contract=off -fno-math-errno -fopenmp -pthread -Wall -Wextra -Werror"
while read -r with; do
    sampled 5 || continue
    d=$scratch/with
    rm -rf "$d"
    # shellcheck disable=SC2086
    check "drop with $with" drop "$d" $with || continue
    # shellcheck disable=SC2086
    check "it compiles: $with" $compile -c -o "$d/plugin.o" -x c "$d/zero_plugin.cu" -I"$d"
    for program in test_model test_drop_parts; do
        # shellcheck disable=SC2086
        check "$program compiles: $with" $compile -I. -o "$d/$program" "$d/plugin.o" -x c "$(find tests -name $program.c)" -lm
    done
    check "the model-based test: $with" "$d/test_model" 100 "${SEED:-1}"
    lacking=
    for part in $every; do case " $with check cuda vectors " in *" $part "*) ;; *) lacking="$lacking $part" ;; esac; done
    # shellcheck disable=SC2086
    check "what is left out of $with" "$d/test_drop_parts" "$with" $lacking
    case " $with " in *" check "*) continue ;; esac
    # shellcheck disable=SC2086
    check "a checked build compiles: $with" $compile -DZERO_CHECK=1 -I. -I"$d" -o "$d/checked" -x c "$d/zero_plugin.cu" "$(find tests -name test_drop_parts.c)" -lm
    check "a checked build of $with" "$d/checked" "$with" check
done <<CHOICES
core
state
nccl mpi
state offload resize
state packed lend
subgroups start virtual
state integrity
groups trace order
muon groups state
check state lend
state offload packed subgroups trace
CHOICES
for part in $every; do
    sampled 4 || continue
    d=$scratch/without
    rm -rf "$d"
    rest=$(echo "$every" | tr ' ' '\n' | grep -vx "$part" | tr '\n' ' ')
    # shellcheck disable=SC2086
    check "drop without $part" drop "$d" $rest
    # shellcheck disable=SC2086
    check "it compiles without $part" $compile -fsyntax-only -x c "$d/zero_plugin.cu"
    # The header differs in comments alone. It has no text about the part, and its settings say so.
    check "the header's code without $part" sh -c 'for h in zero_plugin.h "$1/zero_plugin.h"; do cc -fpreprocessed -E -P -x c "$h" | tr -d " \n"; echo; done | uniq | wc -l | grep -qx 1' sh "$d"
    check "no text about $part in the header" sh -c '! grep -F "[$1] " "$2"' sh "$part" "$d/zero_plugin.h"
    rooms=$(sed -n "s/^#include \"\(zero_plugin.*\)\" *\/\* \[$part\].*/\1/p" zero_plugin.cu)
    # shellcheck disable=SC2086
    for setting in $([ -z "$rooms" ] || sed -n 's/^    {ZP_[A-Z]*(\([a-z_]*\)).*/\1/p' $rooms); do
        check "the header about $setting without $part" grep -Eq "[ ,*]$setting(, [a-z_]*)?; *(/\* not in this copy: part .$part. \*/)?\$" "$d/zero_plugin.h"
    done
    if [ -f "$toolkit/include/cuda_runtime_api.h" ]; then
        # shellcheck disable=SC2046
        check "it compiles without $part, CUDA" "${CXX:-c++}" -std=c++17 -D__CUDACC__ -Itests/emulation $(sh adapters/cuda.sh compile "${NVCC:-nvcc}") -Wall -Wextra -Werror \
            -x c++ -include cuda_runtime.h -fsyntax-only "$d/zero_plugin.cu"
    fi
done
if [ -f "$toolkit/include/cuda_runtime_api.h" ]; then
    check "drop without CUDA" drop "$scratch/cpu" core
    refused "a copy for the CPU, compiled for CUDA" 'lacks "cuda"' "${CXX:-c++}" -std=c++17 -D__CUDACC__ -Itests/emulation -w -x c++ -include cuda_runtime.h -fsyntax-only "$scratch/cpu/zero_plugin.cu"
fi
refused "a part that does not exist" "no part is named 'nonsense'" drop "$scratch/none" core nonsense
check "make drop WITH" make -s B="$B" drop DIR="$scratch/made" WITH="core"
check "its first lines name its parts" grep -q '^#define ZERO_DROP_WITH "core"' "$scratch/made/zero_plugin.cu"

# ---- the checkpoint adapter, next to the plugin ----
# In the folder, the command that its header names compiles it. The adapter's own test then runs with that copy.
both=$scratch/both
refused "checkpoint without state" "checkpoint needs the part state" drop "$scratch/none" core checkpoint
check "make drop WITH checkpoint" make -s B="$B" drop DIR="$both" WITH="core state checkpoint"
check "all is every part" sh -c 'sh zero_plugin/drop.sh "$1" all && sh zero_plugin/drop.sh "$2" && cmp "$1/zero_plugin.cu" "$2/zero_plugin.cu"' sh "$scratch/all" "$scratch/each"
build=$(sed -n 's/^     cc \(.* -c checkpoint\*\.c\)$/\1/p' "$both/checkpoint.h")
# shellcheck disable=SC2086
check "the command of checkpoint.h" sh -c 'cd "$1" && shift && [ $# -gt 3 ] && "$@" -Wall -Wextra -Werror checkpoint*.c' sh "$both" "${CC:-cc}" ${build%checkpoint*}
# shellcheck disable=SC2086
check "the plugin next to it" $compile -c -o "$both/plugin.o" -x c "$both/zero_plugin.cu"
cat >"$both/save.c" <<'SAVE'
#include "checkpoint.h"
int main(int argc, char **argv) { /* saves one tensor, and loads it into another context */
    const zero_tensor_desc one = {.name = "one", .numel = 3};
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_config cfg = {0};
    const float written[3] = {1, 2, 3};
    float read[3] = {0};
    for (int loads = 0; loads < 2 && argc == 2; loads++) {
        zero_ctx *z;
        checkpoint *c;
        checkpoint_options o = {0};
        o.folder = argv[1];
        if (zero_create(&z, &cfg, &self) || zero_tensor(z, &one) || zero_build(z)) return 1;
        if (checkpoint_create(&c, z, &o)) return 2;
        if (!loads && zero_write_tensor(z, "one", ZERO_PARAMETER, 0, 3, written)) return 3;
        if (!loads && (checkpoint_save(c, 1, NULL, 0) || checkpoint_wait(c))) return 4;
        if (loads && checkpoint_load(c, CHECKPOINT_NEWEST)) return 5;
        if (loads && zero_read_tensor(z, "one", ZERO_PARAMETER, 0, 3, read)) return 6;
        checkpoint_destroy(c);
        zero_destroy(z);
    }
    return read[0] == 1 && read[1] == 2 && read[2] == 3 ? 0 : 7;
}
SAVE
# shellcheck disable=SC2086
check "a program with both" $compile -o "$both/save" "$both/save.c" "$both"/checkpoint*.o "$both/plugin.o" -lcjson -lm
check "it saves and loads" "$both/save" "$both/saved"
echo "/* mine */" >>"$both/checkpoint.c"
refused "an adapter that was edited" "checkpoint.c was edited since make drop wrote it" drop "$both" core state checkpoint

# ---- the repository's two files alone ----
mkdir "$scratch/alone" && cp zero_plugin.h zero_plugin.cu "$scratch/alone/"
one_error() { # COMPILER...
    refused "the two files alone, $1" "make drop DIR=" "$@" -c -o "$scratch/alone.o" "$scratch/alone/zero_plugin.cu"
    errors=$(grep -c 'error: ' "$scratch/log")
    if [ "$errors" = 1 ]; then pass; else miss "the two files alone, $1: $errors errors"; cat "$scratch/log"; fi
}
for compiler in gcc clang; do
    if has $compiler; then one_error $compiler -x c -std=c11; else skip "$compiler is not installed"; fi
done
if has "${NVCC:-nvcc}"; then one_error "${NVCC:-nvcc}" -std=c++17 -arch=sm_80; fi
[ $skipped -gt 0 ] && more=", $skipped skipped" || more=
echo "$passed passed, $failed failed$more"
[ $failed -eq 0 ]
