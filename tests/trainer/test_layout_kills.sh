#!/bin/sh
# test_layout_kills.sh [BUILD_DIR] - a killed rank of any group ends all ranks within 10 s, and the line says
# which it was: its number, process and place. By the trainer's own launcher, and by mpirun where the trainer
# can. TRAINER names another program than ./train_gpt2_zero. The last line is `N passed, N failed[, N skipped]`.

# shellcheck disable=SC2086

build=${1:-build}
trainer=${TRAINER:-./train_gpt2_zero}
mkdir -p "$build" || exit 1
log=$build/test_layout_kills.$$
# shellcheck source=tests/shared/jobs.sh
. "$(dirname "$0")/../shared/jobs.sh"
at_end "$log"
# Prints those of the processes $1 that have not ended.
left_of() { ps -o pid=,stat= -p "$(echo $1 | tr ' ' ,)" | awk '$2 !~ /^Z/ { print $1 }'; }
passed=0
failed=0
skipped=0
check() { # CONDITION WORDS
    if [ "$1" = 1 ]; then passed=$((passed + 1)); else
        failed=$((failed + 1))
        echo "FAILED: $2: $(grep -v '^step' "$log" | tail -n 3)"
    fi
}
long="-e char:4x32x4 -t 32 -v 0 -s 0 -b 2 -d 1024 -nt 1 -x 1000000"

# The trainer's process that is rank $2 of those below process $1: ranks are started in their order.
rank_of() {
    below=$1
    while :; do
        below=$(ps -o pid= --ppid "$(echo $below | tr ' ' ,)" 2>/dev/null | sort -n)
        [ "$below" ] || return
        ranks=
        for process in $below; do
            [ -z "$(ps -o pid= --ppid "$process")" ] && ranks="$ranks $process"
        done
        [ "$(echo $ranks | wc -w)" -ge "$3" ] && break
    done
    echo $ranks | cut -d ' ' -f $(($2 + 1))
}
# killed RANKS RANK WORDS COMMAND...: kills a rank in the middle of training
killed() {
    ranks_all=$1 rank=$2 words=$3
    shift 3
    : >"$log" # the job may begin later than the loop below, which would find the step of the last job
    "$@" >"$log" 2>&1 </dev/null &
    job=$!
    waits=0
    while ! grep -q '^step *5/' "$log" && [ $waits -lt 300 ]; do sleep 0.1; waits=$((waits + 1)); done
    process=$(rank_of $job "$rank" "$ranks_all")
    begun=$(date +%s)
    all=$(tree $job)
    kill -9 ${process:-$all}
    wait $job
    code=$?
    took=$(($(date +%s) - begun))
    waits=0
    while [ "$(left_of "$all")" ] && [ $waits -lt 20 ]; do sleep 0.1; waits=$((waits + 1)); done
    left=$(left_of "$all")
    [ -z "$left" ] || kill -9 $left
    check "$([ "$process" ] && [ $code -ne 0 ] && [ $took -le 10 ] && echo 1)" "$*: rank $rank killed: code $code after $took s"
    check "$([ "$(grep -c -- "$words" "$log")" -ge 1 ] && echo 1)" "$*: expected '$words'"
    check "$([ -z "$left" ] && echo 1)" "$*: processes are left: $left"
}
line() { echo "train_gpt2_zero: rank $1 ($2; process [0-9]*) was killed by signal 9 (Killed); all ranks end"; }
killed 4 3 "$(line 3 'tp 1, pp 0, dp 1')" timeout -k 5 60 "$trainer" $long -pn 4 -tp 2
killed 4 1 "$(line 1 'tp 0, pp 0, dp 1')" timeout -k 5 60 "$trainer" $long -pn 4 -pp 2
killed 4 2 "$(line 2 'tp 0, pp 1, dp 0')" timeout -k 5 60 "$trainer" $long -pn 4 -pp 2 -z 3
killed 8 5 "$(line 5 'tp 1, pp 1, dp 0')" timeout -k 5 60 "$trainer" $long -pn 8 -pp 2 -tp 2 -z 1
killed 4 1 "$(line 1 'cp 1, dp 0')" timeout -k 5 60 "$trainer" $long -pn 4 -cp 2 -z 2
killed 4 2 "$(line 2 'cp 2, dp 0')" timeout -k 5 60 "$trainer" $long -pn 4 -cp 4 -ca ring
killed 4 3 "$(line 3 'cp 1, dp 0, pp 1')" timeout -k 5 60 "$trainer" $long -pn 4 -cp 2 -pp 2
killed 2 1 'rank 1 (process [0-9]*) was killed' timeout -k 5 60 "$trainer" $long -pn 2

# Under MPI the others say who is gone; mpirun's own line has the rank.
gone() { echo "train_gpt2_zero: rank $1 ($2; process [0-9]*) is gone; all ranks end"; }
if "$trainer" --help | grep -q 'by mpirun' && command -v mpirun >/dev/null 2>&1; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    killed 4 3 "$(gone 3 'tp 1, pp 0, dp 1')" timeout -k 5 60 mpirun --oversubscribe -n 4 "$trainer" $long -tp 2
    killed 4 3 "$(gone 3 'cp 1, dp 1')" timeout -k 5 60 mpirun --oversubscribe -n 4 "$trainer" $long -cp 2
    killed 4 3 "$(gone 3 'cp 1, dp 1')" timeout -k 5 60 mpirun --oversubscribe -n 4 "$trainer" $long -cp 2 -ca ring
    killed 4 2 "$(gone 2 'tp 0, pp 1, dp 0')" timeout -k 5 60 mpirun --oversubscribe -n 4 "$trainer" $long -pp 2
    killed 8 5 "$(gone 5 'tp 1, pp 1, dp 0')" timeout -k 5 60 mpirun --oversubscribe -n 8 "$trainer" $long -pp 2 -tp 2
else
    skipped=$((skipped + 1))
fi
[ $skipped -gt 0 ] && more=", $skipped skipped" || more=
echo "$passed passed, $failed failed$more"
[ "$failed" = 0 ]
