/* step_line.c - see step_line.h. */
#include "step_line.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

__attribute__((format(printf, 2, 3))) static void step_line_add(char text[STEP_LINE_BYTES],
                                                                const char *format, ...) {
    size_t used = 0;
    va_list values;
    while (text[used]) used++;
    va_start(values, format);
    (void)vsnprintf(text + used, STEP_LINE_BYTES - used, format, values);
    va_end(values);
}

static void step_line_z(char text[STEP_LINE_BYTES], double z) {
    if (isfinite(z))
        step_line_add(text, " (%+.2fz)| ", z);
    else
        step_line_add(text, " | ");
}

void step_line_share(step_line *line, double flops, double measured, double stated) {
    const double peak = stated > 0 ? stated : measured;
    const int above = peak > 0 && flops > peak;
    line->share = peak > 0 ? flops / peak : 0;
    if (stated > 0)
        line->share_of = above ? "MFU, above the stated peak" : "MFU";
    else
        line->share_of = above ? "of matmul, above the measured peak" : "of matmul";
}

void step_line_print(const step_line *v, char text[STEP_LINE_BYTES]) {
    const zero_step_report *done = v->done;
    text[0] = 0;
    step_line_add(text, "step %4d/%d | loss %7.6f", v->step, v->steps, v->loss);
    step_line_z(text, v->loss_z);
    step_line_add(text, "norm %6.4f", done->norm);
    step_line_z(text, v->norm_z);
    step_line_add(text, "lr %.2e | %.2f ms | %.1f%% %s | %.0f tok/s", v->lr, 1e3 * v->seconds,
                  100 * v->share, v->share_of, v->tokens_per_s);
    if (v->mixed) step_line_add(text, " | aux %.4f | dropped %.0f", v->aux, v->dropped);
    if (done->loss_scale != 1 || done->next_loss_scale != 1)
        step_line_add(text, " | scale %g", (double)done->loss_scale);
    if (done->next_loss_scale != done->loss_scale)
        step_line_add(text, ", next %g", (double)done->next_loss_scale);
    if (done->skipped > 0) step_line_add(text, " | skipped %lld", (long long)done->skipped);
    if (!done->stepped && done->bad_tensor == NULL) step_line_add(text, ": unusual");
    if (!done->stepped && done->bad_tensor != NULL)
        step_line_add(text, ": %s[%zu], owned by rank %d, is not finite", done->bad_tensor,
                      done->bad_index, done->bad_rank);
    step_line_add(text, "\n");
}

void step_line_brief(const step_line *v, char text[STEP_LINE_BYTES]) {
    text[0] = 0;
    step_line_add(text, "step %4d/%d | loss %.4f | %.0f tok/s", v->step, v->steps, v->loss,
                  v->tokens_per_s);
}
