/* plan_print.c - see plan_print.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "plan_print.h"
#include "plan_world.h"
#include "../system/regular_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PLAN_TOKENS = 2048 }; /* tokens of a micro-step; more do not make its products faster */

/* The tiers of a row in the table. */
typedef struct plan_tiers {
    const char *name, *words;
    zero_tier optimizer, gradient, parameter;
    int on_gpus; /* 1: GPUs alone, 0: CPUs alone, -1: both */
} plan_tiers;

static const plan_tiers plan_rows_of_tiers[] = {
    {"device", "all on the device", ZERO_DEVICE, ZERO_DEVICE, ZERO_DEVICE, -1},
    {"host", "-zos host: optimizer state in CPU memory", ZERO_HOST, ZERO_HOST, ZERO_DEVICE, 1},
    {"state file", "-zos file: optimizer state in a file", ZERO_FILE, ZERO_DEVICE, ZERO_DEVICE, -1},
    {"and params", "-zos file -zop file: optimizer state and parameters in files", ZERO_FILE,
     ZERO_DEVICE, ZERO_FILE, 1},
    {"all file", "-zos file -zog file -zop file: all sharded state in files", ZERO_FILE, ZERO_FILE,
     ZERO_FILE, -1}};
enum { PLAN_TIERS = sizeof plan_rows_of_tiers / sizeof *plan_rows_of_tiers };

/* ---- cases --------------------------------------------------------------------------------- */

/* Returns 1 if neither -z nor the file names a stage. Then the table has all stages. */
static int plan_all_stages(const plan_request *r) {
    return !train_options_given(&r->options, "-z") && !(r->file.given & DS_GIVEN_STAGE);
}

/* Returns 1 if -zog auto may put gradients in the file. Rows without typed tiers name the tier of
   their gradients. */
static int plan_may_file(const plan_request *r, const plan_case *c) {
    return plan_tiers_typed(&r->options) && train_may_file(&r->options, &c->zero);
}

/* Resolves -zog auto as the trainer does: gradients that do not fit into memory go to the file. */
static void plan_file_grads(const plan_request *r, plan_case *c) {
    char why[PLAN_SENTENCE];
    plan_answer a;
    if (r->most.device <= 0 || !plan_may_file(r, c) || plan_ask(c, &a, why, sizeof why)
        || plan_fits(&a, &r->most))
        return;
    c->zero.gradient_tier = ZERO_FILE;
}

/* Makes the case of a row. Gradients and parameters that are whole at this stage stay in memory. */
static int plan_row_case(const plan_request *r, int stage, const plan_tiers *t, plan_case *c,
                         char *sentence, size_t bytes) {
    if (plan_case_of(r, stage, c, sentence, bytes)) return 1;
    if (plan_all_stages(r) && stage < 1) c->zero.shard_ranks = 0; /* this stage cannot have it */
    if (plan_all_stages(r) && stage < 3) c->zero.second_ranks = 0;
    plan_file_grads(r, c);
    if (plan_tiers_typed(&r->options)) return 0;
    if (c->pp > 1 && stage >= 2 && t->gradient == ZERO_FILE
        && !train_options_given(&r->options, "-za"))
        c->zero.accumulation = ZERO_ACCUMULATE_SHARDED; /* as the trainer does */
    const int sums = c->zero.micro_steps > 1 && c->zero.accumulation == ZERO_ACCUMULATE_LOCAL;
    c->zero.optimizer_tier = t->optimizer;
    c->zero.gradient_tier = stage >= 2 && !sums ? t->gradient : ZERO_DEVICE;
    c->zero.parameter_tier = stage == 3 ? t->parameter : ZERO_DEVICE;
    return 0;
}

/* Returns 1 if a row differs from the rows before it. */
static int plan_row_is_new(const plan_request *r, int stage, const plan_tiers *t) {
    if (plan_tiers_typed(&r->options)) return t == plan_rows_of_tiers;
    if (t->on_gpus >= 0 && t->on_gpus != r->on_gpus) return 0;
    if (t->gradient == ZERO_FILE) return stage >= 2;
    return stage == 3 || t->parameter != ZERO_FILE;
}

/* ---- the table ----------------------------------------------------------------------------- */

static const double plan_gib = 1024.0 * 1024 * 1024;

/* Writes bytes as GiB, with three digits or more: "12.3". */
static void plan_number(double bytes, char text[24]) {
    const double x = bytes / plan_gib;
    (void)snprintf(text, 24, "%.*f", x >= 100 || x == 0 ? 0 : x >= 1 ? 2 : 4, x);
}

static void plan_print_time(const plan_request *r, const plan_case *c, const plan_answer *a) {
    char why[PLAN_SENTENCE];
    machine_step step;
    if (r->machine == NULL) return;
    if (machine_predict(r->machine, c, a, &step, why, sizeof why))
        printf("  -");
    else
        printf(" %9.4g ms: %.4g + %.4g + %.4g", 1e3 * step.all, 1e3 * step.compute, 1e3 * step.send,
               1e3 * step.update);
}

static void plan_print_row(const plan_request *r, const plan_case *c, const plan_answer *a,
                           const char *tiers) {
    const zero_plan *p = &a->zero;
    const double number[] = {(double)p->param_bytes,
                             (double)p->grad_bytes,
                             (double)p->optimizer_bytes,
                             (double)p->buffer_bytes,
                             (double)a->activations,
                             (double)a->device_bytes,
                             (double)a->host_bytes,
                             (double)a->file_bytes,
                             (double)p->sent_bytes + (double)a->among,
                             (double)p->file_read_bytes + (double)p->file_written_bytes};
    char text[24];
    printf("%5d %-10s", c->zero.stage, tiers);
    for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
        plan_number(number[i], text);
        printf(" %8s", text);
    }
    if (r->most.device > 0) printf("  %-4s", plan_fits(a, &r->most) ? "yes" : "no");
    plan_print_time(r, c, a);
    if (c->pp > 1) printf("  rank %d", a->rank);
    printf("\n");
    if (c->pp > 1 && p->gather_bytes)
        printf("      of sent    to gather weights %.4g%s\n", (double)p->gather_bytes / plan_gib,
               c->zero.stage < 3         ? ", once a step"
               : c->zero.micro_steps > 1 ? ", in every micro-step"
                                         : ", forward and backward");
    if (a->saves)
        printf("      of %s    for checkpoints%s %.4g\n", r->on_gpus ? "host" : "device",
               c->saves > 1 ? " and copies in memory" : "", (double)a->saves / plan_gib);
    if (p->near_bytes || p->replica_bytes)
        printf("      of sent    to near ranks %.4g, to replicas %.4g; secondary partition %.4g\n",
               (double)p->near_bytes / plan_gib, (double)p->replica_bytes / plan_gib,
               (double)p->second_bytes / plan_gib);
}

/* The function for each row. NULL: only checks whether the plan is possible. */
typedef void (*plan_row_fn)(const plan_request *r, const plan_case *c, const plan_answer *a,
                            const char *tiers, void *to);

static void plan_to_table(const plan_request *r, const plan_case *c, const plan_answer *a,
                          const char *tiers, void *to) {
    (void)to;
    plan_print_row(r, c, a, tiers);
}

/* Prints the bytes of the ZeRO paper's formula, once for each stage, in GB of 1e9 bytes. *to is the
   stage of the row before. */
static void plan_to_formula(const plan_request *r, const plan_case *c, const plan_answer *a,
                            const char *tiers, void *to) {
    const double gb = (double)a->zero.formula_bytes / 1e9;
    int *before = (int *)to;
    (void)r;
    (void)tiers;
    if (c->zero.stage != *before)
        printf("%s %d: %.*g", *before < 0 ? "  stage" : ",", c->zero.stage, gb < 1000 ? 3 : 9, gb);
    *before = c->zero.stage;
}

/* Writes the table for -csv, in bytes, with a line for the first rank of each pipeline stage. */
static void plan_to_csv(const plan_request *r, const plan_case *c, const plan_answer *a,
                        const char *tiers, void *to) {
    const zero_plan *p = &a->zero;
    fprintf((FILE *)to,
            "%d,%s,%d,%d,%zu,%zu,%zu,%zu,%zu,%llu,%llu,%llu,%zu,%zu,%zu,%zu,%zu,%d,%d,%llu,%zu\n",
            c->zero.stage, tiers, r->ranks, c->run.batch, p->param_bytes, p->grad_bytes,
            p->optimizer_bytes, p->buffer_bytes, a->activations,
            (unsigned long long)a->device_bytes, (unsigned long long)a->host_bytes,
            (unsigned long long)a->file_bytes, p->formula_bytes, p->sent_bytes,
            p->formula_sent_bytes, p->file_read_bytes, p->file_written_bytes,
            plan_fits(a, &r->most), a->rank, (unsigned long long)a->among, a->saves);
}

/* Calls `use` for each row of the stages of -z, or of all stages. If all stages are meant, those
   that cannot have the typed settings are left out. */
static int plan_each_row(const plan_request *r, plan_row_fn use, void *to, char *sentence,
                         size_t bytes) {
    const option_list *stages = &r->options.stage;
    const int all = plan_all_stages(r);
    const int typed = plan_tiers_typed(&r->options);
    const int some = typed || r->options.weight_bits || r->options.frozen_weight_bits
                     || r->options.gradient_bits; /* 1: some stages may refuse these settings */
    int rows = 0;
    for (int i = 0; i < (all ? 4 : stages->n); i++)
        for (const plan_tiers *t = plan_rows_of_tiers; t < plan_rows_of_tiers + PLAN_TIERS; t++) {
            const int stage = all ? i : stages->at[i];
            plan_answer a;
            plan_case c;
            if (!plan_row_is_new(r, stage, t)) continue;
            if (plan_row_case(r, stage, t, &c, sentence, bytes)) return 1;
            const int refused = plan_ask(&c, &a, sentence, bytes);
            if (refused && !(all && some)) return 1;
            rows += !refused;
            if (refused || use == NULL) continue;
            for (int p = 0; use == plan_to_csv && p < c.pp; p++)
                if (!plan_ask_stage(&c, p, &a, sentence, bytes))
                    use(r, &c, &a, typed ? "as typed" : t->name, to);
            if (use != plan_to_csv) use(r, &c, &a, typed ? "as typed" : t->name, to);
        }
    return rows == 0; /* `sentence` has the reason */
}

static int plan_write_csv(const plan_request *r, char *sentence, size_t bytes) {
    const char *path = r->options.csv_path;
    if (!train_options_given(&r->options, "-csv")) return 0;
    FILE *csv = regular_file_stream(path, "w");
    if (csv == NULL) {
        (void)snprintf(sentence, bytes, "-csv: %.250s cannot be written: %s", path,
                       regular_file_error(errno));
        return 1;
    }
    (void)fputs("stage,offload,ranks,batch,param_bytes,grad_bytes,"
                "optimizer_bytes,buffer_bytes,activation_bytes,device_bytes,"
                "host_bytes,file_bytes,formula_bytes,sent_bytes,"
                "formula_sent_bytes,file_read_bytes,file_written_bytes,fits,rank,"
                "among_bytes,save_bytes\n",
                csv);
    int failed = plan_each_row(r, plan_to_csv, csv, sentence, bytes);
    if (fclose(csv) != 0) failed = 1;
    if (failed) (void)snprintf(sentence, bytes, "-csv: %.250s cannot be written", path);
    return failed;
}

static int plan_print_table(const plan_request *r, char *sentence, size_t bytes) {
    int before = -1;
    printf("GiB of a rank; sent and file: in a step\n"
           "stage offload      params    grads    optim  buffers activat.   device     host     "
           "file     sent  file io%s%s\n",
           r->most.device > 0 ? "  fits" : "",
           r->machine != NULL ? "      step: compute + send + update" : "");
    if (plan_each_row(r, plan_to_table, NULL, sentence, bytes)) return 1;
    printf("GB (1e9) by the formula of the stages, without buffers, padding and activations:\n");
    if (plan_each_row(r, plan_to_formula, &before, sentence, bytes)) return 1;
    printf("\n");
    return 0;
}

/* ---- the largest models -------------------------------------------------------------------- */

static void plan_print_largest(const plan_request *r) {
    char why[PLAN_SENTENCE];
    plan_case c;
    if (r->most.device <= 0) return;
    printf("\nLargest models that fit, in parameters, without activations:\n");
    for (int stage = 0; stage < 4; stage++) {
        printf("  stage %d:", stage);
        for (const plan_tiers *t = plan_rows_of_tiers; t < plan_rows_of_tiers + PLAN_TIERS; t++) {
            if (!plan_row_is_new(r, stage, t) || plan_row_case(r, stage, t, &c, why, sizeof why))
                continue;
            if (plan_may_file(r, &c))
                c.zero.gradient_tier = ZERO_FILE; /* the device has no room for them */
            printf("  %s %.3g", plan_tiers_typed(&r->options) ? "as typed" : t->name,
                   plan_largest_model(&c, &r->most));
        }
        printf("\n");
    }
}

/* ---- advice -------------------------------------------------------------------------------- */

static const char *plan_why_stage(int stage, int on_gpus) {
    static const char *const words[] = {
        "Stage 0 is plain data parallelism (DDP): all state fits without sharding.",
        "Stage 1 shards the optimizer state, and sends what stage 0 sends.",
        "Stage 2 shards the gradients as well, and still sends what stage 0 sends.",
        "Stage 3 shards the parameters too, and gathers them twice in a step: it sends 1.5 times "
        "as much."};
    static const char *const cpu3 = "Stage 3 shards the parameters too; ranks of one machine read "
                                    "each other's in place, others "
                                    "send 1.5 times as much.";
    return stage == 3 && !on_gpus ? cpu3 : words[stage];
}

static const char *plan_why_recompute(int recompute) {
    static const char *const words[] = {
        "", "", "-r 2 computes layer norms again, next to no time.",
        "-r 3 computes blocks again in backward, a third more time.",
        "-r 4 computes blocks again, and offloads their inputs until then."};
    return words[recompute];
}

/* Finds the cheapest choice that fits. A later stage costs less than recomputed blocks, and these
   cost less than a slower memory. */
static int plan_advise(const plan_request *r, int wanted, plan_case *best,
                       const plan_tiers **tiers) {
    const int typed = r->options.recompute;
    char why[PLAN_SENTENCE];
    for (const plan_tiers *t = plan_rows_of_tiers; t < plan_rows_of_tiers + PLAN_TIERS; t++)
        for (int again = typed; again <= GPT2_RECOMPUTE_AWAY; again++)
            for (int stage = 0; stage < 4; stage++) {
                plan_answer a;
                if ((again == 2 && typed != 2) || (again == 4 && typed != 4 && t->on_gpus < 0))
                    continue;
                if (!plan_row_is_new(r, stage, t)
                    || plan_row_case(r, stage, t, best, why, sizeof why))
                    continue;
                best->run.recompute = again;
                best->run.batch = wanted;
                if (plan_ask(best, &a, why, sizeof why) || !plan_fits(&a, &r->most)) continue;
                *tiers = t;
                return 1;
            }
    return 0;
}

static void plan_print_typed_tiers(const train_options *o) {
    static const char *const flags[] = {"-zos", "-zog", "-zop"};
    char word[OPTION_WORD_BYTES];
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        if (!train_options_given(o, flags[i])) continue;
        train_options_word(o, flags[i], word);
        printf(" %s %s", flags[i], word);
    }
}

static void plan_print_choice(const plan_request *r, const plan_case *c, const plan_tiers *t) {
    const int most = r->model.is_gpt2 ? plan_largest_batch(c, &r->most) : 0;
    printf("  -z %d", c->zero.stage);
    if (r->model.is_gpt2) printf(" -b %d -t %d", c->run.batch, c->run.seq_len);
    if (c->run.recompute != r->options.recompute) printf(" -r %d", c->run.recompute);
    plan_print_typed_tiers(&r->options);
    if (t->optimizer != ZERO_DEVICE && !plan_tiers_typed(&r->options))
        printf("%s", t->optimizer == ZERO_HOST            ? " -zos host"
                     : c->zero.parameter_tier             ? " -zos file -zog file -zop file"
                     : c->zero.gradient_tier == ZERO_FILE ? " -zos file -zog file"
                                                          : " -zos file");
    printf("\n  %s", plan_why_stage(c->zero.stage, r->on_gpus));
    if (c->run.recompute != r->options.recompute)
        printf("\n  %s", plan_why_recompute(c->run.recompute));
    if (t->optimizer != ZERO_DEVICE) printf("\n  Offload: %s.", t->words);
    if (most > c->run.batch)
        printf("\n  Up to -b %d fits; more tokens of a step than that are -d, in micro-steps.",
               most);
    printf("\n");
}

static void plan_print_advice(const plan_request *r) {
    const plan_tiers *t = NULL;
    char why[PLAN_SENTENCE];
    plan_case c;
    if (r->most.device <= 0) {
        printf(
            "\n--memory SIZE (of a rank's device, for example 80G) adds what fits, and advice.\n");
        return;
    }
    if (plan_case_of(r, 0, &c, why, sizeof why)) return;
    const int enough = (PLAN_TOKENS + c.run.seq_len - 1) / c.run.seq_len;
    const int asked = plan_batch_typed(r) || !r->model.is_gpt2;
    const int found = plan_advise(r, asked ? c.run.batch : enough, &c, &t)
                      || (!asked && plan_advise(r, 1, &c, &t));
    printf("\nAdvice: ");
    if (!found) {
        printf("nothing fits. More ranks, or more memory%s%s.\n",
               r->model.is_gpt2 ? ", shorter sequences (-t)" : "",
               r->model.is_gpt2 && !r->options.tile_rows ? ", the vocabulary in tiles (-zl 4096)"
                                                         : "");
        return;
    }
    printf("the cheapest that fits is\n");
    plan_print_choice(r, &c, t);
}

/* ---- the whole output ---------------------------------------------------------------------- */

static const char *plan_masters(const zero_config *c) {
    if (c->type == ZERO_F32) return "";
    if (c->master == ZERO_MASTER_NONE) return " without masters";
    return c->master == ZERO_MASTER_SPLIT || (c->master == ZERO_MASTER_AUTO && c->type == ZERO_BF16)
               ? " and split masters"
               : " and f32 masters";
}
/* By -oe and -os. */
static const char *const plan_states[2][ZERO_STATE_TYPES] = {
    {"", " with bf16 state", " with 8-bit state"},
    {"", " with bf16 state (embeddings f32)", " with 8-bit state (embeddings f32)"}};

static void plan_print_head(const plan_request *r, const plan_case *c) {
    char type[OPTION_WORD_BYTES], rule[OPTION_WORD_BYTES];
    const int micro = c->zero.micro_steps * c->run.together;
    train_options_word(&r->options, "-dt", type);
    train_options_word(&r->options, "-op", rule);
    printf("%s%s%zu%s, %s%s, %s%s, %d rank%s on %s\n", r->model.is_gpt2 ? r->model.name : "",
           r->model.is_gpt2 ? ": " : "", r->model.numel, " parameters", type,
           plan_masters(&c->zero), rule,
           plan_states[r->options.embedding_state][c->zero.state_type], r->ranks,
           r->ranks > 1 ? "s" : "", r->on_gpus ? "GPUs" : "CPUs");
    if (r->on_gpus && r->model.is_gpt2 && plan_gpu_major())
        printf("attention as on this machine's GPU, of compute capability %d\n", plan_gpu_major());
    if (r->model.is_gpt2)
        printf("-b %d -t %d, %d micro-step%s%s, -r %d\n", c->run.batch, c->run.seq_len, micro,
               micro > 1 ? "s" : "",
               c->run.group > 1      ? ", several layers at once (-mog)"
               : c->run.together > 1 ? " layer by layer"
                                     : "",
               c->run.recompute);
    else
        printf("only a number of parameters: no activations; buffers for %d equal blocks\n",
               r->model.blocks);
    const char *const lines =
        c->pp > 1
            ? "; each line has the stage with the most bytes per rank, and names its first rank"
            : "";
    int ring;
    gpt2_error error;
    char way[CONTEXT_NAME], of_pp[40] = "", of_tp[40] = "";
    if (c->pp > 1) (void)snprintf(of_pp, sizeof of_pp, "%d stages x ", c->pp);
    if (c->tp > 1) (void)snprintf(of_tp, sizeof of_tp, "%d tensor-parallel x ", c->tp);
    if (c->cp > 1 && plan_ring(c, &ring, &error) == ZERO_OK)
        printf("%s%s%d context-parallel (%s) x %d data-parallel ranks, each with %d tokens of a "
               "sequence%s\n",
               of_pp, of_tp, c->cp, context_name(c->cp, ring, way),
               r->ranks / c->tp / c->pp / c->cp, c->run.seq_len / c->cp, lines);
    else if (c->tp * c->pp > 1)
        printf("%d stage%s x %d tensor-parallel%s x %d data-parallel ranks%s\n", c->pp,
               c->pp > 1 ? "s" : "", c->tp,
               c->tp > 1 && c->sequence ? ", rows between layers cut" : "",
               r->ranks / c->tp / c->pp, lines);
    if (r->most.device > 0)
        printf("a rank's device has %.4g GiB%s\n", r->most.device / plan_gib,
               r->on_gpus ? ", of which CUDA itself takes about half a GiB that no plan has" : "");
}

/* Prints a note if 16-bit products are converted to f32 and back, which saves memory and costs
 * time. */
static void plan_print_type(const plan_request *r) {
    char type[OPTION_WORD_BYTES], why[PLAN_SENTENCE];
    machine_step as_typed, in_f32;
    plan_case c;
    plan_answer a;
    if (r->machine == NULL || plan_case_of(r, 0, &c, why, sizeof why) || c.zero.type == ZERO_F32)
        return;
    c.zero.optimizer_tier = c.zero.gradient_tier = c.zero.parameter_tier = ZERO_DEVICE;
    if (plan_ask(&c, &a, why, sizeof why)
        || machine_predict(r->machine, &c, &a, &as_typed, why, sizeof why))
        return;
    c.zero.type = c.run.type = ZERO_F32;
    if (plan_ask(&c, &a, why, sizeof why)
        || machine_predict(r->machine, &c, &a, &in_f32, why, sizeof why)
        || in_f32.all >= as_typed.all)
        return;
    train_options_word(&r->options, "-dt", type);
    printf("\n-dt f32 is faster on this machine: %.4g ms a step, %.4g in %s.\n", 1e3 * in_f32.all,
           1e3 * as_typed.all, type);
}

int plan_print(const plan_request *r, char *sentence, size_t bytes) {
    plan_case c;
    plan_answer a;
    machine_step step;
    if (plan_case_of(r, 0, &c, sentence, bytes)) return 1;
    if (plan_each_row(r, NULL, NULL, sentence, bytes))
        return 1; /* checks all rows before it prints any */
    if (r->machine != NULL) {
        c.zero.optimizer_tier = c.zero.gradient_tier = c.zero.parameter_tier = ZERO_DEVICE;
        if (plan_ask(&c, &a, sentence, bytes)
            || machine_predict(r->machine, &c, &a, &step, sentence, bytes)
            || plan_case_of(r, 0, &c, sentence, bytes))
            return 1;
    }
    plan_print_head(r, &c);
    if (plan_print_table(r, sentence, bytes) || plan_write_csv(r, sentence, bytes)) return 1;
    plan_print_largest(r);
    plan_print_advice(r);
    plan_print_type(r);
    return 0;
}
