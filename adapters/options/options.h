/* options.h - parses a command line by a table with one row per setting.

   A row has all facts about a setting: flag, default, range, help text, the key in a configuration
   file, and the field of a library's settings.

   THREE STRUCTS. `values` is the program's own struct; a row finds its value at `field`. `given`
   says which flags were typed. The target is the library's struct; a row finds its value at `to`. A
   configuration file is read into a second target. options_take copies the values that the file has
   into `values`, and options_conflict reports a typed flag whose value differs from the file's.

   Only the help functions print. No function keeps state. The first error of a command line is kept
   as a sentence.
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
    OPTION_WORD_BYTES = 16 /* bytes of the longest word of a choice, with its final zero */
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
    OPTION_STAGES       /* option_list; "auto" is the list without numbers */
} option_type;

typedef struct option_list {
    int at[OPTION_LIST], n;
} option_list;

/* The type of the value in the target. */
typedef enum option_form {
    OPTION_AS_NOTHING = 0,
    OPTION_AS_INT,    /* int, or an enum */
    OPTION_AS_NOT,    /* int: 1 if the option is 0 */
    OPTION_AS_FLOAT,  /* float */
    OPTION_AS_DOUBLE, /* double */
    OPTION_AS_INT64,  /* int64_t */
    OPTION_AS_SIZE,   /* size_t, uint64_t */
    OPTION_AS_COUNT,  /* int: -1 if the option is 0, and 0 (the default) if it is negative */
    OPTION_AS_COUNT64 /* the same as int64_t */
} option_form;

/* Decides between the file's value and the flag's. */
typedef enum option_rule {
    OPTION_FILE_IF_GIVEN = 0, /* the file's value, if the file has one */
    OPTION_FILE_UNLESS_TYPED, /* the file's value, or else the typed flag, or else the file's
                                 default */
    OPTION_FILE_ALWAYS        /* the file's value, or else the file's default */
} option_rule;

/* The defaults of a program depend on what it does. Bits of options_parse. */
enum { OPTIONS_GPT2 = 1, OPTIONS_COMPARE = 2 };

typedef struct option {
    const char *flag;    /* short: -z */
    const char *name;    /* long: --stage. Of a heading: the word that selects it in help */
    const char *aliases; /* other long names, separated by blanks; NULL: none */
    option_type type;
    size_t field;        /* in the values */
    const char *normal;  /* default, as it would be typed */
    const char *gpt2;    /* default of OPTIONS_GPT2; NULL: the same */
    const char *compare; /* default of OPTIONS_COMPARE, before that of OPTIONS_GPT2; NULL: none */
    const char *brief;   /* one line of the short help; NULL: it does not have this flag */
    double least, most;
    const char *words; /* separated by blanks */
    const char *help;
    const char *idle; /* NULL, or the reason why an accepted flag has no effect */
    int course;       /* 1: the results of the program depend on it */
    option_form form; /* in the target, at `to` */
    size_t to;
    const char *target_name; /* name of that field in the target's sentences; NULL: none */
    size_t per;              /* field of the int option in whose units the target counts; 0: none */
    const char *key;         /* key in the file, for sentences; NULL: none */
    uint64_t bit; /* set if the file has the value; 0: the file has it if the target is not 0 */
    option_rule rule;
    int unsaid; /* 1: a typed 0 means the file's value */
} option;

/* A table, and values for it. Everything is borrowed. */
typedef struct option_set {
    const option *table;
    int rows;
    void *values;
    unsigned char *given; /* [rows] 1: the flag was typed */
    char *error;          /* "": no error */
    size_t error_bytes;
    const char *typed; /* private: the current flag, as it was typed */
    int typed_length;  /* private */
} option_set;

/* Sets the defaults, then the values of the arguments: "-z 3", "--stage 3" or "--stage=3".
   Aliases mean the same. `defaults` has the bits above. `foreign` returns 1 for an argument to
   ignore. Returns 0, or what the user wants instead: OPTIONS_HELP for --help, or for -h without a
   value, even if the table has a flag -h; OPTIONS_VERSION for --version. *about receives the word
   after --help, or ""; NULL: there are no such words. */
enum { OPTIONS_HELP = 1, OPTIONS_VERSION = 2 };
int options_parse(option_set *o, int argc, char **argv, unsigned defaults,
                  int (*foreign)(const char *), const char **about);

/* These print to stdout. options_help prints all rows with their help; _brief the frequent flags;
   _topic one section or one flag, and returns 0 if there is none of this name; _topics the words of
   the sections. options_print_wrapped breaks a text at blanks before column 99. */
void options_help(const option_set *o);
void options_help_brief(const option_set *o);
int options_help_topic(const option_set *o, const char *about);
void options_help_topics(const option_set *o);
void options_print_wrapped(const char *text, int indent);

/* Writes lines "FLAG VALUE" for all options that must be equal on all ranks. Returns the length. */
size_t options_render(const option_set *o, char *text, size_t bytes);

/* Finds the value of a name in lines "NAME VALUE", and sets *length. Returns NULL if there is none.
 */
const char *options_line(const char *lines, const char *name, int *length);

/* Returns the row of a flag, or NULL. */
const option *options_find(const option_set *o, const char *flag);

/* Returns the last typed value of a flag, or NULL. It reads only the arguments. */
const char *options_value(const option_set *o, int argc, char **argv, const char *flag);

/* Finds the next typed flag from row *row on that changes nothing, and writes "FLAG VALUE changes
   nothing here: REASON". Returns 0 if there is none. */
int options_idle(const option_set *o, int *row, char *sentence, size_t bytes);

/* Returns whether a flag of the table was typed. */
int options_given(const option_set *o, const char *flag);

/* Returns whether a flag was typed, or the file has its value. */
int options_fixed(const option_set *o, const char *flag, const void *target, uint64_t bits);

/* Sets a flag as if it were typed. Returns 0, or 1 and o->error. */
int options_set(option_set *o, const char *flag, const char *value);

/* Converts a size to bytes: 80G, 640M, 1.5T (powers of 1024), 80GB (of 1000), or a number. Returns
   0, or 1 if the text is not a size above 0. */
int options_size(const char *text, double *size);

/* Copies the word with this index. */
void option_word(const char *words, int index, char word[OPTION_WORD_BYTES]);

/* Stores the value of each row that has a field in the target. */
void options_store(const option_set *o, void *target);

/* Returns 1 and a sentence if a typed flag and the file, called `name`, have different values.
   bits: those of the rows that the file has. */
int options_conflict(const option_set *o, const void *target, uint64_t bits, const char *name,
                     char *sentence, size_t bytes);

/* Copies a sentence of the library, with flags instead of the names of its settings: "zero_create,
   rank 0 of 4: parameter_tier is FILE: ..." becomes "-zop is file: ...". */
void options_translate(const option_set *o, const char *sentence, char *out, size_t bytes);

/* Copies the file's values to the options, by the rule of each row. */
void options_take(option_set *o, const void *target, uint64_t bits);

#ifdef __cplusplus
}
#endif
#endif
