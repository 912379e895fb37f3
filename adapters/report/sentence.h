/* sentence.h - writes one sentence about a failure to the caller's memory, and returns 1 */
#pragma once

#include <stdarg.h>
#include <stdio.h>

__attribute__((format(printf, 3, 4), unused)) static int sentence_fail(char *sentence, size_t bytes,
                                                                       const char *format, ...) {
    va_list values;
    va_start(values, format);
    (void)vsnprintf(sentence, bytes, format, values);
    va_end(values);
    return 1;
}
