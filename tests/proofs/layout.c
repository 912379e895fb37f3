/* layout.c - proofs: shards tile a unit, tensors do not overlap, each element has one place and
 * owner */
#include "lists.h"

#define MOST ((uint64_t)1 << 48) /* elements of a tensor: the limit of zero_tensor */

/* A segment of up to 2^60 elements, shared by `all` ranks: pieces are whole grains, cover it, and
   no piece is longer than it must be. No sum or product overflows. */
static void piece_holds(size_t grain, size_t all) {
    static zp_unit u;
    u.grain = grain;
    u.numel = any(1, (uint64_t)1 << 60);
    const size_t piece = zp_layout_piece(&u, all);
    PROVE(piece % grain == 0 && piece >= grain, "a piece is whole grains");
    PROVE(piece * all >= u.numel, "pieces cover the segment");
    PROVE((piece - grain) * all < u.numel, "a piece is as short as it can be");
}
void piece_of_1(void) { piece_holds(32, 1); }
void piece_of_8(void) { piece_holds(32, 8); }
void piece_of_3(void) { piece_holds(128, 3); }
void piece_of_64(void) { piece_holds(64, 64); }

static void layout_tiles(int tensors, int layers, size_t atom, int ranks, int copies) {
    static zp_tensor tensor[2];
    static zp_layout layout;
    const zp_layout *l = &layout;
    for (int t = 0; t < tensors; t++) {
        zero_tensor_desc *d = &tensor[t].desc;
        d->uses = d->together = d->every = 1;
        d->layers = layers;
        d->numel = any(1, MOST);
        d->flags = 0;
        tensor[t].atom = t ? 0 : atom;
        tensor[t].one_state = t == 0;
    }
    PROVE(zp_layout_open(&layout, tensor, tensors, ranks, copies) == ZERO_OK, "there is a layout");
    for (int s = 0; s < layers; s++) {
        const zp_unit *u = &l->unit[s];
        PROVE(u->piece % zp_align == 0 && u->shard == u->piece * (size_t)copies
                  && u->padded == u->shard * (size_t)ranks,
              "shards tile the unit, and pieces the shard");
        PROVE(u->numel <= u->padded && u->content <= u->numel && u->plain <= u->padded,
              "the tensors are in the unit");
        PROVE(u->piece % zp_max(atom, 1) == 0, "no piece ends inside an atom");
        size_t end = 0;
        for (int i = 0; i < tensors; i++) {
            const zp_member *x = &u->member[i];
            PROVE(x->at >= end && x->at % zp_align == 0, "tensors are one after the other");
            PROVE(x->at % zp_max(tensor[x->tensor].atom, 1) == 0, "a tensor begins at its atom");
            PROVE(tensor[x->tensor].one_state == (x->at >= u->plain), "one state comes last");
            end = x->at + x->numel;
        }
        PROVE(end == u->numel && u->members == tensors, "the unit ends with its last tensor");
    }
}
void tiles_1_rank(void) { layout_tiles(2, 2, 128, 1, 1); }
void tiles_4_ranks(void) { layout_tiles(2, 2, 128, 4, 2); }
void tiles_64_ranks(void) { layout_tiles(2, 1, 128, 64, 1); }
void tiles_3_ranks(void) { layout_tiles(2, 1, 128, 3, 1); }
