#!/bin/sh
# links.sh BUILD [table|check|model|layers] - steps over slow links between hosts (network namespaces; namespaces.sh),
# with every method of wire.h, each beside the least that is possible and the simulator (bench_links.c).
#   table  HOSTS x RATES x stages and methods, half an hour: writes BUILD/links.csv. A step may take 1.10 of
#          the least possible; at 500 Mbit/s and below a method's gain over exact stage 3 must be 0.85 of
#          the ratio of their least possible times; what goes over the cable is the formula's bytes
#   check  some of them, five minutes: the simulated step is within 10 % of the measured one
#   model  a GPT-2 that is computed, 6 layers of 384, on two hosts of one rank: who sums and sends shares the
#          processors with who computes. A step may take 1.10 of the least possible for layers that take what
#          they do where both hosts train alone at once; processor time is that of all that runs
# HOSTS="2 4", RATES="200 500 1000 2000", RANKS=2 (a host), CASES="0:exact 2:exact 3:exact 3:zh ..."
# (STAGE:METHOD) change what is run; MACHINE=FILE: rates (make machine ARGS="-pn 2"), for the simulator.
# Methods that this build refuses are told, and not counted. On an idle machine alone: layers sleep, but
# the network takes processors. Needs root, Open MPI. Last line: N passed, N failed[, N skipped].
# shellcheck disable=SC2046,SC2086
set -u
B=$1 mode=${2:-table}
# shellcheck source=tests/launch/namespaces.sh
. "$(dirname "$0")/../launch/namespaces.sh"
RANKS=${RANKS:-2}
if [ "$mode" = check ]; then
    RATES=${RATES:-200 1000}
    CASES=${CASES:-0:exact 2:exact 3:exact 3:all}
elif [ "$mode" = model ] || [ "$mode" = layers ]; then
    RATES=${RATES:-500 1000}
    CASES=${CASES:-2:exact 3:exact}
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
program=bench_links
case $mode in model | layers) program=train_gpt2_zero ;; esac
make -s B="$B/openmpi" MPICC=mpicc.openmpi "$B/openmpi/$program" || { failed=1; end; }
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

# ---- model: a step of GPT-2, its processor time, and the least that is possible ----

case $mode in layers) batch="-b 1" micro=8 ;; *) batch="-b 8" micro=1 ;; esac
MODEL="-e char:6x384x6 -t 256 $batch -nt 1 -v -1 -g 0 -x 10 -i $B/data/tiny_char_train.bin -j $B/data/tiny_char_val.bin"
busy() { # milliseconds of all processors, so far
    read -r _ user nice system _ _ irq soft _ </proc/stat
    echo $((10 * (user + nice + system + irq + soft)))
}
# Of the trainer's lines, as they come, beyond the first three: the time of each step, ms, and at the end the processor
# time of one.
steps() {
    n=0
    while read -r line; do
        case $line in "step "*) ;; *) continue ;; esac
        n=$((n + 1))
        if [ $n -eq 3 ]; then from=$(busy); fi
        if [ $n -gt 3 ]; then echo "$line" | sed 's/.*| *\([0-9.]*\) ms.*/\1/'; fi
        if [ $n -eq 10 ]; then echo "busy $((($(busy) - from) / 7))"; fi
    done
}
middle() { # the median of a step, and processor time of one
    sort -n | awk '$1 == "busy" { b = $2; next } { ms[++n] = $1 } END { print ms[int((n + 1) / 2)] + 0, b + 0 }'
}
# At MBITS and STAGE, layers taking COMPUTE ms together, a host sending half of each, 1.06 bytes on the cable for a
# byte of ours: as links_least (bench_links.c).
least() {
    awk -v mbits="$1" -v stage="$2" -v compute="$3" 'BEGIN {
        layers = 6; forward = compute / (3 * layers)
        unit = 1774464 * 4 / 2 * 1.06 * 8 / mbits / 1000
        for (l = 1; l <= layers; l++) now = (now > l * unit ? now : l * unit) + forward
        freed = now + 2 * forward
        for (l = 1; l <= layers; l++) {
            now += 2 * forward
            reduced = (now > reduced ? now : reduced) + unit
        }
        sent = freed + ((stage == 3 ? layers - 3 : 0) + layers) * unit
        printf "%.0f", (reduced > sent ? reduced : sent)
    }'
}
[ "$micro" = 1 ] || MODEL="$MODEL -za local"
tokens() { [ "$micro" = 1 ] || echo "-d $(($1 * micro * 256))"; } # of a step of so many ranks
# What hosts take that train alone at once: of each step the slower one's time, since together they wait for each other.
model_alone() {
    ip netns exec ${prefix}2 timeout -k 5 240 "$root/openmpi/train_gpt2_zero" $MODEL $(tokens 1) -z 0 -pn 1 2>&1 |
        steps >"$dir/links-other.txt" &
    hosts_first timeout -k 5 240 "$root/openmpi/train_gpt2_zero" $MODEL $(tokens 1) -z 0 -pn 1 2>&1 |
        steps >"$dir/links-first.txt"
    wait $!
    paste "$dir/links-first.txt" "$dir/links-other.txt" |
        awk '$1 == "busy" { print; next } { print ($1 > $2 ? $1 : $2) }' | middle
}
# HOSTS MBITS STAGE [ORDER]: the row of a case. The speed of a processor drifts, so hosts train alone before and after
# each case, and the mean of both counts.
model_row() {
    row=$(hosts_first timeout -k 5 480 $(hosts_openmpi) -n $1 --host $(hosts_list 1) "$root/openmpi/train_gpt2_zero" \
        $MODEL $(tokens $1) -z $3 ${4:+-mo} ${4:-} 2>"$dir/links-model.txt" </dev/null | steps | middle)
    step=${row% *} used=${row#* }
    last=$(model_alone)
    alone=$(echo "$first $last" | awk '{ print ($1 + $3) / 2, ($2 + $4) / 2 }')
    first=$last
    bound=$(least $2 $3 ${alone% *})
    printf 'stage %s%s, %s Mbit/s: step %.0f ms, alone %.0f, at least %s: %.2f of it; processor time of both %s ms, ' \
        $3 "${4:+, $4}" $2 $step ${alone% *} $bound "$(echo "$step $bound" | awk '{ print $1 / $2 }')" $used
    echo "alone ${alone#* }"
    [ "${4:-}" != passes ] || { check "$(holds "$step > 0")" "$2 Mbit/s, passes: no step"; return; }
    check "$(holds "$step > 0 && $step <= 1.10 * $bound")" \
        "$2 Mbit/s, stage $3: $step ms, at least $bound, expected at most 1.10 of it"
}
if [ "$program" = train_gpt2_zero ]; then
    hosts_up 2 || { skip "2 hosts: $why"; end; }
    first=$(model_alone)
    for rate in $RATES; do
        why=$(hosts_rate "$rate") || { skip "a slow cable: $why"; end; }
        if [ "$mode" = layers ]; then
            for order in passes layers; do model_row 2 $rate 3 $order; done
        else
            for each in $CASES; do model_row 2 $rate "${each%%:*}"; done
        fi
    done
    end
fi
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
