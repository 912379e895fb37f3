/* checkpoint_inside.h - functions that the files of this folder share. A file calls only those
   below it.

     checkpoint.c           the collective part: save, load
     checkpoint_writer.c    a generation without a context, for converters
     checkpoint_reader.c    reads a generation without a context
     checkpoint_shard.c     shard files: written once, read in verified blocks
     checkpoint_cut.c       tensors in parts: the order in which their elements are stored
     checkpoint_manifest.c  manifest.json to and from a struct
     checkpoint_folder.c    generations as folders: list, publish, remove
     checkpoint_memory.c    generations in the memory of the process that starts ranks
     checkpoint_meeting.c   agreement of ranks, and waiting for ranks with slow disks
     checkpoint_base.c      error sentences, sizes, bytes, threads

   Functions that can fail return a checkpoint_result and write its sentence to an error. */
#ifndef CHECKPOINT_INSIDE_H
#define CHECKPOINT_INSIDE_H

#include "checkpoint.h"

#include <pthread.h>

#define CK_PRINTF(a, b) __attribute__((format(printf, a, b)))

enum {
    CK_VERSION = 1,        /* of files, and of a manifest with whole tensors */
    CK_PARTS_VERSION = 2,  /* of a manifest with tensors in parts */
    CK_SEEN_VERSION = 3,   /* of a manifest with the parameters that the next step sees */
    CK_FROZEN_VERSION = 4, /* of a manifest with frozen tensors among others */
    CK_PAGE = 4096,        /* sizes in a shard file are multiples of this, for direct I/O */
    CK_HEADER = CK_PAGE,
    CK_ALIGN = 64,              /* alignment of a range's first byte */
    CK_BLOCK = 1 << 20,         /* bytes that one checksum covers */
    CK_WINDOW = 8 * CK_BLOCK,   /* bytes of one read or write */
    CK_WINDOWS = 2 * CK_WINDOW, /* one is read while the other is used */
    CK_ARRAYS = 3,
    CK_SEEN = CK_ARRAYS, /* the number of one more array, of runs that delay updates */
    CK_ALL_ARRAYS,
    CK_PATH = 4096,
    CK_NAME = 64 /* bytes of a file's name, with its zero */
};

typedef struct ck_error {
    checkpoint_result code;
    int number; /* errno, or a zero_result; or 0 */
    char text[CHECKPOINT_SENTENCE];
} ck_error;

/* Writes the sentence and returns the code. */
checkpoint_result ck_fail(ck_error *e, checkpoint_result code, const char *format, ...)
    CK_PRINTF(3, 4);
/* Does the same for a failed system call, and adds the text of errno. */
checkpoint_result ck_fail_errno(ck_error *e, const char *format, ...) CK_PRINTF(2, 3);

/* Reports a failed read. EIO counts as damage, so that an older generation is tried. Other errors
   (no descriptors left) do not. */
checkpoint_result ck_fail_read(ck_error *e, const char *path);

#define CK_TRY(call)                                                                               \
    do {                                                                                           \
        const checkpoint_result ck_r = (call);                                                     \
        if (ck_r) return ck_r;                                                                     \
    } while (0)

uint64_t ck_hash(const void *bytes, size_t n);
double ck_now(void);
uint64_t ck_round_up(uint64_t bytes, uint64_t to);
/* Writes folder/name. */
checkpoint_result ck_path(char out[CK_PATH], const char *folder, const char *name, ck_error *e);

/* Return sizes of a shard file, as below. The table is padded. */
uint64_t ck_table_bytes(uint64_t image_bytes);
uint64_t ck_file_bytes(uint64_t image_bytes);

/* Converts elements in place between the CPU's byte order and little-endian. */
void ck_little_endian(void *elements, zero_type type, size_t n);

/* Writes or reads n bytes. *direct: 1 if the file was opened with O_DIRECT; if direct I/O fails, it
   is switched off. write returns 0, or -1 and errno. read starts at byte `at`, and returns 1, or 0
   if the file ends before, or -1 and errno. */
int ck_write_all(int fd, const char *from, size_t n, int *direct);
int ck_read_all(int fd, uint64_t at, char *to, size_t n, int *direct);

/* Like pthread_create, but the thread blocks all signals. */
int ck_thread_start(pthread_t *thread, void *(*body)(void *), void *arg);
void *ck_pages_alloc(size_t bytes); /* NULL if memory is short; use free() */

/* ---- ranks together ------------------------------------------------------------------------ */

/* The ranks that save and load together: those of a context, or of a larger group. */
typedef struct ck_ranks {
    zero_ctx *z;
    zero_group *world; /* NULL: the ranks of the context */
    void *bounce;      /* with a group: memory that its collectives accept */
    int rank, n;
} ck_ranks;
int ck_ranks_open(ck_ranks *r, zero_ctx *z, zero_group *world); /* 0 if memory is short */
void ck_ranks_close(ck_ranks *r);
/* zero_broadcast and zero_all_sum (of at most 8 values) over these ranks. COLLECTIVE. */
zero_result ck_broadcast(const ck_ranks *r, void *data, size_t bytes, int root);
zero_result ck_sum(const ck_ranks *r, double *values, int n);

/* Converts an error of the plugin. */
checkpoint_result ck_plugin(const ck_ranks *r, zero_result result, ck_error *e);

/* Replaces each rank's outcome by that of the first rank that failed. COLLECTIVE. */
checkpoint_result ck_agree(const ck_ranks *r, ck_error *e);

typedef checkpoint_result (*ck_body)(void *arg, ck_error *e);
typedef struct ck_call {
    ck_body body;
    void *arg;
    ck_error *e;
} ck_call;

/* File work, one job at a time, in a thread of its own. */
typedef struct ck_work {
    double pause; /* longest seconds between two meetings, well below cfg.timeout_s */
    int opened, running;
    ck_body body;
    void *arg;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ck_call *call; /* a call that the thread needs from the calling thread; under the lock */
    int done, cancel, alone; /* atomic; alone: all other ranks have ended their work */
    ck_error outcome;        /* valid after done */
} ck_work;

int ck_work_open(ck_work *w, double timeout_s); /* 0 if memory is short */
void ck_work_close(ck_work *w);
/* Starts the thread on body. If *e is an error already, or body is NULL, does nothing. */
void ck_work_begin(ck_work *w, ck_body body, void *arg, const ck_error *e);
/* Waits for the work of all ranks, then agrees as ck_agree does. After a failure the other ranks
   stop at their next check. w is NULL on a rank without work. COLLECTIVE. */
checkpoint_result ck_work_end(ck_work *w, const ck_ranks *r, ck_error *e);
/* Begins and ends the work. */
checkpoint_result ck_together(ck_work *w, const ck_ranks *r, ck_body body, void *arg, ck_error *e);
/* The work's thread calls this: the calling thread runs body, which may call the plugin. */
checkpoint_result ck_work_ask(ck_work *w, ck_body body, void *arg, ck_error *e);
/* Returns 1 if another rank failed or is dead. */
int ck_given_up(const ck_work *w);
/* Returns 1 if no other rank is at work. */
int ck_alone(const ck_work *w);
int ck_work_done(const ck_work *w);

/* ---- tensors in parts ---------------------------------------------------------------------- */

/* A dense tensor has `total` elements over all layers, in rows of `row` elements. A part has one of
   `parts` equal slices of each row. The file stores one part after another, each in its own order.
   So a rank's share of its part is one contiguous piece. With one part, stored order is dense
   order.

       row 6, parts 2    dense   0 1 2 3 4 5 | 6 7 8 9 10 11
                         stored  0 1 2 6 7 8 | 3 4 5 9 10 11

   Heads of a matrix, columns, rows and the experts of a layer are such slices. */
typedef struct ck_cut {
    uint64_t total, row, parts; /* parts 1: row is `total` */
} ck_cut;
int ck_cut_is_same(const ck_cut *a, const ck_cut *b);
/* Writes the dense index of stored element `at`. Returns how many of the n elements from `at` are
   adjacent in both orders. */
uint64_t ck_cut_dense(const ck_cut *c, uint64_t at, uint64_t n, uint64_t *dense);
/* Returns how many dense elements before `dense` belong to a part. */
uint64_t ck_cut_before(const ck_cut *c, uint64_t part, uint64_t dense);
/* Finds the next run in dense elements [*dense, end) that belongs to a part. Writes its begin to
 *dense and its stored index to *at. Returns its length, or 0 if none is left. */
uint64_t ck_cut_next(const ck_cut *c, uint64_t part, uint64_t *dense, uint64_t end, uint64_t *at);

/* ---- the manifest -------------------------------------------------------------------------- */

/* Stored elements [first, first + count) of an array are in a file from byte `offset`. */
typedef struct ck_piece {
    int file;
    uint64_t first, count, offset;
} ck_piece;

typedef struct ck_array {
    zero_type type;
    int npieces, room;
    ck_piece *piece; /* sorted by first; together they contain each element once */
} ck_array;

typedef struct ck_tensor {
    char *name;
    uint64_t layers, numel;
    uint64_t row, parts; /* as in ck_cut; parts below 2: dense order */
    int narrays;
    int f32_state;                 /* 1: it was kept in f32, next to 8-bit state of other tensors */
    ck_array array[CK_ALL_ARRAYS]; /* weights, first and second moments; and the parameters as the
                                      next step sees them, without pieces where none are saved */
} ck_tensor;

/* The tensor has array k: weights or a moment, or the parameters that the next step sees. */
static inline int ck_has_array(const ck_tensor *t, int k) {
    return k >= 0 && (k < t->narrays || (k == CK_SEEN && t->array[k].npieces > 0));
}

typedef struct ck_file {
    char name[CK_NAME];
    uint64_t image_bytes; /* bytes of header and elements, which the blocks cover */
    uint64_t table;       /* checksum of the table of the blocks' checksums */
} ck_file;

typedef struct ck_manifest {
    int64_t version; /* of the file that was read */
    int64_t step;
    uint64_t save; /* a random number that identifies the save */
    char optimizer[CK_NAME];
    int narrays; /* arrays of each trained tensor: 1 and the optimizer's */
    zero_counters counters;
    zero_config run; /* how it was trained; a load ignores it */
    int nranks;
    char *config;
    int nvalues, nfiles, ntensors, room;
    int *index;              /* [2 * room], a power of 2: hash table of names; 1 + tensor, or 0 */
    checkpoint_value *value; /* names and texts are owned */
    ck_file *file;
    ck_tensor *tensor;
} ck_manifest;

/* The tensor has no moments, although others have: it was frozen, or is error feedback. */
static inline int ck_is_frozen(const ck_manifest *m, const ck_tensor *t) {
    return t->narrays == 1 && m->narrays > 1;
}

void ck_manifest_free(ck_manifest *m); /* frees the contents of *m */
ck_cut ck_cut_of(const ck_tensor *t);
/* Returns the tensor of this name, and adds it if it is new. NULL if memory is short. */
ck_tensor *ck_manifest_tensor(ck_manifest *m, const char *name);
int ck_manifest_find(const ck_manifest *m, const char *name); /* -1: none */
/* Returns 1 for a rank's error feedback (zero_config.feedback), which has one array. It does not
   belong to the model: a rank loads its own, or begins with zeros. */
int ck_is_feedback(const char *name);
/* Adds a copy. Returns NULL if memory is short. */
ck_piece *ck_array_add(ck_array *a, const ck_piece *piece);
/* Sorts the pieces and checks that they are the whole tensor. */
checkpoint_result ck_array_close(const ck_tensor *t, ck_array *a, ck_error *e);
/* Copies the values. */
checkpoint_result ck_manifest_set_values(ck_manifest *m, const checkpoint_value *values, int n,
                                         ck_error *e);
/* Returns text that ends with its checksum; the caller frees it. NULL if memory is short. */
char *ck_manifest_print(const ck_manifest *m, size_t *bytes);
/* The caller frees *m in any case. DAMAGED: the checksum or the contents are wrong. */
checkpoint_result ck_manifest_parse(ck_manifest *m, const char *text, size_t bytes, ck_error *e);
/* Reads from or writes to a generation's folder; on a disk the name is manifest.json. */
checkpoint_result ck_manifest_read(ck_manifest *m, const char *folder, ck_error *e);
checkpoint_result ck_manifest_write(const ck_manifest *m, const char *folder, const char *name,
                                    ck_error *e);
extern const char *const ck_types[ZERO_TYPES]; /* "f32", ... */
const char *ck_optimizer_name(zero_optimizer optimizer, char out[CK_NAME]);

/* ---- shard files --------------------------------------------------------------------------- */

/*   0          4096                image_bytes            file_bytes
     | header | elements, padded ... | table, padded to 4096 |
     |  block 0  |  block 1  | ... | : 8 bytes a block in the table */
void ck_shard_name(char out[CK_NAME], int rank);

typedef struct ck_header {
    uint64_t save, image_bytes;
    int64_t step;
    uint32_t rank, nranks;
} ck_header;
void ck_header_write(void *page, const ck_header *h); /* CK_HEADER bytes */
/* Returns 0 if the page is no header, or one of another version. */
int ck_header_read(const void *page, ck_header *h);

typedef struct ck_shard {
    const char *folder;
    int rank, direct;
    uint64_t image_bytes;
    char *image; /* the whole image; or NULL: `fill` makes each window */
    checkpoint_result (*fill)(void *user, uint64_t at, size_t bytes, char *out, ck_error *e);
    void *user;
    char *window;        /* CK_WINDOW bytes, aligned to pages; unused with an image */
    char *table;         /* ck_table_bytes, aligned to pages */
    const ck_work *work; /* checked between windows, to stop. NULL: never */
} ck_shard;
/* Writes the checksums of image bytes [at, at + n) to the table. */
void ck_blocks_hash(char *table, uint64_t at, const char *bytes, size_t n);
/* Writes shard_00000.part, fsyncs and renames it. */
checkpoint_result ck_shard_write(const ck_shard *s, ck_error *e);

typedef struct ck_source {
    int fd, direct;
    uint64_t image_bytes, read_bytes;
    char *table; /* owned; aligned to pages */
    char path[CK_PATH];
} ck_source;
/* Opens a file of the manifest and verifies its size and table. Close *s in any case. */
checkpoint_result ck_source_open(ck_source *s, const char *folder, const ck_manifest *m, int file,
                                 int direct, ck_error *e);
void ck_source_close(ck_source *s);
/* Reads whole blocks [at, at + bytes) of the image, verified; at most a window. */
checkpoint_result ck_source_read(ck_source *s, uint64_t at, size_t bytes, char *window,
                                 ck_error *e);

/* Elements to fetch, in stored order, from one piece. `use` is the caller's number. */
typedef struct ck_copy {
    int file, tensor, array, use;
    zero_type type;
    uint64_t first, count, offset;
} ck_copy;
typedef struct ck_copies {
    int n, room;
    ck_copy *copy;
} ck_copies;
/* Adds the pieces that contain stored elements [first, first + count) of an array. */
checkpoint_result ck_copies_add(ck_copies *list, const ck_manifest *m, int tensor, int array,
                                int use, uint64_t first, uint64_t count, ck_error *e);
/* The same for dense elements. */
checkpoint_result ck_copies_dense(ck_copies *list, const ck_manifest *m, int tensor, int array,
                                  int use, uint64_t first, uint64_t count, ck_error *e);
/* Reads the list in the order of the files, each block once. The calling thread passes the elements
   to `take` in parts. `window`: CK_WINDOWS bytes, aligned to pages. */
typedef checkpoint_result (*ck_take)(void *user, const ck_copy *part, void *elements, ck_error *e);
checkpoint_result ck_copies_run(ck_copies *list, const char *folder, const ck_manifest *m,
                                int direct, char *window, ck_take take, void *user,
                                uint64_t *read_bytes, ck_error *e);

/* Reads the checksum of a file's table from the file, for the manifest. NONE: the file does not
   exist yet. */
checkpoint_result ck_shard_table(const char *folder, ck_file *file, ck_error *e);

/* ---- folders ------------------------------------------------------------------------------- */

checkpoint_result ck_folder_make(const char *path, ck_error *e); /* it may exist */
checkpoint_result ck_folder_sync(const char *path, ck_error *e);
/* Removes a folder and its files. */
checkpoint_result ck_folder_remove(const char *path, ck_error *e);
void ck_generation_name(char out[CK_NAME], int64_t step);
/* Checks that the disk has room for `bytes`; the error reports the free bytes. */
checkpoint_result ck_folder_room(const char *path, uint64_t bytes, ck_error *e);
/* Adds the needed and the free bytes to a sentence about a full disk. */
void ck_folder_explain(const char *path, uint64_t bytes, ck_error *e);
/* Renames folder/temporary to generation `step`, durably. An older one of that number gets the name
   `temporary`, or ...old-ID. *done is 1 once the rename is done, perhaps not yet durably. */
checkpoint_result ck_generation_publish(const char *folder, const char *temporary, int64_t step,
                                        uint64_t id, int *done, ck_error *e);
typedef struct ck_keep {
    const char *folder;
    int64_t step; /* the step that was saved */
    int last;
    int64_t every;
    uint64_t id;
    void (*log)(void *user, const char *sentence);
    void *user;
} ck_keep;
/* Removes generations that are not kept, renames those after `step`, and logs failures. */
void ck_generation_prune(const ck_keep *k);
/* Folders *.tmp-* and *.gone-* that killed runs left. A run lists them when it begins, so that
   later writes of the run or a converter are not among them. It removes them for a short time then,
   and after each save, so that thousands of folders do not delay it. */
typedef struct ck_leftovers {
    checkpoint_generation *list;
    int n;
} ck_leftovers;
void ck_leftovers_find(ck_leftovers *l, const char *folder);
/* Removes at least one, and stops after `seconds`. */
void ck_leftovers_remove(ck_leftovers *l, const char *folder, double seconds);
void ck_leftovers_free(ck_leftovers *l);
/* Reads the whole file and adds a zero byte; the caller frees *text. */
checkpoint_result ck_file_read(const char *path, char **text, size_t *bytes, ck_error *e);
checkpoint_result ck_file_write(const char *path, const char *text, size_t bytes, ck_error *e);

/* ---- generations in memory ----------------------------------------------------------------- */

/* Files in CK_MEMORY "/fd", in one of two slots. Only rank 0 calls these, except _name and _map. */
#define CK_MEMORY "/proc/self"
enum { CK_SLOTS = 2, CK_OF_MANIFEST = -1 };
/* Returns the complete slot of a step (below 0: of the newest step), or -1. */
int ck_memory_find(const checkpoint_memory *m, int64_t step);
checkpoint_result ck_memory_list(const checkpoint_memory *m, checkpoint_generation **list, int *n,
                                 ck_error *e);
/* Writes the name of a rank's file, or for CK_OF_MANIFEST of the manifest. */
void ck_memory_name(char out[CK_NAME], const checkpoint_memory *m, int slot, int rank);
/* Marks the slot as incomplete until ck_memory_commit. Between them each rank maps its file and
 * writes. */
checkpoint_result ck_memory_begin(checkpoint_memory *m, int slot, int ranks, ck_error *e);
checkpoint_result ck_memory_map(const checkpoint_memory *m, int slot, int rank, uint64_t bytes,
                                char **out, ck_error *e);
void ck_memory_commit(checkpoint_memory *m, int slot, int64_t step);

/* ---- a generation without a context -------------------------------------------------------- */

/* Writes elements [first, first + count) of an array of m->tensor[tensor] to out, as f32. */
typedef checkpoint_result (*ck_read)(void *user, int tensor, int array, uint64_t first,
                                     size_t count, float *out, ck_error *e);
/* Writes generation m->step of `folder` as one file, and calls `read` in the order of writing. Sets
   m->save, the files and the pieces; the caller sets the rest of m. Fails if the folder has this
   step or a later one, because a run would load that. It takes 16 MiB of memory for any model. */
checkpoint_result ck_generation_write(const char *folder, ck_manifest *m, ck_read read, void *user,
                                      ck_error *e);
#endif
