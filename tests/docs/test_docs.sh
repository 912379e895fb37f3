#!/bin/sh
# test_docs.sh BUILD [PAGE...] - the commands, flags and links of README.md and adapters/docs. Each line of a block that is
# marked `sh` runs and succeeds, with a small model and few steps; in blocks with another mark (gpu, cluster, files ...) and
# in sentences, each flag is one that the trainer or the planner has. Each link leads to a file and a heading that exist.
# The defaults in from-llmc.md are the trainer's, and messages that pages quote are those that the programs print.
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

# ---- defaults ----
# Prints FLAG, its default, and its default for GPT-2 models, from the trainer's help.
defaults() {
    "$trainer" --help all | awk '
        function show() {
            if (flag != "" && match(text, /\(default [^)]*\)/)) {
                n = split(substr(text, RSTART + 9, RLENGTH - 10), part, "; ")
                gpt2 = part[1]
                for (i = 2; i <= n; i++) if (sub(/^of a GPT-2 model /, "", part[i])) gpt2 = part[i]
                print flag, part[1], gpt2
            }
            flag = ""
        }
        /^[^ ]/ { show() }
        /^  -/ { show(); flag = $1; text = "" }
        { sub(/^ +/, ""); text = text " " $0 }
        END { show() }'
}
# Compares the table of from-llmc.md (columns: flags, GPT-2 models, char: models; each value is a cell's first word, or, for
# several flags, its first words) with them. Flags whose two defaults differ must be in the table. Prints differences.
wrong_defaults() { # PAGE DEFAULTS
    awk 'FNR == NR { normal[$1] = $2; gpt2[$1] = $3; next }
        /^## / { inside = /^## Defaults/ }
        inside && /^\| `-/ {
            split($0, cell, " *[|] *")
            n = gsub(/`-[a-z0-9]+`/, "&", cell[2])
            split(cell[3], g, "[,:; ] *"); split(cell[4], c, "[,:; ] *")
            for (i = 1; i <= n; i++) {
                match(cell[2], /`-[a-z0-9]+`/)
                flag = substr(cell[2], RSTART + 1, RLENGTH - 2)
                cell[2] = substr(cell[2], RSTART + RLENGTH)
                seen[flag] = 1
                if (!(flag in normal) || g[i] != gpt2[flag] || c[i] != normal[flag])
                    print flag ": the page has " g[i] " and " c[i] ", the trainer " gpt2[flag] " and " normal[flag]
            }
        }
        END { for (flag in normal) if (normal[flag] != gpt2[flag] && !seen[flag]) print flag " is not in the table" }' "$2" "$1"
}
case " $* " in
*" adapters/docs/from-llmc.md "*)
    page=$root/adapters/docs/from-llmc.md
    defaults >"$dir/defaults"
    [ -z "$(wrong_defaults "$page" "$dir/defaults")" ] && ok || bad "from-llmc.md: $(wrong_defaults "$page" "$dir/defaults")"
    sed 's/^\(| `-u`.*| \)0 |/\17 |/' "$page" >"$dir/page" # a wrong default, and a row less, are noticed
    [ "$(wrong_defaults "$dir/page" "$dir/defaults")" = "-u: the page has 7 and 100, the trainer 0 and 100" ] && ok ||
        bad "a wrong default is not noticed: $(wrong_defaults "$dir/page" "$dir/defaults")"
    grep -v '^| `-q`' "$page" >"$dir/page"
    [ "$(wrong_defaults "$dir/page" "$dir/defaults")" = "-q is not in the table" ] && ok || bad "a missing row is not noticed"
    at_3=$(sed -n 's/^| `-g`.*at stage 3: \([0-9]*\) .*/\1/p' "$page") # test_trainer.sh counts these tokens
    [ "$at_3" ] && "$trainer" --help -g | tr -s ' \n' ' ' | grep -q "at stage 3 has $at_3 by default" && ok || bad "-g at stage 3 is not $at_3"
    (cd "$dir" && "$trainer" -pn 3 -x 0 -v -1 -g 0) 2>&1 | grep -q -- '-b 4 x -t 64 x 3 ranks' && ok ||
        bad "-b of a character model on 3 ranks is not 12 divided by 3"
    ;;
esac

# ---- messages ----
# A page has TEXT, as it is or in several lines; the command fails, and prints it.
quoted() { # PAGE TEXT COMMAND...
    quote=$2 quoting=$1
    tr '\n' ' ' <"$root/$1" | tr -s ' ' | grep -qF -- "$2" && ok || bad "$1 does not quote: $2"
    shift 2
    (cd "$dir" && "$@") >"$dir/out" 2>&1 </dev/null && bad "$quoting: this succeeds: $*" || ok
    grep -qF -- "$quote" "$dir/out" && ok || { bad "$quoting quotes '$quote', but the program prints:"; cat "$dir/out"; }
}
for page in "$@"; do
    [ -n "${WITHOUT_COMMANDS:-}" ] && continue
    case $page in
    adapters/docs/integrate.md)
        ${CC:-cc} -std=c11 -O1 -I"$root" -o "$dir/example" "$root/adapters/example.c" "$B/lib/libzero_plugin.a" -fopenmp -pthread -lm && ok ||
            bad "the example does not compile"
        quoted "$page" 'zero_create, rank 0 of 1: stage is 4, expected 0..3' ./example 4 1
        ;;
    adapters/docs/offload.md)
        quoted "$page" '-zop is file: at stage 2 parameters are not sharded; use stage 3' "$trainer" -z 2 -zop file
        quoted "$page" '-zog is file: it needs sharded gradients; use stage 2 or 3, and with several micro-steps sharded accumulation' \
            "$trainer" -z 1 -zog file
        ;;
    adapters/docs/faq.md)
        echo '{"train_micro_batch_size_per_gpu": 8}' >"$dir/ds.json"
        quoted "$page" '-b 2: ds.json gives train_micro_batch_size_per_gpu 8' "$trainer" -ds ds.json -b 2
        ;;
    esac
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
        (cd "$dir" && "$trainer" -pn 2 -z 3 -x 300 -g 0) 2>&1 | grep -E '^val loss|^step +([123]|300)/' |
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
