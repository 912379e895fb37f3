#!/bin/sh
# test_losses.sh BUILD - the first 10 losses of the character model, on the same windows and initial
# weights, against those of an independent PyTorch run (tests/reference), to 1e-4, at 1 and 2 ranks.
set -u
B=$1
reference=$(dirname "$0")/../reference/char4_losses.txt
passed=0 failed=0
for ranks in 1 2 3; do
    for stage in 0 3; do
        worst=$("$B/train_gpt2_zero" -pn $ranks -z $stage -x 10 -v -1 -g 0 | awk -v file="$reference" '
            BEGIN { while ((getline line < file) > 0) if (line !~ /^#/) { split(line, f, " "); want[++n] = f[1] } }
            /^step/ { split($0, part, "loss "); got = part[2] + 0; i++
                      d = got - want[i]; if (d < 0) d = -d; if (d > worst) worst = d }
            END { print (i == n && n == 10) ? worst + 0 : "no-losses" }')
        if [ "$worst" != no-losses ] && awk "BEGIN { exit !($worst <= 1e-4) }"; then
            echo "ranks $ranks stage $stage: largest difference $worst"
            passed=$((passed + 1))
        else
            echo "FAILED: ranks $ranks stage $stage: largest difference $worst, expected at most 1e-4"
            failed=$((failed + 1))
        fi
    done
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
