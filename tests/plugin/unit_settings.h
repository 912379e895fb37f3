/* unit_settings.h - the bounds and defaults of each setting, and what a row of the rules says.
   A part of test_unit.c, which includes the plugin. */
#ifndef TEST_UNIT_SETTINGS_H
#define TEST_UNIT_SETTINGS_H

/* What zero_config may hold: of every setting its bounds, what 0 means, whether ranks may differ.
 */
static const struct unit_setting {
    const char *name;
    size_t at;
    char form; /* int, long: int64_t, unsigned: size_t, float, double */
    double least, most, zero;
    int differs;
} unit_setting[] = {
#define SET(field, ...)                                                                            \
    { #field, offsetof(zero_config, field), __VA_ARGS__ }
#define ANY -INFINITY, INFINITY, 0, 0
    SET(stage, 'i', 0, 3, 0, 0),
    SET(micro_steps, 'i', 0, INFINITY, 1, 0),
    SET(accumulation, 'i', 0, 2, ZERO_ACCUMULATE_LOCAL, 0),
    SET(type, 'i', 0, 2, 0, 0),
    SET(grads, 'i', 0, 2, ZERO_GRAD_F32, 0),
    SET(master, 'i', 0, 3, ZERO_MASTER_F32, 0),
    SET(state_type, 'i', 0, 2, 0, 0),
    SET(seed, 'u', 0, INFINITY, 0, 0),
    SET(optimizer, 'i', 0, 7, 0, 0),
    SET(scaler.fixed, 'f', 0, INFINITY, 1, 0),
    SET(scaler.initial, 'f', 0, INFINITY, 65536, 0),
    SET(scaler.minimum, 'f', 0, INFINITY, 1, 0),
    SET(scaler.window, 'i', 0, INFINITY, 1000, 0),
    SET(scaler.hysteresis, 'i', 0, INFINITY, 2, 0),
    SET(scaler.consecutive_hysteresis, 'i', ANY),
    SET(prefetch, 'i', ZERO_NONE, 64, 1, 0),
    SET(bucket_numel, 'u', 0, INFINITY, 0, 0),
    SET(persistence_numel, 'l', ZERO_NONE, INFINITY, 0, 0),
    SET(open_units, 'i', ZERO_ALL, 1 << 20, 0, 0),
    SET(optimizer_tier, 'i', 0, 2, 0, 0),
    SET(gradient_tier, 'i', 0, 2, 0, 0),
    SET(parameter_tier, 'i', 0, 2, 0, 0),
    SET(offload_share, 'f', 0, 1, 1, 0),
    SET(no_file_check, 'i', ANY),
    SET(delay_from, 'i', 0, INFINITY, 0, 0),
    SET(update_on, 'i', 0, 2, 0, 1),
    SET(link_gbs, 'f', 0, 1e6, 25, 1),
    SET(memory_gbs, 'f', 0, 1e6, 60, 1),
    SET(no_overlap, 'i', ANY),
    SET(no_overflow_check, 'i', ANY),
    SET(no_mapping, 'i', ANY),
    SET(threads, 'i', 0, INFINITY, -1, 1), /* -1: the processors' */
    SET(trust_least, 'f', 0, INFINITY, 0, 0),
    SET(trust_most, 'f', 0, INFINITY, 0, 0),
    SET(muon.momentum, 'f', 0, 0.99999994, 0.95f, 0),
    SET(muon.plain_lr, 'f', 0, INFINITY, 1, 0),
    SET(muon.iterations, 'i', 0, 99, 5, 0),
    SET(muon.match_rms, 'i', ANY),
    SET(muon.no_nesterov, 'i', ANY),
    SET(muon.polar_express, 'i', ANY),
    SET(muon.normalize, 'f', 0, 0.99999994, 0, 0),
    SET(world, 'u', 0, INFINITY, 0, 1), /* this pointer and the next two */
    SET(joins, 'u', 0, INFINITY, 0, 1),
    SET(trace, 'u', 0, INFINITY, 0, 1),
    SET(world_units, 'i', 0, 1 << 20, 0, 0),
    SET(divisor, 'i', 0, INFINITY, 0, 0),
    SET(shard_ranks, 'i', 0, INFINITY, 0, 0),
    SET(second_ranks, 'i', 0, INFINITY, 0, 0),
    SET(weight_bits, 'i', 0, INFINITY, 0, 0),
    SET(frozen_weight_bits, 'i', 0, INFINITY, 0, 0),
    SET(virtual_ranks, 'i', 0, 1 << 20, 0, 0),
    SET(integrity, 'i', 0, 1, 0, 0),
    SET(gradient_bits, 'i', 0, INFINITY, 0, 0),
    SET(feedback, 'f', 0, 0.99999994, 0, 0),
    SET(feedback_reset, 'i', 0, INFINITY, 0, 0),
    SET(timeout_s, 'd', 0, INFINITY, 600, 0)};

static void unit_set(zero_config *cfg, const struct unit_setting *s, double value) {
    void *at = (char *)cfg + s->at;
    if (s->form == 'i') *(int *)at = (int)value;
    if (s->form == 'l') *(int64_t *)at = (int64_t)value;
    if (s->form == 'f') *(float *)at = (float)value;
    if (s->form == 'd') *(double *)at = value;
}

/* Returns the number of a setting among those of the core and of all rows; -1: there is none. */
static int unit_find_setting(const zero_ctx *z, size_t at) {
    const zp_setting *s;
    for (int i = 0; (s = zp_extra_setting(z, i)) != NULL; i++)
        if (s->at == at) return i;
    return -1;
}

static void unit_settings(void) {
    enum { SETTINGS = sizeof unit_setting / sizeof *unit_setting };
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_ctx *plain = small_create(NULL);
    char line[ZP_MAIL_BYTES], what[160], high[32];
    test_check(zp_extra_setting(plain, SETTINGS - 1) && !zp_extra_setting(plain, SETTINGS),
               "%d settings", (int)SETTINGS);
    for (int i = 0; i < SETTINGS; i++) {
        const struct unit_setting *s = &unit_setting[i];
        const int real = s->form == 'f' || s->form == 'd';
        const int n = unit_find_setting(plain, s->at);
        if (!test_check(n >= 0, "no setting %s", s->name)) continue;
        const double zero = zp_config_get_setting(zp_extra_setting(plain, n), &plain->cfg);
        const double value[] = {s->least - 1, s->least, s->most,
                                real ? 1.5 * s->most : s->most + 1};
        test_check(zp_line_of_setting(plain, n, line, sizeof line) && (line[0] == 0) == s->differs
                       && (s->zero < 0 ? zero > 0 : zero == s->zero),
                   "%s: 0 is %g, ranks are told \"%s\"", s->name, zero, line);
        for (int k = 0; k < 4; k++) {
            if (isinf(value[k]) || s->form == 'u') continue;
            zero_config cfg = {.log = test_quiet};
            zero_ctx *z = NULL;
            unit_set(&cfg, s, value[k]);
            const int refused = zero_create(&z, &cfg, &comm) != ZERO_OK;
            snprintf(high, sizeof high, isinf(s->most) ? " or more" : "..%.9g", s->most);
            snprintf(what, sizeof what, "rank 0 of 1: %s is %.15g, expected %s%g%s", s->name,
                     real ? (double)(float)value[k] : value[k], real ? "a finite number, " : "",
                     s->least, high);
            const int said = strstr(zero_last_error(z), what) != NULL;
            test_check(k % 3 ? !said : refused && said, "%s, not \"%s\"", what, zero_last_error(z));
            zero_destroy(z);
        }
    }
    zero_destroy(plain);
}

/* A rule's row says what it reads; the rest of zero_hyper may be anything. */
static void unit_rules_read(void) {
    static const char *const names[] = {"adamw", "adam",    "sgd",  "nesterov",
                                        "lion",  "adagrad", "lamb", "muon"};
    static const int reads[] = {7, 7, 1, 1, 3, 4, 7, 7}; /* beta1, beta2, eps */
    static const float bad[] = {-1, NAN, INFINITY};
    for (int i = 0; i < 8; i++) {
        const zp_rule *rule = zp_rules[i].passes ? &zp_rules[i] : &zp_whole_rules[i - ZERO_LAMB];
        test_check(!strcmp(rule->name, names[i]), "rule %d is %s", i, rule->name);
        for (int k = 0; k < 9; k++) {
            zero_hyper h = {1, 0.9f, 0.9f, 1e-8f, 0.1f, 1};
            *(k / 3 == 0 ? &h.beta1 : k / 3 == 1 ? &h.beta2 : &h.eps) = bad[k % 3];
            test_check(zp_rule_accepts(rule, &h) == !(reads[i] >> k / 3 & 1), "%s takes %g as %d",
                       names[i], (double)bad[k % 3], k / 3);
        }
        for (int k = 0; k < 9; k++) { /* all read these; any max_norm from 0 on is one */
            zero_hyper h = {1, 0.9f, 0.9f, 1e-8f, 0.1f, 1};
            *(k / 3 == 0 ? &h.lr : k / 3 == 1 ? &h.weight_decay : &h.max_norm) = bad[k % 3];
            test_check(zp_rule_accepts(rule, &h) == (k == 8), "%s takes %g as %d", names[i],
                       (double)bad[k % 3], 3 + k / 3);
        }
    }
}

/* A host whose thread flushes denormal numbers is told, once; others hear nothing. */
static void unit_hear(void *user, zero_log_level level, const char *sentence) {
    *(int *)user += level == ZERO_LOG_WARNING && strstr(sentence, "-Ofast") ? 1 : 100;
}

static void unit_flushes(void) {
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    for (int flushes = 0; flushes < 2; flushes++) {
        int heard = 0;
        zero_ctx *z = NULL;
        zero_config cfg = {.log = unit_hear, .log_user = &heard};
        lane_flush(flushes);
        const zero_result r = zero_create(&z, &cfg, &comm);
        lane_flush(0);
        test_check(!r && heard == flushes, "flushes %d: heard %d", flushes, heard);
        zero_destroy(z);
    }
}

/* A copy that lacks a capability refuses the settings that need it, and takes their defaults. */
static void unit_parts(void) {
    static const char *const parts[] = {"offload", "muon", "groups", "subgroups", "packed"};
    zero_ctx *z = small_create(NULL);
    char expected[200];
    for (int i = 0; i < 5; i++) test_check(zp_extra_find(z, parts[i]) != NULL, "%s", parts[i]);
    zp_extra *const all = z->extras;
    zp_missing_setting missing[64];
    zp_extra none[1];
    int n = 0;
    memset(missing, 0, sizeof missing);
    memset(none, 0, sizeof none);
    for (const zp_extra *x = all; x->name; x++)
        for (const zp_setting *s = x->settings; s && s->name && n < 63; s++) {
            missing[n].part = x->name;
            missing[n++].setting = *s;
        }
    test_check(n > 20, "%d settings of parts", n);
    z->extras = none;
    test_check(!zp_extra_resolve_settings(z, missing), "defaults: %s", zero_last_error(z));
    for (int i = 0; i < n; i++) {
        const zero_config was = z->cfg;
        const zp_setting *s = &missing[i].setting;
        zp_config_set_setting(s, &z->cfg, s->form == ZP_REAL ? 0.5 : 7);
        const zero_result r = zp_extra_resolve_settings(z, missing);
        snprintf(expected, sizeof expected,
                 "%s: this copy of the plugin lacks \"%s\"; make drop DIR=... WITH=\"... %s\"",
                 s->name, missing[i].part, missing[i].part);
        test_check(r == ZERO_ERR_UNSUPPORTED && strstr(zero_last_error(z), expected), "%s: %d, %s",
                   s->name, (int)r, zero_last_error(z));
        z->cfg = was;
    }
    z->extras = all;
    zero_destroy(z);
}

/* Random numbers of a context go on from the counters that were set. */
static void unit_taken(void) {
    const zero_counters good = {7, 3, 5, 2, 1, 1};
    zero_ctx *z = small_build(NULL);
    test_check(!zero_state_begin(z) && !zero_state_set_counters(z, &good) && !zero_state_end(z, 1)
                   && z->taken == 10,
               "7 steps and 3 skipped ones: %d taken", (int)z->taken);
    zero_destroy(z);
}

static void unit_settings_all(void) {
    unit_settings();
    unit_parts();
    unit_rules_read();
    unit_flushes();
    unit_taken();
}

#endif
