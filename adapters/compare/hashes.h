/* hashes.h - computes XXH64 of weights, files and tokens, by which two runs, or the files of ranks
   on several machines, are compared. These functions read in pieces, and never hold a whole tensor
   or file in memory.
*/
#ifndef HASHES_H
#define HASHES_H

#include "../../data/token_file.h"
#include "../../zero_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads elements [first, first + count) of tensor number `tensor`, counted over all layers, from
   the f32 master weights if there are any. COLLECTIVE. */
typedef zero_result (*hash_read)(void *user, int tensor, size_t first, size_t count, float *out);

/* Hashes all tensors in the order of the table. COLLECTIVE. Errors: those of `read`, and MEMORY if
   this rank cannot allocate a piece. */
zero_result hash_weights(hash_read read, void *user, const zero_tensor_desc *table, int tensors,
                         uint64_t *hash);

/* Hashes a whole file. If it cannot be read, returns 0 and sets errno. */
int hash_file(const char *path, uint64_t *hash);

/* Hashes all tokens of a file. Errors: those of token_file_read. */
data_result hash_tokens(const token_file *file, uint64_t *hash, char *error, size_t error_bytes);

#ifdef __cplusplus
}
#endif
#endif
