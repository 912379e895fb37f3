/* fuzz_machine - any text as a machine's file of rates (zero_plan -m), lines or JSON; what is
   accepted has finite rates alone, and is written and read again to the same. Two ways to build it:
     clang -fsanitize=fuzzer,address,undefined: a libFuzzer target
     cc -DFUZZ_MAIN: fuzz_machine SECONDS SEED [FILE...] changes the files, or one of its own, at
   random, and prints `N passed, N failed` */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../../adapters/plan/machine.h"

#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#define FUZZ_TEXT
#include "fuzz.h"

/* Files in memory: the input, and what is written of it. */
static struct {
    int descriptor;
    char path[64];
} fuzz_in, fuzz_out;

static void fuzz_start(void) {
    if (fuzz_in.path[0]) return;
    fuzz_in.descriptor = memfd_create("in", MFD_CLOEXEC);
    fuzz_out.descriptor = memfd_create("out", MFD_CLOEXEC);
    (void)sprintf(fuzz_in.path, "/proc/self/fd/%d", fuzz_in.descriptor);
    (void)sprintf(fuzz_out.path, "/proc/self/fd/%d", fuzz_out.descriptor);
}

static void fuzz_rate(double rate) {
    fuzz_demand(isfinite(rate) && rate >= 0, "a rate that is none");
}

static void fuzz_rates(const machine *m) {
    for (int t = 0; t < ZERO_TYPES; t++) {
        const machine_rates *r = &m->type[t];
        fuzz_rate(r->flops);
        fuzz_rate(r->attention);
        fuzz_rate(r->vocabulary);
        fuzz_demand(r->widths >= 0 && r->widths <= MACHINE_WIDTHS, "too many widths");
        for (int i = 0; i < r->widths; i++) {
            fuzz_rate(r->width[i]);
            fuzz_rate(r->block[i]);
            fuzz_demand(i == 0 || r->width[i - 1] <= r->width[i], "widths in no order");
        }
    }
    const double rest[] = {m->update,      m->link, m->overlap, m->host_link,
                           m->host_update, m->disk, m->coding,  m->latency};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) fuzz_rate(rest[i]);
    fuzz_demand(m->overlap <= 1 && memchr(m->name, 0, sizeof m->name) != NULL, "overlap, name");
}

/* Written: its length. */
static size_t fuzz_written(const machine *m, char *text) {
    char sentence[400];
    fuzz_demand(machine_write(fuzz_out.path, m, "fuzz", sentence, sizeof sentence) == 0, sentence);
    return fuzz_file(fuzz_out.path, text, FUZZ_INPUT);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char one[FUZZ_INPUT], two[FUZZ_INPUT];
    static size_t before;
    char sentence[400] = "";
    machine m, again;
    fuzz_start();
    fuzz_demand(pwrite(fuzz_in.descriptor, data, size, 0) == (ssize_t)size
                    && (size >= before || ftruncate(fuzz_in.descriptor, (off_t)size) == 0),
                "no memory");
    before = size;
    if (machine_read(fuzz_in.path, &m, sentence, sizeof sentence)) {
        fuzz_demand(memchr(sentence, 0, sizeof sentence) != NULL && strlen(sentence) > 10,
                    "an error without a sentence");
        return 0;
    }
    fuzz_rates(&m);
    m.name[0] = 0; /* JSON's may have what ends a line */
    const size_t length = fuzz_written(&m, one);
    if (machine_read(fuzz_out.path, &again, sentence, sizeof sentence)) fuzz_demand(0, sentence);
    fuzz_demand(fuzz_written(&again, two) == length && memcmp(one, two, length) == 0,
                "what was written reads as something else");
    return 0;
}

static const char *fuzz_word(void) {
    static const char *const own[] = {"device=gpu\n",
                                      "device=cpu\n",
                                      "name=x\n",
                                      "\nflops.f32=1e12\n",
                                      "block.bf16.64=2e11\n",
                                      "block.fp16.1e3=5\n",
                                      "attention.bf16=",
                                      "vocabulary.f32",
                                      "overlap=0.5\n",
                                      "latency=",
                                      "=",
                                      ".",
                                      "f32",
                                      "1e308",
                                      "1.7999e308",
                                      "\"link\": 5e9,",
                                      "\"block.f32.64\":",
                                      "\"\\u0000\""};
    return FUZZ_ONE_OF(own);
}

static size_t fuzz_seed(void *text) {
    static const char *const own[] = {
        "# a machine\ndevice=cpu\nname=A core\nflops.f32=1.2e11\nblock.f32.128=9e10\n"
        "block.f32.384=1.1e11\nattention.f32=4e10\nvocabulary.f32=1e11\nupdate=8e9\nlink=1e9\n"
        "overlap=0.9\ndisk=1e9\ncoding=3e9\nlatency=5e-6\n",
        "{\"device\": \"gpu\", \"name\": \"card\", \"flops.bf16\": 8e14, \"block.bf16.768\": "
        "5e14,\n"
        " \"update\": 2.5e12, \"link\": \"4e11\", \"host_link\": 5e10, \"host_update\": 6e10}\n"};
    if (fuzz_ngiven && fuzz_below(3) == 0) return fuzz_any_given(text);
    const char *from = own[fuzz_below(2)];
    memcpy(text, from, strlen(from));
    return strlen(from);
}

#ifdef FUZZ_MAIN
int main(int argc, char **argv) { return fuzz_main(argc, argv, 200, 4); }
#endif
