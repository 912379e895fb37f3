#!/bin/sh
# test_example_cuda.sh BUILD - adapters/example.cu on tests/emulation (test_example_cuda.cu): on 1 to 3 ranks, its losses fall
# and are the same at every stage; on one rank they are those of adapters/example.c. It has at most 130 lines, and nvcc, if
# it is installed, compiles it. Last line: N passed, N failed[, N skipped].
# shellcheck disable=SC2015 # ok returns 0
# shellcheck disable=SC2010,SC2013,SC2016,SC2018,SC2019,SC2046 # names without blanks
set -u
B=$1
root=$(cd "$(dirname "$0")" && while [ ! -f zero_plugin.h ] && [ "$PWD" != / ]; do cd ..; done && pwd)
dir=$B/example_cuda
passed=0 failed=0 skipped=0
ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAILED: $*"; }
rm -rf "$dir" && mkdir -p "$dir"
export OMP_NUM_THREADS=1 NCCL_LAUNCH_ORDER_IMPLICIT=1
for ranks in 1 2 3; do
    for stage in 0 1 2 3; do
        timeout 100 "$B/emulated/test_example_cuda" $stage $ranks "$dir/id" >"$dir/losses.$stage.$ranks" 2>"$dir/errors" && ok ||
            bad "stage $stage, $ranks ranks: $(tail -n 1 "$dir/errors")"
        cmp "$dir/losses.0.$ranks" "$dir/losses.$stage.$ranks" && ok || bad "losses of stage $stage differ on $ranks ranks"
        [ ! -e "$dir/id" ] && ok || bad "the file of the id is left"
    done
    awk '{ if (!n++) first = $4; last = $4 } END { exit !(n == 60 && last < first / 2) }' "$dir/losses.0.$ranks" && ok ||
        bad "$ranks ranks: the loss does not fall"
done
cmp -s "$dir/losses.0.1" "$dir/losses.0.2" && bad "ranks have the same data" || ok
sh "$root/zero_plugin/drop.sh" "$dir/zp" >/dev/null
if ${CC:-cc} -std=c11 -D_GNU_SOURCE -O1 -ffp-contract=off -fopenmp -pthread -I"$dir/zp" -o "$dir/example" "$root/adapters/example.c" -xc \
    "$dir/zp/zero_plugin.cu" -lm && "$dir/example" 0 1 >"$dir/cpu"; then
    paste "$dir/cpu" "$dir/losses.0.1" | awk '{ d = $4 - $8; if (d > 2e-5 || d < -2e-5) bad = 1 } END { exit bad || NR != 60 }' && ok ||
        bad "one rank does not have the losses of example.c"
else bad "example.c fails"; fi
"$B/emulated/test_example_cuda" 0 9 "$dir/id" >"$dir/usage" 2>&1 && bad "wrong arguments are accepted" || ok
lines=$(wc -l <"$root/adapters/example.cu")
[ "$lines" -le 130 ] && ok || bad "example.cu has $lines lines, at most 130"
nvcc=${NVCC:-nvcc}
if command -v "$nvcc" >/dev/null 2>&1; then
    # shellcheck disable=SC2046
    "$nvcc" -std=c++17 -O1 -fmad=false $(sh "$root/adapters/cuda.sh" compile "$nvcc") -I"$dir/zp" -c -o "$dir/example.o" \
        "$root/adapters/example.cu" && ok || bad "nvcc does not compile example.cu"
else skipped=$((skipped + 1)); echo "skipped: nvcc is not installed"; fi
[ $skipped -gt 0 ] && more=", $skipped skipped" || more=
echo "$passed passed, $failed failed$more"
[ $failed -eq 0 ]
