#!/bin/sh
# test_llmc.sh BUILD - adapters/llmc: apply on the toy in tests/llmc/whole, with each of its places
# missing or doubled, and with changes that must not be lost; what it makes of the toy trains. With LLMC=PATH, a checkout of llm.c (it is
# copied, not touched), the same for the real thing: losses, memory and hooks of a 4-layer model and
# of the 124M model (LLMC_LARGE=0 leaves that out), and both .cu files compiled and linked with CUDA.
# Without LLMC that part counts as skipped. Last line: N passed, N failed[, N skipped].
set -u
B=$1
tests=$(cd "$(dirname "$0")/.." && pwd)
passed=0 failed=0 skipped=0
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
# A copy of the adapter, which knows the toy as well as llm.c.
mkdir -p "$scratch/ours/adapters"
cp -r "$tests/../adapters/llmc" "$scratch/ours/adapters/"
cp -r "$tests/../zero_plugin.h" "$tests/../zero_plugin.cu" "$tests/../zero_plugin" "$scratch/ours/"
adapter=$scratch/ours/adapters/llmc
apply=$adapter/apply
"$apply" --known "$tests/llmc/whole" >>"$adapter/known" || exit 1
trainers='train_gpt2.c train_gpt2_fp32.cu train_gpt2.cu'
awk=${AWK:-awk}

pass() { passed=$((passed + 1)); echo "ok      $1"; }
miss() { failed=$((failed + 1)); echo "FAILED: $1"; }
# check NAME COMMAND...: passes if the command does
check() { name=$1; shift; if "$@" >"$scratch/check"; then pass "$name"; else miss "$name"; head -n 20 "$scratch/check"; fi; }
same() { if [ "$2" = "$3" ]; then pass "$1"; else miss "$1: expected '$2', found '$3'"; fi; }
zero_name() { echo "${1%.*}_zero.${1##*.}"; }

# ---- apply, on the toy ----
toy() { rm -rf "$scratch/toy of ours"; cp -r "$tests/llmc/whole" "$scratch/toy of ours"; }
untouched() { diff -r "$tests/llmc/whole" "$scratch/toy of ours"; }

test_apply() {
    toy
    check 'apply, in a path with a blank' "$apply" "$scratch/toy of ours"
    cp -r "$scratch/toy of ours" "$scratch/once"
    "$apply" "$scratch/toy of ours" >"$scratch/out"
    same 'apply reports what it wrote' 1 "$(grep -c "^written to .*: zero.mk train_gpt2_zero.c train_gpt2_fp32_zero.cu train_gpt2_zero.cu" "$scratch/out")"
    check 'twice is once' diff -r "$scratch/once" "$scratch/toy of ours"
    same 'three trainers and a makefile are made' 4 \
        "$(diff -rq "$tests/llmc/whole" "$scratch/once" | grep -c '^Only in .*once')"
    same 'nothing else is changed' 4 "$(diff -rq "$tests/llmc/whole" "$scratch/once" | grep -c .)"
    next=$(sed -n 's/^  \(cd .* make -f zero.mk train_gpt2_zero\) .*/\1/p' "$scratch/out")
    check "the next command can be pasted: $next" sh -c "$next -n"
    "$apply" --revert "$scratch/toy of ours"
    check 'revert leaves no trace' untouched
    check 'revert of what was never applied' "$apply" --revert "$scratch/toy of ours"
}

test_refusals() {
    toy
    echo mine >"$scratch/toy of ours/zero.mk"
    check "a file that is somebody's is not overwritten" sh -c '! "$0" "$1" 2>/dev/null' "$apply" "$scratch/toy of ours"
    check 'nor removed' sh -c '! "$0" --revert "$1" 2>/dev/null' "$apply" "$scratch/toy of ours"
    same 'it is as it was' mine "$(cat "$scratch/toy of ours/zero.mk")"
    toy
    rm "$scratch/toy of ours/train_gpt2.cu"
    check 'a trainer is missing' sh -c '"$0" "$1" 2>&1 | grep -q "train_gpt2.cu is missing"' "$apply" "$scratch/toy of ours"
    check 'no folder' sh -c '! "$0" "$1/none" 2>/dev/null' "$apply" "$scratch"
    "$apply" >/dev/null 2>&1
    same 'no path' 2 $?
}

# refused NAME SENTENCE ARGS...: apply refuses with this sentence, and changes nothing
refused() {
    title=$1 sentence=$2
    shift 2
    rm -rf "$scratch/before"
    cp -r "$scratch/toy of ours" "$scratch/before"
    "$apply" "$@" "$scratch/toy of ours" >"$scratch/out" 2>&1
    same "$title: refused" 1 $?
    check "$title: told" grep -q -e "$sentence" "$scratch/out"
    check "$title: nothing is changed" diff -r "$scratch/before" "$scratch/toy of ours"
}

# A user's own changes are lost by --force alone.
test_edited() {
    toy
    "$apply" "$scratch/toy of ours" >/dev/null
    for made in zero.mk train_gpt2_zero.c train_gpt2_fp32_zero.cu train_gpt2_zero.cu; do
        echo '#line 7' >>"$scratch/toy of ours/$made"
        refused "$made was edited" "edited after this script made them: $made; nothing was changed"
        refused "$made was edited, --revert" "edited after this script made them: $made; nothing was changed" --revert
        "$apply" --force "$scratch/toy of ours" >/dev/null
        check "$made: --force makes it again" "$apply" "$scratch/toy of ours"
    done
    echo '// mine' >>"$scratch/toy of ours/train_gpt2_zero.c"
    check '--revert --force' "$apply" --revert --force "$scratch/toy of ours"
    check '--revert --force leaves no trace' untouched
}

# lost FILE FUNCTION SED: a change in a part of FILE that its zero version does not have
lost() {
    toy
    sed -i "$3" "$scratch/toy of ours/$1"
    check "$1: $3 is a change" sh -c '! cmp -s "$1" "$2"' sh "$tests/llmc/whole/$1" "$scratch/toy of ours/$1"
    refused "$1: a change in $2" "^$1: $2: lines* [0-9].* would be lost"
    check "$1: a change in $2: --force" "$apply" --force "$scratch/toy of ours"
}
test_lost() {
    lost train_gpt2.c gpt2_update 's/decay \* model->params/2 * &/'
    lost train_gpt2.c gpt2_build_from_checkpoint 's/\(params_memory = malloc_and_point.*\);/\1 + 0;/'
    lost train_gpt2_fp32.cu adamw_kernel2 's/params -= decay/params -= 2 * decay/'
    lost train_gpt2_fp32.cu gpt2_build_from_checkpoint 's/read(params_memory_cpu)/read(params_memory_cpu + 1)/'
    lost train_gpt2.cu gpt2_allocate_weights 's/\(params_memory = malloc_and_point.*\);/\1 + 0;/'
    toy
    sed -i 's/gpt2_update(&model, 1e-2f/gpt2_update(\&model, 2e-2f/' "$scratch/toy of ours/train_gpt2.c"
    check 'a change that the zero version has is no hindrance' "$apply" "$scratch/toy of ours"
    check 'it is there' grep -q 'llmc_update(&model.mean_loss, 2e-2f' "$scratch/toy of ours/train_gpt2_zero.c"
}

# Root may write everywhere, so it becomes nobody for this.
test_read_only() {
    toy
    as=
    if [ "$(id -u)" -eq 0 ]; then
        command -v setpriv >/dev/null || { skipped=$((skipped + 1)); return; }
        as='setpriv --reuid=65534 --regid=65534 --clear-groups'
    fi
    mkdir -p "$scratch/copy/adapters"
    cp -r "$adapter" "$scratch/copy/adapters/"
    chmod -R a+rX "$scratch"
    chmod a-w "$scratch/toy of ours"
    $as "$scratch/copy/adapters/llmc/apply" "$scratch/toy of ours" >"$scratch/out" 2>&1
    same 'a folder that cannot be written to' 1 $?
    check 'the sentence says so' grep -q 'cannot be written to; nothing was written' "$scratch/out"
    chmod u+w "$scratch/toy of ours"
    check 'and nothing was' untouched
}

# edit EDIT SOURCE: exit code of edit.awk, its words in $scratch/out
edit() {
    rm -f "$scratch/made"
    $awk -v name="${1##*/}" -v out="$scratch/made" -f "$adapter/edit.awk" "$1" "$2" >"$scratch/out" 2>&1
}

# Each place gone, and there twice: an error that names it, and nothing is written.
test_places() { # FILE FOLDER
    $awk -v list=1 -v name=x -v out=/dev/null -f "$adapter/edit.awk" "$adapter/$1.edit" "$2/$1" >"$scratch/places"
    wrong=0 places=0
    while read -r line word text; do
        places=$((places + 1))
        for how in d p; do
            sed "$line$how" "$2/$1" >"$scratch/variant"
            [ $how = d ] && times=0 || times=2
            what="$text: function found $times times"
            # A place that is its function's first line is missed as the function.
            case $text in ^int\ main*) what="main: function found $times times" word=in ;; esac
            [ "$word" = find ] && what="/$text/ found $times times"
            if edit "$adapter/$1.edit" "$scratch/variant" || [ -e "$scratch/made" ] ||
                ! grep -qF "$what" "$scratch/out"; then
                wrong=$((wrong + 1))
                echo "    line $line, sed $how: $what: $(head -n 2 "$scratch/out")"
            fi
        done
    done <"$scratch/places"
    same "$1: each of $places places missing and doubled" 0 $wrong
    check "$1: there are places" [ $places -gt 10 ]
}

test_missing_by_apply() {
    for file in $trainers; do
        toy
        line=$($awk -v list=1 -v name=x -v out=/dev/null -f "$adapter/edit.awk" "$adapter/$file.edit" \
            "$scratch/toy of ours/$file" | $awk '$2 == "find" { n = $1 } END { print n }')
        sed -i "${line}d" "$scratch/toy of ours/$file"
        cp -r "$scratch/toy of ours" "$scratch/before"
        "$apply" "$scratch/toy of ours" >"$scratch/out" 2>&1
        same "$file with a place missing" 1 $?
        check "$file: it is named" grep -q "^$file: .* found 0 times, expected 1" "$scratch/out"
        check "$file: nothing is written" diff -r "$scratch/before" "$scratch/toy of ours"
        rm -rf "$scratch/before"
    done
}

# ---- trained: what is made against what it was ----

# run OUT FOLDER PROGRAM ARGS...: its output; losses OUT: what must be equal of it
run() {
    out=$1 folder=$2
    shift 2
    (cd "$folder" && exec timeout -k 5 "${LIMIT:-300}" "$@") >"$out" 2>"$out.err" </dev/null
}
losses() { sed 's/ (took.*//' "$1" | grep -a -v '^num_'; }
# Largest difference of the training losses of two runs, over the steps that both have; at least N.
apart() { # OUT OUT N
    { losses "$1"; echo next; losses "$2"; } | $awk -v least="$3" '/^next/ { second = 1 }
        /^step/ { n[second + 0]++; loss[second + 0, $2] = $NF }
        END { for (i = 0; (0, i ":") in loss && (1, i ":") in loss; i++) {
                  d = loss[0, i ":"] - loss[1, i ":"]; if (d < 0) d = -d; if (d > worst) worst = d }
              print i < least ? "too-few-steps" : worst + 0 }'
}
at_most() { [ "$2" != too-few-steps ] && $awk -v a="$1" -v b="$2" 'BEGIN { exit !(b <= a) }'; }

# All stages and ranks of a trainer that has -z and -pn, and its original, in one folder.
compare() { # NAME FOLDER ORIGINAL ZERO STEPS
    OMP_NUM_THREADS=1 run "$scratch/original" "$2" "$3"
    for ranks in 1 2 3; do
        OMP_NUM_THREADS=1 run "$scratch/stage0" "$2" "$4" -z 0 -pn $ranks
        same "$1, $ranks ranks: it ends well" 0 $?
        for stage in 1 2 3; do
            OMP_NUM_THREADS=1 run "$scratch/stage" "$2" "$4" -z $stage -pn $ranks
            losses "$scratch/stage" >"$scratch/a"
            losses "$scratch/stage0" >"$scratch/b"
            check "$1, $ranks ranks: stage $stage prints what stage 0 prints" cmp "$scratch/a" "$scratch/b"
        done
        worst=$(apart "$scratch/original" "$scratch/stage0" "$5")
        if [ $ranks -eq 1 ]; then
            check "$1: one rank within 1e-4 of the original for $5 steps: $worst" at_most 1e-4 "$worst"
        else
            check "$1: $ranks ranks take other batches" sh -c '! [ "$1" = 0 ]' sh "$worst"
        fi
    done
}

# The toy that test_toy has built, with decay: in train_gpt2.c all tensors have it, biases and norms too.
test_decay() {
    sed -i 's/1e-8f, 0.0f/1e-8f, 0.5f/' "$scratch/toy of ours/train_gpt2.c"
    "$apply" "$scratch/toy of ours" >/dev/null
    make -s -C "$scratch/toy of ours" -f zero.mk CC="${CC:-cc}" train_gpt2_zero
    "${CC:-cc}" -O2 -w -o "$scratch/toy of ours/train_gpt2" "$scratch/toy of ours/train_gpt2.c" -lm
    OMP_NUM_THREADS=1 run "$scratch/original" "$scratch/toy of ours" ./train_gpt2
    OMP_NUM_THREADS=1 run "$scratch/decayed" "$scratch/toy of ours" ./train_gpt2_zero
    worst=$(apart "$scratch/original" "$scratch/decayed" 20)
    check "toy: all tensors decay as the original's do: $worst" at_most 1e-4 "$worst"
}

# The parent is killed before its children have asked to end with it: they end all the same, and train nothing.
test_orphans() {
    cat >"$scratch/late.c" <<'END'
#include <sys/syscall.h>
#include <unistd.h>
int prctl(int option, unsigned long x) {
    sleep(1);
    return (int)syscall(SYS_prctl, option, x, 0, 0, 0);
}
END
    "${CC:-cc}" -shared -fPIC -D_GNU_SOURCE -o "$scratch/late.so" "$scratch/late.c" || miss 'toy: prctl that comes late'
    (cd "$scratch/toy of ours" && LD_PRELOAD=$scratch/late.so exec stdbuf -oL ./train_gpt2_zero -pn 2) >"$scratch/x" 2>&1 </dev/null &
    pid=$!
    for _ in $(seq 100); do
        children=$(cat /proc/$pid/task/$pid/children 2>/dev/null)
        # shellcheck disable=SC2086 # a list
        set -- $children
        [ $# = 2 ] && break
        sleep 0.02
    done
    kill -9 $pid
    wait $pid 2>/dev/null
    same 'toy: two ranks had begun' 2 $#
    for _ in $(seq 100); do
        { kill -0 "${1:-0}" || kill -0 "${2:-0}"; } 2>/dev/null || break
        sleep 0.1
    done
    check 'toy: ranks whose parent has died train nothing' sh -c '! grep -q step "$0"' "$scratch/x"
}

test_toy() {
    toy
    "$apply" "$scratch/toy of ours" >/dev/null
    check 'the toy builds by zero.mk' make -s -C "$scratch/toy of ours" -f zero.mk CC="${CC:-cc}" train_gpt2_zero
    "${CC:-cc}" -O2 -w -o "$scratch/toy of ours/train_gpt2" "$scratch/toy of ours/train_gpt2.c" -lm
    "$B/make_files" "$scratch/toy of ours" 3 16 2 32 8
    compare toy "$scratch/toy of ours" ./train_gpt2 ./train_gpt2_zero 20
    test_decay
    for flag in --help -x; do
        run "$scratch/x" "$scratch/toy of ours" ./train_gpt2_zero -pn 2 $flag
        same "toy: $flag" "$([ $flag = -x ] && echo 1 || echo 0)" $?
        check "toy: $flag shows the flags" grep -q -e '-pn <int> *ranks' "$scratch/x" "$scratch/x.err"
        check "toy: $flag trains nothing" sh -c '! grep -q step "$0"' "$scratch/x"
    done
    check 'toy: -x is named' grep -q "no flag of train_gpt2_zero: '-x'" "$scratch/x.err"
    run "$scratch/x" "$scratch/toy of ours" ./train_gpt2_zero -z 4
    same 'toy: -z 4 is refused' 1 $?
    same 'toy: in one line' "expected -z 0..3, found '4'" "$(cat "$scratch/x.err")"
    test_orphans
    rm "$scratch/toy of ours/gpt2_124M.bin"
    run "$scratch/x" "$scratch/toy of ours" ./train_gpt2_zero -pn 2
    same 'toy: a rank that fails ends all, with its code' 3 $?
    "$apply" --revert "$scratch/toy of ours"
    same 'what was built is removed as well' '' "$(find "$scratch/toy of ours" -name '*zero*')"
}

# Checkpoints of train_gpt2.cu's kind, without a GPU.
test_state() {
    sh "$tests/../zero_plugin/drop.sh" "$scratch/zero" >/dev/null
    "${CC:-cc}" -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Wpedantic -Wshadow -Werror -I"$scratch/zero" -I"$tests/.." -o "$B/test_llmc_state" \
        "$tests/llmc/test_state.c" "$B/lib/libzero_plugin.a" -lm -fopenmp -pthread
    check 'a run that goes on from its checkpoint is the run that was never interrupted' "$B/test_llmc_state" "$scratch"
}

# ---- llm.c itself ----

changed_lines() { # FILE FILE: lines of which either side of a hunk has more
    diff -U0 "$1" "$2" | $awk 'function hunk() { sum += minus > plus ? minus : plus; minus = plus = 0 }
        /^@@/ { hunk(); inside = 1; next } !inside { next } /^-/ { minus++ } /^\+/ { plus++ } END { hunk(); print sum + 0 }'
}

llmc_copy() {
    mkdir "$scratch/llmc"
    cp "$LLMC"/*.c "$LLMC"/*.cu "$LLMC/Makefile" "$scratch/llmc/" && cp -r "$LLMC/llmc" "$scratch/llmc/"
    rm -f "$scratch"/llmc/*_zero.c*
    cp -r "$scratch/llmc" "$scratch/llmc_before"
}

test_llmc_apply() {
    "$apply" "$scratch/llmc" >"$scratch/out" 2>&1
    same 'llm.c: applied' 0 $?
    cat "$scratch/out"
    for file in $trainers; do test_places "$file" "$LLMC"; done
    check 'train_gpt2.c: at most 20 changed lines' [ "$(changed_lines "$LLMC/train_gpt2.c" "$scratch/llmc/train_gpt2_zero.c")" -le 20 ]
    check 'train_gpt2_fp32.cu: at most 35' [ "$(changed_lines "$LLMC/train_gpt2_fp32.cu" "$scratch/llmc/train_gpt2_fp32_zero.cu")" -le 35 ]
    check 'train_gpt2.cu becomes shorter' [ "$(wc -l <"$scratch/llmc/train_gpt2_zero.cu")" -lt "$(wc -l <"$LLMC/train_gpt2.cu")" ]
    same 'train_gpt2.cu: none of its own collectives is left' 0 \
        "$(grep -v '^//' "$scratch/llmc/train_gpt2_zero.cu" | grep -c 'ncclAll\|ncclReduce\|zero_stage ==\|shard_num_parameters\|multi_gpu_async')"
}

test_llmc_small() {
    check 'llm.c: builds by its own makefile' make -s -C "$scratch/llmc" train_gpt2
    check 'llm.c: builds by zero.mk' make -s -C "$scratch/llmc" -f zero.mk train_gpt2_zero
    "$B/make_files" "$scratch/small" 4 48 4 256 64
    compare '4 layers' "$scratch/small" "$scratch/llmc/train_gpt2" "$scratch/llmc/train_gpt2_zero" 20
}

# until STEP OUT FOLDER PROGRAM ARGS...: run ended after that step; OUT.pss has each rank's kB then.
until_step() {
    step=$1 out=$2 folder=$3
    shift 3
    : >"$out"
    (cd "$folder" && ZERO_STATS=1 exec stdbuf -oL "$@") >"$out" 2>"$out.err" </dev/null &
    pid=$!
    while kill -0 $pid 2>/dev/null; do
        grep -a -q "^step $step:" "$out" && break
        sleep 0.2
    done
    ranks_of=$(cat /proc/$pid/task/$pid/children 2>/dev/null)
    for p in ${ranks_of:-$pid}; do $awk '/^Pss:/ { print $2 }' "/proc/$p/smaps_rollup"; done >"$out.pss" 2>/dev/null
    kill $pid 2>/dev/null
    wait $pid 2>/dev/null
}

# With 124M a sequence of 32 tokens is enough to compare bits, and what the hooks cost is measured
# with the batch that the trainer has.
test_llmc_large() {
    large=$scratch/large
    "$B/make_files" "$large" 12 768 12 50257 1024
    for file in train_gpt2 train_gpt2_zero; do
        mv "$scratch/llmc/$file.c" "$scratch/whole.c"
        sed 's/int B = 4;/int B = 1;/; s/int T = 64;/int T = 32;/' "$scratch/whole.c" >"$scratch/llmc/$file.c"
        make -s -C "$scratch/llmc" -f zero.mk $file >/dev/null && mv "$scratch/llmc/$file" "$large/$file"
        mv "$scratch/whole.c" "$scratch/llmc/$file.c"
    done
    until_step 19 "$scratch/original" "$large" ./train_gpt2
    until_step 19 "$scratch/stage0" "$large" ./train_gpt2_zero
    worst=$(apart "$scratch/original" "$scratch/stage0" 20)
    check "124M: one rank within 1e-4 of the original for 20 steps: $worst" at_most 1e-4 "$worst"
    for ranks in 1 2 3; do
        for stage in 0 1 2 3; do
            OMP_NUM_THREADS=1 until_step 2 "$scratch/large_$ranks$stage" "$large" ./train_gpt2_zero -z $stage -pn $ranks
            losses "$scratch/large_$ranks$stage" | sed '/^step 2:/q' >"$scratch/a"
            if [ $stage -eq 0 ]; then
                cp "$scratch/a" "$scratch/b"
                same "124M, $ranks ranks: three steps" 3 "$(grep -c '^step' "$scratch/b")"
            else
                check "124M, $ranks ranks: stage $stage prints what stage 0 prints" cmp "$scratch/a" "$scratch/b"
            fi
            tail -n 1 "$scratch/large_$ranks$stage.err" | sed "s/^/    $ranks ranks, stage $stage: /"
            echo "    PSS of a rank: $(sort -n "$scratch/large_$ranks$stage.pss" | tail -n 1) kB"
        done
        [ $ranks -gt 1 ] && check "124M, $ranks ranks: memory falls by stage, as the formula says" \
            falls $ranks
    done
    make -s -C "$scratch/llmc" -f zero.mk train_gpt2_zero >/dev/null
    until_step 2 "$scratch/own" "$large" "$scratch/llmc/train_gpt2_zero"
    share=$(hook_share "$scratch/own")
    check "124M: hooks of stage 0 take at most 1 % of a step: $share %" at_most 1 "$share"
}

# Allocated bytes of a rank are the formula's and buffers, which are next to nothing at stages 0 and 1
# and below the two largest units at 2 and 3 (a sixth of the formula of stage 0 for each, embeddings and
# a block); PSS falls with them from 0 to 1 and from 2 to 3.
falls() { # RANKS
    for stage in 0 1 2 3; do
        sort -n "$scratch/large_$1$stage.pss" | tail -n 1 | tr '\n' ' '
        tail -n 1 "$scratch/large_$1$stage.err"
    done | $awk '{ for (i = 1; i < NF; i++) if ($i == "formula" || $i == "allocated") at[$i, NR] = $(i + 1); pss[NR] = $1 * 1024 }
        END { if (NR != 4) exit 1
              for (i = 1; i <= 4; i++) {
                  buffers = at["allocated", i] - at["formula", i]
                  if (buffers < -0.001 * at["formula", 1] || buffers > (i < 3 ? 0.005 : 0.34) * at["formula", 1]) exit 1 }
              exit !(pss[1] - pss[2] > 0.8 * (at["formula", 1] - at["formula", 2]) && pss[3] > pss[4] && pss[2] >= pss[3] * 0.9) }'
}

# Time in hooks between the second and the third step, of the third step's.
hook_share() {
    { grep '^zero: step' "$1.err"; grep -a '^step' "$1"; } | $awk '/^zero/ { hooks[$3] = $5 } /^step 2:/ { ms = $(NF - 1); sub(/\(/, "", ms) }
        END { if (ms + 0 == 0 || !hooks[3]) print "too-few-steps"
              else print 100 * (hooks[3] - hooks[2]) / (ms / 1000) }'
}

test_llmc_cuda() {
    command -v nvcc >/dev/null || { skipped=$((skipped + 2)); echo "skipped llm.c's .cu files: nvcc is not installed"; return; }
    for program in train_gpt2_fp32_zerocu train_gpt2_zerocu; do
        make -s -C "$scratch/llmc" -f zero.mk GPU_COMPUTE_CAPABILITY=90 $program >"$scratch/out" 2>&1
        check "llm.c: $program is compiled and linked" [ -x "$scratch/llmc/$program" ]
        [ -x "$scratch/llmc/$program" ] || tail -n 20 "$scratch/out"
    done
}

test_llmc_revert() {
    make -s -C "$scratch/llmc" clean >/dev/null 2>&1
    "$apply" --revert "$scratch/llmc"
    rmdir "$scratch/llmc/build" 2>/dev/null
    check 'llm.c: revert leaves no trace' diff -r "$scratch/llmc_before" "$scratch/llmc"
}

mkdir -p "$B"
"${CC:-cc}" -O2 -std=c11 -D_GNU_SOURCE -o "$B/make_files" "$tests/llmc/make_files.c" || exit 1
test_apply
test_refusals
test_read_only
for file in $trainers; do test_places "$file" "$tests/llmc/whole"; done
test_missing_by_apply
test_edited
test_lost
test_toy
test_state
if [ -n "${LLMC:-}" ]; then
    llmc_copy
    test_llmc_apply
    test_llmc_small
    test_llmc_cuda
    if [ "${LLMC_LARGE:-1}" = 0 ]; then skipped=$((skipped + 1)); else test_llmc_large; fi
    test_llmc_revert
else
    skipped=$((skipped + 1))
    echo 'skipped llm.c itself: LLMC is not set'
fi
[ $skipped -gt 0 ] && more=", $skipped skipped" || more=
echo "$passed passed, $failed failed$more"
[ $failed -eq 0 ]
