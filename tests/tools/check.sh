#!/bin/sh
# check.sh "SOURCES" CC NVCC BUILD - what can be told without running: format, lengths, linters, both
# compilers without a warning, the header alone, the plugin's rooms: order; exported names.
# SEED=N: clang-tidy reads a twelfth of the files, which it chooses; without it all of them.
# Last line: N passed, N failed[, N skipped].
set -u
sources=$1 CC=$2 NVCC=$3 B=$4
JOBS=${JOBS:-$(nproc 2>/dev/null || echo 2)}
mkdir -p "$B/check" && rm -f "$B/check/"*.code
passed=0 failed=0 skipped=0
started=0 reported=0

# check NAME COMMAND...: waits until fewer than JOBS commands run, then starts this one in a shell where $started is its number
check() {
    while [ $((started - $(find "$B/check" -name '*.code' | wc -l))) -ge "$JOBS" ]; do sleep 0.1; done
    report
    started=$((started + 1))
    echo "$1" >"$B/check/$started.name"
    shift
    { "$@" >"$B/check/$started.log" 2>&1; echo $? >"$B/check/$started.now"; mv "$B/check/$started.now" "$B/check/$started.code"; } &
}
# Reports the commands that have ended, in their order. A check passes if its command succeeds; otherwise its output is shown.
report() {
    while [ -f "$B/check/$((reported + 1)).code" ]; do
        reported=$((reported + 1))
        name=$(cat "$B/check/$reported.name")
        if [ "$(cat "$B/check/$reported.code")" = 0 ]; then passed=$((passed + 1)); echo "ok      $name"
        else failed=$((failed + 1)); echo "FAILED  $name"; head -n 40 "$B/check/$reported.log" | sed 's/^/    /'; fi
    done
}
# needs PROGRAM NAME COMMAND...: the same, counted as skipped where the program is not installed
needs() {
    if command -v "$1" >/dev/null 2>&1; then shift; check "$@"
    else skipped=$((skipped + 1)); echo "skipped $2: $1 is not installed"; fi
}

flags="-std=c11 -D_GNU_SOURCE -O1 -march=native -ffp-contract=off -fno-math-errno -pthread -Wall -Wextra -Wpedantic -Wshadow -Werror"

columns() { awk 'length($0) > 100 { print FILENAME ":" FNR ": " length($0) " columns"; bad = 1 } END { exit bad }' $sources; }
# The longest function has 80 lines; a longer one says `long:` in the comment above it.
lengths() {
    awk 'FNR == 1 { name = ""; last = "" }
         /^[A-Za-z_].*\)( \{|$)/ && !/;$/ && !/^#/ { name = $0; at = FNR; why = last }
         { if ($0 ~ /long:/) last = FNR; if (FNR - last > 12) last = "" }
         /^}/ { if (name != "" && FNR - at > 80 && why == "") { print FILENAME ":" at ": " FNR - at " lines: " name; bad = 1 } name = "" }
         END { exit bad }' $sources
}
# The unit includes every room, and says what it is for; a room includes only those before it.
rooms=$(sed -n 's|^#include "zero_plugin/\([a-z0-9_/]*\)\.h".*|\1|p' zero_plugin.cu)
contents() {
    if grep '^#include "zero_plugin/' zero_plugin.cu | grep -vE '/\* [^*]{4,} \*/$'; then return 1; fi
    { echo "$rooms"; ls zero_plugin/*/*_avx.h zero_plugin/*/*_cpu.h zero_plugin/*/*_cuda.h | sed 's|^zero_plugin/||; s|\.h$||'; } | sort >"$B/check/rooms" # X.h includes them
    ls zero_plugin/*/*.h | sed 's|^zero_plugin/||; s|\.h$||' | sort | diff "$B/check/rooms" -
}
# A drop puts each room in its place, and refuses what includes a later one.
upward() { rm -rf "$B/check/drop" && sh zero_plugin/drop.sh "$B/check/drop"; }
# The smallest copy, and the lines of each of its rooms.
core_drop() {
    rm -rf "$B/check/core" && sh zero_plugin/drop.sh "$B/check/core" core >/dev/null || return 1
    sed -n '/^\/\* ROOMS/,/^\*\//s/^     \([a-z]*\/[a-z_0-9]*\) - .*/\1/p' "$B/check/core/zero_plugin.cu" |
        while read -r room; do echo "$(wc -l <"zero_plugin/$room.h") $room"; done | sort -rn | tr '\n' ',' | sed 's/^/lines of the core: /; s/,$/\n/; s/,/, /g'
}
# Conditionals: what a build lacks is a row or an empty function.
conditionals=$(cat zero_plugin.cu zero_plugin/*/*.h | grep -E '^ *# *(if|ifdef|ifndef)\b' | wc -l)
at_most() { check "$3: $1, at most $2" [ "$1" -le "$2" ]; } # COUNT MOST WHAT
# Nobody outside the transports asks which one it is.
kinds() { ! grep -nE 'kind [!=]= ZERO_COMM_|case ZERO_COMM_' $(ls zero_plugin/*/*.h | grep -vE '/(local|local_groups|mpi|mpi_nodes|nccl|transport)\.h$'); }
# Weights begin with the same bits on every C library: the last ones of these differ.
drawn() { ! grep -nE '=.*[^a-z_](log|cos|sin|exp|pow)f?\(' adapters/gpt2/normals.h adapters/gpt2/gpt2.c adapters/gpt2/experts.c; }
# Each room by itself. X_avx.h, X_cpu.h and X_cuda.h are inside X.h.
alone() { # COMPILER...
    for room in zero_plugin/*/*.h; do
        case $room in *_avx.h | *_cpu.h | *_cuda.h) continue ;; esac
        echo "#include \"$room\"" | "$@" -Wno-unused-function -fsyntax-only -I. - || return 1
    done
}
cuda_alone() {
    # shellcheck disable=SC2086
    alone "${CXX:-c++}" -std=c++17 -D__CUDACC__ -Itests/emulation $nccl -Wall -Wextra -Werror -include cuda_runtime.h -x c++
}
header() { echo '#include "zero_plugin.h"' | "$1" -x "$2" "$3" -Wall -Wextra -Wpedantic -Werror -I. -fsyntax-only -; }
plugin() { compiler=$1; shift; "$compiler" $flags "$@" -x c -c -o "$B/check/$started.o" zero_plugin.cu; }
# A setting under which nothing is promised is one line, which names the way out.
refused() { # WORD FLAGS...
    word=$1
    shift
    if text=$(plugin "$CC" "$@" 2>&1); then return 1; fi
    echo "$text"
    [ "$(echo "$text" | grep -c 'error:')" = 1 ] && echo "$text" | grep -q "#error.*$word"
}
# -O2 gives the warnings that need an optimizer. The object exports only public names and needs no C++ library.
whole_plugin() {
    object=$B/check/$started.o
    plugin "$CC" -fopenmp -fPIC -O2 && "$CC" -shared -fopenmp -o "$object.so" "$object" -lm &&
        nm -g --defined-only "$object" | awk '$3 !~ /^zero_/ { print; bad = 1 } END { exit bad }' &&
        ! nm -D "$object.so" | grep -E ' _Z|__cxa_throw|__gxx'
}
# In C++ with the emulation's CUDA, and with NCCL's header as it once was.
old_nccl() {
    "${CXX:-c++}" -std=c++17 -D__CUDACC__ -Itests/emulation $nccl -Wall -Wextra -Werror -include cuda_runtime.h \
        -include nccl_2_19.h -x c++ -fsyntax-only zero_plugin.cu
}
# tests/README.md has a row for every test.
map_of_tests() {
    for file in tests/test_* tests/*/test_* tests/*/fuzz_*.c tests/*/*.h; do
        case $file in tests/test_\* | tests/emulation/*) continue ;; esac
        grep -qE "(^|[ (/])$(basename "$file" | sed 's/\./\\./g')\\b" tests/README.md || { echo "$file is not in tests/README.md"; bad=1; }
    done
    [ -z "${bad:-}" ]
}
# Each row of mutants.txt is a line of its file, or it excuses nothing. A row of a line that has changed is repaired or dropped.
known_mutants() {
    awk -F ' [|] ' 'NF >= 5 && FNR > 1 {
        file = "zero_plugin/" $1 ".h"; want = $4; gsub(/[ \t]+/, " ", want); found = 0
        while ((getline line <file) > 0) { gsub(/[ \t]+/, " ", line); sub(/^ /, "", line); if (line == want) found = 1 }
        close(file)
        if (!found) { print "tests/tools/mutants.txt:" FNR ": " file " has no line \"" $4 "\""; bad = 1 }
    } END { exit bad || NR < 20 }' tests/tools/mutants.txt
}
# In a comment, a line that is indented as prose is not a row of a table: clang-format would join it to the next.
# Rows are indented by 5.
comment_tables() {
    git ls-files '*.h' '*.c' '*.cu' '*.cc' | xargs awk '
        /^\/\*/ { comment = 1 }
        comment && /^(   |\/\* )[^ ].*[^ ]   +[^ ]/ && !/\*\/ *$/ { print FILENAME ":" FNR ": " $0; bad = 1 }
        /\*\// { comment = 0 }
        END { exit bad }'
}
tidy() { clang-tidy --quiet "$1" -- -x c -std=c11 -D_GNU_SOURCE -I. -fopenmp; }

needs clang-format "format" clang-format --dry-run -Werror $sources
check "100 columns" columns
check "tables in comments are indented" comment_tables
check "functions of at most 80 lines" lengths
check "contents name the rooms" contents
check "rooms include earlier ones alone" upward
at_most "$conditionals" 49 "#if in unit and rooms"
core_drop
at_most "$(wc -l <zero_plugin.h)" 1192 "lines of the header"
at_most "$(wc -l <"$B/check/core/zero_plugin.cu")" 6970 "lines of make drop WITH=core"
at_most "$(wc -l <train_gpt2_zero.cu)" 1420 "lines of the trainer"
at_most "$(wc -l <tests/comm/slow_transport.h)" 220 "lines of a transport that a host may add"
check "a communicator's kind is the transports' alone" kinds
check "weights are drawn without libm" drawn
check "rooms compile alone" alone "$CC" $flags -fopenmp -x c
check "header as C11" header "$CC" c -std=c11
check "header as C++17" header "${CXX:-c++}" c++ -std=c++17
check "its macros in a C++17 host" "${CXX:-c++}" -std=c++17 -Wall -Wextra -Werror -I. -fsyntax-only tests/hosts/macros.cc
check "plugin with $CC: only zero_* is exported, no C++ runtime" whole_plugin
check "plugin with $CC, without OpenMP" plugin "$CC"
needs clang "plugin with clang" plugin clang -fsyntax-only
needs mpicc "plugin with MPI" plugin mpicc -fopenmp -DZERO_WITH_MPI -DOMPI_SKIP_MPICXX
check "fast math is refused" refused -DZERO_FAST_MATH=1 -Ofast
check "32 bits are refused" refused -m32 -U__SIZEOF_POINTER__ -D__SIZEOF_POINTER__=4
needs "$NVCC" "plugin with nvcc" "$NVCC" -std=c++17 -O1 -fmad=false -arch=sm_90 -Werror all-warnings -Xcompiler -Wall,-Wextra -c -o "$B/check/plugin_cuda.o" zero_plugin.cu
# It compiles for three GPUs: minutes, after a change of a kernel. With SEED a quarter of the calls have it.
if [ -z "${SEED:-}" ] || [ $((SEED % 4)) = 0 ]; then
    needs "$NVCC" "machine code of hot kernels" python3 tests/cuda/machine_code.py "$B"
fi
nccl=$(sh adapters/cuda.sh compile "$NVCC" 2>/dev/null)
case $nccl in
*ZERO_WITH_NCCL*) check "plugin with NCCL 2.19's names" old_nccl; check "rooms compile alone with CUDA" cuda_alone ;;
*) skipped=$((skipped + 1)); echo "skipped plugin with NCCL 2.19's names: NCCL is not installed" ;;
esac
check "tests/README.md names every test" map_of_tests
check "mutants.txt names lines that exist" known_mutants
check "tests use public functions" sh tests/tools/check_private.sh
check "names and layers of the plugin's files" sh tests/tools/check_names.sh "$B"
docs_current() { make -s B="$B" DEVICE=cpu docs-check; }
check "generated pages are current" docs_current
check "words that make a sentence hard to read" sh tests/tools/check_words.sh "$B"
check "the form of the header" sh tests/tools/check_header.sh
needs python3 "error messages say what to do" python3 tests/tools/check_messages.py
check "no circles of files under adapters" sh tests/tools/check_circles.sh "$B" "$CC" "$nccl" adapters/*/*.[ch] adapters/*/*.cu
needs shellcheck "scripts" shellcheck zero_plugin/drop.sh adapters/cuda.sh adapters/llmc/apply tests/tools/same.sh tests/bench/speed.sh tests/install/test_drop.sh tests/tools/check_circles.sh tests/tools/check_header.sh tests/tools/check_names.sh tests/tools/check_private.sh tests/tools/check_words.sh tests/cuda/gpu.sh tests/tools/golden.sh \
    tests/cuda/test_emulated.sh tests/cuda/test_gpu_machine.sh tests/checkpoint/kill_many.sh tests/trainer/test_resume.sh tests/trainer/test_delay.sh tests/trainer/test_recheck.sh tests/trainer/test_layouts.sh tests/trainer/test_layout_saves.sh \
    tests/trainer/test_layout_kills.sh tests/trainer/test_experts.sh tests/shared/jobs.sh tests/shared/sampled.sh tests/launch/namespaces.sh tests/launch/test_hosts.sh tests/bench/bench_ranks.sh tests/bench/links.sh tests/bench/converge.sh tests/run.sh tests/install/test_build.sh tests/docs/test_docs.sh tests/docs/test_recipes.sh tests/cuda/test_example_cuda.sh \
    adapters/docs/memory.sh adapters/docs/planned.sh adapters/plan/tune.sh tests/plan/test_auto.sh adapters/recipes/*.sh .ci/run
needs cppcheck "cppcheck" cppcheck --quiet --error-exitcode=1 --inline-suppr --std=c11 --language=c --enable=warning,portability \
    --suppress=missingIncludeSystem --suppress=invalidPointerCast --suppress=autoVariables --suppress=invalidFunctionArg --suppress=uninitvar \
    --suppress=legacyUninitvar -UZERO_OWN_OPTIMIZERS -UZERO_OWN_TRANSPORTS -U__CUDACC__ --max-configs=16 -I. zero_plugin.cu train_gpt2_zero.cu adapters/*/*.c data/*.c
file_number=0
for file in zero_plugin.cu train_gpt2_zero.cu adapters/*/*.c data/*.c; do
    file_number=$((file_number + 1))
    [ -z "${SEED:-}" ] || [ $((file_number % 12)) = $((SEED % 12)) ] || continue
    needs clang-tidy "clang-tidy $file" tidy "$file"
done
wait
report
[ $skipped -gt 0 ] && more=", $skipped skipped" || more=
echo "$passed passed, $failed failed$more"
[ $failed -eq 0 ]
