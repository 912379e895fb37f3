/* zero_ckpt.c - looks at checkpoints, also at those whose job is gone.

     zero_ckpt list FOLDER          generations, newest first, and whether their manifests are good
     zero_ckpt show GENERATION      what its manifest tells
     zero_ckpt verify FOLDER|GENERATION   reads every byte of every file
     zero_ckpt diff A B             tensors of two generations, bit by bit as f32

   Exit code 0: good, or the same; 1: damaged, or different; 2: it could not be found out. Memory:
   40 MiB, whatever the model. Build with checkpoint_*.c and the plugin. */
#include "checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOOL_GOOD = 0, TOOL_BAD = 1, TOOL_FAILED = 2, TOOL_PART = 1 << 20 /* elements at once */ };

static int tool_fail(const char *why) {
    fprintf(stderr, "zero_ckpt: %s\n", why);
    return TOOL_FAILED;
}

static int tool_code(checkpoint_result r) {
    return r == CHECKPOINT_OK ? TOOL_GOOD : r == CHECKPOINT_DAMAGED ? TOOL_BAD : TOOL_FAILED;
}

/* The worse of two codes; "not found out" is the worst. */
static int tool_worse(int a, int b) { return a > b ? a : b; }

/* Does something with every generation of a folder. */
typedef int (*tool_each)(const char *path, const char *name);
static int tool_walk(const char *folder, tool_each each) {
    char why[CHECKPOINT_SENTENCE], path[4096];
    checkpoint_generation *list;
    int n, code = TOOL_GOOD;
    if (checkpoint_list(folder, &list, &n, why)) return tool_fail(why);
    for (int i = 0; i < n; i++) {
        const int length = snprintf(path, sizeof path, "%s/%s", folder, list[i].name);
        if (length < 0 || length >= (int)sizeof path)
            code = tool_worse(code, tool_fail("the path is too long"));
        else
            code = tool_worse(code, each(path, list[i].name));
    }
    if (n == 0) printf("no generation in %s\n", folder);
    free(list);
    return code;
}

static size_t tool_elements(const checkpoint_reader *r) {
    size_t sum = 0;
    for (int t = 0; t < checkpoint_tensors(r); t++) {
        checkpoint_tensor x;
        checkpoint_query_tensor(r, t, &x);
        sum += x.layers * x.numel;
    }
    return sum;
}

static int tool_list_one(const char *path, const char *name) {
    char why[CHECKPOINT_SENTENCE];
    checkpoint_reader *r;
    const checkpoint_result result = checkpoint_open(&r, path, why);
    if (result) {
        printf("%-24s %s\n", name, why);
        return tool_code(result);
    }
    printf("%-24s step %" PRId64 ", %d tensors, %zu elements, %s\n", name,
           checkpoint_reader_step(r), checkpoint_tensors(r), tool_elements(r),
           checkpoint_optimizer(r));
    checkpoint_close(r);
    return TOOL_GOOD;
}

static int tool_verify_one(const char *path, const char *name) {
    char why[CHECKPOINT_SENTENCE];
    checkpoint_reader *r;
    uint64_t bytes = 0;
    checkpoint_result result = checkpoint_open(&r, path, why);
    if (!result) result = checkpoint_verify(r, &bytes, why);
    checkpoint_close(r);
    if (result)
        printf("%s: %s\n", name, why);
    else
        printf("%s: good, %" PRIu64 " bytes\n", name, bytes);
    return tool_code(result);
}

static int tool_verify(const char *path) {
    char why[CHECKPOINT_SENTENCE];
    checkpoint_generation *list;
    int n;
    if (checkpoint_list(path, &list, &n, why)) return tool_fail(why);
    free(list);
    return n ? tool_walk(path, tool_verify_one) : tool_verify_one(path, path);
}

static const char *tool_type(zero_type type) {
    static const char *const names[ZERO_TYPES] = {"f32", "bf16", "fp16"};
    return names[type];
}

static void tool_show_values(const checkpoint_reader *r) {
    for (int i = 0; i < checkpoint_values(r); i++) {
        const checkpoint_value *v = checkpoint_value_at(r, i);
        printf("value %s = ", v->name);
        if (v->kind == CHECKPOINT_INT) printf("%" PRId64 "\n", v->number);
        if (v->kind == CHECKPOINT_REAL) printf("%.17g\n", v->real);
        if (v->kind == CHECKPOINT_TEXT) printf("%s\n", v->text);
    }
}

static int tool_show(const char *path) {
    char why[CHECKPOINT_SENTENCE];
    checkpoint_reader *r;
    zero_counters c;
    const checkpoint_result result = checkpoint_open(&r, path, why);
    if (result) {
        (void)tool_fail(why);
        return tool_code(result);
    }
    checkpoint_query_counters(r, &c);
    printf("step %" PRId64 ", %s: %" PRId64 " steps, %" PRId64 " skipped, loss scale %g\n",
           checkpoint_reader_step(r), checkpoint_optimizer(r), c.steps, c.skipped, (double)c.scale);
    tool_show_values(r);
    if (checkpoint_reader_config(r)[0]) printf("config %s\n", checkpoint_reader_config(r));
    for (int t = 0; t < checkpoint_tensors(r); t++) {
        checkpoint_tensor x;
        checkpoint_query_tensor(r, t, &x);
        printf("tensor %-16s %4zu x %-10zu", x.name, x.layers, x.numel);
        for (int k = 0; k < x.arrays; k++) printf(" %s", tool_type(x.type[k]));
        printf("\n");
    }
    checkpoint_close(r);
    return TOOL_GOOD;
}

/* ---- diff ---- */

typedef struct tool_pair {
    checkpoint_reader *a, *b;
    float *x, *y; /* TOOL_PART elements each */
} tool_pair;

/* Also of a NaN, and of -0. */
static uint32_t tool_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* One array of a tensor, number t in a and u in b. */
static int tool_diff_array(tool_pair *p, int t, int u, int array, const checkpoint_tensor *tensor) {
    static const char *const kinds[] = {"weight", "moment_1", "moment_2"};
    char why[CHECKPOINT_SENTENCE];
    const size_t total = tensor->layers * tensor->numel;
    size_t differ = 0, first = 0;
    for (size_t at = 0; at < total; at += TOOL_PART) {
        const size_t n = total - at < TOOL_PART ? total - at : TOOL_PART;
        const checkpoint_result r = checkpoint_read(p->a, t, array, at, n, p->x, why);
        const checkpoint_result s = r ? r : checkpoint_read(p->b, u, array, at, n, p->y, why);
        if (s) {
            (void)tool_fail(why);
            return tool_code(s);
        }
        for (size_t i = 0; i < n; i++)
            if (tool_bits(p->x[i]) != tool_bits(p->y[i]) && !differ++) first = at + i;
    }
    if (differ)
        printf("%s, %s: %zu of %zu elements differ, the first is %zu\n", tensor->name, kinds[array],
               differ, total, first);
    return differ ? TOOL_BAD : TOOL_GOOD;
}

static int tool_find(const checkpoint_reader *r, const char *name, checkpoint_tensor *x) {
    for (int t = 0; t < checkpoint_tensors(r); t++) {
        checkpoint_query_tensor(r, t, x);
        if (strcmp(x->name, name) == 0) return t;
    }
    return -1;
}

static int tool_diff_tensor(tool_pair *p, int t) {
    checkpoint_tensor x, y;
    int code = TOOL_GOOD;
    checkpoint_query_tensor(p->a, t, &x);
    const int u = tool_find(p->b, x.name, &y);
    if (u < 0 || x.layers * x.numel != y.layers * y.numel || x.arrays != y.arrays) {
        printf("%s: %s\n", x.name,
               u < 0 ? "only in the first" : "of another size, or with other moments");
        return TOOL_BAD;
    }
    for (int k = 0; k < x.arrays && code != TOOL_FAILED; k++)
        code = tool_worse(code, tool_diff_array(p, t, u, k, &x));
    return code;
}

static int tool_diff_readers(tool_pair *p) {
    zero_counters c, d;
    checkpoint_tensor x, y;
    int code = TOOL_GOOD;
    checkpoint_query_counters(p->a, &c);
    checkpoint_query_counters(p->b, &d);
    if (c.steps != d.steps || c.skipped != d.skipped || c.iteration != d.iteration
        || c.last_overflow != d.last_overflow || tool_bits(c.scale) != tool_bits(d.scale)
        || c.hysteresis != d.hysteresis) {
        printf("counters differ: %" PRId64 " and %" PRId64 " steps, loss scale %g and %g\n",
               c.steps, d.steps, (double)c.scale, (double)d.scale);
        code = TOOL_BAD;
    }
    for (int t = 0; t < checkpoint_tensors(p->a) && code != TOOL_FAILED; t++)
        code = tool_worse(code, tool_diff_tensor(p, t));
    for (int u = 0; u < checkpoint_tensors(p->b); u++) {
        checkpoint_query_tensor(p->b, u, &y);
        if (tool_find(p->a, y.name, &x) >= 0) continue;
        printf("%s: only in the second\n", y.name);
        code = tool_worse(code, TOOL_BAD);
    }
    if (code == TOOL_GOOD) printf("the same\n");
    return code;
}

static int tool_diff(const char *a, const char *b) {
    char why[CHECKPOINT_SENTENCE];
    tool_pair p = {NULL, NULL, NULL, NULL};
    int code;
    p.x = (float *)malloc(TOOL_PART * sizeof *p.x);
    p.y = (float *)malloc(TOOL_PART * sizeof *p.y);
    checkpoint_result r = checkpoint_open(&p.a, a, why);
    if (!r) r = checkpoint_open(&p.b, b, why);
    if (r || p.x == NULL || p.y == NULL) {
        (void)tool_fail(r ? why : "no memory");
        code = r ? tool_code(r) : TOOL_FAILED;
    } else
        code = tool_diff_readers(&p);
    checkpoint_close(p.a);
    checkpoint_close(p.b);
    free(p.x);
    free(p.y);
    return code;
}

int main(int argc, char **argv) {
    const char *what = argc > 2 ? argv[1] : "";
    if (strcmp(what, "list") == 0 && argc == 3) return tool_walk(argv[2], tool_list_one);
    if (strcmp(what, "show") == 0 && argc == 3) return tool_show(argv[2]);
    if (strcmp(what, "verify") == 0 && argc == 3) return tool_verify(argv[2]);
    if (strcmp(what, "diff") == 0 && argc == 4) return tool_diff(argv[2], argv[3]);
    fprintf(stderr,
            "zero_ckpt list FOLDER | show GENERATION | verify FOLDER|GENERATION | diff A B\n");
    return TOOL_FAILED;
}
