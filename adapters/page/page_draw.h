/* page_draw.h - figures of a page as SVG: lines over steps, bars, tracks of a timeline.

   Every figure is a whole <svg> of its own, with words for those who do not see it, and colours by
   class: page.css says them, light and dark. What a mark stands for is in its <title>, as text of
   its source; `data-` attributes say the scale, so that a test can read values back.

   WHY A ROOM. A plotting library would be larger than the page, and need one more tool to be there;
   the five shapes here need none.
*/
#ifndef PAGE_DRAW_H
#define PAGE_DRAW_H

#include <stdio.h>

#include "page_input.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DRAW_WIDTH = 380 }; /* of a figure, in its own units: as wide as a phone */

/* Text with &, <, > and " as HTML has them. */
void draw_text(FILE *to, const char *text);

typedef struct draw_point {
    double x, y;
    const char *text; /* of y, as its source has it */
} draw_point;
typedef struct draw_series {
    const char *name;
    int colour; /* 1..8 */
    int dots;   /* 1: a dot for each point, instead of a line */
    const draw_point *point;
    int n;
} draw_series;
/* Lines over an x of whole numbers. More than 600 points are drawn as the least and the largest of
   each piece. how: FROM_0: y's scale has 0; POWERS: x are exponents of 2, whose powers are told. */
enum { DRAW_FROM_0 = 1, DRAW_POWERS = 2 };
void draw_lines(FILE *to, const char *id, const char *title, const char *x_name,
                const draw_series *series, int n, int how);

/* A figure, as the functions here draw it, as a file of its own: its colours are in it. */
void draw_alone(FILE *to, const char *figure);

enum { DRAW_PARTS = 8 };
typedef struct draw_bar {
    char label[48];
    double part[DRAW_PARTS];      /* one behind the other */
    const char *text[DRAW_PARTS]; /* NULL: this bar has no such part */
    char shown[64];               /* behind the bar */
    double mark;                  /* a line across, as of a formula; NaN: none */
    const char *mark_text;
    double low, high; /* a whisker; NaN: none */
} draw_bar;
typedef struct draw_bars_of {
    const char *id, *title, *unit;
    const char *name[DRAW_PARTS]; /* of the parts, NULL behind the last */
    int colour[DRAW_PARTS];
    const char *mark_name; /* NULL: no marks */
} draw_bars_of;
void draw_bars(FILE *to, const draw_bars_of *what, const draw_bar *bar, int n);

/* The slices of a step (-1: of all), a track a row. */
void draw_timeline(FILE *to, const char *id, const page_trace *trace, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
