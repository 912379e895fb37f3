#!/bin/sh
# test_new_ranks.sh BUILD [CHANGES [SEED]] - -pnf: ranks that join and leave a run between two steps. With -vr the losses and
# the weights are those of one rank: by the file, by SIGTERM to a rank (rank 0, too), over checkpoints, without a restart of
# the ranks that stay. Without -vr they are those of a run that loaded a checkpoint. A process that dies while it starts, wrong
# files, and what cannot be combined. CHANGES: then so many random changes by SEED, with ranks that are killed (-pe 1).
# Last line: N passed, N failed. Lists of arguments are split at blanks on purpose.
# shellcheck disable=SC2086
set -u
B=$1 changes=${2:-0} seed=${3:-1}
trainer=${TRAINER:-$B/train_gpt2_zero}
work=$(mktemp -d "${TMPDIR:-/tmp}/test_new_ranks.XXXXXX") || exit 1
# shellcheck source=tests/shared/jobs.sh
. "$(dirname "$0")/../shared/jobs.sh"
at_end "$work"
passed=0 failed=0
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT ZERO_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT
small="-e char:2x32x2 -t 16 -u 3 -l 0.01 -v -1 -g 0 -lp 1 -nt 1"

# same NAME EXPECTED FOUND
same() {
    if [ -n "$2" ] && [ "$2" = "$3" ]; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED: $1: expected '$2', found '$3': $(cat "$work/err")"; fi
}
# begin ARGUMENT...: a job with the file of ranks, in the background; $job
begin() {
    rm -rf "$work/run" "$work/ranks"
    : >"$work/err"
    "$trainer" $small -o "$work/run" -pnf "$work/ranks" "$@" >"$work/out" 2>"$work/err" </dev/null &
    job=$!
}
# count PATTERN: its lines in main.log
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
# to NUMBER: asks for it, and waits for the change
to() {
    before=$(count ranks:)
    echo "$1" >"$work/ranks"
    await ranks: $((before + 1))
}
processes() { cat /proc/$job/task/*/children 2>/dev/null; }
# leave N: SIGTERM to the N-th process, and waits for the change
leave() {
    before=$(count ranks:)
    kill -TERM "$(processes | cut -d ' ' -f "$1")"
    await ranks: $((before + 1))
}
# done_with CODE NAME: the job has ended
done_with() {
    wait $job
    same "$2: exit code" "$1" $?
}
losses() { sed -n 's/^step  *.*| \(loss .*\) | lr.*/\1/p; s/^weights //p' "$1" | tr '\n' ' '; }
# numbers: those that the run has had
numbers() { sed -n 's/.* ranks:\([0-9]*\) .*/\1/p' "$work/run/main.log" | tr '\n' ' '; }
# whole NAME STEPS: main.log has each step once, in order
whole() { same "$1: lines of main.log" "$(seq -s ' ' 0 $(($2 - 1)))" "$(sed -n 's/^s:\([0-9]*\) trl.*/\1/p' "$work/run/main.log" | tr '\n' ' ' | sed 's/ $//')"; }

# one RUN STEPS: what one rank prints, in $calm
one() {
    "$trainer" $small $1 -pn 1 -x "$2" >"$work/calm" 2>&1
    calm=$(losses "$work/calm")
}

test_file() {
    steps=400 run="-vr 8 -b 1 -z 3"
    one "$run" $steps
    begin $run -x $steps -pn 2
    await '^s:2 '
    stays=$(processes | cut -d ' ' -f 1)
    to 4; to 1; to 8
    echo 3 >"$work/ranks"
    await ranks:2
    same "the first process stays" "$stays" "$(processes | cut -d ' ' -f 1)"
    done_with 0 "by the file"
    same "by the file: the numbers" "4 1 8 2 " "$(numbers)"
    same "by the file: a number that is not possible" 1 "$(grep -c '^ranks: 3 asked for, 2 can train: -vr 8: ' "$work/out")"
    same "by the file: losses and weights" "$calm" "$(losses "$work/out")"
    whole "by the file" $steps
}

test_signal() {
    steps=400 run="-vr 8 -b 1 -z 2 -dt bf16"
    one "$run" $steps
    begin $run -x $steps -pn 4
    await '^s:2 '
    leave 1 # rank 0: of the 3 others, 2 train
    leave 1 # rank 0 again: 2 are left, so one joins
    to 4
    done_with 0 "by signals"
    same "by signals: the numbers" "2 2 4 " "$(numbers)"
    same "by signals: losses and weights" "$calm" "$(losses "$work/out")"
    whole "by signals" $steps
}

# Checkpoints before, between and after changes, in the background; a run that resumes from one of them.
test_saves() {
    steps=300 run="-vr 4 -b 2 -z 1 -os 8bit"
    one "$run" $steps
    begin $run -x $steps -pn 1 -n 40 -nk 0 -na 1
    await '^s:2 '
    to 4; to 2
    done_with 0 "saves"
    same "saves: losses and weights" "$calm" "$(losses "$work/out")"
    find "$work/run" -name '*00300*' -exec rm -rf {} +
    "$trainer" $small $run -x $steps -pn 2 -n 1000 -y 1 -o "$work/run" >"$work/out" 2>"$work/err"
    same "saves: resumed" 1 "$(grep -c 'resuming from step 280' "$work/out")"
    same "saves: weights of the resumed run" "$(tail -n 1 "$work/calm")" "$(tail -n 1 "$work/out")"
}

# A signal to the job after a change: it saves and stops, and another run resumes.
test_stop() {
    steps=300 run="-vr 4 -b 1 -z 3"
    one "$run" $steps
    begin $run -x $steps -pn 1 -n 1000
    await '^s:2 '
    to 2
    kill -TERM $job
    done_with 0 "a stop"
    same "a stop: the line" 1 "$(grep -c '^stopped by a signal after step' "$work/out")"
    "$trainer" $small $run -x $steps -pn 4 -n 1000 -y 1 -o "$work/run" >"$work/out" 2>>"$work/err"
    same "a stop: weights of the resumed run" "$(tail -n 1 "$work/calm")" "$(tail -n 1 "$work/out")"
}

# Without -vr: the bits of a run that loaded a checkpoint at the same step.
test_plain() {
    steps=200 run="-d 192 -b 4 -z 2 -k constant"
    begin $run -x $steps -pn 3
    await '^s:2 '
    to 1
    done_with 0 "without -vr"
    at=$(sed -n 's/^s:\([0-9]*\) ranks.*/\1/p' "$work/run/main.log")
    tail -n 1 "$work/out" >"$work/changed"
    rm -rf "$work/run"
    "$trainer" $small $run -x "$at" -n "$at" -pn 3 -o "$work/run" >/dev/null 2>"$work/err"
    "$trainer" $small $run -x $steps -n 1000 -pn 1 -y 1 -o "$work/run" >"$work/out" 2>>"$work/err"
    same "without -vr: weights" "$(cat "$work/changed")" "$(tail -n 1 "$work/out")"
}

# -tr: one timeline of all ranks that there are, with each change. Arrows begin and end once.
test_trace() {
    steps=300 run="-vr 8 -b 1 -z 3"
    one "$run" $steps
    begin $run -x $steps -pn 2 -tr "$work/timeline"
    await '^s:2 '
    to 8; to 1; to 4
    done_with 0 "a timeline"
    same "a timeline: losses and weights" "$calm" "$(losses "$work/out")"
    same "a timeline: changes of each rank, arrows that are not one" "0:3 1:2 2:2 3:2 4:1 5:1 6:1 7:1 wrong:0" "$(python3 - "$work/timeline" <<'END'
import collections, json, sys
events = json.load(open(sys.argv[1]))
changes = collections.Counter(e["pid"] for e in events if e["name"] == "new ranks")
arrows = collections.defaultdict(str)
for e in events:
    if e["ph"] in "sf":
        arrows[e["id"]] += e["ph"]
wrong = sum(a != "sf" for a in arrows.values()) + (not arrows)
print(*[f"{r}:{changes[r]}" for r in sorted(changes)], f"wrong:{wrong}")
END
)"
}

test_refusals() {
    run="-vr 4 -b 1"
    begin $run -x 300 -pn 2
    await '^s:2 '
    for wrong in many 0; do
        echo $wrong >"$work/ranks"
        for _ in $(seq 3000); do
            grep -q "found '$wrong" "$work/err" && break
            kill -0 $job 2>/dev/null || break
            sleep 0.02
        done
    done
    to 1
    done_with 0 "a wrong file"
    same "a wrong file: warnings" 2 "$(grep -c 'ranks: expected a number of ranks from 1 to 64, found .*; the run goes on with 2' "$work/err")"
    mkfifo "$work/pipe"
    "$trainer" $small -pn 2 -pnf "$work/pipe" -x 2 >"$work/out" 2>"$work/err" </dev/null
    same "refused: a pipe" "1 1" "$? $(grep -c -e '-pnf: .*: it is not a regular file; name a file' "$work/err")"
    for flags in "-tp 2 -pn 2" "-pt 1 -pn 2" "-z 1,2" "-pm 1 -pe 1 -n 5 -pn 2" "-tb 5" "-b 4 -pn 2"; do
        "$trainer" $small -o "$work/run" -pnf "$work/ranks" -x 2 $flags >"$work/out" 2>"$work/err" </dev/null
        same "refused: $flags" "1 1" "$? $(grep -c -e '-pnf: ' "$work/err")"
    done
}

# A process that joins is killed as early as possible: the run goes on without it, or ends if it depends on it already.
test_killed() {
    steps=300 run="-vr 4 -b 1 -z 3"
    one "$run" $steps
    begin $run -x $steps -pn 1
    await '^s:2 '
    echo 2 >"$work/ranks"
    for _ in $(seq 10000); do
        new=$(processes | cut -s -d ' ' -f 2)
        [ "$new" ] && break
    done
    kill -9 "$new"
    if wait $job; then
        same "a killed process that joins: the line" 1 "$(grep -c 'a new rank was killed by signal 9 (Killed) before it joined; 1 rank go' "$work/err")"
        same "a killed process that joins: losses and weights" "$calm" "$(losses "$work/out")"
    else
        same "a killed rank: the line" 1 "$(grep -c 'rank 1 (process .* was killed by signal 9' "$work/err")"
    fi
}

# Random numbers, signals and kills, by the seed; the ranks that are left resume from checkpoints (-pe 1).
# random BELOW: $drawn
random() {
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    drawn=$((seed / 65536 % $1))
}
test_random() {
    begun=$seed steps=$((changes * 60))
    case $((seed % 6)) in
    0) run="-z 3 -lo 4" ;;
    1) run="-z 2" ;;
    2) run="-z 3 -zos file -zop file -zfd $work" ;;
    3) run="-z 1 -dt fp16 -li 1e9 -zod 2" ;;
    4) run="-z 2 -op muon -dt bf16 -w split" ;;
    5) run="-z 3 -op lion -os bf16 -sl 2 -sg 2" ;;
    esac
    run="-vr 8 -b 1 $run"
    one "$run" $steps
    begin $run -x $steps -pn 2 -pe 1 -n 20
    done=0
    while kill -0 $job 2>/dev/null && [ $done -lt "$changes" ]; do
        await "^s:$((done * 40)) "
        all=$(processes)
        random "$(echo "$all 1" | wc -w)"
        victim=$(echo $all | cut -d ' ' -f $((1 + drawn)))
        random 8
        number=$((1 + drawn))
        random 6
        case $drawn in
        0 | 1 | 2 | 5) echo $number >"$work/ranks" ;;
        3) # if all ranks leave, the job stops
            [ "$victim" ] && { [ "$victim" != "${all%% *}" ] || [ "$(echo "$all" | wc -w)" -gt 2 ]; } && kill -TERM $victim 2>/dev/null
            ;;
        4) [ "$victim" ] && [ "$victim" != "${all%% *}" ] && kill -9 $victim 2>/dev/null ;; # one rank is left
        esac
        done=$((done + 1))
    done
    done_with 0 "random changes"
    same "random changes, seed $begun, $run: weights" "$(tail -n 1 "$work/calm")" "$(tail -n 1 "$work/out")"
}

if [ "$changes" = 0 ]; then
    test_file
    test_signal
    test_saves
    test_stop
    test_plain
    test_trace
    test_refusals
    test_killed
else
    test_random
fi
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
