/* test_checkpoint_device.c - states that are written by name, saved and loaded at other stages,
   types and numbers of ranks: nothing here touches the device's memory, so it runs with the CUDA
   build of the plugin and with its emulation as with the CPU's. */
#include "../shared/host.h"
#include "../../adapters/checkpoint/checkpoint.h"

enum { DEV_STAGES = 4, DEV_RANKS = 3, DEV_TYPES = 3 };

typedef struct dev_job {
    host_spec spec;
    checkpoint_options o;
    int load;
    uint64_t hash; /* of masters and moments */
} dev_job;

static void dev_spec(host_spec *s, int nranks, int stage, int type) {
    const zero_tensor_desc list[] = {{"wte", 1501, 1, .uses = 2},
                                     {"w", 333, 2, .unit = 1},
                                     {"kept", 64, 1, .uses = 2, .flags = ZERO_KEEP}};
    host_small(s, 21, nranks, stage, list, 3);
    s->cfg.type = (zero_type)type;
    s->slots = 1;
}

/* Writes both moments, or hashes what is there. */
static void dev_moments(host_run *h) {
    for (int t = 0; t < h->spec->ntensors; t++)
        for (int kind = ZERO_MOMENT_1; kind <= ZERO_MOMENT_2; kind++) {
            const size_t n = host_numel(h->spec, t);
            float *x = (float *)calloc(n, sizeof *x);
            for (size_t i = 0; i < n; i++) x[i] = host_value(h->spec, kind, 0, 0, 0, t, i);
            if (zero_write_tensor(h->z, h->spec->desc[t].name, (zero_kind)kind, 0, n, x))
                test_rank_fail(h->rank, "%s", zero_last_error(h->z));
            free(x);
        }
}

static uint64_t dev_hash(host_run *h) {
    static const zero_kind kinds[] = {ZERO_MASTER, ZERO_MOMENT_1, ZERO_MOMENT_2};
    uint64_t hash = 0;
    for (int t = 0; t < h->spec->ntensors; t++)
        for (int k = 0; k < 3; k++) {
            const size_t n = host_numel(h->spec, t);
            float *x = (float *)calloc(n, sizeof *x);
            if (zero_read_tensor(h->z, h->spec->desc[t].name, kinds[k], 0, n, x))
                test_rank_fail(h->rank, "%s", zero_last_error(h->z));
            hash = host_hash_floats(hash, x, n);
            free(x);
        }
    return hash;
}

/* Parameters are the masters, rounded. */
static void dev_rounded(host_run *h) {
    for (int t = 0; t < h->spec->ntensors; t++) {
        const size_t n = host_numel(h->spec, t);
        float *p = (float *)calloc(n, sizeof *p), *m = (float *)calloc(n, sizeof *m);
        if (zero_read_tensor(h->z, h->spec->desc[t].name, ZERO_PARAMETER, 0, n, p)
            || zero_read_tensor(h->z, h->spec->desc[t].name, ZERO_MASTER, 0, n, m))
            test_rank_fail(h->rank, "%s", zero_last_error(h->z));
        for (size_t i = 0; i < n; i++)
            if (p[i] != host_round(h->spec->cfg.type, m[i]))
                test_rank_fail(h->rank, "parameter %zu is %g, its master %g", i, (double)p[i],
                               (double)m[i]);
        free(p);
        free(m);
    }
}

static void dev_body(test_rank *r) {
    dev_job *j = (dev_job *)r->arg;
    host_run h;
    checkpoint *c = NULL;
    if (!host_open(&h, &j->spec, r)) return;
    if (!j->load) dev_moments(&h);
    if (checkpoint_create(&c, h.z, &j->o)
        || (j->load ? checkpoint_load(c, CHECKPOINT_NEWEST) : checkpoint_save(c, 1, NULL, 0))
        || checkpoint_wait(c))
        test_rank_fail(r, "%s", checkpoint_error(c));
    const uint64_t hash = r->failed ? 0 : dev_hash(&h);
    if (!r->failed && j->load) dev_rounded(&h);
    if (r->rank == 0) j->hash = hash;
    checkpoint_destroy(c);
    zero_destroy(h.z);
}

static int dev_run(dev_job *j, const char *folder, int nranks, int stage, int type, int load) {
    memset(j, 0, sizeof *j);
    dev_spec(&j->spec, nranks, stage, type);
    if (load) j->spec.seed++; /* what is there before is something else */
    j->o.folder = folder;
    j->o.asynchronous = stage % 2;
    j->load = load;
    return test_ranks(nranks, 0, dev_body, j);
}

int main(void) {
    char folder[300], command[400];
    const char *where = getenv("TMPDIR");
    test_random r = {4};
    dev_job j;
    (void)host_train_pass; /* of host.h: nothing is trained here */
    snprintf(folder, sizeof folder, "%.200s/test_device.%d", where ? where : "/tmp", (int)getpid());
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    for (int type = 0; type < DEV_TYPES; type++)
        for (int stage = 0; stage < DEV_STAGES; stage++) {
            const int nranks = 1 + test_below(&r, DEV_RANKS);
            if (system(command)) abort();
            test_check(dev_run(&j, folder, nranks, stage, type, 0), "save: %s", test_first);
            const uint64_t saved = j.hash;
            for (int other = 0; other < DEV_STAGES; other++) {
                const int m = 1 + test_below(&r, DEV_RANKS), to = test_below(&r, DEV_TYPES);
                const int ok = dev_run(&j, folder, m, other, to, 1);
                test_check(ok && j.hash == saved,
                           "type %d, stage %d on %d ranks to type %d, stage %d on %d: %s", type,
                           stage, nranks, to, other, m, test_first);
            }
        }
    if (system(command)) abort();
    return test_summary();
}
