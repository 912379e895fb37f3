#!/bin/sh
# prove.sh install | BUILD [quick | all | NAME...] - proves the rows of proofs.txt with CBMC, and shows that it finds
# the errors of planted.txt. install: installs CBMC, if it is missing. quick: the proofs with this word, each with one
# planted error. SECONDS_MOST: of one proof (900). Last line: N passed, N failed, N skipped.
set -u
here=$(dirname "$0")

# Debian 11's package. It also installs on Debian 12, which has none. Newer systems have their own.
VERSION=cbmc_5.12-5_amd64.deb
SHA256=25fd26a1fad6b9334aaf498b12b6c094e8d0fb15384281fef5f1c5eaff047f20
install() {
    command -v cbmc >/dev/null 2>&1 && return 0
    if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" != 0 ]; then
        echo "missing: cbmc. Install your system's package, or see https://www.cprover.org/cbmc" >&2
        return 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y --no-install-recommends --no-upgrade cbmc >/dev/null 2>&1 && return 0
    folder=$(mktemp -d)
    if [ "$(uname -m)" = x86_64 ] && curl -fsSL -o "$folder/$VERSION" "http://deb.debian.org/debian/pool/main/c/cbmc/$VERSION" \
        && echo "$SHA256  $folder/$VERSION" | sha256sum -c --quiet - \
        && apt-get install -y --no-install-recommends --no-upgrade "$folder/$VERSION" >"$folder/log" 2>&1; then
        rm -rf "$folder"
        return 0
    fi
    [ ! -f "$folder/log" ] || tail -n 3 "$folder/log" >&2
    echo "cbmc was not installed: $VERSION could not be fetched, has another SHA-256, or does not fit this system" >&2
    rm -rf "$folder"
    return 1
}
[ "${1:-}" != install ] || { install; exit; }

B=${1:?build folder} what=${2:-all}
[ $# -lt 2 ] || shift
shift
if ! command -v cbmc >/dev/null 2>&1; then
    echo "not installed: cbmc (make prove installs it); $(rows() { grep -v '^#' "$here/proofs.txt"; }; rows | wc -l) proofs have not run"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
root=$(cd "$here/../.." && pwd)
work=$B/proofs
rm -rf "$work"
mkdir -p "$work"

# CBMC has no vector instructions: without SSE2 and AVX the headers have plain C alone.
prepare() { # TREE NAME FILE: the preprocessed text
    (cd "$1" && ${CC:-cc} -E -P -std=gnu11 -D__CPROVER -U__SSE2__ -UZERO_WITH_MPI "tests/proofs/$3.c") >"$work/$2.i"
}
# Proves one row: 0: proven; 1: an assertion is false; 2: neither.
check() { # TREE NAME FILE UNWIND WRAPS
    prepare "$1" "$2" "$3" || return 2
    [ "$5" = wraps ] && unsigned= || unsigned=--unsigned-overflow-check
    # shellcheck disable=SC2086
    timeout "${SECONDS_MOST:-900}" cbmc "$work/$2.i" --function "$2" --drop-unused-functions --object-bits 16 --unwind "$4" \
        --unwinding-assertions --bounds-check --pointer-check --signed-overflow-check $unsigned --div-by-zero-check \
        --undefined-shift-check >"$work/$2.txt" 2>&1
    case $? in
    0) grep -q '^VERIFICATION SUCCESSFUL' "$work/$2.txt" ;;
    10) return 1 ;;
    *) return 2 ;;
    esac
}

passed=0 failed=0
pass() { passed=$((passed + 1)); printf '%-24s %5d s  %s\n' "$1" "$2" "$3"; }
fail() { failed=$((failed + 1)); echo "FAILED: $1: $2"; grep -h ': FAILURE$\|ERROR' "$work/$1.txt" | head -n 5; tail -n 1 "$work/$1.txt"; }
wanted() { # NAME SET
    case $what in
    all) return 0 ;;
    quick) [ "$2" = quick ] ;;
    *) case " $names " in *" $1 "*) return 0 ;; *) return 1 ;; esac ;;
    esac
}
names="$what $*"

while read -r name file set unwind wraps; do
    case $name in '' | '#'*) continue ;; esac
    wanted "$name" "$set" || continue
    begun=$(date +%s)
    check "$root" "$name" "$file" "$unwind" "$wraps"
    case $? in
    0) pass "$name" $(($(date +%s) - begun)) proven ;;
    1) fail "$name" "is false" ;;
    *) fail "$name" "was not decided within ${SECONDS_MOST:-900} s, or CBMC could not read it" ;;
    esac
done <"$here/proofs.txt"

# A planted error: one line of a copy is changed by sed, and the proof must then be false.
while IFS='|' read -r name changed by; do
    case $name in '' | '#'*) continue ;; esac
    name=$(echo "$name" | tr -d ' ') changed=$(echo "$changed" | tr -d ' ') by=${by# }
    row=$(grep "^$name " "$here/proofs.txt") || { echo "FAILED: planted.txt names $name, which is no proof"; failed=$((failed + 1)); continue; }
    read -r _ file set unwind wraps <<ROW
$row
ROW
    wanted "$name" "$set" || continue
    tree=$work/tree
    rm -rf "$tree"
    mkdir -p "$tree/tests"
    cp -r "$root/zero_plugin" "$root/zero_plugin.h" "$tree" && cp -r "$here" "$tree/tests/proofs"
    sed -i "$by" "$tree/$changed"
    begun=$(date +%s)
    if cmp -s "$tree/$changed" "$root/$changed"; then
        echo "FAILED: planted.txt: $by changes nothing in $changed"
        failed=$((failed + 1))
        continue
    fi
    check "$tree" "$name" "$file" "$unwind" "$wraps"
    case $? in
    1) pass "$name" $(($(date +%s) - begun)) "finds $by" ;;
    0) fail "$name" "does not find $by" ;;
    *) fail "$name" "did not decide within ${SECONDS_MOST:-900} s whether it finds $by" ;;
    esac
done <"$here/planted.txt"

echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
