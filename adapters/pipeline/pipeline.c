/* pipeline.c - see pipeline.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "pipeline.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ticks that a work takes in the simulated schedule. */
enum { FORWARD_TICKS = 1, BACKWARD_TICKS = 2 };

int pipeline_check(const pipeline_shape *s, int layers, char *why, size_t bytes) {
    const int p = s->stages, v = s->chunks, m = s->micro;
    why[0] = '\0';
    if (p < 1 || v < 1 || m < 1)
        (void)snprintf(why, bytes,
                       "%d stages, %d chunks and %d micro-steps, expected at least 1 of each", p, v,
                       m);
    else if (p > layers)
        (void)snprintf(
            why, bytes,
            "%d stages need a block each, and the model has %d blocks; use at most %d stages", p,
            layers, layers);
    else if ((long long)p * v > layers)
        (void)snprintf(
            why, bytes,
            "%d stages of %d chunks need %lld blocks, and the model has %d; use at most %d chunk%s",
            p, v, (long long)p * v, layers, layers / p, layers / p > 1 ? "s" : "");
    else if (v > 1 && p == 1)
        (void)snprintf(why, bytes, "%d chunks of one stage: there is nothing to interleave", v);
    else if (v > 1 && m % p && !s->forward_only)
        (void)snprintf(why, bytes,
                       "with interleaved chunks the %d stages must divide the %d micro-steps; use "
                       "%d micro-steps",
                       p, m, (m + p - 1) / p * p);
    return why[0] != '\0';
}

/* ---- the order of a stage ------------------------------------------------------------------ */

static int pipeline_count_works(const pipeline_shape *s) {
    return (s->forward_only ? 1 : 2) * s->micro * s->chunks;
}

/* Returns the number of forwards that a stage runs before its first backward. */
static int pipeline_warm_up(const pipeline_shape *s, int stage) {
    const int all = s->micro * s->chunks, behind = s->stages - 1 - stage;
    const int wanted = s->chunks == 1 ? behind : 2 * behind + (s->chunks - 1) * s->stages;
    return wanted < all ? wanted : all;
}

/* Writes the chunk and micro-batch of forward or backward number k of a stage. Micro-batches come
   in groups of p, and each group passes one chunk after another. */
static void pipeline_number_work(const pipeline_shape *s, int backward, int k, pipeline_work *w) {
    const int whole = s->stages * s->chunks, group = k / whole, first = group * s->stages;
    const int left = s->micro - first, width = left < s->stages ? left : s->stages;
    const int chunk = (k - group * whole) / width;
    memset(w, 0, sizeof *w);
    w->backward = backward;
    w->chunk = backward ? s->chunks - 1 - chunk : chunk;
    w->micro = first + (k - group * whole) % width;
    w->slot = w->input = w->output = w->gradient = -1;
}

static void pipeline_order_works(const pipeline_shape *s, int stage, pipeline_work *work) {
    const int all = s->micro * s->chunks;
    const int early = s->forward_only ? all : pipeline_warm_up(s, stage);
    int n = 0, forwards = 0, backwards = 0;
    while (forwards < early) pipeline_number_work(s, 0, forwards++, &work[n++]);
    while (n < pipeline_count_works(s)) {
        if (forwards < all) pipeline_number_work(s, 0, forwards++, &work[n++]);
        pipeline_number_work(s, 1, backwards++, &work[n++]);
    }
}

int pipeline_in_flight(const pipeline_shape *s, int stage) {
    const int all = s->micro * s->chunks, early = pipeline_warm_up(s, stage);
    if (s->forward_only) return 1;
    return early + 1 < all ? early + 1 : all;
}

/* Returns the position in the model of chunk c of a stage. */
static int pipeline_position(const pipeline_shape *s, int stage, int c) {
    return c * s->stages + stage;
}
static int pipeline_is_first(const pipeline_shape *s, int stage, int c) {
    return pipeline_position(s, stage, c) == 0;
}
static int pipeline_is_last(const pipeline_shape *s, int stage, int c) {
    return pipeline_position(s, stage, c) == s->stages * s->chunks - 1;
}

int pipeline_sends(const pipeline_shape *s, int stage) {
    const int forward = s->chunks - pipeline_is_last(s, stage, s->chunks - 1);
    const int backward = s->forward_only ? 0 : s->chunks - pipeline_is_first(s, stage, 0);
    return s->micro * (forward + backward);
}

/* ---- the simulation ------------------------------------------------------------------------ */

/* The end of each work, as [backward][position in the model][micro-batch]; 0: not simulated yet. */
typedef struct sim {
    const pipeline_shape *s;
    int *end;
} sim;

static int *pipeline_end_of(const sim *y, int backward, int place, int micro) {
    const int places = y->s->stages * y->s->chunks;
    return &y->end[((size_t)backward * (size_t)places + (size_t)place) * (size_t)y->s->micro
                   + (size_t)micro];
}

/* Returns the tick at which the input of a work is ready, or a number below 0 if it is not known
 * yet. */
static int pipeline_ready_at(const sim *y, int stage, const pipeline_work *w) {
    const int place = pipeline_position(y->s, stage, w->chunk);
    const int last = y->s->stages * y->s->chunks - 1;
    int from;
    if (!w->backward && place == 0) return 0;
    if (!w->backward)
        from = *pipeline_end_of(y, 0, place - 1, w->micro);
    else
        from = place == last ? *pipeline_end_of(y, 0, place, w->micro)
                             : *pipeline_end_of(y, 1, place + 1, w->micro);
    return from > 0 ? from : -1;
}

/* Simulates the works of a stage from number *next on, until one has no input yet. */
static int pipeline_simulate_stage(sim *y, int stage, const pipeline_work *work, int *next,
                                   int *now) {
    const int before = *next;
    for (; *next < pipeline_count_works(y->s); (*next)++) {
        const pipeline_work *w = &work[*next];
        const int ready = pipeline_ready_at(y, stage, w);
        if (ready < 0) break;
        *now = (ready > *now ? ready : *now) + (w->backward ? BACKWARD_TICKS : FORWARD_TICKS);
        *pipeline_end_of(y, w->backward, pipeline_position(y->s, stage, w->chunk), w->micro) = *now;
    }
    return *next - before;
}

/* Simulates all stages. `own` receives the works of own_stage. */
static int pipeline_simulate(sim *y, int own_stage, pipeline_work *own) {
    const int p = y->s->stages, works = pipeline_count_works(y->s);
    pipeline_work *work = (pipeline_work *)calloc((size_t)p * (size_t)works, sizeof *work);
    int *next = (int *)calloc((size_t)p * 2, sizeof *next), moved = 1;
    const int failed = work == NULL || next == NULL;
    for (int stage = 0; stage < p && !failed; stage++)
        pipeline_order_works(y->s, stage, work + (size_t)stage * (size_t)works);
    while (moved && !failed) {
        moved = 0;
        for (int stage = 0; stage < p; stage++)
            moved += pipeline_simulate_stage(y, stage, work + (size_t)stage * (size_t)works,
                                             &next[stage], &next[p + stage]);
    }
    if (!failed) memcpy(own, work + (size_t)own_stage * (size_t)works, (size_t)works * sizeof *own);
    free(work);
    free(next);
    return failed;
}

/* ---- messages and exchanges ---------------------------------------------------------------- */

typedef struct timed_message {
    pipeline_message message;
    int at;
} timed_message;

/* Sorts by tick, then by work and direction, so that both sides have the same order. */
static int pipeline_compare(const void *a_, const void *b_) {
    const timed_message *a = (const timed_message *)a_, *b = (const timed_message *)b_;
    if (a->at != b->at) return a->at < b->at ? -1 : 1;
    if (a->message.work != b->message.work) return a->message.work < b->message.work ? -1 : 1;
    return b->message.sends - a->message.sends;
}

static void pipeline_set_message(timed_message *n, int peer, int sends, int work, int at) {
    n->message.peer = peer;
    n->message.sends = sends;
    n->message.work = work;
    n->message.buffer = -1;
    n->at = at;
}

/* Lists the messages that a work receives and sends. */
static int pipeline_list_messages(const sim *y, int stage, const pipeline_work *w, int number,
                                  timed_message *out) {
    const pipeline_shape *s = y->s;
    const int p = s->stages, place = pipeline_position(s, stage, w->chunk);
    const int up = (stage + 1) % p, down = (stage + p - 1) % p;
    const int first = pipeline_is_first(s, stage, w->chunk),
              last = pipeline_is_last(s, stage, w->chunk);
    const int from_end = w->backward ? last : first, to_end = w->backward ? first : last;
    int n = 0;
    if (!from_end)
        pipeline_set_message(&out[n++], w->backward ? up : down, 0, number,
                             pipeline_ready_at(y, stage, w));
    if (!to_end)
        pipeline_set_message(&out[n++], w->backward ? down : up, 1, number,
                             *pipeline_end_of(y, w->backward, place, w->micro));
    return n;
}

static void pipeline_group_messages(pipeline_plan *plan, const timed_message *timed, int n) {
    plan->messages = n;
    plan->exchanges = 0;
    for (int i = 0; i < n; i++) {
        pipeline_exchange *x = &plan->exchange[plan->exchanges];
        plan->message[i] = timed[i].message;
        if (i > 0 && timed[i].at == timed[i - 1].at) {
            x[-1].count++;
            continue;
        }
        memset(x, 0, sizeof *x);
        x->first = i;
        x->count = 1;
        x->at = timed[i].at;
        plan->exchanges++;
    }
}

/* ---- slots and buffers --------------------------------------------------------------------- */

/* Slots or buffers, taken and freed in the order of the schedule. For each, the two `freed_by`
   arrays count the works and exchanges that must end before it is free. */
typedef struct pool {
    int *open, *freed_by_work, *freed_by_exchange;
    int n, most;
} pool;

static int pool_take(pool *q) {
    for (int i = 0; i < q->most; i++)
        if (!q->open[i]) {
            q->open[i] = 1;
            return i;
        }
    q->open[q->most] = 1;
    return q->most++;
}

static void pipeline_raise(int *value, int to) {
    if (*value < to) *value = to;
}

/* Returns the forward that belongs to a backward. */
static pipeline_work *pipeline_forward_of(pipeline_plan *plan, int backward) {
    const pipeline_work *b = &plan->work[backward];
    for (int i = 0; i < backward; i++)
        if (!plan->work[i].backward && plan->work[i].chunk == b->chunk
            && plan->work[i].micro == b->micro)
            return &plan->work[i];
    return NULL;
}

/* Begins work i: assigns its slot and the buffer of its output. */
static void pipeline_begin_work(pipeline_plan *plan, int i, pool *slots, pool *buffers) {
    pipeline_work *w = &plan->work[i];
    const pipeline_shape *s = &plan->shape;
    const int last = pipeline_is_last(s, plan->stage, w->chunk);
    int taken = -1;
    if (!w->backward) {
        w->slot = pool_take(slots);
        if (!last) w->output = taken = pool_take(buffers);
    } else {
        const pipeline_work *f = pipeline_forward_of(plan, i);
        w->slot = f->slot;
        w->input = f->input;
        if (last) w->gradient = taken = pool_take(buffers);
    }
    if (taken >= 0) pipeline_raise(&w->needs, buffers->freed_by_exchange[taken]);
}

static void pool_free_after_work(pool *q, int index, int works) {
    if (index < 0) return;
    q->open[index] = 0;
    q->freed_by_work[index] = works;
}

static void pipeline_end_work(pipeline_plan *plan, int i, pool *slots, pool *buffers) {
    const pipeline_work *w = &plan->work[i];
    if (!w->backward && !plan->shape.forward_only) return;
    pool_free_after_work(slots, w->slot, i + 1);
    pool_free_after_work(buffers, w->input, i + 1);
    if (w->backward && pipeline_is_first(&plan->shape, plan->stage, w->chunk))
        pool_free_after_work(buffers, w->gradient, i + 1);
}

/* Assigns buffers to the messages that exchange k receives, then frees those that it sends. */
static void pipeline_assign_exchange(pipeline_plan *plan, int k, pool *buffers) {
    pipeline_exchange *x = &plan->exchange[k];
    for (int i = x->first; i < x->first + x->count; i++) {
        pipeline_message *message = &plan->message[i];
        pipeline_work *w = &plan->work[message->work];
        if (message->sends) {
            message->buffer = w->backward ? w->gradient : w->output;
            pipeline_raise(&x->after, message->work + 1);
            continue;
        }
        message->buffer = pool_take(buffers);
        *(w->backward ? &w->gradient : &w->input) = message->buffer;
        pipeline_raise(&x->after, buffers->freed_by_work[message->buffer]);
        pipeline_raise(&w->needs, k + 1);
    }
    for (int i = x->first; i < x->first + x->count; i++) {
        const pipeline_message *message = &plan->message[i];
        if (!message->sends) continue;
        buffers->open[message->buffer] = 0;
        buffers->freed_by_exchange[message->buffer] = k + 1;
    }
}

static void pipeline_assign_exchanges(pipeline_plan *plan, int *done, int before, pool *buffers) {
    while (*done < plan->exchanges && plan->exchange[*done].at < before)
        pipeline_assign_exchange(plan, (*done)++, buffers);
}

/* Runs through this stage's schedule again to assign slots and buffers. At each tick works end
   first, then messages are exchanged, then works begin. */
static void pipeline_assign_memory(pipeline_plan *plan, const sim *y, pool *slots, pool *buffers) {
    int exchanged = 0;
    for (int i = 0; i < plan->works; i++) {
        const pipeline_work *w = &plan->work[i];
        const int place = pipeline_position(&plan->shape, plan->stage, w->chunk);
        const int end = *pipeline_end_of(y, w->backward, place, w->micro);
        const int begin = end - (w->backward ? BACKWARD_TICKS : FORWARD_TICKS);
        pipeline_assign_exchanges(plan, &exchanged, begin + 1, buffers);
        pipeline_begin_work(plan, i, slots, buffers);
        pipeline_assign_exchanges(plan, &exchanged, end, buffers);
        pipeline_end_work(plan, i, slots, buffers);
    }
    pipeline_assign_exchanges(plan, &exchanged, INT_MAX, buffers);
}

static int pool_open(pool *q, int most) {
    memset(q, 0, sizeof *q);
    q->n = most;
    q->open = (int *)calloc((size_t)most * 3, sizeof(int));
    if (q->open == NULL) return 1;
    q->freed_by_work = q->open + most;
    q->freed_by_exchange = q->open + 2 * (size_t)most;
    return 0;
}

/* ---- plans --------------------------------------------------------------------------------- */

static int pipeline_fill(pipeline_plan *plan, sim *y, timed_message *timed, pool *slots,
                         pool *buffers) {
    int n = 0;
    if (pipeline_simulate(y, plan->stage, plan->work)) return 1;
    for (int i = 0; i < plan->works; i++)
        n += pipeline_list_messages(y, plan->stage, &plan->work[i], i, &timed[n]);
    qsort(timed, (size_t)n, sizeof *timed, pipeline_compare);
    pipeline_group_messages(plan, timed, n);
    pipeline_assign_memory(plan, y, slots, buffers);
    plan->slots = slots->most;
    plan->buffers = buffers->most;
    return 0;
}

int pipeline_make(pipeline_plan *plan, const pipeline_shape *shape, int stage) {
    const size_t works = (size_t)pipeline_count_works(shape);
    sim y;
    pool slots, buffers;
    memset(plan, 0, sizeof *plan);
    plan->shape = *shape;
    plan->stage = stage;
    plan->works = (int)works;
    y.s = &plan->shape;
    y.end = (int *)calloc(2 * works * (size_t)shape->stages, sizeof *y.end);
    plan->work = (pipeline_work *)calloc(works, sizeof *plan->work);
    plan->message = (pipeline_message *)calloc(2 * works, sizeof *plan->message);
    plan->exchange = (pipeline_exchange *)calloc(2 * works, sizeof *plan->exchange);
    timed_message *timed = (timed_message *)calloc(2 * works, sizeof *timed);
    int failed = pool_open(&slots, (int)works);
    failed += pool_open(&buffers, 4 * (int)works);
    failed = failed || y.end == NULL || plan->work == NULL || plan->message == NULL
             || plan->exchange == NULL || timed == NULL;
    failed = failed || pipeline_fill(plan, &y, timed, &slots, &buffers);
    free(y.end);
    free(timed);
    free(slots.open);
    free(buffers.open);
    if (failed) pipeline_free(plan);
    return failed;
}

void pipeline_free(pipeline_plan *plan) {
    free(plan->work);
    free(plan->message);
    free(plan->exchange);
    plan->work = NULL;
    plan->message = NULL;
    plan->exchange = NULL;
    plan->works = plan->messages = plan->exchanges = plan->shape.micro = 0;
}

/* ---- idle time ----------------------------------------------------------------------------- */

/* The simulated time of a stage: the works and exchanges that have ended, and the end of each. */
typedef struct stage_clock {
    pipeline_plan plan;
    int works, exchanges;
    double *work_end, *exchange_end;
} stage_clock;

static int clock_run_works(stage_clock *c, double forward, double backward) {
    int moved = 0;
    for (; c->works < c->plan.works; c->works++, moved++) {
        const pipeline_work *w = &c->plan.work[c->works];
        if (w->needs > c->exchanges) break;
        double from = c->works > 0 ? c->work_end[c->works - 1] : 0;
        if (w->needs > 0 && c->exchange_end[w->needs - 1] > from)
            from = c->exchange_end[w->needs - 1];
        c->work_end[c->works] = from + (w->backward ? backward : forward);
    }
    return moved;
}

/* Returns the tick of a stage's next exchange. */
static int clock_next_tick(const stage_clock *c) {
    return c->exchanges < c->plan.exchanges ? c->plan.exchange[c->exchanges].at : INT_MAX;
}

/* Returns when a stage reaches its next exchange; below 0: it needs more works first. */
static double clock_reaches_at(const stage_clock *c) {
    const pipeline_exchange *x = &c->plan.exchange[c->exchanges];
    double at = c->exchanges > 0 ? c->exchange_end[c->exchanges - 1] : 0;
    if (x->after > c->works) return -1;
    if (x->after > 0 && c->work_end[x->after - 1] > at) at = c->work_end[x->after - 1];
    return at;
}

/* Runs the exchanges of the earliest tick on all stages. A message waits for both of its sides. */
static int clock_run_tick(stage_clock *all, int stages) {
    int tick = INT_MAX, moved = 0;
    for (int r = 0; r < stages; r++)
        if (clock_next_tick(&all[r]) < tick) tick = clock_next_tick(&all[r]);
    if (tick == INT_MAX) return 0;
    for (int r = 0; r < stages; r++)
        if (clock_next_tick(&all[r]) == tick && clock_reaches_at(&all[r]) < 0) return 0;
    for (int r = 0; r < stages; r++) {
        stage_clock *c = &all[r];
        if (clock_next_tick(c) != tick) continue;
        const pipeline_exchange *x = &c->plan.exchange[c->exchanges];
        double at = clock_reaches_at(c);
        for (int i = x->first; i < x->first + x->count; i++) {
            const double other = clock_reaches_at(&all[c->plan.message[i].peer]);
            if (other > at) at = other;
        }
        c->exchange_end[c->exchanges] = at;
    }
    for (int r = 0; r < stages; r++)
        if (clock_next_tick(&all[r]) == tick) moved += ++all[r].exchanges > 0;
    return moved;
}

static double clock_idle_share(stage_clock *all, int stages, double forward, double backward) {
    double last = 0, busy = 0;
    int moved = 1;
    while (moved) {
        moved = 0;
        for (int r = 0; r < stages; r++) moved += clock_run_works(&all[r], forward, backward);
        moved += clock_run_tick(all, stages);
    }
    for (int r = 0; r < stages; r++) {
        const pipeline_plan *plan = &all[r].plan;
        if (all[r].works < plan->works) return -1;
        if (all[r].work_end[plan->works - 1] > last) last = all[r].work_end[plan->works - 1];
        for (int i = 0; i < plan->works; i++) busy += plan->work[i].backward ? backward : forward;
    }
    return 1 - busy / (last * stages);
}

double pipeline_idle(const pipeline_shape *shape, double forward, double backward) {
    const int p = shape->stages;
    stage_clock *all = (stage_clock *)calloc((size_t)p, sizeof *all);
    int failed = all == NULL;
    double idle = -1;
    for (int r = 0; r < p && !failed; r++) {
        failed = pipeline_make(&all[r].plan, shape, r);
        if (failed) break;
        all[r].work_end = (double *)calloc((size_t)all[r].plan.works, sizeof(double));
        all[r].exchange_end = (double *)calloc((size_t)all[r].plan.exchanges + 1, sizeof(double));
        failed = all[r].work_end == NULL || all[r].exchange_end == NULL;
    }
    if (!failed) idle = clock_idle_share(all, p, forward, backward);
    for (int r = 0; r < p && all != NULL; r++) {
        free(all[r].work_end);
        free(all[r].exchange_end);
        pipeline_free(&all[r].plan);
    }
    free(all);
    return idle;
}

/* ---- blocks -------------------------------------------------------------------------------- */

void pipeline_partition(int layers, int n, double first, double last, int *blocks) {
    for (int i = 0; i < n; i++) blocks[i] = 1;
    for (int given = n; given < layers; given++) {
        int best = 0;
        double least = -1;
        for (int i = 0; i < n; i++) {
            const double cost = blocks[i] + (i == 0 ? first : 0) + (i == n - 1 ? last : 0);
            if (least >= 0 && cost >= least) continue;
            best = i;
            least = cost;
        }
        blocks[best]++;
    }
}
