#include <math.h>

#include "base/units.h"
#include "run/emulation/tempo.h"
#include "train/trainer.h"

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static int unit_forward(struct trainer *t, uint32_t layer, size_t u, const struct shore__weights *w,
                        struct shore_diag *diag) {
    struct shore__pass *pass = &t->pass;
    struct unit_inner i;
    int rc = shore__train_inner_enter(t, layer, u, &i, diag);
    if (rc) return rc;
    const struct shore__layer_call call = shore__pass_call(pass, layer, w, i.rows);
    rc = shore__layer_forward(&call, shore__pass_at(pass, shore__boundary_working(t, layer), u), &i.at,
                              shore__pass_at(pass, shore__boundary_working(t, layer + 1), u));
    rc = rc ? shore__op_failed(diag, rc) : shore__experts_count(t, layer, &i, diag);
    return rc ? rc : shore__train_inner_leave(t, &i, diag);
}

static int layer_forward(struct trainer *t, uint32_t layer, struct shore_diag *diag) {
    struct shore__pass *pass = &t->pass;
    struct shore__weights w;
    int rc = shore__boundary_leave(t, layer, diag);
    if (!rc) rc = shore__parameters_layer(pass->parameters, layer, &w, diag);
    shore__parameters_want_layer(pass->parameters, layer + 1);
    if (layer == t->m->arch.n_layer) { /* the head starts from it */
        shore__parameters_want_slice(pass->parameters, shore__model_table_block(t->m), 0);
        shore__parameters_want_tail(pass->parameters, shore__model_head(t->m));
    }
    /* the buffer that the output goes to may still be on its way to scratch */
    if (!rc && layer >= t->m->lowest) rc = shore__boundary_enter(t, layer + 1, diag);
    uint64_t start = shore__now_ns();
    for (size_t u = 0; !rc && u < shore__pass_units(pass); u++)
        rc = unit_forward(t, layer, u, &w, diag);
    if (!rc) rc = shore__boundary_release(t, layer, diag);
    if (!rc) shore__tempo_computed(t->tempo, t->m, start, layer, 1, false);
    return rc;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Prefetches the layer below, if backward goes down to it. */
static void want_below(struct trainer *t, uint32_t layer) {
    if (layer > t->m->lowest) shore__parameters_want_layer(t->pass.parameters, layer - 1);
}

/* Fills a piece with zeros from element `from` on. */
static int clear_from(struct trainer *t, struct piece *p, size_t from, struct shore_diag *diag) {
    size_t elems = (size_t)p->count * SHORE_SEGMENT_ELEMS;
    shore__buf at = shore__at(p->there, from * sizeof(float));
    return shore__op_failed(diag, t->c->ops->zero(t->c, t->pass.stream, at, (elems - from) * sizeof(float)));
}

static int head_slice(struct trainer *t, uint32_t i, struct piece *p, shore__buf table, size_t first, size_t count,
                      struct shore_diag *diag) {
    const struct shore__compute_ops *op = t->c->ops;
    struct shore__pass *pass = &t->pass;
    struct shore__slice s = shore__model_slice(t->m, i);
    size_t d = t->m->arch.d_model, unit = shore__pass_unit(pass);
    float scale = 1.0f / (float)shore__divisor(pass->counting);
    int rc = 0;
    for (size_t u = first; !rc && u < first + count; u++) {
        size_t rows = shore__pass_unit_rows(pass, u), at = u * unit * 4;
        shore__buf logits = shore__pass_logits(pass, i, u), normed = shore__pass_at(pass, pass->normed, u);
        if (logits.handle == pass->logits.handle)
            rc = op->head_logits(t->c, t->pass.stream, logits, normed, table, t->m->arch.logit_cap, rows, s.rows, d);
        if (!rc)
            rc = op->head_dlogits(t->c, t->pass.stream, t->dlogits, logits, shore__at(pass->max, at),
                                  shore__at(pass->sum, at), shore__at(pass->targets.device, at), scale,
                                  t->m->arch.logit_cap, rows, s.rows, s.first);
        if (!rc)
            rc = op->head_backward_x(t->c, t->pass.stream, shore__at(t->dx_f32, u * unit * d * 4), t->dlogits, table,
                                     rows, s.rows, d);
        if (!rc && p->count)
            rc = op->head_backward_w(t->c, t->pass.stream, p->there, t->dlogits, normed, rows, s.rows, d, u > 0);
    }
    return shore__op_failed(diag, rc);
}

/* Ends a slice of the head once all units have passed. Its gradient is complete, except for a tied table's lookups. */
static int head_slice_end(struct trainer *t, uint32_t i, struct piece *p, struct shore_diag *diag) {
    if (!p->count) return 0;
    if (!t->m->arch.tied) return i + 1 < t->m->nslices ? shore__gradients_end(t, p, diag) : 0;
    if (!t->table_gradient) return shore__gradients_to_scratch(t, p, diag);
    return shore__gradients_early(t, p, 0, diag);
}

/* Gradients of the final norm, once dx of all units is summed over the slices. p: the last slice. */
static int head_tail(struct trainer *t, struct piece *p, struct shore_diag *diag) {
    const struct shore__model *m = t->m;
    struct piece *apart = shore__gradients_tail(t, shore__model_head(m));
    const struct shore__compute_ops *op = t->c->ops;
    struct shore__pass *pass = &t->pass;
    size_t all = shore__pass_rows(pass), d = m->arch.d_model;
    struct shore__weights w;
    struct shore__gradients g = {.add = true};
    int rc = 0;
    if (m->arch.tied || apart->count) {
        p = apart;
        if (p->count) rc = shore__gradients_begin(t, p, diag);
        if (!rc && p->count) rc = clear_from(t, p, 0, diag);
    }
    if (!rc) rc = shore__parameters_tail(pass->parameters, shore__model_head(m), &w, diag);
    if (rc) return rc;
    if (p->count) shore__block_gradients(m, p->page.block, p->segment, p->there, &g);
    rc = op->round(t->c, t->pass.stream, pass->normed, t->dx_f32, all * d);
    if (!rc)
        rc = op->norm_backward(t->c, t->pass.stream, t->dx, g.role[SHORE__NORMF_GAIN], g.role[SHORE__NORMF_BIAS],
                               pass->normed, SHORE__NO_BUF, shore__boundary(t, m->arch.n_layer + 1),
                               w.role[SHORE__NORMF_GAIN], pass->stats, m->arch.norm, all, d);
    return rc || !p->count ? shore__op_failed(diag, rc) : shore__gradients_end(t, p, diag);
}

/* Backward of the head for `count` units from `first` on. */
static int head_backward(struct trainer *t, size_t first, size_t count, struct shore_diag *diag) {
    const struct shore__model *m = t->m;
    struct shore__pass *pass = &t->pass;
    uint32_t table_block = shore__model_table_block(m);
    bool last = first + count == shore__pass_units(pass);
    struct piece *p = NULL;
    uint64_t start = shore__now_ns();
    int rc = first ? 0 : t->c->ops->zero(t->c, t->pass.stream, t->dx_f32, shore__pass_rows(pass) * m->arch.d_model * 4);
    rc = shore__op_failed(diag, rc);
    for (uint32_t i = 0; !rc && i < m->nslices; i++) {
        shore__buf table;
        rc = shore__parameters_slice(pass->parameters, table_block, i, &table, diag);
        shore__parameters_want_slice(pass->parameters, table_block, i + 1);
        if (i + 1 == m->nslices && last) want_below(t, m->arch.n_layer + 1);
        if (i + 1 == m->nslices && !last) shore__parameters_want_slice(pass->parameters, table_block, 0);
        p = shore__gradients_slice(t, table_block, i);
        if (!rc && !first && p->count) {
            rc = shore__gradients_begin(t, p, diag);
            if (!rc) rc = clear_from(t, p, (size_t)shore__model_slice(m, i).rows * m->arch.d_model, diag);
        }
        if (!rc) rc = head_slice(t, i, p, table, first, count, diag);
        if (!rc && last) rc = head_slice_end(t, i, p, diag);
    }
    if (!rc)
        shore__tempo_computed(t->tempo, m, start, shore__model_head(m), (double)count / (double)t->plan.units, true);
    return !rc && last ? head_tail(t, p, diag) : rc;
}

/* Forward and backward of the head, for all units together. Where a table's gradient is held in memory, units go one by
 * one, so that only one unit's logits are kept. A slice adds the units in the same order either way. */
static int head(struct trainer *t, bool *finite, struct shore_diag *diag) {
    struct shore__pass *pass = &t->pass;
    uint32_t layers = t->m->arch.n_layer;
    double balance = 0;
    int rc = shore__experts_counted(t, &balance, diag);
    if (!rc) rc = shore__pass_norm(pass, shore__boundary(t, layers + 1), diag);
    for (size_t u = 0, units = shore__pass_units(pass), count = t->plan.head_units; !rc && u < units; u += count) {
        if (count > units - u) count = units - u;
        uint64_t start = shore__now_ns();
        rc = shore__pass_losses(pass, u, count, diag);
        if (!rc)
            shore__tempo_computed(t->tempo, t->m, start, shore__model_head(t->m), (double)count / (double)units, false);
        /* No gradient of this step may be handed over before the previous step is committed and reported. */
        if (!rc && u == 0) rc = shore__commit_finish(t, diag);
        if (rc) break;
        if (u + count == units) {
            rc = shore__pass_loss_sum(pass, &t->report.loss, diag);
            if (rc) break;
            t->report.loss /= shore__divisor(pass->counting);
            t->report.loss += balance;
            *finite = isfinite(t->report.loss);
            if (!*finite) return 0;
            rc = shore__batch_forget_padding(t, diag);
        }
        if (!rc && u == 0) rc = shore__gradients_begin_step(t, diag);
        if (!rc && u == 0) rc = shore__boundary_fetch(t, layers, diag);
        if (!rc && u == 0) rc = shore__train_inner_want(t, 0, diag);
        shore_meter_charge(t->meter, SHORE_CHARGE_BACKWARD);
        if (!rc) rc = head_backward(t, u, count, diag);
        shore_meter_charge(t->meter, SHORE_CHARGE_FORWARD);
    }
    return rc;
}

static int add_positions(struct trainer *t, const struct piece *p, shore__buf dx, size_t rows) {
    struct shore__gradients g;
    shore__block_gradients(t->m, p->page.block, p->segment, p->there, &g);
    if (shore__buf_is_none(g.role[SHORE__POSITION_TABLE])) return 0;
    return t->c->ops->position_backward(t->c, t->pass.stream, g.role[SHORE__POSITION_TABLE], dx, rows,
                                        t->m->arch.d_model, t->pass.seq_len);
}

/* Adds lookups of rows to the gradient of slice i, and to learned positions with the last slice. */
static int add_lookups(struct trainer *t, uint32_t i, const struct piece *p, shore__buf dx, shore__buf tokens,
                       size_t rows, struct shore_diag *diag) {
    const struct shore__model *m = t->m;
    struct shore__slice s = shore__model_slice(m, i);
    size_t d = m->arch.d_model;
    int rc = t->c->ops->embed_backward(t->c, t->pass.stream, p->there, dx, tokens, rows, d, s.first, s.rows);
    if (!rc && i + 1 == m->nslices && m->arch.learned_positions) rc = add_positions(t, p, dx, rows);
    return shore__op_failed(diag, rc);
}

/* Backward of learned positions beside a table that rests. */
static int positions_backward(struct trainer *t, struct shore_diag *diag) {
    struct piece *p = shore__gradients_tail(t, 0);
    if (!p) return 0;
    int rc = shore__gradients_begin(t, p, diag);
    if (!rc) rc = clear_from(t, p, 0, diag);
    if (!rc) rc = shore__op_failed(diag, add_positions(t, p, t->dx, shore__pass_rows(&t->pass)));
    return rc ? rc : shore__gradients_end(t, p, diag);
}

/* Adds the lookups of unit u to the gradient of a table held in memory. */
static int unit_lookups(struct trainer *t, size_t u, struct shore_diag *diag) {
    struct shore__pass *pass = &t->pass;
    size_t rows = shore__pass_unit_rows(pass, u);
    shore__buf dx = shore__pass_at(pass, t->dx, u),
               tokens = shore__at(pass->tokens.device, u * shore__pass_unit(pass) * 4);
    int rc = 0;
    for (uint32_t i = 0; !rc && i < t->m->nslices; i++) {
        struct piece *p = shore__gradients_slice(t, 0, i);
        rc = add_lookups(t, i, p, dx, tokens, rows, diag);
        if (!rc && u + 1 < shore__pass_units(pass)) rc = shore__gradients_early(t, p, (uint32_t)u + 1, diag);
    }
    return rc;
}

static int unit_backward(struct trainer *t, uint32_t layer, size_t u, const struct shore__weights *w,
                         const struct shore__gradients *g, struct shore_diag *diag) {
    struct shore__pass *pass = &t->pass;
    struct unit_inner i;
    int rc = shore__train_inner_fetch(t, layer, u, &i, diag);
    shore__buf in;
    if (!rc) rc = shore__train_inner_load(t, &i, diag);
    if (!rc) rc = shore__boundary_load(t, layer, u, &in);
    if (rc) return rc;
    shore_meter_charge(t->meter, SHORE_CHARGE_AGAIN);
    struct shore__layer_call call = shore__pass_call(pass, layer, w, i.rows);
    call.balance = shore__experts_balance(t);
    if (!i.kept) rc = shore__layer_forward(&call, in, &i.at, SHORE__NO_BUF);
    if (i.kept && !i.cheap) rc = shore__layer_remake_cheap(&call, in, &i.at);
    shore_meter_charge(t->meter, SHORE_CHARGE_BACKWARD);
    if (!rc) rc = shore__layer_backward(&call, g, in, &i.at, t->scratch, shore__pass_at(pass, t->dx, u));
    if (!rc && layer == 1 && t->m->arch.scaled_embedding)
        rc = t->c->ops->scale(t->c, t->pass.stream, shore__pass_at(pass, t->dx, u),
                              shore__embedding_factor(t->m, t->c->mode), i.rows * t->m->arch.d_model);
    rc = rc ? shore__op_failed(diag, rc) : shore__train_inner_release(t, &i, diag);
    if (rc || layer > 1 || !t->table_gradient) return rc;
    return unit_lookups(t, u, diag);
}

static int layer_backward(struct trainer *t, uint32_t layer, struct shore_diag *diag) {
    struct shore__pass *pass = &t->pass;
    struct piece *p = shore__gradients_layer(t, layer);
    struct shore__weights w;
    struct shore__gradients g = {.add = true};
    int rc = shore__parameters_layer(pass->parameters, layer, &w, diag);
    want_below(t, layer);
    if (!rc) rc = shore__boundary_wait(t, layer, diag);
    if (!rc) rc = shore__boundary_fetch(t, layer - 1, diag);
    if (!rc && p->count) rc = shore__gradients_begin(t, p, diag);
    if (!rc && p->count)
        rc = shore__op_failed(diag, shore__clear_vectors(t->m, t->c, t->pass.stream, p->page.block, p->there));
    if (rc) return rc;
    uint64_t start = shore__now_ns();
    if (p->count) shore__block_gradients(t->m, p->page.block, 0, p->there, &g);
    for (size_t u = 0; !rc && u < shore__pass_units(pass); u++) {
        g.add = u > 0;
        rc = unit_backward(t, layer, u, &w, &g, diag);
    }
    if (!rc) shore__tempo_computed(t->tempo, t->m, start, layer, 1, true);
    /* its buffer may be free already: prefetch before waiting for the gradient */
    want_below(t, layer);
    return rc || !p->count ? rc : shore__gradients_end(t, p, diag);
}

static int embedding_backward(struct trainer *t, struct shore_diag *diag) {
    const struct shore__model *m = t->m;
    struct shore__pass *pass = &t->pass;
    if (shore__sends_rows(&t->facts)) return shore__gradients_rows(t, diag);
    if (shore__model_rests(m, 0)) return positions_backward(t, diag);
    int rc = m->arch.tied && !t->table_gradient ? shore_step_land_all(t->step, diag) : 0;
    for (uint32_t i = 0; !rc && i < m->nslices; i++) {
        struct piece *p = shore__gradients_slice(t, 0, i);
        if (t->table_gradient) { /* its lookups are added already */
            rc = shore__gradients_end(t, p, diag);
            continue;
        }
        rc = shore__gradients_begin(t, p, diag);
        if (!rc) rc = m->arch.tied ? shore__gradients_from_scratch(t, p, diag) : clear_from(t, p, 0, diag);
        if (rc) return rc;
        rc = add_lookups(t, i, p, t->dx, pass->tokens.device, shore__pass_rows(pass), diag);
        if (!rc) rc = shore__gradients_end(t, p, diag);
    }
    return rc;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

int shore__step_compute(struct trainer *t, bool *finite, bool *replay, struct shore_diag *diag) {
    struct shore__pass *pass = &t->pass;
    uint32_t layers = t->m->arch.n_layer;
    *finite = true;
    *replay = t->compressing = false;
    shore_meter_charge(t->meter, SHORE_CHARGE_BETWEEN); /* also of a step that is replayed */
    shore__activations_begin_step(t);
    shore_pages_set_step(pass->pages, t->base_step);
    uint64_t first = (t->base_step - t->run->data_from) * t->s->batch;
    int rc = shore__batch_load(t, t->run->train, first, t->s->batch, t->s->shuffle, diag);
    shore_meter_charge(t->meter, SHORE_CHARGE_FORWARD);
    if (!rc) rc = shore__boundary_enter(t, t->m->lowest, diag);
    if (!rc) rc = shore__pass_embed(pass, shore__boundary_working(t, 1), diag);
    if (!rc) rc = shore__experts_begin(t, diag);
    for (uint32_t l = 1; !rc && l <= layers; l++)
        rc = layer_forward(t, l, diag);
    if (!rc) rc = head(t, finite, diag);
    if (!rc && !*finite) return shore__activations_settle(t, diag);
    shore_meter_charge(t->meter, SHORE_CHARGE_BACKWARD);
    for (uint32_t l = layers; !rc && l >= t->m->lowest; l--)
        rc = layer_backward(t, l, diag);
    if (!rc) rc = embedding_backward(t, diag);
    if (!rc) rc = shore_step_land_all(t->step, diag);
    *replay = rc == SHORE_STEP_AGAIN;
    if (!rc || *replay) {
        int failed = shore__activations_settle(t, diag);
        if (failed) rc = failed;
    }
    if (rc == SHORE_STEP_AGAIN) {
        shore_step_drop(t->step); /* updates already submitted do not count */
        return 0;
    }
    shore_meter_charge(t->meter, SHORE_CHARGE_UPDATE);
    if (!rc) rc = shore__gradients_finish(t, finite, replay, diag);
    return rc;
}
