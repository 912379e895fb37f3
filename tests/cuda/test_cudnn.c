/* test_cudnn.c [all] - the plans of attention_cudnn.c in the real cuDNN, without a GPU: cuDNN is
   told of a device that is not there, chooses kernels, compiles them, and finalises the plans on
   the driver of driver.c. That shows that it takes the graphs, and how large its workspaces are;
   the graphs' values are test_attention's. `all`: all shapes of all models, in both types. Run by
   test_cudnn.sh. */
#include "../../adapters/gpt2/attention_cudnn.c"
#include "../../adapters/gpt2/cuda_bytes.h"
#include "../shared/harness.h"

#include <dlfcn.h>

/* The device as cuDNN describes one to itself. This form is not documented: a release that does not
   know it makes the test a skipped one. */
typedef struct card {
    const char *name;
    int version, processors, shared, optin, threads, blocks;
} card;

static const card cards[] = {{"SM75", 750, 40, 49152, 65536, 1024, 16},
                             {"SM80", 800, 108, 49152, 166912, 2048, 32},
                             {"SM90", 900, 132, 49152, 232448, 2048, 32},
                             {"SM100", 1000, 148, 49152, 232448, 2048, 32}};

static void describe(char *json, size_t bytes, const card *d) {
    (void)snprintf(
        json, bytes,
        "{\"cudaDeviceId\":0,\"deviceVer\":%d,\"driverVer\":13000,\"multiProcessorCount\":%d,"
        "\"maxSharedMemoryPerBlock\":%d,\"maxSharedMemoryPerBlockOptin\":%d,"
        "\"reservedSharedMemoryPerBlock\":1024,\"maxThreadsPerBlock\":1024,"
        "\"maxThreadsPerSM\":%d,\"maxCtasPerSM\":%d,\"maxRegistersPerSM\":65536,"
        "\"regsPerBlock\":65536,\"warpSize\":32,\"l2CacheSize\":52428800,"
        "\"smClockRateKHz\":1700000,\"memClockRateKHz\":2600000,"
        "\"totalGlobalMem\":85000000000,\"pciDeviceId\":0,\"isTccDriver\":0,"
        "\"supportCoopLaunch\":1,\"maxGridSize\":[2147483647,65535,65535],"
        "\"maxBlockSize\":[1024,1024,64],\"deviceName\":\"%s\"}",
        d->version, d->processors, d->shared, d->optin, d->threads, d->blocks, d->name);
}

/* NULL: this cuDNN does not take the description. */
static descriptor device_of(const card *d) {
    char json[2048], why[256];
    descriptor device = NULL;
    describe(json, sizeof json, d);
    const int64_t bytes = (int64_t)strlen(json) + 1;
    cudnnStatus_t s = cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &device);
    if (!s)
        s = cudnnBackendSetAttribute(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                     CUDNN_TYPE_CHAR, bytes, json);
    if (!s) s = cudnnBackendFinalize(device);
    if (!s) return device;
    cudnnGetLastErrorString(why, sizeof why);
    printf("%s: %s: %s\n", d->name, cudnnGetErrorString(s), why);
    return NULL;
}

/* What a plan is made for. */
typedef struct plan_case {
    const card *card;
    descriptor device;
    attention_shape shape;
    size_t row_heads;
    cudnnDataType_t type;
    int deterministic, backward;
} plan_case;

/* The kernel that a plan runs, which the driver was asked for. */
static const char *kernel(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    const char *(*name)(void) = NULL;
    if (driver) *(void **)(void *)&name = dlsym(driver, "test_driver_kernel");
    return name ? name() : "";
}

/* Makes the plan, and returns the bytes of its workspace, or -1: there is none. name, of 256 bytes:
 * its kernel. */
static int64_t workspace_of_plan(const plan_case *of, char *name, char *why) {
    attention_cudnn c;
    attention_plan *p = NULL;
    memset(&c, 0, sizeof c);
    c.device = of->device;
    c.type = of->type;
    c.deterministic = of->deterministic;
    const zero_result r = attention_cudnn_plan(&c, &of->shape, of->row_heads, of->backward, &p);
    const int64_t bytes = r ? -1 : (int64_t)attention_cudnn_workspace_bytes(p);
    (void)snprintf(name, 256, "%s", kernel());
    (void)snprintf(why, SENTENCE, "%s", r ? c.text : "");
    while (c.made) {
        p = c.made;
        c.made = p->next;
        destroy_plan(p);
    }
    return bytes;
}

/* GPUs before sm_80 have no kernels, and others than Hopper no backward for heads of more than 128
 * channels. */
static int has_plan(const plan_case *of) {
    const int major = of->card->version / 100;
    return major >= 8 && (of->shape.head_size <= 128 || major == 9 || !of->backward);
}
static int64_t planned(const plan_case *of) {
    const attention_shape *s = &of->shape;
    const ops_limits l = {s->batch, s->heads, s->seq_len, s->head_size, 0, 0, 0};
    const ops_settings settings = {ZERO_BF16, ZERO_BF16, NULL, 0, !of->deterministic};
    const size_t sum =
        of->deterministic ? 0 : cuda_delta_bytes(s->batch, s->heads, s->seq_len) * s->head_size;
    return of->backward
               ? (int64_t)(cuda_attention_bytes(&l, &settings, of->card->version / 100) - sum)
               : ATTENTION_OTHER;
}

static void check_plan(const plan_case *of) {
    const attention_shape *s = &of->shape;
    char name[256], why[SENTENCE];
    const int64_t bytes = workspace_of_plan(of, name, why), most = planned(of);
    /* The plan of a large workspace is exact, but for what other GPUs than Hopper do not need. */
    const int exact =
        !of->deterministic || !of->backward || s->seq_len <= 64 || bytes + 128 >= most;
    test_check(has_plan(of) ? bytes >= 0 && bytes <= most && exact : bytes < 0,
               "%s B%zu T%zu H%zu D%zu %s %s %s: a workspace of %lld bytes, planned %lld; %s %s",
               of->card->name, s->batch, s->seq_len, s->heads, s->head_size,
               of->type == CUDNN_DATA_HALF ? "f16" : "bf16",
               of->deterministic ? "deterministic" : "any order",
               of->backward ? "backward" : "forward", (long long)bytes, (long long)most, name, why);
}

/* Pieces of a call run the kernel of the whole, so they give its bits. */
static void check_pieces(plan_case of) {
    const size_t most = 8 * cuda_head_bytes(of.shape.seq_len);
    char whole[256], part[256], why[SENTENCE];
    of.backward = of.deterministic = 1;
    const int64_t bytes = workspace_of_plan(&of, whole, why);
    const cuda_pieces cut = cuda_cut(of.shape.batch, of.shape.heads, of.shape.seq_len, most);
    of.row_heads = of.shape.heads;
    of.shape.batch = of.shape.batch / cut.batch;
    of.shape.heads = of.shape.heads / cut.heads;
    const int64_t less = workspace_of_plan(&of, part, why);
    test_check(bytes > 0 && less > 0 && less < bytes && whole[0] && !strcmp(whole, part),
               "%s: %s with %lld bytes, in pieces %s with %lld: %s", of.card->name, whole,
               (long long)bytes, part, (long long)less, why);
}

static const attention_shape shapes[] = {
    {4, 1024, 12, 64},  {1, 77, 25, 64},    {1, 1024, 12, 128}, {2, 512, 2, 256}, {2, 32, 2, 32},
    {32, 1024, 12, 64}, {16, 1024, 25, 64}, {1, 64, 4, 64},     {8, 64, 6, 64},   {2, 1024, 16, 64},
    {2, 1024, 20, 64},  {1, 2048, 96, 128}, {2, 1024, 40, 128}, {2, 256, 4, 16},  {2, 128, 4, 8},
    {2, 512, 8, 80},    {2, 512, 8, 96},    {3, 17, 5, 40},     {1, 1, 1, 64},    {1, 4096, 25, 64},
    {1, 300, 2, 256}};

static void check_card(const card *d, descriptor device, int all) {
    const size_t n = all ? sizeof shapes / sizeof shapes[0] : 5;
    plan_case of = {d, device, {4, 1024, 12, 64}, 12, CUDNN_DATA_BFLOAT16, 1, 1};
    if (d->version >= 800) check_pieces(of);
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < 8; k++) {
            of.shape = shapes[i];
            of.row_heads = of.shape.heads;
            of.backward = k & 1;
            of.deterministic = k >> 1 & 1;
            of.type = k >> 2 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
            if (all || (int)(i % 2) == k >> 2) check_plan(&of);
        }
}

int main(int argc, char **argv) {
    int described = 0;
    printf("cuDNN %zu\n", cudnnGetVersion());
    for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++) {
        const descriptor device = device_of(&cards[i]);
        if (!device) continue;
        described++;
        check_card(&cards[i], device, argc > 1 && !strcmp(argv[1], "all"));
        (void)cudnnBackendDestroyDescriptor(device);
    }
    if (described) return test_summary();
    printf("0 passed, 0 failed, 1 skipped: this cuDNN takes no description of a device\n");
    return 0;
}
