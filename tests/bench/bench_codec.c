/* bench_codec.c [MILLIONS [NUMBERS]] - how fast numbers are packed, unpacked, and added up from
   packed ones, as a share of a copy that moves as many bytes (what is read and what is written,
   together; the faster of memcpy and stores past the caches). One thread goes over arrays of
   MILLIONS numbers, larger than the caches (32), in pieces of NUMBERS (2097152): a piece is copied
   and worked on in turns, and of all pieces' times the one that a tenth are below counts, so that a
   busy machine's other work does not. With MILLIONS 1 and NUMBERS 8192, in turn: what instructions
   alone take, of pieces that stay in the second cache. Includes the plugin. */
#include "../../zero_plugin.cu"
#include "../shared/harness.h"

enum { ROUNDS = 8, SENDERS = 4, PIECES = 1 << 16 };

typedef struct bench_memory {
    char *x, *packed, *out, *copy; /* as many bytes as the f32 of all numbers; packed: SENDERS */
    uint16_t *error;
    size_t pieces, numel; /* of a piece */
    int again;            /* a piece that stays in cache */
} bench_memory;

/* A kernel on a piece: of x or sums of `senders`, to codes or numbers. */
typedef struct bench_kernel {
    const char *name;
    zp_codec codec;
    zero_type type;
    int encodes, senders, feeds;
} bench_kernel;

static int bench_sort(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double bench_low(double *t, size_t n) {
    qsort(t, n, sizeof *t, bench_sort);
    return t[n / 10];
}

/* Seconds of a copy of half as many bytes, of a piece that was not touched just now. */
static double bench_copy(const bench_memory *m, size_t i, size_t bytes, int plain) {
    const size_t at = i * m->numel * sizeof(float);
    const zp_streaming_args a = {m->copy + at, m->out + at};
    const double begin = test_now();
    if (plain)
        memcpy(m->copy + at, m->out + at, bytes / 2);
    else
        zp_streaming_copy_task(&a, bytes / 2, 1);
    return test_now() - begin;
}

static double bench_run(const bench_memory *m, const bench_kernel *k, size_t i) {
    static const zp_control control = {.scale = 1};
    const size_t n = m->numel, packed = zp_codec_quantized_bytes(&k->codec, n),
                 blocks = zp_codec_blocks(n);
    const zp_quantized sum = {
        m->packed + i * packed, m->pieces * packed, n, k->codec, k->senders, 1};
    char *x = m->x + i * n * zp_type_bytes(k->type), *out = m->out + i * n * sizeof(float);
    const zp_codec_kernels_encode_args e = {
        sum, x, out, k->type, 1, k->feeds ? m->error + i * n : NULL, &control, 0.8f, 0, 0};
    const zp_codec_kernels_decode_args d = {sum, out, NULL, k->type, k->senders > 1 ? 0.25f : 1, 0};
    const double begin = test_now();
    if (k->encodes)
        zp_codec_kernels_encode_loop(&e, blocks, 1);
    else
        zp_codec_kernels_decode_loop(&d, blocks, 1);
    return test_now() - begin;
}

static void bench_line(const bench_memory *m, const bench_kernel *k) {
    static double time[PIECES], plain[PIECES], away[PIECES];
    const size_t n = m->numel, packed = zp_codec_quantized_bytes(&k->codec, n),
                 of = zp_type_bytes(k->type);
    const size_t in = k->senders ? (size_t)k->senders * packed : n * of;
    const size_t bytes = in + (k->encodes ? packed : n * of) + (k->feeds ? 4 * n : 0);
    const size_t pieces = m->again ? 1 : m->pieces;
    size_t times = 0;
    for (int r = 0; r < ROUNDS * (int)(m->pieces / pieces); r++)
        for (size_t i = 0; i < pieces && times < PIECES; i++, times++) {
            away[times] = bench_copy(m, (i + pieces / 3) % pieces, bytes, 0);
            plain[times] = bench_copy(m, (i + 2 * pieces / 3) % pieces, bytes, 1);
            time[times] = bench_run(m, k, i);
        }
    const double one = bench_low(plain, times), other = bench_low(away, times);
    const double copy = one < other ? one : other, t = bench_low(time, times);
    printf("%-34s %6.1f GB/s, %.2f of a copy's %.1f, %6.1f ns a block\n", k->name,
           1e-9 * (double)bytes / t, copy / t, 1e-9 * (double)bytes / copy,
           1e9 * t / (double)zp_codec_blocks(n));
}

static void bench_type(const bench_memory *m, zp_codec codec, zero_type type) {
    static const char *const words[] = {"f32", "bf16", "fp16"};
    const char *word = words[type];
    const size_t numel = m->pieces * m->numel;
    char name[5][64];
    const bench_kernel kernels[5] = {{name[0], codec, type, 1, 0, 0},
                                     {name[1], codec, type, 1, 0, 1},
                                     {name[2], codec, type, 0, 1, 0},
                                     {name[3], codec, type, 0, SENDERS, 0},
                                     {name[4], codec, ZERO_F32, 1, SENDERS, 0}};
    (void)snprintf(name[0], sizeof *name, "%s to %d bits", word, codec.bits);
    (void)snprintf(name[1], sizeof *name, "%s to %d bits, with feedback", word, codec.bits);
    (void)snprintf(name[2], sizeof *name, "%d bits to %s", codec.bits, word);
    (void)snprintf(name[3], sizeof *name, "sum of %d ranks' %d bits in %s", SENDERS, codec.bits,
                   word);
    (void)snprintf(name[4], sizeof *name, "sum of %d ranks' %d bits, again", SENDERS, codec.bits);
    for (size_t i = 0; i < numel; i++)
        zp_type_store(m->x, type, i,
                      (float)((double)(test_mix(i & 0xFFFFF) >> 40) * 0x1p-24 - 0.5));
    const zp_quantized all = {NULL, 0, m->numel, codec, 0, (int)m->pieces};
    for (size_t p = 0; p < SENDERS; p++) {
        char *to = m->packed + p * m->pieces * zp_codec_quantized_bytes(&codec, m->numel);
        const zp_codec_kernels_encode_args e = {all, m->x, to, type, 1, NULL, NULL, 0, 0, 0};
        zp_codec_kernels_encode_loop(&e, m->pieces * zp_codec_blocks(m->numel), 1);
    }
    for (int k = 0; k < 4 + (type == ZERO_F32); k++) bench_line(m, &kernels[k]);
}

int main(int argc, char **argv) {
    bench_memory m;
    const size_t all = (size_t)(argc > 1 ? atoi(argv[1]) : 32) << 20;
    m.numel = argc > 2 ? (size_t)atoi(argv[2]) : 2097152;
    m.pieces = all / m.numel;
    m.again = all <= 1 << 20;
    m.x = (char *)zp_device_alloc(NULL, 4 * all);
    m.out = (char *)zp_device_alloc(NULL, 4 * all + 8 * m.numel);
    m.copy = (char *)zp_device_alloc(NULL, 4 * all + 8 * m.numel);
    m.packed = (char *)zp_device_alloc(NULL, (size_t)SENDERS * 2 * all);
    m.error = (uint16_t *)zp_device_alloc(NULL, 2 * all);
    if (!m.x || !m.out || !m.copy || !m.packed || !m.error) return 1;
    for (size_t c = 0; c < sizeof zp_codecs / sizeof *zp_codecs; c++)
        for (int type = 0; type < ZERO_TYPES; type++) bench_type(&m, zp_codecs[c], (zero_type)type);
    return 0;
}
