/* make_files FOLDER LAYERS CHANNELS HEADS VOCABULARY MAX_T - the files that llm.c's train_gpt2.c
   reads: a model of random weights, two files of random tokens, and a tokenizer of one-letter
   tokens. The same bytes for the same arguments. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { HEADER = 256, TENSORS = 16, TRAIN_TOKENS = 100000, VAL_TOKENS = 20000 };

static uint32_t random_state = 1;
static uint32_t random_bits(void) {
    random_state = random_state * 1664525U + 1013904223U;
    return random_state >> 8;
}

static FILE *make(const char *folder, const char *name) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file) {
        perror(path);
        exit(1);
    }
    return file;
}

static void finish(FILE *file) {
    if (fclose(file)) {
        perror("make_files");
        exit(1);
    }
}

static void write_model(const char *folder, size_t L, size_t C, size_t NH, size_t V, size_t T) {
    const size_t Vp = (V + 127) / 128 * 128;
    const int32_t header[HEADER] = {20240326,   3,           (int32_t)T, (int32_t)V,
                                    (int32_t)L, (int32_t)NH, (int32_t)C, (int32_t)Vp};
    const size_t sizes[TENSORS] = {Vp * C,        T * C, L * C, L * C, L * 3 * C * C, L * 3 * C,
                                   L * C * C,     L * C, L * C, L * C, L * 4 * C * C, L * 4 * C,
                                   L * 4 * C * C, L * C, C,     C};
    const char kind[] = "ww10w0w010w0w010"; /* weights, ones, zeros */
    FILE *file = make(folder, "gpt2_124M.bin");
    fwrite(header, sizeof(int32_t), HEADER, file);
    for (int i = 0; i < TENSORS; i++)
        for (size_t k = 0; k < sizes[i]; k++) {
            const float weight = ((float)random_bits() / 16777216.0F - 0.5F) * 0.07F;
            const float x = kind[i] == 'w' ? weight : kind[i] == '1' ? 1.0F : 0.0F;
            fwrite(&x, sizeof(x), 1, file);
        }
    finish(file);
}

/* Tokens with something to learn: each follows from the one before it, three times in four. */
static void write_tokens(const char *folder, const char *name, int32_t n, uint32_t V) {
    const int32_t header[HEADER] = {20240520, 1, n};
    FILE *file = make(folder, name);
    uint32_t token = 0;
    fwrite(header, sizeof(int32_t), HEADER, file);
    for (int32_t i = 0; i < n; i++) {
        token = random_bits() % 4 ? (token * 5 + 3) % V : random_bits() % V;
        const uint16_t stored = (uint16_t)token;
        fwrite(&stored, sizeof(stored), 1, file);
    }
    finish(file);
}

static void write_tokenizer(const char *folder, uint32_t V) {
    const uint32_t header[HEADER] = {20240328, 2, V, V - 1};
    FILE *file = make(folder, "gpt2_tokenizer.bin");
    fwrite(header, sizeof(uint32_t), HEADER, file);
    for (uint32_t i = 0; i < V; i++) {
        const char token[2] = {1, (char)('a' + i % 26)};
        fwrite(token, 1, sizeof(token), file);
    }
    finish(file);
}

int main(int argc, char **argv) {
    size_t n[5];
    char path[4096];
    if (argc != 7) {
        fprintf(stderr, "usage: make_files FOLDER LAYERS CHANNELS HEADS VOCABULARY MAX_T\n");
        return 2;
    }
    for (int i = 0; i < 5; i++) n[i] = strtoul(argv[i + 2], NULL, 10);
    const char *folders[] = {"", "/dev", "/dev/data", "/dev/data/tinyshakespeare"};
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof(path), "%s%s", argv[1], folders[i]);
        mkdir(path, 0777);
    }
    write_model(argv[1], n[0], n[1], n[2], n[3], n[4]);
    snprintf(path, sizeof(path), "%s%s", argv[1], folders[3]);
    write_tokens(path, "tiny_shakespeare_train.bin", TRAIN_TOKENS, (uint32_t)n[3]);
    write_tokens(path, "tiny_shakespeare_val.bin", VAL_TOKENS, (uint32_t)n[3]);
    write_tokenizer(argv[1], (uint32_t)n[3]);
    return 0;
}
