#!/bin/sh
# test_hosts.sh BUILD - two hosts with two ranks each: network namespaces of this machine with names of
# their own, joined by a virtual cable. Weights must be the local communicator's with node_size 2, and
# what went over the cable what the plan says. Then one rank each over a slow cable: messages both ways
# must not take turns, and what of the communication a step hides (bench_links.c; links.sh: all of it).
# Needs root. Last line: N passed, N failed[, N skipped].
# shellcheck disable=SC2046,SC2086
set -u
B=$1
# shellcheck source=tests/launch/namespaces.sh
. "$(dirname "$0")/namespaces.sh"

lack=$(hosts_lack)
[ -z "$lack" ] || { skip "two hosts: $lack"; end; }
hosts_up 2 || { skip "two hosts: $why"; end; }

installed() { command -v mpicc.$1 >/dev/null 2>&1 && command -v mpirun.$1 >/dev/null 2>&1; }
# What the program that wrote the log said, in line, p and f; without a last line it has failed.
said() { # LOG
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$1" | tail -n 1)
    p=${line%% passed*} f=${line##*passed, } f=${f%% failed*}
    [ -n "$line" ] || p=0 f=1
}

# on_hosts MPI COMMAND...: the command starts on the first host
on_hosts() {
    mpi=$1
    shift
    if ! installed $mpi; then
        skip "$mpi is not installed"
        return
    fi
    if ! make -s B="$B/$mpi" OPT='-O1 -march=native' MPICC=mpicc.$mpi "$B/$mpi/test_mpi"; then
        failed=$((failed + 1))
        return
    fi
    log="$dir/hosts-$mpi.txt"
    before=$(hosts_sent)
    hosts_first env OMP_NUM_THREADS=1 timeout -k 5 30 "$@" "$root/$mpi/test_mpi" hash 2 >"$log" 2>&1 </dev/null
    code=$?
    bytes=$(($(hosts_sent) - before))
    said "$log"
    # MPICH 4.0 on UCX's TCP hangs in MPI_Finalize now and then, of any program: its word is enough
    [ $code -eq 0 ] || [ $mpi = mpich ] || [ "$f" -gt 0 ] || f=1
    # the program has counted the messages; here: two hosts took part, and they went over the cable
    found=$(sed -n 's/^rank [0-9]* on \([^:]*\):.*/\1/p' "$log" | sort | uniq -c | awk '{print $1 "x" $2}' | tr '\n' ' ')
    planned=$(sed -n 's/^bytes between nodes: //p' "$log" | head -n 1)
    if [ "$found" = "2x${prefix}1 2x${prefix}2 " ] && [ "$bytes" -ge "${planned:-1000000000}" ]; then p=$((p + 1))
    else f=$((f + 1)); fi
    passed=$((passed + p)) failed=$((failed + f))
    echo "$mpi: ${line:-no result}, exit code $code, ranks on $found, $bytes bytes sent over the cable by" \
        "the first host, ${planned:-?} of them shards"
    [ "$f" -eq 0 ] || tail -n 20 "$log" | sed 's/^/    /'
}

# links MBITS ARGUMENTS...: of bench_links, with a rank on each host
links() {
    rate=$1
    shift
    installed openmpi || { skip "a slow cable: openmpi is not installed"; return; }
    why=$(hosts_rate $rate) || { skip "a slow cable: $why"; return; }
    make -s B="$B/openmpi" MPICC=mpicc.openmpi "$B/openmpi/bench_links" || { failed=$((failed + 1)); return; }
    log="$dir/links-openmpi.txt"
    hosts_first timeout -k 5 60 $(hosts_openmpi) -n 2 --host $(hosts_list 1) "$root/openmpi/bench_links" "$@" >"$log" 2>&1 </dev/null
    said "$log"
    passed=$((passed + p)) failed=$((failed + f))
    grep -E '^(stage|messages)' "$log" || tail -n 3 "$log"
}
on_hosts openmpi $(hosts_openmpi) -n 4 --host $(hosts_list 2)
on_hosts mpich mpirun.mpich -hosts $net.1,$net.2 -launcher ssh -launcher-exec "$agent" -iface cable \
    -genv UCX_NET_DEVICES cable -genv UCX_TLS tcp,self -n 4 -ppn 2
links 500 swap 500
links 500 exact 500 -z 2
end
