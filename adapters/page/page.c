/* page.c - a run as one self-contained page: loss, norm, pace, stages, memory, timeline.

     build/page --log log/main.log --csv build/compare.csv --trace trace.json \
       --out build/report.html

   The page's text is page.html, its colours page.css; both are in the program (page_text.c, made of
   them). A line of page.html that begins with @ is an order, unless it is CSS's @media:
       @css              page.css
       @title            the model and the ranks
       @sources          the files that the page is made of, and the runs that wrote them
       @if WHAT ... @end the lines between, if the page has that source: log, csv, trace, peers;
                        pace: a log with tokens/s (llm.c's has none)
       @figure NAME      an <svg>, of page_draw.h
       @table WHAT       the source's own rows, as text
   Tables and the titles of marks have the digits of the source; the numbers next to bars have three
   or four.
*/
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../options/options.h"
#include "page_draw.h"
#include "page_text.h"
#include "../report/report.h"
#include "../system/regular_file.h"

#define PROGRAM "page"

enum {
    PAGE_LOG = 1,
    PAGE_CSV = 2,
    PAGE_TRACE = 4,
    PAGE_PEERS = 8,
    PAGE_PACE = 16,
    PAGE_LINKS = 32,
    PAGE_NOTED = 3, /* log, csv, trace */
    PAGE_ROWS = 200,
    PAGE_BARS = 32
};

typedef struct page_flags {
    const char *log, *csv, *trace, *peers, *links, *out, *svg;
} page_flags;

typedef struct page {
    page_flags flags;
    unsigned has; /* PAGE_LOG | ... */
    page_log log;
    page_csv csv, peers, links;
    page_trace trace;
    int64_t step; /* of the timeline */
    page_note note[PAGE_NOTED];
} page;

/* The sources that a run of the trainer wrote. */
static const char *page_noted(const page *p, int i) {
    return i == 0 ? p->flags.log : i == 1 ? p->flags.csv : p->flags.trace;
}

#define OWN(kind, short_name, long_name, member, usual, text)                                      \
    {                                                                                              \
        .flag = (short_name), .name = (long_name), .type = OPTION_##kind,                          \
        .field = offsetof(page_flags, member), .normal = (usual), .help = (text)                   \
    }
static const option page_table[] = {
    OWN(PATH, "-lo", "--log", log, "", "main.log of a run (-o of the trainer)"),
    OWN(PATH, "-csv", "--csv", csv, "", "CSV of a comparison of stages (-csv of the trainer)"),
    OWN(PATH, "-tr", "--trace", trace, "", "timeline of a run (-tr of the trainer)"),
    OWN(PATH, "-pe", "--peers", peers, "",
        "CSV of other programs' figures: columns name, tokens_per_s"),
    OWN(PATH, "-li", "--links", links, "", "CSV of steps over slow links (tests/bench/links.sh)"),
    OWN(PATH, "-out", "--out", out, "build/report.html", "the page"),
    OWN(PATH, "-svg", "--svg", svg, "",
        "folder for the figures as files of their own; without it none"),
};
enum { PAGE_FLAGS = sizeof page_table / sizeof *page_table };

/* ---- figures ------------------------------------------------------------------------------- */

/* One number of every step as points; `at`: its place in a page_step. */
static draw_point *page_points(const page *p, size_t at) {
    draw_point *list = (draw_point *)calloc((size_t)p->log.steps + 1, sizeof *list);
    for (int i = 0; list != NULL && i < p->log.steps; i++) {
        const page_value *v =
            (const page_value *)(const void *)((const char *)&p->log.step[i] + at);
        const draw_point one = {(double)p->log.step[i].step, v->number, v->text};
        list[i] = one;
    }
    return list;
}

static void page_loss(const page *p, FILE *to) {
    draw_point *steps = page_points(p, offsetof(page_step, loss));
    draw_point *looks = (draw_point *)calloc((size_t)p->log.validations + 1, sizeof *looks);
    for (int i = 0; looks != NULL && i < p->log.validations; i++) {
        const page_look *v = &p->log.validation[i];
        const draw_point one = {(double)v->step, v->value.number, v->value.text};
        looks[i] = one;
    }
    const draw_series series[] = {{"training", 1, 0, steps, p->log.steps},
                                  {"validation", 5, 1, looks, p->log.validations}};
    if (steps != NULL && looks != NULL)
        draw_lines(to, "loss", "Loss over steps", "step", "loss, nats", series,
                   p->log.validations ? 2 : 1, 0);
    free(looks);
    free(steps);
}

static void page_curve(const page *p, FILE *to, const char *id, const char *title, const char *name,
                       size_t at, int colour) {
    draw_point *steps = page_points(p, at);
    const draw_series series = {name, colour, 0, steps, p->log.steps};
    if (steps != NULL) draw_lines(to, id, title, "step", name, &series, 1, 1);
    free(steps);
}
static void page_norm(const page *p, FILE *to) {
    page_curve(p, to, "norm", "Norm of the gradient over steps", "norm", offsetof(page_step, norm),
               4);
}
static void page_pace(const page *p, FILE *to) {
    page_curve(p, to, "pace", "Throughput over steps", "tokens/s", offsetof(page_step, tps), 2);
}

static draw_bar page_bar(const page *p, int row) {
    draw_bar b;
    memset(&b, 0, sizeof b);
    b.mark = b.low = b.high = NAN;
    (void)snprintf(b.label, sizeof b.label, "stage %.20s, %.8s ranks",
                   page_csv_value(&p->csv, row, "stage").text,
                   page_csv_value(&p->csv, row, "ranks").text);
    return b;
}
static void page_part(const page_csv *csv, int row, draw_bar *b, int part, const char *column) {
    const page_value v = page_csv_value(csv, row, column);
    b->part[part] = v.number;
    b->text[part] = v.text;
}
static int page_rows(const page_csv *csv) { return csv->rows < PAGE_BARS ? csv->rows : PAGE_BARS; }

static void page_stages(const page *p, FILE *to) {
    static const draw_bars_of what = {
        "stages", "Throughput by ZeRO stage", "tokens/s", {"tokens/s", NULL}, {1}, NULL, "tokens/s",
        1};
    draw_bar bar[PAGE_BARS];
    for (int i = 0; i < page_rows(&p->csv); i++) {
        const page_value ratio = page_csv_value(&p->csv, i, "ratio");
        char rate[32];
        bar[i] = page_bar(p, i);
        page_part(&p->csv, i, &bar[i], 0, "tokens_per_s");
        bar[i].low = bar[i].part[0] * page_csv_value(&p->csv, i, "ratio_low").number / ratio.number;
        bar[i].high =
            bar[i].part[0] * page_csv_value(&p->csv, i, "ratio_high").number / ratio.number;
        draw_round(bar[i].part[0], rate);
        (void)snprintf(bar[i].shown, sizeof bar[i].shown, "%s tokens/s, x %.2f", rate,
                       ratio.number);
    }
    draw_bars(to, &what, bar, page_rows(&p->csv));
}

static void page_memory(const page *p, FILE *to) {
    static const draw_bars_of what = {
        "memory",        "Memory of a rank by stage and kind",
        "bytes",         {"parameters", "gradients", "optimizer", "buffers", NULL},
        {1, 2, 3, 6},    "formula",
        "MiB of a rank", 1048576};
    static const char *const column[] = {"param_bytes", "grad_bytes", "optimizer_bytes",
                                         "buffer_bytes"};
    draw_bar bar[PAGE_BARS];
    for (int i = 0; i < page_rows(&p->csv); i++) {
        const page_value formula = page_csv_value(&p->csv, i, "formula_bytes");
        double all = 0;
        bar[i] = page_bar(p, i);
        for (int k = 0; k < 4; k++) {
            page_part(&p->csv, i, &bar[i], k, column[k]);
            all += bar[i].part[k];
        }
        bar[i].mark = formula.number;
        bar[i].mark_text = formula.text;
        (void)snprintf(bar[i].shown, sizeof bar[i].shown, "%.1f MiB", all / (1024 * 1024));
    }
    draw_bars(to, &what, bar, page_rows(&p->csv));
}

static void page_exposed(const page *p, FILE *to) {
    static const draw_bars_of what = {"exposed",
                                      "Exposed communication by stage",
                                      "ms",
                                      {"exposed", NULL},
                                      {5},
                                      NULL,
                                      "ms of a step",
                                      1};
    draw_bar bar[PAGE_BARS];
    char number[32];
    for (int i = 0; i < page_rows(&p->csv); i++) {
        bar[i] = page_bar(p, i);
        page_part(&p->csv, i, &bar[i], 0, "exposed_ms");
        draw_round(bar[i].part[0], number);
        (void)snprintf(bar[i].shown, sizeof bar[i].shown, "%s ms", number);
    }
    draw_bars(to, &what, bar, page_rows(&p->csv));
}

static void page_sent(const page *p, FILE *to) {
    static const draw_bars_of what = {
        "sent",    "Bytes sent in a step by stage", "bytes", {"sent", NULL}, {4},
        "formula", "MiB sent by a rank in a step",  1048576};
    draw_bar bar[PAGE_BARS];
    for (int i = 0; i < page_rows(&p->csv); i++) {
        const page_value formula = page_csv_value(&p->csv, i, "formula_sent_bytes");
        bar[i] = page_bar(p, i);
        page_part(&p->csv, i, &bar[i], 0, "sent_bytes");
        bar[i].mark = formula.number;
        bar[i].mark_text = formula.text;
        (void)snprintf(bar[i].shown, sizeof bar[i].shown, "%.1f MiB",
                       bar[i].part[0] / (1024 * 1024));
    }
    draw_bars(to, &what, bar, page_rows(&p->csv));
}

/* The stages of the comparison are shown with the peers, in another colour. */
static void page_peers(const page *p, FILE *to) {
    static const draw_bars_of what = {"peers",    "Throughput next to other programs",
                                      "tokens/s", {"ZeRO for C", "others", NULL},
                                      {1, 6},     NULL,
                                      "tokens/s", 1};
    draw_bar bar[2 * PAGE_BARS];
    char rate[32];
    int n = 0;
    for (int i = 0; p->has & PAGE_CSV && i < page_rows(&p->csv); i++, n++) {
        bar[n] = page_bar(p, i);
        page_part(&p->csv, i, &bar[n], 0, "tokens_per_s");
        draw_round(bar[n].part[0], rate);
        (void)snprintf(bar[n].shown, sizeof bar[n].shown, "%s tokens/s", rate);
    }
    for (int i = 0; i < page_rows(&p->peers); i++, n++) {
        memset(&bar[n], 0, sizeof bar[n]);
        bar[n].mark = bar[n].low = bar[n].high = NAN;
        (void)snprintf(bar[n].label, sizeof bar[n].label, "%s",
                       page_csv_value(&p->peers, i, "name").text);
        page_part(&p->peers, i, &bar[n], 1, "tokens_per_s");
        draw_round(bar[n].part[1], rate);
        (void)snprintf(bar[n].shown, sizeof bar[n].shown, "%s tokens/s", rate);
    }
    draw_bars(to, &what, bar, n);
}

/* Stage 3 between the most hosts, over the two slowest links: one bar per method, with
   computing and exposed communication, and the least possible time as a mark. */
static void page_over_links(const page *p, FILE *to) {
    static const draw_bars_of what = {"links",        "A step of stage 3 over slow links",
                                      "ms",           {"computing", "exposed", NULL},
                                      {2, 5},         "least possible",
                                      "ms of a step", 1};
    const page_csv *csv = &p->links;
    double hosts = 0, slowest = INFINITY, second = INFINITY;
    draw_bar bar[PAGE_BARS];
    char exposed[PAGE_BARS][32];
    int n = 0;
    for (int i = 0; i < csv->rows; i++) hosts = fmax(hosts, page_csv_value(csv, i, "hosts").number);
    for (int i = 0; i < csv->rows; i++)
        slowest = fmin(slowest, page_csv_value(csv, i, "mbits").number);
    for (int i = 0; i < csv->rows; i++) {
        const double rate = page_csv_value(csv, i, "mbits").number;
        if (rate > slowest) second = fmin(second, rate);
    }
    for (int i = 0; i < csv->rows && n < PAGE_BARS; i++) {
        const page_value step = page_csv_value(csv, i, "step_ms");
        const page_value least = page_csv_value(csv, i, "least_ms");
        draw_bar *b = &bar[n];
        char number[32];
        if (page_csv_value(csv, i, "stage").number != 3
            || page_csv_value(csv, i, "hosts").number != hosts
            || page_csv_value(csv, i, "mbits").number > second)
            continue;
        memset(b, 0, sizeof *b);
        b->low = b->high = NAN;
        (void)snprintf(b->label, sizeof b->label, "%.8s Mbit/s, %.24s",
                       page_csv_value(csv, i, "mbits").text, page_csv_value(csv, i, "method").text);
        page_part(csv, i, b, 0, "compute_ms");
        b->part[1] = fmax(step.number - b->part[0], 0);
        (void)snprintf(exposed[n], sizeof exposed[n], "%.1f", b->part[1]);
        b->text[1] = exposed[n];
        b->mark = least.number;
        b->mark_text = least.text;
        draw_round(step.number, number);
        (void)snprintf(b->shown, sizeof b->shown, "%s ms, x %.2f", number,
                       step.number / least.number);
        n++;
    }
    draw_bars(to, &what, bar, n);
}

static void page_timeline(const page *p, FILE *to) {
    draw_timeline(to, "timeline", &p->trace, p->step);
}

static const struct page_figure {
    const char *name;
    unsigned needs;
    void (*draw)(const page *p, FILE *to);
} page_figures[] = {
    {"loss", PAGE_LOG, page_loss},          {"norm", PAGE_LOG, page_norm},
    {"pace", PAGE_PACE, page_pace},         {"stages", PAGE_CSV, page_stages},
    {"memory", PAGE_CSV, page_memory},      {"exposed", PAGE_CSV, page_exposed},
    {"sent", PAGE_CSV, page_sent},          {"peers", PAGE_PEERS, page_peers},
    {"links", PAGE_LINKS, page_over_links}, {"timeline", PAGE_TRACE, page_timeline}};
enum { PAGE_FIGURES = sizeof page_figures / sizeof *page_figures };

/* ---- tables -------------------------------------------------------------------------------- */

static void page_cell(FILE *to, const char *tag, const char *text) {
    fprintf(to, "<%s>", tag);
    draw_text(to, text);
    fprintf(to, "</%s>", tag);
}

/* How columns are shown: with a header in words, and digits that a reader can use. */
enum { PAGE_AS_WHOLE, PAGE_AS_TENTHS, PAGE_AS_RATIO, PAGE_AS_MIB };
static const struct page_column {
    const char *column, *words;
    int as;
} page_columns[] = {{"tokens_per_s", "tokens/s", PAGE_AS_WHOLE},
                    {"ratio", "ratio", PAGE_AS_RATIO},
                    {"ratio_low", "least ratio", PAGE_AS_RATIO},
                    {"ratio_high", "largest ratio", PAGE_AS_RATIO},
                    {"param_bytes", "parameters, MiB", PAGE_AS_MIB},
                    {"grad_bytes", "gradients, MiB", PAGE_AS_MIB},
                    {"optimizer_bytes", "optimizer state, MiB", PAGE_AS_MIB},
                    {"buffer_bytes", "buffers, MiB", PAGE_AS_MIB},
                    {"activation_bytes", "activations, MiB", PAGE_AS_MIB},
                    {"formula_bytes", "formula, MiB", PAGE_AS_MIB},
                    {"sent_bytes", "sent, MiB", PAGE_AS_MIB},
                    {"formula_sent_bytes", "sent by the formula, MiB", PAGE_AS_MIB},
                    {"peak_mib", "peak, MiB", PAGE_AS_TENTHS},
                    {"mbits", "Mbit/s", PAGE_AS_WHOLE},
                    {"compute_ms", "computing, ms", PAGE_AS_TENTHS},
                    {"step_ms", "step, ms", PAGE_AS_TENTHS},
                    {"least_ms", "least possible, ms", PAGE_AS_TENTHS},
                    {"exposed_ms", "exposed, ms", PAGE_AS_TENTHS},
                    {"ms", "ms", PAGE_AS_TENTHS}};

/* Returns how a column is shown, or NULL: as it is. */
static const struct page_column *page_column_of(const char *name) {
    for (size_t i = 0; i < sizeof page_columns / sizeof *page_columns; i++)
        if (strcmp(page_columns[i].column, name) == 0) return &page_columns[i];
    return NULL;
}

/* A cell of a column. Its title is the exact value, if that has other digits. */
static void page_value_cell(FILE *to, const char *column, const char *exact) {
    const struct page_column *c = page_column_of(column);
    char text[64], *end;
    const double number = strtod(exact, &end);
    if (!c || end == exact || *end || !isfinite(number)) {
        page_cell(to, "td", exact);
        return;
    }
    (void)snprintf(text, sizeof text, "%.*f",
                   c->as == PAGE_AS_WHOLE   ? 0
                   : c->as == PAGE_AS_RATIO ? 2
                                            : 1,
                   c->as == PAGE_AS_MIB ? number / 1048576 : number);
    if (strcmp(text, exact) == 0) {
        page_cell(to, "td", text);
        return;
    }
    (void)fputs("<td title=\"", to);
    draw_text(to, exact);
    fprintf(to, "\">%s</td>", text);
}

/* At most PAGE_ROWS steps, evenly, the last among them. */
static void page_log_table(const page *p, FILE *to) {
    static const char *const head[] = {"step", "loss", "norm", "tokens/s", "ms", "MiB"};
    static const char *const column[] = {"loss", "norm", "tokens_per_s", "ms", "peak_mib"};
    const int n = p->log.steps, every = (n + PAGE_ROWS - 1) / PAGE_ROWS;
    char number[32];
    if (every > 1) fprintf(to, "<p>Every %dth step, and the last.</p>\n", every);
    (void)fputs("<table id=\"table-log\"><tr>", to);
    for (int i = 0; i < 6; i++) page_cell(to, "th", head[i]);
    (void)fputs("</tr>\n", to);
    for (int i = 0; i < n; i++) {
        const page_step *s = &p->log.step[i];
        if (i % every && i + 1 < n) continue;
        const char *const cell[] = {s->loss.text, s->norm.text, s->tps.text, s->ms.text,
                                    s->mib.text};
        (void)snprintf(number, sizeof number, "%lld", (long long)s->step);
        (void)fputs("<tr>", to);
        page_cell(to, "td", number);
        for (int k = 0; k < 5; k++) page_value_cell(to, column[k], cell[k]);
        (void)fputs("</tr>\n", to);
    }
    (void)fputs("</table>\n", to);
}

static void page_csv_table(FILE *to, const char *id, const page_csv *csv) {
    fprintf(to, "<table id=\"%s\">\n<tr>", id);
    for (int i = 0; i < csv->columns; i++) {
        const struct page_column *c = page_column_of(csv->cell[i]);
        page_cell(to, "th", c ? c->words : csv->cell[i]);
    }
    (void)fputs("</tr>\n", to);
    for (int row = 1; row <= csv->rows; row++) {
        (void)fputs("<tr>", to);
        for (int i = 0; i < csv->columns; i++)
            page_value_cell(to, csv->cell[i], csv->cell[row * csv->columns + i]);
        (void)fputs("</tr>\n", to);
    }
    (void)fputs("</table>\n", to);
}

/* Milliseconds of the step's slices, by rank and kind. */
static void page_trace_table(const page *p, FILE *to) {
    enum { KINDS = 128 };
    struct {
        int rank, n;
        const char *kind;
        double us;
    } sum[KINDS];
    int kinds = 0;
    char number[32];
    for (int i = 0; i < p->trace.slices; i++) {
        const page_slice *s = &p->trace.slice[i];
        const char *kind = s->kind[0] ? s->kind : s->name;
        int k = 0;
        if (p->step >= 0 && s->step != p->step) continue;
        while (k < kinds && (sum[k].rank != s->rank || strcmp(sum[k].kind, kind) != 0)) k++;
        if (k == KINDS) continue;
        if (k == kinds) {
            sum[k].rank = s->rank;
            sum[k].kind = kind;
            sum[k].n = 0;
            sum[k].us = 0;
            kinds++;
        }
        sum[k].n++;
        sum[k].us += s->took_us;
    }
    if (p->step >= 0) fprintf(to, "<p>Step %lld.</p>\n", (long long)p->step);
    (void)fputs(
        "<table "
        "id=\"table-trace\"><tr><th>slices</th><th>rank</th><th>count</th><th>ms</th></tr>\n",
        to);
    for (int k = 0; k < kinds; k++) {
        (void)fputs("<tr>", to);
        page_cell(to, "td", sum[k].kind);
        draw_round(sum[k].us / 1e3, number);
        fprintf(to, "<td>%d</td><td>%d</td><td>%s</td></tr>\n", sum[k].rank, sum[k].n, number);
    }
    (void)fputs("</table>\n", to);
}

/* ---- the page ------------------------------------------------------------------------------ */

static unsigned page_source(const char *word) {
    return strcmp(word, "log") == 0     ? PAGE_LOG
           : strcmp(word, "csv") == 0   ? PAGE_CSV
           : strcmp(word, "trace") == 0 ? PAGE_TRACE
           : strcmp(word, "peers") == 0 ? PAGE_PEERS
           : strcmp(word, "pace") == 0  ? PAGE_PACE
           : strcmp(word, "links") == 0 ? PAGE_LINKS
                                        : 0;
}

static void page_lines(FILE *to, const char *const *line) {
    for (; *line != NULL; line++) fprintf(to, "%s\n", *line);
}

/* Returns the note whose run the title names: that of the log, or of the first source that has one.
 */
static const page_note *page_main_note(const page *p) {
    for (int i = 0; i < PAGE_NOTED; i++)
        if (p->note[i].value[NOTE_MODEL][0]) return &p->note[i];
    return NULL;
}

static void page_title(const page *p, FILE *to) {
    const page_note *n = page_main_note(p);
    (void)fputs("<h1>A run with ZeRO", to);
    if (n != NULL) {
        (void)fputs(": ", to);
        draw_text(to, n->value[NOTE_MODEL]);
        (void)fputs(", ", to);
        draw_text(to, n->value[NOTE_RANKS]);
        (void)fputs(strcmp(n->value[NOTE_RANKS], "1") == 0 ? " rank" : " ranks", to);
    }
    (void)fputs("</h1>\n", to);
}

/* A notice if two sources are of different models, ranks, hosts or commits. */
static void page_notice(const page *p, FILE *to) {
    static const int lines[] = {NOTE_MODEL, NOTE_RANKS, NOTE_HOST, NOTE_COMMIT};
    for (size_t k = 0; k < sizeof lines / sizeof *lines; k++) {
        const char *first = NULL;
        int differ = 0;
        for (int i = 0; i < PAGE_NOTED; i++) {
            const char *value = p->note[i].value[lines[k]];
            if (!value[0]) continue;
            if (first == NULL) first = value;
            differ |= strcmp(first, value) != 0;
        }
        if (!differ) continue;
        fprintf(to, "<p class=\"notice\">These sources are of different runs: the %s differs",
                page_note_name(lines[k]));
        for (int i = 0; i < PAGE_NOTED; i++) {
            if (!page_noted(p, i)[0]) continue;
            (void)fputs("; ", to);
            draw_text(to, page_noted(p, i));
            (void)fputs(": ", to);
            draw_text(to,
                      p->note[i].value[lines[k]][0] ? p->note[i].value[lines[k]] : "not recorded");
        }
        (void)fputs(".</p>\n", to);
    }
}

/* A row for each line of the notes, a column for each source. */
static void page_runs(const page *p, FILE *to) {
    if (page_main_note(p) == NULL) return;
    (void)fputs("<div class=\"scroll\"><table id=\"table-runs\"><tr><th>source</th>", to);
    for (int i = 0; i < PAGE_NOTED; i++)
        if (page_noted(p, i)[0]) page_cell(to, "th", page_noted(p, i));
    (void)fputs("</tr>\n", to);
    for (int line = 0; line < PAGE_NOTES; line++) {
        (void)fputs("<tr>", to);
        page_cell(to, "td", page_note_name(line));
        for (int i = 0; i < PAGE_NOTED; i++)
            if (page_noted(p, i)[0])
                page_cell(to, "td",
                          p->note[i].value[line][0] ? p->note[i].value[line] : "not recorded");
        (void)fputs("</tr>\n", to);
    }
    (void)fputs("</table></div>\n", to);
}

static void page_sources(const page *p, FILE *to) {
    const char *const path[] = {p->flags.log, p->flags.csv, p->flags.trace, p->flags.peers,
                                p->flags.links};
    const char *before = "<p>Made of ";
    for (size_t i = 0; i < sizeof path / sizeof *path; i++) {
        if (!path[i][0]) continue;
        (void)fputs(before, to);
        draw_text(to, path[i]);
        before = ", ";
    }
    (void)fputs(".</p>\n", to);
    page_notice(p, to);
    page_runs(p, to);
}

static void page_table_of(const page *p, FILE *to, unsigned source) {
    if (source == PAGE_LOG) page_log_table(p, to);
    if (source == PAGE_CSV) page_csv_table(to, "table-csv", &p->csv);
    if (source == PAGE_PEERS) page_csv_table(to, "table-peers", &p->peers);
    if (source == PAGE_LINKS) page_csv_table(to, "table-links", &p->links);
    if (source == PAGE_TRACE) page_trace_table(p, to);
}

static void page_order(const page *p, FILE *to, const char *order) {
    if (strcmp(order, "css") == 0) page_lines(to, page_css);
    if (strcmp(order, "title") == 0) page_title(p, to);
    if (strcmp(order, "sources") == 0) page_sources(p, to);
    if (strncmp(order, "table ", 6) == 0) page_table_of(p, to, page_source(order + 6));
    for (int i = 0; i < PAGE_FIGURES && strncmp(order, "figure ", 7) == 0; i++)
        if (strcmp(order + 7, page_figures[i].name) == 0) page_figures[i].draw(p, to);
}

static void page_print(const page *p, FILE *to) {
    int passes = 0; /* inside an @if without its source */
    for (const char *const *line = page_html; *line != NULL; line++) {
        if (strncmp(*line, "@if ", 4) == 0)
            passes = !(p->has & page_source(*line + 4));
        else if (strcmp(*line, "@end") == 0)
            passes = 0;
        else if (!passes && **line == '@' && strncmp(*line, "@media", 6) != 0)
            page_order(p, to, *line + 1);
        else if (!passes)
            fprintf(to, "%s\n", *line);
    }
}

/* ---- files --------------------------------------------------------------------------------- */

static int page_fail_file(const char *flag, const char *path, char *sentence, size_t bytes) {
    (void)snprintf(sentence, bytes, "%s: %.300s cannot be written (%s); give another place", flag,
                   path, regular_file_error(errno));
    return 1;
}

static FILE *page_open(const char *path) {
    char folder[1024];
    const char *slash = strrchr(path, '/');
    (void)snprintf(folder, sizeof folder, "%.*s", slash != NULL ? (int)(slash - path) : 0, path);
    if (slash != NULL) (void)mkdir(folder, 0777); /* fopen reports a missing folder */
    return regular_file_stream(path, "w");
}

static int page_close(FILE *file) {
    const int failed = ferror(file);
    return fclose(file) != 0 || failed;
}

/* Writes one figure as a file of its own, with its colours. */
static int page_write_svg(const page *p, const struct page_figure *f, char *sentence,
                          size_t bytes) {
    char path[1100], *text = NULL;
    size_t length = 0;
    FILE *memory = open_memstream(&text, &length);
    if (memory == NULL) return page_fail_file("--svg", p->flags.svg, sentence, bytes);
    f->draw(p, memory);
    (void)fclose(memory);
    (void)snprintf(path, sizeof path, "%.1000s/%s.svg", p->flags.svg, f->name);
    FILE *file = page_open(path);
    int failed = file == NULL || text == NULL;
    if (!failed) draw_alone(file, text);
    if (file != NULL) failed |= page_close(file);
    free(text);
    return failed ? page_fail_file("--svg", path, sentence, bytes) : 0;
}

static int page_write(const page *p, char *sentence, size_t bytes) {
    FILE *file = page_open(p->flags.out);
    if (file == NULL) return page_fail_file("--out", p->flags.out, sentence, bytes);
    page_print(p, file);
    if (page_close(file)) return page_fail_file("--out", p->flags.out, sentence, bytes);
    for (int i = 0; i < PAGE_FIGURES && p->flags.svg[0]; i++)
        if (p->has & page_figures[i].needs && page_write_svg(p, &page_figures[i], sentence, bytes))
            return 1;
    return 0;
}

static int page_read_all(page *p, char *sentence, size_t bytes) {
    static const char needed[] = "stage ranks tokens_per_s ratio param_bytes grad_bytes "
                                 "optimizer_bytes buffer_bytes formula_bytes sent_bytes "
                                 "formula_sent_bytes exposed_ms ratio_low ratio_high";
    const page_flags *f = &p->flags;
    if (f->log[0] && page_log_read(f->log, &p->log, sentence, bytes)) return 1;
    if (f->csv[0] && page_csv_read(f->csv, needed, "", &p->csv, sentence, bytes)) return 1;
    if (f->peers[0]
        && page_csv_read(f->peers, "name tokens_per_s", "name", &p->peers, sentence, bytes))
        return 1;
    if (f->links[0]
        && page_csv_read(f->links, "hosts ranks stage method mbits compute_ms step_ms least_ms",
                         "method", &p->links, sentence, bytes))
        return 1;
    if (f->trace[0] && page_trace_read(f->trace, &p->trace, sentence, bytes)) return 1;
    for (int i = 0; i < PAGE_NOTED; i++)
        if (page_note_read(page_noted(p, i), &p->note[i], sentence, bytes)) return 1;
    p->has = (f->log[0] ? PAGE_LOG : 0u) | (f->csv[0] ? PAGE_CSV : 0u)
             | (f->trace[0] ? PAGE_TRACE : 0u) | (f->peers[0] ? PAGE_PEERS : 0u)
             | (f->links[0] ? PAGE_LINKS : 0u);
    for (int i = 0; i < p->log.steps; i++)
        if (isfinite(p->log.step[i].tps.number)) p->has |= PAGE_PACE;
    if (p->has & PAGE_TRACE) p->step = page_trace_step(&p->trace);
    if (p->has) return 0;
    (void)snprintf(sentence, bytes,
                   "page: no source is given; give --log, --csv, --trace, --peers or --links FILE. "
                   "`make compare` writes "
                   "build/compare.csv, a run with -o FOLDER FOLDER/main.log");
    return 1;
}

static int page_not_foreign(const char *argument) {
    (void)argument;
    return 0;
}

int main(int argc, char **argv) {
    static page p;
    char sentence[2 * PAGE_SENTENCE] = "";
    unsigned char given[PAGE_FLAGS] = {0};
    option_set own = {page_table, PAGE_FLAGS, &p.flags, given, sentence, sizeof sentence, NULL, 0};
    if (!report_begin()) return 1;
    if (options_parse(&own, argc, argv, 0, page_not_foreign, NULL)) {
        printf("usage: ./%s [FLAG VALUE]...\n\nMakes one page of a run.\n\n", PROGRAM);
        options_help(&own);
        if (!report_end(sentence, sizeof sentence)) return 0;
        fprintf(stderr, PROGRAM ": %s\n", sentence);
        return 1;
    }
    int failed = sentence[0] || page_read_all(&p, sentence, sizeof sentence)
                 || page_write(&p, sentence, sizeof sentence);
    if (!failed) {
        printf("%s\n", p.flags.out);
        failed = report_end(sentence, sizeof sentence);
    }
    if (failed) fprintf(stderr, PROGRAM ": %s\n", sentence);
    for (int i = 0; i < PAGE_NOTED; i++) page_note_free(&p.note[i]);
    page_log_free(&p.log);
    page_csv_free(&p.csv);
    page_csv_free(&p.peers);
    page_csv_free(&p.links);
    page_trace_free(&p.trace);
    return failed;
}
