#include "pass/pass.h"

#include <math.h>

#include "base/diag.h"

int shore__rotary_fill(const struct shore__model *m, struct shore__compute *c, struct shore__stream *stream,
                       size_t positions, const struct shore__memory *memory, shore__buf *out, struct shore_diag *diag) {
    struct shore__both table = shore__memory_both(memory, SHORE__ROW_ROTARY, 0);
    *out = table.device;
    if (!table.host) return 0;
    for (uint32_t i = 0; i < m->nrotary; i++)
        shore__rope_table(&m->arch, i, positions, (float *)table.host + i * positions * m->arch.rotary_dim);
    return shore__op_failed(diag, shore__put(c, stream, table.device, table.host, shore__rotary_bytes(m, positions)));
}

int shore__pass_lay_out(struct shore__pass *pass, const struct shore__batch_shape *most,
                        const struct shore__memory *memory, struct shore_diag *diag) {
    pass->sequences = most->sequences;
    pass->seq_len = pass->rotary_positions = most->seq_len;
    pass->most_unit_rows = most->unit_rows;
    pass->tokens = shore__memory_both(memory, SHORE__ROW_TOKENS, 0);
    pass->targets = shore__memory_both(memory, SHORE__ROW_TARGETS, 0);
    pass->normed = shore__memory_at(memory, SHORE__ROW_NORMED, 0);
    pass->stats = shore__memory_at(memory, SHORE__ROW_STATS, 0);
    pass->max = shore__memory_at(memory, SHORE__ROW_MAX, 0);
    pass->sum = shore__memory_at(memory, SHORE__ROW_SUM, 0);
    pass->target_logit = shore__memory_at(memory, SHORE__ROW_TARGET_LOGIT, 0);
    pass->loss = shore__memory_both(memory, SHORE__ROW_LOSS, 0);
    pass->logits = shore__memory_at(memory, SHORE__ROW_LOGITS, 0);
    pass->inner = shore__memory_at(memory, SHORE__ROW_INNER, 0);
    pass->adapting = shore__memory_at(memory, SHORE__ROW_ADAPTING, 0);
    return shore__rotary_fill(pass->m, pass->c, pass->stream, most->seq_len, memory, &pass->rotary, diag);
}

static bool touches(const int32_t *tokens, size_t rows, const struct shore__slice *s) {
    for (size_t i = 0; i < rows; i++)
        if ((uint32_t)tokens[i] - s->first < s->rows) return true;
    return false;
}

/* What follows the lookups: the embedding's factor, or learned positions. */
static int end_embedding(const struct shore__model *m, struct shore__compute *c, struct shore__stream *stream,
                         struct shore__parameters *parameters, size_t rows, size_t seq_len, size_t first_position,
                         shore__buf x, struct shore_diag *diag) {
    if (m->arch.scaled_embedding)
        return shore__op_failed(
            diag, c->ops->scale(c, stream, x, shore__embedding_factor(m, c->mode), rows * m->arch.d_model));
    if (!m->arch.learned_positions) return 0;
    struct shore__weights w;
    int rc = shore__parameters_tail(parameters, 0, &w, diag);
    if (rc) return rc;
    return shore__op_failed(diag, c->ops->position(c, stream, x, w.role[SHORE__POSITION_TABLE], rows, m->arch.d_model,
                                                   seq_len, first_position));
}

int shore__embed(const struct shore__model *m, struct shore__compute *c, struct shore__stream *stream,
                 struct shore__parameters *parameters, struct shore__both tokens, size_t rows, size_t seq_len,
                 size_t first_position, shore__buf x, struct shore_diag *diag) {
    const int32_t *token = tokens.host;
    size_t d = m->arch.d_model;
    uint32_t next = 0;
    for (uint32_t i = 0; i < m->nslices; i = next) {
        struct shore__slice s = shore__model_slice(m, i);
        next = i + 1;
        if (!touches(token, rows, &s)) continue;
        shore__buf table;
        int rc = shore__parameters_slice(parameters, 0, i, &table, diag);
        if (rc) return rc;
        for (; next < m->nslices; next++) {
            struct shore__slice after = shore__model_slice(m, next);
            if (touches(token, rows, &after)) break;
        }
        shore__parameters_want_slice(parameters, 0, next);
        if (m->arch.learned_positions) shore__parameters_want_tail(parameters, 0);
        rc = shore__op_failed(diag, c->ops->embed(c, stream, x, table, tokens.device, rows, d, s.first, s.rows));
        if (rc) return rc;
    }
    shore__parameters_want_layer_of(parameters, 1, rows);
    return end_embedding(m, c, stream, parameters, rows, seq_len, first_position, x, diag);
}

/* The same for the current batch, from rows that are gathered. */
static int embed_gathered(struct shore__pass *pass, shore__buf x, struct shore_diag *diag) {
    struct shore__lookups *l = pass->lookups;
    size_t rows = shore__pass_rows(pass), d = pass->m->arch.d_model;
    shore__buf table;
    int rc = shore__lookups_want(l, pass->tokens.host, rows, diag);
    if (rc) return rc;
    if (pass->m->arch.learned_positions) shore__parameters_want_tail(pass->parameters, 0);
    shore__parameters_want_layer(pass->parameters, 1);
    rc = shore__lookups_take(l, rows, &table, diag);
    if (rc) return rc;
    rc = pass->c->ops->embed(pass->c, pass->stream, x, table, l->index.device, rows, d, 0, l->count);
    if (rc) return shore__op_failed(diag, rc);
    return end_embedding(pass->m, pass->c, pass->stream, pass->parameters, rows, pass->seq_len, 0, x, diag);
}

int shore__pass_put(struct shore__pass *pass, struct shore_diag *diag) {
    const int32_t *targets = pass->targets.host;
    size_t bytes = shore__pass_rows(pass) * 4;
    pass->counting = 0;
    for (size_t i = 0; i < shore__pass_rows(pass); i++)
        pass->counting += targets[i] >= 0;
    int rc = shore__put(pass->c, pass->stream, pass->tokens.device, pass->tokens.host, bytes);
    if (!rc) rc = shore__put(pass->c, pass->stream, pass->targets.device, pass->targets.host, bytes);
    pass->put = shore__record(pass->c, pass->stream);
    return shore__op_failed(diag, rc);
}

int shore__pass_embed(struct shore__pass *pass, shore__buf x, struct shore_diag *diag) {
    if (pass->lookups) return embed_gathered(pass, x, diag);
    return shore__embed(pass->m, pass->c, pass->stream, pass->parameters, pass->tokens, shore__pass_rows(pass),
                        pass->seq_len, 0, x, diag);
}

struct shore__layer_call shore__pass_call(const struct shore__pass *pass, uint32_t layer,
                                          const struct shore__weights *w, size_t rows) {
    return (struct shore__layer_call){
        .m = pass->m,
        .c = pass->c,
        .s = pass->stream,
        .layer = layer,
        .w = w,
        .rotary = pass->rotary,
        .adapting = pass->adapting,
        .rotary_positions = pass->rotary_positions,
        .rows = rows,
        .seq_len = pass->seq_len,
    };
}

/* Forward of a layer that keeps no inner activations. */
static int forward_layer(struct shore__pass *pass, uint32_t layer, shore__buf x, struct shore_diag *diag) {
    struct shore__weights w;
    int rc = shore__parameters_layer(pass->parameters, layer, &w, diag);
    shore__parameters_want_layer(pass->parameters, layer + 1);
    for (size_t u = 0; !rc && u < shore__pass_units(pass); u++) {
        size_t rows = shore__pass_unit_rows(pass, u);
        struct shore__inner inner = shore__inner_at(pass->m, pass->c->mode, rows, pass->inner, true, SHORE__NO_BUF);
        shore__buf at = shore__pass_at(pass, x, u);
        const struct shore__layer_call call = shore__pass_call(pass, layer, &w, rows);
        rc = shore__op_failed(diag, shore__layer_forward(&call, at, &inner, at));
    }
    return rc;
}

shore__buf shore__pass_logits(const struct shore__pass *pass, uint32_t slice, size_t u) {
    if (!pass->nkept) return pass->logits;
    size_t tile = slice * pass->kept_units + u % pass->kept_units;
    if (tile >= pass->nkept) return pass->logits;
    return shore__at(pass->kept_logits, tile * pass->most_unit_rows * pass->m->slice_rows * 4);
}

int shore__pass_norm(struct shore__pass *pass, shore__buf x, struct shore_diag *diag) {
    const struct shore__model *m = pass->m;
    const struct shore__compute_ops *op = pass->c->ops;
    size_t all = shore__pass_rows(pass);
    struct shore__weights w;
    int rc = shore__parameters_tail(pass->parameters, shore__model_head(m), &w, diag);
    if (rc) return rc;
    rc = op->norm(pass->c, pass->stream, pass->normed, pass->stats, x, w.role[SHORE__NORMF_GAIN],
                  w.role[SHORE__NORMF_BIAS], m->arch.norm_eps, m->arch.norm, all, m->arch.d_model);
    if (!rc) rc = op->fill(pass->c, pass->stream, pass->max, -INFINITY, all);
    if (!rc) rc = op->zero(pass->c, pass->stream, pass->sum, all * 4);
    if (!rc) rc = op->zero(pass->c, pass->stream, pass->target_logit, all * 4);
    return shore__op_failed(diag, rc);
}

int shore__pass_losses(struct shore__pass *pass, size_t first, size_t count, struct shore_diag *diag) {
    const struct shore__model *m = pass->m;
    const struct shore__compute_ops *op = pass->c->ops;
    struct shore__compute *c = pass->c;
    size_t unit = shore__pass_unit(pass), all = 0;
    int rc = 0;
    for (uint32_t i = 0; i < m->nslices; i++) {
        struct shore__slice s = shore__model_slice(m, i);
        shore__buf table;
        rc = shore__parameters_slice(pass->parameters, shore__model_table_block(m), i, &table, diag);
        if (rc) return rc;
        shore__parameters_want_slice(pass->parameters, shore__model_table_block(m), i + 1);
        all = 0;
        for (size_t u = first; !rc && u < first + count; u++) {
            size_t rows = shore__pass_unit_rows(pass, u), at = u * unit * 4;
            shore__buf logits = shore__pass_logits(pass, i, u);
            all += rows;
            rc = op->head_logits(c, pass->stream, logits, shore__pass_at(pass, pass->normed, u), table,
                                 m->arch.logit_cap, rows, s.rows, m->arch.d_model);
            if (!rc)
                rc = op->head_merge(c, pass->stream, shore__at(pass->max, at), shore__at(pass->sum, at),
                                    shore__at(pass->target_logit, at), logits, shore__at(pass->targets.device, at),
                                    rows, s.rows, s.first);
        }
        if (rc) return shore__op_failed(diag, rc);
    }
    size_t at = first * unit * 4;
    return shore__op_failed(diag,
                            op->head_loss(c, pass->stream, shore__at(pass->loss.device, at), shore__at(pass->max, at),
                                          shore__at(pass->sum, at), shore__at(pass->target_logit, at),
                                          shore__at(pass->targets.device, at), all));
}

int shore__pass_loss_sum(const struct shore__pass *pass, double *sum, struct shore_diag *diag) {
    const float *loss = pass->loss.host;
    size_t rows = shore__pass_rows(pass);
    int rc = shore__op_failed(diag, shore__get(pass->c, pass->stream, pass->loss.host, pass->loss.device, rows * 4));
    if (!rc) rc = shore__sync(pass->c, pass->stream, diag);
    if (rc) return rc;
    *sum = 0;
    for (size_t i = 0; i < rows; i++)
        *sum += loss[i];
    return 0;
}

int shore__pass_forward(struct shore__pass *pass, shore__buf x, double *sum, struct shore_diag *diag) {
    int rc = shore__pass_embed(pass, x, diag);
    for (uint32_t l = 1; !rc && l <= pass->m->arch.n_layer; l++)
        rc = forward_layer(pass, l, x, diag);
    if (!rc) rc = shore__pass_norm(pass, x, diag);
    if (!rc) rc = shore__pass_losses(pass, 0, shore__pass_units(pass), diag);
    return rc ? rc : shore__pass_loss_sum(pass, sum, diag);
}
