#!/bin/sh
# test_launchers.sh BUILD - ranks that a launcher would start, started here with its variables: they
# must find each other, work, and end with one line whatever goes wrong. Last line: N passed, N failed.
set -u
B=$1
rank=$B/test_launch
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0
port=$((20000 + $$ % 9000))
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT ZERO_PORT OMP_NUM_THREADS \
    TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT SLURM_JOB_ID SLURM_STEP_ID SLURM_PROCID SLURM_NTASKS
export LAUNCH_TEST_LIMIT=20

fresh() { # a new folder and a new port for the next job
    rm -rf "$scratch/job"
    mkdir "$scratch/job"
    port=$((port + 2))
}
start() { # NAME COMMAND...: in the background
    name=$1
    shift
    (timeout -k 1 40 sh -c 'echo $$ >"$0"; exec "$@"' "$scratch/job/$name.pid" "$@" >"$scratch/job/$name.out" 2>"$scratch/job/$name.err" </dev/null
     echo $? >"$scratch/job/$name.code") &
}
torch() { # RANK SIZE ACTION... [with HOST=name in the environment]
    r=$1 n=$2
    shift 2
    start "$r" env RANK="$r" WORLD_SIZE="$n" LOCAL_RANK="$r" MASTER_ADDR="${ADDRESS:-localhost}" \
        MASTER_PORT=$port "$rank" rank "$@"
}
torch_all() { # SIZE ACTION...
    size=$1
    shift
    for each in $(seq 0 $((size - 1))); do torch "$each" "$size" "$@"; done
}
good() { passed=$((passed + 1)); }
bad() {
    failed=$((failed + 1))
    echo "FAILED: $*"
    for file in "$scratch"/job/*.[oec]*; do echo "  $(basename "$file"): $(head -c 300 "$file")"; done
}
# worked NAME RANKS PATTERN: all exit with 0, say nothing on stderr and the pattern once each
worked() {
    wait
    lines=$(cat "$scratch"/job/*.out | grep -c -- "$3")
    if [ "$lines" = "$2" ] && [ "$(cat "$scratch"/job/*.code | sort -u)" = 0 ] \
        && [ ! -s "$scratch/job/0.err" ] && [ -z "$(cat "$scratch"/job/*.err)" ]; then good
    else bad "$1: $lines lines of $2 match '$3'"; fi
}
# refused NAME SECONDS CODE PATTERN: one line in all, none exits with 0, within so many seconds
refused() {
    begun=$(date +%s)
    wait
    took=$(($(date +%s) - begun))
    cat "$scratch"/job/*.err | grep -v '^Killed$' >"$scratch/err" # the shell's word
    if [ "$(wc -l <"$scratch/err")" -eq 1 ] && grep -q -- "$4" "$scratch/err" && [ $took -le "$2" ] \
        && ! grep -qx 0 "$scratch"/job/*.code && grep -qx "$3" "$scratch"/job/*.code; then good
    else bad "$1: $took s, expected code $3 and one line with '$4'"; fi
}

# ---- they meet --------------------------------------------------------------------------------
fresh
for ADDRESS in localhost 127.0.0.1 ::1; do
    [ $ADDRESS != ::1 ] || [ -s /proc/net/if_inet6 ] || continue
    fresh
    torch_all 3 ok
    worked "RANK and WORLD_SIZE, $ADDRESS" 3 'of 3, .* of 3 here, by RANK and WORLD_SIZE'
done
ADDRESS=localhost
fresh
for r in 1 0; do
    start $r env TORCHELASTIC_RUN_ID=run RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r MASTER_ADDR=localhost \
        MASTER_PORT=$port OMP_NUM_THREADS=1 "$rank" rank ok
    [ $r = 0 ] || sleep 1 # rank 0 comes last
done
worked 'torchrun' 2 "by torchrun, .* threads, OMP_NUM_THREADS=1 was set by torchrun and is ignored"
fresh
for r in 0 1 2; do
    start $r env SLURM_STEP_ID=0 SLURM_JOB_ID=$port SLURM_PROCID=$r SLURM_NTASKS=3 SLURM_LOCALID=$r \
        SLURM_STEP_NODELIST='localhost,other[1-2]' ZERO_PORT=$port "$rank" rank ok
done
worked 'srun' 3 'of 3, .* of 3 here, by srun'
fresh
for r in 0 1 2; do start $r env ZERO_PORT=$port "$rank" rank ok -1 3 tcp $r 8 127.0.0.1; done
worked '-pi tcp' 3 'of 3 here, by -pi tcp'
fresh
mkdir "$scratch/shared"
# what a job that died left behind: an address where nobody is, and one where somebody else is
echo "zero 1 old localhost" >"$scratch/shared/zero-fs-0-0-3-ranks"
for r in 2 1 0; do
    start $r "$rank" rank ok -1 3 fs $r 8 "$scratch/shared"
    [ $r != 1 ] || sleep 1
done
worked '-pi fs' 3 'of 3 here, by -pi fs'
[ -z "$(ls "$scratch/shared")" ] && good || bad "-pi fs leaves files: $(ls "$scratch/shared")"
fresh
start 0 "$rank" rank ok -1 4
worked '-pn' 4 'here (fork)'
fresh
start 0 "$rank" rank ok -1 4 threads
worked 'threads' 4 'of 4, .* of 4 here, here (threads)'
fresh
torch_all 2 early 0
worked 'rank 0 is done first' 1 'rank 1 of 2'
fresh
torch_all 2 early 1
worked 'rank 1 is done first' 1 'rank 0 of 2'
if command -v taskset >/dev/null 2>&1 && [ "$(nproc)" -gt 1 ]; then
    half=$(($(nproc) / 2)) # of the processors each, if not bound; the whole of one, if bound to it
    fresh
    torch_all 2 ok
    worked 'ranks that share processors' 2 ", $half threads"
    fresh
    for r in 0 1; do
        start $r env RANK=$r WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$port taskset -c $r "$rank" rank ok
    done
    worked 'ranks bound to different processors' 2 ', 1 threads'
fi

# ---- it goes wrong, and one line tells ------------------------------------------------------------
for who in 0 1 2; do
    fresh; torch_all 3 fail $who; refused "rank $who fails" 8 1 "test: rank $who fails"
    fresh; torch_all 3 die $who; refused "rank $who is killed" 8 1 "test: rank $who .*is gone; all 3 ranks end"
    fresh; torch_all 3 code $who; refused "rank $who returns 5" 8 5 "rank $who ended with exit code 5"
    fresh; torch_all 3 agree $who; refused "rank $who does not agree" 8 1 'one rank does not agree'
done
# Whoever speaks is held up: nobody reads what ranks have to say for a while, and a pipe is full.
for who in 0 1; do
    fresh
    mkfifo "$scratch/job/pipe"
    (exec 8<"$scratch/job/pipe"; sleep 1.7; tr -d '\0' <&8 >"$scratch/job/held.err") &
    exec 7>"$scratch/job/pipe"
    head -c 65536 /dev/zero >&7
    for r in 0 1 2; do
        start $r env RANK=$r WORLD_SIZE=3 LOCAL_RANK=$r MASTER_ADDR=localhost MASTER_PORT=$port \
            sh -c 'exec "$@" 2>&7' sh "$rank" rank die $who
    done
    exec 7>&-
    refused "rank $who is killed, and the others' words are held up" 8 1 "test: rank $who .*is gone; all 3 ranks end"
done
for round in $(seq 4); do
    fresh; torch_all 3 race 0; refused "a rank is killed when others fail, $round" 8 1 'test: rank [012] .*\(gone; all 3 ranks end\|fails\)'
done
fresh; torch_all 3 failall; refused 'all ranks fail' 8 1 'test: rank [012] fails'
fresh; torch_all 3 differ 1; refused 'settings differ' 8 1 'rank 1 was started with setting 1, but rank 0 with setting 0'
fresh; torch_all 3 usage; refused 'a wrong command line' 8 2 'a wrong flag'
fresh; torch_all 3 ok -1 2; refused '-pn besides' 8 2 '3 ranks were started by RANK and WORLD_SIZE, but -pn asks for 2: leave -pn out'
for how in '' threads; do
    fresh; start 0 "$rank" rank fail 1 3 $how; refused "rank 1 fails, ${how:-fork}" 8 1 'test: rank 1 fails'
    fresh; start 0 "$rank" rank failall 1 3 $how; refused "all fail, ${how:-fork}" 8 1 'test: rank [012] fails'
    fresh; start 0 "$rank" rank code 2 3 $how; refused "rank 2 returns 5, ${how:-fork}" 8 5 'rank 2 .*ended with exit code 5'
    fresh; start 0 "$rank" rank agree 2 3 $how; refused "rank 2 does not agree, ${how:-fork}" 8 1 'does not agree'
done
for signal in INT TERM; do
    fresh; torch_all 3 wait; sleep 2
    kill -$signal $(cat "$scratch"/job/*.pid)
    [ $signal = INT ] && code=130 || code=143
    refused "SIG$signal to all" 8 $code "by SIG$signal; all 3 ranks end"
done

# Wrong variables
fresh; start 0 env WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=localhost MASTER_PORT=$port "$rank" rank ok
start 1 env WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=localhost MASTER_PORT=$port "$rank" rank ok
refused 'RANK is missing' 3 2 'RANK is not set; ranks started by RANK and WORLD_SIZE have it'
fresh; torch 0 2 ok; torch 1 3 ok; refused 'WORLD_SIZE differs' 8 1 'rank 1 on host .* was started for 3 ranks, but rank 0 on host .* for 2'
fresh; torch 0 3 ok; torch 1 3 ok
start 2 env RANK=1 WORLD_SIZE=3 MASTER_ADDR=localhost MASTER_PORT=$port "$rank" rank ok
refused 'two are rank 1' 8 1 'two processes were started as rank 1'
fresh; LAUNCH_TEST_LIMIT=2; torch 0 3 ok; torch 2 3 ok
refused 'a rank never comes' 8 1 '1 of 3 ranks did not come to rank 0 at localhost:.* within 2 s: 1 (started by RANK'
fresh; torch 1 3 ok; torch 2 3 ok
refused 'rank 0 never comes' 9 1 'could not reach rank 0 at localhost:.* within 2 s: Connection refused'
fresh; ADDRESS=no-such-host.invalid; torch 1 3 ok; ADDRESS=localhost
refused 'an unknown host' 12 1 'could not reach rank 0 at no-such-host.invalid:'
fresh; start 1 "$rank" rank ok -1 2 fs 1 8 "$scratch/shared"; refused 'no file of rank 0' 8 1 'found no rank 0 within 2 s: .*does not appear'
fresh; start 0 "$rank" rank ok -1 2 fs 0 8 "$scratch/nowhere"; refused 'no such folder' 8 1 'nowhere: rank 0 cannot write there: No such file'
LAUNCH_TEST_LIMIT=20
fresh; start 0 "$rank" rank ok -1 2 udp 0 8 x; refused 'an unknown method' 3 2 "-pi 'udp'"

# Two jobs on one port: the second rank 0 has no place, and strangers are turned away
fresh
start a0 env TORCHELASTIC_RUN_ID=a RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$port "$rank" rank ok
sleep 0.5
start b1 env TORCHELASTIC_RUN_ID=b RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$port "$rank" rank ok
sleep 0.5
start a1 env TORCHELASTIC_RUN_ID=a RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$port "$rank" rank ok
wait
if [ "$(cat "$scratch"/job/a?.code | sort -u)" = 0 ] && [ "$(cat "$scratch/job/b1.code")" = 1 ] \
    && [ ! -s "$scratch/job/a0.err" ] && grep -q "of job 'torch b 0' reached rank 0 of job 'torch a 0'.*set ZERO_PORT" "$scratch/job/b1.err"; then good
else bad 'two jobs on one port'; fi
fresh
start a0 env TORCHELASTIC_RUN_ID=a RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$port "$rank" rank ok
sleep 0.5
for r in 0 1; do
    start b$r env TORCHELASTIC_RUN_ID=b RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$rank" rank ok
    sleep 0.5
done
start a1 env TORCHELASTIC_RUN_ID=a RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$port "$rank" rank ok
wait
if [ "$(cat "$scratch"/job/a?.code "$scratch"/job/b?.code | tr -d '\n')" = 0011 ] \
    && [ "$(cat "$scratch"/job/b?.err | wc -l)" -eq 1 ] && grep -q 'rank 0 cannot listen on port .*: Address already in use; set ZERO_PORT' "$scratch/job/b0.err"; then good
else bad 'the port is taken'; fi

# Two hosts
fresh
for r in 0 1 2; do
    start $r env LAUNCH_TEST_HOST=host$((r / 2)) RANK=$r WORLD_SIZE=3 MASTER_ADDR=localhost MASTER_PORT=$port "$rank" rank ok
done
refused 'two hosts' 8 1 'rank 0 is on host host0, but rank 2 on host host1: the CPU version joins hosts only by MPI'

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
