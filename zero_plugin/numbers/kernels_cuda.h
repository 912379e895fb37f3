/* kernels_cuda.h - the GPU's kernels for the norm and the fold, with the bits of the bodies; a part
   of kernels.h */
#pragma once

ZP_LOOP(zp_kernel_norm, zp_kernel_norm_args, 64)
ZP_LOOP(zp_kernel_fold, zp_kernel_fold_args, 1)

/* Eight threads take a block; each has ZP_WIDE neighbouring lanes. A square of an f32 is exact in
   f64, so fma rounds exactly as the sum does. */
#define ZP_NORM_TEAM  (ZP_LANES / ZP_WIDE)
#define ZP_NORM_BATCH ((size_t)4) /* loads of a thread in flight at once */
__global__ void __launch_bounds__(ZP_THREADS)
    zp_kernel_norm_teams(zp_kernel_norm_args a, size_t blocks) {
    const size_t me = threadIdx.x % ZP_NORM_TEAM, teams = ZP_THREADS / ZP_NORM_TEAM;
    for (size_t at = blockIdx.x * teams; at < blocks; at += gridDim.x * teams) {
        const size_t block = at + threadIdx.x / ZP_NORM_TEAM, first = block * ZP_NORM_BLOCK;
        const size_t left = block < blocks ? a.numel - first : 0;
        const size_t n = left < ZP_NORM_BLOCK ? left : ZP_NORM_BLOCK;
        double lane[ZP_WIDE] = {0};
        for (size_t i = me * ZP_WIDE; i < n; i += ZP_LANES * ZP_NORM_BATCH) {
            uint4 words[ZP_NORM_BATCH];
            for (size_t k = 0; k < ZP_NORM_BATCH; k++)
                words[k] = i + k * ZP_LANES < n
                               ? zp_type_load_words(a.g, a.type, first + i + k * ZP_LANES)
                               : make_uint4(0, 0, 0, 0);
            for (size_t k = 0; k < ZP_NORM_BATCH; k++) {
                float g[ZP_WIDE];
                zp_type_unpack_words(g, words[k], a.type);
                for (size_t j = 0; j < ZP_WIDE; j++)
                    lane[j] = fma((double)g[j], (double)g[j], lane[j]);
            }
        }
        for (int w = (int)ZP_NORM_TEAM / 2; w; w /= 2)
            for (size_t j = 0; j < ZP_WIDE; j++)
                lane[j] += __shfl_xor_sync(0xFFFFFFFFu, lane[j], w);
        if (me == 0 && n) a.partial[block] = zp_kernel_add_by_halves(lane, ZP_WIDE);
    }
}
ZP_KERNEL_CALL(zp_kernel_norm, zp_kernel_norm_teams, zp_kernel_norm_args,
               zp_device_grid(ZP_NORM_TEAM *n, 4096))

/* One block; each of its threads is a lane. */
__global__ void __launch_bounds__(ZP_THREADS)
    zp_kernel_fold_block(zp_kernel_fold_args a, size_t one) {
    __shared__ double lane[ZP_FOLD_LANES];
    __shared__ size_t bad[ZP_FOLD_LANES];
    const size_t me = threadIdx.x;
    bad[me] = (size_t)-1;
    lane[me] = zp_kernel_fold_lane(&a, me, &bad[me]);
    for (size_t w = ZP_FOLD_LANES / 2; w; w /= 2) {
        __syncthreads();
        if (me >= w) continue;
        lane[me] += lane[me + w];
        if (bad[me + w] < bad[me]) bad[me] = bad[me + w];
    }
    if (me == 0) zp_kernel_fold_close(&a, lane[0], bad[0]);
}
static_assert(ZP_THREADS == ZP_FOLD_LANES, "a thread takes a lane");
ZP_KERNEL_CALL(zp_kernel_fold, zp_kernel_fold_block, zp_kernel_fold_args, 1)

ZP_GRID(zp_kernel_sum_ranks, zp_sum)
