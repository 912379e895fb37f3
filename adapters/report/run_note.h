/* run_note.h - describes the run that wrote a file, in a file next to it.

   PATH.note has lines "NAME VALUE": program, commit, model, ranks, flags, host, date. The report
   page prints them in its head, and notices if its sources are from different runs.
*/
#ifndef RUN_NOTE_H
#define RUN_NOTE_H

#ifdef __cplusplus
extern "C" {
#endif

enum { RUN_NOTE_FLAGS = 1024 };

typedef struct run_note {
    const char *program, *model;
    const char *flags; /* the command line, without the program */
    int ranks;
} run_note;

/* Writes PATH.note if PATH is a regular file, such as main.log; otherwise does nothing. Returns 0,
   or an errno. */
int run_note_write(const char *path, const run_note *n);

/* Joins the arguments of a command line, and puts those with blanks into quotes. */
void run_note_flags(int argc, char **argv, char text[RUN_NOTE_FLAGS]);

#ifdef __cplusplus
}
#endif
#endif
