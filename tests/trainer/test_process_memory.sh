#!/bin/sh
# test_process_memory.sh BUILD - what a rank's process has after its steps is what the trainer's plan says, to 1 %
# and 3 MiB (code that steps are the first to touch): tensors, activations, lists, queues, program and libraries
# together, what ranks share counted once. Less by the pieces of a file that access by name would use. In files it never is
# more, either, but for the process that starts the ranks, and for what a product packs.
# Last line: N passed, N failed.
set -u
B=$1
passed=0 failed=0
work=$(mktemp -d "${TMPDIR:-/tmp}/test_process_memory.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT

# holds SPARE FLAGS...: SPARE MiB of the plan may be untouched
holds() {
    spare=$1
    shift
    timeout -k 1 60 "$B/train_gpt2_zero" -x 24 -v -1 -g 0 -nt 1 "$@" >"$work/out" 2>&1
    if awk -v spare="$spare" '/^memory of the process/ { sub(/.*: /, ""); found = 1; held = $1; planned = $4 }
            END { exit !(found && held <= 1.01 * planned + 3 && held >= 0.99 * planned - 3 - spare) }' "$work/out"
    then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED: $*: $(tail -n 1 "$work/out")"; fi
    echo "$*: $(grep '^memory of the process' "$work/out")"
}
holds 0 -z 2
holds 0 -z 2 -pn 2
holds 0 -z 3 -r 2 -pn 2
holds 0 -z 3 -r 3 -pn 2 -b 4 -d 2048 -mo layers
holds 3 -z 3 -zos file -zog file -zop file -zfd "$work"
holds 1.5 -z 3 -zos file -zog file -zop file -zfd "$work" -pn 2
# peaks FLAGS...: two ranks and who starts them (4 MiB), sampled from outside
peaks() {
    timeout -k 1 60 sh "$(dirname "$0")/../bench/bench_pss.sh" "$B/train_gpt2_zero" -x 3 -v -1 -g 0 -nt 1 -pn 2 "$@" >"$work/out" 2>&1
    if awk '/^memory of the process/ { planned = $(NF) } /^peak PSS/ { all = $(NF - 1) }
            END { exit !(planned && all && all <= 2 * 1.01 * planned + 4) }' "$work/out"
    then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED: $*: $(tail -n 1 "$work/out")"; fi
    echo "$*: $(grep '^memory of the process' "$work/out"); $(tail -n 1 "$work/out")"
}
peaks -e char:2x768x12 -b 4 -z 3 -zos file -zog file -zop file -zfd "$work"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
