/* nccl.h - NCCL: two communicators split off yours, one for gradients and one for all else

   Several groups share a GPU: those of a context, of its tensors, and of a context that it joins.
   Their lists run in the order in which the calling thread issues them, which is the same on all
   ranks. In different orders, kernels of two ranks could wait for each other forever. NCCL keeps
   the order itself with NCCL_LAUNCH_ORDER_IMPLICIT; otherwise events keep it. */
#pragma once

#include "messages.h"
#include "nccl_watch.h"
#include "process.h"

#ifdef ZERO_WITH_NCCL

static ncclDataType_t zp_nccl_type(zero_type type) {
    static const ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclFloat16, ncclFloat64};
    return types[type];
}

/* Returns 1 if NCCL can write the result directly: there is no accumulator. */
static int zp_nccl_writes_result(const zp_op *op) { return !op->sum && !op->accumulate; }

/* Returns the address of this rank's slice in its own unit. */
static char *zp_nccl_slice(const zp_op *op) {
    return op->memory->base + op->source + (size_t)op->group->rank * zp_comm_op_shard_bytes(op);
}

/* Calls NCCL's function for a collective. */
static ncclResult_t zp_nccl_call(ncclComm_t comm, zp_stream *s, const zp_collective *w) {
    const ncclDataType_t type = zp_nccl_type(w->type);
    const ncclRedOp_t how = w->how == ZERO_MAX ? ncclMax : ncclSum;
    switch (w->call.kind) {
    case ZP_GROUP_ALL_REDUCE: return ncclAllReduce(w->from, w->to, w->n, type, how, comm, s->cuda);
    case ZP_REDUCE_SCATTER:
    case ZP_GROUP_REDUCE_SCATTER:
        return ncclReduceScatter(w->from, w->to, w->n, type, how, comm, s->cuda);
    case ZP_BROADCAST:
    case ZP_GROUP_BROADCAST:
        return ncclBroadcast(w->from, w->to, w->n, ncclChar, w->call.unit, comm, s->cuda);
    default: return ncclAllGather(w->from, w->to, w->n, ncclChar, comm, s->cuda);
    }
}

static ncclResult_t zp_nccl_call_op(zp_nccl *n, zp_stream *s, const zp_op *op) {
    const int host = !op->memory, sums = op->kind == ZP_REDUCE_SCATTER;
    char *base = host ? n->scratch : op->memory->base, *from = base + op->source;
    char *to = op->kind == ZP_EXCHANGE ? base + ZP_MAIL_BYTES : base + op->target;
    if (sums && !zp_nccl_writes_result(op)) to = zp_nccl_slice(op);
    const size_t count = sums || host ? op->shard : zp_comm_op_shard_bytes(op);
    const zp_collective w = {op->group, zp_comm_op_call(op), from, to, count, op->type, ZERO_SUM};
    return op->in_place ? ncclSuccess : zp_nccl_call(n->channel[op->channel].comm, s, &w);
}

/* The calls of n ops, messages or collectives, which one NCCL group holds. */
typedef ncclResult_t (*zp_nccl_fn)(zp_nccl *n, zp_stream *s, const void *list, int i);
static ncclResult_t zp_nccl_call_nth_op(zp_nccl *n, zp_stream *s, const void *list, int i) {
    return zp_nccl_call_op(n, s, (const zp_op *)list + i);
}
static ncclResult_t zp_nccl_call_message(zp_nccl *n, zp_stream *s, const void *list, int i) {
    const zero_message *m = (const zero_message *)list + i;
    const ncclComm_t comm = n->channel[0].comm;
    return m->sends ? ncclSend(m->data, m->bytes, ncclChar, m->peer, comm, s->cuda)
                    : ncclRecv(m->data, m->bytes, ncclChar, m->peer, comm, s->cuda);
}
static ncclResult_t zp_nccl_call_collective(zp_nccl *n, zp_stream *s, const void *list, int i) {
    return zp_nccl_call(n->channel[0].comm, s, (const zp_collective *)list + i);
}

typedef struct zp_nccl_list { /* n of them, at `at`; call: the first one, for messages */
    zp_comm *group;
    zp_call call;
    zp_nccl_fn fn;
    const void *at;
    int n, channel;
} zp_nccl_list;

/* Makes the calls of one NCCL group. After it, a counter and an event show when it has ended. */
static zero_result zp_nccl_enqueue(zp_stream *s, const zp_nccl_list *list) {
    zp_comm *g = list->group;
    zp_nccl *n = zp_nccl_watch_of(g);
    const int channel = list->channel;
    zp_device *first = zp_device_first(g->device);
    zp_nccl_channel *own = &n->channel[channel];
    char text[96];
    ZP_TRY(zp_failure_result(g->failure));
    zp_nccl_channel *before = n->ordered ? own : first->list; /* its lists are ordered */
    if (before && before->issued && before->stream != s->cuda)
        ZP_TRY(zp_device_wait_event(s, &before->last));
    pthread_mutex_lock(&n->lock);
    ncclResult_t r = n->aborted ? ncclSystemError : ncclGroupStart();
    if (r == ncclSuccess) {
        for (int i = 0; i < list->n && (r == ncclSuccess || r == ncclInProgress); i++)
            r = list->fn(n, s, list->at, i);
        const ncclResult_t ended = ncclGroupEnd();
        if (r == ncclSuccess || r == ncclInProgress) r = ended;
    }
    pthread_mutex_unlock(&n->lock);
    ZP_TRY(zp_nccl_watch_wait_call(g, own->comm, r,
                                   zp_comm_print_call(&list->call, text, sizeof text)));
    const zp_sent sent = {list->call, zp_seconds()};
    const zp_nccl_watch_tick_args tick = {&n->ended[channel], own->issued + 1};
    while (own->issued - *tick.counter >= ZP_SENT) {
        ZP_TRY(zp_failure_result(g->failure));
        zp_nap();
    }
    ZP_TRY(zp_nccl_watch_tick(s, &tick, 1));
    ZP_TRY(zp_device_record_event(s, &own->last));
    pthread_mutex_lock(&n->lock);
    own->sent[own->issued++ % ZP_SENT] = sent;
    own->stream = s->cuda;
    first->list = own;
    pthread_mutex_unlock(&n->lock);
    return ZERO_OK;
}

static zero_result zp_nccl_issue_list(zp_stream *s, const zp_op *op, int count) {
    const zp_nccl_list list = {op->group, zp_comm_op_call(op), zp_nccl_call_nth_op, op,
                               count,     (int)op->channel};
    return zp_nccl_enqueue(s, &list);
}

static zero_result zp_nccl_issue(zp_stream *s, const zp_op *op, int count) {
    ZP_TRY(zp_nccl_issue_list(s, op, count));
    for (int i = 0; i < count; i++) { /* NCCL's sum is in this rank's slice */
        if (op[i].kind != ZP_REDUCE_SCATTER || zp_nccl_writes_result(&op[i])) continue;
        zp_sum sum = zp_local_make_sum(&op[i], 1, 1);
        sum.source[0] = zp_nccl_slice(&op[i]);
        ZP_TRY(zp_kernel_sum_ranks(s, &sum, op[i].shard / ZP_WIDE));
    }
    return ZERO_OK;
}

/* Runs an exchange or a broadcast through the device: copies this rank's bytes there, if it sends
   any, and copies `got` bytes back to `all`. */
static zero_result zp_nccl_run_host(const zp_op *given, const void *mine, void *all, size_t got) {
    zp_comm *g = given->group;
    zp_nccl *n = zp_nccl_watch_of(g);
    const int exchange = given->kind == ZP_EXCHANGE;
    zp_stream s;
    zp_op op = *given;
    op.channel = (zp_channel)(n->channels - 1);
    (void)zp_device_take_stream(&s, g->device, g->device->own, 1);
    if (exchange || op.unit == g->rank) {
        memcpy(n->pinned, mine, op.shard);
        ZP_TRY(zp_device_copy(&s, n->scratch, n->pinned, op.shard));
    }
    ZP_TRY(zp_nccl_issue_list(&s, &op, 1));
    const double begin = zp_seconds();
    const zp_nccl_channel *own = &n->channel[op.channel];
    while (n->joins && n->ended[op.channel] < own->issued) {
        if (zp_seconds() - begin > g->timeout_s)
            return zp_nccl_watch_report_timeout(g, zp_comm_kind_name(op.kind));
        zp_nap();
        ZP_TRY(zp_nccl_watch_wait_call(g, own->comm, ncclInProgress, zp_comm_kind_name(op.kind)));
    }
    ZP_TRY(zp_device_copy(&s, n->pinned, n->scratch + (exchange ? ZP_MAIL_BYTES : 0), got));
    ZP_TRY(zp_device_sync_stream(&s));
    ZP_TRY(zp_failure_result(g->failure)); /* an aborted collective also ends */
    memcpy(all, n->pinned, got);
    return ZERO_OK;
}

static zero_result zp_nccl_exchange(const zp_op *op, const void *mine) {
    return zp_nccl_run_host(op, mine, op->group->mail, (size_t)op->group->nranks * op->shard);
}
static zero_result zp_nccl_broadcast(const zp_op *op, void *data) {
    return zp_nccl_run_host(op, data, data, op->shard);
}

/* Functions of NCCL 2.27, whose windows are pointers. NULL: the loaded NCCL is older. */
typedef ncclResult_t (*zp_window_register)(ncclComm_t, void *, size_t, void **, int);
typedef ncclResult_t (*zp_window_deregister)(ncclComm_t, void *);

enum { ZP_AS_WINDOW = 1, ZP_AS_BUFFER }; /* registered */

/* Allocates memory that NCCL can share with other devices and network cards. */
static zero_result zp_nccl_alloc_memory(zp_comm *g, zp_memory *m) {
    void *p = NULL;
    int failed = -1;
    if (m->how & ZP_ON_HOST) {
        p = zp_shared_memory_alloc(g, m);
    } else if (ncclMemAlloc(&p, m->bytes) == ncclSuccess) {
        m->base = m->peer[0] = (char *)p;
        m->holder = ZP_NCCL;
        p = zp_device_alloc_cleared(g->device, p, m->bytes);
    }
    if (!p) (void)zp_device_clear_error(cudaErrorMemoryAllocation);
    ZP_TRY(zp_comm_agree(g, p != NULL, &failed));
    return failed < 0 ? ZERO_OK : ZERO_ERR_MEMORY; /* the group frees it */
}

/* Registers memory as a symmetric window or as a buffer. Windows are faster, and only with them do
   copy engines gather. Without a handle, this NCCL or these devices do not support windows. */
static zero_result zp_nccl_register_memory(zp_comm *g, zp_memory *m, zp_channel channel,
                                           const char **how) {
    zp_nccl *n = zp_nccl_watch_of(g);
    const ncclComm_t comm = n->channel[channel].comm;
    const zp_window_register as_window =
        (zp_window_register)dlsym(RTLD_DEFAULT, "ncclCommWindowRegister");
    *how = "not registered";
    m->channel = channel;
    if (g->nranks == 1) return ZERO_OK;
    for (int as = as_window ? ZP_AS_WINDOW : ZP_AS_BUFFER; as <= ZP_AS_BUFFER && !m->handle; as++) {
        const int window = as == ZP_AS_WINDOW;
        ncclResult_t r = ncclSystemError;
        pthread_mutex_lock(&n->lock);
        if (!n->aborted)
            r = window ? as_window(comm, m->base, m->bytes, &m->handle, 1 /* symmetric */)
                       : ncclCommRegister(comm, m->base, m->bytes, &m->handle);
        pthread_mutex_unlock(&n->lock);
        ZP_TRY(zp_nccl_watch_wait_call(g, comm, r,
                                       window ? "ncclCommWindowRegister" : "ncclCommRegister"));
        *how = window ? "registered as a symmetric window" : "registered as a buffer";
        m->registered = m->handle ? as : 0;
    }
    return ZERO_OK;
}

static void zp_nccl_free_memory(zp_nccl *n, zp_memory *m) {
    const ncclComm_t comm = n->channel[m->channel].comm;
    const zp_window_deregister window =
        (zp_window_deregister)dlsym(RTLD_DEFAULT, "ncclCommWindowDeregister");
    const int registered = n->aborted ? 0 : m->registered;
    if (registered == ZP_AS_BUFFER) (void)ncclCommDeregister(comm, m->handle);
    if (registered == ZP_AS_WINDOW && window) (void)window(comm, m->handle);
    if (m->holder == ZP_NCCL && m->base) (void)ncclMemFree(m->base);
    zp_shared_memory_free(m);
}

/* Splits `parent`. The split is over when parent and child both report it. */
static zero_result zp_nccl_split(zp_comm *g, ncclComm_t parent, int colour, int key,
                                 ncclConfig_t *config, ncclComm_t *comm) {
    config->blocking = 0;
    const ncclResult_t r = ncclCommSplit(parent, colour, key, comm, config);
    ZP_TRY(zp_nccl_watch_wait_call(g, parent, r, "ncclCommSplit"));
    if (colour == NCCL_SPLIT_NOCOLOR) return ZERO_OK;
    return zp_nccl_watch_wait_call(g, *comm, ncclInProgress, "ncclCommSplit");
}

/* Splits a channel's communicator off. */
static zero_result zp_nccl_open_channel(zp_comm *g, ncclComm_t parent, int ch) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t *comm = &zp_nccl_watch_of(g)->channel[ch].comm;
#if NCCL_VERSION_CODE >= 22700
    config.commName = ch == ZP_PARAMETERS ? "zero parameters" : "zero gradients";
#endif
#ifdef NCCL_CTA_POLICY_ZERO /* gathers by copy engines, reductions with few multiprocessors */
    config.CTAPolicy = ch == ZP_PARAMETERS ? NCCL_CTA_POLICY_ZERO : NCCL_CTA_POLICY_EFFICIENCY;
#endif
#if NCCL_VERSION_CODE >= 23102 /* orders them with your communicators that have it, too */
    config.launchOrderImplicit = 1;
#endif
    int n = g->nranks;
    zp_nccl_watch_of(g)->splits = 1;
    ZP_TRY(zp_nccl_split(g, parent, 0, g->rank, &config, comm));
    zp_nccl_watch_of(g)->splits = 0;
    (void)ncclCommCount(*comm, &n);
    if (n == g->nranks) return ZERO_OK;
    return zp_comm_fail(g, ZERO_ERR_PEER,
                        "%d of %d ranks could not join: their own error messages say why",
                        g->nranks - n, g->nranks);
}

/* A rank that cannot join still takes part in the first split, with no part for itself: its peers
   wait there, on your communicator, which the plugin must not abort. */
static void zp_nccl_refuse(const zero_comm *given, const char *why) {
    const ncclComm_t parent = given->handle ? *(ncclComm_t *)given->handle : NULL;
    static ncclComm_t none[256]; /* a non-blocking split writes one later, so that each call, of any
                                    thread, takes the next one */
    static uint32_t refused;
    const uint32_t i = __atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
    if (parent)
        (void)ncclCommSplit(parent, NCCL_SPLIT_NOCOLOR, 0, &none[i % (sizeof none / sizeof *none)],
                            NULL);
}

/* For a rank that zero_start_local has forked: the communicator of all ranks, and the memory in
   which they met. There its parent reports ranks that ended. */
static struct {
    ncclComm_t comm;
    zero_local *local;
} zp_nccl_started;

/* The id of rank 0's communicator reaches the other ranks on LOCAL's board. */
static zero_result zp_nccl_exchange_id(zp_comm *g, zp_nccl *n, zero_local *local,
                                       ncclUniqueId *id) {
    ncclUniqueId ids[ZP_LOCAL_MAX];
    const ncclResult_t r = g->rank ? ncclSuccess : ncclGetUniqueId(id);
    if (r != ncclSuccess) return zp_nccl_watch_fail(g, NULL, r, "ncclGetUniqueId");
    n->ranks.seq[ZP_CONTROL] = local->seq[g->rank];
    g->mail = (char *)ids;
    ZP_TRY(zp_comm_exchange(g, id, sizeof *id));
    local->seq[g->rank] = n->ranks.seq[ZP_CONTROL];
    *id = ids[0];
    return ZERO_OK;
}

static zero_result zp_nccl_connect_ranks(zp_comm *g, zero_local *local) {
    zp_nccl *n = zp_nccl_watch_of(g);
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    memset(&id, 0, sizeof id);
    config.blocking = 0;
    zp_local_place_ranks(g, local);
    ZP_TRY(zp_nccl_exchange_id(g, n, local, &id));
    (void)setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0); /* before NCCL starts in this process */
    const ncclResult_t r =
        ncclCommInitRankConfig(&zp_nccl_started.comm, g->nranks, id, g->rank, &config);
    return zp_nccl_watch_wait_call(g, zp_nccl_started.comm, r, "ncclCommInitRankConfig");
}

/* The transport's connect. Each rank is a process with a GPU of its own. */
static zero_result zp_nccl_connect(zero_comm *comm, double timeout_s, char text[ZP_TEXT_BYTES]) {
    zero_local *local = (zero_local *)comm->handle;
    const zero_comm made = {ZERO_COMM_NCCL, comm->rank, &zp_nccl_started.comm, comm->node_size};
    zp_nccl *n = (zp_nccl *)calloc(1, sizeof *n);
    zp_failure failure;
    zp_comm g; /* over the memory in which the ranks met */
    if (!n) return ZERO_ERR_MEMORY;
    memset(&failure, 0, sizeof failure);
    memset(&g, 0, sizeof g);
    zp_comm_prepare(&g, NULL, &failure, timeout_s);
    g.rank = comm->rank;
    g.nranks = local->nranks;
    g.transport = &zp_local_transport;
    g.own = n;
    pthread_mutex_init(&n->lock, NULL);
    const zero_result r = zp_nccl_connect_ranks(&g, local);
    if (r) zp_board_abort_local(&g, failure.text);
    (void)snprintf(text, ZP_TEXT_BYTES, "%s", failure.text);
    pthread_mutex_destroy(&n->lock);
    free(n);
    zp_nccl_started.local = local;
    *comm = made;
    return r;
}

static zero_result zp_nccl_begin_join(zp_comm *g, const zero_comm *given, ncclComm_t parent) {
    zp_nccl *n = (zp_nccl *)calloc(1, sizeof *n);
    int device = -1;
    if (!n) return zp_comm_fail(g, ZERO_ERR_MEMORY, "what NCCL's transport keeps");
    g->own = n;
    g->sums = 1;
    n->channels = g->swaps ? 1 : ZP_CONTROL;
    n->ranks.n = 1;
    pthread_mutex_init(&n->lock, NULL);
    if (!parent)
        return zp_comm_fail(g, ZERO_ERR_ARGUMENT, "comm.handle: an ncclComm_t * is needed");
    ncclResult_t r = ncclGetVersion(&n->version);
    if (r == ncclSuccess && n->version < 21900)
        return zp_comm_fail(g, ZERO_ERR_UNSUPPORTED,
                            "NCCL %d.%d.%d is loaded: 2.19 or newer is needed", n->version / 10000,
                            n->version / 100 % 100, n->version % 100);
    if (r == ncclSuccess) r = ncclCommUserRank(parent, &g->rank);
    if (r == ncclSuccess) r = ncclCommCount(parent, &g->nranks);
    if (r == ncclSuccess) r = ncclCommCuDevice(parent, &device);
    if (r != ncclSuccess) return zp_nccl_watch_fail(g, parent, r, "comm.handle");
    if (given->handle == &zp_nccl_started.comm) {
        n->ranks.local = zp_nccl_started.local;
        zp_local_show_calls(g, n->ranks.local, g->rank);
    }
    if (device != g->device->number)
        return zp_comm_fail(g, ZERO_ERR_ARGUMENT,
                            "the communicator belongs to device %d, but device %d is current",
                            device, g->device->number);
    ZP_TRY(zp_comm_check_node_size(g, given->node_size));
    if (given->node_size) g->node_size = given->node_size; /* only a wire's messages use it */
    return ZERO_OK;
}

/* Opens the board: a memory file of the lowest rank whose files this rank sees. A rank without a
   board does not get the errors of other ranks. The note states how many ranks share this board. */
static zero_result zp_nccl_open_board(zp_comm *g) {
    zp_local_ranks *s = &zp_nccl_watch_of(g)->ranks;
    zp_memory *m = &s->board_memory;
    int32_t maker = -1;
    m->bytes = zp_round_up(sizeof(zp_board), 4096);
    m->how = ZP_ONE | ZP_ON_HOST;
    const int fd = zp_shared_memory_make_file(m->bytes);
    const zp_piece mine = zp_process_piece_of(fd),
                   *theirs = (const zp_piece *)(const void *)g->mail;
    zero_result r = zp_comm_exchange(g, &mine, sizeof mine);
    for (int p = 0; p < g->nranks && !r && maker < 0; p++) {
        const int file = p == g->rank ? fd : zp_process_open_piece(&theirs[p]);
        if (zp_shared_memory_map_piece(m, 0, file)) maker = p;
        if (file >= 0 && file != fd) (void)close(file);
    }
    if (!r) r = zp_comm_exchange(g, &maker, sizeof maker); /* all ranks have opened the files */
    if (fd >= 0) (void)close(fd);
    ZP_TRY(r);
    s->board = (zp_board *)(void *)m->peer[0];
    const int32_t *makers = (const int32_t *)(const void *)g->mail;
    for (int p = 0; p < g->nranks; p++) s->n += s->board && p != g->rank && makers[p] == maker;
    return ZERO_OK;
}

/* Returns the bytes of the exchange buffer. NCCL's own memory is not counted. */
static size_t zp_nccl_scratch_bytes(int ranks) {
    return zp_max((size_t)(1 + ranks) * ZP_MAIL_BYTES, ZP_STAGE_NUMEL * sizeof(float));
}
static zero_result zp_nccl_join(zp_comm *g, const zero_comm *given) {
    const ncclComm_t parent = given->handle ? *(ncclComm_t *)given->handle : NULL;
    const zero_result r = zp_nccl_begin_join(g, given, parent);
    zp_nccl *n = zp_nccl_watch_of(g);
    if (r) zp_nccl_refuse(given, "");
    ZP_TRY(r);
    /* before all other calls that could fail */
    for (int ch = 0; ch < n->channels; ch++) ZP_TRY(zp_nccl_open_channel(g, parent, ch));
    for (int ch = 0; ch < n->channels; ch++) {
        n->channel[ch].moved = zp_seconds();
        ZP_TRY(zp_device_open_event(g->device, &n->channel[ch].last));
    }
    const size_t bytes = zp_nccl_scratch_bytes(g->nranks);
    n->scratch = (char *)zp_device_alloc(g->device, bytes);
    n->pinned = (char *)zp_device_alloc_host(bytes + ZP_CONTROL * sizeof *n->ended);
    g->mail = (char *)malloc((size_t)g->nranks * ZP_MAIL_BYTES);
    if (!n->scratch || !n->pinned || !g->mail)
        return zp_comm_fail(g, ZERO_ERR_MEMORY, "the exchange buffers");
    n->ended = (volatile uint64_t *)(void *)(n->pinned + bytes);
    const char *order = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    n->ordered = n->version >= 22600 && order && strcmp(order, "0") != 0;
    if (n->version >= 22600 && !n->ordered && g->nranks > 1)
        g->warning = "NCCL_LAUNCH_ORDER_IMPLICIT=1 is not set: an NCCL call of your own inside a "
                     "pass can deadlock with the plugin's; set it before NCCL starts, or use "
                     "zero_all_sum";
    n->joins = 1;
    if (g->nranks > 1) ZP_TRY(zp_nccl_open_board(g));
    n->joins = 0;
    (void)snprintf(g->note, sizeof g->note,
                   "NCCL %d.%d.%d, launches ordered by %s, failures reported to %d of %d ranks",
                   n->version / 10000, n->version / 100 % 100, n->version % 100,
                   n->ordered ? "NCCL" : "events", n->ranks.n, g->nranks);
    return zp_nccl_watch_begin(g);
}

/* All ranks destroy a communicator together; if that fails, it is aborted. */
static void zp_nccl_leave(zp_comm *g, int broken) {
    zp_nccl *n = zp_nccl_watch_of(g);
    if (!n) return;
    zp_nccl_watch_end(n);
    zp_device *first = zp_device_first(g->device);
    const int dead = broken || zp_failure_result(g->failure) != ZERO_OK;
    if (dead && !n->aborted) zp_nccl_watch_abort_both(g);
    (void)cudaStreamSynchronize(g->device->own); /* a failed exchange may have copies there */
    for (zp_memory *m = g->first; m; m = m->next) zp_nccl_free_memory(n, m);
    for (int ch = 0; ch < n->channels; ch++) {
        const ncclComm_t comm = n->channel[ch].comm;
        if (first->list == &n->channel[ch])
            first->list = NULL; /* this list and all before it have ended */
        zp_device_close_event(&n->channel[ch].last);
        if (!comm || n->aborted) continue;
        const int failed =
            zp_nccl_watch_wait_call(g, comm, ncclCommFinalize(comm), "ncclCommFinalize");
        (void)(failed ? ncclCommAbort(comm) : ncclCommDestroy(comm));
    }
    zp_shared_memory_free(&n->ranks.board_memory);
    zp_device_free(n->scratch);
    zp_device_free_host(n->pinned);
    pthread_mutex_destroy(&n->lock);
    if (!n->splits) free(n); /* otherwise the process keeps it */
}

static zero_result zp_nccl_exchange_messages(zp_stream *s, const zp_swap *x) {
    const zp_nccl_list list = {x->group, x->call, zp_nccl_call_message, x->list, x->n, 0};
    return zp_nccl_enqueue(s, &list);
}
static zero_result zp_nccl_issue_collective(zp_stream *s, const zp_collective *c) {
    const zp_nccl_list list = {c->group, c->call, zp_nccl_call_collective, c, 1, 0};
    return zp_nccl_enqueue(s, &list);
}

static zero_result zp_nccl_make_part(zp_comm *of, const zp_cut *cut, zero_comm *part) {
    const zero_comm none = {ZERO_COMM_NCCL, 0, NULL, 0};
    const int colour = cut->part < 0 ? NCCL_SPLIT_NOCOLOR : cut->part;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t *comm = (ncclComm_t *)calloc(1, sizeof *comm);
    *part = none;
    if (!comm) return zp_comm_fail(of, ZERO_ERR_MEMORY, "no memory for a group");
    const zero_result r =
        zp_nccl_split(of, zp_nccl_watch_of(of)->channel[0].comm, colour, cut->rank, &config, comm);
    if (!r && cut->part >= 0)
        part->handle = comm;
    else if (!r) /* after a failure the process keeps it, because NCCL may still write it */
        free(comm);
    return r;
}
static size_t zp_nccl_bytes_of_parts(const zp_comm *of, int parts, int n, int swaps) {
    return zp_nccl_scratch_bytes(n);
}
static void zp_nccl_free_part(zero_comm *part, int broken) {
    if (!part->handle) return;
    const ncclComm_t comm = *(ncclComm_t *)part->handle;
    (void)(broken ? ncclCommAbort(comm) : ncclCommDestroy(comm));
    free(part->handle);
}

ZP_MESSENGER(zp_nccl_messenger, zp_nccl_exchange_messages, zp_nccl_make_part, zp_nccl_free_part,
             zp_nccl_issue_collective, NULL);
ZP_TRANSPORT(zp_nccl_transport, "NCCL", zp_nccl_join, zp_nccl_refuse, zp_nccl_alloc_memory,
             zp_nccl_register_memory, zp_nccl_issue, zp_nccl_exchange, zp_nccl_broadcast,
             zp_local_bytes, 1, zp_nccl_watch_abort, zp_nccl_leave, zp_nccl_bytes_of_parts,
             zp_nccl_connect, &zp_nccl_messenger);
static const zp_transport_row zp_nccl_row = {ZERO_COMM_NCCL, &zp_nccl_transport, ""};
#else
static const zp_transport_row zp_nccl_row = {
    ZERO_COMM_NCCL, NULL, "built without NCCL: compile with nvcc and -DZERO_WITH_NCCL"};
#endif
