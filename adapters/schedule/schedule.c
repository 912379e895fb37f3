/* schedule.c - see schedule.h.

   Values have to be those of DeepSpeed to the last digits, so every formula keeps the order of its
   operations, and must not be contracted (-ffp-contract=off).
*/
#include "schedule.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const double PI = 3.14159265358979323846;

#ifdef __GNUC__
#define SCHEDULE_PRINTF __attribute__((format(printf, 3, 4)))
#else
#define SCHEDULE_PRINTF
#endif

/* ---- names --------------------------------------------------------------------------------- */

static const char *const kind_names[SCHEDULE_KINDS] = {
    "cosine",     "linear",        "constant",       "wsd",      /* llm.c */
    "WarmupLR",   "WarmupDecayLR", "WarmupCosineLR", "OneCycle", /* DeepSpeed */
    "LRRangeTest"};

int schedule_from_name(const char *name, schedule_kind *kind) {
    for (int i = 0; i < SCHEDULE_KINDS; i++) {
        if (strcmp(name, kind_names[i]) != 0) continue;
        *kind = (schedule_kind)i;
        return 0;
    }
    return 1;
}

static int is_kind(schedule_kind kind) { return (unsigned)kind < SCHEDULE_KINDS; }

const char *schedule_name(schedule_kind kind) { return is_kind(kind) ? kind_names[kind] : ""; }

/* ---- parameters ---------------------------------------------------------------------------- */

enum { OPTIONAL = 0, NEEDED = 1 };

#define AT(field)    offsetof(schedule, field)
#define BIT(kind)    (1u << SCHEDULE_##kind)
#define FALLING      (BIT(COSINE) | BIT(LINEAR) | BIT(WSD))
#define LLMC         (FALLING | BIT(CONSTANT))
#define WARM_TO_RATE (BIT(WARMUP) | BIT(WARMUP_DECAY))
#define WARM_TO_END  (BIT(WARMUP_DECAY) | BIT(WARMUP_COSINE))
#define WARM         (WARM_TO_RATE | BIT(WARMUP_COSINE))
#define CYCLE        BIT(ONE_CYCLE)
#define RANGE        BIT(RANGE_TEST)

#define MOST_STEPS 9e15 /* whole numbers up to here are exact in a double */
#define MOST_RATE  1e9
#define BELOW_1    0.9999999999999999 /* the largest double below 1 */

/* The ranges are those that DeepSpeed checks. Where it checks nothing, they allow only values that
   give usable rates. A row: name, type, offset, kinds, default, least, most, needed, words. */
#define REAL(field, kinds, normal, most, needed)                                                   \
    { #field, SCHEDULE_REAL, AT(field), kinds, normal, 0, most, needed, NULL }
#define WHOLE(field, kinds, normal, least, needed)                                                 \
    { #field, SCHEDULE_WHOLE, AT(field), kinds, normal, least, MOST_STEPS, needed, NULL }
#define BOOL(field, kinds, normal)                                                                 \
    { #field, SCHEDULE_BOOL, AT(field), kinds, normal, 0, 1, OPTIONAL, NULL }

static const schedule_field field_table[] = {
    WHOLE(warmup_steps, LLMC, 0, 0, OPTIONAL),
    WHOLE(total_steps, FALLING, NAN, 0, NEEDED),
    REAL(final_fraction, FALLING, 1, 1, OPTIONAL),

    REAL(warmup_min_lr, WARM_TO_RATE, 0, MOST_RATE, OPTIONAL),
    REAL(warmup_max_lr, BIT(WARMUP), NAN, MOST_RATE, OPTIONAL),
    REAL(warmup_max_lr, BIT(WARMUP_DECAY), 0.001, MOST_RATE, OPTIONAL),
    WHOLE(warmup_num_steps, WARM, 1000, 1, OPTIONAL),
    {"warmup_type", SCHEDULE_WORD, AT(warmup_type), WARM, SCHEDULE_LOG, 0, 1, OPTIONAL,
     "log linear"},
    WHOLE(total_num_steps, WARM_TO_END, NAN, 0, NEEDED),
    REAL(warmup_min_ratio, BIT(WARMUP_COSINE), 0, MOST_RATE, OPTIONAL),
    REAL(cos_min_ratio, BIT(WARMUP_COSINE), 0.0001, MOST_RATE, OPTIONAL),

    REAL(cycle_min_lr, CYCLE, NAN, MOST_RATE, NEEDED),
    REAL(cycle_max_lr, CYCLE, NAN, MOST_RATE, NEEDED),
    REAL(decay_lr_rate, CYCLE, 0, MOST_RATE, OPTIONAL),
    WHOLE(cycle_first_step_size, CYCLE, 2000, 1, OPTIONAL),
    WHOLE(cycle_second_step_size, CYCLE, NAN, 0, OPTIONAL),
    WHOLE(cycle_first_stair_count, CYCLE, 0, 0, OPTIONAL),
    WHOLE(cycle_second_stair_count, CYCLE, NAN, 0, OPTIONAL),
    WHOLE(decay_step_size, CYCLE, 0, 0, OPTIONAL),
    BOOL(cycle_momentum, CYCLE, 1),
    REAL(cycle_min_mom, CYCLE, 0.8, BELOW_1, OPTIONAL),
    REAL(cycle_max_mom, CYCLE, 0.9, BELOW_1, OPTIONAL),
    {"decay_mom_rate", SCHEDULE_REAL, AT(decay_mom_rate), CYCLE, 0, -MOST_RATE, MOST_RATE, OPTIONAL,
     NULL},

    REAL(lr_range_test_min_lr, RANGE, 0.001, MOST_RATE, OPTIONAL),
    WHOLE(lr_range_test_step_size, RANGE, 2000, 1, OPTIONAL),
    REAL(lr_range_test_step_rate, RANGE, 1, MOST_RATE, OPTIONAL),
    BOOL(lr_range_test_staircase, RANGE, 0),
};

const schedule_field *schedule_fields(size_t *count) {
    *count = sizeof field_table / sizeof *field_table;
    return field_table;
}

static int reads(schedule_kind kind, const schedule_field *f) {
    return is_kind(kind) && (f->kinds >> kind & 1u);
}

const schedule_field *schedule_find(schedule_kind kind, const char *name) {
    size_t count;
    const schedule_field *f = schedule_fields(&count);
    for (size_t i = 0; i < count; i++)
        if (reads(kind, &f[i]) && strcmp(f[i].name, name) == 0) return &f[i];
    return NULL;
}

/* Returns a field of any type as a number; NAN if it is not given. */
static double load(const schedule *s, const schedule_field *f) {
    const char *at = (const char *)s + f->offset;
    if (f->type == SCHEDULE_REAL) return *(const double *)(const void *)at;
    if (f->type != SCHEDULE_WHOLE) return *(const int *)(const void *)at;
    const int64_t whole = *(const int64_t *)(const void *)at;
    return whole == SCHEDULE_NOT_GIVEN && isnan(f->normal) ? NAN : (double)whole;
}

static void store(schedule *s, const schedule_field *f, double value) {
    char *at = (char *)s + f->offset;
    if (f->type == SCHEDULE_REAL)
        *(double *)(void *)at = value;
    else if (f->type != SCHEDULE_WHOLE)
        *(int *)(void *)at = (int)value;
    else
        *(int64_t *)(void *)at = isnan(value) ? SCHEDULE_NOT_GIVEN : (int64_t)value;
}

void schedule_defaults(schedule *s, schedule_kind kind) {
    size_t count;
    const schedule_field *f = schedule_fields(&count);
    memset(s, 0, sizeof *s);
    s->kind = kind;
    for (size_t i = 0; i < count; i++)
        if (reads(kind, &f[i])) store(s, &f[i], f[i].normal);
}

/* ---- ranges -------------------------------------------------------------------------------- */

static int fail(char *sentence, size_t bytes, const char *format, ...) SCHEDULE_PRINTF;
static int fail(char *sentence, size_t bytes, const char *format, ...) {
    va_list values;
    va_start(values, format);
    (void)vsnprintf(sentence, bytes, format, values);
    va_end(values);
    return 1;
}

static void describe_range(const schedule_field *f, char *text, size_t bytes) {
    static const char *const what[] = {"a number", "a whole number", "0 or 1", "the index of one"};
    const char *type = what[f->type];
    if (f->type == SCHEDULE_WORD)
        (void)snprintf(text, bytes, "%s of: %s", type, f->words);
    else if (f->type == SCHEDULE_BOOL)
        (void)snprintf(text, bytes, "%s", type);
    else if (f->most < 1 && f->most > 0.999)
        (void)snprintf(text, bytes, "%s from %g to below 1", type, f->least);
    else
        (void)snprintf(text, bytes, "%s from %g to %g", type, f->least, f->most);
}

static int check_value(schedule_kind kind, const schedule_field *f, double value, char *sentence,
                       size_t bytes) {
    char range[96];
    const int is_whole = f->type == SCHEDULE_REAL || floor(value) == value;
    if (value >= f->least && value <= f->most && is_whole) return 0;
    describe_range(f, range, sizeof range);
    return fail(sentence, bytes, "%s: %s is %.10g; expected %s", schedule_name(kind), f->name,
                value, range);
}

static int no_such_field(schedule_kind kind, const char *name, char *sentence, size_t bytes) {
    size_t count, used;
    const schedule_field *f = schedule_fields(&count);
    (void)fail(sentence, bytes, "%s has no parameter %s; expected one of:", schedule_name(kind),
               name);
    for (size_t i = 0; i < count; i++) {
        used = strnlen(sentence, bytes);
        if (reads(kind, &f[i])) (void)snprintf(sentence + used, bytes - used, " %s", f[i].name);
    }
    return 1;
}

int schedule_set(schedule *s, const char *name, double value, char *sentence, size_t bytes) {
    const schedule_field *f = schedule_find(s->kind, name);
    if (f == NULL) return no_such_field(s->kind, name, sentence, bytes);
    if (check_value(s->kind, f, value, sentence, bytes)) return 1;
    store(s, f, value);
    return 0;
}

/* Returns the index of a word in a list that is separated by blanks, or -1. */
static int index_of_word(const char *words, const char *word) {
    const size_t length = strlen(word);
    for (int i = 0; *words; i++) {
        const size_t here = strcspn(words, " ");
        if (here == length && memcmp(words, word, length) == 0) return i;
        words += here;
        words += *words == ' ';
    }
    return -1;
}

int schedule_set_word(schedule *s, const char *name, const char *word, char *sentence,
                      size_t bytes) {
    const schedule_field *f = schedule_find(s->kind, name);
    if (f == NULL) return no_such_field(s->kind, name, sentence, bytes);
    if (f->type != SCHEDULE_WORD)
        return fail(sentence, bytes, "%s: %s is \"%s\"; expected a number", schedule_name(s->kind),
                    name, word);
    const int index = index_of_word(f->words, word);
    if (index < 0)
        return fail(sentence, bytes, "%s: %s is \"%s\"; expected one of: %s",
                    schedule_name(s->kind), name, word, f->words);
    store(s, f, index);
    return 0;
}

/* Checks the optimizer's values, which are not parameters of a kind. */
static int check_optimizer(const schedule *s, char *sentence, size_t bytes) {
    static const schedule_field own[] = {REAL(lr, 0, 0, MOST_RATE, OPTIONAL),
                                         REAL(beta1, 0, 0, BELOW_1, OPTIONAL),
                                         REAL(beta2, 0, 0, BELOW_1, OPTIONAL)};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (check_value(s->kind, &own[i], load(s, &own[i]), sentence, bytes)) return 1;
    return 0;
}

int schedule_check(const schedule *s, char *sentence, size_t bytes) {
    size_t count;
    const schedule_field *f = schedule_fields(&count);
    if (!is_kind(s->kind))
        return fail(sentence, bytes, "the kind of schedule is %d; expected 0 to %d", (int)s->kind,
                    SCHEDULE_KINDS - 1);
    if (check_optimizer(s, sentence, bytes)) return 1;
    for (size_t i = 0; i < count; i++) {
        if (!reads(s->kind, &f[i])) continue;
        const double value = load(s, &f[i]);
        const int given = !isnan(value) || !isnan(f[i].normal);
        if (!given && f[i].needed) {
            char range[96];
            describe_range(&f[i], range, sizeof range);
            return fail(sentence, bytes, "%s: %s is not given; expected %s", schedule_name(s->kind),
                        f[i].name, range);
        }
        if (given && check_value(s->kind, &f[i], value, sentence, bytes)) return 1;
    }
    return 0;
}

/* ---- llm.c --------------------------------------------------------------------------------- */

/* Returns the remaining share of the way from lr to final_fraction * lr: 1 to 0. "wsd" stays at 1
   for 80% of the steps and falls with 1 - sqrt (Hagele et al. 2024, arXiv 2405.18392). */
static double llmc_share(const schedule *s, int64_t step) {
    const int64_t steps = s->total_steps, warmup = s->warmup_steps;
    const double done = steps > warmup ? (double)(step - warmup) / (double)(steps - warmup) : 0;
    if (s->kind == SCHEDULE_COSINE) return 0.5 * (1 + cos(PI * done));
    if (s->kind == SCHEDULE_LINEAR) return 1 - done;
    const int64_t fall = (int64_t)(0.8 * (double)steps);
    return step < fall || fall == steps ? 1
                                        : 1 - sqrt((double)(step - fall) / (double)(steps - fall));
}

static double llmc_rate(const schedule *s, int64_t step) {
    if (step < s->warmup_steps) return s->lr * (double)(step + 1) / (double)s->warmup_steps;
    if (s->kind == SCHEDULE_CONSTANT) return s->lr;
    const double share = llmc_share(s, step < s->total_steps ? step : s->total_steps);
    return s->lr * (s->final_fraction + share * (1 - s->final_fraction));
}

/* ---- DeepSpeed's warm-ups ------------------------------------------------------------------ */

/* DeepSpeed counts batches from the scheduler's side: `batch` (its last_batch_iteration) is -1
   when the first update is made, and step - 1 in general. */

/* max(2, warmup_num_steps): the logarithm of 1 would divide by 0. */
static int64_t warm_steps(const schedule *s) {
    return s->warmup_num_steps > 2 ? s->warmup_num_steps : 2;
}

/* WarmupLR._get_gamma and WarmupCosineLR.get_lr_ratio, while batch < warm_steps: 0 to 1. */
static double warm_share(const schedule *s, int64_t batch) {
    const double steps = (double)warm_steps(s);
    if (s->warmup_type == SCHEDULE_LOG) return 1.0 / log(steps) * log((double)(batch + 1));
    return (double)batch / steps;
}

/* WarmupDecayLR._get_gamma, after the warm-up: falls to 0 in batch total_num_steps. */
static double decay_share(const schedule *s, int64_t batch) {
    const int64_t steps = s->total_num_steps - warm_steps(s);
    const double left = (double)(s->total_num_steps - batch) / (steps > 1 ? (double)steps : 1);
    return left > 0 ? left : 0;
}

/* WarmupLR.get_lr, and WarmupDecayLR's, which inherits it. */
static double warmup_rate(const schedule *s, int64_t batch) {
    const int from_optimizer = s->kind == SCHEDULE_WARMUP && isnan(s->warmup_max_lr);
    const double rise = (from_optimizer ? s->lr : s->warmup_max_lr) - s->warmup_min_lr;
    double share = 1;
    if (batch < 0) return s->warmup_min_lr;
    if (batch < warm_steps(s))
        share = warm_share(s, batch);
    else if (s->kind == SCHEDULE_WARMUP_DECAY)
        share = decay_share(s, batch);
    return s->warmup_min_lr + rise * share;
}

/* WarmupCosineLR.get_lr and get_lr_ratio. The first update has lr 0 for
   every warmup_min_ratio. */
static double warmup_cosine_rate(const schedule *s, int64_t batch) {
    const int64_t warm = warm_steps(s);
    if (batch < 0) return 0;
    if (batch < warm)
        return s->lr * (s->warmup_min_ratio + warm_share(s, batch) * (1 - s->warmup_min_ratio));
    const int64_t steps = s->total_num_steps > warm ? s->total_num_steps - warm : 1;
    const double passed = (double)(batch - warm + 1) / (double)steps;
    const double share = (1 + cos(PI * (passed < 1 ? passed : 1))) / 2;
    const double ratio = s->cos_min_ratio + (1 - s->cos_min_ratio) * share;
    return s->lr * (ratio > 0 ? ratio : 0);
}

/* ---- DeepSpeed's OneCycle and LRRangeTest -------------------------------------------------- */

/* The values that the constructor of OneCycle computes from its arguments. */
typedef struct cycle_shape {
    double first, second, total; /* steps */
    int64_t first_stairs, second_stairs;
} cycle_shape;

static cycle_shape cycle_shape_of(const schedule *s) {
    const int same_size = s->cycle_second_step_size == SCHEDULE_NOT_GIVEN;
    const int same_stairs = s->cycle_second_stair_count == SCHEDULE_NOT_GIVEN;
    cycle_shape c;
    c.first = (double)s->cycle_first_step_size;
    c.second = same_size ? c.first : (double)s->cycle_second_step_size;
    c.total = c.first + c.second;
    c.first_stairs = s->cycle_first_stair_count;
    c.second_stairs = same_stairs ? c.first_stairs : s->cycle_second_stair_count;
    return c;
}

/* OneCycle._get_scale_factor in step <= total: 0 to 1 in the middle and back to 0. Stairs are
   counted from whole steps, because the continuous value may lie just below a stair. */
static double cycle_share(const cycle_shape *c, double step) {
    const double passed = 1. + step / c->total - floor(1 + step / c->total);
    const double middle = c->first / c->total;
    const int rises = passed <= middle;
    const double stairs = (double)(rises ? c->first_stairs : c->second_stairs);
    if (stairs <= 0) return rises ? passed / middle : (passed - 1) / (middle - 1);
    const double at = fmod(step, c->total);
    const double stair =
        at <= c->first ? at * stairs / c->first : (c->total - at) * stairs / c->second;
    return floor(stair) / stairs;
}

/* Computes the values after the cycle: _get_decay_lr and _get_decay_mom. */
static void cycle_decay(const schedule *s, double steps_after, schedule_value *out) {
    const double times = s->decay_step_size ? steps_after / (double)s->decay_step_size : 0;
    out->lr = s->cycle_min_lr / (1 + s->decay_lr_rate * times);
    if (s->cycle_momentum) out->beta1 = s->cycle_max_mom * (1 + s->decay_mom_rate * times);
}

/* OneCycle. Its constructor sets the momentum of step 0 to cycle_min_mom, though it is at its
   maximum when the rate is at its minimum in every other step; and beta2 is 0.99 in all. */
static void one_cycle_at(const schedule *s, int64_t step, schedule_value *out) {
    const cycle_shape c = cycle_shape_of(s);
    if (s->cycle_momentum) out->beta2 = 0.99;
    if ((double)step > c.total) {
        cycle_decay(s, (double)step - c.total, out);
        return;
    }
    const double share = cycle_share(&c, (double)step);
    out->lr = s->cycle_min_lr + (s->cycle_max_lr - s->cycle_min_lr) * share;
    if (!s->cycle_momentum) return;
    out->beta1 = s->cycle_max_mom - (s->cycle_max_mom - s->cycle_min_mom) * share;
    if (step == 0) out->beta1 = s->cycle_min_mom;
}

/* LRRangeTest.get_lr */
static double range_test_rate(const schedule *s, int64_t step) {
    const double interval = (double)step / (double)s->lr_range_test_step_size;
    const double times = s->lr_range_test_staircase ? floor(interval) : interval;
    return s->lr_range_test_min_lr * (1 + s->lr_range_test_step_rate * times);
}

/* ---- values -------------------------------------------------------------------------------- */

void schedule_at(const schedule *s, int64_t step, schedule_value *out) {
    *out = (schedule_value){s->lr, s->beta1, s->beta2};
    switch (s->kind) {
    case SCHEDULE_WARMUP:
    case SCHEDULE_WARMUP_DECAY: out->lr = warmup_rate(s, step - 1); break;
    case SCHEDULE_WARMUP_COSINE: out->lr = warmup_cosine_rate(s, step - 1); break;
    case SCHEDULE_ONE_CYCLE: one_cycle_at(s, step, out); break;
    case SCHEDULE_RANGE_TEST: out->lr = range_test_rate(s, step); break;
    default: out->lr = llmc_rate(s, step);
    }
}
