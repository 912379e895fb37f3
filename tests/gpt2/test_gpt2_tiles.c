/* test_gpt2_tiles.c - what keeps GPT-2 small, of adapters/gpt2/gpt2.h: wte in tiles, and inputs of
   blocks that are away. Tiles beside the same model with wte whole: losses, gradients, logits, in
   every type. Then what must not change a bit: at the same tiles stages, overlap, recompute; with
   inputs away anything. And a file that fails.

   With ops_cpu.c as C; with ops_cuda.cu by nvcc on a GPU, or by g++ on the emulation. */
#include "../shared/harness.h"

#include "../../adapters/gpt2/gpt2.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <signal.h>

#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef EMULATED_LAUNCH
#include "../emulation/emulation.h"
#endif

enum { V = 300, Vp = 384, L = 4, NH = 2, C = 48, MAXT = 16, T = 13, B = 2, STEPS = 2, MICRO = 2 };

static gpt2_config model = {MAXT, V, Vp, L, NH, C, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};

/* A training of STEPS steps, and what rank 0 finds. */
typedef struct training {
    int stage, tile_rows, recompute, no_overlap, unwaited;
    int mlp_rows; /* rows of a tile of an MLP; 0: no tiles */
    zero_type type;
    zero_grad_type grads;
    double first, last, eval; /* losses: of rank 0's first micro-step, of its last; after them */
    uint64_t weights;         /* their hash */
    float *grad;              /* (gpt2_numel) of the first step; NULL: not wanted */
    float logits[V];
} training;

static zero_result make_context(zero_ctx **z, const training *t, const zero_comm *comm) {
    zero_tensor_desc table[GPT2_TENSORS];
    zero_config zc;
    memset(&zc, 0, sizeof zc);
    zc.stage = t->stage;
    zc.micro_steps = MICRO;
    zc.accumulation = ZERO_ACCUMULATE_SHARDED;
    zc.type = t->type;
    zc.grads = t->grads;
    zc.no_overlap = t->no_overlap;
    zc.log = test_quiet;
    gpt2_describe_tiled(&model, t->tile_rows, table);
    ZERO_TRY(zero_create(z, &zc, comm));
    ZERO_TRY(zero_tensors(*z, table, GPT2_TENSORS));
    ZERO_TRY(zero_build(*z));
    return gpt2_init(*z, &model, 7, NULL);
}

static gpt2_run run_of(const training *t) {
    const gpt2_run run = {B,    T, t->recompute, t->type, 0, 0, t->tile_rows, P_tmpdir,
                          NULL, 0, t->mlp_rows,  0};
    return run;
}

/* Tokens that are different on every rank and in every pass. */
static void draw_tokens(int *tokens, int rank, int pass) {
    for (int i = 0; i < 2 * B * T; i++)
        tokens[i] =
            (int)(gpt2_draw(5, 1000 + (uint64_t)rank, (uint64_t)(pass * 2 * B * T + i)) % V);
}

static zero_result read_gradient(zero_ctx *z, const training *t) {
    zero_tensor_desc table[GPT2_TENSORS];
    float *at = t->grad;
    gpt2_describe(&model, table);
    for (int i = 0; i < GPT2_TENSORS; i++) {
        const size_t n = table[i].numel * (size_t)table[i].layers;
        ZERO_TRY(zero_read_tensor(z, table[i].name, ZERO_GRADIENT, 0, n, at));
        at += at ? n : 0;
    }
    return ZERO_OK;
}

static zero_result take_steps(zero_ctx *z, gpt2_model *m, training *t, int rank) {
    const zero_hyper hyper = {1e-2f, 0.9f, 0.95f, 1e-8f, 0, 1.0f};
    int tokens[2 * B * T];
    draw_tokens(tokens, 0, 0);
    ZERO_TRY(zero_pass_begin(z, ZERO_EVAL, 0, 1));
    ZERO_TRY(gpt2_logits(m, tokens, T - 2, t->logits));
    ZERO_TRY(zero_pass_end(z));
    for (int pass = 0; pass < STEPS * MICRO; pass++) {
        double loss = 0;
        draw_tokens(tokens, rank, pass);
        ZERO_TRY(zero_pass_begin(z, ZERO_TRAIN, pass % MICRO, MICRO));
        ZERO_TRY(gpt2_train_step(m, tokens, tokens + B * T, zero_loss_scale(z) / MICRO,
                                 t->unwaited ? NULL : &loss));
        ZERO_TRY(zero_pass_end(z));
        *(pass ? &t->last : &t->first) = loss;
        if (pass % MICRO + 1 < MICRO) continue;
        ZERO_TRY(zero_reduce(z));
        if (pass < MICRO) ZERO_TRY(read_gradient(z, t));
        ZERO_TRY(zero_step(z, &hyper));
    }
    ZERO_TRY(zero_pass_begin(z, ZERO_EVAL, 0, 1));
    ZERO_TRY(gpt2_loss(m, tokens, tokens + B * T, rank ? 0 : B - 1, &t->eval));
    ZERO_TRY(zero_pass_end(z));
    return zero_hash(z, &t->weights);
}

static void train_body(test_rank *r) {
    training own = *(training *)r->arg, *t = r->rank ? &own : (training *)r->arg;
    const zero_comm comm = test_comm(r);
    const gpt2_run run = run_of(t);
    zero_ctx *z = NULL;
    gpt2_model *m = NULL;
    gpt2_error err = {""};
    if (r->rank) own.grad = NULL;
    zero_result result = make_context(&z, t, &comm);
    if (!result) result = gpt2_create(&m, z, &model, &run, &err);
    if (!result) result = take_steps(z, m, t, r->rank);
    if (result)
        test_rank_fail(r, "result %d: %s; %s; %s", (int)result, err.sentence,
                       m ? gpt2_last_error(m) : "", zero_last_error(z));
    gpt2_destroy(m);
    zero_destroy(z);
}

static int train(training *t, int ranks) {
    return test_check(test_ranks(ranks, 0, train_body, t),
                      "%d ranks, stage %d, tiles of %d, of MLPs %d, recompute %d: %s", ranks,
                      t->stage, t->tile_rows, t->mlp_rows, t->recompute, test_first);
}

/* ---- beside wte as a whole --------------------------------------------------------------------
 */

static const struct number_types {
    const char *name;
    zero_type type;
    zero_grad_type grads;
    double rounding;                                    /* largest relative error of one */
} types[] = {{"f32", ZERO_F32, ZERO_GRAD_F32, 0x1p-20}, /* sums in another order: a few of them */
             {"bf16", ZERO_BF16, ZERO_GRAD_AS_TYPE, 0x1p-8},
             {"f16, f32 gradients", ZERO_F16, ZERO_GRAD_F32, 0x1p-11}};
enum { TYPES = sizeof types / sizeof *types };

static void check_gradients(const training *t, const training *whole, const char *name,
                            double rounding) {
    zero_tensor_desc table[GPT2_TENSORS];
    size_t at = 0;
    gpt2_describe(&model, table);
    for (int k = 0; k < GPT2_TENSORS; k++) {
        double off = 0, all = 0;
        for (size_t end = at + table[k].numel * (size_t)table[k].layers; at < end; at++) {
            off += pow((double)t->grad[at] - (double)whole->grad[at], 2);
            all += pow((double)whole->grad[at], 2);
        }
        test_check(all > 0 && sqrt(off / all) <= 4 * rounding,
                   "%s, tiles of %d: gradient of %s is off by %.2f roundings", name, t->tile_rows,
                   table[k].name, sqrt(off / all) / rounding);
    }
}

static void test_near(const struct number_types *n) {
    static const int rows[] = {32, 96, 200, 384, 100000, 0, 0, 96};
    static const int mlp[] = {0, 0, 0, 0, 0, 1, 7, 100000};
    const size_t bytes = gpt2_numel(&model) * sizeof(float);
    training whole;
    memset(&whole, 0, sizeof whole);
    whole.type = n->type;
    whole.grads = n->grads;
    whole.grad = (float *)malloc(bytes);
    train(&whole, 1);
    for (int i = 0; i < 8; i++) {
        training t = whole;
        double off = 0;
        t.tile_rows = rows[i];
        t.mlp_rows = mlp[i];
        if (mlp[i]) t.recompute = i % 2 ? GPT2_RECOMPUTE_BLOCK : GPT2_RECOMPUTE_AWAY;
        t.grad = (float *)malloc(bytes);
        train(&t, 1);
        /* roundings move the weights, which the later losses are of */
        test_check(fabs(t.first - whole.first) <= n->rounding * whole.first
                       && fabs(t.last - whole.last) <= 8 * n->rounding * whole.last
                       && fabs(t.eval - whole.eval) <= 8 * n->rounding * whole.eval,
                   "%s, tiles of %d: losses %.9g %.9g %.9g, whole %.9g %.9g %.9g", n->name, rows[i],
                   t.first, t.last, t.eval, whole.first, whole.last, whole.eval);
        for (int k = 0; k < V; k++)
            off = fmax(off, fabs((double)t.logits[k] - (double)whole.logits[k]));
        test_check(off <= 4 * n->rounding, "%s, tiles of %d: logits are off by %g", n->name,
                   rows[i], off);
        check_gradients(&t, &whole, n->name, n->rounding);
        free(t.grad);
    }
    free(whole.grad);
}

#ifndef __CUDACC__
/* Loss and gradient's norm of a step with a large vocabulary, whose logits are cut by rows too. */
static void large_step(int tile_rows, double *loss, double *norm) {
    enum { LONG = 1024, WORDS = 50257 };
    static const gpt2_config large = {LONG, WORDS,           50304, 1, 1, 8,
                                      0,    GPT2_NO_EXPERTS, NULL,  0, 0, 0};
    static int tokens[2 * LONG];
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    const gpt2_run run = {1, LONG, 0, ZERO_F32, 0, 0, tile_rows, NULL, NULL, 0, 0, 0};
    zero_tensor_desc table[GPT2_TENSORS];
    zero_config zc;
    zero_ctx *z = NULL;
    gpt2_model *m = NULL;
    memset(&zc, 0, sizeof zc);
    zc.stage = 3;
    zc.log = test_quiet;
    for (int i = 0; i < 2 * LONG; i++)
        tokens[i] = (int)(gpt2_draw(5, 1000, (uint64_t)i / 3) % WORDS); /* some more than once */
    gpt2_describe_tiled(&large, tile_rows, table);
    const int ok = !zero_create(&z, &zc, &comm) && !zero_tensors(z, table, GPT2_TENSORS)
                   && !zero_build(z) && !gpt2_init(z, &large, 7, NULL)
                   && !gpt2_create(&m, z, &large, &run, NULL)
                   && !zero_pass_begin(z, ZERO_TRAIN, 0, 1)
                   && !gpt2_train_step(m, tokens, tokens + LONG, 1, loss) && !zero_pass_end(z)
                   && !zero_reduce(z) && !zero_norm(z, norm);
    test_check(ok, "a large vocabulary, tiles of %d: %s", tile_rows, zero_last_error(z));
    gpt2_destroy(m);
    zero_destroy(z);
}

/* 68 MB of a tile's logits are three chunks, 4 MB are one. */
static void test_chunks(void) {
    static const int rows[] = {0, 1048, 16768};
    double loss[3] = {0, 0, 0}, norm[3] = {0, 0, 0};
    for (int i = 0; i < 3; i++) {
        large_step(rows[i], &loss[i], &norm[i]);
        test_check(fabs(loss[i] - loss[0]) <= 1e-6 * loss[0]
                       && fabs(norm[i] - norm[0]) <= 1e-5 * norm[0],
                   "a large vocabulary, tiles of %d: loss %.9g, norm %.9g; whole %.9g, %.9g",
                   rows[i], loss[i], norm[i], loss[0], norm[0]);
    }
}
#endif

/* ---- the same bits ----------------------------------------------------------------------------
 */

static void test_bits(const struct number_types *n, int ranks, int rows) {
    training first;
    memset(&first, 0, sizeof first);
    first.type = n->type;
    first.grads = n->grads;
    first.tile_rows = rows;
    train(&first, ranks);
    for (int i = 0; i < 8; i++) {
        training t = first;
        t.stage = i % 4;
        t.no_overlap = i / 4;
        t.recompute = i % 4 == 3 ? GPT2_RECOMPUTE_BLOCK : GPT2_RECOMPUTE_NONE;
        train(&t, ranks);
        test_check(t.weights == first.weights && t.first == first.first && t.last == first.last
                       && t.eval == first.eval && !memcmp(t.logits, first.logits, sizeof t.logits),
                   "%s, %d ranks, tiles of %d: other bits at stage %d, overlap %d", n->name, ranks,
                   rows, t.stage, !t.no_overlap);
    }
}

/* ---- inputs of blocks that are away ------------------------------------------------------------
 */

static void test_away(const struct number_types *n, int ranks, int layers) {
    training kept;
    memset(&kept, 0, sizeof kept);
    model.layers = layers;
    kept.type = n->type;
    kept.grads = n->grads;
    kept.recompute = GPT2_RECOMPUTE_BLOCK;
    train(&kept, ranks);
    for (int i = 0; i < 4; i++) {
        training t = kept;
        t.stage = i % 2 ? 3 : 0;
        t.no_overlap = i / 2;
        t.recompute = GPT2_RECOMPUTE_AWAY;
        train(&t, ranks);
        test_check(t.weights == kept.weights && t.last == kept.last && t.eval == kept.eval,
                   "%s, %d ranks, %d layers: other bits with inputs away, stage %d", n->name, ranks,
                   layers, t.stage);
    }
    model.layers = L;
}

#ifdef EMULATED_LAUNCH
/* In any order that the streams allow, with a host that never waits within a step. */
static void test_order(int tile_rows) {
    training first;
    memset(&first, 0, sizeof first);
    model.layers = 7;
    first.tile_rows = tile_rows;
    first.recompute = GPT2_RECOMPUTE_BLOCK;
    first.unwaited = 1;
    train(&first, 1);
    for (uint64_t seed = 1; seed <= 8; seed++) {
        training t = first;
        t.stage = seed % 2 ? 3 : 0;
        t.recompute = GPT2_RECOMPUTE_AWAY;
        emulation_seed(seed);
        train(&t, 1);
        emulation_seed(0);
        test_check(t.weights == first.weights && t.eval == first.eval,
                   "tiles of %d, order %d: other bits", tile_rows, (int)seed);
    }
    model.layers = L;
}
#endif

#ifndef __CUDACC__
static int io_calls, io_bad, io_short; /* so far; the one that fails, 0: none; all move a part */

/* The C library's, which spill_file.c calls. */
static size_t io_part(size_t bytes) {
    return io_short && bytes > 100 ? 100 + (size_t)io_calls % 7 : bytes;
}
static int io_fails(void) {
    if (++io_calls % 5 == 3 && io_short) {
        errno = io_calls % 2 ? EINTR : EAGAIN;
        return 1;
    }
    if (io_calls == io_bad) errno = EIO;
    return io_calls == io_bad;
}
ssize_t pread(int fd, void *to, size_t bytes, off_t offset) {
    return io_fails() ? -1 : (ssize_t)syscall(SYS_pread64, fd, to, io_part(bytes), offset);
}
ssize_t pwrite(int fd, const void *from, size_t bytes, off_t offset) {
    return io_fails() ? -1 : (ssize_t)syscall(SYS_pwrite64, fd, from, io_part(bytes), offset);
}

static int io_full; /* a disk that has room for less than the file, and keeps what it has taken */
int posix_fallocate(int fd, off_t at, off_t bytes) {
    if (io_full) return pwrite(fd, "taken", 5, at) == 5 ? ENOSPC : EIO;
    return ftruncate(fd, at + bytes) ? errno : 0;
}
int fstatvfs(int fd, struct statvfs *s) {
    struct stat f;
    memset(s, 0, sizeof *s);
    s->f_frsize = 1;
    s->f_bavail = fstat(fd, &f) || f.st_blocks ? 0 : 9000;
    return 0;
}

/* A part of what was asked for, and interrupted calls, are no errors. */
static void test_parts(void) {
    training kept, t;
    memset(&kept, 0, sizeof kept);
    kept.recompute = GPT2_RECOMPUTE_BLOCK;
    train(&kept, 1);
    t = kept;
    t.recompute = GPT2_RECOMPUTE_AWAY;
    io_short = 1;
    train(&t, 1);
    io_short = 0;
    test_check(t.weights == kept.weights, "other bits where reads and writes move a part");
}

/* Whichever call fails ends the step that it is of, with a sentence. */
static void test_io_errors(void) {
    enum { EACH = 4 /* calls of a micro-step: two inputs go and come */ };
    training t;
    memset(&t, 0, sizeof t);
    t.recompute = GPT2_RECOMPUTE_AWAY;
    io_calls = 0;
    train(&t, 1);
    test_check(io_calls == EACH * STEPS * MICRO, "%d reads and writes", io_calls);
    for (int bad = 1; bad <= EACH * STEPS * MICRO; bad++) {
        const char *did = (bad - 1) % EACH < 2 ? ": write of 4992 bytes" : ": read of 4992 bytes";
        io_calls = 0;
        io_bad = bad;
        test_check(!test_ranks(1, 0, train_body, &t)
                       && strstr(test_first, "the file of activations in " P_tmpdir ", offset ")
                       && strstr(test_first, did) && strstr(test_first, strerror(EIO)),
                   "call %d fails: %s", bad, test_first);
    }
    io_bad = 0;
}

static void test_no_file(void) {
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    struct rlimit before, little;
    training t;
    zero_ctx *z = NULL;
    gpt2_model *m = NULL;
    gpt2_error err = {""};
    memset(&t, 0, sizeof t);
    t.recompute = GPT2_RECOMPUTE_AWAY;
    gpt2_run run = run_of(&t);
    test_check(make_context(&z, &t, &comm) == ZERO_OK, "%s", zero_last_error(z));
    run.folder = NULL;
    test_check(gpt2_create(&m, z, &model, &run, &err) == ZERO_ERR_ARGUMENT && !m
                   && strstr(err.sentence, "no folder"),
               "no folder: %s", err.sentence);
    run.folder = "build/no/such";
    test_check(gpt2_create(&m, z, &model, &run, &err) == ZERO_ERR_DEVICE && !m
                   && strstr(err.sentence, "a file of activations in build/no/such: No such file"),
               "a folder that is not there: %s", err.sentence);
    run.folder = P_tmpdir;
    getrlimit(RLIMIT_FSIZE, &before);
    little = before;
    little.rlim_cur = 1000;
    (void)signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &little);
    test_check(gpt2_create(&m, z, &model, &run, &err) == ZERO_ERR_DEVICE && !m
                   && strstr(err.sentence, "of 9984 bytes, where ")
                   && strstr(err.sentence, " are free: File too large"),
               "no room: %s", err.sentence);
    setrlimit(RLIMIT_FSIZE, &before);
    io_full = 1;
    test_check(gpt2_create(&m, z, &model, &run, &err) == ZERO_ERR_DEVICE && !m
                   && strstr(err.sentence, "of 9984 bytes, where 9000 are free: No space left"),
               "a full disk: %s", err.sentence);
    io_full = 0;
    zero_destroy(z);
}
#endif

/* ---- sizes and errors -------------------------------------------------------------------------
 */

static void test_rows(void) {
    static const int asked[] = {0, 1, 32, 8384, 9000, 50303, 50304, 1000000};
    static const int found[] = {0, 32, 32, 8384, 8384, 25152, 50304, 50304};
    static zero_tensor_desc whole[GPT2_TENSORS], tiled[GPT2_TENSORS]; /* padding is 0 */
    gpt2_config d12;
    gpt2_config_parse("d12", 0, 0, &d12, NULL);
    for (int i = 0; i < 8; i++)
        test_check(gpt2_tile_rows(&d12, asked[i]) == found[i], "tiles of %d rows: %d", asked[i],
                   gpt2_tile_rows(&d12, asked[i]));
    gpt2_describe(&d12, whole);
    gpt2_describe_tiled(&d12, 0, tiled);
    test_check(!memcmp(whole, tiled, sizeof whole), "no tiles are others than wte as a whole");
    gpt2_describe_tiled(&d12, 9000, tiled);
    test_check(tiled[0].layers == 6 && tiled[0].numel == (size_t)8384 * 768 && tiled[0].uses == 1
                   && tiled[1].unit == 6 && tiled[2].unit == 7 && tiled[15].unit == 19,
               "tiles: %d of %zu elements, %d uses", tiled[0].layers, tiled[0].numel,
               tiled[0].uses);
}

static void test_memory(void) {
    const gpt2_run whole = {1, 64, 3, ZERO_F32, 0, 0, 0, NULL, NULL, 0, 0, 0},
                   tiled = {1, 64, 3, ZERO_F32, 0, 0, 8384, NULL, NULL, 0, 0, 0};
    gpt2_config d12;
    gpt2_config_parse("d12", 0, 0, &d12, NULL);
    const size_t a = gpt2_activation_bytes(&d12, &whole), b = gpt2_activation_bytes(&d12, &tiled);
    test_check(b + 8000000 < a, "logits of a tile: %zu bytes, of all %zu", b, a);
    gpt2_run away = tiled;
    away.recompute = GPT2_RECOMPUTE_AWAY;
    const size_t x = 64 * 768 * sizeof(float), c = gpt2_activation_bytes(&d12, &away);
    test_check(c + 10 * x == b && gpt2_away_bytes(&d12, &away) == 10 * x
                   && gpt2_away_bytes(&d12, &tiled) == 0,
               "inputs away: %zu bytes less, %zu in the file", b - c, gpt2_away_bytes(&d12, &away));
    gpt2_run mlp =
        away; /* fch, GELU and their gradient for 16 tokens; three numbers of qkv for 64 */
    mlp.mlp_rows = 16;
    const size_t d = gpt2_activation_bytes(&d12, &mlp);
    test_check(d + 2 * 48 * 4 * 768 * sizeof(float) + x == c, "tiles of MLPs: %zu bytes less",
               c - d);
    mlp.recompute = GPT2_RECOMPUTE_NORM;
    test_check(gpt2_activation_bytes(&d12, &mlp) == 0, "tiles of MLPs whose values are kept");
}

static void test_errors(void) {
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    training t;
    zero_ctx *z = NULL;
    gpt2_model *m = NULL;
    gpt2_error err = {""};
    memset(&t, 0, sizeof t);
    test_check(make_context(&z, &t, &comm) == ZERO_OK, "%s", zero_last_error(z));
    t.tile_rows = 128;
    gpt2_run run = run_of(&t);
    test_check(gpt2_create(&m, z, &model, &run, &err) == ZERO_ERR_ARGUMENT && !m
                   && strstr(err.sentence, "6 units, but a run with wte in 3 tiles needs 9"),
               "tiles in a context without: %s", err.sentence);
    run.tile_rows = -1;
    test_check(gpt2_create(&m, z, &model, &run, &err) == ZERO_ERR_ARGUMENT
                   && gpt2_activation_bytes(&model, &run) == 0,
               "tiles of -1 rows");
    zero_destroy(z);
}

int main(void) {
#ifdef _OPENMP
    omp_set_num_threads(2);
#endif
    test_rows();
    test_memory();
    test_errors();
    for (int i = 0; i < TYPES; i++) {
        test_near(&types[i]);
        test_bits(&types[i], 1, 96);
        test_bits(&types[i], 2, 128);
    }
    for (int layers = 1; layers <= 9; layers += layers < 4 ? 1 : 5)
        test_away(&types[layers % TYPES], 1 + layers % 2, layers);
#ifndef __CUDACC__
    test_chunks();
    test_parts();
    test_io_errors();
    test_no_file();
#endif
#ifdef EMULATED_LAUNCH
    test_order(0);
    test_order(96);
    test_check(!emulation_found(), "the emulation found: %s", emulation_found());
#endif
    return test_summary();
}
