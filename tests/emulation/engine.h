/* engine.h - the emulation's inside: streams of tasks, and host threads that take turns. Everything
   here is used under the engine's lock. */
#ifndef EMULATION_ENGINE_H
#define EMULATION_ENGINE_H

#include "cuda_runtime.h"
#include "emulation.h"

#include <condition_variable>
#include <cstdarg>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace emulation {

struct Stream;

/* What a stream runs. step() does the next part of it and says whether that was the last. */
struct Task {
    const char *name = "";
    bool of_host = false; /* a host function, which must not touch device memory */
    uint64_t number = 0;  /* in the order of enqueueing, over all streams */
    virtual bool ready() { return true; }
    virtual bool step() = 0;
    virtual ~Task() = default;
};

/* Tasks that a stream recorded instead of running them, or that a launch replays. */
struct Graph {
    std::vector<std::shared_ptr<Task>> tasks;
    bool broken = false; /* a call that may not be recorded was made */
};

struct Stream {
    int device = 0;
    Graph *capture = nullptr; /* that records this stream */
    bool blocking = false;    /* waits for the default stream, and it for this one */
    bool legacy = false;      /* is a default stream */
    bool late = false;        /* a wait for it was left out: runs when nothing else can */
    bool stalled = false;     /* nothing of it runs */
    bool closing = false;     /* destroyed as soon as it is empty */
    bool busy = false;        /* its first task is running */
    unsigned urgency = 0;     /* of a seed that prefers streams */
    std::deque<std::unique_ptr<Task>> tasks;
};

/* One record of an event. */
struct Record {
    bool done = false;
    double time = 0;
};

/* A host thread. */
struct Thread {
    int rank = -1;                                /* of emulation_enter */
    const std::function<bool()> *until = nullptr; /* what it waits for, NULL: it can go on */
    std::condition_variable wake;
    cudaError_t last = cudaSuccess;
    int device = 0;
    Graph *capture = nullptr; /* that this thread records */
    int held = 0;             /* how often this thread has taken the engine's lock */
};

struct Engine {
    std::mutex mutex;
    std::condition_variable changed; /* for threads that take no turns */
    uint64_t random = 0;
    bool seeded = false;
    uint64_t naps = 0;       /* of a seed: which waits of lanes are long */
    bool prefers = false;    /* this seed runs the most urgent stream, not any */
    unsigned eager = 2;      /* how likely tasks run inside calls that do not wait: 1 - 1 / eager */
    void *skipped = nullptr; /* the call that is left out */
    uint64_t next_number = 0, running = 0; /* of tasks */
    int in_task = 0;                       /* a task is running: it must not call CUDA */
    uint64_t returns = 0,
             hides = 0;    /* device memory is hidden at every hides-th return; 0: never */
    uint64_t pageable = 0; /* copies to or from memory that nobody has pinned */
    std::vector<Stream *> streams;
    std::vector<Thread *> threads; /* that take turns, by rank */
    Thread *turn = nullptr;
    int expected = 0, entered = 0;
    std::string found;
    cudaError_t dead = cudaSuccess; /* every further call returns it */
    double patience = 20;
    int polls = 0;                /* of threads that wait by themselves, since a call of CUDA */
    void (*at_reset)() = nullptr; /* of NCCL, where it is linked */
    uint64_t calls[4] = {}, fail_at[4] = {}, failures = 0;
};

extern Engine engine;
extern thread_local Thread self;

/* Makes device memory accessible while a task of the device runs, and inaccessible otherwise. */
void expose(bool on);
/* The host goes on: hides device memory at every hides-th call. */
void hide_if_due();

/* The engine's lock; a thread may take it again. */
struct Lock {
    Lock() {
        if (!self.held++) engine.mutex.lock();
    }
    ~Lock() {
        if (--self.held) return;
        hide_if_due();
        engine.mutex.unlock();
    }
    Lock(const Lock &) = delete;
    Lock &operator=(const Lock &) = delete;
};

uint64_t draw();            /* the next random number */
unsigned below(unsigned n); /* 0..n-1 */

/* Notes the first finding. */
__attribute__((format(printf, 1, 2))) void find(const char *format, ...);

Stream *stream_of(cudaStream_t handle); /* NULL: no such stream */
void enqueue(Stream *s, Task *task);
/* Enqueues work of the device, which a graph may run again. */
cudaError_t enqueue_work(cudaStream_t stream, const char *name, std::function<void()> work);
bool drained(const Stream *s);

/* Runs one task's next part, if any can run. */
bool run_one();
/* Without a seed: runs all that can run. */
void run_greedily();
/* Runs tasks and gives turns away until `until` is true; false: it never will. */
bool wait_until(const std::function<bool()> &until);
/* Gives others a turn, now and then. */
void breathe();
/* Waits a little for what happens outside the turns. */
void poll_once();

/* What every call of CUDA begins with; an error is to be returned. */
cudaError_t enter(emulation_call sort);
bool takes_turns();

/* Counts a call; true: it is to fail. */
bool injected(emulation_call sort);

/* Memory. */
void *allocate(size_t bytes, int kind, int device);
cudaError_t release(void *p, int kind);
enum { DEVICE_MEMORY = 1, HOST_MEMORY, MANAGED_MEMORY, REGISTERED_MEMORY };
/* Notes a finding if the range touches memory that was freed. */
void check_range(const void *p, size_t bytes, const char *who);

} // namespace emulation
#endif
