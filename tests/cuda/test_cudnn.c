/* test_cudnn.c - the graphs of attention_cudnn.c against the real cuDNN, without a GPU: cuDNN is
   told of a device that is not there and says which kernels it would run. That shows that it takes
   the graphs' structure; their values are test_attention's. Run by test_cudnn.sh. */
#include "../../adapters/gpt2/attention_cudnn.c"
#include "../shared/harness.h"

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

/* How many kernels cuDNN proposes for one direction, and how many of them may be used. */
static zero_result count(attention_cudnn *c, const attention_shape *shape, int backward,
                         int64_t *proposed, int64_t *may) {
    static graph g;
    const layouts l = layouts_of(shape);
    descriptor configs[CONFIGS];
    memset(&g, 0, sizeof g);
    g.next_id = ID_INSIDE;
    *proposed = *may = 0;
    zero_result r = backward ? build_backward(c, &g, &l) : build_forward(c, &g, &l);
    if (!r) r = propose(c, &g, configs, proposed);
    for (int64_t i = 0; !r && i < *proposed; i++) {
        int yes = 0;
        r = usable(c, &g, configs[i], &yes);
        *may += yes;
    }
    graph_close(&g);
    return r;
}

static void check_card(const card *d, descriptor device, const attention_shape *shape, int bf16,
                       int deterministic) {
    attention_cudnn c;
    memset(&c, 0, sizeof c);
    c.device = device;
    c.type = bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    c.deterministic = deterministic;
    printf("%-5s B%zu T%-4zu H%zu D%-3zu %s %s kernels forward and backward:", d->name,
           shape->batch, shape->seq_len, shape->heads, shape->head_size, bf16 ? "bf16" : "f16 ",
           deterministic ? "deterministic" : "all          ");
    for (int backward = 0; backward < 2; backward++) {
        int64_t proposed, may;
        const zero_result r = count(&c, shape, backward, &proposed, &may);
        const int old = d->version < 800, ok = old ? may == 0 : !r && may > 0;
        test_check(ok, "%s B%zu T%zu H%zu D%zu %s%s, %s: %d kernels, %d usable%s%s", d->name,
                   shape->batch, shape->seq_len, shape->heads, shape->head_size,
                   bf16 ? "bf16" : "f16", deterministic ? " deterministic" : "",
                   backward ? "backward" : "forward", (int)proposed, (int)may, r ? ": " : "",
                   r ? c.text : "");
        printf(" %d", (int)may);
    }
    printf("\n");
}

int main(void) {
    const attention_shape shapes[] = {{4, 1024, 12, 64}, {4, 1024, 12, 128}, {1, 77, 25, 64}};
    int described = 0;
    printf("cuDNN %zu\n", cudnnGetVersion());
    for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++) {
        const descriptor device = device_of(&cards[i]);
        if (!device) continue;
        described++;
        for (int k = 0; k < 12; k++)
            check_card(&cards[i], device, &shapes[k / 4], k & 1, k >> 1 & 1);
        (void)cudnnBackendDestroyDescriptor(device);
    }
    if (described) return test_summary();
    printf("0 passed, 0 failed, 1 skipped: this cuDNN takes no description of a device\n");
    return 0;
}
