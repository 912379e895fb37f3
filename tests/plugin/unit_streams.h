/* unit_streams.h - streams and events on the CPU, and how long a rank that waits sleeps.
   A part of test_unit.c, which includes the plugin. */
#ifndef TEST_UNIT_STREAMS_H
#define TEST_UNIT_STREAMS_H

static void unit_push_gate(zp_stream *s, lane_gate *g) {
    (void)zp_device_push_task(s, lane_gate_task, &g, sizeof g, 0);
}

static void unit_push_note(zp_stream *s, int *list, int *n, int value) {
    const lane_note a = {list, n, value};
    (void)zp_device_push_task(s, lane_note_task, &a, sizeof a, 0);
}

static void unit_events(void) {
    zp_device d;
    zp_stream a, b;
    zp_event e, never;
    lane_gate first = {0}, second = {0};
    int list[8], n = 0;
    (void)zp_device_open(&d);
    (void)zp_device_open_event(&d, &e);
    (void)zp_device_open_event(&d, &never);
    if (!test_check(!zp_device_open_stream(&a, &d, NULL, 1, 0, 1)
                        && !zp_device_open_stream(&b, &d, NULL, 1, 0, 1),
                    "streams"))
        return;
    (void)zp_device_wait_event(&b, &never);
    unit_push_note(&b, list, &n, 0);
    test_check(lane_arrives(&n, 1), "a wait on an event never recorded is no wait");
    unit_push_gate(&a, &first);
    (void)zp_device_wait_event(&b, &e); /* not recorded yet: no wait, though it will be */
    (void)zp_device_record_event(&a, &e);
    unit_push_note(&b, list, &n, 1);
    test_check(lane_arrives(&n, 2), "a record after the call does not bind");
    (void)zp_device_wait_event(&b, &e);
    unit_push_note(&b, list, &n, 2);
    unit_push_gate(&a, &second);
    (void)zp_device_record_event(&a, &e);
    test_check(lane_stays(&n, 2), "a wait holds the stream");
    lane_open_gate(&first);
    test_check(lane_arrives(&n, 3), "a wait binds to the last record before the call");
    (void)zp_device_wait_event(&b, &e);
    unit_push_note(&b, list, &n, 3);
    test_check(lane_stays(&n, 3), "and the next wait to the next record");
    lane_open_gate(&second);
    test_check(lane_arrives(&n, 4), "which completes");
    (void)zp_device_wait_event(&b, &e);
    unit_push_note(&b, list, &n, 4);
    test_check(lane_arrives(&n, 5), "a completed event holds nobody");
    (void)zp_device_sync_stream(&a);
    (void)zp_device_sync_stream(&b);
    zp_device_close_stream(&a);
    zp_device_close_stream(&b);
    zp_device_close_event(&e);
    zp_device_close(&d);
}

/* The compute stream is the caller: a wait of it blocks, and what it records is complete. */
static void unit_event_of_caller(void) {
    zp_device d;
    zp_stream s, a;
    zp_event mine, theirs;
    lane_gate gate = {0};
    int list[4], n = 0;
    (void)zp_device_open(&d);
    (void)zp_device_open_event(&d, &mine);
    (void)zp_device_open_event(&d, &theirs);
    s = unit_stream(&d, 1);
    if (!test_check(!zp_device_open_stream(&a, &d, NULL, 1, 0, 1), "a stream")) return;
    (void)zp_device_record_event(&s, &mine);
    (void)zp_device_wait_event(&a, &mine);
    unit_push_note(&a, list, &n, 0);
    test_check(lane_arrives(&n, 1), "an event of the caller is complete at once");
    unit_push_gate(&a, &gate);
    unit_push_note(&a, list, &n, 1);
    (void)zp_device_record_event(&a, &theirs);
    lane_open_gate(&gate);
    (void)zp_device_wait_event(&s, &theirs);
    test_check(__atomic_load_n(&n, __ATOMIC_ACQUIRE) == 2,
               "the caller waits for what was queued before");
    zp_device_close_stream(&a);
    zp_device_close(&d);
}

/* Who waits follows what waits take: it spins while they are short, naps for as long while they are
   not, and once again spins; one that is long alone changes little. */
static void unit_pace(void) {
    static const double waits[] = {20e-6, 400e-6, 60, 20e-6};
    static const double paces[] = {20e-6, 400e-6, 1e-3, 20e-6}; /* a nap takes 1 ms at most */
    static const double naps[] = {50e-6, 400e-6, 1e-3, 50e-6};
    double pace = 0;
    for (int i = 0; i < 4; i++) {
        for (int n = 0; n < 40; n++) pace = zp_mpi_nodes_next_pace(pace, waits[i]);
        test_check(fabs(pace / paces[i] - 1) < 1e-3
                       && zp_mpi_nodes_spins(pace) == (paces[i] < 50e-6),
                   "waits of %g s: pace %g, spins %d", waits[i], pace, zp_mpi_nodes_spins(pace));
        const double nap = zp_mpi_nodes_nap_seconds(pace, 0);
        test_check(fabs(nap / naps[i] - 1) < 1e-3, "pace %g: naps of %g s", pace, nap);
    }
    test_check(zp_mpi_nodes_next_pace(0, 60) <= 250e-6, "a late peer alone: pace %g",
               zp_mpi_nodes_next_pace(0, 60));
    test_check(zp_mpi_nodes_nap_seconds(20e-6, 8e-3) == 500e-6
                   && zp_mpi_nodes_nap_seconds(20e-6, 60) == 1e-3,
               "a peer that is late is looked for less and less often");
}

static void unit_streams_all(void) {
    unit_events();
    unit_event_of_caller();
    lane_all();
    unit_pace();
}

#endif
