#!/bin/sh
# drop.sh FOLDER - writes the two files that you copy into your trainer: zero_plugin.h, and one
# zero_plugin.cu with every room in its place. Their first lines name the version, the commit (`unknown`
# outside git; -dirty: with uncommitted changes) and a checksum of the lines below. If FOLDER has a file
# of that name that drop.sh did not write, or that was edited since, drop.sh writes nothing. An
# unchanged file keeps its time, so a makefile may call drop.sh each time.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
fail() { echo "drop.sh: $*" >&2; exit 1; }
if [ $# -ne 1 ] || [ -z "$1" ]; then echo "drop.sh: expected a folder: make drop DIR=folder" >&2; exit 2; fi
case $1 in /*) folder=$1 ;; *) folder=./$1 ;; esac # so that no name looks like an option
files="zero_plugin.h zero_plugin.cu"
mark="/* Written by make drop of ZeRO for C"

# Prints a checksum of the lines below the first line. It does not depend on the line ends.
sum() { tail -n +2 | tr -d '\r' | cksum | tr ' ' '-'; }
for file in $files; do
    old=$folder/$file
    [ -e "$old" ] || [ -L "$old" ] || continue
    [ -f "$old" ] || fail "$1/$file is not a regular file; move it away first. Nothing was written" # a FIFO blocks head
    head -n 1 "$old" 2>/dev/null | grep -qF "$mark" || fail "$1/$file was not written by make drop; move it away first. Nothing was written"
    head -n 1 "$old" | grep -qF " sum $(sum <"$old")." || fail "$1/$file was edited since make drop wrote it; move it away first. Nothing was written"
done

# The commit of this repository. A surrounding repository or a git hook does not change it.
commit=unknown
if [ -e "$here/.git" ]; then
    unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
    # shellcheck disable=SC2086
    if commit=$(git -C "$here" rev-parse --short=12 HEAD 2>/dev/null); then
        git -C "$here" diff --quiet HEAD -- $files zero_plugin || commit=$commit-dirty
    else commit=unknown; fi
fi
version=$(sed -n 's/^#define ZERO_VERSION *"\(.*\)"/\1/p' "$here/zero_plugin.h")

# zero_plugin.cu includes the rooms between #if __has_include and #else. A room includes only earlier
# rooms, which awk has written before; another order is an error. device.h includes its two rooms itself.
write_unit() {
    awk -v rooms="$here/zero_plugin/" '
    function fail(text) { print "drop.sh: " text > "/dev/stderr"; failed = 1; exit 1 }
    function room(path,   line, inner, lines, name, folder) {
        name = path; sub(/.*\//, "", name)
        folder = path; sub(/[^\/]*$/, "", folder)
        if (name in written) fail(name " is included twice")
        written[name] = 1
        while ((getline line < (rooms path)) > 0) {
            lines++
            if (line == "#pragma once") continue
            if (line ~ /^#include "\.\.\/\.\.\/zero_plugin\.h"$/) line = "#include \"zero_plugin.h\""
            else if (line ~ /^#include "(\.\.\/[a-z]+\/)?[a-z0-9_]+\.h"$/) {
                inner = line; gsub(/^#include "(.*\/)?|"$/, "", inner)
                if (inner in written) continue
                if (name == "device.h") { room(folder inner); continue }
                fail(name " includes " inner ", which comes later")
            }
            print line
        }
        if (!lines) fail(name " is missing")
        close(rooms path)
    }
    /^#if __has_include/ {
        print "/* ROOMS, in this order:"
        while ((getline line < FILENAME) > 0) if (sub(/^#include "zero_plugin\//, "     ", line)) {
            sub(/\.h" +\/\*/, " -", line); sub(/ \*\/$/, "", line); print line
        }
        print "*/"
        inside = 1; next
    }
    inside && /^#else/ { skips = 1 }
    inside && /^#endif/ { inside = skips = 0; next }
    skips { next }
    /^#include "zero_plugin\/[a-z]+\/[a-z0-9_]+\.h"/ { name = $0; gsub(/^#include "zero_plugin\/|".*/, "", name); room(name); next }
    { print }
    END { if (failed) exit 1 }' "$here/zero_plugin.cu"
}

# Both files are complete before drop.sh renames the first.
mkdir -p "$folder"
trap 'rm -f "$folder/.zero_plugin.$$".*' EXIT
for file in $files; do
    new=$folder/.zero_plugin.$$.$file
    echo >"$new"
    case $file in
    *.h) cat "$here/$file" ;;
    *) write_unit ;;
    esac >>"$new"
    first="$mark $version, commit $commit: $file, sum $(sum <"$new"). Changes belong in its repository. */"
    { echo "$first"; tail -n +2 "$new"; } >"$new.all"
    rm "$new"
done
for file in $files; do
    new=$folder/.zero_plugin.$$.$file.all
    cmp -s "$new" "$folder/$file" || mv "$new" "$folder/$file"
done
echo "wrote $1/zero_plugin.h and $1/zero_plugin.cu: version $version, commit $commit"
