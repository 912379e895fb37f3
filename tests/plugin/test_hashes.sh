#!/bin/sh
# test_hashes.sh BUILD [write] - small trainings with tiers (hashes.c) end with the bits of hashes.txt: weights,
# optimizer state, what ranks save, and reports, a sum for each. They are the same on every processor: no product
# and sum become one operation, and instructions of their own have the plain bits. A change that is meant to change
# them writes the file anew: `write`. Last line: N passed, N failed.
set -u
B=$1 here=$(dirname "$0")
table=$B/hashes.txt
"$B/test_hashes" ,t >"$table" || { grep -v '^[0-9]*:' "$table"; exit 1; }
grep '^[0-9]*:' "$table" | while read -r name weights state shards reports _; do
    echo "$name $(echo "$weights $state $shards $reports" | cksum | cut -d ' ' -f 1)"
done >"$table.sums"
[ "${2:-}" = write ] && cp "$table.sums" "$here/hashes.txt"
awk 'FNR == NR { sum[$1] = $2; next }
    !($1 in sum) { print "FAILED: " $1 " is not in hashes.txt"; failed++; next }
    { if (sum[$1] == $2) passed++; else { print "FAILED: " $1 ": other bits"; failed++ } delete sum[$1] }
    END { for (name in sum) { print "FAILED: " name " is only in hashes.txt"; failed++ }
        printf "%d passed, %d failed\n", passed, failed; exit failed > 0 || !passed }' "$here/hashes.txt" "$table.sums"
