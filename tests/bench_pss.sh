#!/bin/sh
# bench_pss.sh COMMAND... - runs a command and samples, from outside, the proportional set size of each
# of its processes (shared pages count once, divided among those that map them). Prints the largest
# peak of a process, and that of all together, in MiB, as the last line.
set -u
"$@" &
main=$!
peaks=$(mktemp)
sample=0
trap 'rm -f "$peaks"' EXIT
descendants() { for c in $(cat /proc/"$1"/task/*/children 2>/dev/null); do echo "$c"; descendants "$c"; done; }
while kill -0 $main 2>/dev/null; do
    sample=$((sample + 1))
    for pid in $main $(descendants $main); do
        awk -v pid="$pid" -v at=$sample '/^Pss:/ { print pid, $2, at }' /proc/"$pid"/smaps_rollup 2>/dev/null
    done >>"$peaks"
    sleep 0.3
done
wait $main
code=$?
awk '$2 > most[$1] { most[$1] = $2 } { sum[$3] += $2 } END { for (p in most) if (most[p] > top) top = most[p]
     for (at in sum) if (sum[at] > all) all = sum[at]
     printf "peak PSS %.0f MiB, all ranks together %.0f MiB\n", top / 1024, all / 1024 }' "$peaks"
exit $code
