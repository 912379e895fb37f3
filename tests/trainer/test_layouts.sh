#!/bin/sh
# test_layouts.sh [BUILD_DIR] - layouts of the ranks as the trainer's users meet them: -tp, -sp, -pp, -cp, -ut, -ds
# and -layouts beside one rank, and what cannot be. TRAINER names another program than ./train_gpt2_zero.
# Run it where the trainer's default data is found. The last line is `N passed, N failed`.

# shellcheck disable=SC2086

build=${1:-build}
trainer=${TRAINER:-./train_gpt2_zero}
mkdir -p "$build" || exit 1
scratch=$build/test_layouts.$$
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
small="-e char:2x32x4 -t 16 -v 2 -m 1 -g 6 -x 4 -u 0 -d 256 -nt 1"
run() { # NAME FLAGS...
    name=$1
    shift
    timeout 100 "$trainer" $small "$@" >"$scratch/$name" 2>&1
}
numbers() { sed -n 's/^step.* loss \([0-9.]*\) .*norm \([0-9.]*\) .*/\1 \2/p; s/^val loss //p' "$scratch/$1"; }
weights() { sed -n 's/^weights //p' "$scratch/$1"; }
# near NAME AS: losses and norms, as they are printed
near() {
    numbers "$1" >"$scratch/a"
    numbers "$2" >"$scratch/b"
    far=$(paste "$scratch/a" "$scratch/b" | awk '
        { for (i = 1; i <= NF / 2; i++) { d = $i - $(i + NF / 2); if (d < 0) d = -d; if (d > m) m = d }; n++ }
        END { print (n >= 6) ? m + 0 : 99 }')
    check "$(awk "BEGIN { print ($far <= 0.0002) ? 1 : 0 }")" "$1: losses or norms differ by $far: $(tail -n 1 "$scratch/$1")"
}
refused() { # WORDS FLAGS...
    words=$1
    shift
    run refused "$@"
    check "$(grep -c -- "$words" "$scratch/refused" | sed 's/^[1-9].*/1/')" "$*: expected '$words', found: $(tail -n 1 "$scratch/refused")"
}

for untied in 0 1; do
    run one -pn 1 -ut $untied
    for way in "-pn 2 -tp 2" "-pn 4 -tp 4 -sp 1" "-pn 4 -tp 2 -sp 1 -r 3" "-pn 2 -tp 2 -zl 32" "-pn 4 -tp 2 -pp 2 -sp 1 -zl 32 -r 4 -z 3 -zfd $scratch"; do
        run way $way -ut $untied
        near way one
    done
done
# sequences divided over ranks: near one rank, and the same bits at every stage
run one -pn 1
for way in "-pn 2 -cp 2" "-pn 4 -cp 4 -r 3 -zl 32" "-pn 4 -cp 2 -b 4 -m 2 -mo layers -r 4 -zfd $scratch" \
    "-pn 4 -cp 4 -ca ring -r 3 -zl 32" "-pn 4 -cp 2 -ca ring -b 4 -m 2 -mo layers -r 4 -zfd $scratch"; do
    for stage in 0 1 2 3; do
        run c$stage $way -z $stage
        check "$([ -n "$(weights c0)" ] && [ "$(weights c0)" = "$(weights c$stage)" ] && echo 1)" \
            "$way: stage $stage has other weights than stage 0: $(tail -n 1 "$scratch/c$stage")"
    done
    near c0 one
done
run way -pn 4 -cp 4 -ca both -r 2
near way one
sed -n '/^---/,/^---/p' "$scratch/one" >"$scratch/text"
sed -n '/^---/,/^---/p' "$scratch/c0" | cmp -s - "$scratch/text"
check $((!$?)) "a sample of context-parallel ranks is that of one"
for way in "-cp 2" "-cp 2 -ca ring"; do
    for stage in 0 3; do
        run o$stage -pn 2 $way -z $stage -dt fp16 -li 1e9
        check "$(grep -c 'skipped 4: wte' "$scratch/o$stage")" "$way -z $stage: an overflow skips on all ranks"
    done
done
# together with tensor parallelism
run one -pn 1
for way in "-cp 2" "-cp 2 -ca ring -zl 32 -r 3"; do
    for stage in 0 3; do run t$stage -pn 4 -tp 2 $way -z $stage; done
    check "$([ -n "$(weights t0)" ] && [ "$(weights t0)" = "$(weights t3)" ] && echo 1)" \
        "-tp 2 $way: stage 3 has other weights than stage 0: $(tail -n 1 "$scratch/t3")"
    near t0 one
done
# together with sequence parallelism
for way in "-cp 2" "-cp 2 -ca ring -zl 32 -r 3"; do
    for stage in 0 3; do run s$stage -pn 4 -tp 2 -sp 1 $way -z $stage; done
    check "$([ -n "$(weights s0)" ] && [ "$(weights s0)" = "$(weights s3)" ] && echo 1)" \
        "-tp 2 -sp 1 $way: stage 3 has other weights than stage 0: $(tail -n 1 "$scratch/s3")"
    near s0 one
done
# and in a model with experts, where no choice is dropped: those of one rank, shared by context-parallel ranks
run one -pn 1 -en 4 -ec 4 -ea 0
for way in "-pn 2 -cp 2" "-pn 4 -cp 2 -eg 4" "-pn 4 -cp 4 -ca ring -r 3 -eg 2" "-pn 4 -cp 2 -b 4 -m 2 -mo layers -eg 2 -ego 1" "-pn 4 -cp 2 -tp 2 -sp 1 -eg 2"; do
    for stage in 0 3; do run e$stage $way -en 4 -ec 4 -ea 0 -z $stage; done
    check "$([ -n "$(weights e0)" ] && [ "$(weights e0)" = "$(weights e3)" ] && echo 1)" \
        "-en 4 $way: stage 3 has other weights than stage 0: $(tail -n 1 "$scratch/e3")"
    near e0 one
done
# the auxiliary loss is a mean over pieces: with its weight of 100 the norm is near that of whole sequences
norm() { sed -n 's/^step *1\/.*norm \([0-9.]*\) .*/\1/p' "$scratch/$1"; }
run one -pn 1 -en 4 -ec 4 -ea 100
run way -pn 4 -cp 4 -en 4 -ec 4 -ea 100 -eg 2
check "$(awk "BEGIN { r = $(norm way) / $(norm one); print (r > 0.7 && r < 1.4) ? 1 : 0 }")" \
    "the auxiliary loss of pieces: norm $(norm way), of whole sequences $(norm one)"
# MLPs in tiles of tokens
run one -pn 1
for way in "-pn 1" "-pn 2 -cp 2" "-pn 4 -cp 2 -tp 2 -sp 1" "-pn 4 -cp 4 -ca ring -b 4 -m 4 -mo layers"; do
    for stage in 0 3; do run m$stage $way -mt 24 -r 4 -zfd "$scratch" -z $stage; done
    check "$([ -n "$(weights m0)" ] && [ "$(weights m0)" = "$(weights m3)" ] && echo 1)" \
        "-mt 24 $way: stage 3 has other weights than stage 0: $(tail -n 1 "$scratch/m3")"
    near m0 one
done
# a number of ranks that no number of heads suits
run one -pn 1 -t 24 -d 384
for way in "-pn 3 -cp 3" "-pn 6 -cp 6 -z 3 -st all"; do
    run way $way -t 24 -d 384
    near way one
done
check "$(grep -c '6 context-parallel (2 Ulysses x 3 ring)' "$scratch/way")" "the settings say how ranks attend"
run traced -pn 2 -cp 2 -ca ring -x 2 -tr "$scratch/trace.json" -tb 1
check "$(grep -c 'messages' "$scratch/trace.json" | sed 's/^[1-9].*/1/')" "the trace has the messages of a ring"
as_whole() { # STAGE FLAG...: a pipeline has the bits of the run `whole`
    run piped -pn 4 -pp 2 -ut 1 -b 2 -z "$@"
    check "$([ -n "$(weights piped)" ] && [ "$(weights piped)" = "$(weights whole)" ] && echo 1)" \
        "-pp 2 -z $*: other weights than without a pipeline: $(tail -n 1 "$scratch/piped")"
}
# a pipeline with delayed updates, inputs of blocks away, wte in tiles, state in files: the bits of the same without one
for way in "-zod 2" "-zod 1 -zos file -zfd $scratch" "-r 4 -zfd $scratch" "-zl 32" "-zod 2 -zl 64 -r 4 -zos file -zfd $scratch -dt bf16"; do
    run whole -pn 2 -ut 1 -b 2 -za local -zg f32 $way
    for stage in 0 3; do
        as_whole $stage $way
    done
done
# pieces of sequences in a pipeline: the bits of the same pieces without one
for way in "-cp 2" "-cp 2 -ca ring -r 4 -zl 32 -zfd $scratch"; do
    run whole -pn 2 -ut 1 -b 2 -za local -zg f32 $way
    for stage in 0 3; do as_whole $stage $way; done
done
run one -pn 1
run way -pn 8 -tp 2 -cp 2 -pp 2 -b 2 -m 8 -z 2
near way one
run over -pn 4 -cp 2 -pp 2 -b 2 -z 2 -dt fp16 -li 1e9
check "$(grep -c 'skipped 4: ' "$scratch/over")" "-cp 2 -pp 2: an overflow skips on all ranks: $(tail -n 1 "$scratch/over")"
# and with reductions of every micro-step, which gradients in a file take by themselves
for way in "-za sharded" "-zog file -zfd $scratch"; do
    run whole -pn 2 -ut 1 -b 2 -za sharded -zg f32 -z 2
    for stage in 2 3; do
        as_whole $stage $way
    done
done
run gathers -pn 4 -pp 2 -b 2 -z 3 -zm 0 -st all
check "$(grep -c 'to gather weights .* MiB, in every micro-step' "$scratch/gathers")" "the plan says what gathering costs a pipeline"
refused '-tk 2: in a pipeline (-pp 2) the layers are on several ranks; use -tr' -pn 2 -pp 2 -tk 2
# rules that look at whole tensors
for rule in lamb muon 'muon -mh 1 -mp 1'; do
    run one -pn 1 -op $rule
    for way in "-pn 2 -tp 2" "-pn 4 -tp 4 -sp 1"; do
        run way $way -op $rule
        near way one
    done
    for stage in 0 3; do run r$stage -pn 8 -tp 2 -pp 2 -op $rule -z $stage; done
    check "$([ -n "$(weights r0)" ] && [ "$(weights r0)" = "$(weights r3)" ] && echo 1)" \
        "-op $rule: stage 3 has other weights than stage 0: $(tail -n 1 "$scratch/r3")"
done
for sequence in 0 1; do
    for stage in 0 1 2 3; do run z$stage -pn 4 -tp 2 -sp $sequence -z $stage -za sharded; done
    for stage in 1 2 3; do
        check "$([ -n "$(weights z0)" ] && [ "$(weights z0)" = "$(weights z$stage)" ] && echo 1)" \
            "-sp $sequence: stage $stage has other weights than stage 0: $(tail -n 1 "$scratch/z$stage")"
    done
done
# smaller masters and state: every layout has the bits of its stage 0
for way in "-w split -os bf16" "-w split -os 8bit -oe f32" "-w 0 -os 8bit --freeze h.0.*"; do
    for layout in "-tp 2 -sp 1" "-pp 2 -b 2"; do
        for stage in 0 1 3; do run w$stage -pn 4 -dt bf16 -zg f32 -za sharded $way $layout -z $stage; done
        for stage in 1 3; do
            check "$([ -n "$(weights w0)" ] && [ "$(weights w0)" = "$(weights w$stage)" ] && echo 1)" \
                "$way $layout: stage $stage has other weights than stage 0: $(tail -n 1 "$scratch/w$stage")"
        done
    done
done
sed -n '/^---/,/^---/p' "$scratch/one" >"$scratch/text"
run text_of_parts -pn 2 -tp 2 -ut 1
sed -n '/^---/,/^---/p' "$scratch/text_of_parts" | cmp -s - "$scratch/text"
check $((!$?)) "a sample of two ranks is that of one"

run log -pn 2 -tp 2 -o "$scratch/folder"
check "$([ "$(grep -c trl "$scratch/folder/main.log")" = 4 ] && echo 1)" "one rank alone writes main.log"

# DeepSpeed's keys are the flags
cat >"$scratch/ds.json" <<JSON
{"train_batch_size": 16, "gradient_accumulation_steps": 4, "gradient_clipping": "auto",
 "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
 "tensor_parallel": {"autotp_size": 2}, "pipeline": {"stages": 2, "seed_layers": true},
 "activation_checkpointing": {"partition_activations": true}, "zero_optimization": {"stage": 1}}
JSON
timeout 100 "$trainer" -e char:2x32x4 -t 16 -nt 1 -x 4 -pn 8 -ds "$scratch/ds.json" >"$scratch/file" 2>&1
run flags -pn 8 -tp 2 -pp 2 -sp 1 -z 1 -b 2 -k constant
check "$([ -n "$(weights file)" ] && [ "$(weights file)" = "$(weights flags)" ] && echo 1)" \
    "-ds: other weights than with -tp 2 -pp 2 -sp 1: $(tail -n 1 "$scratch/file")"
cat >"$scratch/cp.json" <<JSON
{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "sequence_parallel_size": 2, "gradient_clipping": "auto",
 "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
 "zero_optimization": {"stage": 2}}
JSON
timeout 100 "$trainer" -e char:2x32x4 -t 16 -nt 1 -x 4 -pn 4 -ds "$scratch/cp.json" >"$scratch/cp_file" 2>&1
run flags -pn 4 -cp 2 -z 2 -b 4 -k constant
check "$([ -n "$(weights cp_file)" ] && [ "$(weights cp_file)" = "$(weights flags)" ] && echo 1)" \
    "-ds: other weights than with -cp 2: $(tail -n 1 "$scratch/cp_file")"
check "$(grep -c 'pipeline.seed_layers has no effect: first weights are the same at every layout' "$scratch/file")" \
    "-ds: what has no effect is told"

timeout 200 "$trainer" -e char:2x32x4 -t 16 -b 4 -nt 1 -x 4 -rd 2 -pn 4 -layouts "dp4 tp2dp2, tp4 pp2dp2 tp2pp2 cp2dp2" \
    -csv "$scratch/csv" >"$scratch/layouts" 2>&1
check "$(cut -d, -f17 "$scratch/csv" | tr '\n' ' ' | grep -c '^layout dp4 tp2dp2 tp4 pp2dp2 pp2tp2 cp2dp2 $')" "a row for each layout: $(tail -n 1 "$scratch/layouts")"
check "$(sed 1d "$scratch/csv" | cut -d, -f13 | awk '{ if (NR == 1) l = $1; d = $1 - l; if (d < 0) d = -d; if (d > m) m = d } END { print (NR == 6 && m < 1e-4) ? 1 : 0 }')" \
    "layouts have one loss"
check "$(sed 1d "$scratch/csv" | awk -F, '{ d = $10 / $11 - 1; if (d < 0) d = -d; if (d > m) m = d } END { print (NR == 6 && m < 0.05) ? 1 : 0 }')" \
    "layouts send what the formula says"

check "$(sed 1d "$scratch/csv" | awk -F, '{ ok += $3 > 0 && $5 > 0 && $12 > 0 && $18 > 0 } NR == 1 { whole = $5 } $5 < 0.6 * whole { less++ } END { print (ok == 6 && less == 4) ? 1 : 0 }')" \
    "layouts have speed, memory, exposed time and activations of their own, and parts of the parameters"
check "$(grep -c '^| pp2tp2 |' "$scratch/layouts")" "the table has a row for pp2tp2"

refused 'cannot be divided into groups of this size; the nearest size is -tp 2' -pn 2 -tp 3
refused 'the number does not divide the 4 heads; the nearest number that does is 2' -pn 3 -tp 3
refused 'must divide the 15 tokens of a sequence; the nearest number that does is 1' -pn 2 -tp 2 -sp 1 -t 15 -d 240
refused '-sp 1: sequence parallelism needs tensor parallelism' -pn 2 -sp 1
refused 'cannot be divided into groups of this size; the nearest size is -cp 2' -pn 2 -cp 3
refused 'do not divide the 4 heads, which attention divides among them; the nearest number that does is 4' \
    -pn 8 -cp 8 -ca ulysses
refused 'do not divide sequences of 20 tokens into the 8 pieces of a ring; the nearest length is 16' \
    -pn 4 -cp 4 -ca ring -t 20 -d 0 -b 1
refused 'cannot be a ring of groups that exchange heads' -pn 2 -cp 2 -ca both
refused '-mt 24: an MLP in tiles keeps no values for backward' -pn 1 -mt 24
refused '-ca: context-parallel ranks divide attention (found -cp 1); add -cp N' -pn 2 -ca ring
refused 'with -sp also over 4 -tp ranks; the nearest length is 8' -pn 8 -cp 2 -tp 4 -sp 1 -t 12 -d 0 -b 1
refused '4 data-parallel and context-parallel ranks cannot be divided into groups of this size; the nearest size is -eg 2' -pn 4 -cp 2 -en 6 -eg 3
refused 'do not divide sequences of 13 tokens; the nearest length is 12' -pn 2 -cp 2 -t 13 -d 0 -b 1
refused 'accumulates gradients in f32, because several micro-steps are in progress at once; use -zg f32' -pn 2 -pp 2 -b 4 -dt bf16 -zg type
refused 'tp2dp2 is for 4 ranks (found 2)' -pn 2 -layouts tp2dp2 -b 1 -d 0
refused "'tp2x' is not a layout" -pn 2 -layouts tp2x -b 1 -d 0
refused 'gives tensor_parallel: -tp 2; leave one of the two out' -pn 8 -tp 4 -d 0 -ds "$scratch/ds.json"
refused 'a comparison saves no checkpoints' -pn 2 -layouts 'tp2 dp2' -b 1 -d 0 -n 2 -o "$scratch/saves"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
