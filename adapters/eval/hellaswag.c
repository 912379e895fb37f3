/* hellaswag.c - see hellaswag.h. */
#include "hellaswag.h"

#include <stdlib.h>
#include <string.h>

typedef struct hellaswag_row hellaswag_row;

data_result hellaswag_open(hellaswag *h, const char *path, uint32_t vocabulary, char *error,
                           size_t error_bytes) {
    const data_result result = eval_file_open(&h->file, path, vocabulary, error, error_bytes);
    if (result != DATA_OK) return result;
    h->row = (hellaswag_row *)calloc((size_t)h->rows, sizeof *h->row);
    if (h->row != NULL && h->file.longest <= h->seq_len + 1) return DATA_OK;
    const int longest = h->file.longest, memory = h->row != NULL;
    hellaswag_close(h);
    if (!memory) return data_fail(DATA_SYSTEM, error, error_bytes, "%s: no memory", path);
    return data_fail(DATA_FORMAT, error, error_bytes,
                     "%s: -t %d is too short for its longest example (%d tokens); use -t %d", path,
                     h->seq_len, longest, longest - 1);
}

void hellaswag_close(hellaswag *h) {
    eval_file_close(&h->file);
    free(h->row);
    h->row = NULL;
}

int64_t hellaswag_passes(const hellaswag *h) {
    const int64_t most = ((int64_t)h->file.count + h->nranks - 1) / h->nranks;
    return (most * EVAL_COMPLETIONS + h->rows - 1) / h->rows;
}

void hellaswag_begin(hellaswag *h) { h->asked = h->right = h->next = h->filled = 0; }

/* Writes one row. The targets that do not count are token 0, which every vocabulary has. */
static void hellaswag_write_row(const eval_example *one, int completion, int T, int *inputs,
                                int *targets) {
    const int count = one->completion[completion].count, all = one->context + count;
    memset(inputs, 0, (size_t)T * sizeof *inputs);
    memset(targets, 0, (size_t)T * sizeof *targets);
    for (int i = 0; i < all; i++) {
        const int token = i < one->context ? one->tokens[i]
                                           : one->completion[completion].tokens[i - one->context];
        if (i < T) inputs[i] = token;
        if (i > 0) targets[i - 1] = token;
    }
}

data_result hellaswag_fill(hellaswag *h, int *inputs, int *targets, int *filled, char *error,
                           size_t error_bytes) {
    eval_example one;
    for (h->filled = 0; h->filled < h->rows; h->filled++, h->next++) {
        const int64_t example = h->rank + h->next / EVAL_COMPLETIONS * h->nranks;
        const int completion = (int)(h->next % EVAL_COMPLETIONS);
        const size_t at = (size_t)h->filled * (size_t)h->seq_len;
        if (example >= h->file.count) break;
        const data_result result =
            eval_file_read(&h->file, (uint32_t)example, &one, error, error_bytes);
        if (result != DATA_OK) return result;
        if (one.context + one.completion[completion].count > h->seq_len + 1)
            return data_fail(DATA_FORMAT, error, error_bytes, "%s: example %lld has become longer",
                             h->file.file.path, (long long)example);
        hellaswag_write_row(&one, completion, h->seq_len, inputs + at, targets + at);
        h->row[h->filled].first = one.context - 1;
        h->row[h->filled].count = one.completion[completion].count;
        h->row[h->filled].label = one.label;
    }
    *filled = h->filled;
    return DATA_OK;
}

/* If the rows of an example lie in two passes, the second pass decides its answer. */
void hellaswag_count(hellaswag *h, const float *losses) {
    const int64_t first = h->next - h->filled;
    for (int i = 0; i < h->filled; i++, losses += h->seq_len) {
        const hellaswag_row *row = &h->row[i];
        const int completion = (int)((first + i) % EVAL_COMPLETIONS);
        double sum = 0;
        for (int k = 0; k < row->count; k++) sum += (double)losses[row->first + k];
        const double mean = sum / row->count;
        if (completion == 0 || mean < h->least) {
            h->least = mean;
            h->best = completion;
        }
        if (completion < EVAL_COMPLETIONS - 1) continue;
        h->asked++;
        h->right += h->best == row->label;
    }
}
