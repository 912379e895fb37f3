#!/bin/sh
# check_private.sh - the files of tests/ that use private names of the plugin (zp_..., ZP_..., or its source) are those
# that the section "Private names" of tests/README.md lists. Renaming a private function breaks no other program.
# Prints each file that differs and exits 1.
set -u
cd "$(dirname "$0")/../.." || exit
listed=$(sed -n '/^## Private names/,/^## [^P]/s/^| \([^|]*[a-z]\.[a-z]*[^|]*\) |.*/\1/p' tests/README.md | tr -d ' ' | tr ',' '\n' | sort -u)
using=$(grep -lErw 'zp_[a-z][a-z0-9_]*|ZP_[A-Z][A-Z0-9_]*|include "../../zero_plugin.cu"' tests --include=*.c --include=*.h --include=*.cu --include=*.cc |
    grep -v '^tests/emulation/' | sed 's|.*/||' | sort -u)
bad=0
for file in $using; do
    found=0
    for pattern in $listed; do
        # shellcheck disable=SC2254 # a pattern
        case $file in $pattern) found=1 ;; esac
    done
    [ $found = 1 ] || { echo "$file uses private names of the plugin: use public functions, or list it in tests/README.md"; bad=1; }
done
for pattern in $listed; do
    found=0
    for file in $using; do
        # shellcheck disable=SC2254
        case $file in $pattern) found=1 ;; esac
    done
    [ $found = 1 ] || { echo "tests/README.md lists $pattern, which uses no private name"; bad=1; }
done
[ -n "$using" ] && exit $bad
