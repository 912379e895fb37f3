/* bench_step.c [MILLIONS...] - the optimizer step (zero_step: skip, clip and bias corrections read,
   AdamW) against this machine's bandwidth: a plain loop with the same reads and writes on arrays of
   the same size, in turn within one run. Also the norm. f32, one rank, all its threads. */
#include "harness.h"

#ifdef _OPENMP
#include <omp.h>
#endif

static int bench_compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double bench_median(double *t, int n) {
    qsort(t, (size_t)n, sizeof *t, bench_compare);
    return t[n / 2];
}

/* Reads four arrays and writes three, 28 bytes an element, as AdamW must. */
static void bench_plain(float *p, float *m, float *v, const float *g, size_t n) {
#ifdef _OPENMP
#pragma omp parallel for simd
#endif
    for (size_t i = 0; i < n; i++) {
        m[i] += g[i];
        v[i] -= g[i];
        p[i] += m[i];
    }
}

static void bench_die(zero_ctx *z, const char *call) {
    fprintf(stderr, "bench_step: %s: %s\n", call, zero_last_error(z));
    exit(1);
}

static zero_ctx *bench_open(size_t n) {
    zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_config cfg;
    zero_ctx *z = NULL;
    memset(&cfg, 0, sizeof cfg);
    zero_tensor_desc d = {"x", n, 1, 0, 1, 0, 0};
    if (zero_create(&z, &cfg, &self) || zero_tensor(z, &d) || zero_build(z))
        bench_die(z, "zero_build");
    return z;
}

enum { ROUNDS = 9 };

static void bench_size(size_t n) {
    float *params = NULL, *grads = NULL; /* the host's two structs of one field each */
    zero_adamw adamw = {1e-3f, 0.9f, 0.99f, 1e-8f, 0.1f, 1.0f};
    zero_ctx *z = bench_open(n);
    float *plain[4];
    double step[ROUNDS], norm[ROUNDS], loop[ROUNDS], value;
    for (int k = 0; k < 4; k++) {
        plain[k] = (float *)calloc(n, sizeof(float));
        if (!plain[k]) exit(1);
        for (size_t i = 0; i < n; i++) plain[k][i] = 1e-3f;
    }
    for (int k = -1; k < ROUNDS; k++) {
        if (zero_pass_begin(z, ZERO_TRAIN, 0, 1) || zero_backward_begin(z, 0, &params, &grads))
            bench_die(z, "pass");
        for (size_t i = 0; i < n; i++) grads[i] = 1e-4f * (float)(i % 7);
        const double t0 = test_now();
        if (zero_backward_end(z, 0) || zero_pass_end(z) || zero_reduce(z) || zero_norm(z, &value))
            bench_die(z, "reduce");
        const double t1 = test_now();
        if (zero_step(z, &adamw)) bench_die(z, "step");
        const double t2 = test_now();
        bench_plain(plain[0], plain[1], plain[2], plain[3], n);
        const double t3 = test_now();
        if (k < 0) continue;
        norm[k] = t1 - t0;
        step[k] = t2 - t1;
        loop[k] = t3 - t2;
    }
    const double s = bench_median(step, ROUNDS), l = bench_median(loop, ROUNDS),
                 m = bench_median(norm, ROUNDS);
    printf("%6.0f M  step %8.2f ms  %5.2f G/s  %6.1f GB/s  plain loop %6.1f GB/s  share %5.1f %%  "
           "norm %7.2f ms %6.1f GB/s\n",
           (double)n / 1e6, s * 1e3, (double)n / s / 1e9, 28.0 * (double)n / s / 1e9,
           28.0 * (double)n / l / 1e9, 100 * l / s, m * 1e3, 4.0 * (double)n / m / 1e9);
    for (int k = 0; k < 4; k++) free(plain[k]);
    zero_destroy(z);
}

int main(int argc, char **argv) {
    static const double sizes[] = {1, 10, 100};
    for (int i = 1; i < argc; i++) bench_size((size_t)(atof(argv[i]) * 1e6));
    for (int i = 0; i < 3 && argc < 2; i++) bench_size((size_t)(sizes[i] * 1e6));
    return 0;
}
