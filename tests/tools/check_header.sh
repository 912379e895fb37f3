#!/bin/sh
# check_header.sh [HEADER] - the form of zero_plugin.h:
#   - The comment of each public function is directly above it, or above the functions before it, and begins with a verb in
#     the imperative: one of the list below.
#   - COLLECTIVE, SYNC and "Errors:" begin a line of a comment and nothing else, in this order: a line with COLLECTIVE, SYNC
#     or both, then the errors. No other function's words hide in a sentence.
#   - The functions above MORE are those of the INDEX, in its order.
# Prints each line that differs and exits 1.
set -u
header=${1:-$(cd "$(dirname "$0")/../.." && pwd)/zero_plugin.h}
verbs='Announce Begin Close Convert Copy Create Drop End Make Move Open Partition Read Receive Report Return Run Send Set Split Start
    Sum Trace Update Wait Write Build'
awk -v verbs="$(echo "$verbs" | tr -s ' \n' '  ')" '
function bad(text) { print FILENAME ":" FNR ": " text; wrong = 1 }
BEGIN { n = split(verbs, list, " "); for (i = 1; i <= n; i++) verb[list[i]] = 1 }
/^   INDEX / { index_is_open = 1; next }
index_is_open && /^\*\/$/ { index_is_open = 0 }
index_is_open { listed[++nlisted] = $1; if (NF < 3) bad($1 " has no description in the INDEX"); next }
/^\/\* ==== MORE/ { more = 1 }
/^ ?\/\*/ { first = FNR; word = $2; inside = 1; facts = errors = 0 }
# The words, on lines of their own.
/(^|[^A-Z_])(COLLECTIVE|SYNC)([^A-Z_]|$)/ {
    if ($0 !~ /^ *(COLLECTIVE|SYNC)( |\.)/) bad("COLLECTIVE and SYNC begin a line of their own: " $0)
    else if ($0 ~ /^   (COLLECTIVE|SYNC)/) {
        if (!inside) bad("not in a comment of a function: " $0)
        if (facts++) bad("one line has COLLECTIVE and SYNC: " $0)
        if (errors) bad("it stands above the errors: " $0)
        if ($0 ~ /SYNC.*COLLECTIVE/) bad("COLLECTIVE comes first: " $0)
    }
}
/Errors:/ && !/^     call/ && !/"Errors:"/ {
    if ($0 !~ /^   Errors: /) bad("Errors: begins a line of its own: " $0)
    errors = 1
}
{ ended = inside && /\*\/$/ }
# A function: its comment ended on the line before, or a function with that comment did.
!inside && /^[a-z][a-z0-9_ ]*[ *]zero_[a-z0-9_]+\(/ && !/^typedef/ {
    name = $0; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name)
    functions++
    if (FNR != above + 1) bad(name " has no comment directly above it")
    else if (!(word in verb)) bad(name ": the comment begins with \"" word "\", not with a verb of tests/tools/check_header.sh")
    if (!more && listed[++above_more] != name) bad(name " is number " above_more " above MORE; the INDEX has " (above_more in listed && listed[above_more] != "" ? listed[above_more] : "nothing") " there")
    declaring = 1
}
{ if (declaring && /;$/) { above = FNR; declaring = 0 } }
ended { inside = 0; above = FNR }
END {
    if (functions < 80) { print FILENAME ": only " functions + 0 " functions were found"; wrong = 1 }
    if (nlisted != above_more || nlisted < 20) { print FILENAME ": the INDEX has " nlisted + 0 " functions, " above_more + 0 " are above MORE"; wrong = 1 }
    exit wrong
}' "$header"
