#!/bin/sh
# same.sh BUILD BASE COMPILE [CUDA] - is nothing lost since the commit BASE? tests/plugin/hashes.c is compiled with
# the plugin of BASE and with this tree's, by the command COMPILE, and under CUDA's emulation by the
# command CUDA; what the two print must be equal, line by line: the columns that both have, but for
# those that DIFFER names ("allocated sent/skips": the latter in configurations with skips in their name
# alone), which are counted and told. WHERE limits it to
# configurations with that in their name; the emulation runs every third, or every EVERY-th. Needs BASE in
# this clone, and no network.
# Last line: N passed, N failed.
# Commands are lists of words.
# shellcheck disable=SC2086
set -u
if [ $# -lt 3 ] || [ -z "$2" ]; then echo "same.sh: expected a commit to compare with: make same BASE=commit" >&2; exit 2; fi
mkdir -p "$1/same" && B=$(cd "$1/same" && pwd) base=$2
cd "$(dirname "$0")/../.." || exit 1
here=$PWD
passed=0 failed=0
check() { if [ "$1" = 1 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $2"; fi; }

commit=$(git rev-parse --verify --quiet "$base^{commit}") ||
    { echo "same.sh: no commit '$base' in this clone (git fetch --unshallow?)" >&2; exit 2; }
rm -rf "$B/base" && mkdir -p "$B/base" && git archive "$commit" | tar -x -C "$B/base" || exit 1
mkdir -p "$B/base/tests/plugin" "$B/base/tests/shared"
for file in plugin/hashes.c shared/host.h shared/harness.h; do cp "tests/$file" "$B/base/tests/$file"; done

# hashes TREE PROGRAM EVERY COMMAND...: compiles and runs; the table goes to PROGRAM.txt
hashes() {
    tree=$1 program=$B/$2 every=$3
    shift 3
    (cd "$tree" && "$@" -o "$program") >"$program.log" 2>&1 || { cat "$program.log"; return 1; }
    "$program" "${WHERE:-}" "$every" >"$program.txt" 2>&1 || { grep -v '^[0-9]*:' "$program.txt" | head -n 20; return 1; }
}

# compare NAME: base.NAME.txt with here.NAME.txt. A line per column that differs, with the first three
# configurations; one line of totals.
compare() {
    awk -v differ="${DIFFER:-}" '
    function may(name, of,   k, part) { # a column of a configuration differ
        for (k = split(differ, list, " "); k > 0; k--) {
            split(list[k], part, "/")
            if (part[1] == name && (part[2] == "" || index(of, part[2]))) return 1
        }
        return 0
    }
    / passed, / { next }
    $1 == "name" { for (i = 2; i <= NF; i++) { column[FILENAME, $i] = i; if (FNR == NR) names[++n] = $i; else if (!((ARGV[1], $i) in column)) print "    only here: " $i }; next }
    FNR == NR { line[$1] = $0; next }
    !($1 in line) { more++; next } # of what the base cannot do
    {
        seen++
        split(line[$1], was)
        for (i = 1; i <= n; i++) {
            at = column[FILENAME, names[i]]
            if (!at || was[column[ARGV[1], names[i]]] == $at) continue
            matter[names[i]] += !may(names[i], $1)
            if (count[names[i]]++ < 3) examples[names[i]] = examples[names[i]] "\n        " $1 ": " was[column[ARGV[1], names[i]]] " -> " $at
        }
        delete line[$1]
    }
    END {
        for (name in line) lost++
        for (i = 1; i <= n; i++) {
            if (!((FILENAME, names[i]) in column)) print "    only in the base: " names[i]
            if (!count[names[i]]) { same++; continue }
            allowed = !matter[names[i]]
            print "    " names[i] " differs in " count[names[i]] " of " seen (allowed ? ", which is allowed" : "") examples[names[i]]
            bad += !allowed
        }
        print "    " seen " configurations, " same + 0 " of " n " columns equal" (more ? ", " more " configurations only here" : "") (lost ? ", " lost " only in the base" : "")
        exit bad || lost || !seen
    }' "$B/base.$1.txt" "$B/here.$1.txt"
}

# both NAME WHAT EVERY COMMAND...
both() {
    name=$1 what=$2
    shift 2
    echo "$what, $base and this tree:"
    if hashes "$B/base" "base.$name" "$@" && hashes "$here" "here.$name" "$@"; then
        compare "$name"
        check $((! $?)) "$what: not the same as $base"
    else check 0 "$what: does not compile or run"; fi
}
both cpu "CPU" 1 $3 -x c tests/plugin/hashes.c zero_plugin.cu -lm
if [ -n "${4:-}" ]; then
    both cuda "CUDA, emulated" "${EVERY:-3}" $4 -rdynamic -x c++ -include cuda_runtime.h tests/plugin/hashes.c zero_plugin.cu \
        tests/emulation/emulation.cc tests/emulation/emulation_nccl.cc -lm -ldl
fi
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
