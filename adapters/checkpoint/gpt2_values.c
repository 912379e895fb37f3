/* gpt2_values.c - GPT-2's shape to and from the values of a checkpoint. */
#include "gpt2_values.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The values with their limits, which are those of model files. */
static const struct {
    const char *name;
    size_t field; /* an int of gpt2_config */
    int64_t most;
} known[GPT2_VALUES] = {
    {"gpt2.max_seq_len", offsetof(gpt2_config, max_seq_len), 1 << 20},
    {"gpt2.vocab_size", offsetof(gpt2_config, vocab_size), 1 << 20},
    {"gpt2.padded_vocab_size", offsetof(gpt2_config, padded_vocab_size), (1 << 20) + 128},
    {"gpt2.layers", offsetof(gpt2_config, layers), 4096},
    {"gpt2.heads", offsetof(gpt2_config, heads), 1 << 16},
    {"gpt2.channels", offsetof(gpt2_config, channels), 1 << 16},
    {"gpt2.experts", offsetof(gpt2_config, moe), 0}, /* 0 or missing: the model has no experts */
};

void gpt2_values(const gpt2_config *cfg, checkpoint_value values[GPT2_VALUES]) {
    for (int i = 0; i < GPT2_VALUES; i++) {
        int number;
        memcpy(&number, (const char *)cfg + known[i].field, sizeof number);
        values[i] = (checkpoint_value){known[i].name, CHECKPOINT_INT, number, 0, NULL};
    }
}

static const checkpoint_value *find(const checkpoint_reader *r, const char *name) {
    for (int i = 0; i < checkpoint_values(r); i++) {
        const checkpoint_value *v = checkpoint_value_at(r, i);
        if (strcmp(v->name, name) == 0) return v;
    }
    return NULL;
}

int gpt2_values_mixed(const checkpoint_reader *r) {
    const checkpoint_value *v = find(r, "gpt2.experts");
    return v != NULL && v->kind == CHECKPOINT_INT && v->number > 0;
}

int gpt2_values_read(const checkpoint_reader *r, gpt2_config *cfg, char *why) {
    gpt2_config found = {0};
    for (int i = 0; i < GPT2_VALUES; i++) {
        const checkpoint_value *v = find(r, known[i].name);
        if (v == NULL && known[i].most == 0) continue;
        if (v != NULL && v->number > 0 && known[i].most == 0) {
            (void)snprintf(
                why, CHECKPOINT_SENTENCE,
                "its model has %" PRId64
                " experts per layer, and the file of a dense model has no place for them",
                v->number);
            return 0;
        }
        if (v == NULL || v->kind != CHECKPOINT_INT) {
            (void)snprintf(why, CHECKPOINT_SENTENCE, "the value %s is %s", known[i].name,
                           v == NULL ? "missing" : "no whole number");
            return 0;
        }
        if (v->number < (known[i].most > 0) || v->number > known[i].most) {
            (void)snprintf(why, CHECKPOINT_SENTENCE,
                           "the value %s is %" PRId64 ", expected 1 to %" PRId64, known[i].name,
                           v->number, known[i].most);
            return 0;
        }
        const int number = (int)v->number;
        memcpy((char *)&found + known[i].field, &number, sizeof number);
    }
    if (found.padded_vocab_size < found.vocab_size || found.channels % found.heads) {
        (void)snprintf(why, CHECKPOINT_SENTENCE,
                       "the values gpt2.* do not fit: %d of %d vocabulary entries, %d channels in "
                       "%d heads",
                       found.vocab_size, found.padded_vocab_size, found.channels, found.heads);
        return 0;
    }
    *cfg = found;
    return 1;
}
