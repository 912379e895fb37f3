/* fuzz_model_files - any bytes as a model file and as llm.c's state file; what is accepted must be
   saved and read again to the same. Two ways to build it:
     clang -fsanitize=fuzzer,address,undefined: a libFuzzer target; the second one's `seeds FOLDER`
       writes its corpus
     cc -DFUZZ_MAIN: fuzz_model_files SECONDS SEED changes files of its own at random, and prints
       `N passed, N failed`; fuzz_model_files seeds FOLDER */
#include "../adapters/checkpoint/model_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const gpt2_config fuzz_cfg = {4, 5, 128, 1, 1, 2};
static zero_ctx *fuzz_ctx;
static char fuzz_path[64], fuzz_state_path[64], fuzz_out[64];

/* What went wrong is left in a core or a sanitizer's report. */
static void fuzz_demand(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "fuzz_model_files: %s\n", what);
    abort();
}

static void fuzz_clean(void) {
    zero_destroy(fuzz_ctx);
    (void)unlink(fuzz_path);
    (void)unlink(fuzz_state_path);
    (void)unlink(fuzz_out);
}

static void fuzz_start(void) {
    const char *folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    zero_tensor_desc table[GPT2_TENSORS];
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_config c = {0};
    if (fuzz_ctx != NULL) return;
    const long id = (long)getpid();
    (void)snprintf(fuzz_path, sizeof fuzz_path, "%s/fuzz_model_%ld", folder, id);
    (void)snprintf(fuzz_state_path, sizeof fuzz_path, "%s/fuzz_state_%ld_00000.bin", folder, id);
    (void)snprintf(fuzz_out, sizeof fuzz_out, "%s/fuzz_out_%ld", folder, id);
    c.threads = 1;
    fuzz_demand(zero_create(&fuzz_ctx, &c, &comm) == ZERO_OK, "no context");
    gpt2_describe(&fuzz_cfg, table);
    for (int i = 0; i < GPT2_TENSORS; i++)
        fuzz_demand(zero_tensor(fuzz_ctx, &table[i]) == ZERO_OK, "no tensor");
    fuzz_demand(zero_build(fuzz_ctx) == ZERO_OK, "not built");
    (void)atexit(fuzz_clean);
}

static void fuzz_write(const char *path, const uint8_t *data, size_t size) {
    FILE *file = fopen(path, "wb");
    fuzz_demand(file != NULL && fwrite(data, 1, size, file) == size && fclose(file) == 0,
                "a file cannot be written");
}

static size_t fuzz_read(const char *path, uint8_t *data, size_t most) {
    FILE *file = fopen(path, "rb");
    const size_t n = file == NULL ? 0 : fread(data, 1, most, file);
    if (file != NULL) (void)fclose(file);
    return n;
}

static void fuzz_sentence(const gpt2_error *e) {
    fuzz_demand(memchr(e->sentence, 0, sizeof e->sentence) != NULL && strlen(e->sentence) > 6,
                "an error without a sentence");
}

enum { FUZZ_BYTES = 1 << 16 };

/* Saved, read and saved again: the same bytes. */
static void fuzz_again(void) {
    static uint8_t one[FUZZ_BYTES], two[FUZZ_BYTES];
    gpt2_error e;
    fuzz_demand(model_save(fuzz_ctx, &fuzz_cfg, fuzz_out, MODEL_SAFETENSORS, ZERO_F32, &e)
                    == ZERO_OK,
                "what was read cannot be saved");
    const size_t n = fuzz_read(fuzz_out, one, sizeof one);
    fuzz_demand(model_load(fuzz_ctx, &fuzz_cfg, fuzz_out, &e) == ZERO_OK,
                "what was saved cannot be read");
    fuzz_demand(model_save(fuzz_ctx, &fuzz_cfg, fuzz_out, MODEL_SAFETENSORS, ZERO_F32, &e)
                    == ZERO_OK,
                "not saved again");
    fuzz_demand(n > 0 && fuzz_read(fuzz_out, two, sizeof two) == n && memcmp(one, two, n) == 0,
                "saved again to other bytes");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const model_info untouched = {MODEL_FORMATS, ZERO_TYPES, {1, 2, 3, 4, 5, 6}};
    model_info info = untouched;
    gpt2_error e;
    fuzz_start();
    fuzz_write(fuzz_path, data, size);
    const zero_result known = model_info_read(fuzz_path, &info, &e);
    if (known != ZERO_OK) {
        fuzz_sentence(&e);
        fuzz_demand(memcmp(&info, &untouched, sizeof info) == 0, "a refused file left something");
    }
    const zero_result loaded = model_load(fuzz_ctx, &fuzz_cfg, fuzz_path, &e);
    if (loaded != ZERO_OK) fuzz_sentence(&e);
    fuzz_demand(known == ZERO_OK || loaded != ZERO_OK, "read what was refused");
    if (loaded == ZERO_OK && size % 8 == 0) fuzz_again(); /* not each: it fsyncs */
    fuzz_write(fuzz_state_path, data, size);
    if (llmc_state_load(fuzz_ctx, &fuzz_cfg, fuzz_state_path, NULL, &e)) fuzz_sentence(&e);
    return 0;
}

#ifdef FUZZ_MAIN
#include "fuzz.h"

enum { FUZZ_SEEDS = 6 };

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

/* Seed `i`: what the writers make, and states. */
static size_t fuzz_seed(int i, uint8_t *data) {
    static const struct {
        model_format format;
        zero_type type;
    } saved[4] = {{MODEL_LLMC, ZERO_F32},
                  {MODEL_LLMC, ZERO_BF16},
                  {MODEL_SAFETENSORS, ZERO_F32},
                  {MODEL_SAFETENSORS, ZERO_F16}};
    if (i >= 4) return fuzz_make_state(data, i - 4);
    fuzz_demand(model_save(fuzz_ctx, &fuzz_cfg, fuzz_out, saved[i].format, saved[i].type, NULL)
                    == ZERO_OK,
                "no seed");
    return fuzz_read(fuzz_out, data, FUZZ_INPUT);
}

/* What means something in a safetensors header. */
static const char *fuzz_word(void) {
    static const char *const words[] = {"{",
                                        "}",
                                        "[",
                                        "]",
                                        ":",
                                        ",",
                                        "\"",
                                        "0",
                                        "-1",
                                        "1e99",
                                        "0.5",
                                        "9007199254740993",
                                        "128",
                                        "null",
                                        "\"F32\"",
                                        "\"F16\"",
                                        "\"BF16\"",
                                        "\"I64\"",
                                        "\"shape\":",
                                        "\"dtype\":",
                                        " ",
                                        "h.0.",
                                        "h.1.",
                                        "transformer.",
                                        "wte.weight",
                                        "lm_head.weight",
                                        "attn.bias",
                                        "__metadata__",
                                        "\"data_offsets\":[",
                                        "\\u0000",
                                        "\"h.0.attn.bias\":{\"dtype\":\"U8\","};
    return words[fuzz_below(sizeof words / sizeof *words)];
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

int main(int argc, char **argv) {
    static uint8_t seed[FUZZ_SEEDS][FUZZ_INPUT];
    size_t length[FUZZ_SEEDS];
    long runs = 0;
    fuzz_start();
    for (int i = 0; i < FUZZ_SEEDS; i++) length[i] = fuzz_seed(i, seed[i]);
    if (argc > 2 && strcmp(argv[1], "seeds") == 0) {
        for (int i = 0; i < FUZZ_SEEDS; i++) {
            char path[512];
            (void)snprintf(path, sizeof path, "%s/seed%d", argv[2], i);
            fuzz_write(path, seed[i], length[i]);
        }
        return 0;
    }
    const time_t end = time(NULL) + (argc > 1 ? atol(argv[1]) : 1);
    fuzz_state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (int i = 0; i < FUZZ_SEEDS; i++, runs++) fuzz_try(seed[i], length[i]);
    while (time(NULL) < end) {
        const size_t which = fuzz_below(FUZZ_SEEDS);
        fuzz_round(seed[which], length[which], 50, 4, fuzz_change);
        runs += 50;
    }
    printf("%ld passed, 0 failed\n", runs);
    return 0;
}
#endif
