/* checkpoint_inside.h - what the files of this folder share. A file calls those below it alone.

     checkpoint.c           the collective part: save, load
     checkpoint_writer.c    a generation without a context, for converters
     checkpoint_reader.c    the same the other way round
     checkpoint_shard.c     shard files: written once, read in verified blocks
     checkpoint_cut.c       tensors in parts: the order in which their elements are stored
     checkpoint_manifest.c  manifest.json to and from a struct
     checkpoint_folder.c    generations as folders: list, publish, remove
     checkpoint_memory.c    generations in the memory of the process that starts ranks
     checkpoint_meeting.c   agreement of ranks, and waiting for those whose disks are slow
     checkpoint_base.c      sentences, sizes, bytes, threads

   Functions that can fail return a checkpoint_result and write its sentence to an error. */
#ifndef CHECKPOINT_INSIDE_H
#define CHECKPOINT_INSIDE_H

#include "checkpoint.h"

#include <pthread.h>

#define CK_PRINTF(a, b) __attribute__((format(printf, a, b)))

enum {
    CK_VERSION = 1, /* of files; of a manifest, too, where no tensor is in parts */
    CK_PARTS_VERSION = 2,
    CK_SEEN_VERSION = 3,
    CK_PAGE = 4096, /* every part of a shard file is a multiple: direct I/O needs no tail */
    CK_HEADER = CK_PAGE,
    CK_ALIGN = 64,              /* of a range's first byte */
    CK_BLOCK = 1 << 20,         /* what one checksum covers */
    CK_WINDOW = 8 * CK_BLOCK,   /* what is read or written at once */
    CK_WINDOWS = 2 * CK_WINDOW, /* one is read while one is handed out */
    CK_ARRAYS = 3,
    CK_SEEN = CK_ARRAYS, /* the number of one more array, of runs that delay updates */
    CK_ALL_ARRAYS,
    CK_PATH = 4096,
    CK_NAME = 64 /* of a file, its zero included */
};

typedef struct ck_error {
    checkpoint_result code;
    int number; /* errno, or a zero_result; or 0 */
    char text[CHECKPOINT_SENTENCE];
} ck_error;

/* Writes the sentence and returns the code. */
checkpoint_result ck_fail(ck_error *e, checkpoint_result code, const char *format, ...)
    CK_PRINTF(3, 4);
/* The same for a system call that failed: errno's words are added. */
checkpoint_result ck_fail_errno(ck_error *e, const char *format, ...) CK_PRINTF(2, 3);

/* A read that failed: a bad disk is damage, for which an older generation is looked at; other
   reasons (no descriptors left) are not the file's. */
checkpoint_result ck_fail_read(ck_error *e, const char *path);

#define CK_TRY(call)                                                                               \
    do {                                                                                           \
        const checkpoint_result ck_r = (call);                                                     \
        if (ck_r) return ck_r;                                                                     \
    } while (0)

uint64_t ck_hash(const void *bytes, size_t n);
double ck_now(void);
uint64_t ck_round_up(uint64_t bytes, uint64_t to);
/* folder/name. */
checkpoint_result ck_path(char out[CK_PATH], const char *folder, const char *name, ck_error *e);

/* Of a shard file, see below; the table is padded. */
uint64_t ck_table_bytes(uint64_t image_bytes);
uint64_t ck_file_bytes(uint64_t image_bytes);

/* Elements are stored with their lowest byte first. */
void ck_little_endian(void *elements, zero_type type, size_t n);

/* All of n bytes; *direct: the file was opened with O_DIRECT, which is taken back where it is in
   the way. write: 0, or -1: errno. read, from byte `at`: 1; 0: the file ends before; -1: errno. */
int ck_write_all(int fd, const char *from, size_t n, int *direct);
int ck_read_all(int fd, uint64_t at, char *to, size_t n, int *direct);

/* As pthread_create; the thread sees no signals. */
int ck_thread_start(pthread_t *thread, void *(*body)(void *), void *arg);
void *ck_pages_alloc(size_t bytes); /* NULL: no memory; free() */

/* ---- ranks together ------------------------------------------------------------------------ */

/* Those that save and load together: the ranks of a context, or of a group that has more. */
typedef struct ck_ranks {
    zero_ctx *z;
    zero_group *world; /* NULL: the context's ranks */
    void *bounce;      /* of a group: memory that its collectives reach */
    int rank, n;
} ck_ranks;
int ck_ranks_open(ck_ranks *r, zero_ctx *z, zero_group *world); /* 0: no memory */
void ck_ranks_close(ck_ranks *r);
/* zero_broadcast, and zero_all_sum of at most 8 values, over them. COLLECTIVE. */
zero_result ck_broadcast(const ck_ranks *r, void *data, size_t bytes, int root);
zero_result ck_sum(const ck_ranks *r, double *values, int n);

/* The plugin's error as one of these. */
checkpoint_result ck_plugin(const ck_ranks *r, zero_result result, ck_error *e);

/* Every rank brings its own outcome and gets that of the first rank that failed. COLLECTIVE. */
checkpoint_result ck_agree(const ck_ranks *r, ck_error *e);

typedef checkpoint_result (*ck_body)(void *arg, ck_error *e);
typedef struct ck_call {
    ck_body body;
    void *arg;
    ck_error *e;
} ck_call;

/* Work on files, one at a time, done by a thread of its own. */
typedef struct ck_work {
    double pause; /* longest time between two meetings, in seconds: well below the plugin's limit */
    int opened, running;
    ck_body body;
    void *arg;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ck_call *call;           /* what the thread asks the caller's to do; under the lock */
    int done, cancel, alone; /* atomic; alone: no other rank is at work any more */
    ck_error outcome;        /* when it is done */
} ck_work;

int ck_work_open(ck_work *w, double timeout_s); /* 0: no memory */
void ck_work_close(ck_work *w);
/* *e is an outcome so far: if it is an error, or body NULL, there is nothing to do. */
void ck_work_begin(ck_work *w, ck_body body, void *arg, const ck_error *e);
/* Waits for the work of all ranks, as ck_agree; a failure of one ends the others' as soon as they
   look. w NULL: this one has none. COLLECTIVE. */
checkpoint_result ck_work_end(ck_work *w, const ck_ranks *r, ck_error *e);
/* Both. */
checkpoint_result ck_together(ck_work *w, const ck_ranks *r, ck_body body, void *arg, ck_error *e);
/* For the thread: has the caller's do what calls the plugin. */
checkpoint_result ck_work_ask(ck_work *w, ck_body body, void *arg, ck_error *e);
/* Another rank failed, or is gone. */
int ck_given_up(const ck_work *w);
/* No other rank is at work, or there is none. */
int ck_alone(const ck_work *w);
int ck_work_done(const ck_work *w);

/* ---- tensors in parts ---------------------------------------------------------------------- */

/* A dense tensor of `total` elements, over all layers, is rows of `row` elements, and a part has
   one of `parts` equal slices of every row. Stored are the parts one after another, each in its
   own order, so that what a rank has of its part is one piece whatever the rows are. With one part
   stored order is dense order.

       row 6, parts 2    dense   0 1 2 3 4 5 | 6 7 8 9 10 11
                         stored  0 1 2 6 7 8 | 3 4 5 9 10 11

   Heads of a matrix, columns, rows and the experts of a layer are slices like that. */
typedef struct ck_cut {
    uint64_t total, row, parts; /* parts 1: row is `total` */
} ck_cut;
int ck_cut_is_same(const ck_cut *a, const ck_cut *b);
/* The dense element that stored element `at` is; returns how many of the n from `at` on follow it
   in both orders. */
uint64_t ck_cut_dense(const ck_cut *c, uint64_t at, uint64_t n, uint64_t *dense);
/* How many of the dense elements before `dense` a part has. */
uint64_t ck_cut_before(const ck_cut *c, uint64_t part, uint64_t dense);
/* The next run of dense elements [*dense, end) that a part has, at stored element *at; *dense is
   its begin. Returns its length; 0: there is none. */
uint64_t ck_cut_next(const ck_cut *c, uint64_t part, uint64_t *dense, uint64_t end, uint64_t *at);

/* ---- the manifest -------------------------------------------------------------------------- */

/* Stored elements [first, first + count) of an array lie in a file from byte `offset` on. */
typedef struct ck_piece {
    int file;
    uint64_t first, count, offset;
} ck_piece;

typedef struct ck_array {
    zero_type type;
    int npieces, room;
    ck_piece *piece; /* sorted by first; together they are the whole tensor, each element once */
} ck_array;

typedef struct ck_tensor {
    char *name;
    uint64_t layers, numel;
    uint64_t row, parts; /* as of ck_cut; parts below 2: in dense order */
    int narrays;
    ck_array array[CK_ALL_ARRAYS]; /* weights, first and second moments; and the parameters as the
                                      next step sees them, without pieces where none are saved */
} ck_tensor;

typedef struct ck_file {
    char name[CK_NAME];
    uint64_t image_bytes; /* header and elements, what the blocks are of */
    uint64_t table;       /* checksum of the table of the blocks' checksums */
} ck_file;

typedef struct ck_manifest {
    int64_t step;
    uint64_t save; /* a number of its own for every save */
    char optimizer[CK_NAME];
    int narrays; /* of every tensor: 1 and the optimizer's */
    zero_counters counters;
    zero_config run; /* informative: how it was trained */
    int nranks;
    char *config;
    int nvalues, nfiles, ntensors, room;
    int *index; /* [2 * room], a power of 2: 1 + the tensor of a name, by its hash; 0: none */
    checkpoint_value *value; /* names and texts are owned */
    ck_file *file;
    ck_tensor *tensor;
} ck_manifest;

void ck_manifest_free(ck_manifest *m); /* of what it holds */
ck_cut ck_cut_of(const ck_tensor *t);
/* A new tensor, or the one of this name; NULL: no memory. */
ck_tensor *ck_manifest_tensor(ck_manifest *m, const char *name);
int ck_manifest_find(const ck_manifest *m, const char *name); /* -1: none */
/* Errors that a rank feeds back (zero_config.feedback), of which a model has none: each rank looks
   for its own, and begins at zero without them. They have one array. */
int ck_is_feedback(const char *name);
/* NULL: no memory. */
ck_piece *ck_array_add(ck_array *a, const ck_piece *piece);
/* Sorts the pieces and sees that they are the whole tensor. */
checkpoint_result ck_array_close(const ck_tensor *t, ck_array *a, ck_error *e);
/* The values are copied. */
checkpoint_result ck_manifest_set_values(ck_manifest *m, const checkpoint_value *values, int n,
                                         ck_error *e);
/* Text that the caller frees, its checksum at its end; NULL: no memory. */
char *ck_manifest_print(const ck_manifest *m, size_t *bytes);
/* *m is to be freed in any case. DAMAGED: its checksum or what it says is wrong. */
checkpoint_result ck_manifest_parse(ck_manifest *m, const char *text, size_t bytes, ck_error *e);
/* The same from and to a generation's folder; a new one is called manifest.json on a disk. */
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
/* 0: it is none, or of another version; 1 */
int ck_header_read(const void *page, ck_header *h);

typedef struct ck_shard {
    const char *folder;
    int rank, direct;
    uint64_t image_bytes;
    char *image; /* all of it; or NULL, and `fill` makes a window of it */
    checkpoint_result (*fill)(void *user, uint64_t at, size_t bytes, char *out, ck_error *e);
    void *user;
    char *window;        /* CK_WINDOW bytes, aligned to pages; unless there is an image */
    char *table;         /* ck_table_bytes, aligned to pages */
    const ck_work *work; /* looked at between windows, to give up. NULL: never */
} ck_shard;
/* Makes the table of an image's checksums. */
void ck_blocks_hash(char *table, uint64_t at, const char *bytes, size_t n);
/* Written as shard_00000.part, fsynced, and renamed. */
checkpoint_result ck_shard_write(const ck_shard *s, ck_error *e);

typedef struct ck_source {
    int fd, direct;
    uint64_t image_bytes, read_bytes;
    char *table; /* owned; aligned to pages */
    char path[CK_PATH];
} ck_source;
/* Opens a file of the manifest and verifies its size and table. *s is to be closed in any case. */
checkpoint_result ck_source_open(ck_source *s, const char *folder, const ck_manifest *m, int file,
                                 int direct, ck_error *e);
void ck_source_close(ck_source *s);
/* Reads whole blocks [at, at + bytes) of the image, verified; at most a window. */
checkpoint_result ck_source_read(ck_source *s, uint64_t at, size_t bytes, char *window,
                                 ck_error *e);

/* Elements to fetch, in stored order: part of a piece, and what for: a number of the caller's. */
typedef struct ck_copy {
    int file, tensor, array, use;
    zero_type type;
    uint64_t first, count, offset;
} ck_copy;
typedef struct ck_copies {
    int n, room;
    ck_copy *copy;
} ck_copies;
/* Adds what stored elements [first, first + count) of an array lie in. */
checkpoint_result ck_copies_add(ck_copies *list, const ck_manifest *m, int tensor, int array,
                                int use, uint64_t first, uint64_t count, ck_error *e);
/* The same of dense ones. */
checkpoint_result ck_copies_dense(ck_copies *list, const ck_manifest *m, int tensor, int array,
                                  int use, uint64_t first, uint64_t count, ck_error *e);
/* Reads them in the order of the files, every block once, and hands them to `take` in parts, from
   the thread of the caller. `window`: CK_WINDOWS bytes, aligned to pages. */
typedef checkpoint_result (*ck_take)(void *user, const ck_copy *part, void *elements, ck_error *e);
checkpoint_result ck_copies_run(ck_copies *list, const char *folder, const ck_manifest *m,
                                int direct, char *window, ck_take take, void *user,
                                uint64_t *read_bytes, ck_error *e);

/* The checksum of a file's table, from the file itself, for the manifest. NONE: there is no file
   yet. */
checkpoint_result ck_shard_table(const char *folder, ck_file *file, ck_error *e);

/* ---- folders ------------------------------------------------------------------------------- */

checkpoint_result ck_folder_make(const char *path, ck_error *e); /* may be there */
checkpoint_result ck_folder_sync(const char *path, ck_error *e);
/* A folder and the files in it. */
checkpoint_result ck_folder_remove(const char *path, ck_error *e);
void ck_generation_name(char out[CK_NAME], int64_t step);
/* Room for `bytes`; if not, says how much there is. */
checkpoint_result ck_folder_room(const char *path, uint64_t bytes, ck_error *e);
/* Adds how much is needed and there to a sentence on a full disk. */
void ck_folder_explain(const char *path, uint64_t bytes, ck_error *e);
/* Makes folder/temporary the generation `step`, durably. One of that number that was there is
   called `temporary`, or ...old-ID, from then on. *done: the name is there, if not yet durably. */
checkpoint_result ck_generation_publish(const char *folder, const char *temporary, int64_t step,
                                        uint64_t id, int *done, ck_error *e);
typedef struct ck_keep {
    const char *folder;
    int64_t step; /* that was saved */
    int last;
    int64_t every;
    uint64_t id;
    void (*log)(void *user, const char *sentence);
    void *user;
} ck_keep;
/* Removes what is not to be kept and sets aside what comes after `step`. What fails is logged. */
void ck_generation_prune(const ck_keep *k);
/* *.tmp-* and *.gone-* that killed runs left. They are listed when a run begins, so that what it or
   a converter writes later is never taken for one of them, and removed for a short time then and
   after each save: a folder of thousands delays nobody. */
typedef struct ck_leftovers {
    checkpoint_generation *list;
    int n;
} ck_leftovers;
void ck_leftovers_find(ck_leftovers *l, const char *folder);
/* At least one of them, and no more once so many seconds are over. */
void ck_leftovers_remove(ck_leftovers *l, const char *folder, double seconds);
void ck_leftovers_free(ck_leftovers *l);
/* The whole file, a zero after it; the caller frees. */
checkpoint_result ck_file_read(const char *path, char **text, size_t *bytes, ck_error *e);
checkpoint_result ck_file_write(const char *path, const char *text, size_t bytes, ck_error *e);

/* ---- generations in memory ----------------------------------------------------------------- */

/* Files in CK_MEMORY "/fd", in one of two slots. Rank 0's, but for _name and _map. */
#define CK_MEMORY "/proc/self"
enum { CK_SLOTS = 2, CK_OF_MANIFEST = -1 };
/* The slot of a step that is whole, below 0: of the newest; -1: there is none. */
int ck_memory_find(const checkpoint_memory *m, int64_t step);
checkpoint_result ck_memory_list(const checkpoint_memory *m, checkpoint_generation **list, int *n,
                                 ck_error *e);
/* Of a rank's file; of the manifest: CK_OF_MANIFEST. */
void ck_memory_name(char out[CK_NAME], const checkpoint_memory *m, int slot, int rank);
/* The slot is not whole from here to its commit; ranks write between them, at what they map. */
checkpoint_result ck_memory_begin(checkpoint_memory *m, int slot, int ranks, ck_error *e);
checkpoint_result ck_memory_map(const checkpoint_memory *m, int slot, int rank, uint64_t bytes,
                                char **out, ck_error *e);
void ck_memory_commit(checkpoint_memory *m, int slot, int64_t step);

/* ---- a generation without a context -------------------------------------------------------- */

/* Gives elements [first, first + count) of an array of m->tensor[tensor], as f32. */
typedef checkpoint_result (*ck_read)(void *user, int tensor, int array, uint64_t first,
                                     size_t count, float *out, ck_error *e);
/* Makes generation m->step of `folder` in one file, whose elements are asked for in the order in
   which they are written. m tells all but `save`, the files and the pieces, which are set here.
   Refused where the folder has a generation of this step or a later one: a run would go on from
   that. Memory: 16 MiB, whatever the model. */
checkpoint_result ck_generation_write(const char *folder, ck_manifest *m, ck_read read, void *user,
                                      ck_error *e);
#endif
