/* fuzz_checkpoint - any bytes as a manifest, and as the header of a shard file; a manifest that is
   accepted must print and load again to the same, and hold no piece outside its files. Two ways to
   build it:
     clang -fsanitize=fuzzer,address,undefined: a libFuzzer target
     cc -DFUZZ_MAIN: fuzz_checkpoint SECONDS SEED [FILE...] changes the files, or a manifest of its
       own, at random, and prints `N passed, N failed`
   With adapters/checkpoint/checkpoint_*.c and the plugin; every input gets the checksum it needs.
 */
#include "../../adapters/checkpoint/checkpoint_inside.h"

#define FUZZ_TEXT
#include "fuzz.h"

static const char fuzz_seal[] = "\"checksum\": \"";

/* The text up to its checksum and the right one behind it. The caller frees. */
static char *fuzz_sealed(const uint8_t *data, size_t size, size_t *bytes) {
    const size_t head = sizeof fuzz_seal - 1;
    size_t end = size;
    while (end >= head && memcmp(data + end - head, fuzz_seal, head) != 0) end--;
    if (end < head) end = size;
    char *text = (char *)malloc(end + head + 32);
    if (text == NULL) abort();
    if (end) memcpy(text, data, end);
    if (end == size) {
        memcpy(text + end, fuzz_seal, head);
        end += head;
    }
    *bytes =
        end + (size_t)sprintf(text + end, "%016llx\"}\n", (unsigned long long)ck_hash(text, end));
    return text;
}

/* Everything that a reader would do with it, but for the files. */
static void fuzz_use(const ck_manifest *m) {
    for (int t = 0; t < m->ntensors; t++)
        for (int k = 0; k < m->tensor[t].narrays; k++) {
            const ck_tensor *x = &m->tensor[t];
            const uint64_t total = x->layers * x->numel;
            ck_copies list = {0, 0, NULL};
            ck_error e = {CHECKPOINT_OK, 0, ""};
            uint64_t found = 0;
            fuzz_demand(!ck_copies_dense(&list, m, t, k, 0, total / 3, total - total / 3, &e),
                        e.text);
            for (int i = 0; i < list.n; i++) {
                const ck_copy *c = &list.copy[i];
                found += c->count;
                fuzz_demand(c->file >= 0 && c->file < m->nfiles && c->count > 0
                                && c->offset >= CK_HEADER
                                && c->offset + c->count * zero_type_bytes(c->type)
                                       <= m->file[c->file].image_bytes,
                            "a piece outside its file");
            }
            fuzz_demand(found == total - total / 3, "elements are missing");
            free(list.copy);
        }
}

static void fuzz_manifest(const uint8_t *data, size_t size) {
    ck_manifest m, again;
    ck_error e = {CHECKPOINT_OK, 0, ""};
    size_t bytes, printed, twice;
    char *text = fuzz_sealed(data, size, &bytes);
    if (ck_manifest_parse(&m, text, bytes, &e) == CHECKPOINT_OK) {
        char *one = ck_manifest_print(&m, &printed);
        fuzz_demand(one != NULL, "nothing was printed");
        fuzz_use(&m);
        fuzz_demand(!ck_manifest_parse(&again, one, printed, &e), e.text);
        char *two = ck_manifest_print(&again, &twice);
        fuzz_demand(two != NULL && printed == twice && memcmp(one, two, twice) == 0,
                    "what was printed loads to something else");
        free(one);
        free(two);
        ck_manifest_free(&again);
    } else
        fuzz_demand(strlen(e.text) > 10, "an error without a sentence");
    ck_manifest_free(&m);
    free(text);
}

static void fuzz_header(const uint8_t *data, size_t size) {
    static uint8_t page[CK_HEADER], again[CK_HEADER];
    ck_header h;
    memset(page, 0, sizeof page);
    memcpy(page, data, size < 48 ? size : 48);
    if (size % 2) memcpy(page, "ZEROSHRD\1\0\0\0\0\0\x10", 16);
    const uint64_t hash = ck_hash(page, 48);
    for (int i = 0; i < 8; i++) page[48 + i] = (uint8_t)(hash >> (8 * i));
    if (!ck_header_read(page, &h)) return;
    ck_header_write(again, &h);
    fuzz_demand(memcmp(page, again, sizeof page) == 0, "a header is written as another one");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ck_manifest m;
    ck_error e = {CHECKPOINT_OK, 0, ""};
    fuzz_header(data, size);
    fuzz_manifest(data, size);
    (void)ck_manifest_parse(&m, (const char *)data, size, &e); /* its own checksum, if it has one */
    ck_manifest_free(&m);
    return 0;
}

static void fuzz_piece(ck_manifest *m, const char *name, int array, uint64_t count,
                       uint64_t offset) {
    ck_tensor *t = ck_manifest_tensor(m, name);
    if (t == NULL) abort();
    uint64_t first = 0;
    for (int i = 0; i < t->array[array].npieces; i++) first += t->array[array].piece[i].count;
    const ck_piece p = {array % 2, first, count, offset};
    if (ck_array_add(&t->array[array], &p) == NULL) abort();
    if (array == 0) t->numel += count;
    t->narrays = m->narrays;
}

/* A manifest that uses all that there is. */
static size_t fuzz_own(void *out) {
    ck_manifest m;
    ck_error e;
    const checkpoint_value v[] = {{"position", CHECKPOINT_INT, -12, 0, NULL},
                                  {"rate", CHECKPOINT_REAL, 0, 0.1, NULL},
                                  {"text", CHECKPOINT_TEXT, 0, 0, "a \"b\"\n"}};
    size_t bytes;
    memset(&m, 0, sizeof m);
    m.step = 20;
    m.save = 77;
    m.narrays = 3;
    m.nranks = m.nfiles = 2;
    m.counters.scale = 65536;
    m.counters.last_overflow = -1;
    (void)ck_optimizer_name(ZERO_ADAMW, m.optimizer);
    m.file = (ck_file *)calloc(2, sizeof *m.file);
    if (m.file == NULL || ck_manifest_set_values(&m, v, 3, &e)) abort();
    for (int i = 0; i < 2; i++) {
        ck_shard_name(m.file[i].name, i);
        m.file[i].image_bytes = 12288;
    }
    for (int k = 0; k < 3; k++) {
        fuzz_piece(&m, "wte", k, 100, 4096);
        fuzz_piece(&m, "wte", k, 37, 4544);
        fuzz_piece(&m, "b", k, 6, 8192);
    }
    char *text = ck_manifest_print(&m, &bytes);
    if (text == NULL || bytes > FUZZ_INPUT) abort();
    memcpy(out, text, bytes);
    free(text);
    ck_manifest_free(&m);
    return bytes;
}

/* A word that means something in a manifest. */
static const char *fuzz_word(void) {
    static const char *const own[] = {"2",
                                      "9007199254740992",
                                      "1e300",
                                      "4096",
                                      "4097",
                                      "\"wte\"",
                                      "[0, 0, 1, 4096]",
                                      "../x",
                                      "\"int\": \"9223372036854775808\"",
                                      "\"f32\"",
                                      "\"bf16\"",
                                      "\"fp16\""};
    return FUZZ_ONE_OF(own);
}

static size_t fuzz_seed(void *text) {
    return fuzz_ngiven && fuzz_below(2) ? fuzz_any_given(text) : fuzz_own(text);
}

#ifdef FUZZ_MAIN
/* A loss scale that is no float but 0 or infinity was taken, and could not be read again. */
static void fuzz_scales(void) {
    static const char *const wrong[] = {"1e-320", "3.45e38", "0", "-65536"};
    static char own[FUZZ_INPUT], text[FUZZ_INPUT + 16];
    const size_t length = fuzz_own(own);
    char *scale = strstr(own, "65536");
    for (int i = 0; i < 4 && scale; i++) {
        ck_manifest m;
        ck_error e = {CHECKPOINT_OK, 0, ""};
        size_t bytes;
        const int n = snprintf(text, sizeof text, "%.*s%s%.*s", (int)(scale - own), own, wrong[i],
                               (int)(own + length - scale - 5), scale + 5);
        char *sealed = fuzz_sealed((uint8_t *)text, (size_t)n, &bytes);
        fuzz_demand(ck_manifest_parse(&m, sealed, bytes, &e) && strstr(e.text, "counters"),
                    "a wrong loss scale is taken");
        ck_manifest_free(&m);
        free(sealed);
    }
    fuzz_demand(scale != NULL, "no scale");
}

int main(int argc, char **argv) {
    fuzz_scales();
    return fuzz_main(argc, argv, 200, 4);
}
#endif
