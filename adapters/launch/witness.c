/* witness.c - see witness.h. The state is static, because a process watches others only once. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "witness.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct pollfd *witness_peers; /* [witness_n + 1] the last one stops the thread */
static int witness_n;                /* 0: no process is watched */
static int witness_stop[2];
static pthread_t witness_thread;
static void (*witness_tell)(void *user, int which);
static void *witness_user;

static int witness_open(int process) {
#ifdef SYS_pidfd_open
    return process > 0 ? (int)syscall(SYS_pidfd_open, process, 0u) : -1;
#else
    (void)process;
    return -1;
#endif
}

static size_t witness_bytes(void) { return ((size_t)witness_n + 1) * sizeof *witness_peers; }

static void *witness_main(void *left) {
    struct pollfd *peers = (struct pollfd *)left;
    while (!peers[witness_n].revents) {
        if (poll(peers, (nfds_t)witness_n + 1, -1) < 0) continue;
        for (int i = 0; i < witness_n; i++) {
            if (!peers[i].revents) continue;
            witness_tell(witness_user, i);
            peers[i].fd = -1; /* poll ignores it */
            peers[i].revents = 0;
        }
    }
    free(left);
    return NULL;
}

static void witness_close(void) {
    for (int i = 0; i < witness_n; i++)
        if (witness_peers[i].fd >= 0) close(witness_peers[i].fd);
    close(witness_stop[0]);
    close(witness_stop[1]);
    witness_n = 0;
    free(witness_peers);
    witness_peers = NULL;
}

int witness_watch(int n, const int *processes, void (*gone)(void *user, int which), void *user) {
    if (n < 1 || pipe(witness_stop)) return 0;
    witness_n = n;
    witness_tell = gone;
    witness_user = user;
    witness_peers = (struct pollfd *)calloc(1, witness_bytes());
    struct pollfd *left = (struct pollfd *)calloc(1, witness_bytes());
    if (!witness_peers || !left) {
        witness_n = 0;
        witness_close();
        free(left);
        return 0;
    }
    for (int i = 0; i <= n; i++) {
        witness_peers[i].fd = i < n ? witness_open(processes[i]) : witness_stop[0];
        witness_peers[i].events = POLLIN;
    }
    memcpy(left, witness_peers, witness_bytes());
    if (pthread_create(&witness_thread, NULL, witness_main, left) == 0) return 1;
    free(left);
    witness_close();
    return 0;
}

int witness_gone(void) {
    for (int i = 0; i < witness_n; i++) {
        struct pollfd peer = witness_peers[i];
        if (peer.fd >= 0 && poll(&peer, 1, 0) > 0) return i;
    }
    return -1;
}

void witness_unwatch(void) {
    if (!witness_n) return;
    if (write(witness_stop[1], "", 1) != 1) return; /* the thread stays until the process ends */
    (void)pthread_join(witness_thread, NULL);
    witness_close();
}
