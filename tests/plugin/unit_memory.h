/* unit_memory.h - a peer's file in shared memory, and what ranks report if one calls another
   function, or writes past its gradients. A part of test_unit.c, which includes the plugin. */
#ifndef TEST_UNIT_MEMORY_H
#define TEST_UNIT_MEMORY_H

static void unit_pieces(void) {
    const int fd = zp_shared_memory_make_file(4096);
    const zp_piece mine = zp_process_piece_of(fd);
    zp_piece other = mine;
    const int found = zp_process_open_piece(&mine);
    test_check(found >= 0, "one's own file is found");
    (void)close(found);
    other.device++;
    test_check(zp_process_open_piece(&other) == -1, "the same inode of another device");
    other = mine;
    other.inode++;
    test_check(zp_process_open_piece(&other) == -1, "another inode");
    (void)close(fd);
}

/* Two ranks, of which the second does something wrong: it skips a step that the other one takes, or
   writes past the end of a gradient. */
typedef struct unit_wrong {
    int overruns;
    int wrote; /* atomic: the second rank has written */
    zero_result result[2];
    char text[2][600];
} unit_wrong;

/* Writes past `g`, the last gradient in memory, up to the end of this rank's verdict, after that is
   complete and before the other rank reads it. */
static void unit_overrun(zero_ctx *z, float *g, unit_wrong *w, test_rank *r) {
    double scale = 0;
    while (scale == 0) __atomic_load(&z->verdict[ZP_SCALE], &scale, __ATOMIC_ACQUIRE);
    const size_t n = (size_t)((float *)(void *)(z->verdict + ZP_VERDICT) - g);
    if (n > 300) test_rank_fail(r, "the verdict is %zu numbers after the gradient", n);
    for (size_t i = 27; i < n && n <= 300; i++) g[i] = 3e-5f;
    __atomic_store_n(&w->wrote, 1, __ATOMIC_RELEASE);
}

static zero_result unit_wrong_run(host_run *h, unit_wrong *w) {
    double norm;
    const int second = h->rank->rank == 1;
    if (!w->overruns) {
        (void)host_train_pass(h);
        ZERO_TRY(zero_reduce(h->z));
        ZERO_TRY(second ? zero_skip_step(h->z) : zero_step(h->z, &h->spec->adamw));
    }
    (void)host_train_pass(h);
    while (w->overruns && !second && !__atomic_load_n(&w->wrote, __ATOMIC_ACQUIRE)) zp_nap();
    ZERO_TRY(zero_reduce(h->z));
    if (w->overruns && second) unit_overrun(h->z, (float *)(void *)h->grads.field[3], w, h->rank);
    return zero_norm(h->z, &norm);
}

static void unit_wrong_rank(test_rank *r) {
    unit_wrong *w = (unit_wrong *)r->arg;
    host_spec s;
    host_run h;
    small_spec(&s, 2, 1);
    s.cfg.timeout_s = 20;
    w->result[r->rank] = host_open(&h, &s, r) ? unit_wrong_run(&h, w) : ZERO_ERR_STATE;
    snprintf(w->text[r->rank], sizeof w->text[0], "%s", zero_last_error(h.z));
    zero_destroy(h.z);
}

/* All ranks report which calls differ, or that what they compare was overwritten. */
static void unit_differences(void) {
    static const char *const what[2] = {
        "at an earlier step rank 0 called zero_step, rank 1 zero_skip_step",
        "the values that rank 0 and rank 1 compare, which follow the gradients, were overwritten"};
    for (int overruns = 0; overruns < 2; overruns++) {
        unit_wrong w = {.overruns = overruns};
        test_check(test_ranks(2, 0, unit_wrong_rank, &w), "%s", test_first);
        for (int i = 0; i < 2; i++)
            test_check(w.result[i] == ZERO_ERR_MISMATCH && strstr(w.text[i], what[overruns]),
                       "rank %d: %d, %s, expected \"%s\"", i, (int)w.result[i], w.text[i],
                       what[overruns]);
    }
}

static void unit_memory_all(void) {
    unit_pieces();
    unit_differences();
}

#endif
