/* Samples text, which shows what the model has learned so far. */
#include <stdlib.h>

#include "infer/infer.h"
#include "train/trainer.h"

#define SAMPLE_TOKENS 120u

struct sampled {
    uint32_t ids[SAMPLE_TOKENS], count, vocab;
};

static int emit(void *ctx, uint32_t token) {
    struct sampled *s = ctx;
    /* a model may have more tokens than its tokenizer has text for */
    if (token < s->vocab) s->ids[s->count++] = token;
    return 0;
}

int shore__train_sample(struct trainer *t, uint64_t step, struct shore_diag *diag) {
    uint32_t start = 0;
    struct shore__text text = {0};
    shore_pages_set_step(t->pass.pages, step);
    int rc = shore__run_tokenizer(t->run, diag);
    if (rc) return rc;
    int64_t end = shore__tokenizer_end_of_text(t->run->tokenizer);
    if (end >= 0 && end < t->m->arch.vocab) start = (uint32_t)end;
    struct sampled made = {.vocab = shore__tokenizer_vocab(t->run->tokenizer)};
    struct shore__sampling how = {
        .temperature = 0.8, .top_k = 50, .top_p = 1, .seed = t->s->seed + step, .max_tokens = SAMPLE_TOKENS};
    const struct shore__region *row = shore__regions_find(&t->plan.plan->rows, SHORE__ROW_SAMPLE, 0);
    rc = shore__generate_in(t->pass.parameters, t->m, t->c, t->pass.stream,
                            shore__memory_both(&t->memory, SHORE__ROW_SAMPLE, 0), row->bytes, &start, 1, &how, emit,
                            &made, diag);
    if (rc == SHORE_ENONFINITE) { /* the step refuses it by itself, or skips it as asked */
        train_note(t, "no sample after step %llu: %s", (unsigned long long)step, diag->text);
        return 0;
    }
    if (!rc) rc = shore__tokenizer_decode(t->run->tokenizer, made.ids, made.count, &text);
    if (!rc) t->events->sample(t->events->ctx, step, text.bytes ? text.bytes : "", text.count);
    free(text.bytes);
    return rc;
}

bool shore__train_sample_due(const struct trainer *t, uint64_t step) {
    uint64_t every = t->s->sample_every;
    return t->events->sample && every && (step % every == 0 || step == train_last_step(t->s));
}
