#!/bin/sh
# bench_plan.sh BUILD - is a predicted step the one that is measured? Three models at stages 0 and 3, 2 ranks of one
# thread: this machine is measured before and behind each run, and the mean of both predictions counts, since rates of a
# machine that is shared drift from minute to minute. On a machine that does nothing else; 10 minutes; exit code 1: one
# is more than 10% off. Also printed: what the parts of the prediction are, and those of the run, in ms (-tb).
# Last line: N passed, N failed.
# Lists of arguments are split at blanks on purpose.
# shellcheck disable=SC2086
set -u
B=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0
measure() { "$B/zero_plan" --measure "$scratch/$1" -pn 2 -nt 1 -dt f32 >/dev/null || exit 1; }
predict() { # MACHINE: the line of the step
    "$B/zero_plan" -e ${model% -x *} -pn 2 -nt 1 -z $stage --machine "$scratch/$1" | sed -n 's/^ *[0-3] device .* \([0-9.e+]* ms: .*\)/\1/p'
}
measure behind
echo "model                            stage  predicted ms  measured ms  ratio"
for model in "char:4x128x4 -t 64 -b 12 -x 64" "char:6x384x6 -t 256 -b 8 -x 12" "d12 -t 64 -b 4 -x 10"; do
    for stage in 0 3; do
        mv "$scratch/behind" "$scratch/before"
        "$B/train_gpt2_zero" -e $model -pn 2 -nt 1 -z $stage -v -1 -g 0 -tb 1000000 >"$scratch/run" 2>&1 || exit 1
        measure behind
        predicted=$({ predict before; predict behind; } | awk '{ sum += $1 } END { printf "%.2f", sum / NR }')
        # the median of the second half: a step that something else disturbed does not count
        measured=$(sed -n 's/^step .* \([0-9.]*\) ms .*/\1/p' "$scratch/run" | tail -n 8 | sort -n | sed -n 4p)
        ratio=$(awk "BEGIN { printf \"%.3f\", $predicted / $measured }")
        printf '%-32s %5d %13s %12s %6s\n' "$model" $stage "$predicted" "$measured" "$ratio"
        { predict before; predict behind; sed -n 's/^the run.*, ms a step: //p' "$scratch/run"; } | sed 's/^/    /'
        if awk "BEGIN { exit !($ratio > 0.9 && $ratio < 1.1) }"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    done
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
