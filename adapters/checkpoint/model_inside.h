/* model_inside.h - what the files of model_files.h share:

     model_files.c   a file of either format, into a context and out of one
     llmc_bin.c      llm.c's model and state files
     safetensors.c   safetensors
     lora_files.c    adapters as safetensors, see lora_files.h
     model_io.c      results, files, pieces: below the others

   No other file includes it. */
#ifndef MODEL_INSIDE_H
#define MODEL_INSIDE_H

#include "model_files.h"

/* ---- model_io.c ---------------------------------------------------------------------------- */

#define MODEL_TRY(call)                                                                            \
    do {                                                                                           \
        const zero_result model_result = (call);                                                   \
        if (model_result != ZERO_OK) return model_result;                                          \
    } while (0)

enum { MODEL_PATH = 4096 };

struct model_header;

/* A file that is read or written piece by piece. */
typedef struct model_file {
    zero_ctx *z;            /* NULL: one rank, without a context */
    const gpt2_config *cfg; /* configuration of the model */
    gpt2_error *e;          /* never NULL */
    const char *path;       /* the caller's path */
    int fd;                 /* -1: saving, on a rank other than 0 */
    uint64_t bytes;         /* length of the file */

    model_info info;             /* loading: what the file contains */
    struct model_header *header; /* loading safetensors */
    model_read read; /* saving: the function that reads elements; `out` is NULL if fd is -1 */
    void *user;
    zero_kind kind; /* saving a context: the part that is read */

    zero_tensor_desc table[GPT2_MOST_TENSORS]; /* the tensors of cfg */
    size_t piece;       /* elements that each buffer holds: whole rows of 4C, one or more */
    unsigned char *raw; /* a piece in the file's type */
    float *values, *transposed;
    char temporary[MODEL_PATH];
} model_file;

__attribute__((format(printf, 3, 4))) zero_result model_refuse(gpt2_error *e, zero_result result,
                                                               const char *format, ...);

/* Returns a result of f->z, and copies its sentence. */
zero_result model_from_plugin(const model_file *f, zero_result result);

/* Returns the result of a public function, and copies the sentence to the caller, if `err` is not
 * NULL. */
zero_result model_hand_out(gpt2_error *err, const gpt2_error *e, zero_result result);

/* Agrees on a result: all ranks return that of the first rank that failed, with its sentence.
 * COLLECTIVE. */
zero_result model_agree(zero_ctx *z, zero_result result, gpt2_error *e);

/* Returns ARGUMENT if a size is out of range. */
zero_result model_check_config(const gpt2_config *c, const char *path, gpt2_error *e);

/* These three are not collective. They open a file and return its length, read a number of bytes,
 * and write a number of bytes; less is an error. */
zero_result model_open(model_file *f, const char *path, gpt2_error *e);
zero_result model_get(const model_file *f, uint64_t at, size_t bytes, void *out);
zero_result model_get_from(const model_file *f, int fd, uint64_t at, size_t bytes, void *out);
zero_result model_put(const model_file *f, uint64_t at, size_t bytes, const void *data);
void model_close(model_file *f);

/* Makes the table of f->cfg, and allocates buffers for a piece. */
zero_result model_buffers(model_file *f);

/* Returns the number of elements of all layers. */
size_t model_total(const zero_tensor_desc *d);

/* The first opens the temporary file, of f->bytes; the second renames it to its final name. Both
 * are not collective. */
zero_result model_create(model_file *f, const char *path);
zero_result model_commit(model_file *f);

/* Converts n values to f->raw. If a finite number becomes infinite, that is an error that names the
 * tensor. */
zero_result model_narrow(const model_file *f, zero_type type, size_t n, const float *values,
                         const char *name);

/* Writes n elements of a tensor, from `first` on, to the file at byte `at`. COLLECTIVE. */
zero_result model_copy_out(const model_file *f, int tensor, size_t first, size_t n, zero_type type,
                           uint64_t at);

/* ---- the two formats ----------------------------------------------------------------------- */

/* The first int32 of a model file. */
enum { MODEL_LLMC_MAGIC = 20240326, MODEL_STATE_MAGIC = 20240527 };

/* info copies the header to f->info. get reads n elements, at most a piece; it is not collective.
 * save writes the file. COLLECTIVE. */
zero_result model_llmc_info(model_file *f);
zero_result model_llmc_get(const model_file *f, int tensor, size_t first, size_t n, float *out);
zero_result model_llmc_save(model_file *f, zero_type type);

/* The same functions for safetensors. info reads the header, or the index and all headers, to
 * f->header. ready makes the checks that need buffers. close is called before model_close. */
zero_result model_safetensors_info(model_file *f);
zero_result model_safetensors_ready(const model_file *f);
/* Checks whether the file has lm_head.weight, and whether it differs from wte. Called when the
 * buffers are allocated. */
int model_safetensors_head(const model_file *f);
zero_result model_safetensors_unties(const model_file *f, int *unties);
zero_result model_safetensors_get(const model_file *f, int tensor, size_t first, size_t n,
                                  float *out);
void model_safetensors_close(model_file *f);
/* A tensor of any file of this format. */
typedef struct model_tensor {
    const char *name;
    int type; /* zero_type, or -1 for another one */
    int dims;
    const uint64_t *shape;
    uint64_t at; /* byte of the file where it begins; above 0 */
} model_tensor;
/* Reads the header of the open file, with all checks except those of names, and calls `each` for
   each tensor, until it returns an error. */
zero_result model_safetensors_list(const model_file *f,
                                   zero_result (*each)(void *user, const model_tensor *t),
                                   void *user);
zero_result model_safetensors_save(model_file *f, zero_type type);

/* llm.c's state files. */
typedef struct model_state {
    llmc_state said;
    size_t shard; /* elements of one array in one file */
    int parts;    /* files that are read, and parts that a layer of a tensor is cut into */
    int *fd;
} model_state;

/* Opens and checks the files; the first one has their number. Close *s even after an error. */
zero_result model_state_open(model_file *f, model_state *s);
void model_state_close(model_state *s);
/* Reads elements [first, first + n) of a tensor from the files that have them. */
zero_result model_state_get(const model_file *f, const model_state *s, int array, int tensor,
                            size_t first, size_t n, float *out);
extern const zero_kind model_state_kinds[3]; /* the arrays of a state file, in order */

#endif
