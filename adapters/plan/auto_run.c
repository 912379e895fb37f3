/* auto_run.c - see auto_run.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "auto_run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "../checkpoint/checkpoint.h"
#include "../gpt2/experts.h"
#include "../launch/memory.h"
#include "../report/progress.h"
#include "../report/run_note.h"
#include "../report/sentence.h"
#include "measure.h"

#define AUTO_RUN_SECONDS 7.0        /* of the measurement */
#define AUTO_RUN_SPARE   (8u << 20) /* bytes of a rank that no plan has: data, buffers, stacks */
enum { AUTO_RUN_PATH = 1100 };

/* Rank 0 sends this to the others. */
typedef struct auto_run_choice {
    int failed;
    char flags[AUTO_FLAGS], sentence[LAUNCH_SENTENCE];
} auto_run_choice;

char *auto_run_memory(const train_options *o) {
    if (!train_chooses(o) || !o->elastic) return NULL;
    void *kept = mmap(NULL, AUTO_FLAGS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return kept == MAP_FAILED ? NULL : (char *)kept;
}
void auto_run_memory_free(char *kept) {
    if (kept != NULL) (void)munmap(kept, AUTO_FLAGS);
}

/* ---- a stored choice ----------------------------------------------------------------------- */

/* Reads the choice from the newest checkpoint that can be read. Leaves "" if it has none. */
static void auto_run_stored(const char *folder, char flags[AUTO_FLAGS]) {
    char why[CHECKPOINT_SENTENCE], path[AUTO_RUN_PATH];
    checkpoint_generation *list = NULL;
    int n = 0;
    if (checkpoint_list(folder, &list, &n, why) != CHECKPOINT_OK) n = 0;
    for (int i = 0; i < n; i++) {
        checkpoint_reader *reader = NULL;
        int length = 0;
        (void)snprintf(path, sizeof path, "%.1000s/%s", folder, list[i].name);
        if (checkpoint_open(&reader, path, why) != CHECKPOINT_OK) continue;
        const char *line = options_line(checkpoint_reader_config(reader), "auto", &length);
        if (line != NULL) (void)snprintf(flags, AUTO_FLAGS, "%.*s", length, line);
        checkpoint_close(reader);
        break;
    }
    free(list);
}

/* ---- rates --------------------------------------------------------------------------------- */

/* Writes the path of the machine's file, or "" if the run has none. */
static void auto_run_path(const train_options *o, char path[AUTO_RUN_PATH]) {
    path[0] = 0;
    if (o->machine[0]) (void)snprintf(path, AUTO_RUN_PATH, "%.1000s", o->machine);
    if (!o->machine[0] && o->log_dir[0])
        (void)snprintf(path, AUTO_RUN_PATH, "%.1000s/machine.txt", o->log_dir);
}

/* Prints the measured rates, and writes them to the file. */
static void auto_run_write(const auto_run_input *in, const train_options *o, const machine *m,
                           const char *path, auto_run_choice *made) {
    const machine_rates *r = &m->type[o->type];
    char comment[160];
    report_print(in->out,
                 "measured: products %.4g, blocks %.4g operations/s; update %.4g, sending %.4g, "
                 "files %.4g bytes/s of a rank\n",
                 r->flops, r->block[0], m->update, m->link, m->disk);
    if (!path[0]) return;
    if (!o->machine[0]) (void)mkdir(o->log_dir, 0777); /* machine_write reports a missing folder */
    (void)snprintf(comment, sizeof comment, "rates of a rank, %d at once, measured by -z auto",
                   in->l->nranks);
    made->failed = machine_write(path, m, comment, made->sentence, sizeof made->sentence);
}

/* Reads the rates on rank 0, or measures them on all ranks. */
static void auto_run_rates(const auto_run_input *in, const train_options *o, machine *m,
                           auto_run_choice *made) {
    char path[AUTO_RUN_PATH], why[LAUNCH_SENTENCE] = "";
    struct stat is;
    launch *l = in->l;
    auto_run_path(o, path);
    int measures = !path[0] || (stat(path, &is) != 0 && errno == ENOENT);
    launch_broadcast(l, &measures, sizeof measures);
    if (!measures) {
        char unread[LAUNCH_SENTENCE - 64];
        if (l->rank == 0) made->failed = machine_read(path, m, unread, sizeof unread);
        if (made->failed)
            (void)snprintf(made->sentence, sizeof made->sentence, "--machine: %s", unread);
        else if (l->rank == 0 && m->on_gpus != in->on_gpus)
            made->failed = sentence_fail(
                made->sentence, sizeof made->sentence,
                "--machine: %.250s has device=%s, but the ranks compute on %s; give a file of this "
                "machine, or a new name to measure it",
                path, m->on_gpus ? "gpu" : "cpu", in->on_gpus ? "GPUs" : "CPUs");
        return;
    }
    launch_require(l, !in->on_gpus,
                   "-z auto: the rates of GPUs are not measured here; give a file with --machine "
                   "(adapters/plan/machine.h lists its keys)");
    const measure_wish wish = {l->nranks, in->threads, 1u << o->type, train_folder(o, in->file)};
    progress_phase(in->out, "measuring this machine", 0);
    const int failed = measure_ranks(&l->comm[0], in->model, o->seq_len, (zero_type)o->type, &wish,
                                     AUTO_RUN_SECONDS, m, why, sizeof why);
    launch_require(l, !failed, "-z auto: %s", why);
    m->overlap = measure_overlap(l->local_ranks, in->threads);
    if (l->rank == 0) auto_run_write(in, o, m, path, made);
}

/* ---- limits and the search ----------------------------------------------------------------- */

static double auto_run_less(double a, double b) { return a > 0 && a < b ? a : b; }

/* Rank 0 computes what a rank may take. */
static plan_limits auto_run_limits(const auto_run_input *in, const train_options *o) {
    const launch *l = in->l;
    const double ranks = l->local_ranks, asked = train_memory(o);
    if (!in->on_gpus) /* the products' library compiles code, which takes memory */
        (void)gpt2_matmul_rate((zero_type)o->type, in->threads);
    const double threads = l->kind == LAUNCH_THREADS ? l->nranks : 1;
    const double held = (double)launch_memory_held() / threads + AUTO_RUN_SPARE;
    plan_limits most;
    launch_memory has, space;
    launch_memory_available("", &has);
    launch_memory_shared(train_folder(o, in->file), &space);
    memset(&most, 0, sizeof most);
    most.file = space.bytes < UINT64_MAX ? (double)space.bytes / ranks : 0;
    const double share = has.bytes < UINT64_MAX ? (double)has.bytes / ranks : 1e18;
    if (in->on_gpus) {
        most.device = auto_run_less(asked, (double)in->free_bytes);
        most.host = share - AUTO_RUN_SPARE;
        return most;
    }
    most.device = share - AUTO_RUN_SPARE;
    if (asked > 0 && asked - held < most.device) most.device = asked - held;
    if (most.device < 1) most.device = 1; /* 0 would be no limit */
    return most;
}

/* Returns a request with the trainer's flags. */
static plan_request *auto_run_request(const auto_run_input *in, const train_options *o,
                                      const machine *m) {
    plan_request *r = (plan_request *)calloc(1, sizeof *r);
    const launch *l = in->l;
    if (r == NULL) return NULL;
    r->options = *o;
    r->file = *in->file;
    (void)snprintf(r->model.name, sizeof r->model.name, "%.250s", o->model);
    r->model.is_gpt2 = 1;
    r->model.gpt2 = *in->model;
    r->model.numel = gpt2_numel(in->model) + experts_numel(in->model);
    r->model.blocks = in->model->layers;
    r->ranks = l->nranks;
    r->on_gpus = in->on_gpus;
    r->machine = m;
    r->options.per_node = l->local_ranks < l->nranks ? l->local_ranks : 0;
    if (r->options.node_size == 0 && r->options.per_node > 0) r->options.node_size = l->local_ranks;
    r->most = auto_run_limits(in, o);
    return r;
}

static void auto_run_typed(const char *all, char *typed);

/* Searches on rank 0. */
static void auto_run_search(const auto_run_input *in, const train_options *o, const machine *m,
                            auto_run_choice *made) {
    auto_result *found = (auto_result *)malloc(sizeof *found);
    char *text = (char *)malloc(AUTO_TABLE), typed[RUN_NOTE_FLAGS];
    plan_request *r = auto_run_request(in, o, m);
    made->failed = 1;
    if (found == NULL || text == NULL || r == NULL)
        (void)snprintf(made->sentence, sizeof made->sentence, "-z auto: out of memory");
    else if (!auto_search(r, found, made->sentence, sizeof made->sentence)) {
        auto_run_typed(in->typed, typed);
        auto_print_table(r, found, in->program, typed, text, AUTO_TABLE);
        report_print(in->out, "%s", text);
        made->failed = found->fitting == 0;
        if (made->failed)
            (void)snprintf(made->sentence, sizeof made->sentence,
                           "-z auto: no plan can be chosen; the table above has the reasons");
        else
            auto_flags(r, &found->family[0].best.choice, made->flags);
    }
    free(r);
    free(text);
    free(found);
}

/* Copies the command line without -z auto. */
static void auto_run_typed(const char *all, char *typed) {
    static const char *const words[] = {"--stage=auto", "--stage auto", "-z auto"};
    (void)snprintf(typed, RUN_NOTE_FLAGS, "%s", all);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t length = strlen(words[i]);
        char *at = strstr(typed, words[i]);
        if (at == NULL) continue;
        const size_t blank = at[length] == ' ' || (at > typed && at[-1] == ' ');
        if (at[length] != ' ' && blank) at--; /* the blank before the last flag */
        memmove(at, at + length + blank, strlen(at + length + blank) + 1);
    }
}

void auto_run_choose(const auto_run_input *in, train_options *o, char flags[AUTO_FLAGS],
                     int *is_new) {
    launch *l = in->l;
    auto_run_choice made;
    machine m;
    char why[LAUNCH_SENTENCE] = "";
    memset(&made, 0, sizeof made);
    memset(&m, 0, sizeof m);
    flags[0] = 0;
    *is_new = 0;
    if (!train_chooses(o)) return;
    if (l->rank == 0 && l->starts > 0 && in->kept != NULL)
        (void)snprintf(made.flags, sizeof made.flags, "%s", in->kept);
    if (l->rank == 0 && !made.flags[0] && o->resume) auto_run_stored(o->log_dir, made.flags);
    launch_broadcast(l, &made, sizeof made);
    *is_new = !made.flags[0];
    if (*is_new) {
        auto_run_rates(in, o, &m, &made);
        if (l->rank == 0 && !made.failed) auto_run_search(in, o, &m, &made);
        launch_broadcast(l, &made, sizeof made);
        launch_require(l, !made.failed, "%s", made.sentence);
    } else
        report_print(in->out, "-z auto: this run goes on with its choice: %s\n", made.flags);
    const int wrong = auto_set_flags(o, made.flags, why, sizeof why);
    launch_require(l, !wrong, "%s", why);
    if (l->rank == 0 && in->kept != NULL) (void)snprintf(in->kept, AUTO_FLAGS, "%s", made.flags);
    (void)snprintf(flags, AUTO_FLAGS, "%s", made.flags);
}
