/* Forward passes over parameters that are streamed: evaluation and generation.
 */
#ifndef SHORE_INFER_INFER_H
#define SHORE_INFER_INFER_H

#include "pass/parameters.h"
#include "run/run.h"

/* Parameters to infer from: a run's fleet at its committed step, or a Hugging Face directory. One of fleet and source.
 */
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
    double loss;     /* nats per token, mean; 0 where no token counts */
    uint64_t tokens; /* that count */
};

/* Mean loss over tokens [0, count - 1) predicted from their predecessors in windows of seq_len (no overlap; the last
 * window may be short). max_tokens 0: all. SHORE_EBUDGET with "minimum SIZE". */
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

/* Continues a prompt. emit is called with each new token; nonzero from it stops. */
int shore__generate(const struct shore__weights_of *weights, const struct shore__infer_options *options,
                    const uint32_t *prompt, size_t nprompt, const struct shore__sampling *sampling,
                    int (*emit)(void *ctx, uint32_t token), void *ctx, struct shore_diag *diag);

/* As shore__generate(), with the pages set to their step and `bytes` of memory; the context is as long as a table of
 * positions and the memory allow, then generation stops. */
int shore__generate_in(struct shore__parameters *parameters, const struct shore__model *m, struct shore__compute *c,
                       struct shore__stream *stream, struct shore__both memory, uint64_t bytes, const uint32_t *prompt,
                       size_t nprompt, const struct shore__sampling *sampling, int (*emit)(void *ctx, uint32_t token),
                       void *ctx, struct shore_diag *diag);

/* One token from logits [vocab]; changes logits. position makes each draw its own. */
uint32_t shore__sample(float *logits, uint32_t vocab, const struct shore__sampling *sampling, uint64_t position);

#endif
