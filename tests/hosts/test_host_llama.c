/* test_host_llama.c - a host like Llama (Touvron et al. 2023): RMSNorm, rotary positions,
   grouped-query attention (Ainslie et al. 2023), SwiGLU (Shazeer 2020), no biases, an untied
   classifier whose gradient is stored and not added to. Tensors of a layer differ in size. See
   host_own.h. */
#include "host_own.h"

enum {
    LAYERS = 2,
    C = 16,
    HEADS = 4,
    GROUPS = 2, /* key-value heads */
    HD = C / HEADS,
    KV = GROUPS * HD,
    F = 20,
    V = 13,
    T = 5,
    ROWS = 2 * T
};

typedef struct llama_tensors {
    float *embed, *norm1, *wq, *wk, *wv, *wo, *norm2, *w1, *w3, *w2, *norm, *head;
} llama_tensors;

typedef struct llama_block { /* what a block's backward needs of its forward */
    float x[ROWS * C], h1[ROWS * C], q[ROWS * C], k[ROWS * KV], v[ROWS * KV];
    float weight[ROWS * HEADS * T], o[ROWS * C], mid[ROWS * C], h2[ROWS * C];
    float gate[ROWS * F], up[ROWS * F], y[ROWS * F];
} llama_block;

typedef struct llama_state {
    llama_tensors params, grads;
    llama_block block[LAYERS];
    float x[ROWS * C], h[ROWS * C], logits[ROWS * V], dx[ROWS * C];
    int token[ROWS], target[ROWS];
} llama_state;

/* One layer's tensors, from base pointers by type. */
static llama_tensors at_layer(const llama_tensors *t, int l) {
    const llama_tensors here = {
        t->embed,           t->norm1 + l * C,  t->wq + l * C * C, t->wk + l * KV * C,
        t->wv + l * KV * C, t->wo + l * C * C, t->norm2 + l * C,  t->w1 + l * F * C,
        t->w3 + l * F * C,  t->w2 + l * C * F, t->norm,           t->head};
    return here;
}

/* Rotates pairs of each head by the row's position (Su et al. 2021); way -1 turns back. */
static void rotate(float *x, int heads, float way) {
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < heads * HD; i += 2) {
            const float angle = (float)(row % T) * powf(100.0f, -(float)(i % HD) / HD);
            const float c = cosf(angle), s = way * sinf(angle);
            float *pair = x + row * heads * HD + i;
            const float a = pair[0], b = pair[1];
            pair[0] = a * c - b * s;
            pair[1] = a * s + b * c;
        }
}

static float dot(const float *a, const float *b) {
    float sum = 0;
    for (int i = 0; i < HD; i++) sum += a[i] * b[i];
    return sum;
}

/* Row `row` looks at its own sequence's rows up to itself; HEADS / GROUPS heads share keys. */
static void attend(llama_block *b, int row, int head) {
    const int first = row / T * T, at = row * C + head * HD, group = head / (HEADS / GROUPS) * HD;
    float *weight = b->weight + (row * HEADS + head) * T, sum = 0;
    for (int s = first; s <= row; s++) {
        weight[s - first] = expf(dot(b->q + at, b->k + s * KV + group) / sqrtf(HD));
        sum += weight[s - first];
    }
    for (int i = 0; i < HD; i++) b->o[at + i] = 0;
    for (int s = first; s <= row; s++) {
        weight[s - first] /= sum;
        for (int i = 0; i < HD; i++) b->o[at + i] += weight[s - first] * b->v[s * KV + group + i];
    }
}
static void attend_backward(const llama_block *b, const float *d, float *dq, float *dk, float *dv,
                            int row, int head) {
    const int first = row / T * T, at = row * C + head * HD, group = head / (HEADS / GROUPS) * HD;
    const float *weight = b->weight + (row * HEADS + head) * T;
    float mean = 0;
    for (int s = first; s <= row; s++)
        mean += weight[s - first] * dot(d + at, b->v + s * KV + group);
    for (int s = first; s <= row; s++) {
        const int there = s * KV + group;
        const float score = weight[s - first] * (dot(d + at, b->v + there) - mean) / sqrtf(HD);
        for (int i = 0; i < HD; i++) {
            dv[there + i] += weight[s - first] * d[at + i];
            dq[at + i] += score * b->k[there + i];
            dk[there + i] += score * b->q[at + i];
        }
    }
}

static void block_forward(llama_block *b, const llama_tensors *p, float *x) {
    float y[ROWS * C];
    memcpy(b->x, x, sizeof b->x);
    own_rmsnorm(b->h1, x, p->norm1, ROWS, C);
    own_linear(b->q, b->h1, p->wq, NULL, ROWS, C, C);
    own_linear(b->k, b->h1, p->wk, NULL, ROWS, C, KV);
    own_linear(b->v, b->h1, p->wv, NULL, ROWS, C, KV);
    rotate(b->q, HEADS, 1);
    rotate(b->k, GROUPS, 1);
    for (int i = 0; i < ROWS * HEADS; i++) attend(b, i / HEADS, i % HEADS);
    own_linear(y, b->o, p->wo, NULL, ROWS, C, C);
    for (int i = 0; i < ROWS * C; i++) b->mid[i] = x[i] + y[i];
    own_rmsnorm(b->h2, b->mid, p->norm2, ROWS, C);
    own_linear(b->gate, b->h2, p->w1, NULL, ROWS, C, F);
    own_linear(b->up, b->h2, p->w3, NULL, ROWS, C, F);
    for (int i = 0; i < ROWS * F; i++) b->y[i] = b->gate[i] / (1 + expf(-b->gate[i])) * b->up[i];
    own_linear(y, b->y, p->w2, NULL, ROWS, F, C);
    for (int i = 0; i < ROWS * C; i++) x[i] = b->mid[i] + y[i];
}

static void swiglu_backward(llama_block *b, const llama_tensors *p, const llama_tensors *g,
                            float *dx) {
    float dy[ROWS * F] = {0}, dgate[ROWS * F], dup[ROWS * F], dh[ROWS * C] = {0};
    own_linear_backward(dy, g->w2, NULL, dx, b->y, p->w2, ROWS, F, C);
    for (int i = 0; i < ROWS * F; i++) {
        const float s = 1 / (1 + expf(-b->gate[i]));
        dup[i] = dy[i] * b->gate[i] * s;
        dgate[i] = dy[i] * b->up[i] * (s + b->gate[i] * s * (1 - s));
    }
    own_linear_backward(dh, g->w1, NULL, dgate, b->h2, p->w1, ROWS, C, F);
    own_linear_backward(dh, g->w3, NULL, dup, b->h2, p->w3, ROWS, C, F);
    own_rmsnorm_backward(dx, g->norm2, dh, b->mid, p->norm2, ROWS, C);
}
static void attention_backward(llama_block *b, const llama_tensors *p, const llama_tensors *g,
                               float *dx) {
    float d[ROWS * C] = {0}, dh[ROWS * C] = {0};
    float dq[ROWS * C] = {0}, dk[ROWS * KV] = {0}, dv[ROWS * KV] = {0};
    own_linear_backward(d, g->wo, NULL, dx, b->o, p->wo, ROWS, C, C);
    for (int i = 0; i < ROWS * HEADS; i++) attend_backward(b, d, dq, dk, dv, i / HEADS, i % HEADS);
    rotate(dq, HEADS, -1);
    rotate(dk, GROUPS, -1);
    own_linear_backward(dh, g->wq, NULL, dq, b->h1, p->wq, ROWS, C, C);
    own_linear_backward(dh, g->wk, NULL, dk, b->h1, p->wk, ROWS, C, KV);
    own_linear_backward(dh, g->wv, NULL, dv, b->h1, p->wv, ROWS, C, KV);
    own_rmsnorm_backward(dx, g->norm1, dh, b->x, p->norm1, ROWS, C);
}

static double llama_forward(own_run *r, void *state) {
    llama_state *s = (llama_state *)state;
    own_forward_begin(r, 0);
    for (int i = 0; i < ROWS; i++) {
        const int before =
            i % T ? s->token[i - 1] : i / T; /* the target: this token and the last */
        s->token[i] = (int)(test_mix((uint64_t)(r->rank * 1000 + r->micro * 100 + i)) % V);
        s->target[i] = (s->token[i] + before) % V;
        memcpy(s->x + i * C, s->params.embed + s->token[i] * C, C * sizeof(float));
    }
    own_forward_end(r, 0);
    for (int l = 0; l < LAYERS; l++) {
        own_forward_begin(r, 1 + l);
        const llama_tensors p = at_layer(&s->params, l);
        block_forward(&s->block[l], &p, s->x);
        own_forward_end(r, 1 + l);
    }
    own_forward_begin(r, 1 + LAYERS);
    own_rmsnorm(s->h, s->x, s->params.norm, ROWS, C);
    own_linear(s->logits, s->h, s->params.head, NULL, ROWS, C, V);
    own_forward_end(r, 1 + LAYERS);
    return own_cross_entropy(s->logits, s->target, ROWS, V, r->scale);
}

static double llama_pass(own_run *r, void *state) {
    llama_state *s = (llama_state *)state;
    const double loss = llama_forward(r, s);
    float dh[ROWS * C] = {0};
    memset(s->dx, 0, sizeof s->dx);
    own_backward_begin(r, 1 + LAYERS, 1);
    memset(s->grads.head, 0, V * C * sizeof(float)); /* OVERWRITTEN: not handed out cleared */
    own_linear_backward(dh, s->grads.head, NULL, s->logits, s->h, s->params.head, ROWS, C, V);
    own_rmsnorm_backward(s->dx, s->grads.norm, dh, s->x, s->params.norm, ROWS, C);
    own_backward_end(r, 1 + LAYERS);
    for (int l = LAYERS - 1; l >= 0; l--) {
        own_backward_begin(r, 1 + l, 1);
        const llama_tensors p = at_layer(&s->params, l), g = at_layer(&s->grads, l);
        swiglu_backward(&s->block[l], &p, &g, s->dx);
        attention_backward(&s->block[l], &p, &g, s->dx);
        own_backward_end(r, 1 + l);
    }
    own_backward_begin(r, 0, 0);
    for (int i = 0; i < ROWS * C; i++) s->grads.embed[s->token[i / C] * C + i % C] += s->dx[i];
    own_backward_end(r, 0);
    return loss;
}

#define FIELD(x) offsetof(llama_tensors, x)
static own_host llama_host(int micro_steps) {
    const int vector = ZERO_ONE_D | ZERO_NO_DECAY;
    const zero_tensor_desc desc[] = {
        {"embed", V * C, 1, .field = FIELD(embed)},
        {"norm1", C, LAYERS, .unit = 1, .flags = vector, .field = FIELD(norm1)},
        {"wq", C * C, LAYERS, .unit = 1, .field = FIELD(wq)},
        {"wk", KV * C, LAYERS, .unit = 1, .field = FIELD(wk)},
        {"wv", KV * C, LAYERS, .unit = 1, .field = FIELD(wv)},
        {"wo", C * C, LAYERS, .unit = 1, .field = FIELD(wo)},
        {"norm2", C, LAYERS, .unit = 1, .flags = vector, .field = FIELD(norm2)},
        {"w1", F * C, LAYERS, .unit = 1, .field = FIELD(w1)},
        {"w3", F * C, LAYERS, .unit = 1, .field = FIELD(w3)},
        {"w2", C * F, LAYERS, .unit = 1, .field = FIELD(w2)},
        {"norm", C, 1, .unit = 1 + LAYERS, .flags = vector, .field = FIELD(norm)},
        {"head", V * C, 1, .unit = 1 + LAYERS, .flags = ZERO_OVERWRITTEN, .field = FIELD(head)}};
    own_host h;
    memset(&h, 0, sizeof h);
    h.name = micro_steps > 1 ? "llama, micro-steps" : "llama";
    h.ntensors = sizeof desc / sizeof *desc;
    h.micro_steps = micro_steps;
    memcpy(h.desc, desc, sizeof desc);
    h.state_bytes = sizeof(llama_state);
    h.grads_at = offsetof(llama_state, grads);
    h.pass = llama_pass;
    h.evaluate = llama_forward;
    return h;
}

int main(void) {
    const own_host hosts[] = {llama_host(1), llama_host(2)};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) own_test(&hosts[i]);
    return test_summary();
}
