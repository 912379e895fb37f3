/* signals.c - see signals.h. The state is static, because signals belong to the process. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "signals.h"
#include "../system/clock.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <time.h>

static int signals_stop;          /* the job can stop */
static int signals_received_stop; /* by a signal that signals_watch received */
static long signals_first_ms;     /* time of the first SIGINT or SIGTERM; 0: none yet */
static sigset_t signals_ours;     /* the signals that are blocked */
static sigset_t signals_at_start;
static pthread_t signals_thread;
static int signals_watching;
static void (*signals_take)(void *user, signals_verdict verdict, int number);
static void *signals_user;

void signals_begin(int stops) {
    const int numbers[] = {SIGINT, SIGTERM, SIGUSR1};
    signals_stop = stops;
    sigemptyset(&signals_ours);
    for (int i = 0; i < (stops ? 3 : 2); i++) {
        struct sigaction now;
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            sigaddset(&signals_ours, numbers[i]);
    }
    pthread_sigmask(SIG_BLOCK, &signals_ours, &signals_at_start);
    (void)signal(SIGXFSZ, SIG_IGN); /* makes a write beyond `ulimit -f` an error */
}

void signals_release(void) { pthread_sigmask(SIG_SETMASK, &signals_at_start, NULL); }

void signals_in_rank(int leaves) {
    sigset_t pending = signals_at_start;
    signal(SIGINT, SIG_IGN); /* a terminal sends it to all processes */
    signal(SIGTERM, SIG_DFL);
    if (signals_stop || leaves) {
        sigaddset(&pending, SIGTERM);
        sigaddset(&pending, SIGUSR1);
    }
    pthread_sigmask(SIG_SETMASK, &pending, NULL);
}

void signals_expect_children(void) {
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &child, NULL);
}

static signals_verdict signals_judge(int number) {
    static int asked;
    const long now = clock_milliseconds();
    const int counts = number == SIGINT || number == SIGTERM;
    if (counts && signals_first_ms > 0 && now - signals_first_ms >= SIGNALS_AGAIN_MS)
        return SIGNALS_END;
    if (!signals_stop) return SIGNALS_END;
    if (counts && signals_first_ms == 0) signals_first_ms = now;
    return asked++ ? SIGNALS_AGAIN : SIGNALS_STOP;
}

signals_verdict signals_wait(int milliseconds, int *number) {
    const struct timespec limit = {milliseconds / 1000, (milliseconds % 1000) * 1000000L};
    sigset_t all = signals_ours;
    sigaddset(&all, SIGCHLD);
    *number = sigtimedwait(&all, NULL, &limit);
    return *number <= 0 || *number == SIGCHLD ? SIGNALS_NONE : signals_judge(*number);
}

/* This thread can be cancelled while it waits, but not while it reports a signal. */
static void *signals_main(void *unused) {
    int number, state;
    (void)unused;
    for (;;) {
        if (sigwait(&signals_ours, &number) != 0) continue;
        (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
        const signals_verdict verdict = signals_judge(number);
        if (verdict != SIGNALS_END) __atomic_store_n(&signals_received_stop, 1, __ATOMIC_RELEASE);
        signals_take(signals_user, verdict, number);
        (void)pthread_setcancelstate(state, NULL);
    }
    return NULL;
}

int signals_watch(void (*take)(void *user, signals_verdict verdict, int number), void *user) {
    signals_take = take;
    signals_user = user;
    signals_watching = pthread_create(&signals_thread, NULL, signals_main, NULL) == 0;
    return signals_watching;
}

void signals_unwatch(void) {
    if (!signals_watching) return;
    signals_watching = 0;
    (void)pthread_cancel(signals_thread); /* sigwait is a cancellation point */
    (void)pthread_join(signals_thread, NULL);
}

int signals_stops(void) { return signals_stop; }

int signals_pending(void) {
    sigset_t pending;
    return sigpending(&pending) == 0
           && (sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGUSR1) == 1);
}

int signals_asked(void) {
    if (!signals_stop) return 0;
    return __atomic_load_n(&signals_received_stop, __ATOMIC_ACQUIRE) || signals_pending();
}

const char *signals_name(int number) {
    return number == SIGINT ? "SIGINT" : number == SIGTERM ? "SIGTERM" : "SIGUSR1";
}
