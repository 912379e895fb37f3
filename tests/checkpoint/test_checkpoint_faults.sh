#!/bin/sh
# test_checkpoint_faults.sh BUILD [KINDS [SEED]] - every call to the system that a checkpoint makes fails
# once (tests/checkpoint/faulty_io.c is preloaded). KINDS: "open write ...", `fast` (all but `slow`), or all, as
# without. SEED chooses, of a load's 1,361 calls for memory, one in eight. Last line: N passed, N failed.
set -u
B=$1
here=$(dirname "$0")
${CC:-cc} -O1 -shared -fPIC -D_GNU_SOURCE -o "$B/faulty_io.so" "$here/faulty_io.c" -ldl || { echo "0 passed, 1 failed"; exit 1; }
LD_PRELOAD=$B/faulty_io.so exec "$B/test_checkpoint_faults" "${2:-all}" 600 ${3:+"$3"}
