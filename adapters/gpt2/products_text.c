/* products_text.c - see products.h: choices as text and as files. */
#include "products.h"
#include "../system/regular_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- a choice as text ---------------------------------------------------------------------- */

static int find_way(const char *name) {
    for (int w = 0; w < PRODUCT_WAYS; w++)
        if (!strcmp(name, products_name((product_way)w))) return w;
    return -1;
}

/* Parses a line without its comment, and adds it. Returns why it is invalid, or NULL. */
static const char *parse_line(products_choice *c, const char *line) {
    char kind[4], way[16];
    products_line l;
    int end = 0;
    memset(&l, 0, sizeof l);
    if (sscanf(line, "%3s %zu %zu %zu %15s %n", kind, &l.m, &l.n, &l.k, way, &end) != 5 || line[end]
        || strchr(line, '-'))
        return "expected KIND M N K ALGORITHM";
    if (strcmp(kind, "NN") && strcmp(kind, "NT") && strcmp(kind, "TN") && strcmp(kind, "TT"))
        return "a product is NN, NT, TN or TT";
    l.ta = kind[0];
    l.tb = kind[1];
    if (!l.m || !l.n || !l.k || l.m > 1 << 24 || l.n > 1 << 24 || l.k > 1 << 24)
        return "sizes are 1 to 16777216";
    const int found = find_way(way);
    if (found < 0) return "the GEMM algorithms are sgemm, matmul, packed and apart";
    l.way = (product_way)found;
    if (products_find(c, l.ta, l.tb, l.m, l.n, l.k)) return "this product has a line already";
    if (c->lines == PRODUCTS_MOST) return "there are more than 64 products";
    c->line[c->lines++] = l;
    return NULL;
}

int products_parse(products_choice *c, const char *text, char *sentence, size_t bytes) {
    memset(c, 0, sizeof *c);
    for (int number = 1; *text; number++) {
        char line[128];
        const size_t all = strcspn(text, "\n"), said = strcspn(text, "#\n");
        const char *why = said >= sizeof line ? "a line is too long" : NULL;
        memcpy(line, text, why ? 0 : said);
        line[why ? 0 : said] = '\0';
        if (!why && line[strspn(line, " \t\r")]) why = parse_line(c, line);
        if (why) {
            (void)snprintf(sentence, bytes, "%d: %s", number, why);
            return 1;
        }
        text += all + (text[all] == '\n');
    }
    return 0;
}

/* Prints the choice of a line, without rates. */
static int print_line(const products_line *l, char *text, size_t bytes) {
    return snprintf(text, bytes, "%c%c %zu %zu %zu %s", l->ta, l->tb, l->m, l->n, l->k,
                    products_name(l->way));
}

size_t products_print(const products_choice *c, size_t threads, char *text, size_t bytes) {
    size_t at = (size_t)snprintf(text, bytes, "# %zu thread%s, %s; GFLOP/s of", threads,
                                 threads == 1 ? "" : "s", products_processor());
    for (int w = 0; w < PRODUCT_WAYS; w++)
        at += (size_t)snprintf(text + at, bytes - at, " %s", products_name((product_way)w));
    at += (size_t)snprintf(text + at, bytes - at, "\n");
    for (int i = 0; i < c->lines && at < bytes; i++) {
        at += (size_t)print_line(&c->line[i], text + at, bytes - at);
        for (int w = 0; w < PRODUCT_WAYS && at < bytes; w++)
            at += (size_t)snprintf(text + at, bytes - at, "%s %.1f", w ? "" : " #",
                                   c->line[i].rates[w] * 1e-9);
        if (at < bytes) at += (size_t)snprintf(text + at, bytes - at, "\n");
    }
    return at;
}

static uint64_t hash_of(const products_choice *c) {
    char line[128];
    uint64_t hash = 0xCBF29CE484222325u; /* FNV-1a (Fowler, Noll, Vo) */
    for (int i = 0; i < c->lines; i++) {
        (void)print_line(&c->line[i], line, sizeof line);
        for (const char *p = line; *p; p++) hash = (hash ^ (unsigned char)*p) * 0x100000001B3u;
        hash = (hash ^ '\n') * 0x100000001B3u;
    }
    return c->lines ? hash : 0;
}

/* ---- a choice in a file -------------------------------------------------------------------- */

static int say_file(char *sentence, size_t bytes, const char *path, const char *what) {
    (void)snprintf(sentence, bytes, "%.150s: %s", path, what);
    return 1;
}

/* Writes to another name first and renames the file, so that no process reads an incomplete one. */
static int write_choice(const products_choice *c, const char *path, size_t threads, char *sentence,
                        size_t bytes) {
    char text[PRODUCTS_TEXT], part[1024];
    const size_t length = products_print(c, threads, text, sizeof text);
    (void)snprintf(part, sizeof part, "%.1000s.part", path);
    FILE *f = regular_file_stream(part, "w");
    int failed = !f || fwrite(text, 1, length, f) != length;
    if (f && fclose(f)) failed = 1;
    if (!failed && !rename(part, path)) return 0;
    const int number = errno;
    if (f) (void)remove(part);
    return say_file(sentence, bytes, path, regular_file_error(number));
}

/* Returns 2 if the file does not exist. */
static int read_choice(products_choice *c, const char *path, char *sentence, size_t bytes) {
    char text[PRODUCTS_TEXT], why[128];
    FILE *f = regular_file_stream(path, "r");
    if (!f && errno == ENOENT) return 2;
    if (!f) return say_file(sentence, bytes, path, regular_file_error(errno));
    const size_t length = fread(text, 1, sizeof text - 1, f);
    const int failed = ferror(f), number = errno, more = fgetc(f) != EOF;
    (void)fclose(f);
    text[length] = '\0';
    if (failed) return say_file(sentence, bytes, path, regular_file_error(number));
    if (more) return say_file(sentence, bytes, path, "is too long");
    if (strlen(text) != length) return say_file(sentence, bytes, path, "is no text");
    if (!products_parse(c, text, why, sizeof why)) return 0;
    (void)snprintf(sentence, bytes, "%.150s:%s", path, why);
    return 1;
}

int products_open(products_choice *c, const char *path, size_t threads, char *sentence,
                  size_t bytes) {
    products_choice wanted = *c;
    memset(c, 0, sizeof *c);
    (void)snprintf(c->name, sizeof c->name, "table for %s", products_processor());
    if (!path[0]) return 0;
    int result = read_choice(c, path, sentence, bytes);
    if (result == 1) return 1;
    if (result == 2) {
        *c = wanted;
        if (products_measure(c))
            return say_file(sentence, bytes, path, "no memory to measure products in");
        if (write_choice(c, path, threads, sentence, bytes)) return 1;
    }
    c->hash = hash_of(c);
    (void)snprintf(c->name, sizeof c->name, "choice of hash %016llx", (unsigned long long)c->hash);
    return 0;
}
