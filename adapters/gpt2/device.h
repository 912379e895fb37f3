/* device.h - the device on which a rank computes: CUDA's stream and memory, or the CPU.

   Two compilers compile the trainer's source, nvcc and a C compiler, and this file has what differs
   between the two. It is a header of inline functions, because nvcc compiles only the trainer, and
   a C compiler the other files.

   Functions that can fail return 0, or 1 and a sentence. */
#ifndef GPT2_DEVICE_H
#define GPT2_DEVICE_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct device {
    void *stream;      /* the stream of model and plugin; CPU: NULL */
    void *wires;       /* another one, for messages that run while the model computes; CPU: NULL */
    char name[256];    /* for messages */
    int sharers;       /* number of ranks on the same device, including this one */
    size_t free_bytes; /* CUDA: free memory before anything was built */
} device;

#ifdef __CUDACC__

enum { DEVICE_IS_HOST = 0 };
#define DEVICE_AWAY " in the host's memory" /* where -r 4 keeps the inputs of blocks */

static inline int device_fail(cudaError_t code, const char *what, char *sentence, size_t bytes) {
    if (code != cudaSuccess) snprintf(sentence, bytes, "%s: %s", what, cudaGetErrorString(code));
    return code != cudaSuccess;
}

static inline size_t device_free_bytes(void) {
    size_t available = 0, total = 0;
    return cudaMemGetInfo(&available, &total) == cudaSuccess ? available : 0;
}

/* Uses the device that the launcher chose. Avoids the default stream, which synchronises others. */
static inline int device_open(device *d, int local_ranks, char *sentence, size_t bytes) {
    struct cudaDeviceProp card;
    cudaStream_t stream = NULL, wires = NULL;
    int chosen = 0, devices = 1, version = 0;
    memset(&card, 0, sizeof card);
    cudaError_t code = cudaGetDevice(&chosen);
    if (code == cudaSuccess) code = cudaGetDeviceCount(&devices);
    if (code == cudaSuccess) code = cudaDriverGetVersion(&version);
    if (code == cudaSuccess) code = cudaGetDeviceProperties(&card, chosen);
    if (code == cudaSuccess) code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (code == cudaSuccess) code = cudaStreamCreateWithFlags(&wires, cudaStreamNonBlocking);
    if (device_fail(code, "no CUDA device can be used", sentence, bytes)) return 1;
    d->stream = stream;
    d->wires = wires;
    d->sharers = (local_ranks + devices - 1) / devices;
    d->free_bytes = device_free_bytes();
    snprintf(d->name, sizeof d->name, "%.100s, %.0f MiB, CUDA %d.%d of the driver", card.name,
             (double)card.totalGlobalMem / (1024.0 * 1024), version / 1000, version / 10 % 100);
    return 0;
}

static inline void device_close(device *d) {
    cudaStreamDestroy((cudaStream_t)d->wires);
    cudaStreamDestroy((cudaStream_t)d->stream);
}

/* Waits until all enqueued work is done, so that a clock reading is correct. */
static inline int device_wait(const device *d, char *sentence, size_t bytes) {
    return device_fail(cudaStreamSynchronize((cudaStream_t)d->stream), "CUDA", sentence, bytes);
}

/* Bytes that all ranks on the device have allocated since it was opened. */
static inline size_t device_taken(const device *d) {
    const size_t left = device_free_bytes();
    return left < d->free_bytes ? d->free_bytes - left : 0;
}

/* Fails if the device has less than `need` bytes for each of its ranks. */
static inline int device_fits(const device *d, uint64_t need, char *sentence, size_t bytes) {
    size_t available = 0, total = 0;
    const cudaError_t code = cudaMemGetInfo(&available, &total);
    const uint64_t wanted = need * (uint64_t)d->sharers;
    const double mib = 1024.0 * 1024;
    if (device_fail(code, "the device's memory cannot be asked for", sentence, bytes)) return 1;
    if (wanted <= available) return 0;
    snprintf(sentence, bytes,
             "the device has %.1f MiB of memory free of %.1f MiB, and the %d rank%s on it need "
             "%.1f MiB: choose a higher -z, a smaller -b, or -r 3",
             (double)available / mib, (double)total / mib, d->sharers, d->sharers > 1 ? "s" : "",
             (double)wanted / mib);
    return 1;
}

#else

enum { DEVICE_IS_HOST = 1 };
#define DEVICE_AWAY " in a file"

static inline int device_open(device *d, int local_ranks, char *sentence, size_t bytes) {
    (void)sentence;
    (void)bytes;
    d->sharers = local_ranks;
    snprintf(d->name, sizeof d->name, "CPU");
    return 0;
}
static inline void device_close(device *d) { (void)d; }
static inline int device_wait(const device *d, char *sentence, size_t bytes) {
    (void)d;
    (void)sentence;
    (void)bytes;
    return 0;
}
static inline size_t device_taken(const device *d) {
    (void)d;
    return 0;
}
/* The launcher checks host memory. */
static inline int device_fits(const device *d, uint64_t need, char *sentence, size_t bytes) {
    (void)need;
    return device_wait(d, sentence, bytes);
}

#endif
#endif
