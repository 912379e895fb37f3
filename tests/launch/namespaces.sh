# namespaces.sh - hosts that are network namespaces of this machine, with names of their own, and what
# programs on them say and write; sourced by test_hosts.sh, links.sh and bench_ranks.sh, once $B is the
# build folder. The subnet belongs to them alone and is unreachable from outside. Names are words of
# letters and digits.
# shellcheck shell=sh disable=SC2034,SC2086
passed=0 failed=0 skipped=0
mkdir -p "$B/mpi"
dir=$(cd "$B/mpi" && pwd) # what programs write
root=$(dirname "$dir")    # the build folder, from everywhere
net=10.77.91
hosts='' # their names, in the order of their addresses $net.1, $net.2 ...
prefix=zero$$

skip() { echo "skipped: $*"; skipped=$((skipped + 1)); }
# The last line of a test, and its exit.
end() {
    hosts_down
    [ $skipped -gt 0 ] && more=", $skipped skipped" || more=
    echo "$passed passed, $failed failed$more"
    [ $failed -eq 0 ]
    exit
}

# Why there can be none, in words; nothing: they can be.
hosts_lack() {
    if ! command -v ip >/dev/null 2>&1 || [ "$(id -u)" -ne 0 ] || ! unshare -nu true 2>/dev/null; then
        echo "needs root, namespaces and the program ip (iproute2)"
    fi
}

# hosts_up N: two hosts are joined by a virtual cable, more by a switch, until hosts_down or the exit.
# Fails with a reason in $why.
hosts_up() {
    trap hosts_down EXIT
    trap 'exit 1' HUP INT PIPE TERM
    hosts_join $1 2>"$dir/ip.txt" || { why=$(head -n 1 "$dir/ip.txt"); return 1; }
}
hosts_join() {
    agent=$dir/agent
    hosts=
    i=1
    while [ $i -le "$1" ]; do
        ip netns add $prefix$i || return 1
        hosts="$hosts $prefix$i"
        i=$((i + 1))
    done
    if [ "$1" -eq 2 ]; then
        ip link add cable netns ${prefix}1 type veth peer name cable netns ${prefix}2 || return 1
    else
        ip netns add ${prefix}s && ip -n ${prefix}s link add switch type bridge \
            && ip -n ${prefix}s link set switch up || return 1
    fi
    i=1
    for host in $hosts; do
        if [ "$1" -ne 2 ]; then
            ip link add cable netns $host type veth peer name port$i netns ${prefix}s \
                && ip -n ${prefix}s link set port$i master switch up || return 1
        fi
        ip -n $host addr add $net.$i/24 dev cable && ip -n $host link set cable up \
            && ip -n $host link set lo up || return 1
        i=$((i + 1))
    done
    # what a launcher takes for ssh: the last words are the command, the address before them the host
    cat >"$agent" <<END
#!/bin/sh
while [ \$# -gt 0 ]; do
    case \$1 in
    $net.*) host=$prefix\${1##*.}; shift; break ;;
    esac
    shift
done
exec ip netns exec \$host unshare -u sh -c "hostname \$host; \$*"
END
    chmod +x "$agent"
}
hosts_down() {
    for host in $hosts ${prefix}s; do ip netns delete $host 2>/dev/null; done
    [ -z "${agent:-}" ] || rm -f "$agent"
    hosts=
}

# hosts_rate MBITS: what each host may send. Fails with a reason on stdout.
hosts_rate() {
    command -v tc >/dev/null 2>&1 || { echo "needs the program tc (iproute2)"; return 1; }
    for host in $hosts; do
        ip netns exec $host tc qdisc replace dev cable root tbf rate ${1}mbit burst 256kb latency 20ms 2>/dev/null ||
            { echo "the kernel has no token bucket filter"; return 1; }
    done
}

# On the first host: COMMAND...; what it has sent.
hosts_first() { ip netns exec ${prefix}1 unshare -u sh -c "hostname ${prefix}1; exec \"\$@\"" sh "$@"; }
hosts_sent() { ip netns exec ${prefix}1 cat /sys/class/net/cable/statistics/tx_bytes; }
# hosts_list RANKS: as mpirun wants them, "10.77.91.1:2,10.77.91.2:2"
hosts_list() {
    list='' i=1
    for host in $hosts; do
        list="$list${list:+,}$net.$i:$1"
        i=$((i + 1))
    done
    echo "$list"
}
# Open MPI would bind the first rank of each host to the first processor, which is the same one.
hosts_openmpi() {
    echo "mpirun.openmpi --oversubscribe --bind-to none --mca plm_rsh_agent $agent --mca btl tcp,vader,self" \
        "--mca btl_tcp_if_include $net.0/24 --mca oob_tcp_if_include $net.0/24"
}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
