#!/bin/sh
# test_docs.sh BUILD [PAGE...] - the commands, flags and links of README.md and adapters/docs. Each line of a block that is
# marked `sh` runs and succeeds, with a small model and few steps; in blocks with another mark (gpu, cluster, files ...) and
# in sentences, each flag is one that the trainer or the planner has. Each link leads to a file and a heading that exist.
# README is at most 150 lines of 100 columns, tests/figures.md at most 400 lines, and its quick start prints the lines that it shows. Without PAGE: all pages.
# With README.md: the header has its form (tests/tools/check_header.sh, which refuses broken copies), and its example compiles.
# Last line: N passed, N failed[, N skipped].
# shellcheck disable=SC2015 # ok returns 0
# shellcheck disable=SC2010,SC2013,SC2016,SC2018,SC2019,SC2046 # names without blanks
set -u
B=$(cd "$1" && pwd)
shift
root=$(cd "$(dirname "$0")" && while [ ! -f zero_plugin.h ] && [ "$PWD" != / ]; do cd ..; done && pwd)
trainer=${TRAINER:-$B/train_gpt2_zero}
case $trainer in /*) ;; *) trainer=$PWD/$trainer ;; esac
dir=$B/docs_run.$$
passed=0 failed=0 skipped=0
ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAILED: $*"; }
mkdir -p "$dir/build/bin" || exit 1
trap 'rm -rf "$dir"' EXIT
[ $# -gt 0 ] || set -- README.md adapters/docs/README.md $(cd "$root" && ls adapters/docs/*.md | grep -v README)

# ---- a folder that looks like the repository, with small programs ----
for name in adapters data tests zero_plugin zero_plugin.h zero_plugin.cu Makefile; do ln -s "$root/$name" "$dir/$name"; done
ln -s "$B/data" "$dir/build/data"
ln -s "$B/zero_ckpt" "$dir/zero_ckpt"
ln -s "$B/zero_plan" "$dir/zero_plan"
# The trainer with a model of two layers, or of six with GPT-2's tokens, and two steps. A repeated flag replaces the first.
cat >"$dir/train_gpt2_zero" <<END
#!/bin/sh
small="-e char:2x32x2 -t 16" steps="-x 2" before=
for a in "\$@"; do
    case \$before\$a in
    --help* | --version) small= steps= ;;
    -x0) steps= ;;
    -e*) [ "\$before" = -e ] && case \$a in char:*) ;; *.*) small="-t 16" ;; *) small="-e d6 -t 16 -b 1" ;; esac ;;
    -z*,* | -layouts*) steps="-x 2 -rd 1 -b 1 -csv build/compare.csv" ;;
    -tk5) steps="-x 6" ;;
    esac
    before=; case \$a in -e | -x | -tk | -z) before=\$a ;; esac
done
[ -z "\$small" ] || small="\$small -v -1 -g 0 -nt 1"
exec "$trainer" "\$@" \$small \$steps
END
# `make GOAL` runs the last line of the goal's recipe here; goals that build programs, and deps, need only exist.
cat >"$dir/build/bin/make" <<END
#!/bin/sh
line=\$(command make -s -n -C "$root" B=build DEVICE=cpu "\$@" 2>&1) || { echo "\$line"; exit 1; }
case \$1 in
drop) with=\${3:-}; exec sh zero_plugin/drop.sh "\${2#DIR=}" \${with#WITH=} ;;
compare | scale | report) line=\$(echo "\$line" | grep -v '^make' | tail -n 1) ;;
*) exit 0 ;;
esac
line=\$(echo "\$line" | sed "s|^build/page|$B/page|")
eval "\$line"
END
sed -i "s|command make|$(command -v make)|" "$dir/build/bin/make"
chmod +x "$dir/train_gpt2_zero" "$dir/build/bin/make"
export PATH="$dir/build/bin:$PATH" OMP_NUM_THREADS=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

# Prints the lines of blocks: MARK sh alone, or the blocks with another mark after sh. A line that ends in \ is joined.
blocks() { # PAGE MARK: `run` or `read`
    awk -v mark="$2" '/^```/ { inside = !inside && ($0 == "```sh" ? mark == "run" : /^```sh / && mark == "read"); next }
        inside && NF && !/^#/ { if (/\\$/) { line = line substr($0, 1, length($0) - 1); next } print line $0; line = "" }' "$root/$1"
}
commands() { # PAGE
    blocks "$1" run >"$dir/lines"
    here=.
    while read -r line; do
        case $line in
        "cd "*) here=${line#cd }; [ -d "$dir/$here" ] && ok || bad "$1: $line: no such folder"; continue ;;
        mpirun*) command -v mpirun >/dev/null 2>&1 || { skipped=$((skipped + 1)); continue; } ;;
        esac
        echo "$line" >"$dir/line"
        (cd "$dir/$here" && timeout 300 sh "$dir/line") >"$dir/out" 2>&1 </dev/null && ok ||
            { bad "$1: $line"; tail -n 5 "$dir/out" | sed 's/^/    /'; }
    done <"$dir/lines"
    rm -rf "$dir"/log*
}

# ---- flags ----
{ "$trainer" --help all; "$dir/zero_plan" --help; } >"$dir/help" 2>&1
grep -oE '(^| |,)--?[a-z][a-z0-9-]*' "$dir/help" | tr -d ' ,' | sort -u >"$dir/flags"
printf '%s\n' --help --version --memory --host-memory --on -csv --machine --measure --scale --pictures >>"$dir/flags"
# flags of compilers, launchers and tools that sentences mention
others='-Ofast -O3 -x --allow-run-as-root --oversubscribe --bind-to --model --heads --map --signal -lcudart -pthread -lm'
flag() { # PAGE FLAG
    case " $others " in *" $2 "*) return ;; esac
    grep -qxF -e "$2" "$dir/flags" && ok || bad "$1 names $2, which neither the trainer nor zero_plan has"
}
flags() { # PAGE
    for f in $(grep -v '^```' "$root/$1" | grep -oE '`--?[a-z][a-z-]*[ `=]' | tr -d '`= ' | sort -u); do
        case $f in -ffast-math | -std* | -lnccl | -ldl | -fopenmp) ;; *) flag "$1" "$f" ;; esac
    done
    for f in $(blocks "$1" read | grep -oE '(train_gpt2_zero|zero_plan) .*' | sed 's/ #.*//' | grep -oE ' --?[a-z][a-z-]*' | sort -u); do flag "$1" "$f"; done
}

# ---- links ----
anchors() { # FILE: GitHub's anchors of its headings
    sed -n '/^```/,/^```/!s/^##* //p' "$1" | tr 'A-Z' 'a-z' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'
}
links() { # PAGE
    for link in $(grep -oE '\]\([^) ]+\)' "$root/$1" | sed 's/^](//; s/)$//' | sort -u); do
        case $link in http*) continue ;; esac
        file=${link%%#*} at=
        case $link in *\#*) at=${link#*\#} ;; esac
        target=$root/$(dirname "$1")/$file
        [ -n "$file" ] || target=$root/$1
        [ -e "$target" ] && ok || { bad "$1: $link does not exist"; continue; }
        [ -z "$at" ] || { anchors "$target" | grep -qxF -e "$at" && ok || bad "$1: $link: no such heading"; }
    done
}

for page in "$@"; do
    [ -f "$root/$page" ] || { bad "$page does not exist"; continue; }
    links "$page"
    flags "$page"
    [ -n "${WITHOUT_COMMANDS:-}" ] || commands "$page"
done

# ---- README ----
case " $* " in
*" README.md "*)
    [ "$(wc -l <"$root/README.md")" -le 150 ] && ok || bad "README.md has $(wc -l <"$root/README.md") lines, at most 150"
    [ "$(wc -l <"$root/tests/figures.md")" -le 400 ] && ok || bad "tests/figures.md has $(wc -l <"$root/tests/figures.md") lines, at most 400"
    awk 'length($0) > 100 { print FILENAME ":" FNR; bad = 1 } END { exit bad }' "$root/README.md" && ok || bad "README.md: 100 columns"
    [ "$(sed -n '1,12p' "$root/README.md" | tr '\n' ' ' | tr -d '>*' | tr -s ' ' | grep -c 'Nothing of the CUDA build has run on a GPU yet')" = 1 ] && ok ||
        bad "README.md: the status of the CUDA build is not on the first screen"
    # losses within 2 %: processors round differently
    if [ -z "${WITHOUT_COMMANDS:-}" ]; then
        sed -n '/^val loss/,/^```/p' "$root/README.md" | grep -E '^(val|step)' >"$dir/shown"
        [ "$(wc -l <"$dir/shown")" = 6 ] && ok || bad "README.md does not show six lines"
        (cd "$dir" && "$trainer" -pn 2 -z 3 -x 300 -g 0) 2>&1 | grep -E '^val|^step +([123]|300)/' |
            awk '/^val/ && last ~ /^step +3\// { next } { print; last = $0 }' >"$dir/printed" # not the validation of step 250
        paste -d'#' "$dir/shown" "$dir/printed" | awk -F'#' '
            function loss(s) { match(s, /loss [0-9.]+/); return substr(s, RSTART + 5, RLENGTH - 5) }
            { a = loss($1); b = loss($2); split($1, x, "|"); split($2, y, "|"); n++
              if (x[1] ~ /step/ && x[1] != y[1] || b < a * 0.98 || b > a * 1.02) { print; bad = 1 } }
            END { exit bad || n != 6 }' && ok || bad "the quick start does not print the lines that README shows"
    fi
    ;;
esac
# ---- the header ----
# broken WHAT SED: a copy of the header with this change is refused
broken() {
    sed "$2" "$root/zero_plugin.h" >"$dir/broken.h"
    cmp -s "$root/zero_plugin.h" "$dir/broken.h" && { bad "header: no line to break: $1"; return; }
    sh "$root/tests/tools/check_header.sh" "$dir/broken.h" >/dev/null && bad "check_header.sh accepts $1" || ok
}
case " $* " in
*" README.md "*)
    sh "$root/tests/tools/check_header.sh" >"$dir/out" && ok || { bad "the form of the header"; cat "$dir/out"; }
    broken "a comment that begins with \"Returns\"" 's|^/\* Return a hash|/* Returns a hash|'
    broken "a function without a comment" '/^\/\* Return the counters, after/,/\*\/$/d'
    broken "a function that is not in the INDEX" '/^     zero_nranks /d'
    broken "another order in the INDEX" '/^     zero_rank /{h;d;}; /^     zero_nranks /{G;}'
    broken "a function above MORE that the INDEX lacks" 's|^/\* ==== MORE.*||'
    broken "COLLECTIVE inside a sentence" 's|^   COLLECTIVE over the ranks of comm. SYNC.|   This is COLLECTIVE.|'
    broken "SYNC before COLLECTIVE" 's|^   COLLECTIVE. SYNC. \*/|   SYNC. COLLECTIVE. */|'
    broken "errors before COLLECTIVE" 's|^   Errors: MEMORY. \*/|   Errors: MEMORY.\n   COLLECTIVE. */|'
    broken "errors inside a sentence" 's|^   Errors: those of zero_tensor. \*/|   It returns Errors: none. */|'
    cat >"$dir/header.c" <<'END'
#include "zero_plugin.h"
#include <stdlib.h>
typedef struct { float *wte, *fcw; } Params;
extern Params params, grads;
extern const size_t V, C;
extern const int L, nranks, steps;
extern float lr;
extern double loss, dloss, mean_loss;
void embed(void), block(int l), classify_backward(double dloss), block_backward(int l), embed_backward(void);
double classify(void);
END
    sed -n '/^   EXAMPLE/,/^   STAGES/s/^       //p' "$root/zero_plugin.h" >>"$dir/header.c"
    grep -q zero_destroy "$dir/header.c" && grep -q zero_forward_begin "$dir/header.c" && ok || bad "the header has no example"
    ${CC:-cc} -std=c11 -Wall -Wextra -Werror -I"$root" -fsyntax-only "$dir/header.c" && ok || bad "the header's example does not compile as C"
    if command -v "${CXX:-c++}" >/dev/null 2>&1; then
        ${CXX:-c++} -x c++ -std=c++20 -Wall -Wextra -Werror -I"$root" -fsyntax-only "$dir/header.c" && ok || bad "the header's example does not compile as C++"
    fi
    ;;
esac
[ $skipped -gt 0 ] && more=", $skipped skipped" || more=
echo "$passed passed, $failed failed$more"
[ $failed -eq 0 ]
