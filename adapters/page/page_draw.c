/* page_draw.c - see page_draw.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "page_draw.h"

#include "page_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEFT = 52,  /* of a plot: room for numbers of its scale */
    RIGHT = 20, /* half of the last number */
    BELOW = 34,
    PLOT = 180, /* height */
    LETTER = 7, /* width of one, about */
    LINE = 18,  /* of a legend, of a bar's label */
    PIECES = 300,
    NAME = 30, /* room for the name of the y axis */
    TITLE = 24,
    TICKS = 5
};

void draw_round(double number, char text[32]) {
    const double size = fabs(number);
    if (size < 100)
        (void)snprintf(text, 32, size < 10 ? "%.2f" : "%.1f", number);
    else if (size < 1e15) {
        char digits[32];
        const int n = snprintf(digits, sizeof digits, "%.0f", size);
        int used = number < 0;
        text[0] = '-';
        for (int i = 0; i < n; i++) {
            if (i > 0 && (n - i) % 3 == 0) text[used++] = ',';
            text[used++] = digits[i];
        }
        text[used] = 0;
    } else
        (void)snprintf(text, 32, "%.3g", number);
}

void draw_text(FILE *to, const char *text) {
    for (; *text; text++) {
        const char *name = *text == '&'   ? "&amp;"
                           : *text == '<' ? "&lt;"
                           : *text == '>' ? "&gt;"
                           : *text == '"' ? "&quot;"
                                          : NULL;
        if (name != NULL)
            (void)fputs(name, to);
        else if ((unsigned char)*text >= ' ')
            (void)fputc(*text, to);
    }
}

/* ---- parts of every figure ----------------------------------------------------------------- */

static void draw_begin(FILE *to, const char *id, const char *title, int width, int height) {
    fprintf(to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" id=\"%s\" class=\"figure\" role=\"img\" "
            "viewBox=\"0 0 %d %d\"",
            id, width, height);
    (void)fputs(" aria-label=\"", to);
    draw_text(to, title);
    (void)fputs("\">\n", to);
}

static void draw_label(FILE *to, const char *kind, const char *anchor, double x, double y,
                       const char *text) {
    fprintf(to, "<text class=\"%s\" text-anchor=\"%s\" x=\"%.1f\" y=\"%.1f\">", kind, anchor, x, y);
    draw_text(to, text);
    (void)fputs("</text>\n", to);
}

/* Draws names next to their colours, in rows. Returns their height. */
static int draw_legend(FILE *to, const char *const *name, const int *colour, int n,
                       const char *mark) {
    int x = 4, y = 12;
    for (int i = 0; i < n + (mark != NULL); i++) {
        const char *text = i < n ? name[i] : mark;
        const int wide = 30 + LETTER * (int)strlen(text);
        if (x > 4 && x + wide > DRAW_WIDTH) {
            x = 4;
            y += LINE;
        }
        if (i < n)
            fprintf(to,
                    "<rect class=\"c%d\" x=\"%d\" y=\"%d\" width=\"10\" height=\"10\" rx=\"2\"/>\n",
                    colour[i], x, y - 9);
        else
            fprintf(to, "<path class=\"mark\" d=\"M%d %dv12\"/>\n", x + 5, y - 10);
        draw_label(to, "name", "start", x + 16, y, text);
        x += wide;
    }
    return y + 10;
}

/* Returns 1, 2 or 5 times a power of ten, close to span / n. */
static double draw_step(double span, int n) {
    const double raw = span / n, power = pow(10, floor(log10(raw)));
    const double times = raw / power;
    return power * (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10);
}

static void draw_number(double value, char text[32]) {
    const double size = fabs(value);
    if (size >= 1e6)
        (void)snprintf(text, 32, "%.4gM", value / 1e6);
    else if (size >= 1e4)
        (void)snprintf(text, 32, "%.4gk", value / 1e3);
    else
        (void)snprintf(text, 32, "%.4g", size < 1e-12 ? 0 : value);
}

/* ---- lines --------------------------------------------------------------------------------- */

typedef struct draw_scale {
    double x0, x1, y0, y1;
    int top, powers;
} draw_scale;

static double draw_x(const draw_scale *s, double x) {
    return LEFT + (x - s->x0) / (s->x1 - s->x0) * (DRAW_WIDTH - LEFT - RIGHT);
}
static double draw_y(const draw_scale *s, double y) {
    return s->top + (s->y1 - y) / (s->y1 - s->y0) * PLOT;
}

static void draw_fit(draw_scale *s, const draw_series *series, int n, int y_from_0) {
    s->x0 = s->y0 = INFINITY;
    s->x1 = s->y1 = -INFINITY;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < series[i].n; k++) {
            const draw_point *p = &series[i].point[k];
            if (!isfinite(p->y)) continue;
            s->x0 = fmin(s->x0, p->x);
            s->x1 = fmax(s->x1, p->x);
            s->y0 = fmin(s->y0, p->y);
            s->y1 = fmax(s->y1, p->y);
        }
    if (!(s->x0 <= s->x1)) s->x0 = s->x1 = s->y0 = s->y1 = 0; /* no number is finite */
    if (y_from_0) s->y0 = fmin(0, s->y0);
    if (s->x1 == s->x0) s->x1 = s->x0 + 1;
    if (s->y1 == s->y0) s->y1 = s->y0 + (s->y0 != 0 ? fabs(s->y0) * 0.1 : 1);
    const double step = draw_step(s->y1 - s->y0, TICKS);
    s->y0 = floor(s->y0 / step) * step;
    s->y1 = ceil(s->y1 / step) * step;
}

static void draw_axes(FILE *to, const draw_scale *s, const char *x_name) {
    const double y_step = draw_step(s->y1 - s->y0, TICKS),
                 x_step = fmax(draw_step(s->x1 - s->x0, 4), 1);
    char text[32];
    for (int i = 0; s->y0 + i * y_step < s->y1 + y_step / 2; i++) {
        const double y = s->y0 + i * y_step;
        fprintf(to, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>\n", LEFT, draw_y(s, y),
                DRAW_WIDTH - RIGHT);
        draw_number(fabs(y) < y_step / 1e6 ? 0 : y, text);
        draw_label(to, "tick", "end", LEFT - 6, draw_y(s, y) + 4, text);
    }
    for (int i = 0; (ceil(s->x0 / x_step) + i) * x_step <= s->x1; i++) {
        const double x = (ceil(s->x0 / x_step) + i) * x_step;
        draw_number(s->powers ? exp2(x) : x, text);
        draw_label(to, "tick", "middle", draw_x(s, x), s->top + PLOT + 15, text);
    }
    draw_label(to, "tick", "end", DRAW_WIDTH - RIGHT, s->top + PLOT + 30, x_name);
}

static void draw_at(FILE *to, const draw_scale *s, const draw_point *p, int *begun) {
    fprintf(to, "%s%.2f %.2f", *begun ? " " : "M", draw_x(s, p->x), draw_y(s, p->y));
    *begun = 1;
}

static void draw_dots(FILE *to, const draw_scale *s, const draw_series *series) {
    for (int k = 0; k < series->n; k++) {
        const draw_point *p = &series->point[k];
        if (!isfinite(p->y)) continue;
        fprintf(to, "<circle class=\"dot c%d\" r=\"4\" cx=\"%.2f\" cy=\"%.2f\"><title>",
                series->colour, draw_x(s, p->x), draw_y(s, p->y));
        draw_text(to, series->name);
        fprintf(to, ", %.0f: ", s->powers ? exp2(p->x) : p->x);
        draw_text(to, p->text);
        (void)fputs("</title></circle>\n", to);
    }
}

/* Draws a line. Of many points it draws the least and the largest of each section, in order. */
static void draw_curve(FILE *to, const draw_scale *s, const draw_series *series) {
    const int n = series->n, pieces = n > 2 * PIECES ? PIECES : n;
    int begun = 0;
    if (series->dots) {
        draw_dots(to, s, series);
        return;
    }
    fprintf(to, "<path class=\"line l%d\" data-n=\"%d\" d=\"", series->colour, n);
    for (int i = 0; i < pieces; i++) {
        const int from = (int)((double)i * n / pieces), end = (int)((double)(i + 1) * n / pieces);
        int low = -1, high = -1;
        for (int k = from; k < end; k++) {
            if (!isfinite(series->point[k].y)) continue;
            if (low < 0 || series->point[k].y < series->point[low].y) low = k;
            if (high < 0 || series->point[k].y > series->point[high].y) high = k;
        }
        if (low < 0) continue;
        draw_at(to, s, &series->point[low < high ? low : high], &begun);
        if (low != high) draw_at(to, s, &series->point[low < high ? high : low], &begun);
    }
    (void)fputs("\"/>\n", to);
}

void draw_lines(FILE *to, const char *id, const char *title, const char *x_name, const char *y_name,
                const draw_series *series, int n, int how) {
    const char *name[DRAW_PARTS];
    int colour[DRAW_PARTS], rows = 1;
    draw_scale s;
    memset(&s, 0, sizeof s);
    for (int i = 0, x = 4; i < n; i++) {
        const int wide = 30 + LETTER * (int)strlen(series[i].name);
        name[i] = series[i].name;
        colour[i] = series[i].colour;
        if (x > 4 && x + wide > DRAW_WIDTH) {
            x = 4;
            rows++;
        }
        x += wide;
    }
    s.powers = how & DRAW_POWERS;
    draw_fit(&s, series, n, how & DRAW_FROM_0);
    s.top = (n > 1 ? rows * LINE : 0) + NAME;
    draw_begin(to, id, title, DRAW_WIDTH, s.top + PLOT + BELOW);
    fprintf(to,
            "<g data-x0=\"%.17g\" data-x1=\"%.17g\" data-y0=\"%.17g\" data-y1=\"%.17g\" "
            "data-left=\"%d\" data-right=\"%d\" data-top=\"%d\" data-bottom=\"%d\">\n",
            s.x0, s.x1, s.y0, s.y1, LEFT, DRAW_WIDTH - RIGHT, s.top, s.top + PLOT);
    if (n > 1) (void)draw_legend(to, name, colour, n, NULL);
    draw_axes(to, &s, x_name);
    draw_label(to, "tick", "start", 4, s.top - 14, y_name);
    for (int i = 0; i < n; i++) draw_curve(to, &s, &series[i]);
    (void)fputs("</g>\n</svg>\n", to);
}

void draw_alone(FILE *to, const char *figure) {
    const char *inner = strchr(figure, '\n'); /* after <svg ...> */
    const char *box = strstr(figure, "viewBox=\"0 0 "), *label = strstr(figure, "aria-label=\"");
    int width = 0, height = 0;
    if (inner == NULL || box == NULL || label == NULL
        || sscanf(box, "viewBox=\"0 0 %d %d", &width, &height) != 2)
        return;
    label += strlen("aria-label=\"");
    fprintf(to,
            "%.*sviewBox=\"0 %d %d %d\" width=\"%d\" height=\"%d\" aria-label=\"%.*s\">\n<style>\n",
            (int)(box - figure), figure, -TITLE, width, height + TITLE, width, height + TITLE,
            (int)strcspn(label, "\""), label);
    for (const char *const *line = page_css; *line != NULL; line++) fprintf(to, "%s\n", *line);
    fprintf(to,
            "</style>\n<rect y=\"%d\" width=\"100%%\" height=\"100%%\" rx=\"6\" "
            "style=\"fill:var(--ground)\"/>\n<text class=\"name\" x=\"4\" y=\"%d\" "
            "style=\"font-weight:600\">%.*s</text>%s",
            -TITLE, 16 - TITLE, (int)strcspn(label, "\""), label, inner);
}

/* ---- bars ---------------------------------------------------------------------------------- */

static void draw_one_bar(FILE *to, const draw_bars_of *what, const draw_bar *b, double wide,
                         double y) {
    double x = 4;
    draw_label(to, "name", "start", 4, y, b->label);
    draw_label(to, "number", "end", DRAW_WIDTH - 4, y, b->shown);
    for (int i = 0; i < DRAW_PARTS && what->name[i] != NULL; i++) {
        const double length = isfinite(b->part[i]) ? b->part[i] * wide : 0;
        if (b->text[i] == NULL) continue;
        fprintf(
            to,
            "<rect class=\"bar c%d\" x=\"%.3f\" y=\"%.1f\" width=\"%.3f\" height=\"16\"><title>",
            what->colour[i], x, y + 6, length);
        draw_text(to, b->label);
        (void)fputs(", ", to);
        draw_text(to, what->name[i]);
        (void)fputs(": ", to);
        draw_text(to, b->text[i]);
        (void)fputs("</title></rect>\n", to);
        x += length;
    }
    if (isfinite(b->low) && isfinite(b->high))
        fprintf(to, "<path class=\"whisker\" d=\"M%.2f %.1fH%.2fm0 -4v8M%.2f %.1fv8\"/>\n",
                4 + b->low * wide, y + 14, 4 + b->high * wide, 4 + b->low * wide, y + 10);
    if (!isfinite(b->mark)) return;
    fprintf(to, "<path class=\"mark\" d=\"M%.3f %.1fv22\"><title>", 4 + b->mark * wide, y + 3);
    draw_text(to, what->mark_name);
    (void)fputs(": ", to);
    draw_text(to, b->mark_text);
    (void)fputs("</title></path>\n", to);
}

/* Draws the axis below the bars, from 0 to `most`. */
static void draw_bar_axis(FILE *to, const draw_bars_of *what, double wide, double most, int y) {
    const double unit = what->axis_unit;
    const double step = most > 0 ? draw_step(most / unit, TICKS) : 1;
    char text[32];
    fprintf(to, "<path class=\"grid\" d=\"M4 %dH%d\"/>\n", y, DRAW_WIDTH - 4);
    for (int i = 0; i * step * unit <= most; i++) {
        const double x = 4 + i * step * unit * wide;
        draw_number(i * step, text);
        fprintf(to, "<path class=\"grid\" d=\"M%.1f %dv4\"/>\n", x, y);
        draw_label(to, "tick",
                   i == 0                ? "start"
                   : x > DRAW_WIDTH - 24 ? "end"
                                         : "middle",
                   i == 0 || x <= DRAW_WIDTH - 24 ? x : DRAW_WIDTH - 4, y + 15, text);
    }
    draw_label(to, "tick", "end", DRAW_WIDTH - 4, y + 30, what->axis);
}

void draw_bars(FILE *to, const draw_bars_of *what, const draw_bar *bar, int n) {
    double most = 0;
    int parts = 0;
    char *legend = NULL;
    size_t length = 0;
    while (parts < DRAW_PARTS && what->name[parts] != NULL) parts++;
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int k = 0; k < parts; k++) sum += isfinite(bar[i].part[k]) ? bar[i].part[k] : 0;
        most = fmax(most, fmax(sum, fmax(bar[i].mark, bar[i].high))); /* fmax ignores NaN */
    }
    const double wide = most > 0 ? (DRAW_WIDTH - 8) / most : 0;
    FILE *words = open_memstream(&legend, &length);
    if (words == NULL) return;
    const int top = parts > 1 || what->mark_name != NULL
                        ? draw_legend(words, what->name, what->colour, parts, what->mark_name)
                        : 0;
    (void)fclose(words);
    const int axis = top + n * 46 + 2;
    draw_begin(to, what->id, what->title, DRAW_WIDTH, axis + BELOW);
    fprintf(to, "<g data-scale=\"%.17g\" data-unit=\"%s\">\n%s", wide, what->unit, legend);
    free(legend);
    for (int i = 0; i < n; i++) draw_one_bar(to, what, &bar[i], wide, top + 14 + i * 46);
    draw_bar_axis(to, what, wide, most, axis);
    (void)fputs("</g>\n</svg>\n", to);
}

/* ---- a timeline ---------------------------------------------------------------------------- */

enum { TRACK_ROW = 24, TRACK_LABEL = 110, TRACK_WIDTH = 900, TRACK_MOST = 64 };

static const struct {
    const char *kind, *name;
    int colour;
} draw_kinds[] = {{"forward", "forward", 1},  {"backward", "backward", 2},
                  {"gather", "gather", 3},    {"reduction", "reduction", 4},
                  {"update", "update", 5},    {"wait", "wait", 6},
                  {"read", "file", 7},        {"write", "file", 7},
                  {"all_", "groups", 9},      {"reduce_", "groups", 9},
                  {"broadcast", "groups", 9}, {"messages", "groups", 9},
                  {"barrier", "groups", 9},   {"split", "groups", 9},
                  {"open", "groups", 9},      {NULL, "other", 8}};
enum { DRAW_KINDS = sizeof draw_kinds / sizeof *draw_kinds };

static int draw_kind(const page_slice *s) {
    int i = 0;
    for (; draw_kinds[i].kind != NULL; i++) {
        const char *kind = draw_kinds[i].kind;
        const size_t n = strlen(kind);
        if (strcmp(s->kind, kind) == 0 || strncmp(s->name, kind, n) == 0) break;
    }
    return i;
}

static int draw_row_of(page_track *row, int *rows, const page_slice *s) {
    int i = 0;
    while (i < *rows && (row[i].rank != s->rank || row[i].track != s->track)) i++;
    if (i == TRACK_MOST) return -1;
    if (i < *rows) return i;
    memset(&row[i], 0, sizeof row[i]);
    row[i].rank = s->rank;
    row[i].track = s->track;
    ++*rows;
    return i;
}

static int draw_by_rank(const void *a, const void *b) {
    const page_track *x = (const page_track *)a, *y = (const page_track *)b;
    return x->rank != y->rank ? (x->rank > y->rank) - (x->rank < y->rank)
                              : (x->track > y->track) - (x->track < y->track);
}

static void draw_tracks(FILE *to, const page_trace *trace, const page_track *row, int rows,
                        int top) {
    for (int i = 0; i < rows; i++) {
        char text[64];
        (void)snprintf(text, sizeof text, "%d: track %d", row[i].rank, row[i].track);
        for (int k = 0; k < trace->tracks; k++)
            if (trace->track[k].rank == row[i].rank && trace->track[k].track == row[i].track)
                (void)snprintf(text, sizeof text, "%d: %s", row[i].rank, trace->track[k].name);
        draw_label(to, "tick", "start", 2, top + i * TRACK_ROW + 16, text);
        fprintf(to, "<path class=\"grid\" d=\"M%d %dH%d\"/>\n", TRACK_LABEL,
                top + (i + 1) * TRACK_ROW, TRACK_WIDTH - 8);
    }
}

/* Sorts by track, then by begin. An outer slice precedes the slices inside it. */
static int draw_by_place(const void *a, const void *b) {
    const page_slice *x = (const page_slice *)a, *y = (const page_slice *)b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->track != y->track) return x->track < y->track ? -1 : 1;
    if (x->at_us != y->at_us) return x->at_us < y->at_us ? -1 : 1;
    return (x->took_us < y->took_us) - (x->took_us > y->took_us);
}

/* Returns a sorted copy of a step's slices, or NULL if memory is short. */
static page_slice *draw_slices_of(const page_trace *trace, int64_t step, int *n) {
    page_slice *list = (page_slice *)calloc((size_t)trace->slices + 1, sizeof *list);
    *n = 0;
    for (int i = 0; list != NULL && i < trace->slices; i++)
        if (step < 0 || trace->slice[i].step == step) list[(*n)++] = trace->slice[i];
    if (list != NULL) qsort(list, (size_t)*n, sizeof *list, draw_by_place);
    return list;
}

/* Draws slices. An inner slice has less height. */
static void draw_slices(FILE *to, const page_slice *slice, int n, page_track *row, int rows,
                        double from, double wide, int top) {
    double open[4];
    int depth = 0;
    for (int i = 0; i < n; i++) {
        const page_slice *s = &slice[i];
        const int at = draw_row_of(row, &rows, s);
        if (i == 0 || s->rank != slice[i - 1].rank || s->track != slice[i - 1].track) depth = 0;
        while (depth && open[depth - 1] <= s->at_us) depth--;
        if (at < 0) continue;
        fprintf(
            to,
            "<rect class=\"slice c%d\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\"><title>",
            draw_kinds[draw_kind(s)].colour, TRACK_LABEL + (s->at_us - from) * wide,
            top + at * TRACK_ROW + 3 + 2 * depth, fmax(s->took_us * wide, 0.3), 18 - 4 * depth);
        draw_text(to, s->name);
        fprintf(to, ", rank %d: %.3f ms, from %.3f</title></rect>\n", s->rank, s->took_us / 1e3,
                (s->at_us - from) / 1e3);
        if (depth < 4) open[depth++] = s->at_us + s->took_us;
    }
}

void draw_timeline(FILE *to, const char *id, const page_trace *trace, int64_t step) {
    page_track row[TRACK_MOST];
    double from = INFINITY, end = -INFINITY;
    int rows = 0, x = TRACK_LABEL;
    const int top = 26;
    char text[32], title[96], took[32];
    int n = 0;
    page_slice *slice = draw_slices_of(trace, step, &n);
    if (slice == NULL) return;
    for (int i = 0; i < n; i++) {
        from = fmin(from, slice[i].at_us);
        end = fmax(end, slice[i].at_us + slice[i].took_us);
        (void)draw_row_of(row, &rows, &slice[i]);
    }
    qsort(row, (size_t)rows, sizeof *row, draw_by_rank);
    const double span = end > from ? end - from : 1, tick = draw_step(span / 1e3, 8);
    const double wide = (TRACK_WIDTH - 8 - TRACK_LABEL) / span;
    draw_round(span / 1e3, took);
    (void)snprintf(title, sizeof title, "Timeline of step %lld: %s ms", (long long)step, took);
    draw_begin(to, id, title, TRACK_WIDTH, top + rows * TRACK_ROW + 24);
    fprintf(to, "<g data-from=\"%.17g\" data-scale=\"%.17g\" data-left=\"%d\">\n", from, wide,
            TRACK_LABEL);
    for (int i = 0; i < DRAW_KINDS; i++) {
        if (i > 0 && draw_kinds[i].colour == draw_kinds[i - 1].colour) continue;
        fprintf(to, "<rect class=\"c%d\" x=\"%d\" y=\"3\" width=\"10\" height=\"10\" rx=\"2\"/>\n",
                draw_kinds[i].colour, x);
        draw_label(to, "name", "start", x + 16, 12, draw_kinds[i].name);
        x += 42 + LETTER * (int)strlen(draw_kinds[i].name);
    }
    for (int i = 0; i * tick <= span / 1e3; i++) {
        const double ms = i * tick;
        const double at = TRACK_LABEL + 1e3 * ms * wide;
        fprintf(to, "<path class=\"grid\" d=\"M%.1f %dv%d\"/>\n", at, top, rows * TRACK_ROW);
        (void)snprintf(text, sizeof text, "%.4g ms", ms);
        draw_label(to, "tick", at < TRACK_WIDTH - 60 ? "start" : "end", fmin(at, TRACK_WIDTH - 8),
                   top + rows * TRACK_ROW + 16, text);
    }
    draw_tracks(to, trace, row, rows, top);
    draw_slices(to, slice, n, row, rows, from, wide, top);
    free(slice);
    (void)fputs("</g>\n</svg>\n", to);
}
