/* machine.c - see machine.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "machine.h"

#include "../report/sentence.h"
#include "../system/regular_file.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MACHINE_MOST 1e300 /* a rate below it can be written to a file and read again */
enum { MACHINE_FILE = 1 << 16, MACHINE_KEY = 48 };

static const char *const machine_types[ZERO_TYPES] = {"f32", "bf16", "fp16"};

/* ---- keys ---------------------------------------------------------------------------------- */

typedef struct machine_key {
    const char *name;
    size_t at;
    double most; /* values are 0 to `most`; if that is 0, any value above 0 */
} machine_key;

static const machine_key machine_keys[] = {{"update", offsetof(machine, update), 0},
                                           {"link", offsetof(machine, link), 0},
                                           {"overlap", offsetof(machine, overlap), 1},
                                           {"host_link", offsetof(machine, host_link), 0},
                                           {"host_update", offsetof(machine, host_update), 0},
                                           {"disk", offsetof(machine, disk), 0},
                                           {"coding", offsetof(machine, coding), 0},
                                           {"latency", offsetof(machine, latency), 0},
                                           {"far", offsetof(machine, far), 0},
                                           {"pass", offsetof(machine, pass), 0},
                                           {"recompute.0", offsetof(machine, recompute[0]), 0},
                                           {"recompute.2", offsetof(machine, recompute[2]), 0},
                                           {"recompute.3", offsetof(machine, recompute[3]), 0}};
static const machine_key machine_typed[] = {{"flops", offsetof(machine_rates, flops), 0},
                                            {"attention", offsetof(machine_rates, attention), 0},
                                            {"vocabulary", offsetof(machine_rates, vocabulary), 0}};
enum {
    MACHINE_KEYS = sizeof machine_keys / sizeof *machine_keys,
    MACHINE_TYPED = sizeof machine_typed / sizeof *machine_typed
};

static double *machine_block(machine_rates *r, double width) {
    int i = r->widths;
    if (i == MACHINE_WIDTHS) return NULL;
    for (; i > 0 && r->width[i - 1] > width; i--) {
        r->width[i] = r->width[i - 1];
        r->block[i] = r->block[i - 1];
    }
    r->widths++;
    r->width[i] = width;
    return &r->block[i];
}

/* Returns the number of a key "NAME.TYPE" or "block.TYPE.WIDTH", or NULL. */
static double *machine_find_typed(machine *m, const char *key) {
    const char *dot = strchr(key, '.');
    for (int t = 0; dot != NULL && t < ZERO_TYPES; t++) {
        const size_t length = strlen(machine_types[t]);
        if (strncmp(dot + 1, machine_types[t], length) != 0) continue;
        const char *rest = dot + 1 + length;
        for (int i = 0; i < MACHINE_TYPED && !*rest; i++)
            if (strncmp(machine_typed[i].name, key, (size_t)(dot - key)) == 0
                && !machine_typed[i].name[dot - key])
                return (double *)(void *)((char *)&m->type[t] + machine_typed[i].at);
        char *end = NULL;
        const double width = *rest == '.' ? strtod(rest + 1, &end) : 0;
        if (dot - key == 5 && memcmp(key, "block", 5) == 0 && width >= 1 && width < MACHINE_MOST
            && !*end)
            return machine_block(&m->type[t], width);
    }
    return NULL;
}

/* Sets a rate from its text. where: "FILE:LINE". */
static int machine_take(machine *m, const char *where, const char *key, const char *value,
                        char *sentence, size_t bytes) {
    char *end = NULL;
    double most = 0, *to = NULL;
    const double number = strtod(value, &end);
    if (strcmp(key, "name") == 0) {
        (void)snprintf(m->name, sizeof m->name, "%.120s", value);
        return 0;
    }
    if (strcmp(key, "device") == 0) {
        m->on_gpus = strcmp(value, "gpu") == 0;
        if (m->on_gpus || strcmp(value, "cpu") == 0) return 0;
        return sentence_fail(sentence, bytes, "%s: device: expected cpu or gpu, found '%.60s'",
                             where, value);
    }
    for (int i = 0; i < MACHINE_KEYS; i++) {
        if (strcmp(machine_keys[i].name, key) != 0) continue;
        to = (double *)(void *)((char *)m + machine_keys[i].at);
        most = machine_keys[i].most;
    }
    if (to == NULL) to = machine_find_typed(m, key);
    if (to == NULL)
        return sentence_fail(sentence, bytes,
                             "%s: unknown key '%.60s'; known: device, name, flops.TYPE, "
                             "block.TYPE.WIDTH, attention.TYPE, vocabulary.TYPE, update, link, "
                             "overlap, host_link, host_update, disk, coding, latency, far, pass, "
                             "recompute.0, recompute.2, recompute.3",
                             where, key);
    if (end == value || *end || !(number >= 0 && number < MACHINE_MOST)
        || (most > 0 && number > most) || (most == 0 && number == 0))
        return sentence_fail(sentence, bytes, "%s: %.60s: expected a number %s, found '%.60s'",
                             where, key, most > 0 ? "from 0 to 1" : "above 0 (and below 1e300)",
                             value);
    *to = number;
    return 0;
}

/* ---- files --------------------------------------------------------------------------------- */

static int machine_empty(const char *path, char *sentence, size_t bytes) {
    return sentence_fail(sentence, bytes,
                         "%.250s: has no rates; delete it, or give a file of --measure", path);
}

static int machine_lines(const char *path, char *text, machine *m, char *sentence, size_t bytes) {
    char where[300];
    int number = 0, taken = 0;
    for (char *line = text, *next; line != NULL; line = next) {
        next = strchr(line, '\n');
        if (next != NULL) *next++ = 0;
        number++;
        line[strcspn(line, "#\r")] = 0;
        while (isspace((unsigned char)*line)) line++;
        size_t length = strlen(line);
        while (length && isspace((unsigned char)line[length - 1])) line[--length] = 0;
        if (!length) continue;
        (void)snprintf(where, sizeof where, "%.250s:%d", path, number);
        char *equals = strchr(line, '=');
        if (equals == NULL)
            return sentence_fail(sentence, bytes, "%s: expected KEY=VALUE, found '%.60s'", where,
                                 line);
        char *value = equals + 1, *end = equals;
        while (end > line && isspace((unsigned char)end[-1])) end--;
        *end = 0;
        while (isspace((unsigned char)*value)) value++;
        if (machine_take(m, where, line, value, sentence, bytes)) return 1;
        taken++;
    }
    return taken ? 0 : machine_empty(path, sentence, bytes);
}

static int machine_json(const char *path, const char *text, machine *m, char *sentence,
                        size_t bytes) {
    const char *stopped = NULL;
    char value[160];
    cJSON *all = cJSON_ParseWithOpts(text, &stopped, 1);
    int line = 1, failed = 0;
    if (all != NULL && all->child == NULL) failed = machine_empty(path, sentence, bytes);
    for (const char *p = text; all == NULL && stopped != NULL && p < stopped; p++)
        line += *p == '\n';
    if (all == NULL)
        return sentence_fail(sentence, bytes,
                             "%.250s:%d: expected JSON from here on, found '%.20s'", path, line,
                             stopped != NULL ? stopped : "");
    for (const cJSON *item = all->child; item != NULL && !failed; item = item->next) {
        (void)snprintf(value, sizeof value, "%.17g", item->valuedouble);
        if (cJSON_IsString(item)) (void)snprintf(value, sizeof value, "%.150s", item->valuestring);
        if (!cJSON_IsString(item) && !cJSON_IsNumber(item))
            failed = sentence_fail(sentence, bytes, "%.250s: %.60s: expected a number or a string",
                                   path, item->string);
        else
            failed = machine_take(m, path, item->string, value, sentence, bytes);
    }
    cJSON_Delete(all);
    return failed;
}

int machine_read(const char *path, machine *m, char *sentence, size_t bytes) {
    FILE *file = regular_file_stream(path, "r");
    char *text = (char *)malloc(MACHINE_FILE);
    memset(m, 0, sizeof *m);
    m->on_gpus = 1;
    m->overlap = 1;
    if (file == NULL || text == NULL) {
        (void)sentence_fail(sentence, bytes,
                            "%.250s: cannot be read (%s); give a file of --measure", path,
                            regular_file_error(errno));
        if (file != NULL) (void)fclose(file);
        free(text);
        return 1;
    }
    const size_t length = fread(text, 1, MACHINE_FILE, file);
    int failed = ferror(file) || length == MACHINE_FILE;
    (void)fclose(file);
    text[length < MACHINE_FILE ? length : MACHINE_FILE - 1] = 0;
    if (failed)
        (void)sentence_fail(
            sentence, bytes,
            "%.250s: longer than a machine's file (%d bytes); give a file of --measure", path,
            MACHINE_FILE);
    else if (memchr(text, 0, length) != NULL)
        failed =
            sentence_fail(sentence, bytes, "%.250s: not a text; give a file of --measure", path);
    else if (text[strspn(text, " \t\r\n")] == '{')
        failed = machine_json(path, text, m, sentence, bytes);
    else
        failed = machine_lines(path, text, m, sentence, bytes);
    free(text);
    return failed;
}

int machine_write(const char *path, const machine *m, const char *comment, char *sentence,
                  size_t bytes) {
    FILE *file = regular_file_stream(path, "w");
    if (file == NULL)
        return sentence_fail(sentence, bytes, "%.250s: cannot be written (%s); give another file",
                             path, regular_file_error(errno));
    fprintf(file, "# %s\ndevice=%s\n", comment, m->on_gpus ? "gpu" : "cpu");
    if (m->name[0]) fprintf(file, "name=%s\n", m->name);
    for (int t = 0; t < ZERO_TYPES; t++) {
        const machine_rates *r = &m->type[t];
        for (int i = 0; i < MACHINE_TYPED; i++) {
            const double rate =
                *(const double *)(const void *)((const char *)r + machine_typed[i].at);
            if (rate > 0)
                fprintf(file, "%s.%s=%.4g\n", machine_typed[i].name, machine_types[t], rate);
        }
        for (int i = 0; i < r->widths; i++)
            fprintf(file, "block.%s.%.0f=%.4g\n", machine_types[t], r->width[i], r->block[i]);
    }
    for (int i = 0; i < MACHINE_KEYS; i++) {
        const double rate = *(const double *)(const void *)((const char *)m + machine_keys[i].at);
        if (rate > 0 || machine_keys[i].most > 0)
            fprintf(file, "%s=%.4g\n", machine_keys[i].name, rate);
    }
    struct stat is;
    const int failed = ferror(file), regular = !fstat(fileno(file), &is) && S_ISREG(is.st_mode);
    if (fclose(file) == 0 && !failed) return 0;
    const int number = errno;
    if (regular) (void)remove(path); /* a later run would read a part */
    return sentence_fail(sentence, bytes, "%.250s: cannot be written (%s); give another file", path,
                         regular_file_error(number));
}

/* ---- a step -------------------------------------------------------------------------------- */

machine_work machine_token(const gpt2_config *cfg, int seq_len) {
    const double L = cfg->layers, C = cfg->channels;
    const machine_work w = {72 * L * C * C, 12 * L * C * seq_len,
                            6 * ((double)cfg->padded_vocab_size + 1) * C};
    return w;
}

static double machine_block_rate(const machine_rates *r, double width) {
    const int n = r->widths;
    if (n == 0) return r->flops;
    int i = 0;
    while (i < n && r->width[i] < width) i++;
    if (i == 0) return r->block[0];
    if (i == n) return r->block[n - 1];
    const double share = log(width / r->width[i - 1]) / log(r->width[i] / r->width[i - 1]);
    return r->block[i - 1] + share * (r->block[i] - r->block[i - 1]);
}

double machine_update_bytes(const plan_answer *a) {
    const zero_config *c = &a->resolved;
    const double whole = (double)a->zero.padded_numel;
    const double numel = c->stage > 0 ? whole / a->zero.nranks : whole;
    const int master = c->type != ZERO_F32 && c->master == ZERO_MASTER_F32;
    const size_t param = zero_type_bytes(c->type);
    const size_t grad = c->grads == ZERO_GRAD_F32 ? 4 : param;
    return 2 * (double)a->state_bytes + numel * (double)(grad + param * (master ? 1 : 2));
}

double machine_far(const machine *m) { return m->far > 0 ? m->far : m->link; }

double machine_again(const machine *m, int recompute) {
    static const double usual[MACHINE_RECOMPUTES] = {1, 1, 1, 4.0 / 3};
    const int r = recompute < MACHINE_RECOMPUTES ? recompute : MACHINE_RECOMPUTES - 1;
    return r != GPT2_RECOMPUTE_GELU && m->recompute[r] > 0 ? m->recompute[r] : usual[r];
}

machine_parts machine_compute(const machine *m, const plan_case *c) {
    const machine_rates *r = &m->type[c->zero.type];
    const plan_model *model = c->model;
    const int micro = c->zero.micro_steps > 0 ? c->zero.micro_steps : 1;
    const int together = c->run.together > 1 ? c->run.together : 1;
    const double tokens = (double)c->run.batch * c->run.seq_len * micro * together;
    const double attention = r->attention > 0 ? r->attention : r->flops;
    const double vocabulary = r->vocabulary > 0 ? r->vocabulary : r->flops;
    const double layers = together > 1 && c->run.group > 1 ? c->run.group : 1;
    /* All layers of a group but the last one take another forward, a third of their work. */
    const double again = machine_again(m, c->run.recompute) + (1 - 1 / layers) / 3;
    const double divided = (double)(c->tp > 1 ? c->tp : 1) * (c->pp > 1 ? c->pp : 1);
    const double share = divided * (c->cp > 1 ? c->cp : 1); /* of the tokens' work */
    const int stages = c->pp > 1 ? c->pp : 1, chunks = c->chunks > 1 ? c->chunks : 1;
    const double idle = (double)(stages - 1) / (chunks * micro); /* idle time over time at work */
    const double work = tokens * (1 + idle) / share;
    const double passes = m->pass > 0 ? micro * (1 + idle) / divided / m->pass : 0;
    const double bytes = (double)zero_type_bytes(c->zero.type);
    machine_parts parts = {work * 6 * (double)model->numel / r->flops / model->blocks, 0};
    parts.block += passes * (double)model->numel * bytes / model->blocks;
    if (!model->is_gpt2) return parts;
    const machine_work w = machine_token(&model->gpt2, c->run.seq_len);
    const double block = machine_block_rate(r, model->gpt2.channels);
    const double blocks = 12.0 * model->blocks * model->gpt2.channels * model->gpt2.channels;
    parts.block = work * again * (w.block / block + w.attention / attention) / model->blocks;
    parts.block += passes * blocks * bytes / model->blocks;
    parts.vocabulary = work * w.vocabulary / vocabulary;
    parts.vocabulary += passes * w.vocabulary / 6 * bytes;
    return parts;
}

int machine_predict(const machine *m, const plan_case *c, const plan_answer *a, machine_step *step,
                    char *sentence, size_t bytes) {
    const machine_rates *r = &m->type[c->zero.type];
    const zero_plan *p = &a->zero;
    const int micro = c->zero.micro_steps > 0 ? c->zero.micro_steps : 1;
    const double inputs = c->on_gpus ? 0 : 2 * (double)a->away * micro;
    const double moved = (double)p->file_read_bytes + (double)p->file_written_bytes + inputs;
    const int on_host = c->on_gpus && a->resolved.optimizer_tier == ZERO_HOST;
    char flops[MACHINE_KEY];
    (void)snprintf(flops, sizeof flops, "flops.%s", machine_types[c->zero.type]);
    const char *lacks = r->flops <= 0                                 ? flops
                        : m->update <= 0 && !on_host                  ? "update"
                        : (p->nranks > 1 || a->among) && m->link <= 0 ? "link"
                        : moved > 0 && m->disk <= 0                   ? "disk"
                        : on_host && m->host_link <= 0                ? "host_link"
                        : on_host && m->host_update <= 0              ? "host_update"
                                                                      : NULL;
    memset(step, 0, sizeof *step);
    if (lacks != NULL)
        return sentence_fail(
            sentence, bytes,
            "--machine: the file lacks %s; add a line for it, or measure it with --measure", lacks);
    const machine_parts parts = machine_compute(m, c);
    step->compute = parts.block * c->model->blocks + parts.vocabulary;
    const double hidden = m->overlap * step->compute * 2 / 3;
    if (p->nranks > 1) step->send = fmax((double)p->sent_bytes / m->link - hidden, 0);
    if (a->among) step->send += (double)a->among / m->link; /* layers wait for these messages */
    step->update = machine_update_bytes(a) / (on_host ? m->host_update : m->update);
    if (on_host) /* gradients go to the host, and parameters come back */
        step->update +=
            (double)p->param_bytes / (a->resolved.stage == 3 ? 1 : p->nranks) * 2 / m->host_link;
    if (moved > 0) step->update = fmax(step->update, moved / m->disk - step->compute / 3);
    step->all = step->compute + step->send + step->update;
    return 0;
}
