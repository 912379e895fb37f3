#!/bin/sh
# test_resume.sh BUILD - the trainer's checkpoints: runs that are stopped by a signal or killed, and
# go on with the same ranks, types, rules and orders of data to the same weights and the same log, or
# with others from the same weights; saves that fail, damaged checkpoints, wrong flags. TRAINER names
# another program than BUILD/train_gpt2_zero. SEED=N chooses a sample; without it everything runs. Last line: N passed, N failed.
# Lists of arguments are split at blanks on purpose.
# shellcheck disable=SC2086
set -u
B=$1
trainer=${TRAINER:-$B/train_gpt2_zero}
mpirun=${MPIRUN:-mpirun}
work=$(mktemp -d "${TMPDIR:-/tmp}/test_resume.XXXXXX") || exit 1
# shellcheck source=tests/shared/jobs.sh
. "$(dirname "$0")/../shared/jobs.sh"
# shellcheck source=tests/shared/sampled.sh
. "$(dirname "$0")/../shared/sampled.sh"
at_end "$work"
passed=0 failed=0 skipped=0
small="-e char:2x32x2 -t 16 -v 6 -m 2 -s 9 -g 3 -u 3 -d 192 -b 2 -nt 1"

# same NAME EXPECTED FOUND
same() {
    if [ -n "$2" ] && [ "$2" = "$3" ]; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED: $1: expected '$2', found '$3'"; fi
}
# says NAME PATTERN: what the last run wrote
says() { if grep -qe "$2" "$work/out"; then passed=$((passed + 1)); else same "$1" "$2" "$(tail -n 2 "$work/out")"; fi; }
# train FOLDER ARGUMENT... : the weights at its end
train() {
    folder=$work/$1
    shift
    timeout -k 1 60 "$trainer" $small -o "$folder" "$@" >"$work/out" 2>&1
    sed -n 's/^weights //p' "$work/out"
}
steps() { (cd "$work/$1" && echo step_*); }

# same_log NAME FOLDER FOLDER: the same lines, but for the times and the memory at their ends
same_log() {
    for folder in "$2" "$3"; do sed 's/ t:.*//' "$work/$folder/main.log" >"$work/$folder.lines"; done
    same "$1: log" same "$(cmp "$work/$2.lines" "$work/$3.lines" && echo same)"
}

# With two stops on the way, the weights and the log of a run without one.
test_bits() {
    n=0
    for run in "-z 0" "-z 1 -dt bf16 -w 1 -pn 2" "-z 2 -dt fp16 -lw 4 -pn 3" "-z 3 -dt bf16 -w 0 -pn 2" "-z 2 -dt bf16 -w split -os bf16 -pn 2" \
        "-z 3 -sh 1 -b 1 -pn 2" "-z 1 -sh 0 -op lion -os 8bit -na 1 -pn 2" "-z 3 -dt bf16 -w split -os 8bit -oe f32 --freeze h.0.* -zod 3 -pn 2" "-z 2 -dt fp16 -li 1e9 -lh 1 -na 1" \
        "-z 3 -zs 2 -zh 1 -zm 0 -b 1 -pn 4" "-z 3 -pt 1 -pn 3 -k wsd" "-z 3 -qw 8 -qg 4 -qf 0.8 -qr 12 -pn 2" "-ds tests/ds_config/minimal.json -pn 2 -b 0 -d 0"; do
        n=$((n + 1))
        sampled 3 || continue
        whole=$(train whole$n $run -x 20)
        train parts$n $run -x 20 -n 7 >/dev/null
        rm -rf "$work/parts$n/step_00000020" "$work/parts$n/step_00000014"
        same "$run: two stops, weights" "$whole" "$(train parts$n $run -x 20 -n 7 -y 1)"
        says "$run goes on" 'resuming from step 7 in '
        rm -rf "$work/parts$n/step_00000020"
        same "$run: another stop, weights" "$whole" "$(train parts$n $run -x 20 -n 7 -y 1)"
        same "$run: no settings differ" no "$(grep -q 'it was saved with' "$work/out" && echo yes || echo no)"
        same_log "$run" whole$n parts$n
        case $run in *-na*) says "$run: told when it is on the disk" '^on the disk: the checkpoint of step 20, written in ' ;; esac
    done
}

# Rules that judge a step by the last 128: the windows go on.
test_windows() {
    rules="-sl 1 -sg 1 -v -1 -g 0 -pn 2"
    whole=$(train rules_whole $rules -x 150)
    train rules $rules -x 150 -n 140 >/dev/null
    rm -rf "$work/rules/step_00000150"
    same 'outliers: weights' "$whole" "$(train rules $rules -x 150 -n 140 -y 1)"
    same 'outliers: some are skipped after it' yes "$(grep -q '^step  *1[45].*unusual' "$work/out" && echo yes)"
    same_log outliers rules_whole rules
}

# Other ranks, stages and types: the weights that were saved, and the same windows of data.
test_anywhere() {
    saved=$(train any -z 3 -pn 3 -x 12 -n 6 -db 1)
    for run in "-z 0" "-z 1 -pn 2" "-z 2 -pn 6 -b 1" "-z 3 -pn 4 -b 1" "-z 2 -pn 4 -b 1 -zs 2" "-z 3 -pn 4 -b 1 -zs 1"; do
        same "loaded with $run" "$saved" "$(train any $run -x 12 -y 1)"
    done
    saved=$(train groups -z 1 -pn 6 -b 1 -zs 3 -x 12 -n 6)
    for run in "-z 0" "-z 3 -pn 4 -b 1" "-z 2 -pn 4 -b 1 -zs 2"; do
        same "of shard groups, loaded with $run" "$saved" "$(train groups $run -x 12 -y 1)"
    done
    saved=$(train split -z 2 -pn 3 -dt bf16 -w split -x 12 -n 6)
    for run in "-z 0 -w 1" "-z 3 -pn 2 -w 1" "-z 1 -pn 2 -w split"; do
        same "split masters, loaded with $run" "$saved" "$(train split -dt bf16 $run -x 12 -y 1)"
        said=$(grep -c 'weights are converted: .* with split masters, this run has f32 masters' "$work/out")
        case $run in *split) same "$run: nothing is converted" 0 "$said" ;; *) same "$run: converted" 1 "$said" ;; esac
    done
    for type in "f32 bf16" "bf16 8bit" "8bit f32"; do
        train "states-${type% *}" -z 2 -pn 3 -os "${type% *}" -x 6 -n 6 >/dev/null
        first=$(train "states-${type% *}" -z 0 -pn 1 -os "${type#* }" -x 12 -y 1)
        says=$(echo "the checkpoint was saved with ${type% *}, this run has ${type#* }" | sed 's/8bit/8 bits/')
        same "state saved as ${type% *}: converted" 1 "$(grep -c "state is converted: $says\$" "$work/out")"
        rm -rf "$work/states-${type% *}/step_00000012"
        same "state saved as ${type% *}, at another stage" "$first" "$(train "states-${type% *}" -z 1 -pn 1 -os "${type#* }" -x 12 -y 1)"
    done
    for from in same f32; do
        train "embedding-$from" -z 3 -pn 3 -os bf16 -oe "$from" -x 6 -n 6 >/dev/null
        first=$(train "embedding-$from" -z 0 -pn 1 -os bf16 -oe f32 -x 12 -y 1)
        said=$(grep -c 'it was saved with -oe same; now it is f32\|state is converted: .* with bf16, this run has bf16 (f32 in 2 tensors' "$work/out")
        case $from in same) same '-oe differs: told' 2 "$said" ;; *) same '-oe is as before' 0 "$said" ;; esac
        rm -rf "$work/embedding-$from/step_00000012"
        same "-oe $from, at another stage" "$first" "$(train "embedding-$from" -z 1 -pn 1 -os bf16 -oe f32 -x 12 -y 1)"
    done
    train again -z 1 -pn 2 -x 12 -db 1 >/dev/null
    grep '^batch' "$work/out" | tail -n 6 >"$work/batches"
    rm -rf "$work/any/step_00000012"
    train any -z 1 -pn 6 -b 1 -x 12 -y 1 -db 1 >/dev/null
    same 'the same windows on other ranks' same "$(grep '^batch' "$work/out" | cmp - "$work/batches" && echo same)"
    train any -z 1 -dt fp16 -x 12 -y 1 >/dev/null
    same 'f32 goes on in fp16: the first loss scale' 65536 "$(sed -n 's/^step  *7.*scale \([0-9.e+]*\).*/\1/p' "$work/out")"
    train any -z 1 -pn 1 -dt bf16 -l 0.002 -x 12 -y 1 >/dev/null
    says 'a rate that differs' 'it was saved with -l 0.001.*; now it is 0.002'
    says 'a type that differs' 'it was saved with -dt f32; now it is bf16'
    train any -z 1 -d 96 -x 20 -y 1 -sh 0 -db 1 >/dev/null
    batch=$(sed -n 's/^batch 6 //p' "$work/out")
    train fresh -z 1 -d 96 -x 20 -sh 0 -db 1 >/dev/null
    same 'half the batch: data goes on where it was' "$(sed -n 's/^batch 12 //p' "$work/out")" "$batch"
}

test_keep() {
    train keep -x 20 -n 2 -nk 2 -nm 6 >/dev/null
    same 'kept' 'step_00000006 step_00000012 step_00000018 step_00000020' "$(steps keep)"
    printf X | dd of="$work/keep/step_00000020/shard_00000.bin" bs=1 seek=5000 conv=notrunc 2>/dev/null
    train keep -x 20 -y 2 >/dev/null
    says 'damaged, refused' '^train_gpt2_zero: checkpoint: .*step_00000020.*corrupt'
    train keep -x 20 -y 1 >/dev/null
    says 'damaged, named' 'step_00000020 is skipped'
    says 'damaged, the one before' 'resuming from step 18 in '
}

# begin FOLDER ARGUMENT... : a long run in the background that has taken its first steps; $job. In the
# background a shell would have it ignore SIGINT.
begin() {
    folder=$work/$1
    shift
    rm -f "$work/out"
    env --default-signal=INT "$@" -o "$folder" >"$work/out" 2>"$work/err" &
    job=$!
    await '^step'
}
# await PATTERN: until the run in the background has written it
await() {
    for _ in $(seq 600); do # a busy machine
        grep -q "$1" "$work/out" 2>/dev/null && return
        sleep 0.1
    done
}

# stopped NAME FOLDER: the job has ended with 0, what it says last it has saved, and it goes on there
stopped() {
    wait "$job"
    same "$1: exit code" 0 $?
    cat "$work/err" >>"$work/out"
    step=$(sed -n 's/^stopped by a signal after step \([0-9]*\): -y 1 resumes$/\1/p' "$work/out")
    same "$1: saved" "$(printf 'step_%08d' "${step:-0}")" "$(steps "$2" | sed 's/.* //')"
    same "$1: its last step" "${step:-none}" "$(sed -n 's/^step  *\([0-9]*\).*/\1/p' "$work/out" | tail -n 1)"
    train "$2" -x $((${step:-0} + 3)) -y 1 -b 0 >/dev/null
    says "$1: goes on" "resuming from step ${step:-none} in "
}

test_signals() {
    long="$small -x 100000000 -n 1000000"
    for kind in "" "-pn 3 -z 3" "-pn 2 -z 2 -pt 1" "-pn 2 -na 1"; do
        for signal in TERM USR1 INT; do
            sampled 5 || continue
            name=sig$(echo "$kind$signal" | tr -d ' -')
            begin $name "$trainer" $long $kind
            kill -$signal $job
            stopped "$signal $kind" $name
            same "$signal $kind: told at once" 1 "$(grep -c "^train_gpt2_zero: SIG$signal: the job saves and stops" "$work/err")"
        done
    done
    # timeout sends SIGTERM to the program, and to its group
    timeout -k 10 5 "$trainer" $long -o "$work/timeout" >"$work/out" 2>&1
    same 'timeout: exit code' 124 $?
    says 'timeout: saved' '^stopped by a signal after step [0-9]*: -y 1 resumes$'
    # a rank alone, and twice; and another run in its folder
    begin one "$trainer" $long -pn 3
    timeout -k 1 20 "$trainer" $long -y 1 -o "$work/one" >"$work/other" 2>&1
    same 'two runs in a folder' 1 "$(grep -c '^train_gpt2_zero: checkpoint: another run saves in ' "$work/other")"
    for rank in $(ps -o pid= --ppid $job | tail -n 1) $(ps -o pid= --ppid $job); do kill -USR1 "$rank" 2>/dev/null; done
    stopped 'USR1 to ranks' one
    # while it validates and samples, without end
    begin validates "$trainer" $long -v 3 -m 0 -b 1
    kill -TERM $job
    stopped 'TERM in validation' validates
    begin samples "$trainer" $long -v -1 -s 3 -g 1000000
    kill -TERM $job
    stopped 'TERM in a sample' samples
    # in large products, and before the first step
    large="-e char:6x384x6 -t 256 -b 2 -d 512 -v -1 -g 0 -nt 1 -x 100000 -n 100000"
    for nap in 11 3 17 7 23 13 29 19; do
        sampled 3 || continue
        begin "large$nap" "$trainer" $large
        sleep 0.$nap
        kill -TERM $job
        wait "$job"
        same "TERM in a product, after 0.$nap s" 0 $?
    done
    for nap in 05 1 15 2 3; do
        sampled 2 || continue
        "$trainer" $long -pn 2 -o "$work/start$nap" >"$work/out" 2>&1 &
        job=$!
        sleep 0.$nap
        kill -TERM $job
        wait "$job"
        same "TERM 0.$nap s after the start" 0 $?
        says "TERM 0.$nap s after the start" '^stopped by a signal after step'
    done
    # processes that find each other by themselves
    mkdir "$work/meet"
    "$trainer" $long -pi fs -pf "$work/meet" -pn 2 -pr 1 -o "$work/join" >/dev/null 2>&1 &
    other=$!
    begin join "$trainer" $long -pi fs -pf "$work/meet" -pn 2 -pr 0
    kill -TERM $job
    stopped 'TERM to one of two' join
    wait "$other"
    same 'TERM to one of two: the other' 0 $?
    # no checkpoints: it ends, as ever
    begin none "$trainer" $small -x 100000000
    kill -TERM $job
    wait $job
    same 'TERM without -n' 143 $?
    "$trainer" --help | grep -q 'by mpirun' || { skipped=$((skipped + 1)); echo "skipped: this build is without MPI"; return; }
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    begin mpi "$mpirun" -n 2 "$trainer" $long -z 2
    kill -USR1 $job
    stopped 'USR1 to mpirun' mpi
}

# killed NAME CODE PATTERN: the job ends within 3 s, and says so
killed() {
    from=$(date +%s)
    wait "$job"
    same "$1: exit code" "$2" $?
    same "$1: at once" yes "$([ $(($(date +%s) - from)) -le 3 ] && echo yes)"
    same "$1: what it says" 1 "$(grep -c "$3" "$work/err")"
}

# The second SIGINT or SIGTERM ends a job that is still in its last step, which takes minutes here.
test_second_signal() {
    slow="-e char:6x384x6 -t 256 -b 2 -d 5120000 -v -1 -g 0 -nt 1 -x 100 -n 100"
    for kind in "" "-pn 2 -z 3" "-pn 2 -pt 1"; do
        for pair in "TERM INT" "INT INT" "INT TERM"; do
            sampled 2 || continue
            rm -f "$work/out" # await would find the last run's
            env --default-signal=INT "$trainer" $slow $kind -o "$work/slow" >"$work/out" 2>"$work/err" &
            job=$!
            await '^| sent per step'
            kill -${pair% *} $job
            sleep 1
            same "$pair $kind: the first ends nothing" yes "$(kill -0 $job 2>/dev/null && echo yes)"
            kill -${pair#* } $job
            code=143 by=ended
            [ "${pair#* }" = INT ] && code=130 by=interrupted
            killed "$pair $kind" $code "^train_gpt2_zero: $by by SIG${pair#* }; .*; nothing was saved$"
        done
    done
    train saved -x 6 -n 6 >/dev/null
    rm -f "$work/out"
    env --default-signal=INT "$trainer" $small -o "$work/saved" -v -1 -g 0 -d 192000000 -x 9 -n 6 -y 1 >"$work/out" 2>"$work/err" &
    job=$!
    await '^| sent per step'
    kill -INT $job
    sleep 1
    kill -INT $job
    killed 'INT INT after a save' 130 '; saved is step 6, what came after it is lost$'
}

# kill -9 again and again, all at once or a rank alone: the end has the weights of a run without.
test_kills() {
    run="-z 3 -pn 2 -v -1 -g 0 -x 400 -n 3 -nk 2"
    whole=$(train kills_whole $run)
    round=0 found=
    while [ $round -lt 40 ] && [ -z "$found" ]; do
        round=$((round + 1))
        timeout -k 1 60 "$trainer" $small -o "$work/kills" $run -na $((round % 2)) -y 1 >"$work/out" 2>&1 &
        job=$!
        sleep 0.$((15 + round * 7 % 23))
        below=$(ps -o pid= --ppid $job | tr -d ' ')
        if [ $((round % 3)) = 0 ] && [ -n "$below" ]; then kill -9 "$(ps -o pid= --ppid "$below" | tail -n 1 | tr -d ' ')" 2>/dev/null
        else pkill -9 -P $job 2>/dev/null; fi
        wait $job 2>/dev/null
        found=$(sed -n 's/^weights //p' "$work/out")
    done
    [ -n "$found" ] || found=$(train kills $run -y 1)
    same "after $round kills, weights" "$whole" "$found"
    same_log "after $round kills" kills_whole kills
    same 'kills came before the end' yes "$([ $round -gt 3 ] && echo yes)"
}

# A disk that takes no more: files may have 200 KB.
test_full() {
    full="-e char:4x64x4 -t 16 -v -1 -g 0 -b 2 -nt 1 -x 6 -n 2"
    for aside in 0 1; do
        for go_on in 0 1; do
            name="full disk, -na $aside -nf $go_on" saves=$work/full$aside$go_on
            (trap '' XFSZ; ulimit -f 400; exec "$trainer" $full -na $aside -nf $go_on -o "$saves") >"$work/out" 2>&1
            same "$name: exit code" 1 $?
            says "$name" '^train_gpt2_zero: checkpoint: .*File too large'
            same "$name: steps" $((go_on ? 6 : 2 + 2 * aside)) "$(grep -c '^step ' "$work/out")"
            same "$name: told on the way" $((2 * go_on)) "$(grep -c 'warning: checkpoint: ' "$work/out")"
            same "$name: no checkpoint" 'step_????????' "$(cd "$saves" && echo step_????????)"
            [ $aside = 1 ] || same "$name: nothing is left" 'step_*' "$(cd "$saves" && echo step_*)"
        done
    done
    # one that was written aside and failed, told when a signal comes in the validation after it
    for go_on in 0 1; do
        (trap '' XFSZ; ulimit -f 400; exec "$trainer" -e char:4x64x4 -t 16 -m 0 -g 0 -b 1 -d 16 -nt 1 -x 6 -n 2 \
            -v 2 -na 1 -nf $go_on -o "$work/lost$go_on") >"$work/out" 2>&1 &
        job=$!
        for _ in $(seq 1200); do
            grep -q '^checkpoint of step 2' "$work/out" && break
            sleep 0.05
        done
        sleep 0.5 # it fails; the validation takes seconds
        kill -TERM $job
        wait "$job"
        same "a save that failed aside, -nf $go_on: exit code" 1 $?
        same "a save that failed aside, -nf $go_on: tried again" 2 "$(grep -c 'checkpoint: .*File too large' "$work/out")"
        says "a save that failed aside, -nf $go_on" '^train_gpt2_zero: checkpoint: .*File too large'
    done
}

refused() { # NAME PATTERN ARGUMENT...
    name=$1 pattern=$2
    shift 2
    timeout -k 1 20 "$trainer" $small "$@" >"$work/out" 2>&1
    same "$name: exit code" 1 $?
    says "$name" "^train_gpt2_zero: $pattern"
}

test_errors() {
    refused 'no folder' '-n: checkpoints need a folder; add -o FOLDER' -n 5
    refused 'nowhere to go on' '-y: checkpoints need a folder; add -o FOLDER' -y 1
    refused 'comparison' '-n and -y: a comparison saves no checkpoints' -z 0,1 -n 5 -o "$work/x"
    train errors -x 6 -n 3 >/dev/null
    refused 'checkpoints of another run' '-o: .*/errors has checkpoints already, the newest step_00000006; add -y 1' -x 6 -n 3 -o "$work/errors"
    refused 'other heads' '-e: the checkpoint has another model (gpt2.heads is 2 there and 4 here); use its -e' -x 9 -y 1 -o "$work/errors" -e char:2x32x4
    refused 'fewer steps' '-x 5: the checkpoint in .* is of step 6' -x 5 -y 1 -o "$work/errors"
    refused 'another model' 'checkpoint: .*wpe' -x 9 -y 1 -o "$work/errors" -t 32 -d 192 -b 2
    refused 'another optimizer' 'checkpoint: .*lion' -x 9 -y 1 -o "$work/errors" -op lion
    train errors_none -x 2 -y 1 >/dev/null
    says 'none yet' 'no checkpoint in .*: the training starts'
    sed -i '$s/.$/X/' "$work/errors_none/main.log"
    printf 's:7 trl:1.0 lr' >>"$work/errors/main.log"
    lines=$(grep -c '^s:[0-9]* trl' "$work/errors/main.log")
    train errors -x 8 -y 1 >/dev/null
    same 'a log cut in a line' $((lines - 1 + 2)) "$(grep -c '^s:[0-9]* trl:[0-9.]* lr:[0-9.]* norm:[0-9.]* t:.*$' "$work/errors/main.log")"
    sed -i '/^s:[23] trl/d' "$work/errors/main.log"
    train errors -x 9 -y 1 >/dev/null
    says 'a log with a hole' '^train_gpt2_zero: warning: .*/errors/main.log lacks the lines of steps 2 to 3$'
    rm "$work/errors/main.log"
    train errors -x 10 -y 1 >/dev/null
    says 'no log any more' '^train_gpt2_zero: warning: .*/errors/main.log lacks the lines of steps 0 to 5$'
}

cd "$(dirname "$0")/../.." || exit 1
test_bits
test_windows
test_anywhere
test_keep
test_signals
test_second_signal
test_kills
test_full
test_errors
[ "$skipped" -gt 0 ] && more=", $skipped skipped" || more=
echo "$passed passed, $failed failed$more"
[ "$failed" -eq 0 ]
