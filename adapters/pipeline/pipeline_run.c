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
    if (run->result) return run->result;
    pipeline_lane_begin(run->lane, plan, (char *)memory, bytes);
    run->result = do_works(run, plan, stage, (char *)memory, bytes);
    const double before = now_s();
    const zero_result ended = pipeline_lane_end(run->lane, run->result != ZERO_OK);
    run->times.waited_s += now_s() - before;
    if (!run->result) run->result = ended;
    return run->result;
}

void pipeline_query_times(const pipeline_run *run, pipeline_times *times) { *times = run->times; }
