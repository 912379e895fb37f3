#!/bin/sh
# test_allocations.sh BUILD - the trainer, the model and the plugin call malloc as often in 4 steps as
# in 24: nothing is allocated in a step, in any type and stage. What oneDNN packs matrices into is its
# own, and printed. Last line: N passed, N failed.
set -u
B=$1
here=$(dirname "$0")
passed=0 failed=0
dir=$B/mallocs
rm -rf "$dir" && mkdir -p "$dir"
${CC:-cc} -O1 -shared -fPIC -D_GNU_SOURCE -o "$dir/mallocs.so" "$here/mallocs.c" -ldl || { echo "0 passed, 1 failed"; exit 1; }

# counts STEPS FLAGS...: of all processes, sorted
counts() {
    steps=$1
    shift
    rm -f "$dir"/count.*
    LD_PRELOAD=$dir/mallocs.so MALLOCS=$dir/count "$B/unmeasured/train_gpt2_zero" -pn 2 -nt 1 -t 32 -b 2 -x "$steps" -v -1 -g 0 \
        "$@" >"$dir/log.txt" 2>&1 </dev/null || { cat "$dir/log.txt" >&2; return 1; }
    cat "$dir"/count.* | sort
}
# compare FLAGS...
compare() {
    few=$(counts 4 "$@") && many=$(counts 24 "$@") || { failed=$((failed + 1)); return; }
    ranks=$(echo "$few" | awk '$2 > 20' | wc -l)
    if [ "$ranks" -ge 2 ] && [ "$(echo "$few" | awk '{print $2}')" = "$(echo "$many" | awk '{print $2}')" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$*: calls of malloc in 4 steps and in 24:" $few "and" $many
    fi
    echo "$*: by the program $(echo "$many" | awk '{printf "%s ", $2}'), by libraries in 4 and in 24 steps" \
        "$({ echo "$few"; echo "$many"; } | awk '{printf "%s ", $4}')"
}
for stage in 0 1 2 3; do compare -z $stage; done
compare -z 3 -zm 0
compare -z 2 -d 256
compare -z 3 -d 256 -mo layers
for type in bf16 fp16; do
    for stage in 0 3; do compare -z $stage -dt $type; done
    compare -z 2 -d 256 -dt $type -zg type
done
compare -z 1 -dt bf16 -w 0 -op lion -r 3
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
