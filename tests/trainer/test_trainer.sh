#!/bin/sh
# test_trainer.sh - the trainer as its users meet it: results that do not depend on ranks and
# stages, wrong input, interruption.
#
#     tests/trainer/test_trainer.sh [BUILD_DIR]
#
# Run it where the trainer's default data is found (build/data). BUILD_DIR, build without it, gets
# a folder for scratch files. TRAINER names another program than ./train_gpt2_zero, MPIRUN another
# mpirun. SEED=N chooses a sample; without it everything runs. The last line is `N passed, N failed`.

# Lists of arguments and of processes are split at blanks on purpose.
# shellcheck disable=SC2086

build=${1:-build}
trainer=${TRAINER:-./train_gpt2_zero}
mpirun=${MPIRUN:-mpirun}
mkdir -p "$build" || exit 1
scratch=$build/test_trainer.$$
mkdir "$scratch" || exit 1
# shellcheck source=tests/shared/jobs.sh
. "$(dirname "$0")/../shared/jobs.sh"
# shellcheck source=tests/shared/sampled.sh
. "$(dirname "$0")/../shared/sampled.sh"
at_end "$scratch"
case $trainer in /*) ;; *) trainer=$PWD/$trainer ;; esac
passed=0
failed=0
skipped=0

# Small and quick: 2 layers of 32, no validation, no sample.
small="-e char:2x32x2 -t 16 -v -1 -g 0 -st all"

pass() { passed=$((passed + 1)); }

fail() {
    failed=$((failed + 1))
    echo "FAILED: $*"
}

skip() {
    skipped=$((skipped + 1))
    echo "skipped: $*"
}

# same NAME EXPECTED FOUND
same() {
    if [ -n "$2" ] && [ "$2" = "$3" ]; then pass; else fail "$1: expected '$2', found '$3'"; fi
}

# ---- files ---------------------------------------------------------------------------------------

# A number as four bytes, lowest first.
int32() {
    # The format is the octal escapes themselves.
    # shellcheck disable=SC2059
    printf "$(printf '\\%03o\\%03o\\%03o\\%03o' $(($1 & 255)) $(($1 >> 8 & 255)) \
        $(($1 >> 16 & 255)) $(($1 >> 24 & 255)))"
}

zeros() { head -c "$1" /dev/zero; }

# header FILE NUMBER... : 256 int32, those that are not given 0
header() {
    file=$1
    shift
    given=$#
    for number; do int32 "$number"; done >"$file"
    zeros $((1024 - 4 * given)) >>"$file"
}

# token_file FILE MAGIC VERSION COUNT [PRESENT] : COUNT in the header, PRESENT tokens, all 0
token_file() {
    header "$1" "$2" "$3" "$4"
    zeros $((2 * ${5:-$4})) >>"$1"
}

# What several tests read: 1600 tokens, and a configuration of DeepSpeed.
make_files() {
    header "$scratch/tokens" 20240520 1 1600
    i=0
    while [ $i -lt 1600 ]; do
        printf '%b' "\\0$(printf %o $((i * i % 61)))\\0"
        i=$((i + 1))
    done >>"$scratch/tokens"
    cat >"$scratch/ds.json" <<'END'
{
    "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2, // over 2 ranks: 12
    "bf16": {"enabled": true}, "zero_optimization": {"stage": 2, "overlap_comm": false},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.8, 0.95], "eps": 1e-7,
                                              "weight_decay": 0.05}},
    "gradient_clipping": 0.5, /* a comment */ "steps_per_print": 2
}
END
}

# ---- wrong input ---------------------------------------------------------------------------------

# refused NAME 2 PATTERN ARGUMENT... : ends within 10 s with CODE and one line that has PATTERN
refused() {
    name=$1 code=$2 pattern=$3
    shift 3
    timeout -k 1 10 "$trainer" "$@" >"$scratch/out" 2>"$scratch/err"
    found=$?
    lines=$(wc -l <"$scratch/err")
    if [ "$found" -ne "$code" ]; then
        fail "$name: expected exit code $code, found $found: $(head -n 1 "$scratch/err")"
    elif [ "$lines" -ne 1 ]; then
        fail "$name: expected one line, found $lines: $(head -n 2 "$scratch/err")"
    elif ! grep -q -e "$pattern" "$scratch/err"; then
        fail "$name: expected '$pattern', found: $(cat "$scratch/err")"
    else
        pass
    fi
}

test_usage() {
    refused 'unknown flag' 2 "unknown flag '-Q'" -Q 1
    refused 'flag without dash' 2 "unknown flag 'z'" z 1
    refused 'missing value' 2 '-pn: expected a value' -z 1 -pn
    refused 'stage 4' 2 "-z: expected a stage.*'4'" -z 4
    refused 'stage list' 2 "-z: expected a stage.*'0,1,'" -z 0,1,
    refused 'no number' 2 "-t: expected a whole number, found 'x'" -t x
    refused 'half a number' 2 "-l: expected a number, found '1e-3q'" -l 1e-3q
    refused 'not whole' 2 "-x: expected a whole number, found '1.5'" -x 1.5
    refused 'not finite' 2 '-l: expected a number' -l nan
    refused 'out of range' 2 '65 ranks on this machine, at most 64' -pn 65
    refused 'schedule' 2 "-k: expected one of: cosine linear.*'step'" -k step
    refused 'type' 2 "-dt: expected one of: f32 bf16 fp16; found 'fp8'" -dt fp8
    refused 'optimizer' 2 "-op: expected one of: adamw.*'adadelta'" -op adadelta
    refused 'method' 2 "-pi: expected one of: mpi tcp fs; found 'pigeon'" -pi pigeon
    refused 'tcp without a server' 2 '-pi tcp: the address of rank 0 is missing' -pi tcp -pn 2
    refused 'rank above all' 2 '-pr 2: the rank is not below' -pi fs -pn 2 -pr 2
    refused 'long name' 2 "--sequence-length: expected a whole number, found 'x'" --sequence-length x
    refused 'alias' 2 "--window: expected a whole number, found 'x'" --window x
    refused 'long name with =' 2 "--stage: expected a stage.*'4'" --stage=4
    refused 'a flag for a value' 2 "--batch: expected a value, found the flag '-z'" --batch -z 3
    refused 'nearest flag' 2 "'--stages': did you mean --stage?" --stages 3
    refused 'nearest flag, its beginning' 2 "'--sample=3': did you mean --sample-" --sample=3
    refused 'nearest flag, a dash' 2 "'z': did you mean -z?" z 1
    refused '-ge' 2 '-ge: expected -1 to 2, found 3' -ge 3
    refused '-h' 2 '-h: expected 0 to 1, found 2' -h 2
    refused '-h in a comparison' 1 '-h 1: a comparison' $small -h 1 -z 0,1 -csv "$scratch/csv"
    refused '-zog' 2 "-zog: expected one of: device host file auto; found 'disk'" -zog disk
    refused '-zop' 2 "-zop: expected one of: device host file; found 'auto'" -zop auto
    refused '-zor' 2 '-zor: expected 0 to 1, found 1.5' -zor 1.5
    refused '-zfc' 2 '-zfc: expected 0 to 1, found 2' -zfc 2
    refused '-zp' 2 '-zp: expected 0 to 64, found 65' -zp 65
    refused '-hf' 1 "-hf: $scratch/none: expected a readable file" $small -h 1 -hf "$scratch/none"
    for help in -h --help '-z 3 -h' '-h -z 3' '-z 3 --help'; do
        "$trainer" $help >"$scratch/out" 2>"$scratch/err"
        same "$help" '0 1 1' "$? $(grep -c '^usage' "$scratch/out") $(grep -c '^Examples' "$scratch/out")"
    done
    same 'help on one screen' yes "$([ "$(wc -l <"$scratch/out")" -le 45 ] && echo yes)"
    same 'help: frequent flags' 20 "$(grep -c '^  -[a-z]*  *--' "$scratch/out")"
    same 'help: examples' 5 "$(sed -n '/^Examples/,/^$/p' "$scratch/out" | grep -c '^  ./train_gpt2_zero')"
    same 'help within 100 columns' 0 "$(awk 'length($0) > 99' "$scratch/out" | wc -l | tr -d ' ')"
    "$trainer" --help all >"$scratch/all"
    same 'every flag has a long name' 0 "$(grep -c '^  -[a-z0-9]*  *[^- ]' "$scratch/all")"
    same 'all flags within 100 columns' 0 "$(awk 'length($0) > 99' "$scratch/all" | wc -l | tr -d ' ')"
    same 'no name twice' x "x$(sed -n 's/^  -[a-z0-9]* *\(--[a-z0-9-]*\) .*/\1/p' "$scratch/all" | sort | uniq -d)"
    # Each section is named in the short help, and the sections together are --help all.
    for section in $(sed -n '/^More: /,/^This build/p' "$scratch/out" | sed '1d;$d'); do "$trainer" --help "$section"; done >"$scratch/parts"
    same 'sections' yes "$(cmp "$scratch/parts" "$scratch/all" && echo yes)"
    same '--help of a flag' 1 "$("$trainer" --help --window | grep -c '^  -t   --sequence-length .*tokens per sequence')"
    same '--help of a flag, one only' "$("$trainer" --help -t)" "$("$trainer" --help=--sequence-length)"
    refused '--help of nothing' 1 "--help: there is no section or flag 'nix'" --help nix
    same '--version' "train_gpt2_zero $(sed -n 's/^.define ZERO_VERSION "\(.*\)"/\1/p' zero_plugin.h)" "$("$trainer" --version)"
}

# A GPT-2 model has the defaults of llm.c, also from a file; a char: model has nanoGPT's.
test_defaults() {
    header "$scratch/defaults.bin" 20240326 3 1024 61 1 1 32 128
    zeros $((4 * (128 * 32 + 1024 * 32 + 12 * 32 * 32 + 13 * 32 + 2 * 32))) >>"$scratch/defaults.bin"
    header "$scratch/words" 20240520 1 90000
    zeros 180000 >>"$scratch/words"
    files="-i $scratch/words -j $scratch/words"
    train -e "$scratch/defaults.bin" $files -st all >/dev/null
    for row in 'tokens per step  *| 4096 = -b 4 x -t 1024 x 1 ranks x 1 micro-steps' 'steps  *| 21 ' \
        'learning rate  *| cosine, 0.0003 to 0.0003, warm-up 0 ' 'optimizer  *| adamw, betas 0.9 0.95, eps 1e-08, decay 0, clip 1 '; do
        same "defaults: $row" 1 "$(grep -c "^| $row" "$scratch/out")"
    done
    same 'defaults: validations' 3 "$(grep -c '^val loss' "$scratch/out")"
    same 'defaults: samples of 64 tokens' '2 128' "$(grep -c '^generating' "$scratch/out") $(sed -n '/^---/,/^---/p' \
        "$scratch/out" | grep -v '^-' | wc -w | tr -d ' ')"
    train -e "$scratch/defaults.bin" $files -z 3 -x 0 >/dev/null
    same 'defaults: a short sample at stage 3' 16 "$(sed -n '/^---/,/^---/p' "$scratch/out" | grep -v '^-' | wc -w | tr -d ' ')"
    train -e char:2x32x2 -x 1 -g 0 -v -1 -st all >/dev/null
    for row in 'tokens per step  *| 768 = -b 12 x -t 64 x 1 ranks x 1 micro-steps' \
        'learning rate  *| cosine, 0.001 to 0.0001, warm-up 100 ' 'optimizer  *| adamw, betas 0.9 0.99, eps 1e-08, decay 0.1, clip 1 '; do
        same "defaults of char: $row" 1 "$(grep -c "^| $row" "$scratch/out")"
    done
}

# The settings: 12 rows on one screen, besides notes on this processor; all of them with -st all; both within 80 columns.
test_settings() {
    many='-dt bf16 -d 1024 -zos file -zop file -qw 8 -qg 4 -qf 0.5 -zod 3 -ns 2 -en 4 -z 3'
    for run in "-pn 2 -z 3" "-pn 4 $many -zfd $scratch"; do
        train -e char:2x32x2 -t 16 -v -1 -g 0 -x 1 $run >/dev/null
        same "settings, $run: rows" 12 "$(grep '^| [a-zA-Z]' "$scratch/out" | grep -vc '^| note ')"
        same "settings, $run: columns" 0 "$(grep '^[|+]' "$scratch/out" | awk 'length($0) != 79' | wc -l | tr -d ' ')"
        train $small -x 1 $run >/dev/null
        same "settings, $run: all" yes "$([ "$(grep -c '^| ' "$scratch/out")" -gt 25 ] && echo yes)"
        same "settings, $run: all, columns" 0 "$(grep '^[|+]' "$scratch/out" | awk 'length($0) != 79' | wc -l | tr -d ' ')"
    done
}

# Samples from kept keys and values are those that are computed again for each token, as -r 3 does.
test_sample() {
    text() { train -e char:2x32x2 -t 32 -v -1 -g 60 -x 20 -nt 1 "$@" >/dev/null; sed -n '/^---/,/^---/p' "$scratch/out"; }
    for run in '' '-pn 2 -z 3' '-pn 2 -tp 2 -dt bf16' '-zl 32'; do
        same "a sample, $run" "$(text $run -r 3)" "$(text $run)"
        same "a sample has its tokens, $run" yes "$([ "$(text $run | wc -c)" -gt 60 ] && echo yes)"
    done
}

# With one rank and with three.
test_wrong_sizes() {
    for ranks in 1 3; do
        sampled 2 || continue
        refused 'heads' 1 '5' $small -e char:2x32x5 -pn $ranks
        refused 'no such model' 1 'd13' $small -e d13 -pn $ranks
        refused 'window beyond the file' 1 '100' $small -i "$scratch/short" -j "$scratch/short" \
            -t 128 -b 1 -pn $ranks
        refused 'batch beyond the file' 1 'a step needs 96 sequences' $small -i "$scratch/short" \
            -j "$scratch/short" -d 1536 -pn $ranks
        refused 'batch and windows' 1 '-d 100' $small -d 100 -pn $ranks
        refused 'batch and rows' 1 'batch does not divide.*-b 7' $small -d 1600 -b 7 -pn $ranks
        refused 'memory' 1 'are available' -e d84 -i "$scratch/short" -j "$scratch/short" -t 16 \
            -b 1 -pn $ranks
        refused 'activations' 1 'are available' -e char:64x1024x8 -b 10000 -pn $ranks
        refused 'too many windows' 1 '-b 900000' -b 900000 -t 64 -pn $ranks
        refused 'bucket' 1 '-zb is 10, ' $small -zb 10 -z 2 -b 1 -pn $ranks
        refused 'log folder' 1 '-o: /dev/null/x/main.log' $small -o /dev/null/x -pn $ranks
        refused 'csv' 1 '-csv: /dev/null/x' $small -z 0,1 -csv /dev/null/x -b 1 -pn $ranks
        refused 'rounds' 1 '-x 7' $small -z 0,1 -x 7 -rd 2 -csv "$scratch/csv" -b 1 -pn $ranks
    done
    refused 'no master weights in f32' 1 '-w 0: .*found -dt f32' $small -w 0
    refused 'no master weights in fp16' 1 '-w 0: .*found -dt fp16' $small -dt fp16 -w 0 -pn 2
    refused 'split master weights in fp16' 1 '-w split: .*found -dt fp16' $small -dt fp16 -w split
    refused '8-bit state of adagrad' 1 '-os 8bit: the state of -op adagrad' $small -op adagrad -os 8bit
    refused 'f32 state of embeddings next to f32 state' 1 '-oe f32: all state is f32 (found -os f32)' $small -oe f32
    refused 'checkpoints without frozen tensors, of which there are none' 1 '-nz 0: no tensor is frozen' $small -nz 0
    refused 'scale below its least' 1 '-li 8: .*-lm 16' $small -dt fp16 -li 8 -lm 16
    refused 'eps' 1 '-ep 0: ' $small -ep 0 -pn 2
    refused 'skipping in a comparison' 1 '-sl and -sg: ' $small -z 0,1 -sl 3 -csv "$scratch/csv"
    refused '-dso alone' 1 '-dso x: there is no configuration to resolve; add -ds FILE' $small -dso x
    refused 'node size' 1 '-ns 2: ' $small -b 1 -pn 3 -ns 2
    refused 'node size of one rank' 1 '-ns 2: ' $small -ns 2
    refused 'ranks' 1 'batch does not divide.*5 data-parallel ranks' $small -pn 5
}

test_wrong_files() {
    token_file "$scratch/short" 20240520 1 100
    token_file "$scratch/magic" 20240521 1 5000
    token_file "$scratch/version" 20240520 7 5000
    token_file "$scratch/length" 20240520 1 5000 4999
    token_file "$scratch/token" 20240520 1 5000 4999
    printf '\101\000' >>"$scratch/token" # 65, the first that is no character
    zeros 100 >"$scratch/stub"
    : >"$scratch/empty"
    header "$scratch/model.bin" 20240326 3 1024 50257 12 12 768 50304
    zeros 4096 >>"$scratch/model.bin"
    header "$scratch/version.bin" 20240326 5 1024 50257 12 12 768 50304
    for ranks in 1 3; do
        sampled 2 || continue
        for file in magic version length token stub empty none; do
            refused "$file" 1 "$scratch/$file" $small -i "$scratch/$file" -pn $ranks
            refused "$file" 1 "$scratch/$file" $small -j "$scratch/$file" -pn $ranks
        done
        refused 'folder' 1 "$scratch" $small -i "$scratch" -pn $ranks
        refused 'several files' 1 'give one' $small -i "$scratch/*" -pn $ranks
        refused 'tokenizer' 1 "$scratch/magic" $small -tf "$scratch/magic" -pn $ranks
        refused 'model cut short' 1 "$scratch/model.bin" $small -e "$scratch/model.bin" -pn $ranks
        refused 'model version' 1 "$scratch/version.bin" $small -e "$scratch/version.bin" -pn $ranks
        refused 'no model' 1 "$scratch/none.bin" $small -e "$scratch/none.bin" -pn $ranks
    done
}

test_no_data() {
    here=$PWD
    cd "$scratch" || exit 1
    scratch=.
    refused 'no data' 1 'tiny_char_train.bin.*after .make data.' -pn 2
    scratch=$build/test_trainer.$$
    cd "$here" || exit 1
}

# ---- results -------------------------------------------------------------------------------------

# train ARGUMENT... : weights of a run
train() {
    timeout -k 1 60 "$trainer" "$@" >"$scratch/out" 2>"$scratch/err" || {
        echo "exit code $?: $(cat "$scratch/err")"
        return
    }
    sed -n 's/^weights //p' "$scratch/out"
}

test_same_weights() {
    for ranks in 1 2 3; do
        sampled 3 || continue
        reference=$(train $small -x 4 -nt 1 -pn $ranks)
        case $reference in
        ????????????????) pass ;;
        *) fail "weights on $ranks ranks: $reference" ;;
        esac
        for stage in 1 2 3; do
            same "stage $stage on $ranks ranks" "$reference" \
                "$(train $small -x 4 -nt 1 -pn $ranks -z $stage)"
        done
        same "settings on $ranks ranks" "$reference" \
            "$(train $small -x 4 -nt 1 -pn $ranks -z 3 -zo 0 -zm 0 -zp 0 -zt 0 -r 3)"
    done
    micro="$small -x 3 -nt 1 -d 384 -b 4 -pn 2"
    reference=$(train $micro -z 0 -za local)
    same 'micro-steps, local' "$reference" "$(train $micro -z 3 -za local)"
    reference=$(train $micro -z 0 -za sharded)
    same 'micro-steps, sharded' "$reference" "$(train $micro -z 3)"
}

# Packed traffic: bits depend on ranks and nodes alone.
test_packed() {
    packed="$small -x 4 -nt 1 -pn 4 -qg 4 -qf 0.8 -qr 3 -ns 2"
    reference=$(train $packed -z 1)
    for stage in 2 3; do same "packed, stage $stage" "$reference" "$(train $packed -z $stage -zb 30000)"; done
    packed="$packed -z 3 -qw 8"
    reference=$(train $packed)
    same 'packed, other settings' "$reference" "$(train $packed -zo 0 -zm 0 -zp 3 -r 3)"
    same 'packed, in the plan' 1 "$(grep -c '| quantized  *| weights 8 bits, gradients 4 bits, error feedback' "$scratch/out")"
    same 'packed, second shards' "$reference" "$(train $packed -zh 2)"
    [ "$reference" != "$(train $packed -ns 4)" ] && pass || fail 'packed: nodes make no difference'
    packed="$small -x 4 -nt 1 -pn 4 -qg 4 -qf 0.8 -zs 2"
    reference=$(train $packed -z 1)
    same 'packed, shard groups' "$reference" "$(train $packed -z 3 -zo 0 -zm 0 -zb 30000)"
    same 'packed, shard groups, bf16' "$(train $packed -dt bf16 -z 1)" "$(train $packed -dt bf16 -z 3)"
    refused 'packed weights at stage 2' 1 '-qw is 8: at stage 2' $small -pn 2 -z 2 -qw 8
    refused 'five bits' 1 '-qg is 5, expected 8 or 4' $small -pn 2 -z 2 -qg 5
}

# In every type the stages end with the same weights, also where steps overflow and are skipped.
test_types() {
    for type in '-dt bf16' '-dt bf16 -w 0 -os 8bit' '-dt bf16 -w split -os bf16' '-os bf16 -op lion' '-dt bf16 -zg f32' '-dt fp16' '-dt fp16 -li 1e9 -lw 3' \
        '-op adam' '-op sgd -dt fp16' '-op nesterov' '-op lion -dt bf16' '-ls 64' '-op adagrad' \
        '-op lamb -tm 2 -dt fp16' '-op muon -mr 1 -mp 1 -mh 1 -mn 0.9 -dt bf16'; do
        sampled 4 || continue
        run="$small -x 9 -nt 1 -pn 2 -u 2 $type"
        reference=$(train $run -z 0)
        for how in '-z 1' '-z 2 -zo 0' '-z 3' '-z 3 -zm 0 -zt 0'; do
            same "$type $how" "$reference" "$(train $run $how)"
        done
        for how in local sharded; do
            reference=$(train $run -d 384 -b 4 -z 0 -za $how)
            same "$type $how" "$reference" "$(train $run -d 384 -b 4 -z 3 -za $how)"
        done
    done
    train $small -x 9 -dt fp16 -li 1e9 -lw 3 -pn 2 >/dev/null
    skips=$(grep -c '^step .*| scale .*| skipped [0-9]*: [a-z0-9]*\[[0-9]*\], owned by rank [01], is' \
        "$scratch/out")
    same 'last skip count' "$skips" "$(sed -n 's/^step .*skipped \([0-9]*\).*/\1/p' "$scratch/out" |
        tail -n 1)"
    if [ "$skips" -gt 0 ]; then pass; else fail 'a loss scale of 1e9 does not overflow'; fi
    refused 'overflow at the floor' 1 'wte.*overflows at the smallest loss scale' $small -x 9 \
        -dt fp16 -li 1e9 -lm 1e9 -lh 1
    train $small -x 240 -sg 0.005 -l 1e-2 -u 1 >/dev/null
    same 'what -sg skips' "$(awk -F '[(z]' '/^step/ { if ($4 >= 0.01) n++ } END { print n + 0 }' \
        "$scratch/out")" "$(grep -c ': unusual$' "$scratch/out")"
    if grep -q ': unusual$' "$scratch/out"; then pass; else fail "-sg 0.005 skips nothing"; fi
    train $small -z 0,3 -x 4 -rd 2 -dt bf16 -pn 2 -csv "$scratch/new/c.csv" >/dev/null
    same 'comparison in bf16' 1 "$(sed 1d "$scratch/new/c.csv" | cut -d , -f 14 | sort -u | wc -l |
        tr -d ' ')"
}

# DeepSpeed's file: the same training as by flags; what was resolved trains the same again.
# Products that oneDNN has no instructions for are converted, which a run says, and that f32 is faster.
# ONEDNN_MAX_CPU_ISA hides the instructions of a processor that has them.
test_conversion() {
    if [ "$(uname -m)" != x86_64 ]; then skip 'conversion: oneDNN has no setting that hides instructions'; return; fi
    sentence='| note  *| no bf16 instructions here: -dt f32 is faster '
    for case in "AVX2 bf16 1" "AVX2 f32 0" "DEFAULT bf16 $(grep -q avx512_bf16 /proc/cpuinfo || echo 1)"; do
        set -- $case
        ONEDNN_MAX_CPU_ISA=$1 "$trainer" $small -nt 1 -b 4 -x 1 -dt "$2" >"$scratch/out" 2>&1
        same "$case: steps" 1 "$(grep -c '^step ' "$scratch/out")"
        same "$case: $(grep 'GEMM' "$scratch/out")" "${3:-0}" "$(grep -c "$sentence" "$scratch/out")"
    done
}

test_deepspeed() {
    run="$small -x 4 -nt 1 -pn 2"
    reference=$(train $run -b 3 -d 192 -dt bf16 -z 2 -zo 0 -op adamw -l 3e-3 -b1 0.8 -b2 0.95 \
        -ep 1e-7 -c 0.05 -cl 0.5 -k constant -u 0)
    same '-ds as by flags' "$reference" "$(train $run -ds "$scratch/ds.json" -l 3e-3 \
        -dso "$scratch/resolved.json")"
    same 'steps_per_print' 2 "$(grep -c '^step' "$scratch/out")"
    same '-dso loads again' "$reference" "$(train $run -ds "$scratch/resolved.json" \
        -dso "$scratch/again.json")"
    if cmp -s "$scratch/resolved.json" "$scratch/again.json"; then pass; else
        fail 'what -dso wrote is not what it resolves to'
    fi
    same '-ds compared' 1 "$(train $run -ds "$scratch/ds.json" -z 0,3 -x 2 -rd 1 \
        -csv "$scratch/c.csv" >/dev/null; sed 1d "$scratch/c.csv" | cut -d , -f 14 | sort -u |
        wc -l | tr -d ' ')"
    train $run -ds tests/ds_config/zero2.json -d 384 -b 3 >/dev/null
    same 'notes' 5 "$(grep -c '^tests/ds_config/zero2.json, line [0-9]*: .* has no effect' \
        "$scratch/out")"
    for ranks in 1 2; do
        refused '-ds, a flag says otherwise' 1 '-c 0.1: .* gives optimizer.params.weight_decay' \
            $small -pn $ranks -d $((96 * ranks)) -b 3 -ds "$scratch/ds.json" -c 0.1
        refused '-ds, no such file' 1 "-ds: $scratch/none" $small -pn $ranks -ds "$scratch/none"
        refused '-dso' 1 '-dso: /dev/null/x' $small -pn $ranks -ds "$scratch/ds.json" -dso /dev/null/x
    done
    sed 's/"auto"/1e-4/; s/"enabled": true/"enabled": "auto"/' "$scratch/ds.json" >"$scratch/lr.json"
    sed 's/"lr": "auto", //' "$scratch/ds.json" >"$scratch/default.json"
    refused '-ds, the default of what it lacks' 1 '-l 0.003: .* has no optimizer.params.lr, which is 0.001' \
        $small -pn 2 -l 3e-3 -ds "$scratch/default.json"
    same '-ds, its default, typed' "$(train $run -ds "$scratch/default.json")" \
        "$(train $run -ds "$scratch/default.json" -l 1e-3)"
    refused '-ds, a typed type' 1 '-k and -q' $small -pn 2 -d 384 -b 3 -k linear \
        -ds tests/ds_config/zero2.json
    refused '-ds, a window' 1 '-lw 5: .*fp16.loss_scale_window 1000' $small -pn 2 -d 384 -b 3 \
        -dt fp16 -lw 5 -ds tests/ds_config/zero2.json
    refused '-ds, lines' 1 '-lp 5: .*steps_per_print 2' $small -pn 2 -lp 5 -ds "$scratch/ds.json"
    refused '-ds, overlap' 1 '-zo 1: .*overlap_comm 0' $small -zo 1 -ds "$scratch/ds.json"
    same '-ds, auto type' "$(train $run -ds "$scratch/lr.json" -dt bf16)" \
        "$(train $run -ds "$scratch/ds.json" -l 1e-4)"
    sed 's/gradient_clipping/gradient_cliping/' "$scratch/ds.json" >"$scratch/typo.json"
    refused '-ds, a typo' 1 'typo.json, line 6: .*gradient_cliping.*gradient_clipping' $small -pn 2 \
        -ds "$scratch/typo.json"
    sed 's/"gradient_acc/"train_batch_size": 13, "gradient_acc/' "$scratch/ds.json" \
        >"$scratch/batch.json"
    refused '-ds, batch' 1 'train_batch_size.*13' $small -pn 2 -ds "$scratch/batch.json"
    # Buckets of less than a block (Hugging Face's "auto" is a 13th) go ahead, too; only 0 does not.
    for bucket in '"auto" 1' '1 1' '0 0' '5e7 64'; do
        echo "{\"train_micro_batch_size_per_gpu\": 3, \"zero_optimization\": {\"stage\": 3, \"stage3_prefetch_bucket_size\": ${bucket% *}}}" >"$scratch/ahead.json"
        train $small -x 0 -pn 2 -ds "$scratch/ahead.json" >/dev/null
        same "-ds, prefetch $bucket" 1 "$(grep -c "^| communication .* prefetch ${bucket#* } *|$" "$scratch/out")"
    done
}

# What the plan of the last run says of tiers.
tiers() { sed -n 's/^| offload  *| \(.*[a-z]\) *|$/\1/p' "$scratch/out"; }

# No tier changes a weight; what a stage cannot have is refused, and in a comparison kept on the device.
test_tiers() {
    run="$small -x 4 -nt 1 -pn 2 -zfd $scratch"
    reference=$(train $run)
    same 'no tiers without a flag' 0 "$(grep -c '^| offload' "$scratch/out")"
    for how in '-z 0 -zos file' '-z 1 -zos host' '-z 2 -zos file -zog file' '-z 3 -zos file -zop host' \
        '-z 3 -zos host -zop file -zor 0.5' '-z 3 -zos file -zog device -zop file -zfc 0'; do
        same "$how" "$reference" "$(train $run $how)"
    done
    same 'tiers in the plan' 'parameters file, gradients device, optimizer file' "$(tiers)"
    same 'file in the plan' 1 "$(grep -c '^| file of a rank .*, pieces are not checked' "$scratch/out")"
    same 'its folder' 1 "$(grep -c "^|   in .* $scratch " "$scratch/out")"
    same 'how' 1 "$(grep -c '^|   by  *| \(io_uring\|pread and pwrite of threads\), \(direct (O_DIRECT)\|through the page cache\)' "$scratch/out")"
    same 'what it moves' 2 "$(grep -c '^|   \(read\|written\) in a step  *| [0-9.]* MiB' "$scratch/out")"
    same 'and has moved' yes "$(sed -n 's/^moved by the file in a step, .* written \([0-9.]*\), planned \1$/yes/p' "$scratch/out")"
    same 'a sample moves, too' "$reference" "$(train $run -z 3 -zos file -zop file -g 9)"
    same 'and does not count' yes "$(sed -n 's/^moved by the file in a step, .* read \([0-9.]*\), planned \1; .*/yes/p' "$scratch/out")"
    same 'a share' "$reference" "$(train $run -z 3 -zos file -zor 0.5)"
    same 'gradients follow' 'parameters device, gradients host, optimizer file' "$(tiers)"
    same 'the share in the plan' 1 "$(grep -c '^|   of .* 0.5 of the elements' "$scratch/out")"
    same 'host is device' 1 "$(grep -c '^|   host .* is device: the CPU version' "$scratch/out")"
    same 'no share' "$reference" "$(train $run -z 3 -zos file -zop file -zor 0)"
    same 'all on the device' 0 "$(grep -c '^| offload\|^| file' "$scratch/out")"
    same 'whole gradients stay' "$reference" "$(train $run -z 1 -zos host)"
    same 'gradients do not follow' 'parameters device, gradients device, optimizer host' "$(tiers)"
    train $run -z 1 -zor 0.5 -zou host >/dev/null
    same 'flags of no tier' '-zor -zfd -zou ' "$(sed -n 's/ changes nothing here: .*//p' "$scratch/out" | tr '\n' ' ')"
    refused '-zop below stage 3' 1 'train_gpt2_zero: -zop is host: at stage 2' $run -z 2 -zop host
    refused '-zog file at stage 1' 1 '-zog is file: it needs sharded gradients; use stage 2 or 3' $run -z 1 -zog file
    refused '-zfd, nothing' 2 "-zfd: expected a value such as '.', found ''" $run -zos file -zfd ''
    refused '-zfd, no folder' 1 "a file in $scratch/none: No such" $run -zos file -zfd "$scratch/none"
    large='rank 0 needs [0-9]* bytes in .*, where [0-9]* are free: File too large'
    same 'ulimit -f' 1 "$(ulimit -f 100 && "$trainer" $small -x 1 -nt 1 -zos file -zfd "$scratch" 2>&1 | grep -c "$large")"
    train $run -z 0,1,2,3 -x 2 -rd 1 -zos file -zop host -zog file -csv "$scratch/c.csv" >/dev/null
    same 'tiers compared' 1 "$(sed 1d "$scratch/c.csv" | cut -d , -f 14 | sort -u | wc -l | tr -d ' ')"
    same 'tiers of stages' 1 "$(grep -c "^offload  kept on the device, because they are not sharded: parameters at stage \
0, 1, 2 and gradients at stage 0, 1; host is device" "$scratch/out")"
    same 'files of stages' 4 "$(grep -c '^file     stage [0-3]: [0-9.]* MiB of a rank' "$scratch/out")"
}

# -zog auto: gradients go to the file where memory does not suffice, which a /proc/meminfo of this test's says here.
test_little_memory() {
    unshare -m true 2>/dev/null || { skip 'little memory: needs root and mount namespaces'; return; }
    little() { # KIB ARGUMENT...: `train` where so much is available
        echo "MemAvailable: $1 kB" >"$scratch/meminfo"
        shift
        # shellcheck disable=SC2016 # it is the inner shell's
        unshare -m sh -c 'mount --bind "$0" /proc/meminfo && exec "$@"' "$scratch/meminfo" timeout -k 1 60 "$trainer" "$@" \
            >"$scratch/out" 2>&1
        sed -n 's/^weights //p; s/.* MiB are available: .*/refused/p' "$scratch/out"
    }
    needed() { # KiB of all ranks, by the last run's refusal
        sed -n 's/.* MiB each need \([0-9.]*\) MiB, but .*/\1/p' "$scratch/out" | awk '{ print int(1024 * $1) + 103 }' # as rounded
    }
    run="-e char:4x512x4 -t 16 -b 1 -v -1 -g 0 -x 2 -nt 1 -st all -zfd $scratch -zos file"
    for how in '-z 2 -pn 2' '-z 3 -zop file -pn 2 -pt 1' '-z 3 -zop file -pn 2 -tp 2'; do
        reference=$(train $run $how)
        same "$how, enough" 0 "$(grep -c 'gradients go to the file' "$scratch/out")"
        same "$how, nothing" refused "$(little 64 $run $how)"
        least=$(needed)
        same "$how, not in memory" refused "$(little "$least" $run $how -zog device)"
        same "$how, in the file" "$reference" "$(little "$least" $run $how)"
        same "$how, which is told" 1 "$(grep -c 'gradients go to the file' "$scratch/out")"
        same "$how, the plan" 1 "$(tiers | grep -c 'gradients file, optimizer file')"
    done
}

# A delayed update: a run that goes on from a save, at any tier and stage, ends as the one that was not stopped; an
# evaluation between steps changes nothing. More of it is in test_delay.sh.
test_delayed() {
    run="$small -x 6 -d 256 -nt 1 -zfd $scratch -o $scratch/late -n 3 -zod 2"
    reference=$(train $run -pn 2 -z 3 -zos file -zog file -zop file)
    same 'delayed, in the plan' 1 "$(grep -c '^| delayed update  *| from step 2 on, with a second copy in buffers' "$scratch/out")"
    same 'delayed, in memory' "$reference" "$(rm -r "$scratch/late" && train $run -pn 2 -z 1)"
    same 'delayed, it was' 0 "$(train $small -x 6 -d 256 -nt 1 -pn 2 | grep -c "$reference")"
    for how in '-z 0' '-z 2 -zos file -zor 0.5' '-z 3 -zop file -na 1'; do
        rm -r "$scratch/late/step_00000006"
        same "delayed, $how" "$reference" "$(train $run -pn 2 $how -y 1)"
        same 'goes on' 1 "$(grep -c '^resuming from step 3' "$scratch/out")"
    done
    run="$small -x 6 -d 256 -nt 1 -zfd $scratch -zod 2 -v 3 -m 1"
    same 'delayed, evaluated' "$reference" "$(train $run -pn 2 -z 3 -zos file -zop file)"
}

# wte in tiles: the same weights at every stage and tier; a checkpoint fits other tiles, and none.
test_tiles() {
    run="$small -x 4 -nt 1 -pn 2 -zfd $scratch -o $scratch/tiles"
    reference=$(train $small -x 4 -nt 1 -pn 2 -zl 32)
    same 'tiles in the settings' 1 "$(grep -c '^| tiles of wte  *| 32 rows each' "$scratch/out")"
    for how in '-z 1' '-z 2 -zos file -zog file' '-z 3 -zm 0 -zp 3' '-z 3 -zl 63 -zos file -zog file -zop file'; do
        same "tiles, $how" "$reference" "$(train $small -x 4 -nt 1 -pn 2 -zfd $scratch -zl 32 $how)"
    done
    train $run -zl 32 -z 3 -n 2 >/dev/null
    rm -r "$scratch/tiles/step_00000004"
    for how in '-zl 64 -z 2' '-zl 0 -z 3' '-zl 1000'; do
        cp -r "$scratch/tiles" "$scratch/other"
        same "a checkpoint of tiles, $how" 16 "$(train $small -x 4 -nt 1 -pn 2 -o $scratch/other -n 2 -y 1 $how |
            tr -d '\n' | wc -c | tr -d ' ')"
        same 'goes on' 1 "$(grep -c '^resuming from step 2' "$scratch/out")"
        rm -r "$scratch/other"
    done
    same 'a checkpoint of tiles' "$reference" "$(train $run -zl 32 -z 1 -n 2 -y 1)"
    refused '-zl' 1 '-zl 31: a tile has at least 32 rows' $small -zl 31
}

# Inputs of blocks kept in a file: the weights of -r 3.
test_away() {
    run="-e char:6x32x2 -t 16 -v -1 -g 0 -x 3 -nt 1 -pn 2 -st all -zfd $scratch"
    reference=$(train $run -r 3)
    same '-r 4' "$reference" "$(train $run -r 4)"
    same 'the file in the plan' 1 "$(grep -c '^|   offloaded  *| [0-9.]* MiB in a file' "$scratch/out")"
    same '-r 4 -z 3' "$reference" "$(train $run -r 4 -z 3 -zo 0)"
    for how in 3 4; do
        train $run -z 0,1,2,3 -rd 1 -r $how -csv "$scratch/$how.csv" >/dev/null
    done
    same '-r 4, compared' "$(cut -d , -f 14 "$scratch/3.csv")" "$(cut -d , -f 14 "$scratch/4.csv")"
    refused '-r 4, no folder' 1 "a file of activations in $scratch/none: No such" $run -r 4 -zfd "$scratch/none"
    refused '-r 5' 2 '-r: expected 0 to 4, found 5' $run -r 5
}

# DeepSpeed's files that offload, as they are: the weights are those without.
test_offload() {
    run="$small -x 4 -nt 1 -pn 2 -b 3 -d 192 -dt bf16 -u 2"
    file=tests/ds_config/zero3_host.json
    sed 's|"cpu"|"none"|' $file >"$scratch/none.json"
    sed "s|\"cpu\"|\"nvme\", \"nvme_path\": \"$scratch\"|" $file >"$scratch/nvme.json"
    sed "s|$scratch|$scratch/none|" "$scratch/nvme.json" >"$scratch/lost.json"
    reference=$(train $run -ds "$scratch/none.json")
    same '-ds, cpu' "$reference" "$(train $run -ds $file -dso "$scratch/resolved.json")"
    same '-ds, its tiers' 'parameters host, gradients host, optimizer host' "$(tiers)"
    same '-ds, what it says' 5 "$(grep -c '^tests/.*\(pin_memory\|aio\)[.a-z_]* has no effect: ' "$scratch/out")"
    same '-ds, cpu, resolved' "$reference" "$(train $run -ds "$scratch/resolved.json")"
    same '-ds, its tiers again' 'parameters host, gradients host, optimizer host' "$(tiers)"
    same '-ds, nvme' "$reference" "$(train $run -ds "$scratch/nvme.json")"
    same '-ds, its files' 'parameters file, gradients host, optimizer file' "$(tiers)"
    sed 's|"aio": {|"activation_checkpointing": { "cpu_checkpointing": true }, &|' "$scratch/none.json" >"$scratch/away.json"
    same '-ds, activations away' "$(train $run -r 3 -ds "$scratch/none.json")" "$(train $run -ds "$scratch/away.json" -zfd "$scratch" -dso "$scratch/resolved.json")"
    same '-ds, where they are' 1 "$(grep -c '^|   offloaded  *| [0-9.]* MiB in a file' "$scratch/out")"
    same '-ds, activations away, resolved' 1 "$(grep -c '"cpu_checkpointing":.*true' "$scratch/resolved.json")"
    refused '-ds, activations stay' 1 '-r 3: .*cpu_checkpointing: -r 4' $run -r 3 -ds "$scratch/away.json"
    case $(train $small -x 2 -pn 2 -b 3 -d 192 -dt fp16 -ds tests/ds_config/zero2_offload.json) in
    ????????????????) pass ;;
    *) fail "-ds zero2_offload.json: $(cat "$scratch/err")" ;;
    esac
    refused '-ds, no folder' 1 "a file in $scratch/none: No such" $run -ds "$scratch/lost.json"
    refused '-ds, another folder' 1 "-zfd /: .* gives nvme_path $scratch; " $run -zfd / \
        -ds "$scratch/nvme.json"
    refused '-ds, another tier' 1 '-zos file: .*offload_optimizer.device: -zos host' $run \
        -zos file -ds $file
    sed 's|"stage": 3|"stage": 2|' $file >"$scratch/stage.json"
    refused '-ds, parameters at stage 2' 1 'line 36: .*offload_param.device is "cpu" at stage 2' \
        $run -ds "$scratch/stage.json"
}

# The global batch of every step, over two epochs of 8 steps, however it is shared out.
test_same_batches() {
    for order in 0 1 2; do
        data="-i $scratch/tokens -j $scratch/tokens -sh $order -d 192"
        train $small $data -x 16 -db 1 >/dev/null
        reference=$(grep '^batch' "$scratch/out")
        same "16 batches, -sh $order" 16 "$(printf '%s\n' "$reference" | wc -l | tr -d ' ')"
        for share in '-pn 2' '-pn 3' '-pn 2 -b 3' '-pn 1 -b 4'; do
            train $small $data -x 16 -db 1 $share >/dev/null
            same "batches of -sh $order $share" "$reference" "$(grep '^batch' "$scratch/out")"
        done
        first=$(printf '%s\n' "$reference" | sed -n '1s/.* //p')
        again=$(printf '%s\n' "$reference" | sed -n '9s/.* //p')
        if [ $order -eq 0 ]; then
            same 'second epoch in order' "$first" "$again"
        elif [ "$first" = "$again" ]; then
            fail "-sh $order repeats its first epoch"
        else
            pass
        fi
    done
    train $small $data -sh 1 -x -1 -db 1 >/dev/null
    same 'one epoch' 8 "$(grep -c '^batch' "$scratch/out")"
}

test_default_run() {
    train -x 10 -v 5 -g 40 -pn 2 -z 3 -o "$scratch/log" >/dev/null
    sed -n 's/^step .* loss \([0-9.]*\) .*/\1/p' "$scratch/out" >"$scratch/losses"
    found=$(grep -v '^#' tests/reference/char4_losses.txt | paste - "$scratch/losses" |
        awk '{ d = $1 - $3; if (d < 0) d = -d; if (d < 1e-4 && $3 != "") n++ } END { print n + 0 }')
    same 'first losses against PyTorch' 10 "$found"
    same 'loss where tools look for it' 10 "$(grep '^step' "$scratch/out" | cut -c 21-28 |
        grep -c '^[0-9]\.[0-9]\{6\}$')"
    same 'validations' 3 "$(grep -c '^val loss [0-9]\.[0-9]\{4\}$' "$scratch/out")"
    one=$(grep '^val loss' "$scratch/out" | tail -n 1)
    same 'sample' 2 "$(grep -c '^---$' "$scratch/out")"
    same 'no z before there is one' 0 "$(grep -c 'nanz' "$scratch/out")"
    same 'nothing but the log is kept' 1 "$(grep -c '^nothing but main.log was saved' "$scratch/out")"
    same 'last line' 1 "$(tail -n 1 "$scratch/out" | grep -c '^weights [0-9a-f]\{16\}$')"
    same 'main.log' 13 "$(grep -c '^s:[0-9]* t[re]l:[0-9.]*' "$scratch/log/main.log")"
    train -x 10 -v 5 -g 0 -pn 3 >/dev/null
    same 'nothing is kept' 1 "$(grep -c '^nothing was saved: ' "$scratch/out")"
    same 'validation on other ranks' "$one" "$(grep '^val loss' "$scratch/out" | tail -n 1)"
}

test_comparison() {
    train $small -z 0,1,2,3 -x 4 -rd 2 -csv "$scratch/new/c.csv" >/dev/null
    csv=$scratch/new/c.csv
    same 'csv header' "stage,ranks,tokens_per_s,ratio,param_bytes,grad_bytes,optimizer_bytes,\
buffer_bytes,formula_bytes,sent_bytes,formula_sent_bytes,exposed_ms,loss,weights,ratio_low,ratio_high,\
layout,activation_bytes" \
        "$(head -n 1 "$csv")"
    cp "$csv" "$scratch/before.csv"
    refused 'a comparison that does not begin' 1 '-x 7' $small -z 0,1 -x 7 -rd 2 -csv "$csv"
    same 'csv stays' yes "$(cmp "$csv" "$scratch/before.csv" && echo yes)"
    train $small -z 0,1,2,3 -x 4 -rd 2 -csv "$csv" >/dev/null
    same 'csv stages' '0 1 2 3 ' "$(sed 1d "$csv" | cut -d , -f 1 | tr '\n' ' ')"
    same 'csv weights' 1 "$(sed 1d "$csv" | cut -d , -f 14 | sort -u | wc -l | tr -d ' ')"
    same 'csv ratio' 1.0000 "$(sed -n 2p "$csv" | cut -d , -f 4)"
    same 'csv fields' 72 "$(sed 1d "$csv" | tr ',' '\n' | grep -c '[0-9a-f]')"
    same 'spread around the ratio' yes "$(sed 1d "$csv" | awk -F , '$15 > $4 || $16 < $4 || $15 <= 0 { bad = 1 }
        END { print bad ? "no" : "yes" }')"
    same 'weights in words' 1 "$(grep -c '^weights  identical, bit for bit, at the 4 stages after the same 6 steps' \
        "$scratch/out")"
    same 'exposed in words' 1 "$(grep -c '^exposed  time of a step in which a rank waits' "$scratch/out")"
    train $small -z 0,3 -x 2 -rd 1 -b 2 -d 128 -pn 2 -csv "$csv" >/dev/null
    same 'csv weights with micro-steps' 1 "$(sed 1d "$csv" | cut -d , -f 14 | sort -u | wc -l |
        tr -d ' ')"
    # epochs of seven steps: a round of five begins in one that the stage before has left
    header "$scratch/short.bin" 20240520 1 897
    tail -c +1025 "$build/data/tiny_char_train.bin" | head -c 1794 >>"$scratch/short.bin"
    train $small -z 0,1,3 -x 8 -rd 2 -b 4 -pn 2 -i "$scratch/short.bin" -j "$scratch/short.bin" \
        -csv "$csv" >/dev/null
    same 'csv weights of short epochs' '1 3' "$(sed 1d "$csv" | cut -d , -f 14 | sort | uniq -c |
        awk '{ n++; of += $1 } END { print n, of }')"
}

# ---- interruption --------------------------------------------------------------------------------

# start ARGUMENT... : a long run in the background that has taken its first steps; $job. In the
# background a shell would have it ignore SIGINT.
start() {
    rm -f "$scratch/out"
    env --default-signal=INT "$trainer" $small -x 1000000 "$@" >"$scratch/out" 2>"$scratch/err" &
    job=$!
    for _ in $(seq 300); do # a busy machine
        grep -q '^step' "$scratch/out" 2>/dev/null && return
        sleep 0.2
    done
}

children() { ps -o pid= --ppid "$1" | tr -d ' '; }

# Those of the processes PID... that still run; a zombie waits for its parent alone.
living() {
    for pid; do
        case $(ps -o stat= -p "$pid") in '' | Z*) ;; *) echo "$pid" ;; esac
    done
}

# ended NAME 2 PATTERN PID... : the job and these processes are gone within 10 s
ended() {
    name=$1 code=$2 pattern=$3
    shift 3
    began=$(date +%s)
    (sleep 15 && kill -9 "$job" 2>/dev/null) >/dev/null 2>&1 &
    watch=$!
    wait "$job"
    found=$?
    kill "$watch" 2>/dev/null
    took=$(($(date +%s) - began))
    same "$name, exit code" "$code" "$found"
    same "$name, one line" "1" "$(wc -l <"$scratch/err" | tr -d ' ')"
    same "$name, what it says" 1 "$(grep -c -e "$pattern" "$scratch/err")"
    if [ $took -le 10 ]; then pass; else fail "$name: took $took s"; fi
    left=$(living "$@")
    same "$name, no process left" none "${left:-none}"
}

test_interruption() {
    for stage in 0 3; do
        sampled 2 || continue
        start -pn 3 -z $stage
        ranks=$(children $job)
        kill -INT $job
        ended "Ctrl-C, stage $stage" 130 'SIGINT; all 3 ranks end' $ranks
        start -pn 3 -z $stage
        ranks=$(children $job)
        victim=$(printf '%s\n' "$ranks" | sed -n 2p)
        kill -9 "$victim"
        ended "killed rank, stage $stage" 1 "rank 1 (process $victim) was killed by signal 9" $ranks
    done
    start -pn 2
    ranks=$(children $job)
    kill -TERM $job
    ended 'SIGTERM' 143 'SIGTERM; all 2 ranks end' $ranks
    start
    kill -INT $job
    ended 'Ctrl-C, one rank' 130 'interrupted by SIGINT; the only rank has ended; nothing was saved$'
    start -pn 2 -pt 1
    kill -INT $job
    ended 'Ctrl-C, threads' 130 'interrupted by SIGINT; all 2 ranks end; nothing was saved$'
    for ranks in 1 2; do
        sampled 2 || continue
        rm -f "$scratch/out"
        "$trainer" $small -x 1000000 -pn $ranks >"$scratch/out" 2>"$scratch/err" &
        job=$!
        for _ in $(seq 300); do grep -q '^step' "$scratch/out" 2>/dev/null && break; sleep 0.2; done
        kill -INT $job
        sleep 0.5
        kill -TERM $job
        ended "ignored Ctrl-C on $ranks ranks, then SIGTERM" 143 'ended by SIGTERM'
    done
    start -pn 2
    ranks=$(children $job)
    kill -9 $job
    wait $job 2>/dev/null
    sleep 1
    left=$(living $ranks)
    same 'killed parent, no process left' none "${left:-none}"
}

# ---- output ---------------------------------------------------------------------------------------

# lost NAME PATTERN: the exit code that was found, 1, and one line with the pattern
lost() {
    same "$1, exit code" 1 $code
    same "$1, what it says" 1 "$(grep -c -e "$2" "$scratch/err")"
}

test_output() {
    for run in '' '-pn 2 -z 3' '-pn 2 -pt 1' '-z 0,3 -x 2 -rd 1 -csv /dev/null' '--help'; do
        timeout -k 1 60 "$trainer" $small -x 3 $run >/dev/full 2>"$scratch/err"
        code=$?
        lost "output to a full disk, $run" '^train_gpt2_zero: the output cannot be written: No space left'
    done
    timeout -k 1 60 "$trainer" $small -x 3 -nf 1 -o "$scratch/unheard" >/dev/full 2>"$scratch/err"
    code=$?
    lost 'output to a full disk, -nf 1' '^train_gpt2_zero: some of the output could not be written'
    same 'output to a full disk, -nf 1: steps' 3 "$(grep -c ' trl:' "$scratch/unheard/main.log")"
    timeout -k 1 60 "$trainer" $small -x 3 -o "$scratch/closed" <&- >&- 2>&-
    same 'closed descriptors, exit code' 0 $?
    same 'closed descriptors, main.log' 3 "$(grep -c '^s:[0-9]* trl:' "$scratch/closed/main.log")"
    same 'closed descriptors, nothing else' 3 "$(wc -l <"$scratch/closed/main.log" | tr -d ' ')"
}

# Long names and = mean what short ones do; -lp; llm.c's flags that change nothing are answered.
test_flags() {
    same 'long names' "$(train $small -x 4 -nt 1 -pn 2 -z 3)" \
        "$(train --model char:2x32x2 --window=16 --val-every -1 -g 0 --steps=4 --threads 1 --ranks 2 --stage 3)"
    reference=$(train $small -x 7 -nt 1)
    same '-lp, -ge and -lg change no weights' "$reference" "$(train $small -x 7 -nt 1 -lp 3 -ge 1 -lg 20)"
    same '-lp 3: steps' '3/7 6/7 7/7 ' "$(sed -n 's/^step *\([^ ]*\) .*/\1/p' "$scratch/out" | tr '\n' ' ')"
    same '-ge and -lg' 2 "$(grep -c '^-[gel]* [0-9]* changes nothing here: ' "$scratch/out")"
    same 'no bytes but MiB' 0 "$(grep -c '[0-9] bytes\|GiB' "$scratch/out")"
    train $small --stage 0,1 -x 2 -rd 1 -csv "$scratch/c.csv" >/dev/null
    same '--stage compares' 2 "$(sed 1d "$scratch/c.csv" | wc -l | tr -d ' ')"
}

# on_terminal COLUMNS COMMAND... : its output in $scratch/out, every rewrite of the live line a line
on_terminal() {
    columns=$1
    shift
    env TERM=xterm script -qec "stty cols $columns; $*" /dev/null </dev/null | tr '\r' '\n' |
        sed "s/$(printf '\033')\[K/live /" | grep -v '^$' >"$scratch/out"
}

test_terminal() {
    if ! script -qec true /dev/null </dev/null >/dev/null 2>&1; then
        echo "skipped: no script, so no terminal"
        return
    fi
    reference=$(train $small -x 400 -nt 1)
    same 'no live line in a file' 0 "$(grep -c "$(printf '\r')" "$scratch/out")"
    on_terminal 60 "$trainer" $small -x 400 -nt 1 -v 200 -s 400 -g 1
    same 'on a terminal: weights' "$reference" "$(sed -n 's/^.*weights \([0-9a-f]*\)$/\1/p' "$scratch/out")"
    same 'on a terminal: lines that stay' '1 200 400 ' "$(sed -n 's/^live step *\([0-9]*\).*tok.s$/\1/p
        s/^step *\([0-9]*\).*/\1/p' "$scratch/out" | tr '\n' ' ')"
    same 'on a terminal: phases' yes "$(for phase in 'reading build/data' 'drawing the first weights' 'training \.' \
        'validation \.'; do grep -q "live $phase" "$scratch/out" || echo "$phase"; done | grep . || echo yes)"
    # The row that a live line is cut to; nothing above 100%.
    same 'on a terminal: live lines fit' 0 "$(grep '^live [^s]\|^live step.*|.*done' "$scratch/out" |
        grep -v '^live +\|^live val\|^live gen\|tok/s$' | awk 'length($0) > 64' | wc -l | tr -d ' ')"
    same 'no share above 100%' 0 "$(grep -o '[0-9.]*%' "$scratch/out" | awk '$1 + 0 > 100' | wc -l | tr -d ' ')"
    on_terminal 100 "$trainer" -x 40 -v 20 -g 0 -nt 1 -lp 10
    same 'on a terminal: -lp 10' '10 20 30 40 ' "$(grep -v 'done' "$scratch/out" |
        sed -n 's/^\(live \)*step *\([0-9]*\).*/\2/p' | tr '\n' ' ')"
    same 'on a terminal: what is left' yes "$(grep -q '^live step .*| [0-9]*% done, 0 min [0-9][0-9] s left' \
        "$scratch/out" && grep -q '^live validation | [0-9]*% done, 0 min' "$scratch/out" && echo yes)"
    # Ctrl-C leaves the last step on the screen; the line about it comes after that.
    on_terminal 100 "env --default-signal=INT $trainer $small -x 1000000 -nt 1 & sleep 3; kill -INT \$!; wait \$!"
    same 'on a terminal: Ctrl-C' yes "$(grep -v '^ *$' "$scratch/out" | grep -B 1 '^train_gpt2_zero: interrupted by SIGINT' |
        head -n 1 | grep -q '^live step *[0-9]' && echo yes)"
}

# A model that knows of nothing but how often a token comes: all weights are 0 but one column of wte,
# token v having v/64, and lnfb that picks it. So the loss of token v is the same number minus v/64, and
# of an example's completions that of the largest mean token wins, whatever the context.
make_column_model() { # FILE, for a vocabulary of 61
    header "$1" 20240326 3 64 61 2 2 32 128
    v=0
    {
        while [ $v -lt 128 ]; do
            bits=0
            if [ $v -gt 0 ] && [ $v -lt 61 ]; then
                e=0
                while [ $((2 << e)) -le $v ]; do e=$((e + 1)); done
                bits=$(((121 + e) << 23 | (v << (23 - e)) - (1 << 23)))
            fi
            int32 $bits
            zeros 124
            v=$((v + 1))
        done
        zeros $((4 * (31616 - 4096 - 32)))
        int32 $((127 << 23))
        zeros 124
    } >>"$1"
}

# examples FILE COUNT : as many, of tokens below 61; prints how many a column model answers right. No two
# completions have means that are closer than 0.01, so that no rounding decides.
examples() {
    header "$1" 20240522 1 "$2" 128
    awk -v count="$2" -v answer="$scratch/answer" '
        function draw(n) { state = (state * 1103515245 + 12345) % 2147483648; return int(state / 65536) % n }
        function add(x) { number[++used] = x }
        BEGIN {
            state = 4242
            for (e = 0; e < count; e++) {
                do {
                    used = 0
                    for (i = 1; i <= 3; i++) add(i == 1 ? 65535 : e)
                    label = draw(4); add(label); add(4)
                    n = 1 + draw(5); add(n)
                    while (n-- > 0) add(draw(61))
                    close_ones = 0
                    for (c = 0; c < 4; c++) {
                        n = 1 + draw(6); add(n); sum = 0
                        for (i = 0; i < n; i++) { t = draw(61); add(t); sum += t }
                        mean[c] = sum / n
                        for (k = 0; k < c; k++) { d = mean[k] - mean[c]; if (d * d < 1e-4) close_ones = 1 }
                    }
                } while (close_ones)
                number[2] = 2 * used
                best = 0
                for (c = 1; c < 4; c++) if (mean[c] > mean[best]) best = c
                right += best == label
                for (i = 1; i <= used; i++) printf "\\%03o\\%03o", number[i] % 256, int(number[i] / 256)
            }
            print right + 0 >answer
        }' >"$scratch/escapes"
    # The format is the octal escapes themselves.
    # shellcheck disable=SC2059
    printf "$(cat "$scratch/escapes")" >>"$1"
    cat "$scratch/answer"
}

test_hellaswag() {
    make_column_model "$scratch/column.bin"
    right=$(examples "$scratch/exam" 37)
    if [ "$right" -gt 0 ] && [ "$right" -lt 37 ]; then pass; else fail "examples: $right of 37 are right"; fi
    data="-i $scratch/tokens -j $scratch/tokens -sh 0"
    run="-e $scratch/column.bin -t 16 $data -g 0 -v -1 -h 1 -hf $scratch/exam"
    for how in '' '-pn 2 -z 1' '-pn 2 -z 3' '-pn 3 -z 2' '-pn 3 -z 3 -b 1' '-pn 2 -b 5' '-b 3 -dt bf16' '-pn 3 -z 3 -b 30' \
        '-pn 2 -cp 2 -z 1 -b 5' '-pn 4 -cp 2 -z 3' '-pn 2 -cp 2 -ca ring -z 1 -b 5' '-pn 4 -cp 4 -ca both -z 3'; do
        train $run -x 0 $how >/dev/null
        same "HellaSwag $how" "$right/37" "$(sed -n 's/^HellaSwag: \([0-9/]*\) = .*/\1/p' "$scratch/out")"
    done
    train $run -x 4 -v 2 -o "$scratch/evaluated" >/dev/null
    same 'HellaSwag: when' 2 "$(grep -c '^HellaSwag: [0-9]*/37 = 0\.[0-9]*$' "$scratch/out")"
    same 'HellaSwag: main.log' 's:2 s:4 ' "$(sed -n 's/^\(s:[0-9]*\) eval:0\.[0-9]\{4\} t:.*/\1/p' \
        "$scratch/evaluated/main.log" | tr '\n' ' ')"
    reference=$(train $small $data -x 4 -nt 1)
    same 'HellaSwag changes no weights' "$reference" "$(train $small $data -x 4 -nt 1 -h 1 -hf "$scratch/exam")"
    for ranks in 1 3; do
        head -c 1501 "$scratch/exam" >"$scratch/cut_exam"
        refused 'HellaSwag, cut' 1 "-hf: $scratch/cut_exam: byte [0-9]*: expected" $small $data -h 1 \
            -hf "$scratch/cut_exam" -pn $ranks
        refused 'HellaSwag, a short window' 1 "-hf: $scratch/exam: -t 4 is too short for its longest example" $small \
            $data -t 4 -h 1 -hf "$scratch/exam" -pn $ranks
        refused 'HellaSwag, other tokens' 1 "-hf: $scratch/tokens: expected magic number 20240522" $small $data \
            -h 1 -hf "$scratch/tokens" -pn $ranks
    done
}

# Files may have 1 KB, so that the log is full after some steps.
test_full_log() {
    for go_on in 0 1; do
        log=$scratch/full$go_on/main.log
        { (trap '' XFSZ; ulimit -f 2; exec timeout -k 1 60 "$trainer" $small -x 40 -nf $go_on \
            -o "$scratch/full$go_on") 2>&3; echo $? >&4; } 3>"$scratch/err" 4>"$scratch/code" | cat >"$scratch/out"
        code=$(cat "$scratch/code")
        if [ $go_on = 0 ]; then
            lost 'a full log' "^train_gpt2_zero: -o: $log cannot be written: File too large"
        else
            lost 'a full log, -nf 1' "^train_gpt2_zero: -o: $log lacks [0-9]* lines"
            same 'a full log, -nf 1, told once' 1 "$(grep -c 'warning: .* cannot be written: File too large' "$scratch/err")"
            same 'a full log, -nf 1, all steps' 40 "$(grep -c '^step' "$scratch/out")"
        fi
        same "a full log, -nf $go_on, whole lines" "$(grep -c '' "$log")" \
            "$(grep -c '^s:[0-9]* trl:.* mib:[0-9.]*$' "$log")"
    done
}

test_log() {
    mkdir -p "$scratch/pipe" "$scratch/odd/main.log"
    mkfifo "$scratch/pipe/main.log"
    refused 'a named pipe as main.log' 1 "-o: $scratch/pipe/main.log cannot be written: it is not a regular file" $small -x 2 \
        -o "$scratch/pipe"
    refused 'a named pipe as -ds' 1 "-ds: $scratch/pipe/main.log: cannot be opened: it is not a regular" \
        $small -x 2 -ds "$scratch/pipe/main.log"
    refused 'a named pipe as -dso' 1 "-dso: $scratch/pipe/main.log cannot be written: it is not a regular" \
        $small -x 2 -ds "$scratch/ds.json" -dso "$scratch/pipe/main.log"
    refused 'a named pipe as -csv' 1 "-csv: $scratch/pipe/main.log cannot be written: it is not a regular" \
        $small -x 2 -z 0,1 -rd 1 -csv "$scratch/pipe/main.log"
    refused 'a folder as main.log' 1 "-o: $scratch/odd/main.log cannot be written" $small -x 2 -o "$scratch/odd"
    before=$(date +%s)
    train $small -x 6 -v 3 -m 1 -o "$scratch/fields" >/dev/null
    same 'fields of steps' 6 "$(grep -c -E '^s:[0-9]+ trl:[0-9.]+ lr:[0-9.]+ norm:[0-9.]+ t:[0-9]+\.[0-9]{3} ms:[0-9]+\.[0-9]{3} tps:[0-9]+ mib:[0-9]+\.[0-9]$' \
        "$scratch/fields/main.log")"
    same 'fields of validations' 3 "$(grep -c -E '^s:[0-9]+ tel:[0-9.]+ t:[0-9.]+$' "$scratch/fields/main.log")"
    same 'times are of this run, in order' yes "$(sed 's/.* t:\([0-9]*\)\..*/\1/' "$scratch/fields/main.log" |
        awk -v from="$before" -v to="$(date +%s)" '$1 < from || $1 > to || $1 < last { bad = 1 } { last = $1 }
            END { print bad || NR != 9 ? "no" : "yes" }')"
    same 'tokens/s and time of a step' yes "$(sed -n 's/.* ms:\([0-9.]*\) tps:\([0-9]*\) mib:\([0-9.]*\)$/\1 \2 \3/p' \
        "$scratch/fields/main.log" | awk '{ d = $1 * $2 / 1000 - 192; if (d < -2 || d > 2 || $3 < 5) bad = 1 }
            END { print bad || NR != 6 ? "no" : "yes" }')"
}

# The folder of -o goes away while a run is in it.
test_removed_folder() {
    start -o "$scratch/gone"
    steps=$(grep -c '^step' "$scratch/out")
    rm -rf "$scratch/gone"
    for _ in $(seq 50); do [ "$(grep -c '^step' "$scratch/out")" -gt $((steps + 9)) ] || sleep 0.2; done
    kill -TERM $job
    wait $job 2>/dev/null
    same 'removed folder, told' 1 "$(grep -c 'warning: .*/gone/main.log was removed, and is made again' "$scratch/err")"
    same 'removed folder, every line' yes "$(awk -F '[: ]' '$2 != NR - 1 { bad = 1 } END { print bad || NR < 10 ? "no" : "yes" }' \
        "$scratch/gone/main.log")"
}

# A token file that is cut while a run reads it.
test_cut_data() {
    for run in '' '-pn 2 -z 3' '-pn 2 -pt 1'; do
        cp "$build/data/tiny_char_train.bin" "$scratch/cut"
        start -i "$scratch/cut" -sh 2 $run
        truncate -s 1100 "$scratch/cut"
        ended "cut token file, $run" 1 "^train_gpt2_zero: $scratch/cut: it had 2008732 bytes when it was opened, and has 1100 now"
    done
}

# ---- mpirun --------------------------------------------------------------------------------------

# refused_mpi NAME PATTERN ARGUMENT... : mpirun adds lines of its own to the trainer's one
refused_mpi() {
    name=$1 pattern=$2
    shift 2
    timeout -k 1 20 "$mpirun" "$@" >"$scratch/out" 2>"$scratch/err"
    code=$?
    if [ $code -eq 0 ] || [ $code -ge 124 ]; then
        fail "$name: exit code $code"
    else
        same "$name, one line" 1 "$(grep -c '^train_gpt2_zero: ' "$scratch/err")"
        same "$name, what it says" 1 "$(grep -c -e "^train_gpt2_zero: .*$pattern" "$scratch/err")"
    fi
}

test_mpi() {
    if ! "$trainer" --help | grep -q 'by mpirun'; then
        export OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0
        refused 'mpirun without MPI' 2 'without MPI.*-pn 2'
        unset OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK
        return
    fi
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_rmaps_base_oversubscribe=1
    reference=$(train $small -x 3 -nt 1 -pn 2)
    for stage in 0 3; do
        timeout -k 1 60 "$mpirun" -n 2 "$trainer" $small -x 3 -nt 1 -z $stage >"$scratch/out" \
            2>"$scratch/err"
        same "mpirun, stage $stage" "$reference" "$(sed -n 's/^weights //p' "$scratch/out")"
    done
    packed="$small -x 3 -nt 1 -z 3 -qw 8 -qg 4 -qf 0.8 -ns 2"
    reference=$(train $packed -pn 4)
    timeout -k 1 60 "$mpirun" -n 4 "$trainer" $packed >"$scratch/out" 2>"$scratch/err"
    same 'mpirun, packed traffic' "$reference" "$(sed -n 's/^weights //p' "$scratch/out")"
    for how in '' '-zs 2 -zh 2'; do
        filed="$small -x 3 -nt 1 -z 3 $how"
        reference=$(train $filed -pn 4)
        timeout -k 1 60 "$mpirun" -n 4 "$trainer" $filed -zos file -zog file -zop file -zfd "$scratch" >"$scratch/out" \
            2>"$scratch/err"
        same "mpirun, all in files $how" "$reference" "$(sed -n 's/^weights //p' "$scratch/out")"
        same "mpirun, tiers $how" 'parameters file, gradients file, optimizer file' "$(tiers)"
    done
    refused_mpi 'mpirun, -pn' 'leave -pn out' -n 2 "$trainer" $small -pn 3
    refused_mpi 'mpirun, unknown flag' "unknown flag '-Q'" -n 2 "$trainer" -Q 1
    for ds in '' '-ds tests/ds_config/minimal.json'; do
        other='-ds tests/ds_config/minimal.json'
        [ -n "$ds" ] && other=
        refused_mpi 'mpirun, -ds on one rank' '-ds FILE.*-ds none\|-ds none.*-ds FILE' -n 1 "$trainer" \
            $small $ds : -n 1 "$trainer" $small $other
    done
    refused_mpi 'mpirun, settings differ' '-t 32.*-t 16' -n 1 "$trainer" $small : \
        -n 1 "$trainer" $small -t 32
    refused_mpi 'mpirun, -o on one rank' '-o (none).*-o PATH' -n 1 "$trainer" $small -o "$scratch/one" : \
        -n 1 "$trainer" $small
    mkdir -p "$scratch/a" "$scratch/b"
    cp "$scratch/tokens" "$scratch/a/x"
    cp "$scratch/length" "$scratch/b/x"
    refused_mpi 'mpirun, one wrong file' 'x: ' -wdir "$scratch/a" -n 1 "$trainer" $small -i x \
        -j x : -wdir "$scratch/b" -n 1 "$trainer" $small -i x -j x
    test_mpi_models
    timeout -k 1 20 "$mpirun" -n 2 "$trainer" --help >"$scratch/out" 2>"$scratch/err"
    same 'mpirun, help, exit code' 0 $?
    same 'mpirun, help once' 1 "$(grep -c '^usage: ' "$scratch/out")"
    test_mpi_room
}

# A model of 2 layers of 32, all 0, in both folders; then one with another last byte.
test_mpi_models() {
    header "$scratch/a/m.bin" 20240326 3 64 61 2 2 32 128
    zeros $((4 * 31616)) >>"$scratch/a/m.bin"
    cp "$scratch/a/m.bin" "$scratch/b/m.bin"
    cp "$scratch/tokens" "$scratch/b/x"
    run="-e m.bin -t 16 -v -1 -g 0 -x 2 -i x -j x"
    timeout -k 1 60 "$mpirun" -wdir "$scratch/a" -n 1 "$trainer" $run : -wdir "$scratch/b" -n 1 \
        "$trainer" $run >"$scratch/out" 2>"$scratch/err"
    same 'mpirun, equal models' 1 "$(grep -c '^weights ' "$scratch/out")"
    mkdir "$scratch/a/f"
    refused_mpi 'mpirun, a folder of one rank' 'a file in f: No such' -wdir "$scratch/a" -n 1 "$trainer" \
        $run -zos file -zfd f : -wdir "$scratch/b" -n 1 "$trainer" $run -zos file -zfd f
    head -c $((1024 + 4 * 31616 - 1)) "$scratch/a/m.bin" >"$scratch/b/m.bin"
    printf '\001' >>"$scratch/b/m.bin"
    refused_mpi 'mpirun, models differ' 'm.bin of hash .* m.bin of hash' -wdir "$scratch/a" -n 1 \
        "$trainer" $run : -wdir "$scratch/b" -n 1 "$trainer" $run
}

# With 64 MB in /dev/shm for 170 MB of parameters and gradients; only where one may mount there.
test_mpi_room() {
    unshare -m mount -t tmpfs -o size=64m none /dev/shm 2>/dev/null || return 0
    # The inner shell splits its own arguments.
    # shellcheck disable=SC2016
    timeout -k 1 60 unshare -m sh -c 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"' sh \
        "$mpirun" -n 2 "$trainer" -e char:6x384x6 -t 16 -v -1 -g 0 -x 1 -z 2 >"$scratch/out" \
        2>"$scratch/err"
    same 'mpirun, small /dev/shm' 1 "$(grep -c 'weights [0-9a-f]\{16\}$' "$scratch/out")"
}

make_files
test_usage
test_wrong_files
test_wrong_sizes
test_no_data
test_same_weights
test_types
test_default_run
test_interruption
# Those above that take long call `sampled` themselves; those below do not.
for name in defaults settings sample packed conversion deepspeed tiers little_memory delayed tiles away offload \
    same_batches comparison output flags terminal hellaswag full_log log removed_folder cut_data mpi; do
    if sampled 4; then test_$name; fi
done
[ $skipped -gt 0 ] && more=", $skipped skipped" || more=
echo "$passed passed, $failed failed$more"
[ "$failed" -eq 0 ]
