/* growth_bytes.h - included before the plugin's source in $B/counted.o: each 64 bytes that the
   plugin copies, clears or compares count as one operation more. */
#pragma once

#include <string.h>

void growth_add(long operations);
static inline size_t growth_bytes(size_t n) { return growth_add((long)(n / 64)), n; }
#define memcpy(to, from, n)  memcpy(to, from, growth_bytes(n))
#define memmove(to, from, n) memmove(to, from, growth_bytes(n))
#define memset(to, value, n) memset(to, value, growth_bytes(n))
#define memcmp(a, b, n)      memcmp(a, b, growth_bytes(n))
