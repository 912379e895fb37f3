/* settings_rows.h - the settings of a training as rows of a table, before its first step.

   WHY A FILE. The rows depend on flags, model and ranks only, not on the training loop.
*/
#ifndef SETTINGS_ROWS_H
#define SETTINGS_ROWS_H

#include "../gpt2/gpt2.h"
#include "../launch/launch.h"
#include "../options/train_resolve.h"
#include "../parallel/layout.h"
#include "report.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct settings {
    const train_options *opt;
    const gpt2_config *model;
    const batch_shape *batch;
    const ds_config *ds;
    const launch *l;
    const layout *ranks;
    schedule_kind lr_kind;
    size_t train_tokens, val_tokens;
    const char *order, *device;
    int steps, threads;
    double matmul_rate, peak_rate;
    const char *products, *attention;
} settings;

/* Prints the table: seven rows, or all with -st all. plan_table adds five, or all. */
void settings_rows(report *r, const settings *s);

/* The bytes that a rank keeps, and those that it sends in a step. */
typedef struct plan_view {
    int settings; /* -st: 1: all rows */
    int stage;
    const zero_plan *plan;
    const zero_config *config; /* from zero_query_config */
    int keeps_away;            /* 1: GPT2_RECOMPUTE_AWAY */
    size_t activations, away, saves;
    size_t copies;         /* bytes of checkpoints in memory (-pm) */
    uint64_t process, all; /* 0: not known */
    size_t parts;          /* bytes that the parts of a model exchange in a step */
    const char *away_where;
    int host_is_device;
    int together; /* micro-steps that pass each layer together */
} plan_view;

void plan_table(report *r, const plan_view *v);

#ifdef __cplusplus
}
#endif
#endif
