/* test_cudnn.c [all] [SM90] | alone - the plans of attention_cudnn.c in the real cuDNN, without a
   GPU: cuDNN gets the description of a device that is not there, chooses kernels, compiles them,
   and finalises the plans on the driver of driver.c. That shows that it takes the graphs; the
   graphs' values are test_attention's. And it shows that the workspaces are those of cuda_bytes.h,
   byte for byte: plans are made for some shapes, and for many more cuDNN's heuristics, which
   compile nothing, are asked. `all`: all shapes of the list, and more questions. `SM90`: one device
   alone. `alone`: without any driver cuDNN proposes no kernel, so a plan on such a machine cannot
   ask. Run by test_cudnn.sh. */
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

static const card cards[] = {
    {"SM75", 750, 40, 49152, 65536, 1024, 16},     {"SM80", 800, 108, 49152, 166912, 2048, 32},
    {"SM86", 860, 84, 49152, 101376, 1536, 16},    {"SM89", 890, 128, 49152, 101376, 1536, 24},
    {"SM90", 900, 132, 49152, 232448, 2048, 32},   {"SM100", 1000, 148, 49152, 232448, 2048, 32},
    {"SM103", 1030, 148, 49152, 232448, 2048, 32}, {"SM120", 1200, 170, 49152, 101376, 1536, 24}};
/* For these, plans are made, which takes up to a second each. For the others cuDNN is only asked.
 */
static int is_compiled_for(const card *d, int all) {
    return d->version == 750 || d->version == 800 || d->version == 900 || d->version == 1000
           || (all && d->version == 890);
}

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

static void open_case(attention_cudnn *c, const plan_case *of) {
    memset(c, 0, sizeof *c);
    c->device = of->device;
    c->type = of->type;
    c->deterministic = of->deterministic;
}

/* Makes the plan, and returns the bytes of its workspace, or -1: there is none. name, of 256 bytes:
 * its kernel. */
static int64_t workspace_of_plan(const plan_case *of, char *name, char *why) {
    attention_cudnn c;
    attention_plan *p = NULL;
    open_case(&c, of);
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

/* Asks the heuristics alone: returns the workspace of the first configuration that the context may
   use, or -1: there is none. */
static int64_t asked_workspace(const plan_case *of) {
    attention_cudnn c;
    descriptor configs[CONFIGS];
    const layouts l = layouts_of(&of->shape, of->row_heads);
    int64_t n = 0, count = 0, bytes = -1;
    graph g;
    int yes = 0;
    memset(&g, 0, sizeof g);
    g.next_id = ID_INSIDE;
    open_case(&c, of);
    zero_result r = of->backward ? build_backward(&c, &g, &l) : build_forward(&c, &g, &l);
    if (!r) r = propose(&c, &g, configs, &n);
    for (int64_t i = 0; !r && !yes && i < n; i++) {
        r = usable(&c, &g, configs[i], &yes);
        if (!r && yes)
            r = check(&c,
                      cudnnBackendGetAttribute(configs[i], CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE,
                                               CUDNN_TYPE_INT64, 1, &count, &bytes),
                      "workspace of a configuration");
    }
    test_check(!r, "%s: %s", of->card->name, c.text);
    graph_close(&g);
    return bytes;
}

/* The workspace as cuda_bytes.h has it, or -1: no kernels. Forward has one even where backward has
   none. */
static int64_t planned_workspace(const plan_case *of) {
    const attention_shape *s = &of->shape;
    const int major = of->card->version / 100;
    const ops_limits l = {s->batch, s->heads, s->seq_len, s->head_size, 0, 0, 0};
    const ops_settings settings = {ZERO_BF16, ZERO_BF16, NULL, 0, 1};
    if (major < 8) return -1;
    if (!of->backward) return major == HOPPER ? (int64_t)cuda_other_bytes(major) : 0;
    if (!cuda_has_attention(&l, &settings, major)) return -1;
    if (!of->deterministic) return (int64_t)cuda_any_order_bytes(&l, major);
    return (int64_t)cuda_piece_bytes(s->batch, s->heads, s->seq_len, SIZE_MAX, major);
}

static void check_workspace(const plan_case *of, int64_t bytes, const char *how) {
    const attention_shape *s = &of->shape;
    const int64_t expected = planned_workspace(of);
    /* Forward does not count: it never needs more than backward. For one token Hopper takes a
       kernel of sm_80, which needs nothing. */
    test_check(
        bytes == expected || (!of->backward && expected >= 0 && bytes == 0),
        "%s B%zu T%zu H%zu of %zu D%zu %s %s %s: a workspace of %lld bytes, planned %lld; %s",
        of->card->name, s->batch, s->seq_len, s->heads, of->row_heads, s->head_size,
        of->type == CUDNN_DATA_HALF ? "f16" : "bf16",
        of->deterministic ? "deterministic" : "any order", of->backward ? "backward" : "forward",
        (long long)bytes, (long long)expected, how);
}
static void check_plan(const plan_case *of) {
    char name[256], why[SENTENCE], how[256 + SENTENCE];
    const int64_t bytes = workspace_of_plan(of, name, why);
    (void)snprintf(how, sizeof how, "%s %s", name, why);
    check_workspace(of, bytes, how);
}

/* Pieces of a call run the kernel of the whole, so they give its bits. */
static void check_pieces(plan_case of) {
    const size_t most = 8 * cuda_head_bytes(of.shape.seq_len, HOPPER);
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

static void check_plans(plan_case of, int all) {
    const size_t n = all ? sizeof shapes / sizeof shapes[0] : 5;
    if (of.card->version >= 800) check_pieces(of);
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < 4; k++) {
            of.shape = shapes[i];
            of.row_heads = of.shape.heads;
            of.backward = k & 1;
            of.deterministic = k >> 1;
            of.type = (of.backward + of.deterministic + (int)i) % 2 ? CUDNN_DATA_HALF
                                                                    : CUDNN_DATA_BFLOAT16;
            check_plan(&of);
        }
}

/* Asks about a shape, in a random type, of heads that are a part of a sequence's or all of them. */
static void ask(plan_case of, attention_shape shape, test_random *r) {
    of.shape = shape;
    of.row_heads = shape.heads + (test_below(r, 4) ? 0 : (size_t)test_below(r, 20));
    of.type = test_below(r, 2) ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
    for (of.deterministic = 0; of.deterministic < 2; of.deterministic++)
        check_workspace(&of, asked_workspace(&of), "asked");
}
static attention_shape any_shape(test_random *r) {
    static const size_t batches[] = {1, 1, 2, 3, 4, 5, 8, 16, 32, 64};
    const attention_shape s = {batches[test_below(r, 10)],
                               1 + (size_t)test_below(r, test_below(r, 2) ? 260 : 2100),
                               1 + (size_t)test_below(r, 30),
                               8
                                   * (size_t)(test_below(r, 2)   ? 1 + test_below(r, 32)
                                              : test_below(r, 2) ? 8
                                                                 : 16)};
    return s;
}

/* The heads, and their channels, of all models that have a name. */
static const attention_shape models[] = {
    {0, 0, 6, 64},  {0, 0, 12, 64}, {0, 0, 16, 64},  {0, 0, 20, 64}, {0, 0, 25, 64},
    {0, 0, 30, 64}, {0, 0, 30, 96}, {0, 0, 36, 96},  {0, 0, 16, 96}, {0, 0, 16, 128},
    {0, 0, 32, 80}, {0, 0, 4, 32},  {0, 0, 96, 128}, {0, 0, 32, 128}};

/* Asks about the lengths around multiples of the tiles, random shapes and the models' heads; `all`:
   also about each length up to 260, of the GPUs for which plans are made. */
static void ask_all(plan_case of, int all, uint64_t seed) {
    static const size_t edges[] = {1, 8, 63, 64, 65, 127, 128, 129, 191, 193, 1023, 2048, 4095};
    test_random r = {seed};
    const int random_shapes = all ? 100 : 10;
    const size_t lengths_to = all && is_compiled_for(of.card, all) ? 260 : 0;
    of.backward = 1;
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
        const attention_shape s = {1 + (size_t)test_below(&r, 4), edges[i], 3, 64};
        if (all || i % 3 == seed % 3) ask(of, s, &r);
    }
    for (size_t t = 1; t <= lengths_to; t++) {
        const attention_shape s = {2, t, 3, t % 2 ? 64 : 8 * (1 + t / 2 % 16)};
        ask(of, s, &r);
    }
    for (int i = 0; i < random_shapes; i++) ask(of, any_shape(&r), &r);
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        static const size_t lengths[] = {64, 256, 1024, 2048, 8192, 32768};
        attention_shape s = models[i];
        s.seq_len = lengths[test_below(&r, 6)];
        s.batch = (size_t)1 << test_below(&r, 7);
        if (all || i % 4 == seed % 4) ask(of, s, &r);
    }
    for (int i = 0; i < (all ? 20 : 4); i++) { /* forward: with its kernels alone */
        of.shape = any_shape(&r);
        of.row_heads = of.shape.heads;
        of.backward = 0;
        check_workspace(&of, asked_workspace(&of), "asked");
    }
}

/* Without a driver. */
static int propose_nothing(void) {
    plan_case of = {&cards[4], device_of(&cards[4]), {4, 1024, 12, 64}, 12, CUDNN_DATA_BFLOAT16, 1,
                    1};
    if (of.device)
        test_check(asked_workspace(&of) < 0,
                   "without a driver cuDNN proposes a kernel, so zero_plan could ask");
    return test_summary();
}

int main(int argc, char **argv) {
    const char *seed = getenv("SEED");
    const int all = argc > 1 && !strcmp(argv[1], "all");
    const char *only = argc > 1 + all ? argv[1 + all] : "";
    int described = 0;
    if (argc > 1 && !strcmp(argv[1], "alone")) return propose_nothing();
    printf("cuDNN %zu\n", cudnnGetVersion());
    for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++) {
        if (*only && strcmp(only, cards[i].name) != 0) continue;
        const plan_case of = {
            &cards[i], device_of(&cards[i]), {4, 1024, 12, 64}, 12, CUDNN_DATA_BFLOAT16, 1, 1};
        const int before = test_passed;
        if (!of.device) continue;
        described++;
        if (is_compiled_for(of.card, all)) check_plans(of, all);
        const int plans = test_passed - before;
        ask_all(of, all, (seed ? strtoull(seed, NULL, 10) : 1) + i);
        printf("%s: %d plans and %d questions as planned\n", of.card->name, plans,
               test_passed - before - plans);
        (void)cudnnBackendDestroyDescriptor(of.device);
    }
    if (described) return test_summary();
    printf("0 passed, 0 failed, 1 skipped: this cuDNN takes no description of a device\n");
    return 0;
}
