/* check.h - a checked build reports misuse by your code

   A build with -DZERO_CHECK=1 reports misuse at the call that is wrong, or faults at the access. It
   is slower. In other builds the row has no functions.

   SHADOWS. A begin hook hands out copies of the unit's tensors. Guard pages surround each copy, and
   the end hook makes the copy itself inaccessible. So a pointer that your code kept faults when it
   is used, and so does a tensor of another layer that is not KEEP. Parameters are read-only. On the
   GPU, copies and guards are filled with NaN instead. If your code uses a unit many times in a
   pass, the plugin locks the first two uses and the last, counted in the pass before.

   HASHES. The plugin hashes parameters after it writes them, and compares when a pass begins. When
   the pass ends it compares KEEP tensors, which your code could write.

   HOOKS. At the end of a pass the ranks compare the hooks that they called. */
#pragma once

#include "../core/plan.h"
#include "../core/observe.h"
#include "../core/extra.h"
#include "places.h"

#include <malloc.h>

/* The copy of a tensor that your code uses. The space around it is as large as all its layers. */
typedef struct zp_shadow {
    char *map, *data;
    size_t mapped, guard, body, bytes;
    int stays;       /* its unit is kept unsharded: the pages of the copy are kept */
    int unlocked;    /* not locked yet, because the pass uses it again */
    uint64_t copied; /* value of checks.writes at the copy */
} zp_shadow;

typedef struct zp_check_state {
    zp_shadow *shadow;  /* by member, then side, then place */
    uint64_t *hash;     /* by member: hash of the parameters */
    int has_hashes;     /* 1: the hashes are valid */
    uint64_t writes;    /* how often the plugin wrote parameters */
    int *forwards;      /* by unit: forwards before the first backward of this pass */
    int *uses;          /* by unit, then side: uses that have ended in this pass, */
    int *expected;      /* and in the pass before */
    int *place;         /* by unit, then side: the place (0 or 1) that your code uses */
    unsigned passes[2]; /* number so far of ZERO_TRAIN, of ZERO_EVAL */
    uint64_t *written;  /* by member: hash of your array that the plugin has written */
    int backwards;      /* backward hooks so far in this pass */
    uint32_t *hook;     /* [nhooks] hooks of this pass: kind and unit */
    int nhooks, hooks_cap;
} zp_check_state;

static const char *const zp_check_hook_names[] = {"forward_begin", "forward_end", "backward_begin",
                                                  "backward_end"};

/* Returns the bytes from `array` to the end of its allocation, or SIZE_MAX if they are unknown.
   They are known if `release` is free, or, with CUDA, if the driver knows the address. */
static size_t zp_check_array_room(char *array, void (*release)(void *array)) {
#if ZERO_CHECK && defined(__GLIBC__)
    if (release == free) return malloc_usable_size(array);
#endif
#if ZERO_CHECK && defined(__CUDACC__)
    typedef int (*range_fn)(unsigned long long *base, size_t *bytes, unsigned long long at);
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    const range_fn range = driver ? (range_fn)dlsym(driver, "cuMemGetAddressRange_v2") : NULL;
    unsigned long long base = 0, at = (unsigned long long)(uintptr_t)array;
    size_t bytes = 0;
    const int known = range && !range(&base, &bytes, at);
    if (driver) (void)dlclose(driver);
    if (known) return (size_t)(base + bytes - at);
#endif
    return SIZE_MAX;
}

#ifdef __CUDACC__
static zero_result zp_check_make_shadow(zp_device *d, zp_shadow *s) {
    s->map = (char *)zp_device_alloc(d, s->mapped);
    s->data = s->map + s->guard;
    return s->map ? ZERO_OK : ZERO_ERR_MEMORY;
}
static void zp_check_free_shadow(zp_shadow *s) { zp_device_free(s->map); }
static zero_result zp_check_lock_shadow(zp_stream *s, zp_shadow *x) {
    ZP_CUDA(s->device, cudaMemsetAsync(x->map, 0xFF, x->mapped, s->cuda)); /* NaN in every type */
    return ZERO_OK;
}
static zero_result zp_check_unlock_shadow(zp_shadow *x, int writes) { return ZERO_OK; }
#else
static zero_result zp_check_make_shadow(zp_device *d, zp_shadow *s) {
    void *p = mmap(NULL, s->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return ZERO_ERR_MEMORY;
    s->map = (char *)p;
    s->data = s->map + s->guard + s->body - zp_round_up(s->bytes, 64); /* ends at the guard */
    return ZERO_OK;
}
static void zp_check_free_shadow(zp_shadow *s) {
    if (s->map) (void)munmap(s->map, s->mapped);
}
static zero_result zp_check_lock_shadow(zp_stream *s, zp_shadow *x) {
    if (!x->stays) (void)madvise(x->map + x->guard, x->body, MADV_DONTNEED);
    return mprotect(x->map + x->guard, x->body, PROT_NONE) ? ZERO_ERR_MEMORY : ZERO_OK;
}
static zero_result zp_check_unlock_shadow(zp_shadow *x, int writes) {
    const int how = writes ? PROT_READ | PROT_WRITE : PROT_READ;
    if (mprotect(x->map + x->guard, x->body, how)) return ZERO_ERR_MEMORY;
    if (writes) memset(x->data + x->bytes, 0xFF, zp_round_up(x->bytes, 64) - x->bytes); /* NaN */
    return ZERO_OK;
}
#endif

/* Returns the copy of a member that your code gets, or NULL if it gets the member itself. */
static zp_shadow *zp_check_shadow_of(const zero_ctx *z, zp_side side, const zp_member *m) {
    const int unit = zp_layout_unit_of(&z->layout, m->unit);
    if (unit == z->layout.units) return NULL; /* KEEP */
    const int place = z->checks->place[2 * unit + (int)side];
    return &z->checks->shadow[4 * (m - z->layout.members) + 2 * side + place];
}

static zero_result zp_check_open(zero_ctx *z) {
    zp_check_state *c = z->checks;
    const size_t n = (size_t)z->layout.nmembers;
    c->shadow = (zp_shadow *)calloc(4 * n, sizeof *c->shadow);
    c->hash = (uint64_t *)calloc(n, sizeof *c->hash);
    c->forwards = (int *)calloc((size_t)z->layout.all, 7 * sizeof *c->forwards);
    c->written = (uint64_t *)calloc(n, sizeof *c->written);
    if (!c->shadow || !c->hash || !c->forwards || !c->written) return ZERO_ERR_MEMORY;
    c->uses = c->forwards + z->layout.all;
    c->expected = c->uses + 2 * (size_t)z->layout.all;
    c->place = c->expected + 2 * (size_t)z->layout.all;
    c->writes = 1; /* no shadow is up to date yet */
    for (size_t i = 0; i < 4 * n; i++) {
        const zp_member *m = &z->layout.members[i / 4];
        const zp_side side = (zp_side)(i / 2 % 2);
        zp_shadow *s = &c->shadow[i];
        if (zp_layout_unit_of(&z->layout, m->unit) == z->layout.units) continue; /* KEEP */
        if (side == ZP_GRAD && m->unit >= z->layout.all) continue;               /* frozen */
        s->bytes = m->numel * zp_type_bytes(z->array[side].type);
        s->body = zp_round_up(s->bytes, 4096);
        s->guard = zp_round_up((size_t)z->tensors[m->tensor].desc.layers * s->bytes, 4096);
        s->mapped = 2 * s->guard + s->body;
        s->stays = zp_device_is_host() && zp_ctx_unit_is_whole(z, side, m->unit);
        ZP_TRY(zp_check_make_shadow(&z->device, s));
        ZP_TRY(zp_check_lock_shadow(&z->compute, s));
    }
    return ZERO_OK;
}

static zero_result zp_check_close(zero_ctx *z) {
    zp_check_state *c = z->checks;
    for (int i = 0; c->shadow && i < 4 * z->layout.nmembers; i++)
        zp_check_free_shadow(&c->shadow[i]);
    free(c->shadow);
    free(c->hash);
    free(c->written);
    free(c->forwards);
    free(c->hook);
    return ZERO_OK;
}

static zero_result zp_check_show_shadow(zero_ctx *z, zp_side side, zp_shadow *s, const char *at) {
    const int current = side == ZP_GRAD ? s->unlocked : s->copied == z->checks->writes;
    const int known = current && (s->unlocked || s->stays), reads = side == ZP_PARAM;
    if (!known) ZP_DO(z, zp_check_unlock_shadow(s, 1));
    if (!known) ZP_DO(z, zp_device_copy(&z->compute, s->data, at, s->bytes));
    if (reads && !(known && s->unlocked)) ZP_DO(z, zp_check_unlock_shadow(s, 0));
    s->copied = z->checks->writes;
    s->unlocked = 0;
    return ZERO_OK;
}

/* Copies a segment to its shadows when a hook begins, or gradients back when it ends. */
static zero_result zp_check_move_segment(zero_ctx *z, int u, zp_side side, int opens, int locks) {
    char *memory = zp_ctx_unit_memory(z, side, u);
    const zp_unit *x = &z->layout.unit[u];
    for (int i = 0; i < x->members; i++) {
        const zp_member *m = &x->member[i];
        zp_shadow *s = zp_check_shadow_of(z, side, m);
        char *at = memory + m->at * zp_type_bytes(z->array[side].type);
        if (opens) {
            ZP_TRY(zp_check_show_shadow(z, side, s, at));
            continue;
        }
        if (side == ZP_GRAD) ZP_DO(z, zp_device_copy(&z->compute, at, s->data, s->bytes));
        if (locks) ZP_DO(z, zp_check_lock_shadow(&z->compute, s));
        s->unlocked = !locks;
    }
    return ZERO_OK;
}

/* Does that for the segments of a unit that the side has. */
static zero_result zp_check_move_unit(zero_ctx *z, int u, zp_side side, int opens) {
    const int segments = side == ZP_GRAD ? z->layout.all : z->layout.segments;
    const int first =
        z->layout.unit[u].members || u + z->layout.all >= segments ? u : u + z->layout.all;
    const zp_unit *x = &z->layout.unit[first];
    int *uses = &z->checks->uses[2 * u + (int)side];
    const int locks = *uses < 2 || *uses + 1 >= z->checks->expected[2 * u + (int)side];
    *uses += !opens;
    if (opens && x->members && !zp_check_shadow_of(z, side, x->member)->unlocked)
        z->checks->place[2 * u + (int)side] ^= 1;
    for (int s = u; s < segments; s += z->layout.all)
        ZP_TRY(zp_check_move_segment(z, s, side, opens, locks));
    return ZERO_OK;
}

/* Locks n shadows, except those that a hook shows or that are locked already. */
static zero_result zp_check_lock_some(zero_ctx *z, zp_shadow *s, int n) {
    for (int i = 0; i < n; i++) {
        if (s[i].unlocked) ZP_DO(z, zp_check_lock_shadow(&z->compute, &s[i]));
        s[i].unlocked = 0;
    }
    return ZERO_OK;
}

/* Unit u's gradients were cleared: their shadows are out of date and get locked. */
static zero_result zp_check_note_cleared(zero_ctx *z, int u) {
    const zp_unit *x = &z->layout.unit[u];
    for (int i = 0; u < z->layout.units && i < x->members; i++)
        ZP_TRY(zp_check_lock_some(z, zp_check_shadow_of(z, ZP_GRAD, &x->member[i]), 1));
    return ZERO_OK;
}

/* Locks every shadow that no hook shows. */
static zero_result zp_check_lock_all(zero_ctx *z) {
    return zp_check_lock_some(z, z->checks->shadow, 4 * z->layout.nmembers);
}

/* Hashes the part of a member that this rank keeps. SYNC. */
static zero_result zp_check_hash_member(zero_ctx *z, const zp_member *m, uint64_t *hash) {
    zp_array *a = zp_ctx_weights(z, m->unit);
    const zp_array_part *part = &a->part[m->unit];
    const int seen = part->share == ZP_SEEN; /* a rank writes only its own shard */
    const size_t first = seen ? zp_ctx_shard_first(z, m->unit) : part->first;
    const size_t begin = zp_max(first, m->at);
    const size_t end =
        zp_min(first + (seen ? zp_ctx_shard(z, m->unit) : part->numel), m->at + m->numel);
    char *stage = z->data->stage.base;
    *hash = ZP_HASH_EMPTY;
    for (size_t at = begin, n; at < end; at += n) {
        char *from;
        n = zp_min(ZP_STAGE_NUMEL, end - at);
        ZP_TRY(zp_array_open(a, m->unit, at, &n, &z->compute, &from));
        const size_t bytes = n * zp_type_bytes(a->type);
        ZP_TRY(zp_device_copy(&z->compute, stage, from, bytes));
        ZP_TRY(zp_array_close(a, m->unit, at, &z->compute, 0));
        ZP_TRY(zp_device_sync_stream(&z->compute));
        for (size_t i = 0; i < bytes; i += 2) {
            uint16_t two;
            memcpy(&two, stage + i, sizeof two);
            *hash = zp_hash(*hash, two);
        }
    }
    return ZERO_OK;
}

/* Stores the hashes of all parameters, or compares them: of all tensors, or of KEEP tensors. */
typedef enum zp_check_hash_task {
    ZP_HASH_STORE,
    ZP_HASH_COMPARE_ALL,
    ZP_HASH_COMPARE_KEEP
} zp_check_hash_task;
static zero_result zp_check_hash_parameters(zero_ctx *z, zp_check_hash_task what) {
    const int compares = what != ZP_HASH_STORE;
    if (compares && !z->checks->has_hashes) return ZERO_OK;
    z->checks->writes += !compares;
    if (what != ZP_HASH_COMPARE_KEEP) ZP_DO(z, zp_extra_sync(z)); /* no update inside a pass */
    for (int m = 0; m < z->layout.nmembers; m++) {
        const zp_member *x = &z->layout.members[m];
        uint64_t hash;
        if (what == ZP_HASH_COMPARE_KEEP
            && zp_layout_unit_of(&z->layout, x->unit) != z->layout.units)
            continue;
        ZP_DO(z, zp_check_hash_member(z, x, &hash));
        ZP_UNTIMELY(
            z, compares && hash != z->checks->hash[m],
            "tensor %s, layer %d, was written %s; change parameters only by the plugin's update "
            "and by zero_write_tensor",
            z->tensors[x->tensor].desc.name, x->layer,
            what == ZP_HASH_COMPARE_KEEP ? "inside the pass (by an optimizer of your own?)"
                                         : "since the plugin wrote it last");
        z->checks->hash[m] = hash;
    }
    z->checks->has_hashes = 1;
    return ZERO_OK;
}

/* Checks, when a pass begins, that every tensor has a pointer and that parameters are unchanged. */
static zero_result zp_check_begin_pass(zero_ctx *z, zero_pass kind) {
    for (int t = 0; t < z->ntensors; t++) {
        const zero_tensor_desc *d = &z->tensors[t].desc;
        ZP_UNTIMELY(z, (d->flags & ZERO_KEEP) && !(d->flags & ZERO_BY_SLOT) && !z->bound,
                    "tensor %s is KEEP, and has no pointer; call zero_bind first", d->name);
        for (int l = 0; l < d->layers && (d->flags & ZERO_BY_SLOT); l++) {
            ZP_UNTIMELY(z, !zp_place_next_slot(z, t, l, NULL),
                        "tensor %s, layer %d, has no pointer; set .param or .grad", d->name, l);
        }
    }
    const size_t units = (size_t)z->layout.all;
    memcpy(z->checks->expected, z->checks->uses, 2 * units * sizeof *z->checks->uses);
    memset(z->checks->forwards, 0, 3 * units * sizeof *z->checks->forwards); /* and uses */
    const int place = z->checks->passes[kind]++ % 2;
    for (size_t i = 0; i < 2 * units; i++) z->checks->place[i] = place;
    z->checks->nhooks = z->checks->backwards = 0;
    return zp_check_hash_parameters(z, ZP_HASH_COMPARE_ALL);
}

/* Notes each hook after the core has allowed it, and checks the number of uses. */
static zero_result zp_check_note_hook(zero_ctx *z, uint32_t which, int unit) {
    zp_check_state *c = z->checks;
    const zp_live *live = &z->live[unit];
    const int outermost = !live->forward_opens && !live->backward_opens;
    const int most = z->layout.unit[unit].forwards * z->pass_micro_steps;
    c->forwards[unit] +=
        which == ZP_HOOK_FORWARD && outermost && !c->backwards; /* not when recomputed */
    ZP_UNTIMELY(
        z, which == ZP_HOOK_FORWARD && z->pass == ZERO_TRAIN && c->forwards[unit] > most,
        "unit %d: forward number %d of this pass, but its tensors announce %d uses; raise .uses",
        unit, c->forwards[unit], most);
    ZP_UNTIMELY(z, which == ZP_HOOK_BACKWARD && !c->forwards[unit] && !z->pointers_stay,
                "unit %d: backward comes before forward; call zero_forward_begin first", unit);
    if (which == ZP_HOOK_BACKWARD && !c->backwards++) ZP_TRY(zp_check_lock_all(z));
    uint32_t *list = (uint32_t *)zp_list_grow(c->hook, c->nhooks, &c->hooks_cap, sizeof *list);
    if (!list) return zp_ctx_fail(z, ZERO_ERR_MEMORY, "the list of hooks");
    c->hook = list;
    c->hook[c->nhooks++] = which << 24 | (uint32_t)unit;
    return ZERO_OK;
}

static const char *zp_check_hook_name(uint32_t hook, char *text, size_t bytes) {
    if (hook == UINT32_MAX)
        (void)snprintf(text, bytes, "ended the pass");
    else
        (void)snprintf(text, bytes, "called %s of unit %u", zp_check_hook_names[hook >> 24],
                       hook & 0xFFFFFFu);
    return text;
}

/* Compares the hooks of all ranks; each rank reports the first difference. COLLECTIVE. */
static zero_result zp_check_compare_hooks(zero_ctx *z) {
    enum { PIECE = ZP_MAIL_BYTES / sizeof(uint32_t) };
    uint32_t mine[PIECE], other[PIECE], zeroth[PIECE];
    char a[64], b[64];
    int ends = 0;
    for (int at = 0; !ends; at += PIECE) {
        for (int i = 0; i < PIECE; i++)
            mine[i] = at + i < z->checks->nhooks ? z->checks->hook[at + i] : UINT32_MAX;
        ZP_DO(z, zp_comm_exchange(z->all, mine, sizeof mine));
        memcpy(zeroth, z->all->mail, sizeof zeroth);
        const int r = zp_agree_first_difference(z->all, sizeof other);
        memcpy(other, z->all->mail + (size_t)r * sizeof other, sizeof other);
        for (int i = 0; i < PIECE; i++) {
            if (other[i] != zeroth[i])
                return z->dead = zp_ctx_fail(
                           z, ZERO_ERR_MISMATCH,
                           "hook %d of the pass: rank 0 %s, rank %d %s: all ranks must call "
                           "the same hooks in the same order",
                           at + i, zp_check_hook_name(zeroth[i], a, sizeof a), r,
                           zp_check_hook_name(other[i], b, sizeof b));
        }
        ends = zeroth[PIECE - 1] == UINT32_MAX;
    }
    return ZERO_OK;
}

/* ---- the row ---- */

static zero_result zp_check_end_pass(zero_ctx *z) {
    ZP_TRY(zp_check_lock_all(z));
    ZP_TRY(zp_check_compare_hooks(z));
    return zp_check_hash_parameters(z, ZP_HASH_COMPARE_KEEP);
}
static zero_result zp_check_store_hashes(zero_ctx *z) {
    return zp_check_hash_parameters(z, ZP_HASH_STORE);
}
static char *zp_check_place(const zero_ctx *z, zp_side side, const zp_member *m) {
    const zp_shadow *shadow = zp_check_shadow_of(z, side, m);
    return shadow ? shadow->data : NULL;
}
static uint64_t *zp_check_written(const zero_ctx *z, const zp_member *m) {
    return &z->checks->written[m - z->layout.members];
}
static const zp_observer zp_check_observer = {
    zp_check_begin_pass, zp_check_end_pass,     zp_check_note_hook,
    zp_check_move_unit,  zp_check_note_cleared, zp_check_store_hashes,
    zp_check_place,      zp_check_written,      zp_check_array_room};
static zero_result zp_check_row_open(zero_ctx *z) {
    z->observer = &zp_check_observer;
    return zp_ctx_check(z, zp_check_open(z));
}
static zp_extra zp_check_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "check";
    x.state_bytes = ZERO_CHECK ? sizeof(zp_check_state) : 0;
    x.state_at = offsetof(zero_ctx, checks);
    x.call[ZP_ON_BUILD] = ZERO_CHECK ? zp_check_row_open : NULL;
    x.call[ZP_ON_DESTROY] = ZERO_CHECK ? zp_check_close : NULL;
    return x;
}
