/* test_deepspeed_load.c - training goes on from a generation that deepspeed_import.py has written:
   test_deepspeed_import.py calls this, and compares with how DeepSpeed itself went on.

     test_deepspeed_load FOLDER TOKENS OUT STEPS ROWS LR WEIGHT_DECAY

   Loads the newest generation of FOLDER on 2 ranks at stage 3 and trains STEPS steps, each on ROWS
   sequences of TOKENS (int32, one token more than the model's positions a row), clipped to norm 1.
   OUT: the weights as f32, tensor after tensor. Prints the loss of every step. */
#include "../../adapters/checkpoint/gpt2_values.h"
#include "../../adapters/gpt2/gpt2.h"
#include "../shared/harness.h"

enum { RANKS = 2, BETWEEN = 1024 };

typedef struct load_job {
    const char *folder, *tokens, *out;
    int steps, rows; /* of all ranks */
    zero_hyper hyper;
    gpt2_config cfg;
    double loss[BETWEEN]; /* of rank 0 */
} load_job;

static int load_shape(load_job *j) {
    char why[CHECKPOINT_SENTENCE] = "there is none", path[4096];
    checkpoint_generation *list = NULL;
    checkpoint_reader *r = NULL;
    int n = 0;
    if (checkpoint_list(j->folder, &list, &n, why) == CHECKPOINT_OK && n > 0) {
        (void)snprintf(path, sizeof path, "%s/%s", j->folder, list[0].name);
        (void)checkpoint_open(&r, path, why);
    }
    free(list);
    const int ok = r != NULL && gpt2_values_read(r, &j->cfg, why);
    checkpoint_close(r);
    if (!ok) fprintf(stderr, "%s: %s\n", j->folder, why);
    return ok;
}

/* This rank's rows of a step: inputs and what follows them. */
static int load_batch(const load_job *j, const test_rank *r, int step, int *inputs, int *targets) {
    const int T = j->cfg.max_seq_len, rows = j->rows / RANKS;
    FILE *f = fopen(j->tokens, "rb");
    int ok = f != NULL;
    for (int row = 0; row < rows && ok; row++) {
        const long at = (long)(step * j->rows + r->rank * rows + row) * (T + 1);
        int *to = inputs + row * T, *next = targets + row * T;
        ok = fseek(f, at * (long)sizeof(int), SEEK_SET) == 0
             && fread(to, sizeof(int), (size_t)T, f) == (size_t)T
             && fread(&next[T - 1], sizeof(int), 1, f) == 1;
        memcpy(next, to + 1, (size_t)(T - 1) * sizeof(int));
    }
    if (f) (void)fclose(f);
    return ok;
}

static zero_result load_step(load_job *j, test_rank *r, zero_ctx *z, gpt2_model *m, int step) {
    const size_t n = (size_t)(j->rows / RANKS) * (size_t)j->cfg.max_seq_len;
    int *inputs = (int *)malloc(2 * n * sizeof(int));
    double loss = 0;
    zero_result zr = inputs == NULL ? ZERO_ERR_MEMORY : ZERO_OK;
    if (!zr && !load_batch(j, r, step, inputs, inputs + n)) zr = ZERO_ERR_ARGUMENT;
    if (!zr) zr = zero_pass_begin(z, ZERO_TRAIN, 0, 1);
    if (!zr) zr = gpt2_train_step(m, inputs, inputs + n, zero_loss_scale(z), &loss);
    if (!zr) zr = zero_pass_end(z);
    if (!zr) zr = zero_reduce(z);
    if (!zr) zr = zero_step(z, &j->hyper);
    if (!zr) zr = zero_all_sum(z, &loss, 1);
    if (r->rank == 0) j->loss[step] = loss / RANKS;
    free(inputs);
    return zr;
}

static zero_result load_write(const load_job *j, const test_rank *r, zero_ctx *z) {
    zero_tensor_desc table[GPT2_TENSORS];
    FILE *f = r->rank == 0 ? fopen(j->out, "wb") : NULL;
    zero_result zr = r->rank == 0 && f == NULL ? ZERO_ERR_ARGUMENT : ZERO_OK;
    gpt2_describe(&j->cfg, table);
    for (int i = 0; i < GPT2_TENSORS && !zr; i++) {
        const size_t n = table[i].numel * (size_t)table[i].layers;
        float *values = (float *)malloc(n * sizeof(float));
        zr = values ? zero_read_tensor(z, table[i].name, ZERO_MASTER, 0, n, values)
                    : ZERO_ERR_MEMORY;
        if (!zr && f && fwrite(values, sizeof(float), n, f) != n) zr = ZERO_ERR_ARGUMENT;
        free(values);
    }
    if (f && fclose(f)) zr = ZERO_ERR_ARGUMENT;
    return zr;
}

static void load_body(test_rank *r) {
    load_job *j = (load_job *)r->arg;
    const zero_comm comm = test_comm(r);
    const gpt2_run run = {
        j->rows / RANKS, j->cfg.max_seq_len, 0, ZERO_F32, 0, 0, 0, NULL, NULL, 0, 0, 0};
    zero_tensor_desc table[GPT2_TENSORS];
    zero_config config = {0};
    zero_ctx *z = NULL;
    gpt2_model *m = NULL;
    checkpoint *c = NULL;
    checkpoint_options o = {0};
    gpt2_error err = {""};
    config.stage = 3;
    gpt2_describe(&j->cfg, table);
    o.folder = j->folder;
    o.tensors = table;
    o.ntensors = GPT2_TENSORS;
    zero_result zr = zero_create(&z, &config, &comm);
    for (int i = 0; i < GPT2_TENSORS && !zr; i++) zr = zero_tensor(z, &table[i]);
    if (!zr) zr = zero_build(z);
    if (!zr) zr = gpt2_create(&m, z, &j->cfg, &run, &err);
    if (zr)
        test_rank_fail(r, "%s %s", z ? zero_last_error(z) : "", err.sentence);
    else if (checkpoint_create(&c, z, &o) || checkpoint_load(c, CHECKPOINT_NEWEST))
        test_rank_fail(r, "%s", checkpoint_error(c));
    for (int step = 0; step < j->steps && !r->failed && !zr; step++)
        zr = load_step(j, r, z, m, step);
    if (!r->failed && !zr) zr = load_write(j, r, z);
    if (zr) test_rank_fail(r, "%s: %s", zero_result_string(zr), z ? zero_last_error(z) : "");
    if (c) checkpoint_destroy(c);
    gpt2_destroy(m);
    if (z) zero_destroy(z);
}

int main(int argc, char **argv) {
    static load_job j;
    if (argc != 8) {
        fprintf(stderr, "test_deepspeed_load FOLDER TOKENS OUT STEPS ROWS LR WEIGHT_DECAY\n");
        return 2;
    }
    j.folder = argv[1];
    j.tokens = argv[2];
    j.out = argv[3];
    j.steps = atoi(argv[4]);
    j.rows = atoi(argv[5]);
    j.hyper = (zero_hyper){strtof(argv[6], NULL), 0.9f, 0.999f, 1e-8f, strtof(argv[7], NULL), 1.0f};
    if (j.steps < 0 || j.steps > BETWEEN || j.rows < RANKS || j.rows % RANKS || !load_shape(&j))
        return 1;
    if (!test_ranks(RANKS, 0, load_body, &j)) {
        fprintf(stderr, "%s\n", test_first);
        return 1;
    }
    for (int step = 0; step < j.steps; step++) printf("%.9g\n", j.loss[step]);
    return 0;
}
