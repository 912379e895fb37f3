/* pipeline_lane.c - pipeline_lane.h on the CPU: a thread that sleeps while it has no exchanges. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "pipeline_lane.h"

#include <pthread.h>
#include <stdlib.h>

struct pipeline_lane {
    zero_group *group;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t worked, exchanged; /* the lane waits for `worked`, its owner for `exchanged` */
    pipeline_exchanges plan;          /* count 0: none runs */
    int works, exchanges;             /* completed, of the plan */
    int busy;                         /* 1: inside an exchange */
    int broken, quits;
    zero_result result;
};

/* Returns 1 if an exchange can begin. The caller holds the lock. */
static int has_exchange(const pipeline_lane *n) {
    return !n->broken && !n->result && n->exchanges < n->plan.count
           && n->plan.after(n->plan.user, n->exchanges) <= n->works;
}

/* Runs the next exchange. Releases the lock while it sends and receives. */
static void exchange(pipeline_lane *n) {
    zero_message list[PIPELINE_MESSAGES];
    const int count = n->plan.list(n->plan.user, n->exchanges, list);
    n->busy = 1;
    pthread_mutex_unlock(&n->lock);
    const zero_result result = zero_group_send_receive(n->group, list, count);
    pthread_mutex_lock(&n->lock);
    n->busy = 0;
    n->result = result;
    if (!result) n->exchanges++;
    pthread_cond_signal(&n->exchanged);
}

static void *lane_main(void *lane) {
    pipeline_lane *n = (pipeline_lane *)lane;
    pthread_mutex_lock(&n->lock);
    while (!n->quits) {
        if (has_exchange(n))
            exchange(n);
        else
            pthread_cond_wait(&n->worked, &n->lock);
    }
    pthread_mutex_unlock(&n->lock);
    return NULL;
}

pipeline_lane *pipeline_lane_open(zero_group *group, void *computes, void *wires) {
    pipeline_lane *n = (pipeline_lane *)calloc(1, sizeof *n);
    (void)computes;
    (void)wires;
    if (n == NULL) return NULL;
    n->group = group;
    pthread_mutex_init(&n->lock, NULL);
    pthread_cond_init(&n->worked, NULL);
    pthread_cond_init(&n->exchanged, NULL);
    if (pthread_create(&n->thread, NULL, lane_main, n) == 0) return n;
    free(n);
    return NULL;
}

void pipeline_lane_close(pipeline_lane *n) {
    if (n == NULL) return;
    pthread_mutex_lock(&n->lock);
    n->quits = 1;
    pthread_cond_signal(&n->worked);
    pthread_mutex_unlock(&n->lock);
    pthread_join(n->thread, NULL);
    pthread_cond_destroy(&n->exchanged);
    pthread_cond_destroy(&n->worked);
    pthread_mutex_destroy(&n->lock);
    free(n);
}

void pipeline_lane_begin(pipeline_lane *n, const pipeline_exchanges *plan) {
    pthread_mutex_lock(&n->lock);
    n->plan = *plan;
    n->works = n->exchanges = 0;
    pthread_cond_signal(&n->worked);
    pthread_mutex_unlock(&n->lock);
}

zero_result pipeline_lane_done(pipeline_lane *n, int works) {
    pthread_mutex_lock(&n->lock);
    const zero_result result = n->result;
    n->works = works;
    if (has_exchange(n)) pthread_cond_signal(&n->worked);
    pthread_mutex_unlock(&n->lock);
    return result;
}

zero_result pipeline_lane_await(pipeline_lane *n, int exchanges) {
    pthread_mutex_lock(&n->lock);
    while (n->exchanges < exchanges && !n->result) pthread_cond_wait(&n->exchanged, &n->lock);
    const zero_result result = n->result;
    pthread_mutex_unlock(&n->lock);
    return result;
}

zero_result pipeline_lane_end(pipeline_lane *n, int broken) {
    pthread_mutex_lock(&n->lock);
    n->broken = n->broken || broken;
    while (n->busy || (!n->broken && !n->result && n->exchanges < n->plan.count))
        pthread_cond_wait(&n->exchanged, &n->lock);
    n->plan.count = 0;
    const zero_result result = n->result;
    pthread_mutex_unlock(&n->lock);
    return result;
}
