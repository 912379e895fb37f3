/* net.c - meetings and messages for net.h. Not instrumented. */
#include "scheduler.h"

#include <string.h>

enum { NETS = 16, CHANNELS = 3, AHEAD = 2, PLACES = 64, MESSAGES = 1024 };

typedef struct meeting {
    unsigned number; /* of the channel's collectives */
    int came;
    orders_stamp all;
} meeting;
typedef struct message {
    const void *data;
    size_t bytes;
    orders_stamp sent, received;
    int taken;
} message;
typedef struct queue { /* of one rank to another */
    message *list;
    int sent, received;
} queue;
typedef struct orders_net {
    struct orders_net *of;
    int split, part, nranks, aborted;
    unsigned number[ORDERS_RANKS][CHANNELS][2];
    meeting meeting[CHANNELS][2][AHEAD];
    void *memory[PLACES];
    queue queue[ORDERS_RANKS][ORDERS_RANKS];
} orders_net;

static orders_net nets[NETS];
static int n_nets;

void orders_net_forget(void) { n_nets = 0; }

static orders_net *make(int nranks) {
    if (n_nets == NETS) orders_fail("more than %d groups of ranks", NETS);
    orders_net *n = &nets[n_nets++];
    memset(n, 0, sizeof *n);
    n->nranks = nranks;
    return n;
}
orders_net *orders_net_open(int nranks) { return make(nranks); }
int orders_net_size(const orders_net *n) { return n->nranks; }

orders_net *orders_net_part(orders_net *of, int split, int part, int nranks) {
    for (int i = 0; i < n_nets; i++)
        if (nets[i].of == of && nets[i].split == split && nets[i].part == part) return &nets[i];
    orders_net *n = make(nranks);
    n->of = of;
    n->split = split;
    n->part = part;
    return n;
}

/* A dead rank of the whole test is reported to every group, as a launcher does. */
static int is_broken(const orders_net *n) {
    int broken = n->aborted;
    for (int r = 0; r < ORDERS_RANKS; r++) broken |= orders_died(r);
    return broken || (n->of && is_broken(n->of));
}
/* 1: ranks may give up. Then it is an order of its own whether a rank gives up before or after
   another rank leaves a meeting, and whether a rank comes before or after another one has seen that
   a third one gave up. */
int orders_net_faulty;
static uintptr_t flag(const orders_net *n) { return (uintptr_t)&n->aborted; }

void orders_net_abort(orders_net *n) {
    if (orders_net_faulty) orders_use_object(flag(n), ORDERS_WRITES, "giving up");
    n->aborted = 1;
}

struct waiter {
    orders_net *net;
    meeting *m;
};
static int all_came(void *waiter) {
    const struct waiter *w = waiter;
    return w->m->came == w->net->nranks || is_broken(w->net);
}
int orders_net_meet(orders_net *n, int rank, int channel, int end) {
    const unsigned number = ++n->number[rank][channel][end];
    meeting *m = &n->meeting[channel][end][number % AHEAD];
    struct waiter w = {n, m};
    if (orders_net_faulty) orders_use_object((uintptr_t)m, ORDERS_ADDS, "coming to a collective");
    orders_point();
    if (m->number != number) {
        memset(m, 0, sizeof *m);
        m->number = number;
    }
    m->came++;
    orders_add_now(&m->all);
    orders_wait(all_came, &w, "a collective");
    if (orders_net_faulty) {
        orders_use_object(flag(n), ORDERS_READS, "leaving a collective");
        if (is_broken(n)) orders_use_object((uintptr_t)m, ORDERS_READS, "leaving a collective");
    }
    if (m->came < n->nranks) return -1;
    orders_join(&m->all);
    return 0;
}

void *orders_net_shared(orders_net *n, int place, size_t bytes) {
    if (place >= PLACES) orders_fail("more than %d memories of a group", PLACES);
    if (!n->memory[place]) {
        char *p = orders_hold(bytes + 4096);
        n->memory[place] = p + (4096 - (uintptr_t)p % 4096) % 4096;
    }
    return n->memory[place];
}

void orders_net_send(orders_net *n, int from, int to, const void *data, size_t bytes) {
    queue *q = &n->queue[from][to];
    if (!q->list) q->list = orders_hold(MESSAGES * sizeof *q->list);
    if (q->sent == MESSAGES) orders_fail("more than %d messages", MESSAGES);
    message *m = &q->list[q->sent];
    orders_point();
    m->data = data;
    m->bytes = bytes;
    orders_stamp_now(&m->sent);
    q->sent++;
}
struct receiver {
    orders_net *net;
    queue *q;
    int count;
};
static int has_come(void *receiver) {
    const struct receiver *r = receiver;
    return r->q->sent > r->count || is_broken(r->net);
}
int orders_net_receive(orders_net *n, int from, int to, void *data, size_t bytes) {
    queue *q = &n->queue[from][to];
    struct receiver r = {n, q, q->received};
    orders_wait(has_come, &r, "a message");
    if (q->sent <= q->received) return -1;
    message *m = &q->list[q->received];
    orders_join(&m->sent);
    if (m->bytes != bytes) orders_fail("a message of %zu bytes, %zu are expected", m->bytes, bytes);
    orders_access(m->data, bytes, 0);
    orders_access(data, bytes, 1);
    memmove(data, m->data, bytes);
    orders_stamp_now(&m->received);
    q->received++;
    return 0;
}
static int is_received(void *receiver) {
    const struct receiver *r = receiver;
    return r->q->received >= r->count || is_broken(r->net);
}
int orders_net_sent(orders_net *n, int from, int to) {
    queue *q = &n->queue[from][to];
    struct receiver r = {n, q, q->sent};
    orders_wait(is_received, &r, "the receiver of a message");
    if (q->received < q->sent) return -1;
    for (int i = 0; i < q->sent; i++) orders_join(&q->list[i].received);
    return 0;
}
