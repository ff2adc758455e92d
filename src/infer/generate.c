#include "infer/infer.h"

#include <math.h>

#include "base/diag.h"
#include "base/prng.h"
#include "pass/pass.h"

struct generation {
    const struct shore__model *m;
    struct shore__compute *c;
    struct shore__stream *stream;
    struct shore__parameters *parameters;
    size_t capacity, filled; /* positions of the cache: all, and filled ones */
    shore__buf x, inner, adapting, normed, stats, rotary, cache;
    struct shore__both tokens, logits;
    struct shore_event put;        /* once it has passed, the device has the tokens */
    size_t cache_bytes;            /* keys, or values, of one layer */
    struct shore__weights weights; /* of the current layer */
    int fetch_failed;              /* of experts: an error, of which diag has the sentence */
    struct shore_diag *diag;
};

static int lay_out(struct generation *g, const struct shore__memory *memory, struct shore_diag *diag) {
    g->x = shore__memory_at(memory, SHORE__ROW_X, 0);
    g->normed = shore__memory_at(memory, SHORE__ROW_NORMED, 0);
    g->stats = shore__memory_at(memory, SHORE__ROW_STATS, 0);
    g->inner = shore__memory_at(memory, SHORE__ROW_INNER, 0);
    g->adapting = shore__memory_at(memory, SHORE__ROW_ADAPTING, 0);
    g->tokens = shore__memory_both(memory, SHORE__ROW_TOKENS, 0);
    g->logits = shore__memory_both(memory, SHORE__ROW_LOGITS, 0);
    g->cache = shore__memory_at(memory, SHORE__ROW_CACHE, 0);
    g->cache_bytes = shore__generate_cache_bytes(g->m, g->c->mode, g->capacity);
    return shore__rotary_fill(g->m, g->c, g->stream, g->capacity, memory, &g->rotary, diag);
}

/* Appends the keys and values of `rows` new positions to the layer's cache. */
static int remember(struct generation *g, uint32_t layer, shore__buf qkv, size_t rows, shore__buf *keys,
                    shore__buf *values) {
    const struct shore__model *m = g->m;
    size_t e = shore__mode_bytes(g->c->mode), head = m->arch.head_dim * e;
    *keys = shore__at(g->cache, 2 * (size_t)(layer - 1) * g->cache_bytes);
    *values = shore__at(*keys, g->cache_bytes);
    for (size_t r = 0; r < rows; r++)
        for (size_t h = 0; h < m->arch.n_kv_head; h++) {
            size_t to = (h * g->capacity + g->filled + r) * head;
            shore__buf key = shore__at(qkv, (r * m->qkv_width + m->attn_width) * e + h * head);
            int rc = g->c->ops->copy(g->c, g->stream, shore__at(*keys, to), key, head);
            if (!rc)
                rc = g->c->ops->copy(g->c, g->stream, shore__at(*values, to), shore__at(key, m->kv_width * e), head);
            if (rc) return rc;
        }
    return 0;
}

static int attend_cached(void *ctx, const struct shore__layer_call *call, shore__buf out, shore__buf qkv) {
    struct generation *g = ctx;
    struct shore__attention attention = shore__layer_attention(call);
    shore__buf keys, values;
    int rc = remember(g, call->layer, qkv, call->rows, &keys, &values);
    return rc ? rc
              : g->c->ops->attention_cached(g->c, g->stream, out, SHORE__NO_BUF, qkv, keys, values, call->rows,
                                            g->filled, g->capacity, &attention);
}

/* Fetches the experts that rows go to. */
static int fetch_experts(void *ctx, const struct shore__layer_call *call, shore__buf route) {
    struct generation *g = ctx;
    const struct shore__routing r = shore__model_routing(g->m, g->c->mode);
    size_t n = call->rows * r.chosen;
    int32_t experts[SHORE__EXPERTS_MOST];
    shore__buf from = shore__at(route, shore__route_at(SHORE__ROUTE_EXPERT, call->rows, &r) * sizeof *experts);
    SHORE__TRY(shore__get(g->c, g->stream, experts, from, n * sizeof *experts));
    SHORE__TRY(shore__sync(g->c, g->stream, NULL));
    g->fetch_failed = shore__parameters_experts(g->parameters, call->layer, experts, n, &g->weights, g->diag);
    return g->fetch_failed;
}

static int layer(struct generation *g, uint32_t l, size_t rows, struct shore_diag *diag) {
    bool by_expert = shore__parameters_by_expert(g->parameters, rows);
    int rc = by_expert ? shore__parameters_but_experts(g->parameters, l, &g->weights, diag)
                       : shore__parameters_layer(g->parameters, l, &g->weights, diag);
    if (rc) return rc;
    shore__parameters_want_layer_of(g->parameters, l + 1, rows);
    struct shore__inner in = shore__inner_at(g->m, g->c->mode, rows, g->inner, true, SHORE__NO_BUF);
    const struct shore__layer_call call = {
        .m = g->m,
        .c = g->c,
        .s = g->stream,
        .layer = l,
        .w = &g->weights,
        .rotary = g->rotary,
        .adapting = g->adapting,
        .rotary_positions = g->capacity,
        .first_position = g->filled,
        .rows = rows,
        .seq_len = rows,
        .attend = attend_cached,
        .routed = by_expert ? fetch_experts : NULL,
        .ctx = g,
    };
    rc = shore__layer_forward(&call, g->x, &in, g->x);
    return g->fetch_failed ? rc : shore__op_failed(diag, rc);
}

static int embed(struct generation *g, const uint32_t *tokens, size_t rows, struct shore_diag *diag) {
    int32_t *ids = g->tokens.host;
    int rc = shore_device_wait(&g->c->device, g->put, diag);
    if (rc) return rc;
    for (size_t i = 0; i < rows; i++)
        ids[i] = (int32_t)tokens[i];
    rc = shore__put(g->c, g->stream, g->tokens.device, ids, rows * 4);
    g->put = shore__record(g->c, g->stream);
    if (rc) return shore__op_failed(diag, rc);
    return shore__embed(g->m, g->c, g->stream, g->parameters, g->tokens, rows, rows, g->filled, g->x, diag);
}

static int last_logits(struct generation *g, size_t rows, struct shore_diag *diag) {
    const struct shore__model *m = g->m;
    const struct shore__compute_ops *op = g->c->ops;
    struct shore__weights w;
    size_t row = m->arch.d_model * shore__mode_bytes(g->c->mode);
    int rc = shore__parameters_tail(g->parameters, shore__model_head(m), &w, diag);
    if (rc) return rc;
    rc = op->norm(g->c, g->stream, g->normed, g->stats, shore__at(g->x, (rows - 1) * row), w.role[SHORE__NORMF_GAIN],
                  w.role[SHORE__NORMF_BIAS], m->arch.norm_eps, m->arch.norm, 1, m->arch.d_model);
    for (uint32_t i = 0; !rc && i < m->nslices; i++) {
        struct shore__slice s = shore__model_slice(m, i);
        shore__buf table;
        rc = shore__parameters_slice(g->parameters, shore__model_table_block(m), i, &table, diag);
        shore__parameters_want_slice(g->parameters, shore__model_table_block(m), i + 1);
        if (!rc)
            rc = op->head_logits(g->c, g->stream, shore__at(g->logits.device, (size_t)s.first * 4), g->normed, table,
                                 m->arch.logit_cap, 1, s.rows, m->arch.d_model);
    }
    const float *logits = g->logits.host;
    if (!rc) rc = shore__get(g->c, g->stream, g->logits.host, g->logits.device, (size_t)m->arch.vocab * 4);
    if (!rc) rc = shore__sync(g->c, g->stream, diag);
    for (uint32_t i = 0; !rc && i < m->arch.vocab; i++)
        if (isnan(logits[i]) || logits[i] == INFINITY)
            rc = shore__fail(diag, SHORE_ENONFINITE,
                             "the model's output for this prompt is not finite: its weights have grown too large");
    return rc;
}

static int forward(struct generation *g, const uint32_t *tokens, size_t n, struct shore_diag *diag) {
    int rc = 0;
    size_t rows = 0;
    for (size_t done = 0; !rc && done < n; done += rows) {
        rows = n - done < SHORE__PROMPT_ROWS ? n - done : SHORE__PROMPT_ROWS;
        rc = embed(g, tokens + done, rows, diag);
        for (uint32_t l = 1; !rc && l <= g->m->arch.n_layer; l++)
            rc = layer(g, l, rows, diag);
        g->filled += rows;
    }
    return rc ? rc : last_logits(g, rows, diag);
}

static int continue_prompt(struct generation *g, const uint32_t *prompt, size_t nprompt,
                           const struct shore__sampling *sampling, int (*emit)(void *ctx, uint32_t token), void *ctx,
                           struct shore_diag *diag) {
    int rc = forward(g, prompt, nprompt, diag);
    for (uint32_t i = 0; !rc && i < sampling->max_tokens; i++) {
        uint32_t token = shore__sample(g->logits.host, g->m->arch.vocab, sampling, i);
        if (emit(ctx, token) || g->filled == g->capacity) break;
        if (i + 1 < sampling->max_tokens) rc = forward(g, &token, 1, diag);
    }
    return rc;
}

int shore__generate_in(struct shore__parameters *parameters, const struct shore__model *m, struct shore__compute *c,
                       struct shore__stream *stream, struct shore__both memory, uint64_t bytes, const uint32_t *prompt,
                       size_t nprompt, const struct shore__sampling *sampling, int (*emit)(void *ctx, uint32_t token),
                       void *ctx, struct shore_diag *diag) {
    struct generation g = {.m = m, .c = c, .stream = stream, .parameters = parameters, .diag = diag};
    struct shore__region_list rows;
    g.capacity = shore__generate_positions(m, nprompt, nprompt + sampling->max_tokens);
    g.capacity = shore__generate_positions_within(m, c->mode, nprompt, g.capacity, bytes);
    if (!nprompt || !g.capacity)
        return shore__fail(diag, SHORE_EINPUT, "a prompt of %zu tokens %s", nprompt,
                           !nprompt ? "cannot be continued: give one at least"
                           : nprompt > shore__generate_positions(m, nprompt, nprompt)
                               ? "is longer than the model's positions"
                               : "does not fit the memory: raise --memory");
    for (size_t i = 0; i < nprompt; i++)
        if (prompt[i] >= m->arch.vocab)
            return shore__fail(diag, SHORE_EINPUT, "token %u of the prompt is beyond the model's vocabulary of %u",
                               prompt[i], m->arch.vocab);
    shore__generate_rows(m, c->mode, g.capacity, &rows);
    int rc = rows.failed ? shore__out_of_memory(diag) : 0;
    struct shore__memory places = shore__memory_lent(&rows, memory);
    if (!rc) rc = lay_out(&g, &places, diag);
    if (!rc) rc = continue_prompt(&g, prompt, nprompt, sampling, emit, ctx, diag);
    shore__regions_close(&rows);
    return rc;
}

/* ---- sampling ---------------------------------------------------------------------------------------------------- */

static float nth_largest(const float *x, uint32_t n, uint32_t nth) {
    /* bisection on the value needs neither a copy nor a sort */
    float low = INFINITY, high = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (x[i] < low) low = x[i];
        if (x[i] > high) high = x[i];
    }
    for (int round = 0; round < 60 && low < high; round++) {
        float middle = low + (high - low) / 2;
        if (middle <= low) break;
        uint32_t above = 0;
        for (uint32_t i = 0; i < n; i++)
            above += x[i] >= middle;
        if (above >= nth)
            low = middle;
        else
            high = middle;
    }
    return low;
}

uint32_t shore__sample(float *logits, uint32_t vocab, const struct shore__sampling *s, uint64_t position) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    if (!(s->temperature > 0)) return best;
    float threshold = s->top_k && s->top_k < vocab ? nth_largest(logits, vocab, s->top_k) : -INFINITY;
    float top = logits[best];
    double sum = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        logits[i] = logits[i] >= threshold ? (float)exp((double)(logits[i] - top) / s->temperature) : 0;
        sum += (double)logits[i];
    }
    if (s->top_p < 1) {
        /* the smallest probability in the nucleus (Holtzman et al. 2020) */
        float low = 0, high = 1;
        for (int round = 0; round < 40; round++) {
            float middle = low + (high - low) / 2;
            double mass = 0;
            for (uint32_t i = 0; i < vocab; i++)
                if (logits[i] >= middle) mass += (double)logits[i];
            if (mass >= s->top_p * sum)
                low = middle;
            else
                high = middle;
        }
        sum = 0;
        for (uint32_t i = 0; i < vocab; i++) {
            if (logits[i] < low) logits[i] = 0;
            sum += (double)logits[i];
        }
    }
    double draw = shore__random_unit(s->seed, 0x73616d706c65, position) * sum;
    uint32_t chosen = best;
    for (uint32_t i = 0; i < vocab; i++) {
        if (logits[i] == 0) continue;
        chosen = i;
        draw -= (double)logits[i];
        if (draw < 0) break;
    }
    return chosen;
}
