#!/bin/sh
# test_auto.sh BUILD - -z auto in the trainer: a choice within --memory, and its reasons; the printed command line
# has the same bits; a run that resumes, or whose ranks were restarted, keeps its choice, even if --memory
# has changed; zero_plan chooses the same from the same rates; what is refused, with the reason.
# Last line: N passed, N failed.
# Lists of arguments are split at blanks on purpose.
# shellcheck disable=SC2086
set -u
B=$1
cd "$(dirname "$0")/../.." || exit 1
train=$B/unmeasured/train_gpt2_zero plan=$B/zero_plan
scratch=$B/test_auto.$$
mkdir -p "$scratch" || exit 1
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0
check() { if [ "$1" = 1 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $2"; fi; }
has() { if grep -q -e "$1" "$scratch/$2"; then echo 1; fi; }
data="-i $B/data/tiny_char_train.bin -j $B/data/tiny_char_val.bin"
small="-e char:2x64x2 -t 32 -nt 1 -v -1 -g 0"
machine=$scratch/machine.txt
cat >"$machine" <<'EOF'
device=cpu
flops.f32=2e10
update=3e9
link=2e9
overlap=0
disk=5e8
EOF
weights() { sed -n 's/^weights //p' "$scratch/$1"; }
chosen() { sed -n 's/^repeat: .* \(-z [0-3] .*\)$/\1/p' "$scratch/$1"; }

# ---- rates from a file: a choice, its table, the same bits ----
run="$data $small -pn 2 -d 512 -x 4 --machine $machine"
"$train" $run -z auto >"$scratch/first" 2>&1
code=$?
check "$([ $code = 0 ] && [ -n "$(weights first)" ] && echo 1)" "a run with -z auto: $(tail -n 1 "$scratch/first")"
for line in '^-z auto: 512 tokens per step on 2 ranks; ' '^choice  ' '^runner-up ' '^ *stage 0, device: ' '^repeat: ./train_gpt2_zero -i '; do
    check "$(has "$line" first)" "the table has '$line'"
done
repeat=$(sed -n 's/^repeat: [^ ]* //p' "$scratch/first")
"$train" $repeat >"$scratch/again" 2>&1
check "$([ -n "$(weights again)" ] && [ "$(weights again)" = "$(weights first)" ] && echo 1)" "the repeated line has other weights: $repeat"
check "$([ -z "$(has '^-z auto' again)" ] && [ -n "$(has '^-ma changes nothing here: it is for -z auto' again)" ] && echo 1)" "the repeated line does not choose"

# ---- zero_plan chooses the same ----
"$plan" $small -pn 2 -d 512 --on cpu --machine "$machine" -z auto >"$scratch/planned" 2>&1
check "$([ -n "$(chosen first)" ] && [ "$(chosen planned)" = "$(chosen first)" ] && echo 1)" "zero_plan chose '$(chosen planned)', the trainer '$(chosen first)'"

# ---- little memory: files, within the limit; too little is an error with the table ----
big="-e char:4x256x4 -t 64 -nt 1 -v -1 -g 0 $data -pn 2 -d 2048 -x 2 --machine $machine -zfd $scratch"
mib() { sed -n 's/^memory of the process.*: \([0-9.]*\) MiB, planned \([0-9.]*\).*/\1 \2/p' "$scratch/$1"; }
"$train" $big -z auto >"$scratch/plenty" 2>&1
limit=$(mib plenty | awk '{ printf "%d", $2 * 0.8 }')
"$train" $big -z auto --memory "${limit}M" >"$scratch/tight" 2>&1
check "$(mib tight | awk -v limit="$limit" 'NF == 2 && $1 <= limit && $2 <= limit { print 1 }')" "--memory ${limit}M: has and plan: $(mib tight), with plenty: $(mib plenty)"
check "$([ "$(chosen tight)" != "$(chosen plenty)" ] && echo 1)" "less memory changes the choice: $(chosen tight)"
"$train" $big -z auto --memory 24M >"$scratch/none" 2>&1
code=$?
check "$([ $code = 1 ] && [ -n "$(has 'no plan can be chosen' none)" ] && [ -n "$(has 'does not fit: at least' none)" ] && echo 1)" "24 MiB: $(tail -n 1 "$scratch/none")"
"$train" $big -z 0 --memory 24M >"$scratch/above" 2>&1
code=$?
check "$([ $code = 1 ] && [ -n "$(has '--memory 24M: the plan needs' above)" ] && echo 1)" "-z 0 above --memory: $(tail -n 1 "$scratch/above")"

# ---- the choice is stored, and resumed ----
log="-o $scratch/log -n 2"
"$train" $run -z auto $log >"$scratch/saved" 2>&1
flags=$(chosen saved)
check "$([ -n "$flags" ] && grep -q "^s:0 auto:$(echo "$flags" | tr ' ' ,) t:" "$scratch/log/main.log" && echo 1)" "main.log has no '$flags'"
check "$(grep -q "auto $flags" "$scratch"/log/step_00000004/manifest.json && echo 1)" "the checkpoint has no '$flags'"
"$train" $run -z auto $log -x 6 -y 1 --memory 300M -r 3 >"$scratch/other" 2>&1
code=$?
check "$([ $code = 1 ] && [ -n "$(has '-r 3: the choice of -z auto has -r ' other)" ] && echo 1)" "another -r: $(tail -n 1 "$scratch/other")"
"$train" $run -z auto $log -x 6 -y 1 --memory 300M >"$scratch/resumed" 2>&1
check "$(has "^-z auto: this run goes on with its choice: $flags\$" resumed)" "the choice of the checkpoint: $(head -n 3 "$scratch/resumed")"
check "$([ "$(grep -c '^s:[0-9]* auto:' "$scratch/log/main.log")" = 1 ] && echo 1)" "main.log names the choice once"
"$train" $data $small -pn 2 -d 512 $flags -x 6 >"$scratch/whole" 2>&1
check "$([ -n "$(weights whole)" ] && [ "$(weights whole)" = "$(weights resumed)" ] && echo 1)" "resumed weights: $(weights resumed), of one run: $(weights whole)"

# ---- ranks that die: the others go on with the choice ----
"$train" $run -z auto -x 3000 -pe 1 -o "$scratch/elastic" -n 100 >"$scratch/killed" 2>&1 &
job=$!
for _ in $(seq 100); do
    [ -n "$(has '^checkpoint of step' killed)" ] && break
    sleep 0.2
done
rank=$(pgrep -P $job | tail -n 1)
[ -n "$rank" ] && kill -9 "$rank"
for _ in $(seq 100); do
    [ -n "$(has 'this run goes on with its choice' killed)" ] && break
    sleep 0.2
done
kill -TERM $job 2>/dev/null
wait $job
check "$(has "^-z auto: this run goes on with its choice: $(chosen killed)\$" killed)" "after a death: $(tail -n 3 "$scratch/killed")"

# ---- without a file, the ranks measure and write one ----
"$train" $data $small -pn 2 -d 512 -x 1 -z auto -o "$scratch/measured" >"$scratch/found" 2>&1
code=$?
check "$([ $code = 0 ] && [ -n "$(has '^measured: products ' found)" ] && grep -q '^flops.f32=' "$scratch/measured/machine.txt" && echo 1)" "measured: $(tail -n 1 "$scratch/found")"
rm -f "$scratch/new.txt"
"$train" $data $small -pn 1 -d 512 -x 1 -z auto --machine "$scratch/new.txt" >"$scratch/found" 2>&1
code=$?
check "$([ $code = 0 ] && grep -q '^update=' "$scratch/new.txt" && echo 1)" "--machine of a new file: $(tail -n 1 "$scratch/found")"

# ---- what is refused ----
refused() { # WORDS ARGUMENTS
    words=$1
    shift
    "$train" $data $small "$@" >"$scratch/refused" 2>&1
    code=$?
    check "$([ $code != 0 ] && [ -n "$(has "$words" refused)" ] && [ "$(wc -l <"$scratch/refused")" = 1 ] && echo 1)" "$*: code $code, $(cat "$scratch/refused")"
}
refused '-z: auto chooses one stage, and a list' -z 0,auto
refused "--memory: expected a size, for example 80G or 640M, found '4X'" -z auto --memory 4X
refused '-z auto: -layouts compares' -z auto -pn 2 -layouts "dp2 tp2"
refused '--machine: .*card.txt has device=gpu, but the ranks compute on CPUs' -z auto --machine adapters/plan/card.txt
echo '{"zero_optimization": {"stage": 2}, "train_batch_size": 12}' >"$scratch/two.json"
refused '-z auto: .*gives zero_optimization.stage 2' -z auto -ds "$scratch/two.json"
echo '{"train_micro_batch_size_per_gpu": "auto", "train_batch_size": 12, "optimizer": {"type": "AdamW"}}' >"$scratch/auto.json"
"$train" $data $small -x 1 -z auto -ds "$scratch/auto.json" --machine "$machine" >"$scratch/json" 2>&1
code=$?
check "$([ $code = 0 ] && [ -n "$(has '^choice ' json)" ] && [ -z "$(sed -n 's/^repeat: .* -z [0-3].* -b .*/has -b/p' "$scratch/json")" ] && echo 1)" \
    "a file gives the batch, and -z auto the stage: $(tail -n 1 "$scratch/json")"

echo '{"train_micro_batch_size_per_gpu": "auto", "train_batch_size": 12, "zero_optimization": {"stage": "auto"}}' >"$scratch/stage.json"
for stage in 0 2 auto; do
    "$train" $data $small -x 1 -pn 2 -z $stage -ds "$scratch/stage.json" --machine "$machine" >"$scratch/json" 2>&1
    code=$?
    check "$([ $code = 0 ] && if [ $stage = auto ]; then has '^choice ' json; else has "ZeRO stage  *| $stage " json; fi)" \
        "stage \"auto\" in a file is that of -z $stage: $(tail -n 1 "$scratch/json")"
done

echo "$passed passed, $failed failed"
[ $failed = 0 ]
