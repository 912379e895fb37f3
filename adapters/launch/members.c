/* members.c - see members.h. Each field has one writer in each phase. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "members.h"

#include "../system/clock.h"
#include "../system/regular_file.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int members_get(const int *value) { return __atomic_load_n(value, __ATOMIC_ACQUIRE); }
static void members_set(int *value, int to) { __atomic_store_n(value, to, __ATOMIC_RELEASE); }

/* Returns 1 if the phase was `from`, and is `to` now. */
static int members_pass(members *m, members_phase from, members_phase to) {
    int expected = (int)from;
    return __atomic_compare_exchange_n(&m->phase, &expected, (int)to, 0, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
}

void members_begin(members *m, int ranks) {
    memset(m, 0, sizeof *m);
    m->wanted = m->list[0].n = ranks;
    for (int r = 0; r < ranks; r++) m->list[0].seat[r] = r;
}

members_phase members_get_phase(const members *m) { return (members_phase)members_get(&m->phase); }
const members_list *members_current(const members *m) {
    return &m->list[members_get(&m->epoch) & 1];
}
const members_list *members_next(const members *m) {
    return &m->list[(members_get(&m->epoch) + 1) & 1];
}

int members_rank(const members_list *list, int seat) {
    for (int r = 0; r < list->n; r++)
        if (list->seat[r] == seat) return r;
    return -1;
}

/* ---- requests ------------------------------------------------------------------------------ */

static void members_ask(members *m, int wanted) {
    m->wanted = wanted;
    __atomic_fetch_add(&m->request, 1, __ATOMIC_ACQ_REL);
}

/* Returns 1 if the file has a text that this process has not seen, or was written again. A file
   that is empty is being written. */
static int members_read(members_file *f, char text[MEMBERS_TEXT]) {
    struct stat now;
    FILE *file = f->path[0] ? regular_file_stream(f->path, "r") : NULL;
    if (file == NULL) return 0;
    const size_t n = fread(text, 1, MEMBERS_TEXT - 1, file);
    const int known = fstat(fileno(file), &now) == 0;
    (void)fclose(file);
    text[n] = 0;
    if (!n || !known) return 0;
    if (strcmp(text, f->text) == 0 && now.st_mtim.tv_sec == f->changed.tv_sec
        && now.st_mtim.tv_nsec == f->changed.tv_nsec)
        return 0;
    memcpy(f->text, text, MEMBERS_TEXT);
    f->changed = now.st_mtim;
    return 1;
}

/* Returns the number of a text, or 0 if it is not one of 1 to MEMBERS_MOST. */
static int members_parse(const char *text) {
    char *end;
    const long n = strtol(text, &end, 10);
    if (end == text || n < 1 || n > MEMBERS_MOST) return 0;
    while (isspace((unsigned char)*end)) end++;
    return *end ? 0 : (int)n;
}

static void members_poll_file(members *m, members_file *f, char *sentence, size_t bytes) {
    char text[MEMBERS_TEXT];
    if (!members_read(f, text)) return;
    const int wanted = members_parse(text);
    if (wanted && wanted != m->wanted) members_ask(m, wanted);
    if (wanted) return;
    for (char *c = text; *c; c++)
        if (iscntrl((unsigned char)*c)) *c = ' ';
    (void)snprintf(sentence, bytes,
                   "%.300s: expected a number of ranks from 1 to %d, found '%s'; the run goes on "
                   "with %d",
                   f->path, (int)MEMBERS_MOST, text, members_current(m)->n);
}

/* Counts the ranks that have asked to leave for a while. A signal to the whole job comes to the
   watching process meanwhile, and then no rank leaves. Returns the ranks that stay. */
static int members_poll_leaves(members *m, members_file *f) {
    const members_list *list = members_current(m);
    int stay = 0, new_ones = 0;
    for (int r = 0; r < list->n; r++) {
        const int seat = list->seat[r], state = members_get(&m->leaves[seat]);
        if (state == 0) f->leave_ms[seat] = 0;
        if (state == 1 && !f->leave_ms[seat]) f->leave_ms[seat] = clock_milliseconds();
        const int due = state == 1 && clock_milliseconds() - f->leave_ms[seat] >= MEMBERS_LEAVE_MS;
        if (due) members_set(&m->leaves[seat], 2);
        new_ones += due;
        stay += state == 0 || (state == 1 && !due);
    }
    const int left = m->wanted - new_ones;
    if (new_ones) members_ask(m, left > 0 ? left : 1);
    return stay;
}

int members_poll(members *m, members_file *f, char *sentence, size_t bytes) {
    sentence[0] = 0;
    members_poll_file(m, f, sentence, bytes);
    return members_poll_leaves(m, f) == 0 && members_get_phase(m) == MEMBERS_STEADY;
}

/* ---- the watching process ------------------------------------------------------------------ */

int members_plan(members *m, const int used[MEMBERS_MOST]) {
    const members_list *now = members_current(m);
    members_list *next = &m->list[(m->epoch + 1) & 1];
    const int most = members_get(&m->target);
    next->n = 0;
    for (int r = 0; r < now->n && next->n < most; r++)
        if (members_get(&m->leaves[now->seat[r]]) != 2) next->seat[next->n++] = now->seat[r];
    const int stay = next->n;
    for (int seat = 0; seat < MEMBERS_MOST && next->n < most; seat++) {
        if (used[seat]) continue;
        m->leaves[seat] = 0;
        next->seat[next->n++] = seat;
    }
    m->ready = m->moved = 0;
    return stay;
}

void members_set_starting(members *m) { (void)members_pass(m, MEMBERS_ASKED, MEMBERS_STARTING); }

/* Returns how many ranks of the next list are in the current one. */
static int members_count_stay(const members *m) {
    const members_list *next = members_next(m);
    int n = 0;
    for (int r = 0; r < next->n; r++) n += members_rank(members_current(m), next->seat[r]) >= 0;
    return n;
}

int members_advance(members *m) {
    const members_phase phase = members_get_phase(m);
    const int joins = members_next(m)->n - members_count_stay(m);
    if (phase == MEMBERS_STARTING && members_get(&m->ready) == joins)
        (void)members_pass(m, MEMBERS_STARTING, MEMBERS_READY);
    if (phase != MEMBERS_MOVING || members_get(&m->moved) < members_current(m)->n + joins) return 0;
    __atomic_fetch_add(&m->epoch, 1, __ATOMIC_ACQ_REL);
    return members_pass(m, MEMBERS_MOVING, MEMBERS_STEADY);
}

int members_cancel(members *m) {
    const members_list *now = members_current(m);
    const int cancelled = members_pass(m, MEMBERS_STARTING, MEMBERS_STEADY)
                          || members_pass(m, MEMBERS_READY, MEMBERS_STEADY);
    if (!cancelled) return members_get_phase(m) < MEMBERS_STARTING;
    m->wanted = now->n;
    for (int r = 0; r < now->n; r++) m->wanted -= members_get(&m->leaves[now->seat[r]]) == 2;
    if (m->wanted < now->n) members_ask(m, m->wanted > 0 ? m->wanted : 1); /* without new ranks */
    return 1;
}

void members_offer(members *m, int ranks) {
    const int now = members_current(m)->n, least = m->wanted < now ? m->wanted : now;
    const int wanted = m->wanted + ranks;
    members_ask(m, wanted < least ? least : wanted > MEMBERS_MOST ? MEMBERS_MOST : wanted);
}

void members_end(members *m) { members_set(&m->over, 1); }

/* ---- ranks --------------------------------------------------------------------------------- */

void members_leave(members *m, int seat) {
    if (!members_get(&m->leaves[seat])) members_set(&m->leaves[seat], 1);
}

int members_wanted(members *m) {
    m->answering = members_get(&m->request);
    if (members_get_phase(m) != MEMBERS_STEADY || m->answering == m->answered) return 0;
    return m->wanted;
}

void members_answer(members *m, int ranks) {
    const members_list *now = members_current(m);
    int leave = 0;
    m->answered = m->answering;
    for (int r = 0; r < now->n; r++) leave |= members_get(&m->leaves[now->seat[r]]) == 2;
    if (ranks == now->n && !leave) return;
    members_set(&m->target, ranks);
    (void)members_pass(m, MEMBERS_STEADY, MEMBERS_ASKED);
}

int members_agree(members *m) { return members_pass(m, MEMBERS_READY, MEMBERS_AGREED); }

void members_start_moving(members *m) { members_set(&m->phase, MEMBERS_MOVING); }

void members_report_moved(members *m) { __atomic_fetch_add(&m->moved, 1, __ATOMIC_ACQ_REL); }

void members_report_ready(members *m) { __atomic_fetch_add(&m->ready, 1, __ATOMIC_ACQ_REL); }

int members_may_join(const members *m) {
    return members_get(&m->over) ? -1 : members_get_phase(m) == MEMBERS_MOVING;
}
