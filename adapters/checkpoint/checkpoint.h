/* checkpoint.h - saves the state of a context of zero_plugin.h, and loads it at any other stage and
   number of ranks.

   EXAMPLE: every rank runs every line
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
     Link with -lcjson -pthread. xxHash is used as a header (libxxhash-dev). Needs Linux, and
     LC_NUMERIC as C starts it. For other readers, FORMAT.md of the repository describes the files.

   WORDS
     generation  the result of one save: a folder step_00000020 with a shard file of every rank, and
                 manifest.json, which lists the place of every element. A folder with this name is
                 complete. Before, it is called step_00000020.tmp-... If a run is killed then, the
                 next checkpoint_create removes that folder.
     state       weights (f32 masters if the context has them), the optimizer's arrays, the counters
                 of zero_counters, and the caller's own values. With cfg.delay_from also the
                 parameters that the next step sees, so that a pending update stays pending

   LOADING ELSEWHERE. The files contain elements of tensors, and nothing about stages, ranks,
   buckets or padding. So you can load them at any stage and number of ranks. A model in parts
   (options.parts) loads with any other number of tensor-parallel ranks and pipeline stages, or
   whole. Types may differ too. Masters are always f32. Weights without masters (bf16) are stored in
   their type, and converted on load. Save your random and counting state (data order, schedule) as
   values. Stochastic rounding continues with the same bits if cfg.seed is the same.

   SAFETY. All files and folders are fsynced before the one rename that publishes a generation.
   Older ones are removed after it. No pointer to the latest generation exists that could be wrong:
   the newest complete one counts. Each megabyte of each file has a checksum, and so has the
   manifest. A rank verifies all that it loads. If a generation is damaged or incomplete, the log
   names it, and all ranks load the next older one, or none if refuse_damaged is set. A save of step
   S renames generations of later steps, which another run left, to step_N.left-... Nothing loads or
   removes those.

   ASYNCHRONOUS. The calling thread only copies the state to memory that was reserved at create
   (checkpoint_bytes). A thread of each rank writes it. The next call returns that thread's error.
   At most one save is being written: the next save waits for it, and reports that to the log and in
   checkpoint_report. Do not remove anything from the folder meanwhile.

   SLOW DISKS. All ranks wait for the slowest disk. A thread of each rank reads and writes, and the
   calling threads meet regularly until all are done. So cfg.timeout_s finds a dead rank, and no
   disk is too slow. If one rank fails, the others stop at the next meeting (after one second, or a
   quarter of timeout_s), when their system calls have returned.

   COLLECTIVE. All ranks (of parts.world, if it is set) call a function with this mark, in the same
   order and with the same arguments (values: rank 0's count), and all get the same result. One run
   at a time uses a folder. Rank 0 locks it if the file system has locks. All ranks must see the
   folder, also those on other nodes.

   ERRORS. After every result but CHECKPOINT_PLUGIN the context is unchanged: you may repeat a
   failed save, older generations are intact, and training may continue. After a load that failed
   with DAMAGED, FILES or MEMORY the weights may be a mixture: load another generation, or end.
*/
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "../../zero_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum checkpoint_result {
    CHECKPOINT_OK = 0,
    CHECKPOINT_NONE,     /* load: no generation exists, or none of this step */
    CHECKPOINT_ARGUMENT, /* an argument is out of range */
    CHECKPOINT_MEMORY,   /* no memory on some rank */
    CHECKPOINT_FILES,    /* a system call failed: disk full, not writable, ... */
    CHECKPOINT_DAMAGED,  /* corrupt or incomplete */
    CHECKPOINT_MODEL,    /* another model or optimizer: the sentence names the tensor */
    CHECKPOINT_PLUGIN    /* an error of the plugin, with its sentence; see
                            checkpoint_plugin_result */
} checkpoint_result;

enum { CHECKPOINT_NEWEST = -1, CHECKPOINT_LEFT_OUT = -1, CHECKPOINT_SENTENCE = 640 };

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
    double real; /* saved with all bits; all NaNs become one NaN */
    const char *text;
} checkpoint_value;

/* ---- a model in parts ---------------------------------------------------------------------- */

/* The place of an element of this rank's tensor in the whole tensor, which has `total` elements
   over all layers. Each row of `row` elements has `parts` equal slices, one for each part: heads,
   columns, rows of a vocabulary, experts. `first` counts within the part, over all layers of the
   whole model; a pipeline's rank has some of these layers. If parts is 1, `first` is the element of
   the whole tensor, and row is ignored. */
typedef struct checkpoint_place {
    size_t total, row;
    int parts, part;
    int saves;    /* 1: this rank saves these elements; 0: another rank saves the same ones;
                     CHECKPOINT_LEFT_OUT: no rank saves this tensor, and a load does not change it.
                     Then the other fields are ignored */
    size_t first; /* place of element `at` */
    size_t n;     /* elements, at least 1, that are adjacent in both tensors */
} checkpoint_place;

/* The ranks of one context share one model. Ranks of several contexts share one model if each
   context has a part of its tensors or layers: tensor and pipeline parallelism, experts. */
typedef struct checkpoint_parts {
    zero_group *world; /* all ranks, in the order of their files; NULL: the context's ranks */
    /* Writes the place of element `at` of this rank's tensor, counted over all layers it has. */
    void (*place)(const void *user, const char *name, size_t at, checkpoint_place *place);
    const void *user; /* borrowed */
} checkpoint_parts;

/* ---- saving and loading with a context ----------------------------------------------------- */

/* Two generations without a disk, in memory of a process that forks the ranks and outlives them.
   One is complete while the other is written. If a rank dies, the newest complete one is intact,
   and any number of ranks forked later can load it. The first two saves take the memory: twice the
   shard file of each rank. It is freed when that process ends. */
typedef struct checkpoint_memory checkpoint_memory;

/* That process calls this before it forks, for one checkpoint of at most `ranks` ranks. It needs
   2 * ranks + 2 descriptors. Returns NULL and sets errno if these or memory are short. */
checkpoint_memory *checkpoint_memory_create(int ranks);
/* Returns the bytes that its generations take now. */
uint64_t checkpoint_memory_taken(const checkpoint_memory *m);
/* Call it after the ranks have ended. m may be NULL. */
void checkpoint_memory_destroy(checkpoint_memory *m);

/* Every zero is the default. Strings are copied. */
typedef struct checkpoint_options {
    const char *folder; /* folder of the generations; each save makes it if it is missing, but
                           not its parent */
    int keep_last;      /* number of newest generations to keep; 0: all */
    int64_t keep_every; /* also keep generations with a step that is a multiple; 0: none */
    int asynchronous;   /* see above */
    int refuse_damaged; /* load: no older generation instead of a damaged one */
    int weights_only;   /* load: only weights; moments and counters do not change, and the
                           optimizer may differ */
    int not_direct; /* 1: through the system's cache; 0: direct I/O, if the file system has it */
    const char *config; /* any text to save, such as the run's configuration. NULL: "" */
    const zero_tensor_desc *tensors; /* as given to zero_tensor, for [layers, numel] in the manifest
                                        and in sentences; borrowed for the call. NULL: not known */
    int ntensors;
    void (*log)(void *user, const char *sentence); /* what was skipped, removed, waited for; may be
                                                      NULL. On rank 0 */
    void *log_user;
    checkpoint_parts parts;    /* zeros: the context has the whole model. `tensors` describes whole
                                  tensors */
    checkpoint_memory *memory; /* not NULL: generations are in it, of one checkpoint at a time; then
                                  folder, keep_last, keep_every and asynchronous are ignored.
                                  Borrowed until checkpoint_destroy */
} checkpoint_options;

typedef struct checkpoint checkpoint;

/* How generations are saved: options.asynchronous, options.memory. */
typedef enum checkpoint_way {
    CHECKPOINT_WRITTEN = 0,
    CHECKPOINT_ASYNCHRONOUS,
    CHECKPOINT_COPIED
} checkpoint_way;

/* Returns the bytes of host memory that create reserves on this rank. CHECKPOINT_COPIED adds its
   part of a checkpoint_memory, which the first two saves take. Call it after zero_query_plan. */
size_t checkpoint_bytes(const zero_ctx *z, const checkpoint_parts *parts, checkpoint_way way);

/* Call it after zero_build. Borrows `z` until checkpoint_destroy. Removes incomplete generations of
   killed runs for a quarter of a second; later saves remove the rest. On error *c is NULL if memory
   was short. Otherwise checkpoint_error(*c) returns the reason, and you must destroy *c.
   COLLECTIVE.
 */
checkpoint_result checkpoint_create(checkpoint **c, zero_ctx *z, const checkpoint_options *options);

/* Waits for an unfinished save, then frees. c may be NULL. COLLECTIVE, before zero_destroy. */
void checkpoint_destroy(checkpoint *c);

/* Saves the state as generation `step`, at least 0, and replaces a generation of this number. Call
   it between steps. With `asynchronous` it only begins the save: it returns the result of the save
   before; the sentence has the step of that save. COLLECTIVE. */
checkpoint_result checkpoint_save(checkpoint *c, int64_t step, const checkpoint_value *values,
                                  int nvalues);

/* Waits for an unfinished save and returns its result, or OK if no save is unfinished. COLLECTIVE.
 */
checkpoint_result checkpoint_wait(checkpoint *c);

/* Loads generation `step`, or for CHECKPOINT_NEWEST the newest undamaged one. COLLECTIVE. */
checkpoint_result checkpoint_load(checkpoint *c, int64_t step);

/* Returns the step that was loaded last, or -1. The others return 1 and a value of that generation,
   or 0 if it has no such value. A text is borrowed from c until the next load. */
int64_t checkpoint_step(const checkpoint *c);
int checkpoint_get_int(const checkpoint *c, const char *name, int64_t *number);
int checkpoint_get_real(const checkpoint *c, const char *name, double *real);
int checkpoint_get_text(const checkpoint *c, const char *name, const char **text);
/* Writes the plugin's counters of that generation (steps taken, ...). Returns 0 before a load. */
int checkpoint_get_counters(const checkpoint *c, zero_counters *counters);
/* Returns options.config of the run that saved it, or "" before a load. */
const char *checkpoint_config(const checkpoint *c);

/* Returns the sentence of the last error, or "". Borrowed until the next call of c. If c is NULL,
   the sentence is that memory is short. */
const char *checkpoint_error(const checkpoint *c);
/* Returns the plugin's result, if the last result was CHECKPOINT_PLUGIN. */
zero_result checkpoint_plugin_result(const checkpoint *c);

/* Figures of this rank's last save and load; times are seconds. */
typedef struct checkpoint_report {
    int64_t saved_step;   /* newest generation that is known to be durable; -1: none. After an
                             asynchronous save, ranks other than 0 learn it at the next call */
    uint64_t bytes;       /* size of this rank's shard file */
    uint64_t total_bytes; /* size of all shard files */
    double stall_s;       /* duration of the last checkpoint_save in the calling thread */
    double waited_s;      /* the part of stall_s spent waiting for the save before */
    double copy_s;        /* asynchronous: the copy of the state */
    double write_s;       /* writing and fsync of the shard file, in the last save that ended */
    double load_s;        /* duration of the last checkpoint_load */
    uint64_t read_bytes;  /* bytes that the last load read on this rank */
    int skipped;          /* generations that the last load skipped */
} checkpoint_report;
void checkpoint_query(const checkpoint *c, checkpoint_report *report);

/* ---- reading without a context: tools, converters ------------------------------------------ */

/* A generation's folder name, newest first. */
typedef struct checkpoint_generation {
    int64_t step;
    char name[64];
} checkpoint_generation;
/* Lists a folder. The caller frees *list. `why`: CHECKPOINT_SENTENCE bytes. */
checkpoint_result checkpoint_list(const char *folder, checkpoint_generation **list, int *n,
                                  char *why);

typedef struct checkpoint_reader checkpoint_reader;

/* One tensor of a generation. */
typedef struct checkpoint_tensor {
    const char *name;
    size_t layers, numel; /* layers 1 and numel all, if they were not given at the save */
    zero_type type[3];    /* of weights, first and second moments, as they are stored */
    int arrays;           /* number of stored arrays: 1 to 3 */
    int parts;            /* number of parts in which it was saved; 1: whole */
} checkpoint_tensor;

/* Opens a generation by its path and verifies its manifest, but reads no shard file. On error *r is
   NULL. `why`: CHECKPOINT_SENTENCE bytes. */
checkpoint_result checkpoint_open(checkpoint_reader **r, const char *path, char *why);
void checkpoint_close(checkpoint_reader *r);

int64_t checkpoint_reader_step(const checkpoint_reader *r);
/* Returns 1 if the run had bf16 weights with split masters, which are rounded half up. */
int checkpoint_reader_splits(const checkpoint_reader *r);
int checkpoint_tensors(const checkpoint_reader *r);
void checkpoint_query_tensor(const checkpoint_reader *r, int i, checkpoint_tensor *tensor);
void checkpoint_query_counters(const checkpoint_reader *r, zero_counters *counters);
int checkpoint_values(const checkpoint_reader *r);
const checkpoint_value *checkpoint_value_at(const checkpoint_reader *r, int i);
const char *checkpoint_reader_config(const checkpoint_reader *r);
const char *checkpoint_optimizer(const checkpoint_reader *r); /* "adamw", ... */

/* Reads and verifies elements [first, first + count) over all layers, as f32. array 0: weights, 1
   and 2: moments. It takes 16 MiB of memory for any tensor. */
checkpoint_result checkpoint_read(checkpoint_reader *r, int tensor, int array, size_t first,
                                  size_t count, float *out, char *why);

/* Reads and verifies all bytes of all files. *bytes: their number. */
checkpoint_result checkpoint_verify(checkpoint_reader *r, uint64_t *bytes, char *why);

#ifdef __cplusplus
}
#endif
#endif
