/* checkpoint_meeting.c - how ranks agree, and how they wait for one another while disks are slow.
   A thread of each rank works on files. The calling threads of all ranks meet regularly until the
   work of all is done. So the plugin's time limit finds dead ranks, and a slow disk does not reach
   it. */
#include "checkpoint_inside.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- ranks ---- */

enum { CK_BOUNCE = 1 << 16 };

int ck_ranks_open(ck_ranks *r, zero_ctx *z, zero_group *world) {
    r->z = z;
    r->world = world;
    r->rank = world ? zero_group_rank(world) : zero_rank(z);
    r->n = world ? zero_group_size(world) : zero_nranks(z);
    r->bounce = world ? zero_host_alloc(CK_BOUNCE) : NULL;
    return !world || r->bounce;
}

void ck_ranks_close(ck_ranks *r) {
    zero_host_free(r->bounce);
    r->bounce = NULL;
}

zero_result ck_broadcast(const ck_ranks *r, void *data, size_t bytes, int root) {
    char *at = (char *)data;
    if (!r->world) return zero_broadcast(r->z, data, bytes, root);
    for (size_t n; bytes > 0; bytes -= n, at += n) {
        n = bytes < CK_BOUNCE ? bytes : CK_BOUNCE;
        if (r->rank == root) memcpy(r->bounce, at, n);
        ZERO_TRY(zero_group_broadcast(r->world, r->bounce, n, root));
        ZERO_TRY(zero_group_barrier(r->world)); /* waits for a device, too */
        if (r->rank != root) memcpy(at, r->bounce, n);
    }
    return ZERO_OK;
}

zero_result ck_sum(const ck_ranks *r, double *values, int n) {
    const size_t bytes = (size_t)n * sizeof *values;
    if (!r->world) return zero_all_sum(r->z, values, n);
    memcpy(r->bounce, values, bytes);
    ZERO_TRY(zero_group_all_reduce(r->world, r->bounce, (size_t)n, ZERO_F64, ZERO_SUM));
    ZERO_TRY(zero_group_barrier(r->world));
    memcpy(values, r->bounce, bytes);
    return ZERO_OK;
}

checkpoint_result ck_plugin(const ck_ranks *r, zero_result result, ck_error *e) {
    const char *why = r->world ? zero_group_error(r->world) : "";
    (void)ck_fail(e, CHECKPOINT_PLUGIN, "%s: %s", zero_result_string(result),
                  why[0] ? why : zero_last_error(r->z));
    e->number = (int)result;
    return e->code;
}

/* ---- work ---- */

int ck_work_open(ck_work *w, double timeout_s) {
    pthread_condattr_t attributes;
    w->done = 1;
    w->pause = timeout_s < 4 ? timeout_s / 4 : 1;
    if (pthread_condattr_init(&attributes)) return 0;
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    w->opened = pthread_mutex_init(&w->lock, NULL) == 0;
    if (w->opened && pthread_cond_init(&w->changed, &attributes)) {
        (void)pthread_mutex_destroy(&w->lock);
        w->opened = 0;
    }
    (void)pthread_condattr_destroy(&attributes);
    return w->opened;
}

void ck_work_close(ck_work *w) {
    if (!w->opened) return;
    (void)pthread_cond_destroy(&w->changed);
    (void)pthread_mutex_destroy(&w->lock);
}

static void *ck_work_thread(void *arg) {
    ck_work *w = (ck_work *)arg;
    (void)w->body(w->arg, &w->outcome);
    (void)pthread_mutex_lock(&w->lock);
    __atomic_store_n(&w->done, 1, __ATOMIC_RELEASE);
    (void)pthread_cond_signal(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
    return NULL;
}

void ck_work_begin(ck_work *w, ck_body body, void *arg, const ck_error *e) {
    w->body = body;
    w->arg = arg;
    w->outcome = *e;
    w->call = NULL;
    w->cancel = w->alone = 0;
    w->running = body != NULL && e->code == CHECKPOINT_OK;
    w->done = !w->running;
    if (w->done) return;
    const int failed = ck_thread_start(&w->thread, ck_work_thread, w);
    if (!failed) return;
    w->running = 0;
    w->done = 1;
    (void)ck_fail(&w->outcome, CHECKPOINT_MEMORY, "cannot start a thread: %s", strerror(failed));
}

checkpoint_result ck_work_ask(ck_work *w, ck_body body, void *arg, ck_error *e) {
    ck_call call = {body, arg, e};
    if (!w->running) return body(arg, e); /* this is the caller's thread */
    if (ck_given_up(w))
        return ck_fail(e, CHECKPOINT_FILES, "given up: another rank failed; see its message");
    (void)pthread_mutex_lock(&w->lock);
    w->call = &call;
    (void)pthread_cond_signal(&w->changed);
    while (w->call) (void)pthread_cond_wait(&w->changed, &w->lock);
    (void)pthread_mutex_unlock(&w->lock);
    return e->code;
}

int ck_given_up(const ck_work *w) { return __atomic_load_n(&w->cancel, __ATOMIC_ACQUIRE); }
int ck_alone(const ck_work *w) {
    return !w->running || __atomic_load_n(&w->alone, __ATOMIC_ACQUIRE);
}
int ck_work_done(const ck_work *w) { return __atomic_load_n(&w->done, __ATOMIC_ACQUIRE); }

/* Runs the calls of the work's thread until the work is done or the next meeting. 1: done. */
static int ck_work_serve(ck_work *w) {
    struct timespec end;
    const double until = ck_now() + w->pause;
    if (ck_work_done(w)) return 1;
    end.tv_sec = (time_t)until;
    end.tv_nsec = (long)(1e9 * (until - (double)end.tv_sec));
    (void)pthread_mutex_lock(&w->lock);
    for (int late = 0; !w->done && !late; late = ck_now() >= until) {
        if (w->call == NULL) (void)pthread_cond_timedwait(&w->changed, &w->lock, &end);
        if (w->call == NULL) continue;
        (void)w->call->body(w->call->arg, w->call->e);
        w->call = NULL;
        (void)pthread_cond_signal(&w->changed);
    }
    const int done = w->done;
    (void)pthread_mutex_unlock(&w->lock);
    return done;
}

static void ck_work_join(ck_work *w, ck_error *e) {
    while (!ck_work_serve(w)) continue;
    if (w->running) (void)pthread_join(w->thread, NULL);
    w->running = 0;
    *e = w->outcome;
}

/* ---- meetings ---- */

/* Broadcasts the error of the first rank that failed. */
static checkpoint_result ck_first(const ck_ranks *ranks, ck_error *e) {
    for (int r = 0; r < ranks->n; r++) {
        ck_error his = *e;
        const zero_result zr = ck_broadcast(ranks, &his, sizeof his, r);
        if (zr) return ck_plugin(ranks, zr, e);
        if (his.code == CHECKPOINT_OK) continue;
        *e = his;
        if (ranks->n > 1 && strncmp(his.text, "rank ", 5) != 0) /* reported at another meeting */
            (void)snprintf(e->text, sizeof e->text, "rank %d: %.*s", r, (int)sizeof his.text - 32,
                           his.text);
        break;
    }
    return e->code;
}

checkpoint_result ck_work_end(ck_work *w, const ck_ranks *ranks, ck_error *e) {
    double count[2]; /* ranks that are at work, and that failed */
    zero_result zr;
    int given_up = 0;
    do {
        const int done = w == NULL || ck_work_serve(w);
        count[0] = !done;
        count[1] = done && (w ? w->outcome.code : e->code) != CHECKPOINT_OK;
        zr = ck_sum(ranks, count, 2);
        if (done) continue;
        if (zr || count[1] > 0) given_up = 1;
        __atomic_store_n(&w->cancel, given_up, __ATOMIC_RELEASE);
        __atomic_store_n(&w->alone, count[0] == 1, __ATOMIC_RELEASE);
    } while (zr == ZERO_OK && count[0] > 0);
    if (w) ck_work_join(w, e);
    if (given_up) e->code = CHECKPOINT_OK; /* it did not fail by itself */
    if (zr) return ck_plugin(ranks, zr, e);
    return count[1] > 0 ? ck_first(ranks, e) : CHECKPOINT_OK;
}

checkpoint_result ck_agree(const ck_ranks *ranks, ck_error *e) {
    return ck_work_end(NULL, ranks, e);
}

checkpoint_result ck_together(ck_work *w, const ck_ranks *ranks, ck_body body, void *arg,
                              ck_error *e) {
    if (ranks->n == 1) return e->code || !body ? e->code : body(arg, e); /* no rank waits */
    ck_work_begin(w, body, arg, e);
    return ck_work_end(w, ranks, e);
}
