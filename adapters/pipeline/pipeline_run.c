/* pipeline_run.c - see pipeline_run.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "pipeline_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "pipeline_lane.h"

struct pipeline_run {
    pipeline_lane *lane;
    pipeline_times times;
    zero_result result; /* the first error */
    /* of the current step */
    const pipeline_plan *plan;
    char *memory;
    size_t bytes;
};

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

zero_result pipeline_open(pipeline_run **run, zero_group *stages, void *computes, void *wires,
                          char *why) {
    pipeline_run *made = (pipeline_run *)calloc(1, sizeof *made);
    *run = NULL;
    why[0] = '\0';
    if (made != NULL) made->lane = pipeline_lane_open(stages, computes, wires);
    if (made != NULL && made->lane != NULL) {
        *run = made;
        return ZERO_OK;
    }
    free(made);
    (void)snprintf(why, PIPELINE_SENTENCE, "no memory, or no thread, for a pipeline's messages");
    return ZERO_ERR_MEMORY;
}

void pipeline_close(pipeline_run *run) {
    if (run == NULL) return;
    pipeline_lane_close(run->lane);
    free(run);
}

static void *buffer_at(char *memory, size_t bytes, int buffer) {
    return buffer < 0 ? NULL : memory + (size_t)buffer * bytes;
}

static int exchange_after(const void *user, int x) {
    return ((const pipeline_run *)user)->plan->exchange[x].after;
}

static int exchange_list(const void *user, int x, zero_message list[PIPELINE_MESSAGES]) {
    const pipeline_run *run = (const pipeline_run *)user;
    const pipeline_exchange *e = &run->plan->exchange[x];
    for (int i = 0; i < e->count; i++) {
        const pipeline_message *m = &run->plan->message[e->first + i];
        list[i].peer = m->peer;
        list[i].sends = m->sends;
        list[i].data = run->memory + (size_t)m->buffer * run->bytes;
        list[i].bytes = run->bytes;
    }
    return e->count;
}

static zero_result do_work(const pipeline_work *w, const pipeline_functions *stage, char *memory,
                           size_t bytes) {
    void *in = buffer_at(memory, bytes, w->input);
    if (w->backward)
        return stage->backward(stage->user, w, in, buffer_at(memory, bytes, w->gradient));
    return stage->forward(stage->user, w, in, buffer_at(memory, bytes, w->output));
}

static zero_result do_works(pipeline_run *run, const pipeline_plan *plan,
                            const pipeline_functions *stage, char *memory, size_t bytes) {
    double before = now_s();
    for (int i = 0; i < plan->works; i++) {
        const pipeline_work *w = &plan->work[i];
        ZERO_TRY(pipeline_lane_await(run->lane, w->needs));
        const double begins = now_s();
        ZERO_TRY(do_work(w, stage, memory, bytes));
        const double ends = now_s();
        run->times.waited_s += begins - before;
        run->times.busy_s += ends - begins;
        before = ends;
        ZERO_TRY(pipeline_lane_done(run->lane, i + 1));
    }
    return ZERO_OK;
}

zero_result pipeline_step(pipeline_run *run, const pipeline_plan *plan,
                          const pipeline_functions *stage, void *memory, size_t bytes) {
    const pipeline_exchanges exchanges = {plan->exchanges, exchange_after, exchange_list, run};
    if (run->result) return run->result;
    run->plan = plan;
    run->memory = (char *)memory;
    run->bytes = bytes;
    pipeline_lane_begin(run->lane, &exchanges);
    run->result = do_works(run, plan, stage, (char *)memory, bytes);
    const double before = now_s();
    const zero_result ended = pipeline_lane_end(run->lane, run->result != ZERO_OK);
    run->times.waited_s += now_s() - before;
    if (!run->result) run->result = ended;
    return run->result;
}

void pipeline_query_times(const pipeline_run *run, pipeline_times *times) { *times = run->times; }
