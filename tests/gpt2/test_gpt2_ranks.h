/* test_gpt2_ranks.h - what tests of GPT-2 on several ranks share: their groups, their tokens, how
   they read weights, and whether the emulation runs them */
#pragma once

#include "../../adapters/gpt2/gpt2.h"
#include "../shared/harness.h"

#ifdef EMULATED_LAUNCH
#include "../emulation/emulation.h"
enum { EMULATED = 1 }; /* a hundred times as slow: some of it */
#else
enum { EMULATED = 0 };
#endif

/* Opens the groups of all ranks, of this rank's `tp_ranks` tensor-parallel ranks, and of its
   data-parallel ranks: rank = dp_rank * tp_ranks + tp_rank. COLLECTIVE. */
__attribute__((unused)) static zero_result ranks_open(const zero_comm *comm, int rank, int tp_ranks,
                                                      zero_group **world, zero_group **tp,
                                                      zero_group **dp) {
    ZERO_TRY(zero_group_open(world, comm, NULL, 60));
    ZERO_TRY(zero_group_split(*world, rank / tp_ranks, rank, tp));
    return zero_group_split(*world, rank % tp_ranks, rank, dp);
}

/* Closes what ranks_open has opened. */
__attribute__((unused)) static void ranks_close(zero_group *world, zero_group *tp, zero_group *dp) {
    zero_group_close(dp);
    zero_group_close(tp);
    zero_group_close(world);
}

/* What one rank of a training has. The test defines struct training. */
typedef struct ranks_part {
    struct training *t;
    gpt2_config cfg;
    gpt2_frozen *frozen; /* NULL: nothing is frozen or adapted */
    int rank, dp_rank;
    zero_group *world, *tp, *dp;
    gpt2_parallel how;
    zero_ctx *z;
    gpt2_model *m;
    gpt2_error err;
} ranks_part;

/* Opens the part's groups, of so many tensor-parallel ranks. COLLECTIVE. */
__attribute__((unused)) static zero_result ranks_part_open(ranks_part *p, const zero_comm *comm,
                                                           int tp_ranks, int sequence) {
    p->dp_rank = p->rank / tp_ranks;
    ZERO_TRY(ranks_open(comm, p->rank, tp_ranks, &p->world, &p->tp, &p->dp));
    p->how.tp = p->tp;
    p->how.sequence = sequence;
    return ZERO_OK;
}

/* Reports the result and all sentences of a part that failed. */
__attribute__((unused)) static void ranks_part_report(const ranks_part *p, test_rank *r,
                                                      zero_result result) {
    test_rank_fail(r, "result %d: %s; %s; %s; %s; %s; %s", (int)result, p->err.sentence,
                   p->m ? gpt2_last_error(p->m) : "", p->z ? zero_last_error(p->z) : "",
                   zero_group_error(p->tp), zero_group_error(p->dp), zero_group_error(p->world));
}

/* Frees the part's model, context and groups. */
__attribute__((unused)) static void ranks_part_close(ranks_part *p) {
    gpt2_destroy(p->m);
    zero_destroy(p->z);
    ranks_close(p->world, p->tp, p->dp);
}

/* Sets n inputs and then n targets of a data-parallel rank. Targets follow from inputs, so that
   there is something to learn. */
__attribute__((unused)) static void ranks_draw_tokens(int *tokens, int n, int vocab, int dp_rank,
                                                      int pass) {
    for (int i = 0; i < n; i++) {
        const uint64_t at = (uint64_t)(pass * n + i);
        tokens[i] = (int)(gpt2_draw(5, 1000 + (uint64_t)dp_rank, at) % (uint64_t)vocab);
        tokens[n + i] = (tokens[i] * 7 + 3) % vocab;
    }
}

/* Reads all tensors, one after the other and whole; out may be NULL. `hash` is of what is read.
   COLLECTIVE. */
__attribute__((unused)) static zero_result ranks_read_all(zero_ctx *z, const gpt2_config *cfg,
                                                          const gpt2_parallel *how, zero_kind kind,
                                                          float *out, uint64_t *hash) {
    zero_tensor_desc table[GPT2_MOST_TENSORS];
    const int n = gpt2_table(cfg, NULL, 0, table);
    size_t at = 0, most = 0;
    for (int i = 0; i < n; i++) most += table[i].numel * (size_t)table[i].layers;
    float *all = out ? out : (float *)malloc(most * sizeof *all);
    zero_result result = all ? ZERO_OK : ZERO_ERR_MEMORY;
    for (int i = 0; i < n && !result; i++) {
        const size_t count = table[i].numel * (size_t)table[i].layers;
        result = gpt2_read(z, cfg, how, i, kind, 0, count, all + at);
        at += count;
    }
    *hash = 0;
    for (size_t i = 0; i < at && !result; i++) {
        uint32_t bits;
        memcpy(&bits, &all[i], sizeof bits);
        *hash = test_mix(*hash ^ bits);
    }
    if (!out) free(all);
    return result;
}
