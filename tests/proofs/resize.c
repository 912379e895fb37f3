/* resize.c - proofs: a resize reads each value where it was written */
#include "lists.h"

#include "../../zero_plugin/extras/lines.h"
#include "../../zero_plugin/extras/state.h"

/* Instead of a move of values, where they are in the part. Masters are f32, and one moment is bf16.
 */
typedef struct moved {
    size_t at, first, count; /* bytes of the part; elements of the tensor */
    int calls;
} moved;
static moved given[2][2], taken[2][2]; /* [tensor][kind] */
static char memory[1];                 /* the part begins here */
static zp_tensor tensor[2];
static zero_result proof_move(zero_ctx *z, const zero_range *r, const char *values, char *out) {
    const int t = r->name[0] - 'a', kind = r->kind == ZERO_MASTER ? 0 : 1;
    moved *m = out ? &given[t][kind] : &taken[t][kind];
    m->at = (size_t)((out ? out : values) - memory);
    m->first = r->first;
    m->count = r->count;
    m->calls++;
    return ZERO_OK;
}
#define zp_state_move                 proof_move
#define zp_state_count_kinds(z)       2
#define zp_state_has_kind(z, kind, t) 1
#define zp_state_type(z, kind, t)     ((kind) == ZERO_MASTER ? ZERO_F32 : ZERO_BF16)
#include "../../zero_plugin/extras/resize.h"

/* Two tensors of any size in one unit, on `ranks` ranks. Rank `rank` gives its piece, and another
   rank takes any part of it. */
static void part_holds(int ranks) {
    static zero_ctx z;
    static zp_comm all;
    static zp_resize x;
    for (int i = 0; i < 4; i++) given[i / 2][i % 2].calls = taken[i / 2][i % 2].calls = 0;
    for (int t = 0; t < 2; t++) {
        zero_tensor_desc *d = &tensor[t].desc;
        d->name = t ? "b" : "a";
        d->uses = d->together = d->every = d->layers = 1;
        d->numel = any(1, 255);
    }
    PROVE(zp_layout_open(&z.layout, tensor, 2, ranks, 1) == ZERO_OK, "there is a layout");
    z.tensors = tensor;
    z.all = &all;
    x.z = x.next = &z;
    x.map.ranks = ranks;
    const int rank = ANY_INT(0, ranks - 1);
    const size_t piece = zp_layout_piece(&z.layout.unit[0], (size_t)ranks),
                 first = (size_t)rank * piece;
    const size_t from = any(0, 1023), end = any(0, 1023);
    ASSUME(from >= first && from < end && end <= first + piece);
    (void)zp_resize_copy(&x, 1, 0, rank, first, first + piece, memory);
    (void)zp_resize_copy(&x, 0, 0, rank, from, end, memory);
    const size_t bytes = zp_resize_offset(&z, ranks, 0, -1, 0);
    for (int t = 0; t < 2; t++)
        for (int k = 0; k < 2; k++) {
            const moved *g = &given[t][k], *n = &taken[t][k];
            const size_t of = k ? 2 : 4;
            const zp_member *m = &z.layout.unit[0].member[t];
            const size_t begins = zp_max(from, m->at), ends = zp_min(end, m->at + m->numel);
            PROVE(g->calls <= 1 && n->calls == (begins < ends), "each value is copied once");
            if (!n->calls) continue;
            PROVE(n->first == begins - m->at && n->count == ends - begins, "all of the elements");
            PROVE(g->calls && g->first <= n->first && n->first + n->count <= g->first + g->count,
                  "the piece has them");
            PROVE(n->at == g->at + (n->first - g->first) * of,
                  "they are read where they were written");
            PROVE(g->at + g->count * of <= bytes, "the piece is inside the part");
        }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++) {
            const moved *a = &given[i / 2][i % 2], *b = &given[j / 2][j % 2];
            PROVE(!a->calls || !b->calls || a->at + a->count * (i % 2 ? 2 : 4) <= b->at
                      || b->at + b->count * (j % 2 ? 2 : 4) <= a->at,
                  "no two values have one place");
        }
}
void part_of_2_ranks(void) { part_holds(2); }
void part_of_3_ranks(void) { part_holds(3); }
