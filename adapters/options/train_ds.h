/* train_ds.h - reads the file of -ds, DeepSpeed's configuration, for all ranks of a job. */
#ifndef TRAIN_DS_H
#define TRAIN_DS_H

#include "../launch/launch.h"
#include "../report/report.h"
#include "train_resolve.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads the file of -ds, if it is given. The values that have a flag replace those of *o and
   *model; *ds keeps the others, such as the schedule. Rank 0 writes the file of -dso. *hash is that
   of the resolved settings, or stays as it is. Errors end the job with one line. COLLECTIVE. */
void train_read_ds(train_options *o, launch *l, report *out, gpt2_config *model, ds_config *ds,
                   uint64_t *hash);

#ifdef __cplusplus
}
#endif
#endif
