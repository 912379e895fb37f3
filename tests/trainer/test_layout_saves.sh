#!/bin/sh
# test_layout_saves.sh [BUILD_DIR] - checkpoints of models in parts, as the trainer's users meet them: saved at
# one layout, gone on from at others, with the bits of a whole one; the tool; model files out and in.
# TRAINER names another program than ./train_gpt2_zero. Run it where the trainer's default data is found.
# The last line is `N passed, N failed`.

# shellcheck disable=SC2086

build=${1:-build}
trainer=${TRAINER:-./train_gpt2_zero}
tool=$build/zero_ckpt
mkdir -p "$build" || exit 1
scratch=$build/test_layout_saves.$$
mkdir "$scratch" || exit 1
trap 'rm -rf "$scratch"' EXIT
passed=0
failed=0
check() { # CONDITION WORDS
    if [ "$1" = 1 ]; then passed=$((passed + 1)); else
        failed=$((failed + 1))
        echo "FAILED: $2"
    fi
}
is() { # COMMAND...: succeeds
    "$@" >"$scratch/said" 2>&1 && echo 1
}
small="-e char:4x32x4 -t 16 -v 0 -s 0 -b 2 -d 256 -nt 1 -u 0"
run() { # NAME FLAGS...
    name=$1
    shift
    timeout 100 "$trainer" $small "$@" >"$scratch/$name.txt" 2>&1
}
weights() { sed -n 's/^weights //p' "$scratch/$1.txt"; }
why() { tail -n 1 "$scratch/$1.txt"; }
step() { printf '%s/%s/step_%08d' "$scratch" "$1" "$2"; }

# goes_on SAVED TOTAL AS FLAGS...: from a copy of SAVED and of the same in one file, whole, to step TOTAL: the same
# weights, optimizer's state and counters
goes_on() {
    of=$1 total=$2
    shift 2
    rm -rf "$scratch/parts" "$scratch/whole"
    cp -r "$scratch/$of" "$scratch/parts"
    "$tool" convert "$(step "$of" 2)" "$scratch/whole" >"$scratch/said" 2>&1
    run parts -o "$scratch/parts" -y 1 -x "$total" -n 100 "$@"
    run whole -o "$scratch/whole" -y 1 -x "$total" -n 100 "$@"
    check "$([ "$(weights parts)" ] && [ "$(weights parts)" = "$(weights whole)" ] && echo 1)" \
        "$of goes on as $*: other weights than from the whole one: $(why parts); $(why whole)"
    [ "$total" = 2 ] && return
    check "$(is "$tool" diff "$(step parts "$total")" "$(step whole "$total")")" \
        "$of goes on as $*: another state than from the whole one: $(cat "$scratch/said")"
}

# what is saved is the model: a whole one's hash, the tool's verdict, and every element once
saved() { # NAME FLAGS...
    run "$@" -o "$scratch/$1" -n 2 -x 2
    of=$1
    check "$([ "$(weights "$of")" ] && echo 1)" "$*: $(why "$of")"
    check "$(is "$tool" verify "$scratch/$of")" "$of: verify: $(cat "$scratch/said")"
    own=$(echo "$*" | grep -o -e "-ut 1")
    run again -o "$scratch/$of" -y 1 -x 2 $own
    check "$([ "$(weights "$of")" = "$(weights again)" ] && echo 1)" "$of: one rank reads other weights: $(why again)"
}
saved tp2 -pn 4 -tp 2 -z 2
saved cp2 -pn 4 -cp 2 -z 2
saved ring -pn 4 -cp 4 -ca ring -z 2
saved pp2 -pn 2 -pp 2 -z 1
saved pieces -pn 4 -cp 2 -pp 2 -z 3
saved all -pn 8 -tp 2 -pp 2 -ppv 2 -z 3 -sp 1
saved tiles -pn 4 -tp 2 -z 3 -zl 32 -zos file -zfd "$scratch"
saved piped -pn 4 -tp 2 -pp 2 -z 3 -zl 32 -r 4 -zod 2 -zos file -zfd "$scratch"
saved half -pn 4 -tp 2 -pp 2 -z 1 -dt bf16
saved small -pn 4 -tp 2 -pp 2 -z 3 -dt bf16 -w split -os 8bit -oe f32
check "$("$tool" show "$scratch/all" | grep -c '^tensor \(wte\|qkvw\|qkvb\|attprojw\|fcw\|fcb\|fcprojw\) .* in 2 parts$' | sed 's/^7$/1/')" \
    "show: seven tensors are in two parts"
check "$("$tool" list "$scratch/all" | grep -c 'step 2, 16 tensors, 55488 elements, adamw' )" "list: $("$tool" list "$scratch/all")"

goes_on tp2 4 -pn 4 -tp 2 -z 2
goes_on tp2 4 -pn 4 -tp 4 -z 3 -sp 1
goes_on tp2 4 -pn 2 -pp 2 -z 1
goes_on tp2 4 -pn 4 -cp 2 -z 3
goes_on cp2 4 -pn 4 -cp 4 -z 1
goes_on cp2 4 -pn 4 -cp 4 -ca ring -z 3
goes_on ring 4 -pn 4 -cp 2 -z 1
goes_on ring 4 -pn 4 -tp 2 -cp 2 -z 2
goes_on cp2 4 -pn 4 -tp 2 -z 2
goes_on pp2 4 -pn 4 -tp 2 -z 2
goes_on cp2 4 -pn 4 -cp 2 -pp 2 -z 2
goes_on pieces 4 -pn 2 -cp 2 -ca ring -z 1
goes_on pp2 4 -pn 2 -z 3 -zos file -zfd "$scratch"
goes_on all 4 -pn 1
goes_on all 4 -pn 4 -tp 2 -pp 2 -z 1
goes_on tiles 4 -pn 8 -tp 2 -pp 2 -z 3
goes_on piped 4 -pn 4 -pp 2 -z 2 -zl 32 -zod 1
goes_on piped 4 -pn 2 -z 1
goes_on half 4 -pn 2 -tp 2 -dt bf16 -z 2
goes_on half 4 -pn 2 -pp 2 -dt f32

# a run that is stopped and goes on is one that was not
run straight -pn 4 -tp 2 -pp 2 -z 1 -x 4
run first -pn 4 -tp 2 -pp 2 -z 1 -x 4 -n 2 -o "$scratch/straight"
rm -rf "$(step straight 4)"
run second -pn 4 -tp 2 -pp 2 -z 1 -x 4 -y 1 -o "$scratch/straight"
check "$([ "$(weights straight)" ] && [ "$(weights straight)" = "$(weights second)" ] && echo 1)" \
    "a run of tp2pp2 goes on with its own bits: $(why second)"

# aside, and with a damaged generation, from which all ranks turn to the one before
run aside -pn 4 -tp 2 -pp 2 -x 4 -n 2 -na 1 -o "$scratch/aside"
file=$(step aside 4)/shard_00003.bin
printf 'x' | dd of="$file" bs=1 seek=5000 conv=notrunc 2>/dev/null
run damaged -pn 2 -tp 2 -x 4 -y 1 -o "$scratch/aside"
check "$(grep -c 'resuming from step 2 in' "$scratch/damaged.txt")" "a damaged shard: $(why damaged)"

# model files are whole, dense models
for of in all tiles; do
    for kind in bin safetensors; do
        check "$(is "$tool" export "$scratch/$of" "$scratch/$of.$kind" f32)" "export $of.$kind: $(cat "$scratch/said")"
    done
    rm -f "$scratch/config.json"
    run out -o "$scratch/$of" -y 1 -x 2
    for in in "$of.bin -pn 4 -tp 2 -pp 2" "$of.safetensors -pn 2 -tp 2 -z 3" "$of.safetensors -pn 2 -pp 2"; do
        timeout 100 "$trainer" $small -x 0 -e "$scratch/"$in -i build/data/tiny_char_train.bin -j build/data/tiny_char_val.bin >"$scratch/in.txt" 2>&1
        check "$([ "$(weights in)" ] && [ "$(weights in)" = "$(weights out)" ] && echo 1)" "$in is read as another model: $(why in)"
    done
done

rm -f "$scratch/config.json"
# a classifier of its own: in safetensors, not in llm.c's files
saved untied -pn 4 -tp 2 -pp 2 -z 1 -ut 1
goes_on untied 4 -pn 2 -tp 2 -ut 1 -z 3
check "$(is "$tool" export "$scratch/untied" "$scratch/untied.safetensors")" "export untied.safetensors: $(cat "$scratch/said")"
check "$(grep -c '"tie_word_embeddings": false' "$scratch/config.json")" "config.json says that it is untied"
check "$([ "$(is "$tool" export "$scratch/untied" "$scratch/untied.bin")" = "" ] && grep -c "no place for a classifier that is not wte" "$scratch/said")" \
    "llm.c's file has no classifier: $(cat "$scratch/said")"
files="-i build/data/tiny_char_train.bin -j build/data/tiny_char_val.bin"
for as in "-pn 1" "-pn 4 -tp 2 -pp 2" "-pn 2 -tp 2 -zl 32"; do
    timeout 100 "$trainer" $small -x 0 -ut 1 -e "$scratch/untied.safetensors" $files $as >"$scratch/in.txt" 2>&1
    check "$([ "$(weights in)" ] && [ "$(weights in)" = "$(weights untied)" ] && echo 1)" "untied, $as: read as another model: $(why in)"
done
timeout 100 "$trainer" $small -x 0 -e "$scratch/untied.safetensors" $files >"$scratch/in.txt" 2>&1
check "$(grep -c 'the two are not tied' "$scratch/in.txt")" "-ut 0 takes no untied model: $(why in)"
check "$(is "$tool" convert "$scratch/untied.safetensors" "$scratch/back")" "convert untied.safetensors: $(cat "$scratch/said")"
check "$("$tool" list "$scratch/back" | grep -c ' 17 tensors')" "convert: $("$tool" list "$scratch/back")"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
