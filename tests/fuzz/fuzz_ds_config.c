/* fuzz_ds_config - any text through ds_config_parse; what it accepts must print and load again to
   the same. Two ways to build it:
     clang -fsanitize=fuzzer,address,undefined: a libFuzzer target; tests/ds_config is its corpus
     cc -DFUZZ_MAIN: fuzz_ds_config SECONDS SEED FILE... replays the files, then changes them at
       random, and prints `N passed, N failed` */
#include "../../adapters/ds_config/ds_config.h"

#define FUZZ_TEXT
#include "fuzz.h"

static void fuzz_note(void *user, const char *sentence) { *(size_t *)user += strlen(sentence); }

static void fuzz_once(const char *text, size_t size, const ds_auto *autos) {
    ds_config ds, again;
    char sentence[200];
    size_t told = 0;
    const ds_notes notes = {fuzz_note, &told};
    memset(sentence, 1, sizeof sentence);
    if (ds_config_parse(text, size, "fuzz", autos, &ds, &notes, sentence, sizeof sentence)) {
        fuzz_demand(memchr(sentence, 0, sizeof sentence) != NULL && strlen(sentence) > 6,
                    "an error without a sentence");
        return;
    }
    char *printed = ds_config_print(&ds);
    fuzz_demand(printed != NULL, "nothing was printed");
    const int failed = ds_config_parse(printed, strlen(printed), "printed", autos, &again, NULL,
                                       sentence, sizeof sentence);
    if (failed) fprintf(stderr, "%s\n%s\n", printed, sentence);
    fuzz_demand(!failed, "what was printed does not load");
    fuzz_demand(memcmp(&ds, &again, sizeof ds) == 0, "what was printed loads to something else");
    free(printed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const zero_hyper flags = {3e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    const ds_auto plain = {.ranks = 2};
    const ds_auto full = {.ranks = 3,
                          .micro_batch = 4,
                          .accumulation = 2,
                          .type = ZERO_F16,
                          .hyper = &flags,
                          .warmup_steps = 10,
                          .total_steps = 100,
                          .hidden = 64,
                          .folder = "/tmp"};
    fuzz_once((const char *)data, size, &plain);
    fuzz_once((const char *)data, size, &full);
    return 0;
}

#include "../../adapters/ds_config/ds_table.h"

/* A word that means something in such a file, a key's name as often as not. */
static const char *fuzz_word(void) {
    static const char *const own[] = {"\"auto\"", "5e8",      "//",       "/*",
                                      "*/",       "\"fp32\"", "\"bf16\"", "{\"enabled\": false}",
                                      "\"cpu\"",  "\"nvme\""};
    static char key[128];
    if (fuzz_below(2)) return FUZZ_ONE_OF(own);
    const char *path = ds_rows[fuzz_below(DS_ROWS)].path, *dot = strrchr(path, '.');
    snprintf(key, sizeof key, "\"%s\":", dot == NULL ? path : dot + 1);
    return key;
}

static size_t fuzz_seed(void *text) { return fuzz_any_given(text); }

#ifdef FUZZ_MAIN
int main(int argc, char **argv) { return fuzz_main(argc, argv, 200, 6); }
#endif
