/* lines.h - names the setting, tensor or call in which ranks differ

   The data that must be the same on all ranks has a text form, line by line. The ranks compare a
   hash of all lines, and, only if the hashes differ, the lines. */
#pragma once

#include "../core/agree.h"
#include "../core/build.h"

/* Prints `name value`. */
static void zp_line_print_setting(const zp_setting *s, const zero_config *c, char *text,
                                  size_t bytes) {
    zp_any x;
    memcpy(&x, (const char *)c + s->at, s->bytes);
    if (s->form == ZP_UNSIGNED)
        (void)snprintf(text, bytes, "%s %llu", s->name, (unsigned long long)x.u);
    else if (s->form == ZP_SIGNED && s->bytes == 8)
        (void)snprintf(text, bytes, "%s %lld", s->name, (long long)x.l);
    else
        (void)snprintf(text, bytes, "%s %.15g", s->name, zp_config_get_setting(s, c));
}

/* Prints line i of the common data to `text`, followed by zeros; returns 0 after the last line. */
typedef int (*zp_line_fn)(const zero_ctx *z, int i, char *text, size_t bytes);

/* Exchanges one hash of all lines, and single lines only if the hashes differ. At the first line
   that differs, all ranks return an error. COLLECTIVE. */
static zero_result zp_lines_compare(zero_ctx *z, zp_line_fn line) {
    uint64_t words[ZP_MAIL_BYTES / sizeof(uint64_t)], hash = ZP_HASH_EMPTY;
    char *mine = (char *)words;
    const char *all = z->all->mail;
    for (int i = 0; line(z, i, mine, sizeof words); i++)
        for (size_t w = 0; w < sizeof words / sizeof *words; w++)
            hash = zp_hash_wide(hash, words[w]);
    ZP_DO(z, zp_comm_exchange(z->all, &hash, sizeof hash));
    const int differ = zp_agree_first_difference(z->all, sizeof hash);
    for (int i = 0; differ && line(z, i, mine, sizeof words); i++) {
        ZP_DO(z, zp_comm_exchange(z->all, mine, ZP_MAIL_BYTES));
        const int r = zp_agree_first_difference(z->all, ZP_MAIL_BYTES);
        if (r)
            return z->dead = zp_ctx_fail(z, ZERO_ERR_MISMATCH,
                                         "rank 0 has {%.180s}, rank %d has {%.180s}", all, r,
                                         all + (size_t)r * ZP_MAIL_BYTES);
    }
    return ZERO_OK;
}

static int zp_line_of_setting(const zero_ctx *z, int i, char *text, size_t bytes) {
    const zp_setting *s = zp_extra_setting(z, i);
    memset(text, 0, bytes);
    if (s && !s->free) zp_line_print_setting(s, &z->cfg, text, bytes);
    return s != NULL;
}

/* Compares all settings, once per context. COLLECTIVE. */
static zero_result zp_lines_compare_settings(zero_ctx *z) {
    if (!z->settings_compared) ZP_TRY(zp_lines_compare(z, zp_line_of_setting));
    z->settings_compared = 1;
    return ZERO_OK;
}

/* Prints line i of the announced orders, which ranks compare: the counts, then each call. */
static int zp_line_of_order(const zero_ctx *z, int i, char *text, size_t bytes) {
    const zp_order *t = z->order;
    memset(text, 0, bytes);
    if (i) return z->announcer ? z->announcer->line(z, i - 1, text, bytes) : 0;
    (void)snprintf(
        text, bytes, "%d calls of a training pass%s, %d of an evaluation", t[ZERO_TRAIN].nannounced,
        t[ZERO_TRAIN].all_micro_steps ? " of all micro-steps" : "", t[ZERO_EVAL].nannounced);
    return 1;
}

/* Prints line i of the data, other than settings, that must be the same on all ranks: the build,
   then each tensor, then the orders. An error shows the first line that differs. */
static int zp_line_of_build(const zero_ctx *z, int i, char *text, size_t bytes) {
    const int at = i - 1;
    const zp_tensor *t = at >= 0 && at < z->ntensors ? &z->tensors[at] : NULL;
    memset(text, 0, bytes);
    if (at == -1)
        (void)snprintf(text, bytes, "version %s, ZERO_CHECK %d, node_size %d, tensors %d",
                       ZERO_VERSION, ZERO_CHECK, z->all->node_size, z->ntensors);
    if (!t) return at < 0 || zp_line_of_order(z, at - z->ntensors, text, bytes);
    const zero_tensor_desc *d = &t->desc;
    const uint64_t name = zp_bind_hash_name(d->name);
    uint64_t layers = ZP_HASH_EMPTY;
    char hash[32] = "", more[96] = "", frozen[64] = "";
    if (strlen(d->name) > 50) /* text and error cut it */
        (void)snprintf(hash, sizeof hash, "(hash %016llx) ", (unsigned long long)name);
    ZP_EACH_EXTRA(z, x) if (x->describe) x->describe(z, t, more, sizeof more);
    for (int l = 0; l < d->layers && d->frozen; l++) layers = zp_hash(layers, d->frozen[l] != 0);
    if (d->frozen)
        (void)snprintf(frozen, sizeof frozen, "frozen layers %d (hash %016llx), ",
                       zp_layout_frozen_layers(t), (unsigned long long)layers);
    (void)snprintf(
        text, bytes,
        "tensor %d: numel %zu, layers %d, unit %d, together %d, every %d, uses %d, flags %d, "
        "lr_factor %.9g, decay_factor %.9g, %s%sname %s%s",
        at, d->numel, d->layers, d->unit, d->together, d->every, d->uses, d->flags,
        (double)t->lr_factor, (double)t->decay_factor, more, frozen, hash, d->name);
    return 1;
}

/* ---- verdicts ---- */

static const char *zp_line_name_call(double call) {
    return call == 1 ? "zero_step" : call == 2 ? "zero_skip_step" : "none";
}

/* Returns an error that names the word in which the verdicts differ. */
static zero_result zp_lines_name_difference(zero_ctx *z) {
    static const char *const words[ZP_VERDICT] = {
        "",          "",        "",          "the call",      "lr",
        "beta1",     "beta2",   "eps",       "weight_decay",  "max_norm",
        "steps",     "skipped", "iteration", "last_overflow", "scale",
        "hysteresis"};
    const zp_control *c = &z->report;
    const double a = c->differing[0], b = c->differing[1];
    const int calls = (a == 0 || a == 1 || a == 2) && (b == 0 || b == 1 || b == 2);
    if (c->differs == ZP_CALL && !calls)
        return zp_ctx_fail(
            z, ZERO_ERR_MISMATCH,
            "the values that rank 0 and rank %d compare, which follow the gradients, were "
            "overwritten: does a backward write past the end of a gradient, or numbers of another "
            "type than cfg.grads?",
            c->differs_rank);
    if (c->differs == ZP_CALL)
        return zp_ctx_fail(z, ZERO_ERR_MISMATCH, "at an earlier step rank 0 called %s, rank %d %s",
                           zp_line_name_call(a), c->differs_rank, zp_line_name_call(b));
    return zp_ctx_fail(z, ZERO_ERR_MISMATCH, "%s %s is %.9g on rank 0, %.9g on rank %d",
                       words[(unsigned)c->differs % ZP_VERDICT],
                       c->differs < ZP_COUNTERS ? "at an earlier step" : "of the counters", a, b,
                       c->differs_rank);
}

/* ---- the row ---- */

static zero_result zp_lines_compare_all(zero_ctx *z) {
    ZP_TRY(zp_lines_compare_settings(z));
    return zp_lines_compare(z, zp_line_of_build);
}
static zero_result zp_lines_create(zero_ctx *z) {
    z->compare = zp_lines_compare_all;
    z->name_difference = zp_lines_name_difference;
    return ZERO_OK;
}

static zp_extra zp_lines_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "agree";
    x.call[ZP_ON_CREATE] = zp_lines_create;
    return x;
}
