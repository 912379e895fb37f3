/* test_abi.c [write] - the binary interface of the header against abi.txt, its record, on machines
   of 64 bits. abi.awk finds each struct, member, number and function in the header, so that a new
   one needs no line here. `write` makes a new record.

   What breaks a program that was built against the recorded ABI needs a new ZERO_ABI: a struct, a
   number or a function that is gone or differs, and a member that is new. What is only new, such as
   a function, a result before ZERO_RESULT_COUNT or a number, needs a new record alone. */
#include "../shared/harness.h"

#include <stddef.h>

static const char *const abi_path = "tests/plugin/abi.txt";

enum { ABI_LINES = 2000, ABI_LINE = 400 };
typedef struct abi_lines {
    int n;
    char line[ABI_LINES][ABI_LINE];
} abi_lines;
static abi_lines abi_record, abi_now;

static void abi_add(const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (!test_check(abi_now.n < ABI_LINES, "room for %d lines", ABI_LINES)) return;
    (void)vsnprintf(abi_now.line[abi_now.n++], ABI_LINE, format, args);
    va_end(args);
}

static void abi_read_header(void) {
    abi_add("ABI %d", ZERO_ABI);
#define STRUCT(name) abi_add("struct %s has %zu bytes", #name, sizeof(name));
#define FIELD(of, name, type)                                                                      \
    abi_add("%s.%s: %s, %zu bytes at %zu", #of, #name, type, sizeof(((of *)NULL)->name),           \
            offsetof(of, name));
#define NUMBER(name)                                                                               \
    if (strcmp(#name, "ZERO_RESULT_COUNT")) abi_add("%s is %d", #name, (int)(name));
#define CALL(prototype) abi_add("%s", prototype);
#include "abi_rows.h"
}

static void abi_read_record(void) {
    FILE *f = fopen(abi_path, "r");
    char line[ABI_LINE];
    while (f && abi_record.n < ABI_LINES && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        (void)snprintf(abi_record.line[abi_record.n++], ABI_LINE, "%s", line);
    }
    if (f) (void)fclose(f);
    (void)test_check(abi_record.n > 300, "%s has %d lines", abi_path, abi_record.n);
}

static int abi_write_record(void) {
    FILE *f = fopen(abi_path, "w");
    for (int i = 0; f && i < abi_now.n; i++) (void)fprintf(f, "%s\n", abi_now.line[i]);
    return !f || fclose(f);
}

static int abi_has(const abi_lines *lines, const char *line) {
    for (int i = 0; i < lines->n; i++)
        if (!strcmp(lines->line[i], line)) return 1;
    return 0;
}

/* A member of a struct that the record has: its old size may be in a program. */
static int abi_extends_struct(const char *line) {
    const size_t n = strcspn(line, ".: (");
    for (int i = 0; i < abi_record.n && line[n] == '.'; i++)
        if (!strncmp(abi_record.line[i], "struct ", 7) && !strncmp(abi_record.line[i] + 7, line, n)
            && abi_record.line[i][7 + n] == ' ')
            return 1;
    return 0;
}

static void abi_compare(void) {
    const char *way = strcmp(abi_record.line[0], abi_now.line[0])
                          ? "the record is of another ABI: run build/test_abi write"
                          : "this breaks programs of that ABI. Undo it, or add 1 to ZERO_ABI in "
                            "zero_plugin.h (once in a release), and run build/test_abi write";
    for (int i = 0; i < abi_record.n; i++)
        (void)test_check(abi_has(&abi_now, abi_record.line[i]), "gone: '%s'. %s",
                         abi_record.line[i], way);
    for (int i = 0; i < abi_now.n; i++) {
        const char *line = abi_now.line[i];
        (void)test_check(abi_has(&abi_record, line), "new: '%s'. %s", line,
                         abi_extends_struct(line) ? way : "run build/test_abi write");
    }
}

int main(int argc, char **argv) {
    (void)test_check(sizeof(void *) == 8 && zero_abi() == ZERO_ABI, "this is ABI %d, built as %d",
                     ZERO_ABI, zero_abi());
    abi_read_header();
    if (argc > 1 && !strcmp(argv[1], "write")) return abi_write_record();
    abi_read_record();
    abi_compare();
    return test_summary();
}
