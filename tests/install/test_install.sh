#!/bin/sh
# test_install.sh BUILD - `make install` into a folder of its own; a C and a C++ program find the library
# through pkg-config's file, shared and static, and run; the library exports zero_* alone.
# Last line: N passed, N failed.
set -u
B=$1
passed=0 failed=0
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

check() { # NAME COMMAND...
    name=$1
    shift
    if "$@" >"$root/log" 2>&1; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED: $name"; head -n 20 "$root/log" | sed 's/^/    /'; fi
}
value() { sed -n "s/^$1: //p" "$root/at/lib/pkgconfig/zero_plugin.pc" | sed "s|\${prefix}|$root/at|g"; }
exports() { # all of the header's functions, and nothing else
    nm -D --defined-only "$root/at/lib/libzero_plugin.so" | awk '{ print $3 }' | sort >"$root/exports"
    for f in $(sed -n 's/^[a-z].*[ *]\(zero_[a-z_]*\)(.*/\1/p' zero_plugin.h | sort -u); do
        grep -qx "$f" "$root/exports" || { echo "$f is missing"; return 1; }
    done
    ! grep -v '^zero_' "$root/exports"
}
soname() {
    readelf -d "$root/at/lib/libzero_plugin.so" |
        grep -q "SONAME.*libzero_plugin.so.$(sed -n 's/^#define ZERO_ABI *//p' zero_plugin.h)\]"
}

cat >"$root/main.c" <<'END'
#include <stdio.h>
#include <zero_plugin.h>
int main(void) {
    zero_config cfg;
    zero_comm comm;
    zero_ctx *z = NULL;
    unsigned char *p = (unsigned char *)&cfg, *q = (unsigned char *)&comm;
    for (size_t i = 0; i < sizeof cfg; i++) p[i] = 0;
    for (size_t i = 0; i < sizeof comm; i++) q[i] = 0;
    const int ok = zero_create(&z, &cfg, &comm) == ZERO_OK && zero_nranks(z) == 1 && zero_abi() == ZERO_ABI;
    zero_destroy(z);
    puts(zero_version());
    return !ok;
}
END
cp "$root/main.c" "$root/main.cc"
check "make install" make -s B="$B" PREFIX="$root/at" install
check "the header is the drop's" cmp "$B/drop/zero_plugin.h" "$root/at/include/zero_plugin.h"
check "the exported names" exports
check "the name of the library" soname
flags="-Wall -Wextra -Wpedantic -Werror"
for how in shared static; do
    libs=$(value Libs)
    [ $how = static ] && libs="$root/at/lib/libzero_plugin.a $(value Libs.private)"
    # shellcheck disable=SC2046,SC2086
    check "C11, $how" "${CC:-cc}" -std=c11 $flags $(value Cflags) -o "$root/c_$how" "$root/main.c" $libs
    check "C11, $how, runs" env LD_LIBRARY_PATH="$root/at/lib" "$root/c_$how"
    # shellcheck disable=SC2046,SC2086
    check "C++17, $how" "${CXX:-c++}" -std=c++17 $flags $(value Cflags) -o "$root/cc_$how" "$root/main.cc" $libs
    check "C++17, $how, runs" env LD_LIBRARY_PATH="$root/at/lib" "$root/cc_$how"
done
check "DESTDIR" make -s B="$B" PREFIX=/usr DESTDIR="$root/package" install
check "DESTDIR holds the header" test -f "$root/package/usr/include/zero_plugin.h"

# ---- checkpoints of a trainer of your own ----
checkpoint() {
    line=$(sed -n 's/^ *\(cc .*checkpoint\*\.c\)$/\1/p' adapters/checkpoint/checkpoint.h)
    here=$PWD
    [ -n "$line" ] && mkdir -p "$root/checkpoint" && (cd "$root/checkpoint" && ln -s "$here/adapters" "$here/zero_plugin.h" . && sh -c "$line")
}
check "the line that builds checkpoints" checkpoint

# ---- what make says ----
said() { # PATTERN ARGUMENT...: the last line that make prints
    pattern=$1
    shift
    rm -f "$root/short/outliers.o"
    env -u MAKELEVEL MAKEFLAGS= make B="$root/short" "$@" "$root/short/outliers.o" | tail -n 1 | grep -q -e "$pattern"
}
silent() { rm -f "$root/short/outliers.o"; [ -z "$(env -u MAKELEVEL MAKEFLAGS= make -s B="$root/short" "$root/short/outliers.o")" ]; }
help() { env -u MAKELEVEL MAKEFLAGS= make help | grep -c '^make [a-z]' | grep -q '^\(1[0-9]\|20\)$'; }
check "make help" help
check "a command line is short" said "^  CC $root/short/outliers.o\$"
check "V=1: a command line is whole" said "-c -o $root/short/outliers.o adapters/schedule/outliers.c" V=1
check "make -s is silent" silent
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
