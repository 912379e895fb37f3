/* test_bounds.c - within stated bounds, the pure parts of the core with every input

   Other tests draw inputs or list interesting ones; here small bounds are stated and nothing within
   them is left out. The program includes the plugin and is compiled with AddressSanitizer and
   UndefinedBehaviorSanitizer, so an overflow or an access out of bounds ends it.

   LAYOUTS, lists of one and of two tensors: every element has exactly one place, owner and piece;
   tensors do not overlap; no boundary of a piece cuts an atom; pieces tile shards, and shards tile
   the unit; frozen tensors are in frozen segments alone; tensors with one state are last.
   STATE, the same layouts: of the ranges that ranks save, each element of each kind is in exactly
   one; of those that they load, each rank has its shard, or everything. BUFFERS, every sequence of
   calls: no two units have one buffer, an open buffer is never given away, and a buffer is refused
   only if none is free. ORDERS, every pair of passes: the list of visits holds this pass so far,
   and a pass that repeats the last one is predicted. */
#include "../../zero_plugin.cu"
#include "../shared/harness.h"

/* ---- layouts ---- */

enum { PLAIN, KEPT, FROZEN, PARTLY_FROZEN, ONE_STATE, KINDS };

typedef struct shape { /* one tensor; `count` alternatives of each value */
    const size_t *numel, *atom;
    const int *layers, *together, *every, *unit;
    int numels, atoms, layer_counts, togethers, everys, units;
} shape;

static int shape_choices(const shape *s) {
    return s->numels * s->atoms * s->layer_counts * s->togethers * s->everys * s->units * KINDS;
}

/* Takes one of n alternatives out of the number of a choice. */
static int digit(int *choice, int n) {
    const int d = *choice % n;
    *choice /= n;
    return d;
}

static void shape_choose(const shape *s, int choice, zp_tensor *t, char *frozen) {
    memset(t, 0, sizeof *t);
    t->desc.uses = 1;
    t->desc.numel = s->numel[digit(&choice, s->numels)];
    t->atom = s->atom[digit(&choice, s->atoms)];
    t->desc.layers = s->layers[digit(&choice, s->layer_counts)];
    t->desc.together = s->together[digit(&choice, s->togethers)];
    t->desc.every = s->every[digit(&choice, s->everys)];
    t->desc.unit = s->unit[digit(&choice, s->units)];
    const int kind = digit(&choice, KINDS);
    t->desc.flags = kind == KEPT ? ZERO_KEEP : kind == FROZEN ? ZERO_FROZEN : 0;
    t->one_state = kind == ONE_STATE;
    for (int i = 0; i < t->desc.layers; i++) frozen[i] = i < t->desc.together;
    if (kind == PARTLY_FROZEN) t->desc.frozen = frozen;
}

#define BROKEN(...) return test_check(0, __VA_ARGS__)

/* Each element of the tensor has one place, and its owner and piece are those of the place. */
static int tensor_holds(const zero_ctx *z, const zp_tensor *t, int copies, unsigned char **mark) {
    for (size_t e = 0; e < t->desc.numel * (size_t)t->desc.layers; e++) {
        const int layer = (int)(e / t->desc.numel);
        const zp_run run = zp_run_cut(z, t, e, 1, 0), piece = zp_run_cut(z, t, e, 1, 1);
        const zp_unit *u = &z->layout.unit[run.unit];
        if (run.unit != zp_layout_segment_of(&z->layout, t, layer))
            BROKEN("element %zu is in segment %d", e, run.unit);
        if (run.at >= u->numel || mark[run.unit][run.at]++)
            BROKEN("element %zu has the place of another one, or none", e);
        if (run.numel != 1 || run.owner != (int)(run.at / u->shard) || piece.at != run.at
            || piece.owner != (int)(run.at / u->piece) || piece.owner / copies != run.owner)
            BROKEN("element %zu: owner %d, piece %d", e, run.owner, piece.owner);
        const zp_run rest = zp_run_cut(z, t, e, SIZE_MAX, 0);
        if (rest.at != run.at || !rest.numel || rest.numel > rest.left
            || (rest.at + rest.numel - 1) / u->shard != (size_t)run.owner)
            BROKEN("the run from element %zu leaves its owner", e);
        if (t->one_state != (run.at >= u->plain) && run.unit < z->layout.all)
            BROKEN("element %zu is on the wrong side of the second state", e);
    }
    return 1;
}

/* The tensors of a segment lie in order, at their atoms, and pieces and shards tile it. */
static int segment_holds(const zp_layout *l, const zp_tensor *tensors, int s, int nranks,
                         int copies) {
    const zp_unit *u = &l->unit[s];
    size_t end = 0;
    if (u->piece % zp_align || u->shard != u->piece * (size_t)copies
        || u->padded != u->shard * (size_t)nranks || u->numel > u->padded)
        BROKEN("segment %d is not tiled", s);
    for (const zp_member *m = u->member; m < u->member + u->members; m++) {
        const size_t atom = zp_max(tensors[m->tensor].atom, 1);
        if (m->at < end || m->at % zp_align || m->at % atom)
            BROKEN("segment %d: a tensor begins at %zu, after %zu", s, m->at, end);
        end = m->at + m->numel;
        for (size_t cut = u->piece; cut < end; cut += u->piece)
            if (cut > m->at && (cut - m->at) % atom) BROKEN("segment %d: an atom is cut", s);
        if (s >= l->all && !zp_layout_is_frozen(&tensors[m->tensor], m->layer))
            BROKEN("segment %d has a trained tensor", s);
    }
    return end == u->numel;
}

static int layout_holds(zp_tensor *tensors, int n, int nranks, int copies) {
    zero_ctx z;
    unsigned char *mark[16] = {0};
    size_t numel = 0;
    memset(&z, 0, sizeof z);
    if (zp_layout_open(&z.layout, tensors, n, nranks, copies)) BROKEN("no layout");
    int ok = z.layout.segments <= 16;
    for (int s = 0; ok && s < z.layout.segments; s++) {
        ok = segment_holds(&z.layout, tensors, s, nranks, copies);
        mark[s] = (unsigned char *)calloc(z.layout.unit[s].numel + 1, 1);
    }
    for (int t = 0; ok && t < n; t++) {
        ok = tensor_holds(&z, &tensors[t], copies, mark);
        numel += tensors[t].desc.numel * (size_t)tensors[t].desc.layers;
    }
    if (ok && z.layout.numel != numel) ok = test_check(0, "%zu elements", z.layout.numel);
    for (int s = 0; s < 16; s++) free(mark[s]);
    zp_layout_close(&z.layout);
    return ok;
}

/* ---- ranges of the state ---- */

/* The ranges of one rank, added to marks by tensor, kind and element. */
static int ranges_mark(zero_ctx *z, int whole, unsigned char *mark, size_t kinds, size_t stride) {
    for (int i = 0; i < z->nranges[whole]; i++) {
        const zero_range *r = &z->ranges[whole][i];
        const zp_tensor *t = r->name[0] == 'a' ? &z->tensors[0] : &z->tensors[1];
        const size_t total = t->desc.numel * (size_t)t->desc.layers;
        if (!r->count || r->first >= total || r->count > total - r->first)
            BROKEN("range [%zu, %zu) of %zu elements", r->first, r->first + r->count, total);
        for (size_t e = r->first; e < r->first + r->count; e++)
            mark[((size_t)(t - z->tensors) * kinds + r->kind) * stride + e]++;
    }
    return 1;
}

static int ranges_hold(zp_tensor *tensors, int n, int nranks, int copies, int stage) {
    enum { STRIDE = 128, MARKS = 2 * ZERO_KIND_COUNT * STRIDE };
    static const char *names[] = {"a", "b"};
    zp_array_part part[16];
    unsigned char saved[MARKS] = {0};
    zero_ctx z;
    zp_comm data;
    int ok = 1;
    memset(&z, 0, sizeof z);
    memset(&data, 0, sizeof data);
    memset(part, 0, sizeof part);
    for (int t = 0; t < n; t++) tensors[t].desc.name = names[t];
    if (zp_layout_open(&z.layout, tensors, n, nranks, copies)) BROKEN("no layout");
    for (int a = 0; a < ZP_ARRAYS; a++) z.array[a].part = part, z.array[a].share = ZP_SHARD;
    z.tensors = tensors;
    z.ntensors = n;
    z.data = &data;
    z.ncopies = copies;
    z.policy = zp_policies[stage];
    data.nranks = nranks;
    for (int rank = 0; rank < nranks; rank++)
        for (z.copy = 0; z.copy < copies; z.copy++) {
            unsigned char loaded[MARKS] = {0};
            data.rank = rank;
            z.nranges[0] = z.nranges[1] = 0;
            ok = ok && !zp_state_plan(&z) && ranges_mark(&z, 0, saved, ZERO_KIND_COUNT, STRIDE)
                 && ranges_mark(&z, 1, loaded, ZERO_KIND_COUNT, STRIDE);
            for (int t = 0; ok && t < n; t++)
                for (size_t e = 0; ok && e < tensors[t].desc.numel * (size_t)tensors[t].desc.layers;
                     e++) {
                    const int mine = zp_run_cut(&z, &tensors[t], e, 1, 0).owner == rank;
                    const int got =
                        loaded[((size_t)t * ZERO_KIND_COUNT + ZERO_MASTER) * STRIDE + e];
                    if (got != (mine || z.policy.state == ZP_WHOLE))
                        ok = test_check(0, "rank %d loads element %zu %d times", rank, e, got);
                }
        }
    for (int t = 0; ok && t < n; t++)
        for (int kind = 0; kind < ZERO_KIND_COUNT; kind++)
            for (size_t e = 0; ok && e < tensors[t].desc.numel * (size_t)tensors[t].desc.layers;
                 e++) {
                const int has = kind == ZERO_MASTER
                                || (!(tensors[t].desc.flags & ZERO_FROZEN)
                                    && (kind == ZERO_MOMENT_1
                                        || (kind == ZERO_MOMENT_2 && !tensors[t].one_state)));
                const int got = saved[((size_t)t * ZERO_KIND_COUNT + (size_t)kind) * STRIDE + e];
                if (got != has)
                    ok = test_check(0, "kind %d, element %zu is saved %d times", kind, e, got);
            }
    for (int whole = 0; whole < 2; whole++) free(z.ranges[whole]);
    zp_layout_close(&z.layout);
    return ok;
}

static void layouts_of(const shape *s, int n, int most_ranks, int ranges) {
    const int choices = shape_choices(s);
    char frozen[2][8];
    zp_tensor tensors[2];
    int cases = 0, ok = 1;
    for (int a = 0; a < choices && ok; a++)
        for (int b = 0; b < (n > 1 ? choices : 1) && ok; b++)
            for (int nranks = 1; nranks <= most_ranks && ok; nranks++)
                for (int copies = 1; copies <= 2 && ok; copies++, cases++) {
                    shape_choose(s, a, &tensors[0], frozen[0]);
                    shape_choose(s, b, &tensors[1], frozen[1]);
                    ok = layout_holds(tensors, n, nranks, copies);
                    for (int stage = 0; stage < 2 && ok && ranges; stage++)
                        ok = ranges_hold(tensors, n, nranks, copies, stage);
                    if (!ok)
                        fprintf(stderr, "choices %d and %d, %d ranks, %d copies\n", a, b, nranks,
                                copies);
                }
    test_check(ok, "layouts of %d tensors", n);
    printf("%d layouts of %d tensor%s\n", cases, n, n > 1 ? "s" : "");
}

static void layouts(void) {
    static const size_t numel[] = {1, 17, 15, 16, 33}, atom[] = {0, 24, 3, 16};
    static const int number[] = {1, 3, 2}, few[] = {1, 2}, unit[] = {0, 1};
    const shape all = {numel, atom, number, few, few, unit, 5, 4, 3, 2, 2, 2};
    const shape some = {numel, atom, number, few, few, unit, 2, 2, 2, 2, 1, 2};
    layouts_of(&all, 1, 4, 1);
    layouts_of(&some, 2, 3, 0);
}

/* ---- buffers ---- */

enum { UNITS = 3, BUFFERS = 3, DEPTH = 5 };

typedef struct pool {
    zp_buffer buffer[BUFFERS];
    int held_by[UNITS];
    zp_buffers p;
} pool;

static void pool_copy(pool *to, const pool *from) {
    *to = *from;
    to->p.buffer = to->buffer;
    to->p.held_by = to->held_by;
}

static int pool_holds(const pool *x) {
    int held = 0;
    for (int u = 0; u < UNITS; u++) {
        const int b = zp_buffer_find(&x->p, u);
        held += b >= 0;
        if (b >= x->p.n || (b >= 0 && x->buffer[b].unit != u))
            BROKEN("unit %d has buffer %d", u, b);
    }
    for (int b = 0; b < x->p.n; b++) {
        held -= x->buffer[b].unit >= 0;
        if (x->buffer[b].open < 0) BROKEN("buffer %d is open %d times", b, x->buffer[b].open);
    }
    return held == 0 ? 1 : test_check(0, "a buffer names a unit that does not have it");
}

/* Takes a buffer for a unit, and compares with what a reader of the contract expects. */
static int pool_take(pool *x, int unit, int own, const int *soon, int nsoon) {
    pool was;
    int free_one = 0;
    pool_copy(&was, x);
    for (int b = was.p.alone; b < was.p.n; b++) {
        int wanted = 0;
        for (int i = 0; i < nsoon; i++) wanted |= was.buffer[b].unit == soon[i];
        free_one |= !was.buffer[b].open && !wanted;
    }
    const int before = zp_buffer_find(&was.p, unit),
              got = zp_buffer_take(&x->p, unit, own, soon, nsoon);
    const int after = zp_buffer_find(&x->p, unit);
    if (before >= 0 && (got != 0 || after != before)) BROKEN("a held unit was moved");
    if (before < 0 && own >= 0 && (got != 1 || after != own)) BROKEN("a unit's own buffer");
    if (before < 0 && own < 0 && got != (free_one ? 1 : -1)) BROKEN("take returned %d", got);
    if (got == 1 && own < 0 && was.buffer[after].open) BROKEN("an open buffer was given away");
    return pool_holds(x);
}

/* Every sequence of at most `left` more calls. Unit 0 has a buffer of its own if `alone`. */
static int pool_walk(const pool *x, int left, long long *walked) {
    pool next;
    ++*walked;
    if (!left) return 1;
    for (int u = 0; u < UNITS; u++) {
        const int own = u < x->p.alone ? u : -1, held = zp_buffer_find(&x->p, u);
        for (int s = -1; s < UNITS; s++) { /* -1: no unit is wanted soon */
            const int soon[2] = {u, s};
            pool_copy(&next, x);
            if (!pool_take(&next, u, own, soon, s < 0 ? 0 : 2)
                || !pool_walk(&next, left - 1, walked))
                return 0;
        }
        for (int more = -1; more <= 1; more += 2) {
            if (held < 0 || (more < 0 && !x->buffer[held].open)) continue;
            pool_copy(&next, x);
            zp_buffer_hold(&next.p, u, more);
            if (!pool_holds(&next) || next.buffer[held].open != x->buffer[held].open + more)
                BROKEN("unit %d was opened or closed", u);
            if (!pool_walk(&next, left - 1, walked)) return 0;
        }
    }
    return 1;
}

static void buffers(void) {
    for (int n = 1; n <= BUFFERS; n++)
        for (int alone = 0; alone < 2 && alone < n; alone++) {
            pool x;
            long long walked = 0;
            memset(&x, 0, sizeof x);
            for (int b = 0; b < n; b++) x.buffer[b].unit = -1;
            x.p.n = n;
            x.p.alone = alone;
            x.p.buffer = x.buffer;
            x.p.held_by = x.held_by;
            test_check(pool_walk(&x, DEPTH, &walked), "%d buffers, %d alone", n, alone);
            printf("%lld sequences of calls, %d buffers, %d alone\n", walked, n, alone);
        }
}

/* ---- orders ---- */

enum { VISITS = 5 };

/* The next units by definition: the first occurrences after place `at`, to the end of the pass. */
static int ahead(const int *pass, int n, int at, int wraps, int max, int *soon) {
    int found = 0;
    for (int i = at; i < (wraps ? at + n : n) && found < max; i++) {
        int known = 0;
        for (int k = 0; k < found; k++) known |= soon[k] == pass[i % n];
        if (!known) soon[found++] = pass[i % n];
    }
    return found;
}

static int order_holds(const int *first, int n, const int *second, int m) {
    int list[2 * VISITS], soon[UNITS], expected[UNITS];
    zp_order t = {list, 0, 0, 2 * VISITS, NULL, 0, 0, 0};
    for (int i = 0; i < n; i++) zp_order_visit(&t, first[i]);
    if (t.n != n || t.at != n || memcmp(list, first, (size_t)n * sizeof *list))
        BROKEN("a first pass is not the list");
    t.at = 0;
    for (int i = 0; i < m; i++) {
        const int as_before = n && i <= n && !memcmp(first, second, (size_t)i * sizeof *first);
        for (int wraps = 0; wraps < 2 && as_before; wraps++)
            for (int max = 0; max <= UNITS; max++) {
                const int found = zp_order_ahead(&t, wraps, max, soon);
                if (found != ahead(first, n, i, wraps, max, expected)
                    || memcmp(soon, expected, (size_t)found * sizeof *soon))
                    BROKEN("%d units ahead of visit %d", max, i);
            }
        zp_order_visit(&t, second[i]);
        if (t.at != i + 1 || t.n > t.cap || t.n < t.at
            || memcmp(list, second, (size_t)(i + 1) * sizeof *list))
            BROKEN("after visit %d the list does not begin with the pass", i);
    }
    return 1;
}

static void orders(void) {
    int first[VISITS], second[VISITS], ok = 1, cases = 0, most = 1;
    for (int i = 0; i < VISITS; i++) most *= UNITS;
    for (int n = 0; n <= VISITS && ok; n++)
        for (int a = 0; a < most && ok; a++)
            for (int b = 0; b < most && ok; b++, cases++) {
                int x = a, y = b;
                for (int i = 0; i < VISITS; i++)
                    first[i] = digit(&x, UNITS), second[i] = digit(&y, UNITS);
                ok = order_holds(first, n, second, VISITS);
                if (!ok) fprintf(stderr, "passes %d of %d visits, and %d\n", a, n, b);
            }
    test_check(ok, "orders");
    printf("%d pairs of passes\n", cases);
}

int main(void) {
    static const size_t align = ZP_ALIGN;
    for (zp_align = align; zp_align <= 4 * align; zp_align *= 4) layouts();
    zp_align = align;
    buffers();
    orders();
    return test_summary();
}
