/* file_bytes.h - the bytes that the training steps of a rank read from and write to the file of the
   file tier, next to those that the plan states. */
#ifndef FILE_BYTES_H
#define FILE_BYTES_H

#include <stdint.h>

#include "../../zero_plugin.h"
#include "report.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All zeros: nothing is counted. */
typedef struct file_bytes {
    uint64_t seen[2], moved[2]; /* bytes read and written: in all; by training steps */
    int64_t first;              /* the count begins after this step; your code sets it */
} file_bytes;

/* Counts the bytes that the contexts have moved since the last call. by_steps: training steps moved
   them, and not evaluations or saves. A context can be NULL. Errors: those of zero_query_stats. */
zero_result file_bytes_count(file_bytes *f, const zero_plan *plan, zero_ctx *const contexts[2],
                             int by_steps);

/* Prints the bytes of a step, if steps were made and the plan has a file. step: the last one. */
void file_bytes_report(const file_bytes *f, report *out, const zero_plan *plan, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
