/* flops_table.c - see flops_table.h. */
#include "flops_table.h"

#include <stdio.h>
#include <stdlib.h>

#include "../gpt2/experts.h"

double flops_of(const gpt2_config *m, flops_kind kind, int seq_len) {
    const double C = m->channels, T = seq_len;
    switch (kind) {
    case FLOPS_QKV: return 6 * C * C;
    case FLOPS_ATTENTION: return 4 * C * T;
    case FLOPS_ATTENTION_OUT: return 2 * C * C;
    case FLOPS_FC:
    case FLOPS_FC_OUT: return 8 * C * C;
    case FLOPS_CLASSIFIER: return 2 * C * m->padded_vocab_size;
    case FLOPS_KIND_COUNT:
    default: return 0;
    }
}

/* Returns how often a block has a kind of product: an MLP counts once per chosen expert. */
static int flops_times(const gpt2_config *m, flops_kind kind, int block) {
    const int is_mlp = kind == FLOPS_FC || kind == FLOPS_FC_OUT;
    return is_mlp && experts_is_layer(m, block) ? m->moe.chosen : 1;
}
static double flops_block(const gpt2_config *m, int block, int seq_len) {
    double sum = 0;
    for (int k = 0; k < FLOPS_CLASSIFIER; k++)
        sum += flops_times(m, (flops_kind)k, block) * flops_of(m, (flops_kind)k, seq_len);
    return sum;
}
/* Returns the operations of one kind in the whole model. */
static double flops_kind_forward(const gpt2_config *m, flops_kind kind, int seq_len) {
    int times = kind == FLOPS_CLASSIFIER;
    for (int l = 0; l < m->layers && kind != FLOPS_CLASSIFIER; l++)
        times += flops_times(m, kind, l);
    return times * flops_of(m, kind, seq_len);
}
double flops_forward(const gpt2_config *m, int seq_len) {
    double sum = 0;
    for (int k = 0; k < FLOPS_KIND_COUNT; k++) sum += flops_kind_forward(m, (flops_kind)k, seq_len);
    return sum;
}

/* Units are the embeddings (with tiles: and wpe), the blocks and the final norm. */
static int flops_first_block(const flops_table *t) { return t->tiles + 1; }
static int flops_units(const flops_table *t) { return flops_first_block(t) + t->model.layers + 1; }

int flops_open(flops_table *t) {
    for (int i = 0; i < 2; i++)
        t->seconds[i] = (double *)calloc((size_t)flops_units(t), sizeof(double));
    return t->seconds[0] == NULL || t->seconds[1] == NULL;
}
void flops_close(flops_table *t) {
    for (int i = 0; i < 2; i++) free(t->seconds[i]);
}

void flops_events(flops_table *t, const zero_event *events, int n) {
    for (int i = 0; i < n; i++) {
        const zero_event *e = &events[i];
        const int backward = e->kind == ZERO_EVENT_BACKWARD;
        if (e->track == ZERO_TRACK_COMPUTE && e->step > t->step) t->passed = 1;
        if (e->step != t->step || e->unit < 0 || e->unit >= flops_units(t)) continue;
        if (backward || e->kind == ZERO_EVENT_FORWARD)
            t->seconds[backward][e->unit] += e->end - e->begin;
    }
}

static double flops_rate(double flops, double seconds) {
    return seconds > 0 ? flops / seconds * 1e-9 : 0;
}

/* Prints the summed times of one or more units. */
static void flops_row(const flops_table *t, report *out, const char *name, double flops, int first,
                      int units) {
    double forward = 0, backward = 0;
    for (int u = first; u < first + units; u++) {
        forward += t->seconds[0][u];
        backward += t->seconds[1][u];
    }
    report_print(out, "%-14s %12.3f %12.3f %12.3f %12.1f %12.1f\n", name, flops * 1e-9,
                 1e3 * forward, 1e3 * backward, flops_rate(flops, forward),
                 flops_rate(2 * flops, backward));
}

void flops_print(const flops_table *t, report *out) {
    const gpt2_config *m = &t->model;
    const double tokens = (double)t->rank_tokens;
    const double forward = tokens * flops_forward(m, t->seq_len);
    const double all = tokens * t->ranks * gpt2_flops_per_token(m, t->seq_len);
    static const char *const words[] = {
#define FLOPS_WORD(name, word) word,
        FLOPS_KINDS(FLOPS_WORD)
#undef FLOPS_WORD
    };
    char name[32];
    report_rule(out);
    report_print(out, "flops of step %lld: %d rank%s, %lld tokens each, sequence length %d\n",
                 (long long)t->step + 1, t->ranks, t->ranks > 1 ? "s" : "",
                 (long long)t->rank_tokens, t->seq_len);
    report_print(out, "%-26s %12s %8s\n", "forward of a rank", "GFLOP", "share");
    for (int k = 0; k < FLOPS_KIND_COUNT; k++) {
        const double flops = tokens * flops_kind_forward(m, (flops_kind)k, t->seq_len);
        report_print(out, "%-26s %12.3f %7.1f%%\n", words[k], flops * 1e-9, 100 * flops / forward);
    }
    report_print(out, "%-26s %12.3f %7.1f%%\n", "together", forward * 1e-9, 100.0);
    report_print(out, "%-14s %12s %12s %12s %12s %12s\n", "rank 0", "fwd GFLOP", "fwd ms", "bwd ms",
                 "fwd GFLOP/s", "bwd GFLOP/s");
    flops_row(t, out, "embeddings", tokens * flops_of(m, FLOPS_CLASSIFIER, t->seq_len), 0,
              flops_first_block(t));
    for (int l = 0; l < m->layers; l++) {
        (void)snprintf(name, sizeof name, "block %d", l);
        flops_row(t, out, name, tokens * flops_block(m, l, t->seq_len), flops_first_block(t) + l,
                  1);
    }
    flops_row(t, out, "final norm", 0, flops_units(t) - 1, 1);
    flops_row(t, out, "together", forward, 0, flops_units(t));
    if (t->wall > 0)
        report_print(
            out,
            "%.1f GFLOP/s of all ranks over the whole step, %.1f%% %s: 6 per parameter and "
            "token without wpe, and 12 L C T for attention, not halved (PaLM)\n",
            flops_rate(all, t->wall), 100 * t->share, t->of);
    report_rule(out);
}
