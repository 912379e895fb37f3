#!/bin/sh
# converge.sh BUILD MINUTES|sample - does training converge with fewer bits on the wire? Runs on tiny
# Shakespeare are paired by seed (weights and windows are the same): the validation loss at the end with
# each of METHODS minus that without, mean and spread over seeds.
#   MINUTES  the run without flags, 5 seeds, then 6 layers of 384, 500 steps, 2 seeds (an hour and a half on
#            2 idle cores): BUILD/converge.csv. A seed is begun only if there is time for one as long as the
#            longest so far; what there was no time for is told, and not counted
#   sample   a tiny model, one seed: seconds
# METHODS="NAME:FLAGS:LIMIT,LIMIT OF 6x384; ..." changes what is compared, RANKS="-pn 4 -ns 2" on what. What
# this build refuses is told, and not counted. Last line: N passed, N failed[, N skipped].
# Lists of flags are split at blanks on purpose.
# shellcheck disable=SC2046,SC2086
set -u
B=$1 minutes=${2:-90}
TRAINER=${TRAINER:-$B/train_gpt2_zero}
RANKS=${RANKS:--pn 4 -ns 2 -nt 1 -z 3}
METHODS=${METHODS:-qw8-qg4:-qw 8 -qg 4:0.01,0.02;qw8-qg4-qf:-qw 8 -qg 4 -qf 0.8:0.005,0.02}
passed=0 failed=0 skipped=0 longest=0
begun=$(date +%s)
check() { if [ "$1" = 1 ]; then passed=$((passed + 1)); echo "$2"; else failed=$((failed + 1)); echo "FAILED: $2"; fi; }
skip() { skipped=$((skipped + 1)); echo "skipped: $*"; }
if [ ! -x "$TRAINER" ]; then echo "FAILED: $TRAINER is not there"; echo "0 passed, 1 failed"; exit 1; fi
csv=$B/converge.csv
if [ "$minutes" = sample ]; then csv=$B/converge-sample.csv; fi
echo "model,method,seed,val_loss,seconds" >"$csv"

# What a run ends with; nothing: it failed. FLAGS...
loss() {
    "$TRAINER" -i "$B/data/tiny_char_train.bin" -j "$B/data/tiny_char_val.bin" -sh 2 $RANKS -g 0 "$@" 2>"$B/converge.err" |
        sed -n 's/^.*val loss \([0-9.]*\).*/\1/p' | tail -n 1
}
# one MODEL NAME SEED FLAGS...: into the CSV
one() {
    model=$1 name=$2 seed=$3
    shift 3
    from=$(date +%s)
    found=$(loss -sd "$seed" "$@")
    echo "$model,$name,$seed,${found:-nan},$(($(date +%s) - from))" >>"$csv"
    [ -n "$found" ] || { check 0 "$model, $name, seed $seed: no validation loss: $(tail -n 1 "$B/converge.err")"; return 1; }
}
methods() { echo "$METHODS" | tr ';' '\n'; }
flags_of() { echo "$1" | cut -d : -f 2; }
# Methods that this build knows, as METHODS has them.
methods >"$B/converge.all"
: >"$B/converge.methods"
while read -r method; do
    if loss -x 0 -v 0 -m 1 -e char:1x32x1 -t 16 $(flags_of "$method") | grep -q .; then echo "$method" >>"$B/converge.methods"
    else skip "$(flags_of "$method"): $(head -n 1 "$B/converge.err")"; fi
done <"$B/converge.all"

# pairs MODEL COLUMN SEEDS FLAGS...: COLUMN of LIMIT
pairs() {
    model=$1 column=$2 seeds=$3
    shift 3
    [ -s "$B/converge.methods" ] || return
    for seed in $seeds; do
        now=$(date +%s)
        if [ "$minutes" != sample ] && [ $((now - begun + longest)) -ge $((minutes * 60)) ]; then
            skip "$model, seed $seed: no time for it in $minutes minutes"
            continue
        fi
        one "$model" exact "$seed" "$@" || continue
        while read -r method <&3; do one "$model" "${method%%:*}" "$seed" "$@" $(flags_of "$method"); done 3<"$B/converge.methods"
        took=$(($(date +%s) - now))
        [ $took -le $longest ] || longest=$took
    done
    while read -r method <&3; do
        name=${method%%:*} limit=$(echo "${method##*:}" | cut -d , -f "$column")
        [ "$minutes" != sample ] || limit=0.05 # of 60 steps
        said=$(awk -F , -v model="$model" -v name="$name" -v limit="$limit" '
            $1 == model && $2 == "exact" { exact[$3] = $4 }
            $1 == model && $2 == name && ($3 in exact) { d = $4 - exact[$3]; n++; sum += d; squares += d * d
                if (n == 1 || d < least) least = d
                if (n == 1 || d > most) most = d }
            END { if (!n) { print "0 no pair"; exit }
                mean = sum / n; variance = n > 1 ? (squares - n * mean * mean) / (n - 1) : 0
                spread = variance > 0 ? sqrt(variance) : 0
                within = mean <= limit && mean >= -limit
                printf "%d %d pairs: %+.4f, spread %.4f, from %+.4f to %+.4f, expected within %s\n",
                    within, n, mean, spread, least, most, limit }' "$csv")
        [ "$said" = "0 no pair" ] || check "${said%% *}" "$model, $name minus exact: ${said#* }"
    done 3<"$B/converge.methods"
}
if [ "$minutes" = sample ]; then
    pairs char:2x32x2 1 "1" -e char:2x32x2 -t 16 -x 60 -u 10 -v 0 -m 4
else
    pairs char:4x128x4 1 "1 2 3 4 5" -v 0
    pairs char:6x384x6 2 "1 2" -e char:6x384x6 -t 256 -d 4096 -x 500 -v 0 -m 20
fi
echo "$csv"
[ $skipped -gt 0 ] && more=", $skipped skipped" || more=
echo "$passed passed, $failed failed$more"
[ $failed -eq 0 ]
