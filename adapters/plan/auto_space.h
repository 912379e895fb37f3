/* auto_space.h - the dimensions that auto.c searches: a row for each flag. */
#ifndef PLAN_AUTO_SPACE_H
#define PLAN_AUTO_SPACE_H

#include "auto.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct auto_space {
    const plan_request *r;
    int rows;                     /* windows of a rank in a step */
    int node;                     /* ranks of a node; 0: the ranks are on one node */
    int overlaps;                 /* 1: messages can overlap with computing */
    int lossy;                    /* number of the combination of --allow-lossy; 0: none */
    int state, weights, messages; /* its values */
    int64_t step_tokens;
} auto_space;

typedef struct auto_row {
    const char *flag;
    size_t at;        /* field of auto_choice */
    size_t option;    /* field of train_options */
    const char *word; /* names of the values, separated by blanks; NULL: numbers */
    /* Writes the legal values for the rows before. Returns their number. */
    int (*values)(const auto_space *s, const auto_choice *c, int *value);
} auto_row;

/* The rows of a context come first. -b and -r are the last two: they change only activations. */
extern const auto_row auto_rows[];
extern const int auto_row_count;

/* Returns the value of a row. */
int *auto_value(auto_choice *c, const auto_row *row);

/* Lists the values of a row: its legal ones, or the one that is typed or in the file. */
int auto_list(const auto_space *s, const auto_row *row, const auto_choice *c, int *value);

/* Sets combination i of --allow-lossy, from 1 on, the simple ones first. Returns 0 after the last.
 */
int auto_set_lossy(auto_space *s, int i);

int auto_space_open(auto_space *s, const plan_request *r, char *sentence, size_t bytes);

/* Makes the case of a choice, through the options of its flags. */
int auto_case(const auto_space *s, const auto_choice *c, plan_case *made, char *sentence,
              size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
