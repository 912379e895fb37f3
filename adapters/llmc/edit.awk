# edit.awk - applies an edit file to a source file, or says which of its places are not there.
#   awk -v name=NAME -v out=OUT -f edit.awk EDIT SOURCE
# An edit file, line by line; RE is an extended regular expression, # begins a comment:
#   in FUNCTION      what follows is looked for in this function alone; `in file`: everywhere
#   find RE          the place: the one line that matches; none, or two, are errors
#   then RE          moves on to the first line after it that matches
#   next             moves on by a line
#   close            moves on to the line that closes the block which the place opens
#   through RE       the place becomes all lines up to the first that matches
#   through close    the same, up to the end of the block that its last line opens
#   before, after    the lines that follow, each after a |, are written there
#   replace, drop    the lines that follow take the place's place; or nothing does
#   change RE => T   in the line, T stands for what matches; & in T is what matched
#   idle             the function stays, but what is written elsewhere is called in its place
# OUT is written only if all places were found, no edit reaches into what another one drops (else: exit
# code 1), and what is dropped, replaced, changed away or idle is what the file -v known=KNOWN tells of
# (else 2: a change of the user's own would be lost; without KNOWN it is). Run with LC_ALL=C.
# -v list=1: instead writes to standard output, for each place that must be there exactly once, the
# number of its line and the word and text that ask for it; -v list=lost: what OUT loses, as lines of
# KNOWN: NAME, FUNCTION and a checksum.

function complain(what) {
    printf "%s: %s: %s (%s:%d)\n", name, scope, what, edit_name, FNR > "/dev/stderr"
    bad = 1
    at = 0
}

# Functions begin in the first column, and end with a brace in it.
function enter(f,    i, n) {
    scope = f; from = 1; to = lines
    if (f == "file") return
    n = 0
    for (i = 1; i <= lines; i++)
        if (source[i] ~ ("^[A-Za-z_].*[ *]" f "\\(") && source[i] !~ /;[ \t]*$/) { n++; from = i }
    if (n != 1) { complain("function found " n " times, expected 1"); from = 1; to = 0; return }
    if (list == 1) print from, "in", f
    for (to = from; to < lines && source[to] !~ /^}/; to++) ;
}

function find(re,    i, n) {
    n = 0
    if (to == 0) return # its function was complained of
    for (i = from; i <= to; i++) if (source[i] ~ re) { n++; at = i }
    last = at
    if (n != 1) complain("/" re "/ found " n " times, expected 1")
    else if (list == 1) print at, "find", re
}

function following(re, i) {
    for (i = i + 1; i <= to; i++) if (source[i] ~ re) return i
    complain("/" re "/ not found after line " last)
    return 0
}

# The line with the brace that closes what line i opens: the first one no deeper.
function closing(i,    depth) {
    match(source[i], /^ */)
    depth = RLENGTH
    for (i = i + 1; i <= to; i++) {
        match(source[i], /^ */)
        if (substr(source[i], RLENGTH + 1, 1) == "}" && RLENGTH <= depth) return i
    }
    complain("no brace closes line " last)
    return 0
}

function change(rest,    cut, re, to) {
    cut = index(rest, " => ")
    re = substr(rest, 1, cut - 1)
    to = substr(rest, cut + 4)
    if (match(source[at], re) && to !~ /(^|[^\\])&/) lose(substr(source[at], RSTART, RLENGTH), at, at)
    if (!sub(re, to, result[at])) complain("/" re "/ not found in line " at)
}

# What OUT does not have any more, lines first to final: told by its checksum.
function lose(text, first, final,    i, sum) {
    for (i = 1; i <= length(text); i++) sum = (sum * 31 + code[substr(text, i, 1)]) % 2147483647
    if (list == "lost") print name, scope, sum
    else if (known != "" && !((name, scope, sum) in expected)) {
        printf "%s: %s: line%s, not as llm.c has %s, would be lost (%s:%d)\n", name, scope, \
            first == final ? " " first : "s " first " to " final, first == final ? "it" : "them", \
            edit_name, FNR > "/dev/stderr"
        lost = 1
    }
}

function lines_of(first, final,    i, text) {
    for (i = first; i <= final; i++) text = text source[i] "\n"
    return text
}

# A line is dropped by one edit alone, and touched by no other.
function claim(first, final, dropping,    i) {
    if (dropping) lose(lines_of(first, final), first, final)
    for (i = first; i <= final; i++) {
        if (gone[i] || (dropping && touched[i])) { complain("line " i " is wanted by two edits"); return }
        if (dropping) gone[i] = 1
        else touched[i] = 1
    }
}

function obey(word, rest) {
    if (word == "in") { enter(rest); at = 0; return }
    if (word == "find") { at = 0; find(rest); return }
    if (word == "idle") { if (to) lose(lines_of(from, to), from, to); return }
    if (!at) return # the place was complained of
    if (word == "then") at = last = following(rest, last)
    else if (word == "next") at = ++last
    else if (word == "close") at = last = closing(last)
    else if (word == "through") last = rest == "close" ? closing(last) : following(rest, last)
    else if (word == "change") { claim(at, at, 0); change(rest) }
    else if (word == "replace" || word == "drop") claim(at, last, 1)
    else if (word == "before") claim(at, at, 0)
    else if (word == "after") claim(last, last, 0)
    else complain("unknown word " word)
    into = word
}

function write_line(text) {
    if (!at) return
    if (into == "after") behind[last] = behind[last] text "\n"
    else ahead[at] = ahead[at] text "\n"
}

# The source comes second on the command line but is needed first.
BEGIN {
    edit_name = ARGV[1]
    sub(/.*\//, "", edit_name)
    while ((getline line < ARGV[2]) > 0) { source[++lines] = line; result[lines] = line }
    ARGC = 2
    for (i = 1; i < 256; i++) code[sprintf("%c", i)] = i
    while (known != "" && (getline line < known) > 0)
        if (split(line, word) == 3) expected[word[1], word[2], word[3]] = 1
    enter("file")
}
/^#/ || /^[ \t]*$/ { next }
/^\|/ { write_line(substr($0, 2)); next }
{
    rest = $0
    sub(/^[a-z]+ */, "", rest)
    obey($1, rest)
}
END {
    if (bad || lost || list) exit bad ? 1 : lost ? 2 : 0
    printf "" > out
    for (i = 1; i <= lines; i++)
        printf "%s%s%s", ahead[i], gone[i] ? "" : result[i] "\n", behind[i] > out
}
