/* sample.h - the next token of a text, drawn from a model's logits, and its bytes for a terminal.

   WHY A ROOM. It is arithmetic over an array, and needs no model, rank or device to be tested.
*/
#ifndef SAMPLE_H
#define SAMPLE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SAMPLE_TEXT = 256 }; /* bytes; a token has at most 255 */

/* The token at which the running sum of the softmax's probabilities passes `coin`, 0 to 1. */
int sample_pick(const float *logits, int count, double coin);

/* A token's bytes without those that could move a terminal's cursor; bytes NULL: its number. */
void sample_print(int token, const unsigned char *bytes, size_t length, char text[SAMPLE_TEXT]);

#ifdef __cplusplus
}
#endif
#endif
