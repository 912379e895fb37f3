/* sample.h - draws the next token of a text from a model's logits, and prints it for a terminal. */
#ifndef SAMPLE_H
#define SAMPLE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SAMPLE_TEXT = 256 }; /* bytes; a token has at most 255 */

/* Returns the token at which the running sum of the softmax's probabilities exceeds `coin`, 0 to 1.
 */
int sample_pick(const float *logits, int count, double coin);

/* Writes the bytes of a token, without those that could move the cursor of a terminal. If bytes is
   NULL, writes the number of the token. */
void sample_print(int token, const unsigned char *bytes, size_t length, char text[SAMPLE_TEXT]);

#ifdef __cplusplus
}
#endif
#endif
