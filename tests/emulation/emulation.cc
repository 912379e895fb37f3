/* emulation.cc - CUDA's runtime on the CPU: kernels, streams, events, memory, host threads.

   Every stream is a queue of tasks; the task at a queue's head may run when the event it waits for
   is complete (and, between the default stream and blocking streams, when its turn has come).
   Without a seed tasks run as soon as they can, inside the call that enqueued them; with one they
   run when the seed says so, inside any later call of any host thread, and at the latest when a
   host thread waits. A task's parts are atomic: while a host function runs nothing else does, as if
   one thread of the driver's ran all of them, and nobody else was quick enough. */
#include "engine.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

/* ---- kernels ------------------------------------------------------------------------------- */

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
char *emulated_dynamic_shared;
/* The section of static shared memory, where a kernel has some. */
extern char __start_emulated_shared[] __attribute__((weak));
extern char __stop_emulated_shared[] __attribute__((weak));

namespace emulation {

Engine engine;
thread_local Thread self;

namespace {

const size_t stack_bytes = 256 * 1024, dynamic_bytes = 228 * 1024;

/* A stack on which threads of a block run, one after another, until one has to wait. */
struct Fiber {
    void *stack_pointer;
    unsigned thread; /* that it runs */
};

struct Warp {
    unsigned live, arrived, parity;
    int what;
    uint32_t mask, lanes; /* the mask of those that arrived, and their lanes */
    uint64_t value[2][32];
    uint32_t given[2]; /* lanes that gave a value */
    uint32_t votes[2];
    std::vector<Fiber *> waiting;
};

struct Block {
    emulated_kernel *kernel;
    unsigned threads, next, done, at_barrier;
    unsigned first, stride; /* the order in which threads start */
    std::vector<Fiber *> ready, waiting, idle;
    std::vector<Warp> warps;
    Fiber *running;
    void *scheduler; /* the stack pointer of who runs the block */
    uint64_t order;
    unsigned ahead; /* the warp that runs until it waits, in even orders */
} block;

extern "C" void emulated_switch(void **save, void *to);
#if defined(__x86_64__)
__asm__(".text\n.globl emulated_switch\n.type emulated_switch,@function\nemulated_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size emulated_switch,.-emulated_switch\n");
#else
#error "the emulation's context switch is written for x86-64"
#endif

void set_thread(unsigned t) {
    threadIdx.x = t % blockDim.x;
    threadIdx.y = t / blockDim.x % blockDim.y;
    threadIdx.z = t / blockDim.x / blockDim.y;
}

void release_all(std::vector<Fiber *> *waiting) {
    block.ready.insert(block.ready.end(), waiting->begin(), waiting->end());
    waiting->clear();
}
void release_barrier() {
    if (!block.at_barrier || block.at_barrier != block.threads - block.done) return;
    block.at_barrier = 0;
    release_all(&block.waiting);
}
[[noreturn]] void wrong_lanes(uint32_t mask, uint32_t lanes) {
    fprintf(stderr,
            "emulation: %s: a warp primitive names lanes %08x, but lanes %08x take part in it\n",
            block.kernel->name, mask, lanes);
    abort();
}
void release_warp(Warp *w) {
    if (!w->arrived || w->arrived != w->live) return;
    w->arrived = 0;
    w->parity ^= 1;
    w->given[w->parity] = w->votes[w->parity] = 0;
    if (w->mask != w->lanes) wrong_lanes(w->mask, w->lanes);
    w->what = 0;
    w->lanes = 0;
    release_all(&w->waiting);
}

void thread_ends(unsigned thread) {
    Warp *w = &block.warps[thread / 32];
    block.done++;
    w->live--;
    release_barrier();
    release_warp(w);
}

void fiber_main() {
    for (;;) {
        while (block.next < block.threads) {
            const unsigned t =
                (unsigned)(((uint64_t)block.next++ * block.stride + block.first) % block.threads);
            block.running->thread = t;
            set_thread(t);
            block.kernel->call();
            thread_ends(t);
        }
        block.idle.push_back(block.running);
        emulated_switch(&block.running->stack_pointer, block.scheduler);
    }
}

Fiber *fiber_new() {
    char *stack = (char *)mmap(NULL, stack_bytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == (char *)MAP_FAILED || mprotect(stack, 4096, PROT_NONE)) abort();
    void **top = (void **)(void *)(stack + stack_bytes);
    *--top = NULL; /* the stack is aligned as after a call */
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++) *--top = NULL;
    return new Fiber{top, 0};
}

/* The running thread waits; comes back when it may go on. */
void fiber_wait(std::vector<Fiber *> *waiting) {
    Fiber *me = block.running;
    waiting->push_back(me);
    emulated_switch(&me->stack_pointer, block.scheduler);
    set_thread(me->thread);
}

void stuck() {
    fprintf(stderr,
            "emulation: threads of block (%u, %u, %u) of %s wait at different barriers: %u of %u "
            "returned, %u are at __syncthreads\n",
            blockIdx.x, blockIdx.y, blockIdx.z, block.kernel->name, block.done, block.threads,
            block.at_barrier);
    abort();
}

/* The next of those that can go on. */
size_t choose_ready() {
    if (!block.order) return 0;
    const size_t any = below((unsigned)block.ready.size());
    if (block.order % 2) return any;
    for (size_t i = block.ready.size(); i-- > 0;)
        if (block.ready[i]->thread / 32 == block.ahead) return i;
    block.ahead = block.ready[any]->thread / 32;
    return any;
}

void run_block() {
    const unsigned n = block.threads, warps = (n + 31) / 32;
    block.next = block.done = block.at_barrier = 0;
    block.warps.resize(warps);
    for (unsigned w = 0; w < warps; w++) {
        Warp *warp = &block.warps[w];
        warp->live = std::min(32u, n - w * 32);
        warp->arrived = warp->parity = 0;
        warp->what = 0;
        warp->lanes = 0;
        warp->given[0] = warp->votes[0] = 0;
    }
    while (block.done < n) {
        if (!block.ready.empty()) {
            const size_t at = choose_ready();
            block.running = block.ready[at];
            block.ready.erase(block.ready.begin() + (long)at);
        } else if (block.next < n) {
            if (block.idle.empty()) block.idle.push_back(fiber_new());
            block.running = block.idle.back();
            block.idle.pop_back();
        } else {
            stuck();
        }
        emulated_switch(&block.scheduler, block.running->stack_pointer);
    }
}

/* Threads start at `first` and go on in steps that meet every thread. */
void choose_order(unsigned n) {
    block.first = 0, block.stride = 1;
    if (!block.order) return;
    block.first = below(n);
    block.stride = 1 + below(n);
    while (std::__gcd(block.stride, n) != 1) block.stride++;
}

/* Returns memory of dynamic_bytes, followed by a page that nobody may touch. */
char *guarded_memory() {
    char *p = (char *)mmap(NULL, dynamic_bytes + 4096, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == (char *)MAP_FAILED || mprotect(p + dynamic_bytes, 4096, PROT_NONE)) abort();
    return p;
}

void run_kernel(emulated_kernel *k) {
    static char *memory = guarded_memory();
    char *shared = memory + dynamic_bytes - (k->shared + 15) / 16 * 16; /* ends at the guard */
    gridDim = k->grid, blockDim = k->block;
    block.kernel = k;
    block.threads = blockDim.x * blockDim.y * blockDim.z;
    emulated_dynamic_shared = shared;
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
                if (k->shared) memset(shared, 0xFF, k->shared);
                if (__start_emulated_shared)
                    memset(__start_emulated_shared, 0xFF,
                           (size_t)(__stop_emulated_shared - __start_emulated_shared));
                choose_order(block.threads);
                run_block();
            }
}

} // namespace
} // namespace emulation

using namespace emulation;

void __syncthreads() {
    block.at_barrier++;
    if (block.at_barrier == block.threads - block.done) {
        block.at_barrier = 0;
        release_all(&block.waiting);
        return;
    }
    fiber_wait(&block.waiting);
}

static void warp_arrive(Warp *w, emulated_primitive what, unsigned mask, unsigned lane) {
    if (w->what && w->what != (int)what) {
        fprintf(stderr, "emulation: %s: lanes of one warp are at different primitives\n",
                block.kernel->name);
        abort();
    }
    if (w->what && w->mask != mask) wrong_lanes(mask, w->mask);
    w->what = (int)what;
    w->mask = mask;
    w->lanes |= 1u << lane;
    if (++w->arrived == w->live)
        release_warp(w);
    else
        fiber_wait(&w->waiting);
}

uint64_t emulated_warp(emulated_primitive what, unsigned mask, uint64_t value, int from) {
    const unsigned thread = block.running->thread, lane = thread % 32;
    Warp *w = &block.warps[thread / 32];
    const unsigned parity = w->parity;
    w->value[parity][lane] = value;
    w->given[parity] |= 1u << lane;
    warp_arrive(w, what, mask, lane);
    const bool there = w->given[parity] >> (from & 31) & 1u;
    return there ? w->value[parity][from & 31] : ~(uint64_t)0; /* a lane that gave nothing: NaN */
}

unsigned emulated_warp_votes(unsigned mask, bool vote) {
    const unsigned thread = block.running->thread, lane = thread % 32;
    Warp *w = &block.warps[thread / 32];
    const unsigned parity = w->parity;
    if (vote) w->votes[parity] |= 1u << lane;
    warp_arrive(w, EMULATED_VOTE, mask, lane);
    return w->votes[parity] & mask;
}

/* ---- chance, findings ---------------------------------------------------------------------- */

namespace emulation {

uint64_t draw() {
    uint64_t x = engine.random += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}
unsigned below(unsigned n) { return (unsigned)(draw() % n); }

void find(const char *format, ...) {
    char text[512];
    va_list list;
    if (!engine.found.empty()) return;
    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    engine.found = text;
}

bool injected(emulation_call sort) {
    if (engine.entered && self.rank < 0) return false; /* a watchdog's calls come at any time */
    engine.calls[sort]++;
    if (!engine.fail_at[sort] || engine.calls[sort] != engine.fail_at[sort]) return false;
    engine.fail_at[sort] = 0;
    engine.failures++;
    return true;
}

static double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

/* ---- tasks --------------------------------------------------------------------------------- */

static bool exposed = true; /* device memory is accessible: see expose */

namespace {

struct Work : Task {
    std::function<void()> work;
    bool step() override {
        work();
        return true;
    }
};
struct Copy : Task {
    void *to;
    const void *from;
    size_t bytes; /* 0: its memory is gone */
    bool step() override {
        check_range(to, bytes, "a copy");
        check_range(from, bytes, "a copy");
        if (bytes) memmove(to, from, bytes);
        return true;
    }
};
struct Wait : Task {
    std::shared_ptr<Record> record;
    bool ready() override { return record->done; }
    bool step() override { return true; }
};
struct Mark : Task {
    std::shared_ptr<Record> record;
    bool step() override {
        record->done = true;
        record->time = now();
        return true;
    }
};
struct Replay : Task { /* of a graph */
    Graph graph;
    bool step() override {
        for (const auto &task : graph.tasks) (void)task->step();
        return true;
    }
};
struct Launch : Task {
    std::unique_ptr<emulated_kernel> kernel;
    bool step() override {
        run_kernel(kernel.get());
        return true;
    }
};

/* Between a default stream and the blocking streams of its device the order is that of enqueueing.
 */
bool in_turn(const Stream *s) {
    const uint64_t number = s->tasks.front()->number;
    if (!s->legacy && !s->blocking) return true;
    for (const Stream *o : engine.streams)
        if (o != s && o->device == s->device && !o->tasks.empty()
            && o->tasks.front()->number < number && (s->legacy ? o->blocking : o->legacy))
            return false;
    return true;
}

void step_head(Stream *s) {
    const uint64_t around = engine.running; /* a function that waits, or none */
    const bool before = exposed;
    engine.in_task++;
    engine.running = s->tasks.front()->number;
    s->busy = true;
    expose(!s->tasks.front()->of_host);
    const bool done = s->tasks.front()->step();
    s->busy = false;
    if (around) expose(before);
    engine.running = around;
    engine.in_task--;
    if (!done) return;
    s->tasks.pop_front();
    if (!s->tasks.empty() || !s->closing) return;
    for (size_t i = 0; i < engine.streams.size(); i++)
        if (engine.streams[i] == s) engine.streams.erase(engine.streams.begin() + (long)i);
    delete s;
}

/* Streams whose head can run; late: of those that run when nothing else can. A device that is lost
   runs nothing any more, and calls nobody. */
std::vector<Stream *> &runnable(bool late = false) {
    static std::vector<Stream *> list;
    list.clear();
    if (engine.dead) return list;
    for (Stream *s : engine.streams)
        if (!s->tasks.empty() && !s->busy && !s->stalled && s->late == late
            && s->tasks.front()->ready() && in_turn(s))
            list.push_back(s);
    return list;
}

} // namespace

/* Half of the seeds starve streams: the most urgent one runs, and now and then urgency changes. */
static Stream *chosen(const std::vector<Stream *> &list) {
    if (!engine.seeded) return list[0];
    if (!engine.prefers) return list[below((unsigned)list.size())];
    Stream *best = list[0];
    for (Stream *s : list)
        if (s->urgency > best->urgency) best = s;
    if (!below(24)) best->urgency = (unsigned)draw();
    return best;
}

static bool run_one_of(std::vector<Stream *> &list) {
    if (list.empty()) return false;
    step_head(chosen(list));
    engine.changed.notify_all();
    return true;
}
bool run_one() { return !engine.in_task && run_one_of(runnable()); }

void run_greedily() {
    while (run_one()) {}
}

bool drained(const Stream *s) { return s->tasks.empty(); }

void enqueue(Stream *s, Task *task) {
    if (s->capture) {
        s->capture->tasks.emplace_back(task);
        return;
    }
    task->number = ++engine.next_number;
    s->tasks.emplace_back(task);
    if (!engine.seeded) run_greedily();
}

Stream *stream_of(cudaStream_t handle) {
    if (handle && handle != cudaStreamLegacy) {
        for (Stream *s : engine.streams)
            if (s == (Stream *)(void *)handle && !s->closing) return s;
        find("a call is given a stream that is gone");
        return NULL;
    }
    for (Stream *s : engine.streams)
        if (s->legacy && s->device == self.device) return s;
    Stream *s = new Stream;
    s->device = self.device;
    s->legacy = true;
    s->urgency = engine.seeded ? (unsigned)draw() : 0;
    engine.streams.push_back(s);
    return s;
}

/* ---- host threads -------------------------------------------------------------------------- */

bool takes_turns() { return self.rank >= 0; }

namespace {

/* Lets go of the lock until `wake` is called, or some time has passed (0: without limit): that
   time, or 0. Patience is counted in those: the time in which the process is stopped is not. */
double sleep_on(std::condition_variable *wake, double seconds) {
    const bool before = exposed;
    hide_if_due();
    std::unique_lock<std::mutex> lock(engine.mutex, std::adopt_lock);
    std::cv_status how = std::cv_status::no_timeout;
    if (seconds > 0)
        how = wake->wait_for(lock, std::chrono::duration<double>(seconds));
    else
        wake->wait(lock);
    (void)lock.release();
    expose(before);
    return how == std::cv_status::timeout ? seconds : 0;
}

/* Gives the turn to `t` and waits until it comes back. */
void give_turn(Thread *t) {
    engine.turn = t;
    t->wake.notify_one();
    while (engine.turn != &self) sleep_on(&self.wake, 0);
}

/* Another thread that can go on; NULL: there is none. */
Thread *another() {
    std::vector<Thread *> list;
    for (Thread *t : engine.threads)
        if (t && t != &self && (!t->until || (*t->until)())) list.push_back(t);
    if (list.empty()) return NULL;
    return list[below((unsigned)list.size())];
}

} // namespace

bool wait_until(const std::function<bool()> &until) {
    Lock lock;
    double waited = 0;
    self.until = &until;
    while (!until() && !engine.dead) {
        Thread *other = takes_turns() ? another() : NULL;
        const bool tasks = !runnable().empty();
        if (tasks && (!other || below(2))) {
            (void)run_one();
        } else if (other) {
            give_turn(other);
        } else if (takes_turns() || !engine.entered) {
            if (run_one_of(runnable(true))) continue;
            if (waited > engine.patience) {
                find("deadlock: nothing can go on");
                engine.dead = cudaErrorLaunchTimeout;
            }
            waited += sleep_on(&engine.changed, 5e-4);
            continue;
        } else { /* a thread without turns, beside others that have them */
            sleep_on(&engine.changed, 1e-3);
        }
        waited = 0;
    }
    self.until = NULL;
    return !engine.dead;
}

void breathe() {
    if (!engine.seeded || !takes_turns() || engine.in_task) return;
    while (below(engine.eager) && run_one()) {}
    if (below(8)) return;
    Lock lock;
    Thread *other = another();
    if (other) give_turn(other);
}

void poll_once() {
    Lock lock;
    Thread *other = takes_turns() ? another() : NULL;
    const bool rest = ++engine.polls > 64; /* all only poll */
    if (rest) (void)run_one_of(runnable(true));
    if (!runnable().empty() && (!other || below(2)))
        (void)run_one();
    else if (other && !rest)
        give_turn(other);
    else
        sleep_on(&engine.changed, 5e-4);
    if (rest) engine.polls = 0;
}

/* ---- memory -------------------------------------------------------------------------------- */

namespace {

struct Memory {
    size_t bytes;
    int kind, device;
    bool freed;
};
std::map<char *, Memory> memory;
size_t quarantined;
size_t live_objects; /* streams and events */

Memory *memory_at(const void *p, char **base) {
    auto it = memory.upper_bound((char *)const_cast<void *>(p));
    if (it == memory.begin()) return NULL;
    --it;
    if ((const char *)p >= it->first + it->second.bytes) return NULL;
    if (base) *base = it->first;
    return &it->second;
}

/* That is a finding. */
void written_after_free(const char *p, const Memory &m) {
    for (size_t i = 0; i < m.bytes && m.freed; i++)
        if ((unsigned char)p[i] != 0xFF) {
            find("memory was written after it was freed (byte %zu of %zu)", i, m.bytes);
            break;
        }
}

size_t whole_pages(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

/* So is what is written between the end of memory and that of its page. */
void written_beyond(const char *p, const Memory &m) {
    if (m.kind == REGISTERED_MEMORY) return;
    for (size_t i = m.bytes; i < whole_pages(m.bytes); i++)
        if ((unsigned char)p[i] != 0xFF) {
            find("memory was written beyond its end (byte %zu of %zu)", i, m.bytes);
            break;
        }
}

void forget(std::map<char *, Memory>::iterator it) {
    expose(true);
    written_after_free(it->first, it->second);
    written_beyond(it->first, it->second);
    quarantined -= it->second.bytes;
    if (it->second.kind != REGISTERED_MEMORY) free(it->first);
    memory.erase(it);
}

bool of_device(const Memory &m) { return m.kind == DEVICE_MEMORY || m.kind == MANAGED_MEMORY; }

/* Copies that have not run yet touch some of these bytes: they will not. */
bool wanted(const char *p, size_t bytes) {
    bool any = false;
    const auto meets = [=](const void *q, size_t n) {
        return (const char *)q < p + bytes && p < (const char *)q + n;
    };
    for (Stream *s : engine.streams)
        for (auto &t : s->tasks) {
            Copy *copy = dynamic_cast<Copy *>(t.get());
            if (!copy || (!meets(copy->from, copy->bytes) && !meets(copy->to, copy->bytes)))
                continue;
            copy->bytes = 0;
            any = true;
        }
    return any;
}

} // namespace

static void protect(char *p, const Memory &m) {
    if (m.kind == DEVICE_MEMORY && m.bytes && !m.freed)
        (void)mprotect(p, m.bytes, exposed ? PROT_READ | PROT_WRITE : PROT_NONE);
}
void expose(bool on) {
    if (!engine.hides) on = true; /* emulation_hide was not called */
    if (on == exposed) return;
    exposed = on;
    for (const auto &m : memory) protect(m.first, m.second);
}
void hide_if_due() {
    if (engine.hides && ++engine.returns % engine.hides == 0) expose(false);
}

/* Names the error that a fault in device memory shows, and then faults again without a handler. */
static void name_fault(int number, siginfo_t *info, void *) {
    const Memory *m = memory_at(info->si_addr, NULL);
    static const char text[] = "emulation: the host touches device memory\n";
    if (m && m->kind == DEVICE_MEMORY && !exposed) (void)!write(2, text, sizeof text - 1);
    (void)signal(number, SIG_DFL);
}
static void catch_faults() {
    struct sigaction now, ours;
    memset(&ours, 0, sizeof ours);
    ours.sa_sigaction = name_fault;
    ours.sa_flags = SA_SIGINFO;
    if (!sigaction(SIGSEGV, NULL, &now) && now.sa_handler == SIG_DFL)
        (void)sigaction(SIGSEGV, &ours, NULL);
}

/* Begins as NaN in every type. */
void *allocate(size_t bytes, int kind, int device) {
    void *p = NULL;
    if (!bytes) return NULL;
    if (posix_memalign(&p, 4096, whole_pages(bytes))) return NULL; /* whole pages: see expose */
    memset(p, 0xFF, whole_pages(bytes));
    memory[(char *)p] = Memory{bytes, kind, device, false};
    catch_faults();
    protect((char *)p, memory[(char *)p]);
    return p;
}

/* What is freed stays where it is, as NaN, for a while. */
cudaError_t release(void *p, int kind) {
    auto it = memory.find((char *)p);
    if (it == memory.end() || it->second.freed) {
        find("memory is freed that is not there");
        return cudaErrorInvalidValue;
    }
    const bool host = it->second.kind == HOST_MEMORY;
    if (host != (kind == HOST_MEMORY)) {
        find("memory of the host freed as memory of the device, or the reverse");
        return cudaErrorInvalidValue;
    }
    expose(true);
    memset(p, 0xFF, it->second.bytes);
    it->second.freed = true;
    quarantined += it->second.bytes;
    if (quarantined > (size_t)64 << 20) {
        std::vector<char *> old;
        for (auto &m : memory)
            if (m.second.freed) old.push_back(m.first);
        for (char *q : old) forget(memory.find(q));
    }
    return cudaSuccess;
}

void check_range(const void *p, size_t bytes, const char *who) {
    char *base = NULL;
    const Memory *m = memory_at(p, &base);
    if (!m || !bytes) return;
    if (m->freed) find("%s touches memory that was freed", who);
    if ((const char *)p + bytes > base + m->bytes) find("%s goes past the end of its memory", who);
}

} // namespace emulation

/* Dynamic shared memory that cudaFuncSetAttribute granted, by kernel. */
static std::map<const void *, int> shared_allowed;

/* ---- emulation.h --------------------------------------------------------------------------- */

void emulation_seed(uint64_t seed) {
    Lock lock;
    engine.seeded = seed != 0;
    engine.random = seed * 0xD1342543DE82EF95u + 1;
    engine.naps = seed * 1021;
    engine.prefers = seed & 1;
    engine.eager = 1 + (unsigned)(seed / 2 % 4);
}
void emulation_thread_order(uint64_t seed) {
    Lock lock;
    block.order = seed;
}
void emulation_enter(int rank, int nthreads) {
    Lock lock;
    self.rank = rank;
    self.device = 0;
    self.last = cudaSuccess;
    engine.expected = nthreads;
    engine.threads.resize((size_t)nthreads);
    engine.threads[(size_t)rank] = &self;
    if (++engine.entered == nthreads) {
        engine.turn = engine.threads[0];
        engine.turn->wake.notify_one();
    }
    while (engine.turn != &self) sleep_on(&self.wake, 0);
}
void emulation_leave(void) {
    Lock lock;
    engine.threads[(size_t)self.rank] = NULL;
    engine.entered--;
    engine.turn = NULL;
    for (Thread *t : engine.threads) /* any other; if it waits, it looks for the next itself */
        if (t && (!engine.turn || below(2))) engine.turn = t;
    if (engine.turn) engine.turn->wake.notify_one();
    self.rank = -1;
}
long emulated_syscall(long number, ...) noexcept {
    va_list list;
    long a[6];
    va_start(list, number);
    for (long &x : a) x = va_arg(list, long);
    va_end(list);
    if (number != SYS_futex || (a[1] & FUTEX_CMD_MASK) != FUTEX_WAIT || self.rank < 0)
        return syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    {
        Lock lock;
        if (engine.in_task) find("a task of a stream waits for another thread");
    }
    poll_once();
    errno = EINTR;
    return -1;
}
/* What a host function waits for must come without the device. If it does not come, that is noted,
   and the device goes on. */
static void wait_in_function(pthread_cond_t *cond, pthread_mutex_t *mutex) {
    static double waited;
    static uint64_t waits; /* who has waited so long */
    struct timespec t;
    if (waits != engine.running) waited = 0;
    waits = engine.running;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += 1000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    if (pthread_cond_timedwait(cond, mutex, &t)) waited += 1e-3; /* as sleep_on has it */
    if (waited < engine.patience) return;
    find("a host function waits for what the device has still to do");
    if (waited > 10 * engine.patience + 5) abort();
    (void)pthread_mutex_unlock(mutex);
    engine.in_task--;
    for (int i = 0; i < 16; i++) poll_once();
    engine.in_task++;
    (void)pthread_mutex_lock(mutex);
}
int emulated_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex) {
    if (self.held)
        wait_in_function(cond, mutex);
    else if (self.rank < 0) { /* a lane: with a seed it is slow now and then */
        static thread_local uint64_t waits;
        const uint64_t draw = (engine.naps + ++waits) * 0x9E3779B97F4A7C15u >> 32;
        const struct timespec t = {0, (long)(draw / 3 % 1500000)};
        const int e = pthread_cond_wait(cond, mutex);
        if (engine.seeded && draw % 3 == 0) (void)nanosleep(&t, NULL);
        return e;
    } else {
        (void)pthread_mutex_unlock(mutex);
        poll_once();
        (void)pthread_mutex_lock(mutex);
    }
    return 0;
}
int emulated_nanosleep(const struct timespec *wanted, struct timespec *left) {
    static thread_local int naps;
    if (self.rank < 0) return ++naps % 8 ? 0 : nanosleep(wanted, left); /* time is short here */
    poll_once();
    return 0;
}

void emulation_hide(int every) { engine.hides = (uint64_t)every; }
void emulation_stall(void *stream) {
    Lock lock;
    Stream *s = stream_of((cudaStream_t)stream);
    if (s) s->stalled = true;
}
void emulation_fail(emulation_call sort, uint64_t k) {
    Lock lock;
    engine.calls[sort] = 0;
    engine.fail_at[sort] = k;
}
uint64_t emulation_calls(emulation_call sort) { return engine.calls[sort]; }
uint64_t emulation_failures(void) { return engine.failures; }
const char *emulation_found(void) {
    Lock lock;
    expose(true);
    for (auto &m : memory) written_after_free(m.first, m.second), written_beyond(m.first, m.second);
    return engine.found.empty() ? NULL : engine.found.c_str();
}
size_t emulation_live(void) {
    Lock lock;
    size_t n = live_objects;
    for (auto &m : memory) n += !m.second.freed;
    return n;
}
size_t emulation_live_bytes(void) {
    Lock lock;
    size_t n = 0;
    for (auto &m : memory)
        if (!m.second.freed && of_device(m.second)) n += m.second.bytes;
    return n;
}
uint64_t emulation_pageable(void) { return engine.pageable; }
void emulation_patience(double seconds) { engine.patience = seconds; }
/* ---- NVTX ---------------------------------------------------------------------------------- */

static std::atomic<uint64_t> ranges;
static std::atomic<int> ranges_open;
static thread_local int ranges_of_thread;

extern "C" int nvtxRangePushA(const char *message) {
    if (message) ranges++, ranges_open++;
    return ranges_of_thread++;
}
extern "C" int nvtxRangePop(void) {
    ranges_open = ranges_of_thread > 0 && ranges_open >= 0 ? ranges_open - 1 : -1;
    return --ranges_of_thread;
}
uint64_t emulation_ranges(int *open) {
    *open = ranges_open;
    return ranges;
}

void emulation_reset(void) {
    Lock lock;
    shared_allowed.clear();
    for (Stream *s : engine.streams) delete s;
    if (engine.at_reset) engine.at_reset();
    engine.streams.clear();
    expose(true);
    while (!memory.empty()) {
        auto it = memory.begin();
        const bool here = it->second.kind != REGISTERED_MEMORY;
        if (!it->second.freed && here) memset(it->first, 0xFF, it->second.bytes);
        if (!it->second.freed) quarantined += it->second.bytes;
        forget(it);
    }
    live_objects = 0;
    engine.found.clear();
    engine.dead = cudaSuccess;
    engine.next_number = 0;
    engine.threads.clear();
    engine.turn = NULL;
    engine.entered = 0;
    engine.failures = engine.pageable = 0;
    ranges = 0;
    ranges_open = 0;
    for (int i = 0; i < 4; i++) engine.calls[i] = engine.fail_at[i] = 0;
    self.last = cudaSuccess;
}

/* ---- CUDA's functions ---------------------------------------------------------------------- */

static int device_count = 1, device_peers = 1;
static bool free_waits = true;
static uint64_t of_environment(const char *name, uint64_t otherwise) {
    const char *number = getenv(name);
    return number ? strtoull(number, NULL, 10) : otherwise;
}
static const size_t usual_memory = of_environment("EMULATION_MEMORY", (uint64_t)64 << 30);
__attribute__((unused)) static const uint64_t usual_hides = engine.hides =
    of_environment("EMULATION_HIDE", 0);
static size_t device_memory = usual_memory;
static std::map<std::pair<int, int>, bool> peers_on;

void emulation_memory(size_t bytes) { device_memory = bytes ? bytes : usual_memory; }
void emulation_free_waits(int waits) { free_waits = waits != 0; }
void emulation_devices(int count, int peer_access) {
    device_count = count;
    device_peers = peer_access;
    peers_on.clear();
}

static cudaError_t noted(cudaError_t e) {
    if (e != cudaSuccess) self.last = e;
    return e;
}

/* What every call begins with. */
#define ENTER(sort)                                                                                \
    Lock lock;                                                                                     \
    {                                                                                              \
        const cudaError_t entered = enter(sort);                                                   \
        if (entered != cudaSuccess) return noted(entered);                                         \
    }

cudaError_t emulation::enter(emulation_call sort) {
    if (engine.in_task) {
        find("a host function or kernel calls CUDA");
        return cudaErrorNotPermitted;
    }
    engine.polls = 0;
    breathe();
    if (engine.dead) return engine.dead;
    const bool any = injected(EMULATION_ANY);
    if (injected(EMULATION_DEATH)) return engine.dead = cudaErrorIllegalAddress;
    if (sort == EMULATION_ALLOCATION && injected(sort)) return cudaErrorMemoryAllocation;
    if (any) return sort == EMULATION_ALLOCATION ? cudaErrorMemoryAllocation : cudaErrorUnknown;
    return cudaSuccess;
}

/* What may not be called while the calling thread records a stream. */
#define ENTER_UNRECORDED(sort)                                                                     \
    ENTER(sort)                                                                                    \
    if (self.capture) {                                                                            \
        self.capture->broken = true;                                                               \
        return noted(cudaErrorStreamCaptureUnsupported);                                           \
    }

struct Event {
    int device;
    bool timing;
    std::shared_ptr<Record> last;
};
static std::map<cudaEvent_t, Event> events;

/* The functions that called zp_device_record_event and the like: sites that a mutation test leaves
   out. Needs -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls. */
static std::map<void *, emulation_site_kind> sites;
static bool watching_sites;

static bool left_out(void *site, emulation_site_kind kind) {
    sites[site] = kind;
    return site == engine.skipped;
}
#pragma GCC diagnostic ignored "-Wframe-address"
#define LEFT_OUT(kind) (watching_sites && left_out(__builtin_return_address(1), kind))

static cudaError_t enqueue_call(cudaStream_t stream, const char *name, std::function<void()> work,
                                bool of_host) {
    Stream *s = stream_of(stream);
    if (!s) return cudaErrorInvalidResourceHandle;
    if (s->capture && of_host) find("a host function is recorded: that is not emulated");
    Work *task = new Work;
    task->name = name;
    task->of_host = of_host;
    task->work = std::move(work);
    enqueue(s, task);
    return cudaSuccess;
}
cudaError_t emulation::enqueue_work(cudaStream_t stream, const char *name,
                                    std::function<void()> work) {
    Lock lock;
    const cudaError_t e = enter(EMULATION_ANY);
    return noted(e ? e : enqueue_call(stream, name, std::move(work), false));
}

static cudaError_t wait_for_stream(Stream *s) {
    return wait_until([s] { return drained(s); }) ? cudaSuccess : engine.dead;
}

extern "C" {

cudaError_t cudaMalloc(void **p, size_t bytes) {
    ENTER_UNRECORDED(EMULATION_ALLOCATION)
    if (emulation_live_bytes() + bytes > device_memory) return noted(cudaErrorMemoryAllocation);
    *p = allocate(bytes, DEVICE_MEMORY, self.device);
    return noted(*p || !bytes ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaMallocManaged(void **p, size_t bytes, unsigned) {
    ENTER_UNRECORDED(EMULATION_ALLOCATION)
    *p = allocate(bytes, MANAGED_MEMORY, self.device);
    return noted(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned) {
    ENTER_UNRECORDED(EMULATION_ALLOCATION)
    *p = allocate(bytes, HOST_MEMORY, self.device);
    return noted(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaMallocHost(void **p, size_t bytes) { return cudaHostAlloc(p, bytes, 0); }
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned) {
    ENTER(EMULATION_ANY)
    *device = host;
    return cudaSuccess;
}
/* Waits for the device first, where that is not turned off. */
cudaError_t cudaFree(void *p) {
    Lock lock;
    const int device = self.device;
    if (!p) return cudaSuccess;
    if (engine.in_task) find("a host function or kernel calls CUDA");
    if (self.capture) find("memory is freed while a stream is recorded");
    if (free_waits)
        (void)wait_until([device] {
            for (const Stream *s : engine.streams)
                if (s->device == device && !s->tasks.empty()) return false;
            return true;
        });
    return noted(release(p, DEVICE_MEMORY));
}
cudaError_t cudaFreeHost(void *p) {
    Lock lock;
    return p ? noted(release(p, HOST_MEMORY)) : cudaSuccess;
}

/* Memory of the caller's is pinned, exactly these bytes. */
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned) {
    ENTER_UNRECORDED(EMULATION_ALLOCATION)
    if (!p || !bytes) return noted(cudaErrorInvalidValue);
    const auto next = memory.lower_bound((char *)p);
    if (memory_at(p, NULL) || (next != memory.end() && next->first < (char *)p + bytes))
        return noted(cudaErrorHostMemoryAlreadyRegistered);
    memory[(char *)p] = Memory{bytes, REGISTERED_MEMORY, self.device, false};
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *p) {
    Lock lock;
    const auto it = memory.find((char *)p);
    if (engine.in_task) find("a host function or kernel calls CUDA");
    if (it == memory.end() || it->second.kind != REGISTERED_MEMORY) {
        find("memory is unregistered that is not registered");
        return noted(cudaErrorHostMemoryNotRegistered);
    }
    if (wanted(it->first, it->second.bytes) && !engine.dead)
        find("memory is unregistered that a copy has still to touch");
    memory.erase(it);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind,
                            cudaStream_t stream) {
    ENTER(EMULATION_ANY)
    Stream *s = stream_of(stream);
    if (!s) return noted(cudaErrorInvalidResourceHandle);
    engine.pageable += !memory_at(to, NULL) || !memory_at(from, NULL);
    Copy *task = new Copy;
    task->name = "copy";
    task->to = to, task->from = from, task->bytes = bytes;
    enqueue(s, task);
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    const cudaError_t e = cudaMemcpyAsync(to, from, bytes, kind, NULL);
    return e ? e : cudaStreamSynchronize(NULL);
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream) {
    ENTER(EMULATION_ANY)
    return noted(enqueue_call(
        stream, "memset",
        [=] {
            check_range(p, bytes, "a memset");
            if (bytes) memset(p, value, bytes);
        },
        false));
}
cudaError_t cudaMemset(void *p, int value, size_t bytes) {
    return cudaMemsetAsync(p, value, bytes, NULL);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *user) {
    ENTER(EMULATION_ANY)
    return noted(enqueue_call(
        stream, "host function", [=] { fn(user); }, true));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
    ENTER(EMULATION_ANY)
    Stream *s = new Stream;
    s->device = self.device;
    s->blocking = !(flags & cudaStreamNonBlocking);
    s->urgency = engine.seeded ? (unsigned)draw() : 0;
    engine.streams.push_back(s);
    live_objects++;
    *stream = (cudaStream_t)(void *)s;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithPriority(stream, 0, 0);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    ENTER(EMULATION_ANY)
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    Lock lock;
    Stream *s = stream_of(stream);
    if (!s || s->legacy) return noted(cudaErrorInvalidResourceHandle);
    live_objects--;
    s->closing = true;
    if (!s->tasks.empty()) return cudaSuccess;
    engine.streams.erase(std::find(engine.streams.begin(), engine.streams.end(), s));
    delete s;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    ENTER_UNRECORDED(EMULATION_ANY)
    Stream *s = stream_of(stream);
    if (LEFT_OUT(EMULATION_HOST_WAIT)) {
        if (s) s->late = engine.seeded;
        return cudaSuccess;
    }
    return noted(s ? wait_for_stream(s) : cudaErrorInvalidResourceHandle);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    ENTER_UNRECORDED(EMULATION_ANY)
    const Stream *s = stream_of(stream);
    if (!s) return noted(cudaErrorInvalidResourceHandle);
    return noted(drained(s) ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaDeviceSynchronize(void) {
    ENTER_UNRECORDED(EMULATION_ANY)
    const int device = self.device;
    const bool ok = wait_until([device] {
        for (const Stream *s : engine.streams)
            if (s->device == device && !s->tasks.empty()) return false;
        return true;
    });
    return noted(ok ? cudaSuccess : engine.dead);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    static uintptr_t next = 4096;
    ENTER(EMULATION_ANY)
    *event = (cudaEvent_t)(next += 16);
    events[*event] = Event{self.device, !(flags & cudaEventDisableTiming), nullptr};
    live_objects++;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    Lock lock;
    if (!events.erase(event)) return noted(cudaErrorInvalidResourceHandle);
    live_objects--;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    ENTER(EMULATION_ANY)
    Stream *s = stream_of(stream);
    auto e = events.find(event);
    if (!s || e == events.end() || e->second.device != s->device)
        return noted(cudaErrorInvalidResourceHandle);
    if (LEFT_OUT(EMULATION_RECORD)) return cudaSuccess;
    if (s->capture) find("an event is recorded in a graph: that is not emulated");
    Mark *mark = new Mark;
    mark->name = "record";
    mark->record = e->second.last = std::make_shared<Record>();
    enqueue(s, mark);
    return cudaSuccess;
}
/* Binds to the last record before this call; without one it is no wait. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    ENTER(EMULATION_ANY)
    Stream *s = stream_of(stream);
    auto e = events.find(event);
    if (!s || e == events.end()) return noted(cudaErrorInvalidResourceHandle);
    if (LEFT_OUT(EMULATION_WAIT) || !e->second.last) return cudaSuccess;
    if (s->capture) find("a wait is recorded in a graph: that is not emulated");
    Wait *wait = new Wait;
    wait->name = "wait";
    wait->record = e->second.last;
    enqueue(s, wait);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    ENTER_UNRECORDED(EMULATION_ANY)
    auto e = events.find(event);
    if (e == events.end()) return noted(cudaErrorInvalidResourceHandle);
    return noted(!e->second.last || e->second.last->done ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    ENTER_UNRECORDED(EMULATION_ANY)
    auto e = events.find(event);
    if (e == events.end()) return noted(cudaErrorInvalidResourceHandle);
    const std::shared_ptr<Record> last = e->second.last;
    if (LEFT_OUT(EMULATION_HOST_WAIT)) return cudaSuccess;
    if (!last || wait_until([last] { return last->done; })) return cudaSuccess;
    return noted(engine.dead);
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    ENTER(EMULATION_ANY)
    auto a = events.find(start), b = events.find(end);
    if (a == events.end() || b == events.end() || !a->second.last || !b->second.last
        || !a->second.timing || !b->second.timing)
        return noted(cudaErrorInvalidResourceHandle);
    if (!a->second.last->done || !b->second.last->done) return noted(cudaErrorNotReady);
    *ms = (float)((b->second.last->time - a->second.last->time) * 1e3);
    return cudaSuccess;
}

/* A stream that is recorded runs nothing; a launch runs all tasks of its graph, one after another.
 */
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode) {
    ENTER(EMULATION_ANY)
    Stream *s = stream_of(stream);
    if (!s || s->legacy) return noted(cudaErrorStreamCaptureUnsupported);
    if (s->capture || self.capture) return noted(cudaErrorIllegalState);
    s->capture = self.capture = new Graph;
    live_objects++;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    ENTER(EMULATION_ANY)
    Stream *s = stream_of(stream);
    *graph = NULL;
    if (!s || !s->capture || s->capture != self.capture) return noted(cudaErrorIllegalState);
    Graph *g = s->capture;
    s->capture = self.capture = NULL;
    if (!g->broken) {
        *graph = (cudaGraph_t)(void *)g;
        return cudaSuccess;
    }
    live_objects--;
    delete g;
    return noted(cudaErrorStreamCaptureInvalidated);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long) {
    ENTER_UNRECORDED(EMULATION_ALLOCATION)
    *made = (cudaGraphExec_t)(void *)new Graph(*(Graph *)(void *)graph);
    live_objects++;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    ENTER_UNRECORDED(EMULATION_ANY)
    Stream *s = stream_of(stream);
    if (!s) return noted(cudaErrorInvalidResourceHandle);
    Replay *task = new Replay;
    task->name = "graph";
    task->graph = *(Graph *)(void *)graph;
    enqueue(s, task);
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    Lock lock;
    delete (Graph *)(void *)graph;
    live_objects--;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    return cudaGraphDestroy((cudaGraph_t)(void *)graph);
}

cudaError_t cudaGetLastError(void) {
    const cudaError_t e = self.last;
    self.last = cudaSuccess;
    return e;
}
cudaError_t cudaPeekAtLastError(void) { return self.last; }
const char *cudaGetErrorName(cudaError_t e) {
    switch (e) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    default: return "cudaErrorUnknown";
    }
}
const char *cudaGetErrorString(cudaError_t e) {
    switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorLaunchTimeout: return "the launch timed out and was terminated";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    default: return "unknown error";
    }
}

cudaError_t cudaGetDevice(int *device) {
    ENTER(EMULATION_ANY)
    *device = self.device;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    ENTER(EMULATION_ANY)
    if (device < 0 || device >= device_count) return noted(cudaErrorInvalidDevice);
    self.device = device;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *count) {
    ENTER(EMULATION_ANY)
    *count = device_count;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    ENTER(EMULATION_ANY)
    *can = device != peer && device_peers;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    ENTER(EMULATION_ANY)
    if (flags || peer == self.device) return noted(cudaErrorInvalidValue);
    if (!device_peers) return noted(cudaErrorPeerAccessUnsupported);
    bool &on = peers_on[std::make_pair(self.device, peer)];
    if (on) return noted(cudaErrorPeerAccessAlreadyEnabled);
    on = true;
    return cudaSuccess;
}
cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    ENTER(EMULATION_ANY)
    bool &on = peers_on[std::make_pair(self.device, peer)];
    if (!on) return noted(cudaErrorPeerAccessNotEnabled);
    on = false;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int) {
    ENTER(EMULATION_ANY)
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 * 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 * 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    default: *value = 1;
    }
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    ENTER(EMULATION_ANY)
    if (device < 0 || device >= device_count) return noted(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    (void)snprintf(p->name, sizeof p->name, "emulated device");
    p->major = 9;
    p->warpSize = 32;
    p->multiProcessorCount = 132;
    p->totalGlobalMem = device_memory;
    p->maxThreadsPerBlock = 1024;
    p->sharedMemPerBlock = 48 * 1024;
    p->sharedMemPerBlockOptin = 227 * 1024;
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    ENTER(EMULATION_ANY)
    const size_t live = emulation_live_bytes();
    *total = device_memory;
    *available = live < device_memory ? device_memory - live : 0;
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
    ENTER(EMULATION_ANY)
    const Memory *m = memory_at(p, NULL);
    memset(a, 0, sizeof *a);
    a->type = cudaMemoryTypeUnregistered;
    a->hostPointer = const_cast<void *>(p);
    a->device = -2;
    if (!m || m->freed) return cudaSuccess;
    a->device = m->device;
    a->devicePointer = const_cast<void *>(p);
    a->type = !of_device(*m)             ? cudaMemoryTypeHost
              : m->kind == DEVICE_MEMORY ? cudaMemoryTypeDevice
                                         : cudaMemoryTypeManaged;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value) {
    ENTER(EMULATION_ANY)
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value > 227 * 1024) return noted(cudaErrorInvalidValue);
    shared_allowed[kernel] = value;
    return cudaSuccess;
}

} // extern "C"

void emulation_watch_sites(int on) {
    watching_sites = on != 0;
    sites.clear();
}
int emulation_sites(void **list, emulation_site_kind *kinds, int most) {
    int n = 0;
    for (const auto &s : sites) {
        if (n == most) break;
        kinds[n] = s.second;
        list[n++] = s.first;
    }
    return n;
}
void emulation_leave_out(void *site) { engine.skipped = site; }

static cudaError_t launch_allowed(const emulated_kernel *k, const Stream *s) {
    const size_t threads = (size_t)k->block.x * k->block.y * k->block.z;
    const size_t blocks = (size_t)k->grid.x * k->grid.y * k->grid.z;
    const auto allowed = shared_allowed.find(k->code);
    const size_t shared = allowed == shared_allowed.end() ? 48 * 1024 : (size_t)allowed->second;
    if (!s || s->device != self.device) return cudaErrorInvalidResourceHandle;
    if (!threads || threads > 1024 || !blocks || k->grid.y > 65535 || k->grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    return k->shared > std::max(shared, (size_t)48 * 1024) ? cudaErrorInvalidValue : cudaSuccess;
}

/* EMULATION_LAUNCHES=file: at exit a line per kernel is appended to it: the kernel's offset in the
   program, the most threads of a block, the most bytes of dynamic shared memory. machine_code.py
   compares them with the compiled kernels. */
static std::map<const void *, std::pair<size_t, size_t>> launches;
static void write_launches() {
    FILE *file = fopen(getenv("EMULATION_LAUNCHES"), "a");
    for (const auto &l : launches) {
        Dl_info info;
        if (!file || !dladdr(l.first, &info)) continue;
        (void)fprintf(file, "%zx %zu %zu\n",
                      (size_t)((const char *)l.first - (const char *)info.dli_fbase),
                      l.second.first, l.second.second);
    }
    if (file) (void)fclose(file);
}
static void note_launch(const emulated_kernel *k) {
    static const bool wanted = getenv("EMULATION_LAUNCHES") && !atexit(write_launches);
    if (!wanted) return;
    auto &most = launches[k->code];
    most.first = std::max(most.first, (size_t)k->block.x * k->block.y * k->block.z);
    most.second = std::max(most.second, k->shared);
}

/* An error is found by cudaGetLastError as well. */
cudaError_t emulated_enqueue(emulated_kernel *kernel, cudaStream_t stream) {
    Lock lock;
    Launch *task = new Launch;
    task->kernel.reset(kernel);
    task->name = kernel->name;
    Stream *s = stream_of(stream);
    cudaError_t e = enter(EMULATION_ANY);
    if (e == cudaSuccess) e = launch_allowed(kernel, s);
    if (e == cudaSuccess) note_launch(kernel);
    if (noted(e) == cudaSuccess)
        enqueue(s, task);
    else
        delete task;
    return e;
}
