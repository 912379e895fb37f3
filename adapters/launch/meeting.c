/* meeting.c - see meeting.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "meeting.h"
#include "../system/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    MEETING_MAGIC = 0x5A45524F, /* "ZERO" */
    MEETING_VERSION = 1,
    MEETING_CONNECT_MS = 2000, /* time of one attempt to connect */
    MEETING_ANSWER_MS = 3000,  /* time for a hello, and for its answer */
    MEETING_GRANT_MS = 2000,
    MEETING_LINGER_MS = 2000, /* time that the first failed process stays, so that the ranks of its
                                 machine see it */
    MEETING_TEXT = 512
};

/* The first message of a process: its identity. */
typedef struct meeting_member {
    int32_t magic, version;
    int32_t rank, nranks, local_rank;
    int32_t process, file;
    uint32_t processors; /* hash of the processors that it may run on */
    int32_t nprocessors;
    char host[MEETING_NAME];
    char boot[40]; /* boot id, which distinguishes machines with the same name */
    char job[192];
} meeting_member;

typedef enum meeting_kind {
    MEETING_ACK = 1, /* answer to a hello: wait */
    MEETING_REFUSED, /* answer to a hello; bytes: the reason */
    MEETING_WELCOME, /* bytes: the seat */
    MEETING_AGREE,   /* value: ok */
    MEETING_RESULT,  /* value: the lowest rank that is not ok */
    MEETING_COPY,    /* bytes of a broadcast */
    MEETING_CLAIM,   /* requests the right to print */
    MEETING_GRANTED, /* grants it */
    MEETING_END,     /* the job is over, and another process prints the line */
    MEETING_BYE
} meeting_kind;

typedef struct meeting_head {
    int32_t magic, kind, value;
    uint32_t bytes; /* bytes that follow */
} meeting_head;

typedef struct meeting_peer {
    int socket;    /* -1: not connected, or closed */
    int agreed_ok; /* its part of the current agreement; -1: not received yet */
    int left;      /* it has sent a goodbye */
    int machine;   /* the lowest rank on its machine */
    meeting_member member;
} meeting_peer;

struct meeting {
    int rank, nranks;
    meeting_peer *peers; /* rank 0: one per rank; other ranks: only rank 0 */
    int npeers;
    pthread_mutex_t lock; /* protects the fields below, and sending */
    pthread_cond_t changed;
    pthread_t watcher;
    int watching;
    int wake[2]; /* a pipe that stops the watcher */
    meeting_ended ended_fn;
    void *user;
    int over;    /* the job has failed */
    int granted; /* this rank may print: rank 0 has granted it, or cannot be asked */
    int lost;    /* rank 0 has died */
    int leaving; /* this rank has sent a goodbye */
    int ends;    /* the current agreement ends the job if a rank is not ok */
    int own_ok;  /* rank 0's own part of the current agreement; -1: not yet */
    /* Received but not read yet: at most one of each. The next result comes after the next message
       of this rank, and the next copy after an agreement on it. */
    int has_result, result;
    int has_copy;
    size_t copy_bytes;
    char copy[MEETING_BYTES];
};

/* ---- time, sockets ------------------------------------------------------------------------- */

static void meeting_close(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

void meeting_keep_alive(int fd) {
    int on = 1, idle = 10, between = 5, count = 4;
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between, sizeof between);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

static int meeting_send(int fd, const void *data, size_t bytes) {
    const char *at = (const char *)data;
    while (bytes > 0) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return 0;
        at += n;
        bytes -= (size_t)n;
    }
    return 1;
}

/* Receives all bytes. Returns 0 if the other side has closed, or is too slow. */
static int meeting_receive(int fd, void *data, size_t bytes, int milliseconds) {
    char *at = (char *)data;
    double end = clock_seconds(CLOCK_MONOTONIC) + milliseconds * 1e-3;
    while (bytes > 0) {
        struct pollfd one = {fd, POLLIN, 0};
        double left = end - clock_seconds(CLOCK_MONOTONIC);
        if (left <= 0 || poll(&one, 1, (int)(left * 1000) + 1) < 0) {
            if (left > 0 && errno == EINTR) continue;
            return 0;
        }
        if (one.revents == 0) continue;
        ssize_t n = recv(fd, at, bytes, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return 0;
        at += n;
        bytes -= (size_t)n;
    }
    return 1;
}

static int meeting_tell(int fd, meeting_kind kind, int value, const void *data, size_t bytes) {
    char message[sizeof(meeting_head) + MEETING_BYTES];
    meeting_head head = {MEETING_MAGIC, (int32_t)kind, value, (uint32_t)bytes};
    if (fd < 0 || bytes > MEETING_BYTES) return 0;
    memcpy(message, &head, sizeof head);
    if (bytes > 0) memcpy(message + sizeof head, data, bytes);
    return meeting_send(fd, message, sizeof head + bytes);
}

/* Returns 0 if there is no message, or if it does not belong to this protocol. */
static int meeting_receive_message(int fd, meeting_head *head, void *data, size_t bytes,
                                   int milliseconds) {
    return meeting_receive(fd, head, sizeof *head, milliseconds) && head->magic == MEETING_MAGIC
           && head->bytes <= bytes && meeting_receive(fd, data, head->bytes, MEETING_ANSWER_MS);
}

/* ---- the first failed rank, before there is shared memory ---------------------------------- */

/* The name of an abstract socket, which exists only in the kernel and disappears with its process.
   The first rank of a machine that binds it may print, and the others see that it has. */
static socklen_t meeting_mark(const meeting_call *call, struct sockaddr_un *name) {
    memset(name, 0, sizeof *name);
    name->sun_family = AF_UNIX;
    int n =
        snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "zero/%d/%d/%s/%s", (int)getuid(),
                 call->port, call->folder != NULL ? call->folder : call->host, call->job);
    size_t most = sizeof name->sun_path - 2, used = n > 0 ? (size_t)n : 0;
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (used < most ? used : most));
}

static int meeting_has_failed(const meeting_call *call) {
    struct sockaddr_un name;
    socklen_t length = meeting_mark(call, &name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int failed = fd >= 0 && connect(fd, (struct sockaddr *)&name, length) == 0;
    meeting_close(&fd);
    return failed;
}

/* Claims the name. The descriptor stays open until the end of the process, on purpose. */
static meeting_result meeting_fail(const meeting_call *call) {
    struct sockaddr_un name;
    socklen_t length = meeting_mark(call, &name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return MEETING_SAY;
    if (bind(fd, (struct sockaddr *)&name, length) != 0) {
        int taken = errno == EADDRINUSE;
        close(fd);
        return taken ? MEETING_SILENT : MEETING_SAY;
    }
    (void)listen(fd, 64);
    return MEETING_SAY;
}

/* ---- this process -------------------------------------------------------------------------- */

static uint32_t meeting_hash(const void *data, size_t bytes) { /* FNV-1a */
    const unsigned char *at = (const unsigned char *)data;
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * 16777619u;
    return hash;
}

void meeting_read_boot(char *boot, size_t bytes) {
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    boot[0] = 0;
    if (file == NULL) return;
    if (fgets(boot, (int)bytes, file) == NULL) boot[0] = 0;
    boot[strcspn(boot, "\n")] = 0;
    fclose(file);
}

static void meeting_introduce(const meeting_call *call, meeting_member *member) {
    cpu_set_t processors;
    memset(member, 0, sizeof *member);
    member->magic = MEETING_MAGIC;
    member->version = MEETING_VERSION;
    member->rank = call->rank;
    member->nranks = call->nranks;
    member->local_rank = call->local_rank;
    member->process = (int32_t)getpid();
    member->file = call->file;
    CPU_ZERO(&processors);
    (void)sched_getaffinity(0, sizeof processors, &processors);
    member->processors = meeting_hash(&processors, sizeof processors);
    member->nprocessors = CPU_COUNT(&processors);
    snprintf(member->host, sizeof member->host, "%.*s", MEETING_NAME - 1, call->own_host);
    snprintf(member->job, sizeof member->job, "%.180s", call->job);
    meeting_read_boot(member->boot, sizeof member->boot);
}

static int meeting_same_machine(const meeting_member *a, const meeting_member *b) {
    return strcmp(a->host, b->host) == 0 && strcmp(a->boot, b->boot) == 0;
}

/* ---- a folder that all ranks can access ---------------------------------------------------- */

/* The address of rank 0, in a file. */
typedef struct meeting_note {
    char path[640];
    char token[40]; /* identifies this run of the job, so that an old file is not used */
    int port;
    char hosts[1024]; /* names and addresses, separated by blanks */
} meeting_note;

static void meeting_note_name(const meeting_call *call, meeting_note *note) {
    int n = snprintf(note->path, sizeof note->path, "%.480s/zero-%.100s-%d-ranks", call->folder,
                     call->job, call->nranks);
    for (int i = (int)strlen(call->folder) + 1; i < n; i++)
        if (note->path[i] == ' ' || note->path[i] == '/') note->path[i] = '-';
}

static void meeting_own_addresses(char *hosts, size_t bytes) {
    struct ifaddrs *all = NULL;
    char text[128];
    size_t used = strlen(hosts);
    if (getifaddrs(&all) != 0) return;
    for (int loopback = 0; loopback < 2;
         loopback++) /* loopback addresses come last: they work only on this machine */
        for (struct ifaddrs *a = all; a != NULL; a = a->ifa_next) {
            int family = a->ifa_addr != NULL ? a->ifa_addr->sa_family : AF_UNSPEC;
            if (family != AF_INET && family != AF_INET6) continue;
            if (!(a->ifa_flags & IFF_UP) || !(a->ifa_flags & IFF_LOOPBACK) != !loopback) continue;
            socklen_t size =
                family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
            if (getnameinfo(a->ifa_addr, size, text, sizeof text, NULL, 0, NI_NUMERICHOST) != 0)
                continue;
            if (used + strlen(text) + 2 > bytes) break;
            used += (size_t)snprintf(hosts + used, bytes - used, " %s", text);
        }
    freeifaddrs(all);
}

/* Writes the file under another name and renames it, so that no process reads an incomplete file.
 */
static int meeting_note_write(const meeting_call *call, meeting_note *note, char *sentence,
                              size_t bytes) {
    char temporary[720];
    snprintf(note->hosts, sizeof note->hosts, "%.200s", call->own_host);
    meeting_own_addresses(note->hosts, sizeof note->hosts);
    snprintf(temporary, sizeof temporary, "%s.%ld", note->path, (long)getpid());
    FILE *file = fopen(temporary, "w");
    int ok =
        file != NULL && fprintf(file, "zero %d %s %s\n", note->port, note->token, note->hosts) > 0;
    ok = file != NULL && fflush(file) == 0 && fsync(fileno(file)) == 0 && ok;
    if (file != NULL) ok = fclose(file) == 0 && ok;
    if (ok && rename(temporary, note->path) == 0) return 1;
    snprintf(sentence, bytes, "-pf %.300s: rank 0 cannot write there: %s", call->folder,
             strerror(errno));
    (void)unlink(temporary);
    return 0;
}

static int meeting_note_read(meeting_note *note) {
    FILE *file = fopen(note->path, "r");
    if (file == NULL) return 0;
    char line[1200];
    int ok = fgets(line, sizeof line, file) != NULL && strchr(line, '\n') != NULL;
    fclose(file);
    if (!ok) return 0;
    line[strcspn(line, "\n")] = 0;
    int at = 0;
    if (sscanf(line, "zero %d %39s %n", &note->port, note->token, &at) != 2 || at == 0) return 0;
    snprintf(note->hosts, sizeof note->hosts, "%.1000s", line + at);
    return 1;
}

/* ---- rank 0 -------------------------------------------------------------------------------- */

/* Listens on all addresses of this machine, IPv6 and IPv4. */
static int meeting_bind(int family, int *port) {
    struct sockaddr_in6 six;
    struct sockaddr_in four;
    int on = 1, off = 0;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    memset(&six, 0, sizeof six);
    memset(&four, 0, sizeof four);
    six.sin6_family = AF_INET6;
    six.sin6_port = htons((uint16_t)*port);
    four.sin_family = AF_INET;
    four.sin_port = htons((uint16_t)*port);
    struct sockaddr *address =
        family == AF_INET6 ? (struct sockaddr *)&six : (struct sockaddr *)&four;
    socklen_t size = family == AF_INET6 ? sizeof six : sizeof four;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (family == AF_INET6) (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, address, size) != 0 || listen(fd, 256) != 0
        || getsockname(fd, address, &size) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    *port = ntohs(family == AF_INET6 ? six.sin6_port : four.sin_port);
    return fd;
}

static int meeting_listen(int *port) {
    int fd = meeting_bind(AF_INET6, port);
    return fd >= 0 || errno == EADDRINUSE ? fd : meeting_bind(AF_INET, port);
}

/* Writes a sentence if a process that claims to be a rank of this job is not, or "". *stranger: it
   belongs to another job, which is no error of this one. */
static void meeting_check(const meeting *m, const meeting_member *own, const meeting_member *member,
                          int *stranger, char *sentence, size_t bytes) {
    sentence[0] = 0;
    *stranger =
        memcmp(member->job, own->job, sizeof member->job) != 0 || member->version != own->version;
    if (*stranger)
        snprintf(sentence, bytes,
                 "rank %d of job '%.100s' reached rank 0 of job '%.100s' on host %.64s: two jobs "
                 "use the same port; set ZERO_PORT to another one",
                 member->rank, member->job, own->job, own->host);
    else if (member->nranks != own->nranks)
        snprintf(sentence, bytes,
                 "rank %d on host %.64s was started for %d ranks, but rank 0 on host %.64s for %d",
                 member->rank, member->host, member->nranks, own->host, own->nranks);
    else if (member->rank < 0 || member->rank >= m->nranks)
        snprintf(sentence, bytes, "a process on host %.64s was started as rank %d of %d",
                 member->host, member->rank, m->nranks);
    else if (member->rank == 0 || m->peers[member->rank].socket >= 0) {
        const meeting_member *first = member->rank == 0 ? own : &m->peers[member->rank].member;
        snprintf(sentence, bytes,
                 "two processes were started as rank %d: %d on host %.64s and %d on host %.64s",
                 member->rank, first->process, first->host, member->process, member->host);
    }
}

/* Accepts a connection. Returns 1 if a rank has connected, 0 if it was another program, and -1 if
 * the job must end. */
static int meeting_accept(meeting *m, int listener, const meeting_member *own, char *sentence,
                          size_t bytes) {
    meeting_member member;
    int stranger = 0, fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return 0;
    meeting_keep_alive(fd);
    if (!meeting_receive(fd, &member, sizeof member, MEETING_ANSWER_MS)
        || member.magic != MEETING_MAGIC) {
        close(fd);
        return 0;
    }
    member.host[sizeof member.host - 1] = member.boot[sizeof member.boot - 1] = 0;
    member.job[sizeof member.job - 1] = 0;
    meeting_check(m, own, &member, &stranger, sentence, bytes);
    if (sentence[0] == 0) {
        m->peers[member.rank].member = member;
        m->peers[member.rank].socket = fd;
        return meeting_tell(fd, MEETING_ACK, 0, NULL, 0);
    }
    (void)meeting_tell(fd, stranger ? MEETING_REFUSED : MEETING_END, 0, sentence,
                       stranger ? strlen(sentence) + 1 : 0);
    close(fd);
    return stranger ? 0 : -1;
}

/* A rank sends nothing between its hello and its welcome, so a readable connection has closed. */
static int meeting_left_early(const meeting *m, const struct pollfd *fds, char *sentence,
                              size_t bytes) {
    for (int r = 1; r < m->nranks; r++) {
        if (fds[r].fd < 0 || fds[r].revents == 0) continue;
        const meeting_member *member = &m->peers[r].member;
        snprintf(sentence, bytes,
                 "rank %d (process %d on host %.64s) ended before all %d ranks had joined", r,
                 member->process, member->host, m->nranks);
        return 1;
    }
    return 0;
}

static void meeting_missing(const meeting *m, const meeting_call *call, int port, char *sentence,
                            size_t bytes) {
    char list[160] = "";
    int missing = 0;
    for (int r = 1; r < m->nranks; r++) {
        if (m->peers[r].socket >= 0) continue;
        size_t used = strlen(list);
        if (missing++ < 8) snprintf(list + used, sizeof list - used, "%s%d", used ? ", " : "", r);
    }
    snprintf(sentence, bytes,
             "%d of %d ranks did not come to rank 0 at %.200s:%d within %g s: %s%s (started %s)",
             missing, m->nranks, call->folder != NULL ? call->own_host : call->host, port,
             call->limit_s, list, missing > 8 ? ", ..." : "", call->by);
}

/* Waits until all ranks are connected. */
static meeting_result meeting_gather(meeting *m, const meeting_call *call, int listener, int port,
                                     const meeting_member *own, char *sentence, size_t bytes) {
    double end = clock_seconds(CLOCK_MONOTONIC) + call->limit_s;
    struct pollfd *fds = (struct pollfd *)calloc((size_t)m->nranks, sizeof *fds);
    meeting_result result = fds != NULL ? MEETING_OK : MEETING_SAY;
    if (fds == NULL) snprintf(sentence, bytes, "out of memory for %d ranks", m->nranks);
    for (int came = 1; result == MEETING_OK && came < m->nranks;) {
        for (int r = 0; r < m->nranks; r++) {
            fds[r].fd = r == 0 ? listener : m->peers[r].socket;
            fds[r].events = POLLIN;
            fds[r].revents = 0;
        }
        int ready = poll(fds, (nfds_t)m->nranks, 100);
        if (ready > 0 && meeting_left_early(m, fds, sentence, bytes))
            result = MEETING_SAY;
        else if (ready > 0 && fds[0].revents != 0) {
            int one = meeting_accept(m, listener, own, sentence, bytes);
            if (one < 0)
                result = MEETING_SAY;
            else
                came += one;
        } else if (clock_seconds(CLOCK_MONOTONIC) > end) {
            meeting_missing(m, call, port, sentence, bytes);
            result = MEETING_SAY;
        } else if (ready <= 0 && meeting_has_failed(call))
            result = MEETING_SILENT;
    }
    free(fds);
    return result;
}

/* Finds the ranks that share a machine, and returns the number of threads of each rank. It is equal
   on all ranks; ranks that share processors divide them. */
static int meeting_machines(meeting *m) {
    int threads = 0;
    for (int r = 0; r < m->nranks; r++) {
        int first = 0;
        while (!meeting_same_machine(&m->peers[first].member, &m->peers[r].member)) first++;
        m->peers[r].machine = first;
    }
    for (int r = 0; r < m->nranks; r++) {
        const meeting_peer *me = &m->peers[r];
        int sharing = 1;
        for (int other = 0; other < m->nranks; other++)
            sharing += other != r && m->peers[other].machine == me->machine
                       && m->peers[other].member.processors == me->member.processors;
        int mine = me->member.nprocessors / sharing;
        if (mine < 1) mine = 1;
        if (threads == 0 || mine < threads) threads = mine;
    }
    return threads;
}

static void meeting_seat_of(const meeting *m, int rank, int threads, meeting_seat *seat) {
    const meeting_peer *me = &m->peers[rank], *first = &m->peers[0];
    memset(seat, 0, sizeof *seat);
    seat->threads = threads;
    seat->leader_rank = me->machine;
    seat->leader_process = m->peers[me->machine].member.process;
    seat->leader_file = m->peers[me->machine].member.file;
    memcpy(seat->first_host, first->member.host, sizeof first->member.host);
    for (int r = 0; r < m->nranks; r++) {
        const meeting_peer *p = &m->peers[r];
        seat->hosts += p->machine == r;
        if (p->machine == r && seat->hosts == 2) {
            seat->foreign_rank = r;
            memcpy(seat->foreign_host, p->member.host, sizeof p->member.host);
        }
        seat->local_ranks += p->machine == me->machine;
        seat->local_rank += p->machine == me->machine && r < rank;
    }
    if (me->member.local_rank >= 0) seat->local_rank = me->member.local_rank;
}

static meeting_result meeting_host(meeting *m, const meeting_call *call, meeting_seat *seat,
                                   char *sentence, size_t bytes) {
    meeting_note note;
    meeting_member own;
    int port = call->port, listener = meeting_listen(&port);
    memset(&note, 0, sizeof note);
    meeting_introduce(call, &own);
    if (listener < 0) {
        snprintf(sentence, bytes,
                 "rank 0 cannot listen on port %d: %s; set ZERO_PORT to a free one, on all ranks",
                 port, strerror(errno));
        return MEETING_SAY;
    }
    if (call->folder != NULL) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        note.port = port;
        snprintf(note.token, sizeof note.token, "%lx.%lx.%lx", (long)getpid(), (long)t.tv_sec,
                 (long)t.tv_nsec);
        snprintf(own.job, sizeof own.job, "%.140s %s", call->job, note.token);
        memset(own.job + strlen(own.job), 0, sizeof own.job - strlen(own.job));
        meeting_note_name(call, &note);
        if (!meeting_note_write(call, &note, sentence, bytes)) {
            close(listener);
            return MEETING_SAY;
        }
    }
    meeting_result result = meeting_gather(m, call, listener, port, &own, sentence, bytes);
    close(listener);
    if (call->folder != NULL) (void)unlink(note.path);
    m->peers[0].member = own;
    int threads = result == MEETING_OK ? meeting_machines(m) : 0;
    for (int r = 1; r < m->nranks; r++) {
        if (result == MEETING_OK) {
            meeting_seat_of(m, r, threads, seat);
            (void)meeting_tell(m->peers[r].socket, MEETING_WELCOME, 0, seat, sizeof *seat);
        } else
            (void)meeting_tell(m->peers[r].socket, MEETING_END, 0, NULL, 0);
    }
    if (result == MEETING_OK) meeting_seat_of(m, 0, threads, seat);
    return result;
}

/* ---- the other ranks ----------------------------------------------------------------------- */

static int meeting_connect_to(const struct addrinfo *to) {
    int error = 0;
    socklen_t size = sizeof error;
    int fd = socket(to->ai_family, to->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    if (connect(fd, to->ai_addr, to->ai_addrlen) != 0) {
        struct pollfd one = {fd, POLLOUT, 0};
        error = errno;
        if (error == EINPROGRESS) {
            error = ETIMEDOUT;
            if (poll(&one, 1, MEETING_CONNECT_MS) == 1
                && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
                error = errno;
        }
    }
    if (error != 0) {
        close(fd);
        errno = error;
        return -1;
    }
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    meeting_keep_alive(fd);
    return fd;
}

int meeting_connect(const char *host, int port, char *why, size_t bytes) {
    struct addrinfo hints, *all = NULL;
    char service[16];
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    snprintf(service, sizeof service, "%d", port);
    int error = getaddrinfo(host, service, &hints, &all), fd = -1;
    if (error != 0) {
        snprintf(why, bytes, "%s", gai_strerror(error));
        return -1;
    }
    for (struct addrinfo *a = all; a != NULL && fd < 0; a = a->ai_next) fd = meeting_connect_to(a);
    if (fd < 0) snprintf(why, bytes, "%s", strerror(errno));
    freeaddrinfo(all);
    return fd;
}

/* Makes one attempt to join the job. Returns a socket that rank 0 has acknowledged, or -1.
 *refused: 1 if another job has refused this process; `why` has its sentence. */
static int meeting_try(const meeting_member *member, const char *host, int port, int *refused,
                       char *why, size_t bytes) {
    meeting_head head;
    char text[MEETING_BYTES];
    int fd = meeting_connect(host, port, why, bytes);
    *refused = 0;
    if (fd < 0) return -1;
    if (!meeting_send(fd, member, sizeof *member)
        || !meeting_receive_message(fd, &head, text, sizeof text, MEETING_ANSWER_MS))
        snprintf(why, bytes, "the process that answers is not rank 0 of this job");
    else if (head.kind == MEETING_ACK)
        return fd;
    else if (head.kind == MEETING_REFUSED && head.bytes > 0) {
        text[head.bytes < sizeof text ? head.bytes - 1 : sizeof text - 1] = 0;
        snprintf(why, bytes, "%.400s", text);
        *refused = 1;
    } else {
        why[0] = 0; /* rank 0 prints the error */
        *refused = 1;
    }
    close(fd);
    return -1;
}

/* Tries the addresses in the file of rank 0. A refusal comes from a process that uses the port of
 * an old file. */
static int meeting_try_folder(const meeting_call *call, meeting_member *member, meeting_note *note,
                              int *refused, char *why, size_t bytes) {
    int fd = -1;
    *refused = 0;
    snprintf(why, bytes, "%.400s does not appear", note->path);
    if (!meeting_note_read(note)) return -1;
    memset(member->job, 0, sizeof member->job);
    snprintf(member->job, sizeof member->job, "%.140s %s", call->job, note->token);
    for (char *save = NULL, *host = strtok_r(note->hosts, " ", &save); host != NULL && fd < 0;
         host = strtok_r(NULL, " ", &save)) {
        fd = meeting_try(member, host, note->port, refused, why, bytes);
        if (*refused && why[0] == 0) return -1;
        *refused = 0;
    }
    return fd;
}

static meeting_result meeting_await_welcome(const meeting_call *call, int fd, meeting_seat *seat,
                                            char *sentence, size_t bytes) {
    meeting_head head;
    double end = clock_seconds(CLOCK_MONOTONIC) + call->limit_s + 10;
    struct pollfd one = {fd, POLLIN, 0};
    while (poll(&one, 1, 100) <= 0 && clock_seconds(CLOCK_MONOTONIC) < end) one.revents = 0;
    if (meeting_receive_message(fd, &head, seat, sizeof *seat, MEETING_ANSWER_MS)) {
        if (head.kind == MEETING_WELCOME && head.bytes == sizeof *seat) return MEETING_OK;
        if (head.kind == MEETING_END) return MEETING_SILENT;
    }
    snprintf(sentence, bytes, "rank 0 ended before all %d ranks had joined", call->nranks);
    return MEETING_SAY;
}

static meeting_result meeting_guest(meeting *m, const meeting_call *call, meeting_seat *seat,
                                    char *sentence, size_t bytes) {
    meeting_member member;
    meeting_note note;
    char why[MEETING_TEXT] = "";
    int refused = 0, pause = 20;
    double end = clock_seconds(CLOCK_MONOTONIC) + call->limit_s;
    memset(&note, 0, sizeof note);
    meeting_introduce(call, &member);
    if (call->folder != NULL) meeting_note_name(call, &note);
    for (;;) {
        if (meeting_has_failed(call)) return MEETING_SILENT;
        int fd = call->folder != NULL
                     ? meeting_try_folder(call, &member, &note, &refused, why, sizeof why)
                     : meeting_try(&member, call->host, call->port, &refused, why, sizeof why);
        if (fd >= 0) {
            m->peers[0].socket = fd;
            return meeting_await_welcome(call, fd, seat, sentence, bytes);
        }
        if (refused) {
            snprintf(sentence, bytes, "%s", why);
            return why[0] ? MEETING_SAY : MEETING_SILENT;
        }
        if (clock_seconds(CLOCK_MONOTONIC) > end) break;
        clock_pause(pause);
        if (pause < 500) pause *= 2;
    }
    if (call->folder != NULL)
        snprintf(sentence, bytes, "rank %d on host %.64s found no rank 0 within %g s: %s",
                 call->rank, member.host, call->limit_s, why);
    else
        snprintf(sentence, bytes,
                 "rank %d on host %.64s could not reach rank 0 at %.200s:%d within %g s: %s",
                 call->rank, member.host, call->host, call->port, call->limit_s, why);
    return MEETING_SAY;
}

static void meeting_free(meeting *m) {
    if (m == NULL) return;
    for (int i = 0; m->peers != NULL && i < m->npeers; i++) meeting_close(&m->peers[i].socket);
    meeting_close(&m->wake[0]);
    meeting_close(&m->wake[1]);
    free(m->peers);
    free(m);
}

meeting_result meeting_join(meeting **out, const meeting_call *call, meeting_seat *seat,
                            char *sentence, size_t bytes) {
    meeting *m = (meeting *)calloc(1, sizeof *m);
    *out = NULL;
    sentence[0] = 0;
    if (m != NULL) {
        m->rank = call->rank;
        m->nranks = call->nranks;
        m->own_ok = -1;
        m->wake[0] = m->wake[1] = -1;
        m->npeers = call->rank == 0 ? call->nranks : 1;
        m->peers = (meeting_peer *)calloc((size_t)m->npeers, sizeof *m->peers);
    }
    if (m == NULL || m->peers == NULL) {
        snprintf(sentence, bytes, "out of memory for a meeting of %d ranks", call->nranks);
        meeting_free(m);
        return MEETING_SAY;
    }
    for (int i = 0; i < m->npeers; i++) m->peers[i].socket = m->peers[i].agreed_ok = -1;
    meeting_result result = call->rank == 0 ? meeting_host(m, call, seat, sentence, bytes)
                                            : meeting_guest(m, call, seat, sentence, bytes);
    if (result == MEETING_OK) {
        (void)pthread_mutex_init(&m->lock, NULL);
        (void)pthread_cond_init(&m->changed, NULL);
        *out = m;
        return MEETING_OK;
    }
    if (result == MEETING_SAY) result = meeting_fail(call);
    meeting_free(m);
    return result;
}

/* ---- watching ------------------------------------------------------------------------------ */

/* The callers of these functions hold the lock. */

static void meeting_tell_all(meeting *m, int except, meeting_kind kind, int value, const void *data,
                             size_t bytes) {
    for (int i = 0; i < m->npeers; i++)
        if (i != except) (void)meeting_tell(m->peers[i].socket, kind, value, data, bytes);
}

static void meeting_deliver_result(meeting *m, int lowest) {
    m->result = lowest;
    m->has_result = 1;
    m->over = m->over || (m->ends && lowest < m->nranks);
    pthread_cond_broadcast(&m->changed);
}

static void meeting_deliver_copy(meeting *m, const void *data, size_t bytes) {
    memcpy(m->copy, data, bytes);
    m->copy_bytes = bytes;
    m->has_copy = 1;
    pthread_cond_broadcast(&m->changed);
}

/* Rank 0: if the current agreement is complete, sends the result to all ranks. */
static void meeting_count(meeting *m) {
    int lowest = m->nranks;
    if (m->own_ok < 0) return;
    for (int r = m->nranks - 1; r > 0; r--) {
        if (m->peers[r].agreed_ok < 0) return;
        if (!m->peers[r].agreed_ok) lowest = r;
    }
    if (!m->own_ok) lowest = 0;
    m->own_ok = -1;
    for (int r = 1; r < m->nranks; r++) m->peers[r].agreed_ok = -1;
    meeting_tell_all(m, -1, MEETING_RESULT, lowest, NULL, 0);
    meeting_deliver_result(m, lowest);
}

/* Ends the job. Rank `speaker` prints the line; -1: a process that has died. */
static int meeting_end(meeting *m, int speaker) {
    if (m->over) return 0;
    m->over = 1;
    meeting_tell_all(m, speaker, MEETING_END, 0, NULL, 0);
    pthread_cond_broadcast(&m->changed);
    return 1;
}

/* Handles one message. Returns 1 if this process must end without a line. */
static int meeting_take(meeting *m, int peer, const meeting_head *head, const void *data) {
    meeting_peer *p = &m->peers[peer];
    switch (head->kind) {
    case MEETING_AGREE:
        p->agreed_ok = head->value != 0;
        meeting_count(m);
        return 0;
    case MEETING_RESULT: meeting_deliver_result(m, head->value); return 0;
    case MEETING_COPY: meeting_deliver_copy(m, data, head->bytes); return 0;
    case MEETING_CLAIM: {
        int first = meeting_end(m, peer);
        (void)meeting_tell(p->socket, first ? MEETING_GRANTED : MEETING_END, 0, NULL, 0);
        return first;
    }
    case MEETING_GRANTED:
        m->over = m->granted = 1;
        pthread_cond_broadcast(&m->changed);
        return 0;
    case MEETING_END:
        m->over = 1;
        pthread_cond_broadcast(&m->changed);
        return 1;
    case MEETING_BYE:
        p->left = 1;
        pthread_cond_broadcast(&m->changed);
        return 0;
    default: return 0;
    }
}

/* Handles a closed connection. Returns 1 and a sentence if the rank had not sent a goodbye. */
static int meeting_lose(meeting *m, int peer, char *sentence, size_t bytes) {
    meeting_peer *p = &m->peers[peer];
    meeting_close(&p->socket);
    if (m->rank != 0) m->lost = 1;
    pthread_cond_broadcast(&m->changed);
    if (p->left || m->leaving * m->rank > 0 || m->over) return 0;
    if (m->rank == 0)
        snprintf(sentence, bytes, "rank %d (process %d on host %.64s) is gone; all %d ranks end",
                 peer, p->member.process, p->member.host, m->nranks);
    else
        snprintf(sentence, bytes, "rank 0 is gone; all %d ranks end", m->nranks);
    m->granted = meeting_end(m, -1); /* the first thread that claims it gets it */
    return 1;
}

/* Reads all messages until this rank leaves or the job is over. */
static void *meeting_watch_main(void *arg) {
    meeting *m = (meeting *)arg;
    char data[MEETING_BYTES], sentence[MEETING_TEXT];
    struct pollfd *fds = (struct pollfd *)calloc((size_t)m->npeers + 1, sizeof *fds);
    int silent = 0, lost = 0, quit = fds == NULL;
    while (!quit && !silent && !lost) {
        for (int i = 0; i <= m->npeers; i++) {
            fds[i].fd = i < m->npeers ? m->peers[i].socket : m->wake[0];
            fds[i].events = POLLIN;
            fds[i].revents = 0;
        }
        if (poll(fds, (nfds_t)m->npeers + 1, -1) < 0) continue;
        quit = fds[m->npeers].revents != 0;
        for (int i = 0; i < m->npeers && !quit && !silent && !lost; i++) {
            meeting_head head;
            if (fds[i].fd < 0 || fds[i].revents == 0) continue;
            int received =
                meeting_receive_message(fds[i].fd, &head, data, sizeof data, MEETING_ANSWER_MS);
            pthread_mutex_lock(&m->lock);
            if (received)
                silent = meeting_take(m, i, &head, data);
            else
                lost = meeting_lose(m, i, sentence, sizeof sentence);
            pthread_mutex_unlock(&m->lock);
        }
    }
    free(fds);
    if (silent || lost) m->ended_fn(m->user, lost ? sentence : NULL);
    return NULL;
}

int meeting_watch(meeting *m, meeting_ended ended, void *user) {
    sigset_t all, old;
    m->ended_fn = ended;
    m->user = user;
    if (pipe2(m->wake, O_CLOEXEC) != 0) return 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* the main thread handles signals */
    m->watching = pthread_create(&m->watcher, NULL, meeting_watch_main, m) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return m->watching;
}

/* Waits for a result or a copy, and reads it. Returns 0 if the job is over. */
static int meeting_await(meeting *m, int *has) {
    while (!*has && !m->over && !m->lost) pthread_cond_wait(&m->changed, &m->lock);
    int came = *has;
    *has = 0;
    return came;
}

int meeting_agree(meeting *m, int ok, int ends) {
    pthread_mutex_lock(&m->lock);
    m->ends = ends;
    if (m->rank == 0) {
        m->own_ok = ok != 0;
        meeting_count(m);
    } else
        (void)meeting_tell(m->peers[0].socket, MEETING_AGREE, ok != 0, NULL, 0);
    int lowest = meeting_await(m, &m->has_result) ? m->result : -1;
    pthread_mutex_unlock(&m->lock);
    return lowest;
}

/* The agreement makes sure that all ranks have read the previous copy. */
int meeting_broadcast(meeting *m, void *data, size_t bytes) {
    if (bytes > MEETING_BYTES || meeting_agree(m, 1, 1) != m->nranks) return 0;
    int ok = 1;
    pthread_mutex_lock(&m->lock);
    if (m->rank == 0)
        meeting_tell_all(m, -1, MEETING_COPY, 0, data, bytes);
    else {
        ok = meeting_await(m, &m->has_copy) && m->copy_bytes == bytes;
        if (ok) memcpy(data, m->copy, bytes);
    }
    pthread_mutex_unlock(&m->lock);
    return ok;
}

int meeting_claim(meeting *m) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += MEETING_GRANT_MS / 1000;
    pthread_mutex_lock(&m->lock);
    int may = 0;
    if (m->rank == 0 || m->lost || !m->watching)
        may = meeting_end(m, -1) || m->granted;
    else if (!m->over) {
        (void)meeting_tell(m->peers[0].socket, MEETING_CLAIM, 0, NULL, 0);
        int late = 0;
        while (!m->over && !m->lost && !late)
            late = pthread_cond_timedwait(&m->changed, &m->lock, &until) == ETIMEDOUT;
        may = m->granted || !m->over || m->lost;
        m->over = 1;
    }
    pthread_mutex_unlock(&m->lock);
    return may;
}

void meeting_leave(meeting *m) {
    pthread_mutex_lock(&m->lock);
    m->leaving = 1;
    meeting_tell_all(m, -1, MEETING_BYE, 0, NULL, 0);
    for (int i = 1; i < m->npeers; i++) /* only rank 0 has others */
        while (!m->peers[i].left && !m->over) pthread_cond_wait(&m->changed, &m->lock);
    int over = m->over;
    pthread_mutex_unlock(&m->lock);
    if (over) clock_pause(MEETING_LINGER_MS); /* the watcher ends the process */
    if (m->watching && write(m->wake[1], "", 1) == 1) pthread_join(m->watcher, NULL);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    meeting_free(m);
}
