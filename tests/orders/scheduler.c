/* scheduler.c - see scheduler.h. This file is compiled without instrumentation. */
#include "scheduler.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { STACK_BYTES = 1 << 18, EVENTS = 1 << 16, HELD_BYTES = 1 << 28 };

typedef struct thread {
    enum { NONE = 0, READY, ENDED, DEAD } state;
    ucontext_t context;
    char *stack;
    void (*run)(void *);
    void *arg;
    /* the next operation */
    int (*ready)(void *);
    void *ready_arg;
    uintptr_t object; /* 0: it depends on nothing */
    orders_use use;
    const char *what;
    int sleeps, slept;           /* it goes on when no thread can run; it does */
    const volatile void *loaded; /* the variable that its last operation loaded; NULL: another */
    orders_stamp now;
} thread;

/* One choice of the scheduler. Nodes before `depth` are those of the execution. */
typedef struct node {
    int chosen;
    uint64_t enabled, backtrack, done, sleep;
    uint32_t number; /* of this step among those of its thread */
    uintptr_t object;
    orders_use use;
    int before; /* 1 + the earlier node with the same object; 0: none */
    orders_clock trace;
} node;

/* An atomic variable, or an event that a thread asks about. */
typedef struct object {
    uintptr_t key;
    unsigned run;
    int last;              /* 1 + the last node that used it */
    orders_clock release;  /* what a thread that acquires it learns */
    orders_clock trace[3]; /* by use */
} object;

static thread threads[ORDERS_THREADS];
static thread *now;
static ucontext_t chooser;
static node *nodes;
static int depth, length;
static object *objects;
enum { OBJECTS = 1 << 14 };
static unsigned run;
static const orders_test *test;
static orders_report report;
static long steps;
static char *held;
static size_t held_bytes;
static int nthreads;
static long points[ORDERS_RANKS];
static uint64_t chance;

/* ---- clocks ---- */

static void join(orders_clock *to, const orders_clock *from) {
    for (int i = 0; i < nthreads; i++)
        if (from->at[i] > to->at[i]) to->at[i] = from->at[i];
}
void orders_join(const orders_stamp *s) {
    if (!now) return;
    join(&now->now.data, &s->data);
    join(&now->now.trace, &s->trace);
}
static int self(void) { return (int)(now - threads); }
int orders_self(void) { return self(); }
void orders_stamp_now(orders_stamp *s) {
    if (!now) return;
    *s = now->now;
    now->now.data.at[self()]++;
}
void orders_add_now(orders_stamp *s) {
    if (!now) return;
    join(&s->data, &now->now.data);
    join(&s->trace, &now->now.trace);
    now->now.data.at[self()]++;
}

/* ---- errors ---- */

static void print_place(const void *pc) {
    char command[256];
    (void)snprintf(command, sizeof command, "addr2line -s -f -e /proc/%d/exe %p | tr '\\n' ' ' >&2",
                   (int)getpid(), (void *)((uintptr_t)pc - 1));
    fflush(stderr);
    if (system(command)) fprintf(stderr, "%p ", pc);
}

void orders_fail(const char *format, ...) {
    va_list list;
    fflush(stdout);
    fprintf(stderr, "FAILED: ");
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fprintf(stderr, "\n");
    if (now)
        fprintf(stderr, "  by thread %d of rank %d, in execution %ld\n", self() % ORDERS_OF_RANK,
                self() / ORDERS_OF_RANK, report.classes + report.cut + 1);
    fflush(stderr);
    _exit(1);
}

/* ---- memory: which accesses are ordered ---- */

enum { CELL = 4, PAGE = 4096, CELLS = PAGE / CELL, READERS = 15 };
typedef struct cell { /* four bytes */
    unsigned run;
    uint32_t write;                   /* the writer's clock then; 0: not written */
    uint8_t writer, n, freed, atomic; /* atomic: the write was */
    uint8_t reader[READERS], read_atomic[READERS];
    uint32_t read[READERS];
    const void *wrote_at, *read_at[READERS];
} cell;
typedef struct page {
    uintptr_t number;
    cell *cells;
    struct page *next;
} page;
static page *pages[1 << 14];
static page *last_page;

static cell *cell_of(uintptr_t at) {
    const uintptr_t number = at / PAGE;
    if (!last_page || last_page->number != number) {
        page **p = &pages[(number ^ number >> 14) % (sizeof pages / sizeof *pages)];
        while (*p && (*p)->number != number) p = &(*p)->next;
        if (!*p) {
            *p = calloc(1, sizeof **p);
            (*p)->number = number;
            (*p)->cells = calloc(CELLS, sizeof(cell));
        }
        last_page = *p;
    }
    cell *c = &last_page->cells[at % PAGE / CELL];
    if (c->run != run) {
        memset(c, 0, sizeof *c);
        c->run = run;
    }
    return c;
}

/* What a dead rank has read or written before its death does not race. */
static void race(const char *what, uintptr_t at, int other, const void *there, const void *here) {
    if (orders_died(other / ORDERS_OF_RANK)) return;
    fflush(stdout);
    fprintf(stderr, "FAILED: %s at %p\n    ", what, (void *)at);
    print_place(here);
    fprintf(stderr, "in thread %d of rank %d\n    ", self() % ORDERS_OF_RANK,
            self() / ORDERS_OF_RANK);
    print_place(there);
    fprintf(stderr, "in thread %d of rank %d\n", other % ORDERS_OF_RANK, other / ORDERS_OF_RANK);
    orders_fail("nothing orders these two accesses");
}

/* Two atomic accesses do not race. */
static void access_cell(uintptr_t at, int writes, int atomic, const void *pc) {
    cell *c = cell_of(at);
    const uint32_t *clock = now->now.data.at;
    const int me = self();
    if (c->freed) race("memory is used that was freed", at, c->writer, c->wrote_at, pc);
    if (c->write > clock[c->writer] && c->writer != me && !(c->atomic && atomic))
        race(writes ? "a write, and another one" : "a read, and a write", at, c->writer,
             c->wrote_at, pc);
    int n = 0, mine = -1;
    for (int i = 0; i < c->n; i++) {
        const int before = c->read[i] <= clock[c->reader[i]];
        if (writes && !before && c->reader[i] != me && !(c->read_atomic[i] && atomic))
            race("a write, and a read", at, c->reader[i], c->read_at[i], pc);
        if ((writes || c->reader[i] != me) && (before || c->reader[i] == me)) continue;
        c->reader[n] = c->reader[i];
        c->read[n] = c->read[i];
        c->read_at[n] = c->read_at[i];
        c->read_atomic[n] = c->read_atomic[i];
        if (c->reader[n] == me) mine = n;
        n++;
    }
    c->n = (uint8_t)n;
    if (writes) {
        c->write = clock[me];
        c->writer = (uint8_t)me;
        c->wrote_at = pc;
        c->atomic = (uint8_t)atomic;
        return;
    }
    if (mine < 0) mine = c->n++;
    if (mine >= READERS) orders_fail("more than %d readers of 4 bytes; raise READERS", READERS);
    c->reader[mine] = (uint8_t)me;
    c->read[mine] = clock[me];
    c->read_at[mine] = pc;
    c->read_atomic[mine] = (uint8_t)atomic;
}
static void access_range(const void *at, size_t bytes, int writes, const void *pc) {
    if (!now || !bytes) return;
    report.accesses++;
    for (uintptr_t a = (uintptr_t)at / CELL * CELL; a < (uintptr_t)at + bytes; a += CELL)
        access_cell(a, writes, 0, pc);
}
void orders_access(const void *at, size_t bytes, int writes) {
    access_range(at, bytes, writes, __builtin_return_address(0));
}

void *orders_hold(size_t bytes) {
    char *p = held + held_bytes;
    held_bytes += (bytes + 63) / 64 * 64;
    if (held_bytes > HELD_BYTES) orders_fail("an execution needs more than %d bytes", HELD_BYTES);
    return memset(p, 0, bytes);
}

/* What the instrumented code calls instead of the C library. */
typedef struct block {
    size_t bytes;
    char fill[56];
} block;
void *orders_malloc(size_t bytes) {
    if (!now) return malloc(bytes);
    block *b = orders_hold(sizeof *b + bytes);
    b->bytes = bytes;
    return b + 1;
}
void *orders_calloc(size_t n, size_t bytes) {
    return now ? orders_malloc(n * bytes) : calloc(n, bytes);
}
int orders_posix_memalign(void **p, size_t to, size_t bytes) {
    if (!now) return posix_memalign(p, to, bytes);
    const size_t at = (held_bytes + sizeof(block) + to - 1) / to * to;
    held_bytes = at - sizeof(block);
    *p = orders_malloc(bytes);
    return 0;
}
static int is_held(const void *p) {
    return (uintptr_t)p >= (uintptr_t)held && (uintptr_t)p < (uintptr_t)held + HELD_BYTES;
}
void orders_free(void *p) {
    if (!is_held(p)) {
        free(p);
        return;
    }
    if (!now) return;
    const block *b = (block *)p - 1;
    access_range(p, b->bytes, 1, __builtin_return_address(0));
    for (uintptr_t a = (uintptr_t)p; a < (uintptr_t)p + b->bytes; a += CELL) cell_of(a)->freed = 1;
}
void *orders_realloc(void *p, size_t bytes) {
    if (!now) return realloc(p, bytes);
    void *q = orders_malloc(bytes);
    if (!p) return q;
    const size_t old = ((block *)p - 1)->bytes;
    access_range(p, old < bytes ? old : bytes, 0, __builtin_return_address(0));
    memcpy(q, p, old < bytes ? old : bytes);
    orders_free(p);
    return q;
}
char *orders_strdup(const char *text) {
    char *p = orders_malloc(strlen(text) + 1);
    return strcpy(p, text);
}
void *orders_memcpy(void *to, const void *from, size_t n) {
    access_range(from, n, 0, __builtin_return_address(0));
    access_range(to, n, 1, __builtin_return_address(0));
    return memmove(to, from, n);
}
void *orders_memmove(void *to, const void *from, size_t n) {
    access_range(from, n, 0, __builtin_return_address(0));
    access_range(to, n, 1, __builtin_return_address(0));
    return memmove(to, from, n);
}
void *orders_memset(void *to, int value, size_t n) {
    access_range(to, n, 1, __builtin_return_address(0));
    return memset(to, value, n);
}
int orders_memcmp(const void *a, const void *b, size_t n) {
    access_range(a, n, 0, __builtin_return_address(0));
    access_range(b, n, 0, __builtin_return_address(0));
    return memcmp(a, b, n);
}
/* A byte of a file counts as memory at an address that no process has. */
static const void *file_byte(int fd, off_t at) {
    return (const void *)(((uintptr_t)fd + 1) << 48 | (uintptr_t)at);
}
ssize_t orders_pread(int fd, void *to, size_t n, off_t at) {
    access_range(file_byte(fd, at), n, 0, __builtin_return_address(0));
    access_range(to, n, 1, __builtin_return_address(0));
    return pread(fd, to, n, at);
}
ssize_t orders_pwrite(int fd, const void *from, size_t n, off_t at) {
    access_range(from, n, 0, __builtin_return_address(0));
    access_range(file_byte(fd, at), n, 1, __builtin_return_address(0));
    return pwrite(fd, from, n, at);
}

/* What the compiler calls at each access. */
#define HERE __builtin_return_address(0)
#define ACCESS(n)                                                                                  \
    void __tsan_read##n(void *p) { access_range(p, n, 0, HERE); }                                  \
    void __tsan_write##n(void *p) { access_range(p, n, 1, HERE); }                                 \
    void __tsan_unaligned_read##n(void *p) { access_range(p, n, 0, HERE); }                        \
    void __tsan_unaligned_write##n(void *p) { access_range(p, n, 1, HERE); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_read_range(void *p, size_t n) { access_range(p, n, 0, HERE); }
void __tsan_write_range(void *p, size_t n) { access_range(p, n, 1, HERE); }
void __tsan_init(void) {}
void __tsan_func_entry(void *pc) { (void)pc; }
void __tsan_func_exit(void) {}

/* ---- operations ---- */

static void hand_over(void) {
    thread *t = now;
    now = NULL;
    swapcontext(&t->context, &chooser);
    now = t;
}

void orders_point(void) {
    if (!now) return;
    const int rank = orders_rank();
    points[rank]++;
    if (!test->die_at || rank != test->die_rank || points[rank] != test->die_at) return;
    for (int i = rank * ORDERS_OF_RANK; i < (rank + 1) * ORDERS_OF_RANK; i++)
        threads[i].state = threads[i].state == READY ? DEAD : threads[i].state;
    hand_over(); /* never to return */
}

int orders_died(int rank) {
    for (int i = rank * ORDERS_OF_RANK; i < (rank + 1) * ORDERS_OF_RANK; i++)
        if (threads[i].state == DEAD) return 1;
    return 0;
}

void orders_wait(int (*ready)(void *), void *arg, const char *what) {
    if (!now) return;
    orders_point();
    steps++;
    if (ready(arg)) return;
    now->ready = ready;
    now->ready_arg = arg;
    now->object = 0;
    now->what = what;
    hand_over();
}
void orders_sleep(int (*ready)(void *), void *arg, const char *what) {
    now->sleeps = 1;
    now->slept = 0;
    orders_wait(ready, arg, what);
    now->sleeps = 0;
}

static object *object_of(uintptr_t key) {
    for (size_t i = key / 4 * 0x9E3779B97F4A7C15u >> 50;; i = (i + 1) % OBJECTS) {
        object *o = &objects[i];
        if (o->run == run && o->key != key) continue;
        if (o->run != run) memset(o, 0, sizeof *o);
        o->run = run;
        o->key = key;
        return o;
    }
}

void orders_use_object(uintptr_t key, orders_use use, const char *what) {
    orders_use_when(key, use, NULL, NULL, what);
}
void orders_use_when(uintptr_t key, orders_use use, int (*ready)(void *), void *arg,
                     const char *what) {
    if (!now) return;
    orders_point();
    steps++;
    now->loaded = NULL;
    now->ready = ready;
    now->ready_arg = arg;
    now->object = key;
    now->use = use;
    now->what = what;
    hand_over();
}

int orders_spins;
enum { RELAXED = 0, ACQUIRES = 2, RELEASES = 3 };
static int acquires(int order) { return order == 1 || order == 2 || order >= 4; }
static int releases(int order) { return order >= 3; }
static object *atomic(const volatile void *p, orders_use use, int order, const void *pc) {
    orders_use_object((uintptr_t)p, use, "an atomic variable");
    object *o = object_of((uintptr_t)p);
    if (now && acquires(order)) join(&now->now.data, &o->release);
    if (now) access_cell((uintptr_t)p / CELL * CELL, use != ORDERS_READS, 1, pc);
    return o;
}
static void atomic_end(object *o, int order, int stores) {
    if (!now) return;
    if (stores) memset(&o->release, 0, sizeof o->release); /* not a read-modify-write */
    if (!releases(order)) return;
    join(&o->release, &now->now.data);
    now->now.data.at[self()]++;
}
#define ATOMIC(bits)                                                                               \
    typedef uint##bits##_t u##bits;                                                                \
    u##bits __tsan_atomic##bits##_load(const volatile u##bits *p, int order) {                     \
        const thread *t = now;                                                                     \
        if (t && orders_spins && t->loaded == p) return *p;                                        \
        (void)atomic(p, ORDERS_READS, order, HERE);                                                \
        if (now) now->loaded = p;                                                                  \
        return *p;                                                                                 \
    }                                                                                              \
    void __tsan_atomic##bits##_store(volatile u##bits *p, u##bits x, int order) {                  \
        object *o = atomic(p, ORDERS_WRITES, RELAXED, HERE);                                       \
        *p = x;                                                                                    \
        atomic_end(o, order, 1);                                                                   \
    }                                                                                              \
    u##bits __tsan_atomic##bits##_exchange(volatile u##bits *p, u##bits x, int order) {            \
        object *o = atomic(p, ORDERS_WRITES, order, HERE);                                         \
        const u##bits old = *p;                                                                    \
        *p = x;                                                                                    \
        atomic_end(o, order, 0);                                                                   \
        return old;                                                                                \
    }                                                                                              \
    u##bits __tsan_atomic##bits##_fetch_add(volatile u##bits *p, u##bits x, int order) {           \
        object *o = atomic(p, order == RELAXED ? ORDERS_ADDS : ORDERS_WRITES, order, HERE);        \
        const u##bits old = *p;                                                                    \
        *p = (u##bits)(old + x);                                                                   \
        atomic_end(o, order, 0);                                                                   \
        return old;                                                                                \
    }                                                                                              \
    u##bits __tsan_atomic##bits##_fetch_sub(volatile u##bits *p, u##bits x, int order) {           \
        return __tsan_atomic##bits##_fetch_add(p, (u##bits)(0 - x), order);                        \
    }                                                                                              \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile u##bits *p, u##bits *c, u##bits x,  \
                                                      int order, int failed) {                     \
        object *o = atomic(p, ORDERS_WRITES, order, HERE);                                         \
        const u##bits old = *p;                                                                    \
        const int same = old == *c;                                                                \
        (void)failed;                                                                              \
        if (same) *p = x;                                                                          \
        *c = old;                                                                                  \
        if (same) atomic_end(o, order, 0);                                                         \
        return same;                                                                               \
    }                                                                                              \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile u##bits *p, u##bits *c, u##bits x,    \
                                                    int order, int failed) {                       \
        return __tsan_atomic##bits##_compare_exchange_strong(p, c, x, order, failed);              \
    }                                                                                              \
    u##bits __tsan_atomic##bits##_compare_exchange_val(volatile u##bits *p, u##bits c, u##bits x,  \
                                                       int order, int failed) {                    \
        (void)__tsan_atomic##bits##_compare_exchange_strong(p, &c, x, order, failed);              \
        return c;                                                                                  \
    }
ATOMIC(8)
ATOMIC(16)
ATOMIC(32)
ATOMIC(64)

/* ---- threads ---- */

int orders_rank(void) { return now ? self() / ORDERS_OF_RANK : -1; }
int orders_is_first(void) { return now && self() % ORDERS_OF_RANK == 0; }

static void thread_main(void) {
    thread *t = now;
    t->run(t->arg);
    t->state = ENDED;
    hand_over();
}
static void start(int at, void (*fn)(void *), void *arg) {
    thread *t = &threads[at];
    if (!t->stack)
        t->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    t->state = READY;
    t->run = fn;
    t->arg = arg;
    t->ready = NULL;
    t->object = 0;
    t->sleeps = t->slept = 0;
    t->loaded = NULL;
    t->what = "its begin";
    memset(&t->now, 0, sizeof t->now);
    getcontext(&t->context);
    t->context.uc_stack.ss_sp = t->stack;
    t->context.uc_stack.ss_size = STACK_BYTES;
    t->context.uc_link = NULL;
    makecontext(&t->context, thread_main, 0);
    if (at + 1 > nthreads) nthreads = at + 1;
}
void orders_start(void (*fn)(void *), void *arg) {
    const int first = orders_rank() * ORDERS_OF_RANK;
    int at = first;
    while (at < first + ORDERS_OF_RANK && threads[at].state != NONE) at++;
    if (at == first + ORDERS_OF_RANK)
        orders_fail("a rank has more than %d threads", ORDERS_OF_RANK);
    start(at, fn, arg);
    threads[at].now = now->now;
    threads[at].now.data.at[at] = 1;
    now->now.data.at[self()]++;
}

/* ---- the choice of the next thread ---- */

static int conflict(uintptr_t a, orders_use x, uintptr_t b, orders_use y) {
    return a && a == b && (x != y || x == ORDERS_WRITES);
}

/* Event j happened after event i. */
static int follows(const node *j, const node *i) { return j->trace.at[i->chosen] >= i->number; }

/* The last event, e, may also come before event i. Chooses a thread to try there. */
static void add_backtrack(int i, int e) {
    uint64_t initials = 0, seen = 0;
    for (int j = i + 1; j <= e; j++) {
        if (j < e && follows(&nodes[j], &nodes[i])) continue;
        const uint64_t bit = (uint64_t)1 << nodes[j].chosen;
        int first = !(seen & bit);
        for (int k = i + 1; k < j && first; k++)
            first = follows(&nodes[k], &nodes[i]) || !follows(&nodes[j], &nodes[k]);
        if (first) initials |= bit;
        seen |= bit;
    }
    node *n = &nodes[i];
    initials &= n->enabled;
    if (!initials) n->backtrack |= n->enabled;
    if (initials & n->backtrack) return;
    n->backtrack |= initials & -initials;
}

/* Thread t's operation is the last node's: orders it after those that it depends on. */
static void begin_operation(thread *t) {
    node *n = &nodes[depth - 1];
    object *o = object_of(t->object);
    const int me = (int)(t - threads);
    n->before = o->last;
    o->last = depth;
    n->object = t->object;
    n->use = t->use;
    n->number = ++t->now.trace.at[me];
    const orders_clock mine = t->now.trace;
    for (int use = 0; use < 3; use++)
        if (use != (int)t->use || use == ORDERS_WRITES) join(&t->now.trace, &o->trace[use]);
    n->trace = mine;
    for (int i = n->before - 1; i >= 0; i = nodes[i].before - 1) {
        const node *x = &nodes[i];
        if (x->chosen == me || !conflict(x->object, x->use, n->object, n->use)) continue;
        if (mine.at[x->chosen] < x->number) add_backtrack(i, depth - 1);
    }
    n->trace = t->now.trace;
    join(&o->trace[t->use], &t->now.trace);
}

static uint64_t mask_enabled(void) {
    uint64_t mask = 0;
    for (int i = 0; i < nthreads; i++)
        if (threads[i].state == READY
            && (!threads[i].ready || threads[i].slept || threads[i].ready(threads[i].ready_arg)))
            mask |= (uint64_t)1 << i;
    return mask;
}

static int draw(uint64_t mask) {
    int n = __builtin_popcountll(mask);
    if (!test->seed) return __builtin_ctzll(mask);
    chance = chance * 6364136223846793005u + 1442695040888963407u;
    for (n = (int)((chance >> 33) % (uint64_t)n); n; n--) mask &= mask - 1;
    return __builtin_ctzll(mask);
}

static void step(int t) {
    threads[t].ready = NULL;
    threads[t].slept = 0;
    now = &threads[t];
    swapcontext(&chooser, &now->context);
    now = NULL;
}

static void report_deadlock(void) {
    fflush(stdout);
    fprintf(stderr, "FAILED: deadlock\n");
    for (int i = 0; i < nthreads; i++)
        if (threads[i].state == READY)
            fprintf(stderr, "    thread %d of rank %d waits for %s\n", i % ORDERS_OF_RANK,
                    i / ORDERS_OF_RANK, threads[i].what);
    orders_fail("all threads wait");
}

/* Runs the execution that the nodes begin. Returns 0 if it was cut. */
static int run_execution(void) {
    uint64_t sleep = 0;
    depth = 0;
    for (;;) {
        uint64_t enabled = mask_enabled(), alone = 0;
        if (!enabled) { /* time passes */
            for (int i = 0; i < nthreads; i++) threads[i].slept = threads[i].sleeps;
            enabled = mask_enabled();
        }
        if (!enabled) break;
        for (int i = 0; i < nthreads; i++)
            if (enabled >> i & 1 && !threads[i].object) alone |= (uint64_t)1 << i;
        if (alone) { /* it depends on nothing: no other choice is needed */
            step(draw(alone));
            continue;
        }
        if (depth == EVENTS) orders_fail("more than %d operations: a loop without an end", EVENTS);
        node *n = &nodes[depth];
        if (depth == length) {
            memset(n, 0, sizeof *n);
            n->enabled = enabled;
            n->sleep = sleep;
            if (!(enabled & ~sleep)) return 0;
            n->chosen = draw(enabled & ~sleep);
            n->backtrack = (uint64_t)1 << n->chosen;
            length++;
        } else if (n->enabled != enabled)
            orders_fail("an execution is not repeatable");
        thread *t = &threads[n->chosen];
        const uint64_t asleep = (n->sleep | n->done) & ~((uint64_t)1 << n->chosen);
        sleep = 0;
        for (int i = 0; i < nthreads; i++)
            if (asleep >> i & 1 && !conflict(threads[i].object, threads[i].use, t->object, t->use))
                sleep |= (uint64_t)1 << i;
        depth++;
        begin_operation(t);
        step(n->chosen);
    }
    for (int i = 0; i < nthreads; i++)
        if (threads[i].state == READY) report_deadlock();
    return 1;
}

static void rank_main(void *arg) {
    test->run(self() / ORDERS_OF_RANK, test->arg);
    (void)arg;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Prepares the next execution: the deepest node with a choice that is left. 0: there is none. */
static int next_execution(void) {
    for (; length; length--) {
        node *n = &nodes[length - 1];
        n->done |= (uint64_t)1 << n->chosen;
        const uint64_t left = n->backtrack & ~n->done & ~n->sleep;
        if (!left) continue;
        n->chosen = __builtin_ctzll(left);
        return 1;
    }
    return 0;
}

orders_report orders_explore(const orders_test *t) {
    const double begun = seconds();
    if (!nodes)
        nodes = mmap(NULL, EVENTS * sizeof *nodes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!objects)
        objects = mmap(NULL, OBJECTS * sizeof *objects, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!held)
        held = mmap(NULL, HELD_BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    memset(&report, 0, sizeof report);
    test = t;
    length = 0;
    chance = t->seed;
    do {
        run++;
        steps = 0;
        report.accesses = 0;
        held_bytes = 0;
        nthreads = 0;
        memset(points, 0, sizeof points);
        for (int i = 0; i < ORDERS_THREADS; i++) threads[i].state = NONE;
        if (t->begin) t->begin(t->arg);
        for (int r = 0; r < t->nranks; r++) {
            start(r * ORDERS_OF_RANK, rank_main, NULL);
            threads[r * ORDERS_OF_RANK].now.data.at[r * ORDERS_OF_RANK] = 1;
        }
        if (!run_execution()) {
            report.cut++;
            continue;
        }
        if (!report.classes) memcpy(report.points, points, sizeof points);
        report.classes++;
        if (steps > report.steps) report.steps = steps;
        if (t->end) t->end(t->arg);
    } while (next_execution() && (t->budget_s <= 0 || seconds() - begun < t->budget_s));
    report.closed = length == 0;
    report.seconds = seconds() - begun;
    return report;
}

/* ---- removed calls ---- */

enum { PLACES = 256 };
static const char *removed;
static int reached, lists_places, n_places;
static char place_list[PLACES][256];
void orders_remove(const char *place) { removed = place; }
int orders_removal_reached(void) { return reached; }
void orders_list_places(int lists) {
    lists_places = lists;
    n_places = 0;
}
void orders_print_places(void) {
    for (int i = 0; i < n_places; i++) printf(" %s", place_list[i]);
}
static void list_place(const char *place) {
    for (int i = 0; i < n_places; i++)
        if (!strcmp(place_list[i], place)) return;
    if (n_places == PLACES) orders_fail("more than %d calls that can be removed", PLACES);
    (void)snprintf(place_list[n_places++], sizeof place_list[0], "%s", place);
}
int orders_removed(const char *file, int line) {
    char place[256];
    if (!removed && !lists_places) return 0;
    (void)snprintf(place, sizeof place, "%s:%d", file, line);
    if (lists_places) {
        const char *at = strstr(place, "zero_plugin/");
        list_place(at ? at + strlen("zero_plugin/") : place);
        return 0;
    }
    const size_t n = strlen(place), want = strlen(removed);
    const int same = n >= want && !strcmp(place + n - want, removed)
                     && (n == want || place[n - want - 1] == '/');
    reached |= same;
    return same;
}
