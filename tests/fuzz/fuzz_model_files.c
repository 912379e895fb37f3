/* fuzz_model_files - any bytes as a model file and as llm.c's state file, or, where they begin with
   a brace, as the index of a model in two files; what is accepted must be saved and read again to
   the same. Two ways to build it:
     clang -fsanitize=fuzzer,address,undefined: a libFuzzer target
     cc -DFUZZ_MAIN: fuzz_model_files SECONDS SEED changes files of its own at random, and prints
       `N passed, N failed` */
#include "../../adapters/checkpoint/model_files.h"

#include "fuzz.h"

#include <fcntl.h>
#include <unistd.h>

static const gpt2_config fuzz_cfg = {4, 5, 128, 1, 1, 2, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
static zero_ctx *fuzz_ctx;
static char fuzz_folder[64];
/* in it: one file, the input, by three names; what is saved; and the two that an index may name */
enum { FUZZ_MODEL = 0, FUZZ_INDEX, FUZZ_STATE, FUZZ_OUT, FUZZ_A, FUZZ_B, FUZZ_FILES };
static char fuzz_path[FUZZ_FILES][96];
static int fuzz_input;

static void fuzz_clean(void) {
    zero_destroy(fuzz_ctx);
    for (int i = 0; i < FUZZ_FILES; i++) (void)unlink(fuzz_path[i]);
    (void)rmdir(fuzz_folder);
}

static void fuzz_put(const uint8_t *data, size_t size) {
    static size_t before;
    fuzz_demand(pwrite(fuzz_input, data, size, 0) == (ssize_t)size
                    && (size >= before || ftruncate(fuzz_input, (off_t)size) == 0),
                "the input cannot be written");
    before = size;
}

/* A safetensors file with these entries of a header (after a brace or comma), whose places in the
   data are `base` behind what they will be. */
static void fuzz_write_part(const char *path, const char *entries, const char *data, size_t base,
                            size_t bytes) {
    static const char key[] = "\"data_offsets\":[";
    static char header[FUZZ_INPUT];
    char *to = header;
    uint64_t n;
    size_t begin, end;
    *to++ = '{';
    for (const char *at; (at = strstr(entries, key)) != NULL; entries = strchr(at, ']')) {
        fuzz_demand(sscanf(at + sizeof key - 1, "%zu,%zu]", &begin, &end) == 2, "no offsets");
        memcpy(to, entries, (size_t)(at - entries));
        to += at - entries;
        to += sprintf(to, "%s%zu,%zu", key, begin - base, end - base);
    }
    to += sprintf(to, "]}}");
    FILE *file = fopen(path, "wb");
    n = (uint64_t)(to - header);
    fuzz_demand(file != NULL && fwrite(&n, 8, 1, file) == 1 && fwrite(header, n, 1, file) == 1
                    && fwrite(data + base, 1, bytes, file) == bytes && fclose(file) == 0,
                "a part cannot be written");
}

/* The model of the context in two files. */
static void fuzz_split(void) {
    static char whole[FUZZ_INPUT];
    static const char second[] = "\"transformer.h.0.attn.c_attn.weight\"";
    uint64_t n;
    size_t base;
    fuzz_demand(
        model_save(fuzz_ctx, &fuzz_cfg, fuzz_path[FUZZ_OUT], MODEL_SAFETENSORS, ZERO_F32, NULL)
            == ZERO_OK,
        "no model to split");
    const size_t size = fuzz_file(fuzz_path[FUZZ_OUT], (uint8_t *)whole, sizeof whole);
    memcpy(&n, whole, sizeof n);
    char *header = whole + 8, *data = header + n, *cut = strstr(header, second);
    data[-1] = 0; /* a blank or the last brace: enough to end the text */
    fuzz_demand(cut != NULL && sscanf(strchr(strstr(cut, "offsets"), '['), "[%zu", &base) == 1,
                "no place to split at");
    fuzz_write_part(fuzz_path[FUZZ_B], cut, data, base, size - 8 - (size_t)n - base);
    cut[-1] = 0;
    fuzz_write_part(fuzz_path[FUZZ_A], header + 1, data, 0, base);
}

static void fuzz_start(void) {
    static const char *const names[FUZZ_FILES] = {"model", "index.json",    "_00000.bin",
                                                  "out",   "a.safetensors", "b.safetensors"};
    zero_tensor_desc table[GPT2_TENSORS];
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_config c = {0};
    if (fuzz_ctx != NULL) return;
    (void)snprintf(fuzz_folder, sizeof fuzz_folder, "%s/fuzz_model_XXXXXX",
                   access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    fuzz_demand(mkdtemp(fuzz_folder) != NULL, "no folder");
    for (int i = 0; i < FUZZ_FILES; i++)
        (void)snprintf(fuzz_path[i], sizeof fuzz_path[i], "%s/%s", fuzz_folder, names[i]);
    fuzz_input = open(fuzz_path[FUZZ_MODEL], O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    fuzz_demand(fuzz_input >= 0 && link(fuzz_path[FUZZ_MODEL], fuzz_path[FUZZ_INDEX]) == 0
                    && link(fuzz_path[FUZZ_MODEL], fuzz_path[FUZZ_STATE]) == 0,
                "no file of three names");
    c.threads = c.no_overlap = 1;
    fuzz_demand(zero_create(&fuzz_ctx, &c, &comm) == ZERO_OK, "no context");
    gpt2_describe(&fuzz_cfg, table);
    for (int i = 0; i < GPT2_TENSORS; i++)
        fuzz_demand(zero_tensor(fuzz_ctx, &table[i]) == ZERO_OK, "no tensor");
    fuzz_demand(zero_build(fuzz_ctx) == ZERO_OK, "not built");
    (void)atexit(fuzz_clean);
    fuzz_split();
}

static void fuzz_sentence(const gpt2_error *e) {
    fuzz_demand(memchr(e->sentence, 0, sizeof e->sentence) != NULL && strlen(e->sentence) > 6,
                "an error without a sentence");
}

/* Saved, read and saved again: the same bytes. */
static void fuzz_again(void) {
    static uint8_t one[FUZZ_INPUT], two[FUZZ_INPUT];
    const char *out = fuzz_path[FUZZ_OUT];
    gpt2_error e;
    fuzz_demand(model_save(fuzz_ctx, &fuzz_cfg, out, MODEL_SAFETENSORS, ZERO_F32, &e) == ZERO_OK,
                "what was read cannot be saved");
    const size_t n = fuzz_file(out, one, sizeof one);
    fuzz_demand(model_load(fuzz_ctx, &fuzz_cfg, out, &e) == ZERO_OK,
                "what was saved cannot be read");
    fuzz_demand(model_save(fuzz_ctx, &fuzz_cfg, out, MODEL_SAFETENSORS, ZERO_F32, &e) == ZERO_OK,
                "not saved again");
    fuzz_demand(n > 0 && fuzz_file(out, two, sizeof two) == n && memcmp(one, two, n) == 0,
                "saved again to other bytes");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const model_info untouched = {
        MODEL_FORMATS, ZERO_TYPES, {1, 2, 3, 4, 5, 6, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0}};
    model_info info;
    gpt2_error e;
    memcpy(&info, &untouched, sizeof info); /* with the bytes between its fields */
    fuzz_start();
    const int index = size > 0 && data[0] == '{';
    const char *path = fuzz_path[index ? FUZZ_INDEX : FUZZ_MODEL];
    fuzz_put(data, size);
    const zero_result known = model_info_read(path, &info, &e);
    if (known != ZERO_OK) {
        fuzz_sentence(&e);
        fuzz_demand(memcmp(&info, &untouched, sizeof info) == 0, "a refused file left something");
    }
    const zero_result loaded = model_load(fuzz_ctx, &fuzz_cfg, path, &e);
    if (loaded != ZERO_OK) fuzz_sentence(&e);
    fuzz_demand(known == ZERO_OK || loaded != ZERO_OK, "read what was refused");
    if (loaded == ZERO_OK && size % 8 == 0) fuzz_again(); /* not each: it fsyncs */
    if (index) return 0;
    if (llmc_state_load(fuzz_ctx, &fuzz_cfg, fuzz_path[FUZZ_STATE], NULL, &e)) fuzz_sentence(&e);
    return 0;
}

enum { FUZZ_SEEDS = 8 };
static uint8_t fuzz_seeds[FUZZ_SEEDS][FUZZ_INPUT];
static size_t fuzz_length[FUZZ_SEEDS];

/* llm.c's state of one rank, permuted data and all. Returns its length. */
static size_t fuzz_make_state(uint8_t *data, int shuffled) {
    const size_t arrays = 3 * gpt2_numel(&fuzz_cfg) * sizeof(float);
    const int32_t h[11] = {20240527, 1, 1, 0, 1, shuffled, 0, 0, 0, 0, 400};
    const uint64_t two = 2;
    memset(data, 0, 1024 + arrays + 4096);
    memcpy(data, h, sizeof h);
    if (!shuffled) return 1024 + arrays;
    memcpy(data + 1024 + arrays, &two, sizeof two);
    memcpy(data + 1024 + arrays + 16, &two, sizeof two);
    return 1024 + arrays + 32 + 2520;
}

/* The index of the two files; two of another length. */
static size_t fuzz_make_index(uint8_t *data, int odd) {
    static char whole[FUZZ_INPUT];
    char *out = (char *)data;
    int n = sprintf(out, "{\"metadata\":{\"total_size\":%d},\"weight_map\":{", odd);
    for (int part = FUZZ_A; part <= FUZZ_B; part++) {
        const char *at = whole + 8;
        const size_t size = fuzz_file(fuzz_path[part], (uint8_t *)whole, sizeof whole - 1);
        whole[size] = 0;
        while ((at = strstr(at, "\"transformer.")) != NULL) {
            const int length = (int)(strchr(at + 1, '"') - at) + 1;
            n += sprintf(out + n, "%s%.*s:\"%c.safetensors\"", out[n - 1] == '{' ? "" : ",", length,
                         at, part == FUZZ_A ? 'a' : 'b');
            at += length;
        }
    }
    return (size_t)(n + sprintf(out + n, "}%*s}", odd, ""));
}

/* Seed `i`: what the writers make, states, indices. */
static size_t fuzz_make_seed(int i, uint8_t *data) {
    static const struct {
        model_format format;
        zero_type type;
    } saved[4] = {{MODEL_LLMC, ZERO_F32},
                  {MODEL_LLMC, ZERO_BF16},
                  {MODEL_SAFETENSORS, ZERO_F32},
                  {MODEL_SAFETENSORS, ZERO_F16}};
    if (i >= 6) return fuzz_make_index(data, i - 6);
    if (i >= 4) return fuzz_make_state(data, i - 4);
    const char *out = fuzz_path[FUZZ_OUT];
    fuzz_demand(model_save(fuzz_ctx, &fuzz_cfg, out, saved[i].format, saved[i].type, NULL)
                    == ZERO_OK,
                "no seed");
    return fuzz_file(out, data, FUZZ_INPUT);
}

/* What means something in a safetensors header or an index. */
static const char *fuzz_word(void) {
    static const char *const own[] = {"128",
                                      "\"F32\"",
                                      "\"F16\"",
                                      "\"BF16\"",
                                      "\"I64\"",
                                      "\"shape\":",
                                      "\"dtype\":",
                                      "h.0.",
                                      "h.1.",
                                      "transformer.",
                                      "wte.weight",
                                      "lm_head.weight",
                                      "attn.bias",
                                      "__metadata__",
                                      "\"data_offsets\":[",
                                      "\"h.0.attn.bias\":{\"dtype\":\"U8\",",
                                      "\"weight_map\":{",
                                      "a.safetensors",
                                      "b.safetensors",
                                      "index.json",
                                      "../"};
    return FUZZ_ONE_OF(own);
}

/* Changes the front, where lengths and headers are, by a word, some bits or a number. Returns the
   new length. */
static size_t fuzz_change(void *bytes, size_t length) {
    uint8_t *data = (uint8_t *)bytes;
    const size_t front = length < 2600 ? length : 2600, at = fuzz_below(front + 1);
    const size_t left = length - at, most = left < 8 ? left : 8;
    if (fuzz_below(3) == 0) {
        const uint64_t number = fuzz_below(2) ? fuzz_below(512) : (uint64_t)0 - fuzz_below(512);
        memcpy(data + at / 4 * 4, &number, fuzz_below(2) && most == 8 ? 8 : most / 2);
        return length;
    }
    if (fuzz_below(8) == 0) return fuzz_below(length + 1);
    const char *in = fuzz_word();
    const size_t n = strlen(in),
                 gone = fuzz_below(2) ? (n < left ? n : left) : fuzz_below(most + 1);
    if (length + n >= FUZZ_INPUT) return length;
    memmove(data + at + n, data + at + gone, left - gone);
    memcpy(data + at, in, n);
    const size_t now = length - gone + n;
    uint64_t header = 0;
    memcpy(&header, data, now < 8 ? now : 8);
    if (header < FUZZ_INPUT && at >= 8 && fuzz_below(4)) { /* the header's length follows */
        header += n - gone;
        memcpy(data, &header, now < 8 ? now : 8);
    }
    return now;
}

static size_t fuzz_seed(void *data) {
    fuzz_start();
    for (int i = 0; fuzz_length[FUZZ_SEEDS - 1] == 0 && i < FUZZ_SEEDS; i++)
        fuzz_length[i] = fuzz_make_seed(i, fuzz_seeds[i]);
    const size_t which = fuzz_below(FUZZ_SEEDS);
    memcpy(data, fuzz_seeds[which], fuzz_length[which]);
    return fuzz_length[which];
}

#ifdef FUZZ_MAIN
int main(int argc, char **argv) {
    static uint8_t data[FUZZ_INPUT];
    (void)fuzz_seed(data);
    for (int i = 0; i < FUZZ_SEEDS; i++) fuzz_try(fuzz_seeds[i], fuzz_length[i]);
    fuzz_demand(model_load(fuzz_ctx, &fuzz_cfg, fuzz_path[FUZZ_INDEX], NULL) == ZERO_OK,
                "the two files are not read by their index");
    return fuzz_main(argc, argv, 50, 4);
}
#endif
