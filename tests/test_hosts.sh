#!/bin/sh
# test_hosts.sh BUILD [links] - two hosts with two ranks each: network namespaces of this machine with
# names of their own, joined by a virtual cable. Weights must be the local communicator's with
# node_size 2, and what went over the cable what the plan says. Then one rank each over a slow cable:
# what of the communication a step hides (bench_links.c); `links`: this alone, at several rates.
# Needs root. Last line: N passed, N failed[, N skipped].
set -u
B=$1
passed=0 failed=0 skipped=0
mkdir -p "$B/mpi"
dir=$(cd "$B/mpi" && pwd)
root=$(dirname "$dir")
end() {
    [ $skipped -gt 0 ] && more=", $skipped skipped" || more=
    echo "$passed passed, $failed failed$more"
    [ $failed -eq 0 ]
    exit
}
skip() { echo "skipped: $*"; skipped=$((skipped + 1)); }

if ! command -v ip >/dev/null 2>&1 || [ "$(id -u)" -ne 0 ] || ! unshare -nu true 2>/dev/null; then
    skip "two hosts: need root, namespaces and the program ip (iproute2)"
    end
fi
a=zero$$a b=zero$$b
# The subnet belongs to the two namespaces alone and is unreachable from outside.
net=10.77.91
remove() { for host in $a $b; do ip netns delete $host 2>/dev/null; done; rm -f "$dir/agent"; }
trap remove EXIT
trap 'exit 1' HUP INT PIPE TERM
if ! { ip netns add $a && ip netns add $b \
    && ip link add cable netns $a type veth peer name cable netns $b \
    && ip -n $a addr add $net.1/24 dev cable && ip -n $b addr add $net.2/24 dev cable \
    && ip -n $a link set cable up && ip -n $b link set cable up \
    && ip -n $a link set lo up && ip -n $b link set lo up; } 2>"$dir/ip.txt"; then
    skip "two hosts: $(head -n 1 "$dir/ip.txt")"
    end
fi

# What a launcher takes for ssh: the last words are the command, the address before them the host.
cat >"$dir/agent" <<EOF
#!/bin/sh
while [ \$# -gt 0 ]; do
    case \$1 in
    $net.1) host=$a; shift; break ;;
    $net.2) host=$b; shift; break ;;
    esac
    shift
done
exec ip netns exec \$host unshare -u sh -c "hostname \$host; \$*"
EOF
chmod +x "$dir/agent"
sent() { ip netns exec $a cat /sys/class/net/cable/statistics/tx_bytes; }

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
    if ! make -s B="$B/$mpi" MPICC=mpicc.$mpi "$B/$mpi/test_mpi"; then
        failed=$((failed + 1))
        return
    fi
    log="$dir/hosts-$mpi.txt"
    before=$(sent)
    OMP_NUM_THREADS=1 timeout -k 5 30 ip netns exec $a unshare -u sh -c "hostname $a; exec \"\$@\"" sh \
        "$@" "$root/$mpi/test_mpi" hash 2 >"$log" 2>&1 </dev/null
    code=$?
    bytes=$(($(sent) - before))
    said "$log"
    # MPICH 4.0 on UCX's TCP hangs in MPI_Finalize now and then, of any program: its word is enough
    [ $code -eq 0 ] || [ $mpi = mpich ] || [ "$f" -gt 0 ] || f=1
    # the program has counted the messages; here: two hosts took part, and they went over the cable
    hosts=$(sed -n 's/^rank [0-9]* on \([^:]*\):.*/\1/p' "$log" | sort | uniq -c | awk '{print $1 "x" $2}' | tr '\n' ' ')
    planned=$(sed -n 's/^bytes between nodes: //p' "$log" | head -n 1)
    if [ "$hosts" = "2x$a 2x$b " ] && [ "$bytes" -ge "${planned:-1000000000}" ]; then p=$((p + 1))
    else f=$((f + 1)); fi
    passed=$((passed + p)) failed=$((failed + f))
    echo "$mpi: ${line:-no result}, exit code $code, ranks on $hosts, $bytes bytes sent over the cable by" \
        "the first host, ${planned:-?} of them shards"
    [ "$f" -eq 0 ] || tail -n 20 "$log" | sed 's/^/    /'
}

# links MPI STAGE MBITS COMMAND...: the command starts a rank on each host
links() {
    mpi=$1 stage=$2 rate=$3
    shift 3
    installed $mpi || { skip "a slow cable: $mpi is not installed"; return; }
    if ! command -v tc >/dev/null 2>&1; then skip "a slow cable: needs the program tc (iproute2)"; return; fi
    for host in $a $b; do
        ip netns exec $host tc qdisc replace dev cable root tbf rate ${rate}mbit burst 256kb latency 20ms || {
            skip "a slow cable: the kernel has no token bucket filter"
            return
        }
    done
    make -s B="$B/$mpi" MPICC=mpicc.$mpi "$B/$mpi/bench_links" || { failed=$((failed + 1)); return; }
    log="$dir/links-$mpi.txt"
    timeout -k 5 60 ip netns exec $a unshare -u sh -c "hostname $a; exec \"\$@\"" sh \
        "$@" "$root/$mpi/bench_links" $stage $rate >"$log" 2>&1 </dev/null
    said "$log"
    passed=$((passed + p)) failed=$((failed + f))
    echo "$mpi: $(grep '^stage' "$log" || tail -n 3 "$log")"
}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
openmpi="mpirun.openmpi --oversubscribe --mca plm_rsh_agent $dir/agent --mca btl tcp,vader,self
         --mca btl_tcp_if_include $net.0/24 --mca oob_tcp_if_include $net.0/24"
mpich="mpirun.mpich -hosts $net.1,$net.2 -launcher ssh -launcher-exec $dir/agent -iface cable
       -genv UCX_NET_DEVICES cable -genv UCX_TLS tcp,self"
if [ "${2:-}" != links ]; then
    on_hosts openmpi $openmpi -n 4 --host $net.1:2,$net.2:2
    on_hosts mpich $mpich -n 4 -ppn 2
    links openmpi 2 500 $openmpi -n 2 --host $net.1:1,$net.2:1
else
    for rate in 2000 1000 500; do
        for stage in 0 2 3; do links openmpi $stage $rate $openmpi -n 2 --host $net.1:1,$net.2:1; done
    done
fi
end
