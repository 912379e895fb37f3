/* train_ds.c - see train_ds.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "train_ds.h"

#include "../system/regular_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static void print_ds_note(void *out, const char *sentence) {
    report_print((report *)out, "%s\n", sentence);
}

void train_read_ds(train_options *o, launch *l, report *out, gpt2_config *model, ds_config *ds,
                   uint64_t *hash) {
    char sentence[512], *text;
    ds_config said;
    const ds_notes notes = {print_ds_note, out};
    launch_require(l, o->ds_path[0] || !o->ds_out[0],
                   "-dso %s: there is no configuration to resolve; add -ds FILE", o->ds_out);
    if (!o->ds_path[0]) return;
    const ds_auto autos = train_autos(o, l->nranks, model->channels, &said);
    const int failed = ds_config_load(o->ds_path, &autos, ds, &notes, sentence, sizeof sentence);
    launch_require(l, !failed, "-ds: %s", sentence);
    text = ds_config_print(ds);
    launch_require(l, text != NULL, "rank %d: out of memory for %s", l->rank, o->ds_path);
    launch_same(l, text);
    *hash = XXH64(text, strlen(text), 0);
    const int differs = train_options_conflict(o, ds, sentence, sizeof sentence);
    launch_require(l, !differs, "%s", sentence);
    if (o->stage.n > 1 && ds->given & DS_GIVEN_STAGE)
        report_print(out, "%s: zero_optimization.stage has no effect: -z compares stages\n",
                     o->ds_path);
    train_take(o, ds, model);
    const int lost = l->rank == 0 && !train_write(o->ds_out, text);
    launch_require(l, !lost, "-dso: %s cannot be written: %s", o->ds_out,
                   regular_file_error(errno));
    free(text);
}
