/* options.h - a command line as a table: a setting is one row, and all that happens to settings is
   a loop over the rows.

   WHY. A program's setting has a flag, a default, a range and a help text; a configuration file may
   have a key for it, and a library a field that it becomes. Written where each is needed, a setting
   stands in five lists, and one of them is forgotten. Here a row says all of it.

   THREE STRUCTS. The program's own, `values`, which rows find by `field`; what was typed, `given`;
   and the library's, the target, which rows find by `to`. A configuration file is read into a
   target of its own: where it says something, options_take copies it back into the values, and
   options_conflict tells whether a typed flag says otherwise.

   Nothing here prints, except help, or keeps state. The first error of a command line is kept as a
   sentence.
*/
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    OPTION_LIST = 4,       /* numbers that a list can have */
    OPTION_WORD_BYTES = 16 /* of a word of a choice, its end included */
};

typedef enum option_type {
    OPTION_HEADING = 0, /* a line of help */
    OPTION_INT,         /* int */
    OPTION_RANK,        /* int; differs between ranks */
    OPTION_LONG,        /* int64_t */
    OPTION_REAL,        /* double */
    OPTION_PATH,        /* const char *; may differ between ranks */
    OPTION_TEXT,        /* const char * */
    OPTION_WORD,        /* int: index into words */
    OPTION_STAGES       /* option_list */
} option_type;

typedef struct option_list {
    int at[OPTION_LIST], n;
} option_list;

/* What the value is in the target. */
typedef enum option_form {
    OPTION_AS_NOTHING = 0,
    OPTION_AS_INT,    /* int, or an enum */
    OPTION_AS_NOT,    /* int: 1 where the option is 0 */
    OPTION_AS_FLOAT,  /* float */
    OPTION_AS_DOUBLE, /* double */
    OPTION_AS_INT64,  /* int64_t */
    OPTION_AS_SIZE,   /* size_t, uint64_t */
    OPTION_AS_COUNT,  /* int: -1 where the option is 0, 0 where it is negative (the default) */
    OPTION_AS_COUNT64 /* the same as int64_t */
} option_form;

/* Whose value counts where both could. */
typedef enum option_rule {
    OPTION_FILE_IF_GIVEN = 0, /* the file's where it has one */
    OPTION_FILE_UNLESS_TYPED, /* where it has none its reader's default, unless the flag was typed
                               */
    OPTION_FILE_ALWAYS        /* where it has none its reader's default */
} option_rule;

typedef struct option {
    const char *flag; /* short: -z */
    const char *name; /* long: --stage */
    option_type type;
    size_t field;        /* in the values */
    const char *normal;  /* default, as it would be typed */
    const char *compare; /* the other default, of options_parse; NULL: the same */
    double least, most;
    const char *words; /* separated by blanks */
    const char *help;
    const char *idle; /* of a flag that is accepted and changes nothing: why; else NULL */
    int course;       /* 1: what the program computes depends on it */
    option_form form; /* in the target, at `to` */
    size_t to;
    size_t per;      /* where the target counts in units of an int option: its field; else 0 */
    const char *key; /* of the file, for sentences; NULL: no file says it */
    uint64_t bit;    /* that a file sets for it; 0: where the target is not 0 */
    option_rule rule;
    int unsaid; /* 1: a typed 0 leaves it to the file */
} option;

/* A table, and values for it. Everything is borrowed. */
typedef struct option_set {
    const option *table;
    int rows;
    void *values;
    unsigned char *given; /* [rows] 1: on the command line */
    char *error;          /* "": nothing is wrong */
    size_t error_bytes;
    const char *typed; /* private: the flag that is being read, as it was typed */
    int typed_length;  /* private */
} option_set;

/* Sets defaults, then what the arguments say: "-z 3", "--stage 3" or "--stage=3". `compares`
   chooses the other defaults. `foreign` tells arguments to be passed over. Returns 1 if help is
   asked for: by --help, or by -h without a value, even where -h is a flag of the table. */
int options_parse(option_set *o, int argc, char **argv, int compares, int (*foreign)(const char *));

/* All rows with their help, to stdout; print_wrapped breaks a text at blanks before column 99. */
void options_help(const option_set *o);
void options_print_wrapped(const char *text, int indent);

/* "FLAG VALUE" a line, of all that may not differ between ranks; returns the text's length. */
size_t options_render(const option_set *o, char *text, size_t bytes);

/* Where lines of "NAME VALUE" have the value of a name; NULL: nowhere. Its length comes back. */
const char *options_line(const char *lines, const char *name, int *length);

/* The row of a flag; NULL: there is none. */
const option *options_find(const option_set *o, const char *flag);

/* The value that is typed last for a flag; NULL: none is. Reads the arguments alone. */
const char *options_value(const option_set *o, int argc, char **argv, const char *flag);

/* The next typed flag from row *row on that changes nothing here, as "FLAG VALUE changes nothing
   here: WHY". Returns 0 where there is none. */
int options_idle(const option_set *o, int *row, char *sentence, size_t bytes);

/* Whether a flag of the table was typed. */
int options_given(const option_set *o, const char *flag);

/* The word of this index. */
void option_word(const char *words, int index, char word[OPTION_WORD_BYTES]);

/* Every row that has a place in the target writes its value there. */
void options_store(const option_set *o, void *target);

/* bits: of the rows whose values the file has. Returns 1 and a sentence if a flag was typed and the
   file, called `name`, gives another value. */
int options_conflict(const option_set *o, const void *target, uint64_t bits, const char *name,
                     char *sentence, size_t bytes);

/* The file's values. */
void options_take(option_set *o, const void *target, uint64_t bits);

#ifdef __cplusplus
}
#endif
#endif
