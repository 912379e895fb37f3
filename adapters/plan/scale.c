/* scale.c - see scale.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "scale.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../page/page_draw.h"
#include "../report/sentence.h"
#include "../system/regular_file.h"

enum { SCALE_METHODS = 16, SCALE_RANKS = 8, SCALE_LINE = 32, SCALE_GPU_LINE = 64 };

static const double scale_gbits[] = {100, 400};
enum { SCALE_LINKS = sizeof scale_gbits / sizeof *scale_gbits };

/* Writes the elements of each unit. Unit 0 is the embeddings, which the classifier uses again; the
   others are blocks. Returns the number of units. */
static int scale_units(const plan_model *m, size_t numel[OVERLAP_UNITS]) {
    const int own = m->is_gpt2;
    const size_t embedding =
        own ? (size_t)(m->gpt2.padded_vocab_size + m->gpt2.max_seq_len) * (size_t)m->gpt2.channels
            : 0;
    if (own) numel[0] = embedding;
    for (int b = 0; b < m->blocks; b++) numel[own + b] = (m->numel - embedding) / (size_t)m->blocks;
    return own + m->blocks;
}

/* Returns the name of a rate that the simulation needs and the file lacks, or NULL. */
static const char *scale_lacks(const plan_request *r, const plan_case *c) {
    if (r->machine->type[c->zero.type].flops <= 0) return "flops of this type";
    if (r->machine->link <= 0) return "link";
    return r->machine->update <= 0 ? "update" : NULL;
}

int scale_step(const plan_request *r, const wire_method *method, int ranks, double gbits,
               overlap_step *step, char *sentence, size_t bytes) {
    static size_t numel[OVERLAP_UNITS];
    static double forward[OVERLAP_UNITS], backward[OVERLAP_UNITS];
    static wire_unit wire[OVERLAP_UNITS];
    static overlap_visit visit[OVERLAP_VISITS];
    const machine *m = r->machine;
    overlap_case c;
    plan_case asked;
    plan_answer a;
    if (plan_case_of(r, 3, &asked, sentence, bytes)) return 1;
    if (m == NULL)
        return sentence_fail(sentence, bytes,
                             "--scale: the rates of the machine are missing; add --machine FILE");
    const char *lacks = scale_lacks(r, &asked);
    if (lacks != NULL)
        return sentence_fail(sentence, bytes, "--machine: the file lacks %s; add a line for it",
                             lacks);
    if (asked.zero.micro_steps > 1 || asked.model->blocks + 1 > OVERLAP_UNITS)
        return sentence_fail(
            sentence, bytes,
            "--scale: only one micro-step and at most %d blocks are simulated (found "
            "%d and %d); use a smaller -d or model",
            OVERLAP_UNITS - 1, asked.zero.micro_steps, asked.model->blocks);
    asked.nranks = ranks;
    asked.node_size = ranks < SCALE_NODE ? ranks : SCALE_NODE;
    asked.one_machine = 0;
    if (plan_ask(&asked, &a, sentence, bytes)) return 1;
    const size_t element = zero_type_bytes(asked.zero.type);
    const wire_world world = {ranks, asked.node_size, element,
                              asked.on_gpus ? element : sizeof(float),
                              asked.on_gpus ? SCALE_GPU_LINE : SCALE_LINE};
    const machine_parts parts = machine_compute(m, &asked);
    memset(&c, 0, sizeof c);
    c.units = scale_units(asked.model, numel);
    c.own = asked.model->is_gpt2 ? 0 : -1;
    for (int u = 0; u < c.units; u++) {
        const double seconds = u == c.own ? parts.vocabulary : parts.block;
        forward[u] = seconds / 3;
        backward[u] = seconds * 2 / 3;
        wire[u] = wire_of(method, 3, &world, numel[u]);
    }
    c.stage = 3;
    c.wire = wire;
    c.visits = overlap_chain(c.units, c.own, forward, backward, visit);
    c.visit = visit;
    c.prefetch = a.resolved.prefetch > 0 ? a.resolved.prefetch : 0;
    c.host_ahead = asked.on_gpus;
    c.near = m->link;
    c.far = gbits * 1e9 / 8 / SCALE_NODE;
    c.latency = m->latency > 0 ? m->latency : 5e-6;
    c.coding = m->coding;
    c.update = machine_update_bytes(&a) / m->update;
    const int replicas = method->node_shards ? ranks / asked.node_size : 1;
    c.update *= replicas; /* each replica updates all of its state */
    if (!overlap_simulate(&c, step)) return 0;
    return sentence_fail(sentence, bytes,
                         "-zp %d: a prefetch of at most %d units is simulated; use a smaller -zp",
                         c.prefetch, ZERO_PREFETCH_MOST);
}

/* ---- output -------------------------------------------------------------------------------- */

typedef struct scale_all {
    overlap_step step[SCALE_LINKS][SCALE_RANKS][SCALE_METHODS];
} scale_all;

static int scale_run(const plan_request *r, scale_all *all, char *sentence, size_t bytes) {
    for (int l = 0; l < SCALE_LINKS; l++)
        for (int n = 0; n < SCALE_RANKS; n++)
            for (int m = 0; m < wire_count; m++)
                if (scale_step(r, &wire_methods[m], SCALE_LEAST << n, scale_gbits[l],
                               &all->step[l][n][m], sentence, bytes))
                    return 1;
    return 0;
}

static void scale_print(const plan_request *r, const scale_all *all) {
    printf("%s on %s, stage 3, nodes of %d; a step in ms, and the share of the step that is "
           "computed\n",
           r->model.name, r->machine->name[0] ? r->machine->name : "the machine's file",
           SCALE_NODE);
    for (int l = 0; l < SCALE_LINKS; l++) {
        printf("\n%.0f Gbit/s\nranks ", scale_gbits[l]);
        for (int m = 0; m < wire_count; m++) printf("%14s", wire_methods[m].name);
        for (int n = 0; n < SCALE_RANKS; n++) {
            printf("\n%5d ", SCALE_LEAST << n);
            for (int m = 0; m < wire_count; m++) {
                const overlap_step *s = &all->step[l][n][m];
                printf("%9.1f %3.0f%%", 1e3 * s->step, 100 * s->compute / s->step);
            }
        }
        printf("\n");
    }
}

static int scale_write(const plan_request *r, const scale_all *all, const char *path,
                       char *sentence, size_t bytes) {
    FILE *file = regular_file_stream(path, "w");
    const double tokens =
        (double)(r->options.batch > 0 ? r->options.batch : 1) * (double)r->options.seq_len;
    if (file == NULL)
        return sentence_fail(sentence, bytes, "--scale: %.250s cannot be written: %s", path,
                             regular_file_error(errno));
    fprintf(file, "gbits,ranks,method,step_ms,compute_ms,computed_share,tokens_per_s,far_bytes,"
                  "near_bytes,gathers\n");
    for (int l = 0; l < SCALE_LINKS; l++)
        for (int n = 0; n < SCALE_RANKS; n++)
            for (int m = 0; m < wire_count; m++) {
                const overlap_step *s = &all->step[l][n][m];
                fprintf(file, "%.0f,%d,%s,%.3f,%.3f,%.4f,%.0f,%.0f,%.0f,%d\n", scale_gbits[l],
                        SCALE_LEAST << n, wire_methods[m].name, 1e3 * s->step, 1e3 * s->compute,
                        s->compute / s->step, tokens * (SCALE_LEAST << n) / s->step, s->far_bytes,
                        s->near_bytes, s->gathers);
            }
    const int failed = ferror(file);
    if (fclose(file) == 0 && !failed) return 0;
    return sentence_fail(sentence, bytes, "--scale: %.250s cannot be written: %s", path,
                         regular_file_error(errno));
}

/* Draws the share of a step that a rank computes against the number of ranks, with a line for each
   method. -qf has no line, because it sends the same bytes as -qg. */
static int scale_draw(const scale_all *all, int link, const char *folder, char *sentence,
                      size_t bytes) {
    static draw_point point[SCALE_METHODS][SCALE_RANKS];
    draw_series series[SCALE_METHODS];
    char path[300], title[96], id[32], *figure = NULL;
    size_t length = 0;
    int lines = 0;
    for (int m = 0; m < wire_count; m++) {
        if (wire_methods[m].feedback > 0) continue;
        const draw_series one = {wire_methods[m].words, lines + 1, 0, point[m], SCALE_RANKS};
        for (int n = 0; n < SCALE_RANKS; n++) {
            const overlap_step *s = &all->step[link][n][m];
            const draw_point p = {log2(SCALE_LEAST << n), 100 * s->compute / s->step, ""};
            point[m][n] = p;
        }
        series[lines++] = one;
    }
    (void)snprintf(id, sizeof id, "scale_%.0f", scale_gbits[link]);
    (void)snprintf(title, sizeof title, "Percent of a step computed, %.0f Gbit/s a node",
                   scale_gbits[link]);
    FILE *memory = open_memstream(&figure, &length);
    if (memory == NULL)
        return sentence_fail(sentence, bytes, "--pictures: no memory for a picture; leave it out");
    draw_lines(memory, id, title, "ranks", "percent computed", series, lines,
               DRAW_FROM_0 | DRAW_POWERS);
    (void)fclose(memory);
    (void)snprintf(path, sizeof path, "%.250s/%s.svg", folder, id);
    FILE *file = figure != NULL ? regular_file_stream(path, "w") : NULL;
    if (file != NULL) draw_alone(file, figure);
    int failed = file == NULL || ferror(file);
    if (file != NULL) failed |= fclose(file) != 0;
    free(figure);
    if (!failed) return 0;
    return sentence_fail(sentence, bytes, "--pictures: %.250s cannot be written: %s", path,
                         regular_file_error(errno));
}

int scale_print_note(const plan_request *r, const char *csv, const char *folder, char *sentence,
                     size_t bytes) {
    scale_all *all = (scale_all *)calloc(1, sizeof *all);
    int failed = all == NULL || wire_count > SCALE_METHODS;
    if (failed)
        (void)snprintf(sentence, bytes, "--scale: no memory to simulate in; use a smaller model");
    if (!failed) failed = scale_run(r, all, sentence, bytes);
    if (!failed) failed = scale_write(r, all, csv, sentence, bytes);
    for (int l = 0; l < SCALE_LINKS && !failed && folder[0]; l++)
        failed = scale_draw(all, l, folder, sentence, bytes);
    if (!failed) scale_print(r, all);
    free(all);
    return failed;
}
