/* kernels_cuda.h - the GPU's kernels for the norm, the verdicts and the sum, with the bits of the
   CPU's loops; a part of kernels.h */
#pragma once

ZP_LOOP(zp_kernel_norm, zp_kernel_norm_args, 64)
ZP_LOOP(zp_kernel_fold, zp_kernel_fold_args, 1)
ZP_LOOP(zp_kernel_combine_verdicts, zp_kernel_combine_verdicts_args, 1)

/* Eight threads, a team, sum a block of the norm. They load eight rows, ZP_WIDE neighbours each,
   and end with the sum of a row each, which is in the thread's lane. */
#define ZP_NORM_TEAM  ZP_NORM_LANES
#define ZP_NORM_TEAMS (ZP_THREADS / ZP_NORM_TEAM)
static_assert(ZP_NORM_TEAM * ZP_WIDE == ZP_NORM_ROW, "a team loads a row at once");
static_assert(ZP_NORM_BLOCK % (ZP_NORM_ROW * ZP_NORM_TEAM) == 0, "a block has whole loads");
static_assert(ZP_NORM_TEAMS == ZP_FOLD_GROUP, "a thread block takes the lanes of one group");
/* A function of its own, so that the loop has few f64 instructions. */
__attribute__((noinline)) static __device__ double zp_kernel_norm_wide(const zp_kernel_norm_args *a,
                                                                       size_t i, size_t end) {
    return zp_kernel_norm_add_wide(a->g, a->type, i, end);
}
/* Takes the sums of a thread's neighbours in each row, and returns that of row `me`. At each step
   two threads add their sums, and each keeps every other row. All threads of a warp call it. */
static __device__ __forceinline__ float zp_kernel_norm_exchange(float *sum, size_t me) {
    for (size_t w = 1, rows = ZP_NORM_TEAM / 2; rows; w *= 2, rows /= 2)
        for (size_t r = 0; r < rows; r++) {
            const float keep = me & w ? sum[2 * r + 1] : sum[2 * r];
            const float send = me & w ? sum[2 * r] : sum[2 * r + 1];
            sum[r] = keep + __shfl_xor_sync(0xFFFFFFFFu, send, (int)w);
        }
    return sum[0];
}
/* Returns 1 if row `me` has an element that is not zero. */
static __device__ __forceinline__ int zp_kernel_norm_has_any(const uint4 *words, zero_type type,
                                                             size_t me) {
    uint32_t some = 0; /* a bit for each row */
    for (size_t r = 0; r < ZP_NORM_TEAM; r++) {
        const uint32_t any = words[r].x | words[r].y | words[r].z | words[r].w;
        some |= (uint32_t)(any << (type == ZERO_F32 ? 1 : 17) != 0) << r; /* without signs */
    }
    for (int w = 1; w < (int)ZP_NORM_TEAM; w *= 2) some |= __shfl_xor_sync(0xFFFFFFFFu, some, w);
    return some >> me & 1;
}
static __device__ __forceinline__ void zp_kernel_norm_team(const zp_kernel_norm_args *a,
                                                           size_t block, size_t blocks) {
    const size_t me = threadIdx.x % ZP_NORM_TEAM, first = block * ZP_NORM_BLOCK;
    const size_t left = block < blocks ? a->numel - first : 0;
    const size_t n = left < ZP_NORM_BLOCK ? left : ZP_NORM_BLOCK;
    double lane = 0;
    for (size_t at = 0; at < ZP_NORM_BLOCK; at += ZP_NORM_ROW * ZP_NORM_TEAM) {
        uint4 words[ZP_NORM_TEAM];
        float sum[ZP_NORM_TEAM];
        for (size_t r = 0; r < ZP_NORM_TEAM; r++) {
            const size_t i = at + r * ZP_NORM_ROW;
            words[r] = i < n ? zp_type_load_words(a->g, a->type, first + i + me * ZP_WIDE)
                             : make_uint4(0, 0, 0, 0);
        }
        for (size_t r = 0; r < ZP_NORM_TEAM; r++) {
            float g[ZP_WIDE];
            zp_type_unpack_words(g, words[r], a->type);
            sum[r] = zp_kernel_norm_add_four(g);
        }
        const float row = zp_kernel_norm_exchange(sum, me);
        const int held = zp_kernel_norm_is_held(row);
        double add = (double)row;
        if (!__all_sync(0xFFFFFFFFu, held) && zp_kernel_norm_has_any(words, a->type, me) && !held) {
            const size_t i = first + at + me * ZP_NORM_ROW;
            add = zp_kernel_norm_wide(a, i, i + ZP_NORM_ROW);
        }
        lane += add;
    }
    for (int w = (int)ZP_NORM_TEAM / 2; w; w /= 2) lane += __shfl_xor_sync(0xFFFFFFFFu, lane, w);
    if (me == 0 && n) a->partial[block] = lane;
}

/* Counts the thread blocks that have ended a part of the work. Returns 1 in all threads of the
   `of`th, which then sees what the others wrote, and clears the count for the next launch. */
static __device__ __forceinline__ int zp_kernel_is_last(unsigned *ended, unsigned of) {
    __shared__ int last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(ended, 1u) + 1 == of;
        if (last) *ended = 0;
    }
    __syncthreads();
    __threadfence();
    return last;
}

/* A thread block adds the blocks of each lane of a group, in order. All threads load; the threads
   of one warp have a lane each, and add. */
#define ZP_FOLD_ROWS  ((size_t)64) /* blocks of a lane that are loaded at once */
#define ZP_FOLD_BATCH ((size_t)16) /* of these in registers */
static __device__ __forceinline__ void zp_kernel_fold_group(const zp_kernel_fold_args *a,
                                                            size_t group, size_t blocks) {
    __shared__ double rows[ZP_FOLD_ROWS][ZP_FOLD_GROUP];
    const size_t me = threadIdx.x % ZP_FOLD_GROUP, warp = threadIdx.x / ZP_FOLD_GROUP;
    const size_t lane = group * ZP_FOLD_GROUP + me, warps = ZP_THREADS / ZP_FOLD_GROUP;
    size_t bad = (size_t)-1;
    double sum = 0;
    for (size_t first = lane; first - me < blocks; first += ZP_FOLD_ROWS * ZP_FOLD_LANES) {
        __syncthreads();
        for (size_t k = 0; k < ZP_FOLD_ROWS / warps; k++) {
            const size_t row = k * warps + warp, block = first + row * ZP_FOLD_LANES;
            rows[row][me] = block < blocks ? a->norm.partial[block] : 0;
        }
        __syncthreads();
        for (size_t row = 0; row < ZP_FOLD_ROWS && warp == 0; row += ZP_FOLD_BATCH) {
            double partial[ZP_FOLD_BATCH];
            if (first - me + row * ZP_FOLD_LANES >= blocks) break;
            for (size_t k = 0; k < ZP_FOLD_BATCH; k++) partial[k] = rows[row + k][me];
            for (size_t k = 0; k < ZP_FOLD_BATCH; k++)
                zp_kernel_fold_add(&sum, &bad, partial[k], first + (row + k) * ZP_FOLD_LANES);
        }
    }
    if (warp > 0) return;
    a->fold->lane[lane] = sum;
    a->fold->bad[lane] = bad;
}
/* A thread block adds all lanes, and closes the fold. Other groups than the first `groups` have no
   blocks. */
static __device__ __forceinline__ void zp_kernel_fold_lanes(const zp_kernel_fold_args *a,
                                                            size_t groups) {
    __shared__ double lane[ZP_FOLD_LANES];
    __shared__ size_t bad[ZP_FOLD_LANES];
    const size_t me = threadIdx.x;
    const int has = me < groups * ZP_FOLD_GROUP;
    lane[me] = has ? a->fold->lane[me] : 0;
    bad[me] = has ? a->fold->bad[me] : (size_t)-1;
    for (size_t w = ZP_FOLD_LANES / 2; w; w /= 2) {
        __syncthreads();
        if (me >= w) continue;
        lane[me] += lane[me + w];
        if (bad[me + w] < bad[me]) bad[me] = bad[me + w];
    }
    if (me == 0) zp_kernel_fold_close(a, lane[0], bad[0]);
}
static_assert(ZP_THREADS == ZP_FOLD_LANES, "a thread takes a lane");

/* Computes the norm and its fold in one launch. The blocks of a thread block are in the lanes of
   one group, because the grid has whole groups, or one thread block for each group that has blocks.
   The last thread block of a group adds up the group's lanes, and the last of these thread blocks
   adds up all lanes. */
__global__ void __launch_bounds__(ZP_THREADS, 4)
    zp_kernel_squares_teams(zp_kernel_fold_args a, size_t blocks) {
    const unsigned groups = gridDim.x < ZP_FOLD_GROUPS ? gridDim.x : (unsigned)ZP_FOLD_GROUPS;
    const unsigned group = blockIdx.x % groups;
    for (size_t at = blockIdx.x * ZP_NORM_TEAMS; at < blocks; at += gridDim.x * ZP_NORM_TEAMS)
        zp_kernel_norm_team(&a.norm, at + threadIdx.x / ZP_NORM_TEAM, blocks);
    if (!zp_kernel_is_last(&a.fold->ended[group], gridDim.x / groups)) return;
    zp_kernel_fold_group(&a, group, blocks);
    if (zp_kernel_is_last(&a.fold->ended[ZP_FOLD_GROUPS], groups)) zp_kernel_fold_lanes(&a, groups);
}
static unsigned zp_kernel_squares_grid(size_t blocks) {
    const size_t needed = (blocks + ZP_NORM_TEAMS - 1) / ZP_NORM_TEAMS;
    return (unsigned)(needed <= ZP_FOLD_GROUPS ? needed
                                               : zp_min(zp_round_up(needed, ZP_FOLD_GROUPS), 4096));
}
ZP_KERNEL_CALL(zp_kernel_squares, zp_kernel_squares_teams, zp_kernel_fold_args,
               zp_kernel_squares_grid(n))
static zero_result zp_kernel_take_squares(zp_stream *s, const zp_kernel_fold_args *a) {
    return zp_kernel_squares(s, a, zp_kernel_norm_blocks(&a->norm));
}

/* One thread block. Its threads read the verdicts at the same time; the first thread adds the terms
   in the order of the loop. */
__global__ void __launch_bounds__(ZP_THREADS)
    zp_kernel_combine_verdicts_block(zp_kernel_combine_verdicts_args a, size_t one) {
    __shared__ double term[ZP_THREADS];
    __shared__ int differs[ZP_THREADS], bad[ZP_THREADS];
    const int me = (int)threadIdx.x, terms = a.units + a.nranks;
    double sum = 0;
    for (int first = 0; first < terms; first += ZP_THREADS) {
        const int here = terms - first < ZP_THREADS ? terms - first : ZP_THREADS;
        if (me < here) term[me] = zp_kernel_verdict_term(&a, first + me);
        __syncthreads();
        for (int j = 0; j < here && me == 0; j++) sum += term[j];
        __syncthreads();
    }
    differs[me] = bad[me] = a.nranks;
    for (int k = me; k < a.nranks; k += ZP_THREADS) {
        const int rank = zp_kernel_verdict_rank(&a, k);
        if (differs[me] == a.nranks && zp_kernel_differing_word(&a, rank)) differs[me] = k;
        bad[me] = zp_kernel_lower_bad(&a, bad[me], k);
    }
    for (int w = ZP_THREADS / 2; w; w /= 2) {
        __syncthreads();
        if (me >= w) continue;
        differs[me] = differs[me + w] < differs[me] ? differs[me + w] : differs[me];
        bad[me] = zp_kernel_lower_bad(&a, bad[me], bad[me + w]);
    }
    if (me == 0) zp_kernel_close_verdicts(&a, sum, differs[0], bad[0]);
}
ZP_KERNEL_CALL(zp_kernel_combine_verdicts, zp_kernel_combine_verdicts_block,
               zp_kernel_combine_verdicts_args, 1)

/* Sums ZP_WIDE elements. */
ZP_FN void zp_kernel_sum_ranks_at(const zp_sum *s, size_t at) {
    float total[ZP_WIDE] = {0}, node[ZP_WIDE] = {0}, x[ZP_WIDE];
    const size_t i = at * ZP_WIDE;
    for (int p = 0; p < s->n; p++) {
        zp_type_load_wide(x, s->source[p], s->type, i);
        zp_kernel_sum_add_wide(s, p, x, total, node);
    }
    zp_kernel_sum_store_wide(s, i, total);
}
ZP_UNUSED static void zp_kernel_sum_ranks_loop(const void *sum, size_t n, int threads) {
    zp_kernel_sum_slices((const zp_sum *)sum, n * ZP_WIDE, threads);
}
ZP_GRID(zp_kernel_sum_ranks, zp_sum)
