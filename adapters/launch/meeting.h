/* meeting.h - processes that a launcher started find each other, and stay in touch.

   Rank 0 listens; every other rank connects and says who it is. Once all are there, each is given
   its seat: its rank among those of its machine, and the memory file to share with them. The
   connections stay open: agreements and broadcasts go through rank 0, and a connection that closes
   without a goodbye is how the others learn that a process has died.

       rank 1 ---.                   hello    ->         agree, claim ->
       rank 2 ---+--- rank 0         <- ack, welcome     <- result, bytes, granted, end
       rank 3 ---'                   bye      ->

   A process of another job is turned away: jobs have names. Numbers are sent as they lie in memory;
   a machine of other byte order is not recognised as a rank.

   THREADS. meeting_watch starts one, which reads all that arrives. All other functions are for one
   thread per process, save meeting_claim, which any may call. */
#ifndef LAUNCH_MEETING_H
#define LAUNCH_MEETING_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MEETING_NAME = 72, MEETING_BYTES = 8192 /* most of a broadcast */ };

typedef enum meeting_result {
    MEETING_OK = 0,
    MEETING_SAY,   /* failed, and this process is to say so */
    MEETING_SILENT /* failed, and somebody else says so */
} meeting_result;

typedef struct meeting meeting;

typedef struct meeting_call {
    int rank, nranks;
    int local_rank;       /* as the launcher told it; -1: by host names */
    const char *by;       /* "by torchrun" */
    const char *host;     /* of rank 0 */
    int port;             /* of rank 0; with a folder 0: any */
    const char *folder;   /* NULL, or where rank 0 leaves its address */
    const char *job;      /* the same on all ranks, of this job alone */
    const char *own_host; /* name of this machine */
    int file;             /* a descriptor of this process, for the ranks of its machine */
    double limit_s;       /* how long to wait for the others */
} meeting_call;

typedef struct meeting_seat {
    int32_t local_rank, local_ranks;
    int32_t leader_rank, leader_process, leader_file; /* lowest rank of this machine */
    int32_t threads;      /* of every rank, by processors that each may run on */
    int32_t hosts;        /* machines */
    int32_t foreign_rank; /* hosts > 1: the lowest rank that is not on rank 0's machine */
    char first_host[MEETING_NAME], foreign_host[MEETING_NAME];
} meeting_seat;

/* Waits until all ranks are there. Not MEETING_OK: nothing is left open, and with MEETING_SAY the
   sentence tells why. */
meeting_result meeting_join(meeting **m, const meeting_call *call, meeting_seat *seat,
                            char *sentence, size_t bytes);

/* From here on another process's end is noticed: ended(user, sentence) is called once, in a thread
   of the meeting; sentence NULL: somebody else says why. 0: the thread could not be started. */
typedef void (*meeting_ended)(void *user, const char *sentence);
int meeting_watch(meeting *m, meeting_ended ended, void *user);

/* The lowest rank whose ok is 0; nranks: none. -1: the job has ended. ends: so it has where there
   is such a rank, which says why; the others leave, rightly. COLLECTIVE. */
int meeting_agree(meeting *m, int ok, int ends);

/* Copies bytes from rank 0 to all, at most MEETING_BYTES. 0: the job has ended. COLLECTIVE. */
int meeting_broadcast(meeting *m, void *data, size_t bytes);

/* The job has failed: 1 on the first rank that says so, or where rank 0 cannot be asked. All others
   are told that it is over. */
int meeting_claim(meeting *m);

/* A good end. Rank 0 waits for all others, and watches them to the end. */
void meeting_leave(meeting *m);

#ifdef __cplusplus
}
#endif
#endif
