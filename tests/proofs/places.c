/* places.c - proofs: each element has one place and one owner */
#include "lists.h"

#include "../../zero_plugin/core/runs.h"

static zero_ctx z;
static zp_tensor tensor[2];

/* Tensors of up to `most` elements in each layer. */
static void open_layout(int tensors, int layers, size_t atom, int ranks, int copies,
                        uint64_t most) {
    for (int t = 0; t < tensors; t++) {
        zero_tensor_desc *d = &tensor[t].desc;
        d->uses = d->together = d->every = 1;
        d->layers = layers;
        d->numel = any(1, most);
        tensor[t].atom = atom;
    }
    z.tensors = tensor;
    z.ntensors = tensors;
    PROVE(zp_layout_open(&z.layout, tensor, tensors, ranks, copies) == ZERO_OK,
          "there is a layout");
}

static void place_holds(size_t atom, int ranks, int copies, uint64_t most) {
    open_layout(1, 1, atom, ranks, copies, most);
    const zp_tensor *t = &tensor[0];
    const size_t e = any(0, most), n = any(1, UINT64_MAX);
    const int by_pieces = copies > 1;
    ASSUME(e < t->desc.numel);
    const zp_run run = zp_run_cut(&z, t, e, n, by_pieces);
    const zp_unit *u = &z.layout.unit[0];
    const size_t cut = by_pieces ? u->piece : u->shard, first = (size_t)run.owner * cut;
    PROVE(run.unit == 0 && run.at == e && run.left == t->desc.numel - e,
          "an element has its place");
    PROVE(run.numel >= 1 && run.numel <= n && run.numel <= run.left, "a run is not empty");
    PROVE(run.owner >= 0 && run.owner < ranks * (by_pieces ? copies : 1), "a rank owns it");
    PROVE(run.at >= first && run.at - first < cut && run.numel <= cut - (run.at - first),
          "one rank owns all of a run");
    PROVE(run.numel == n || run.numel == run.left || run.at - first + run.numel == cut,
          "a run ends where its owner does");
}
void place_2_ranks(void) { place_holds(0, 2, 1, 1023); }
void place_3_ranks(void) { place_holds(128, 3, 2, 4095); }
