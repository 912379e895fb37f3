/* emulation_nccl.cc - NCCL on the CPU, over the streams of emulation.cc; ranks are threads.

   The k-th group of collectives that a rank issues on a communicator meets the k-th of all other
   ranks. On its stream a rank's part has three moments, each at the scheduler's choice:
     begin    its output becomes NaN (what is input in place stays), its input's checksum is taken
     move     when all have begun: results are computed from the inputs, for all ranks at once
     depart   the input must be as it was at the beginning; the output is stored
   A device runs one group at a time, as if its NCCL kernels filled it: collectives of two
   communicators that no event orders come to a deadlock for some seed (with
   NCCL_LAUNCH_ORDER_IMPLICIT in the environment they run in the order of the host). A communicator
   that does not block enqueues what ncclGroupEnd was given only after ncclCommGetAsyncError was
   asked a few times. */
#include "engine.h"
#include "nccl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include <set>

using namespace emulation;

namespace {

enum Kind { REDUCE_SCATTER, ALL_GATHER, ALL_REDUCE, BROADCAST, SEND, RECV };
const char *const kind_names[] = {"reduce-scatter", "all-gather", "all-reduce",
                                  "broadcast",      "send",       "receive"};

struct Op {
    Kind kind;
    const char *send;
    char *recv;
    size_t count, send_bytes, recv_bytes; /* count: as NCCL's argument */
    ncclDataType_t type;
    ncclRedOp_t redop;
    int root; /* of a message: the peer */
};

/* The k-th message from one rank to another: sides begin on their streams, then it is taken. */
struct Letter {
    const char *data = NULL;
    size_t bytes = 0;
    bool sent = false, wanted = false, taken = false;
    std::vector<char> content;
};

/* One rank's part of a group of collectives. */
struct Part {
    std::vector<Op> ops;
    bool issued = false, begun = false, departed = false, lost = false;
    std::vector<uint64_t> sums;             /* of the inputs */
    std::vector<std::vector<char>> outputs; /* from `move` to `depart` */
};

struct Group {
    std::vector<Part> part;
    int begun = 0;
    bool moved = false;
    bool broken = false; /* a rank was aborted before it had departed */
};

/* What all ranks do together on the host: splitting, registering. */
struct Meeting {
    int arrived = 0;
    std::vector<int> color, key;
    std::map<int, std::shared_ptr<struct Shared>> made; /* by colour */
};

/* What the ranks of a communicator share. */
struct Shared {
    std::vector<ncclComm *> ranks;
    int arrived = 0;
    std::map<uint64_t, std::shared_ptr<Group>> groups;
    std::map<uint64_t, Meeting> meetings;
    std::map<std::pair<int, int>, std::deque<std::shared_ptr<Letter>>> posted[2]; /* by side */
};

struct Deferred {
    std::vector<Op> ops;
    cudaStream_t stream;
};

} // namespace

struct ncclComm {
    std::shared_ptr<Shared> shared;
    int rank, device;
    int number; /* of the rank, before any communicator was split */
    bool blocking, aborted;
    ncclResult_t broken; /* an asynchronous error */
    uint64_t groups, meetings;
    int polls;                      /* until what is deferred is enqueued */
    std::vector<Deferred> deferred; /* groups that are not on their streams yet */
    std::function<bool()> until;    /* the host's part under way has ended then */
    std::function<void()> then;
    int running; /* parts on streams */
    std::map<void *, size_t> registered;
    ncclComm_t *child; /* where a split that is under way writes; or NULL */
    ncclComm *unborn;  /* what the split will write there */
};

namespace {

std::set<ncclComm *> alive, all_comms;
std::map<std::string, std::shared_ptr<Shared>> by_id;
std::map<int, const void *> device_runs; /* the part that has begun on a device */
/* With NCCL_LAUNCH_ORDER_IMPLICIT: a device's parts in the order of the host. */
std::map<int, std::deque<const void *>> device_order;
int version_code = NCCL_VERSION_CODE, windows_work = 1;
std::string lacking;
struct Fault {
    int rank = -1;
    uint64_t at = 0;
    ncclResult_t result = ncclSuccess;
} to_break, to_miss;

thread_local int group_depth;
thread_local void (*group_begun)(void);
thread_local ncclResult_t group_error; /* what a call inside the group returned */
struct Queued {
    ncclComm *comm;
    Op op;
    cudaStream_t stream;
};
thread_local std::vector<Queued> group_queue;

ncclResult_t nccl_enter() {
    if (engine.in_task) {
        find("a host function or kernel calls NCCL");
        return ncclInvalidUsage;
    }
    engine.polls = 0;
    breathe();
    ncclResult_t r = engine.dead ? ncclUnhandledCudaError : ncclSuccess;
    if (r == ncclSuccess && injected(EMULATION_NCCL)) r = ncclSystemError;
    if (group_depth && r != ncclSuccess) group_error = r;
    return r;
}
#define NCCL_ENTER                                                                                 \
    Lock lock;                                                                                     \
    {                                                                                              \
        const ncclResult_t entered = nccl_enter();                                                 \
        if (entered != ncclSuccess) return entered;                                                \
    }

bool usable(ncclComm *c, const char *call) {
    if (c && alive.count(c)) return true;
    find("%s is given a communicator that %s", call, c ? "is gone" : "is NULL");
    return false;
}

/* ---- numbers ---- */

size_t bytes_of(ncclDataType_t type) {
    switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 4;
    }
}
double number_at(const char *p, ncclDataType_t type, size_t i) {
    switch (type) {
    case ncclInt8: return ((const signed char *)p)[i];
    case ncclUint8: return ((const unsigned char *)p)[i];
    case ncclInt32: return ((const int32_t *)(const void *)p)[i];
    case ncclUint32: return ((const uint32_t *)(const void *)p)[i];
    case ncclFloat16: return (double)__half2float(((const __half *)(const void *)p)[i]);
    case ncclBfloat16: return (double)__bfloat162float(((const __nv_bfloat16 *)(const void *)p)[i]);
    case ncclFloat32: return (double)((const float *)(const void *)p)[i];
    case ncclFloat64: return ((const double *)(const void *)p)[i];
    default: return 0;
    }
}
void number_put(char *p, ncclDataType_t type, size_t i, double x) {
    switch (type) {
    case ncclInt8: ((signed char *)p)[i] = (signed char)x; break;
    case ncclUint8: ((unsigned char *)p)[i] = (unsigned char)x; break;
    case ncclInt32: ((int32_t *)(void *)p)[i] = (int32_t)x; break;
    case ncclUint32: ((uint32_t *)(void *)p)[i] = (uint32_t)x; break;
    case ncclFloat16: ((__half *)(void *)p)[i] = __float2half_rn((float)x); break;
    case ncclBfloat16: ((__nv_bfloat16 *)(void *)p)[i] = __float2bfloat16_rn((float)x); break;
    case ncclFloat32: ((float *)(void *)p)[i] = (float)x; break;
    case ncclFloat64: ((double *)(void *)p)[i] = x; break;
    default: break;
    }
}
/* In rank order; f32 and 16-bit sums are f32 sums, rounded once. */
double combine(double a, double b, const Op &op) {
    if (op.redop == ncclMax) return a > b ? a : b;
    if (op.redop == ncclMin) return a < b ? a : b;
    if (op.redop == ncclProd) return op.type == ncclFloat64 ? a * b : (double)((float)a * (float)b);
    return op.type == ncclFloat64 ? a + b : (double)((float)a + (float)b);
}
void reduce(const Group &g, size_t k, size_t first, size_t count, char *out) {
    const Op &op = g.part[0].ops[k];
    const size_t n = g.part.size();
    for (size_t i = 0; i < count; i++) {
        if (op.type == ncclUint64 || op.type == ncclInt64) { /* sums only */
            uint64_t x = 0;
            for (size_t r = 0; r < n; r++)
                x += ((const uint64_t *)(const void *)g.part[r].ops[k].send)[first + i];
            ((uint64_t *)(void *)out)[i] = x;
            continue;
        }
        double x = number_at(g.part[0].ops[k].send, op.type, first + i);
        for (size_t r = 1; r < n; r++)
            x = combine(x, number_at(g.part[r].ops[k].send, op.type, first + i), op);
        number_put(out, op.type, i, op.redop == ncclAvg ? x / (double)n : x);
    }
}

uint64_t checksum(const char *p, size_t bytes) {
    uint64_t hash = 1469598103934665603u;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ (unsigned char)p[i]) * 1099511628211u;
    return hash;
}

/* ---- a rank's part ---- */

bool reads(const Op &op, int rank) { return op.kind != BROADCAST || op.root == rank; }

/* The output but for what is this rank's input. */
void poison(const Op &op, int rank) {
    const char *in = op.send, *in_end = op.send + (reads(op, rank) ? op.send_bytes : 0);
    for (size_t i = 0; i < op.recv_bytes; i++)
        if (op.recv + i < in || op.recv + i >= in_end) op.recv[i] = (char)0xFF;
}

void begin(Part *p, int rank) {
    for (const Op &op : p->ops) {
        check_range(op.recv, op.recv_bytes, "a collective");
        if (reads(op, rank)) check_range(op.send, op.send_bytes, "a collective");
    }
    for (const Op &op : p->ops) {
        poison(op, rank);
        p->sums.push_back(reads(op, rank) ? checksum(op.send, op.send_bytes) : 0);
    }
    p->begun = true;
}

void same_arguments(const Group &g) {
    for (const Part &p : g.part) {
        if (p.ops.size() != g.part[0].ops.size()) {
            find("ranks of a communicator group %zu and %zu collectives", g.part[0].ops.size(),
                 p.ops.size());
            return;
        }
        for (size_t k = 0; k < p.ops.size(); k++) {
            const Op &a = g.part[0].ops[k], &b = p.ops[k];
            if (a.kind != b.kind || a.count != b.count || a.type != b.type || a.redop != b.redop
                || a.root != b.root)
                find("a %s of %zu meets a %s of %zu on another rank", kind_names[a.kind], a.count,
                     kind_names[b.kind], b.count);
        }
    }
}

void output(const Group &g, size_t k, size_t rank, std::vector<char> *out) {
    const Op &op = g.part[rank].ops[k];
    const size_t n = g.part.size(), bytes = op.count * bytes_of(op.type);
    out->resize(op.recv_bytes);
    switch (op.kind) {
    case REDUCE_SCATTER: reduce(g, k, rank * op.count, op.count, out->data()); break;
    case ALL_REDUCE: reduce(g, k, 0, op.count, out->data()); break;
    case BROADCAST: memcpy(out->data(), g.part[(size_t)op.root].ops[k].send, bytes); break;
    case ALL_GATHER:
        for (size_t r = 0; r < n; r++)
            memcpy(out->data() + r * bytes, g.part[r].ops[k].send, bytes);
        break;
    case SEND:
    case RECV: break; /* pairs are matched elsewhere */
    }
}

void move(Group *g) {
    g->moved = true;
    same_arguments(*g);
    if (!engine.found.empty()) return;
    for (size_t r = 0; r < g->part.size(); r++) {
        g->part[r].outputs.resize(g->part[r].ops.size());
        for (size_t k = 0; k < g->part[r].ops.size(); k++) output(*g, k, r, &g->part[r].outputs[k]);
    }
}

void depart(Part *p, int rank) {
    for (size_t k = 0; k < p->ops.size(); k++)
        if (reads(p->ops[k], rank) && p->sums[k] != checksum(p->ops[k].send, p->ops[k].send_bytes))
            find("the input of a %s changed while it was under way", kind_names[p->ops[k].kind]);
    for (size_t k = 0; k < p->outputs.size(); k++)
        memcpy(p->ops[k].recv, p->outputs[k].data(), p->ops[k].recv_bytes);
    p->outputs.clear();
    p->departed = true;
}

/* Whether what this rank begins is the one that is lost; and the one that meets an error. */
bool misses(const ncclComm *c) { return to_miss.at && to_miss.rank == c->number && !--to_miss.at; }
void break_now(ncclComm *c) {
    if (to_break.at && to_break.rank == c->number && !--to_break.at) c->broken = to_break.result;
}

struct Collective : Task {
    ncclComm *comm;
    std::shared_ptr<Group> group;
    Part *part;
    bool ready() override {
        if (comm->aborted) return true;
        if (comm->broken != ncclSuccess || part->lost) return false;
        if (part->begun)
            return group->begun == (int)group->part.size() && (group->moved || !group->broken);
        const std::deque<const void *> &order = device_order[comm->device];
        return !device_runs.count(comm->device) && (order.empty() || order.front() == part);
    }
    bool step() override {
        if (comm->aborted) {
            group->broken = true;
            return over();
        }
        if (!part->begun) {
            break_now(comm);
            begin(part, comm->rank);
            group->begun++;
            device_runs[comm->device] = part;
            return false;
        }
        if (!group->moved) {
            move(group.get());
            return false;
        }
        depart(part, comm->rank);
        return over();
    }
    bool over() {
        std::deque<const void *> &order = device_order[comm->device];
        const auto mine = std::find(order.begin(), order.end(), part);
        if (mine != order.end()) order.erase(mine);
        comm->running--;
        const auto it = device_runs.find(comm->device);
        if (it != device_runs.end() && it->second == part) device_runs.erase(it);
        return true;
    }
};

/* Messages of one NCCL group, which only the ranks that they are between take part in. */
struct Messages : Task {
    ncclComm *comm;
    std::vector<Op> ops;
    std::vector<std::shared_ptr<Letter>> letter;
    std::vector<uint64_t> sums;
    bool begun = false, lost = false;
    bool ready() override {
        if (comm->aborted) return true;
        if (comm->broken != ncclSuccess || lost) return false;
        const std::deque<const void *> &order = device_order[comm->device];
        if (!begun)
            return !device_runs.count(comm->device) && (order.empty() || order.front() == this);
        for (const std::shared_ptr<Letter> &l : letter)
            if (!l->sent || !l->wanted) return false;
        return true;
    }
    bool step() override {
        if (comm->aborted) return over();
        if (!begun) break_now(comm);
        for (size_t i = 0; i < ops.size() && !begun; i++) {
            const bool sends = ops[i].kind == SEND;
            char *p = sends ? (char *)(uintptr_t)ops[i].send : ops[i].recv;
            check_range(p, ops[i].count, "a message");
            sums.push_back(sends ? checksum(p, ops[i].count) : 0);
            if (!sends) memset(p, 0xFF, ops[i].count);
            (sends ? letter[i]->sent : letter[i]->wanted) = true;
            if (sends) letter[i]->data = p, letter[i]->bytes = ops[i].count;
        }
        if (!begun) {
            begun = true;
            device_runs[comm->device] = this;
            return false;
        }
        for (size_t i = 0; i < ops.size(); i++) {
            Letter &l = *letter[i];
            if (!l.taken) l.content.assign(l.data, l.data + l.bytes);
            l.taken = true;
            if (l.bytes != ops[i].count)
                find("a message of %zu bytes is received as %zu", l.bytes, ops[i].count);
            else if (ops[i].kind == RECV)
                memcpy(ops[i].recv, l.content.data(), l.bytes);
            else if (sums[i] != checksum(ops[i].send, ops[i].count))
                find("a message changed while it was under way");
        }
        return over();
    }
    bool over() {
        std::deque<const void *> &order = device_order[comm->device];
        const auto mine = std::find(order.begin(), order.end(), (const void *)this);
        if (mine != order.end()) order.erase(mine);
        comm->running--;
        const auto it = device_runs.find(comm->device);
        if (it != device_runs.end() && it->second == this) device_runs.erase(it);
        return true;
    }
};

/* The letter that this side's next message from one rank to another is. */
std::shared_ptr<Letter> letter_of(ncclComm *c, const Op &op) {
    const bool sends = op.kind == SEND;
    const std::pair<int, int> way(sends ? c->rank : op.root, sends ? op.root : c->rank);
    std::deque<std::shared_ptr<Letter>> &mine = c->shared->posted[sends][way];
    if (mine.empty()) { /* the other side comes later, and finds it */
        mine.push_back(std::make_shared<Letter>());
        c->shared->posted[!sends][way].push_back(mine.back());
    }
    const std::shared_ptr<Letter> l = mine.front();
    mine.pop_front();
    return l;
}

ncclResult_t launch_messages(ncclComm *c, const std::vector<Op> &ops, Stream *s) {
    Messages *task = new Messages;
    task->name = "messages";
    task->comm = c;
    task->ops = ops;
    for (const Op &op : ops) task->letter.push_back(letter_of(c, op));
    task->lost = misses(c);
    c->running++;
    const char *ordered = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    if (ordered && strcmp(ordered, "0") != 0) device_order[c->device].push_back(task);
    enqueue(s, task);
    return ncclSuccess;
}

ncclResult_t launch(ncclComm *c, const std::vector<Op> &ops, cudaStream_t stream) {
    Stream *s = stream_of(stream);
    if (!s || s->device != c->device) return ncclInvalidUsage;
    if (ops[0].kind >= SEND) return launch_messages(c, ops, s);
    std::shared_ptr<Group> &g = c->shared->groups[c->groups++];
    if (!g) {
        g = std::make_shared<Group>();
        g->part.resize(c->shared->ranks.size());
    }
    Part *p = &g->part[(size_t)c->rank];
    p->issued = true;
    p->ops = ops;
    p->lost = misses(c);
    Collective *task = new Collective;
    task->name = kind_names[ops[0].kind];
    task->comm = c;
    task->group = g;
    task->part = p;
    c->running++;
    const char *ordered = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    if (ordered && strcmp(ordered, "0") != 0) device_order[c->device].push_back(p);
    enqueue(s, task);
    return ncclSuccess;
}

/* Ends what a call that did not block has begun, if it can end. */
void settle(ncclComm *c) {
    if (c->until && (c->polls > 0 || !c->until())) return;
    if (c->until) {
        c->until = nullptr;
        if (c->then) c->then();
        c->then = nullptr;
    }
    if (c->polls > 0) return;
    std::vector<Deferred> list;
    list.swap(c->deferred);
    for (const Deferred &d : list)
        if (launch(c, d.ops, d.stream) != ncclSuccess) c->broken = ncclInvalidUsage;
}

/* The rest of a call: at once, or (where the communicator does not block) later. */
ncclResult_t finish(ncclComm *c, bool blocking, std::function<bool()> until,
                    std::function<void()> then) {
    if (!blocking) {
        c->polls = (int)below(4);
        c->until = std::move(until);
        c->then = std::move(then);
        return ncclInProgress;
    }
    const bool ok = wait_until([&] { return until() || c->aborted || c->broken != ncclSuccess; });
    if (!ok || c->aborted) return ncclSystemError;
    if (c->broken != ncclSuccess) return c->broken;
    if (then) then();
    return ncclSuccess;
}

/* A communicator that has not joined its ranks yet. */
ncclComm *comm_new(bool blocking) {
    ncclComm *c = new ncclComm{};
    c->rank = -1;
    c->device = self.device;
    c->blocking = blocking;
    c->broken = ncclSuccess;
    alive.insert(c);
    all_comms.insert(c);
    return c;
}
void comm_join(ncclComm *c, std::shared_ptr<Shared> shared, int rank) {
    c->rank = c->number = rank;
    shared->ranks[(size_t)rank] = c;
    shared->arrived++;
    for (const ncclComm *o : shared->ranks)
        if (o && o != c && o->device == c->device) c->broken = ncclInvalidUsage; /* one GPU twice */
    c->shared = std::move(shared);
}

bool blocking_of(const ncclConfig_t *config, bool otherwise) {
    return config && config->blocking != NCCL_CONFIG_UNDEF_INT ? config->blocking != 0 : otherwise;
}

ncclResult_t group_end() {
    std::vector<Queued> queue;
    queue.swap(group_queue);
    ncclResult_t result = ncclSuccess;
    while (!queue.empty()) { /* by communicator and stream, in order of appearance */
        ncclComm *c = queue[0].comm;
        const cudaStream_t stream = queue[0].stream;
        std::vector<Op> ops;
        std::vector<Queued> rest;
        for (const Queued &q : queue)
            if (q.comm == c && q.stream == stream)
                ops.push_back(q.op);
            else
                rest.push_back(q);
        queue.swap(rest);
        if (!c->blocking && engine.seeded) {
            c->deferred.push_back(Deferred{ops, stream});
            c->polls = (int)below(4);
            settle(c);
            if (!c->deferred.empty()) result = result == ncclSuccess ? ncclInProgress : result;
            continue;
        }
        const ncclResult_t r = launch(c, ops, stream);
        if (r != ncclSuccess) result = r;
    }
    return result;
}

ncclResult_t issue(ncclComm *c, const Op &op, cudaStream_t stream, const char *call) {
    if (!usable(c, call)) return ncclInvalidArgument;
    if (c->broken != ncclSuccess) return c->broken;
    if (!c->deferred.empty() || c->until) {
        find("%s: the communicator's last call is still in progress", call);
        return ncclInvalidUsage;
    }
    if (self.device != c->device) return ncclInvalidUsage;
    if (op.kind < SEND && op.send < op.recv + op.recv_bytes && op.recv < op.send + op.send_bytes) {
        const size_t bytes = op.count * bytes_of(op.type) * (size_t)c->rank;
        const bool in_place = op.kind == REDUCE_SCATTER ? op.recv == op.send + bytes
                              : op.kind == ALL_GATHER   ? op.send == op.recv + bytes
                                                        : op.send == op.recv;
        if (!in_place) find("%s: input and output overlap, but are not in place", call);
    }
    group_queue.push_back(Queued{c, op, stream});
    return group_depth ? ncclSuccess : group_end();
}

Op op_of(Kind kind, const void *send, void *recv, size_t count, ncclDataType_t type) {
    Op op{};
    op.kind = kind;
    op.send = (const char *)send;
    op.recv = (char *)recv;
    op.count = count;
    op.send_bytes = op.recv_bytes = count * bytes_of(type);
    op.type = type;
    return op;
}

/* The result of a split that is under way ends with the parent: nobody else has it. */
void comm_end(ncclComm *c) {
    alive.erase(c);
    alive.erase(c->unborn);
    c->deferred.clear();
    c->until = nullptr;
}

/* What all ranks of a communicator do together on the host, in order. */
Meeting *meet(ncclComm *c) {
    Meeting *m = &c->shared->meetings[c->meetings++];
    m->arrived++;
    return m;
}

/* The ranks of one colour become a communicator, by key and then by rank. */
void split_join(ncclComm *child, const ncclComm *parent, Meeting *m) {
    const int color = m->color[(size_t)parent->rank];
    std::shared_ptr<Shared> &shared = m->made[color];
    std::vector<std::pair<int, int>> order;
    for (size_t r = 0; r < m->color.size(); r++)
        if (m->color[r] == color) order.emplace_back(m->key[r], (int)r);
    std::sort(order.begin(), order.end());
    if (!shared) {
        shared = std::make_shared<Shared>();
        shared->ranks.resize(order.size());
    }
    for (size_t i = 0; i < order.size(); i++)
        if (order[i].second == parent->rank) comm_join(child, shared, (int)i);
    child->number = parent->number;
}

void reset() {
    for (ncclComm *c : all_comms) delete c;
    all_comms.clear();
    alive.clear();
    by_id.clear();
    device_runs.clear();
    device_order.clear();
    to_break = to_miss = Fault{};
    version_code = NCCL_VERSION_CODE;
    windows_work = 1;
    lacking.clear();
}
const bool hooked = (engine.at_reset = reset, true);

} // namespace

/* ---- emulation.h ---- */

void emulation_nccl_version(int code) { version_code = code; }
void emulation_nccl_lacks(const char *name) { lacking = name ? name : ""; }
void emulation_nccl_windows(int works) { windows_work = works; }
void emulation_nccl_begun(void (*once)(void)) { group_begun = once; }
void emulation_nccl_break(int rank, uint64_t k, int result) {
    Lock lock;
    to_break.rank = rank, to_break.at = k, to_break.result = (ncclResult_t)result;
}
void emulation_nccl_miss(int rank, uint64_t k) {
    Lock lock;
    to_miss.rank = rank, to_miss.at = k;
}
size_t emulation_nccl_live(void) {
    Lock lock;
    return alive.size();
}
void *emulated_dlsym(void *handle, const char *name) noexcept {
    return lacking == name ? NULL : dlsym(handle, name);
}

/* ---- NCCL's functions ---- */

extern "C" {

ncclResult_t ncclGetVersion(int *version) {
    *version = version_code;
    return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static uint64_t next;
    NCCL_ENTER
    memset(id, 0, sizeof *id);
    (void)snprintf(id->internal, sizeof id->internal, "emulated %llu", (unsigned long long)++next);
    return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    NCCL_ENTER
    if (nranks < 1 || rank < 0 || rank >= nranks) return ncclInvalidArgument;
    std::shared_ptr<Shared> &shared = by_id[std::string(id.internal)];
    if (!shared) {
        shared = std::make_shared<Shared>();
        shared->ranks.resize((size_t)nranks);
    }
    ncclComm *c = comm_new(blocking_of(config, true));
    comm_join(c, shared, rank);
    *comm = c;
    if (c->broken != ncclSuccess) return c->broken;
    return finish(
        c, c->blocking, [c, nranks] { return c->shared->arrived == nranks; }, nullptr);
}
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(comm, nranks, id, rank, NULL);
}

/* It is the parent that is busy, and whose configuration says whether the call blocks. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *child,
                           ncclConfig_t *config) {
    NCCL_ENTER
    if (!usable(comm, "ncclCommSplit")) return ncclInvalidArgument;
    const size_t n = comm->shared->ranks.size();
    const bool blocking = blocking_of(config, comm->blocking);
    Meeting *m = meet(comm);
    m->color.resize(n, NCCL_SPLIT_NOCOLOR);
    m->key.resize(n);
    m->color[(size_t)comm->rank] = color;
    m->key[(size_t)comm->rank] = key;
    *child = NULL;
    ncclComm *c = color == NCCL_SPLIT_NOCOLOR ? NULL : comm_new(blocking);
    for (const ncclComm *other : alive)
        if (other->child == child) find("two splits that are under way write one ncclComm_t");
    comm->child = child;
    comm->unborn = c;
    return finish(
        comm, comm->blocking, [m, n] { return m->arrived == (int)n; },
        [c, comm, m] { /* NCCL writes the result when the split ends */
                       if (*comm->child)
                           find("the ncclComm_t of a split that is under way was changed");
                       *comm->child = c;
                       comm->child = NULL;
                       comm->unborn = NULL;
                       if (c) split_join(c, comm, m);
        });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    NCCL_ENTER
    if (!usable(comm, "ncclCommFinalize")) return ncclInvalidArgument;
    return finish(
        comm, comm->blocking, [comm] { return comm->running == 0; }, nullptr);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    Lock lock;
    if (!usable(comm, "ncclCommDestroy")) return ncclInvalidArgument;
    const ncclResult_t r = finish(
        comm, true, [comm] { return comm->running == 0; }, nullptr);
    comm_end(comm);
    return r;
}
/* Its collectives end without a result. Safe from any thread. */
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    Lock lock;
    if (!usable(comm, "ncclCommAbort")) return ncclInvalidArgument;
    comm->aborted = true;
    comm_end(comm);
    engine.changed.notify_all();
    return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
    Lock lock;
    if (!usable(comm, "ncclCommGetAsyncError")) return ncclInvalidArgument;
    if (takes_turns() || !engine.entered) { /* a watchdog's look changes nothing */
        engine.polls = 0;
        breathe();
        if (comm->polls > 0) comm->polls--;
        settle(comm);
        if (comm->until) poll_once(); /* it is asked again and again */
    }
    *state = comm->broken != ncclSuccess              ? comm->broken
             : comm->until || !comm->deferred.empty() ? ncclInProgress
                                                      : ncclSuccess;
    return ncclSuccess;
}
const char *ncclGetErrorString(ncclResult_t r) {
    static const char *const text[] = {"no error",
                                       "unhandled cuda error",
                                       "unhandled system error",
                                       "internal error",
                                       "invalid argument",
                                       "invalid usage",
                                       "remote process exited or there was a network error",
                                       "NCCL operation in progress"};
    return (unsigned)r < sizeof text / sizeof *text ? text[r] : "unknown result code";
}
const char *ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) {
    NCCL_ENTER
    if (!usable(comm, "ncclCommCount")) return ncclInvalidArgument;
    *count = (int)comm->shared->ranks.size();
    return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
    NCCL_ENTER
    if (!usable(comm, "ncclCommUserRank")) return ncclInvalidArgument;
    *rank = comm->rank;
    return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) {
    NCCL_ENTER
    if (!usable(comm, "ncclCommCuDevice")) return ncclInvalidArgument;
    *device = comm->device;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
    NCCL_ENTER
    group_depth++;
    void (*once)(void) = group_begun;
    group_begun = nullptr;
    if (once) once();
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
    Lock lock;
    if (!group_depth) return ncclInvalidUsage;
    if (--group_depth) return ncclSuccess;
    ncclResult_t r = nccl_enter();
    if (r == ncclSuccess) r = group_error;
    group_error = ncclSuccess;
    if (r != ncclSuccess) group_queue.clear(); /* nothing of the group is started */
    return r != ncclSuccess ? r : group_end();
}
ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t redop, ncclComm_t comm, cudaStream_t stream) {
    NCCL_ENTER
    if (!usable(comm, "ncclReduceScatter")) return ncclInvalidArgument;
    Op op = op_of(REDUCE_SCATTER, send, recv, count, type);
    op.send_bytes *= comm->shared->ranks.size();
    op.redop = redop;
    return issue(comm, op, stream, "ncclReduceScatter");
}
ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    NCCL_ENTER
    if (!usable(comm, "ncclAllGather")) return ncclInvalidArgument;
    Op op = op_of(ALL_GATHER, send, recv, count, type);
    op.recv_bytes *= comm->shared->ranks.size();
    return issue(comm, op, stream, "ncclAllGather");
}
ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t redop, ncclComm_t comm, cudaStream_t stream) {
    NCCL_ENTER
    Op op = op_of(ALL_REDUCE, send, recv, count, type);
    op.redop = redop;
    return issue(comm, op, stream, "ncclAllReduce");
}
ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
    NCCL_ENTER
    Op op = op_of(BROADCAST, send, recv, count, type);
    op.root = root;
    return issue(comm, op, stream, "ncclBroadcast");
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
    NCCL_ENTER
    Op op = op_of(SEND, send, NULL, count * bytes_of(type), ncclInt8);
    op.recv_bytes = 0;
    op.root = peer;
    return issue(comm, op, stream, "ncclSend");
}
ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    NCCL_ENTER
    Op op = op_of(RECV, NULL, recv, count * bytes_of(type), ncclInt8);
    op.send_bytes = 0;
    op.root = peer;
    return issue(comm, op, stream, "ncclRecv");
}

ncclResult_t ncclMemAlloc(void **p, size_t bytes) {
    Lock lock;
    const ncclResult_t r = nccl_enter();
    *p = NULL;
    if (r != ncclSuccess) return r;
    const cudaError_t e = enter(EMULATION_ALLOCATION);
    if (e != cudaSuccess) return ncclUnhandledCudaError;
    *p = allocate(bytes, DEVICE_MEMORY, self.device);
    return *p ? ncclSuccess : ncclSystemError;
}
ncclResult_t ncclMemFree(void *p) {
    return cudaFree(p) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclCommRegister(const ncclComm_t comm, void *p, size_t bytes, void **handle) {
    NCCL_ENTER
    if (!usable(comm, "ncclCommRegister")) return ncclInvalidArgument;
    comm->registered[p] = bytes;
    *handle = p;
    return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle) {
    NCCL_ENTER
    if (!usable(comm, "ncclCommDeregister")) return ncclInvalidArgument;
    return comm->registered.erase(handle) ? ncclSuccess : ncclInvalidArgument;
}
/* All ranks together. Where it is not supported it succeeds all the same, and writes nothing. */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *p, size_t bytes, ncclWindow_t *window,
                                    int) {
    NCCL_ENTER
    if (!usable(comm, "ncclCommWindowRegister")) return ncclInvalidArgument;
    Meeting *m = meet(comm);
    const int n = (int)comm->shared->ranks.size();
    const bool works = windows_work != 0;
    return finish(
        comm, comm->blocking, [m, n] { return m->arrived == n; },
        [=] {
            if (!works) return;
            comm->registered[p] = bytes;
            *window = (ncclWindow_t)p;
        });
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
    NCCL_ENTER
    if (!usable(comm, "ncclCommWindowDeregister")) return ncclInvalidArgument;
    return comm->registered.erase((void *)window) ? ncclSuccess : ncclInvalidArgument;
}

} // extern "C"
