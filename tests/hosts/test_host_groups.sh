#!/bin/sh
# test_host_groups.sh BUILD - the programs that the guide quotes where it speaks of groups: tests/hosts/parallel.c,
# cut over tensor-parallel ranks, context.c, whose sequences are divided over ranks, and stages_mpi.c, which hands over its own communicators to MPI. They learn, have
# the losses and norms of one rank, and the same at every stage; and every line of the guide's blocks is in them.
# Last line: N passed, N failed[, N skipped].
set -u
B=$1
here=$(dirname "$0")
dir=$B/host_groups
guide=$here/../../adapters/docs/parallelism.md
passed=0 failed=0 skipped=0
mkdir -p "$dir"
ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAILED: $*"; }
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# same NAME AS: the same text; near: numbers within 1e-5 of each other, and a loss that falls
same() { cmp -s "$dir/$1" "$dir/$2" && [ -s "$dir/$1" ] && ok || bad "$1 and $2 differ: $(tail -n 1 "$dir/$1")"; }
near() {
    paste "$dir/$1" "$dir/$2" | tr -d , | awk '
        function far(a, b) { return (a > b ? a - b : b - a) > 1e-5 * (b + 1e-3) }
        { n++; if (n == 1) first = $4; last = $4; off += far($4, $10) + far($6, $12) }
        END { exit !(n == 8 && !off && last < first) }' && ok || bad "$1 is not near $2: $(tail -n 1 "$dir/$1")"
}

parallel() { # RANKS TP STAGE
    timeout 60 "$B/host_parallel" "$@" >"$dir/tp-$1-$2-$3" 2>&1 && ok || bad "host_parallel $*: $(tail -n 1 "$dir/tp-$1-$2-$3")"
}
parallel 1 1 0
parallel 2 1 0
parallel 2 2 0
near tp-2-2-0 tp-1-1-0
for stage in 0 1 2 3; do
    parallel 4 2 $stage
    near tp-4-2-$stage tp-2-1-0
    same tp-4-2-$stage tp-4-2-0
done
parallel 4 4 3
near tp-4-4-3 tp-1-1-0
cmp -s "$dir/tp-2-1-0" "$dir/tp-1-1-0" && bad "data-parallel ranks have the same samples" || ok

context() { # RANKS CP RING STAGE
    timeout 60 "$B/host_context" "$@" >"$dir/cp-$1-$2-$3-$4" 2>&1 && ok || bad "host_context $*: $(tail -n 1 "$dir/cp-$1-$2-$3-$4")"
}
context 1 1 0 0
context 2 1 0 0
for ring in 0 1; do
    context 2 2 $ring 0
    near cp-2-2-$ring-0 cp-1-1-0-0
    for stage in 0 1 2 3; do
        context 4 2 $ring $stage
        near cp-4-2-$ring-$stage cp-2-1-0-0
        same cp-4-2-$ring-$stage cp-4-2-$ring-0
    done
done
context 3 3 1 2
near cp-3-3-1-2 cp-1-1-0-0
context 4 4 0 3
near cp-4-4-0-3 cp-1-1-0-0
cmp -s "$dir/cp-2-1-0-0" "$dir/cp-1-1-0-0" && bad "data-parallel ranks have the same sequences" || ok

if [ -x "$B/host_stages_mpi" ] && command -v mpirun >/dev/null 2>&1; then
    over=
    mpirun --version 2>&1 | grep -q 'Open MPI' && over=--oversubscribe
    stages() { # RANKS STAGE
        # shellcheck disable=SC2086
        timeout -k 5 60 mpirun $over -n "$1" "$B/host_stages_mpi" "$2" >"$dir/mpi-$1-$2" 2>"$dir/said" </dev/null && ok ||
            bad "host_stages_mpi $*: $(tail -n 1 "$dir/said")"
    }
    stages 1 0
    for stage in 0 3; do
        stages 2 $stage
        same mpi-2-$stage mpi-1-0
        stages 4 $stage
        same mpi-4-$stage mpi-4-0
    done
    near mpi-4-0 mpi-4-3
else
    skipped=$((skipped + 1))
    echo "skipped: host_stages_mpi was not built, or mpirun is not installed"
fi

# Every line of a block of the guide's that follows a line with the program's name is in it.
quoted() { # PROGRAM
    awk -v name="$1" '
        function bare(s) { sub(/\/\/.*/, "", s); gsub(/[ \t]+/, "", s); return s }
        FNR == 1 { file++ }
        file == 1 { text = text bare($0); next }
        /^```/ && inside { inside = told = 0 }
        inside && bare($0) != "" { n++; if (!index(text, bare($0))) { print "not in " name ": " $0; lost++ } }
        index($0, "tests/hosts/" name) { told = 1 }
        /^```c$/ && told { inside = 1 }
        END { exit !(n >= 6 && !lost) }' "$here/$1" "$guide" && ok || bad "the guide does not quote $1"
}
quoted parallel.c
quoted context.c
quoted stages_mpi.c
[ $skipped -gt 0 ] && more=", $skipped skipped" || more=
echo "$passed passed, $failed failed$more"
[ $failed -eq 0 ]
