/* lora.c - see lora.h. Common subset of C11 and CUDA C++. */
#include "lora.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frozen.h"

static const char *const words[LORA_MATRICES] = {"qkv", "proj", "fc", "fcproj"};

/* ---- settings ------------------------------------------------------------------------------ */

int gpt2_lora_parse(const char *list, unsigned *on) {
    *on = 0;
    for (const char *at = list; *at;) {
        const size_t n = strcspn(at, ",");
        int k = 0;
        while (k < LORA_MATRICES && (strlen(words[k]) != n || memcmp(words[k], at, n) != 0)) k++;
        if (k == LORA_MATRICES) return 1;
        *on |= 1u << k;
        at += n + (at[n] == ',');
    }
    return *on == 0;
}

void gpt2_lora_print(unsigned on, char list[32]) {
    size_t n = 0;
    list[0] = 0;
    for (int k = 0; k < LORA_MATRICES; k++)
        if (on >> k & 1u) n += (size_t)snprintf(list + n, 32 - n, "%s%s", n ? "," : "", words[k]);
}

zero_result gpt2_lora_check(const gpt2_config *cfg, const gpt2_lora *lora, gpt2_error *err) {
    const char *why = NULL;
    if (lora->rank < 1 || lora->rank > cfg->channels)
        why = "the rank of adapters is 1 to the number of channels";
    else if (!(lora->alpha > 0) || !isfinite(lora->alpha))
        why = "alpha is a positive number";
    else if (cfg->moe.experts)
        why = "a model with experts trains all tensors, and has no adapters";
    if (why && err)
        (void)snprintf(err->sentence, sizeof err->sentence, "--lora %d: %s (%d channels, alpha %g)",
                       lora->rank, why, cfg->channels, (double)lora->alpha);
    return why ? ZERO_ERR_ARGUMENT : ZERO_OK;
}

const gpt2_lora *gpt2_lora_of(const gpt2_config *cfg) {
    return cfg->frozen && cfg->frozen->lora.rank ? &cfg->frozen->lora : NULL;
}

/* ---- tensors ------------------------------------------------------------------------------- */

int lora_tensor(int matrix, int b) { return GPT2_LORA + 2 * matrix + b; }
int lora_matrix(int tensor) { return tensor < GPT2_LORA ? -1 : (tensor - GPT2_LORA) / 2; }
int lora_is_b(int tensor) { return (tensor - GPT2_LORA) % 2; }

int gpt2_tensor_at(const gpt2_config *cfg, int row) {
    const gpt2_lora *lora = gpt2_lora_of(cfg);
    const int base = GPT2_TENSORS + (cfg->untied != 0);
    if (row < base) return row;
    for (int k = 0, i = base; lora && k < LORA_MATRICES; k++) {
        if (!(lora->on >> k & 1u)) continue;
        if (row < i + 2) return lora_tensor(k, row - i);
        i += 2;
    }
    return -1;
}

void lora_sides(const gpt2_config *cfg, int tensor, size_t *rows, size_t *columns) {
    static const struct {
        size_t in, out; /* in units of C */
    } sides[LORA_MATRICES] = {{1, 3}, {1, 1}, {1, 4}, {4, 1}};
    const size_t C = (size_t)cfg->channels, rank = (size_t)gpt2_lora_of(cfg)->rank;
    const int k = lora_matrix(tensor);
    *rows = lora_is_b(tensor) ? sides[k].out * C : rank;
    *columns = lora_is_b(tensor) ? rank : sides[k].in * C;
}

/* ---- forward and backward ------------------------------------------------------------------ */

/* down (R, rank) = scale x A^T */
static void go_down(ops_ctx *o, const lora_layer *l, const void *x, size_t R) {
    ops_linear(o, l->down, x, l->a, NULL, R, l->in, l->rank);
    ops_scale(o, l->down, l->scale, R, l->rank);
}

void lora_forward(ops_ctx *o, const lora_layer *l, void *y, const void *x, size_t R) {
    if (!l->a) return;
    go_down(o, l, x, R);
    ops_linear_add(o, y, l->down, l->b, R, l->rank, l->out);
}

void lora_dx(ops_ctx *o, const lora_layer *l, void *dx, const void *dy, size_t R) {
    if (!l->a) return;
    ops_linear_dx(o, l->back, dy, l->b, R, l->rank, l->out);
    ops_scale(o, l->back, l->scale, R, l->rank);
    ops_linear_dx_add(o, dx, l->back, l->a, R, l->in, l->rank);
}

void lora_gradients(ops_ctx *o, const lora_layer *l, const void *dy, const void *x, size_t R) {
    if (!l->a) return;
    if (l->da) ops_linear_dw(o, l->da, NULL, l->back, x, R, l->in, l->rank);
    if (!l->db) return;
    go_down(o, l, x, R);
    ops_linear_dw(o, l->db, NULL, dy, l->down, R, l->rank, l->out);
}
