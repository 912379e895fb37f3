#!/bin/sh
# bench_trace.sh BUILD [ROUNDS [FLAG...]] - what recording costs a step: pairs of runs, with all of -tr, -tb,
# -tc, -tbd and without, one behind the other and in turn the other way round; of each the median step of the
# trainer and the processor time of all ranks. 2 ranks, -t 64, stage 3, without FLAGs. Last line: the medians of
# the pairs' ratios, of steps and of processor time, to be at most 1.01 on a quiet machine; and, with
# `BASE=program`, what recording that is off costs beside that program.
set -u
B=$1 rounds=${2:-7}
base=${BASE:-}
if [ $# -gt 2 ]; then shift 2; else set -- -e char:4x128x4 -t 64 -pn 2 -z 3 -x 150; fi
work=$(mktemp -d "${TMPDIR:-/tmp}/bench_trace.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
step() { # PROGRAM FLAG...: the median step in ms, processor time in s
    ("$@" -v -1 -g 0 >"$work/out" 2>&1; times) | awk 'NR == 2 { gsub("[ms]", " "); printf "%.3f\n", 60 * ($1 + $3) + $2 + $4 }' >"$work/times"
    sed -n 's/^step .* \([0-9.]*\) ms .*/\1/p' "$work/out" | tail -n +2 | sort -n | awk '{ t[NR] = $1 } END { printf "%s ", t[int((NR + 1) / 2)] }'
    cat "$work/times"
}
on() { step "$B/train_gpt2_zero" "$@" -tr "$work/t.json" -tb 1000000 -tc 1 -tbd "$work/tb"; }
off() { step "$B/train_gpt2_zero" "$@"; }
old() { step "$base" "$@"; }
# pairs NAME A B FLAG...: ratios a/b
pairs() {
    name=$1 a=$2 b=$3
    shift 3
    for i in $(seq "$rounds"); do
        if [ $((i % 2)) = 1 ]; then x=$($a "$@") y=$($b "$@"); else y=$($b "$@") x=$($a "$@"); fi
        echo "$x $y" | awk '{ printf "%.3f ms  %.3f ms  %.4f   %.2f s  %.2f s  %.4f\n", $1, $3, $1 / $3, $2, $4, $2 / $4 }'
    done >"$work/pairs"
    cat "$work/pairs"
    echo "$name: $(middle 5), processor time $(middle 10)"
}
middle() { awk "{ print \$$1 }" "$work/pairs" | sort -n | awk '{ r[NR] = $1 } END { printf "%.4f", NR % 2 ? r[(NR + 1) / 2] : (r[NR / 2] + r[NR / 2 + 1]) / 2 }'; }
[ -z "$base" ] || pairs "off, beside $base" off old "$@"
pairs "on, beside off" on off "$@"
