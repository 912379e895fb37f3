/* guests.h - processes of another launcher join a running job by its address.

   The launcher of the job listens at an address. Another launcher of the same machine, the GUEST,
   connects, proves that it can read the job's memory, and offers a number of ranks. The job starts
   them when it changes its ranks (members.h). They are children of the guest, which watches them
   and reports how each ends. Ranks that were offered and not started wait as spares.

       guest                                job
       hello (ranks, machine)      ->
                                   <-       welcome (process, file), or refused (sentence)
       token, read in the memory   ->
                                   <-       start (a rank)            as often as ranks are offered
                                   <-       kill (a seat or all, a signal)
       ended (a rank, its status)  ->
       withdraw (its spares)       ->
                                   <-       end (exit code)           the guest has no rank any more

   A connection that closes without an end is the death of a launcher. Its ranks die with it.

   ACCESS. The address gives nothing by itself: a guest must open the job's memory through
   /proc, which needs the same user and machine. The token is a random number in that memory.

   Nothing here waits for the other side, except guests_join. */
#ifndef LAUNCH_GUESTS_H
#define LAUNCH_GUESTS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { GUESTS_MOST = 16, GUESTS_TEXT = 448, GUESTS_ADDRESS = 256 };

typedef enum guests_kind {
    GUESTS_HELLO = 1,
    GUESTS_WELCOME,
    GUESTS_REFUSED,
    GUESTS_TOKEN,
    GUESTS_START,
    GUESTS_KILL,
    GUESTS_ENDED,
    GUESTS_WITHDRAW,
    GUESTS_END,
    GUESTS_LOST /* not sent: the connection has closed */
} guests_kind;

/* All messages have this size. Both sides are on one machine. */
typedef struct guests_message {
    int32_t magic, version, kind, unused;
    int64_t bytes;                     /* welcome: of the memory */
    uint64_t token;                    /* token */
    int32_t ranks;                     /* hello, start: number of ranks */
    int32_t process, file;             /* hello, welcome, ended: a process; its descriptor */
    int32_t seat, rank, epoch, starts; /* start; kill, ended: seat, -1: all */
    int32_t value;                     /* kill: signal; ended: wait status; end: exit code */
    char text[GUESTS_TEXT];            /* hello: the machine; refused, end: a sentence, or "" */
} guests_message;

typedef struct guests_line {
    int socket; /* -1: none */
    int phase;  /* 0: a hello is expected, 1: the token, 2: a guest */
    int ranks;  /* the number in its hello */
    long since; /* milliseconds: when it connected */
    size_t used;
    guests_message in; /* as far as it has arrived */
} guests_line;

/* ---- the job's launcher ---- */

typedef struct guests {
    int listener;
    char address[GUESTS_ADDRESS]; /* with the port that was chosen */
    guests_line line[GUESTS_MOST];
    guests_message welcome; /* what each guest gets */
    char machine[GUESTS_TEXT];
    uint64_t token;
} guests;

/* Listens at HOST:PORT, where an empty HOST is this machine alone, and port 0 any free one. file: a
   descriptor of this process with `bytes` bytes, which has the token. Returns 0 and a sentence
   after an error. */
int guests_listen(guests *g, const char *address, int file, size_t bytes, uint64_t token,
                  char *sentence, size_t sentence_bytes);
/* Returns the guest of the next message and the message, or -1. TOKEN: it offers m->ranks ranks.
   LOST: it has gone. */
int guests_next(guests *g, guests_message *m);
int guests_is_here(const guests *g, int guest);
/* To a guest, or to all of them (-1). */
void guests_send(guests *g, int guest, guests_message m);
/* Sends an end, and closes the connection. */
void guests_end(guests *g, int guest, int code, const char *why);
void guests_close(guests *g, int code, const char *why);

/* ---- a guest ---- */

/* Connects to the job at HOST:PORT and offers ranks. Returns the welcome, or 0 and a sentence. */
int guests_join(guests_line *job, const char *address, int ranks, guests_message *welcome,
                char *sentence, size_t bytes);
/* Returns 1 and the next message, or 0. Also LOST, once. */
int guests_hear(guests_line *job, guests_message *m);
void guests_tell(guests_line *job, guests_message m);

/* Returns a message of a kind; the rest is zeros. */
guests_message guests_make(guests_kind kind);

#ifdef __cplusplus
}
#endif
#endif
