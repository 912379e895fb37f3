/* breakdown.c - see breakdown.h. */
#include "breakdown.h"

#include <stdlib.h>
#include <string.h>

const char *breakdown_name(breakdown_kind kind) {
#define BREAKDOWN_WORD(name, word) word,
    static const char *const words[] = {BREAKDOWNS(BREAKDOWN_WORD)};
#undef BREAKDOWN_WORD
    return (int)kind >= 0 && kind < BREAKDOWN_KINDS ? words[kind] : "no such kind";
}

/* Returns the kind of a slice of the compute track. A wait has the kind of its cause. */
static breakdown_kind breakdown_of(zero_event_kind kind) {
    switch (kind) {
    case ZERO_EVENT_FORWARD: return BREAKDOWN_FORWARD;
    case ZERO_EVENT_BACKWARD:
    case ZERO_EVENT_CLEAR: return BREAKDOWN_BACKWARD;
    case ZERO_EVENT_GATHER: return BREAKDOWN_GATHER;
    case ZERO_EVENT_REDUCTION:
    case ZERO_EVENT_NORM:
    case ZERO_EVENT_ALL_REDUCE: /* a first sum */
    case ZERO_EVENT_AGREE: return BREAKDOWN_REDUCTION;
    case ZERO_EVENT_UPDATE:
    case ZERO_EVENT_COPY: return BREAKDOWN_UPDATE;
    case ZERO_EVENT_READ:
    case ZERO_EVENT_WRITE: return BREAKDOWN_FILE;
    case ZERO_EVENT_WAIT:
    case ZERO_EVENT_LOST:
    case ZERO_EVENT_REDUCE_SCATTER:
    case ZERO_EVENT_ALL_GATHER:
    case ZERO_EVENT_ALL_TO_ALL:
    case ZERO_EVENT_BROADCAST:
    case ZERO_EVENT_MESSAGES:
    case ZERO_EVENT_BARRIER:
    case ZERO_EVENT_SPLIT:
    case ZERO_EVENT_OPEN:
    case ZERO_EVENT_KINDS:
    default: return BREAKDOWN_IDLE;
    }
}

/* Adds a slice. A full layer drops its older half; the dropped moments count as idle. */
static void breakdown_put(breakdown *b, int layer, const breakdown_slice *slice) {
    int *n = &b->n[layer];
    if (*n == BREAKDOWN_SLICES) {
        *n /= 2;
        memmove(b->slice[layer], b->slice[layer] + BREAKDOWN_SLICES - *n,
                (size_t)*n * sizeof *slice);
    }
    b->slice[layer][(*n)++] = *slice;
}

void breakdown_set_overlapped(breakdown *b, int lane) { b->beside |= 1u << lane; }

void breakdown_events(breakdown *b, const zero_event *events, int n) {
    for (int i = 0; i < n; i++) {
        const zero_event *e = &events[i];
        const int group = e->track >= ZERO_TRACK_GROUP && e->track < ZERO_TRACK_GROUPS;
        const int beside = group && b->beside >> (e->track - ZERO_TRACK_GROUP) & 1;
        const breakdown_slice slice = {e->begin, e->end,
                                       group ? BREAKDOWN_GROUPS : breakdown_of(e->cause)};
        if (e->kind == ZERO_EVENT_LOST || (!group && e->track != ZERO_TRACK_COMPUTE)) continue;
        breakdown_put(b, beside ? BREAKDOWN_ON_OVERLAPPED : BREAKDOWN_ON_TRACK, &slice);
        if (!beside && e->begin > b->seen) b->seen = e->begin;
    }
}

void breakdown_trainer(breakdown *b, breakdown_kind kind, double begin, double end) {
    const breakdown_slice slice = {begin, end, kind};
    breakdown_put(b, kind == BREAKDOWN_DATA ? BREAKDOWN_ON_DATA : BREAKDOWN_ON_TRAINER, &slice);
}

void breakdown_mark(breakdown *b, int64_t step, double begin, double end) {
    if (b->steps == BREAKDOWN_STEPS)
        memmove(b->step, b->step + 1, (size_t)--b->steps * sizeof *b->step);
    breakdown_step *s = &b->step[b->steps++];
    memset(s, 0, sizeof *s);
    s->step = step;
    s->begin = begin;
    s->end = end;
}

/* Sorts by begin. Of two slices with one begin the longer one, the outer, is first. */
static int breakdown_order(const void *a_, const void *b_) {
    const breakdown_slice *a = (const breakdown_slice *)a_, *b = (const breakdown_slice *)b_;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return a->end > b->end ? -1 : a->end < b->end;
}

/* Adds each moment from..to to the sum of its kind. If a layer has no slice, the next one decides.
 */
static void breakdown_sum_layer(const breakdown *b, int layer, double from, double to,
                                double *sums) {
    double ends[64], now = from;
    breakdown_kind kinds[64];
    int depth = 0;
    if (layer == BREAKDOWN_LAYERS) sums[BREAKDOWN_IDLE] += to - from;
    if (layer == BREAKDOWN_LAYERS || to <= from) return;
    for (int i = 0; i <= b->n[layer]; i++) {
        const breakdown_slice *s = i < b->n[layer] ? &b->slice[layer][i] : NULL;
        if (s != NULL && s->begin < to && s->end <= now) continue;
        const double next = s == NULL || s->begin > to ? to : s->begin > now ? s->begin : now;
        while (depth && ends[depth - 1] <= next) {
            const double end = ends[--depth];
            if (end > now) sums[kinds[depth]] += end - now;
            if (end > now) now = end;
        }
        if (next > now && depth) sums[kinds[depth - 1]] += next - now;
        if (next > now && !depth) breakdown_sum_layer(b, layer + 1, now, next, sums);
        now = next;
        if (s == NULL || s->begin >= to) break;
        if (depth == 64) continue;
        const double around = depth ? ends[depth - 1] : to;
        ends[depth] = s->end < around ? s->end : around;
        kinds[depth++] = s->kind;
    }
}

/* Removes slices that end before the next step. */
static void breakdown_forget(breakdown *b, double before) {
    for (int layer = 0; layer < BREAKDOWN_LAYERS; layer++) {
        int kept = 0;
        for (int i = 0; i < b->n[layer]; i++)
            if (b->slice[layer][i].end > before) b->slice[layer][kept++] = b->slice[layer][i];
        b->n[layer] = kept;
    }
}

int breakdown_take(breakdown *b, int all, breakdown_step *out) {
    if (!b->steps || !(all || b->seen >= b->step[0].end)) return 0;
    *out = b->step[0];
    for (int layer = 0; layer < BREAKDOWN_LAYERS; layer++)
        qsort(b->slice[layer], (size_t)b->n[layer], sizeof *b->slice[layer], breakdown_order);
    breakdown_sum_layer(b, 0, out->begin, out->end, out->seconds);
    breakdown_forget(b, out->end);
    memmove(b->step, b->step + 1, (size_t)--b->steps * sizeof *b->step);
    return 1;
}
