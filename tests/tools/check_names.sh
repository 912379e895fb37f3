#!/bin/sh
# check_names.sh BUILD - names and layers of the plugin's files, zero_plugin/FOLDER/FILE.h:
#   names    a function in FILE.h is called zp_FILE_..., where FILE may lose `_cpu`, `_cuda` or `_avx`, and a
#            plural s. base.h is exempt. Files of api/ define the public functions zero_... as well.
#   layers   machine/, numbers/, comm/ and core/ use no function of offload/ and extras/, and include none of their files;
#            api/ and extras/ use none of offload/, but for table.h
#   fields   core/ reads no setting and no field of a tensor that the table of a part has, and names no part in a text
#   words    machine/, numbers/, comm/ and core/ name no capability, in code or comments; the exceptions are listed
#   circles  no file includes itself through others
# Exit code 1: one of them does not hold. The names at fault are printed.
set -u
out=$1/check/names
mkdir -p "$out" || exit 1
failed=0

# Functions that are not named after their file yet: FOLDER/FILE NAME. A line that is not needed any more is an error,
# so the list only shrinks.
cat >"$out/exceptions" <<'LIST'
extras/trace nvtxRangePop
extras/trace nvtxRangePushA
LIST

# Without comments and string literals, so that only code counts.
code() {
    awk '{
        text = $0; line = ""
        while (text != "") {
            if (inside) { at = index(text, "*/"); if (!at) break; inside = 0; text = substr(text, at + 2); continue }
            if (match(text, /"([^"\\]|\\.)*"|\/\*|\/\//) == 0) { line = line text; break }
            found = substr(text, RSTART, RLENGTH); line = line substr(text, 1, RSTART - 1); text = substr(text, RSTART + RLENGTH)
            if (found == "//") break
            if (found == "/*") inside = 1; else line = line "\"\""
        }
        print line
    }' "$1"
}
# Prints the functions that a file defines. A definition begins in the first column; its name stands before the first
# parenthesis that opens no attribute, or is the first argument of ZP_KERNEL.
functions() {
    code "$1" | awk '
        /^#/ || macro { macro = /\\$/; next }
        /^ZP_KERNEL\(/ { sub(/^ZP_KERNEL\( */, ""); sub(/,.*/, ""); print; text = ""; next }
        /^[A-Za-z_]/ { text = "" }
        /^[}]/ { text = ""; next }
        /^[A-Za-z_]/ || text != "" {
            text = text " " $0
            if (!match(text, /[{;]/)) next
            head = substr(text, 2, RSTART - 2); last = substr(text, RSTART, 1); text = ""
            if (last == ";" || head ~ /=|^ *(typedef|struct|enum|union|extern)/) next
            gsub(/__attribute__ *\(\([^()]*(\([^()]*\))?[^()]*\)\)|__launch_bounds__\([^()]*\)/, "", head)
            if (head ~ /^ZP_[A-Z]+\(/ || !match(head, /[A-Za-z_0-9]+\(/)) next
            print substr(head, RSTART, RLENGTH - 1)
        }'
}

for file in zero_plugin/*/*.h; do
    functions "$file" | sed "s|^|$(echo "$file" | sed 's|zero_plugin/||; s|\.h$||') |"
done >"$out/functions"
[ "$(wc -l <"$out/functions")" -gt 900 ] || { echo "only $(wc -l <"$out/functions") functions were found"; failed=1; }

# ---- names ----
awk '$1 != "machine/base" {
    file = $1; sub(/.*\//, "", file); sub(/_(cpu|cuda|avx)$/, "", file)
    one = file; sub(/s$/, "", one)
    if (index($2, "zp_" file "_") != 1 && index($2, "zp_" one "_") != 1 && !($1 ~ /^api\// && $2 ~ /^zero_/)) print
}' "$out/functions" | sort -u >"$out/others"
sort -u "$out/exceptions" >"$out/expected"
comm -23 "$out/others" "$out/expected" >"$out/new"
comm -13 "$out/others" "$out/expected" >"$out/gone"
if [ -s "$out/new" ]; then failed=1; echo "not named after their file:"; sed 's/^/  /' "$out/new"; fi
if [ -s "$out/gone" ]; then failed=1; echo "these lines of the list of exceptions are not needed any more:"; sed 's/^/  /' "$out/gone"; fi

# ---- layers ----
for file in zero_plugin/[!o]*/*.h; do # all folders but offload/
    case $file in
    */table.h) continue ;;
    */api/* | */extras/*) above=offload ;;
    *) above='offload|extras' ;;
    esac
    sed -nE "s@^ *# *include \".*(($above)/[a-z0-9_]+\.h)\".*@$file \1@p" "$file"
    code "$file" | grep -oE '\bzp_[a-z0-9_]+' | sort -u | awk -v file="$file" -v above="^($above)/" '
        NR == FNR { if ($1 ~ above) upper[$2] = 1; next }
        $1 in upper { print file, $1 }' "$out/functions" -
done >"$out/upward"
if [ -s "$out/upward" ]; then failed=1; echo "files that use others of folders above them:"; sed 's/^/  /' "$out/upward"; fi

# ---- fields ----
# The core reads no setting, and no field of a tensor, in the table of a part, and no text in it names a part.
rows() { sed -n "s/^    {$1(\([a-zA-Z_]*\)[.)].*/\1/p" zero_plugin/extras/*.h zero_plugin/offload/*.h | sort -u | paste -sd '|' -; }
fields="cfg\\.($(rows ZP_SETTING))|(desc\\.|\\bd->)($(rows ZP_FIELD))|$(rows ZP_FIELD_BIT)"
[ "${#fields}" -gt 300 ] || { echo "parts have few settings: $fields"; failed=1; }
for file in zero_plugin/core/*.h; do
    code "$file" | grep -E "($fields)\\b|zp_extra_need\\(z, \"" | sed "s@^@$file @"
done >"$out/fields"
if [ -s "$out/fields" ]; then failed=1; echo "the core names a setting or a field of a part, or a part:"; sed 's/^/  /' "$out/fields"; fi

# ---- words ----
# Capabilities have no name in machine/, numbers/, comm/ and core/. Allowed are text in quotes, fields of zero_config,
# and pointers to the structs of rows and tiers; comm/ may name NCCL and zero_group, whose files are there. `order`,
# `check` and `group` are words of the core too, so only what the parts of these names add counts.
words='offload(s|ed|ing)?|packed|subgroups?|replicas?|muon|lamb|codecs?|quantiz[a-z]*|hpz|delayed|worlds?|matri(x|ces)|filed?[ -]tiers?|(in|to|from) the file|twins?|len(d|ds|t|ding)|traced?|nccl|zero_group[a-z_]*|announced (order|pass(es)?)|checked builds?'
# FILE WORD, and the reason:
#   an observer's contract says what a checked build gets from it
#   an order is announced to the core by any row, and order.h documents that
#   a trace's records are made where time passes, and kept by extras/trace.h; NCCL orders lists by device
#   slice_group is a pointer of the table of tensors; a group that is traced is in its context's list
#   MATRIX is a pass of rules, and the table of rules has a row for each public optimizer
cat >"$out/known" <<LIST
comm/collectives.h traced
comm/group.h traced
core/layout.h zero_group
core/observe.h checked build
core/order.h announced order
machine/device_cuda.h nccl
machine/events.h trace
machine/events.h zero_group_trace
numbers/optimizer.h matrices
numbers/optimizer.h matrix
numbers/optimizer_cuda.h matrix
numbers/rules.h lamb
numbers/rules.h matrices
numbers/rules.h matrix
numbers/rules.h muon
LIST
for file in zero_plugin/machine/*.h zero_plugin/numbers/*.h zero_plugin/comm/*.h zero_plugin/core/*.h; do
    sed -E 's/"([^"\\]|\\.)*"//g; s/(^| )struct zp_[a-z_]+ \*[a-z]+;//; s/cfg\.[a-z_.]+//g' "$file" | grep -oiwE "($words)" |
        tr '[:upper:]' '[:lower:]' | sed "s@^@${file#zero_plugin/} @"
done | grep -vE '^comm/.* (nccl|zero_group.*)$' | sort -u >"$out/words"
sort -u "$out/known" -o "$out/known"
comm -23 "$out/words" "$out/known" >"$out/new"
comm -13 "$out/words" "$out/known" >"$out/gone"
if [ -s "$out/new" ]; then failed=1; echo "words of capabilities in files that name none:"; sed 's/^/  /' "$out/new"; fi
if [ -s "$out/gone" ]; then failed=1; echo "these exceptions of words are not needed any more:"; sed 's/^/  /' "$out/gone"; fi

# ---- circles ----
for file in zero_plugin/*/*.h; do
    sed -n "s|^ *# *include \"\(.*/\)\{0,1\}\([a-z0-9_]*\.h\)\".*|$(basename "$file") \2|p" "$file"
done >"$out/includes"
[ "$(wc -l <"$out/includes")" -gt 60 ] || { echo "only $(wc -l <"$out/includes") includes were found"; failed=1; }
if ! tsort "$out/includes" >/dev/null 2>"$out/circles"; then failed=1; echo "files in circles of includes:"; sed 's/^/  /' "$out/circles"; fi
exit $failed
