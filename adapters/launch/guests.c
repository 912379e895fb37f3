/* guests.c - see guests.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "guests.h"

#include "environment.h"
#include "meeting.h"
#include "../system/clock.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    GUESTS_MAGIC = 0x5A474553,
    GUESTS_VERSION = 1,
    GUESTS_ANSWER_MS = 5000, /* time for a hello, for its answer, and for the token */
    GUESTS_PHASE_HELLO = 0,
    GUESTS_PHASE_TOKEN,
    GUESTS_PHASE_GUEST
};

guests_message guests_make(guests_kind kind) {
    guests_message m;
    memset(&m, 0, sizeof m);
    m.magic = GUESTS_MAGIC;
    m.version = GUESTS_VERSION;
    m.kind = (int32_t)kind;
    return m;
}

/* Machines differ in their name or in what their kernel drew when it started. */
static void guests_name_machine(char *name, size_t bytes) {
    char host[MEETING_NAME], boot[64] = "";
    environment_host_name(host, sizeof host);
    meeting_read_boot(boot, sizeof boot);
    (void)snprintf(name, bytes, "%s %s", host, boot);
}

/* ---- addresses ----------------------------------------------------------------------------- */

/* Splits HOST:PORT, where HOST may be in brackets, or empty. Returns 0 if it is not one. */
static int guests_split(const char *address, char host[GUESTS_ADDRESS], int *port) {
    const char *colon = strrchr(address, ':');
    char *end = NULL;
    if (colon == NULL || colon[1] < '0' || colon[1] > '9') return 0;
    const long number = strtol(colon + 1, &end, 10);
    size_t n = (size_t)(colon - address);
    if (*end || number > 65535 || n >= GUESTS_ADDRESS) return 0;
    if (n > 1 && address[0] == '[' && address[n - 1] == ']') {
        address++;
        n -= 2;
    }
    memcpy(host, address, n);
    host[n] = 0;
    *port = (int)number;
    return 1;
}

/* Binds one address. Returns -1 after an error. */
static int guests_bind(const struct addrinfo *a) {
    const int on = 1;
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    if (fd < 0) return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, GUESTS_MOST) == 0) return fd;
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static void guests_print_address(int fd, const char *host, char out[GUESTS_ADDRESS]) {
    struct sockaddr_storage own;
    socklen_t bytes = sizeof own;
    char port[16] = "?";
    if (getsockname(fd, (struct sockaddr *)&own, &bytes) == 0)
        (void)getnameinfo((struct sockaddr *)&own, bytes, NULL, 0, port, sizeof port,
                          NI_NUMERICSERV);
    const int v6 = strchr(host, ':') != NULL;
    (void)snprintf(out, GUESTS_ADDRESS, v6 ? "[%.200s]:%s" : "%.200s:%s", host, port);
}

/* ---- connections --------------------------------------------------------------------------- */

static void guests_hang_up(guests_line *l) {
    if (l->socket < 0) return;
    (void)shutdown(l->socket, SHUT_RDWR); /* children may have the socket, too */
    close(l->socket);
    l->socket = -1;
}

/* A message is much smaller than the buffer of a socket, so a full one means that the other side
   does not read. Then it is lost, which the next read reports. */
static void guests_put(guests_line *l, const guests_message *m) {
    if (l->socket < 0) return;
    if (send(l->socket, m, sizeof *m, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof *m)
        (void)shutdown(l->socket, SHUT_RDWR);
}

/* Returns 1 if a whole message is in l->in, 0 if not yet, -1 if there will be none. */
static int guests_get(guests_line *l) {
    if (l->used == sizeof l->in) l->used = 0;
    const ssize_t n =
        recv(l->socket, (char *)&l->in + l->used, sizeof l->in - l->used, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
    if (n <= 0) return -1;
    l->used += (size_t)n;
    if (l->used < sizeof l->in) return 0;
    l->in.text[GUESTS_TEXT - 1] = 0;
    return l->in.magic == GUESTS_MAGIC && l->in.version == GUESTS_VERSION ? 1 : -1;
}

/* ---- the job's launcher -------------------------------------------------------------------- */

int guests_listen(guests *g, const char *address, int file, size_t bytes, uint64_t token,
                  char *sentence, size_t sentence_bytes) {
    char host[GUESTS_ADDRESS], port[16];
    struct addrinfo hints, *all = NULL;
    int number = 0;
    memset(g, 0, sizeof *g);
    memset(&hints, 0, sizeof hints);
    g->listener = -1;
    for (int i = 0; i < GUESTS_MOST; i++) g->line[i].socket = -1;
    if (!guests_split(address, host, &number)) {
        (void)snprintf(sentence, sentence_bytes, "expected HOST:PORT or :PORT, found '%.200s'",
                       address);
        return 0;
    }
    if (!host[0]) (void)snprintf(host, sizeof host, "127.0.0.1");
    (void)snprintf(port, sizeof port, "%d", number);
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;
    const int unknown = getaddrinfo(host, port, &hints, &all);
    for (struct addrinfo *a = all; !unknown && a != NULL && g->listener < 0; a = a->ai_next)
        g->listener = guests_bind(a);
    if (!unknown) freeaddrinfo(all);
    if (g->listener < 0) {
        (void)snprintf(sentence, sentence_bytes, "cannot listen at %.200s: %s", address,
                       unknown ? gai_strerror(unknown) : strerror(errno));
        return 0;
    }
    guests_print_address(g->listener, host, g->address);
    guests_name_machine(g->machine, sizeof g->machine);
    g->token = token;
    g->welcome = guests_make(GUESTS_WELCOME);
    g->welcome.process = (int32_t)getpid();
    g->welcome.file = file;
    g->welcome.bytes = (int64_t)bytes;
    return 1;
}

static void guests_refuse(guests_line *l, const char *why) {
    guests_message m = guests_make(GUESTS_REFUSED);
    (void)snprintf(m.text, sizeof m.text, "%s", why);
    guests_put(l, &m);
    guests_hang_up(l);
}

static void guests_accept(guests *g) {
    const int fd = accept4(g->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return;
    guests_line *free_one = NULL, late;
    for (int i = 0; i < GUESTS_MOST && free_one == NULL; i++)
        if (g->line[i].socket < 0) free_one = &g->line[i];
    guests_line *l = free_one != NULL ? free_one : &late;
    memset(l, 0, sizeof *l);
    l->socket = fd;
    l->since = clock_milliseconds();
    meeting_keep_alive(fd);
    if (free_one == NULL) guests_refuse(l, "the job has as many guests as it can; try later");
}

static void guests_answer_hello(guests *g, guests_line *l) {
    char why[GUESTS_TEXT];
    if (strcmp(l->in.text, g->machine) == 0) {
        l->ranks = l->in.ranks;
        l->phase = GUESTS_PHASE_TOKEN;
        guests_put(l, &g->welcome);
        return;
    }
    (void)snprintf(
        why, sizeof why,
        "the job runs on host %.*s, this process on host %.*s: ranks that join share the "
        "memory of the others, so they must be on the same host",
        (int)strcspn(g->machine, " "), g->machine, (int)strcspn(l->in.text, " "), l->in.text);
    guests_refuse(l, why);
}

/* Handles a message of a process that is no guest yet. Returns 1 if it is one now. */
static int guests_admit(guests *g, guests_line *l) {
    const guests_message *m = &l->in;
    if (l->phase == GUESTS_PHASE_HELLO && m->kind == GUESTS_HELLO && m->ranks > 0)
        guests_answer_hello(g, l);
    else if (l->phase == GUESTS_PHASE_TOKEN && m->kind == GUESTS_TOKEN && m->token == g->token)
        l->phase = GUESTS_PHASE_GUEST;
    else
        guests_hang_up(l);
    return l->phase == GUESTS_PHASE_GUEST;
}

/* Reads one connection. Returns 1 if there is a message of a guest in l->in. */
static int guests_read(guests *g, guests_line *l) {
    const int guest = l->phase == GUESTS_PHASE_GUEST, got = guests_get(l);
    if (got < 0) {
        guests_hang_up(l);
        l->in = guests_make(GUESTS_LOST);
        return guest;
    }
    if (!guest && !got && clock_milliseconds() - l->since > GUESTS_ANSWER_MS) guests_hang_up(l);
    if (!got || guest) return got;
    if (!guests_admit(g, l)) return 0;
    l->in.ranks = l->ranks;
    return 1;
}

int guests_next(guests *g, guests_message *m) {
    guests_accept(g);
    for (int i = 0; i < GUESTS_MOST; i++) {
        if (g->line[i].socket < 0 || !guests_read(g, &g->line[i])) continue;
        *m = g->line[i].in;
        return i;
    }
    return -1;
}

int guests_is_here(const guests *g, int guest) {
    return g->line[guest].socket >= 0 && g->line[guest].phase == GUESTS_PHASE_GUEST;
}

void guests_send(guests *g, int guest, guests_message m) {
    for (int i = 0; i < GUESTS_MOST; i++)
        if ((guest < 0 || guest == i) && guests_is_here(g, i)) guests_put(&g->line[i], &m);
}

void guests_end(guests *g, int guest, int code, const char *why) {
    guests_message m = guests_make(GUESTS_END);
    m.value = code;
    (void)snprintf(m.text, sizeof m.text, "%s", why);
    guests_put(&g->line[guest], &m);
    guests_hang_up(&g->line[guest]);
}

void guests_close(guests *g, int code, const char *why) {
    for (int i = 0; i < GUESTS_MOST; i++) guests_end(g, i, code, why);
    if (g->listener >= 0) close(g->listener);
    g->listener = -1;
}

/* ---- a guest ------------------------------------------------------------------------------- */

/* Waits for an answer. */
static int guests_await(guests_line *job) {
    for (int waited = 0; waited < GUESTS_ANSWER_MS; waited += 100) {
        struct pollfd one = {job->socket, POLLIN, 0};
        if (poll(&one, 1, 100) < 1) continue;
        const int got = guests_get(job);
        if (got) return got > 0;
    }
    return 0;
}

int guests_join(guests_line *job, const char *address, int ranks, guests_message *welcome,
                char *sentence, size_t bytes) {
    char host[GUESTS_ADDRESS], why[GUESTS_TEXT] = "";
    guests_message hello = guests_make(GUESTS_HELLO);
    int port = 0;
    memset(job, 0, sizeof *job);
    job->socket = -1;
    if (!guests_split(address, host, &port) || port == 0) {
        (void)snprintf(sentence, bytes, "expected HOST:PORT of a job, found '%.200s'", address);
        return 0;
    }
    job->socket = meeting_connect(host[0] ? host : "127.0.0.1", port, why, sizeof why);
    if (job->socket < 0) {
        (void)snprintf(sentence, bytes, "no job answers at %.200s: %s", address, why);
        return 0;
    }
    hello.ranks = ranks;
    guests_name_machine(hello.text, sizeof hello.text);
    guests_put(job, &hello);
    if (guests_await(job) && job->in.kind == GUESTS_WELCOME) {
        *welcome = job->in;
        return 1;
    }
    const int refused = job->used == sizeof job->in && job->in.kind == GUESTS_REFUSED;
    (void)snprintf(sentence, bytes, "%s",
                   refused ? job->in.text : "the process that answers is not such a job");
    guests_hang_up(job);
    return 0;
}

int guests_hear(guests_line *job, guests_message *m) {
    if (job->socket < 0) return 0;
    const int got = guests_get(job);
    if (got < 0) guests_hang_up(job);
    if (got) *m = got > 0 ? job->in : guests_make(GUESTS_LOST);
    return got != 0;
}

void guests_tell(guests_line *job, guests_message m) { guests_put(job, &m); }
