/* hashes.h - XXH64 of what runs are compared by: weights, files, tokens.

   WHY A ROOM. Two runs are equal if their last lines are; ranks on several machines work on the
   same files if the hashes are. All are read in pieces: no rank ever holds a whole tensor or file.
*/
#ifndef HASHES_H
#define HASHES_H

#include "../../data/token_file.h"
#include "../../zero_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Elements [first, first + count) of tensor number `tensor`, over all layers: f32 masters where
   there are any. COLLECTIVE. */
typedef zero_result (*hash_read)(void *user, int tensor, size_t first, size_t count, float *out);

/* Tensor after tensor. COLLECTIVE. Errors: those of read; MEMORY also where this rank has no room
   for a piece. */
zero_result hash_weights(hash_read read, void *user, const zero_tensor_desc *table, int tensors,
                         uint64_t *hash);

/* A whole file. Returns 0 where it cannot be read; errno says why. */
int hash_file(const char *path, uint64_t *hash);

/* Errors: those of token_file_read. */
data_result hash_tokens(const token_file *file, uint64_t *hash, char *error, size_t error_bytes);

#ifdef __cplusplus
}
#endif
#endif
