#!/bin/sh
# drop.sh FOLDER [PART...] - writes the two files that you copy into your trainer: zero_plugin.h, and one
# zero_plugin.cu with every room in its place. Without PART both have everything. Otherwise they have the
# core (stages 0 to 3 in memory, on ranks that are threads, on the CPU) and the named parts; "core" names no
# other, and "all" names every part of the plugin. zero_plugin.cu marks the rooms of each part; those of `cuda` end
# in _cuda.h, and nccl has them too; those of `vectors` end in _avx.h, and packed has them too. A function or a setting of a part that is left out answers
# ZERO_ERR_UNSUPPORTED, and its message has the command that adds the part. `checkpoint` is an adapter, which needs
# the part state: drop.sh writes its files, adapters/checkpoint/checkpoint*, next to the other two.
#
# The first lines name the version, the commit (`unknown` outside git; -dirty: with uncommitted changes)
# and a checksum of the lines below. If FOLDER has a file of that name that drop.sh did not write, or
# that was edited since, drop.sh writes nothing. An unchanged file keeps its time, so a makefile may call
# drop.sh each time.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
fail() { echo "drop.sh: $*" >&2; exit 1; }
if [ $# -lt 1 ] || [ -z "$1" ]; then
    echo "drop.sh: expected a folder and no part, or some: make drop DIR=folder [WITH=\"core nccl\"]" >&2
    exit 2
fi
case $1 in /*) folder=$1 ;; *) folder=./$1 ;; esac # so that no name looks like an option
to=$1
shift
parts=$({ echo cuda vectors; sed -n 's/^#include "zero_plugin\/.*\/\* \[\([a-z ]*\)\].*/\1/p' "$here/zero_plugin.cu"; } | tr ' ' '\n' | sort -u | tr '\n' ' ' | sed 's/ $//')
with=${*:-$parts}
case " $with " in *" all "*) with=$(echo " $with " | sed "s/ all / $parts /; s/^ //; s/ $//") ;; esac
for part in $with; do
    case " core checkpoint $parts " in
    *" $part "*) ;;
    *) fail "no part is named '$part'; the parts are: core $parts; all, which is every part; checkpoint, which needs state" ;;
    esac
done
files="zero_plugin.h zero_plugin.cu" sources="zero_plugin.h zero_plugin.cu zero_plugin"
case " $with " in
*" checkpoint "*)
    case " $with " in *" state "*) ;; *) fail "checkpoint needs the part state: add it to WITH" ;; esac
    files="$files $(cd "$here/adapters/checkpoint" && echo checkpoint*.[ch])"
    sources="$sources adapters/checkpoint"
    ;;
esac
mark="/* Written by make drop of ZeRO for C"

# Prints a checksum of the lines below the first line. It does not depend on the line ends.
sum() { tail -n +2 | tr -d '\r' | cksum | tr ' ' '-'; }
for file in $files; do
    old=$folder/$file
    [ -e "$old" ] || [ -L "$old" ] || continue
    [ -f "$old" ] || fail "$to/$file is not a regular file; move it away first. Nothing was written" # a FIFO blocks head
    head -n 1 "$old" 2>/dev/null | grep -qF "$mark" || fail "$to/$file was not written by make drop; move it away first. Nothing was written"
    head -n 1 "$old" | grep -qF " sum $(sum <"$old")." || fail "$to/$file was edited since make drop wrote it; move it away first. Nothing was written"
done

# The commit of this repository. A surrounding repository or a git hook does not change it.
commit=unknown
if [ -e "$here/.git" ]; then
    unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
    # shellcheck disable=SC2086
    if commit=$(git -C "$here" rev-parse --short=12 HEAD 2>/dev/null); then
        git -C "$here" diff --quiet HEAD -- $sources || commit=$commit-dirty
    else commit=unknown; fi
fi
version=$(sed -n 's/^#define ZERO_VERSION *"\(.*\)"/\1/p' "$here/zero_plugin.h")

# Prints `PART ROOM` for each room that is left out. A room of several parts has the name of the first.
list_rooms() {
    sed -n 's/^#include "zero_plugin\/\(.*\)" *\/\* \[\([a-z ]*\)\].*/\1 \2/p' "$here/zero_plugin.cu" | while read -r room of; do
        for part in $of; do
            case " $with " in *" $part "*) continue 2 ;; esac
        done
        echo "${of%% *} $room"
    done
}
# Prints the rows of MACRO, ZP_SETTING or ZP_FIELD, of the parts that are left out, for the tables of table.h.
list_rows() { # MACRO
    list_rooms | while read -r part room; do
        sed -n "s/^    \({$1[A-Z_]*(.*\),\$/    {\"$part\", \1},/p" "$here/zero_plugin/$room"
    done
}

# zero_plugin.cu includes the rooms between #if __has_include and #else; `[part]` begins the comment of a
# room that belongs to a part. A room includes only earlier rooms, which awk has written before; another
# order is an error, and so is a room that includes one of a part that is left out. The rooms with tables
# of rows (table.h, transport.h) lose the lines that name such a room, and table.h gets the
# settings and fields of such rooms. X_avx.h, X_cpu.h and X_cuda.h are inside X.h; without the part cuda, #error takes the
# place of the latter. A copy has no advice on where something new goes.
write_unit() {
    settings=$(list_rows ZP_SETTING) fields=$(list_rows ZP_FIELD) awk -v rooms="$here/zero_plugin/" -v with=" $with " '
    function fail(text) { print "drop.sh: " text > "/dev/stderr"; failed = 1; exit 1 }
    function put(line) { if (line != "" || last != "") print line; last = line } # no two empty lines
    function left_out(name,   n, i, of) { # a room of several parts is left out with all of them
        if (name ~ /_cuda\.h$/) part[name] = "cuda nccl"
        if (name ~ /_avx\.h$/) part[name] = "vectors packed"
        if (!(name in part)) return 0
        n = split(part[name], of, " ")
        for (i = 1; i <= n; i++) if (index(with, " " of[i] " ")) return 0
        return 1
    }
    function names_row(line) { # returns the room whose row a line of a table names, or ""
        if (line !~ /^ *&?zp_[a-z_]+_row, *(\/\*.*)?$/) return ""
        gsub(/^ *&?zp_|_row.*/, "", line)
        return line ".h"
    }
    function room(path,   line, inner, lines, name, folder, table) {
        name = path; sub(/.*\//, "", name)
        folder = path; sub(/[^\/]*$/, "", folder)
        if (left_out(name)) return
        if (name in written) fail(name " is included twice")
        written[name] = 1
        table = name ~ /^(table|transport)\.h$/
        while ((getline line < (rooms path)) > 0) {
            lines++
            if (line == "#pragma once") continue
            if (table && left_out(names_row(line))) continue
            if (line ~ /^#include "\.\.\/\.\.\/zero_plugin\.h"$/) line = "#include \"zero_plugin.h\""
            else if (line ~ /^#include "(\.\.\/[a-z]+\/)?[a-z0-9_]+\.h"$/) {
                inner = line; gsub(/^#include "(.*\/)?|"$/, "", inner)
                if (inner in written || (table && left_out(inner))) continue
                if (inner ~ /_(avx|cpu|cuda)\.h$/ && index(inner, substr(name, 1, length(name) - 2)) == 1) {
                    if (!left_out(inner)) room(folder inner)
                    else if (inner ~ /_cuda/) print "#error this copy of the plugin lacks \"cuda\": add it to the WITH of make drop"
                    continue
                }
                if (left_out(inner)) fail(name " needs the part " part[inner] ": add it to WITH")
                fail(name " includes " inner ", which comes later")
            }
            put(line)
            if (line ~ / zp_table_missing\[\] = \{$/ && ENVIRON["settings"] != "") print ENVIRON["settings"]
            if (line ~ / zp_table_missing_fields\[\] = \{$/ && ENVIRON["fields"] != "") print ENVIRON["fields"]
        }
        if (!lines) fail(name " is missing")
        close(rooms path)
    }
    /^   WHERE SOMETHING NEW GOES/ { print "   This is a copy: in its repository each room is a file. */"; skips = 1; next }
    skips && / \*\/$/ { skips = 0; next }
    /^#if __has_include/ {
        for (n = 0; (getline line < FILENAME) > 0;) if (line ~ /^#include "zero_plugin\//) {
            name = line; gsub(/^#include "zero_plugin\/[a-z]+\/|".*/, "", name)
            if (match(line, /\/\* \[[a-z ]+\] /)) {
                part[name] = substr(line, RSTART + 4, RLENGTH - 6)
                sub(/\[[a-z ]+\] /, "", line)
            }
            sub(/^#include "zero_plugin\//, "     ", line)
            sub(/\.h" +\/\*/, " -", line); sub(/ \*\/$/, "", line)
            if (!left_out(name)) list[n++] = line
        }
        print "/* ROOMS, in this order:"
        for (i = 0; i < n; i++) print list[i]
        print "*/"
        inside = 1; next
    }
    inside && /^#else/ { skips = 1 }
    inside && /^#endif/ { inside = skips = 0; next }
    skips { next }
    /^#include "zero_plugin\/[a-z]+\/[a-z0-9_]+\.h"/ { name = $0; gsub(/^#include "zero_plugin\/|".*/, "", name); room(name); next }
    { put($0) }
    END { if (failed) exit 1 }' "$here/zero_plugin.cu"
}

# Prints `FUNCTION PART` for each public function that a part defines which is left out.
list_missing() {
    list_rooms | while read -r part room; do
        sed -n "s/^[a-z][a-z0-9_ ]*[ *]\(zero_[a-z0-9_]*\)(.*/\1 $part/p" "$here/zero_plugin/$room"
    done
}
missing=$(list_missing)

# Prints `STRUCT.FIELD PART` for each field of zero_config, zero_tensor_desc and zero_plan whose part is left out: those in
# the tables of that part, and others.
list_fields() {
    list_rows ZP_SETTING | sed -n 's/^ *{"\([a-z]*\)", {ZP_SETTING(\([a-z_]*\).*/zero_config.\2 \1/p'
    list_rows ZP_FIELD | sed -n 's/^ *{"\([a-z]*\)", {ZP_FIELD(\([a-z_]*\).*/zero_tensor_desc.\2 \1/p'
    for field in zero_config.folder:offload zero_config.trace_user:trace zero_config.world_unit:groups \
        zero_tensor_desc.outer:groups zero_tensor_desc.rows:muon; do
        case " $with " in *" ${field#*:} "*) ;; *) echo "${field%:*} ${field#*:}" ;; esac
    done
    for field in formula_bytes formula_sent_bytes context_bytes; do
        case " $with " in *" figures "* | *" suggest "*) ;; *) echo "zero_plan.$field figures" ;; esac
    done
}

# Reads the header, and puts one line in the place of each text about a part that is left out. Such a text is
#   the comment of a field (see list_fields)
#   a comment that begins with a mark, such as [offload]
#   inside a comment, the text from a mark to the next empty line if the mark begins its line, or, if it does not, to the
#   next line that is not indented deeper
drop_texts() {
    fields=$(list_fields) awk -v with=" $with " '
    function lost(line,   word) { # sets `by` to the part of the line if it is left out
        if (!match(line, /\[[a-z]+\] /)) return 0
        by = substr(line, RSTART + 1, RLENGTH - 3)
        return !index(with, " " by " ")
    }
    function indent(line) { match(line, /^ */); return RLENGTH }
    BEGIN { n = split(ENVIRON["fields"], list, /[ \n]/); for (i = 1; i < n; i += 2) part[list[i]] = list[i + 1] }
    { # inside a lost text: does this line end it?
        if (skips == "comment") { if (/\*\/$/) skips = ""; next }
        if (skips == "paragraph" && $0 !~ /^ *$/ || skips == "deeper" && indent($0) > depth) {
            if (/\*\/$/) { print "   */"; skips = "" }
            next
        }
        skips = ""
    }
    /^typedef struct zero_(config|tensor_desc|plan) / { inside = $3 }
    /^} / { inside = "" }
    inside && /^    [^\/]*[ *][a-z_]+(, [a-z_]+)*; +\/\*/ {
        name = $0; sub(/[,;].*/, "", name); sub(/.*[ *]/, "", name); name = inside "." name
        if (name in part) {
            if (!/\*\/$/) skips = "comment"
            sub(/\/\*.*/, "/* not in this copy: part \"" part[name] "\" */")
        }
    }
    lost($0) {
        at = RSTART
        if (substr($0, at - 3, 3) == "/* ") {
            if (!/\*\/$/) skips = "comment"
            $0 = substr($0, 1, at - 1) "Not in this copy: part \"" by "\" */"
        } else {
            depth = indent($0)
            skips = depth + 1 == at ? "paragraph" : "deeper"
            ends = /\*\/$/
            $0 = substr($0, 1, at - 1) "Not in this copy: part \"" by "\"" (ends ? " */" : "")
            if (ends) skips = ""
        }
    }
    { print }'
}

# Reads the header, and prints each declaration of a function that is missing.
#   write_missing header   the header, in which one line each replaces their documentation, also in its INDEX
#   write_missing unit     their definitions for the unit: each answers ZERO_ERR_UNSUPPORTED
write_missing() {
    echo "$missing" | awk -v form="$1" '
    function declared(line) { # returns the public function whose declaration begins here, or ""
        if (line !~ /^[a-z][a-z0-9_ ]*[ *]zero_[a-z0-9_]+\(/) return ""
        sub(/\(.*/, "", line); sub(/.*[ *]/, "", line)
        return line
    }
    function listed(line) { # returns the missing function of this line of the INDEX, or ""
        if (line !~ /^     zero_[a-z_]+  +[a-z]/) return ""
        sub(/^ +/, "", line); sub(/ .*/, "", line)
        return line in part ? line : ""
    }
    function declare(text, name,   by, type, first, body, whole) {
        by = part[name]
        if (form == "header") {
            print "/* Not in this copy: make drop WITH=\"... " by "\" adds " name "." \
                  (name == "zero_run_local" ? " It returns 126, and writes this to stderr." : "") " */"
            print text
            return
        }
        type = text; sub("[ *]*" name "\\(.*", "", type)
        first = text; sub(".*" name "\\(", "", first); sub(/[,)].*/, "", first)
        sub(/;$/, " {", text)
        if (type == "zero_result") { # a row: of a function that has a context, or none
            sub(/ \{$/, ")", text); sub(/^[^(]*/, "", text); gsub(/[ \n]+/, " ", text)
            whole = (first ~ /^zero_ctx \*z$/ ? "ZP_LACKS(\"" by "\", " : "ZP_LACKS_GROUPS(") name ","
            print whole (length(whole text) > 99 ? "\n    " : " ") text
            return
        }
        else if (type ~ /^const char/) body = "return \"" name ": \" ZP_LEFT_OUT(\"" by "\");"
        else if (by == "start") { # their results are exit values, and 126 is: no rank was started
            body = "return 126;"
            if (name == "zero_run_local") # it has no log of the caller
                body = "zero_log_file(NULL, ZERO_LOG_ERROR, \"" name ": \" ZP_LEFT_OUT(\"start\"));\n    " body
            if (text ~ /\*cfg/) body = "if (cfg && cfg->log) cfg->log(cfg->log_user, ZERO_LOG_ERROR, \"" name ": \" ZP_LEFT_OUT(\"start\"));\n    " body
            if (text ~ /zero_ctx \*\*z/) body = "if (z) *z = NULL;\n    " body
        } else if (type == "zero_comm") body = "const zero_comm none = {ZERO_COMM_SELF, 0, NULL, 0};\n    return none;"
        else if (type != "void" || text ~ /^void \*/) body = "return 0;"
        else if (match(text, /zero_(counters|group_stats) \*[a-z]+\)/)) { # the header promises zeros
            first = substr(text, RSTART, RLENGTH - 1); sub(/.*\*/, "", first)
            body = "if (" first ") memset(" first ", 0, sizeof *" first ");"
        } else body = ""
        whole = text (body == "" ? "}" : " " body " }")
        if (whole ~ /\n/ || length(whole) > 100) whole = text (body == "" ? "" : "\n    " body) "\n}"
        print whole
    }
    FILENAME == "-" { if (NF) part[$1] = $2; next }
    { # one paragraph of the header
        lines = split($0, line, "\n")
        lost = kept = 0
        for (i = 1; i <= lines; i++) if ((name = declared(line[i])) != "") {
            if (name in part) lost++; else kept++
        }
        for (i = 1; i <= lines; i++) {
            if (line[i] ~ /^ ?\/\*/) comment = 1
            if (form == "header" && comment && (name = listed(line[i])) != "")
                line[i] = sprintf("     %-19s  not in this copy: part \"%s\"", name, part[name])
            name = comment ? "" : declared(line[i])
            if (name in part) {
                for (text = line[i]; text !~ /;$/ && i < lines;) text = text "\n" line[++i]
                declare(text, name)
            } else if (form == "header" && !(comment && lost && !kept)) print line[i]
            if (line[i] ~ /\*\/$/) comment = 0
        }
        if (form == "header") print ""
    }' - RS= "$here/zero_plugin.h"
}

# The unit after its rooms: what is left out answers.
write_rest() {
    [ -n "$missing" ] || return 0
    echo
    echo "/* The functions of the parts that this copy lacks. */"
    echo '#pragma GCC diagnostic ignored "-Wunused-parameter"'
    echo 'static zero_result zp_lacking(zero_ctx *z, const char *part, const char *call) {'
    echo '    ZP_ENTER(z, call, ZP_ANY, "");'
    echo '    const zero_result r = zp_extra_need(z, part, call);'
    echo '    if (!strcmp(call, "zero_place")) memcpy(z->row, z->text, sizeof z->row); /* zero_build returns it */'
    echo '    return r ? r : ZERO_ERR_UNSUPPORTED;'
    echo '}'
    echo '#define ZP_LACKS(part, name, parameters) zero_result name parameters { return zp_lacking(z, part, #name); }'
    echo '#define ZP_LACKS_GROUPS(name, parameters) zero_result name parameters { return ZERO_ERR_UNSUPPORTED; }'
    write_missing unit
}

# All files are complete before drop.sh renames the first.
mkdir -p "$folder"
trap 'rm -f "$folder/.zero_plugin.$$".*' EXIT
for file in $files; do
    new=$folder/.zero_plugin.$$.$file
    echo >"$new"
    case $file in
    checkpoint*) sed 's|"\.\./\.\./zero_plugin\.h"|"zero_plugin.h"|; s|adapters/checkpoint/||' "$here/adapters/checkpoint/$file" ;;
    *.h) if [ "$with" != "$parts" ]; then write_missing header | drop_texts; else cat "$here/$file"; fi ;;
    *)
        if [ "$with" != "$parts" ]; then
            echo "#define ZERO_DROP_WITH \"$with\" /* the parts of this copy */"
            echo '#pragma GCC diagnostic ignored "-Wunused-function"'
        fi
        write_unit
        write_rest
        ;;
    esac >>"$new"
    first="$mark $version, commit $commit: $file, sum $(sum <"$new"). Changes belong in its repository. */"
    { echo "$first"; tail -n +2 "$new"; } >"$new.all"
    rm "$new"
done
for file in $files; do
    new=$folder/.zero_plugin.$$.$file.all
    cmp -s "$new" "$folder/$file" || mv "$new" "$folder/$file"
done
case $files in *checkpoint*) more=", and the checkpoint adapter" ;; *) more= ;; esac
echo "wrote $to/zero_plugin.h and $to/zero_plugin.cu$more: version $version, commit $commit"
