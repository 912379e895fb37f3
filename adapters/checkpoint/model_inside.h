/* model_inside.h - what the files of model_files.h share:

     model_files.c   a file of either format, into a context and out of one
     llmc_bin.c      llm.c's model and state files
     safetensors.c   safetensors
     model_io.c      results, files, pieces: below the three

   For none but these. */
#ifndef MODEL_INSIDE_H
#define MODEL_INSIDE_H

#include "model_files.h"

/* ---- model_io.c ------------------------------------------------------------------------------ */

#define MODEL_TRY(call)                                                                            \
    do {                                                                                           \
        const zero_result model_result = (call);                                                   \
        if (model_result != ZERO_OK) return model_result;                                          \
    } while (0)

enum { MODEL_PATH = 4096 };

struct model_header;

/* A file on its way in or out, piece by piece. */
typedef struct model_file {
    zero_ctx *z;            /* NULL: there is none, and no other rank */
    const gpt2_config *cfg; /* of the model */
    gpt2_error *e;          /* never NULL */
    const char *path;       /* the caller's */
    int fd;                 /* -1: saving, and this is not rank 0 */
    uint64_t bytes;         /* of the whole file */

    model_info info;             /* loading: what the file says */
    struct model_header *header; /* loading safetensors */
    model_read read;             /* saving: where elements come from; `out` NULL where fd is -1 */
    void *user;
    zero_kind kind; /* saving a context: the part that is read */

    zero_tensor_desc table[GPT2_MOST_TENSORS]; /* of cfg */
    size_t piece;       /* elements that each buffer holds: whole rows of 4C, one or more */
    unsigned char *raw; /* as in the file */
    float *values, *turned;
    char temporary[MODEL_PATH];
} model_file;

__attribute__((format(printf, 3, 4))) zero_result model_refuse(gpt2_error *e, zero_result result,
                                                               const char *format, ...);

/* A result of f->z, with its sentence. */
zero_result model_from_plugin(const model_file *f, zero_result result);

/* What a public function returns: the sentence goes to the caller, if there is one to go to. */
zero_result model_hand_out(gpt2_error *err, const gpt2_error *e, zero_result result);

/* A rank's own result becomes everyone's, with the sentence of the first rank that failed. */
zero_result model_agree(zero_ctx *z, zero_result result, gpt2_error *e);

/* ARGUMENT where a size is out of range. */
zero_result model_check_config(const gpt2_config *c, const char *path, gpt2_error *e);

/* For one rank. These open a file and return its length, read exactly, and write exactly. */
zero_result model_open(model_file *f, const char *path, gpt2_error *e);
zero_result model_get(const model_file *f, uint64_t at, size_t bytes, void *out);
zero_result model_get_from(const model_file *f, int fd, uint64_t at, size_t bytes, void *out);
zero_result model_put(const model_file *f, uint64_t at, size_t bytes, const void *data);
void model_close(model_file *f);

/* The table of f->cfg, and buffers of a piece. */
zero_result model_buffers(model_file *f);

/* Elements of all layers. */
size_t model_total(const zero_tensor_desc *d);

/* The temporary file, of f->bytes; under its name for good; both not collective. */
zero_result model_create(model_file *f, const char *path);
zero_result model_commit(model_file *f);

/* n values to f->raw; a finite number that becomes infinite is an error that names the tensor. */
zero_result model_narrow(const model_file *f, zero_type type, size_t n, const float *values,
                         const char *name);

/* n elements from `first` of a tensor, as they lie in the file from byte `at`. COLLECTIVE. */
zero_result model_copy_out(const model_file *f, int tensor, size_t first, size_t n, zero_type type,
                           uint64_t at);

/* ---- the two formats --------------------------------------------------------------------------
 */

/* The first int32 of a file. */
enum { MODEL_LLMC_MAGIC = 20240326, MODEL_STATE_MAGIC = 20240527 };

/* info: what the file says, to f->info. get: n elements, at most a piece; not collective. save:
   COLLECTIVE. */
zero_result model_llmc_info(model_file *f);
zero_result model_llmc_get(const model_file *f, int tensor, size_t first, size_t n, float *out);
zero_result model_llmc_save(model_file *f, zero_type type);

/* The same; info reads the header, or the index and all headers, to f->header. ready: what can be
   checked once there are buffers. close: before model_close. */
zero_result model_safetensors_info(model_file *f);
zero_result model_safetensors_ready(const model_file *f);
/* Whether the file has lm_head.weight, and whether it differs from wte. Placed after the buffers.
 */
int model_safetensors_head(const model_file *f);
zero_result model_safetensors_unties(const model_file *f, int *unties);
zero_result model_safetensors_get(const model_file *f, int tensor, size_t first, size_t n,
                                  float *out);
void model_safetensors_close(model_file *f);
zero_result model_safetensors_save(model_file *f, zero_type type);

/* llm.c's state files. */
typedef struct model_state {
    llmc_state said;
    size_t shard; /* elements of one array in one file */
    int parts;    /* files that are read, and parts that a layer of a tensor is cut into */
    int *fd;
} model_state;

/* Opens and checks the files; the first says how many there are. *s is to be closed in any case. */
zero_result model_state_open(model_file *f, model_state *s);
void model_state_close(model_state *s);
/* Elements [first, first + n) of a tensor, from the parts of the files that have them. */
zero_result model_state_get(const model_file *f, const model_state *s, int array, int tensor,
                            size_t first, size_t n, float *out);
extern const zero_kind model_state_kinds[3]; /* the arrays of a state file, in their order */

#endif
