#!/bin/sh
# check_private.sh - the files of tests/ that use private names of the plugin (zp_..., ZP_..., or its source) are those
# that the section "Private names" of tests/README.md lists. Renaming a private function breaks no other program.
# Prints each file that differs and exits 1.
set -u
cd "$(dirname "$0")/../.." || exit
listed=$(sed -n '/^## Private names/,/^## [^P]/s/^| \([^|]*[a-z*]\.[a-z]*[^|]*\) |.*/\1/p' tests/README.md | tr -d ' ' | tr ',' '\n' | sed 's|^|tests/*/|')
using=$(grep -lErw 'zp_[a-z][a-z0-9_]*|ZP_[A-Z][A-Z0-9_]*|include "../../zero_plugin.cu"' tests --include=*.c --include=*.h --include=*.cu --include=*.cc |
    grep -v '^tests/emulation/')
bad=0
# A pattern of the first list becomes its files. A file that is in both lists is right.
# shellcheck disable=SC2086
for file in $(printf '%s\n' $listed $using | sort | uniq -u); do
    bad=1
    if echo "$using" | grep -qxF "$file"; then
        echo "$file uses private names of the plugin: use public functions, or list it in tests/README.md"
    else
        echo "tests/README.md lists $file, which uses no private name"
    fi
done
[ -n "$using" ] && exit $bad
