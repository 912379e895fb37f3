/* meeting.h - connects the processes that a launcher started, and detects their deaths.

   Rank 0 listens. Every other rank connects and sends its rank, its host and the name of its job.
   When all ranks are connected, rank 0 sends each its seat: its rank among those of its machine,
   and the memory file that they share. The connections stay open. Agreements and broadcasts go
   through rank 0. If a connection closes without a goodbye, the process has died.

       rank 1 ---.                   hello    ->         agree, claim ->
       rank 2 ---+--- rank 0         <- ack, welcome     <- result, bytes, granted, end
       rank 3 ---'                   bye      ->

   Rank 0 refuses a process whose job has another name. Numbers are sent in the byte order of the
   machine, so a machine with another byte order is refused too.

   THREADS. meeting_watch starts a thread that reads all messages. Only one thread per process calls
   the other functions, except meeting_claim, which any thread may call. */
#ifndef LAUNCH_MEETING_H
#define LAUNCH_MEETING_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MEETING_NAME = 72, MEETING_BYTES = 8192 /* largest broadcast */ };

typedef enum meeting_result {
    MEETING_OK = 0,
    MEETING_SAY,   /* it failed, and this process must print the sentence */
    MEETING_SILENT /* it failed, and another process prints the sentence */
} meeting_result;

typedef struct meeting meeting;

typedef struct meeting_call {
    int rank, nranks;
    int local_rank;       /* from the launcher; -1: found by host name */
    const char *by;       /* "by torchrun" */
    const char *host;     /* of rank 0 */
    int port;             /* of rank 0; 0 with a folder: any */
    const char *folder;   /* NULL, or the folder to which rank 0 writes its address */
    const char *job;      /* identifies the job: equal on all of its ranks */
    const char *own_host; /* name of this machine */
    int file;             /* a descriptor of this process, for the ranks of its machine */
    double limit_s;       /* how long to wait for the others */
} meeting_call;

typedef struct meeting_seat {
    int32_t local_rank, local_ranks;
    int32_t leader_rank, leader_process, leader_file; /* lowest rank of this machine */
    int32_t threads;                                  /* of each rank; equal on all */
    int32_t hosts;                                    /* machines */
    int32_t foreign_rank; /* hosts > 1: the lowest rank that is not on rank 0's machine */
    char first_host[MEETING_NAME], foreign_host[MEETING_NAME];
} meeting_seat;

/* Waits until all ranks are connected. After another result than MEETING_OK, everything is closed,
   and with MEETING_SAY the sentence has the reason. */
meeting_result meeting_join(meeting **m, const meeting_call *call, meeting_seat *seat,
                            char *sentence, size_t bytes);

/* Starts a thread that watches the other processes. If one dies, the thread calls ended(user,
   sentence) once; if sentence is NULL, another process prints the reason. Returns 0 if it cannot
   start. */
typedef void (*meeting_ended)(void *user, const char *sentence);
int meeting_watch(meeting *m, meeting_ended ended, void *user);

/* Returns the lowest rank whose ok is 0, nranks if there is none, or -1 if the job has ended. ends:
   if there is such a rank, the job ends; that rank prints the reason. COLLECTIVE. */
int meeting_agree(meeting *m, int ok, int ends);

/* Copies at most MEETING_BYTES from rank 0 to all ranks. Returns 0 if the job has ended.
 * COLLECTIVE. */
int meeting_broadcast(meeting *m, void *data, size_t bytes);

/* Ends the job after a failure. Returns 1 on the first rank that calls it, and on a rank that
   cannot reach rank 0. That rank prints the reason; the job is over for all others. */
int meeting_claim(meeting *m);

/* Leaves without an error. Rank 0 waits for all other ranks, and watches them until they end. */
void meeting_leave(meeting *m);

/* ---- also for guests.h ---- */

/* Makes one attempt to connect. After an error, `why` has the reason. */
int meeting_connect(const char *host, int port, char *why, size_t bytes);
/* Sends keep-alive messages, because a host that loses power does not close its connections. */
void meeting_keep_alive(int fd);
/* Reads what the kernel of this machine drew when it started, or "". */
void meeting_read_boot(char *boot, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
