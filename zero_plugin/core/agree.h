/* agree.h - compares data that must be the same on all ranks, before the ranks use it */
#pragma once

#include "extra.h"

/* Returns the first rank whose part of the last exchange differs from rank 0's; 0: none. */
static int zp_agree_first_difference(const zp_comm *g, size_t bytes) {
    for (int r = 1; r < g->nranks; r++)
        if (memcmp(g->mail, g->mail + (size_t)r * bytes, bytes)) return r;
    return 0;
}

/* Prints line i of the common data to `text`, followed by zeros; returns 0 after the last line. */
typedef int (*zp_line_fn)(const zero_ctx *z, int i, char *text, size_t bytes);

/* Exchanges one hash of all lines, and single lines only if the hashes differ. At the first line
   that differs, all ranks return an error. COLLECTIVE. */
static zero_result zp_agree_compare_lines(zero_ctx *z, zp_line_fn line) {
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

static int zp_agree_setting_line(const zero_ctx *z, int i, char *text, size_t bytes) {
    const zp_setting *s = zp_extra_setting(z, i);
    memset(text, 0, bytes);
    if (s && !s->free) zp_config_print_setting(s, &z->cfg, text, bytes);
    return s != NULL;
}

/* Compares all settings, once per context. COLLECTIVE. */
static zero_result zp_agree_compare_settings(zero_ctx *z) {
    if (!z->settings_compared) ZP_TRY(zp_agree_compare_lines(z, zp_agree_setting_line));
    z->settings_compared = 1;
    return ZERO_OK;
}
