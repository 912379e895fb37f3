/* virtual_host.h - the model, the passes and the settings with which cfg.virtual_ranks is tested */
#ifndef TEST_VIRTUAL_HOST_H
#define TEST_VIRTUAL_HOST_H

#include "../shared/host.h"

enum { VIRTUAL_STEPS = 4, VIRTUAL_MOST = 12 };

static const zero_tensor_desc virtual_tensors[] = {
    {"emb", 700, .uses = 2},
    {"mat", 330, .layers = 3, .unit = 1},
    {"norm", 9, .layers = 3, .unit = 1, .flags = ZERO_KEEP | ZERO_NO_DECAY},
    {"out", 5, .unit = 4, .flags = ZERO_ONE_D},
    {"base", 77, .layers = 3, .unit = 1, .flags = ZERO_FROZEN}};

static int virtual_leaf(const host_run *h) { return h->rank->rank * h->spec->leaves + h->micro; }

/* Gradients of `mat` depend on the weights, so that a difference stays. In step 1 leaf 5 overflows
   if the scale is dynamic. */
static void virtual_spoil(host_run *h, int t, size_t first, void *g) {
    const host_spec *s = h->spec;
    const zero_type type = host_grad_type(s);
    const size_t n = s->desc[t].numel;
    if (t != 1) return;
    const char *w = host_tensor(h, t, (int)(first / n), 0);
    for (size_t i = 0; i < n; i++)
        host_put(g, type, i, host_get(g, type, i) + h->scale * host_get(w, s->cfg.type, i));
    if (s->cfg.type == ZERO_F16 && h->step == 1 && virtual_leaf(h) == 5 && first == n)
        host_put(g, type, 17, INFINITY);
}

static void virtual_spec(host_spec *s, int leaves, int nranks, int stage) {
    host_small(s, 29, nranks, stage, virtual_tensors, 5);
    s->units = 5;
    s->steps = VIRTUAL_STEPS;
    s->leaves = leaves / nranks;
    s->micro_steps = leaves / nranks;
    s->cfg.virtual_ranks = leaves;
    s->cfg.grads = ZERO_GRAD_F32;
    s->cfg.seed = 7;
    s->poison = virtual_spoil;
    s->rows[1] = 22, s->cols[1] = 15;
}

/* A pass between zero_train_begin and zero_train_end, which takes the loss of the leaf. */
static int virtual_pass(host_run *h, double *mean) {
    const host_spec *s = h->spec;
    const double loss = 3.0 + (double)host_value(s, 2, h->step, virtual_leaf(h), 0, 0, 0) / 3;
    HOST_TRY(h, zero_train_begin(h->z));
    h->scale = zero_loss_scale(h->z);
    for (int u = 0; u < s->units; u++)
        if (!host_forward(h, u)) return 0;
    if (!host_forward(h, 0) || !host_backward(h, 0, 1, 1)) return 0;
    for (int u = s->units - 1; u >= 0; u--)
        if (!host_backward(h, u, u > 0, u > 0)) return 0;
    HOST_TRY(h, zero_train_end(h->z, &s->adamw, loss, mean));
    return 1;
}

static uint64_t virtual_mix(uint64_t hash, double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return test_mix(hash ^ bits);
}

typedef struct virtual_case {
    const char *name;
    zero_type type;
    zero_grad_type grads;
    zero_master master;
    zero_state_type state;
    zero_optimizer rule;
    float max_norm;
    int delay_from;
} virtual_case;

static const virtual_case virtual_cases[] = {
    {"f32", ZERO_F32, ZERO_GRAD_F32, ZERO_MASTER_AUTO, ZERO_STATE_F32, ZERO_ADAMW, 0, 0},
    {"f32, clipped", ZERO_F32, ZERO_GRAD_F32, ZERO_MASTER_AUTO, ZERO_STATE_F32, ZERO_ADAMW, 1, 0},
    {"bf16, split", ZERO_BF16, ZERO_GRAD_F32, ZERO_MASTER_SPLIT, ZERO_STATE_F32, ZERO_ADAMW, 1, 0},
    {"bf16, f32 masters", ZERO_BF16, ZERO_GRAD_AS_TYPE, ZERO_MASTER_F32, ZERO_STATE_F32, ZERO_ADAMW,
     1, 0},
    {"bf16, no masters", ZERO_BF16, ZERO_GRAD_AS_TYPE, ZERO_MASTER_NONE, ZERO_STATE_BF16,
     ZERO_ADAMW, 1, 0},
    {"f16", ZERO_F16, ZERO_GRAD_F32, ZERO_MASTER_AUTO, ZERO_STATE_F32, ZERO_ADAMW, 1, 0},
    {"f16 gradients", ZERO_F16, ZERO_GRAD_AS_TYPE, ZERO_MASTER_AUTO, ZERO_STATE_F32, ZERO_ADAMW, 1,
     0},
    {"bf16 state", ZERO_F32, ZERO_GRAD_F32, ZERO_MASTER_AUTO, ZERO_STATE_BF16, ZERO_ADAMW, 1, 0},
    {"8-bit state", ZERO_BF16, ZERO_GRAD_AS_TYPE, ZERO_MASTER_SPLIT, ZERO_STATE_8BIT, ZERO_ADAMW, 1,
     0},
    {"Adam", ZERO_F32, ZERO_GRAD_F32, ZERO_MASTER_AUTO, ZERO_STATE_F32, ZERO_ADAM, 1, 0},
    {"SGD", ZERO_F32, ZERO_GRAD_F32, ZERO_MASTER_AUTO, ZERO_STATE_F32, ZERO_SGD, 1, 0},
    {"Nesterov", ZERO_F32, ZERO_GRAD_F32, ZERO_MASTER_AUTO, ZERO_STATE_F32, ZERO_NESTEROV, 1, 0},
    {"Lion", ZERO_BF16, ZERO_GRAD_AS_TYPE, ZERO_MASTER_SPLIT, ZERO_STATE_8BIT, ZERO_LION, 1, 0},
    {"Adagrad", ZERO_F32, ZERO_GRAD_F32, ZERO_MASTER_AUTO, ZERO_STATE_F32, ZERO_ADAGRAD, 1, 0},
    {"LAMB", ZERO_F32, ZERO_GRAD_F32, ZERO_MASTER_AUTO, ZERO_STATE_F32, ZERO_LAMB, 1, 0},
    {"LAMB, bf16", ZERO_BF16, ZERO_GRAD_AS_TYPE, ZERO_MASTER_SPLIT, ZERO_STATE_8BIT, ZERO_LAMB, 1,
     0},
    {"Muon", ZERO_F32, ZERO_GRAD_F32, ZERO_MASTER_AUTO, ZERO_STATE_F32, ZERO_MUON, 1, 0},
    {"delayed", ZERO_F32, ZERO_GRAD_F32, ZERO_MASTER_AUTO, ZERO_STATE_F32, ZERO_ADAMW, 1, 2},
    {"delayed, bf16", ZERO_BF16, ZERO_GRAD_AS_TYPE, ZERO_MASTER_SPLIT, ZERO_STATE_8BIT, ZERO_ADAMW,
     1, 1}};

static void virtual_set_case(host_spec *s, const virtual_case *c) {
    s->cfg.type = c->type;
    s->cfg.grads = c->grads;
    s->cfg.master = c->master;
    s->cfg.state_type = c->state;
    s->cfg.optimizer = c->rule;
    s->cfg.delay_from = c->delay_from;
    s->cfg.scaler.hysteresis = 1;
    s->cfg.scaler.initial = 1024;
    s->adamw.max_norm = c->max_norm;
    if (c->rule == ZERO_SGD || c->rule == ZERO_NESTEROV) s->adamw.lr = 0.1f;
}

/* Settings that no bit depends on, in some of their combinations. */
static void virtual_set_layout(host_spec *s, int how) {
    s->cfg.no_overlap = how & 1;
    s->cfg.bucket_numel = how & 2 ? 2000 : 0;
    s->cfg.no_mapping = how >> 2 & 1;
    s->cfg.persistence_numel = how & 8 ? ZERO_NONE : 0;
    s->cfg.open_units = how & 4 ? ZERO_ALL : 0;
    s->cfg.folder = "/tmp";
    s->cfg.optimizer_tier = how & 16 ? ZERO_FILE : ZERO_DEVICE;
    s->cfg.parameter_tier = how & 16 && s->cfg.stage == 3 && how & 4 ? ZERO_FILE : ZERO_DEVICE;
}

static const int virtual_ranks_of[2][5] = {{8, 1, 2, 4, 8}, {12, 1, 3, 6, 12}};

#endif
