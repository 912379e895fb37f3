#!/bin/sh
# speed.sh BUILD BASE MAKE - is this tree as fast as the commit BASE? Both trainers train the same small models
# at stages 0 and 3 on 2 ranks of one thread, in alternating pairs (PAIRS, 10 unless set). A line per model and
# stage: medians of this tree's tokens/s, of the ratio of tokens/s to the base's, and of the ratio of
# processor time, which other work on the machine moves less; in brackets the quartiles of the pairs.
# WHERE="char6, stage 3" limits it to lines with that in their name.
# Passed: the median ratio of tokens/s is at least LEAST (0.99), and both end with the same weights.
# Needs BASE in this clone, and no network. Last line: N passed, N failed.
# Commands and flags are lists of words.
# shellcheck disable=SC2086
set -u
if [ $# -lt 3 ] || [ -z "$2" ]; then echo "speed.sh: expected a commit to compare with: make speed BASE=commit" >&2; exit 2; fi
mkdir -p "$1/speed" && build=$(cd "$1" && pwd) base=$2 make=$3
here=$build/train_gpt2_zero B=$build/speed pairs=${PAIRS:-10} least=${LEAST:-0.99}
cd "$(dirname "$0")/../.." || exit 1
passed=0 failed=0
check() { if [ "$1" = 1 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $2"; fi; }

commit=$(git rev-parse --verify --quiet "$base^{commit}") ||
    { echo "speed.sh: no commit '$base' in this clone (git fetch --unshallow?)" >&2; exit 2; }
if [ ! -e "$B/$commit/Makefile" ]; then mkdir -p "$B/$commit" && git archive "$commit" | tar -x -m -C "$B/$commit" || exit 1; fi
$make -s -C "$B/$commit" B="$B/$commit/build" "$B/$commit/build/train_gpt2_zero" >"$B/make.log" 2>&1 ||
    { tail -n 20 "$B/make.log"; echo "0 passed, 1 failed"; exit 1; }
there=$B/$commit/build/train_gpt2_zero

# measure PROGRAM STEPS FLAGS...: milliseconds of a step (the median), seconds of processor time, weights
measure() {
    program=$1 steps=$2
    shift 2
    (
        "$program" -pn 2 -nt 1 -v -1 -g 0 -x "$steps" -i "$build/data/tiny_char_train.bin" \
            -j "$build/data/tiny_char_val.bin" "$@" >"$B/run.txt" 2>&1 </dev/null
        times
    ) | tail -n 1 | tr 'ms' '  ' >"$B/times"
    sed -n 's/^step .*| *\([0-9.]*\) ms |.*/\1/p' "$B/run.txt" | tail -n +2 | sort -n | awk '{ x[NR] = $1 } END { printf "%s ", x[int((NR + 1) / 2)] }'
    awk '{ printf "%.2f ", 60 * $1 + $2 + 60 * $3 + $4 }' "$B/times"
    sed -n 's/^weights //p' "$B/run.txt"
}
# What a run takes before its first step: the least of three.
start() {
    { measure "$1" 1 $flags; measure "$1" 1 $flags; measure "$1" 1 $flags; } |
        awk '{ seconds = $(NF - 1); if (NR == 1 || seconds < least) least = seconds } END { print least }'
}

compare() { # NAME TOKENS-OF-A-STEP STEPS FLAGS...
    name=$1 tokens=$2 steps=$3
    case $name in *"${WHERE:-}"*) ;; *) return ;; esac
    shift 3
    flags=$*
    : >"$B/pairs"
    start_there=$(start "$there") start_here=$(start "$here")
    for pair in $(seq "$pairs"); do
        if [ $((pair % 2)) = 1 ]; then a=$(measure "$there" "$steps" $flags) b=$(measure "$here" "$steps" $flags)
        else b=$(measure "$here" "$steps" $flags) a=$(measure "$there" "$steps" $flags); fi
        echo "$a $b" >>"$B/pairs"
    done
    line=$(awk -v tokens="$tokens" -v start_a="$start_there" -v start_b="$start_here" -v least="$least" '
        function sort(x, n,   i, j, t) { for (i = 2; i <= n; i++) for (j = i; j > 1 && x[j] < x[j - 1]; j--) { t = x[j]; x[j] = x[j - 1]; x[j - 1] = t } }
        function at(x, n, q,   p) { p = 1 + (n - 1) * q; return x[int(p)] + (p - int(p)) * (x[int(p) + (p > int(p))] - x[int(p)]) }
        NF != 6 || $3 != $6 { bad = 1; next }
        { n++; speed[n] = 1000 * tokens / $4; ratio[n] = $1 / $4; cpu[n] = ($5 - start_b) / ($2 - start_a) }
        END {
            if (bad || !n) { print "0 runs that failed, or other weights"; exit }
            sort(speed, n); sort(ratio, n); sort(cpu, n)
            printf "%d %.0f tokens/s, ratio %.4f [%.4f %.4f], processor time %.4f [%.4f %.4f], %d pairs", (at(ratio, n, 0.5) >= least),
                at(speed, n, 0.5), at(ratio, n, 0.5), at(ratio, n, 0.25), at(ratio, n, 0.75), at(cpu, n, 0.5), at(cpu, n, 0.25), at(cpu, n, 0.75), n
        }' "$B/pairs")
    echo "$name: ${line#* }"
    check "${line%% *}" "$name: ${line#* }"
}
for stage in 0 3; do
    compare "char4, stage $stage" 1536 200 -e char:4x128x4 -t 64 -b 12 -z $stage
    compare "char6, stage $stage" 4096 12 -e char:6x384x6 -t 256 -b 8 -z $stage
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
