/* compare.h - several ZeRO stages, or layouts of the ranks, that train the same model in turns, in
   one process.

   WHY. Speeds that were measured one after the other are those of the machine's other load. Here
   the stages take turns in rounds, every round begins with another one, and a ratio is the median
   of the rounds' ratios: what disturbs hits all alike.

   WHY A ROOM. All it needs of a trainer is four functions; how a step comes about is not its
   business.
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

/* What the comparison asks of a trainer. */
typedef struct compare_host {
    /* One step. loss NULL: the host need not wait for a device; else the mean over ranks. */
    void (*step)(void *trainer, double *loss);
    void (*wait)(void *trainer);                      /* until the device has done its work */
    void (*check)(void *trainer, zero_result result); /* does not return from a failure */
    uint64_t (*hash)(void *trainer);                  /* of all weights */
    /* Sums n values over all ranks; 0: they only meet. */
    void (*sum)(void *trainer, double *values, int n);
    /* What contexts and groups beside the context have, and have done so far; zeros without any. */
    void (*beside)(void *trainer, zero_stats *stats);
} compare_host;

typedef struct compare_entry {
    void *trainer;
    zero_ctx *z;
    const zero_plan *plan;
    int stage;
    char name[48], layout[48]; /* in the table: stage or layout; "tp2dp2" */
    size_t beside_bytes;       /* that groups beside the context send in a step, by formula */
    size_t activation_bytes;
    /* What is found out. */
    double rates[COMPARE_ROUNDS]; /* tokens per second */
    double median, ratio;         /* ratio: to stage 0, the median over rounds */
    double low, high;             /* its quartiles: half of the rounds lie between */
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
    const char *what;                  /* "stage", or "layout": what entries differ in */
    compare_entry entry[COMPARE_MOST]; /* down to activation_bytes: the caller's */
    int n;
} compare;

/* Trains all, and says the rounds. COLLECTIVE. */
void compare_run(compare *c);

/* The table, and in words what its columns are and whether the weights are the same; and as CSV, if
   csv is not NULL. */
void compare_print(compare *c, FILE *csv);

/* 1, and a sentence: an entry's weights are not those of entry 0. */
int compare_unequal(const compare *c, char *sentence, size_t bytes);

/* Makes the file, and the folder that it lies in; NULL: errno says why not. */
FILE *compare_open_csv(const char *path);

#ifdef __cplusplus
}
#endif
#endif
