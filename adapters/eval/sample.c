/* sample.c - see sample.h. */
#include "sample.h"

#include <math.h>
#include <stdio.h>

int sample_pick(const float *logits, int count, double coin) {
    double most = logits[0], sum = 0, passed = 0;
    for (int i = 1; i < count; i++)
        if (logits[i] > most) most = logits[i];
    for (int i = 0; i < count; i++) sum += exp(logits[i] - most);
    for (int i = 0; i < count; i++) {
        passed += exp(logits[i] - most);
        if (passed > coin * sum) return i;
    }
    return count - 1;
}

void sample_print(int token, const unsigned char *bytes, size_t length, char text[SAMPLE_TEXT]) {
    size_t used = 0;
    for (size_t i = 0; bytes != NULL && i < length && used < SAMPLE_TEXT - 1; i++)
        if (bytes[i] >= 32 || bytes[i] == '\n' || bytes[i] == '\t') text[used++] = (char)bytes[i];
    text[used] = 0;
    if (bytes == NULL) (void)snprintf(text, SAMPLE_TEXT, "%d ", token);
}
