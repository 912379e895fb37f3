/* test_schedule.c: learning rates against DeepSpeed's own figures, llm.c's kinds against values
 * worked out here in another way, and parameters out of range.
 *
 *     test_schedule [FIGURES]      default: tests/reference/schedules.txt
 */
#include "../../adapters/schedule/schedule.h"
#include "../shared/harness.h"

#include <math.h>

static char sentence[512]; /* of the call before */

/* Equal to 12 digits; 0 and what stands for it exactly. */
static int near(double value, double expected) {
    return fabs(value - expected) <= 1e-12 * fabs(expected);
}

static schedule_value at(const schedule *s, int64_t step) {
    schedule_value out;
    schedule_at(s, step, &out);
    return out;
}

/* ---- DeepSpeed ---- */

typedef struct figures {
    FILE *file;
    schedule s;
    char label[160]; /* class and parameters of the case */
    int cases, values;
    double worst; /* relative difference over all cases */
} figures;

static void set_parameter(figures *f, const char *name, const char *value) {
    const size_t used = strlen(f->label);
    char *end;
    const double number = strtod(value, &end);
    const int bad = *end ? schedule_set_word(&f->s, name, value, sentence, sizeof sentence)
                         : schedule_set(&f->s, name, number, sentence, sizeof sentence);
    snprintf(f->label + used, sizeof f->label - used, " %s=%s", name, value);
    test_check(!bad, "%s: %s", f->label, sentence);
}

static void note_worst(figures *f, double value, double expected) {
    const double off = expected != 0 ? fabs(value / expected - 1) : fabs(value);
    f->worst = off > f->worst ? off : f->worst;
}

static void compare_step(figures *f, int step) {
    double lr, beta1, beta2;
    if (fscanf(f->file, "%lf %lf %lf", &lr, &beta1, &beta2) != 3) {
        test_check(0, "%s: no figures for step %d", f->label, step);
        return;
    }
    const schedule_value v = at(&f->s, step);
    test_check(near(v.lr, lr) && near(v.beta1, beta1) && near(v.beta2, beta2),
               "%s, step %d: lr %.17g %.17g %.17g, DeepSpeed has %.17g %.17g %.17g", f->label, step,
               v.lr, v.beta1, v.beta2, lr, beta1, beta2);
    note_worst(f, v.lr, lr);
    note_worst(f, v.beta1, beta1);
    f->values++;
}

static void begin_case(figures *f, const char *name) {
    schedule_kind kind = SCHEDULE_COSINE;
    test_check(schedule_from_name(name, &kind) == 0 && kind >= SCHEDULE_WARMUP,
               "%s is no schedule of DeepSpeed's", name);
    schedule_defaults(&f->s, kind);
    snprintf(f->label, sizeof f->label, "%s", name);
    f->cases++;
}

static void run_steps(figures *f, int steps) {
    test_check(schedule_check(&f->s, sentence, sizeof sentence) == 0, "%s: %s", f->label, sentence);
    for (int step = 0; step < steps; step++) compare_step(f, step);
}

/* Lines of words, and after `steps N` those that compare_step reads. */
static void test_deepspeed(const char *path) {
    static figures f;
    char line[256], name[64], value[64];
    f.file = fopen(path, "r");
    if (!test_check(f.file != NULL, "%s cannot be read", path)) return;
    while (fgets(line, sizeof line, f.file)) {
        if (sscanf(line, "schedule %63s", name) == 1)
            begin_case(&f, name);
        else if (sscanf(line, "set %63s %63s", name, value) == 2)
            set_parameter(&f, name, value);
        else if (sscanf(line, "steps %63s", value) == 1)
            run_steps(&f, atoi(value));
        else if (strncmp(line, "optimizer", 9) == 0)
            test_check(sscanf(line + 9, "%lf %lf %lf", &f.s.lr, &f.s.beta1, &f.s.beta2) == 3,
                       "%s: %s", path, line);
        else
            test_check(line[0] == '#' || line[0] == '\n', "%s: what is %s", path, line);
    }
    (void)fclose(f.file);
    test_check(f.cases >= 12 && f.values >= 12 * 60, "only %d cases of DeepSpeed's", f.cases);
    printf("%d cases, %d updates; largest difference from DeepSpeed %.1e\n", f.cases, f.values,
           f.worst);
}

/* WarmupLR at its defaults has lr 0 in the first two updates, then lr * log(step) / log(1000);
   after the warm-up lr for ever. */
static void test_warmup_far(void) {
    schedule s;
    schedule_defaults(&s, SCHEDULE_WARMUP);
    s.lr = 0.25;
    test_check(at(&s, 0).lr <= 0 && at(&s, 1).lr <= 0, "WarmupLR does not begin with 0 twice");
    test_check(near(at(&s, 11).lr, 0.25 * log(11) / log(1000)), "WarmupLR, step 11");
    test_check(near(at(&s, 101).lr, 0.25 * log(101) / log(1000)), "WarmupLR, step 101");
    test_check(near(at(&s, 1001).lr, 0.25), "WarmupLR, step 1001");
    test_check(near(at(&s, (int64_t)1 << 52).lr, 0.25), "WarmupLR, step 2^52");
}

/* ---- llm.c ---- */

static schedule llmc(schedule_kind kind, double lr, int64_t warmup, int64_t total, double final) {
    schedule s;
    schedule_defaults(&s, kind);
    s.lr = lr;
    s.beta1 = 0.9;
    s.beta2 = 0.95;
    s.warmup_steps = warmup;
    s.total_steps = total;
    s.final_fraction = final;
    return s;
}

/* 1/4 + 3/4 share, for 10 steps of warm-up and 100 in all: the fall has 90 steps, so a third of it
   is step 40 and its half step 55; the cosine of a third of the way is 3/4 high. */
static void test_llmc_values(void) {
    static const struct {
        schedule_kind kind;
        int64_t step;
        double expected; /* for lr 8 */
    } rows[] = {
        {SCHEDULE_COSINE, 0, 0.8},   {SCHEDULE_COSINE, 9, 8},      {SCHEDULE_COSINE, 10, 8},
        {SCHEDULE_COSINE, 40, 6.5},  {SCHEDULE_COSINE, 55, 5},     {SCHEDULE_COSINE, 70, 3.5},
        {SCHEDULE_COSINE, 100, 2},   {SCHEDULE_COSINE, 101, 2},    {SCHEDULE_COSINE, 5000, 2},
        {SCHEDULE_LINEAR, 4, 4},     {SCHEDULE_LINEAR, 10, 8},     {SCHEDULE_LINEAR, 40, 6},
        {SCHEDULE_LINEAR, 55, 5},    {SCHEDULE_LINEAR, 100, 2},    {SCHEDULE_LINEAR, 5000, 2},
        {SCHEDULE_CONSTANT, 1, 1.6}, {SCHEDULE_CONSTANT, 10, 8},   {SCHEDULE_CONSTANT, 55, 8},
        {SCHEDULE_CONSTANT, 100, 8}, {SCHEDULE_CONSTANT, 5000, 8}, {SCHEDULE_WSD, 6, 5.6},
        {SCHEDULE_WSD, 10, 8},       {SCHEDULE_WSD, 79, 8},        {SCHEDULE_WSD, 80, 8},
        {SCHEDULE_WSD, 85, 5},       {SCHEDULE_WSD, 100, 2},       {SCHEDULE_WSD, 5000, 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const schedule s = llmc(rows[i].kind, 8, 10, 100, 0.25);
        const schedule_value v = at(&s, rows[i].step);
        test_check(near(v.lr, rows[i].expected) && near(v.beta1, 0.9) && near(v.beta2, 0.95),
                   "%s, step %d: %.17g, expected %g", schedule_name(rows[i].kind),
                   (int)rows[i].step, v.lr, rows[i].expected);
    }
}

/* Every step of several shapes: the warm-up by adding, the falls by other formulas:
   (1 + cos(pi x)) / 2 = cos^2(pi x / 2). */
static double llmc_expected(const schedule *s, int step) {
    const double low = s->lr * s->final_fraction, high = s->lr;
    double rise = 0, left = (double)(s->total_steps - step);
    if (step < s->warmup_steps) {
        for (int i = 0; i <= step; i++) rise += high / (double)s->warmup_steps;
        return rise;
    }
    left = left > 0 ? left : 0;
    const double x = 1 - left / (double)(s->total_steps - s->warmup_steps);
    const double half = cos(1.5707963267948966 * x);
    switch ((int)s->kind) {
    case SCHEDULE_COSINE: return low + (high - low) * half * half;
    case SCHEDULE_LINEAR: return low * x + high * (1 - x);
    case SCHEDULE_CONSTANT: return high;
    default: break;
    }
    const int fall = (int)(s->total_steps * 8 / 10);
    return step < fall ? high
                       : high - (high - low) * sqrt(1 - left / (double)(s->total_steps - fall));
}

static void test_llmc_every_step(void) {
    static const struct {
        int warmup, total;
    } shapes[] = {{0, 1}, {0, 7}, {1, 2}, {100, 2000}, {13, 57}};
    for (int kind = SCHEDULE_COSINE; kind <= SCHEDULE_WSD; kind++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            const schedule s =
                llmc((schedule_kind)kind, 3e-4, shapes[i].warmup, shapes[i].total, 0.1);
            double worst = 0;
            test_check(schedule_check(&s, sentence, sizeof sentence) == 0, "%s", sentence);
            for (int step = 0; step < shapes[i].total + 3; step++)
                worst = fmax(worst, fabs(at(&s, step).lr / llmc_expected(&s, step) - 1));
            test_check(worst < 1e-12, "%s, warm-up %d of %d: off by %g", schedule_name(s.kind),
                       shapes[i].warmup, shapes[i].total, worst);
        }
}

/* Shapes whose warm-up takes all there is, and none at all. */
static void test_llmc_edges(void) {
    for (int kind = SCHEDULE_COSINE; kind <= SCHEDULE_WSD; kind++) {
        const schedule full = llmc((schedule_kind)kind, 1, 50, 50, 0.5);
        const schedule empty = llmc((schedule_kind)kind, 1, 0, 0, 0.5);
        test_check(near(at(&full, 24).lr, 0.5), "%s: half of a warm-up", schedule_name(full.kind));
        test_check(near(at(&full, 60).lr, kind == SCHEDULE_WSD ? 0.5 : 1), "%s: after a warm-up",
                   schedule_name(full.kind));
        test_check(near(at(&empty, 0).lr, 1), "%s: 0 steps", schedule_name(empty.kind));
    }
}

/* ---- names and ranges ---- */

static void test_names(void) {
    schedule_kind kind;
    for (int i = 0; i < SCHEDULE_KINDS; i++) {
        const char *name = schedule_name((schedule_kind)i);
        test_check(name[0] && schedule_from_name(name, &kind) == 0 && kind == (schedule_kind)i,
                   "the name of kind %d", i);
    }
    test_check(schedule_name(SCHEDULE_KINDS)[0] == 0, "a name of no kind");
    test_check(schedule_from_name("warmuplr", &kind) && schedule_from_name("", &kind)
                   && schedule_from_name("cosin", &kind),
               "names that are none");
}

/* A schedule of each kind that schedule_check accepts. */
static schedule good(schedule_kind kind) {
    schedule s;
    schedule_defaults(&s, kind);
    s.lr = 1e-3;
    s.beta1 = 0.9;
    s.beta2 = 0.99;
    s.total_steps = s.total_num_steps = 100;
    s.cycle_min_lr = 1e-4;
    s.cycle_max_lr = 1e-3;
    return s;
}

/* 1: the sentence has the name of the kind, of the field, and the word "expected". */
static int sentence_names(schedule_kind kind, const char *field) {
    return strstr(sentence, schedule_name(kind)) && strstr(sentence, field)
           && strstr(sentence, "expected");
}

static void test_field_range(schedule_kind kind, const schedule_field *f) {
    const double bad[] = {f->least - 1, f->most * 1.001 + 1e-3, NAN, INFINITY,
                          f->type == SCHEDULE_REAL ? -INFINITY : 0.5};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        schedule s = good(kind), before = s;
        sentence[0] = 0;
        test_check(schedule_set(&s, f->name, bad[i], sentence, sizeof sentence) == 1
                       && sentence_names(kind, f->name) && memcmp(&s, &before, sizeof s) == 0,
                   "%s: %s = %g: %s", schedule_name(kind), f->name, bad[i], sentence);
    }
    for (int end = 0; end < 2; end++) {
        schedule s = good(kind);
        test_check(schedule_set(&s, f->name, end ? f->most : f->least, sentence, sizeof sentence)
                           == 0
                       && schedule_check(&s, sentence, sizeof sentence) == 0,
                   "%s: an end of the range: %s", schedule_name(kind), sentence);
    }
}

/* Each parameter through its table: out of range both ways, no number, both ends; and what is not
   given is missed only where it is needed. */
static void test_ranges(void) {
    size_t count;
    const schedule_field *f = schedule_fields(&count);
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
        const schedule fine = good((schedule_kind)kind);
        test_check(schedule_check(&fine, sentence, sizeof sentence) == 0, "%s", sentence);
        for (size_t i = 0; i < count; i++) {
            if (schedule_find((schedule_kind)kind, f[i].name) != &f[i]) continue;
            test_field_range((schedule_kind)kind, &f[i]);
        }
    }
}

static void test_needed(void) {
    static const struct {
        schedule_kind kind;
        const char *field; /* the first that is missed; "": none */
    } rows[] = {
        {SCHEDULE_COSINE, "total_steps"},
        {SCHEDULE_LINEAR, "total_steps"},
        {SCHEDULE_CONSTANT, ""},
        {SCHEDULE_WSD, "total_steps"},
        {SCHEDULE_WARMUP, ""},
        {SCHEDULE_WARMUP_DECAY, "total_num_steps"},
        {SCHEDULE_WARMUP_COSINE, "total_num_steps"},
        {SCHEDULE_ONE_CYCLE, "cycle_min_lr"},
        {SCHEDULE_RANGE_TEST, ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        schedule s;
        schedule_defaults(&s, rows[i].kind);
        const int bad = schedule_check(&s, sentence, sizeof sentence);
        test_check(rows[i].field[0] ? bad && sentence_names(rows[i].kind, rows[i].field) : !bad,
                   "%s at its defaults: %s", schedule_name(rows[i].kind), sentence);
    }
}

/* Fields that were written directly, without schedule_set. */
static void test_check_direct(void) {
    schedule s = good(SCHEDULE_WARMUP);
    s.warmup_num_steps = 0;
    test_check(schedule_check(&s, sentence, sizeof sentence)
                   && strcmp(sentence, "WarmupLR: warmup_num_steps is 0; expected a whole number "
                                       "from 1 to 9e+15")
                          == 0,
               "warmup_num_steps 0: %s", sentence);
    s = good(SCHEDULE_ONE_CYCLE);
    s.cycle_first_step_size = SCHEDULE_NOT_GIVEN;
    test_check(schedule_check(&s, sentence, sizeof sentence)
                   && sentence_names(s.kind, "cycle_first_step_size is -1"),
               "cycle_first_step_size -1: %s", sentence);
    s = good(SCHEDULE_COSINE);
    s.lr = -1;
    test_check(schedule_check(&s, sentence, sizeof sentence) && sentence_names(s.kind, "lr is -1"),
               "lr -1: %s", sentence);
    s = good(SCHEDULE_WSD);
    s.beta2 = 1;
    test_check(schedule_check(&s, sentence, sizeof sentence)
                   && sentence_names(s.kind, "beta2 is 1; expected a number from 0 to below 1"),
               "beta2 1: %s", sentence);
    s.kind = SCHEDULE_KINDS;
    test_check(schedule_check(&s, sentence, sizeof sentence) && strstr(sentence, "expected 0 to 8"),
               "a kind that is none: %s", sentence);
}

static void test_words(void) {
    schedule s = good(SCHEDULE_WARMUP_COSINE);
    test_check(schedule_set_word(&s, "warmup_type", "linear", sentence, sizeof sentence) == 0
                   && s.warmup_type == SCHEDULE_WARMUP_LINEAR,
               "warmup_type linear");
    test_check(schedule_set_word(&s, "warmup_type", "log", sentence, sizeof sentence) == 0
                   && s.warmup_type == SCHEDULE_LOG,
               "warmup_type log");
    static const char *const bad[] = {"cosine", "", "lin", "log linear"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        test_check(schedule_set_word(&s, "warmup_type", bad[i], sentence, sizeof sentence)
                       && sentence_names(s.kind, "warmup_type") && strstr(sentence, "log linear"),
                   "warmup_type \"%s\": %s", bad[i], sentence);
    test_check(schedule_set_word(&s, "cos_min_ratio", "log", sentence, sizeof sentence)
                   && sentence_names(s.kind, "cos_min_ratio"),
               "a word for a number: %s", sentence);
    test_check(schedule_set(&s, "cycle_max_lr", 1, sentence, sizeof sentence)
                   && sentence_names(s.kind, "cycle_max_lr") && strstr(sentence, "cos_min_ratio"),
               "a parameter of another kind: %s", sentence);
    schedule_defaults(&s, SCHEDULE_ONE_CYCLE);
    test_check(schedule_set_word(&s, "warmup", "log", sentence, sizeof sentence)
                   && strstr(sentence, "decay_mom_rate"),
               "the whole list fits: %s", sentence);
    test_check(schedule_set(&s, "x", 1, sentence, 8) && strlen(sentence) == 7, "a short sentence");
}

int main(int argc, char **argv) {
    test_deepspeed(argc > 1 ? argv[1] : "tests/reference/schedules.txt");
    test_warmup_far();
    test_llmc_values();
    test_llmc_every_step();
    test_llmc_edges();
    test_names();
    test_ranges();
    test_needed();
    test_check_direct();
    test_words();
    return test_summary();
}
