#!/bin/sh
# test_joined_ranks.sh BUILD - -pa and -pj: ranks of another launcher join a run between two steps by its address, wait as
# spares, replace ranks that leave, leave by SIGTERM, and are killed. With -vr the weights are those of one rank. A launcher with
# another command line, of another host (a network namespace, which needs root), or that is none, does not disturb the run.
# Last line: N passed, N failed[, N skipped]. Lists of arguments are split at blanks on purpose.
# shellcheck disable=SC2086
set -u
B=$1
trainer=${TRAINER:-$B/train_gpt2_zero}
work=$(mktemp -d "${TMPDIR:-/tmp}/test_joined_ranks.XXXXXX") || exit 1
# shellcheck source=tests/shared/jobs.sh
. "$(dirname "$0")/../shared/jobs.sh"
# shellcheck source=tests/launch/namespaces.sh
. "$(dirname "$0")/../launch/namespaces.sh"
at_end "$work"
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT ZERO_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT
small="-e char:2x32x2 -t 16 -u 3 -l 0.01 -v -1 -g 0 -lp 1 -nt 1 -vr 8 -b 1"

# same NAME EXPECTED FOUND
same() {
    if [ -n "$2" ] && [ "$2" = "$3" ]; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED: $1: expected '$2', found '$3': $(cat "$work"/err*)"; fi
}
# begin ARGUMENT...: a job with an address, in the background; $job, $address
begin() {
    run=$*
    rm -rf "$work/run"
    rm -f "$work"/err*
    "$trainer" $small $run -o "$work/run" -pa "${listen:-:0}" -pn 2 >"$work/out" 2>"$work/err" </dev/null &
    job=$!
    await '^s:2 '
    address=$(sed -n 's/.*ranks join this job at //p' "$work/err")
}
# join RANKS [ARGUMENT...]: another launcher, in the background; $guest. Its lines are in err2.
join() {
    ranks=$1
    shift
    "$trainer" $small $run "$@" -o "$work/run" -pj "$address" -pn $ranks >"$work/out2" 2>"$work/err2" </dev/null &
    guest=$!
}
count() {
    if [ -e "$work/run/main.log" ]; then grep -ce "$1" "$work/run/main.log"; else echo 0; fi
}
# await PATTERN [TIMES]: until main.log has it, or the job has ended; a minute at most
await() {
    for _ in $(seq 3000); do
        [ "$(count "$1")" -ge "${2:-1}" ] && return
        kill -0 $job 2>/dev/null || return
        sleep 0.02
    done
}
# line FILE PATTERN: until the file has it, a minute at most
line() {
    for _ in $(seq 3000); do
        grep -qse "$2" "$work/$1" && return
        sleep 0.02
    done
}
processes() { cat /proc/$1/task/*/children 2>/dev/null; }
numbers() { sed -n 's/.* ranks:\([0-9]*\) .*/\1/p' "$work/run/main.log" | tr '\n' ' '; }
ends() { # CODE PROCESS NAME
    wait $2
    same "$3: exit code" "$1" $?
}
one() { # RUN: the weights of one rank, in $calm
    "$trainer" $small $1 -pn 1 >"$work/calm" 2>&1
    calm=$(tail -n 1 "$work/calm")
}
weights() { same "$1: weights" "$calm" "$(tail -n 1 "$work/out")"; }

# 2 ranks, 3 offered: 4 train, 1 waits. A rank of the job leaves, and the spare replaces it. Then the guest leaves.
test_join() {
    one "-z 3 -x 900"
    begin -z 3 -x 900
    join 3
    await ranks:4
    same "a spare: the line" 1 "$(grep -c '^ranks: 5 asked for, 4 can train: -vr 8: ' "$work/out")"
    kill -TERM "$(processes $job | cut -d ' ' -f 2)"
    await ranks:4 2
    same "a spare: ranks of the guest" 3 "$(processes $guest | wc -w)"
    kill -TERM $guest
    ends 0 $guest "the guest"
    same "the guest leaves: its line" 1 "$(grep -c 'SIGTERM: the ranks of this launcher leave the job' "$work/err2")"
    ends 0 $job "the job"
    same "the numbers" "4 4 1 " "$(numbers | sed 's/2 1 $/1 /')" # the guest's ranks may leave in two steps
    weights "joins and leaves"
}

# Rank 0 of the job leaves; a rank of the guest is rank 0, and the run ends there.
test_rank_0() {
    one "-z 2 -dt bf16 -x 700"
    begin -z 2 -dt bf16 -x 700
    join 2
    await ranks:4
    # shellcheck disable=SC2046
    kill -TERM $(processes $job)
    await ranks:2
    same "only the guest's ranks: of the job" 0 "$(processes $job | wc -w)"
    ends 0 $guest "only the guest's ranks: the guest"
    ends 0 $job "only the guest's ranks: the job"
    same "only the guest's ranks: weights" "$calm" "$(tail -n 1 "$work/out2")"
}

# With -pe 1: a rank of the guest is killed, and its other rank comes back; then its launcher is killed.
test_kills() {
    one "-z 1 -x 900"
    begin -z 1 -x 900 -pe 1 -n 20
    join 2
    await ranks:4
    kill -9 "$(processes $guest | cut -d ' ' -f 1)"
    line out 'ranks: 3 asked for, 2 can train' # 2 of the job, and the one that was left
    same "a killed rank: the line" 1 "$(grep -c 'rank [23] (process .*) was killed by signal 9 (Killed); all ranks end' "$work/err")"
    same "a killed rank: the job goes on" 1 "$(grep -c '2 ranks are left: going on' "$work/err")"
    kill -9 $guest
    wait $guest
    join 2
    await ranks:4 2
    kill -9 $guest
    wait $guest
    ends 0 $job "kills"
    weights "kills"
}

# The launcher of the job is killed: no process is left.
test_lost_job() {
    begin -z 3 -x 100000
    join 2
    await ranks:4
    kill -9 $job
    ends 1 $guest "a job that is gone"
    same "a job that is gone: the line" 1 "$(grep -c 'the launcher of the job is gone' "$work/err2")"
}

# Another command line is refused, and the run goes on; so does it if something else connects.
test_refusals() {
    one "-z 3 -x 700"
    begin -z 3 -x 700
    join 2 -u 4
    ends 1 $guest "another command line"
    same "another command line: the line" 1 "$(grep -cm 1 'a new rank cannot join: rank [23] was started with -u 4, but rank 0 with -u 3' "$work/err2")"
    same "another command line: the job's line" 1 "$(grep -c 'a new rank ended with exit code 1 before it joined; 2 ranks go on' "$work/err")"
    python3 - "${address##*:}" <<'END'
import socket, sys
silent = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
wrong = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
wrong.sendall(bytes(range(256)) * 4)
try:
    answer = wrong.recv(10)
except ConnectionError:
    answer = b""
sys.exit(answer != b"")
END
    same "a wrong program is not answered" 0 $?
    ends 0 $job "refusals"
    same "refusals: the numbers stay" none "none$(numbers)"
    weights "refusals"
    join 2
    ends 1 $guest "no job"
    same "no job: the line" 1 "$(grep -c -e "-pj: no job answers at $address: Connection refused" "$work/err2")"
    for flags in "-pa here" "-pj :0" "-pa 198.51.100.7:4000" "-pj :4000 -pa :0" "-pa :0 -pt 1" "-pj :4000 -tp 2"; do
        "$trainer" $small -x 2 -pn 2 $flags >"$work/out" 2>"$work/err" </dev/null
        same "refused: $flags" "1 1" "$? $(grep -c -e '-p[aj]: ' "$work/err")"
    done
}

# A launcher on another host is refused with the reason, and the run goes on.
test_hosts() {
    lack=$(hosts_lack)
    [ "$lack" ] || hosts_up 2 || lack=$why
    trap 'hosts_down; kill -9 $(tree $$ | grep -vx $$) 2>/dev/null; rm -rf "$removed_at_end"' EXIT
    if [ "$lack" ]; then
        skip "another host: $lack"
        return
    fi
    one "-z 3 -x 300"
    run="-z 3 -x 300" address=$net.1:4711
    rm -rf "$work/run"
    hosts_first "$trainer" $small $run -o "$work/run" -pa $address -pn 2 >"$work/out" 2>"$work/err" </dev/null &
    job=$!
    await '^s:2 '
    there="ip netns exec ${prefix}2 unshare -u sh -c 'hostname ${prefix}2; exec \"\$@\"' sh"
    eval "$there \"\$trainer\" $small $run -o $work/run -pj $address -pn 2" >"$work/out2" 2>"$work/err2" </dev/null &
    ends 1 $! "another host"
    same "another host: the line" 1 "$(grep -c "the job runs on host ${prefix}1, this process on host ${prefix}2: ranks that join share" "$work/err2")"
    ends 0 $job "another host: the job"
    weights "another host"
}

test_join
test_rank_0
test_kills
test_lost_job
test_refusals
test_hosts
[ $skipped -eq 0 ] && more= || more=", $skipped skipped"
echo "$passed passed, $failed failed$more"
[ $failed -eq 0 ]
