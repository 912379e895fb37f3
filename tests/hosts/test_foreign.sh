#!/bin/sh
# test_foreign.sh BUILD - trainers that were written without the plugin (tests/hosts), and what they gain
# by it: the lines between their marks are counted, and held to the README. With the plugin, without
# hooks and with them, their losses and weights are the same at stages 0-3 on 1, 2, 3 ranks, and on one
# rank what they were before; checked builds give the same, tell misuse that is planted here, and take at
# most five times the processor's time where hooks go around every token.
# Last line: N passed, N failed.
set -u
B=$1
here=$(dirname "$0")
root=$here/../..
dir=$B/foreign
flags="-std=c11 -D_GNU_SOURCE -O1 -ffp-contract=off -fopenmp -pthread -Wall -Wextra -Wpedantic -Wshadow -Werror"
steps=40
passed=0 failed=0
mkdir -p "$dir"
ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAILED: $*"; }
finish() { echo "$passed passed, $failed failed"; [ $failed -eq 0 ]; exit; }
export OMP_NUM_THREADS=1

rm -rf "$dir/zero"
sh "$root/zero_plugin/drop.sh" "$dir/zero" >/dev/null && ok || bad "make drop fails"
# shellcheck disable=SC2086
compile() { out=$1; shift; ${CC:-cc} $flags -I"$dir/zero" -o "$dir/$out" "$@" -lm; }
plugin() { # NAME FLAGS...
    out=$1
    shift
    # shellcheck disable=SC2086
    ${CC:-cc} $flags "$@" -x c -c -o "$dir/$out.o" "$dir/zero/zero_plugin.cu"
}
# Both by the same flags: the order in which a norm is summed depends on the width of vectors.
plugin plain && plugin checked -DZERO_CHECK=1 && ok || { bad "the drop does not compile"; finish; }
# both PROGRAM ARGUMENTS...: the program, and PROGRAM.checked with the checked build.
both() {
    compile "$@" "$dir/plain.o" || return
    program=$1
    shift
    compile "$program.checked" "$@" "$dir/checked.o"
}

# A host's files; `hooked HOST`: it can have hooks.
files() { if [ -d "$here/$1" ]; then ls "$here/$1"/*; else echo "$here/$1.c"; fi; }
sources() { files "$1" | grep '\.c$'; }
# shellcheck disable=SC2046
hooked() { grep -q '^#ifdef HOOKS' $(files "$1"); }
# count KIND HOST: lines of the host that are `step` (step one), `hooks`, `table` (of the tensors, and what
# hands it over), or `gone` with the plugin. A line that another one replaces is one gone and one of step
# one; blank lines, comments and what this test alone wants do not count.
count() {
    # shellcheck disable=SC2046
    cat $(files "$2") | awk -v want="$1" '
        function other(kind) { return kind == "step" ? "gone" : kind == "gone" ? "step" : kind }
        /^#if/ {
            up = depth ? kind[depth] : ""
            now = "step"
            if ($0 ~ /HOOKS/) now = up == "table" ? up : up == "" ? "macro" : "hooks"
            if ($1 == "#ifndef") now = other(now)
            if ($0 ~ /\/\* table \*\//) now = "table"
            if ($0 ~ /\/\* test \*\// || $0 ~ /_H$/) now = "test" # or the guard of a header
            kind[++depth] = now
            next
        }
        /^#else/ { kind[depth] = other(kind[depth]); next }
        /^#endif/ { depth--; next }
        /^ *$/ || /^ *\/\*.*\*\/$/ { next }
        / HOOK\(/ && !/^#/ { n["hooks"]++; next }
        depth { n[/\/\* table \*\/$/ ? "table" : kind[depth]]++ }
        END { print n[want] + 0 }'
}
lines() { # HOST
    step=$(count step "$1") hooks=$(count hooks "$1") table=$(count table "$1") gone=$(count gone "$1")
    echo "$1: $step lines for step one, $hooks for hooks, a table of $table; $gone lines go"
    [ "$step" -gt 5 ] && [ "$step" -le 15 ] && ok || bad "$1 gains $step lines, 15 at most"
    least=0
    if hooked "$1"; then least=4; fi
    [ "$hooks" -ge $least ] && [ "$gone" -gt 10 ] && ok || bad "$1: the marks are not understood"
}
lines token_gpt
gains="gains $step lines" more="hooks $hooks"
lines llama
gains="$gains, a Llama $step" more="$more and $hooks more"
lines mlp
gains="$gains, a perceptron of arrays in a struct $step"
lines lstm
gains="$gains, an LSTM in doubles over several files $step, in addition to their tables; $more"
tr '\n' ' ' <"$root/adapters/docs/integrate.md" | grep -qF "$gains" && ok || bad "integrate.md does not say '$gains'"

# ---- the same weights everywhere ----
run() { # FILE PROGRAM STAGE RANKS
    timeout 30 "$dir/$2" $steps "$3" "$4" >"$dir/$1" 2>&1
}
same() { # HOST PROGRAM STAGE RANKS: as stage 0 without hooks
    run now "$2" "$3" "$4" && ok || { bad "$2, stage $3, $4 ranks: exit code $?: $(tail -n 1 "$dir/now")"; return; }
    cmp "$dir/now" "$dir/$1.$4" && ok || bad "$2, stage $3, $4 ranks: other losses or weights"
}
for host in token_gpt llama mlp lstm; do
    source=$(sources $host) kinds=step
    # shellcheck disable=SC2086 # files
    compile $host $source && both $host.step -DZERO $source && ok || { bad "$host does not compile"; continue; }
    if hooked $host; then
        kinds="step hooks"
        # shellcheck disable=SC2086
        both $host.hooks -DZERO -DHOOKS $source && ok || bad "$host with hooks does not compile"
    fi
    timeout 30 "$dir/$host" $steps >"$dir/$host.all" && ok || bad "$host without the plugin: exit code $?"
    grep '^step' "$dir/$host.all" >"$dir/$host.before"
    for ranks in 1 2 3; do
        run $host.$ranks $host.step 0 $ranks
        [ "$(grep -c '^step' "$dir/$host.$ranks")" = $steps ] && grep -q '^weights [0-9a-f]*$' "$dir/$host.$ranks" &&
            ok || bad "$host, $ranks ranks: $(tail -n 1 "$dir/$host.$ranks")"
        for stage in 0 1 2 3; do
            for kind in $kinds; do [ $stage.$kind = 0.step ] || same $host $host.$kind $stage $ranks; done
        done
    done
    cmp -s "$dir/$host.1" "$dir/$host.2" && bad "$host: ranks have the same data" || ok
    # What it was before, but for the order of the optimizer's operations; and it learns.
    grep '^step' "$dir/$host.1" | paste -d ' ' - "$dir/$host.before" | awk '
        { difference = ($4 - $8) / $8; if (difference < 0) difference = -difference
          if (difference > most) most = difference
          if (NR <= 10) first += $8; if (NR > 30) last += $8 }
        END { print "one rank: losses differ by " most + 0 " at most; they fall from " first / 10 " to " last / 10
              exit !(NR == 40 && most < 1e-5 && last < 0.8 * first) }' && ok || bad "$host: not as without the plugin"
    for kind in $kinds; do
        for stage in 0 1 2 3; do same $host $host.$kind.checked $stage 2; done
        for ranks in 1 3; do same $host $host.$kind.checked 3 $ranks; done
    done
    run refused $host.step 4 2 && bad "$host: there is no stage 4" || ok
    grep -q 'stage is 4' "$dir/refused" && ok || bad "$host does not say what is wrong with stage 4"
done

# ---- hooks around every token, of documents that are as long: what a checked build costs ----
sed -e 's/const int length = .*/const int length = LONGEST - 2;/' -e 's/LONGEST = 14/LONGEST = 16/' -e 's/\.param = /.uses = 15, &/' \
    -e '/u = .*HOOK(zero_/d' \
    -e 's/^\( *for .*\)\(loss += forward(.*\)/#define ALL for (int u = 0; u < LAYERS + 2; u++)\n\1 { ALL HOOK(zero_forward_begin(z, u, ZERO_WANTED)); \2 ALL HOOK(zero_forward_end(z, u)); }/' \
    -e 's/^\( *for .*\)\(backward(i, .*\)/\1 { ALL HOOK(zero_backward_begin(z, u, ZERO_WANTED, NULL)); \2 ALL HOOK(zero_backward_end(z, u)); }/' \
    "$here/token_gpt.c" >"$dir/often.c"
spent() { # PROGRAM STAGE: seconds of processors, of 2 ranks
    sh -c 'timeout 60 "$1" 150 "$2" 2 >"$3" 2>&1; times' sh "$dir/$1" "$2" "$dir/$1.out" | awk 'END { split($1, u, /[ms]/); split($2, s, /[ms]/)
        print 60 * (u[1] + s[1]) + u[2] + s[2] }'
}
if both often -DZERO -DHOOKS "$dir/often.c"; then
    for stage in 0 1 2 3; do
        least=
        for pair in 1 2 3; do least="$least$(spent often $stage) $(spent often.checked $stage) "; done
        [ "$(grep -c '^step' "$dir/often.out")" = 150 ] && cmp "$dir/often.out" "$dir/often.checked.out" && ok || bad "often, stage $stage: other losses"
        echo "$least" | awk -v stage=$stage '{ for (i = 1; i < 7; i += 2) { p = !p || $i < p ? $i : p; c = !c || $(i + 1) < c ? $(i + 1) : c }
            printf "hooks 15 times a pass, stage %d: %.2f s checked, %.2f s otherwise\n", stage, c, p; exit !(p > 0 && c <= 5 * p) }' && ok ||
            bad "stage $stage: a checked build takes more than five times as long"
    done
else bad "often does not compile"; fi

# ---- misuse: the source is changed by sed, and a checked build tells it within seconds ----
# misuse NAME HOST FLAGS EXPECTED SED...: EXPECTED: what is said, or the exit code; at every stage
misuse() {
    name=$1 host=$2 options=$3 expected=$4
    shift 4
    sed "$@" "$here/$host.c" >"$dir/$name.c"
    cmp -s "$here/$host.c" "$dir/$name.c" && { bad "$name: nothing is planted"; return; }
    # shellcheck disable=SC2086
    compile "$name" $options -DZERO "$dir/$name.c" "$dir/checked.o" || { bad "$name does not compile"; return; }
    for stage in 0 1 2 3; do
        began=$(date +%s)
        run told "$name" $stage 2
        code=$?
        [ $(($(date +%s) - began)) -le 10 ] && ok || bad "$name, stage $stage: told late"
        echo "exit code $code" >>"$dir/told"
        grep -qE "$expected" "$dir/told" && ok ||
            bad "$name, stage $stage: $(tail -n 2 "$dir/told")"
    done
}
# A pointer is used behind the hook that ended it.
misuse token_late token_gpt -DHOOKS 'exit code 139' -e '/loss += forward(/{h;d}' -e '/HOOK(zero_forward_end/{p;g}'
misuse llama_late llama -DHOOKS 'exit code 139' -e '/ layer_forward(l, /{h;d}' -e '/HOOK(zero_forward_end(z, 1/{p;g}'
# Hooks inside the loop over positions: ranks have other lengths.
misuse token_often token_gpt -DHOOKS 'the same hooks' -e 's/\.param = /.uses = 99, &/' \
    -e 's/^\( *for .*\)\(loss += forward(.*\)/\1 { HOOK(zero_forward_begin(z, 0, ZERO_WANTED)); \2 HOOK(zero_forward_end(z, 0)); }/'
# One rank leaves out a layer.
misuse llama_seldom llama -DHOOKS 'the same hooks' -e 's/int l = 0; l < LAYERS/int l = zero_rank(z); l < LAYERS/' \
    -e 's/l >= 0; l--/l >= zero_rank(z); l--/'
# The optimizer of before is left in place (at stage 3 the host's write faults); a tensor is not KEEP, and
# there are no hooks; gradients of the host's own are freed at the end.
misuse token_optimizer token_gpt "" 'was written inside the pass|ended by signal 11 .*zero_train_begin: is a' \
    -e 's/^ *ZERO_TRY(zero_train_end/        for (int i = 0; i < TENSORS; i++) tensors[i].data[0] -= lr * tensors[i].grad[0];\n&/'
misuse token_forgotten token_gpt "" 'ended by signal 11 .*zero_train_begin: is a tensor not ZERO_KEEP' -e 's/^ *row.flags .= ZERO_KEEP/        (void)row/'
# zero_destroy sets the caller's pointers to NULL: a free after it does nothing.
misuse token_freed token_gpt "" 'weights [0-9a-f]+' -e 's/^ *zero_destroy(z);/&\n    free(tensors[WTE].data);/'
# `release` gets pointers into one block.
misuse llama_released llama "" 'ended by signal (6|11) .*zero_adopt: does .release. get|are in the same memory' -e 's/ZERO_F32, NULL/ZERO_F32, free/'
# An optimizer of the host's own, on arrays that stay its own.
misuse mlp_optimizer mlp "" 'tensor b1, layer 0, was written by your code' -e 's/^ *if (zero_lend_train(/    net->b1[3] -= lr * grad.b1[3];\n&/'
# Weights are written between steps (at stage 3 they are seen where their owner has them, and cannot be); the
# host's old arrays are read.
misuse token_written token_gpt "" 'tensor wte, layer 0, was written|exit code 139' -e 's/^ *printf("step .*/&\n        tensors[WTE].data[3] += 1;/'
misuse llama_old llama "" 'loss -?nan' -e 's/^ *free(block);/Weights old; map_weights(\&old, block);/' -e 's/layer_forward(l, &w/layer_forward(l, \&old/'
finish
