#!/bin/sh
# test_mpi.sh BUILD [MPI...] - the MPI communicator (test_mpi.c) under these MPIs (openmpi, mpich: both unless
# given), with 1 to 8 ranks, and touched rows (test_rows.c); what is not installed is skipped. SAMPLE=N: every Nth run, from one that SEED chooses.
# Last line: N passed, N failed[, N skipped].
set -u
B=$1
shift
[ $# -gt 0 ] || set -- openmpi mpich
passed=0 failed=0 skipped=0 turn=0
mkdir -p "$B/mpi"
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
unset OMPI_MCA_btl

fail() { failed=$((failed + 1)); echo "FAILED  $*"; }

# What a run of the test program said; a run without a last line has failed.
count() { # NAME LOG CODE
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$2" | tail -n 1)
    p=${line%% passed*} f=${line##*passed, } f=${f%% failed*}
    if [ -z "$line" ]; then p=0 f=1; elif [ "$3" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
    passed=$((passed + p)) failed=$((failed + f))
    echo "$1: ${line:-no result}, exit code $3"
    [ "$f" -eq 0 ] || { grep FAILED "$2" || tail -n 20 "$2"; } | head -n 20 | sed 's/^/    /'
}
run() { # RANKS MODE...
    run_program test_mpi "$@"
}
# Training with announced rows has the bits of training without (test_rows.c).
rows() { # RANKS NODE_SIZE
    run_program test_rows_mpi "$@"
}
run_program() { # PROGRAM RANKS ARGUMENTS
    program=$1
    shift
    turn=$((turn + 1))
    [ $((turn % ${SAMPLE:-1})) = $((${SEED:-0} / 3 % ${SAMPLE:-1})) ] || return 0
    ranks=$1
    shift
    log="$B/mpi/$mpi-$program-$ranks-$(echo "$*" | tr ' ' '-').txt"
    timeout -k 5 100 mpirun.$mpi $over -n "$ranks" "$B/$mpi/$program" "$@" >"$log" 2>&1 </dev/null
    count "$mpi, $program, $ranks ranks, $*" "$log" $?
}
# A rank that is killed: MPI ends the others, within 10 s and with an error. What Open MPI then leaves
# behind of its shared memory goes to a folder that is removed.
dies() {
    start=$(date +%s)
    mkdir -p "$B/mpi/left"
    OMPI_MCA_btl_vader_backing_directory="$B/mpi/left" timeout -k 5 20 mpirun.$mpi $over -n 4 "$B/$mpi/test_mpi" die >"$B/mpi/$mpi-die.txt" 2>&1 </dev/null
    code=$?
    took=$(($(date +%s) - start))
    rm -rf "$B/mpi/left"
    if [ $code -ne 0 ] && [ $code -ne 124 ] && [ $took -le 10 ]; then passed=$((passed + 1))
    else fail "$mpi: a killed rank: exit code $code after $took s"; fi
}
# /dev/shm of 30 MB, as small as containers have it, in a mount namespace of its own.
small() {
    for mode in "$@"; do
        log="$B/mpi/$mpi-$mode.txt"
        unshare -m sh -c "mount -t tmpfs -o size=30m tmpfs /dev/shm && exec timeout -k 5 20 mpirun.$mpi $over \
            -n 2 '$B/$mpi/test_mpi' $mode" >"$log" 2>&1 </dev/null
        count "$mpi, 2 ranks, $mode" "$log" $?
    done
}

for mpi; do
    if ! command -v mpicc.$mpi >/dev/null 2>&1 || ! command -v mpirun.$mpi >/dev/null 2>&1; then
        skipped=$((skipped + 1))
        echo "skipped: $mpi is not installed (mpicc.$mpi, mpirun.$mpi)"
        continue
    fi
    over= none=none some=few sizes=3 # MPICH never yields: slow with more ranks than cores
    # Open MPI 4.1 itself hangs in MPI_Win_allocate_shared where /dev/shm has no room
    [ $mpi = openmpi ] && over=--oversubscribe none= some=same sizes='0 2 3'
    if ! make -s B="$B/$mpi" OPT='-O1 -march=native' MPICC=mpicc.$mpi "$B/$mpi/test_mpi" "$B/$mpi/test_rows_mpi"; then
        fail "test_mpi.c or test_rows.c does not build with mpicc.$mpi"
        continue
    fi
    run 1 same 0
    run 2 same 0 1
    run 3 $some 0 1
    run 4 $some 0 1 2
    run 7 $some 0 1
    run 8 $some 0 1 4
    run 2 hierarchy 0 1
    run 4 hierarchy 0 1 2
    run 6 hierarchy $sizes
    run 4 errors
    for ranks in 1 2 3 5; do run $ranks groups; done
    [ $mpi = mpich ] || run 66 many
    run 2 thread
    run 2 windows 0 1
    rows 2 0
    rows 2 1
    rows 4 2
    dies
    if [ "$(id -u)" -eq 0 ] && unshare -m true 2>/dev/null; then
        small small $none
    else
        skipped=$((skipped + 1))
        echo "skipped: $mpi with a small /dev/shm: needs root"
    fi
done
[ $skipped -gt 0 ] && more=", $skipped skipped" || more=
echo "$passed passed, $failed failed$more"
[ $failed -eq 0 ]
