/* bench_codec.c [MILLIONS] [THREADS] - how fast numbers are packed, unpacked, and added up from
   packed ones, as a share of a copy that moves as many bytes (what is read and what is written,
   together). The copy and each kernel take turns, and the best of ROUNDS counts. Includes the
   plugin. */
#include "../zero_plugin.cu"
#include "harness.h"

enum { ROUNDS = 15, SENDERS = 4 };

typedef struct bench_memory {
    char *x, *packed, *out, *copy;
    uint16_t *error;
    size_t n;
    int threads;
} bench_memory;

/* Seconds of a copy of half as many bytes. */
static double bench_copy(const bench_memory *m, size_t bytes) {
    const zp_copy_args a = {m->copy, m->x};
    const double begin = test_now();
    zp_away_task(&a, bytes / 2, m->threads);
    const double away = test_now() - begin, again = test_now();
    memcpy(m->copy, m->x, bytes / 2);
    const double plain = test_now() - again;
    return away < plain || m->threads > 1 ? away : plain;
}

static void bench_line(const bench_memory *m, const char *name, zp_task_fn fn, const void *args,
                       size_t blocks, size_t bytes) {
    double best = 1e30, copy = 1e30;
    for (int i = 0; i < ROUNDS; i++) {
        const double c = bench_copy(m, bytes), begin = test_now();
        fn(args, blocks, m->threads);
        const double t = test_now() - begin;
        if (t < best) best = t;
        if (c < copy) copy = c;
    }
    printf("%-34s %6.1f GB/s, %.2f of a copy's %.1f\n", name, 1e-9 * (double)bytes / best,
           copy / best, 1e-9 * (double)bytes / copy);
}

int main(int argc, char **argv) {
    bench_memory m;
    const zp_control control = {.scale = 1};
    m.n = (size_t)(argc > 1 ? atoi(argv[1]) : 32) << 20;
    m.threads = argc > 2 ? atoi(argv[2]) : 1;
    m.x = (char *)zp_device_alloc(NULL, 6 * m.n);
    m.out = (char *)zp_device_alloc(NULL, 4 * m.n);
    m.copy = (char *)zp_device_alloc(NULL, 6 * m.n);
    m.packed = (char *)zp_device_alloc(NULL, (size_t)SENDERS * 2 * m.n);
    m.error = (uint16_t *)zp_device_alloc(NULL, 2 * m.n);
    if (!m.x || !m.out || !m.copy || !m.packed || !m.error) return 1;
    for (int bits = 8; bits >= 4; bits -= 4)
        for (int type = 0; type < 2; type++) {
            const zp_codec *c = zp_codec_of(bits);
            const size_t blocks = zp_coded_blocks(m.n), packed = zp_packed_bytes(c, m.n);
            const size_t of = zp_bytes((zero_type)type);
            const zp_coded plain = {NULL, 0, m.n, *c, 0, 1},
                           one = {m.packed, packed, m.n, *c, 1, 1},
                           all = {m.packed, packed, m.n, *c, SENDERS, 1};
            char name[64];
            for (size_t i = 0; i < m.n; i++)
                zp_store(m.x, (zero_type)type, i,
                         (float)((double)(test_mix(i & 0xFFFFF) >> 40) * 0x1p-24 - 0.5));
            const char *word = type ? "bf16" : "f32";
            zp_encode_args e = {plain, m.x, m.packed, (zero_type)type, 1, NULL, &control, 0.8f};
            snprintf(name, sizeof name, "%s to %d bits", word, bits);
            for (int p = 0; p < SENDERS; p++) {
                e.to = m.packed + (size_t)p * packed;
                zp_encode_loop(&e, blocks, m.threads);
            }
            e.to = m.packed;
            bench_line(&m, name, zp_encode_loop, &e, blocks, m.n * of + packed);
            e.error = m.error;
            snprintf(name, sizeof name, "%s to %d bits, with feedback", word, bits);
            bench_line(&m, name, zp_encode_loop, &e, blocks, m.n * (of + 4) + packed);
            const zp_decode_args d = {one, m.out, NULL, (zero_type)type, 1, 0};
            snprintf(name, sizeof name, "%d bits to %s", bits, word);
            bench_line(&m, name, zp_decode_loop, &d, blocks, m.n * of + packed);
            const zp_decode_args s = {all, m.out, NULL, (zero_type)type, 0.25f, 0};
            snprintf(name, sizeof name, "sum of %d ranks' %d bits in %s", SENDERS, bits, word);
            bench_line(&m, name, zp_decode_loop, &s, blocks, m.n * of + SENDERS * packed);
            zp_encode_args again = {all, NULL, m.out, ZERO_F32, 1, NULL, &control, 0};
            snprintf(name, sizeof name, "sum of %d ranks' %d bits, again", SENDERS, bits);
            if (!type) bench_line(&m, name, zp_encode_loop, &again, blocks, (SENDERS + 1) * packed);
        }
    return 0;
}
