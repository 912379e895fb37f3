/* page_draw.h - figures of a page as SVG: lines over steps, bars, tracks of a timeline.

   Each figure is a complete <svg> with text for screen readers. Its colours are classes, which
   page.css defines for light and dark. The <title> of a mark is the value as its source has it.
   `data-` attributes contain the scale, so a test can read the values.

   WHY A FILE. A plotting library would be larger than the page, and one more dependency. These five
   shapes need none.
*/
#ifndef PAGE_DRAW_H
#define PAGE_DRAW_H

#include <stdio.h>

#include "page_input.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DRAW_WIDTH = 380 }; /* of a figure, in its own units: the width of a phone */

/* Writes a number with three or four digits, and commas between thousands. */
void draw_round(double number, char text[32]);

/* Writes text with &, <, > and " escaped for HTML. */
void draw_text(FILE *to, const char *text);

typedef struct draw_point {
    double x, y;
    const char *text; /* y as its source has it */
} draw_point;
typedef struct draw_series {
    const char *name;
    int colour; /* 1..8 */
    int dots;   /* 1: a dot for each point, instead of a line */
    const draw_point *point;
    int n;
} draw_series;
/* Draws lines over integer x. Of more than 600 points it draws the least and the largest of each
   section. The axes have names. how: FROM_0: the y axis includes 0; POWERS: labels of x are powers
   2^x. */
enum { DRAW_FROM_0 = 1, DRAW_POWERS = 2 };
void draw_lines(FILE *to, const char *id, const char *title, const char *x_name, const char *y_name,
                const draw_series *series, int n, int how);

/* Writes a figure of these functions as a file of its own, with its colours, its title above it,
   and a width in pixels. */
void draw_alone(FILE *to, const char *figure);

enum { DRAW_PARTS = 8 };
typedef struct draw_bar {
    char label[48];
    double part[DRAW_PARTS];      /* lengths of adjacent parts */
    const char *text[DRAW_PARTS]; /* NULL: this bar has no such part */
    char shown[64];               /* text after the bar */
    double mark;                  /* a line across the bar, such as a formula's value; NaN: none */
    const char *mark_text;
    double low, high; /* ends of an error bar; NaN: none */
} draw_bar;
typedef struct draw_bars_of {
    const char *id, *title, *unit;
    const char *name[DRAW_PARTS]; /* names of the parts, NULL after the last */
    int colour[DRAW_PARTS];
    const char *mark_name; /* NULL: no marks */
    const char *axis;      /* name of the axis below the bars */
    double axis_unit;      /* number of the parts' units in one unit of the axis */
} draw_bars_of;
void draw_bars(FILE *to, const draw_bars_of *what, const draw_bar *bar, int n);

/* Draws the slices of a step (-1: of all steps), one row for each track. */
void draw_timeline(FILE *to, const char *id, const page_trace *trace, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
