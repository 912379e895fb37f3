/* save_line.c - see save_line.h. */
#include "save_line.h"

void save_line(report *out, int step, const checkpoint_report *r, int aside, double step_s) {
    report_print(out, "checkpoint of step %d, %.1f MiB: ", step,
                 (double)r->total_bytes / (1024 * 1024));
    report_print(out, aside ? "copied in %.1f ms, being written" : "saved in %.1f ms",
                 1e3 * (r->stall_s - r->waited_s));
    if (r->waited_s > 1e-3)
        report_print(out, ", after %.1f ms for the one before", 1e3 * r->waited_s);
    if (step_s > r->stall_s) report_print(out, ", %.1f%% of a step", 100 * r->stall_s / step_s);
    if (step_s > 0 && step_s <= r->stall_s)
        report_print(out, ", as long as %.1f steps", r->stall_s / step_s);
    report_print(out, "\n");
}
