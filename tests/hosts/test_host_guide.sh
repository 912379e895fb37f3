#!/bin/sh
# test_host_guide.sh BUILD - the code of the documents. adapters/example.c has the same falling losses at every stage, and
# reports wrong arguments. The diffs of adapters/docs/integrate.md apply to adapters/docs/trainers; the results have the
# same losses at every stage, and on one rank those of the original. Each other piece of C in README.md and adapters/docs
# compiles, as C11 and as C++20, and each name of the plugin in these pages is in the header. The compiler's lines in headers
# of adapters work. Last line: N passed, N failed.
set -u
B=$1
root=$(cd "$(dirname "$0")" && while [ ! -f zero_plugin.h ] && [ "$PWD" != / ]; do cd ..; done && pwd)
dir=$B/guide
guide=$root/adapters/docs/integrate.md
warnings="-Wall -Wextra -Wpedantic -Werror"
flags="-std=c11 -D_GNU_SOURCE -O1 -ffp-contract=off -fno-math-errno -fopenmp -pthread $warnings -Wshadow"
passed=0 failed=0
mkdir -p "$dir"
ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAILED: $*"; }

# ---- the example ----
export OMP_NUM_THREADS=1
rm -rf "$dir/zero"
sh "$root/zero_plugin/drop.sh" "$dir/zero" >/dev/null && ok || bad "make drop fails"
if ${CC:-cc} $flags -I"$dir/zero" -o "$dir/example" "$root/adapters/example.c" -x c "$dir/zero/zero_plugin.cu" \
    -x none -lm; then
    for ranks in 1 2 3; do
        for stage in 0 1 2 3; do
            timeout 60 "$dir/example" $stage $ranks >"$dir/losses.$stage.$ranks" 2>&1 && ok ||
                bad "example $stage $ranks: exit code $?"
            cmp "$dir/losses.0.$ranks" "$dir/losses.$stage.$ranks" && ok || bad "example: losses differ"
        done
        awk '/^step [0-9]+, loss [0-9.]+$/ { if (!n++) first = $4; last = $4 }
             END { exit !(n == 60 && last < first / 2) }' "$dir/losses.0.$ranks" && ok ||
            bad "example, $ranks ranks: the loss does not fall"
    done
    cmp -s "$dir/losses.0.1" "$dir/losses.0.2" && bad "example: ranks have the same data" || ok
    timeout 60 "$dir/example" 4 2 >"$dir/refused" 2>&1 && bad "example 4 2: there is no stage 4" || ok
    grep -q 'stage is 4' "$dir/refused" && ok || bad "example 4 2 does not say what is wrong"
else
    bad "the example does not compile"
fi
lines=$(wc -l <"$root/adapters/example.c")
for page in "$guide" "$root/README.md"; do
    [ "$lines" -lt 80 ] && tr '\n' ' ' <"$page" | grep -q "whole trainer in $((lines)) lines" && ok || bad "$page: the example has $lines lines"
done
# README numbers the lines that a trainer gains; there are thirteen.
numbered=$(grep -oE '// [0-9]+(\.|$)' "$root/README.md" | tr -dc '0-9\n' | awk '$1 == n + 1 { n++ } END { print n + 0 }')
[ "$numbered" = 13 ] && ok || bad "README numbers $numbered lines"

# ---- the diffs of integrate.md ----
rm -rf "$dir/trainers" "$dir/diffs"
mkdir -p "$dir/diffs"
cp -r "$root/adapters/docs/trainers" "$dir/trainers"
awk -v dir="$dir/diffs" '/^```diff$/ { file = sprintf("%s/%02d.diff", dir, ++n); next } /^```/ { file = "" } file { print >file }' "$guide"
# build NAME: compiles a trainer, which takes stage and ranks from the environment; losses STAGE RANKS: prints its losses
build() {
    sed 's/ZERO_START_LOCAL(z, 2, .stage = [13])/ZERO_START_LOCAL(z, atoi(getenv("RANKS")), .stage = atoi(getenv("STAGE")))/' \
        "$dir/trainers/$1.c" >"$dir/trainers/set.c"
    ${CC:-cc} -std=c11 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -fopenmp -pthread -I"$dir/zero" -include stdlib.h -o "$dir/trainers/set" \
        "$dir/trainers/set.c" "$B/lib/libzero_plugin.a" -lm
}
losses() { STAGE=$1 RANKS=$2 timeout 60 "$dir/trainers/set"; }
applied=0
for diff in "$dir"/diffs/*.diff; do
    name=$(sed -n '1s|^--- a/\(.*\)\.c$|\1|p' "$diff")
    build "$name" && losses 0 1 >"$dir/before" 2>&1 || bad "$name: the original fails"
    patch -s -p1 -d "$dir/trainers" <"$diff" && ok || { bad "$diff does not apply to $name.c"; continue; }
    applied=$((applied + 1))
    grep -q 'ZERO_START_LOCAL(z, 2, .stage = [13])' "$dir/trainers/$name.c" && build "$name" && ok || bad "$diff: the result does not compile"
    for ranks in 1 2; do
        for stage in 0 1 2 3; do
            losses $stage $ranks >"$dir/after.$stage.$ranks" 2>&1 && ok || bad "$diff: stage $stage, $ranks ranks fail"
            cmp "$dir/after.0.$ranks" "$dir/after.$stage.$ranks" && ok || bad "$diff: losses of stage $stage differ"
        done
    done
    [ "$(wc -l <"$dir/before")" = 30 ] && ok || bad "$name: not 30 steps"
    paste "$dir/before" "$dir/after.0.1" | awk '{ d = $4 - $8; if (d > 2e-5 || d < -2e-5) bad = 1 } END { exit bad }' && ok ||
        bad "$diff: one rank does not print the losses of the original"
    cmp -s "$dir/after.0.1" "$dir/after.0.2" && bad "$diff: ranks have the same data" || ok
done
[ $applied = 6 ] && ok || bad "$applied diffs of integrate.md apply, expected 6"

# ---- the pages: each block of C becomes a function after the declarations that it needs ----
cat >"$dir/guide.c" <<'END'
#include "adapters/checkpoint/checkpoint.h"
#include "adapters/pipeline/pipeline_run.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { float *wte, *fcw, *fcb, *ln, *projw, *wcls; } Tensors;
typedef struct { float *fcw, *grad_fcw; } Block;
typedef struct { const char *name; size_t numel; int layer; float *data, *grad; } Tensor;
typedef void *cudaStream_t, *ncclComm_t, *MPI_Comm;
extern cudaStream_t main_stream;
extern ncclComm_t nccl_comm;
extern MPI_Comm mpi_comm, my_world, my_pair, my_data;
enum { H = 4, B = 4, M = 4 };
extern zero_group *world, *all, *pair, *tp, *dp;
extern float *y, *dn, hidden[B];
extern const int tps, *unit, cps, parts, each;
enum { N = 2, NH = 4, HS = 4, T = 8 };
extern zero_group *cp;
extern int n, first, l, rings;
extern float *message, *gone, *arrives, *own, *back, *at, *of_tokens, *of_heads, *qkv[], *out[];
void to_heads(float *to, float *from, int number), to_tokens(float *to, float *from, int number);
void attend_all(int layer, int rings_or_not);
float *heads_of(float *all, int of, int token, int part, int r);
extern const size_t C, V, BT;
extern float *x, *dx;
extern const int L, rank, nranks, local_rank, micro, micro_steps, ntensors;
extern const size_t numel, piece;
extern const double loss;
void my_place(const void *user, const char *name, size_t at, checkpoint_place *place);
extern float lr, *values;
extern FILE *file;
extern Tensors params, grads;
typedef struct { float w1[128][784], b1[128]; } Net;
typedef struct { float *wq, *wq_grad; } Attention;
typedef struct { float *w1; size_t at; } Mlp;
extern Attention *attention[];
extern Mlp *mlp[];
extern float *flat_gradient;
extern Net net, grad;
extern const size_t sizes[];
extern Block block[];
extern Tensor tensor[];
extern zero_ctx *z;
extern zero_config cfg;
extern zero_hyper hyper;
void must(zero_result result);
int cudaSetDevice(int device);
void load_batch(int number), save_model(const Tensors *p);
extern int steps;
extern const zero_comm comm;
extern const int pp, pp_rank, dp_rank, m, units_of_the_model, *numbers_of_my_units;
extern pipeline_run *run;
extern const pipeline_plan plan;
extern const pipeline_functions host;
extern void *memory;
extern const size_t bytes;
double forward_and_backward(const Tensors *p, Tensors *g);
extern const zero_tensor_desc table[];
int draw_token(void);
void seen(void *user, const zero_event *events, int n);
void block_forward(int l, const Tensors *p), model_forward(const Tensors *p);
void block_backward(int l, const Tensors *p, Tensors *g, float dloss);
void classifier_backward(const Tensors *p, Tensors *g), lookup_backward(Tensors *g);
END
pages="$root/README.md $(echo "$root"/adapters/docs/*.md)"
# shellcheck disable=SC2086 # a list
awk '/^```c$/ { n++; inside = 1; print "int guide_" n "(void);\nint guide_" n "(void) {"; next }
     /^```/ && inside { print "return 0; }"; inside = 0; next }
     inside { print }
     END { print n + 0 >"/dev/stderr" }' $pages >>"$dir/guide.c" 2>"$dir/blocks"
blocks=$(cat "$dir/blocks")
[ "$blocks" -ge 25 ] && ok || bad "the pages have only $blocks blocks of code"
unused="-Wno-unused-variable -Wno-unused-but-set-variable"
${CC:-cc} -std=c11 $warnings $unused -I"$root" -c -o "$dir/guide.o" "$dir/guide.c" && ok ||
    bad "the code of the pages does not compile as C"
if command -v "${CXX:-c++}" >/dev/null 2>&1; then
    ${CXX:-c++} -x c++ -std=c++20 $warnings $unused -Wno-missing-field-initializers -I"$root" -c \
        -o "$dir/guide_cc.o" "$dir/guide.c" && ok || bad "the code of the pages does not compile as C++"
fi

# ---- the lines by which headers of adapters say how to compile their files ----
rm -rf "$dir/lines" && mkdir "$dir/lines"
for each in adapters zero_plugin zero_plugin.h zero_plugin.cu; do ln -s "$root/$each" "$dir/lines/$each"; done
grep -rhoE '^ +cc [^;]* -c [^;]*' "$root/adapters" --include=*.h >"$dir/lines/all"
while read -r line; do
    # braces and stars as in the shell of a reader
    (cd "$dir/lines" && bash -c "$line" </dev/null >said 2>&1) && ok || bad "\`$line\` fails: $(grep -m 1 error "$dir/lines/said")"
done <"$dir/lines/all"
[ "$(wc -l <"$dir/lines/all")" = 3 ] && ok || bad "$(wc -l <"$dir/lines/all") lines of headers compile files, expected 3"

# Names of functions and constants: of the header, of the adapters' headers, or of the build.
# shellcheck disable=SC2086
for name in $(echo $pages | tr ' ' '\n' | grep -v 'config-json' | xargs cat | grep -oE '\b(zero|ZERO|checkpoint|CHECKPOINT)_[A-Za-z0-9_]+' |
    grep -vE '^zero_(plugin|pp_rank_N_|plan|ckpt|optimization|llmc|fork|nccl|cuda13|to_fp32|hpz_.*|quantized_.*)$|^checkpoint_import$' | sort -u); do
    case $name in
    ZERO_WITH_* | ZERO_FAST_MATH | ZERO_CHECK) file=$root/zero_plugin.cu ;;
    checkpoint_* | CHECKPOINT_*) file=$root/adapters/checkpoint/checkpoint.h ;;
    ZERO_PORT | ZERO_STATS) continue ;; # variables of the environment
    *) file=$root/zero_plugin.h ;;
    esac
    grep -qrw "$name" "$file" "$root"/zero_plugin/*/*.h && ok || bad "the pages name $name, $(basename "$file") does not"
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
