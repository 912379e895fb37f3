#!/bin/sh
# bench_ranks.sh BUILD - what planning, meeting, building and stepping take as ranks, hosts and tensors
# grow (bench_ranks.c): 2 to 32 processes of this machine, 2 to 8 hosts of one rank (network namespaces;
# need root and Open MPI), 64 to 1,024 ranks and 625 to 10,000 tensors of one rank whose peers are not
# there. Writes BUILD/ranks.csv and prints it, with the exponent of each column: the slope of its
# logarithm over that of the ranks (of the tensors, where these grow), by least squares over rows of
# 0.05 ms or more. N log N has 1.2 to 1.3 here. A rank's processor time may have at most 1.3 in what N
# ranks meet for; otherwise it is a failure. Last line: N passed, N failed[, N skipped].
# shellcheck disable=SC2046,SC2086,SC2154
set -u
B=$1
csv=$B/ranks.csv
# shellcheck source=tests/launch/namespaces.sh
. "$(dirname "$0")/../launch/namespaces.sh"
export OMP_NUM_THREADS=1
limit="timeout -k 5 120"
row() { # NAME COMMAND...: its lines go to the table
    name=$1
    shift
    if "$@" >"$dir/ranks.txt" 2>&1 </dev/null && grep -q '^csv,' "$dir/ranks.txt"; then
        sed -n 's/^csv,//p' "$dir/ranks.txt" >>"$csv"
    else
        failed=$((failed + 1))
        echo "FAILED: $name"
        tail -n 5 "$dir/ranks.txt" | sed 's/^/    /'
    fi
}
"$B/bench_ranks" columns >"$csv"
for n in 2 4 8 16 32; do row "$n ranks" $limit "$B/bench_ranks" local $n; done
row "ranks that are not there" $limit "$B/bench_ranks" many
lack=$(hosts_lack)
[ -n "$lack" ] || command -v mpirun.openmpi >/dev/null 2>&1 || lack="Open MPI is not installed"
if [ -n "$lack" ]; then skip "hosts: $lack"
elif make -s B="$B/openmpi" MPICC=mpicc.openmpi "$B/openmpi/bench_ranks"; then
    for n in 2 4 8; do
        if hosts_up $n; then
            row "$n hosts" hosts_first $limit $(hosts_openmpi) -n $n --host $(hosts_list 1) "$root/openmpi/bench_ranks" mpi
        else
            skip "$n hosts: $why"
        fi
        hosts_down
    done
else failed=$((failed + 1)); fi
awk -F, -v csv="$csv" '
    function over(w) { return w == "many tensors" ? 4 : 3 }
    NR == 1 { for (i = 1; i <= NF; i++) name[i] = $i; columns = NF
              format = "%-12s %5s %5s %7s"; printf format, $1, $2, $3, $4
              for (i = 5; i <= NF; i++) printf " %13s", $i; print ""; next }
    {
        if ($1 != where) finish()
        where = $1
        printf format, $1, $2, $3, $4
        for (i = 5; i <= NF; i++) {
            printf " %13s", $i
            if ($i < 0.05) continue
            x = log($over(where)); y = log($i)
            n[i]++; sx[i] += x; sy[i] += y; sxx[i] += x * x; sxy[i] += x * y
        }
        print ""
    }
    function finish(i, slope) {
        if (where == "") return
        printf format, "exponent", "", "", ""
        for (i = 5; i <= columns; i++) {
            slope = n[i] > 2 ? (n[i] * sxy[i] - sx[i] * sy[i]) / (n[i] * sxx[i] - sx[i] ^ 2) : 0
            printf " %13s", (n[i] > 2) ? sprintf("%.2f", slope) : "-"
            if (i > 8 && i < columns && slope > 1.3) bad = bad " " where ":" name[i]
            if (i > 8 && i < columns && n[i] > 2) ok++
            n[i] = sx[i] = sy[i] = sxx[i] = sxy[i] = 0
        }
        print ""
    }
    END { finish(); print csv; if (bad != "") print "FAILED: worse than N log N:" bad; print ok + 0, split(bad, list, " ") }
' "$csv" >"$dir/ranks-table.txt"
sed '$d' "$dir/ranks-table.txt"
set -- $(tail -n 1 "$dir/ranks-table.txt")
passed=$((passed + $1 - $2)) failed=$((failed + $2))
end
