/* page_input.h - what a page is made of: main.log, the CSV of a comparison, peers' figures, a
   trace.

   Values keep their text beside their number, so that a page shows what its source has, digit by
   digit. Functions that read return 0, or 1 and a sentence that names file, line and what was
   expected; a last line without its end, of a run that was killed, is left out.
*/
#ifndef PAGE_INPUT_H
#define PAGE_INPUT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { PAGE_SENTENCE = 512 };

typedef struct page_value {
    double number;    /* NaN: there is none */
    const char *text; /* "": there is none */
} page_value;

/* main.log (main_log.h). */
typedef struct page_step {
    int64_t step;
    page_value loss, norm, tps, ms, mib;
} page_step;
typedef struct page_look { /* a validation or evaluation */
    int64_t step;
    page_value value;
} page_look;
typedef struct page_log {
    char *text;
    page_step *step;
    int steps;
    page_look *validation;
    int validations;
} page_log;
int page_log_read(const char *path, page_log *log, char *sentence, size_t bytes);
void page_log_free(page_log *log);

/* A CSV with a header. `needed`: names of columns, blanks between; `words`: those of them that are
   no numbers. Columns that nobody needs are kept as they are. */
typedef struct page_csv {
    char *text;
    const char **cell; /* [1 + rows][columns], the header first */
    int columns, rows;
} page_csv;
int page_csv_read(const char *path, const char *needed, const char *words, page_csv *csv,
                  char *sentence, size_t bytes);
/* Of a row from 0 on; a column that is not there has no value. */
page_value page_csv_value(const page_csv *csv, int row, const char *column);
void page_csv_free(page_csv *csv);

/* A trace in Trace Event Format's array form (trace.h), which may lack its end: its slices. */
typedef struct page_slice {
    char name[64], kind[24]; /* cat */
    int rank, track;
    double at_us, took_us;
    int64_t step; /* args.step; -1: not said */
} page_slice;
typedef struct page_track {
    char name[40];
    int rank, track;
} page_track;
typedef struct page_trace {
    page_slice *slice;
    int slices;
    page_track *track; /* that have a name */
    int tracks;
} page_trace;
int page_trace_read(const char *path, page_trace *trace, char *sentence, size_t bytes);
void page_trace_free(page_trace *trace);

/* The step whose length on rank 0 is the median, the first and the last apart where there are
   more than three; -1: no slice has a step. */
int64_t page_trace_step(const page_trace *trace);

#ifdef __cplusplus
}
#endif
#endif
