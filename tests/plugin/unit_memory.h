/* unit_memory.h - a peer's file in shared memory, and what is left when the ranks' agreement is
   overwritten. A part of test_unit.c, which includes the plugin. */
#ifndef TEST_UNIT_MEMORY_H
#define TEST_UNIT_MEMORY_H

static void unit_pieces(void) {
    const int fd = zp_shared_memory_make_file(4096);
    const zp_piece mine = zp_shared_memory_piece_of(fd);
    zp_piece other = mine;
    const int found = zp_shared_memory_open_piece(&mine);
    test_check(found >= 0, "one's own file is found");
    (void)close(found);
    other.device++;
    test_check(zp_shared_memory_open_piece(&other) == -1, "the same inode of another device");
    other = mine;
    other.inode++;
    test_check(zp_shared_memory_open_piece(&other) == -1, "another inode");
    (void)close(fd);
}

/* A backward that writes past its gradients reaches what the ranks agree on. */
static void unit_overwritten(void) {
    zero_ctx *z = small_build(NULL);
    z->report.differs = ZP_CALL;
    z->report.differs_rank = 1;
    z->report.differing[0] = 0;
    z->report.differing[1] = 2;
    test_check(zp_ctx_report_difference(z) == ZERO_ERR_MISMATCH
                   && strstr(zero_last_error(z), "rank 0 called none, rank 1 zero_skip_step"),
               "two calls: %s", zero_last_error(z));
    z->report.differing[1] = 3e-5;
    test_check(zp_ctx_report_difference(z) == ZERO_ERR_MISMATCH
                   && strstr(zero_last_error(z), "was overwritten: it lies after the gradients"),
               "no call: %s", zero_last_error(z));
    zero_destroy(z);
}

static void unit_memory_all(void) {
    unit_pieces();
    unit_overwritten();
}

#endif
