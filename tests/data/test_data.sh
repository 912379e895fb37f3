#!/bin/sh
# test_data.sh BUILD_FOLDER: the `tokens` program and the readers in data/.
#
# BUILD_FOLDER holds the `tokens` binary. The reader test, test_data.c, is compiled here with
# ${CC:-cc} into a temporary folder. Prints a line per check and, last, `N passed, N failed`.
set -u

[ $# -eq 1 ] || { echo "usage: test_data.sh BUILD_FOLDER" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd) || exit 2
data=$here/../../data
tokens=$(cd "$1" && pwd)/tokens || exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
log=$work/log
: >"$log"

say() { printf '%s\n' "$*" | tee -a "$log"; }

# check NAME EXPECTED FOUND
check() {
    if [ "$2" = "$3" ]; then say "ok   $1"; else say "FAIL $1: expected $2, found $3"; fi
}

check_sha256() { # NAME FILE SUM
    check "$1" "$3" "$(sha256sum <"$2" | cut -d ' ' -f 1)"
}

# check_error NAME STATUS SENTENCE COMMAND...: one line on stderr that starts with "tokens: ",
# and no file left behind under the prefix that every bad command is given, $work/bad/out.
check_error() {
    name=$1 status=$2 sentence=$3
    shift 3
    mkdir "$work/bad"
    "$@" >"$work/stdout" 2>"$work/stderr"
    check "$name: status" "$status" $?
    check "$name: lines" 1 "$(cat "$work/stdout" "$work/stderr" | wc -l | tr -d ' ')"
    case $(cat "$work/stderr") in
    "tokens: "*"$sentence"*) say "ok   $name: sentence" ;;
    *) say "FAIL $name: expected '$sentence', found '$(cat "$work/stderr")'" ;;
    esac
    check "$name: files left" "" "$(ls -A "$work/bad")"
    rm -rf "$work/bad"
}

check_usage() { # NAME ARGUMENTS...
    name=$1
    shift
    "$tokens" "$@" 2>"$work/stderr"
    check "$name: status" 2 $?
    check "$name: says how" "usage" "$(head -n 1 "$work/stderr" | cut -c 1-5)"
}

# ---- the two token sets of tiny Shakespeare ----
text=$data/tinyshakespeare.txt
words=$data/gpt2.tiktoken
check_sha256 "tiny Shakespeare" "$text" \
    86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed
check_sha256 "GPT-2's vocabulary" "$words" \
    306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930
"$tokens" char "$text" "$work/char" && "$tokens" gpt2 "$text" "$work/gpt2" "$words"
check "both sets made" 0 $?
check_sha256 "characters, train" "$work/char_train.bin" \
    6a1e15f79ffe7aa3ed0be2745d4b941e10586d58bce8557d89a48cd58aa9ebc9
check_sha256 "characters, val" "$work/char_val.bin" \
    0c87ba5e1fea5ea9c3c88adf608340a5f23ab0b7fc626bfa2479459da4b02846
check_sha256 "GPT-2, train" "$work/gpt2_train.bin" \
    8a70606be574040c26d225694f5f9759973b419852d22f7fe5c118e1b359dcc8
check_sha256 "GPT-2, val" "$work/gpt2_val.bin" \
    fe99db720dc7c83e694806d4e047a952909411da1daccde4ccc2e55f40882a62
check "only whole files left" 6 "$(find "$work" -name '*.bin*' | wc -l | tr -d ' ')"

# ---- a text with what Shakespeare lacks; these sums were compared with tiktoken's output ----
i=0
while [ $i -lt 2000 ]; do
    printf "caf\303\251 \344\270\255\346\226\207  \360\237\230\200 it's WE'LL 12345\302\240x"
    printf '\t\000<|endoftext|>\r\n  \n\n\nantidisestablishment   %d\n\n' $i
    i=$((i + 1))
done >"$work/odd.txt"
"$tokens" gpt2 "$work/odd.txt" "$work/odd" "$words"
check_sha256 "odd text, train" "$work/odd_train.bin" \
    e1743069c0682e8e3650ec8f84460af5972b3e055872f36e1b4db9225e8d8ac4
check_sha256 "odd text, val" "$work/odd_val.bin" \
    6a675b114b03bd8d0f4e3c1f340087ab5b2afc5aee822a8026565f7ffbb45c6b
"$tokens" char "$work/odd.txt" "$work/oddchar" 0.25
check "a quarter for validation" "$((($(wc -c <"$work/odd.txt") + 3) / 4))" \
    "$((($(wc -c <"$work/oddchar_val.bin") - 1024) / 2))"

# ---- the readers: round trips, and every bad file ----
set -- -std=c11 -O1 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror
${CC:-cc} "$@" "$here/test_data.c" "$data/data_file.c" "$data/token_file.c" \
    "$data/eval_file.c" "$data/tokenizer.c" -o "$work/test_data"
check "the readers compile as C11" 0 $?
for source in data_file token_file eval_file tokenizer; do
    ${CXX:-c++} -x c++ -std=c++17 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror \
        -fsyntax-only "$data/$source.c"
    check "$source.c compiles as C++17" 0 $?
done
check_readers() { # NAME TEXT CHAR_PREFIX GPT2_PREFIX
    "$work/test_data" "$2" "$3" "$4" "$work" >"$work/readers"
    check "readers of $1: status" 0 $?
    while read -r line; do say "$line"; done <"$work/readers"
}
check_readers "tiny Shakespeare" "$text" "$work/char" "$work/gpt2"
check_readers "odd text" "$work/odd.txt" "$work/oddchar" "$work/odd"

# ---- bad texts ----
bad=$work/bad/out
: >"$work/empty"
printf x >"$work/one"
printf 'abc\n\nd\377e' >"$work/latin"
printf 'abc\n\n\355\240\200' >"$work/surrogate"
check_error "no text" 1 "none: expected a readable file, found: " "$tokens" char "$work/none" "$bad"
check_error "a folder" 1 "found: " "$tokens" char "$work" "$bad"
check_error "empty text" 1 "empty: expected at least 1 byte" "$tokens" char "$work/empty" "$bad"
check_error "empty text, GPT-2" 1 "empty: expected at least 1 byte" \
    "$tokens" gpt2 "$work/empty" "$bad" "$words"
check_error "too short to split" 1 "expected at least 1 token in each part" \
    "$tokens" char "$work/one" "$bad"
check_error "too short, GPT-2" 1 "expected more than 32768 tokens, found 2" \
    "$tokens" gpt2 "$work/one" "$bad" "$words"
check_error "not UTF-8" 1 "latin: expected UTF-8, found an invalid sequence at byte offset 6" \
    "$tokens" gpt2 "$work/latin" "$bad" "$words"
check_error "UTF-8 of a surrogate" 1 "surrogate: expected UTF-8, found an invalid sequence at byte \
offset 5" "$tokens" gpt2 "$work/surrogate" "$bad" "$words"

# ---- bad vocabularies: GPT-2's, with one line changed ----
check_vocabulary() { # NAME SENTENCE SED_SCRIPT
    sed "$3" "$words" >"$work/words"
    check_error "$1" 1 "words: $2" "$tokens" gpt2 "$text" "$bad" "$work/words"
}
check_vocabulary "bad base64 digit" "expected base64 of 1 to 255 bytes on line 3, found 'I*=='" \
    '3s/.*/I*== 2/'
check_vocabulary "bad base64 padding" "expected base64 of 1 to 255 bytes on line 3, found '===='" \
    '3s/.*/==== 2/'
check_vocabulary "base64 cut" "expected base64 of 1 to 255 bytes on line 3, found 'Iw='" \
    '3s/.*/Iw= 2/'
check_vocabulary "empty token" "expected base64 of 1 to 255 bytes on line 3, found ''" '3s/.*/ 2/'
check_vocabulary "empty line" "expected base64 of 1 to 255 bytes on line 3, found ''" '3s/.*//'
check_vocabulary "no rank" "expected rank 2 on line 3, found ''" '3s/ .*//'
check_vocabulary "rank not a number" "expected rank 2 on line 3, found '2x'" '3s/$/x/'
check_vocabulary "rank out of order" "expected rank 2 on line 3, found '3'" '3d'
check_vocabulary "token twice" "expected a new token on line 3, found that of line 1" \
    '3s/.*/IQ== 2/'
check_vocabulary "byte without a token" \
    "expected a token for each of the 256 bytes, found none for 0x23" '3s/.*/IyMjIyMj 2/'
awk 'BEGIN { for (i = 0; i < 65536; i++) { printf "A"
    for (j = 262144; j > 1; j /= 64)
        printf "%s", substr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
                            int(i * 64 / j) % 64 + 1, 1)
    printf " %d\n", i } }' >"$work/many"
check_error "too many token kinds" 1 "many: expected at most 65535 token kinds" \
    "$tokens" gpt2 "$text" "$bad" "$work/many"
check_error "empty vocabulary" 1 "empty: expected at least 1 byte" \
    "$tokens" gpt2 "$text" "$bad" "$work/empty"
{ printf '%0400d 0\n' 0; cat "$words"; } >"$work/words"
check_error "token too long" 1 "expected base64 of 1 to 255 bytes on line 1" \
    "$tokens" gpt2 "$text" "$bad" "$work/words"

# ---- output that cannot be written ----
check_error "no such folder" 1 "out_train.bin: expected to write it, found: " \
    "$tokens" char "$text" "$work/none/out"
full_disk() { # a write behind the limit fails, instead of ending the program
    (trap '' XFSZ; ulimit -f 64; exec "$tokens" char "$text" "$bad")
}
check_error "disk full" 1 "out_train.bin: expected to write it, found: " full_disk
mkdir "$work/taken_train.bin"
check_error "name taken by a folder" 1 "taken_train.bin: expected to write it, found: " \
    "$tokens" char "$text" "$work/taken"
check "temporary file removed" "" "$(find "$work" -name '*.tmp')"

# ---- bad command lines ----
check_usage "no arguments"
check_usage "unknown command" words "$text" "$bad"
check_usage "no vocabulary" gpt2 "$text" "$bad"
check_usage "share of 0" char "$text" "$bad" 0
check_usage "share of 1" char "$text" "$bad" 1
check_usage "share not a number" char "$text" "$bad" 0.1x
check_usage "share nan" char "$text" "$bad" nan

passed=$(grep -c '^ok ' "$log")
failed=$(grep -c '^FAIL ' "$log")
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
