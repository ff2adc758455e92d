/* Tokens of a batch, and the validation loss that a forward pass gives. */
#include <math.h>

#include "train/trainer.h"

/* Reads a sequence, as number i of the batch. */
static int read_sequence(struct trainer *t, struct shore__dataset *data, uint64_t at, size_t i,
                         struct shore_diag *diag) {
    size_t n = t->pass.seq_len;
    int32_t *tokens = t->pass.tokens.host, *targets = t->pass.targets.host;
    int rc = shore__dataset_read(data, at, n, tokens + i * n, diag);
    return rc ? rc : shore__dataset_targets(data, at, n, targets + i * n, diag);
}

int shore__batch_load(struct trainer *t, struct shore__dataset *data, uint64_t first_index, size_t sequences,
                      bool shuffle, struct shore_diag *diag) {
    int rc = shore_device_wait(&t->c->device, t->pass.put, diag);
    t->pass.sequences = sequences;
    for (size_t i = 0; !rc && i < sequences; i++) {
        uint64_t at = shore__dataset_position(data, first_index + i, t->pass.seq_len, shuffle, t->s->seed);
        rc = read_sequence(t, data, at, i, diag);
    }
    return rc ? rc : shore__pass_put(&t->pass, diag);
}

/* Loads the last n tokens, which are fewer than a sequence's. */
static int load_rest(struct trainer *t, struct shore__dataset *data, size_t n, struct shore_diag *diag) {
    int rc = shore_device_wait(&t->c->device, t->pass.put, diag);
    t->pass.sequences = 1;
    t->pass.seq_len = n;
    if (!rc) rc = read_sequence(t, data, shore__dataset_predicted(data) - n, 0, diag);
    return rc ? rc : shore__pass_put(&t->pass, diag);
}

int shore__batch_forget_padding(struct trainer *t, struct shore_diag *diag) {
    int32_t *tokens = t->pass.tokens.host;
    bool found = false;
    for (size_t i = 0; i < shore__pass_rows(&t->pass); i++) {
        if (tokens[i] != t->m->arch.padding) continue;
        tokens[i] = -1;
        found = true;
    }
    int rc = found ? shore__pass_put(&t->pass, diag) : 0;
    return rc || !found || !t->pass.lookups
               ? rc
               : shore__lookups_forget(t->pass.lookups, tokens, shore__pass_rows(&t->pass), diag);
}

/* This many that count give a stable figure, in a small part of the time between two measurements. Where a part counts,
 * they are looked for among so many times as many. */
#define VALIDATION_TOKENS 65536u
#define VALIDATION_SEARCH 4u

int shore__batch_validate(struct trainer *t, double *loss, struct shore_diag *diag) {
    struct shore__pass *pass = &t->pass;
    struct shore__dataset *data = t->run->val;
    const shore__buf x = shore__boundary(t, t->m->arch.n_layer + 1);
    size_t seq_len = pass->seq_len, kept = pass->nkept;
    uint64_t tokens = shore__dataset_predicted(data), sequences = tokens / seq_len;
    bool marked = shore__dataset_marked(data);
    const uint64_t most = VALIDATION_TOKENS * (marked ? VALIDATION_SEARCH : 1) / seq_len;
    size_t rest = marked && sequences ? (size_t)(tokens % seq_len) : 0; /* what counts may lie there alone */
    if (sequences > most) sequences = most, rest = 0;
    if (!sequences) sequences = 1;
    if (seq_len > tokens) pass->seq_len = tokens;
    pass->nkept = 0;
    uint64_t counting = 0;
    double sum = 0;
    int rc = 0;
    for (uint64_t i = 0; !rc && i < sequences + (rest > 0) && counting < VALIDATION_TOKENS; i += pass->sequences) {
        size_t n = sequences - i < t->s->batch ? (size_t)(sequences - i) : t->s->batch;
        rc = i < sequences ? shore__batch_load(t, data, i, n, false, diag) : load_rest(t, data, rest, diag);
        double part = 0;
        if (!rc) rc = shore__pass_forward(pass, x, &part, diag);
        sum += part;
        counting += pass->counting;
    }
    *loss = counting ? sum / (double)counting : INFINITY;
    if (!rc && !counting)
        train_note(t, "no validation loss: nothing counts in the first %u tokens of the data, which are measured",
                   VALIDATION_TOKENS * VALIDATION_SEARCH);
    pass->seq_len = seq_len;
    pass->nkept = kept;
    return rc;
}

bool shore__batch_validation_due(const struct trainer *t, uint64_t step) {
    const struct shore__settings *s = t->s;
    return t->run->val && (step == s->steps || (s->eval_every && step % s->eval_every == 0));
}
