/* outliers.c - see outliers.h. */
#include "outliers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEEN_MOST (INT64_C(1) << 53) /* the largest count that a file may have */

double outliers_score(outliers *o, double value) {
    double mean = 0, variance = 0;
    if (!isfinite(value)) return NAN;
    o->values[o->seen++ % OUTLIERS_WINDOW] = value;
    if (o->seen <= OUTLIERS_WINDOW) return NAN; /* the window is not full yet */
    for (int i = 0; i < OUTLIERS_WINDOW; i++) mean += o->values[i] / OUTLIERS_WINDOW;
    for (int i = 0; i < OUTLIERS_WINDOW; i++)
        variance += (o->values[i] - mean) * (o->values[i] - mean) / OUTLIERS_WINDOW;
    return variance > 0 ? (value - mean) / sqrt(variance) : 0;
}

void outliers_print(const outliers *o, char text[OUTLIERS_TEXT]) {
    int used = snprintf(text, OUTLIERS_TEXT, "%lld", (long long)o->seen);
    for (int i = 0; i < OUTLIERS_WINDOW && i < o->seen; i++)
        used += snprintf(text + used, OUTLIERS_TEXT - (size_t)used, " %a", o->values[i]);
}

void outliers_parse(outliers *o, const char *text) {
    char *at = NULL;
    memset(o, 0, sizeof *o);
    o->seen = strtoll(text, &at, 10);
    if (o->seen < 0 || o->seen > SEEN_MOST) o->seen = 0;
    for (int i = 0; i < OUTLIERS_WINDOW && i < o->seen; i++) o->values[i] = strtod(at, &at);
}
