#!/bin/sh
# tune.sh BUILD ARGUMENTS... - runs the three best plans of -z auto for some steps each, and prints which one is the fastest.
# ARGUMENTS are the trainer's, with -pn and -d, and without -z. STEPS=8: steps of each run; MACHINE: the file of rates, which
# is measured if it does not exist. The runs are one after the other, and the median of their steps counts. The report is
# BUILD/tune.csv, too.
set -u
B=$1
shift
steps=${STEPS:-8} machine=${MACHINE:-$B/tune-machine.txt}
scratch=$B/tune.$$
mkdir -p "$scratch" || exit 1
trap 'rm -rf "$scratch"' EXIT
if [ ! -f "$machine" ]; then
    echo "measuring this machine: $machine"
    "$B/train_gpt2_zero" "$@" -z auto -x 0 -v -1 -g 0 --machine "$machine" >"$scratch/measured" 2>&1 ||
        { tail -n 1 "$scratch/measured" >&2; exit 1; }
fi
"$B/zero_plan" "$@" --on cpu --machine "$machine" -z auto -csv "$scratch/plans" || exit 1
echo "stage,offload,predicted_ms,measured_ms,flags" >"$B/tune.csv"
sed 1d "$scratch/plans" | awk -F, '{ split($0, q, "\""); split(q[3], f, ","); if (f[2] == 1 && n++ < 3) printf "%s|%s|%s|%s\n", $1, q[2], 1e3 * f[3], f[12] }' >"$scratch/best"
while IFS='|' read -r stage offload predicted flags; do
    # The flags are a list of words.
    # shellcheck disable=SC2086
    "$B/train_gpt2_zero" "$@" $flags -x "$steps" -v -1 -g 0 -lp 1 </dev/null >"$scratch/run" 2>&1 ||
        { echo "$flags: $(tail -n 1 "$scratch/run")" >&2; continue; }
    measured=$(sed -n 's/^step .* \([0-9.]*\) ms .*/\1/p' "$scratch/run" | sed 1d | sort -n | awk '{ at[NR] = $1 } END { print at[int((NR + 1) / 2)] }')
    echo "$stage,\"$offload\",$predicted,$measured,$flags" >>"$B/tune.csv"
done <"$scratch/best"
echo
echo "predicted and measured ms of a step:"
sed 1d "$B/tune.csv" | awk -F, '{ split($0, q, "\""); split(q[3], f, ","); printf "%10.4g %10.4g  stage %s, %s: %s\n", f[2], f[3], $1, q[2], f[4] }' | sort -k 2 -g
fastest=$(sed 1d "$B/tune.csv" | awk -F, '{ split($0, q, "\""); split(q[3], f, ","); print f[3], f[4] }' | sort -g | head -n 1 | cut -d ' ' -f 2-)
[ -n "$fastest" ] || { echo "tune: none of the plans ran" >&2; exit 1; }
echo "fastest: ./train_gpt2_zero $* $fastest"
