#!/bin/sh
# check_circles.sh BUILD CC "CUDA FLAGS" FILE... - no circles of files: where A calls B, or reads data of
# B, then B does not call A, neither itself nor through others; nor does a header include itself so.
# FILE: .c, .cu and .h. CUDA FLAGS: as of cuda.sh; "": the .cu and what is for CUDA alone are left out.
# Exit code 1: there is a circle; the calls in it are printed.
# Flags are several words on purpose.
# shellcheck disable=SC2086
set -u
out=$1/check/circles CC=$2 cuda=$3
shift 3
rm -rf "$out"
mkdir -p "$out" || exit 1

for file in "$@"; do
    name=$(basename "$file")
    case $file in
    *.h) sed -n "s/^ *# *include \"\(.*\/\)\{0,1\}\(.*\)\".*/$name \2 includes/p" "$file" >>"$out/uses" ;;
    *.cu)
        [ -z "$cuda" ] || "${CXX:-c++}" -std=c++17 -w -D__CUDACC__ -Itests/emulation $cuda -I. -x c++ \
            -include cuda_runtime.h -c -o "$out/$name.o" "$file" || exit 1 ;;
    *) "$CC" -std=c11 -D_GNU_SOURCE -w $cuda -I. -c -o "$out/$name.o" "$file" || exit 1 ;;
    esac
done
# "A B name": A leaves undefined what B defines, or header A includes B.
(cd "$out" && for object in *.o; do nm -P -g "$object" | sed "s/^/${object%.o} /"; done) | awk '
    $3 == "U" { wants[$1 " " $2] = 1; next }
    $3 ~ /[TDBRC]/ { owners[$2] = owners[$2] " " $1 }
    END { for (w in wants) { split(w, p); n = split(owners[p[2]], by); for (i = 1; i <= n; i++) print p[1], by[i], p[2] } }
    ' >>"$out/uses"
[ "$(wc -l <"$out/uses")" -gt $# ] || { echo "no calls were found"; exit 1; }

awk '{ print $1, $2 }' "$out/uses" | sort -u | tsort 2>&1 >/dev/null | sed -n 's/^tsort: \([^ ]*\)$/\1/p' | sort -u >"$out/circles"
[ -s "$out/circles" ] || exit 0
echo "$(tr '\n' ' ' <"$out/circles")are in circles:"
awk 'NR == FNR { in_circle[$1] = 1; next } in_circle[$1] && in_circle[$2] { print $1 ": " $3 " of " $2 }' "$out/circles" "$out/uses" | sort
exit 1
