#!/bin/sh
# test_elastic.sh BUILD [KILLS [SEED [kills]]] - -pe: ranks that are killed, and what the others make of it. First
# every case by itself (the last rank, rank 0, two at once, in a save, at the start, crash loops,
# layouts, batches), then random ranks at random times, KILLS of them (12) by SEED (the time): the final weights are those of
# a calm run that changes to the same ranks at the same steps. KILLS 0: the cases alone; `kills`: those
# alone. TRAINER names another program than BUILD/train_gpt2_zero. Last line: N passed, N failed.
# Lists of arguments are split at blanks on purpose.
# shellcheck disable=SC2086
set -u
B=$1 kills=${2:-12} seed=${3:-$(date +%s)}
trainer=${TRAINER:-$B/train_gpt2_zero}
work=$(mktemp -d "${TMPDIR:-/tmp}/test_elastic.XXXXXX") || exit 1
# shellcheck source=tests/shared/jobs.sh
. "$(dirname "$0")/../shared/jobs.sh"
at_end "$work"
passed=0 failed=0 skipped=0
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT ZERO_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT
# 12 windows a step: 4, 3, 2 and 1 ranks divide it
small="-e char:2x32x2 -t 16 -v -1 -g 0 -u 3 -d 192 -b 2 -nt 1 -st all"

# same NAME EXPECTED FOUND
same() {
    if [ -n "$2" ] && [ "$2" = "$3" ]; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED: $1: expected '$2', found '$3'"; fi
}
# says NAME PATTERN: what the last job wrote to stdout or stderr
says() {
    if cat "$work/out" "$work/err" | grep -qe "$2"; then passed=$((passed + 1))
    else same "$1" "$2" "$(tail -n 3 "$work/err" | tr '\n' '|')"; fi
}
# begin FOLDER ARGUMENT...: a job in the background, started by $by if anything; $job
by=
begin() {
    folder=$work/$1
    shift
    : >"$work/out" 2>"$work/err"
    more "$@"
    job=$other
}
# more ARGUMENT...: the same beside it; $other
more() {
    $by "$trainer" $small -o "$folder" "$@" >>"$work/out" 2>>"$work/err" </dev/null &
    other=$!
}
# await PATTERN [TIMES]: until the job has written it, or has ended; a minute at most
await() {
    for _ in $(seq 3000); do
        [ "$(grep -ce "$1" "$work/out")" -ge "${2:-1}" ] && return
        kill -0 $job 2>/dev/null || return
        sleep 0.02
    done
}
# ranks: the processes of the job, in the order of the ranks
ranks() { cat /proc/$job/task/*/children 2>/dev/null; }
# shoot RANK...
shoot() {
    processes=$(ranks)
    victims=
    for rank; do victims="$victims $(echo $processes | cut -d ' ' -f $((rank + 1)))"; done
    kill -9 $victims 2>/dev/null
}
# ended NAME CODE: within a minute
ended() {
    for _ in $(seq 3000); do
        kill -0 $job 2>/dev/null || break
        sleep 0.02
    done
    kill -9 $job 2>/dev/null
    wait $job
    same "$1: exit code" "$2" $?
}

# ---- what a calm run makes ----

# calm NAME RUN LIFE...: the weights of RUN that has been through these lives, "RANKS:STEP" each: so many ranks
# from that step on. Every beginning of a list is run once; each=1: and keeps a checkpoint of all its steps.
each=
calm() {
    name=$1 run=$2 at=calm-$1
    shift 2
    while [ $# -gt 0 ]; do
        before=$at at=$at-$1
        ranks=${1%:*} from=$(printf 'step_%08d' "${1#*:}") next=${2-:weights}
        shift
        [ "$next" = :weights ] && found=weights || found=$(printf 'step_%08d' "${next#*:}")
        [ -e "$work/$at/$found" ] && continue
        rm -rf "${work:?}/$at"
        mkdir -p "$work/$at"
        for part in . experts; do
            [ "$from" = step_00000000 ] || [ ! -d "$work/$before/$part" ] && continue
            mkdir -p "$work/$at/$part"
            cp -r "$work/$before/$part/$from" "$work/$at/$part/"
        done
        [ "$next" = :weights ] && every=1000000000 || every=${next#*:}
        timeout -k 1 240 "$trainer" $small $run -pn "$ranks" -n ${each:-$every} -nk 0 -pe 1 -o "$work/$at" >"$work/calm" 2>&1 </dev/null ||
            echo "FAILED: a calm run, exit code $?, $at: $(tail -n 1 "$work/calm")" >&2
        sed -n 's/^weights //p' "$work/calm" >"$work/$at/weights"
    done
    cat "$work/$at/weights"
}
# lives RANKS: of the last job, which began with so many, those that something came of
lives() {
    { echo "0 $1"; sed -n -e 's/^resuming from step \([0-9]*\) .*, with \([0-9]*\) ranks*$/\1 \2/p' \
        -e 's/^no checkpoint in .*, with \([0-9]*\) ranks*$/0 \1/p' "$work/out"; } |
        awk '{ while (n && step[n] >= $1) n--; n++; step[n] = $1; ranks[n] = $2 }
             END { for (i = 1; i <= n; i++) printf "%d:%d ", ranks[i], step[i] }'
}
# calmly NAME RUN RANKS: the last job has the weights of the calm run
calmly() {
    lived=$(lives "$3")
    # once more by those that are left, where a rank dies behind that line
    same "$1, $2 as $lived: weights" "$(calm "$1" "$2" $lived)" "$(sed -n 's/^weights //p' "$work/out" | sort -u)"
}

# closely NAME: where the last job went on it had lost no more than the step that was open
closely() {
    same "$1: steps lost" 0 "$(awk '/^step /{ split($2, of, "/"); step = of[1] }
        /^resuming from step /{ if ($4 < step - 1) lost++; step = $4 } END { print lost + 0 }' "$work/out")"
}

# ---- cases ----

# soon NAME COMMAND...: which kills; the job goes on, and ends well
soon() {
    name=$1 from=$(date +%s%N) before=$(grep -c '^resuming from step ' "$work/out")
    shift
    "$@" 2>/dev/null
    await '^resuming from step ' $((before + 1))
    took=$((($(date +%s%N) - from) / 1000000))
    ended "$name" 0
    same "$name: goes on within 10 s" yes "$([ $took -le 10000 ] && echo yes || echo "after $took ms")"
}
# after NAME RANKS RUN VICTIM...: killed in step 8 or later, it goes on and ends well; it saves as $saves says
saves="-n 4"
after() {
    name=$1 n=$2 run=$3
    shift 3
    begin "$name" $run -pn $n $saves -pe 1
    await '^step  *8/'
    soon "$name" shoot "$@"
    calmly "$name" "$run" $n
}
test_cases() {
    after last 4 "-z 3 -x 300" 3
    says 'the last rank: who' '^train_gpt2_zero: rank 3 (process [0-9]*) was killed by signal 9 (Killed); all ranks end$'
    says 'the last rank: who is left' '^train_gpt2_zero: 3 ranks are left: going on$'
    after first 3 "-z 1 -x 300" 0
    says 'rank 0' '^train_gpt2_zero: rank 0 (process '
    after two 4 "-z 2 -dt bf16 -x 300" 1 2
    says 'two at once' '^train_gpt2_zero: 2 ranks are left: going on$'
    after one 2 "-z 3 -na 1 -x 300" 1
    says 'one rank goes on' '^train_gpt2_zero: 1 rank is left: going on$'
    after tp 4 "-tp 2 -z 1 -x 300" 1
    says 'layout: three of two each' '2 of 3 ranks can continue: -tp 2: 3 ranks cannot be divided'
    after pp 4 "-pp 2 -z 2 -x 300" 0
    says 'layout: a pipeline' '2 of 3 ranks can continue: -pp 2: '
    after zs 4 "-z 3 -zs 2 -x 300" 2
    says 'layout: groups' '2 of 3 ranks can continue: -zs 2: it does not divide the 3 data-parallel ranks'
    after batch 4 "-z 1 -d 128 -x 300" 2
    says 'batch' '2 of 3 ranks can continue: -b: the batch does not divide (a step of 8 sequences, .* over 3 data-parallel ranks'

    saves="-n 1000 -pm 1"
    after copy 4 "-z 3 -x 300" 2
    says 'copies' '^resuming from step [0-9]* in memory, with 3 ranks$'
    closely copies
    after copy_first 3 "-z 2 -dt bf16 -x 300" 0
    says 'copies, rank 0' '^resuming from step [0-9]* in memory, with 2 ranks$'
    after copy_two 4 "-z 1 -x 300" 3 1
    says 'copies, two at once' '^resuming from step [0-9]* in memory, with 2 ranks$'
    after copy_tp 4 "-tp 2 -z 1 -x 300" 1
    says 'copies, parts of a model' '^resuming from step [0-9]* in memory, with 2 ranks$'
    after copy_experts 4 "-en 4 -eg 2 -z 2 -x 300" 1
    says 'copies, experts' '^resuming from step [0-9]* in memory, with 2 ranks$'
    closely 'copies, experts'
    saves="-n 6 -nk 2 -pm 4"
    after copy_four 3 "-z 3 -na 1 -x 300" 1
    says 'copies of every fourth step, and of those that are saved' '^resuming from step \([0-9]*[02468]\) in memory, with 2 ranks$'
    same 'copies: the last checkpoint' step_00000300 "$(cd "$work/copy_four" && echo step_* | sed "s/.* //")"
    saves="-n 4"

    begin none -pn 2 -tp 2 -n 2 -x 30000 -pe 1
    await '^step  *8/'
    shoot 1
    ended 'no layout' 1
    says 'no layout' '^train_gpt2_zero: 0 of 1 ranks can continue: -tp 2: 1 rank cannot be divided'
    begin all -pn 3 -n 2 -x 5000 -pe 1
    await '^step  *8/'
    shoot 0 1 2
    ended 'all ranks' 1
    says 'all ranks' '^train_gpt2_zero: no rank is left to go on$'
}

# Two copies of every rank are what the plan says, beside the 16 MiB in which each reads.
test_memory() {
    begin memory -z 2 -pn 3 -x 100000000 -n 1000000 -pe 1 -pm 1
    await '^step  *5/'
    held=$(find /proc/$job/fd -lname '*memfd:checkpoint*' -exec stat -L -c %b {} + | awk '{ n += $1 * 512 } END { print n }')
    planned=$(sed -n 's/^| *copies in memory *| \([0-9.]*\) MiB.*/\1/p' "$work/out")
    kill -9 $job
    wait $job 2>/dev/null
    same 'memory of copies' yes "$(echo "${planned:-0} ${held:-0}" | awk '{ held = $2 / 1048576; more = 3 * ($1 - 16) - held
        print (held > 0.5 && more < 0.2 && more > -0.2) ? "yes" : held " MiB, planned " $1 " of a rank" }')"
}

# A rank dies whenever a run has begun: three times, and no more.
test_loop() {
    begin loop -pn 6 -n 1000 -x 100000000 -pe 1
    for start in 0 1 2 3; do
        await '^step  *5/' $((start + 1))
        shoot 1
        [ $start = 3 ] || await 'the training starts, with' $((start + 1))
    done
    ended 'a crash loop' 1
    says 'a crash loop' '^train_gpt2_zero: ranks died 4 times, and no later step was saved in between: the job ends$'
    same 'a crash loop: starts' 3 "$(grep -c 'are left: going on' "$work/err")"
    # an error in words, and a signal, end the job as ever
    begin words -pn 3 -n 2 -x 30000 -pe 1
    await '^step  *8/'
    n=0
    until mv "$work/words" "$work/elsewhere.$n" && (: >"$work/words") 2>/dev/null; do
        n=$((n + 1)) # a save was faster, and made the folder again
    done
    ended 'an error in words' 1
    says 'an error in words' '^train_gpt2_zero: checkpoint: .*/words'
    same 'an error in words: nobody starts' 0 "$(grep -c 'going on' "$work/err")"
    begin signal -pn 3 -n 1000 -x 100000000 -pe 1
    await '^step  *5/'
    kill -TERM $job
    ended 'a signal' 0
    says 'a signal' '^stopped by a signal after step'
}

# Anywhere between the start and the first steps; and with a save in every step.
test_start() {
    each=1
    for nap in 00 01 02 03 05 07 10 15; do
        begin start$nap -z 3 -pn 4 -n 5 -x 40 -pe 1
        sleep 0.$nap
        shoot $((1$nap % 4))
        ended "killed 0.$nap s after the start" 0
        calmly start "-z 3 -x 40" 4
    done
    for nap in 1 2 3; do
        begin save$nap -z 2 -pn 3 -n 1 -nk 2 -x 100 -pe 1
        await '^checkpoint of step 9 '
        sleep 0.0$nap
        shoot $((nap % 3))
        ended "killed in a save, $nap" 0
        calmly save "-z 2 -x 100" 3
    done
}

# torchrun starts ranks again, with numbers in their environment: these are its variables.
torch() { # COUNT RANKS ARGUMENT...
    count=$1 size=$2
    shift 2
    port=$((20000 + ($$ + count * 7) % 9000))
    pids=
    for r in $(seq 0 $((size - 1))); do
        env TORCHELASTIC_RUN_ID=run TORCHELASTIC_RESTART_COUNT=$count RANK=$r WORLD_SIZE=$size LOCAL_RANK=$r \
            MASTER_ADDR=localhost MASTER_PORT=$port timeout -k 1 60 "$trainer" $small -o "$work/torch" "$@" \
            >>"$work/out$r" 2>>"$work/err" </dev/null &
        pids="$pids $!"
    done
}
test_torchrun() {
    : >"$work/err"
    torch 0 3 -z 2 -x 300 -n 4 -pe 1
    for _ in $(seq 200); do grep -q '^step  *8/' "$work/out0" && break; sleep 0.02; done
    kill -9 "$(cat /proc/${pids##* }/task/*/children | tr -d ' ')" 2>/dev/null
    for pid in $pids; do wait $pid; done
    torch 1 2 -z 2 -x 300 -n 4 -pe 1
    for pid in $pids; do wait $pid; done
    cp "$work/out0" "$work/out"
    says 'torchrun: goes on' '^resuming from step [0-9]* in '
    step=$(sed -n 's/^resuming from step \([0-9]*\) in .*/\1/p' "$work/out")
    same 'torchrun: weights' "$(calm torch '-z 2 -x 300' 3:0 2:${step:-0})" "$(sed -n 's/^weights //p' "$work/out")"
}

# torchrun itself, where it is. lived: as `lives`, of what it started; the last job has the weights of a calm run.
lived() {
    awk '/^no checkpoint in / { at = 0 } /^resuming from step / { at = $4 }
         /^\| ranks .*, launched / { while (n && step[n] >= at) n--; n++; step[n] = at; ranks[n] = $4 + 0 }
         END { for (i = 1; i <= n; i++) printf "%d:%d ", ranks[i], step[i] }' "$work/out"
}
calmly_by_torchrun() {
    lived=$(lived)
    same "$1, as $lived: weights" "$(calm "$1" "$2" $lived)" "$(sed -n 's/^weights //p' "$work/out")"
}
test_torchrun_itself() {
    torchrun=$(command -v torchrun || echo "$(dirname "$(command -v "${PYTHON:-python3}")")/torchrun")
    if [ ! -x "$torchrun" ]; then
        skipped=$((skipped + 1))
        echo "skipped: there is no torchrun on the path or beside PYTHON"
        return
    fi
    by="$torchrun --standalone --nproc-per-node 3 --max-restarts 3 --no-python"
    begin one_node -z 2 -x 300 -n 4 -pe 1
    await '^step  *8/'
    soon 'torchrun, a rank' shoot 2
    says 'torchrun, a rank: who' '^train_gpt2_zero: rank 2 .* is gone; all 3 ranks end'
    calmly_by_torchrun one_node '-z 2 -x 300'
    # two agents, as of two machines, whose ranks wait for each other: the second and its rank go
    cat >"$work/both" <<'SH'
[ "$WORLD_SIZE" = 1 ] || : >"$0.are_there"
until [ -e "$0.are_there" ]; do sleep 0.05; done
exec "$@"
SH
    agent="$torchrun --nnodes 1:2 --nproc-per-node 1 --max-restarts 3 --rdzv-backend c10d --rdzv-endpoint localhost:$((20000 + $$ % 9000))
        --no-python --rdzv-conf last_call_timeout=2,keep_alive_interval=1,is_host"
    by="$agent=1 sh $work/both"
    begin two_nodes -z 3 -x 300 -n 4 -pe 1
    by="$agent=0 sh $work/both"
    more -z 3 -x 300 -n 4 -pe 1
    await '^step  *8/'
    ranks=$(cat /proc/$other/task/*/children)
    soon 'torchrun, a node' kill -9 $other $ranks
    calmly_by_torchrun two_nodes '-z 3 -x 300'
    by=
}

refused() { # NAME PATTERN ARGUMENT...
    name=$1 pattern=$2
    shift 2
    timeout -k 1 20 "$trainer" $small "$@" >"$work/out" 2>"$work/err"
    same "$name: exit code" 1 $?
    says "$name" "^train_gpt2_zero: $pattern"
}
test_errors() {
    refused 'no folder' '-pe 1: ranks resume from checkpoints, but none are saved; add -o FOLDER -n STEPS' -pn 2 -pe 1 -n 5
    refused 'no saves' '-pe 1: ranks resume from checkpoints, but none are saved; add -o FOLDER -n STEPS' -pn 2 -pe 1 -o "$work/x"
    refused 'a batch of ranks' '-pe 1: with -b 2 alone, a step on fewer ranks has fewer tokens' -pn 2 -pe 1 -o "$work/x" -n 5 -d 0
    refused 'copies alone' '-pm 1: copies in memory are for elastic runs; add -pe 1' -pn 2 -pm 1 -o "$work/x" -n 5
    refused 'copies of nobody' '-pm 1: copies need ranks that -pn starts (found 1 rank alone)' -pe 1 -pm 1 -o "$work/x" -n 5
    refused 'threads' '-pe 1: ranks that are threads (-pt 1) all end together' -pn 2 -pt 1 -pe 1 -o "$work/x" -n 5
}

# ---- random kills ----

draw() { # N: 0 to N - 1 in $drawn
    random=$(((random * 1103515245 + 12345) % 2147483648))
    drawn=$((random / 65536 % $1))
}
test_random() {
    each=1
    random=$((seed % 2147483648)) done=0 jobs=0 early=0
    while [ $done -lt "$kills" ]; do
        saves="-n 3 -nk 2" least=1
        [ $((jobs / 6 % 2)) = 0 ] || saves="-n 1000 -pm 1"
        case $((jobs % 6)) in
        0) n=4 name=r0 run="-z 3" ;;
        1) n=4 name=r1 run="-z 1 -dt bf16" ;;
        2) n=4 name=r2 run="-z 2 -na 1 -en 4 -eg 1" ;;
        3) n=4 name=r3 run="-z 0 -dt fp16 -li 1e9 -lh 1" ;;
        4) n=4 name=r4 run="-z 1 -tp 2" least=2 ;;
        5) n=4 name=r5 run="-z 2 -pp 2" least=2 ;;
        esac
        run="$run -x 120" left=$n jobs=$((jobs + 1))
        rm -rf "$work/random"
        begin random $run -pn $n $saves -pe 1
        while [ $left -gt $least ] && [ $done -lt "$kills" ] && kill -0 $job 2>/dev/null; do
            # so many lines later, and somewhere in that step
            draw 40
            await '^step ' $(($(grep -c '^step ' "$work/out") + drawn))
            draw 20
            sleep "0.0$(printf %02d "$drawn")"
            here=$(ranks | wc -w)
            [ "$here" -gt $least ] || break
            draw "$here"
            shoot $drawn
            done=$((done + 1)) left=$((here - 1))
        done
        ended "job $jobs of seed $seed" 0
        calmly $name "$run" $n
        [ "$saves" = "-n 3 -nk 2" ] || closely "job $jobs of seed $seed"
        case $lived in *' '*' '*) ;; *) early=$((early + 1)) ;; esac
    done
    echo "$done kills in $jobs jobs, $early of them before their first save or after the end; seed $seed"
}

if [ "${4:-}" != kills ]; then
    test_cases
    test_memory
    test_loop
    test_start
    test_torchrun
    test_torchrun_itself
    test_errors
fi
test_random
[ $skipped = 0 ] && more= || more=", $skipped skipped"
echo "$passed passed, $failed failed$more"
[ $failed -eq 0 ]
