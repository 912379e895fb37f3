#!/bin/sh
# bench_offload.sh BUILD [FOLDER [MODEL...]] - state on a disk: what a step takes with everything in FOLDER
# (default /tmp) at stage 3, at once and delayed, beside the same step in memory, and beside what fio
# needs for the same bytes: 1 MiB, direct, as many read as written as a step has. Then the bytes of a rank
# and step as planned and as counted, and what checksums cost: runs with them and without in turns.
# 2 ranks of one thread, T 64, B 4 a rank; models d12 and d24 by default. MiB of memory are of all ranks together.
# FLAGS="-d 4096 -mo layers" adds flags of the trainer to all runs, here 8 micro-steps of all layers.
set -u
B=$1
folder=${2:-/tmp}
here=$(dirname "$0")
[ "$(stat -f -c %T "$folder")" != tmpfs ] || { echo "bench_offload.sh: $folder is in memory (a tmpfs): give a folder on a disk" >&2; exit 2; }
if [ $# -gt 2 ]; then shift 2; else set -- d12 d24; fi
out=$(mktemp)
trap 'rm -f "$out" "$out".* "$folder/zero-fio"' EXIT
all="-zos file -zog file -zop file -zfd $folder"
took() { sed -n 's/^step  *[4-8]\/8 .* \([0-9.]*\) ms .*/\1/p' "$@"; }
median() { sort -n | awk '{ at[NR] = $1 } END { print at[int((NR + 1) / 2)] }'; }
step() { # MODEL FLAG... -> $out, and the median of the last steps in ms
    model=$1
    shift
    # shellcheck disable=SC2086
    sh "$here/bench_pss.sh" "$B/train_gpt2_zero" -e "$model" -t 64 -b 4 -x 8 -v -1 -g 0 -pn 2 -nt 1 -z 3 -r 0 ${FLAGS:-} "$@" >"$out" 2>&1 ||
        tail -n 2 "$out" >&2
    ms=$(took "$out" | median)
    pss=$(sed -n 's/.*all ranks together \([0-9]*\) MiB.*/\1/p' "$out")
}
# MiB that the plan has of a rank and step. The trainer prints them next to those that it counted.
planned() { sed -n "s/^moved by the file in a step, MiB of a rank: .*$1 [0-9.]*, planned \([0-9.]*\).*/\1/p" "$out"; }
command -v fio >/dev/null 2>&1 || { echo "  not measured: fio is not installed"; exit 0; }
echo "model  memory: ms  MiB | file: ms  MiB | delayed: ms  MiB | a step moves MiB  at GB/s | fio GB/s  ms | file / (memory + fio)  delayed / the larger"
for model; do
    step "$model"
    memory="$ms $pss"
    rm -f "$out".?
    for check in 1 0 1 0; do
        # shellcheck disable=SC2086
        step "$model" $all -zfc $check
        took "$out" >>"$out.$check"
        [ $check = 0 ] || { file=$pss read=$(planned read) written=$(planned written) counted=$(grep '^moved by the file' "$out"); }
    done
    [ -n "$read" ] && [ -n "$written" ] || { echo "bench_offload.sh: the trainer has not printed what a step moves" >&2; exit 1; }
    checked=$(median <"$out.1")
    plain=$(median <"$out.0")
    file="$checked $file"
    # shellcheck disable=SC2086
    step "$model" $all -zod 1
    share=$(awk "BEGIN { printf \"%.0f\", 100 * $read / ($read + $written) }")
    rate=$(fio --name=zero --filename="$folder/zero-fio" --size=2G --bs=1M --direct=1 --rw=rw --rwmixread="$share" \
               --ioengine=psync --thread --numjobs=16 --runtime=8 --time_based --group_reporting --output-format=terse \
               2>/dev/null | awk -F';' '{ print ($7 + $48) * 1024 / 1e9 }' | tail -n 1)
    awk "BEGIN { exit !(${rate:-0} > 0) }" || { echo "bench_offload.sh: fio has no rate in $folder: $rate" >&2; exit 1; }
    echo "$model $memory $file $ms $pss $read $written $rate" | awk '{ bytes = 2 * ($8 + $9) * 1048576; io = bytes / $10 / 1e6
        larger = $2 > io ? $2 : io
        printf "%-5s  %10.0f %5d | %8.0f %5d | %11.0f %5d | %16.0f %8.2f | %8.2f %5.0f | %21.2f %19.2f\n", $1, $2, $3, $4, $5, $6, $7,
               bytes / 1048576, bytes / $4 / 1e6, $10, io, $4 / ($2 + io), $6 / larger }'
    echo "       $counted"
    awk "BEGIN { printf \"       checksums: %.0f ms a step with them, %.0f without: %.3f\\n\", $checked, $plain, $checked / $plain }"
done
