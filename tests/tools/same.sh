#!/bin/sh
# same.sh BUILD BASE COMPILE [CUDA] - does this tree compute, plan and send what the commit BASE does?
# tests/plugin/hashes.c is compiled with the plugin of BASE and with this tree's, by the command COMPILE, and under
# CUDA's emulation by the command CUDA. If BASE has an older header, BASE's own hashes.c is compiled with it instead. In
# each configuration that both programs have, each column that both print must be equal, except for
#   the exceptions of same.txt whose commits came after BASE, which are reported by number and commit;
#   the columns of DIFFER, for example "allocated sent/skips": the latter in configurations with skips in their name.
# WHERE limits the run to configurations with that word in their name. The emulation runs every third configuration, or
# every EVERY-th. BASE must be in this clone.
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
mkdir -p "$B/base/tests/same/plugin" "$B/base/tests/same/shared"
for file in plugin/hashes.c shared/host.h shared/harness.h; do cp "tests/$file" "$B/base/tests/same/$file"; done
older=
for file in tests/hashes.c tests/plugin/hashes.c; do [ ! -f "$B/base/$file" ] || older=$file; done
# The exceptions that came after BASE. A commit that this clone lacks is an error.
sed -n '/^[0-9a-f]* | /p' tests/tools/same.txt | while IFS= read -r row; do
    since=${row%% *}
    git merge-base --is-ancestor "$since" HEAD || { echo "same.sh: tests/tools/same.txt: $since is not a commit before this one" >&2; exit 1; }
    git merge-base --is-ancestor "$since" "$commit" || echo "$row"
done >"$B/exceptions.txt" || exit 2

# hashes TREE PROGRAM EVERY SOURCE COMMAND...: compiles SOURCE and runs it; the table goes to PROGRAM.txt
hashes() {
    tree=$1 program=$B/$2 every=$3 source=$4
    shift 4
    (cd "$tree" && "$@" "$source" zero_plugin.cu $more -lm $libraries -o "$program") >"$program.log" 2>&1 || return 1
    "$program" "${WHERE:-}" "$every" >"$program.txt" 2>&1 || { grep -v '^[0-9]*:' "$program.txt" | head -n 20; return 1; }
}
# The base, with this tree's program, or with its own
base_hashes() {
    hashes "$B/base" "base.$name" "$1" tests/same/plugin/hashes.c $2 && return
    [ "$older" ] || { cat "$B/base.$name.log"; return 1; }
    echo "    $base has another header: its own $older is used"
    hashes "$B/base" "base.$name" "$1" "$older" $2 || { cat "$B/base.$name.log"; return 1; }
}

# compare NAME: base.NAME.txt with here.NAME.txt. Prints a line per column that differs, with the first three
# configurations; for each exception the number of values; one line of totals.
compare() {
    awk -v differ="${DIFFER:-}" '
    function may(name, of,   k, part) { # a column of a configuration differ
        for (k = split(differ, list, " "); k > 0; k--) {
            split(list[k], part, "/")
            if (part[1] == name && (part[2] == "" || index(of, part[2]))) return 1
        }
        for (k = 1; k <= exceptions; k++)
            if ((where[k] == "*" || (where[k] == "clips" ? clips : of ~ where[k])) && index(" " columns[k] " ", " " name " ")) { by[k]++; return 1 }
        return 0
    }
    FILENAME ~ /exceptions.txt$/ {
        split($0, part, / [|] /)
        exceptions++
        where[exceptions] = part[2]; columns[exceptions] = part[3]; why[exceptions] = part[1] ": " part[4]
        next
    }
    / passed, / { next }
    $1 == "name" { for (i = 2; i <= NF; i++) { column[FILENAME, $i] = i; if (FILENAME == ARGV[2]) names[++n] = $i; else if (!((ARGV[2], $i) in column)) print "    only here: " $i }; next }
    FILENAME == ARGV[2] { line[$1] = $0; next }
    !($1 in line) { more++; next } # of what the base cannot do
    {
        seen++
        split(line[$1], was)
        clips = $column[FILENAME, "clips"] > 0
        for (i = 1; i <= n; i++) {
            at = column[FILENAME, names[i]]
            if (!at || was[column[ARGV[2], names[i]]] == $at) continue
            count[names[i]]++
            if (may(names[i], $1)) continue
            if (matter[names[i]]++ < 3) examples[names[i]] = examples[names[i]] "\n        " $1 ": " was[column[ARGV[2], names[i]]] " -> " $at
        }
        delete line[$1]
    }
    END {
        for (name in line) lost++
        for (i = 1; i <= n; i++) {
            if (!((ARGV[3], names[i]) in column)) print "    only in the base: " names[i]
            if (!count[names[i]]) { same++; continue }
            print "    " names[i] " is equal in " seen - count[names[i]] " of " seen ", differs by exceptions in " count[names[i]] - matter[names[i]] (matter[names[i]] ? ", without one in " matter[names[i]] : "") examples[names[i]]
            bad += matter[names[i]]
        }
        for (k = 1; k <= exceptions; k++) print "    " by[k] + 0 " values differ by " why[k]
        print "    " seen " configurations, " same + 0 " of " n " columns equal" (more ? ", " more " configurations only here" : "") (lost ? ", " lost " only in the base" : "")
        exit bad || lost || !seen
    }' "$B/exceptions.txt" "$B/base.$1.txt" "$B/here.$1.txt"
}

# both NAME WHAT EVERY COMMAND
both() {
    name=$1 what=$2
    echo "$what, $base and this tree:"
    if base_hashes "$3" "$4" && { hashes "$here" "here.$name" "$3" tests/plugin/hashes.c $4 || { cat "$B/here.$name.log"; false; }; }; then
        compare "$name"
        check $((! $?)) "$what: not the same as $base"
    else check 0 "$what: does not compile or run"; fi
}
more='' libraries=''
both cpu "CPU" 1 "$3 -x c"
if [ -n "${4:-}" ]; then
    more="tests/emulation/emulation.cc tests/emulation/emulation_nccl.cc" libraries=-ldl
    both cuda "CUDA, emulated" "${EVERY:-3}" "$4 -rdynamic -x c++ -include cuda_runtime.h"
fi
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
