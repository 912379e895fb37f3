/* page_input.h - reads the sources of a page: main.log, the CSV of a comparison, peers' figures,
   a trace.

   A value keeps its text in addition to its number, so a page shows the same digits as its source.
   Functions that read return 0, or 1 and a sentence with the file, the line and the expected text.
   An incomplete last line, which a killed run left, is ignored.
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
    double number;    /* NaN: no value */
    const char *text; /* "": no value */
} page_value;

/* The lines of SOURCE.note (run_note.h), in this order. */
enum { NOTE_PROGRAM, NOTE_COMMIT, NOTE_MODEL, NOTE_RANKS, NOTE_FLAGS, NOTE_HOST, NOTE_DATE };
enum { PAGE_NOTES = NOTE_DATE + 1 };
typedef struct page_note {
    char *text;
    const char *value[PAGE_NOTES]; /* "": not recorded */
} page_note;
const char *page_note_name(int line);
/* Reads the note next to a source. A source without a note is no error. */
int page_note_read(const char *source, page_note *note, char *sentence, size_t bytes);
void page_note_free(page_note *note);

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

/* A CSV with a header. `needed`: required columns, separated by blanks. `words`: those of them that
   contain text, not numbers. Other columns are kept unchecked. */
typedef struct page_csv {
    char *text;
    const char **cell; /* [1 + rows][columns], the header first */
    int columns, rows;
} page_csv;
int page_csv_read(const char *path, const char *needed, const char *words, page_csv *csv,
                  char *sentence, size_t bytes);
/* Returns a value of a row, which counts from 0. A missing column has no value. */
page_value page_csv_value(const page_csv *csv, int row, const char *column);
void page_csv_free(page_csv *csv);

/* The slices of a trace (trace.h), a JSON array in Trace Event Format that may lack its end. */
typedef struct page_slice {
    char name[64], kind[24]; /* cat */
    int rank, track;
    double at_us, took_us;
    int64_t step; /* args.step; -1: not given */
} page_slice;
typedef struct page_track {
    char name[40];
    int rank, track;
} page_track;
typedef struct page_trace {
    page_slice *slice;
    int slices;
    page_track *track; /* tracks with a name */
    int tracks;
} page_trace;
int page_trace_read(const char *path, page_trace *trace, char *sentence, size_t bytes);
void page_trace_free(page_trace *trace);

/* Returns the step with the median length on rank 0, or -1 if no slice has a step. Of more than
   three steps the first and the last do not count. */
int64_t page_trace_step(const page_trace *trace);

#ifdef __cplusplus
}
#endif
#endif
