#!/bin/sh
# bench_plan.sh BUILD - is a predicted step the one that is measured? Three models at stages 0 and 3, 2 ranks of one
# thread, ROUNDS times (5 unless set) in turn: this machine is measured before and behind each round, a round's prediction
# is the mean of both, and the median of the rounds' ratios counts, since rates of a machine that is shared drift from
# minute to minute. On a machine that does nothing else; 3 minutes a round; exit code 1: one is more than 10% off. Also
# printed: the least and the largest ratio, what the parts of the last prediction are, and those of the last run, in ms (-tb).
# Last line: N passed, N failed.
# Lists of arguments are split at blanks on purpose.
# shellcheck disable=SC2086
set -u
B=$1 rounds=${ROUNDS:-5}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0
set -- "char:4x128x4 -t 64 -b 12 -x 64" "char:6x384x6 -t 256 -b 8 -x 12" "d12 -t 64 -b 4 -x 10"
measure() { "$B/zero_plan" --measure "$scratch/$1" -pn 2 -nt 1 -dt f32 >/dev/null || exit 1; }
predict() { # MACHINE: the line of the step
    "$B/zero_plan" -e ${model% -x *} -pn 2 -nt 1 -z $stage --machine "$scratch/$1" | sed -n 's/^ *[0-3] device .* \([0-9.e+]* ms: .*\)/\1/p'
}
name() { echo "$scratch/$stage.${model%% *}"; }
measure behind
for _ in $(seq "$rounds"); do
    mv "$scratch/behind" "$scratch/before"
    for model; do
        for stage in 0 3; do
            "$B/train_gpt2_zero" -e $model -pn 2 -nt 1 -z $stage -v -1 -g 0 -tb 1000000 >"$(name).run" 2>&1 || exit 1
        done
    done
    measure behind
    for model; do
        for stage in 0 3; do
            predicted=$({ predict before; predict behind; } | awk '{ sum += $1 } END { printf "%.2f", sum / NR }')
            # the median of the second half: a step that something else disturbed does not count
            sed -n 's/^step .* \([0-9.]*\) ms .*/\1/p' "$(name).run" | tail -n 8 | sort -n | awk -v p="$predicted" 'NR == 4 { print p / $1, p, $1 }' >>"$(name).ratios"
        done
    done
done
echo "model                            stage  predicted ms  measured ms  ratio, median of $rounds [least largest]"
for model; do
    for stage in 0 3; do
        line=$(sort -n "$(name).ratios" | awk '{ x[NR] = $1; p[NR] = $2; m[NR] = $3 } END { k = int((NR + 1) / 2); printf "%s %s %s %s %s", p[k], m[k], x[k], x[1], x[NR] }')
        echo "$model $stage $line" | awk '{ printf "%-32s %5d %13.2f %12.2f %6.3f [%.3f %.3f]\n", $1 " " $2 " " $3 " " $4 " " $5 " " $6 " " $7, $8, $9, $10, $11, $12, $13 }'
        { predict behind; sed -n '/^breakdown of the run/,+5p' "$(name).run"; } | sed 's/^/    /'
        if echo "$line" | awk '{ exit !($3 > 0.9 && $3 < 1.1) }'; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    done
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
