/* unit_comm.h - a context's ranks change to other communicators between two steps, and train the
   same weights. A part of test_unit.c, which includes the plugin. */
#ifndef TEST_UNIT_COMM_H
#define TEST_UNIT_COMM_H

enum { UNIT_COMM_RANKS = 4 };

typedef struct unit_change { /* in memory that all ranks share */
    host_spec spec;
    zero_local *next; /* that the ranks change to after the first step; NULL: none */
    int world;        /* 1: all ranks are also a group that agrees on steps */
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
    if (!e) zp_extra_close_groups(z);
    if (!e) e = zp_extra_open_groups(z, zp_transport_find(comm->kind), comm);
    if (!e) e = zp_build_open_memory(z);
    for (int i = 0; i < 2; i++) {
        if (!e) memcpy(z->memory[i].base, kept[i], z->memory[i].bytes);
        free(kept[i]);
    }
    return e ? e : zp_comm_barrier(z->all);
}

static int unit_change_train(host_run *h, const unit_change *run) {
    const zero_comm next = {ZERO_COMM_LOCAL, h->rank->rank, run->next, h->spec->node_size};
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
    const zero_comm comm = test_comm(r);
    zero_group *world = NULL;
    host_spec spec = run->spec;
    host_run h = {.z = NULL};
    if (run->world && zero_group_open(&world, &comm, NULL, 20))
        test_rank_fail(r, "%s", zero_group_error(world));
    spec.cfg.world = world;
    if (!r->failed && host_open(&h, &spec, r) && unit_change_train(&h, run))
        run->hash[r->rank] = host_hash(&h);
    zero_destroy(h.z);
    zero_group_close(world);
}

/* Trains as the specification says. Returns the hash of all ranks; 0 if one of them failed. */
static uint64_t unit_change_go(unit_change *run, int processes) {
    uint64_t hash = 0;
    memset(run->hash, 0, sizeof run->hash);
    const int size = run->spec.node_size;
    const int ok = processes ? test_processes(UNIT_COMM_RANKS, size, unit_change_rank, run, 60)
                             : test_ranks(UNIT_COMM_RANKS, size, unit_change_rank, run);
    for (int r = 0; r < UNIT_COMM_RANKS; r++) hash = hash * 31 + run->hash[r];
    return ok ? hash : 0;
}

/* Trains without a change, then with one, on threads or on processes. */
static void unit_change_case(unit_change *run, int processes, const char *name) {
    zero_local *next = NULL;
    run->spec.cfg.timeout_s = 20;
    run->next = NULL;
    const uint64_t expected = unit_change_go(run, processes);
    test_check(!zero_local_create(&next, UNIT_COMM_RANKS, processes), "a second zero_local");
    run->next = next;
    const uint64_t changed = unit_change_go(run, processes);
    test_check(expected && changed == expected,
               "stage %d, %d micro-steps, %s%s: other communicators change the weights: %s",
               run->spec.cfg.stage, run->spec.micro_steps, processes ? "processes" : "threads",
               name, test_first);
    zero_local_destroy(next);
}

/* Groups that rows have opened, and memory that they use, are opened again. */
static void unit_change_rows(unit_change *run) {
    static const struct {
        const char *name;
        zero_config cfg;
        int node_size, world, frozen; /* frozen: the first tensors */
    } rows[] = {
        {", replicas", {.stage = 1, .shard_ranks = 2}, 0, 0, 0},
        {", replicas in 16 bit", {.stage = 2, .shard_ranks = 2, .type = ZERO_BF16}, 0, 0, 0},
        {", a second partition", {.stage = 3, .second_ranks = 2, .no_mapping = 1}, 0, 0, 0},
        {", packed", {.stage = 3, .weight_bits = 8, .gradient_bits = 8, .feedback = 0.5f}, 0, 0, 0},
        {", packed in two hops", {.stage = 2, .gradient_bits = 4}, 2, 0, 0},
        {", a world", {.stage = 2}, 0, 1, 0},
        {", a world of replicas", {.stage = 3, .shard_ranks = 2}, 0, 1, 0},
        {", frozen tensors", {.stage = 3, .no_mapping = 1}, 0, 0, 2},
        {", frozen tensors of replicas", {.stage = 2, .shard_ranks = 2}, 0, 0, 2}};
    for (int i = 0; i < 9; i++) {
        small_spec(&run->spec, UNIT_COMM_RANKS, rows[i].cfg.stage);
        run->spec.cfg = rows[i].cfg;
        run->spec.cfg.threads = 1;
        run->spec.node_size = rows[i].node_size;
        run->world = rows[i].world;
        for (int t = 0; t < rows[i].frozen; t++) run->spec.desc[t].flags |= ZERO_FROZEN;
        unit_change_case(run, i % 2, rows[i].name);
    }
}

static void unit_comm_all(void) {
    unit_change *run = (unit_change *)test_shared(sizeof *run);
    for (int i = 0; i < 16; i++) {
        small_spec(&run->spec, UNIT_COMM_RANKS, i / 4);
        run->spec.micro_steps = 1 + i / 2 % 2;
        run->spec.cfg.no_mapping = i / 2 % 2;
        unit_change_case(run, i % 2, "");
    }
    unit_change_rows(run);
}

#endif
