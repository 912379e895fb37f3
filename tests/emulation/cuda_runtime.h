/* cuda_runtime.h - CUDA on the CPU, for tests: .cu files are compiled as they are by a host
   compiler and run against an emulated runtime. Types and constants are those of the CUDA toolkit's
   own headers; no GPU, driver or CUDA library is needed.

   BUILD (the toolkit's headers lie in $(CUDA)/include)
     FLAGS = -std=c++17 -O2 -pthread -D__CUDACC__ -Itests/emulation -isystem $(CUDA)/include
     g++ $(FLAGS) -ffp-contract=off -x c++ -include cuda_runtime.h -c FILE.cu
     g++ $(FLAGS) -c tests/emulation/emulation.cc             (CUDA)
     g++ $(FLAGS) -c tests/emulation/emulation_nccl.cc        (NCCL, where it is used)
   The test's main sees what it can set and ask in emulation.h.

   WHAT A .cu FILE DOES FOR IT
     Every launch is a call of cudaLaunchKernel with the kernel itself, or goes through one macro,
     which is EMULATED_LAUNCH where that is defined:
       #ifdef EMULATED_LAUNCH
       #define OPS_LAUNCH EMULATED_LAUNCH
       #else
       #define OPS_LAUNCH(kernel, grid, block, shared, stream, ...) \
           kernel<<<grid, block, shared, stream>>>(__VA_ARGS__)
       #endif
     Shared memory is static arrays (__shared__ float x[N];) or one dynamic array that is declared
     by a macro, which is EMULATED_DYNAMIC_SHARED(type, name) here.

   WHAT IS EMULATED
     Kernels: blocks one after another; the threads of a block as fibers, in an order that
     emulation_thread_order chooses, up to their next barrier. __syncthreads and the warp's
     primitives wait for all threads that have not returned; threads at different barriers of
     which none can go on are an error. Shared memory begins as NaN in every block, and dynamic
   shared memory ends where the launch says: a thread that reads or writes beyond it faults.
     Graphs: a recorded stream runs nothing, a launch runs all tasks of its graph in their order.
     Streams, events, memory, host functions, devices: see emulation.cc. Device memory is host
     memory that begins as NaN. After emulation_hide the host faults when it touches it. */
#ifndef EMULATED_CUDA_RUNTIME_H
#define EMULATED_CUDA_RUNTIME_H

#undef __CUDACC__ /* the toolkit's headers as any host compiler reads them */
#include <cuda_runtime_api.h>
#include <vector_functions.h>
#define __CUDACC__ 1

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <tuple>
#include <type_traits>
#include <utility>

#undef __shared__
#undef __global__
#undef __launch_bounds__
#undef __forceinline__
/* One section holds all static shared memory, so that every block can begin with NaN there. */
#define __shared__ static __attribute__((section("emulated_shared")))
#define __global__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))

/* ---- kernels ------------------------------------------------------------------------------- */

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static const int warpSize = 32;

extern char *emulated_dynamic_shared;
#define EMULATED_DYNAMIC_SHARED(type, name)                                                        \
    type *const name = (type *)(void *)emulated_dynamic_shared

/* A launch on its way: call(args) is one thread's run. Lives until the kernel ends. */
struct emulated_kernel {
    const char *name;
    dim3 grid, block;
    size_t shared;
    const void *code; /* the kernel's address */
    virtual void call() = 0;
    virtual ~emulated_kernel() = default;
};
cudaError_t emulated_enqueue(emulated_kernel *kernel, cudaStream_t stream);

template <class... P> struct emulated_call : emulated_kernel {
    void (*function)(P...);
    std::tuple<std::decay_t<P>...> args;
    template <class... A>
    explicit emulated_call(void (*f)(P...), const A &...a) : function(f), args(a...) {}
    void call() override { std::apply(function, args); }
};

template <class... P, class... A>
void emulated_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                     cudaStream_t stream, const A &...args) {
    static_assert((std::is_trivially_copyable_v<std::decay_t<P>> && ...),
                  "a kernel's arguments are copied byte by byte");
    auto *k = new emulated_call<P...>(kernel, args...);
    k->name = name, k->grid = grid, k->block = block, k->shared = shared;
    k->code = (const void *)kernel;
    (void)emulated_enqueue(k, stream);
}
/* The launch that tells its own error; the kernel's type says what the arguments are. */
template <class... P, size_t... I>
emulated_kernel *emulated_unpack(void (*kernel)(P...), void **args, std::index_sequence<I...>) {
    return new emulated_call<P...>(kernel, *(std::decay_t<P> *)args[I]...);
}
template <class... P>
cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void **args,
                             size_t shared, cudaStream_t stream) {
    auto *k = emulated_unpack(kernel, args, std::index_sequence_for<P...>());
    k->name = "a kernel of cudaLaunchKernel", k->grid = grid, k->block = block, k->shared = shared;
    k->code = (const void *)kernel;
    return emulated_enqueue(k, stream);
}
#define EMULATED_LAUNCH(kernel, grid, block, shared, stream, ...)                                  \
    emulated_launch(#kernel, kernel, grid, block, shared, stream, ##__VA_ARGS__)

/* ---- inside a block ------------------------------------------------------------------------ */

void __syncthreads();
/* All lanes of the warp that have not returned give a value of at most 8 bytes; lane `from`'s comes
   back. The primitive and the mask must be the same on all lanes, and the mask must name exactly
   the lanes that take part. */
enum emulated_primitive { EMULATED_SYNC = 1, EMULATED_SHUFFLE, EMULATED_VOTE };
uint64_t emulated_warp(emulated_primitive what, unsigned mask, uint64_t value, int from);
unsigned emulated_warp_votes(unsigned mask, bool vote);

static inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) {
    (void)emulated_warp(EMULATED_SYNC, mask, 0, 0);
}
static inline int emulated_lane() {
    const unsigned row = threadIdx.y + threadIdx.z * blockDim.y;
    return (int)((threadIdx.x + row * blockDim.x) % 32u);
}
template <class T> T emulated_shuffle(unsigned mask, T value, int from) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>, "one or two registers");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = emulated_warp(EMULATED_SHUFFLE, mask, bits, from);
    memcpy(&value, &bits, sizeof value);
    return value;
}
/* Lanes shuffle within groups of `width`; a lane outside the group gives one's own value. */
template <class T> T __shfl_sync(unsigned mask, T v, int lane, int width = 32) {
    const int me = emulated_lane();
    return emulated_shuffle(mask, v, (me & ~(width - 1)) | (lane & (width - 1)));
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int with, int width = 32) {
    const int me = emulated_lane(), from = me ^ with;
    return emulated_shuffle(mask, v, from >= ((me & ~(width - 1)) + width) ? me : from);
}
template <class T> T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32) {
    const int me = emulated_lane(), from = me + (int)by;
    return emulated_shuffle(mask, v, from >= (me & ~(width - 1)) + width ? me : from);
}
template <class T> T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32) {
    const int me = emulated_lane(), from = me - (int)by;
    return emulated_shuffle(mask, v, from < (me & ~(width - 1)) ? me : from);
}
static inline unsigned __ballot_sync(unsigned mask, int vote) {
    return emulated_warp_votes(mask, vote != 0);
}
static inline int __any_sync(unsigned mask, int vote) { return __ballot_sync(mask, vote) != 0; }
static inline int __all_sync(unsigned mask, int vote) { return __ballot_sync(mask, !vote) == 0; }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}

template <class T> T atomicAdd(T *at, std::common_type_t<T> x) {
    const T old = *at;
    *at = old + x;
    return old;
}
template <class T> T atomicMax(T *at, std::common_type_t<T> x) {
    const T old = *at;
    *at = old > x ? old : x;
    return old;
}
template <class T> T atomicMin(T *at, std::common_type_t<T> x) {
    const T old = *at;
    *at = old < x ? old : x;
    return old;
}
template <class T> T atomicExch(T *at, std::common_type_t<T> x) {
    const T old = *at;
    *at = x;
    return old;
}
template <class T> T atomicCAS(T *at, std::common_type_t<T> expected, std::common_type_t<T> x) {
    const T old = *at;
    if (old == expected) *at = x;
    return old;
}

/* ---- numbers: accurate where the GPU approximates ------------------------------------------ */

using std::max;
using std::min;
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
#define __expf(x) expf(x) /* macros: the C library declares these names */
#define __logf(x) logf(x)
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frsqrt_rn(float x) { return (float)(1.0 / sqrt((double)x)); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
template <class To, class From> To emulated_bits(From from) {
    To to;
    static_assert(sizeof to == sizeof from, "the same bits");
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float x) { return emulated_bits<unsigned>(x); }
static inline int __float_as_int(float x) { return emulated_bits<int>(x); }
static inline float __uint_as_float(unsigned x) { return emulated_bits<float>(x); }
static inline float __int_as_float(int x) { return emulated_bits<float>(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
template <class T> T __ldg(const T *p) { return *p; }
template <class T> T __ldcs(const T *p) { return *p; }
template <class T> T __ldcg(const T *p) { return *p; }
template <class T> void __stcs(T *p, T x) { *p = x; }
template <class T> void __stcg(T *p, T x) { *p = x; }

/* ---- what the toolkit's C++ header adds to its C header ------------------------------------ */

template <class T> cudaError_t cudaMalloc(T **p, size_t bytes) {
    return cudaMalloc((void **)(void *)p, bytes);
}
template <class T> cudaError_t cudaMallocHost(T **p, size_t bytes) {
    return cudaMallocHost((void **)(void *)p, bytes);
}
template <class T> cudaError_t cudaHostAlloc(T **p, size_t bytes, unsigned flags) {
    return cudaHostAlloc((void **)(void *)p, bytes, flags);
}
template <class T>
cudaError_t cudaMallocManaged(T **p, size_t bytes, unsigned flags = cudaMemAttachGlobal) {
    return cudaMallocManaged((void **)(void *)p, bytes, flags);
}
template <class... P>
cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value) {
    return cudaFuncSetAttribute((const void *)kernel, attribute, value);
}
template <class... P>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void (*)(P...), int threads,
                                                          size_t) {
    *blocks = std::max(1, 2048 / threads);
    return cudaSuccess;
}
#endif
