#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/counters.h"
#include "infer/infer.h"
#include "number/bf16.h"
#include "pass/describe.h"
#include "pass/pass.h"

#define SOURCE_SEGMENTS 4u /* read from a directory at a time */
#define BATCH_ROWS 4096u   /* evaluated together, with one fetch of the parameters */

/* An inference session: everything opened within the budget. */
struct session {
    struct shore__compute *c;
    struct shore__stream *stream;
    struct shore__infer_plan plan;
    struct shore__memory memory;
    struct shore__parameters *parameters;
    struct shore__pass pass;
    struct shore__source *source; /* a directory's, whose segments go through staging */
    float *staging;
};

static void close_session(struct session *s) {
    shore__parameters_close(s->parameters);
    if (s->stream) s->c->ops->stream_close(s->c, s->stream);
    if (s->c) shore__memory_close(&s->memory, s->c);
    if (s->c) s->c->ops->close(s->c);
    shore__infer_plan_close(&s->plan);
    free(s->staging);
}

/* Rounds to the parameters of a run with these weights, which breaks ties as the split of masters does. */
static void round_as_masters(uint16_t *out, const float *in, size_t elems) {
    uint16_t lo;
    for (size_t i = 0; i < elems; i++)
        shore__split_f32(in[i], &out[i], &lo);
}

static int read_source(void *ctx, uint32_t block, uint32_t segment, uint32_t count, void *dst,
                       struct shore_diag *diag) {
    const struct session *s = ctx;
    for (uint32_t done = 0, n; done < count; done += n) {
        n = count - done < SOURCE_SEGMENTS ? count - done : SOURCE_SEGMENTS;
        int rc = shore__source_read(s->source, block, segment + done, n, s->staging, diag);
        if (rc) return rc;
        size_t at = (size_t)done * SHORE_SEGMENT_ELEMS, elems = (size_t)n * SHORE_SEGMENT_ELEMS;
        if (s->c->mode == SHORE__F32)
            memcpy((float *)dst + at, s->staging, elems * sizeof(float));
        else
            round_as_masters((uint16_t *)dst + at, s->staging, elems);
    }
    return 0;
}

static int open_parameters(const struct shore__weights_of *of, struct session *s, struct shore_diag *diag) {
    struct shore__parameters_of from = {.model = of->model, .fleet = of->fleet};
    if (of->source) {
        from.read = read_source;
        from.read_ctx = s;
        s->source = of->source;
        s->staging = malloc((size_t)SOURCE_SEGMENTS * SHORE_SEGMENT_ELEMS * sizeof(float));
        if (!s->staging) return shore__fail(diag, -ENOMEM, "out of memory for the parameter pages");
    }
    return shore__parameters_open(&from, s->c, s->stream, &s->memory, &s->parameters, diag);
}

/* Plans and takes the memory; opens compute and the pages in it. */
static int open_plan(const struct shore__weights_of *of, const struct shore__infer_options *o,
                     const struct shore__shapes *shapes, uint64_t workspace_bytes, struct session *s,
                     struct shore_diag *diag) {
    int rc = shore__compute_open(&o->compute, &s->c, diag);
    if (!rc) rc = shore__memory_open(&s->memory, &s->plan.plan->rows, s->c, diag);
    if (!rc) rc = s->c->ops->stream_open(s->c, &s->stream, diag);
    if (!rc)
        rc =
            s->c->ops->make(s->c, shapes, shore__memory_at(&s->memory, SHORE__ROW_WORKSPACE, 0), workspace_bytes, diag);
    if (!rc) rc = open_parameters(of, s, diag);
    if (rc) return rc;
    struct shore_pages *pages = shore__parameters_pages(s->parameters);
    shore_pages_set_step(pages, of->fleet ? shore__fleet_info(of->fleet).step : 0);
    s->pass = (struct shore__pass){
        .m = of->model, .c = s->c, .stream = s->stream, .parameters = s->parameters, .pages = pages};
    return 0;
}

/* Opens a session for batches of that shape. With generation_bytes: for a text that grows token by token and attends to
 * all of its tokens. */
static int open_session(const struct shore__weights_of *of, const struct shore__infer_options *o,
                        const struct shore__batch_shape *batch, uint64_t generation_bytes, struct session *s,
                        struct shore_diag *diag) {
    struct shore__shapes shapes = generation_bytes ? shore__model_shapes(of->model, 1, 0, batch->seq_len, false)
                                                   : shore__batch_shapes(of->model, batch, false);
    struct shore__compute_description compute;
    uint64_t resident, peak;
    shore__resident_bytes(&resident, &peak);
    int rc = shore__compute_describe(&o->compute, &shapes, &compute, diag);
    if (rc) return rc;
    struct shore__facts facts = {
        .model = of->model,
        .batch = *batch,
        .mode = compute.mode,
        .workspace_bytes = compute.workspace_bytes,
        .one_memory = compute.one_memory,
    };
    rc = shore__plan_reading(&facts, generation_bytes, resident, o->memory_bytes, &s->plan, diag);
    if (!rc) rc = open_plan(of, o, &shapes, compute.workspace_bytes, s, diag);
    if (!rc && !generation_bytes) rc = shore__pass_lay_out(&s->pass, batch, &s->memory, diag);
    return rc;
}

static int window(struct session *s, struct shore__dataset *data, uint64_t first, size_t n, shore__buf x, double *sum,
                  struct shore_diag *diag) {
    double loss;
    int rc = shore__dataset_read(data, first, n, s->pass.tokens.host, diag);
    if (!rc) rc = shore__dataset_targets(data, first, n, s->pass.targets.host, diag);
    if (!rc) rc = shore__pass_put(&s->pass, diag);
    if (!rc) rc = shore__pass_forward(&s->pass, x, &loss, diag);
    if (!rc) *sum += loss;
    return rc;
}

int shore__evaluate(const struct shore__weights_of *weights, const struct shore__infer_options *options,
                    struct shore__dataset *data, uint64_t max_tokens, shore__progress_fn progress, void *ctx,
                    struct shore__eval_result *out, struct shore_diag *diag) {
    struct session s = {0};
    size_t seq_len = options->seq_len;
    uint64_t count = shore__dataset_predicted(data);
    uint32_t row = shore__dataset_row_tokens(data);
    if (shore__dataset_tokens(data) < 2)
        return shore__fail(diag, SHORE_EINPUT, "the data have %llu tokens: two are needed at least",
                           (unsigned long long)shore__dataset_tokens(data));
    if (row && row != seq_len)
        return shore__fail(diag, SHORE_EUSAGE,
                           "each row of the data is a sequence of %u tokens: windows of %zu do not fit", row, seq_len);
    if (max_tokens && max_tokens < count) count = max_tokens;
    if (seq_len > count) seq_len = (size_t)count;
    size_t sequences = BATCH_ROWS / seq_len ? BATCH_ROWS / seq_len : 1;
    if (sequences > count / seq_len) sequences = (size_t)(count / seq_len);
    int rc;
    for (;; sequences /= 2) {
        struct shore__batch_shape batch = shore__batch_shape(sequences, seq_len);
        rc = open_session(weights, options, &batch, 0, &s, diag);
        if (rc != SHORE_EBUDGET || sequences == 1) break;
        close_session(&s);
        s = (struct session){0};
    }
    shore__buf x = rc ? SHORE__NO_BUF : shore__memory_at(&s.memory, SHORE__ROW_X, 0);
    uint64_t counting = 0;
    double sum = 0;
    for (uint64_t done = 0; !rc && done < count;) {
        uint64_t left = count - done;
        s.pass.seq_len = left < seq_len ? (size_t)left : seq_len;
        s.pass.sequences = left / s.pass.seq_len < sequences ? (size_t)(left / s.pass.seq_len) : sequences;
        rc = window(&s, data, done, shore__pass_rows(&s.pass), x, &sum, diag);
        done += shore__pass_rows(&s.pass);
        counting += s.pass.counting;
        if (!rc && progress && progress(ctx, done, count))
            rc = shore__fail(diag, -ECANCELED, "interrupted after %llu tokens", (unsigned long long)done);
    }
    close_session(&s);
    *out = (struct shore__eval_result){sum / shore__divisor(counting), counting};
    return rc;
}

int shore__generate(const struct shore__weights_of *weights, const struct shore__infer_options *options,
                    const uint32_t *prompt, size_t nprompt, const struct shore__sampling *sampling,
                    int (*emit)(void *ctx, uint32_t token), void *ctx, struct shore_diag *diag) {
    struct session s = {0};
    const struct shore__model *m = weights->model;
    size_t want = shore__generate_positions(m, nprompt, nprompt + sampling->max_tokens);
    /* the sums below could overflow */
    if (want > (UINT64_C(1) << 56) / (2 * (uint64_t)m->kv_width * m->arch.n_layer))
        return shore__fail(diag, SHORE_EBUDGET, "--memory is too little for the keys and values of %zu tokens", want);
    uint64_t work = shore__generate_bytes(m, options->compute.fp32 ? SHORE__F32 : SHORE__BF16_IN_F32, want);
    struct shore__batch_shape tokens = shore__batch_shape(1, want);
    int rc = open_session(weights, options, &tokens, work, &s, diag);
    if (!rc)
        rc = shore__generate_in(s.parameters, m, s.c, s.stream, shore__memory_both(&s.memory, SHORE__ROW_GENERATION, 0),
                                work, prompt, nprompt, sampling, emit, ctx, diag);
    close_session(&s);
    return rc;
}
