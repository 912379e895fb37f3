#!/bin/sh
# bench_plan.sh BUILD [MACHINE] - is a predicted step the one that is measured? Measures this machine with 2 ranks of one
# thread (or takes MACHINE, a file of zero_plan --measure), then trains three models at stages 0 and 3 and prints
# predicted and measured ms, both in turn. On a machine that does nothing else; exit code 1: one is more than 10% off.
# Last line: N passed, N failed.
# Lists of arguments are split at blanks on purpose.
# shellcheck disable=SC2086
set -u
B=$1
machine=${2:-$B/machine.txt}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0
[ $# -gt 1 ] || "$B/zero_plan" --measure "$machine" -pn 2 -nt 1 -dt f32 >/dev/null || exit 1
echo "model                            stage  predicted ms  measured ms  ratio"
for model in "char:4x128x4 -t 64 -b 12 -x 64" "char:6x384x6 -t 256 -b 8 -x 12" "d12 -t 64 -b 4 -x 10"; do
    for stage in 0 3; do
        "$B/zero_plan" -e ${model% -x *} -pn 2 -nt 1 -z $stage --machine "$machine" >"$scratch/plan" || exit 1
        predicted=$(sed -n 's/^ *[0-3] device .* \([0-9.e+]*\) ms: .*/\1/p' "$scratch/plan")
        "$B/train_gpt2_zero" -e $model -pn 2 -nt 1 -z $stage -v -1 -g 0 >"$scratch/run" 2>&1 || exit 1
        # the median of the second half: a step that something else disturbed does not count
        measured=$(sed -n 's/^step .* \([0-9.]*\) ms .*/\1/p' "$scratch/run" | tail -n 8 | sort -n | sed -n 4p)
        ratio=$(awk "BEGIN { printf \"%.3f\", $predicted / $measured }")
        printf '%-32s %5d %13s %12s %6s\n' "$model" $stage "$predicted" "$measured" "$ratio"
        if awk "BEGIN { exit !($ratio > 0.9 && $ratio < 1.1) }"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    done
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
