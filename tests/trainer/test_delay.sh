#!/bin/sh
# test_delay.sh BUILD - delayed updates (-zod): every run with equal -zod ends with one hash, whatever is
# validated, sampled, saved, copied, stopped and resumed, at every stage and tier; and a checkpoint with a
# pending update loads at other ranks, stages and tiers. TRAINER names another program than
# BUILD/train_gpt2_zero. Last line: N passed, N failed.
# Lists of arguments are split at blanks on purpose.
# shellcheck disable=SC2086
set -u
B=$1
trainer=${TRAINER:-$B/train_gpt2_zero}
work=$(mktemp -d "${TMPDIR:-/tmp}/test_delay.XXXXXX") || exit 1
# shellcheck source=tests/shared/jobs.sh
. "$(dirname "$0")/../shared/jobs.sh"
at_end "$work"
passed=0 failed=0
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT ZERO_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT
# 12 windows a step, in one micro-step: 1 rank has them at once, 2 ranks 6 each, 3 ranks 4
small="-e char:2x32x2 -t 16 -u 3 -k constant -d 192 -nt 1 -zod 2 -zfd $work -l 0.01"
quiet="-v -1 -g 0"

# same NAME EXPECTED FOUND
same() {
    if [ -n "$2" ] && [ "$2" = "$3" ]; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED: $1: expected '$2', found '$3'"; fi
}
# train FOLDER ARGUMENT... : the weights at its end
train() {
    folder=$work/$1
    shift
    timeout -k 1 120 "$trainer" $small -o "$folder" "$@" >"$work/out" 2>&1
    sed -n 's/^weights //p' "$work/out"
}
# loss: what the last run validated last
loss() { sed -n 's/^val loss //p' "$work/out" | tail -n 1; }

# looks KIND HOW...: runs that differ in what is looked at, and where state is kept, end alike.
looks() {
    kind=$1
    shift
    calm=$(train calm $kind $quiet -x 9 -pn 2 -z 1)
    rm -rf "$work/calm"
    for how; do
        same "$kind $how" "$calm" "$(train looks $kind $how -x 9 -pn 2)"
        rm -rf "$work/looks"
    done
}

# Looking changes nothing; at 16 bit, with rules of two passes, and in layouts as well.
test_looks() {
    looks "" "$quiet -z 0 -n 1" "$quiet -z 2 -zos file -n 1 -na 1" "$quiet -z 3 -zos file -zog file -zop file -n 2" \
        "-v 1 -m 1 -g 0 -z 1" "-v 2 -m 1 -g 3 -s 1 -z 3 -zos file -zop file" "$quiet -z 3 -n 100 -pe 1 -pm 1" \
        "-v 1 -m 1 -g 3 -s 1 -z 3 -n 1 -pe 1 -pm 1" "-v 3 -m 1 -g 0 -z 2 -zos file -zog file -zor 0.5 -n 2"
    same '-zod 2 is another run than without' 0 "$(train calm $quiet -x 9 -pn 2 -z 1 -zod 0 | grep -c "^$calm$")"
    rm -rf "$work/calm"
    looks "-dt bf16" "-v 1 -m 1 -g 0 -z 3 -zos file -zop file -n 1" "$quiet -z 0 -n 3 -pe 1 -pm 1"
    looks "-dt bf16 -w 0" "$quiet -z 2 -zos file -n 1" "-v 2 -m 1 -g 3 -s 1 -z 3 -n 2"
    looks "-dt bf16 -w split -os bf16" "-v 2 -m 1 -g 3 -s 1 -z 3 -zos file -zop file -n 2"
    looks "-op muon -os 8bit" "-v 1 -m 1 -g 0 -z 2 -n 1" "$quiet -z 3 -zos file -zop file -n 2"
    looks "-dt fp16 -op lamb" "-v 1 -m 1 -g 0 -z 3 -n 1"
    looks "-pt 1" "-v 1 -m 1 -g 0 -z 3 -zos file -n 1"
    looks "-tp 2" "-v 1 -m 1 -g 0 -zos file -n 1"
    looks "-pp 2" "-v 1 -m 1 -g 0 -n 1"
    looks "-en 4 -eg 2" "-v 1 -m 1 -g 0 -n 1"
}

# Stops: each goes on from a pending update, the last step's too. What is validated at the end are the new weights.
test_stops() {
    for kind in "-z 0" "-z 2 -dt bf16 -w 1 -zos file" "-z 3 -dt bf16 -w 0 -zos file -zop file" "-z 3 -dt bf16 -w split -zos file -zop file"; do
        calm=$(train calm $kind -v 12 -m 1 -g 0 -x 12 -pn 2)
        validated=$(loss)
        half=$(train half $kind $quiet -x 5 -pn 2)
        rm -rf "$work/calm" "$work/half"
        same "$kind, five steps" "$half" "$(train stops $kind $quiet -x 5 -n 100 -pn 2)"
        same "$kind, five steps, nothing left to do" "$half" "$(train stops $kind $quiet -x 5 -n 100 -y 1 -pn 2)"
        same "$kind, on to eight" 1 "$(train stops $kind $quiet -x 8 -n 100 -y 1 -pn 2 | grep -c .)"
        same "$kind, five, eight and twelve" "$calm" "$(train stops $kind -v 12 -m 1 -g 0 -x 12 -n 100 -y 1 -pn 2)"
        same "$kind, validated at the end" "$validated" "$(loss)"
        rm -rf "$work/stops"
    done
}

# A run that began without going on with it, and the way back: the delay begins with the next step, or ends.
test_begins() {
    train begins $quiet -zod 0 -x 4 -n 4 -pn 2 >/dev/null
    cp -r "$work/begins" "$work/begins2"
    same 'the delay begins with the step that -zod says' "$(train whole $quiet -zod 6 -x 9 -pn 2)" \
        "$(train begins $quiet -zod 6 -x 9 -y 1 -pn 2)"
    same 'from an earlier step on it begins at once' \
        "$(train begins2 $quiet -zod 2 -x 9 -n 100 -y 1 -pn 2 -z 2 -zos file)" "$(rm -r "$work/begins/step_00000009" 2>/dev/null
        train begins $quiet -zod 2 -x 9 -y 1 -pn 2 -z 1)"
    applied=$(train ends $quiet -x 5 -n 5 -pn 2)
    same 'without a delay the pending update is applied' "$applied" "$(train ends $quiet -zod 0 -x 5 -y 1 -pn 2)"
}

# Other ranks, stages and tiers go on alike from one pending update, which was saved anywhere.
test_anywhere() {
    for saved in "-z 0 -pn 1" "-z 2 -pn 4 -zs 2" "-z 3 -zos file -zog file -zop file -pn 2"; do
        rm -rf "$work/any"
        half=$(train any $quiet $saved -x 5 -n 5)
        for ranks in 1 3; do
            expected=
            same "saved with $saved, at $ranks ranks" "$half" "$(train any $quiet -pn $ranks -z 3 -zos file -x 5 -y 1)"
            for how in "-z 0" "-z 2 -zos file" "-z 3 -zos file -zog file -zop file"; do
                found=$(train any $quiet -pn $ranks $how -x 8 -y 1)
                expected=${expected:-$found}
                same "saved with $saved, on $ranks ranks $how" "$expected" "$found"
            done
        done
    done
}

# begin FOLDER ARGUMENT...: in the background, until it has taken its first steps; $job
begin() {
    folder=$work/$1
    shift
    rm -f "$work/out"
    "$trainer" $small $quiet -o "$folder" "$@" >"$work/out" 2>&1 </dev/null &
    job=$!
    for _ in $(seq 600); do
        grep -q '^step  *3' "$work/out" 2>/dev/null && return
        sleep 0.05
    done
}

# SIGTERM, and -y 1; and a rank that dies again and again, while the others go on from copies.
test_signals() {
    for kind in "-z 1 -pn 2" "-z 3 -dt bf16 -zos file -zop file -pn 2" "-z 2 -na 1 -pn 2"; do
        begin stopped $kind -x 100000000 -n 1000000
        kill -TERM $job
        wait $job
        step=$(sed -n 's/^stopped by a signal after step \([0-9]*\): -y 1 resumes$/\1/p' "$work/out")
        last=$((${step:-0} + 3))
        same "$kind: stopped after step ${step:-none}, and on" "$(train whole $kind $quiet -x $last)" \
            "$(train stopped $kind $quiet -x $last -y 1)"
        rm -rf "$work/stopped" "$work/whole"
    done
    # 12 windows a step: one rank that is left takes them all
    begin dies -z 1 -pn 2 -pe 1 -pm 1 -n 1000000 -x 400
    for at in 20 200; do
        for _ in $(seq 600); do
            grep -q "^step  *$at/\|^step  *$at " "$work/out" && break
            sleep 0.05
        done
    done
    victim=$(cat /proc/$job/task/*/children | cut -d ' ' -f 2)
    kill -9 "$victim"
    wait $job
    died=$(sed -n 's/^resuming from step \([0-9]*\) in memory.*/\1/p' "$work/out" | tail -n 1)
    found=$(sed -n 's/^weights //p' "$work/out")
    train calm $quiet -z 1 -pn 2 -x "${died:-0}" -n 1000000 >/dev/null
    same "a rank dies, and on from step ${died:-none}" "$(train calm $quiet -z 1 -pn 1 -x 400 -y 1)" "$found"
}

test_looks
test_stops
test_begins
test_anywhere
test_signals
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
