/* settings_rows.h - the settings of a training as rows of a table, before its first step.

   WHY A ROOM. What is printed is read from flags, model and ranks alone: nothing of it trains.
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

void settings_rows(report *r, const settings *s);

#ifdef __cplusplus
}
#endif
#endif
