/* spill_cuda.cu - spill.h on CUDA: records are in pinned CPU memory. Copies run on a separate
   stream, overlapped with computing.

   A put or get begins after an event of the computing stream, which is recorded at the call. At
   this event the value is written, or earlier readers of the memory are done. One event per record
   marks the end of its last copy, and spill_await makes the computing stream wait for it. */
#include "spill.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

struct spill {
    size_t bytes;
    int records;
    cudaStream_t computes, copies;
    char *memory;       /* [records * bytes] of CPU memory */
    cudaEvent_t ready;  /* recorded on the computing stream: the next copy may begin */
    cudaEvent_t *moved; /* [records] the end of the record's last copy */
    zero_result status;
    char sentence[SPILL_SENTENCE];
};

/* Returns 1 if the call succeeded. Keeps the first error. */
static int worked(spill *s, cudaError_t e, const char *call) {
    if (e == cudaSuccess) return 1;
    if (!s->status)
        (void)snprintf(s->sentence, sizeof s->sentence, "activations on the host: %s: %s", call,
                       cudaGetErrorString(e));
    if (!s->status) s->status = e == cudaErrorMemoryAllocation ? ZERO_ERR_MEMORY : ZERO_ERR_DEVICE;
    return 0;
}
#define WORKED(s, call) worked(s, call, #call)

static void spill_open(spill *s) {
    if (!s->moved) {
        s->status = ZERO_ERR_MEMORY;
        return;
    }
    if (!WORKED(s, cudaMallocHost((void **)&s->memory, (size_t)s->records * s->bytes))) {
        s->memory = NULL;
        (void)cudaGetLastError(); /* the caller reports it */
        return;
    }
    if (!WORKED(s, cudaStreamCreateWithFlags(&s->copies, cudaStreamNonBlocking))) return;
    (void)WORKED(s, cudaEventCreateWithFlags(&s->ready, cudaEventDisableTiming));
    for (int i = 0; i < s->records && !s->status; i++)
        (void)WORKED(s, cudaEventCreateWithFlags(&s->moved[i], cudaEventDisableTiming));
}

zero_result spill_create(spill **s, const spill_shape *shape, char *why) {
    *s = NULL;
    (void)snprintf(why, SPILL_SENTENCE, "no memory to keep activations on the host");
    if (shape->records < 1 || !shape->bytes) return ZERO_ERR_ARGUMENT;
    spill *made = (spill *)calloc(1, sizeof *made);
    if (!made) return ZERO_ERR_MEMORY;
    made->bytes = shape->bytes;
    made->records = shape->records;
    made->computes = (cudaStream_t)shape->stream;
    made->moved = (cudaEvent_t *)calloc((size_t)shape->records, sizeof *made->moved);
    spill_open(made);
    const zero_result result = made->status;
    if (!result || made->sentence[0]) (void)snprintf(why, SPILL_SENTENCE, "%s", made->sentence);
    if (result)
        spill_destroy(made);
    else
        *s = made;
    return result;
}

void spill_destroy(spill *s) {
    if (!s) return;
    if (s->copies) (void)cudaStreamSynchronize(s->copies);
    for (int i = 0; i < s->records && s->moved; i++)
        if (s->moved[i]) (void)cudaEventDestroy(s->moved[i]);
    if (s->ready) (void)cudaEventDestroy(s->ready);
    if (s->copies) (void)cudaStreamDestroy(s->copies);
    if (s->memory) (void)cudaFreeHost(s->memory);
    free(s->moved);
    free(s);
}

static void spill_copy(spill *s, int record, void *to, const void *from, cudaMemcpyKind kind) {
    if (s->status || !WORKED(s, cudaEventRecord(s->ready, s->computes))
        || !WORKED(s, cudaStreamWaitEvent(s->copies, s->ready, 0))
        || !WORKED(s, cudaMemcpyAsync(to, from, s->bytes, kind, s->copies)))
        return;
    (void)WORKED(s, cudaEventRecord(s->moved[record], s->copies));
}

void spill_put(spill *s, int record, const void *memory) {
    spill_copy(s, record, s->memory + (size_t)record * s->bytes, memory, cudaMemcpyDeviceToHost);
}

void spill_get(spill *s, int record, void *memory) {
    spill_copy(s, record, memory, s->memory + (size_t)record * s->bytes, cudaMemcpyHostToDevice);
}

void spill_await(spill *s, int record) {
    if (!s->status) (void)WORKED(s, cudaStreamWaitEvent(s->computes, s->moved[record], 0));
}

zero_result spill_status(spill *s, const char **sentence) {
    if (sentence) *sentence = s->sentence;
    return s->status;
}
