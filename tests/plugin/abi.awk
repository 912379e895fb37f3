# abi.awk - reads zero_plugin.h after the preprocessor, without system headers, and writes the rows of
# its binary interface in C: STRUCT(name), FIELD(struct, member, "type"), NUMBER(name), CALL("a prototype").
# Names of parameters are left out: they may change. test_abi.c includes the rows.
{ text = text " " $0 }
END {
    gsub(/[ \t]+/, " ", text)
    gsub(/extern "C" \{/, "", text)
    depth = 0
    for (i = 1; i <= length(text); i++) {
        c = substr(text, i, 1)
        if (c == "{") depth++
        if (c == "}") depth--
        if (c == ";" && depth == 0) { declare(one); one = "" } else one = one c
    }
}
function trim(s) { sub(/^ +/, "", s); sub(/ +$/, "", s); return s }
function declare(s,   head, body, n, part, k, name) {
    s = trim(s)
    if (s ~ /\{/) {
        head = trim(substr(s, 1, index(s, "{") - 1))
        body = substr(s, index(s, "{") + 1)
        sub(/\}[^}]*$/, "", body)
        name = head
        sub(/.* /, "", name)
        if (head ~ /enum/) {
            n = split(body, part, ",")
            for (k = 1; k <= n; k++) {
                sub(/=.*/, "", part[k])
                if (trim(part[k]) != "") print "NUMBER(" trim(part[k]) ")"
            }
        } else {
            print "STRUCT(" name ")"
            n = split(body, part, ";")
            for (k = 1; k <= n; k++) if (trim(part[k]) != "") members(name, trim(part[k]))
        }
    } else if (s ~ /\(/) print "CALL(\"" prototype(s) "\")"
}
# Parameters without their names, except pointers to functions.
function prototype(s,   open, n, part, k, out) {
    open = s ~ /^typedef/ ? index(s, ")(") + 1 : index(s, "(")
    out = substr(s, 1, open)
    s = substr(s, open + 1)
    sub(/\)$/, "", s)
    if (s ~ /\(/) return out s ")"
    n = split(s, part, ",")
    for (k = 1; k <= n; k++) {
        part[k] = trim(part[k])
        if (part[k] ~ /[ *][a-z_0-9]+$/) sub(/[a-z_0-9]+$/, "", part[k])
        out = out (k > 1 ? ", " : "") trim(part[k])
    }
    return out ")"
}
# `int a, b[4]` are two members; a pointer to a function is one.
function members(name, s,   n, part, k, type, member) {
    if (match(s, /\(\*[a-z_0-9]+\)/)) {
        print "FIELD(" name ", " substr(s, RSTART + 2, RLENGTH - 3) ", \"function\")"
        return
    }
    n = split(s, part, ",")
    for (k = 1; k <= n; k++) {
        member = trim(part[k])
        sub(/\[.*/, "", member)
        sub(/.*[ *]/, "", member)
        if (k == 1) { type = trim(part[k]); sub(/\[.*/, "", type); sub(/[a-z_0-9]+$/, "", type) }
        print "FIELD(" name ", " member ", \"" trim(type) "\")"
    }
}
