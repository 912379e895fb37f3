/* unit_partition.h - each element of a unit is in one shard, whatever the ranks; how matrices are
   dealt out. A part of test_unit.c, which includes the plugin. */
#ifndef TEST_UNIT_PARTITION_H
#define TEST_UNIT_PARTITION_H

typedef struct unit_list {
    zp_tensor tensor[4];
    int n;
} unit_list;

static void unit_announce(unit_list *l, size_t numel, int layers, int unit, int flags) {
    zp_tensor *t = &l->tensor[l->n++];
    memset(t, 0, sizeof *t);
    t->desc.together = t->desc.every = 1;
    t->desc.numel = numel;
    t->desc.layers = layers;
    t->desc.unit = unit;
    t->desc.uses = 1;
    t->desc.flags = flags;
}

/* Walks one tensor by zp_run_at and marks what it sees; 0: a run is wrong. */
static int unit_walk(const zero_ctx *z, const zp_tensor *t, unsigned char **mark) {
    const size_t total = t->desc.numel * (size_t)t->desc.layers;
    for (size_t at = 0; at < total;) {
        const zp_run run = zp_run_at(z, t, at, total - at);
        const zp_unit *u = &z->layout.unit[run.unit];
        if (!run.numel || run.numel > total - at) return 0;
        if (run.owner < 0 || (size_t)run.owner * u->shard > run.at) return 0;
        if (run.at + run.numel > (size_t)(run.owner + 1) * u->shard) return 0;
        for (size_t i = 0; i < run.numel; i++) {
            const zp_run one = zp_run_at(z, t, at + i, 1);
            if (one.unit != run.unit || one.owner != run.owner || one.at != run.at + i) return 0;
            if (one.numel != 1 || mark[run.unit][run.at + i]++) return 0;
        }
        at += run.numel;
    }
    return 1;
}

/* Members of a unit lie on lines, one after the other, within the unit. */
static int unit_members(const zp_unit *u) {
    size_t end = 0, content = 0;
    for (int i = 0; i < u->members; i++) {
        const zp_member *m = &u->member[i];
        if (m->at % ZP_ALIGN || m->at < end || m->at >= end + ZP_ALIGN) return 0;
        end = m->at + m->numel;
        content += m->numel;
    }
    return end == u->numel && content == u->content;
}

static int unit_partition(unit_list *list, int nranks) {
    zero_ctx *z = (zero_ctx *)calloc(1, sizeof *z);
    unsigned char *mark[16] = {0};
    size_t total = 0, content = 0, padded = 0, marked = 0;
    int ok = z && zp_layout_open(&z->layout, list->tensor, list->n, nranks, 1) == ZERO_OK;
    for (int u = 0; ok && u < z->layout.segments; u++) {
        const zp_unit *x = &z->layout.unit[u];
        mark[u] = (unsigned char *)calloc(x->padded + 1, 1);
        ok = x->shard % ZP_ALIGN == 0 && x->padded == x->shard * (size_t)nranks && unit_members(x)
             && x->padded >= x->numel && x->padded < x->numel + (size_t)nranks * ZP_ALIGN;
        content += x->content;
        padded += x->padded;
    }
    for (int t = 0; ok && t < list->n; t++) {
        ok = unit_walk(z, &list->tensor[t], mark);
        total += list->tensor[t].desc.numel * (size_t)list->tensor[t].desc.layers;
    }
    for (int u = 0; ok && u < z->layout.segments; u++)
        for (size_t i = 0; i < z->layout.unit[u].padded; i++) marked += mark[u][i];
    ok = ok && content == total && marked == total && z->layout.numel == total
         && z->layout.padded == padded;
    for (int u = 0; u < 16; u++) free(mark[u]);
    if (z) zp_layout_close(&z->layout);
    free(z);
    return ok;
}

static void unit_partitions(void) {
    static const size_t odd[] = {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1023, 1025};
    int bad = 0;
    for (int nranks = 1; nranks <= 64; nranks++) {
        for (size_t n = 1; n <= 140 && !bad; n++) {
            unit_list l = {.n = 0};
            unit_announce(&l, n, 1, 0, 0);
            if (!unit_partition(&l, nranks)) bad = (int)n;
        }
        for (int a = 0; a < 12 && !bad; a++)
            for (int b = 0; b < 12 && !bad; b++) {
                unit_list l = {.n = 0};
                unit_announce(&l, odd[a], 1, 0, 0);
                unit_announce(&l, odd[b], 2, 1, b % 2 ? ZERO_KEEP : 0);
                unit_announce(&l, odd[(a + b) % 12], 3, 0, a % 3 ? 0 : ZERO_KEEP);
                if (b % 5 == 0) l.tensor[a % 3].desc.flags |= ZERO_FROZEN;
                if (!unit_partition(&l, nranks)) bad = 1000 * a + b;
            }
        test_check(!bad, "partition over %d ranks, case %d", nranks, bad);
    }
}

/* Where a tensor lies in its unit has nothing to do with the number of ranks. */
static void unit_same_places(void) {
    zp_layout one, many;
    unit_list l = {.n = 0};
    unit_announce(&l, 37, 3, 0, 0);
    unit_announce(&l, 5, 3, 0, ZERO_KEEP);
    unit_announce(&l, 100, 2, 1, 0);
    if (!test_check(!zp_layout_open(&one, l.tensor, l.n, 1, 1), "layout")) return;
    for (int nranks = 2; nranks <= 64; nranks++) {
        int same = !zp_layout_open(&many, l.tensor, l.n, nranks, 1) && many.all == one.all;
        for (int u = 0; same && u < one.all; u++)
            for (int i = 0; i < one.unit[u].members; i++)
                same &= !memcmp(&one.unit[u].member[i], &many.unit[u].member[i], sizeof(zp_member));
        test_check(same, "places at %d ranks", nranks);
        zp_layout_close(&many);
    }
    zp_layout_close(&one);
}

/* No shard boundary cuts an atom of a tensor, and every element has one place. */
static void unit_atoms(void) {
    static const size_t atoms[][3] = {
        {256, 0, 0}, {256, 1, 256}, {48, 32, 0}, {1000, 3, 256}, {0, 768, 7}};
    for (int i = 0; i < 5; i++)
        for (int nranks = 1; nranks <= 64; nranks += nranks < 8 ? 1 : 7)
            for (int replicas = 1; replicas <= 2; replicas++) {
                zp_layout x;
                size_t cut = 0, loose = 0, end = 0;
                unit_list l = {.n = 0};
                unit_announce(&l, 10007, 1, 0, 0);
                unit_announce(&l, 333, 3, 0, 0);
                unit_announce(&l, 4096, 2, 0, i % 2 ? ZERO_KEEP : 0);
                for (int t = 0; t < 3; t++) l.tensor[t].atom = atoms[i][t];
                if (!test_check(!zp_layout_open(&x, l.tensor, l.n, nranks, replicas), "layout"))
                    return;
                for (int m = 0; m < x.nmembers; m++) {
                    const zp_member *of = &x.members[m];
                    const zp_unit *u = &x.unit[of->unit];
                    const size_t atom = zp_max(atoms[i][of->tensor], 1), piece = u->piece;
                    if (m && x.members[m - 1].unit != of->unit) end = 0;
                    loose += of->at < end || of->at % ZP_ALIGN || of->at + of->numel > u->padded;
                    end = of->at + of->numel;
                    for (size_t b = piece; b < u->padded; b += piece)
                        cut += b > of->at && b < end && (b - of->at) % atom;
                }
                test_check(
                    !cut && !loose,
                    "atoms %d, %d ranks, %d replicas: %zu boundaries cut an atom, %zu tensors "
                    "have a wrong place",
                    i, nranks, replicas, cut, loose);
                zp_layout_close(&x);
            }
}

/* Two segments of a unit are cut by themselves: the frozen one has the shards that it would have if
   the unit had no other, and the owners of its elements follow. */
static void unit_segments(void) {
    static const size_t numel[][2] = {{1, 1}, {700, 333}, {5000, 16}, {4096, 10007}};
    for (int i = 0; i < 4; i++)
        for (int nranks = 1; nranks <= 64; nranks += nranks < 8 ? 1 : 7)
            for (int copies = 1; copies <= 2; copies++) {
                zp_layout alone;
                zero_ctx z;
                unit_list both = {.n = 0}, one = {.n = 0};
                int wrong = 0;
                memset(&z, 0, sizeof z);
                unit_announce(&both, numel[i][0], 1, 0, 0);
                unit_announce(&both, numel[i][1], 1, 0, ZERO_FROZEN);
                unit_announce(&one, numel[i][1], 1, 0, 0);
                if (!test_check(!zp_layout_open(&z.layout, both.tensor, 2, nranks, copies)
                                    && !zp_layout_open(&alone, one.tensor, 1, nranks, copies),
                                "layouts"))
                    return;
                const zp_unit *frozen = &z.layout.unit[z.layout.all], *x = &alone.unit[0];
                const int same = z.layout.segments == 2 * z.layout.all && frozen->shard == x->shard
                                 && frozen->piece == x->piece && frozen->padded == x->padded;
                for (int rank = 0; rank < nranks && same; rank++)
                    for (size_t e = (size_t)rank * x->shard;
                         e < zp_min((size_t)(rank + 1) * x->shard, numel[i][1]);) {
                        const zp_run run = zp_run_at(&z, &both.tensor[1], e, numel[i][1] - e);
                        wrong += run.owner != rank || run.unit != z.layout.all || run.at != e
                                 || !run.numel || e + run.numel > (size_t)(rank + 1) * x->shard;
                        e += zp_max(run.numel, 1);
                    }
                test_check(same && !wrong,
                           "segments of %zu and %zu elements, %d ranks, %d copies: %d are wrong",
                           numel[i][0], numel[i][1], nranks, copies, wrong);
                zp_layout_close(&z.layout);
                zp_layout_close(&alone);
            }
}

/* The costliest matrix first, of 46, 50 and 48 by its sides, each to who has least so far. */
static void unit_dealt(void) {
    static const size_t rows[] = {1, 1, 2}, cols[] = {11, 12, 2};
    static const int owner[] = {1, 0, 1};
    zp_matrix m[3];
    memset(m, 0, sizeof m);
    for (int i = 0; i < 3; i++) {
        m[i].rows = rows[i];
        m[i].cols = cols[i];
        m[i].numel = rows[i] * cols[i];
        m[i].slices = 1;
    }
    if (!test_check(!zp_muon_assign_matrices(m, 3, 1, 2), "matrices are dealt")) return;
    for (int i = 0; i < 3; i++)
        test_check(m[i].owner == owner[i] && m[i].kept == (i == 0 ? zp_round_up(4, ZP_ALIGN) : 0),
                   "matrix of %zu x %zu: rank %d, at %zu", rows[i], cols[i], m[i].owner, m[i].kept);
}

/* What peers read of sums and matrices takes no byte where there are none; of slices a rank keeps
   those that it owns, in the order of those who make them whole. */
static void unit_deal_room(void) {
    static zero_ctx z;
    static zp_comm one;
    static zp_whole_state whole;
    zp_matrix m[] = {{.owner = 0, .sharer = 1, .numel = 70, .slices = 2},
                     {.owner = 1, .sharer = 0, .numel = 900, .slices = 2},
                     {.owner = 0, .sharer = 0, .numel = 30, .slices = 2},
                     {.owner = 0, .sharer = 2, .numel = 500, .slices = 1}};
    size_t at = 0;
    one.nranks = 2;
    z.data = &one;
    z.whole = &whole;
    z.rule = &zp_rules[ZERO_ADAMW];
    z.peer_bytes = 100;
    test_check(!zp_whole_tensor_plan(&z) && z.peer_bytes == 100, "the end is at %zu", z.peer_bytes);
    whole.matrices = m;
    whole.nmatrices = 4;
    for (int s = 0; s < 2; s++) {
        const size_t numel = zp_whole_slices_of(&z, s, &at), of[] = {30, 70};
        test_check(numel == zp_round_up(of[s], ZP_ALIGN)
                       && at == (s ? zp_round_up(of[0], ZP_ALIGN) : 0),
                   "slices of sharer %d: %zu elements at %zu", s, numel, at);
    }
}

/* Three ranks' pieces become one, of two whole blocks and a part of one: a step past a block's
   memory is seen by a sanitizer. */
static void unit_merge(void) {
    enum { N = 515 };
    static double wide[3][N], merged[N];
    static float x[3][N], out[N];
    for (int r = 0; r < 3; r++)
        for (int i = 0; i < N; i++) wide[r][i] = x[r][i] = (float)((i + 5 * r) % 11 - 3 * r);
    for (int k = 0; k < 4; k++) {
        const int doubles = k / 2, most = k % 2;
        const zp_collectives_merge_args a = {doubles ? (const char *)wide : (const char *)x,
                                             doubles ? (void *)merged : (void *)out,
                                             doubles ? sizeof wide[0] : sizeof x[0],
                                             N,
                                             3,
                                             doubles ? ZERO_F64 : ZERO_F32,
                                             most ? ZERO_MAX : ZERO_SUM};
        int wrong = 0;
        for (size_t block = 0; block * ZP_MERGED < N; block++) zp_collectives_merge_at(&a, block);
        for (int i = 0; i < N; i++) {
            const float expected =
                most ? fmaxf(fmaxf(x[0][i], x[1][i]), x[2][i]) : x[0][i] + x[1][i] + x[2][i];
            wrong += (doubles ? merged[i] : (double)out[i]) != (double)expected;
        }
        test_check(!wrong, "doubles %d, largest %d: %d of %d are wrong", doubles, most, wrong, N);
    }
}

static void unit_partition_all(void) {
    unit_partitions();
    unit_atoms();
    unit_same_places();
    unit_segments();
    unit_dealt();
    unit_deal_room();
    unit_merge();
}

#endif
