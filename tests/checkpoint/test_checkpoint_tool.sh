#!/bin/sh
# test_checkpoint_tool.sh BUILD - zero_ckpt on what a training leaves: lists, shows, verifies and
# compares generations, good ones and spoilt ones; to other programs' files and back, byte by byte,
# within 100 MiB of memory. Last line: N passed, N failed.
set -u
B=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/test_tool.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

# says CODE TEXT COMMAND...: the exit code, and output that holds TEXT
says() {
    code=$1 text=$2
    shift 2
    out=$("$B/zero_ckpt" "$@" 2>&1)
    got=$?
    if [ $got -eq "$code" ] && echo "$out" | grep -q -e "$text"; then passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "zero_ckpt $*: exit code $got, expected $code and '$text' in: $out"
    fi
}

CHECKPOINT_KEEP=$work/a "$B/test_checkpoint" tool >/dev/null || { echo "0 passed, 1 failed"; exit 1; }
says 0 "step_00000004 .*step 4, 5 tensors, 2126 elements, adamw" list "$work/a"
says 0 "tensor w  *3 x 333  *bf16 f32 f32" show "$work/a/step_00000004"
says 0 "value position = " show "$work/a/step_00000004"
says 0 "a/step_00000004, the newest that can be read" show "$work/a"
says 0 "tensor w  *3 x 333  *bf16 f32 f32" show "$work/a"
says 0 "step_00000002: good" verify "$work/a"
for command in "list $work/a" "show $work/a" "verify $work/a" --help; do
    # shellcheck disable=SC2086 # words
    out=$("$B/zero_ckpt" $command 2>&1 >/dev/full)
    got=$?
    if [ $got -eq 1 ] && [ "$out" = "zero_ckpt: the output cannot be written: No space left on device" ]; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "zero_ckpt $command >/dev/full: exit code $got: $out"; fi
done
says 0 "the same" diff "$work/a/step_00000002" "$work/a/step_00000002"
mkdir "$work/named" && cp -r "$work/a/step_00000002" "$work/named/step_00000077"
says 1 'step_00000077: .*holds step 2' verify "$work/named"
says 1 'holds step 2' export "$work/named" "$work/named.bin"
says 1 "wte, moment_1: [0-9]* of 1037 elements differ" diff "$work/a/step_00000002" "$work/a/step_00000004"
says 2 "cannot open the folder" list "$work/none"
says 2 "an argument is missing; use: zero_ckpt list FOLDER" list
printf X | dd of="$work/a/step_00000004/shard_00000.bin" bs=1 seek=4100 conv=notrunc 2>/dev/null
says 1 "step_00000004: .*corrupt in bytes 0 to" verify "$work/a"
says 1 "corrupt in bytes" diff "$work/a/step_00000002" "$work/a/step_00000004"
rm "$work/a/step_00000002/manifest.json"
says 1 "step_00000002 .*manifest.json" list "$work/a"
says 1 "a/step_00000002/manifest.json" show "$work/a/step_00000002"
cp -r "$work/a" "$work/bad"
printf X | dd of="$work/bad/step_00000004/manifest.json" bs=1 seek=50 conv=notrunc 2>/dev/null
says 1 "bad/step_00000004/manifest.json is corrupt" show "$work/bad/step_00000004"
says 1 "step_00000002 is skipped; there is no other checkpoint" show "$work/bad"

# ---- the files of other programs: what test_model_files writes ----
export OMP_NUM_THREADS=1
t=$work/t
mkdir "$t"
"$B/test_model_files" tool "$t" >"$work/log" 2>&1 || { cat "$work/log"; failed=$((failed + 1)); }

# same A B: the same bytes
same() {
    if cmp "$1" "$2"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}
# gone PATH...: none of these is there
gone() {
    for path in "$@"; do
        if [ ! -e "$path" ]; then passed=$((passed + 1))
        else failed=$((failed + 1)); echo "$path is there"; fi
    done
}
# back FILE TYPE END: a model file through a generation and back
back() {
    says 0 "g/step_00000000: 16 tensors" convert "$t/$1" "$t/g"
    says 0 "in $2" export "$t/g" "$t/back.$3" "$2"
    same "$t/$1" "$t/back.$3"
    says 0 "good" verify "$t/g"
    rm -rf "$t/g"
}
back model_f32.bin f32 bin
back model_bf16.bin bf16 bin
for type in f32 bf16 fp16; do back model_$type.safetensors $type safetensors; done

# a model in several files is the same as in one
says 0 "16 tensors" convert "$t/model.safetensors.index.json" "$t/parts" --step 12
says 0 "16 tensors" convert "$t/model_bf16.safetensors" "$t/whole_one" --step 12
says 0 "the same" diff "$t/parts/step_00000012" "$t/whole_one/step_00000012"
mv "$t/model-1.safetensors" "$t/model-x"
says 2 "model-1.safetensors: the file cannot be opened" convert "$t/model.safetensors.index.json" "$t/none"
gone "$t/none"

# llm.c's state and model files: what a context has after it has read them
for from in whole sharded; do
    says 0 "16 tensors" convert "$t/$from/model_f32.bin" "$t/g"
    says 0 "the same" diff "$t/g/step_00000000" "$t/$from/weights/step_00000000"
    says 0 "step_00000400: 16 tensors" convert "$t/$from/state_00000400_00000.bin" "$t/g" --model "$t/$from/model_f32.bin"
    says 0 "the same" diff "$t/g/step_00000400" "$t/$from/state/step_00000400"
    says 0 "value llmc.data_sample = 77" show "$t/g/step_00000400"
    says 0 "value gpt2.heads = 6" show "$t/g/step_00000400"
    says 2 "g has step_00000400: a run would resume from that" convert "$t/$from/model_f32.bin" "$t/g" --step 400
    rm -rf "$t/g"
done
mkdir "$t/headless" # one of other makers: no n_head in its header, no config.json
sed 's/"n_head":"6"/"n_hexd":"6"/' "$t/model_f32.safetensors" >"$t/headless/m.safetensors"
says 2 "add --heads N" convert "$t/headless/m.safetensors" "$t/none"
says 2 "heads is 5, but it is 6 there" convert "$t/model_f32.safetensors" "$t/none" --heads 5
says 2 "the heads do not divide" convert "$t/headless/m.safetensors" "$t/none" --heads 5
says 0 "16 tensors" convert "$t/whole/state_00000400_00000.bin" "$t/g" --model "$t/headless/m.safetensors" --heads 6
says 0 "value gpt2.heads = 6" show "$t/g/step_00000400"
rm -rf "$t/g"
says 2 "optimizer state, which does not contain the model" convert "$t/whole/state_00000400_00000.bin" "$t/none"
says 2 "llm.c's state has its step" convert "$t/whole/state_00000400_00000.bin" "$t/none" --model "$t/model_f32.bin" --step 3
cp "$t/model_f32.bin" "$t/x_00000.bin"
says 2 "x_00000.bin: no state file" convert "$t/x_00000.bin" "$t/none" --model "$t/model_f32.bin"
says 2 "not the state of the first rank" convert "$t/sharded/state_00000400_00001.bin" "$t/none" --model "$t/model_f32.bin"
gone "$t/none"

# a run of 3 ranks in bf16, whose masters are f32, against model_save in the run itself
for file in run_f32.bin run_bf16.bin run_f32.safetensors run_fp16.safetensors; do
    type=${file#run_} type=${type%%.*}
    mkdir "$t/out"
    says 0 "of step 9 in $type" export "$t/run" "$t/out/$file" "$type"
    same "$t/$file" "$t/out/$file"
    case $file in
    *.bin) gone "$t/out/config.json" ;;
    *)
        if grep -q '"n_head": 6' "$t/out/config.json"; then passed=$((passed + 1))
        else failed=$((failed + 1)); echo "no config.json"; fi
        says 0 "config.json is there and stays" export "$t/run/step_00000007" "$t/out/$file" ;;
    esac
    rm -r "$t/out"
done
says 0 "one/step_00000009: 16 tensors" convert "$t/run" "$t/one"
says 0 "the same" diff "$t/run/step_00000009" "$t/one/step_00000009"
says 2 "one has step_00000009: a run would resume" convert "$t/one/step_00000009" "$t/one"
gone "$t/one/step_00000009/shard_00001.bin" "$t/one/step_00000007"
says 0 "w .*bf16 f32 f32" show "$work/a/step_00000004" # weights without masters stay what they are
CHECKPOINT_KEEP=$work/b "$B/test_checkpoint" tool >/dev/null
says 0 "5 tensors" convert "$work/b/step_00000004" "$t/bf16"
says 0 "the same" diff "$work/b/step_00000004" "$t/bf16/step_00000004"
says 0 "value position = " show "$t/bf16/step_00000004"
for g in "$work/b" "$t/bf16"; do "$B/zero_ckpt" show "$g/step_00000004" >"$g.shown"; done
same "$work/b.shown" "$t/bf16.shown"

# without the values gpt2.* the tensors tell all but two numbers
says 2 "not a model of GPT-2: it has no tensor ln1w" export "$work/b" "$t/none.bin"
says 2 "gpt2.max_seq_len is missing; its tensors have 1 layers, 384 channels, 8 positions and 384 padded" export "$t/bare" "$t/none.bin" --heads 6
says 2 "5 heads do not divide 384 channels" export "$t/bare" "$t/none.bin" --heads 5 --vocab 300
says 2 "385 of 384 vocabulary entries are out of range" export "$t/bare" "$t/none.bin" --heads 6 --vocab 385
says 0 "of step 9" export "$t/bare" "$t/out.bin" --heads 6 --vocab 300
same "$t/out.bin" "$t/run_f32.bin"
says 2 "heads is 5, but it is 6 there" export "$t/run" "$t/none.bin" --heads 5

# damage: nothing is left of what was begun; of a folder, the next older generation is taken
printf X | dd of="$t/run/step_00000009/shard_00002.bin" bs=1 seek=50000 conv=notrunc 2>/dev/null
says 1 "shard_00002.bin is corrupt" export "$t/run/step_00000009" "$t/none.bin"
says 1 "shard_00002.bin is corrupt" export "$t/run/step_00000009" "$t/none.safetensors"
says 1 "shard_00002.bin is corrupt" convert "$t/run/step_00000009" "$t/none"
gone "$t"/none.* "$t"/none/step_*
says 0 "step_00000009 is skipped" export "$t/run" "$t/out.bin"
says 0 "out.bin: .* of step 7" export "$t/run" "$t/out.bin"
printf X | dd of="$t/run/step_00000007/manifest.json" bs=1 seek=50 conv=notrunc 2>/dev/null
says 1 "step_00000007 is skipped; there is no other" export "$t/run" "$t/none.bin"
says 2 "cannot open the folder" export "$t/nowhere" "$t/none.bin"
head -c 100000 "$t/model_f32.bin" >"$t/cut.bin"
says 2 "cut short" convert "$t/cut.bin" "$t/none"
gone "$t"/none.* "$t"/none/step_*

# what is said wrongly is said in one line
says 2 "lost: unknown command; use list, show" lost
says 2 "a command is missing"
says 2 "color: this command does not take it (red); use: zero_ckpt export" export "$t/run" "$t/none.bin" --color red
says 2 "heads: this command does not take it (six); use: zero_ckpt convert" convert "$t/model_f32.bin" "$t/none" --heads six
says 2 "step: this command does not take it (no value)" convert "$t/model_f32.bin" "$t/none" --step
says 2 "too many arguments; use: zero_ckpt convert" convert "$t/model_f32.bin" "$t/none" more
says 2 "TYPE: unknown type (f64); use f32" export "$t/bare" "$t/none.bin" f64
says 2 "llm.c's files have no fp16" export "$t/bare" "$t/none.bin" fp16
says 2 "OUT: the name has another ending; use .bin or .safetensors" export "$t/bare" "$t/none.pt"
says 2 "is converted without them" convert "$t/bare" "$t/none" --step 3
says 0 "zero_ckpt convert FOLDER" --help

# the trainer goes on from what was converted as from its own checkpoint, and as from a model file
data=$B/data/tiny_char
[ -f "${data}_train.bin" ] || data=build/data/tiny_char
# train FOLDER ARGUMENT...: the weights at its end
train() {
    folder=$t/$1
    shift
    timeout -k 1 60 "${TRAINER:-$B/train_gpt2_zero}" -i "${data}_train.bin" -j "${data}_val.bin" -t 16 -b 2 -d 96 \
        -s 0 -v 0 -nt 1 -pn 3 -z 3 -dt bf16 -o "$folder" "$@" >"$work/out" 2>&1
    sed -n 's/^weights //p' "$work/out"
}
# weights NAME EXPECTED FOUND
weights() {
    if [ -n "$2" ] && [ "$2" = "$3" ]; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "$1: weights '$3', expected '$2'"; tail -n 3 "$work/out"; fi
}
train log -e char:2x32x2 -x 6 -n 6 >/dev/null
says 0 "step_00000006" convert "$t/log" "$t/merged"
says 0 "of step 6" export "$t/log" "$t/log.bin"
says 0 "step_00000000" convert "$t/log.bin" "$t/weights"
weights "merged" "$(train log -e char:2x32x2 -x 9 -y 1)" "$(train merged -e char:2x32x2 -x 9 -y 1)"
weights "weights alone" "$(train from_file -e "$t/log.bin" -x 3 -l 1e-3 -u 100 -q 0.1 -c 0.1 -b2 0.99)" "$(train weights -e char:2x32x2 -x 3 -y 1)"

# losses and norms that outliers are judged by, kept bit by bit: decimal, on lines that can be read
train judged -e char:2x32x2 -x 40 -n 40 -sl 100 >/dev/null
says 0 "^value losses = 40 4\.[0-9]* 4\.[0-9]* " show "$t/judged"
"$B/zero_ckpt" show "$t/judged" >"$work/out" 2>&1
if [ "$(grep -c 0x "$work/out")" = 0 ] && awk '/^value/ { n += NF } length($0) > 100 { exit 1 } END { exit n < 40 }' "$work/out"; then passed=$((passed + 1))
else failed=$((failed + 1)); echo "show: hexadecimal numbers, or long lines: $(grep losses "$work/out")"; fi

# a pipe without a writer where a file is expected
mkdir -p "$t/pipe/step_00000001"
mkfifo "$t/pipe/step_00000001/manifest.json" "$t/pipe.bin"
says 1 'manifest.json' list "$t/pipe"
says 2 'pipe.bin: not a file' convert "$t/pipe.bin" "$t/pipe_out"

# memory: a model of 206 MB, whose generation has three times as much
"$B/test_model_files" large "$t" >/dev/null
# small COMMAND...: within 100 MiB
small() {
    out=$("$B/test_model_files" rss "$B/zero_ckpt" "$@" 2>&1)
    code=$? peak=$(echo "$out" | sed -n 's/^peak \([0-9]*\) kB$/\1/p')
    if [ $code -eq 0 ] && [ "${peak:-999999}" -lt 102400 ]; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "zero_ckpt $*: exit code $code, $out"; fi
}
small convert "$t/large.bin" "$t/big"
small export "$t/big" "$t/large_back.bin"
same "$t/large.bin" "$t/large_back.bin"
rm "$t"/large*.bin
small export "$t/big" "$t/large.safetensors" bf16
small convert "$t/large.safetensors" "$t/big3"
rm -r "$t/big3"
small convert "$t/big" "$t/big2"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
