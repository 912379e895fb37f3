/* unit_comm.h - a context's ranks change to other communicators between two steps, and train the
   same weights. A part of test_unit.c, which includes the plugin. */
#ifndef TEST_UNIT_COMM_H
#define TEST_UNIT_COMM_H

enum { UNIT_COMM_RANKS = 3 };

typedef struct unit_change { /* in memory that all ranks share */
    host_spec spec;
    zero_local *next; /* that the ranks change to after the first step; NULL: none */
    uint64_t hash[UNIT_COMM_RANKS];
} unit_change;

/* Closes the context's groups and opens them over `comm`. The contents of the memory that belongs
   to a group are put back. */
static zero_result unit_change_comm(zero_ctx *z, const zero_comm *comm) {
    char *kept[2] = {NULL, NULL};
    zero_result e = zero_barrier(z); /* peers no longer read this rank's memory */
    for (int i = 0; i < 2 && !e; i++) {
        e = zp_device_sync_stream(&z->stream[i]);
        kept[i] = (char *)malloc(z->memory[i].bytes);
        if (!kept[i]) return ZERO_ERR_MEMORY;
        memcpy(kept[i], z->memory[i].base, z->memory[i].bytes);
    }
    if (!e) zp_ctx_close_groups(z);
    if (!e) e = zp_ctx_open_groups(z, zp_transport_find(comm->kind), comm);
    if (!e) e = zp_comm_open_watch(&z->watch, z->group, ZP_GROUPS);
    if (!e) e = zp_build_open_shared(z);
    for (int i = 0; i < 2; i++) {
        if (!e) memcpy(z->memory[i].base, kept[i], z->memory[i].bytes);
        free(kept[i]);
    }
    return e ? e : zp_comm_barrier(z->all);
}

static int unit_change_train(host_run *h, const unit_change *run) {
    const zero_comm next = {ZERO_COMM_LOCAL, h->rank->rank, run->next, 0};
    for (int step = 0; step < h->spec->steps; step++) {
        if (!host_train_step(h) || !host_evaluate(h)) return 0;
        if (!run->next || step) continue;
        HOST_TRY(h, unit_change_comm(h->z, &next));
        HOST_TRY(h, zero_bind(h->z, &h->params, &h->grads)); /* the memory has moved */
    }
    return 1;
}

static void unit_change_rank(test_rank *r) {
    unit_change *run = (unit_change *)r->arg;
    host_run h;
    if (host_open(&h, &run->spec, r) && unit_change_train(&h, run))
        run->hash[r->rank] = host_hash(&h);
    zero_destroy(h.z);
}

/* Trains as the specification says. Returns the hash of all ranks; 0 if one of them failed. */
static uint64_t unit_change_go(unit_change *run, int processes) {
    uint64_t hash = 0;
    memset(run->hash, 0, sizeof run->hash);
    const int ok = processes ? test_processes(UNIT_COMM_RANKS, 0, unit_change_rank, run, 60)
                             : test_ranks(UNIT_COMM_RANKS, 0, unit_change_rank, run);
    for (int r = 0; r < UNIT_COMM_RANKS; r++) hash = hash * 31 + run->hash[r];
    return ok ? hash : 0;
}

static void unit_comm_all(void) {
    unit_change *run = (unit_change *)test_shared(sizeof *run);
    for (int i = 0; i < 16; i++) {
        const int stage = i / 4, processes = i % 2;
        zero_local *next = NULL;
        small_spec(&run->spec, UNIT_COMM_RANKS, stage);
        run->spec.micro_steps = 1 + i / 2 % 2;
        run->spec.cfg.no_mapping = i / 2 % 2;
        run->spec.cfg.timeout_s = 20;
        run->next = NULL;
        const uint64_t expected = unit_change_go(run, processes);
        test_check(!zero_local_create(&next, UNIT_COMM_RANKS, processes), "a second zero_local");
        run->next = next;
        const uint64_t changed = unit_change_go(run, processes);
        test_check(expected && changed == expected,
                   "stage %d, %d micro-steps, %s: other communicators change the weights: %s",
                   stage, run->spec.micro_steps, processes ? "processes" : "threads", test_first);
        zero_local_destroy(next);
    }
}

#endif
