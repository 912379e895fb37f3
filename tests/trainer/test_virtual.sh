#!/bin/sh
# test_virtual.sh BUILD - with -vr N, the trainer prints the same losses, norms and weights on each number of ranks that
# divides N. The cases differ in stage, types, state, update rule, offload, adapters and threads. A run that is resumed on
# another number of ranks goes on with the same bits, and with another -vr it reports that. Settings that -vr excludes are
# refused in one line. TRAINER names another program than BUILD/train_gpt2_zero. Last line: N passed, N failed.
# Lists of arguments are split at blanks on purpose.
# shellcheck disable=SC2086
set -u
B=$1
trainer=${TRAINER:-$B/train_gpt2_zero}
work=$(mktemp -d "${TMPDIR:-/tmp}/test_virtual.XXXXXX") || exit 1
here=$(dirname "$0")
# shellcheck source=tests/shared/jobs.sh
. "$here/../shared/jobs.sh"
# shellcheck source=tests/shared/sampled.sh
. "$here/../shared/sampled.sh"
at_end "$work"
passed=0 failed=0
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT ZERO_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT
small="-e char:2x64x2 -t 32 -u 2 -l 0.01 -b 1 -v 3 -m 2 -g 0 -lp 1 -zfd $work"

# same NAME EXPECTED FOUND
same() {
    if [ -n "$2" ] && [ "$2" = "$3" ]; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED: $1: expected '$2', found '$3': $(tail -n 1 "$work/out")"; fi
}
# train ARGUMENT... : loss and norm of each step, validation losses, and the weights
train() {
    timeout -k 1 120 "$trainer" $small "$@" >"$work/out" 2>&1
    sed -n 's/^step  *.*| \(loss .*\) | lr.*/\1/p; s/^\(val .*\)/\1/p; s/^weights //p' "$work/out" | tr '\n' ' '
}
# alike V RANKS COMMON SETTINGS...: all numbers of ranks have the results of one rank; of SETTINGS, which change no bit, run
# number i has word i, in which _ are blanks
alike() {
    sampled 3 || return
    v=$1 ranks=$2 common=$3
    shift 3
    first=$(train -x 5 -nt 1 -vr "$v" $common -pn 1)
    for n in $ranks; do
        more=$(echo "${1:-}" | tr _ ' ')
        [ $# -gt 1 ] && shift
        same "-vr $v $common $more -pn $n" "$first" "$(train -x 5 -nt 1 -vr "$v" $common $more -pn "$n")"
    done
}

test_bits() {
    alike 8 "1 2 4 8" "-z 0" "-z_1" "-z_2" "-z_3" "-z_3_-zm_0"
    alike 12 "1 3 6 12" "-dt bf16" "-z_3" "-z_2" "-z_1" "-z_0"
    alike 8 "2 4 8" "-dt bf16 -zg type -os 8bit" "-z_3_-zo_0" "-z_2" "-z_1"
    alike 8 "2 8" "-dt fp16 -li 1e9" "-z_1" "-z_3"
    alike 8 "4 8" "-dt bf16 -w 0 -os bf16" "-z_2" "-z_3"
    alike 12 "3 12" "-op lamb" "-z_1" "-z_3"
    alike 8 "2 8" "-op muon" "-z_2" "-z_3"
    alike 8 "2 8" "-op lion -c 0.1" "-z_2" "-z_3_-zb_60000"
    alike 8 "2 8" "-op adagrad -z 1" ""
    alike 12 "3 6" "-zod 2" "-z_1" "-z_3"
    alike 8 "1 8" "-z 3" "-zos_file" "-zos_file_-zop_file"
    alike 8 "2 8" "-lo 4" "-z_2" "-z_3"
    alike 8 "2 8" "-pt 1" "-z_0" "-z_3"
}

# With several threads per rank, too, the bits do not depend on the ranks. (They can depend on the threads.)
test_threads() {
    same "threads per rank" "$(train -x 5 -vr 8 -pn 1 -nt 2)" "$(train -x 5 -vr 8 -pn 4 -nt 2)"
}

test_resume() {
    all=$(train -x 6 -nt 1 -vr 8 -pn 4 | tr ' ' '\n' | tail -n 1)
    train -x 6 -nt 1 -vr 8 -pn 2 -z 2 -o "$work/saved" -n 3 -nk 9 >"$work/first"
    grep -q '^flags .*-vr 8' "$work/saved/main.log.note"
    same "the note next to main.log has -vr" 0 $?
    for n in 1 8; do
        rm -rf "$work/again"
        cp -r "$work/saved" "$work/again"
        find "$work/again" -name '*00006*' -exec rm -rf {} +
        same "resumed on $n ranks" "$all" "$(train -x 6 -nt 1 -vr 8 -pn "$n" -z 3 -o "$work/again" -y 1 -n 100 | tr ' ' '\n' | tail -n 1)"
        same "step 3 was resumed" 1 "$(grep -c 'resum.* step 3' "$work/out")"
    done
    rm -rf "$work/again"
    cp -r "$work/saved" "$work/again"
    find "$work/again" -name '*00006*' -exec rm -rf {} +
    train -x 6 -nt 1 -vr 4 -b 2 -pn 2 -o "$work/again" -y 1 -n 100 >/dev/null
    same "another -vr is reported" 1 "$(grep -c 'it was saved with -vr 8; now it is 4' "$work/out")"
}

# refuse WORDS ARGUMENT... : one line with these words, and no step
refuse() {
    words=$1
    shift
    train -x 2 -nt "${threads:-1}" "$@" >/dev/null
    if tail -n 1 "$work/out" | grep -qF -e "$words" && ! grep -q '^step ' "$work/out"; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED: $*: expected '$words', found '$(tail -n 1 "$work/out")'"; fi
}
test_refusals() {
    refuse "use 1, 2, 4 or 8 ranks" -vr 8 -pn 3
    refuse "use 1, 3, 6 or 12 ranks" -vr 12 -pn 4
    refuse "does not divide into 8 micro-steps" -vr 8 -pn 2 -d 96
    refuse "-za is sharded" -vr 8 -pn 2 -z 2 -za sharded
    refuse "-qg quantizes" -vr 8 -pn 2 -z 2 -qg 8
    refuse "-qw quantizes" -vr 8 -pn 2 -z 3 -qw 8
    refuse "-tp is not supported" -vr 8 -pn 2 -tp 2
    refuse "-cp is not supported" -vr 8 -pn 2 -cp 2
    refuse "-pp is not supported" -vr 8 -pn 2 -pp 2
    refuse "-en is not supported" -vr 8 -pn 2 -en 2
    refuse "-mo layers is not supported" -vr 8 -pn 2 -mo layers
    refuse "-zs" -vr 8 -pn 2 -z 1 -zs 1
    threads=0
    refuse "give -nt, the threads per rank" -vr 8 -pn 2
}

test_bits
test_threads
test_resume
test_refusals
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
