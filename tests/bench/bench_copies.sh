#!/bin/sh
# bench_copies.sh BUILD [PAIRS [STAGE...]] - what copies of every step (-pm 1) cost: pairs of runs, with them and
# without, one behind the other and in turn the other way round; of each the mean time from step to step by
# main.log, the first two left out. 2 ranks of one thread, char4 and d12. A line per model and stage: medians of both,
# of the pairs' ratios and, in brackets, their quartiles.
# MODELS="d12" limits it. Flags are split at blanks on purpose.
# shellcheck disable=SC2086
set -u
B=$1 pairs=${2:-7}
if [ $# -gt 2 ]; then shift 2; else set -- 1 3; fi
work=$(mktemp -d "${TMPDIR:-/tmp}/bench_copies.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
step() { # FLAG...: milliseconds from one step to the next, and the weights
    rm -rf "$work/log"
    "${TRAINER:-$B/train_gpt2_zero}" -pn 2 -nt 1 -v -1 -g 0 -pe 1 -n 1000000 -o "$work/log" "$@" >"$work/out" 2>&1 || tail -n 2 "$work/out" >&2
    sed -n 's/^s:[0-9]* trl.* t:\([0-9.]*\) .*/\1/p' "$work/log/main.log" |
        awk 'NR == 3 { first = $1 } { last = $1 } END { printf "%.3f ", (NR > 3 ? 1000 * (last - first) / (NR - 3) : 0) }'
    sed -n 's/^weights //p' "$work/out"
}
for model in ${MODELS:-char4 d12}; do
    case $model in
    char4) flags="-e char:4x128x4 -t 64 -b 12 -d 1536 -x 200" ;;
    *) flags="-e $model -t 64 -b 4 -d 512 -x 12" ;;
    esac
    for stage; do
        for pair in $(seq "$pairs"); do
            if [ $((pair % 2)) = 1 ]; then on=$(step $flags -z "$stage" -pm 1) off=$(step $flags -z "$stage")
            else off=$(step $flags -z "$stage") on=$(step $flags -z "$stage" -pm 1); fi
            echo "$on $off"
        done >"$work/pairs"
        awk -v name="$model, stage $stage" '
            function sort(x, n,   i, j, t) { for (i = 2; i <= n; i++) for (j = i; j > 1 && x[j] < x[j - 1]; j--) { t = x[j]; x[j] = x[j - 1]; x[j - 1] = t } }
            function at(x, n, q,   p) { p = 1 + (n - 1) * q; return x[int(p)] + (p - int(p)) * (x[int(p) + (p > int(p))] - x[int(p)]) }
            NF != 4 || $2 != $4 || !$3 { bad = 1; next }
            { n++; on[n] = $1; off[n] = $3; ratio[n] = $1 / $3 }
            END { if (bad || !n) { print name ": runs that failed, or other weights"; exit 1 }
                sort(on, n); sort(off, n); sort(ratio, n)
                printf "%-15s  %9.2f ms with copies, %9.2f without, ratio %.4f [%.4f %.4f], %d pairs\n", name, at(on, n, 0.5), at(off, n, 0.5),
                    at(ratio, n, 0.5), at(ratio, n, 0.25), at(ratio, n, 0.75), n }' "$work/pairs" || exit 1
    done
done
