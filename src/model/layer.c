#include "model/adapters.h"

#include <errno.h>
#include <math.h>

#include "number/bf16.h"

/* ---- memory of one unit ------------------------------------------------------------------------------------------ */

static size_t value_bytes(const struct shore__model *m, enum shore__mode mode, size_t rows, enum shore__activation v) {
    size_t e = m->layer.width[v] * shore__mode_bytes(mode) + (size_t)m->layer.fp32[v] * 4;
    return shore__line_bytes(rows * e);
}

size_t shore__inner_bytes(const struct shore__model *m, enum shore__mode mode, size_t rows, bool cheap_too) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < (cheap_too ? m->layer.nsaved : m->layer.ncostly); i++)
        bytes += value_bytes(m, mode, rows, m->layer.saved[i]);
    return bytes;
}

size_t shore__inner_work_bytes(const struct shore__model *m, enum shore__mode mode, size_t rows) {
    return shore__inner_bytes(m, mode, rows, true) + value_bytes(m, mode, rows, m->layer.passing);
}

static shore__buf take(shore__buf *at, size_t bytes) {
    shore__buf taken = *at;
    *at = shore__at(*at, bytes);
    return taken;
}

struct shore__inner shore__inner_at(const struct shore__model *m, enum shore__mode mode, size_t rows, shore__buf kept,
                                    bool cheap_too, shore__buf work) {
    struct shore__inner in = {0};
    for (uint32_t i = 0; i < m->layer.nsaved; i++) {
        enum shore__activation v = m->layer.saved[i];
        if (i == m->layer.ncostly && !cheap_too) kept = work;
        in.at[v] = take(&kept, value_bytes(m, mode, rows, v));
    }
    if (m->layer.passing) in.at[m->layer.passing] = cheap_too && !shore__buf_is_none(work) ? work : kept;
    return in;
}

size_t shore__backward_scratch_bytes(const struct shore__model *m, enum shore__mode mode, size_t rows) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < m->layer.nslots; i++)
        bytes += shore__line_bytes(rows * m->layer.slot_width[i] * shore__mode_bytes(mode));
    return bytes;
}

struct shore__shapes shore__model_shapes(const struct shore__model *m, size_t unit_rows, size_t short_rows,
                                         size_t seq_len, bool backward) {
    uint32_t last = m->arch.vocab - (m->nslices - 1) * m->slice_rows;
    struct shore__shapes shapes = {
        .unit_rows = unit_rows,
        .short_rows = short_rows,
        .seq_len = seq_len,
        .d_model = m->arch.d_model,
        .n_head = m->arch.n_head,
        .n_kv_head = m->arch.n_kv_head,
        .head_dim = m->arch.head_dim,
        .vocab_slice = m->slice_rows,
        .last_slice = last == m->slice_rows ? 0 : last,
        .backward = backward,
    };
    if (m->arch.experts) {
        shapes.experts = m->arch.experts;
        shapes.expert_up = m->layer.width[SHORE__EXPERTS_UP] / m->arch.experts_chosen;
        shapes.expert_ff = m->arch.expert_ff;
    }
    for (uint32_t i = 0; i < m->layer.nrows; i++) {
        const struct shore__layer_row *row = &m->layer.rows[i];
        if (row->op != SHORE__OP_LINEAR) continue;
        shapes.linear[shapes.nlinear++] =
            (struct shore__linear_shape){m->layer.width[row->out], m->layer.width[row->in], !row->input_major};
    }
    for (uint32_t i = 0; i < m->adapters.count; i++) {
        const struct shore__adapter_place *is = &m->adapters.of[i];
        shapes.linear[shapes.nlinear++] = (struct shore__linear_shape){m->adapters.rank, is->in, true};
        shapes.linear[shapes.nlinear++] = (struct shore__linear_shape){is->out, m->adapters.rank, true};
    }
    return shapes;
}

typedef int (*move_fn)(struct shore__compute *, struct shore__stream *, shore__buf to, shore__buf from, size_t n);

static int move_inner(const struct shore__model *m, struct shore__compute *c, struct shore__stream *s, size_t rows,
                      const struct shore__inner *to, const struct shore__inner *from, bool cheap_too, move_fn move) {
    for (uint32_t i = 0; i < (cheap_too ? m->layer.nsaved : m->layer.ncostly); i++) {
        enum shore__activation v = m->layer.saved[i];
        size_t width = m->layer.width[v], fp32 = m->layer.fp32[v];
        SHORE__TRY(width ? move(c, s, to->at[v], from->at[v], rows * width)
                         : c->ops->copy(c, s, to->at[v], from->at[v], rows * fp32 * 4));
    }
    return 0;
}

int shore__inner_store(const struct shore__model *m, struct shore__compute *c, struct shore__stream *s, size_t rows,
                       const struct shore__inner *inner, shore__buf kept, bool cheap_too) {
    struct shore__inner to = shore__inner_at(m, shore__stored_mode(c->mode), rows, kept, cheap_too, SHORE__NO_BUF);
    return move_inner(m, c, s, rows, &to, inner, cheap_too, c->ops->store);
}

int shore__inner_load(const struct shore__model *m, struct shore__compute *c, struct shore__stream *s, size_t rows,
                      const struct shore__inner *inner, shore__buf kept, bool cheap_too) {
    struct shore__inner from = shore__inner_at(m, shore__stored_mode(c->mode), rows, kept, cheap_too, SHORE__NO_BUF);
    return move_inner(m, c, s, rows, inner, &from, cheap_too, c->ops->load);
}

/* ---- rows of the table ------------------------------------------------------------------------------------------- */

struct shore__attention shore__layer_attention(const struct shore__layer_call *l) {
    const struct shore__arch *a = &l->m->arch;
    return (struct shore__attention){
        .sequences = l->rows / l->seq_len,
        .seq_len = l->seq_len,
        .n_head = a->n_head,
        .n_kv_head = a->n_kv_head,
        .head_dim = a->head_dim,
        .window = shore__layer_kind(a, l->layer)->window,
        .scale = a->attention_scale != 0 ? a->attention_scale : 1 / sqrtf((float)a->head_dim),
        .softcap = a->attention_cap,
        .rotary_dim = a->rotary_dim,
        .sinks = l->w->role[SHORE__SINKS],
    };
}

static struct shore__attention attention_of_whole(const struct shore__layer_call *l) {
    struct shore__attention attention = shore__layer_attention(l);
    if (attention.window >= l->seq_len) attention.window = 0;
    return attention;
}

static int rope(const struct shore__layer_call *l, const struct shore__attention *attention, shore__buf qkv,
                bool inverse) {
    const struct shore__arch *a = &l->m->arch;
    const struct shore__layer_kind *kind = shore__layer_kind(a, l->layer);
    if (kind->unrotated) return 0;
    shore__buf table = shore__at(l->rotary, kind->rope * l->rotary_positions * a->rotary_dim * 4);
    return l->c->ops->rope(l->c, l->s, qkv, table, attention, l->first_position, inverse);
}

/* at: a place for every value. */
static int forward_row(const struct shore__layer_call *l, const struct shore__layer_row *row, const shore__buf *at) {
    const struct shore__compute_ops *op = l->c->ops;
    const struct shore__arch *a = &l->m->arch;
    const uint32_t *width = l->m->layer.width, *times = l->m->layer.times;
    const struct shore__routing r = shore__model_routing(l->m, l->c->mode);
    const shore__buf in = at[row->in], out = at[row->out], *p = l->w->role;
    const struct shore__attention attention = attention_of_whole(l);
    switch (row->op) {
    case SHORE__OP_NORM:
        return op->norm(l->c, l->s, out, at[row->aux], in, p[row->weight], p[row->bias], a->norm_eps, a->norm, l->rows,
                        width[row->in]);
    case SHORE__OP_LINEAR:
        SHORE__TRY(op->linear(l->c, l->s, out, in, p[row->weight], p[row->bias], l->rows, width[row->out],
                              width[row->in], !row->input_major));
        return shore__adapters_add(l, row->weight, out, width[row->out], in);
    case SHORE__OP_HEAD_NORM:
        return op->head_norm(l->c, l->s, out, at[row->aux], in, p[row->weight], a->norm_eps, a->norm,
                             a->heads_normed_together, &attention);
    case SHORE__OP_ROPE:
        return rope(l, &attention, out, false);
    case SHORE__OP_ATTENTION:
        if (l->attend) return l->attend(l->ctx, l, out, in);
        return op->attention(l->c, l->s, out, at[row->aux], in, &attention);
    case SHORE__OP_ACT:
        return op->act(l->c, l->s, out, in, a->act, a->gated, l->rows * times[row->in],
                       width[row->in] / times[row->in]);
    case SHORE__OP_ADD:
        return op->add(l->c, l->s, out, in, out, l->rows * width[row->out]);
    case SHORE__OP_ROUTE:
        SHORE__TRY(op->route(l->c, l->s, out, in, l->rows, &r));
        return l->routed ? l->routed(l->ctx, l, out) : 0;
    case SHORE__OP_GATHER:
        return op->experts_gather(l->c, l->s, out, in, at[SHORE__ROUTE], l->rows, width[row->in], &r);
    case SHORE__OP_EXPERTS:
    case SHORE__OP_WEIGHTED:
        return op->experts_linear(l->c, l->s, out, in, p[row->weight], p[row->bias], at[SHORE__ROUTE], l->rows,
                                  width[row->out] / r.chosen, width[row->in] / r.chosen, !row->input_major, &r);
    case SHORE__OP_SCATTER:
        return op->experts_scatter(l->c, l->s, out, in, at[SHORE__ROUTE], l->rows, width[row->out], true, false, &r);
    }
    return -EINVAL;
}

/* Where backward has gradients: the residual stream's, and slots of scratch. */
struct gradients {
    shore__buf stream, slot[SHORE__LAYER_SLOTS];
};
static shore__buf gradient_at(const struct gradients *d, uint8_t slot) {
    return slot == SHORE__IN_STREAM ? d->stream : d->slot[slot];
}

/* Backward of out = in w + b: dw, db, din. */
static int linear_backward(const struct shore__layer_call *l, uint32_t i, const struct shore__gradients *g,
                           const struct gradients *d, shore__buf in) {
    const struct shore__compute_ops *op = l->c->ops;
    const struct shore__layer_shape *s = &l->m->layer;
    const struct shore__layer_row *row = &s->rows[i];
    size_t n = s->width[row->out], k = s->width[row->in];
    shore__buf dout = gradient_at(d, s->gradient[i].out), din = gradient_at(d, s->gradient[i].in);
    shore__buf to = s->gradient[i].adds ? d->slot[s->gradient[i].through] : din;
    shore__buf db = g->role[row->bias];
    shore__buf dw = g->role[row->weight];
    if (!shore__buf_is_none(dw))
        SHORE__TRY(op->linear_backward_w(l->c, l->s, dw, dout, in, l->rows, n, k, !row->input_major, g->add));
    if (!shore__buf_is_none(db)) SHORE__TRY(op->bias_backward(l->c, l->s, db, dout, l->rows, n));
    SHORE__TRY(op->linear_backward_x(l->c, l->s, to, dout, l->w->role[row->weight], l->rows, n, k, !row->input_major));
    SHORE__TRY(shore__adapters_backward(l, g, row->weight, dout, n, in, to));
    return s->gradient[i].adds ? op->add(l->c, l->s, din, din, to, l->rows * k) : 0;
}

/* The same of experts. Where the outputs are weighted, gradients of the weights come from in, which is weighted itself
 * then: so that nobody needs the outputs. */
static int experts_backward(const struct shore__layer_call *l, uint32_t i, const struct shore__gradients *g,
                            const struct gradients *d, const shore__buf *at) {
    const struct shore__compute_ops *op = l->c->ops;
    const struct shore__layer_shape *s = &l->m->layer;
    const struct shore__layer_row *row = &s->rows[i];
    const struct shore__routing r = shore__model_routing(l->m, l->c->mode);
    size_t n = s->width[row->out] / r.chosen, k = s->width[row->in] / r.chosen;
    shore__buf in = at[row->in], route = at[SHORE__ROUTE], dw = g->role[row->weight], db = g->role[row->bias];
    shore__buf bias = l->w->role[row->bias];
    shore__buf dout = gradient_at(d, s->gradient[i].out), din = gradient_at(d, s->gradient[i].in);
    SHORE__TRY(op->experts_linear_backward_x(l->c, l->s, din, dout, l->w->role[row->weight], route, l->rows, n, k,
                                             !row->input_major, &r));
    if (row->op == SHORE__OP_WEIGHTED)
        SHORE__TRY(op->experts_weigh(l->c, l->s, d->slot[s->gradient[i].through], din, in, route, l->rows, k, &r));
    if (!shore__buf_is_none(dw))
        SHORE__TRY(op->experts_linear_backward_w(l->c, l->s, dw, dout, in, route, l->rows, n, k, !row->input_major,
                                                 g->add, &r));
    if (row->op == SHORE__OP_WEIGHTED && !shore__buf_is_none(bias))
        SHORE__TRY(
            op->experts_weigh_bias(l->c, l->s, d->slot[s->gradient[i].through], dout, bias, route, l->rows, n, &r));
    return shore__buf_is_none(db) ? 0 : op->experts_bias_backward(l->c, l->s, db, dout, route, l->rows, n, &r);
}

static int backward_row(const struct shore__layer_call *l, uint32_t i, const struct shore__gradients *g,
                        const struct gradients *d, const shore__buf *at) {
    const struct shore__compute_ops *op = l->c->ops;
    const struct shore__arch *a = &l->m->arch;
    const struct shore__layer_shape *s = &l->m->layer;
    const struct shore__layer_row *row = &s->rows[i];
    const shore__buf in = at[row->in], *q = g->role;
    shore__buf dout = gradient_at(d, s->gradient[i].out), din = gradient_at(d, s->gradient[i].in);
    const struct shore__attention attention = attention_of_whole(l);
    const struct shore__routing r = shore__model_routing(l->m, l->c->mode);
    switch (row->op) {
    case SHORE__OP_NORM:
        return op->norm_backward(l->c, l->s, din, q[row->weight], q[row->bias], dout,
                                 s->gradient[i].adds ? din : SHORE__NO_BUF, in, l->w->role[row->weight], at[row->aux],
                                 a->norm, l->rows, s->width[row->in]);
    case SHORE__OP_LINEAR:
        return linear_backward(l, i, g, d, in);
    case SHORE__OP_HEAD_NORM:
        return op->head_norm_backward(l->c, l->s, din, q[row->weight], dout, in, l->w->role[row->weight], at[row->aux],
                                      a->norm, a->heads_normed_together, &attention);
    case SHORE__OP_ROPE:
        return rope(l, &attention, dout, true);
    case SHORE__OP_ATTENTION:
        if (!shore__buf_is_none(q[row->weight]))
            SHORE__TRY(op->sink_backward(l->c, l->s, q[row->weight], dout, at[row->out], at[row->aux], &attention));
        return op->attention_backward(l->c, l->s, din, dout, in, at[row->out], at[row->aux], &attention);
    case SHORE__OP_ACT:
        return op->act_backward(l->c, l->s, din, dout, in, a->act, a->gated, l->rows * s->times[row->in],
                                s->width[row->in] / s->times[row->in]);
    case SHORE__OP_ADD:
        return 0; /* the gradient of both is that of the sum */
    case SHORE__OP_ROUTE:
        return op->route_backward(l->c, l->s, din, dout, in, at[SHORE__ROUTE], l->balance, l->rows, &r);
    case SHORE__OP_GATHER:
        return op->experts_scatter(l->c, l->s, din, dout, at[SHORE__ROUTE], l->rows, s->width[row->in], false,
                                   s->gradient[i].adds, &r);
    case SHORE__OP_EXPERTS:
    case SHORE__OP_WEIGHTED:
        return experts_backward(l, i, g, d, at);
    case SHORE__OP_SCATTER:
        return op->experts_gather(l->c, l->s, din, dout, at[SHORE__ROUTE], l->rows, s->width[row->out], &r);
    }
    return -EINVAL;
}

float shore__embedding_factor(const struct shore__model *m, enum shore__mode mode) {
    float root = sqrtf((float)m->arch.d_model);
    return mode == SHORE__F32 ? root : shore__bf16_to_f32(shore__f32_to_bf16(root));
}

/* ---- a layer ----------------------------------------------------------------------------------------------------- */

int shore__layer_forward(const struct shore__layer_call *l, shore__buf in, const struct shore__inner *inner,
                         shore__buf out) {
    const struct shore__layer_shape *s = &l->m->layer;
    struct shore__inner v = *inner;
    v.at[SHORE__IN] = in;
    v.at[SHORE__OUT] = out;
    for (uint32_t i = 0; i < s->nrows; i++) {
        /* of a norm that makes the output, backward needs the statistics */
        bool for_out =
            (s->rows[i].out == SHORE__OUT && s->rows[i].op != SHORE__OP_NORM) || s->rows[i].out == s->passing;
        if (!for_out || !shore__buf_is_none(out)) SHORE__TRY(forward_row(l, &s->rows[i], v.at));
    }
    return 0;
}

int shore__layer_remake_cheap(const struct shore__layer_call *l, shore__buf in, const struct shore__inner *inner) {
    const struct shore__layer_shape *s = &l->m->layer;
    struct shore__inner v = *inner;
    v.at[SHORE__IN] = in;
    for (uint32_t i = 0; i < s->nrows; i++)
        if (s->rows[i].cheap) SHORE__TRY(forward_row(l, &s->rows[i], v.at));
    return 0;
}

int shore__layer_backward(const struct shore__layer_call *l, const struct shore__gradients *g, shore__buf in,
                          const struct shore__inner *inner, shore__buf scratch, shore__buf dx) {
    const struct shore__layer_shape *s = &l->m->layer;
    struct shore__inner v = *inner;
    struct gradients d = {.stream = dx};
    v.at[SHORE__IN] = in;
    for (uint32_t i = 0; i < s->nslots; i++)
        d.slot[i] = take(&scratch, shore__line_bytes(l->rows * s->slot_width[i] * shore__mode_bytes(l->c->mode)));
    for (uint32_t i = s->nrows; i-- > 0;)
        SHORE__TRY(backward_row(l, i, g, &d, v.at));
    return 0;
}
