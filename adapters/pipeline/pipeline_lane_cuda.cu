/* pipeline_lane_cuda.cu - pipeline_lane.h on CUDA. The group's stream waits for an event of the
   computing stream, then runs the exchange and records an event for the works that need it.

   An exchange is enqueued as soon as the works of its `after` are enqueued, so it waits for the
   last event that the computing stream has recorded. */
#include "pipeline_lane.h"

#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

/* Number of events, used in rotation. Works wait for exchanges of the last few ticks, or for older
   ones that are done once a later one is done. */
enum { EVENTS = 64 };

struct pipeline_lane {
    zero_group *group;
    cudaStream_t computes, wires;
    cudaEvent_t worked, exchanged[EVENTS];
    pipeline_exchanges plan;
    int exchanges; /* enqueued */
    int awaited;   /* by the computing stream */
    zero_result result;
};

static int worked(pipeline_lane *n, cudaError_t e) {
    if (e != cudaSuccess && !n->result) n->result = ZERO_ERR_DEVICE;
    return e == cudaSuccess;
}

pipeline_lane *pipeline_lane_open(zero_group *group, void *computes, void *wires) {
    pipeline_lane *n = (pipeline_lane *)calloc(1, sizeof *n);
    if (n == NULL) return NULL;
    n->group = group;
    n->computes = (cudaStream_t)computes;
    n->wires = (cudaStream_t)wires;
    (void)worked(n, cudaEventCreateWithFlags(&n->worked, cudaEventDisableTiming));
    for (int i = 0; i < EVENTS && !n->result; i++)
        (void)worked(n, cudaEventCreateWithFlags(&n->exchanged[i], cudaEventDisableTiming));
    if (!n->result) return n;
    pipeline_lane_close(n);
    return NULL;
}

void pipeline_lane_close(pipeline_lane *n) {
    if (n == NULL) return;
    (void)cudaStreamSynchronize(n->wires);
    if (n->worked) (void)cudaEventDestroy(n->worked);
    for (int i = 0; i < EVENTS; i++)
        if (n->exchanged[i]) (void)cudaEventDestroy(n->exchanged[i]);
    free(n);
}

static void exchange(pipeline_lane *n) {
    zero_message list[PIPELINE_MESSAGES];
    const int count = n->plan.list(n->plan.user, n->exchanges, list);
    if (!worked(n, cudaStreamWaitEvent(n->wires, n->worked, 0))) return;
    const zero_result result = zero_group_send_receive(n->group, list, count);
    if (result && !n->result) n->result = result;
    if (!n->result)
        (void)worked(n, cudaEventRecord(n->exchanged[n->exchanges++ % EVENTS], n->wires));
}

static int begins(const pipeline_lane *n, int works) {
    return !n->result && n->exchanges < n->plan.count
           && n->plan.after(n->plan.user, n->exchanges) <= works;
}

zero_result pipeline_lane_done(pipeline_lane *n, int works) {
    if (begins(n, works)) (void)worked(n, cudaEventRecord(n->worked, n->computes));
    while (begins(n, works)) exchange(n);
    return n->result;
}

void pipeline_lane_begin(pipeline_lane *n, const pipeline_exchanges *plan) {
    n->plan = *plan;
    n->exchanges = n->awaited = 0;
    (void)pipeline_lane_done(n, 0);
}

/* A work never needs an exchange that depends on a later work: no plan contains that. */
zero_result pipeline_lane_await(pipeline_lane *n, int exchanges) {
    if (exchanges <= n->awaited || n->result) return n->result;
    const int at = exchanges + EVENTS > n->exchanges ? exchanges : n->exchanges;
    if (worked(n, cudaStreamWaitEvent(n->computes, n->exchanged[(at - 1) % EVENTS], 0)))
        n->awaited = at;
    return n->result;
}

zero_result pipeline_lane_end(pipeline_lane *n, int broken) {
    if (!broken && n->plan.count > 0) (void)pipeline_lane_await(n, n->plan.count);
    n->plan.count = 0;
    return n->result;
}
