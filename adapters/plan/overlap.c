/* overlap.c - see overlap.h.

   One cycle is simulated, from one agreement of the ranks to the next: updates, visits, the last
   reductions. Nothing is being sent or computed at its begin and end, so all cycles take the same
   time. */
#include "overlap.h"

#include <math.h>
#include <string.h>

enum { OVERLAP_TASKS = OVERLAP_UNITS + OVERLAP_VISITS };
enum { OVERLAP_GRADIENTS = 0, OVERLAP_PARAMETERS, OVERLAP_STREAMS };

/* A unit's gather. The compute stream issues it at task `at`, after the end of task `after`: the
   last one that used its buffer, or the unit's update. */
typedef struct overlap_fetch {
    const wire_collective *gather;
    int at, after;
} overlap_fetch;

/* A task of the compute stream: an update, or the forward or backward of a unit. */
typedef struct overlap_task {
    double seconds;
    int fetched, reduced; /* numbers of gathers and reductions that must have ended before it */
    int reduces;          /* number of the reduction that may begin after this task; -1: none */
} overlap_task;

typedef struct overlap_stream {
    const wire_collective *next[2]; /* collectives, one after the other */
    int count, at, busy;
    double ready, near_end; /* when it begins to send; when it has sent all inside the node */
    double left;            /* bytes that it still has to send to other nodes */
} overlap_stream;

typedef struct overlap_sim {
    const overlap_case *c;
    overlap_task task[OVERLAP_TASKS];
    overlap_fetch fetch[OVERLAP_TASKS];
    const wire_unit *reduction[OVERLAP_VISITS]; /* in the order of the last backwards */
    int ends[OVERLAP_VISITS];                   /* 1: the unit's last reduction of the step */
    int tasks, fetches, reductions;
    int begun, ended, fetched, reduced, reducible; /* numbers of tasks, gathers and reductions;
                                                      a reducible unit's gradients are complete */
    double now, task_end;
    overlap_stream stream[OVERLAP_STREAMS];
    overlap_step *step;
} overlap_sim;

/* ---- tasks and collectives ----------------------------------------------------------------- */

typedef struct overlap_pool {
    int unit[ZERO_PREFETCH_MOST + 2], after[ZERO_PREFETCH_MOST + 2], used[ZERO_PREFETCH_MOST + 2];
    int n, clock;
} overlap_pool;

static int overlap_find(const int *list, int n, int unit) {
    for (int i = 0; i < n; i++)
        if (list[i] == unit) return i;
    return -1;
}

/* Lists the unit of this visit, and then those of the next visits as far as the host looks ahead.
   Returns their number. */
static int overlap_soon(const overlap_case *c, int visit, int *soon) {
    const int most = c->prefetch ? c->prefetch + 2 : 1; /* one for each buffer */
    int n = 1;
    soon[0] = c->visit[visit].unit;
    for (int v = visit + 1; v < c->visits && n < most; v++)
        if (overlap_find(soon + 1, n - 1, c->visit[v].unit) < 0) soon[n++] = c->visit[v].unit;
    return n;
}

static void overlap_add(overlap_sim *s, int unit, int first, int at, int after) {
    const wire_unit *w = &s->c->wire[unit];
    const overlap_fetch f = {first ? &w->gather : &w->again, at, after};
    s->fetch[s->fetches++] = f;
}

/* Lists the gathers of stage 3. A unit that is in no buffer gets the least recently used one. */
static void overlap_gathers(overlap_sim *s) {
    const overlap_case *c = s->c;
    int last[OVERLAP_UNITS] = {0}; /* number of gathers up to the last one of each unit */
    int soon[ZERO_PREFETCH_MOST + 2];
    overlap_pool p;
    memset(&p, 0, sizeof p);
    const int sharing = c->units - (c->own >= 0);
    p.n = c->prefetch + 2 < sharing ? c->prefetch + 2 : sharing;
    for (int b = 0; b < p.n; b++) p.unit[b] = p.after[b] = -1;
    for (int v = 0; v < c->visits; v++) {
        const int n = overlap_soon(c, v, soon), at = c->units + v;
        for (int i = 0; i < n; i++) {
            const int unit = soon[i];
            int b = overlap_find(p.unit, p.n, unit), oldest = -1;
            if (unit != c->own && b < 0) {
                for (int k = 0; k < p.n; k++)
                    if (overlap_find(soon, n, p.unit[k]) < 0
                        && (oldest < 0 || p.used[k] < p.used[oldest]))
                        oldest = k;
                b = oldest;
            }
            if (b < 0 && (unit != c->own || last[unit])) continue;
            if (unit == c->own || p.unit[b] != unit) {
                const int after = b < 0 || p.after[b] < 0 ? unit : p.after[b]; /* its update */
                overlap_add(s, unit, !last[unit], at, after);
                last[unit] = s->fetches;
            }
            if (b >= 0) {
                p.unit[b] = unit;
                p.used[b] = ++p.clock;
            }
        }
        const int mine = overlap_find(p.unit, p.n, soon[0]);
        if (mine >= 0) {
            p.after[mine] = at;
            p.used[mine] = ++p.clock;
        }
        s->task[at].fetched = last[soon[0]];
    }
}

static void overlap_tasks(overlap_sim *s) {
    const overlap_case *c = s->c;
    int touched[OVERLAP_UNITS] = {0}, touches = 0;
    for (int u = 0; u < c->units; u++) {
        const overlap_task update = {c->update / c->units, 0, 0, -1};
        s->task[s->tasks++] = update;
        s->step->compute += update.seconds;
        if (c->stage == 1 || c->stage == 2) overlap_add(s, u, 1, 0, u);
    }
    const int buffers = c->stage == 2 ? 2 : 3; /* number of gradient buffers */
    for (int v = 0; v < c->visits; v++) {
        const overlap_visit *x = &c->visit[v];
        overlap_task t = {x->seconds, 0, 0, -1};
        if (c->stage == 1 || c->stage == 2) t.fetched = x->unit + 1;
        if (x->backward && c->stage >= 2 && x->unit != c->own && !touched[x->unit]++)
            t.reduced = ++touches > buffers ? touches - buffers : 0;
        if (x->reduces) {
            t.reduces = s->reductions;
            s->ends[s->reductions] = x->reduces == OVERLAP_LAST;
            s->reduction[s->reductions++] = &c->wire[x->unit];
            touched[x->unit] = 0; /* the next micro-step uses a buffer again */
        }
        s->task[s->tasks++] = t;
        s->step->compute += x->seconds;
    }
    if (c->stage == 3) overlap_gathers(s);
    s->step->gathers = s->fetches;
}

/* ---- time ---------------------------------------------------------------------------------- */

/* Begins the stream's next collective. Returns 0 if it has none left. */
static int overlap_begin(overlap_sim *s, overlap_stream *x) {
    const overlap_case *c = s->c;
    if (x->at == x->count) return x->busy = 0;
    const wire_collective *w = x->next[x->at++];
    x->ready =
        s->now + w->messages * c->latency + (c->coding > 0 ? w->coding_bytes / c->coding : 0);
    x->near_end = x->ready + (w->near > 0 ? w->near / c->near : 0);
    x->left = w->far;
    s->step->near_bytes += w->near;
    s->step->far_bytes += w->far;
    return x->busy = 1;
}

static int overlap_sends(const overlap_sim *s, const overlap_stream *x) {
    return x->busy && x->left > 0 && s->now >= x->ready;
}

/* Ends or begins a reduction, if one can end or begin now. Returns 0 if none can. The next two
   functions do the same for gathers and for tasks. */
static int overlap_gradients_go(overlap_sim *s) {
    overlap_stream *x = &s->stream[OVERLAP_GRADIENTS];
    if (x->busy && (x->left > 0 || s->now < x->near_end)) return 0;
    if (x->busy) {
        s->reduced += !overlap_begin(s, x);
        return 1;
    }
    if (s->reduced == s->reducible) return 0;
    const wire_unit *w = s->reduction[s->reduced];
    x->next[0] = &w->reduction;
    x->next[1] = &w->ending;
    x->count = s->ends[s->reduced] && (w->ending.near > 0 || w->ending.far > 0) ? 2 : 1;
    x->at = 0;
    return overlap_begin(s, x);
}

static int overlap_parameters_go(overlap_sim *s) {
    overlap_stream *x = &s->stream[OVERLAP_PARAMETERS];
    if (x->busy && (x->left > 0 || s->now < x->near_end)) return 0;
    if (x->busy) {
        s->fetched += !overlap_begin(s, x);
        return 1;
    }
    if (s->fetched == s->fetches) return 0;
    const overlap_fetch *f = &s->fetch[s->fetched];
    const int here = s->begun + (s->c->host_ahead ? 1 : 0);
    if (f->at > here || f->after >= s->ended) return 0;
    x->next[0] = f->gather;
    x->count = 1;
    x->at = 0;
    return overlap_begin(s, x);
}

/* s->begun is the number of the stream's current task. */
static int overlap_compute_go(overlap_sim *s) {
    const overlap_task *t = &s->task[s->begun];
    const int runs = s->task_end >= 0;
    if (s->begun == s->tasks) return 0;
    if (runs && s->now < s->task_end) return 0;
    if (runs) {
        if (t->reduces >= 0) s->reducible++;
        s->ended = ++s->begun;
        s->task_end = -1;
        return 1;
    }
    if (s->fetched < t->fetched || s->reduced < t->reduced) return 0;
    s->task_end = s->now + t->seconds;
    return 1;
}

/* Advances to the next time at which something ends. Returns 0 if nothing runs. */
static int overlap_wait(overlap_sim *s) {
    double next = s->task_end >= 0 ? s->task_end : INFINITY;
    int sending = 0;
    for (int i = 0; i < OVERLAP_STREAMS; i++) sending += overlap_sends(s, &s->stream[i]);
    const double rate = sending ? s->c->far / sending : 0;
    for (int i = 0; i < OVERLAP_STREAMS; i++) {
        const overlap_stream *x = &s->stream[i];
        if (!x->busy) continue;
        if (s->now < x->ready) next = fmin(next, x->ready);
        if (s->now < x->near_end) next = fmin(next, x->near_end);
        if (overlap_sends(s, x)) next = fmin(next, s->now + x->left / rate);
    }
    if (!isfinite(next)) return 0;
    for (int i = 0; i < OVERLAP_STREAMS; i++) {
        overlap_stream *x = &s->stream[i];
        if (!overlap_sends(s, x)) continue;
        /* A rest that takes less time than the last bit of `now` would never end. */
        const int ends = s->now + x->left / rate <= next;
        x->left -= (next - s->now) * rate;
        if (ends || x->left < 1e-3) x->left = 0; /* a rounding error */
    }
    s->now = next;
    return 1;
}

int overlap_simulate(const overlap_case *c, overlap_step *step) {
    static overlap_sim all;
    overlap_sim *s = &all;
    int messages = 0;
    memset(step, 0, sizeof *step);
    memset(s, 0, sizeof *s);
    if (c->units < 1 || c->units > OVERLAP_UNITS || c->visits > OVERLAP_VISITS || c->prefetch < 0
        || c->prefetch > ZERO_PREFETCH_MOST || !(c->near > 0) || !(c->far > 0))
        return 1;
    s->c = c;
    s->step = step;
    s->task_end = -1;
    overlap_tasks(s);
    do {
        while (overlap_compute_go(s) || overlap_gradients_go(s) || overlap_parameters_go(s))
            ;
    } while (overlap_wait(s));
    for (int u = 0; u < c->units; u++)
        if (c->wire[u].reduction.messages > messages) messages = c->wire[u].reduction.messages;
    step->step = s->now + messages * c->latency; /* the agreement sends a few bytes */
    return s->begun < s->tasks || s->reduced < s->reductions || s->fetched < s->fetches;
}

int overlap_chain(int units, int own, const double *forward, const double *backward,
                  overlap_visit *visit) {
    int n = 0;
    /* The phases: lookup and forwards; classifier; backwards; the lookup's backward. */
    for (int phase = 0; phase < 4; phase++) {
        if (own >= 0) {
            const overlap_visit at = {own, phase >= 2, phase == 3,
                                      phase == 1   ? forward[own]
                                      : phase == 2 ? backward[own]
                                                   : 0};
            visit[n++] = at;
        }
        for (int i = 0; i < units && phase % 2 == 0; i++) {
            const int u = phase ? units - 1 - i : i;
            const overlap_visit at = {u, phase > 0, phase > 0, phase ? backward[u] : forward[u]};
            if (u != own) visit[n++] = at;
        }
    }
    return n;
}
