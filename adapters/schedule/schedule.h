/* schedule.h - the learning rate of every step, as data and one pure function: llm.c's schedules
   and DeepSpeed's.

   EXAMPLE
       schedule s;
       schedule_value now;
       char sentence[512];
       schedule_defaults(&s, SCHEDULE_WARMUP_DECAY);
       s.lr = 1e-3;                                         // the optimizer's own values
       s.beta1 = 0.9;
       s.beta2 = 0.99;
       s.warmup_max_lr = 3e-4;                              // or schedule_set by name
       s.total_num_steps = 2000;
       if (schedule_check(&s, sentence, sizeof sentence)) give_up(sentence);
       for (int64_t step = 0; step < 2000; step++) {
           schedule_at(&s, step, &now);                     // now.lr for this update
           ...
       }

   WORDS
     step     updates that the optimizer has made before this one: 0 for the first. An update that
              is skipped (overflow in half precision) does not count, as in DeepSpeed, where the
              engine calls scheduler.step() only after an update that was made.
     in force the values that the optimizer uses in this update. DeepSpeed's constructors set the
              values of step 0, and scheduler.step() after update k sets those of update k + 1. So
              WarmupLR uses warmup_min_lr twice, in steps 0 and 1.

   SOURCES. Kinds SCHEDULE_COSINE to SCHEDULE_WSD have the names and parameters of llm.c's -k (its
   learning_rate_scheduler); the others are the classes of DeepSpeed 0.19's lr_schedules.py, whose
   names and defaults the fields keep. tests/reference/schedules.py made the figures that DeepSpeed
   itself gives, and the test compares them.

   THREADS AND ERRORS. No function keeps state, allocates or prints. Those that can fail return 0,
   or 1 and a sentence of at most `bytes` bytes with its zero; 512 is enough for all.
*/
#ifndef SCHEDULE_H
#define SCHEDULE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum schedule_kind {
    SCHEDULE_COSINE = 0,    /* "cosine", llm.c */
    SCHEDULE_LINEAR,        /* "linear", llm.c */
    SCHEDULE_CONSTANT,      /* "constant", llm.c */
    SCHEDULE_WSD,           /* "wsd", llm.c: warm-up, stable, decay */
    SCHEDULE_WARMUP,        /* "WarmupLR", DeepSpeed */
    SCHEDULE_WARMUP_DECAY,  /* "WarmupDecayLR" */
    SCHEDULE_WARMUP_COSINE, /* "WarmupCosineLR" */
    SCHEDULE_ONE_CYCLE,     /* "OneCycle" */
    SCHEDULE_RANGE_TEST,    /* "LRRangeTest" */
    SCHEDULE_KINDS
} schedule_kind;

enum { SCHEDULE_LOG = 0, SCHEDULE_WARMUP_LINEAR }; /* warmup_type: "log", "linear" */

/* schedule_defaults writes this into an int64_t, and NAN into a double, if DeepSpeed's default is
   None or if your code must give the value. */
#define SCHEDULE_NOT_GIVEN (-1)

/* Each kind reads only its own fields. The comments give the default of a field and the kinds that
   read it. */
typedef struct schedule {
    schedule_kind kind;

    /* The optimizer's own values, 0 by default. */
    double lr;    /* base of llm.c's kinds and of WarmupCosineLR; default maximum of WarmupLR */
    double beta1; /* unchanged, except by OneCycle; so is beta2 */
    double beta2;

    /* llm.c's kinds: (step + 1) / warmup_steps of lr in the first warmup_steps steps; then from lr
       to final_fraction * lr in step total_steps and after it. */
    int64_t warmup_steps;  /* 0 */
    int64_t total_steps;   /* has to be given; not "constant" */
    double final_fraction; /* 1; not "constant" */

    /* WarmupLR, WarmupDecayLR, WarmupCosineLR */
    double warmup_min_lr;     /* 0; not WarmupCosineLR */
    double warmup_max_lr;     /* not given: lr (WarmupLR); 0.001 (WarmupDecayLR) */
    int64_t warmup_num_steps; /* 1000; 1 means 2 */
    int warmup_type;          /* SCHEDULE_LOG */
    int64_t total_num_steps;  /* has to be given; WarmupDecayLR and WarmupCosineLR */
    double warmup_min_ratio;  /* 0; WarmupCosineLR, whose step 0 has lr 0 all the same */
    double cos_min_ratio;     /* 0.0001; WarmupCosineLR */

    /* OneCycle */
    double cycle_min_lr;              /* has to be given */
    double cycle_max_lr;              /* has to be given */
    double decay_lr_rate;             /* 0: stays at cycle_min_lr after the cycle */
    int64_t cycle_first_step_size;    /* 2000 */
    int64_t cycle_second_step_size;   /* not given: as the first */
    int64_t cycle_first_stair_count;  /* 0: no stairs */
    int64_t cycle_second_stair_count; /* not given: as the first */
    int64_t decay_step_size;          /* 0: no decay after the cycle */
    int cycle_momentum;               /* 1; set 0 for an optimizer without betas, as DeepSpeed */
    double cycle_min_mom;             /* 0.8 */
    double cycle_max_mom;             /* 0.9 */
    double decay_mom_rate;            /* 0: stays at cycle_max_mom after the cycle. beta1 is then
                                         cycle_max_mom (1 + rate * steps / decay_step_size), which
                                         grows past 1 in time if the rate is above 0 */

    /* LRRangeTest */
    double lr_range_test_min_lr;     /* 0.001 */
    int64_t lr_range_test_step_size; /* 2000 */
    double lr_range_test_step_rate;  /* 1 */
    int lr_range_test_staircase;     /* 0 */
} schedule;

/* The values in force in one update. The betas are the optimizer's, except where OneCycle cycles
   its "momentum": that is beta1, and DeepSpeed then sets beta2 to 0.99, even if the optimizer has
   another value. */
typedef struct schedule_value {
    double lr, beta1, beta2;
} schedule_value;

/* ---- names --------------------------------------------------------------------------------- */

/* Finds the kind that llm.c or DeepSpeed calls by this name; case matters. Returns 0 and writes
 *kind, or returns 1 if no kind has the name. */
int schedule_from_name(const char *name, schedule_kind *kind);

/* Returns the name of a kind, "cosine" to "LRRangeTest", as a string constant; "" if the number is
   not a kind. */
const char *schedule_name(schedule_kind kind);

/* ---- parameters ---------------------------------------------------------------------------- */

typedef enum schedule_type {
    SCHEDULE_REAL = 0, /* double */
    SCHEDULE_WHOLE,    /* int64_t */
    SCHEDULE_BOOL,     /* int, 0 or 1 */
    SCHEDULE_WORD      /* int, index into words */
} schedule_type;

/* One parameter; the name is that of the field in the struct, and DeepSpeed's in the JSON. */
typedef struct schedule_field {
    const char *name;
    schedule_type type;
    size_t offset;      /* in schedule */
    unsigned kinds;     /* bit 1u << kind: read by it */
    double normal;      /* default; NAN: not given (as SCHEDULE_NOT_GIVEN in an int64_t) */
    double least, most; /* both allowed */
    int needed;         /* 1: has no default; 0: may be left out */
    const char *words;  /* SCHEDULE_WORD: "log linear"; else NULL */
} schedule_field;

/* Returns all parameters except lr, beta1 and beta2: a constant array of *count rows. */
const schedule_field *schedule_fields(size_t *count);

/* Returns the parameter with this name, or NULL if this kind reads no such parameter. */
const schedule_field *schedule_find(schedule_kind kind, const char *name);

/* Clears *s, then sets the parameters that this kind reads to their defaults. */
void schedule_defaults(schedule *s, schedule_kind kind);

/* Sets one parameter of s->kind by name, from a number (BOOL: 0 or 1; WORD: the index). Returns 0,
   or 1 and a sentence that lists the parameters of this kind or the values that are allowed. */
int schedule_set(schedule *s, const char *name, double value, char *sentence, size_t bytes);

/* Sets a parameter from a word, for warmup_type. An unknown word is an error; DeepSpeed warns and
   uses "log". */
int schedule_set_word(schedule *s, const char *name, const char *word, char *sentence,
                      size_t bytes);

/* Checks all fields that s->kind reads. Returns 0, or 1 and a sentence with field, value and range.
 */
int schedule_check(const schedule *s, char *sentence, size_t bytes);

/* ---- values -------------------------------------------------------------------------------- */

/* Computes the values in force in update `step`, from 0 on; it may lie after the end. *s must have
   passed schedule_check. */
void schedule_at(const schedule *s, int64_t step, schedule_value *out);

#ifdef __cplusplus
}
#endif
#endif
