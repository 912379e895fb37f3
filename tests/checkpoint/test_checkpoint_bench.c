/* test_checkpoint_bench.c FOLDER [STAGE [ASIDE]] - one save and one load of GPT-2 124M with AdamW
   in f32, on 2 ranks as processes; ASIDE 1: what the caller of saves that are written aside waits
   for, and memcpy of as many bytes, both ranks at once. Prints bytes and seconds, for
   tests/checkpoint/test_checkpoint_bench.sh. */
#include "../shared/harness.h"
#include "../../adapters/checkpoint/checkpoint.h"

enum { BENCH_RANKS = 2, BENCH_L = 12, BENCH_C = 768, BENCH_V = 50257, BENCH_T = 1024 };

typedef struct bench_job {
    const char *folder;
    int stage, aside;
} bench_job;

static const zero_tensor_desc bench_list[] = {
    {"wte", (size_t)BENCH_V *BENCH_C, 1, .uses = 2, .flags = ZERO_BY_SLOT},
    {"wpe", (size_t)BENCH_T *BENCH_C, 1, .uses = 2, .flags = ZERO_BY_SLOT},
    {"ln1w", BENCH_C, BENCH_L, .unit = 1, .flags = ZERO_BY_SLOT},
    {"ln1b", BENCH_C, BENCH_L, .unit = 1, .flags = ZERO_BY_SLOT},
    {"qkvw", (size_t)3 * BENCH_C *BENCH_C, BENCH_L, .unit = 1, .flags = ZERO_BY_SLOT},
    {"qkvb", (size_t)3 * BENCH_C, BENCH_L, .unit = 1, .flags = ZERO_BY_SLOT},
    {"attprojw", (size_t)BENCH_C *BENCH_C, BENCH_L, .unit = 1, .flags = ZERO_BY_SLOT},
    {"attprojb", BENCH_C, BENCH_L, .unit = 1, .flags = ZERO_BY_SLOT},
    {"ln2w", BENCH_C, BENCH_L, .unit = 1, .flags = ZERO_BY_SLOT},
    {"ln2b", BENCH_C, BENCH_L, .unit = 1, .flags = ZERO_BY_SLOT},
    {"fcw", (size_t)4 * BENCH_C *BENCH_C, BENCH_L, .unit = 1, .flags = ZERO_BY_SLOT},
    {"fcb", (size_t)4 * BENCH_C, BENCH_L, .unit = 1, .flags = ZERO_BY_SLOT},
    {"fcprojw", (size_t)4 * BENCH_C *BENCH_C, BENCH_L, .unit = 1, .flags = ZERO_BY_SLOT},
    {"fcprojb", BENCH_C, BENCH_L, .unit = 1, .flags = ZERO_BY_SLOT},
    {"lnfw", BENCH_C, 1, .unit = 13, .flags = ZERO_BY_SLOT},
    {"lnfb", BENCH_C, 1, .unit = 13, .flags = ZERO_BY_SLOT}};

static void bench_must(test_rank *r, int failed, const char *why) {
    if (failed) test_rank_fail(r, "%s", why);
}

/* Numbers that no disk and no host shortens. */
static void bench_fill(test_rank *r, zero_ctx *z) {
    enum { N = 1 << 20 };
    uint64_t *noise = (uint64_t *)malloc(N * 4);
    zero_range x;
    if (noise == NULL) abort();
    for (size_t i = 0; i < N / 2; i++)
        noise[i] = test_mix(i * 2 + (uint64_t)r->rank) & 0xBF7FFFFFBF7FFFFFu;
    bench_must(r, zero_state_begin(z) != ZERO_OK, zero_last_error(z));
    for (int i = 0; i < zero_state_ranges(z, 1); i++) {
        bench_must(r, zero_state_range(z, 1, i, &x) != ZERO_OK, zero_last_error(z));
        const size_t end = x.first + x.count;
        for (; x.first < end; x.first += N) {
            x.count = end - x.first < N ? end - x.first : N;
            bench_must(r, zero_state_put(z, &x, noise) != ZERO_OK, zero_last_error(z));
        }
    }
    bench_must(r, zero_state_end(z, 1) != ZERO_OK, zero_last_error(z));
    free(noise);
}

enum { BENCH_TIMES = 5 };

static int bench_order(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double bench_median(double *x) {
    qsort(x, BENCH_TIMES, sizeof *x, bench_order);
    return x[BENCH_TIMES / 2];
}

/* Seconds that memcpy takes for `bytes` in memory that is there, in large pages, like the copy. */
static double bench_memcpy(test_rank *r, zero_ctx *z, uint64_t bytes) {
    enum { PART = 256 << 20 };
    char *from = (char *)zero_host_alloc(PART), *to = (char *)zero_host_alloc(PART);
    double seconds[BENCH_TIMES];
    if (from == NULL || to == NULL) abort();
    memset(from, 1, PART);
    for (int i = 0; i < BENCH_TIMES; i++) {
        bench_must(r, zero_barrier(z) != ZERO_OK, zero_last_error(z));
        const double start = test_now();
        for (uint64_t done = 0; done < bytes; done += PART)
            memcpy(to, from, bytes - done < PART ? (size_t)(bytes - done) : PART);
        seconds[i] = test_now() - start;
        if (to[PART - 1] != 1) abort();
    }
    zero_host_free(from);
    zero_host_free(to);
    return bench_median(seconds);
}

/* Saves written aside, one after the other: medians of what a caller waits for. */
static void bench_aside(test_rank *r, zero_ctx *z, checkpoint *c) {
    double stall[BENCH_TIMES], copy[BENCH_TIMES];
    checkpoint_report report;
    for (int i = 0; i < BENCH_TIMES; i++) {
        bench_must(r, checkpoint_save(c, i, NULL, 0) != CHECKPOINT_OK, checkpoint_error(c));
        checkpoint_query(c, &report);
        stall[i] = report.stall_s;
        copy[i] = report.copy_s;
        bench_must(r, checkpoint_wait(c) != CHECKPOINT_OK, checkpoint_error(c));
    }
    const double plain = bench_memcpy(r, z, report.bytes);
    if (r->rank == 0)
        printf("bytes %llu stall_s %.4f copy_s %.4f memcpy_s %.4f\n",
               (unsigned long long)report.total_bytes, bench_median(stall), bench_median(copy),
               plain);
}

static void bench_save(test_rank *r, zero_ctx *z, checkpoint *c) {
    checkpoint_report report;
    double start = test_now();
    bench_must(r, checkpoint_save(c, 1, NULL, 0) != CHECKPOINT_OK, checkpoint_error(c));
    const double save = test_now() - start;
    bench_must(r, zero_barrier(z) != ZERO_OK, zero_last_error(z));
    start = test_now();
    bench_must(r, checkpoint_load(c, CHECKPOINT_NEWEST) != CHECKPOINT_OK, checkpoint_error(c));
    const double load = test_now() - start;
    checkpoint_query(c, &report);
    if (r->rank == 0)
        printf("bytes %llu save_s %.4f load_s %.4f read %llu\n",
               (unsigned long long)report.total_bytes, save, load,
               (unsigned long long)report.read_bytes);
}

static void bench_body(test_rank *r) {
    const bench_job *j = (const bench_job *)r->arg;
    zero_config cfg = {0};
    const zero_comm comm = test_comm(r);
    const checkpoint_options o = {.folder = j->folder, .keep_last = 1, .asynchronous = j->aside};
    zero_ctx *z;
    checkpoint *c;
    cfg.stage = j->stage;
    cfg.threads = 1;
    bench_must(r, zero_create(&z, &cfg, &comm) != ZERO_OK, "create");
    for (size_t t = 0; t < sizeof bench_list / sizeof *bench_list; t++)
        bench_must(r, zero_tensor(z, &bench_list[t]) != ZERO_OK, zero_last_error(z));
    bench_must(r, zero_build(z) != ZERO_OK, zero_last_error(z));
    if (!r->failed) bench_fill(r, z);
    if (!r->failed && checkpoint_create(&c, z, &o)) test_rank_fail(r, "%s", checkpoint_error(c));
    if (!r->failed) {
        if (j->aside)
            bench_aside(r, z, c);
        else
            bench_save(r, z, c);
        checkpoint_destroy(c);
    }
    zero_destroy(z);
}

int main(int argc, char **argv) {
    bench_job j = {argc > 1 ? argv[1] : "", argc > 2 ? atoi(argv[2]) : 3,
                   argc > 3 ? atoi(argv[3]) : 0};
    if (test_processes(BENCH_RANKS, 0, bench_body, &j, 300)) return 0;
    fprintf(stderr, "%s\n", test_first);
    return 1;
}
