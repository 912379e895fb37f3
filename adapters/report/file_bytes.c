/* file_bytes.c - see file_bytes.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "file_bytes.h"

zero_result file_bytes_count(file_bytes *f, const zero_plan *plan, zero_ctx *const contexts[2],
                             int by_steps) {
    uint64_t now[2] = {0, 0};
    if (!plan->file_bytes) return ZERO_OK;
    for (int i = 0; i < 2; i++) {
        zero_stats s;
        if (contexts[i] == NULL) continue;
        const zero_result result = zero_query_stats(contexts[i], &s);
        if (result != ZERO_OK) return result;
        now[0] += s.file_read_bytes;
        now[1] += s.file_written_bytes;
    }
    for (int i = 0; i < 2; i++) {
        if (by_steps) f->moved[i] += now[i] - f->seen[i];
        f->seen[i] = now[i];
    }
    return ZERO_OK;
}

void file_bytes_report(const file_bytes *f, report *out, const zero_plan *plan, int64_t step) {
    const double mib = 1024.0 * 1024, steps = (double)(step - f->first);
    if (!plan->file_bytes || steps < 1) return;
    report_print(out,
                 "moved by the file in a step, MiB of a rank: read %.1f, planned %.1f; written "
                 "%.1f, planned %.1f\n",
                 (double)f->moved[0] / mib / steps, (double)plan->file_read_bytes / mib,
                 (double)f->moved[1] / mib / steps, (double)plan->file_written_bytes / mib);
}
