#!/bin/sh
# links.sh BUILD [table|check] - steps over slow links between hosts (network namespaces; namespaces.sh),
# with every method of wire.h, each beside the least that is possible and the simulator (bench_links.c).
#   table  HOSTS x RATES x stages and methods, half an hour: writes BUILD/links.csv. A step may take 1.10 of
#          the least possible; at 500 Mbit/s and below a method's gain over exact stage 3 must be 0.85 of
#          the ratio of their least possible times; what goes over the cable is the formula's bytes
#   check  some of them, five minutes: the simulated step is within 10 % of the measured one
# HOSTS="2 4", RATES="200 500 1000 2000", RANKS=2 (a host), CASES="0:exact 2:exact 3:exact 3:zh ..."
# (STAGE:METHOD) change what is run; MACHINE=FILE: rates (make machine ARGS="-pn 2"), for the simulator.
# Methods that this build refuses are told, and not counted. On an idle machine alone: layers sleep, but
# the network takes processors. Needs root, Open MPI. Last line: N passed, N failed[, N skipped].
# shellcheck disable=SC2046,SC2086
set -u
B=$1 mode=${2:-table}
# shellcheck source=tests/namespaces.sh
. "$(dirname "$0")/namespaces.sh"
RANKS=${RANKS:-2}
if [ "$mode" = check ]; then
    RATES=${RATES:-200 1000}
    CASES=${CASES:-0:exact 2:exact 3:exact 3:all}
else
    RATES=${RATES:-200 500 1000 2000}
    CASES=${CASES:-0:exact 1:exact 2:exact 2:zs 2:qg4 3:exact 3:zs 3:zh 3:qw8 3:qg4 3:qg4qf 3:all}
fi
HOSTS=${HOSTS:-2 4}
csv=${OUT:-$B/links.csv}
[ "$mode" = check ] && csv=${OUT:-$B/links-check.csv}
if [ -z "${MACHINE:-}" ] && [ -f "$B/machine.txt" ]; then MACHINE=$B/machine.txt; fi
[ -z "${MACHINE:-}" ] || MACHINE=$(cd "$(dirname "$MACHINE")" && pwd)/$(basename "$MACHINE")
export MACHINE="${MACHINE:-}" OMP_NUM_THREADS=1
check() { # WHETHER WORDS
    if [ "$1" = 1 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $2"; fi
}
holds() { awk "BEGIN { print ($1) ? 1 : 0 }"; }

lack=$(hosts_lack)
[ -n "$lack" ] || command -v mpirun.openmpi >/dev/null 2>&1 || lack="Open MPI is not installed"
[ -z "$lack" ] || { skip "slow links: $lack"; end; }
make -s B="$B/openmpi" MPICC=mpicc.openmpi "$B/openmpi/bench_links" || { failed=1; end; }
sed -n '/define LINKS_COLUMNS/,/latency_us/s/.*"\(.*\)".*/\1/p' "$(dirname "$0")/bench_links.c" | tr -d '\n' >"$csv"
echo >>"$csv"

field() { echo "$row" | cut -d , -f "$1"; } # of LINKS_COLUMNS
# one HOSTS MBITS STAGE METHOD
one() {
    log=$dir/links-$1-$2-$3-$4.txt
    hosts_first timeout -k 5 120 $(hosts_openmpi) -x MACHINE -n $(($1 * RANKS)) --host $(hosts_list $RANKS) \
        "$root/openmpi/bench_links" $4 $2 -z $3 >"$log" 2>&1 </dev/null
    refused=$(grep '^refused: ' "$log")
    if [ -n "$refused" ]; then skip "$4 at stage $3: $refused"; return; fi
    row=$(sed -n 's/^csv,//p' "$log")
    if [ -z "$row" ]; then
        check 0 "$4 at stage $3, $1 hosts, $2 Mbit/s: no result"
        tail -n 5 "$log" | sed 's/^/    /'
        return
    fi
    echo "$row" >>"$csv"
    grep '^stage' "$log"
    step=$(field 7) least=$(field 8) simulated=$(field 9) bytes=$(field 10) cable=$(field 11)
    if [ "$mode" = check ]; then
        check "$(holds "$step > 0.9 * $simulated && $step < 1.1 * $simulated")" \
            "$4 at stage $3, $1 hosts, $2 Mbit/s: $step ms, simulated $simulated"
        return
    fi
    check "$(holds "$step <= 1.10 * $least")" \
        "$4 at stage $3, $1 hosts, $2 Mbit/s: $step ms, at least $least, expected at most 1.10 of it"
    # frames, acknowledgements, envelopes: at most 10 %, and 64 KiB
    check "$(holds "$cable >= $bytes && $cable <= 1.10 * $bytes + 65536")" \
        "$4 at stage $3, $1 hosts: $cable bytes over the cable, by the formula $bytes"
    if [ "$3:$4" = 3:exact ]; then exact=$step exact_least=$least; return; fi
    if [ "$3" != 3 ] || [ "$2" -gt 500 ] || [ -z "${exact:-}" ]; then return; fi
    check "$(holds "$exact / $step >= 0.85 * $exact_least / $least")" \
        "$4, $1 hosts, $2 Mbit/s: gains $exact / $step ms, at best $exact_least / $least"
}
for n in $HOSTS; do
    if ! hosts_up "$n"; then
        skip "$n hosts: $why"
        hosts_down
        continue
    fi
    for rate in $RATES; do
        if ! why=$(hosts_rate "$rate"); then skip "a slow cable: $why"; continue; fi
        exact=
        for each in $CASES; do one "$n" "$rate" "${each%%:*}" "${each##*:}"; done
    done
    hosts_down
done
echo "$csv"
end
