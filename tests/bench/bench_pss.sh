#!/bin/sh
# bench_pss.sh COMMAND... - runs a command and samples, from outside, the proportional set size of each
# of its processes (shared pages count once, divided among those that map them). Prints the largest
# peak of a process, and that of all together, in MiB, as the last line. When a process ends, what it shared
# becomes the others': samples after that do not count. Within a sample they are read forth and back, of which
# the smaller sum counts: pages that changed hands in between would count twice.
# LIMIT=4G: a memory cgroup holds all of them together to that (as root; what wants more is killed), and the last
# line tells the peak that the cgroup saw, pages of files in the cache included.
set -u
group='' runs=''
if [ -n "${LIMIT:-}" ]; then
    if [ -d /sys/fs/cgroup/memory ]; then group=/sys/fs/cgroup/memory/bench_pss_$$ bound=memory.limit_in_bytes peak=memory.max_usage_in_bytes
    else group=/sys/fs/cgroup/bench_pss_$$ bound=memory.max peak=memory.peak; fi
    if ! mkdir "$group" 2>/dev/null || ! echo "$LIMIT" >"$group/$bound" 2>/dev/null; then
        echo "bench_pss.sh: no memory cgroup can be made at $group" >&2
        exit 2
    fi
    # shellcheck disable=SC2016
    runs='echo $$ >"$0/cgroup.procs" && exec "$@"'
fi
if [ -n "$group" ]; then sh -c "$runs" "$group" "$@" & else "$@" & fi
main=$!
peaks=$(mktemp)
sample=0
trap 'rm -f "$peaks"; [ -z "$group" ] || rmdir "$group"' EXIT
descendants() { for c in $(cat /proc/"$1"/task/*/children 2>/dev/null); do echo "$c"; descendants "$c"; done; }
while kill -0 $main 2>/dev/null; do
    sample=$((sample + 1))
    forth="$main $(descendants $main)" back=''
    for pid in $forth; do back="$pid $back"; done
    for pid in $forth back $back; do
        [ "$pid" = back ] && echo back && continue
        awk -v at=$sample '/^Pss:/ { print at, $2 }' /proc/"$pid"/smaps_rollup 2>/dev/null
    done >>"$peaks"
    sleep 0.3
done
wait $main
code=$?
seen=''
[ -z "$group" ] || seen=", $(($(cat "$group/$peak") / 1048576)) MiB in a cgroup of $LIMIT"
awk -v seen="$seen" '$1 == "back" { back = 1; next }
     $1 != at { at = $1; back = 0 }
     { n[at, back]++; sum[at, back] += $2; if ($2 > large[at]) large[at] = $2 }
     END { for (i = 1; i <= at; i++) {
               if (n[i, 0] < ranks || n[i, 1] < n[i, 0]) continue
               ranks = n[i, 0]
               least = sum[i, 0] < sum[i, 1] ? sum[i, 0] : sum[i, 1]
               if (large[i] > top) top = large[i]
               if (least > all) all = least
           }
           printf "peak PSS %.0f MiB, all ranks together %.0f MiB%s\n", top / 1024, all / 1024, seen }' "$peaks"
exit $code
