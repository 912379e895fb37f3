#!/bin/sh
# drop.sh FOLDER - writes the two files that a host copies: zero_plugin.h as it is, and one
# zero_plugin.cu with every room in its place. Their first lines tell version and commit. A file of
# that name which no drop has written is left alone.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
[ $# -eq 1 ] && [ -n "$1" ] || { echo "drop.sh: expected a folder: make drop DIR=folder" >&2; exit 2; }
version=$(sed -n 's/^#define ZERO_VERSION *"\(.*\)"/\1/p' "$here/zero_plugin.h")
commit=unknown
if [ -e "$here/.git" ]; then commit=$(git -C "$here" describe --always --dirty --abbrev=12 2>/dev/null || echo unknown); fi
mark="/* Written by make drop of ZeRO for C"
mkdir -p "$1"
for file in zero_plugin.h zero_plugin.cu; do
    [ ! -e "$1/$file" ] || head -n 1 "$1/$file" | grep -qF "$mark" ||
        { echo "drop.sh: $1/$file was not written by make drop, and is left alone: move it away first" >&2; exit 1; }
done

# Rooms lie in the unit between #if __has_include and #else. A room's own includes of rooms are of
# earlier ones, which have been written; another order is an error.
write_unit() {
    awk -v rooms="$here/zero_plugin/" '
    function fail(text) { print "drop.sh: " text > "/dev/stderr"; failed = 1; exit 1 }
    function room(name,   line, inner) {
        if (name in written) fail(name " is included twice")
        written[name] = 1
        while ((getline line < (rooms name)) > 0) {
            if (line ~ /^#include "\.\.\/zero_plugin\.h"$/) line = "#include \"zero_plugin.h\""
            else if (line ~ /^#include "[a-z0-9_]+\.h"$/) {
                inner = line; gsub(/^#include "|"$/, "", inner)
                if (inner in written) continue
                if (indirect[name]) { room(inner); continue }
                fail(name " includes " inner ", which comes later")
            }
            print line
        }
        close(rooms name)
    }
    BEGIN { indirect["device.h"] = 1 }
    /^#if __has_include/ { inside = 1; next }
    inside && /^#else/ { skips = 1 }
    inside && /^#endif/ { inside = skips = 0; next }
    skips { next }
    /^#include "zero_plugin\/[a-z0-9_]+\.h"$/ { name = $0; gsub(/^#include "zero_plugin\/|"$/, "", name); room(name); next }
    { print }
    END { if (failed) exit 1 }' "$here/zero_plugin.cu"
}
for file in zero_plugin.h zero_plugin.cu; do
    {
        echo "$mark $version, commit $commit: $file. Changes belong in its repository. */"
        case $file in
        *.h) cat "$here/$file" ;;
        *) write_unit ;;
        esac
    } >"$1/$file.new"
    mv "$1/$file.new" "$1/$file"
done
