#!/bin/sh
# test_host_guide.sh BUILD - adapters/example.c has the same falling losses at every stage, and says what
# is wrong with its arguments; every line of code in adapters/README.md compiles, as C11 and as C++20, and
# every name in it is in the header. Last line: N passed, N failed.
set -u
B=$1
here=$(dirname "$0")
root=$here/../..
dir=$B/guide
guide=$root/adapters/README.md
warnings="-Wall -Wextra -Wpedantic -Werror"
flags="-std=c11 -D_GNU_SOURCE -O2 -ffp-contract=off -fno-math-errno -fopenmp -pthread $warnings -Wshadow"
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
    [ "$lines" -lt 80 ] && grep -q "whole trainer in $((lines)) lines" "$page" && ok || bad "$page: the example has $lines lines"
done
# Step one's lines are numbered one by one, and no more than its title says.
numbered=$(grep -oE '// [0-9]+(\.|$)' "$guide" | tr -dc '0-9\n' | awk '$1 == n + 1 { n++ } END { print n + 0 }')
[ "$numbered" -gt 5 ] && [ "$numbered" -le 15 ] && ok || bad "the guide's step one has $numbered numbered lines"

# ---- the guide: each block of code becomes a function behind what it takes for granted ----
cat >"$dir/guide.c" <<'END'
#include "adapters/checkpoint/checkpoint.h"
#include "adapters/pipeline/pipeline_run.h"
#include <stdio.h>
#include <stdlib.h>
typedef struct { float *wte, *fcw, *fcb, *ln, *projw; } Tensors;
typedef struct { float *fcw, *grad_fcw; } Block;
typedef struct { const char *name; size_t numel; int layer; float *data, *grad; } Tensor;
typedef void *cudaStream_t, *ncclComm_t, *MPI_Comm;
extern cudaStream_t main_stream;
extern ncclComm_t nccl_comm;
extern MPI_Comm mpi_comm, my_world, my_pair, my_data;
enum { H = 4, B = 4, M = 4 };
extern zero_group *world, *all, *pair, *tp, *dp;
extern float *y, *dn, hidden[B];
extern const int tps, *unit;
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
awk '/^```c$/ { n++; inside = 1; print "int guide_" n "(void);\nint guide_" n "(void) {"; next }
     /^```/ && inside { print "return 0; }"; inside = 0; next }
     inside { print }
     END { print n + 0 >"/dev/stderr" }' "$guide" >>"$dir/guide.c" 2>"$dir/blocks"
blocks=$(cat "$dir/blocks")
[ "$blocks" -ge 15 ] && ok || bad "the guide has $blocks blocks of code"
unused="-Wno-unused-variable -Wno-unused-but-set-variable"
${CC:-cc} -std=c11 $warnings $unused -I"$root" -c -o "$dir/guide.o" "$dir/guide.c" && ok ||
    bad "the guide's code does not compile as C"
if command -v "${CXX:-c++}" >/dev/null 2>&1; then
    ${CXX:-c++} -x c++ -std=c++20 $warnings $unused -Wno-missing-field-initializers -I"$root" -c \
        -o "$dir/guide_cc.o" "$dir/guide.c" && ok || bad "the guide's code does not compile as C++"
fi
for name in $(grep -oE '\b(zero|ZERO)_[A-Za-z0-9_]+' "$guide" | grep -v '^zero_plugin$' | sort -u); do
    case $name in
    ZERO_WITH_*) file=$dir/zero/zero_plugin.cu ;;
    *) file=$dir/zero/zero_plugin.h ;;
    esac
    grep -qw "$name" "$file" && ok || bad "the guide says $name, $(basename "$file") does not"
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
