#!/bin/sh
# check_words.sh BUILD - counts habits of English that make a sentence hard to read, and compares each count with the
#                        most that the list below allows.
# check_words.sh BUILD list - prints the list with today's counts.
# check_words.sh BUILD show PATH - prints each hit in PATH, a line of the list, with the words around it.
# In C, comments and string literals are searched; in other files, everything. Lines are joined first, so it does not
# matter where a sentence is broken. Exit code 1: a count is above its limit.
set -u
out=$1/check/words
mkdir -p "$out" || exit 1

# Instead of:  who, whoever, nobody  the actor's name ("the calling thread", "rank 0")
#              told, tells           reports, prints, logs, returns
#              behind, beside        after, next to, in addition to
#              of it, what is        the noun that is meant
#              deal, lift, seal...   a verb that says what the code does
words='\b(who(ever|m|se)?|nobody|told|tells?|says so|behind|beside|of it|what is|in turn|takes? turns|(deal|lift|sink|seal|settle)(s|ed|ing|d|t)?|sunk)\b'

# A line: the most hits, and the folder (without its folders) or file. The numbers only become smaller; what is not in the
# list has no hit.
cat >"$out/limits" <<'LIST'
8 zero_plugin.h
2 zero_plugin.cu
2 train_gpt2_zero.cu
1 adapters/corpus
1 adapters/ds_config
1 adapters/eval
3 adapters/gpt2
3 adapters/launch
6 adapters/options
1 adapters/page
1 adapters/parallel
1 adapters/plan
5 adapters/report
2 adapters/saves
2 adapters/schedule
1 adapters/system
6 zero_plugin/api
11 zero_plugin/comm
11 zero_plugin/core
6 zero_plugin/extras
4 zero_plugin/machine
3 zero_plugin/numbers
8 zero_plugin/offload
LIST

# Prints comments and string literals of C.
prose() {
    awk '{
        text = $0
        if (inside == 0 && text ~ /^ *# *include/) next
        while (text != "") {
            if (inside) {
                at = index(text, "*/")
                if (!at) { print text; break }
                print substr(text, 1, at - 1); inside = 0; text = substr(text, at + 2)
                continue
            }
            if (match(text, /"([^"\\]|\\.)*"|\/\*|\/\//) == 0) break
            found = substr(text, RSTART, RLENGTH); rest = substr(text, RSTART + RLENGTH)
            if (found == "//") { print rest; break }
            if (found == "/*") inside = 1; else print found
            text = rest
        }
    }' "$1"
}
# The paths that are searched, each a file or the files of one folder.
paths() {
    echo README.md; echo zero_plugin.h; echo zero_plugin.cu; echo train_gpt2_zero.cu
    for folder in adapters adapters/*/ zero_plugin/*/; do echo "${folder%/}"; done
}
# Prints the text of a path as one line.
text() { # PATH
    for file in "$1" "$1"/*; do
        [ -f "$file" ] || continue
        case $file in
        *.[ch] | *.cu | *.cc) prose "$file" ;;
        *.md | *.sh | *.mk | *.py | */apply) cat "$file" ;;
        esac
    done | tr -s ' \t\n' ' '
}
if [ "${2:-}" = show ]; then text "$3" | grep -oiE ".{0,40}$words.{0,30}"; exit; fi
paths | while read -r path; do
    echo "$(text "$path" | grep -oiE "$words" | wc -l | tr -d ' ') $path"
done >"$out/counts"
if [ "${2:-}" = list ]; then grep -v '^0 ' "$out/counts"; exit; fi
[ "$(wc -l <"$out/counts")" -gt 20 ] || { echo "only $(wc -l <"$out/counts") paths were found"; exit 1; }
awk 'NR == FNR { most[$2] = $1; next }
    { all += $1; limit += most[$2]; if ($1 > most[$2] + 0) { print $2 ": " $1 " hits, at most " most[$2] + 0 " (sh tests/tools/check_words.sh BUILD show " $2 ")"; bad = 1 } }
    END { print all " hits, at most " limit; exit bad }' "$out/limits" "$out/counts"
