#!/bin/sh
# bench_trace.sh BUILD [ROUNDS [FLAG...]] - what recording costs a step: pairs of runs, with all of -tr, -tb,
# -tc, -tbd and without, one behind the other and in turn the other way round; of each the mean step of the
# trainer. 2 ranks, -t 64, stage 3, without FLAGs. Last line: the median of the pairs' ratios, to be at most
# 1.01 on a quiet machine; and, with `BASE=program`, what recording that is off costs beside that program.
set -u
B=$1 rounds=${2:-7}
base=${BASE:-}
if [ $# -gt 2 ]; then shift 2; else set -- -e char:4x128x4 -t 64 -pn 2 -z 3 -x 150; fi
work=$(mktemp -d "${TMPDIR:-/tmp}/bench_trace.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
step() { # PROGRAM FLAG...: mean ms
    "$@" -v -1 -g 0 2>&1 | sed -n 's/^total average iteration time: \([0-9.]*\) ms/\1/p'
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
        echo "$x $y" | awk '{ printf "%.3f ms  %.3f ms  %.4f\n", $1, $2, $1 / $2 }'
    done >"$work/pairs"
    cat "$work/pairs"
    awk '{ print $5 }' "$work/pairs" | sort -n | awk -v name="$name" '{ r[NR] = $1 } END { printf "%s: %.4f\n", name, NR % 2 ? r[(NR + 1) / 2] : (r[NR / 2] + r[NR / 2 + 1]) / 2 }'
}
[ -z "$base" ] || pairs "off, beside $base" off old "$@"
pairs "on, beside off" on off "$@"
