/* Inference over streamed parameters: evaluation and text generation. */
#ifndef SHORE_INFER_INFER_H
#define SHORE_INFER_INFER_H

#include "pass/parameters.h"
#include "run/run.h"

/* Parameters to infer from: a run's fleet at its committed step, or a Hugging Face directory (source). Exactly one is
 * set. */
struct shore__weights_of {
    const struct shore__model *model;
    struct shore_fleet *fleet;
    struct shore__source *source;
};

struct shore__infer_options {
    uint64_t memory_bytes; /* for the whole process */
    struct shore__compute_options compute;
    size_t seq_len;
};

struct shore__eval_result {
    double loss;     /* mean, in nats per token; 0 where no token counts */
    uint64_t tokens; /* tokens that count */
};

/* Mean loss of the data's tokens, each predicted from its predecessors in a window of seq_len tokens. Windows do not
 * overlap; the last one may be short. max_tokens 0: all tokens. Errors: SHORE_EBUDGET with "minimum SIZE". */
int shore__evaluate(const struct shore__weights_of *weights, const struct shore__infer_options *options,
                    struct shore__dataset *data, uint64_t max_tokens, shore__progress_fn progress, void *ctx,
                    struct shore__eval_result *out, struct shore_diag *diag);

struct shore__sampling {
    double temperature; /* 0: the most likely token */
    uint32_t top_k;     /* 0: off */
    double top_p;       /* 1: off */
    uint64_t seed;
    uint32_t max_tokens;
};

/* Continues a prompt. Calls emit with each new token; nonzero from it stops. */
int shore__generate(const struct shore__weights_of *weights, const struct shore__infer_options *options,
                    const uint32_t *prompt, size_t nprompt, const struct shore__sampling *sampling,
                    int (*emit)(void *ctx, uint32_t token), void *ctx, struct shore_diag *diag);

/* Like shore__generate(), with opened pages set to their step, and with `bytes` of memory. The context ends with the
 * table of positions or with the memory; then generation stops. */
int shore__generate_in(struct shore__parameters *parameters, const struct shore__model *m, struct shore__compute *c,
                       struct shore__stream *stream, struct shore__both memory, uint64_t bytes, const uint32_t *prompt,
                       size_t nprompt, const struct shore__sampling *sampling, int (*emit)(void *ctx, uint32_t token),
                       void *ctx, struct shore_diag *diag);

/* Draws one token from logits [vocab], and changes logits. position makes each draw different. */
uint32_t shore__sample(float *logits, uint32_t vocab, const struct shore__sampling *sampling, uint64_t position);

#endif
