/* test_model_files.c: models from and to llm.c's files and safetensors, at stages and ranks,
   against files that are made here in another, plain way; damage; other models; failing disks.

       test_model_files                  all of it
       test_model_files write FOLDER     files and logits for Python to look at
       test_model_files read FOLDER      what Python wrote from them, compared
       test_model_files tool FOLDER      what test_checkpoint_tool.sh gives to zero_ckpt
       test_model_files large FOLDER     a model file of 206 MB, most of it a hole
       test_model_files rss COMMAND...   runs it; its peak of memory, its exit code */
#include "../../adapters/checkpoint/gpt2_values.h"
#include "../../adapters/checkpoint/model_files.h"
#include "../shared/harness.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <sys/stat.h>

enum { PATH = 512 };

static char folder[256];
static const gpt2_config tiny = {16, 65, 128, 2, 2, 8, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
static const gpt2_config wide = {8,    1100, 1152, 1, 8, 512, 0, GPT2_NO_EXPERTS,
                                 NULL, 0,    0,    0}; /* rows and tensors of several pieces */
static const gpt2_config middle = {8,    300, 384, 1, 6, 384, 0, GPT2_NO_EXPERTS,
                                   NULL, 0,   0,   0}; /* generations of several windows */

/* ---- a model as plain memory ---- */

/* The tensors' values one after another, in the order of model files. */
typedef struct model {
    gpt2_config cfg;
    size_t numel, at[GPT2_TENSORS + 1];
    float *value;
} model;

static size_t total(const zero_tensor_desc *d) {
    return d->numel * (size_t)(d->layers ? d->layers : 1);
}

/* Values that `type` holds exactly; what differs between two seeds differs everywhere. Padded
   rows hold values too, or zeros. */
static model make_model(const gpt2_config *cfg, uint64_t seed, zero_type type, int padded) {
    zero_tensor_desc table[GPT2_TENSORS];
    model m;
    memset(&m, 0, sizeof m);
    m.cfg = *cfg;
    gpt2_describe(cfg, table);
    for (int i = 0; i < GPT2_TENSORS; i++) m.at[i + 1] = m.at[i] + total(&table[i]);
    m.numel = m.at[GPT2_TENSORS];
    m.value = (float *)malloc(m.numel * sizeof(float));
    if (m.value == NULL) abort();
    const size_t end = (size_t)cfg->vocab_size * (size_t)cfg->channels;
    for (size_t i = 0; i < m.numel; i++) {
        const uint64_t r = test_mix(seed * 1000003 + i);
        float x = (float)((double)(r >> 11) / 9007199254740992.0 - 0.5) * 0.2f;
        if (!padded && i >= end && i < m.at[1]) x = 0;
        if (type != ZERO_F32) {
            uint16_t bits;
            zero_convert(&bits, type, &x, ZERO_F32, 1);
            zero_convert(&x, ZERO_F32, &bits, type, 1);
        }
        m.value[i] = x;
    }
    return m;
}

/* The same as another type holds it. */
static model round_model(const model *from, zero_type type) {
    model m = *from;
    m.value = (float *)malloc(m.numel * sizeof(float));
    uint16_t *bits = (uint16_t *)malloc(m.numel * sizeof *bits);
    if (m.value == NULL || bits == NULL) abort();
    memcpy(m.value, from->value, m.numel * sizeof(float));
    if (type != ZERO_F32) {
        zero_convert(bits, type, from->value, ZERO_F32, m.numel);
        zero_convert(m.value, ZERO_F32, bits, type, m.numel);
    }
    free(bits);
    return m;
}

/* ---- files as plain memory ---- */

typedef struct bytes {
    unsigned char *at;
    size_t n;
} bytes;

static bytes make_bytes(size_t n) {
    bytes b = {(unsigned char *)calloc(n + 1, 1), n};
    if (b.at == NULL) abort();
    return b;
}

static void write_file(const char *path, const void *data, size_t n) {
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(data, 1, n, file) != n || fclose(file)) abort();
}

/* n 0 and at NULL: there is no such file. */
static bytes read_file(const char *path) {
    bytes b = {NULL, 0};
    struct stat is;
    FILE *file = fopen(path, "rb");
    if (file == NULL) return b;
    if (fstat(fileno(file), &is)) abort();
    b = make_bytes((size_t)is.st_size);
    if (fread(b.at, 1, b.n, file) != b.n) abort();
    (void)fclose(file);
    return b;
}

static bytes llmc_bytes(const model *m, zero_type type) {
    const size_t each = zero_type_bytes(type);
    bytes b = make_bytes(1024 + m->numel * each);
    const int32_t h[8] = {20240326,           type == ZERO_F32 ? 3 : 5,
                          m->cfg.max_seq_len, m->cfg.vocab_size,
                          m->cfg.layers,      m->cfg.heads,
                          m->cfg.channels,    m->cfg.padded_vocab_size};
    memcpy(b.at, h, sizeof h);
    zero_convert(b.at + 1024, type, m->value, ZERO_F32, m->numel);
    return b;
}

/* transformers' name, shape and place of one tensor of one layer: element (r, c) of the file is
   element r * by_row + c * by_column behind `first` of the model. */
typedef struct hf_tensor {
    char name[96];
    size_t rows, columns, first, by_row, by_column;
    int dims;
} hf_tensor;

static const char *const hf_names[GPT2_TENSORS] = {
    "wte.weight",         "wpe.weight",       "ln_1.weight",        "ln_1.bias",
    "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
    "ln_2.weight",        "ln_2.bias",        "mlp.c_fc.weight",    "mlp.c_fc.bias",
    "mlp.c_proj.weight",  "mlp.c_proj.bias",  "ln_f.weight",        "ln_f.bias"};

static hf_tensor hf_describe(const model *m, int i, int layer, const char *prefix) {
    const size_t C = (size_t)m->cfg.channels, L = (size_t)m->cfg.layers;
    const int layered = i >= 2 && i < 14, turned = i == 4 || i == 6 || i == 10 || i == 12;
    const size_t in[GPT2_TENSORS] = {[4] = C, [6] = C, [10] = C, [12] = 4 * C};
    hf_tensor t;
    memset(&t, 0, sizeof t);
    const size_t n = (m->at[i + 1] - m->at[i]) / (layered ? L : 1);
    t.first = m->at[i] + n * (size_t)layer;
    t.dims = i < 2 || turned ? 2 : 1;
    if (layered)
        (void)snprintf(t.name, sizeof t.name, "%sh.%d.%s", prefix, layer, hf_names[i]);
    else
        (void)snprintf(t.name, sizeof t.name, "%s%s", prefix, hf_names[i]);
    t.rows = turned ? in[i] : i == 0 ? (size_t)m->cfg.vocab_size : i == 1 ? n / C : n;
    t.columns = turned ? n / in[i] : i < 2 ? C : 1;
    t.by_row = turned ? 1 : t.columns;
    t.by_column = turned ? t.rows : 1;
    return t;
}

static int hf_layers(const model *m, int i) { return i >= 2 && i < 14 ? m->cfg.layers : 1; }

/* How a file of the tests is made. */
typedef struct hf_style {
    const char *prefix, *metadata; /* without its braces, may be NULL */
    int buffers;                   /* attn.bias and attn.masked_bias */
    int head;                      /* 1: lm_head as wte; 2: one bit is another */
    int mixed;                     /* tensors take turns with the three types */
    int backwards;                 /* the last tensor lies first */
    zero_type type;
} hf_style;

typedef struct hf_writer {
    bytes data, header;
    int count;
} hf_writer;

static void hf_add(hf_writer *w, const char *name, const char *dtype, size_t rows, size_t columns,
                   int dims, size_t n) {
    char *at = (char *)w->header.at + w->header.n;
    int k = sprintf(at, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%zu", w->count++ ? "," : "{", name,
                    dtype, rows);
    if (dims == 2) k += sprintf(at + k, ",%zu", columns);
    k += sprintf(at + k, "],\"data_offsets\":[%zu,%zu]}", w->data.n, w->data.n + n);
    w->header.n += (size_t)k;
    w->data.n += n;
}

static void hf_add_tensor(hf_writer *w, const model *m, const hf_tensor *t, zero_type type) {
    static const char *const dtypes[3] = {"F32", "BF16", "F16"};
    const size_t each = zero_type_bytes(type), at = w->data.n;
    hf_add(w, t->name, dtypes[type], t->rows, t->columns, t->dims, t->rows * t->columns * each);
    for (size_t r = 0; r < t->rows; r++)
        for (size_t c = 0; c < t->columns; c++)
            zero_convert(w->data.at + at + (r * t->columns + c) * each, type,
                         &m->value[t->first + r * t->by_row + c * t->by_column], ZERO_F32, 1);
}

static void hf_add_buffers(hf_writer *w, int layer) {
    char name[64];
    (void)snprintf(name, sizeof name, "h.%d.attn.bias", layer);
    hf_add(w, name, "BOOL", 7, 3, 2, 21);
    (void)snprintf(name, sizeof name, "h.%d.attn.masked_bias", layer);
    hf_add(w, name, "F32", 1, 1, 0, 4);
}

/* Every `parts`-th tensor of a model, from number `part` on. */
static bytes hf_part(const model *m, const hf_style *s, int part, int parts) {
    hf_writer w = {make_bytes(m->numel * 8 + (1 << 16)), make_bytes(1 << 18), 0};
    w.data.n = w.header.n = 0;
    if (s->metadata != NULL)
        w.header.n = (size_t)sprintf((char *)w.header.at, "{\"__metadata__\":{%s}", s->metadata);
    w.count = s->metadata != NULL;
    for (int k = 0; k < GPT2_TENSORS; k++) {
        const int i = s->backwards ? GPT2_TENSORS - 1 - k : k;
        for (int l = 0; l < hf_layers(m, i); l++) {
            if ((i + l) % parts != part) continue;
            const hf_tensor t = hf_describe(m, i, l, s->prefix);
            hf_add_tensor(&w, m, &t, s->mixed ? (zero_type)((i + l) % 3) : s->type);
            if (s->buffers && i == 2) hf_add_buffers(&w, l);
        }
    }
    if (s->head) {
        hf_tensor t = hf_describe(m, 0, 0, "");
        strcpy(t.name, "lm_head.weight");
        hf_add_tensor(&w, m, &t, s->mixed ? ZERO_F32 : s->type);
        if (s->head == 2) w.data.at[w.data.n - 1] ^= 1;
    }
    w.header.at[w.header.n++] = '}';
    while (w.header.n % 8) w.header.at[w.header.n++] = ' ';
    bytes b = make_bytes(8 + w.header.n + w.data.n);
    const uint64_t n = w.header.n;
    memcpy(b.at, &n, 8);
    memcpy(b.at + 8, w.header.at, w.header.n);
    memcpy(b.at + 8 + w.header.n, w.data.at, w.data.n);
    free(w.data.at);
    free(w.header.at);
    return b;
}

static bytes hf_bytes(const model *m, const hf_style *s) { return hf_part(m, s, 0, 1); }

static bytes hf_plain_part(const model *m, zero_type type, int part, int parts) {
    char metadata[64];
    (void)snprintf(metadata, sizeof metadata, "\"format\":\"pt\",\"n_head\":\"%d\"", m->cfg.heads);
    const hf_style s = {"transformer.", metadata, 0, 0, 0, 0, type};
    return hf_part(m, &s, part, parts);
}

static bytes hf_plain(const model *m, zero_type type) { return hf_plain_part(m, type, 0, 1); }

/* The model in several files, and their index; the path of that. */
static void write_parts(const model *m, zero_type type, int parts, char index[PATH]) {
    char path[PATH];
    (void)snprintf(index, PATH, "%s/model.safetensors.index.json", folder);
    FILE *out = fopen(index, "w");
    if (out == NULL) abort();
    fprintf(out, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (int i = 0; i < GPT2_TENSORS; i++)
        for (int l = 0; l < hf_layers(m, i); l++)
            fprintf(out, "%s\"%s\":\"model-%d.safetensors\"", i + l ? "," : "",
                    hf_describe(m, i, l, "transformer.").name, (i + l) % parts);
    fprintf(out, "}}\n");
    if (fclose(out)) abort();
    for (int part = 0; part < parts; part++) {
        bytes b = hf_plain_part(m, type, part, parts);
        (void)snprintf(path, PATH, "%s/model-%d.safetensors", folder, part);
        write_file(path, b.at, b.n);
        free(b.at);
    }
}

/* Where the data of a tensor begins in a file, by its text; 0: it is not there as it should be. */
static size_t hf_find(const bytes *b, const hf_tensor *t, const char *dtype) {
    char key[256], shape[64];
    uint64_t n;
    size_t begin = 0, end = 0;
    memcpy(&n, b->at, 8);
    (void)snprintf(shape, sizeof shape, t->dims == 2 ? "%zu,%zu" : "%zu", t->rows, t->columns);
    (void)snprintf(key, sizeof key, "\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[",
                   t->name, dtype, shape);
    const char *at = (const char *)memmem(b->at + 8, (size_t)n, key, strlen(key));
    if (at == NULL || sscanf(at + strlen(key), "%zu,%zu]", &begin, &end) != 2) return 0;
    return 8 + (size_t)n + begin;
}

/* 1: the file holds the model as `type`, at the places that its header says. */
static int hf_holds(const bytes *b, const model *m, zero_type type) {
    static const char *const dtypes[3] = {"F32", "BF16", "F16"};
    const size_t each = zero_type_bytes(type);
    for (int i = 0; i < GPT2_TENSORS; i++)
        for (int l = 0; l < hf_layers(m, i); l++) {
            const hf_tensor t = hf_describe(m, i, l, "transformer.");
            const size_t at = hf_find(b, &t, dtypes[type]);
            if (at == 0 || at + t.rows * t.columns * each > b->n) return 0;
            for (size_t r = 0; r < t.rows; r++)
                for (size_t c = 0; c < t.columns; c++) {
                    unsigned char want[4];
                    zero_convert(want, type, &m->value[t.first + r * t.by_row + c * t.by_column],
                                 ZERO_F32, 1);
                    if (memcmp(want, b->at + at + (r * t.columns + c) * each, each) != 0) return 0;
                }
        }
    return 1;
}

/* ---- contexts ---- */

static zero_ctx *make_context(const gpt2_config *cfg, const zero_config *c, const zero_comm *comm) {
    zero_tensor_desc table[GPT2_TENSORS];
    zero_ctx *z = NULL;
    if (zero_create(&z, c, comm)) abort();
    gpt2_describe(cfg, table);
    for (int i = 0; i < GPT2_TENSORS; i++)
        if (zero_tensor(z, &table[i])) abort();
    if (zero_build(z)) abort();
    return z;
}

static zero_ctx *make_alone(const gpt2_config *cfg, zero_type type) {
    zero_config c = {0};
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    c.type = type;
    c.log = test_quiet;
    return make_context(cfg, &c, &comm);
}

/* 1: the context has these bits. */
static int holds(zero_ctx *z, const model *m, zero_kind kind) {
    zero_tensor_desc table[GPT2_TENSORS];
    float *out = (float *)malloc(m->numel * sizeof(float));
    int same = 1;
    if (out == NULL) abort();
    gpt2_describe(&m->cfg, table);
    for (int i = 0; i < GPT2_TENSORS; i++) {
        const size_t n = total(&table[i]);
        same &= zero_read_tensor(z, table[i].name, kind, 0, n, out) == ZERO_OK
                && memcmp(out, m->value + m->at[i], n * sizeof(float)) == 0;
    }
    free(out);
    return same;
}

/* ---- round trips ---- */

typedef struct trip {
    const gpt2_config *cfg;
    zero_config c;
    zero_type file;    /* type of the file that is read */
    model from;        /* what it holds */
    model unpadded;    /* the same with zeros in padded rows */
    char path[PATH];   /* of it, llm.c's or safetensors */
    char out[4][PATH]; /* saved again: llm.c's, safetensors in three types */
} trip;

static int same_file(const char *path, const bytes *b) {
    bytes found = read_file(path);
    const int same = found.n == b->n && found.at != NULL && memcmp(found.at, b->at, b->n) == 0;
    free(found.at);
    return same;
}

/* Split weights, as parameters: rounded half up. */
static model upper_halves(const model *from) {
    model m = round_model(from, ZERO_F32);
    for (size_t i = 0; i < m.numel; i++) {
        uint32_t bits;
        memcpy(&bits, &m.value[i], sizeof bits);
        bits = (bits + 0x8000u) & 0xFFFF0000u;
        memcpy(&m.value[i], &bits, sizeof bits);
    }
    return m;
}

/* A file of the context's type has its parameters; of another type, the masters rounded. */
static model as_saved(const model *m, const zero_config *c, zero_type type) {
    const int split = c->master == ZERO_MASTER_SPLIT && type == c->type;
    return split ? upper_halves(m) : round_model(m, type);
}

/* Load, look, save as everything, load again what was saved. */
static void trip_body(test_rank *r) {
    trip *t = (trip *)r->arg;
    const zero_comm comm = test_comm(r);
    zero_ctx *z = make_context(t->cfg, &t->c, &comm);
    gpt2_error err;
    if (model_load(z, t->cfg, t->path, &err)) test_rank_fail(r, "load: %s", err.sentence);
    const int exact = t->c.master != ZERO_MASTER_NONE;
    const model stored = exact ? t->from : round_model(&t->from, t->c.type);
    const model parameters = t->c.master == ZERO_MASTER_SPLIT ? upper_halves(&t->from)
                                                              : round_model(&t->from, t->c.type);
    if (!holds(z, &stored, ZERO_MASTER)) test_rank_fail(r, "masters differ");
    if (!holds(z, &parameters, ZERO_PARAMETER)) test_rank_fail(r, "parameters differ");
    if (t->file != ZERO_F16 && model_save(z, t->cfg, t->out[0], MODEL_LLMC, t->file, &err))
        test_rank_fail(r, "save: %s", err.sentence);
    for (int i = 0; i < 3; i++)
        if (model_save(z, t->cfg, t->out[1 + i], MODEL_SAFETENSORS, (zero_type)i, &err))
            test_rank_fail(r, "save %d: %s", i, err.sentence);
    for (int i = 0; i < 3; i++) {
        if (model_load(z, t->cfg, t->out[1 + i], &err))
            test_rank_fail(r, "load %d: %s", i, err.sentence);
        const model was = exact ? t->unpadded : round_model(&t->unpadded, t->c.type);
        const model again = as_saved(&was, &t->c, (zero_type)i);
        const model kept = exact ? again : round_model(&again, t->c.type);
        if (!holds(z, &kept, ZERO_MASTER)) test_rank_fail(r, "loaded again, type %d differs", i);
        if (!exact) free(was.value);
        if (!exact) free(kept.value);
        free(again.value);
    }
    if (!exact) free(stored.value);
    free(parameters.value);
    zero_destroy(z);
}

/* The files that a trip has left hold what they should. */
static void trip_check(const trip *t, const char *what, const bytes *read, int llmc) {
    if (t->file != ZERO_F16) {
        bytes b = llmc ? *read : llmc_bytes(&t->from, t->file);
        if (t->c.master != ZERO_MASTER_NONE || t->c.type == t->file)
            test_check(same_file(t->out[0], &b), "%s: the model file has other bytes", what);
        if (!llmc) free(b.at);
    }
    for (int i = 0; i < 3; i++) {
        bytes b = read_file(t->out[1 + i]);
        const int exact = t->c.master != ZERO_MASTER_NONE && (zero_type)i != t->c.type;
        model m = exact ? round_model(&t->from, ZERO_F32) : as_saved(&t->from, &t->c, t->c.type);
        test_check(b.at != NULL && hf_holds(&b, &m, (zero_type)i),
                   "%s: safetensors of type %d hold something else", what, i);
        free(m.value);
        free(b.at);
    }
}

/* One file through one kind of context. */
static void one_trip(const gpt2_config *cfg, const zero_config *c, int nranks, zero_type file,
                     int llmc) {
    trip t;
    char what[160];
    memset(&t, 0, sizeof t);
    t.cfg = cfg;
    t.c = *c;
    t.file = file;
    t.from = make_model(cfg, 7 + (uint64_t)nranks, file, llmc);
    t.unpadded = make_model(cfg, 7 + (uint64_t)nranks, file, 0);
    bytes b = llmc ? llmc_bytes(&t.from, file) : hf_plain(&t.from, file);
    (void)snprintf(t.path, PATH, "%s/in", folder);
    for (int i = 0; i < 4; i++) (void)snprintf(t.out[i], PATH, "%s/out%d", folder, i);
    write_file(t.path, b.at, b.n);
    (void)snprintf(what, sizeof what,
                   "stage %d, %d ranks, type %d%s, file of type %d%s, %d channels", c->stage,
                   nranks, (int)c->type,
                   c->master == ZERO_MASTER_NONE    ? " without masters"
                   : c->master == ZERO_MASTER_SPLIT ? " with split masters"
                                                    : "",
                   (int)file, llmc ? "" : " (safetensors)", cfg->channels);
    const int ok = test_ranks(nranks, 0, trip_body, &t);
    if (test_check(ok, "%s: %s", what, test_first)) trip_check(&t, what, &b, llmc);
    free(b.at);
    free(t.from.value);
    free(t.unpadded.value);
}

static void test_trips(void) {
    zero_config c = {0};
    c.log = test_quiet;
    c.threads = 1;
    for (int nranks = 1; nranks <= 3; nranks++)
        for (c.stage = 0; c.stage <= 3; c.stage++)
            for (int type = 0; type < 5; type++) {
                c.type = type > 2 ? ZERO_BF16 : (zero_type)type;
                c.master = type == 3   ? ZERO_MASTER_NONE
                           : type == 4 ? ZERO_MASTER_SPLIT
                                       : ZERO_MASTER_F32;
                one_trip(&tiny, &c, nranks, ZERO_F32, 1);
                one_trip(&tiny, &c, nranks, ZERO_BF16, 1);
                if (c.master == ZERO_MASTER_NONE) continue;
                one_trip(&tiny, &c, nranks, (zero_type)((nranks + c.stage) % 3), 0);
            }
}

/* ---- files of other makers ---- */

static void test_styles(void) {
    model m = make_model(&tiny, 3, ZERO_BF16, 0); /* f16 holds these too: small numbers rounded */
    for (size_t i = 0; i < m.numel; i++) {
        uint16_t bits;
        zero_convert(&bits, ZERO_F16, &m.value[i], ZERO_F32, 1);
        zero_convert(&m.value[i], ZERO_F32, &bits, ZERO_F16, 1);
        zero_convert(&bits, ZERO_BF16, &m.value[i], ZERO_F32, 1);
        zero_convert(&m.value[i], ZERO_F32, &bits, ZERO_BF16, 1);
    }
    char path[PATH];
    (void)snprintf(path, PATH, "%s/style", folder);
    for (int i = 0; i < 64; i++) {
        const hf_style s = {i & 1 ? "transformer." : "",
                            i & 2 ? "\"format\":\"pt\"" : NULL,
                            !!(i & 4),
                            !!(i & 8),
                            !!(i & 16),
                            !!(i & 32),
                            (zero_type)(i % 2)};
        bytes b = hf_bytes(&m, &s);
        zero_ctx *z = make_alone(&tiny, ZERO_F32);
        model_info info;
        gpt2_error err;
        write_file(path, b.at, b.n);
        const int read = model_info_read(path, &info, &err) == ZERO_OK && info.cfg.heads == 0
                         && info.cfg.layers == 2 && info.cfg.channels == 8
                         && info.cfg.vocab_size == 65 && info.cfg.max_seq_len == 16
                         && info.cfg.padded_vocab_size == 128 && info.format == MODEL_SAFETENSORS;
        test_check(read, "style %d: %s", i, err.sentence);
        test_check(model_load(z, &tiny, path, &err) == ZERO_OK && holds(z, &m, ZERO_PARAMETER),
                   "style %d: %s", i, err.sentence);
        zero_destroy(z);
        free(b.at);
    }
    free(m.value);
}

static void test_heads(void) {
    char path[PATH], config[PATH];
    const gpt2_config other = {16, 65, 128, 2, 4, 8, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    model m = make_model(&tiny, 3, ZERO_F32, 0);
    const hf_style s = {"", NULL, 0, 0, 0, 0, ZERO_F32};
    bytes b = hf_bytes(&m, &s);
    model_info info;
    gpt2_error err;
    (void)snprintf(path, PATH, "%s/heads", folder);
    (void)snprintf(config, PATH, "%s/config.json", folder);
    write_file(path, b.at, b.n);
    test_check(model_save_hf_config(&other, config, &err) == ZERO_OK, "config: %s", err.sentence);
    test_check(model_info_read(path, &info, &err) == ZERO_OK && info.cfg.heads == 4,
               "heads of config.json: %d, %s", info.cfg.heads, err.sentence);
    zero_ctx *z = make_alone(&tiny, ZERO_F32);
    test_check(model_load(z, &tiny, path, &err) == ZERO_ERR_ARGUMENT
                   && strstr(err.sentence, "4 heads there, 2 here"),
               "other heads: %s", err.sentence);
    zero_destroy(z);
    (void)unlink(config);
    free(b.at);
    free(m.value);
}

/* ---- what must be refused ---- */

/* The file is refused by both functions, and the sentence has this part. */
static void refused(const bytes *b, const char *part, const char *what) {
    char path[PATH];
    gpt2_error one = {""}, two = {""};
    model_info info;
    (void)snprintf(path, PATH, "%s/refused", folder);
    write_file(path, b->at, b->n);
    zero_ctx *z = make_alone(&tiny, ZERO_F32);
    const zero_result r = model_info_read(path, &info, &one);
    const zero_result s = model_load(z, &tiny, path, &two);
    test_check(r == ZERO_ERR_ARGUMENT && s == ZERO_ERR_ARGUMENT && strstr(one.sentence, part)
                   && strcmp(one.sentence, two.sentence) == 0,
               "%s: %d \"%s\", %d \"%s\", expected ...%s...", what, (int)r, one.sentence, (int)s,
               two.sentence, part);
    zero_destroy(z);
}

/* The first `from` in the header becomes `to`; the header's length follows. */
static bytes replaced(const bytes *b, const char *from, const char *to) {
    uint64_t n;
    memcpy(&n, b->at, 8);
    const unsigned char *at = (const unsigned char *)memmem(b->at, b->n, from, strlen(from));
    if (at == NULL) abort();
    const size_t before = (size_t)(at - b->at), gone = strlen(from), more = strlen(to);
    bytes out = make_bytes(b->n - gone + more);
    memcpy(out.at, b->at, before);
    memcpy(out.at + before, to, more);
    memcpy(out.at + before + more, at + gone, b->n - before - gone);
    n = n - gone + more;
    memcpy(out.at, &n, 8);
    return out;
}

static void test_headers(void) {
    static const struct {
        const char *from, *to, *part;
    } cases[] = {
        {"{\"__", "[\"__", "no JSON object"},
        {"\"dtype\":\"F32\"", "\"dtype\":\"F33\"", "wte.weight: unknown dtype \"F33\""},
        {"\"dtype\":\"F32\"", "\"dtype\":32", "wte.weight: no object of"},
        {"\"dtype\":\"F32\"", "\"dtype\":\"I32\"", "wte.weight: its dtype is not"},
        {"\"dtype\":\"F32\"", "\"dtype\":\"BF16\"", "wte.weight: its shape takes 1040 bytes"},
        {"[65,8]", "[8,65]", "wpe.weight: has 2 dimensions"},
        {"[65,8]", "[520]", "wte.weight: has not two dimensions"},
        {"[65,8]", "[0,8]", "wte.weight: its shape takes 0 bytes"},
        {"[65,8]", "[-65,-8]", "wte.weight: its shape is no list"},
        {"[65,8]", "[65.5,8]", "wte.weight: its shape is no list"},
        {"[65,8]", "[1e300,8]", "wte.weight: its shape is no list"},
        {"[65,8]", "[4294967296,4294967296]", "wte.weight: its shape is no list"},
        {"[65,8]", "[9007199254740992,9007199254740992]", "wte.weight: its shape is no list"},
        {"[65,8]", "[65,8,1,1,1,1,1,1,1]", "wte.weight: its shape is no list"},
        {"[65,8]", "65", "wte.weight: its shape is no list"},
        {"[8,24]", "[24,8]", "h.0.attn.c_attn.weight: has 2 dimensions, 24 x 8"},
        {"[32]", "[32,1]", "h.0.mlp.c_fc.bias: has 2 dimensions"},
        {"[0,2080]", "[8,2088]", "wte.weight: begins at byte 8 of the data, leaves a gap"},
        {"[0,2080]", "[2080,0]", "wte.weight: its data_offsets"},
        {"[0,2080]", "[0,2081]", "wte.weight: its shape takes 2080 bytes"},
        {"[0,2080]", "[0]", "wte.weight: its data_offsets"},
        {"[0,2080]", "[0,2080,0]", "wte.weight: its data_offsets"},
        {"[0,2080]", "[1e18,1e19]", "wte.weight: its data_offsets"},
        {"[0,2080]", "[9000000000,9000002080]", "wte.weight: ends at byte 9000002080"},
        {"[2080,2592]", "[0,512]", "overlaps"},
        {"transformer.wpe", "transformer.wqe", "transformer.wqe.weight: no tensor of GPT-2"},
        {"transformer.wpe", "transformer.wte", "wte.weight: there twice"},
        {"transformer.h.1.ln_1.weight", "h.0.ln_1.weight", "h.0.ln_1.weight: there twice"},
        {"transformer.h.1.ln_1.weight", "h.0.attn.bias", "h.1.ln_1.weight: is missing"},
        {"transformer.h.1.ln_1.weight", "h.01.ln_1.weight", "h.01.ln_1.weight: no tensor"},
        {"transformer.h.1.ln_1.weight", "h.2.ln_1.weight", "h.1.ln_1.weight: is missing"},
        {"transformer.h.1.ln_1.weight", "h.4096.ln_1.weight", "no tensor of GPT-2"},
        {"transformer.h.1.ln_1.weight", "h.1.h.1.ln_1.weight", "no tensor of GPT-2"},
        {"transformer.wpe.weight", "h.0.wpe.weight", "h.0.wpe.weight: no tensor"},
        {"transformer.wpe.weight", "lm_head.weight", "wpe.weight: is missing"},
        {"\"n_head\":\"2\"", "\"n_head\":\"3\"", "3 heads do not divide 8 channels"},
        {"\"n_head\":\"2\"", "\"n_head\":\"\"", "out of range"},
        {"\"n_head\":\"2\"", "\"n_head\":2", "__metadata__: holds more than strings"},
        {"{\"format\":\"pt\",\"n_head\":\"2\"}", "0", "__metadata__: no object"},
    };
    model m = make_model(&tiny, 5, ZERO_F32, 0);
    bytes b = hf_plain(&m, ZERO_F32);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bytes changed = replaced(&b, cases[i].from, cases[i].to);
        refused(&changed, cases[i].part, cases[i].to);
        free(changed.at);
    }
    /* a gap: the last tensor lies four bytes further on, in a file that has them */
    bytes gap = make_bytes(b.n + 4);
    const size_t end = b.n - 8 - (size_t)((const uint64_t *)(const void *)b.at)[0];
    char from[64], to[64];
    (void)snprintf(from, sizeof from, "[%zu,%zu]", end - 32, end);
    (void)snprintf(to, sizeof to, "[%zu,%zu]", end - 28, end + 4);
    memcpy(gap.at, b.at, b.n);
    refused(&gap, "the tensors end at byte", "four bytes more");
    bytes moved = replaced(&gap, from, to);
    refused(&moved, "ln_f.bias: begins at byte", "a gap");
    free(moved.at);
    free(gap.at);
    free(b.at);
    free(m.value);
}

/* ---- a model in several files ---- */

static void test_parts(void) {
    char index[PATH], path[PATH];
    for (int parts = 1; parts <= 4; parts++) {
        const zero_type type = (zero_type)(parts % 3);
        model m = make_model(parts == 4 ? &wide : &tiny, 3, type, 0);
        zero_ctx *z = make_alone(&m.cfg, ZERO_F32);
        model_info info;
        gpt2_error err = {""};
        write_parts(&m, type, parts, index);
        test_check(model_info_read(index, &info, &err) == ZERO_OK && info.type == type
                       && memcmp(&info.cfg, &m.cfg, sizeof m.cfg) == 0,
                   "%d files: %s", parts, err.sentence);
        test_check(model_load(z, &m.cfg, index, &err) == ZERO_OK && holds(z, &m, ZERO_PARAMETER),
                   "%d files: %s", parts, err.sentence);
        for (int part = 0; part < parts; part++) {
            (void)snprintf(path, PATH, "%s/model-%d.safetensors", folder, part);
            (void)unlink(path);
            test_check(model_load(z, &m.cfg, index, &err) == ZERO_ERR_ARGUMENT
                           && strstr(err.sentence, "safetensors: the file cannot be opened"),
                       "file %d of %d is missing: %s", part, parts, err.sentence);
            write_parts(&m, type, parts, index);
        }
        zero_destroy(z);
        free(m.value);
    }
}

/* The index with its first `from` made `to` is refused with a sentence that has `part`. */
static void index_refused(const char *index, const char *from, const char *to, const char *part) {
    gpt2_error one = {""}, two = {""};
    model_info info;
    bytes b = read_file(index);
    const unsigned char *at = (const unsigned char *)memmem(b.at, b.n, from, strlen(from));
    if (at == NULL) abort();
    FILE *out = fopen(index, "w");
    const size_t before = (size_t)(at - b.at), behind = before + strlen(from);
    if (out == NULL || fprintf(out, "%.*s%s", (int)before, (const char *)b.at, to) < 0
        || fwrite(b.at + behind, 1, b.n - behind, out) != b.n - behind || fclose(out))
        abort();
    zero_ctx *z = make_alone(&tiny, ZERO_F32);
    const zero_result r = model_info_read(index, &info, &one);
    const zero_result s = model_load(z, &tiny, index, &two);
    test_check(r == ZERO_ERR_ARGUMENT && s == ZERO_ERR_ARGUMENT && strstr(one.sentence, part)
                   && strcmp(one.sentence, two.sentence) == 0,
               "index with %s: %d \"%s\", %d \"%s\", expected ...%s...", to, (int)r, one.sentence,
               (int)s, two.sentence, part);
    zero_destroy(z);
    write_file(index, b.at, b.n);
    free(b.at);
}

static void test_index(void) {
    static const struct {
        const char *from, *to, *part;
    } cases[] = {
        {"{\"meta", "[\"meta", "no JSON object with a weight_map"},
        {"weight_map", "weight_mop", "no JSON object with a weight_map"},
        {"\"weight_map\": {", "\"weight_map\": {}, \"w\": {", "no JSON object with a weight_map"},
        {"\"weight_map\": {", "\"weight_map\": 7, \"w\": {", "no JSON object with a weight_map"},
        {":\"model-1", ":\"../model-1", "wpe.weight: its file is not named, or not by a name"},
        {":\"model-1", ":\"/model-1", "wpe.weight: its file is not named, or not by a name"},
        {":\"model-1", ":\".model-1", "wpe.weight: its file is not named, or not by a name"},
        {":\"model-1.safetensors\"", ":\"\"", "wpe.weight: its file is not named"},
        {":\"model-1.safetensors\"", ":1", "wpe.weight: its file is not named"},
        {":\"model-1", ":\"model-9", "model-9.safetensors: the file cannot be opened"},
        {":\"model-1", ":\"model-0",
         "wpe.weight: is in model-1.safetensors, the weight_map says model-0"},
        {"transformer.wpe", "transformer.wqe",
         "wpe.weight: is in model-1.safetensors, but not in the weight_map"},
        {"\"transformer.wpe", "\"x\":\"model-0.safetensors\",\"transformer.wpe",
         "x: is missing in model-0.safetensors"},
        {"\"transformer.wpe", "\"x\":\"model.safetensors.index.json\",\"transformer.wpe",
         "its length would be"},
    };
    char index[PATH], path[PATH];
    model m = make_model(&tiny, 5, ZERO_F32, 0);
    write_parts(&m, ZERO_F32, 2, index);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        index_refused(index, cases[i].from, cases[i].to, cases[i].part);
    bytes b = hf_plain(&m, ZERO_F32); /* all tensors in the second file too */
    (void)snprintf(path, PATH, "%s/model-1.safetensors", folder);
    write_file(path, b.at, b.n);
    index_refused(index, " ", " ", "wte.weight: is in model-1.safetensors, the weight_map says");
    free(b.at);
    b = hf_plain_part(&m, ZERO_F32, 1, 4); /* and not all that it should have */
    write_file(path, b.at, b.n);
    index_refused(index, " ", " ", "is missing in model-1.safetensors, where the weight_map");
    write_file(path, b.at, b.n - 1);
    index_refused(index, " ", " ", "model-1.safetensors: transformer.");
    free(b.at);
    free(m.value);
}

/* The first eight bytes. */
static void test_lengths(void) {
    static const uint64_t lengths[] = {0,
                                       1,
                                       2,
                                       7,
                                       1u << 20,
                                       1u << 30,
                                       UINT64_C(1) << 62,
                                       UINT64_MAX,
                                       UINT64_MAX - 7,
                                       (1u << 20) + 1};
    model m = make_model(&tiny, 5, ZERO_F32, 0);
    bytes b = hf_plain(&m, ZERO_F32);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(b.at, &lengths[i], 8);
        refused(&b, "header", "a wrong length");
    }
    free(b.at);
    b = hf_plain(&m, ZERO_F32);
    uint64_t n;
    memcpy(&n, b.at, 8);
    n -= 16;
    memcpy(b.at, &n, 8);
    refused(&b, "header: no JSON object", "a header that is cut");
    n += 24;
    memcpy(b.at, &n, 8);
    refused(&b, "header: something follows", "a header that is too long");
    free(b.at);
    free(m.value);
}

static void test_untied(void) {
    model m = make_model(&tiny, 3, ZERO_F32, 0);
    const hf_style s = {"", NULL, 0, 2, 0, 0, ZERO_F32};
    bytes b = hf_bytes(&m, &s);
    char path[PATH];
    gpt2_error err;
    (void)snprintf(path, PATH, "%s/untied", folder);
    write_file(path, b.at, b.n);
    zero_ctx *z = make_alone(&tiny, ZERO_F32);
    test_check(model_load(z, &tiny, path, &err) == ZERO_ERR_ARGUMENT
                   && strstr(err.sentence, "lm_head.weight: differs from wte.weight"),
               "untied: %s", err.sentence);
    zero_destroy(z);
    free(b.at);
    free(m.value);
}

/* Either refused, or the weights are right: nothing between. */
static int harmless(zero_ctx *z, const char *path, const bytes *b, const model *m) {
    gpt2_error err;
    write_file(path, b->at, b->n);
    const zero_result r = model_load(z, &m->cfg, path, &err);
    if (r == ZERO_OK) return holds(z, m, ZERO_PARAMETER);
    return r == ZERO_ERR_ARGUMENT && err.sentence[0] != 0;
}

static void damage(bytes *b, size_t header, const model *m, const char *what) {
    char path[PATH];
    zero_ctx *z = make_alone(&m->cfg, ZERO_F32);
    test_random random = {99};
    size_t wrong = 0;
    (void)snprintf(path, PATH, "%s/damaged", folder);
    for (size_t i = 0; i < header; i++) {
        const unsigned char was = b->at[i];
        for (int k = 0; k < 2; k++) {
            b->at[i] =
                (unsigned char)(was
                                ^ (k ? 1 << test_below(&random, 8) : 1 + test_below(&random, 255)));
            wrong += !harmless(z, path, b, m);
        }
        b->at[i] = was;
    }
    test_check(wrong == 0, "%s: %zu changed headers gave other weights", what, wrong);
    const size_t n = b->n;
    gpt2_error err;
    for (wrong = 0, b->n = 0; b->n < n; b->n += b->n < header + 64 || b->n + 40 > n ? 1 : 97) {
        write_file(path, b->at, b->n);
        wrong += model_load(z, &m->cfg, path, &err) != ZERO_ERR_ARGUMENT;
    }
    b->n = n;
    test_check(wrong == 0, "%s: %zu truncations were read", what, wrong);
    test_check(harmless(z, path, b, m) && model_load(z, &m->cfg, path, &err) == ZERO_OK,
               "%s: whole again, %s", what, err.sentence);
    zero_destroy(z);
}

static void test_damage(void) {
    const gpt2_config one = {4, 5, 128, 1, 1, 2, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    model m = make_model(&one, 21, ZERO_F32, 0);
    const hf_style s = {"", "\"n_head\":\"1\"", 1, 1, 0, 0, ZERO_F32};
    bytes b = hf_bytes(&m, &s);
    uint64_t n;
    memcpy(&n, b.at, 8);
    damage(&b, 8 + (size_t)n, &m, "safetensors");
    free(b.at);
    free(m.value);
    m = make_model(&one, 21, ZERO_F32, 1);
    b = llmc_bytes(&m, ZERO_F32);
    damage(&b, 32, &m, "llm.c f32");
    b.at[b.n++] = 0; /* make_bytes has room for one more */
    refused(&b, "expected", "a byte more");
    free(b.at);
    free(m.value);
}

static void test_other_models(void) {
    static const struct {
        gpt2_config cfg;
        const char *part;
    } cases[] = {{{16, 65, 128, 3, 2, 8, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0},
                  "ln1w has 3 x 8 elements there, 2 x 8 here"},
                 {{16, 65, 128, 2, 2, 16, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0},
                  "wte has 1 x 2048 elements there, 1 x 1024 here"},
                 {{17, 65, 128, 2, 2, 8, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0},
                  "wpe has 1 x 136 elements there, 1 x 128 here"},
                 {{16, 66, 128, 2, 2, 8, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0},
                  "wte has 66 vocabulary entries there, 65 here"},
                 {{16, 65, 128, 2, 4, 8, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0},
                  "qkvw has 4 heads there, 2 here"}};
    char path[PATH];
    (void)snprintf(path, PATH, "%s/other", folder);
    zero_ctx *z = make_alone(&tiny, ZERO_F32);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int format = 0; format < 2; format++) {
            gpt2_error err = {""};
            model m = make_model(&cases[i].cfg, 3, ZERO_F32, 0);
            zero_ctx *y = make_alone(&cases[i].cfg, ZERO_F32);
            const zero_result saved =
                model_save(y, &cases[i].cfg, path, (model_format)format, ZERO_BF16, &err);
            test_check(saved == ZERO_OK && model_load(z, &tiny, path, &err) == ZERO_ERR_ARGUMENT
                           && strstr(err.sentence, cases[i].part),
                       "another model: %s, expected ...%s", err.sentence, cases[i].part);
            zero_destroy(y);
            free(m.value);
        }
    zero_destroy(z);
}

/* ---- ranks that differ, disks that fail ---- */

static void missing_body(test_rank *r) {
    char path[PATH];
    zero_config c = {0};
    gpt2_error err;
    c.stage = 3;
    c.log = test_quiet;
    c.timeout_s = 20;
    const zero_comm comm = test_comm(r);
    zero_ctx *z = make_context(&tiny, &c, &comm);
    (void)snprintf(path, PATH, "%s/%s", folder, r->rank == 1 ? "nowhere" : "there");
    const zero_result result = model_load(z, &tiny, path, &err);
    if (result != ZERO_ERR_ARGUMENT || !strstr(err.sentence, "/nowhere: the file cannot be opened"))
        test_rank_fail(r, "load: %d %s", (int)result, err.sentence);
    /* the context is as good as before */
    (void)snprintf(path, PATH, "%s/there", folder);
    if (model_load(z, &tiny, path, &err)) test_rank_fail(r, "load: %s", err.sentence);
    (void)snprintf(path, PATH, "%s/no/such/folder", folder);
    if (model_save(z, &tiny, path, MODEL_LLMC, ZERO_F32, &err) != ZERO_ERR_ARGUMENT
        || !strstr(err.sentence, "No such file or directory"))
        test_rank_fail(r, "save: %s", err.sentence);
    /* what only the last step finds, on rank 0 alone: a folder of this name */
    if (model_save(z, &tiny, folder, MODEL_SAFETENSORS, ZERO_F32, &err) != ZERO_ERR_ARGUMENT
        || !strstr(err.sentence, "it cannot be renamed"))
        test_rank_fail(r, "save to a folder: %s", err.sentence);
    if (model_save(z, &tiny, path, MODEL_LLMC, ZERO_F16, &err) != ZERO_ERR_ARGUMENT)
        test_rank_fail(r, "llm.c has no f16");
    zero_destroy(z);
}

static void test_missing(void) {
    char path[PATH];
    model m = make_model(&tiny, 3, ZERO_BF16, 1);
    bytes b = llmc_bytes(&m, ZERO_BF16);
    (void)snprintf(path, PATH, "%s/there", folder);
    write_file(path, b.at, b.n);
    for (int nranks = 2; nranks <= 3; nranks++)
        test_check(test_ranks(nranks, 0, missing_body, NULL), "one rank's file is missing: %s",
                   test_first);
    free(b.at);
    free(m.value);
}

/* A disk that is full after `limit` bytes, on rank 0 of two; the old file stays, nothing is left
   beside it. */
static void full_body(test_rank *r) {
    zero_config c = {0};
    gpt2_error err = {""};
    char path[PATH], temporary[PATH + 32];
    c.log = test_quiet;
    c.timeout_s = 20;
    c.stage = 3;
    const zero_comm comm = test_comm(r);
    zero_ctx *z = make_context(&tiny, &c, &comm);
    for (int format = 0; format < 2; format++)
        for (rlim_t limit = 0; limit < 7000; limit += 1750) {
            const struct rlimit full = {limit, RLIM_INFINITY}, all = {RLIM_INFINITY, RLIM_INFINITY};
            (void)snprintf(path, PATH, "%s/full", folder);
            (void)snprintf(temporary, sizeof temporary, "%s.tmp-%ld", path, (long)getpid());
            if (r->rank == 0) {
                write_file(path, "old", 3);
                if (setrlimit(RLIMIT_FSIZE, &full)) abort();
            }
            const zero_result result =
                model_save(z, &tiny, path, (model_format)format, ZERO_F32, &err);
            if (r->rank == 0 && setrlimit(RLIMIT_FSIZE, &all)) abort();
            if (result != ZERO_ERR_ARGUMENT || !strstr(err.sentence, "bytes are needed)"))
                test_rank_fail(r, "limit %d: %d %s", (int)limit, (int)result, err.sentence);
            bytes old = {(unsigned char *)strdup("old"), 3};
            if (r->rank == 0 && (!same_file(path, &old) || access(temporary, F_OK) == 0))
                test_rank_fail(r, "limit %d: the old file is gone, or a new one left", (int)limit);
            free(old.at);
        }
    zero_destroy(z);
}

static void test_full(void) {
    (void)signal(SIGXFSZ, SIG_IGN);
    test_check(test_processes(2, 0, full_body, NULL, 60), "a full disk: %s", test_first);
}

static void test_too_large(void) {
    static const float large[] = {65520.0f, -1e6f};
    char path[PATH];
    gpt2_error err;
    (void)snprintf(path, PATH, "%s/large", folder);
    zero_ctx *z = make_alone(&tiny, ZERO_F32);
    for (int i = 0; i < 2; i++) {
        if (zero_write_tensor(z, "fcw", ZERO_PARAMETER, 100, 1, &large[i])) abort();
        test_check(model_save(z, &tiny, path, MODEL_SAFETENSORS, ZERO_F16, &err) != ZERO_OK
                       && strstr(err.sentence, "fcw: ") && strstr(err.sentence, "for f16")
                       && access(path, F_OK) != 0,
                   "too large: %s", err.sentence);
        test_check(model_save(z, &tiny, path, MODEL_SAFETENSORS, ZERO_BF16, &err) == ZERO_OK,
                   "bf16: %s", err.sentence);
        (void)unlink(path);
    }
    const float infinite = INFINITY; /* what is infinite already stays so */
    if (zero_write_tensor(z, "fcw", ZERO_PARAMETER, 100, 1, &infinite)) abort();
    test_check(model_save(z, &tiny, path, MODEL_SAFETENSORS, ZERO_F16, NULL) == ZERO_OK,
               "infinite");
    zero_destroy(z);
}

/* ---- llm.c's state files ---- */

typedef struct state_case {
    int ranks, sharded, masters, shuffled, stage;
    zero_type type;
    model array[3]; /* m, v, masters */
} state_case;

static void state_path(char out[PATH], int rank) {
    (void)snprintf(out, PATH, "%s/state_00000400_%05d.bin", folder, rank);
}

/* Rank `rank`'s file, as llm.c lays it out. */
static bytes state_bytes(const state_case *s, int rank) {
    const model *m = &s->array[0];
    bytes b = make_bytes(m->numel * 12 + 8192);
    int32_t h[256] = {20240527, 1, s->ranks, rank, s->masters, s->shuffled};
    const uint64_t numbers[4] = {0x1234567890ABCDEF, 42, 3, 77};
    h[10] = 400;
    memcpy(&h[20], &numbers[0], 16);
    memcpy(&h[30], &numbers[2], 16);
    memcpy(b.at, h, sizeof h);
    float *out = (float *)(void *)(b.at + sizeof h);
    for (int a = 0; a < 2 + s->masters; a++)
        for (int i = 0; i < GPT2_TENSORS; i++) {
            const int layers = hf_layers(m, i);
            const size_t n = (m->at[i + 1] - m->at[i]) / (size_t)layers;
            const size_t part = s->sharded ? n / (size_t)s->ranks : n;
            for (int l = 0; l < layers; l++, out += part)
                memcpy(out,
                       s->array[a].value + m->at[i] + (size_t)l * n
                           + (s->sharded ? (size_t)rank * part : 0),
                       part * sizeof(float));
        }
    unsigned char *at = (unsigned char *)(void *)out;
    if (s->shuffled) {
        const uint64_t shards = 3, samples = 50;
        memcpy(at, &shards, 8);
        memcpy(at + 8 + 4 * shards, &samples, 8);
        at += 16 + 4 * shards + 4 * samples + 2520;
    }
    b.n = (size_t)(at - b.at);
    return b;
}

static void write_state(const state_case *s) {
    char path[PATH];
    for (int rank = 0; rank < s->ranks; rank++) {
        bytes b = state_bytes(s, rank);
        state_path(path, rank);
        write_file(path, b.at, b.n);
        free(b.at);
    }
}

static void state_body(test_rank *r) {
    const state_case *s = (const state_case *)r->arg;
    zero_config c = {0};
    zero_counters counters;
    llmc_state state;
    gpt2_error err;
    char path[PATH];
    c.stage = s->stage;
    c.type = s->type;
    c.log = test_quiet;
    const zero_comm comm = test_comm(r);
    zero_ctx *z = make_context(&tiny, &c, &comm);
    state_path(path, 0);
    if (llmc_state_load(z, &tiny, path, &state, &err)) test_rank_fail(r, "%s", err.sentence);
    if (!holds(z, &s->array[0], ZERO_MOMENT_1)) test_rank_fail(r, "the first moments differ");
    if (!holds(z, &s->array[1], ZERO_MOMENT_2)) test_rank_fail(r, "the second moments differ");
    if (s->masters && !holds(z, &s->array[2], ZERO_MASTER)) test_rank_fail(r, "masters differ");
    zero_state_counters(z, &counters);
    if (counters.steps != 400 || state.step != 400 || state.ranks != s->ranks
        || state.sharded != s->sharded || state.masters != s->masters
        || state.shuffled != s->shuffled || state.rng != 0x1234567890ABCDEF
        || state.rng_last_update != 42 || state.data_shard != 3 || state.data_sample != 77)
        test_rank_fail(r, "it says step %" PRId64 ", %d ranks, sharded %d", state.step, state.ranks,
                       state.sharded);
    zero_destroy(z);
}

static state_case make_state_of(const gpt2_config *cfg, int ranks, int sharded, int masters,
                                int shuffled) {
    state_case s = {ranks, sharded, masters, shuffled, 0, ZERO_F32, {{{0}, 0, {0}, NULL}}};
    for (int a = 0; a < 3; a++) s.array[a] = make_model(cfg, 50 + (uint64_t)a, ZERO_F32, 1);
    return s;
}

static state_case make_state(int ranks, int sharded, int masters, int shuffled) {
    return make_state_of(&tiny, ranks, sharded, masters, shuffled);
}

static void free_state(state_case *s) {
    for (int a = 0; a < 3; a++) free(s->array[a].value);
}

static void test_states(void) {
    for (int i = 0; i < 24; i++) {
        static const int ranks[3] = {1, 2, 4};
        state_case s = make_state(ranks[i % 3], (i / 3) % 2 && i % 3, (i / 6) % 2, i / 12);
        write_state(&s);
        for (int nranks = 1; nranks <= 3; nranks++)
            for (s.stage = 0; s.stage <= 3; s.stage += 3) {
                s.type = s.masters ? ZERO_BF16 : ZERO_F32;
                test_check(
                    test_ranks(nranks, 0, state_body, &s),
                    "state of %d ranks, sharded %d, masters %d, shuffled %d, at stage %d: %s",
                    s.ranks, s.sharded, s.masters, s.shuffled, s.stage, test_first);
            }
        free_state(&s);
    }
}

static void state_refused(zero_ctx *z, const char *part) {
    char path[PATH];
    gpt2_error err = {""};
    state_path(path, 0);
    test_check(llmc_state_load(z, &tiny, path, NULL, &err) == ZERO_ERR_ARGUMENT
                   && strstr(err.sentence, part),
               "state: \"%s\", expected ...%s...", err.sentence, part);
}

static void test_state_damage(void) {
    state_case s = make_state(2, 1, 1, 1);
    char path[2][PATH];
    zero_ctx *z = make_alone(&tiny, ZERO_F32);
    for (int i = 0; i < 2; i++) state_path(path[i], i);
    bytes first = state_bytes(&s, 0), second = state_bytes(&s, 1);
    write_state(&s);
    (void)unlink(path[1]);
    state_refused(z, "_00001.bin: the file cannot be opened");
    write_file(path[1], first.at, first.n);
    state_refused(z, "_00001.bin: of rank 0 of 2 (expected 1)");
    for (size_t n = 0; n < second.n; n += n < 1100 ? 50 : 631) {
        write_file(path[1], second.at, n);
        state_refused(z, "cut short");
    }
    second.at[40] = 99; /* step */
    write_file(path[1], second.at, second.n);
    state_refused(z, "rank 0's: step 400 of 2 ranks");
    write_file(path[0], first.at, first.n + 4);
    state_refused(z, "expected");
    for (int i = 0; i < 6; i++) {
        static const size_t at[6] = {0, 4, 11, 12, 16, 43};
        const unsigned char was = first.at[at[i]];
        first.at[at[i]] ^= 0x80;
        write_file(path[0], first.at, first.n);
        state_refused(z, i < 2 ? "no state file" : "out of range");
        first.at[at[i]] = was;
    }
    gpt2_error err;
    test_check(llmc_state_load(z, &tiny, path[1], NULL, &err) != ZERO_OK
                   && strstr(err.sentence, "..._00000.bin"),
               "not the first: %s", err.sentence);
    zero_destroy(z);
    free(first.at);
    free(second.at);
    free_state(&s);
    zero_config c = {0};
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    c.optimizer = ZERO_LION;
    c.log = test_quiet;
    z = make_context(&tiny, &c, &comm);
    state_refused(z, "the optimizer here is another");
    zero_destroy(z);
}

/* ---- the shape among a checkpoint's values ---- */

static void test_values(void) {
    static const struct {
        const char *name;
        int64_t number;
        const char *part;
    } cases[] = {{"gpt2.layers", 0, "gpt2.layers is 0, expected 1 to 4096"},
                 {"gpt2.layers", 4097, "gpt2.layers is 4097"},
                 {"gpt2.max_seq_len", -1, "gpt2.max_seq_len is -1"},
                 {"gpt2.channels", INT64_C(8) + (INT64_C(1) << 32), "gpt2.channels is 4294967304"},
                 {"gpt2.heads", 3, "8 channels in 3 heads"},
                 {"gpt2.padded_vocab_size", 64, "65 of 64 vocabulary entries"},
                 {"gpt2.vocab_size", INT64_MAX, "gpt2.vocab_size is 9223372036854775807"},
                 {"gpt2.channels", 0, "gpt2.channels is no whole number"},
                 {"gpt2.heads", 0, "gpt2.heads is missing"},
                 {"gpt2.experts", 4, "its model has 4 experts per layer"},
                 {"", 0, ""}};
    char path[PATH], generation[PATH + 32], why[CHECKPOINT_SENTENCE];
    const gpt2_config untouched = {1, 2, 3, 4, 5, 6, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    checkpoint_options o = {0};
    checkpoint *c;
    checkpoint_reader *r;
    zero_ctx *z = make_alone(&tiny, ZERO_F32);
    (void)snprintf(path, PATH, "%s/values", folder);
    (void)snprintf(generation, sizeof generation, "%s/step_00000001", path);
    o.folder = path;
    if (checkpoint_create(&c, z, &o)) abort();
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        checkpoint_value v[GPT2_VALUES];
        gpt2_config found = untouched;
        gpt2_values(&tiny, v);
        for (int k = 0; k < GPT2_VALUES; k++) {
            if (strcmp(v[k].name, cases[i].name) != 0) continue;
            v[k].number = cases[i].number;
            if (strstr(cases[i].part, "is no whole")) v[k].kind = CHECKPOINT_REAL;
            if (strstr(cases[i].part, "is missing")) v[k].name = "gpt2.other";
        }
        if (checkpoint_save(c, 1, v, GPT2_VALUES) || checkpoint_open(&r, generation, why)) abort();
        const int ok = gpt2_values_read(r, &found, why), good = cases[i].name[0] == 0;
        test_check(ok == good && memcmp(&found, good ? &tiny : &untouched, sizeof found) == 0
                       && (good || strstr(why, cases[i].part)),
                   "values: %d \"%s\", expected %s", ok, why, cases[i].part);
        checkpoint_close(r);
    }
    checkpoint_destroy(c);
    zero_destroy(z);
}

/* ---- for Python ---- */

static const int py_tokens[12] = {1, 64, 3, 0, 17, 33, 9, 2, 60, 41, 5, 8};

static void py_path(char out[PATH], const char *name) {
    (void)snprintf(out, PATH, "%s/%s", folder, name);
}

static model py_model(void) {
    model m = make_model(&tiny, 1234, ZERO_F32, 0);
    return m;
}

static void py_write(void) {
    static const char *const names[3] = {"f32.safetensors", "bf16.safetensors", "f16.safetensors"};
    char path[PATH];
    gpt2_error err = {""};
    model m = py_model();
    gpt2_model *g = NULL;
    const gpt2_run run = {1, 16, 0, ZERO_F32, 0, 0, 0, NULL, NULL, 0, 0, 0};
    float logits[65];
    zero_ctx *z = make_alone(&tiny, ZERO_F32);
    bytes b = llmc_bytes(&m, ZERO_F32);
    py_path(path, "model.bin");
    write_file(path, b.at, b.n);
    test_check(model_load(z, &tiny, path, &err) == ZERO_OK, "load: %s", err.sentence);
    for (int i = 0; i < 3; i++) {
        py_path(path, names[i]);
        test_check(model_save(z, &tiny, path, MODEL_SAFETENSORS, (zero_type)i, &err) == ZERO_OK,
                   "save: %s", err.sentence);
    }
    py_path(path, "config.json");
    test_check(model_save_hf_config(&tiny, path, &err) == ZERO_OK, "config: %s", err.sentence);
    const int ok = gpt2_create(&g, z, &tiny, &run, &err) == ZERO_OK
                   && zero_pass_begin(z, ZERO_EVAL, 0, 1) == ZERO_OK
                   && gpt2_logits(g, py_tokens, 12, logits) == ZERO_OK
                   && zero_pass_end(z) == ZERO_OK;
    test_check(ok, "logits: %s", err.sentence);
    py_path(path, "logits.bin");
    write_file(path, logits, sizeof logits);
    gpt2_destroy(g);
    zero_destroy(z);
    free(b.at);
    free(m.value);
}

static void py_read(void) {
    static const char *const names[5] = {"numpy_f32.safetensors", "numpy_f16.safetensors",
                                         "hf/model.safetensors", "torch_bf16.safetensors",
                                         "parts/model.safetensors.index.json"};
    static const zero_type types[5] = {ZERO_F32, ZERO_F16, ZERO_F32, ZERO_BF16, ZERO_F32};
    model m = py_model();
    zero_ctx *z = make_alone(&tiny, ZERO_F32);
    for (int i = 0; i < 5; i++) {
        char path[PATH];
        gpt2_error err = {""};
        model_info info = {
            MODEL_LLMC, ZERO_F32, {0, 0, 0, 0, 0, 0, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0}};
        py_path(path, names[i]);
        if (i >= 2 && access(path, F_OK) != 0) continue; /* torch, transformers not installed */
        model rounded = round_model(&m, types[i]);
        test_check(model_info_read(path, &info, &err) == ZERO_OK && info.type == types[i]
                       && info.cfg.heads == 2,
                   "%s: %d heads, %s", names[i], info.cfg.heads, err.sentence);
        test_check(model_load(z, &tiny, path, &err) == ZERO_OK
                       && holds(z, &rounded, ZERO_PARAMETER),
                   "%s: %s", names[i], err.sentence);
        free(rounded.value);
    }
    zero_destroy(z);
    free(m.value);
}

/* ---- for zero_ckpt ---- */

static void tool_path(char out[PATH], const char *name) {
    (void)snprintf(out, PATH, "%s/%s", folder, name);
}

/* The context's state as generation `step` of folder/name. */
static void tool_save(test_rank *r, zero_ctx *z, const char *name, int64_t step, int values) {
    zero_tensor_desc table[GPT2_TENSORS];
    checkpoint_value v[GPT2_VALUES];
    checkpoint_options o = {0};
    checkpoint *c;
    char path[PATH];
    tool_path(path, name);
    gpt2_describe(&middle, table);
    gpt2_values(&middle, v);
    o.folder = path;
    o.tensors = values ? table : NULL;
    o.ntensors = values ? GPT2_TENSORS : 0;
    if (checkpoint_create(&c, z, &o) || checkpoint_save(c, step, v, values ? GPT2_VALUES : 0))
        test_rank_fail(r, "%s: %s", name, checkpoint_error(c));
    checkpoint_destroy(c);
}

/* What has been trained in bf16 at stage 3, as generations and as model_save has it. */
static void tool_run(test_rank *r) {
    static const zero_kind kinds[3] = {ZERO_MASTER, ZERO_MOMENT_1, ZERO_MOMENT_2};
    static const struct {
        const char *name;
        model_format format;
        zero_type type;
    } saved[] = {{"run_f32.bin", MODEL_LLMC, ZERO_F32},
                 {"run_bf16.bin", MODEL_LLMC, ZERO_BF16},
                 {"run_f32.safetensors", MODEL_SAFETENSORS, ZERO_F32},
                 {"run_fp16.safetensors", MODEL_SAFETENSORS, ZERO_F16}};
    zero_config c = {0};
    gpt2_error err;
    c.type = ZERO_BF16;
    c.stage = 3;
    c.log = test_quiet;
    const zero_comm comm = test_comm(r);
    zero_ctx *z = make_context(&middle, &c, &comm);
    zero_tensor_desc table[GPT2_TENSORS];
    gpt2_describe(&middle, table);
    for (int k = 0; k < 3; k++) {
        model m = make_model(&middle, 70 + (uint64_t)k, ZERO_F32, 1);
        for (int i = 0; i < GPT2_TENSORS; i++)
            if (zero_write_tensor(z, table[i].name, kinds[k], 0, total(&table[i]),
                                  m.value + m.at[i]))
                test_rank_fail(r, "%s", zero_last_error(z));
        free(m.value);
    }
    tool_save(r, z, "run", 7, 1);
    tool_save(r, z, "run", 9, 1);
    tool_save(r, z, "bare", 9, 0);
    for (size_t i = 0; i < sizeof saved / sizeof *saved; i++) {
        char path[PATH];
        tool_path(path, saved[i].name);
        if (model_save(z, &middle, path, saved[i].format, saved[i].type, &err))
            test_rank_fail(r, "%s", err.sentence);
    }
    zero_destroy(z);
}

/* What a context has after it read model.bin and the state; its first loss scale is that of f16. */
static void tool_state(test_rank *r) {
    zero_config c = {0};
    gpt2_error err;
    char path[PATH];
    c.type = ZERO_F16;
    c.stage = 1;
    c.log = test_quiet;
    const zero_comm comm = test_comm(r);
    zero_ctx *z = make_context(&middle, &c, &comm);
    tool_path(path, "model_f32.bin");
    if (model_load(z, &middle, path, &err)) test_rank_fail(r, "%s", err.sentence);
    tool_save(r, z, "weights", 0, 1);
    state_path(path, 0);
    if (llmc_state_load(z, &middle, path, NULL, &err)) test_rank_fail(r, "%s", err.sentence);
    tool_save(r, z, "state", 400, 1);
    zero_destroy(z);
}

static void tool_states(int ranks, int sharded, int masters, const char *into) {
    char path[PATH], top[sizeof folder];
    state_case s = make_state_of(&middle, ranks, sharded, masters, sharded);
    model m = make_model(&middle, 91, ZERO_F32, 1);
    bytes b = llmc_bytes(&m, ZERO_F32);
    memcpy(top, folder, sizeof top);
    tool_path(path, into);
    if (mkdir(path, 0777)) abort();
    memcpy(folder, path, sizeof folder - 1);
    tool_path(path, "model_f32.bin");
    write_file(path, b.at, b.n);
    write_state(&s);
    test_check(test_ranks(2, 0, tool_state, NULL), "state: %s", test_first);
    memcpy(folder, top, sizeof folder);
    free(b.at);
    free(m.value);
    free_state(&s);
}

static void tool_write(void) {
    static const char *const types[3] = {"f32", "bf16", "fp16"};
    char name[32], path[PATH];
    test_check(test_ranks(3, 0, tool_run, NULL), "a run: %s", test_first);
    for (int type = 0; type < 3; type++) {
        model m = make_model(&middle, 80, (zero_type)type, 1);
        bytes b = llmc_bytes(&m, (zero_type)type);
        (void)snprintf(name, sizeof name, "model_%s.bin", types[type]);
        tool_path(path, name);
        if (type < 2) write_file(path, b.at, b.n);
        free(b.at);
        zero_ctx *z = make_alone(&middle, ZERO_F32); /* as our writer lays it out */
        if (type < 2 && model_load(z, &middle, path, NULL)) abort();
        (void)snprintf(name, sizeof name, "model_%s.safetensors", types[type]);
        tool_path(path, name);
        if (model_save(z, &middle, path, MODEL_SAFETENSORS, (zero_type)type, NULL)) abort();
        zero_destroy(z);
        if (type == 1) write_parts(&m, ZERO_BF16, 3, path);
        free(m.value);
    }
    tool_states(2, 1, 1, "sharded");
    tool_states(1, 0, 0, "whole");
}

static void tool_large(void) {
    const gpt2_config c = {1024, 50257, 50304, 8, 8, 512, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    const int32_t h[8] = {20240326, 3, 1024, 50257, 8, 8, 512, 50304};
    char path[PATH];
    tool_path(path, "large.bin");
    FILE *file = fopen(path, "wb");
    const off_t end = 1024 + (off_t)gpt2_numel(&c) * 4;
    if (file == NULL || fwrite(h, sizeof h, 1, file) != 1 || fflush(file)
        || ftruncate(fileno(file), end) || fseeko(file, end / 8 * 4, SEEK_SET)
        || fwrite(h, 4, 3, file) != 3 || fclose(file))
        abort();
}

static int tool_rss(char **argv) {
    struct rusage used;
    int status = 0;
    const pid_t pid = fork();
    if (pid == 0) {
        (void)execvp(argv[0], argv);
        _exit(127);
    }
    if (pid < 0 || wait4(pid, &status, 0, &used) != pid) abort();
    printf("peak %ld kB\n", used.ru_maxrss);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static void test_all(void) {
    zero_config c = {0};
    c.log = test_quiet;
    test_trips();
    c.stage = 3;
    one_trip(&wide, &c, 2, ZERO_F32, 1);
    one_trip(&wide, &c, 3, ZERO_F16, 0);
    test_styles();
    test_heads();
    test_headers();
    test_parts();
    test_index();
    test_lengths();
    test_untied();
    test_damage();
    test_other_models();
    test_missing();
    test_full();
    test_too_large();
    test_states();
    test_state_damage();
    test_values();
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "rss") == 0) return tool_rss(argv + 2);
    if (argc == 3) {
        (void)snprintf(folder, sizeof folder, "%s", argv[2]);
        if (strcmp(argv[1], "write") == 0) py_write();
        if (strcmp(argv[1], "read") == 0) py_read();
        if (strcmp(argv[1], "tool") == 0) tool_write();
        if (strcmp(argv[1], "large") == 0) tool_large();
        return test_summary();
    }
    char command[300];
    /* in memory where there is such a folder: hundreds of files are fsynced */
    (void)snprintf(folder, sizeof folder, "%s/test_model_files_XXXXXX",
                   access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (mkdtemp(folder) == NULL) abort();
    test_all();
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command)) fprintf(stderr, "%s is left\n", folder);
    return test_summary();
}
