/* compare.h - compares the speed, memory, traffic and weights of several ZeRO stages, or of several
   layouts of the ranks. All of them train the same model in one process.

   If each stage ran to its end before the next one, the load of other programs would change the
   ratios. Here the steps are divided into rounds. In each round all stages run a part of their
   steps, each round starts with a different stage, and the ratio of two stages is the median over
   the rounds.
*/
#ifndef COMPARE_H
#define COMPARE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "../../zero_plugin.h"
#include "../report/report.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { COMPARE_MOST = 8, COMPARE_ROUNDS = 1000 };

/* The functions of the trainer that a comparison calls. */
typedef struct compare_host {
    /* Makes one step. If loss is NULL, it need not wait for a GPU; otherwise *loss is the mean over
       the ranks. */
    void (*step)(void *trainer, double *loss);
    void (*wait)(void *trainer);                      /* waits until the device is idle */
    void (*check)(void *trainer, zero_result result); /* ends the job after an error */
    uint64_t (*hash)(void *trainer);                  /* of all weights */
    /* Sums n values over all ranks. With n = 0 it is a barrier. */
    void (*sum)(void *trainer, double *values, int n);
    /* Returns the memory and traffic so far of the trainer's other contexts and groups, or zeros.
     */
    void (*others)(void *trainer, zero_stats *stats);
} compare_host;

typedef struct compare_entry {
    void *trainer;
    zero_ctx *z;
    const zero_plan *plan;
    int stage;
    char name[48], layout[48]; /* in the table: stage or layout; "tp2dp2" */
    size_t others_bytes;       /* bytes that other groups send in a step, by formula */
    size_t activation_bytes;
    /* Results. */
    double rates[COMPARE_ROUNDS]; /* tokens per second */
    double median, ratio;         /* ratio to stage 0: the median over rounds */
    double low, high;             /* the quartiles of the ratio */
    uint64_t sent_bytes;          /* of one step */
    double exposed_s;             /* of all rounds, mean over ranks */
    double loss;                  /* of the last step */
    uint64_t weights;
    zero_stats stats;
} compare_entry;

typedef struct compare {
    const compare_host *host;
    report *report;
    int ranks;
    int rounds; /* 1..COMPARE_ROUNDS */
    int steps;  /* of each entry: a multiple of rounds */
    int64_t step_tokens;
    const char *what;                  /* "stage" or "layout" */
    compare_entry entry[COMPARE_MOST]; /* the caller sets the fields to activation_bytes */
    int n;
} compare;

/* Trains all entries and prints a line per round. COLLECTIVE. */
void compare_run(compare *c);

/* Prints the table, the meaning of its columns, and whether the weights are equal. Writes the table
   as CSV too, if csv is not NULL. */
void compare_print(compare *c, FILE *csv);

/* Returns 1 and a sentence if an entry's weights differ from those of entry 0. */
int compare_unequal(const compare *c, char *sentence, size_t bytes);

/* Opens the file for writing, and creates its folder. After an error it returns NULL and sets
 * errno. */
FILE *compare_open_csv(const char *path);

#ifdef __cplusplus
}
#endif
#endif
