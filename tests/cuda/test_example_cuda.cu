/* test_example_cuda.cu - adapters/example.cu on tests/emulation: its ranks are threads here. The
   losses are the same at every stage, and on one rank those of adapters/example.c. EXAMPLE names
   the file, in which launches are calls of EMULATED_LAUNCH. Prints the losses of `STAGE RANKS ID`;
   test_example_cuda.sh compares them. */
#include "emulation.h"
#define main example_main
#include EXAMPLE
#undef main
#include <pthread.h>

typedef struct job {
    int stage, rank, nranks, result;
    const char *path;
} job;

static void *start(void *argument) {
    job *j = (job *)argument;
    j->result = train(j->stage, j->path, j->rank, j->nranks, j->rank);
    return NULL;
}

int main(int argc, char **argv) {
    enum { MOST = 4 };
    pthread_t thread[MOST];
    job jobs[MOST];
    if (argc != 4 || atoi(argv[2]) < 1 || atoi(argv[2]) > MOST) return example_main(argc, argv);
    const int nranks = atoi(argv[2]);
    int failed = 0;
    emulation_devices(nranks, 1);
    for (int r = 0; r < nranks; r++) {
        jobs[r] = job{atoi(argv[1]), r, nranks, 0, argv[3]};
        if (pthread_create(&thread[r], NULL, start, &jobs[r])) return 1;
    }
    for (int r = 0; r < nranks; r++) {
        pthread_join(thread[r], NULL);
        failed |= jobs[r].result;
    }
    return failed;
}
