/* integrity.h - finds memory and messages that changed by themselves (cfg.integrity)

   Memory can change without a write, for example by a faulty memory module or by a program that
   writes past its arrays. Fixed bits make such a change visible: the row keeps a 64-bit hash of
   what each writer of the plugin has left, and compares it when the numbers are used next.

   HASHES AND COMPARISONS. Each line is one array of a unit on this rank.
     array                 hashed after                     compared
     PARAM                 the update                       kept whole or mapped: at the agreement
                                                            of every step, and before the update;
                                                            gathered: after each gather
     MASTER, STATE         the update                       before the next update
     MEAN (stage 0: GRAD)  the last reduction of a step     before the update
     SUM, MEAN             the reduction of a micro-step    before the next one adds to it
     SUM, whole            a micro-step is added            before the next one is added
     GRAD, added in place  the end of a micro-step's pass   when the next pass begins
     a gather buffer       each gather, shard by shard      before the next gather into the buffer,
                                                            and at the agreement
   State is also compared when zero_state_begin opens it, so that no changed number gets into a
   checkpoint. Writes by name, loaded checkpoints and moved state renew hashes: when the next pass
   begins, or at zero_state_end.

   BETWEEN RANKS. A rank's verdict carries one more word for each unit: the hash of the shard that
   it owns, as its update left it (stage 0: of the whole unit). After the agreement each rank
   compares
     the shards that it has gathered, or keeps whole, with the words of their owners
     its own hashes with the words of the ranks that keep a copy (stage 0, shard_ranks)
   This costs no message of its own. Step by step, for parameters of unit u at stage 3:

     rank 1, owner of shard 1                    rank 0
     zero_step: updates shard 1, hashes it: h
     gather of u                        ---->    gather of u: hashes shard 1 in its buffer: a
     the verdict has h                  ---->    agreement: a = h, or an error
                                                 zero_step: returns the error before any update

   All comparisons of what a step's passes have used come before the step's update. So an update
   never stores the result of numbers that are known to be wrong. The rank that finds a difference
   returns ZERO_ERR_DEVICE, and its peers ZERO_ERR_PEER, as after any failed collective.

   STREAMS. A hash belongs to the stream that writes its array. Tasks that compare run on the stream
   that uses the array next, which waits for the writer already. Buffers, and what arrived in them,
   belong to the parameter stream alone. At the agreement it copies the hashes of arrived shards,
   and the gradient stream, which waits for that, compares the copy. zero_step waits for that.

   THE HASH. A block of 512 words has the sum of its 32-bit words, each times an odd 32-bit factor,
   as an integer of 64 bits. Products are below 2^64, so a change of one word always changes the
   sum. A function without collisions mixes it with the block's number, and the hash is the sum over
   all blocks. So a change inside one word is always found, and any other with a probability of
   about 1 - 2^-64. Threads add blocks in any order.

   NOT COVERED. Gradients before they are reduced, on the rank that computes them and on their way
   to the sum; results of a processor that computes wrongly; partial sums of virtual ranks; errors
   that quantized reductions feed back; NorMuon's averages. Parts in FILE have checksums of their
   own (offload/file.h). */
#pragma once

#include "../core/extra.h"
#include "../core/observe.h"
#include "../core/step.h"

enum { ZP_INTEGRITY_WORDS = 512, ZP_INTEGRITY_CHUNK = 32 }; /* of a block; blocks at a time */

/* The gathered shards of a segment, by rank of z->data. */
typedef struct zp_integrity_copy {
    uint64_t version; /* 1 + the version of its weights that `hash` is about; 0: none */
    int buffer;       /* 1 + the buffer that has them; 0: none */
    int compares;     /* the agreement compares `agreed` */
    uint64_t *hash;   /* [nranks] as they arrived */
    uint64_t *agreed; /* [nranks] the agreement's copy */
} zp_integrity_copy;

typedef struct zp_integrity_state {
    uint64_t *hash;          /* [ZP_ARRAYS][layout.segments] of this rank's part of each unit */
    unsigned char *known;    /* [ZP_ARRAYS][layout.segments] 1: `hash` is valid */
    zp_integrity_copy *copy; /* [layout.segments] */
    uint64_t *copies;        /* memory of their hashes */
    size_t bytes;            /* of all lists */
    int words_at;            /* place of its words in a verdict, after those of other rows */
    int laid;                /* `words_at` is set */
    int renews;              /* other code wrote: hashes of weights and state are not all known */
    zp_event buffers, compared;
    uint32_t factor[ZP_INTEGRITY_WORDS];
} zp_integrity_state;

static int zp_integrity_is_on(const zero_ctx *z) { return z->cfg.integrity != 0; }

/* ---- the hash ---- */

typedef uint32_t __attribute__((may_alias)) zp_integrity_word; /* of memory of any type */

/* Returns the sum of a block's words, each times its factor. */
static uint64_t zp_integrity_add_words(const uint32_t *factor, const zp_integrity_word *word) {
    uint64_t sum = 0;
    for (int i = 0; i < ZP_INTEGRITY_WORDS; i++) sum += (uint64_t)word[i] * factor[i];
    return sum;
}
/* Mixes bits. No two values have the same result. */
static uint64_t zp_integrity_mix(uint64_t x) {
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
    x = (x ^ x >> 29) * 0x9E3779B97F4A7C15u;
    return x ^ x >> 32;
}
/* Returns the sum of blocks `first` to `end` - 1 of n bytes. Zeros complete the last block. */
static uint64_t zp_integrity_add_blocks(const uint32_t *factor, const char *bytes, size_t n,
                                        size_t first, size_t end) {
    const size_t block = sizeof(uint32_t) * ZP_INTEGRITY_WORDS;
    uint64_t sum = 0;
    for (size_t b = first; b < end; b++) {
        const char *at = bytes + b * block;
        uint32_t last[ZP_INTEGRITY_WORDS];
        if (n - b * block < block) {
            memset(last, 0, sizeof last);
            memcpy(last, at, n - b * block);
            at = (const char *)last;
        }
        const uint64_t words =
            zp_integrity_add_words(factor, (const zp_integrity_word *)(const void *)at);
        sum += zp_integrity_mix(words + (b + 1) * 0x9E3779B97F4A7C15u);
    }
    return sum;
}
static uint64_t zp_integrity_hash(const zero_ctx *z, const char *bytes, size_t n, int threads) {
    const size_t block = sizeof(uint32_t) * ZP_INTEGRITY_WORDS, blocks = (n + block - 1) / block;
    const uint32_t *factor = z->integrity->factor;
    uint64_t sum = 0;
    ZP_OMP_FOR(blocks > 4 * ZP_INTEGRITY_CHUNK)
    for (size_t b = 0; b < blocks; b += ZP_INTEGRITY_CHUNK) {
        const size_t end = zp_min(b + ZP_INTEGRITY_CHUNK, blocks);
        const uint64_t some = zp_integrity_add_blocks(factor, bytes, n, b, end);
        (void)__atomic_fetch_add(&sum, some, __ATOMIC_RELAXED);
    }
    return sum;
}

/* ---- errors ---- */

static const char *const zp_integrity_names[ZP_ARRAYS] = {
    "gradients",      "parameters",        "reduced gradients", "sums of gradients",
    "master weights", "optimizer state 1", "optimizer state 2", "next parameters"};

/* Prints segment u, for example `unit 3 (tensor fcw and others)`. */
static const char *zp_integrity_print_unit(const zero_ctx *z, int u, char *text, size_t bytes) {
    const zp_unit *x = &z->layout.unit[u];
    (void)snprintf(text, bytes, "unit %d (tensor %.64s%s)", zp_layout_unit_of(&z->layout, u),
                   z->tensors[x->member->tensor].desc.name, x->members > 1 ? " and others" : "");
    return text;
}
#define ZP_INTEGRITY_ADVICE                                                                        \
    "continue from the newest checkpoint; if it happens again, test this machine's memory"

static void zp_integrity_fail_part(zero_ctx *z, int k, int u, int64_t step) {
    char unit[128];
    (void)zp_comm_fail(z->all, ZERO_ERR_DEVICE,
                       "memory of rank %d changed while it lay still: %s of %s, in step "
                       "%lld; " ZP_INTEGRITY_ADVICE,
                       z->all->rank, zp_integrity_names[k],
                       zp_integrity_print_unit(z, u, unit, sizeof unit), (long long)step);
}

/* ---- this rank's parts ---- */

/* Returns the memory and the bytes of this rank's own part of segment u of array k: of weights that
   all ranks keep whole but do not all update, its shard. Returns 0 if it has none in memory. */
static size_t zp_integrity_part(const zero_ctx *z, int k, int u, char **memory) {
    const zp_array *a = &z->array[k];
    const zp_array_part *part = &a->part[u];
    const int shard = k == ZP_PARAM && z->policy.state == ZP_SHARD && part->share != ZP_SHARD;
    const size_t first = shard ? zp_ctx_shard_first(z, u) : part->first;
    if (!part->numel || zp_array_off_device(a, u)) return 0;
    *memory = zp_array_at(a, u, first);
    return zp_type_array_bytes(part->type, shard ? zp_ctx_shard(z, u) : part->numel);
}
static uint64_t *zp_integrity_hash_of(const zero_ctx *z, int k, int u) {
    return &z->integrity->hash[k * z->layout.segments + u];
}
static unsigned char *zp_integrity_known(const zero_ctx *z, int k, int u) {
    return &z->integrity->known[k * z->layout.segments + u];
}

/* Hashes the part, or compares it with its hash. After other code wrote it, it is hashed. */
static void zp_integrity_visit(zero_ctx *z, int k, int u, int stores, int64_t step, int threads) {
    char *memory;
    const size_t bytes = zp_integrity_part(z, k, u, &memory);
    uint64_t *hash = zp_integrity_hash_of(z, k, u);
    unsigned char *known = zp_integrity_known(z, k, u);
    if (!bytes || zp_failure_result(&z->failure)) return;
    const uint64_t now = zp_integrity_hash(z, memory, bytes, threads);
    if (!stores && *known && *hash != now) zp_integrity_fail_part(z, k, u, step);
    *hash = now;
    *known = 1;
}

/* A task: visits the parts of segment `unit` of a set of arrays. Parts that are dropped have no
   hash afterwards. */
typedef struct zp_integrity_args {
    zero_ctx *z;
    int64_t step;
    int unit, arrays, stores, drops;
} zp_integrity_args;

static void zp_integrity_task(const void *args, size_t n, int threads) {
    const zp_integrity_args *a = (const zp_integrity_args *)args;
    for (int k = 0; k < ZP_ARRAYS; k++) {
        if (!(a->arrays >> k & 1)) continue;
        zp_integrity_visit(a->z, k, a->unit, a->stores, a->step, threads);
        if (a->drops >> k & 1) *zp_integrity_known(a->z, k, a->unit) = 0;
    }
}
static zero_result zp_integrity_push(zero_ctx *z, zp_stream *s, int u, int arrays, int stores,
                                     int drops) {
    const zp_integrity_args a = {z, z->taken, u, arrays, stores, drops};
    if (!arrays) return ZERO_OK;
    ZP_TRY(zp_device_push_task(s, zp_integrity_task, &a, sizeof a, 1));
    return zp_failure_result(&z->failure);
}

enum {
    ZP_INTEGRITY_STATE = 1 << ZP_MASTER | 1 << ZP_STATE | 1 << (ZP_STATE + 1), /* at rest */
    ZP_INTEGRITY_REST = ZP_INTEGRITY_STATE | 1 << ZP_PARAM
};

/* On the calling thread: hashes weights and state of all units that have no hash, or compares the
   others. */
static zero_result zp_integrity_visit_all(zero_ctx *z, int stores) {
    for (int u = 0; u < z->layout.segments; u++) {
        int arrays = 0;
        for (int k = 0; k < ZP_ARRAYS; k++)
            if (ZP_INTEGRITY_REST >> k & 1 && *zp_integrity_known(z, k, u) == !stores)
                arrays |= 1 << k;
        ZP_DO(z, zp_integrity_push(z, &z->compute, u, arrays, stores, 0));
    }
    return ZERO_OK;
}
static zero_result zp_integrity_renew(zero_ctx *z) {
    if (!zp_integrity_is_on(z) || !z->integrity->renews) return ZERO_OK;
    z->integrity->renews = 0;
    return zp_integrity_visit_all(z, 1);
}
static zero_result zp_integrity_check_state(zero_ctx *z) {
    return zp_integrity_is_on(z) ? zp_integrity_visit_all(z, 0) : ZERO_OK;
}

/* Other code wrote to an array; NULL: to any. Your code's gradients are hashed now, because no pass
   begins before the update; all streams are idle. */
static void zp_integrity_wrote(zero_ctx *z, const zp_array *a, int u) {
    if (!zp_integrity_is_on(z)) return;
    for (int k = 0; k < ZP_ARRAYS; k++)
        for (int s = 0; s < z->layout.segments; s++)
            if ((!a || a == &z->array[k]) && (u < 0 || u == s)) *zp_integrity_known(z, k, s) = 0;
    z->integrity->renews = 1;
    if (a && a == zp_ctx_update_gradient(z))
        zp_integrity_visit(z, (int)(a - z->array), u, 1, z->taken, z->cfg.threads);
}

/* ---- gathered parameters ---- */

/* The gather of segment `unit` into a buffer. */
typedef struct zp_integrity_gather {
    zero_ctx *z;
    int64_t step;
    uint64_t version; /* 1 + that of its weights */
    int unit, buffer;
    int from_owners; /* each shard comes from its owner */
} zp_integrity_gather;

static char *zp_integrity_in_buffer(const zero_ctx *z, int u, int buffer) {
    return z->memory[ZP_PARAM].base + zp_ctx_unit_in_buffer(z, ZP_PARAM, u, buffer);
}
/* Returns the hash of rank r's shard of segment u, all of which is at `memory`. */
static uint64_t zp_integrity_hash_shard(const zero_ctx *z, int u, const char *memory, int r,
                                        int threads) {
    const size_t bytes = zp_ctx_shard(z, u) * zp_type_bytes(z->array[ZP_PARAM].type);
    return zp_integrity_hash(z, memory + (size_t)r * bytes, bytes, threads);
}

/* Compares the shards of segment u in its buffer with what they were when they arrived. */
static void zp_integrity_check_buffer(zero_ctx *z, int u, int64_t step, int threads) {
    const zp_integrity_copy *c = &z->integrity->copy[u];
    const char *memory = zp_integrity_in_buffer(z, u, c->buffer - 1);
    char unit[128];
    for (int r = 0; r < z->data->nranks && !zp_failure_result(&z->failure); r++)
        if (zp_integrity_hash_shard(z, u, memory, r, threads) != c->hash[r])
            (void)zp_comm_fail(
                z->all, ZERO_ERR_DEVICE,
                "memory of rank %d changed while passes used it: gathered parameters "
                "of %s, in step %lld; " ZP_INTEGRITY_ADVICE,
                z->all->rank, zp_integrity_print_unit(z, u, unit, sizeof unit), (long long)step);
}

/* A task: before a gather overwrites a buffer, compares what it has. The other segment of the same
   unit stays. */
static void zp_integrity_refill_task(const void *args, size_t n, int threads) {
    const zp_integrity_gather *a = (const zp_integrity_gather *)args;
    const zp_layout *l = &a->z->layout;
    for (int u = 0; u < l->segments; u++) {
        zp_integrity_copy *c = &a->z->integrity->copy[u];
        const int other = u != a->unit && zp_layout_unit_of(l, u) == zp_layout_unit_of(l, a->unit);
        if (c->buffer != 1 + a->buffer || other) continue;
        zp_integrity_check_buffer(a->z, u, a->step, threads);
        c->buffer = 0;
    }
}

/* A task: hashes the shards that arrived. Those of the same weights that arrived before were
   equal, and this rank's own has its hash. */
static void zp_integrity_arrived_task(const void *args, size_t n, int threads) {
    const zp_integrity_gather *a = (const zp_integrity_gather *)args;
    zero_ctx *z = a->z;
    zp_integrity_copy *c = &z->integrity->copy[a->unit];
    const char *memory = zp_integrity_in_buffer(z, a->unit, a->buffer);
    char unit[128], *own;
    for (int r = 0; r < z->data->nranks && !zp_failure_result(&z->failure); r++) {
        const uint64_t now = zp_integrity_hash_shard(z, a->unit, memory, r, threads);
        const int mine = a->from_owners && r == z->data->rank
                         && zp_integrity_part(z, ZP_PARAM, a->unit, &own)
                         && *zp_integrity_known(z, ZP_PARAM, a->unit);
        if (mine && now != *zp_integrity_hash_of(z, ZP_PARAM, a->unit))
            zp_integrity_fail_part(z, ZP_PARAM, a->unit, a->step);
        if (c->version == a->version && now != c->hash[r])
            (void)zp_comm_fail(z->all, ZERO_ERR_DEVICE,
                               "rank %d received two different shards of rank %d in two gathers of "
                               "%s, in step %lld; " ZP_INTEGRITY_ADVICE,
                               z->all->rank, r,
                               zp_integrity_print_unit(z, a->unit, unit, sizeof unit),
                               (long long)a->step);
        c->hash[r] = now;
    }
    c->version = a->version;
    c->buffer = 1 + a->buffer;
}

static zero_result zp_integrity_push_gather(zero_ctx *z, int u, zp_task_fn fn) {
    const int b = zp_buffer_find(&z->pool[ZP_PARAM], z->gather.unit);
    const zp_integrity_gather a = {z, z->taken, 1 + z->live[u].version,
                                   u, b,        z->gather.group == z->data};
    if (zp_ctx_unit_is_whole(z, ZP_PARAM, u)) return ZERO_OK;
    return zp_device_push_task(&z->stream[ZP_PARAMETERS], fn, &a, sizeof a, 1);
}
/* Stations: before a gather, and after it. */
static zero_result zp_integrity_before_gather(zero_ctx *z, int u) {
    return zp_integrity_push_gather(z, u, zp_integrity_refill_task);
}
static zero_result zp_integrity_after_gather(zero_ctx *z, int u) {
    return zp_integrity_push_gather(z, u, zp_integrity_arrived_task);
}

/* ---- the agreement ---- */

/* A task of the parameter stream: compares what buffers have, and copies the hashes of arrived
   shards of the present weights. */
static void zp_integrity_buffers_task(const void *args, size_t n, int threads) {
    const zp_integrity_args *a = (const zp_integrity_args *)args;
    zero_ctx *z = a->z;
    for (int u = 0; u < z->layout.segments; u++) {
        zp_integrity_copy *c = &z->integrity->copy[u];
        c->compares = c->version == 1 + z->live[u].version;
        if (c->compares) memcpy(c->agreed, c->hash, (size_t)z->data->nranks * sizeof *c->hash);
        if (c->buffer) zp_integrity_check_buffer(z, u, a->step, threads);
    }
}

/* Hashes the shards of other ranks in segment u, which this rank keeps whole. */
static void zp_integrity_hash_others(zero_ctx *z, int u, int threads) {
    zp_integrity_copy *c = &z->integrity->copy[u];
    const char *memory = zp_array_at(&z->array[ZP_PARAM], u, 0);
    for (int r = 0; r < z->data->nranks; r++)
        if (r != z->data->rank) c->agreed[r] = zp_integrity_hash_shard(z, u, memory, r, threads);
    c->compares = 1;
}

/* Returns where rank r's words are in the verdicts. */
static char *zp_integrity_words(const zero_ctx *z, int r) {
    const int at = r * zp_ctx_verdict_words(z) + ZP_VERDICT + z->verdict_units;
    return (char *)(z->verdicts + at + z->integrity->words_at);
}

/* A task of the gradient stream: compares weights that the passes have read in place, and writes
   this rank's words. The word of a shard in a file is its hash in this rank's buffer. */
static void zp_integrity_words_task(const void *args, size_t n, int threads) {
    const zp_integrity_args *a = (const zp_integrity_args *)args;
    zero_ctx *z = a->z;
    char *words = zp_integrity_words(z, z->agreeing->rank), *memory;
    for (int u = 0; u < z->layout.segments; u++) {
        const zp_share share = z->array[ZP_PARAM].part[u].share;
        const zp_integrity_copy *c = &z->integrity->copy[u];
        uint64_t *hash = zp_integrity_hash_of(z, ZP_PARAM, u);
        if (!z->layout.unit[u].numel) continue;
        if (share != ZP_SHARD) zp_integrity_visit(z, ZP_PARAM, u, 0, a->step, threads);
        if (share == ZP_WHOLE && z->policy.state == ZP_SHARD)
            zp_integrity_hash_others(z, u, threads);
        if (!zp_integrity_part(z, ZP_PARAM, u, &memory))
            *hash = c->compares ? c->agreed[z->data->rank] : 0;
        memcpy(words + (size_t)u * sizeof *hash, hash, sizeof *hash);
    }
}

/* Returns rank r's word for segment u. */
static uint64_t zp_integrity_word_of(const zero_ctx *z, int r, int u) {
    uint64_t word;
    memcpy(&word, zp_integrity_words(z, r) + (size_t)u * sizeof word, sizeof word);
    return word;
}
/* Returns 1 if rank r updates the same elements as this rank. */
static int zp_integrity_is_copy(const zero_ctx *z, int r) {
    return z->policy.state == ZP_WHOLE || r % z->data->nranks == z->data->rank;
}

/* Reports that rank r, which keeps a copy of segment u, has another hash. More than half of the
   copies are right. */
static void zp_integrity_fail_copy(zero_ctx *z, int u, int r, int64_t step) {
    const uint64_t mine = *zp_integrity_hash_of(z, ZP_PARAM, u);
    int copies = 0, alike = 0, as_r = 0;
    char unit[128], who[64];
    for (int q = 0; q < z->agreeing->nranks; q++) {
        if (!zp_integrity_is_copy(z, q)) continue;
        copies++;
        alike += zp_integrity_word_of(z, q, u) == mine;
        as_r += zp_integrity_word_of(z, q, u) == zp_integrity_word_of(z, r, u);
    }
    if (2 * alike > copies || 2 * as_r > copies)
        (void)snprintf(who, sizeof who, "those of rank %d are wrong",
                       2 * alike > copies ? r : z->all->rank);
    else
        (void)snprintf(who, sizeof who, "the wrong ones are not known");
    (void)zp_comm_fail(
        z->all, ZERO_ERR_DEVICE,
        "ranks %d and %d have different parameters of %s, in step %lld: %s; " ZP_INTEGRITY_ADVICE,
        z->all->rank, r, zp_integrity_print_unit(z, u, unit, sizeof unit), (long long)step, who);
}
/* Compares segment u with the words of rank r. */
static void zp_integrity_compare(zero_ctx *z, int u, int r, int64_t step) {
    const int n = z->data->nranks, ours = r / n == z->all->rank / n;
    const zp_integrity_copy *c = &z->integrity->copy[u];
    char unit[128];
    if (zp_integrity_is_copy(z, r)) {
        if (*zp_integrity_hash_of(z, ZP_PARAM, u) != zp_integrity_word_of(z, r, u))
            zp_integrity_fail_copy(z, u, r, step);
    } else if (ours && c->compares && c->agreed[r % n] != zp_integrity_word_of(z, r, u))
        (void)zp_comm_fail(z->all, ZERO_ERR_DEVICE,
                           "rank %d has other parameters of %s than rank %d, which owns them, in "
                           "step %lld: they changed on the way or in memory; " ZP_INTEGRITY_ADVICE,
                           z->all->rank, zp_integrity_print_unit(z, u, unit, sizeof unit), r,
                           (long long)step);
}
/* A task: compares all segments with the words of all ranks. */
static void zp_integrity_compare_task(const void *args, size_t n, int threads) {
    const zp_integrity_args *a = (const zp_integrity_args *)args;
    zero_ctx *z = a->z;
    for (int u = 0; u < z->layout.segments; u++)
        for (int r = 0; r < z->agreeing->nranks && !zp_failure_result(&z->failure); r++)
            if (z->layout.unit[u].numel && r != z->agreeing->rank)
                zp_integrity_compare(z, u, r, a->step);
}

static zero_result zp_integrity_push_all(zero_ctx *z, zp_stream *s, zp_task_fn fn) {
    const zp_integrity_args a = {z, z->taken, 0, 0, 0, 0};
    return zp_device_push_task(s, fn, &a, sizeof a, 1);
}
/* Station: before the agreement. */
static zero_result zp_integrity_before_agreement(zero_ctx *z) {
    zp_stream *gradients = &z->stream[ZP_GRADIENTS], *parameters = &z->stream[ZP_PARAMETERS];
    ZP_TRY(zp_integrity_push_all(z, parameters, zp_integrity_buffers_task));
    ZP_TRY(zp_device_record_event(parameters, &z->integrity->buffers));
    ZP_TRY(zp_device_wait_event(gradients, &z->integrity->buffers));
    for (int u = 0; u < z->layout.segments; u++) {
        ZP_TRY(zp_device_wait_event(gradients, z->live[u].updated));
        ZP_TRY(zp_device_wait_event(gradients, z->live[u].gathered));
    }
    return zp_integrity_push_all(z, gradients, zp_integrity_words_task);
}
/* Station: after the agreement. */
static zero_result zp_integrity_after_agreement(zero_ctx *z) {
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    ZP_TRY(zp_integrity_push_all(z, s, zp_integrity_compare_task));
    return zp_device_record_event(s, &z->integrity->compared);
}
/* Station: no update begins before the comparison. */
static zero_result zp_integrity_wait(zero_ctx *z) {
    ZP_TRY(zp_device_wait_event(&z->compute, &z->integrity->compared));
    return zp_failure_result(&z->failure);
}

/* ---- the way of a gradient, and the update ---- */

/* Returns the array to which micro-steps that are reduced on their own are added, as a set. */
static int zp_integrity_sums(const zero_ctx *z) {
    return 1 << (z->array[ZP_SUM].share ? (int)ZP_SUM : (int)ZP_MEAN);
}
static int zp_integrity_update_gradient(zero_ctx *z) {
    return 1 << (int)(zp_ctx_update_gradient(z) - z->array);
}
/* Returns 1 if micro-steps are added to SUM before they are reduced. */
static int zp_integrity_collects(const zero_ctx *z) {
    return zp_integrity_is_on(z) && z->array[ZP_SUM].share == ZP_WHOLE;
}
static int zp_integrity_adds(const zero_ctx *z) {
    return zp_integrity_is_on(z) && z->cfg.micro_steps > 1 && z->adding == ZP_EACH_REDUCED;
}
static int zp_integrity_adds_in_place(const zero_ctx *z) {
    return z->cfg.micro_steps > 1 && z->adding == ZP_IN_PLACE;
}

/* Stations: before a micro-step is added to a sum, and after it. */
static zero_result zp_integrity_before_sum(zero_ctx *z, int u) {
    if (!z->live[u].reduced) return ZERO_OK;
    return zp_integrity_push(z, &z->stream[ZP_GRADIENTS], u, zp_integrity_sums(z), 0, 0);
}
static zero_result zp_integrity_after_collect(zero_ctx *z, int u) {
    if (z->bucket_last) return ZERO_OK;
    return zp_integrity_push(z, &z->stream[ZP_GRADIENTS], u, zp_integrity_sums(z), 1, 0);
}
static zero_result zp_integrity_after_reduction(zero_ctx *z, int u) {
    const int arrays = z->bucket_last ? zp_integrity_update_gradient(z) : zp_integrity_sums(z);
    return zp_integrity_push(z, &z->stream[ZP_GRADIENTS], u, arrays, 1, 0);
}

/* Stations: before the first pass of the update over a unit, and after the last one. */
static zero_result zp_integrity_before_update(zero_ctx *z, int u) {
    const int gradient = zp_integrity_update_gradient(z);
    return zp_integrity_push(z, zp_step_stream(z, u), u, ZP_INTEGRITY_REST | gradient, 0, gradient);
}
static zero_result zp_integrity_after_update(zero_ctx *z, int u) {
    return zp_integrity_push(z, zp_step_stream(z, u), u, ZP_INTEGRITY_REST, 1, 0);
}

/* ---- passes: gradients that are added in place ---- */

static zero_result zp_integrity_begin_pass(zero_ctx *z, zero_pass kind) {
    const int again = kind == ZERO_TRAIN && z->phase == ZP_BETWEEN;
    ZP_TRY(zp_integrity_renew(z));
    for (int u = 0; u < z->layout.all && again && zp_integrity_adds_in_place(z); u++)
        if (z->live[u].touched)
            ZP_DO(z, zp_integrity_push(z, &z->compute, u, 1 << ZP_GRAD, 0, 1 << ZP_GRAD));
    return ZERO_OK;
}
static zero_result zp_integrity_end_pass(zero_ctx *z) {
    const int more = z->pass == ZERO_TRAIN && z->micro + 1 < z->micro_steps;
    for (int u = 0; u < z->layout.all && more && zp_integrity_adds_in_place(z); u++)
        if (z->live[u].touched) ZP_DO(z, zp_integrity_push(z, &z->compute, u, 1 << ZP_GRAD, 1, 0));
    return ZERO_OK;
}
static const zp_observer zp_integrity_observer = {
    zp_integrity_begin_pass, zp_integrity_end_pass, NULL, NULL, NULL, NULL, NULL, NULL, NULL};

/* ---- the row ---- */

/* Returns the setting that integrity excludes, with the reason; NULL: there is none. */
static const char *zp_integrity_find_conflict(const zero_ctx *z) {
    const zero_config *c = &z->cfg;
    const int filed = c->optimizer_tier == ZERO_FILE || c->gradient_tier == ZERO_FILE
                      || c->parameter_tier == ZERO_FILE;
    return !zp_device_is_host() ? "the CUDA build has no kernels for its hashes; use the CPU build"
           : ZERO_CHECK         ? "a checked build hands out copies of tensors; use another build"
           : c->world || c->joins
               ? "world and joins agree with ranks that have other parameters; use NULL"
           : c->weight_bits || c->frozen_weight_bits
               ? "with weight_bits, gathered parameters differ from those of their owner; use 0"
           : c->delay_from
               ? "delay_from keeps two versions of the weights, which have no hashes yet; use 0"
           : filed && c->no_file_check
               ? "no_file_check is 1, so that pieces of the file have no checksums; use 0"
               : NULL;
}
static zero_result zp_integrity_check(zero_ctx *z) {
    const char *conflict = zp_integrity_is_on(z) ? zp_integrity_find_conflict(z) : NULL;
    ZP_REFUSE(z, conflict, "integrity is 1: %s", conflict);
    return ZERO_OK;
}

static void zp_integrity_free(zp_integrity_state *x) {
    free(x->hash);
    free(x->known);
    free(x->copy);
    free(x->copies);
}
static zero_result zp_integrity_layout(zero_ctx *z) {
    zp_integrity_state *x = z->integrity;
    const size_t units = (size_t)z->layout.segments, n = (size_t)z->data->nranks;
    if (!zp_integrity_is_on(z)) return ZERO_OK;
    zp_integrity_free(x);
    x->hash = (uint64_t *)calloc(ZP_ARRAYS * units, sizeof *x->hash);
    x->known = (unsigned char *)calloc(ZP_ARRAYS * units, sizeof *x->known);
    x->copy = (zp_integrity_copy *)calloc(units, sizeof *x->copy);
    x->copies = (uint64_t *)calloc(2 * n * units, sizeof *x->copies);
    if (!x->hash || !x->known || !x->copy || !x->copies) return ZERO_ERR_MEMORY;
    x->bytes = units
               * (ZP_ARRAYS * (sizeof *x->hash + sizeof *x->known) + sizeof *x->copy
                  + 2 * n * sizeof *x->copies);
    for (size_t u = 0; u < units; u++) {
        x->copy[u].hash = x->copies + 2 * n * u;
        x->copy[u].agreed = x->copy[u].hash + n;
    }
    for (uint32_t i = 0; i < ZP_INTEGRITY_WORDS; i++) x->factor[i] = zp_optimizer_mix(i) | 1;
    if (!x->laid) x->words_at = z->verdict_words;
    x->laid = x->renews = 1;
    z->verdict_words = x->words_at + z->layout.segments;
    return ZERO_OK;
}
static zero_result zp_integrity_plan(zero_ctx *z) {
    z->plan.hash_bytes = zp_integrity_is_on(z) ? z->integrity->bytes : 0;
    z->plan.context_bytes += z->plan.hash_bytes;
    return ZERO_OK;
}
static zero_result zp_integrity_open(zero_ctx *z) {
    if (!zp_integrity_is_on(z)) return ZERO_OK;
    z->observer = &zp_integrity_observer;
    ZP_TRY(zp_device_open_event(&z->device, &z->integrity->buffers));
    return zp_device_open_event(&z->device, &z->integrity->compared);
}
static zero_result zp_integrity_close(zero_ctx *z) {
    if (z->observer == &zp_integrity_observer) {
        zp_device_close_event(&z->integrity->buffers);
        zp_device_close_event(&z->integrity->compared);
    }
    zp_integrity_free(z->integrity);
    return ZERO_OK;
}

static int zp_integrity_one_pass(const zero_ctx *z) {
    return zp_integrity_is_on(z) && z->rule->passes == 1;
}
static int zp_integrity_two_passes(const zero_ctx *z) {
    return zp_integrity_is_on(z) && z->rule->passes > 1;
}
static const zp_station zp_integrity_stations[] = {
    {ZP_AT_WRITTEN, ZP_EACH_MICRO_STEP, zp_integrity_collects, zp_integrity_before_sum, NULL},
    {ZP_AT_COLLECT, ZP_EACH_MICRO_STEP, zp_integrity_collects, zp_integrity_after_collect, NULL},
    {ZP_AT_CHANGE, ZP_EACH_REDUCTION, zp_integrity_adds, zp_integrity_before_sum, NULL},
    {ZP_AT_WHOLE, ZP_EACH_REDUCTION, zp_integrity_is_on, zp_integrity_after_reduction, NULL},
    {ZP_AT_CHANGE, ZP_EACH_GATHER, zp_integrity_is_on, zp_integrity_before_gather, NULL},
    {ZP_AT_ISSUE, ZP_EACH_GATHER, zp_integrity_is_on, zp_integrity_after_gather, NULL},
    {ZP_AT_PASSED, ZP_EACH_AGREEMENT, zp_integrity_is_on, NULL, zp_integrity_before_agreement},
    {ZP_AT_AGREE, ZP_EACH_AGREEMENT, zp_integrity_is_on, NULL, zp_integrity_after_agreement},
    {ZP_AT_EVALUATIONS, ZP_EACH_STEP, zp_integrity_is_on, NULL, zp_integrity_wait},
    {ZP_AT_FIRST_PASS, ZP_EACH_STEP, zp_integrity_two_passes, zp_integrity_before_update, NULL},
    {ZP_AT_LAST_PASS, ZP_EACH_STEP, zp_integrity_one_pass, zp_integrity_before_update, NULL},
    {ZP_AT_UPDATE, ZP_EACH_STEP, zp_integrity_is_on, zp_integrity_after_update, NULL},
    ZP_LAST_STATION};
static const zp_setting zp_integrity_settings[] = {
    {ZP_SETTING(integrity), ZP_SIGNED, 0, 1, 0, 0},
    ZP_LAST_SETTING,
};
static zp_extra zp_integrity_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "integrity";
    x.state_bytes = sizeof(zp_integrity_state);
    x.state_at = offsetof(zero_ctx, integrity);
    x.settings = zp_integrity_settings;
    x.stations = zp_integrity_stations;
    x.call[ZP_ON_CHECK] = zp_integrity_check;
    x.call[ZP_ON_LAYOUT] = zp_integrity_layout;
    x.call[ZP_ON_PLAN] = zp_integrity_plan;
    x.call[ZP_ON_BUILD] = zp_integrity_open;
    x.call[ZP_ON_STATE_BEGIN] = zp_integrity_check_state;
    x.call[ZP_ON_STATE_END] = zp_integrity_renew;
    x.call[ZP_ON_DESTROY] = zp_integrity_close;
    x.wrote = zp_integrity_wrote;
    return x;
}
