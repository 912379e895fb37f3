/* ds_inside.h - functions that only the files of this folder share. */
#ifndef DS_INSIDE_H
#define DS_INSIDE_H

#include "ds_config.h"

enum { DS_WORD = 64, DS_PATH = 192 }; /* longest words and paths in sentences */

/* A text, and the line numbers of its keys in their order. */
typedef struct ds_text {
    char *bytes; /* changed: comments, and commas before closing brackets, become spaces */
    size_t length;
    int nkeys;
    int line[DS_CONFIG_KEYS];
    int why_line; /* 0: none */
    char why[96];
} ds_text;

/* Finds the keys: strings before a colon. Brackets may nest DS_CONFIG_DEPTH deep. Returns 0, or 1
   and `why`. */
int ds_scan_text(ds_text *t);

/* Writes a number in the fewest digits that read back to the same double, with a point in any
   locale. */
void ds_digits(char *out, size_t bytes, double value);

/* Returns the double of the shortest decimal that rounds to this float: 3e-5 for 3e-5f. */
double ds_widen(float value);

/* "fp32", "bf16", "fp16" */
const char *ds_type_name(zero_type type);

/* "none", "cpu", "nvme" */
const char *ds_device_name(zero_tier tier);

#endif
