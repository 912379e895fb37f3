/* zero_ckpt.c - reads checkpoints, also after their job has ended, and converts between them and
   the files of other programs.

     zero_ckpt list FOLDER               generations, newest first, and whether their manifests are
                                         good
     zero_ckpt show FOLDER|GENERATION    the contents of its manifest, or of the manifest of the
                                         folder's newest generation
     zero_ckpt verify FOLDER|GENERATION  reads every byte of every file
     zero_ckpt diff A B                  tensors of two generations, bit by bit as f32
     zero_ckpt export FOLDER|GENERATION OUT [f32|bf16|fp16] [--heads N] [--vocab N]
         the weights as a model file of GPT-2: OUT ends in .bin (llm.c's, f32 or bf16) or in
         .safetensors (transformers'; config.json is written next to it if there is none). FOLDER
         stands for its newest complete generation. --heads and --vocab are needed if the
         checkpoint lacks them (see gpt2_values.h). Adapters are merged into the weights.
         --model MODEL has the weights, if the checkpoint has adapters alone.
     zero_ckpt export FOLDER|GENERATION adapter_model.safetensors [f32|bf16|fp16] [--model NAME]
         the adapters alone, as peft loads them, and adapter_config.json next to them; NAME: the
         base model in that file
     zero_ckpt convert MODEL FOLDER [--step N] [--heads N]
         a generation, of step N or 0, from a model file: .bin, .safetensors, or the index .json of
         a model in several; moments and counters are zeros
     zero_ckpt convert adapter_model.safetensors FOLDER [--step N]
         the same from adapters of peft: a generation without the weights that they adapt
     zero_ckpt convert STATE_00000.bin FOLDER --model MODEL [--heads N]
         the same from llm.c's optimizer state: moments and steps come from there, and weights too
         if it has f32 masters. Its state of data and random numbers becomes the values
         llmc.data_shard, llmc.data_sample, llmc.shuffled, llmc.rng and llmc.rng_last_update
     zero_ckpt convert FOLDER|GENERATION FOLDER
         the same generation in one file, after a save by many ranks

   Exit code 0: good, or the same; 1: damaged, or different, or the output cannot be written;
   2: the check or the conversion was not possible.
   Memory: 40 MiB, whatever the model. Files that are made appear whole or not at all. Build with
   checkpoint*.c, gpt2_values.c, model_*.c, llmc_bin.c, safetensors.c, GPT-2 and the plugin. */
#include "checkpoint_inside.h"
#include "gpt2_values.h"
#include "lora_files.h"
#include "model_files.h"
#include "../gpt2/frozen.h"
#include "../gpt2/lora.h"
#include "../report/report.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TOOL_GOOD = 0,
    TOOL_BAD = 1,
    TOOL_FAILED = 2,
    TOOL_PART = 1 << 20 /* elements that are read at once */
};

static int tool_fail(const char *why) {
    fprintf(stderr, "zero_ckpt: %s\n", why);
    return TOOL_FAILED;
}

static int tool_code(checkpoint_result r) {
    return r == CHECKPOINT_OK ? TOOL_GOOD : r == CHECKPOINT_DAMAGED ? TOOL_BAD : TOOL_FAILED;
}

/* Prints an error, and returns its exit code. */
static int tool_report_result(checkpoint_result r, const char *why) {
    (void)tool_fail(why);
    return tool_code(r);
}

/* Returns the worse of two codes. TOOL_FAILED is the worst. */
static int tool_worse(int a, int b) { return a > b ? a : b; }

/* The options of the command line. Options that were not given are 0 or NULL. */
typedef struct tool_args {
    const char *word[3]; /* after the command's name */
    int words;
    const char *model; /* --model */
    int64_t step;      /* --step; -1: not given */
    int heads, vocab;
} tool_args;

/* Calls a function for each checkpoint of a folder. */
typedef int (*tool_each)(const char *path, const char *name);
static int tool_walk(const char *folder, tool_each each) {
    char why[CHECKPOINT_SENTENCE], path[4096];
    checkpoint_generation *list;
    int n, code = TOOL_GOOD;
    if (checkpoint_list(folder, &list, &n, why)) return tool_fail(why);
    for (int i = 0; i < n; i++) {
        const int length = snprintf(path, sizeof path, "%s/%s", folder, list[i].name);
        if (length < 0 || length >= (int)sizeof path)
            code = tool_worse(code, tool_fail("FOLDER: the path is too long; use a shorter one"));
        else
            code = tool_worse(code, each(path, list[i].name));
    }
    if (n == 0) printf("no checkpoint in %s\n", folder);
    free(list);
    return code;
}

/* Counts the model's tensors and their elements, without the errors that ranks feed back. */
static int tool_tensors(const checkpoint_reader *r, size_t *elements) {
    int n = 0;
    *elements = 0;
    for (int t = 0; t < checkpoint_tensors(r); t++) {
        checkpoint_tensor x;
        checkpoint_query_tensor(r, t, &x);
        if (ck_is_feedback(x.name)) continue;
        *elements += x.layers * x.numel;
        n++;
    }
    return n;
}

/* Opens a generation. Its folder's name, step_N, must have its step, because a run uses both. */
static checkpoint_result tool_open(checkpoint_reader **r, const char *path, char *why) {
    int64_t named = 0;
    const char *slash = strrchr(path, '/'), *name = slash && slash[1] ? slash + 1 : path;
    const checkpoint_result result = checkpoint_open(r, path, why);
    if (result || sscanf(name, "step_%" SCNd64, &named) != 1) return result;
    const int64_t step = checkpoint_reader_step(*r);
    if (named == step) return CHECKPOINT_OK;
    (void)snprintf(why, CHECKPOINT_SENTENCE, "%.400s holds step %" PRId64, path, step);
    checkpoint_close(*r);
    *r = NULL;
    return CHECKPOINT_DAMAGED;
}

static int tool_list_one(const char *path, const char *name) {
    char why[CHECKPOINT_SENTENCE];
    checkpoint_reader *r;
    const checkpoint_result result = tool_open(&r, path, why);
    if (result) {
        printf("%-24s %s\n", name, why);
        return tool_code(result);
    }
    size_t elements;
    const int tensors = tool_tensors(r, &elements);
    printf("%-24s step %" PRId64 ", %d tensors, %zu elements, %s\n", name,
           checkpoint_reader_step(r), tensors, elements, checkpoint_optimizer(r));
    checkpoint_close(r);
    return TOOL_GOOD;
}

static int tool_verify_one(const char *path, const char *name) {
    char why[CHECKPOINT_SENTENCE];
    checkpoint_reader *r;
    uint64_t bytes = 0;
    checkpoint_result result = tool_open(&r, path, why);
    if (!result) result = checkpoint_verify(r, &bytes, why);
    checkpoint_close(r);
    if (result)
        printf("%s: %s\n", name, why);
    else
        printf("%s: good, %.1f MiB\n", name, (double)bytes / (1024 * 1024));
    return tool_code(result);
}

static int tool_list(const tool_args *a) { return tool_walk(a->word[0], tool_list_one); }

static int tool_verify(const tool_args *a) {
    const char *path = a->word[0];
    char why[CHECKPOINT_SENTENCE];
    checkpoint_generation *list;
    int n;
    if (checkpoint_list(path, &list, &n, why)) return tool_fail(why);
    free(list);
    return n ? tool_walk(path, tool_verify_one) : tool_verify_one(path, path);
}

/* Calls a function for a checkpoint, or for the newest complete one of a folder. */
static int tool_newest(const tool_args *a, int (*one)(const tool_args *a, const char *path)) {
    char why[CHECKPOINT_SENTENCE], path[CK_PATH];
    checkpoint_generation *list;
    ck_error e;
    int n, code = TOOL_BAD;
    if (checkpoint_list(a->word[0], &list, &n, why)) return tool_fail(why);
    if (n == 0) code = one(a, a->word[0]);
    for (int i = 0; i < n && code == TOOL_BAD; i++) {
        code = ck_path(path, a->word[0], list[i].name, &e) ? tool_fail(e.text) : one(a, path);
        if (code == TOOL_BAD)
            fprintf(stderr, "zero_ckpt: %s is skipped%s\n", list[i].name,
                    i + 1 < n ? "" : "; there is no other checkpoint");
    }
    free(list);
    return code;
}

/* Returns whether a text has only numbers. Some can be hexadecimal, to keep every bit. */
static int tool_is_numbers(const char *text) {
    int hex = 0;
    while (*text) {
        char *end;
        (void)strtod(text, &end);
        if (end == text || (*end != ' ' && *end != 0)) return 0;
        hex |= memchr(text, 'x', (size_t)(end - text)) != NULL;
        text = end + strspn(end, " ");
    }
    return hex;
}

/* Prints numbers in lines of at most 100 columns. The first line has `used` columns already. */
static void tool_show_text(size_t used, const char *text) {
    if (!tool_is_numbers(text)) {
        printf("%s\n", text);
        return;
    }
    while (*text) {
        char *end, word[32];
        const int n = snprintf(word, sizeof word, "%.7g", strtod(text, &end));
        text = end + strspn(end, " ");
        used += (size_t)n + 1;
        printf("%s%s", word, *text == 0 ? "\n" : used > 84 ? "\n   " : " ");
        if (used > 84) used = 3;
    }
}

static void tool_show_values(const checkpoint_reader *r) {
    for (int i = 0; i < checkpoint_values(r); i++) {
        const checkpoint_value *v = checkpoint_value_at(r, i);
        printf("value %s = ", v->name);
        if (v->kind == CHECKPOINT_INT) printf("%" PRId64 "\n", v->number);
        if (v->kind == CHECKPOINT_REAL) printf("%.17g\n", v->real);
        if (v->kind == CHECKPOINT_TEXT)
            tool_show_text(strlen(v->name) + strlen("value  ="), v->text);
    }
}

static int tool_show_one(const tool_args *a, const char *path) {
    char why[CHECKPOINT_SENTENCE];
    checkpoint_reader *r;
    zero_counters c;
    const checkpoint_result result = tool_open(&r, path, why);
    if (result) return tool_report_result(result, why);
    if (path != a->word[0]) printf("%s, the newest that can be read\n", path);
    checkpoint_query_counters(r, &c);
    printf("step %" PRId64 ", %s: %" PRId64 " steps, %" PRId64 " skipped, loss scale %g\n",
           checkpoint_reader_step(r), checkpoint_optimizer(r), c.steps, c.skipped, (double)c.scale);
    tool_show_values(r);
    if (checkpoint_reader_config(r)[0]) printf("config %s\n", checkpoint_reader_config(r));
    for (int t = 0; t < checkpoint_tensors(r); t++) {
        checkpoint_tensor x;
        checkpoint_query_tensor(r, t, &x);
        printf("tensor %-16s %4zu x %-10zu", x.name, x.layers, x.numel);
        for (int k = 0; k < x.arrays; k++) printf(" %s", ck_types[x.type[k]]);
        if (x.parts > 1) printf("  in %d parts", x.parts);
        printf("\n");
    }
    checkpoint_close(r);
    return TOOL_GOOD;
}

static int tool_show(const tool_args *a) { return tool_newest(a, tool_show_one); }

/* ---- diff ---- */

typedef struct tool_pair {
    checkpoint_reader *a, *b;
    float *x, *y; /* TOOL_PART elements each */
} tool_pair;

/* Returns the bits of x, so that comparisons distinguish -0 and NaN, too. */
static uint32_t tool_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Compares one array of a tensor, number t in a and u in b. */
static int tool_diff_array(tool_pair *p, int t, int u, int array, const checkpoint_tensor *tensor) {
    static const char *const kinds[] = {"weight", "moment_1", "moment_2"};
    char why[CHECKPOINT_SENTENCE];
    const size_t total = tensor->layers * tensor->numel;
    size_t differ = 0, first = 0;
    for (size_t at = 0; at < total; at += TOOL_PART) {
        const size_t n = total - at < TOOL_PART ? total - at : TOOL_PART;
        const checkpoint_result r = checkpoint_read(p->a, t, array, at, n, p->x, why);
        const checkpoint_result s = r ? r : checkpoint_read(p->b, u, array, at, n, p->y, why);
        if (s) return tool_report_result(s, why);
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

static int tool_diff(const tool_args *a) {
    char why[CHECKPOINT_SENTENCE];
    tool_pair p = {NULL, NULL, NULL, NULL};
    int code;
    p.x = (float *)malloc(TOOL_PART * sizeof *p.x);
    p.y = (float *)malloc(TOOL_PART * sizeof *p.y);
    checkpoint_result r = tool_open(&p.a, a->word[0], why);
    if (!r) r = tool_open(&p.b, a->word[1], why);
    if (r)
        code = tool_report_result(r, why);
    else
        code = p.x && p.y ? tool_diff_readers(&p) : tool_fail("no memory");
    checkpoint_close(p.a);
    checkpoint_close(p.b);
    free(p.x);
    free(p.y);
    return code;
}

/* ---- export ---- */

/* A generation that a model_read reads. */
typedef struct tool_source {
    checkpoint_reader *r;
    int at[GPT2_MOST_TENSORS]; /* numbers of GPT-2's tensors in the generation */
    size_t total[GPT2_MOST_TENSORS];
    int untied, tensors;      /* 1: with a classifier of its own; number of tensors */
    int half_up;              /* 1: rounds to bf16 as the run did, which had split masters */
    checkpoint_result result; /* result of the last read */
    gpt2_frozen adapters;     /* lora.rank 0: none */
    gpt2_config adapted;      /* of adapters: layers and channels, with a frozen set */
    model_reader *base;       /* the weights, if the checkpoint has adapters alone */
    float *a, *b;             /* an adapter of one layer */
    int matrix;               /* LORA_..., and the layer; -1: a and b are empty */
    size_t layer;
} tool_source;

static zero_result tool_read(void *user, int tensor, zero_kind kind, size_t first, size_t count,
                             float *out, gpt2_error *e) {
    tool_source *s = (tool_source *)user;
    char why[CHECKPOINT_SENTENCE];
    (void)kind; /* only weights are read */
    s->result = checkpoint_read(s->r, s->at[tensor], 0, first, count, out, why);
    if (s->result) (void)snprintf(e->sentence, sizeof e->sentence, "%.500s", why);
    return s->result ? ZERO_ERR_ARGUMENT : ZERO_OK;
}

/* Reads the adapter of a layer, unless it was read before. */
static zero_result tool_read_adapter(tool_source *s, int matrix, size_t layer, gpt2_error *e) {
    size_t rank, in, out;
    if (s->matrix == matrix && s->layer == layer) return ZERO_OK;
    lora_sides(&s->adapted, lora_tensor(matrix, 0), &rank, &in);
    lora_sides(&s->adapted, lora_tensor(matrix, 1), &out, &rank);
    s->matrix = -1;
    ZERO_TRY(
        tool_read(s, lora_tensor(matrix, 0), ZERO_MASTER, layer * rank * in, rank * in, s->a, e));
    ZERO_TRY(
        tool_read(s, lora_tensor(matrix, 1), ZERO_MASTER, layer * out * rank, out * rank, s->b, e));
    s->matrix = matrix;
    s->layer = layer;
    return ZERO_OK;
}

/* Adds alpha / rank B A to n elements of a row of W, from column `first` on. */
static void tool_add_adapter(const tool_source *s, size_t row, size_t in, size_t first, size_t n,
                             float *w) {
    const gpt2_lora *lora = &s->adapters.lora;
    const size_t rank = (size_t)lora->rank;
    const double scale = (double)lora->alpha / lora->rank;
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (size_t j = 0; j < rank; j++)
            sum += (double)s->b[row * rank + j] * (double)s->a[j * in + first + i];
        w[i] = (float)((double)w[i] + scale * sum);
    }
}

/* Returns the matrix of adapters of a tensor, or -1. */
static int tool_adapts(const tool_source *s, int tensor) {
    static const int base[LORA_MATRICES] = {GPT2_QKVW, GPT2_ATTPROJW, GPT2_FCW, GPT2_FCPROJW};
    for (int k = 0; k < LORA_MATRICES; k++)
        if (base[k] == tensor && s->adapters.lora.on >> k & 1u) return k;
    return -1;
}

/* Rounds to bf16 half up, in the bit pattern. A NaN stays. */
static void tool_round_half_up(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        if ((bits & 0x7FFFFFFFu) > 0x7F800000u) continue;
        bits = (bits + 0x8000u) & 0xFFFF0000u;
        memcpy(&x[i], &bits, sizeof bits);
    }
}

/* A generation with its adapters merged, as a model_read. */
static zero_result tool_read_merged(void *user, int tensor, zero_kind kind, size_t first,
                                    size_t count, float *out, gpt2_error *e) {
    tool_source *s = (tool_source *)user;
    const int k = tool_adapts(s, tensor);
    size_t rank, in, rows;
    ZERO_TRY(s->base ? model_reader_get(s->base, tensor, kind, first, count, out, e)
                     : tool_read(s, tensor, kind, first, count, out, e));
    if (k < 0 && s->half_up) tool_round_half_up(out, count);
    if (k < 0) return ZERO_OK;
    lora_sides(&s->adapted, lora_tensor(k, 0), &rank, &in);
    lora_sides(&s->adapted, lora_tensor(k, 1), &rows, &rank);
    for (size_t done = 0, n; done < count; done += n) {
        const size_t row = (first + done) / in, column = (first + done) % in;
        n = in - column < count - done ? in - column : count - done;
        ZERO_TRY(tool_read_adapter(s, k, row / rows, e));
        tool_add_adapter(s, row % rows, in, column, n, out + done);
    }
    return ZERO_OK;
}

/* The adapters of a generation as a model_read of rows. */
static zero_result tool_read_row(void *user, int row, zero_kind kind, size_t first, size_t count,
                                 float *out, gpt2_error *e) {
    const tool_source *s = (const tool_source *)user;
    return tool_read(user, gpt2_tensor_at(&s->adapted, row), kind, first, count, out, e);
}

/* Finds the adapters in a checkpoint, if it has any. Returns 0 if they are damaged. */
static int tool_find_adapters(tool_source *s, char *why) {
    gpt2_lora *lora = &s->adapters.lora;
    checkpoint_tensor x;
    size_t C = 0, most = 0;
    lora->rank = lora_values_read(s->r, &lora->alpha);
    s->matrix = -1;
    s->adapted = (gpt2_config){.max_seq_len = 1, .vocab_size = 1, .padded_vocab_size = 128};
    s->adapted.heads = 1;
    s->adapted.frozen = &s->adapters;
    for (int t = GPT2_LORA; t < GPT2_MOST_TENSORS && lora->rank; t++) {
        s->at[t] = tool_find(s->r, gpt2_tensor_name(t), &x);
        if (s->at[t] < 0) continue;
        s->total[t] = x.layers * x.numel;
        lora->on |= 1u << lora_matrix(t);
        s->adapted.layers = (int)x.layers;
        s->adapted.channels = 1; /* sides in units of C */
        size_t rows, columns;
        lora_sides(&s->adapted, t, &rows, &columns);
        C = x.numel / (rows * columns);
        if (x.numel > most) most = x.numel;
    }
    if (!lora->on) lora->rank = 0;
    if (!lora->rank) return 1;
    s->adapted.channels = (int)C;
    for (int row = GPT2_TENSORS, t; (t = gpt2_tensor_at(&s->adapted, row)) >= 0; row++) {
        size_t rows, columns;
        lora_sides(&s->adapted, t, &rows, &columns);
        if (s->at[t] >= 0 && s->total[t] == rows * columns * (size_t)s->adapted.layers) continue;
        (void)snprintf(why, CHECKPOINT_SENTENCE, "%s is missing, or has another size than rank %d",
                       gpt2_tensor_name(t), lora->rank);
        return 0;
    }
    s->a = (float *)malloc(most * sizeof *s->a);
    s->b = (float *)malloc(most * sizeof *s->b);
    if (s->a && s->b) return 1;
    (void)snprintf(why, CHECKPOINT_SENTENCE, "no memory for adapters");
    return 0;
}

/* Finds GPT-2's tensors in a checkpoint. Returns 0 if it has other tensors. */
static int tool_find_model(tool_source *s, char *why) {
    gpt2_config any = {1, 1, 128, 1, 1, 1, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    zero_tensor_desc table[GPT2_MOST_TENSORS];
    checkpoint_tensor x;
    any.untied = s->untied = tool_find(s->r, gpt2_tensor_name(GPT2_LMHEADW), &x) >= 0;
    s->tensors = gpt2_table(&any, NULL, 0, table);
    for (int i = 0; i < s->tensors; i++) {
        s->at[i] = tool_find(s->r, table[i].name, &x);
        s->total[i] = x.layers * x.numel;
        if (s->at[i] >= 0) continue;
        (void)snprintf(why, CHECKPOINT_SENTENCE, "not a model of GPT-2: it has no tensor %s%s",
                       table[i].name,
                       s->adapters.lora.rank ? "; adapters alone need --model BASE" : "");
        return 0;
    }
    size_t elements;
    int has = tool_tensors(s->r, &elements);
    for (int t = GPT2_LORA; t < GPT2_MOST_TENSORS; t++) /* that are known */
        has -= s->adapters.lora.rank && s->at[t] >= 0;
    if (has == s->tensors) return 1;
    (void)snprintf(why, CHECKPOINT_SENTENCE, "not a model of GPT-2: it has %d tensors, expected %d",
                   has, s->tensors);
    return 0;
}

/* If the checkpoint lacks the shape, the sizes of its tensors give it, except for two numbers.
   `why` has the missing ones. */
static int tool_derive(const tool_source *s, const tool_args *a, gpt2_config *cfg, char *why) {
    enum { WTE = 0, WPE = 1, LN1W = 2, LNFW = 14 };
    char missing[200];
    const size_t C = s->total[LNFW];
    const gpt2_config c = {(int)(s->total[WPE] / C),
                           a->vocab,
                           (int)(s->total[WTE] / C),
                           (int)(s->total[LN1W] / C),
                           a->heads,
                           (int)C,
                           0,
                           GPT2_NO_EXPERTS,
                           NULL,
                           0,
                           0,
                           0};
    *cfg = c;
    if (a->heads > 0 && a->vocab > 0) return 1;
    (void)snprintf(missing, sizeof missing, "%.199s", why);
    (void)snprintf(why, CHECKPOINT_SENTENCE,
                   "%s; its tensors have %d layers, %d channels, %d positions and %d padded "
                   "vocabulary entries; give the rest with --heads N and --vocab N",
                   missing, c.layers, c.channels, c.max_seq_len, c.padded_vocab_size);
    return 0;
}

/* Checks that an option does not contradict the checkpoint. Returns 0 if it does. */
static int tool_same(const char *option, int asked, int known, char *why) {
    if (asked == 0 || known == 0 || asked == known) return 1;
    (void)snprintf(why, CHECKPOINT_SENTENCE, "--%s is %d, but it is %d there", option, asked,
                   known);
    return 0;
}

static int tool_config(const tool_source *s, const tool_args *a, gpt2_config *cfg, char *why) {
    zero_tensor_desc table[GPT2_MOST_TENSORS];
    const int known = gpt2_values_read(s->r, cfg, why);
    if (!known && (gpt2_values_mixed(s->r) || !tool_derive(s, a, cfg, why))) return 0;
    if (!tool_same("heads", a->heads, cfg->heads, why)
        || !tool_same("vocab", a->vocab, cfg->vocab_size, why))
        return 0;
    cfg->untied = s->untied;
    for (int i = 0; i < gpt2_table(cfg, NULL, 0, table); i++) {
        if (table[i].numel * (size_t)table[i].layers == s->total[i]) continue;
        (void)snprintf(why, CHECKPOINT_SENTENCE,
                       "not a model of GPT-2: %s has %zu elements, expected %d x %zu",
                       table[i].name, s->total[i], table[i].layers, table[i].numel);
        return 0;
    }
    return 1;
}

/* Writes config.json, which transformers needs, unless the user has one. */
static int tool_hf_config(const gpt2_config *cfg, const char *out) {
    char path[CK_PATH];
    gpt2_error e;
    if (!model_path_next_to(path, sizeof path, out, "config.json"))
        return tool_fail("OUT: the path of config.json is too long; use a shorter one");
    if (access(path, F_OK) == 0) {
        printf("%s is there and stays as it is\n", path);
        return TOOL_GOOD;
    }
    if (model_save_hf_config(cfg, path, &e)) return tool_fail(e.sentence);
    printf("%s: written\n", path);
    return TOOL_GOOD;
}

/* Returns 1 for the file name that peft gives to adapters. */
static int tool_is_adapters(const char *path) {
    const char *slash = strrchr(path, '/');
    return strcmp(slash ? slash + 1 : path, "adapter_model.safetensors") == 0;
}

/* Returns the first tensor next to adapters that was trained, too, or NULL. */
static const char *tool_also_trained(const tool_source *s, checkpoint_tensor *x) {
    for (int t = 0; t < checkpoint_tensors(s->r); t++) {
        checkpoint_query_tensor(s->r, t, x);
        if (x->arrays > 1 && !strstr(x->name, ".lora_") && !ck_is_feedback(x->name)) return x->name;
    }
    return NULL;
}

static int tool_export_adapters(tool_source *s, const tool_args *a, zero_type type) {
    const char *out = a->word[1];
    checkpoint_tensor x;
    gpt2_error e;
    if (!s->adapters.lora.rank)
        return tool_fail("OUT: the checkpoint has no adapters (--lora); choose another name");
    const char *trained = tool_also_trained(s, &x);
    if (trained) {
        fprintf(stderr,
                "zero_ckpt: %s was trained next to the adapters, and an adapter file has no place "
                "for it; export the merged model\n",
                trained);
        return TOOL_FAILED;
    }
    if (lora_save_from(tool_read_row, s, &s->adapted, out, type, a->model, &e)) {
        (void)tool_fail(e.sentence);
        return s->result ? tool_code(s->result) : TOOL_FAILED;
    }
    printf("%s: adapters of rank %d, step %" PRId64 ", and adapter_config.json\n", out,
           s->adapters.lora.rank, checkpoint_reader_step(s->r));
    return TOOL_GOOD;
}

/* --model: takes the weights that a checkpoint of adapters alone lacks from this file. */
static int tool_open_base(tool_source *s, const tool_args *a, gpt2_config *cfg, char *why) {
    gpt2_error e;
    checkpoint_tensor x;
    const char *trained = tool_also_trained(s, &x);
    const char *wrong = !s->adapters.lora.rank ? "the checkpoint has no adapters; leave out --model"
                        : trained ? "other tensors than adapters were trained; leave out --model"
                                  : NULL;
    if (!wrong && model_reader_open(&s->base, a->model, NULL, &e)) wrong = e.sentence;
    if (!wrong) {
        *cfg = model_reader_info(s->base)->cfg;
        if (cfg->heads == 0) cfg->heads = a->heads;
        if (cfg->heads == 0)
            wrong = "the number of heads is not in --model; add --heads N";
        else if (cfg->layers != s->adapted.layers || cfg->channels != s->adapted.channels)
            wrong = "--model has other layers or channels than the adapters";
    }
    if (wrong) (void)snprintf(why, CHECKPOINT_SENTENCE, "%s", wrong);
    return !wrong;
}

static int tool_export_model(tool_source *s, const tool_args *a, const char *path) {
    const char *out = a->word[1], *name = a->words > 2 ? a->word[2] : ck_types[ZERO_F32];
    const model_format format = model_ends(out, ".bin") ? MODEL_LLMC : MODEL_SAFETENSORS;
    char why[CHECKPOINT_SENTENCE];
    gpt2_config cfg;
    gpt2_error e;
    int type = 0;
    while (type < ZERO_TYPES && strcmp(name, ck_types[type]) != 0) type++;
    (void)snprintf(why, sizeof why, "TYPE: unknown type (%.40s); use f32, bf16 or fp16", name);
    if (type == ZERO_TYPES) return tool_fail(why);
    if (format == MODEL_SAFETENSORS && !model_ends(out, ".safetensors"))
        return tool_fail("OUT: the name has another ending; use .bin or .safetensors");
    if (format == MODEL_LLMC && type == ZERO_F16)
        return tool_fail(
            "OUT: llm.c's files have no fp16; use f32 or bf16, or a .safetensors file");
    if (!tool_find_adapters(s, why)) return tool_fail(why);
    if (tool_is_adapters(out)) return tool_export_adapters(s, a, (zero_type)type);
    const int known = a->model ? tool_open_base(s, a, &cfg, why)
                               : tool_find_model(s, why) && tool_config(s, a, &cfg, why);
    if (!known) {
        fprintf(stderr, "zero_ckpt: %s: %s\n", path, why);
        return TOOL_FAILED;
    }
    s->half_up = type == ZERO_BF16 && !s->base && checkpoint_reader_splits(s->r);
    if (model_save_from(tool_read_merged, s, &cfg, out, format, (zero_type)type, &e)) {
        (void)tool_fail(e.sentence);
        return s->result ? tool_code(s->result) : TOOL_FAILED;
    }
    printf("%s: %zu parameters of step %" PRId64 " in %s\n", out, gpt2_numel(&cfg),
           checkpoint_reader_step(s->r), name);
    return format == MODEL_LLMC ? TOOL_GOOD : tool_hf_config(&cfg, out);
}

static int tool_export_one(const tool_args *a, const char *path) {
    char why[CHECKPOINT_SENTENCE];
    tool_source s = {.r = NULL};
    const checkpoint_result r = tool_open(&s.r, path, why);
    const int code = r ? tool_report_result(r, why) : tool_export_model(&s, a, path);
    model_reader_close(s.base);
    free(s.a);
    free(s.b);
    checkpoint_close(s.r);
    return code;
}

static int tool_export(const tool_args *a) { return tool_newest(a, tool_export_one); }

/* ---- convert ---- */

static int tool_write(const char *folder, ck_manifest *m, ck_read read, void *user) {
    ck_error e = {CHECKPOINT_OK, 0, ""};
    char name[CK_NAME];
    if (ck_generation_write(folder, m, read, user, &e)) return tool_report_result(e.code, e.text);
    ck_generation_name(name, m->step);
    printf("%s/%s: %d tensors in %.1f MiB\n", folder, name, m->ntensors,
           (double)ck_file_bytes(m->file->image_bytes) / (1024 * 1024));
    return TOOL_GOOD;
}

/* A ck_read that reads a generation. The manifest that is written has the same tensors in the same
   order. */
static checkpoint_result tool_read_again(void *user, int tensor, int array, uint64_t first,
                                         size_t count, float *out, ck_error *e) {
    checkpoint_reader *r = (checkpoint_reader *)user;
    return e->code = checkpoint_read(r, tensor, array, (size_t)first, count, out, e->text);
}

static int tool_merge(const tool_args *a, const char *path) {
    ck_error e = {CHECKPOINT_OK, 0, ""};
    checkpoint_reader *r = NULL;
    ck_manifest m = {.step = 0}; /* a copy that is written; the reader's manifest does not change */
    e.code = tool_open(&r, path, e.text);
    if (!e.code && gpt2_values_mixed(r))
        (void)ck_fail(&e, CHECKPOINT_MODEL,
                      "%s: its experts are in a folder of their own, and would be lost; load it "
                      "with train_gpt2_zero -y 1",
                      path);
    if (!e.code) (void)ck_manifest_read(&m, path, &e);
    for (int t = 0; t < m.ntensors; t++) m.tensor[t].row = m.tensor[t].parts = 0;
    const int code = e.code ? tool_report_result(e.code, e.text)
                            : tool_write(a->word[1], &m, tool_read_again, r);
    ck_manifest_free(&m);
    checkpoint_close(r);
    return code;
}

/* A ck_read that reads a model_reader. */
static checkpoint_result tool_read_model(void *user, int tensor, int array, uint64_t first,
                                         size_t count, float *out, ck_error *e) {
    static const zero_kind kinds[CK_ARRAYS] = {ZERO_MASTER, ZERO_MOMENT_1, ZERO_MOMENT_2};
    gpt2_error why;
    if (model_reader_get(user, tensor, kinds[array], (size_t)first, count, out, &why) == ZERO_OK)
        return CHECKPOINT_OK;
    return ck_fail(e, CHECKPOINT_FILES, "%s", why.sentence);
}

static int tool_model_values(ck_manifest *m, const gpt2_config *cfg, const llmc_state *s,
                             ck_error *e) {
    checkpoint_value v[GPT2_VALUES + 5];
    int n = GPT2_VALUES;
    gpt2_values(cfg, v);
    if (s != NULL) {
        const struct {
            const char *name;
            uint64_t number;
        } said[] = {{"llmc.data_shard", s->data_shard},
                    {"llmc.data_sample", s->data_sample},
                    {"llmc.shuffled", (uint64_t)s->shuffled},
                    {"llmc.rng", s->rng},
                    {"llmc.rng_last_update", s->rng_last_update}};
        for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
            const checkpoint_value x = {said[i].name, CHECKPOINT_INT, (int64_t)said[i].number, 0,
                                        NULL};
            v[n++] = x;
        }
    }
    return ck_manifest_set_values(m, v, n, e) == CHECKPOINT_OK;
}

/* Describes a new AdamW run of `steps` updates: two moments, the first loss scale. */
static void tool_new_run(ck_manifest *m, int64_t steps) {
    const zero_counters fresh = {steps, 0, 0, -1, 65536, 2};
    (void)ck_optimizer_name(ZERO_ADAMW, m->optimizer);
    m->narrays = CK_ARRAYS;
    m->nranks = m->run.micro_steps = 1;
    m->counters = fresh;
}
/* Adds a tensor with f32 weights and moments. Returns 0 if there is no memory. */
static int tool_add_tensor(ck_manifest *m, const char *name, int layers, size_t numel,
                           ck_error *e) {
    ck_tensor *t = ck_manifest_tensor(m, name);
    if (t == NULL) (void)ck_fail(e, CHECKPOINT_MEMORY, "no memory for the list of tensors");
    if (t == NULL) return 0;
    t->layers = (uint64_t)layers;
    t->numel = numel;
    t->narrays = CK_ARRAYS; /* of type 0, f32 */
    return 1;
}

/* Makes the manifest of a new run, without steps or with those of llm.c's state. */
static int tool_model_manifest(ck_manifest *m, const gpt2_config *cfg, const llmc_state *s,
                               ck_error *e) {
    zero_tensor_desc table[GPT2_MOST_TENSORS];
    tool_new_run(m, s ? s->step : 0);
    if (s) m->step = s->step;
    const int n = gpt2_table(cfg, NULL, 0, table);
    for (int i = 0; i < n; i++)
        if (!tool_add_tensor(m, table[i].name, table[i].layers, table[i].numel, e)) return 0;
    return tool_model_values(m, cfg, s, e);
}

static int tool_import_model(const tool_args *a, model_reader *r) {
    ck_error e = {CHECKPOINT_OK, 0, ""};
    ck_manifest m = {.step = a->step < 0 ? 0 : a->step};
    gpt2_config cfg = model_reader_info(r)->cfg;
    if (!tool_same("heads", a->heads, cfg.heads, e.text)) return tool_fail(e.text);
    if (cfg.heads == 0) cfg.heads = a->heads;
    if (cfg.heads == 0)
        return tool_fail(
            "--heads: the number is neither in the model nor in a config.json; add --heads N");
    if (cfg.channels % cfg.heads)
        return tool_fail("--heads: the heads do not divide the channels; use a divisor");
    const int made = tool_model_manifest(&m, &cfg, model_reader_state(r), &e);
    const int code = made ? tool_write(a->word[1], &m, tool_read_model, r) : tool_fail(e.text);
    ck_manifest_free(&m);
    return code;
}

/* A lora_reader as a ck_read of the tensors that it has. */
typedef struct tool_adapters {
    lora_reader *r;
    gpt2_config cfg;
    gpt2_frozen frozen;
} tool_adapters;
static checkpoint_result tool_get_adapters(void *user, int tensor, int array, uint64_t first,
                                           size_t count, float *out, ck_error *e) {
    const tool_adapters *s = (const tool_adapters *)user;
    gpt2_error why;
    memset(out, 0, count * sizeof *out);
    if (array > 0) return CHECKPOINT_OK;
    if (lora_reader_get(s->r, gpt2_tensor_at(&s->cfg, GPT2_TENSORS + tensor), (size_t)first, count,
                        out, &why)
        == ZERO_OK)
        return CHECKPOINT_OK;
    return ck_fail(e, CHECKPOINT_FILES, "%s", why.sentence);
}

/* The manifest has the adapters only. */
static int tool_import_adapters(const tool_args *a) {
    ck_error e = {CHECKPOINT_OK, 0, ""};
    ck_manifest m = {.step = a->step < 0 ? 0 : a->step};
    checkpoint_value v[LORA_VALUES];
    tool_adapters s = {.r = NULL};
    gpt2_error why;
    if (a->heads || a->model)
        return tool_fail("--heads and --model: adapters take neither; leave them out");
    if (lora_reader_open(&s.r, a->word[0], &why)) return tool_fail(why.sentence);
    s.frozen.lora = lora_reader_info(s.r, &s.cfg.layers, &s.cfg.channels);
    s.cfg.frozen = &s.frozen;
    tool_new_run(&m, 0);
    for (int row = GPT2_TENSORS, t; !e.code && (t = gpt2_tensor_at(&s.cfg, row)) >= 0; row++) {
        size_t rows, columns;
        lora_sides(&s.cfg, t, &rows, &columns);
        (void)tool_add_tensor(&m, gpt2_tensor_name(t), s.cfg.layers, rows * columns, &e);
    }
    if (!e.code) (void)ck_manifest_set_values(&m, v, lora_values(&s.cfg, v), &e);
    const int code = e.code ? tool_fail(e.text) : tool_write(a->word[1], &m, tool_get_adapters, &s);
    ck_manifest_free(&m);
    lora_reader_close(s.r);
    return code;
}

static int tool_import(const tool_args *a) {
    const char *in = a->word[0];
    gpt2_error e;
    model_reader *r;
    if (tool_is_adapters(in)) return tool_import_adapters(a);
    if (a->model != NULL && a->step >= 0)
        return tool_fail(
            "--step: it is for weights alone, and llm.c's state has its step; leave it out");
    if (model_reader_open(&r, a->model ? a->model : in, a->model ? in : NULL, &e))
        return tool_fail(e.sentence);
    const int code = tool_import_model(a, r);
    model_reader_close(r);
    return code;
}

static int tool_convert(const tool_args *a) {
    struct stat is;
    if (stat(a->word[0], &is) != 0 || !S_ISDIR(is.st_mode)) return tool_import(a);
    if (a->model != NULL || a->step >= 0 || a->heads != 0)
        return tool_fail(
            "--model, --step, --heads: a checkpoint is converted without them; leave them out");
    return tool_newest(a, tool_merge);
}

/* ---- the command line ---- */

static const struct {
    const char *name, *usage;
    int least, most;     /* words */
    const char *options; /* the options of the command, each between blanks */
    int (*run)(const tool_args *a);
} tool_commands[] = {
    {"list", "FOLDER", 1, 1, "", tool_list},
    {"show", "FOLDER|GENERATION", 1, 1, "", tool_show},
    {"verify", "FOLDER|GENERATION", 1, 1, "", tool_verify},
    {"diff", "GENERATION GENERATION", 2, 2, "", tool_diff},
    {"export",
     "FOLDER|GENERATION OUT.bin|OUT.safetensors|adapter_model.safetensors [f32|bf16|fp16] [--model "
     "MODEL] [--heads N] [--vocab N]",
     2, 3, " --model --heads --vocab ", tool_export},
    {"convert",
     "FOLDER|GENERATION|MODEL.bin|MODEL.safetensors|INDEX.json|STATE_00000.bin FOLDER [--model "
     "MODEL] [--step N] [--heads N]",
     2, 2, " --model --step --heads ", tool_convert},
};
enum { TOOL_COMMANDS = sizeof tool_commands / sizeof *tool_commands };

static int tool_usage(FILE *out, int command, const char *what) {
    if (what) fprintf(out, "zero_ckpt: %s: ", what);
    for (int i = 0; i < TOOL_COMMANDS; i++)
        if (command < 0 || command == i)
            fprintf(out, "zero_ckpt %s %s\n", tool_commands[i].name, tool_commands[i].usage);
    return TOOL_FAILED;
}

/* Reads a whole number in [least, 2^31). Returns 0 if it is none. */
static int tool_number(const char *text, int64_t least, int64_t *out) {
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return *text != 0 && *end == 0 && errno == 0 && *out >= least && *out <= INT32_MAX;
}

/* Reads an option and its value. Returns 0 if the command does not have it or the value is wrong.
 */
static int tool_option(tool_args *a, const char *takes, const char *option, const char *value) {
    char blanks[16];
    int64_t n = 0;
    const int length = snprintf(blanks, sizeof blanks, " %s ", option);
    if (length >= (int)sizeof blanks || strstr(takes, blanks) == NULL || value == NULL) return 0;
    if (strcmp(option, "--model") == 0) {
        a->model = value;
        return 1;
    }
    const int is_step = strcmp(option, "--step") == 0;
    if (!tool_number(value, is_step ? 0 : 1, &n)) return 0;
    if (is_step) a->step = n;
    if (strcmp(option, "--heads") == 0) a->heads = (int)n;
    if (strcmp(option, "--vocab") == 0) a->vocab = (int)n;
    return 1;
}

static int tool_run(int command, char **argv) {
    tool_args a = {.step = -1};
    char what[256];
    for (int i = 0; argv[i] != NULL; i++) {
        if (strncmp(argv[i], "--", 2) == 0) {
            if (tool_option(&a, tool_commands[command].options, argv[i], argv[i + 1])) {
                i++;
                continue;
            }
            (void)snprintf(what, sizeof what, "%.100s: this command does not take it (%.100s); use",
                           argv[i], argv[i + 1] ? argv[i + 1] : "no value");
            return tool_usage(stderr, command, what);
        }
        if (a.words == tool_commands[command].most)
            return tool_usage(stderr, command, "too many arguments; use");
        a.word[a.words++] = argv[i];
    }
    if (a.words < tool_commands[command].least)
        return tool_usage(stderr, command, "an argument is missing; use");
    return tool_commands[command].run(&a);
}

/* Flushes stdout. A full disk may become known only now. */
static int tool_flush(int code) {
    char sentence[CHECKPOINT_SENTENCE];
    if (!report_end(sentence, sizeof sentence)) return code;
    fprintf(stderr, "zero_ckpt: %s\n", sentence);
    return tool_worse(code, TOOL_BAD);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    for (int i = 0; i < TOOL_COMMANDS; i++)
        if (strcmp(name, tool_commands[i].name) == 0) return tool_flush(tool_run(i, argv + 2));
    if (strcmp(name, "--help") == 0) {
        (void)tool_usage(stdout, -1, NULL);
        return tool_flush(TOOL_GOOD);
    }
    fprintf(stderr, "zero_ckpt: %s%s; use list, show, verify, diff, export, convert or --help\n",
            name, *name ? ": unknown command" : "a command is missing");
    return TOOL_FAILED;
}
