/* buffers.c - proofs: no buffer serves two units; the list of visits; any number of calls

   A proof begins with any pool, or list, that meets the invariant, makes one call with any
   arguments, and checks the invariant again. So the invariant is true after any number of calls. */
#include "../../zero_plugin/core/ctx.h"
#include "proof.h"

/* CBMC 5.12 reads memmove as one of bytes, and then does not find the numbers again. */
static void move(int *to, const int *from, size_t bytes) {
    const int n = (int)(bytes / sizeof *to);
    if (to < from)
        for (int i = 0; i < n; i++) to[i] = from[i];
    else
        for (int i = n - 1; i >= 0; i--) to[i] = from[i];
}
#define memmove move
#include "../../zero_plugin/core/order.h"

enum { BUFFERS = 3, UNITS = 4, SOON = 2 };
static zp_buffer buffer[BUFFERS];
static int held_by[UNITS];
static zp_buffers pool = {buffer, 0, 0, held_by, 0, 0};

/* A unit's buffer names the unit, and a buffer's unit names the buffer; so no two have one. */
static int pool_holds(void) {
    int ok = 1;
    for (int u = 0; u < UNITS; u++)
        ok &= held_by[u] >= 0 && held_by[u] <= pool.n
              && (!held_by[u] || buffer[held_by[u] - 1].unit == u);
    for (int b = 0; b < pool.n; b++)
        ok &= buffer[b].unit >= -1 && buffer[b].unit < UNITS && buffer[b].open >= 0
              && (buffer[b].unit < 0 || held_by[buffer[b].unit] == b + 1);
    return ok;
}
static void pool_any(void) {
    pool.n = ANY_INT(1, BUFFERS);
    pool.alone = ANY_INT(0, pool.n);
    pool.clock = any(0, (uint64_t)1 << 62);
    for (int b = 0; b < BUFFERS; b++) {
        buffer[b].unit = ANY_INT(-1, UNITS - 1);
        buffer[b].open = buffer[b].unit < 0 ? 0 : ANY_INT(0, 1 << 30);
        buffer[b].used = any(0, pool.clock);
    }
    for (int u = 0; u < UNITS; u++) { /* what the buffers say, as far as they agree */
        held_by[u] = 0;
        for (int b = 0; b < pool.n; b++)
            if (buffer[b].unit == u) held_by[u] = b + 1;
    }
    ASSUME(pool_holds());
}
void buffer_take(void) {
    int soon[SOON];
    pool_any();
    const int unit = ANY_INT(0, UNITS - 1), nsoon = ANY_INT(0, SOON);
    const int own = pool.alone && any(0, 1) ? ANY_INT(0, pool.alone - 1) : -1;
    for (int i = 0; i < SOON; i++) soon[i] = ANY_INT(0, UNITS - 1);
    ASSUME(own < 0 || (!buffer[own].open && buffer[own].unit < 0) || held_by[unit]);
    int free_one = 0, was[UNITS], open[BUFFERS];
    for (int u = 0; u < UNITS; u++) was[u] = held_by[u];
    for (int b = 0; b < BUFFERS; b++) open[b] = buffer[b].open;
    for (int b = pool.alone; b < pool.n; b++) {
        int wanted = 0;
        for (int i = 0; i < nsoon; i++) wanted |= buffer[b].unit == soon[i];
        free_one |= !open[b] && !wanted;
    }
    const int got = zp_buffer_take(&pool, unit, own, soon, nsoon), after = held_by[unit] - 1;
    PROVE(pool_holds(), "no buffer has two units, and no unit two buffers");
    PROVE(got == (was[unit] ? 0 : own >= 0 || free_one ? 1 : -1), "refused only if none is free");
    PROVE(got || after == was[unit] - 1, "a unit that has a buffer keeps it");
    PROVE(got != 1 || (after >= 0 && !open[after]), "no open buffer is handed out");
    for (int u = 0; u < UNITS; u++)
        PROVE(u == unit || held_by[u] == was[u] || was[u] == after + 1, "no other unit moves");
    for (int i = 0; i < nsoon; i++)
        PROVE(soon[i] == unit || held_by[soon[i]] == was[soon[i]] || own >= 0,
              "units wanted soon stay");
}
void buffer_hold(void) {
    pool_any();
    const int unit = ANY_INT(0, UNITS - 1), more = any(0, 1) ? 1 : -1, b = held_by[unit] - 1;
    ASSUME(b < 0 || more > 0 || buffer[b].open > 0); /* hooks match */
    const int open = b < 0 ? 0 : buffer[b].open;
    zp_buffer_hold(&pool, unit, more);
    PROVE(pool_holds() && (b < 0 || buffer[b].open == open + more), "a buffer is opened or closed");
}
void buffer_forget(void) {
    pool_any();
    zp_buffer_forget_all(&pool);
    PROVE(pool_holds(), "the pool holds");
    PROVE(!held_by[any(0, UNITS - 1)], "no unit has a buffer");
}

/* ---- the list of visits ---- */

enum { VISITS = 4 };
static int visit[VISITS];
void order_visit(void) {
    int was[VISITS];
    zp_order t = {visit, ANY_INT(0, VISITS), 0, VISITS, NULL, 0, 0, 0};
    t.at = ANY_INT(0, t.n);
    ASSUME(t.at < VISITS); /* a pass has at most cap visits */
    for (int i = 0; i < VISITS; i++) was[i] = visit[i] = ANY_INT(0, UNITS - 1);
    const int at = t.at, n = t.n, unit = ANY_INT(0, UNITS - 1);
    int known = 0;
    for (int i = at; i < n; i++) known |= was[i] == unit;
    ASSUME(known || n < VISITS); /* the list has room */
    zp_order_visit(&t, unit);
    PROVE(t.at == at + 1 && t.n >= t.at && t.n <= VISITS, "the place in the list");
    PROVE(visit[at] == unit, "the list has this visit");
    for (int i = 0; i < at; i++) PROVE(visit[i] == was[i], "and those before it");
    for (int i = 0; i < t.n - t.at; i++)
        PROVE(visit[t.at + i] == was[n - (t.n - t.at) + i],
              "what follows are the last ones that were expected");
    PROVE(at == n || was[at] != unit || t.n == n, "an expected visit changes nothing");
}
void order_ahead(void) {
    int soon[SOON];
    zp_order t = {visit, ANY_INT(0, VISITS), 0, VISITS, NULL, 0, 0, 0};
    t.at = ANY_INT(0, t.n);
    for (int i = 0; i < VISITS; i++) visit[i] = ANY_INT(0, UNITS - 1);
    const int wraps = ANY_INT(0, 1), most = ANY_INT(0, SOON);
    const int found = zp_order_ahead(&t, wraps, most, soon);
    PROVE(found >= 0 && found <= most, "at most so many");
    for (int i = 0; i < found; i++)
        for (int k = 0; k < i; k++) PROVE(soon[i] != soon[k], "all are distinct");
    if (found) PROVE(soon[0] == visit[t.at % t.n], "the next one is first");
    for (int u = 0; u < UNITS; u++) {
        int expected = 0, has = 0;
        for (int i = 0; i < t.n; i++) expected |= (wraps || i >= t.at) && visit[i] == u;
        for (int i = 0; i < found; i++) has |= soon[i] == u;
        PROVE(!has || expected, "each of them is expected");
        PROVE(found == most || has || !expected, "none is left out");
    }
}
