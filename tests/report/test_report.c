/* test_report.c - what rank 0 says: the line of a step, the plan of memory, progress in a file,
   rates; and which answer HellaSwag counts, from losses that are written here. Nothing of it needs
   a model.

       test_report [FILE]      a file to write examples to, /tmp/zero_test_report.PID without
*/
#include "adapters/eval/hellaswag.h"
#include "adapters/report/pace.h"
#include "adapters/report/plan_rows.h"
#include "adapters/report/progress.h"
#include "adapters/report/step_line.h"

#include <math.h>

#include "../shared/harness.h"

/* ---- the line of a step -------------------------------------------------------------------- */

static void test_step_line(void) {
    char text[STEP_LINE_BYTES];
    zero_step_report done;
    step_line v = {7,   2000,        4.25,    NAN,   NAN, 1e-3, 0.0125,
                   0.5, "of matmul", 81920.4, &done, 0,   0,    0};
    memset(&done, 0, sizeof done);
    done.norm = 1.5;
    done.stepped = 1;
    done.loss_scale = done.next_loss_scale = 1;
    step_line_print(&v, text);
    test_check(strcmp(text, "step    7/2000 | loss 4.250000 | norm 1.5000 | lr 1.00e-03 | 12.50 ms "
                            "| 50.0% of matmul | 81920 tok/s\n")
                   == 0,
               "the first steps: '%s'", text);
    v.loss_z = 0.314;
    v.norm_z = -2;
    done.loss_scale = 64;
    done.next_loss_scale = 32;
    done.skipped = 2;
    done.stepped = 0;
    done.bad_tensor = "wte";
    done.bad_index = 5;
    done.bad_rank = 1;
    step_line_print(&v, text);
    test_check(strcmp(text, "step    7/2000 | loss 4.250000 (+0.31z)| norm 1.5000 (-2.00z)| lr "
                            "1.00e-03 | 12.50 ms | 50.0% of matmul | 81920 tok/s | scale 64, next "
                            "32 | skipped 2: wte[5], owned by rank 1, is not finite\n")
                   == 0,
               "a skipped step: '%s'", text);
    step_line_brief(&v, text);
    test_check(strlen(text) < 50, "the short line has %zu characters", strlen(text));
}

/* A step that is faster than the measured product must be seen as one. */
static void test_step_share(void) {
    char text[STEP_LINE_BYTES];
    zero_step_report done;
    step_line v;
    memset(&done, 0, sizeof done);
    memset(&v, 0, sizeof v);
    v.done = &done;
    step_line_share(&v, 145, 100, 0);
    step_line_print(&v, text);
    test_check(strstr(text, "| 145.0% of matmul, above the measured peak |") != NULL,
               "above the measured peak: '%s'", text);
    step_line_share(&v, 300, 100, 200);
    step_line_print(&v, text);
    test_check(strstr(text, "| 150.0% MFU, above the stated peak |") != NULL,
               "above the stated peak: '%s'", text);
    step_line_share(&v, 50, 100, 200);
    test_check(v.share == 0.25 && !strcmp(v.share_of, "MFU"), "of the stated peak: %g %s", v.share,
               v.share_of);
    step_line_share(&v, 100, 100, 0);
    test_check(v.share == 1 && !strcmp(v.share_of, "of matmul"), "at the peak: %g %s", v.share,
               v.share_of);
    step_line_share(&v, 100, 0, 0);
    test_check(v.share == 0, "without a peak: %g", v.share);
}

/* ---- progress ------------------------------------------------------------------------------ */

/* What is said to stdout goes to a file meanwhile; `text` gets it. */
static int saved_stdout;
static FILE *heard;
static void listen_begin(void) {
    fflush(stdout);
    saved_stdout = dup(STDOUT_FILENO);
    heard = tmpfile();
    if (heard == NULL || saved_stdout < 0) exit(1);
    dup2(fileno(heard), STDOUT_FILENO);
}
static void listen_end(char *text, size_t bytes) {
    fflush(stdout);
    dup2(saved_stdout, STDOUT_FILENO);
    close(saved_stdout);
    rewind(heard);
    const size_t got = fread(text, 1, bytes - 1, heard);
    text[got] = 0;
    fclose(heard);
}

/* In a file: nothing at first, a line when it has taken long, and its words. */
static void test_progress_file(void) {
    char text[1024];
    report out;
    progress p;
    memset(&out, 0, sizeof out);
    out.speaks = 1;
    listen_begin();
    progress_begin(&p, &out, "validation");
    progress_at(&p, 0.25, NULL);
    listen_end(text, sizeof text);
    test_check(text[0] == 0, "short work said '%s'", text);
    static const struct {
        double done, seconds;
        const char *line;
    } cases[] = {
        {0.25, 30, "validation | 25% done, 1 min 30 s left\n"},
        {0.996, 249, "validation | 99% done, 0 min 01 s left\n"},
        {0.29, 29, "validation | 29% done, 1 min 11 s left\n"},
        {0.01, 120, "validation | 1% done, 3 h 18 min left\n"},
        {1, 100, "validation | 100% done\n"},
        {1.5, 100, "validation | 100% done\n"},
        {0, 100, "validation | 0% done\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        listen_begin();
        progress_begin(&p, &out, "validation");
        p.began -= cases[i].seconds;
        p.told -= cases[i].seconds;
        progress_at(&p, cases[i].done, NULL);
        progress_at(&p, cases[i].done, NULL); /* not again so soon */
        progress_at(&p, cases[i].done, "of a terminal alone");
        listen_end(text, sizeof text);
        test_check(strcmp(text, cases[i].line) == 0, "expected '%s', found '%s'", cases[i].line,
                   text);
    }
    listen_begin();
    progress_phase(&out, "reading the weights", (uint64_t)255 << 20);
    progress_phase(&out, "reading the weights", (uint64_t)300 << 20);
    out.speaks = 0;
    progress_phase(&out, "another rank", (uint64_t)300 << 20);
    listen_end(text, sizeof text);
    test_check(strcmp(text, "reading the weights, 300 MiB\n") == 0, "phases: '%s'", text);
}

/* On a terminal: cut to its width (79 where that is not known), and cleared by what is said next.
 */
static void test_live_line(void) {
    char text[1024], line[200];
    report out;
    memset(&out, 0, sizeof out);
    out.speaks = out.terminal = 1;
    memset(line, 'x', sizeof line - 1);
    line[sizeof line - 1] = 0;
    listen_begin();
    report_live(&out, line);
    report_live(&out, "short");
    report_print(&out, "said\n");
    report_clear(&out);
    listen_end(text, sizeof text);
    char wanted[256];
    snprintf(wanted, sizeof wanted, "\r\033[K%.79s\r\033[Kshort\r\033[Ksaid\n", line);
    test_check(strcmp(text, wanted) == 0, "live lines: '%s'", text);
}

static void test_pace(void) {
    pace p;
    memset(&p, 0, sizeof p);
    test_check(pace_mean(&p) == 0, "no step has a mean");
    pace_begin(&p);
    pace_end(&p, 100);
    test_check(pace_mean(&p) == 0 && p.smooth == p.rate && p.steps == 1, "the first step counts");
    pace_begin(&p);
    pace_end(&p, 100);
    test_check(pace_mean(&p) == p.seconds && fabs(p.smooth / p.rate - 1) < 1e-9,
               "of two steps the second: %g of %g", p.smooth, p.rate);
}

/* ---- HellaSwag ----------------------------------------------------------------------------- */

enum { EXAMPLES = 11, WINDOW = 12, VOCABULARY = 50 };

static size_t put_numbers(uint16_t *file, uint16_t *best, uint64_t seed) {
    test_random r = {seed};
    size_t used = 0;
    for (uint16_t e = 0; e < EXAMPLES; e++) {
        const size_t start = used;
        double least = 1e30;
        file[used++] = 65535;
        used++;
        file[used++] = e;
        file[used++] = (uint16_t)(test_next(&r) % 4);
        file[used++] = 4;
        const uint16_t context = (uint16_t)(1 + test_next(&r) % 6);
        file[used++] = context;
        for (int i = 0; i < context; i++) file[used++] = (uint16_t)(test_next(&r) % VOCABULARY);
        for (uint16_t c = 0; c < 4; c++) {
            const uint16_t count = (uint16_t)(1 + test_next(&r) % 7);
            double sum = 0;
            file[used++] = count;
            for (int i = 0; i < count; i++) {
                file[used] = (uint16_t)(test_next(&r) % VOCABULARY);
                sum += file[used++];
            }
            if (sum / count < least) best[e] = c;
            if (sum / count < least) least = sum / count;
        }
        file[start + 1] = (uint16_t)(2 * (used - start));
    }
    return used;
}

static int64_t right_of(const uint16_t *file, const uint16_t *best) {
    int64_t right = 0;
    for (size_t at = 0, e = 0; e < EXAMPLES; at += file[at + 1] / 2u, e++)
        right += file[at + 3] == best[e];
    return right;
}

/* The loss of a token is the token itself: the model has no say. Any number of rows at once, any
   number of ranks, and the same examples are right. */
static int64_t count_right(const char *path, int ranks, int rows, int64_t *asked) {
    int inputs[30 * WINDOW], targets[30 * WINDOW];
    float losses[30 * WINDOW];
    int64_t right = 0, passes = -1;
    *asked = 0;
    for (int rank = 0; rank < ranks; rank++) {
        char error[512] = "";
        hellaswag h;
        memset(&h, 0, sizeof h);
        h.rank = rank;
        h.nranks = ranks;
        h.rows = rows;
        h.seq_len = WINDOW;
        if (hellaswag_open(&h, path, VOCABULARY, error, sizeof error) != DATA_OK) {
            fprintf(stderr, "%s\n", error);
            return -1;
        }
        if (passes >= 0 && passes != hellaswag_passes(&h)) return -2;
        passes = hellaswag_passes(&h);
        hellaswag_begin(&h);
        for (int64_t pass = 0; pass < passes; pass++) {
            int filled = 0;
            if (hellaswag_fill(&h, inputs, targets, &filled, error, sizeof error) != DATA_OK)
                return -3;
            for (int i = 0; i < filled * WINDOW; i++) losses[i] = (float)targets[i];
            hellaswag_count(&h, losses);
        }
        right += h.right;
        *asked += h.asked;
        hellaswag_close(&h);
    }
    return right;
}

static void test_hellaswag(const char *path) {
    static const int rows[] = {1, 2, 3, 4, 5, 7, 12, 30};
    uint16_t file[2000], best[EXAMPLES];
    int32_t header[256] = {EVAL_FILE_MAGIC, EVAL_FILE_VERSION, EXAMPLES};
    for (uint64_t seed = 1; seed <= 8; seed++) {
        const size_t numbers = put_numbers(file, best, seed);
        FILE *out = fopen(path, "wb");
        if (out == NULL || fwrite(header, sizeof header, 1, out) != 1
            || fwrite(file, sizeof *file, numbers, out) != numbers || fclose(out) != 0)
            exit(1);
        for (int ranks = 1; ranks <= 13; ranks += ranks < 3 ? 1 : 5)
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                int64_t asked = 0;
                const int64_t right = count_right(path, ranks, rows[i], &asked);
                test_check(right == right_of(file, best) && asked == EXAMPLES,
                           "seed %d, %d ranks, %d rows: %d of %d right, expected %d of %d",
                           (int)seed, ranks, rows[i], (int)right, (int)asked,
                           (int)right_of(file, best), EXAMPLES);
            }
    }
    remove(path);
}

/* ---- the plan ------------------------------------------------------------------------------ */

static void check_plan(const zero_config *c, int host_is_device, const char *const *lines) {
    char text[2048];
    report out;
    zero_plan p;
    memset(&p, 0, sizeof p);
    memset(&out, 0, sizeof out);
    out.speaks = 1;
    p.param_bytes = (size_t)1 << 20;
    p.grad_bytes = (size_t)2 << 20;
    p.optimizer_bytes = (size_t)4 << 20;
    p.buffer_bytes = (size_t)8 << 20;
    if (c->optimizer_tier == ZERO_FILE) {
        p.accumulator_bytes = (size_t)3 << 20;
        p.file_bytes = (size_t)16 << 20;
        p.file_way = c->folder ? "calls, past" : NULL;
        p.file_read_bytes = (size_t)32 << 20;
        p.file_written_bytes = (size_t)64 << 20;
    }
    if (c->optimizer_tier == ZERO_HOST && !host_is_device) {
        p.host_bytes = (size_t)128 << 20;
        p.pinned_bytes = (size_t)48 << 20;
        p.down_bytes = (size_t)24 << 20;
        p.up_bytes = (size_t)12 << 20;
        p.update_on = c->update_on == ZERO_UPDATE_HOST || c->parameter_tier ? ZERO_UPDATE_HOST
                                                                            : ZERO_UPDATE_DEVICE;
        p.update_host_s = 0.002;
        p.update_device_s = 0.0015;
    }
    listen_begin();
    plan_rows(&out, &p, c, host_is_device);
    listen_end(text, sizeof text);
    for (; *lines != NULL; lines++) {
        const int absent = **lines == '!';
        test_check((strstr(text, *lines + absent) == NULL) == absent, "expected '%s' in:\n%s",
                   *lines, text);
    }
}

static void test_plan_rows(void) {
    static const char *const device[] = {
        "| memory of a rank     | 15.0 MiB  ", "!offload", "!host", "!update", "!file", NULL};
    static const char *const host[] = {
        "| offload              | parameters device, gradients host, optimizer host  ",
        "|   host               | is device: the CPU version has one memory  ",
        "|   optimizer state    | 4.0 MiB   ", NULL};
    static const char *const gpu[] = {
        "!is device",
        "|   parameters         | 1.0 MiB   ",
        "|   gradients          | 2.0 MiB   ",
        "|   optimizer state    | 4.0 MiB   ",
        "| host, of a rank      | 128.0 MiB, state and",
        "|   pinned             | 48.0 MiB, exactly",
        "|   down in a step     | 24.0 MiB  ",
        "|   up in a step       | 12.0 MiB  ",
        "| offload              | parameters device, gradients device, optimizer host ",
        "| update               | by the GPU, with a copy of the state",
        "|   by the CPU         | 2 ms at ",
        "|   by the GPU         | 1.5 ms  ",
        NULL};
    static const char *const only[] = {
        "| offload              | parameters host, gradients host, optimizer host  ",
        "| update               | by the CPU, required by -zog, -zop or -zod           |", NULL};
    static const char *const asked[] = {"| update               | by the CPU, as asked for  ",
                                        NULL};
    static const char *const share[] = {
        "|   of                 | 0.25 of the elements; the rest: device  ",
        "|   optimizer state    | 4.0 MiB   ", "| host, of a rank      | 128.0 MiB, state and",
        NULL};
    static const char *const file[] = {"| file of a rank       | 16.0 MiB, pieces are checked  ",
                                       "|   sums in memory     | 3.0 MiB, in buffers",
                                       "|   in                 | /fast  ",
                                       "|   by                 | calls, past  ",
                                       "|   read in a step     | 32.0 MiB  ",
                                       "|   written in a step  | 64.0 MiB  ",
                                       NULL};
    zero_config c;
    memset(&c, 0, sizeof c);
    c.offload_share = 1;
    check_plan(&c, 1, device);
    c.optimizer_tier = c.gradient_tier = ZERO_HOST;
    check_plan(&c, 1, host);
    check_plan(&c, 0, gpu);
    c.parameter_tier = ZERO_HOST;
    check_plan(&c, 0, only);
    c.update_on = ZERO_UPDATE_HOST;
    check_plan(&c, 0, asked);
    c.parameter_tier = ZERO_DEVICE;
    c.update_on = ZERO_UPDATE_AUTO;
    c.offload_share = 0.25f;
    check_plan(&c, 0, share);
    c.optimizer_tier = c.gradient_tier = ZERO_FILE;
    c.folder = "/fast";
    check_plan(&c, 1, file);
}

int main(int argc, char **argv) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/zero_test_report.%ld", (long)getpid());
    test_step_line();
    test_step_share();
    test_progress_file();
    test_live_line();
    test_plan_rows();
    test_pace();
    test_hellaswag(argc > 1 ? argv[1] : path);
    return test_summary();
}
