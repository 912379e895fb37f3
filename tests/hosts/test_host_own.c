/* test_host_own.c - hosts in C: arrays by type with the next layer's norm read early and tied
   embeddings; one allocation per tensor; layers in any order, some dropped; weights used several
   times before backward; frozen tensors and tensors that no gradient reaches. See host_own.h. */
#include "host_own.h"

enum { LAYERS = 3, C = 8, H = 12, V = 11, ROWS = 6 };

static void tanh_forward(float *out, const float *x, int n) {
    for (int i = 0; i < n; i++) out[i] = tanhf(x[i]);
}
/* d, of the output, becomes that of the input. */
static void tanh_backward(float *d, const float *out, int n) {
    for (int i = 0; i < n; i++) d[i] *= 1 - out[i] * out[i];
}
static void fill(float *x, int n, const own_run *r, uint64_t what) {
    for (int i = 0; i < n; i++)
        x[i] = own_value(what, (uint64_t)r->rank, (uint64_t)r->micro, (uint64_t)i);
}

/* ---- by type: a residual network on tokens ---- */

typedef struct type_tensors {
    float *wte, *ln, *w1, *b1, *w2, *lnf;
} type_tensors;

typedef struct type_state {
    type_tensors params, grads;
    int token[ROWS], target[ROWS];
    float x[LAYERS + 1][ROWS * C], h[LAYERS + 1][ROWS * C], a[LAYERS][ROWS * H];
    float logits[ROWS * V], dx[ROWS * C], dh[ROWS * C];
} type_state;

static float *type_gain(const type_tensors *t, int l) {
    return l < LAYERS ? t->ln + l * C : t->lnf;
}

/* A layer ends with the norm of the next one: ln and lnf are KEEP. */
static void type_forward_layer(type_state *s, int l) {
    const type_tensors *p = &s->params;
    float y[ROWS * C];
    own_linear(s->a[l], s->h[l], p->w1 + l * H * C, p->b1 + l * H, ROWS, C, H);
    tanh_forward(s->a[l], s->a[l], ROWS * H);
    own_linear(y, s->a[l], p->w2 + l * C * H, NULL, ROWS, H, C);
    for (int i = 0; i < ROWS * C; i++) s->x[l + 1][i] = s->x[l][i] + y[i];
    own_rmsnorm(s->h[l + 1], s->x[l + 1], type_gain(p, l + 1), ROWS, C);
}
/* From dh, the gradient of h[l + 1], and dx, that of x[l + 1], to those of layer l. */
static void type_backward_layer(type_state *s, int l) {
    const type_tensors *p = &s->params, *g = &s->grads;
    float da[ROWS * H] = {0};
    own_rmsnorm_backward(s->dx, type_gain(g, l + 1), s->dh, s->x[l + 1], type_gain(p, l + 1), ROWS,
                         C);
    own_linear_backward(da, g->w2 + l * C * H, NULL, s->dx, s->a[l], p->w2 + l * C * H, ROWS, H, C);
    tanh_backward(da, s->a[l], ROWS * H);
    memset(s->dh, 0, sizeof s->dh);
    own_linear_backward(s->dh, g->w1 + l * H * C, g->b1 + l * H, da, s->h[l], p->w1 + l * H * C,
                        ROWS, C, H);
}

static double type_forward(own_run *r, void *state) {
    type_state *s = (type_state *)state;
    own_forward_begin(r, 0);
    for (int i = 0; i < ROWS; i++) {
        s->token[i] = (int)(test_mix((uint64_t)(r->rank * 100 + r->micro * 10 + i)) % V);
        s->target[i] = (s->token[i] * 3 + 1) % V;
        memcpy(s->x[0] + i * C, s->params.wte + s->token[i] * C, C * sizeof(float));
    }
    own_rmsnorm(s->h[0], s->x[0], type_gain(&s->params, 0), ROWS, C);
    own_forward_end(r, 0);
    for (int l = 0; l < LAYERS; l++) {
        own_forward_begin(r, 1 + l);
        type_forward_layer(s, l);
        own_forward_end(r, 1 + l);
    }
    own_forward_begin(r, 0); /* tied */
    own_linear(s->logits, s->h[LAYERS], s->params.wte, NULL, ROWS, C, V);
    own_forward_end(r, 0);
    return own_cross_entropy(s->logits, s->target, ROWS, V, r->scale);
}

static double type_pass(own_run *r, void *state) {
    type_state *s = (type_state *)state;
    const double loss = type_forward(r, s);
    memset(s->dx, 0, sizeof s->dx);
    memset(s->dh, 0, sizeof s->dh);
    own_backward_begin(r, 0, 1);
    own_linear_backward(s->dh, s->grads.wte, NULL, s->logits, s->h[LAYERS], s->params.wte, ROWS, C,
                        V);
    own_backward_end(r, 0);
    for (int l = LAYERS - 1; l >= 0; l--) {
        own_backward_begin(r, 1 + l, 1);
        type_backward_layer(s, l);
        own_backward_end(r, 1 + l);
    }
    own_backward_begin(r, 0, 0); /* only adds to the gradient: no parameter but KEEP ones is read */
    own_rmsnorm_backward(s->dx, s->grads.ln, s->dh, s->x[0], s->params.ln, ROWS, C);
    for (int i = 0; i < ROWS * C; i++) s->grads.wte[s->token[i / C] * C + i % C] += s->dx[i];
    own_backward_end(r, 0);
    return loss;
}

#define TYPE_FIELD(x) offsetof(type_tensors, x)
static const int plain_vector = ZERO_ONE_D | ZERO_NO_DECAY;
static own_host type_host(int micro_steps) {
    const zero_tensor_desc desc[] = {
        {"wte", V * C, 1, .uses = 2, .field = TYPE_FIELD(wte)},
        {"ln", C, LAYERS, .unit = 1, .flags = plain_vector | ZERO_KEEP, .field = TYPE_FIELD(ln)},
        {"w1", H * C, LAYERS, .unit = 1, .field = TYPE_FIELD(w1)},
        {"b1", H, LAYERS, .unit = 1, .flags = plain_vector, .field = TYPE_FIELD(b1)},
        {"w2", C * H, LAYERS, .unit = 1, .field = TYPE_FIELD(w2)},
        {"lnf", C, 1, .unit = LAYERS, .flags = plain_vector | ZERO_KEEP, .field = TYPE_FIELD(lnf)}};
    own_host h;
    memset(&h, 0, sizeof h);
    h.name = micro_steps > 1 ? "by type, micro-steps" : "by type";
    h.ntensors = sizeof desc / sizeof *desc;
    h.micro_steps = micro_steps;
    memcpy(h.desc, desc, sizeof desc);
    h.state_bytes = sizeof(type_state);
    h.grads_at = offsetof(type_state, grads);
    h.pass = type_pass;
    h.evaluate = type_forward;
    return h;
}

/* ---- one allocation per tensor: a perceptron whose layers differ in size ---- */

enum { WIDE = 14, DEPTH = 4 };
static const int widths[DEPTH + 1] = {6, WIDE, 9, 11, 5};

typedef struct tensor { /* before: two mallocs each; now the plugin's memory, by slot */
    float *data, *grad;
} tensor;

typedef struct tensor_state {
    tensor list[2 * DEPTH]; /* weight and bias of layer 0, of layer 1, ... */
    float x[DEPTH + 1][ROWS * WIDE], d[DEPTH + 1][ROWS * WIDE];
} tensor_state;

static float **tensor_slot(void *state, int t, int layer, int grad) {
    tensor *x = &((tensor_state *)state)->list[t + layer];
    return grad ? &x->grad : &x->data;
}

static double tensor_pass(own_run *r, void *state) {
    tensor_state *s = (tensor_state *)state;
    float target[ROWS * WIDE];
    fill(s->x[0], ROWS * widths[0], r, 21);
    for (int i = 0; i < ROWS * widths[DEPTH]; i++)
        target[i] = sinf(3 * s->x[0][i] + (float)(i % 3));
    for (int l = 0; l < DEPTH; l++) {
        own_forward_begin(r, l);
        own_linear(s->x[l + 1], s->x[l], s->list[2 * l].data, s->list[2 * l + 1].data, ROWS,
                   widths[l], widths[l + 1]);
        if (l + 1 < DEPTH) tanh_forward(s->x[l + 1], s->x[l + 1], ROWS * widths[l + 1]);
        own_forward_end(r, l);
    }
    const double loss =
        own_square(s->d[DEPTH], s->x[DEPTH], target, ROWS * widths[DEPTH], r->scale);
    for (int l = DEPTH - 1; l >= 0; l--) {
        own_backward_begin(r, l, 1);
        if (l + 1 < DEPTH) tanh_backward(s->d[l + 1], s->x[l + 1], ROWS * widths[l + 1]);
        memset(s->d[l], 0, sizeof s->d[l]);
        own_linear_backward(s->d[l], s->list[2 * l].grad, s->list[2 * l + 1].grad, s->d[l + 1],
                            s->x[l], s->list[2 * l].data, ROWS, widths[l], widths[l + 1]);
        own_backward_end(r, l);
    }
    return loss;
}

static own_host tensor_host(void) {
    static char name[2 * DEPTH][8];
    own_host h;
    memset(&h, 0, sizeof h);
    h.name = "allocation per tensor";
    h.ntensors = 2 * DEPTH;
    for (int t = 0; t < 2 * DEPTH; t++) {
        const int l = t / 2, bias = t % 2;
        (void)snprintf(name[t], sizeof name[t], "%c%d", bias ? 'b' : 'w', l);
        h.desc[t].name = name[t];
        h.desc[t].numel = (size_t)(bias ? 1 : widths[l]) * (size_t)widths[l + 1];
        h.desc[t].unit = l;
        h.desc[t].flags = bias ? plain_vector : 0;
    }
    h.state_bytes = sizeof(tensor_state);
    h.slot = tensor_slot;
    h.pass = tensor_pass;
    return h;
}

/* ---- any order: a sum of experts, some of which sit out ---- */

enum { EXPERTS = 5 };
typedef struct order_tensors {
    float *in, *w, *v;
} order_tensors;
typedef struct order_state {
    order_tensors params, grads;
    float x[ROWS * C], e[ROWS * C], a[EXPERTS][ROWS * H], out[ROWS * C], d[ROWS * C], de[ROWS * C];
} order_state;

/* The i-th expert that comes, in a new order at every step. */
static int order_of(int i, int step, int way) {
    static const int stride[4] = {1, 2, 3, 4}; /* each prime to EXPERTS */
    return (i * stride[(step + way) % 4] + step * (way + 1)) % EXPERTS;
}
/* Who sits out: from step 1 on one expert, and one more without a backward from step 2 on. */
static int order_out(int e, int step, int backward) {
    return (step && e == step % EXPERTS) || (backward && step > 1 && e == (step * 3 + 1) % EXPERTS);
}

static void order_forward(order_state *s, int e) {
    float y[ROWS * C];
    own_linear(s->a[e], s->e, s->params.w + e * H * C, NULL, ROWS, C, H);
    tanh_forward(s->a[e], s->a[e], ROWS * H);
    own_linear(y, s->a[e], s->params.v + e * C * H, NULL, ROWS, H, C);
    for (int i = 0; i < ROWS * C; i++) s->out[i] += y[i];
}
static void order_backward(order_state *s, int e) {
    float da[ROWS * H] = {0};
    memset(s->grads.v + e * C * H, 0, C * H * sizeof(float)); /* OVERWRITTEN: not cleared before */
    own_linear_backward(da, s->grads.v + e * C * H, NULL, s->d, s->a[e], s->params.v + e * C * H,
                        ROWS, H, C);
    tanh_backward(da, s->a[e], ROWS * H);
    own_linear_backward(s->de, s->grads.w + e * H * C, NULL, da, s->e, s->params.w + e * H * C,
                        ROWS, C, H);
}

static double order_pass(own_run *r, void *state) {
    order_state *s = (order_state *)state;
    float target[ROWS * C];
    fill(s->x, ROWS * C, r, 31);
    for (int i = 0; i < ROWS * C; i++) target[i] = s->x[i] * s->x[i];
    memset(s->out, 0, sizeof s->out);
    memset(s->de, 0, sizeof s->de);
    own_forward_begin(r, EXPERTS); /* what comes first has the last number */
    own_linear(s->e, s->x, s->params.in, NULL, ROWS, C, C);
    own_forward_end(r, EXPERTS);
    for (int i = 0; i < EXPERTS; i++) {
        const int e = order_of(i, r->step, 0);
        if (order_out(e, r->step, 0)) continue;
        own_forward_begin(r, e);
        order_forward(s, e);
        own_forward_end(r, e);
    }
    const double loss = own_square(s->d, s->out, target, ROWS * C, r->scale);
    for (int i = 0; i < EXPERTS; i++) {
        const int e = order_of(i, r->step, 1);
        if (order_out(e, r->step, 1)) continue;
        own_backward_begin(r, e, 1);
        order_backward(s, e);
        own_backward_end(r, e);
    }
    own_backward_begin(r, EXPERTS, 0);
    own_linear_backward(NULL, s->grads.in, NULL, s->de, s->x, NULL, ROWS, C, C);
    own_backward_end(r, EXPERTS);
    return loss;
}

static own_host order_host(void) {
    const zero_tensor_desc desc[] = {
        {"in", C * C, 1, .unit = EXPERTS, .field = offsetof(order_tensors, in)},
        {"w", H * C, EXPERTS, .field = offsetof(order_tensors, w)},
        {"v", C * H, EXPERTS, .flags = ZERO_NO_DECAY | ZERO_OVERWRITTEN,
         .field = offsetof(order_tensors, v)}};
    own_host h;
    memset(&h, 0, sizeof h);
    h.name = "any order";
    h.ntensors = sizeof desc / sizeof *desc;
    memcpy(h.desc, desc, sizeof desc);
    h.state_bytes = sizeof(order_state);
    h.grads_at = offsetof(order_state, grads);
    h.pass = order_pass;
    return h;
}

/* ---- used several times: two inputs go through, then both come back; the first layer is used
   twice in each way, and backward computes its own forward again ---- */

enum { CALLS = LAYERS + 1 };
typedef struct twice_tensors {
    float *first_w, *first_b, *w, *b; /* uses differ, so the first layer is a tensor of its own */
} twice_tensors;
typedef struct twice_state {
    twice_tensors params, grads;
    float x[2][CALLS + 1][ROWS * C], d[2][CALLS + 1][ROWS * C];
} twice_state;

static int twice_unit(int call) { return call ? call - 1 : 0; } /* 0 0 1 2 */
static float *twice_w(const twice_tensors *t, int u) {
    return u ? t->w + (u - 1) * C * C : t->first_w;
}
static float *twice_b(const twice_tensors *t, int u) { return u ? t->b + (u - 1) * C : t->first_b; }

static void twice_forward(own_run *r, twice_state *s, int side, int call) {
    const int u = twice_unit(call);
    own_forward_begin(r, u);
    own_linear(s->x[side][call + 1], s->x[side][call], twice_w(&s->params, u),
               twice_b(&s->params, u), ROWS, C, C);
    tanh_forward(s->x[side][call + 1], s->x[side][call + 1], ROWS * C);
    own_forward_end(r, u);
}
static void twice_backward(own_run *r, twice_state *s, int side, int call) {
    const int u = twice_unit(call);
    float *d = s->d[side][call + 1];
    own_backward_begin(r, u, 1);
    memset(s->x[side][call + 1], 0, sizeof s->x[side][call + 1]); /* not kept */
    twice_forward(r, s, side, call);
    tanh_backward(d, s->x[side][call + 1], ROWS * C);
    memset(s->d[side][call], 0, sizeof s->d[side][call]);
    own_linear_backward(s->d[side][call], twice_w(&s->grads, u), twice_b(&s->grads, u), d,
                        s->x[side][call], twice_w(&s->params, u), ROWS, C, C);
    own_backward_end(r, u);
}

static double twice_pass(own_run *r, void *state) {
    twice_state *s = (twice_state *)state;
    float difference[ROWS * C], target[ROWS * C], d[ROWS * C];
    for (int side = 0; side < 2; side++) {
        fill(s->x[side][0], ROWS * C, r, (uint64_t)(41 + side));
        for (int call = 0; call < CALLS; call++) twice_forward(r, s, side, call);
    }
    for (int i = 0; i < ROWS * C; i++) {
        difference[i] = s->x[0][CALLS][i] - s->x[1][CALLS][i];
        target[i] = s->x[0][0][i] * s->x[1][0][i];
    }
    const double loss = own_square(d, difference, target, ROWS * C, r->scale);
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < ROWS * C; i++) s->d[side][CALLS][i] = side ? -d[i] : d[i];
        for (int call = CALLS - 1; call >= 0; call--) twice_backward(r, s, side, call);
    }
    return loss;
}

static own_host twice_host(void) {
    const zero_tensor_desc desc[] = {
        {"first.w", C * C, 1, .uses = 4, .field = offsetof(twice_tensors, first_w)},
        {"w", C * C, LAYERS - 1, .unit = 1, .uses = 2, .field = offsetof(twice_tensors, w)},
        {"first.b", C, 1, .uses = 4, .flags = plain_vector,
         .field = offsetof(twice_tensors, first_b)},
        {"b", C, LAYERS - 1, .unit = 1, .uses = 2, .flags = plain_vector,
         .field = offsetof(twice_tensors, b)}};
    own_host h;
    memset(&h, 0, sizeof h);
    h.name = "used twice";
    h.ntensors = sizeof desc / sizeof *desc;
    memcpy(h.desc, desc, sizeof desc);
    h.state_bytes = sizeof(twice_state);
    h.grads_at = offsetof(twice_state, grads);
    h.pass = twice_pass;
    return h;
}

/* ---- frozen: low-rank additions to a network whose own weights stay ---- */

enum { RANK = 2 };
typedef struct frozen_tensors {
    float *in, *base, *down, *up, *out, *spare, *still;
} frozen_tensors;
typedef struct frozen_state {
    frozen_tensors params, grads;
    float raw[ROWS * C], x[LAYERS + 1][ROWS * C], low[LAYERS][ROWS * RANK], y[ROWS * C];
} frozen_state;

static void frozen_forward(frozen_state *s, int l) {
    const frozen_tensors *p = &s->params;
    float y[ROWS * C];
    own_linear(s->x[l + 1], s->x[l], p->base + l * C * C, NULL, ROWS, C, C);
    own_linear(s->low[l], s->x[l], p->down + l * RANK * C, NULL, ROWS, C, RANK);
    own_linear(y, s->low[l], p->up + l * C * RANK, NULL, ROWS, RANK, C);
    for (int i = 0; i < ROWS * C; i++) s->x[l + 1][i] = tanhf(s->x[l + 1][i] + y[i]);
}
/* The base's gradient is never written: the memory that the hook hands out stays zeros. */
static void frozen_backward(frozen_state *s, int l, float *d) {
    const frozen_tensors *p = &s->params, *g = &s->grads;
    float before[ROWS * C] = {0}, dlow[ROWS * RANK] = {0};
    tanh_backward(d, s->x[l + 1], ROWS * C);
    own_linear_backward(dlow, g->up + l * C * RANK, NULL, d, s->low[l], p->up + l * C * RANK, ROWS,
                        RANK, C);
    own_linear_backward(before, g->down + l * RANK * C, NULL, dlow, s->x[l], p->down + l * RANK * C,
                        ROWS, C, RANK);
    own_linear_backward(before, NULL, NULL, d, s->x[l], p->base + l * C * C, ROWS, C, C);
    memcpy(d, before, sizeof before);
}

static double frozen_pass(own_run *r, void *state) {
    frozen_state *s = (frozen_state *)state;
    const int head = LAYERS + 1;
    float target[ROWS * C], dy[ROWS * C], d[ROWS * C] = {0};
    fill(s->raw, ROWS * C, r, 51);
    fill(target, ROWS * C, r, 52);
    own_forward_begin(r, 0); /* frozen: has no backward at all */
    own_linear(s->x[0], s->raw, s->params.in, NULL, ROWS, C, C);
    own_forward_end(r, 0);
    for (int l = 0; l < LAYERS; l++) {
        own_forward_begin(r, 1 + l);
        frozen_forward(s, l);
        own_forward_end(r, 1 + l);
    }
    own_forward_begin(r, head);
    own_linear(s->y, s->x[LAYERS], s->params.out, NULL, ROWS, C, C);
    own_forward_end(r, head);
    const double loss = own_square(dy, s->y, target, ROWS * C, r->scale);
    own_backward_begin(r, head, 1); /* frozen, but the host writes its gradient */
    own_linear_backward(d, s->grads.out, NULL, dy, s->x[LAYERS], s->params.out, ROWS, C, C);
    own_backward_end(r, head);
    for (int l = LAYERS - 1; l >= 0; l--) {
        own_backward_begin(r, 1 + l, 1);
        frozen_backward(s, l, d);
        own_backward_end(r, 1 + l);
    }
    return loss;
}

static own_host frozen_host(void) {
    const zero_tensor_desc desc[] = {
        {"in", C * C, 1, .field = offsetof(frozen_tensors, in)},
        {"base", C * C, LAYERS, .unit = 1, .field = offsetof(frozen_tensors, base)},
        {"down", RANK * C, LAYERS, .unit = 1, .field = offsetof(frozen_tensors, down)},
        {"up", C * RANK, LAYERS, .unit = 1, .field = offsetof(frozen_tensors, up)},
        {"out", C * C, 1, .unit = LAYERS + 1, .field = offsetof(frozen_tensors, out)},
        {"spare", H, 1, .unit = LAYERS + 2, .field = offsetof(frozen_tensors, spare)},
        {"still", V, 1, .unit = LAYERS + 2, .flags = ZERO_OVERWRITTEN,
         .field = offsetof(frozen_tensors, still)}};
    static const int part[] = {OWN_FROZEN, OWN_FROZEN,    OWN_TRAINED,  OWN_TRAINED,
                               OWN_FROZEN, OWN_UNREACHED, OWN_UNDECAYED};
    own_host h;
    memset(&h, 0, sizeof h);
    h.name = "frozen";
    h.ntensors = sizeof desc / sizeof *desc;
    memcpy(h.desc, desc, sizeof desc);
    memcpy(h.part, part, sizeof part);
    h.state_bytes = sizeof(frozen_state);
    h.grads_at = offsetof(frozen_state, grads);
    h.pass = frozen_pass;
    return h;
}

int main(void) {
    const own_host hosts[] = {type_host(1), type_host(2), tensor_host(),
                              order_host(), twice_host(), frozen_host()};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) own_test(&hosts[i]);
    return test_summary();
}
