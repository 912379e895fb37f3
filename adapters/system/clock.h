/* clock.h - reads the clocks of the system, and pauses a thread. */
#ifndef ADAPTERS_CLOCK_H
#define ADAPTERS_CLOCK_H

#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the seconds of a clock: CLOCK_MONOTONIC, which never goes back, or CLOCK_REALTIME, which
   counts from 1970. */
static inline double clock_seconds(clockid_t clock) {
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Returns the whole milliseconds of CLOCK_MONOTONIC. */
static inline long clock_milliseconds(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Pauses the calling thread, for a shorter time if a signal arrives. */
static inline void clock_pause(int milliseconds) {
    const struct timespec pause = {milliseconds / 1000, (milliseconds % 1000) * 1000000L};
    (void)nanosleep(&pause, NULL);
}

#ifdef __cplusplus
}
#endif
#endif
