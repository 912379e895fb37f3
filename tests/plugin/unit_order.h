/* unit_order.h - the order in which units are gathered, and the buffers that they share.
   A part of test_unit.c, which includes the plugin. */
#ifndef TEST_UNIT_ORDER_H
#define TEST_UNIT_ORDER_H

static int unit_trace_is(const zp_order *t, int at, const char *units) {
    const int n = (int)strlen(units);
    if (t->n != n || t->at != at) return 0;
    for (int i = 0; i < n; i++)
        if (t->unit[i] != units[i] - '0') return 0;
    return 1;
}

static void unit_trace(void) {
    int list[8], soon[8];
    zp_order t = {list, 0, 0, 8, NULL, 0, 0, 0};
    for (int u = 0; u < 4; u++) zp_order_visit(&t, u);
    zp_order_visit(&t, 3);
    zp_order_visit(&t, 0);
    test_check(unit_trace_is(&t, 6, "012330"), "a first pass is written down");
    test_check(zp_order_ahead(&t, 0, 3, soon) == 0, "nothing after the end");
    test_check(zp_order_ahead(&t, 1, 3, soon) == 3 && soon[0] == 0 && soon[2] == 2,
               "around the end");
    t.at = 0;
    zp_order_visit(&t, 0);
    test_check(unit_trace_is(&t, 1, "012330"), "as expected");
    test_check(zp_order_ahead(&t, 0, 5, soon) == 4 && soon[0] == 1 && soon[3] == 0,
               "distinct units ahead");
    test_check(zp_order_ahead(&t, 0, 0, soon) == 0 && zp_order_ahead(&t, 0, 2, soon) == 2,
               "at most max");
    zp_order_visit(&t, 3);
    test_check(unit_trace_is(&t, 2, "0330"), "units that are skipped are taken out");
    zp_order_visit(&t, 7);
    test_check(unit_trace_is(&t, 3, "03730"), "an unexpected unit is put in");
    for (int i = 0; i < 9; i++) zp_order_visit(&t, 9 - i);
    test_check(t.n <= t.cap && t.at <= t.n, "a full trace stays within its memory");
    t.n = t.at = 0;
    test_check(zp_order_ahead(&t, 1, 4, soon) == 0, "an empty trace has nothing ahead");
}

static void unit_pool(void) {
    zp_buffer buffer[4];
    int held_by[10] = {0};
    zp_buffers p = {buffer, 0, 0, held_by, 0, 0};
    const int soon[] = {4, 1};
    test_check(zp_plan_add_buffer(&p, 100, 1, 0) == 0 && zp_plan_add_buffer(&p, 10, 0, 0) == 1
                   && zp_plan_add_buffer(&p, 10, 0, 0) == 2 && p.bytes == 120
                   && buffer[2].at == 110,
               "buffers");
    memset(&buffer[3], 0, sizeof buffer[3]);
    for (int i = 0; i < 3; i++) buffer[i].open = 0, buffer[i].used = 0;
    test_check(zp_buffer_take(&p, 9, 0, NULL, 0) == 1 && zp_buffer_find(&p, 9) == 0,
               "a buffer of its own");
    test_check(zp_buffer_take(&p, 9, 0, NULL, 0) == 0 && zp_buffer_find(&p, 9) == 0,
               "holds its unit");
    test_check(zp_buffer_take(&p, 1, -1, NULL, 0) == 1 && zp_buffer_find(&p, 1) == 1,
               "a shared buffer");
    test_check(zp_buffer_take(&p, 2, -1, NULL, 0) == 1 && zp_buffer_find(&p, 2) == 2,
               "the other one");
    test_check(zp_buffer_take(&p, 1, -1, NULL, 0) == 0 && zp_buffer_find(&p, 1) == 1,
               "holds unit 1");
    test_check(zp_buffer_take(&p, 3, -1, NULL, 0) == 1 && zp_buffer_find(&p, 3) == 2,
               "the one used longest ago goes");
    test_check(zp_buffer_take(&p, 4, -1, soon, 2) == 1 && zp_buffer_find(&p, 4) == 2,
               "a unit that is wanted soon stays");
    buffer[2].open = buffer[1].open = 1;
    test_check(zp_buffer_take(&p, 5, -1, NULL, 0) == -1, "open buffers stay");
    test_check(zp_buffer_find(&p, 4) == 2 && zp_buffer_find(&p, 5) == -1, "who is where");
    zp_buffer_forget_all(&p);
    test_check(zp_buffer_find(&p, 4) == -1 && zp_buffer_find(&p, 9) == -1, "forgotten");
    buffer[1].open = buffer[2].open = 0;
    for (int u = 1; u <= 2; u++) {
        (void)zp_buffer_take(&p, u, -1, NULL, 0);
        zp_buffer_hold(&p, u, 1);
    }
    const int first = zp_buffer_find(&p, 2);
    for (int u = 2; u >= 1; u--) zp_buffer_hold(&p, u, -1);
    test_check(zp_buffer_take(&p, 3, -1, NULL, 0) == 1 && zp_buffer_find(&p, 3) == first,
               "the one let go longest ago goes");
}

/* What is expected before a pass was seen: up, unit 0 once more, then unit 0 and down. */
static void unit_expected(void) {
    static const int order[] = {0, 1, 2, 0, 0, 2, 1};
    const zero_config cfg = {.stage = 3};
    zero_ctx *z = small_build(&cfg);
    const zp_order *t = &z->order[ZERO_TRAIN];
    test_check(t->n == 7 && !memcmp(t->unit, order, sizeof order), "%d gathers are expected", t->n);
    zero_destroy(z);
}

/* Of three nested backwards two want parameters: the last of the two that ends releases them. */
static void unit_nested(void) {
    const zero_config cfg = {.stage = 3};
    zero_ctx *z = small_build(&cfg);
    host_pointers p, g;
    const int *opens = &z->live[0].parameter_opens;
    test_check(!zero_bind(z, &p, &g) && !zero_pass_begin(z, ZERO_TRAIN, 0, 1), "a pass");
    test_check(!zero_backward_begin(z, 0, &p, &g) && !zero_backward_begin(z, 0, NULL, &g)
                   && !zero_backward_begin(z, 0, &p, &g) && *opens == 2,
               "three nested backwards: %d keep parameters", *opens);
    test_check(!zero_backward_end(z, 0) && *opens == 1 && !zero_backward_end(z, 0) && *opens == 1
                   && !zero_backward_end(z, 0) && *opens == 0,
               "three ends: %d keep parameters", *opens);
    zero_destroy(z);
}

/* Small units fill no bucket: unit 0's buffer is taken while its reduction is pending. */
static void unit_small_first(test_rank *r) {
    enum { SMALL = 8, LARGE = 4000 };
    const zero_tensor_desc small = {"small", 64, .layers = SMALL},
                           large = {"large", LARGE, 3, .unit = SMALL, .field = sizeof(float *)};
    const zero_config cfg = {.stage = 2, .bucket_numel = LARGE + 100, .timeout_s = 5};
    const zero_comm comm = test_comm(r);
    zero_ctx *z = NULL;
    host_pointers p, g;
    float seen[64 * SMALL];
    int ok = !zero_create(&z, &cfg, &comm) && !zero_tensor(z, &small) && !zero_tensor(z, &large);
    ok = ok && !zero_build(z) && !zero_bind(z, &p, &g) && !zero_pass_begin(z, ZERO_TRAIN, 0, 1);
    for (int u = 0; u < SMALL + 3 && ok; u++)
        ok = !zero_forward_begin(z, u, &p) && !zero_forward_end(z, u);
    for (int u = 0; u < SMALL + 3 && ok; u++) {
        ok = !zero_backward_begin(z, u, &p, &g);
        float *to = u < SMALL ? (float *)(void *)g.field[0] + 64 * u
                              : (float *)(void *)g.field[1] + LARGE * (u - SMALL);
        for (int i = 0; i < (u < SMALL ? 64 : LARGE) && ok; i++) to[i] += (float)(u + 1);
        ok = ok && !zero_backward_end(z, u);
    }
    if (ok && z->pool[ZP_GRAD].n > SMALL) test_rank_fail(r, "%d buffers", z->pool[ZP_GRAD].n);
    ok = ok && !zero_pass_end(z) && !zero_reduce(z)
         && !zero_read_tensor(z, "small", ZERO_GRADIENT, 0, 64 * SMALL, seen);
    for (int i = 0; i < 64 * SMALL && ok; i++)
        if (seen[i] != (float)(i / 64 + 1))
            test_rank_fail(r, "unit %d: %g", i / 64, (double)seen[i]);
    if (!ok) test_rank_fail(r, "%s", zero_last_error(z));
    zero_destroy(z);
}

static void unit_order_all(void) {
    unit_trace();
    unit_pool();
    unit_expected();
    unit_nested();
    test_check(test_ranks(2, 0, unit_small_first, NULL), "small units first: %s", test_first);
}

#endif
