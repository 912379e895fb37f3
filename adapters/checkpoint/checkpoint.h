/* checkpoint.h - saves what a context of zero_plugin.h has trained, and loads it at any other stage
   and number of ranks.

   EXAMPLE: what a trainer gains; every line is run by every rank
       checkpoint *c;
       checkpoint_options o = {0};
       o.folder = "log/checkpoints";
       o.keep_last = 3;                                   // and every 1000th
       o.keep_every = 1000;
       if (checkpoint_create(&c, z, &o)) give_up(checkpoint_error(c));
       int64_t step = 0, position = 0;
       if (resume) {
           checkpoint_result r = checkpoint_load(c, CHECKPOINT_NEWEST);
           if (r == CHECKPOINT_OK) {
               step = checkpoint_step(c);
               (void)checkpoint_get_int(c, "data.position", &position);
           } else if (r != CHECKPOINT_NONE) give_up(checkpoint_error(c));
       }
       for (; step < steps; step++) {
           ... one step ...
           if ((step + 1) % every == 0) {
               checkpoint_value v[] = {{"data.position", CHECKPOINT_INT, position, 0, NULL},
                                       {"schedule", CHECKPOINT_TEXT, 0, 0, "cosine"}};
               if (checkpoint_save(c, step + 1, v, 2)) warn(checkpoint_error(c)); // or give up
           }
       }
       if (checkpoint_wait(c)) warn(checkpoint_error(c)); // asynchronous: the last one's outcome
       checkpoint_destroy(c);                             // before zero_destroy

   BUILD
     cc -D_GNU_SOURCE -I. -c adapters/checkpoint/checkpoint*.c
     Link with -lcjson -pthread. xxHash is used as a header (libxxhash-dev). Linux, with LC_NUMERIC as C starts it. FORMAT.md is the page on the
     files, enough for other readers.

   WORDS
     generation  what one save makes: a folder step_00000020 with a shard file of every rank and
                 manifest.json, which says where every element is. It is complete when it has this
                 name: until then it is called step_00000020.tmp-..., and what a killed run leaves
                 of that kind is removed at the next checkpoint_create.
     state       weights (f32 masters where there are some), the optimizer's arrays, the counters
                 of zero_counters, and the caller's own values; with cfg.delay_from also the
                 parameters that the next step sees, so that a pending update stays pending

   WHAT CAN BE LOADED WHERE. The files know elements of tensors and nothing of stages, ranks,
   buckets or padding: any number of ranks, any stage; and of a model in parts (options.parts) any
   other number of tensor-parallel ranks and of a pipeline's stages, or the whole model. Types may
   differ too: masters are f32 at every type; weights without masters (bf16) are stored as they are,
   and converted where they differ. What is random or counts in a run beyond the plugin (data order,
   schedule) are the caller's values; bits of stochastic rounding go on if cfg.seed is the same.

   SAFETY. Every file and folder is fsynced before the one rename that makes a generation, and older
   ones are removed after it. There is no pointer to the latest one that could be wrong: the newest
   whole generation is it. Every megabyte of every file has a checksum, and so has the manifest;
   what a rank loads it has verified. A generation that is damaged or not whole is named to the log
   and the next older one is taken, on all ranks alike, or none if refuse_damaged is set.
   After a save of step S, generations of later steps, left over from a run that went another way,
   are renamed to step_N.left-..., which nothing loads or removes.

   ASYNCHRONOUS. The state is copied to memory reserved at create (checkpoint_bytes), which is all
   that the calling thread waits for; a thread of each rank writes it. What went wrong there is
   returned by the next call. One save is on its way at most: a next one waits for it, and says so
   in the report and to the log. Nothing may be removed from the folder meanwhile.

   SLOW DISKS. Ranks wait for the one whose disk is last, however long it takes: a thread of each
   rank reads and writes, and the calling threads meet again and again until all are done. So
   cfg.timeout_s finds a rank that is gone, and no disk is too slow. Where one rank fails, the
   others give up at the next meeting (a second, or a quarter of timeout_s), once the system has
   done with what they had asked it for.

   COLLECTIVE. Functions with this mark are called by all ranks (of parts.world, where there is one)
   in the same order with the same
   arguments (values: rank 0's count), and return the same on all. One run at a time uses a folder
   (rank 0 holds a lock on it, where the file system has locks), which all ranks see, also from
   several hosts.

   ERRORS. After every result but CHECKPOINT_PLUGIN the context is as good as before: a save that
   failed may be tried again, older generations are intact, training may go on. (After a load that
   failed with DAMAGED, FILES or MEMORY the weights may be a mixture: load another one, or end.)
*/
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "../../zero_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum checkpoint_result {
    CHECKPOINT_OK = 0,
    CHECKPOINT_NONE,     /* load: there is no generation, or none of this step */
    CHECKPOINT_ARGUMENT, /* an argument is out of range */
    CHECKPOINT_MEMORY,   /* no memory on some rank */
    CHECKPOINT_FILES,    /* the system refused: disk full, not writable, ... */
    CHECKPOINT_DAMAGED,  /* corrupt or not whole */
    CHECKPOINT_MODEL,    /* of another model or optimizer: the sentence names the tensor */
    CHECKPOINT_PLUGIN    /* zero_plugin's error, its sentence passed on; see
                            checkpoint_plugin_result */
} checkpoint_result;

enum { CHECKPOINT_NEWEST = -1, CHECKPOINT_SENTENCE = 640 };

/* ---- the caller's own values --------------------------------------------------------------- */

typedef enum checkpoint_value_kind {
    CHECKPOINT_INT = 0,
    CHECKPOINT_REAL,
    CHECKPOINT_TEXT /* UTF-8, without zero bytes */
} checkpoint_value_kind;

typedef struct checkpoint_value {
    const char *name; /* unique */
    checkpoint_value_kind kind;
    int64_t number;
    double real; /* kept bit by bit; every NaN is one */
    const char *text;
} checkpoint_value;

/* ---- a model in parts ---------------------------------------------------------------------- */

/* Where an element of this rank's tensor is in the whole one, which has `total` elements over all
   layers. Of its rows of `row` elements each of `parts` equal slices is a part's: heads, columns,
   rows of a vocabulary, experts. `first` counts within the part, over all layers of the whole
   model: of a pipeline the rank has some of them. parts 1: first is the dense element; row is not
   looked at. */
typedef struct checkpoint_place {
    size_t total, row;
    int parts, part;
    int saves;    /* 1: this rank saves these; 0: another one, which has the same */
    size_t first; /* of the element that was asked for */
    size_t n;     /* 1 or more elements follow each other there as they do here */
} checkpoint_place;

/* A context's ranks have one model together; those of several contexts have one where each has a
   part of its tensors, or of its layers: tensor and pipeline parallelism, experts. */
typedef struct checkpoint_parts {
    zero_group *world; /* all of them, in the order of their files; NULL: the context's */
    /* Of element `at` of a tensor as this rank's context has it, over all its layers. */
    void (*place)(const void *user, const char *name, size_t at, checkpoint_place *place);
    const void *user; /* borrowed */
} checkpoint_parts;

/* ---- saving and loading with a context ----------------------------------------------------- */

/* Generations without a disk: two of them, one whole while the other is written, in memory of a
   process that forks the ranks and outlives them. A rank that dies leaves the newest whole one as
   it was, and ranks that are forked after it load it, however many. The memory is taken by
   the first two saves: of each rank twice its shard file. It goes with that process. */
typedef struct checkpoint_memory checkpoint_memory;

/* By that process, before it forks: for one checkpoint of at most so many ranks. NULL: no memory or
   descriptors, 2 for each rank and 2; errno says which. */
checkpoint_memory *checkpoint_memory_create(int ranks);
/* What its generations take by now. */
uint64_t checkpoint_memory_taken(const checkpoint_memory *m);
/* When the ranks have ended. NULL is allowed. */
void checkpoint_memory_destroy(checkpoint_memory *m);

/* Every zero is the default. Strings are copied. */
typedef struct checkpoint_options {
    const char *folder; /* of the generations; made if it is not there (its parent must be), at
                           any save */
    int keep_last;      /* newest generations that stay; 0: all */
    int64_t keep_every; /* generations whose step is a multiple stay too; 0: none */
    int asynchronous;   /* see above */
    int refuse_damaged; /* load: no older generation instead of a damaged one */
    int weights_only;   /* load: weights alone; moments and counters stay as they are, and the
                           optimizer may be another */
    int not_direct;     /* through the system's cache; 0: past it, where the file system can */
    const char *config; /* any text, saved along: the run's configuration. NULL: "" */
    const zero_tensor_desc *tensors; /* as given to zero_tensor, for [layers, numel] in the manifest
                                        and in sentences; borrowed for the call. NULL: not known */
    int ntensors;
    void (*log)(void *user, const char *sentence); /* what was skipped, removed, waited for; may be
                                                      NULL. On rank 0 */
    void *log_user;
    checkpoint_parts parts;    /* zeros: the context has the whole model. `tensors` tells the whole
                                  ones */
    checkpoint_memory *memory; /* not NULL: generations are in it, of one checkpoint at a time;
                                  folder, what is kept there and asynchronous count for nothing.
                                  Borrowed until checkpoint_destroy */
} checkpoint_options;

typedef struct checkpoint checkpoint;

/* How generations are saved: options.asynchronous, options.memory. */
typedef enum checkpoint_way {
    CHECKPOINT_WRITTEN = 0,
    CHECKPOINT_ASIDE,
    CHECKPOINT_COPIED
} checkpoint_way;

/* Host memory of this rank, all reserved at create; CHECKPOINT_COPIED: and its part of a
   checkpoint_memory, which the first two saves take. After zero_query_plan. */
size_t checkpoint_bytes(const zero_ctx *z, const checkpoint_parts *parts, checkpoint_way way);

/* After zero_build; `z` is borrowed until checkpoint_destroy. Removes what killed runs left half
   written, for a quarter of a second; what is left then, saves remove bit by bit. COLLECTIVE. On
   error *c is NULL unless there was memory for it: then checkpoint_error(*c) says why, and it must
   be destroyed. */
checkpoint_result checkpoint_create(checkpoint **c, zero_ctx *z, const checkpoint_options *options);

/* Waits for a save under way; frees. NULL is allowed. COLLECTIVE, before zero_destroy. */
void checkpoint_destroy(checkpoint *c);

/* Saves the state as generation `step` (0 or more; one of the same number is replaced), between
   steps. Asynchronous: begins to; the result is then the outcome of the save before, and the
   sentence tells its step. COLLECTIVE. */
checkpoint_result checkpoint_save(checkpoint *c, int64_t step, const checkpoint_value *values,
                                  int nvalues);

/* Waits for the save under way; its outcome. OK if there is none. COLLECTIVE. */
checkpoint_result checkpoint_wait(checkpoint *c);

/* Loads generation `step`, or the newest good one. COLLECTIVE. */
checkpoint_result checkpoint_load(checkpoint *c, int64_t step);

/* The step that was loaded last; -1: none. And its values: 1, or 0 if there is no such one. A text
   is owned by c until the next load. */
int64_t checkpoint_step(const checkpoint *c);
int checkpoint_get_int(const checkpoint *c, const char *name, int64_t *number);
int checkpoint_get_real(const checkpoint *c, const char *name, double *real);
int checkpoint_get_text(const checkpoint *c, const char *name, const char **text);
/* The plugin's counters of that generation (steps taken, ...). 0: nothing was loaded. */
int checkpoint_get_counters(const checkpoint *c, zero_counters *counters);
/* options.config of the run that saved it; "" before a load. */
const char *checkpoint_config(const checkpoint *c);

/* The sentence of the last error, or "". Owned by c until its next call. NULL: no memory. */
const char *checkpoint_error(const checkpoint *c);
/* What the plugin returned, if the last result was CHECKPOINT_PLUGIN. */
zero_result checkpoint_plugin_result(const checkpoint *c);

/* Of the last save and load, of this rank. */
typedef struct checkpoint_report {
    int64_t saved_step;   /* newest generation that is known to be durable; -1: none. One that is
                             written aside: rank 0 knows when it is, the others at the next call */
    uint64_t bytes;       /* of this rank's shard file */
    uint64_t total_bytes; /* of all */
    double stall_s;       /* the calling thread was in the last checkpoint_save */
    double waited_s;      /* the part of it that it waited for the save before */
    double copy_s;        /* asynchronous: the copy of the state */
    double write_s;       /* writing and fsync of the shard file, of the last save that ended */
    double load_s;        /* the last checkpoint_load */
    uint64_t read_bytes;  /* by it, on this rank */
    int skipped;          /* generations that it passed over */
} checkpoint_report;
void checkpoint_query(const checkpoint *c, checkpoint_report *report);

/* ---- reading without a context: tools, converters ------------------------------------------ */

/* A generation's folder name, newest first. */
typedef struct checkpoint_generation {
    int64_t step;
    char name[64];
} checkpoint_generation;
/* *list is the caller's, to free. `why`: CHECKPOINT_SENTENCE bytes. */
checkpoint_result checkpoint_list(const char *folder, checkpoint_generation **list, int *n,
                                  char *why);

typedef struct checkpoint_reader checkpoint_reader;

/* One tensor of a generation. */
typedef struct checkpoint_tensor {
    const char *name;
    size_t layers, numel; /* layers 1 and numel all, if they were not given at the save */
    zero_type type[3];    /* of weights, first and second moments, as they are stored */
    int arrays;           /* how many of these there are: 1 to 3 */
    int parts;            /* that it was saved in; 1: whole */
} checkpoint_tensor;

/* Opens a generation by its path and verifies its manifest; no shard file is read. On error *r is
   NULL. `why`: CHECKPOINT_SENTENCE bytes. */
checkpoint_result checkpoint_open(checkpoint_reader **r, const char *path, char *why);
void checkpoint_close(checkpoint_reader *r);

int64_t checkpoint_reader_step(const checkpoint_reader *r);
int checkpoint_tensors(const checkpoint_reader *r);
void checkpoint_query_tensor(const checkpoint_reader *r, int i, checkpoint_tensor *tensor);
void checkpoint_query_counters(const checkpoint_reader *r, zero_counters *counters);
int checkpoint_values(const checkpoint_reader *r);
const checkpoint_value *checkpoint_value_at(const checkpoint_reader *r, int i);
const char *checkpoint_reader_config(const checkpoint_reader *r);
const char *checkpoint_optimizer(const checkpoint_reader *r); /* "adamw", ... */

/* Elements [first, first + count) over all layers, widened to f32; array 0: weights, 1 and 2:
   moments. Memory: 16 MiB, whatever the tensor; what is read is verified. */
checkpoint_result checkpoint_read(checkpoint_reader *r, int tensor, int array, size_t first,
                                  size_t count, float *out, char *why);

/* Reads and verifies every byte of every file. *bytes: how many. */
checkpoint_result checkpoint_verify(checkpoint_reader *r, uint64_t *bytes, char *why);

#ifdef __cplusplus
}
#endif
#endif
