#include "model/model.h"

#include <math.h>

/* Rounds a size up, so that every buffer starts on a cache line in any shape. */
static size_t line(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* ---- weights and gradients by role ------------------------------------------------------------------------------- */

static bool is_table(enum shore__role role) {
    return role == SHORE__TOKEN_TABLE || role == SHORE__HEAD_TABLE;
}

size_t shore__prepared_bytes(const struct shore__model *m, uint32_t block, enum shore__mode mode) {
    const struct shore__model_block *b = &m->blocks[block];
    if (mode == SHORE__F32) return 0;
    if (mode == SHORE__BF16_IN_F32) return (size_t)b->tail_segments * SHORE_SEGMENT_ELEMS * 4;
    size_t bytes = 0;
    for (uint32_t t = 0; t < b->ntensors; t++)
        if (!b->tensors[t].matrix) bytes += line(b->tensors[t].rows * 4);
    return bytes;
}

int shore__block_prepare(const struct shore__model *m, struct shore__compute *c, struct shore__stream *s,
                         uint32_t block, shore__buf raw, shore__buf prepared, struct shore__weights *out) {
    const struct shore__model_block *b = &m->blocks[block];
    const struct shore_layout_block *layout = &m->layout->blocks[block];
    uint64_t first = (uint64_t)b->tail_segment * SHORE_SEGMENT_ELEMS;
    int rc = 0;
    size_t at = 0;
    c->ops->weights_changed(c);
    if (c->mode == SHORE__BF16_IN_F32 && b->tail_segments)
        rc = c->ops->widen(c, s, prepared, raw, (size_t)(layout->elems - first));
    for (uint32_t t = 0; !rc && t < b->ntensors; t++) {
        const struct shore__model_tensor *tensor = &b->tensors[t];
        if (is_table(tensor->role)) continue;
        uint64_t offset = layout->tensors[t].offset_elems - first;
        if (c->mode == SHORE__F32) {
            out->role[tensor->role] = shore__at(raw, offset * 4);
        } else if (c->mode == SHORE__BF16_IN_F32) {
            out->role[tensor->role] = shore__at(prepared, offset * 4);
        } else if (tensor->matrix) {
            out->role[tensor->role] = shore__at(raw, offset * 2);
        } else {
            out->role[tensor->role] = shore__at(prepared, at);
            rc = c->ops->widen(c, s, shore__at(prepared, at), shore__at(raw, offset * 2), tensor->rows);
            at += line(tensor->rows * 4);
        }
    }
    return rc;
}

size_t shore__slice_prepared_bytes(const struct shore__model *m, enum shore__mode mode) {
    return mode == SHORE__BF16_IN_F32 ? (size_t)m->slice_rows * m->arch.d_model * 4 : 0;
}

int shore__slice_prepare(const struct shore__model *m, struct shore__compute *c, struct shore__stream *s, uint32_t rows,
                         shore__buf raw, shore__buf prepared, shore__buf *out) {
    c->ops->weights_changed(c);
    if (c->mode != SHORE__BF16_IN_F32) {
        *out = raw;
        return 0;
    }
    *out = prepared;
    return c->ops->widen(c, s, prepared, raw, (size_t)rows * m->arch.d_model);
}

void shore__block_gradients(const struct shore__model *m, uint32_t block, uint32_t segment, shore__buf gradient,
                            struct shore__gradients *out) {
    *out = (struct shore__gradients){.add = true};
    uint64_t first = (uint64_t)segment * SHORE_SEGMENT_ELEMS;
    for (uint32_t t = 0; t < m->blocks[block].ntensors; t++) {
        uint64_t offset = m->layout->blocks[block].tensors[t].offset_elems;
        if (offset >= first) out->role[m->blocks[block].tensors[t].role] = shore__at(gradient, (offset - first) * 4);
    }
}

int shore__clear_vectors(const struct shore__model *m, struct shore__compute *c, struct shore__stream *s,
                         uint32_t layer, shore__buf gradient) {
    const struct shore__model_block *b = &m->blocks[layer];
    uint64_t at = 0;
    int rc = 0;
    for (uint32_t t = 0; !rc && t <= b->ntensors; t++) {
        bool end = t == b->ntensors;
        if (!end && !b->tensors[t].matrix) continue;
        uint64_t to = end ? m->layout->blocks[layer].padded_elems : m->layout->blocks[layer].tensors[t].offset_elems;
        if (to > at) rc = c->ops->zero(c, s, shore__at(gradient, at * 4), (to - at) * 4);
        if (!end) at = to + b->tensors[t].rows * b->tensors[t].cols;
    }
    return rc;
}

/* ---- memory of one unit ------------------------------------------------------------------------------------------ */

struct widths {
    size_t stats, lse, d, qkv, attn, up, ff;
};

static struct widths widths(const struct shore__model *m, enum shore__mode mode, size_t rows) {
    size_t e = shore__mode_bytes(mode);
    return (struct widths){
        .stats = line(rows * 8),
        .lse = line(rows * m->arch.n_head * 4),
        .d = line(rows * m->arch.d_model * e),
        .qkv = line(rows * m->qkv_width * e),
        .attn = line(rows * m->attn_width * e),
        .up = line(rows * m->up_width * e),
        .ff = line(rows * m->arch.d_ff * e),
    };
}

size_t shore__inner_bytes(const struct shore__model *m, enum shore__mode mode, size_t rows, bool cheap_too) {
    struct widths w = widths(m, mode, rows);
    return 2 * w.stats + w.qkv + w.attn + w.lse + w.d + w.up + (cheap_too ? 2 * w.d + w.ff : 0);
}

static shore__buf take(shore__buf *at, size_t bytes) {
    shore__buf taken = *at;
    *at = shore__at(*at, bytes);
    return taken;
}

struct shore__inner shore__inner_at(const struct shore__model *m, enum shore__mode mode, size_t rows, shore__buf kept,
                                    bool cheap_too, shore__buf work) {
    struct widths w = widths(m, mode, rows);
    struct shore__inner in;
    in.stats1 = take(&kept, w.stats);
    in.qkv = take(&kept, w.qkv);
    in.attn = take(&kept, w.attn);
    in.lse = take(&kept, w.lse);
    in.mid = take(&kept, w.d);
    in.stats2 = take(&kept, w.stats);
    in.up = take(&kept, w.up);
    if (!cheap_too) kept = work;
    in.norm1 = take(&kept, w.d);
    in.norm2 = take(&kept, w.d);
    in.act = take(&kept, w.ff);
    return in;
}

size_t shore__backward_scratch_bytes(const struct shore__model *m, enum shore__mode mode, size_t rows) {
    struct widths w = widths(m, mode, rows);
    return (w.ff > w.attn ? w.ff : w.attn) + (w.up > w.qkv ? w.up : w.qkv) + w.d;
}

struct shore__shapes shore__model_shapes(const struct shore__model *m, size_t unit_rows, size_t short_rows,
                                         size_t seq_len, bool backward) {
    uint32_t last = m->arch.vocab - (m->nslices - 1) * m->slice_rows;
    return (struct shore__shapes){
        .unit_rows = unit_rows,
        .short_rows = short_rows,
        .seq_len = seq_len,
        .d_model = m->arch.d_model,
        .qkv_width = m->qkv_width,
        .attn_width = m->attn_width,
        .up_width = m->up_width,
        .d_ff = m->arch.d_ff,
        .n_head = m->arch.n_head,
        .n_kv_head = m->arch.n_kv_head,
        .head_dim = m->arch.head_dim,
        .vocab_slice = m->slice_rows,
        .last_slice = last == m->slice_rows ? 0 : last,
        .backward = backward,
    };
}

/* ---- forward and backward ---------------------------------------------------------------------------------------- */

static struct shore__attention attention(const struct shore__model *m, size_t rows, size_t seq_len) {
    return (struct shore__attention){
        .sequences = rows / seq_len,
        .seq_len = seq_len,
        .n_head = m->arch.n_head,
        .n_kv_head = m->arch.n_kv_head,
        .head_dim = m->arch.head_dim,
        .window = m->arch.window < seq_len ? m->arch.window : 0,
        .scale = 1 / sqrtf((float)m->arch.head_dim),
    };
}

#define TRY(call)                  \
    do {                           \
        int try_rc = (call);       \
        if (try_rc) return try_rc; \
    } while (0)

typedef int (*move_fn)(struct shore__compute *, struct shore__stream *, shore__buf to, shore__buf from, size_t n);

static int move_inner(const struct shore__model *m, struct shore__compute *c, struct shore__stream *s, size_t rows,
                      const struct shore__inner *to, const struct shore__inner *from, bool cheap_too, move_fn move) {
    const struct shore__arch *a = &m->arch;
    TRY(c->ops->copy(c, s, to->stats1, from->stats1, rows * 8));
    TRY(c->ops->copy(c, s, to->stats2, from->stats2, rows * 8));
    TRY(c->ops->copy(c, s, to->lse, from->lse, rows * a->n_head * 4));
    TRY(move(c, s, to->qkv, from->qkv, rows * m->qkv_width));
    TRY(move(c, s, to->attn, from->attn, rows * m->attn_width));
    TRY(move(c, s, to->mid, from->mid, rows * a->d_model));
    TRY(move(c, s, to->up, from->up, rows * m->up_width));
    if (!cheap_too) return 0;
    TRY(move(c, s, to->norm1, from->norm1, rows * a->d_model));
    TRY(move(c, s, to->norm2, from->norm2, rows * a->d_model));
    return move(c, s, to->act, from->act, rows * a->d_ff);
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

/* Whole sequences, from their first token. */
struct whole {
    shore__buf cos_sin;
    struct shore__attention attention;
};
static int attend_whole(void *ctx, struct shore__compute *c, struct shore__stream *s,
                        const struct shore__inner *inner) {
    const struct whole *w = ctx;
    if (!shore__buf_is_none(w->cos_sin)) TRY(c->ops->rope(c, s, inner->qkv, w->cos_sin, &w->attention, 0, false));
    return c->ops->attention(c, s, inner->attn, inner->lse, inner->qkv, &w->attention);
}

int shore__layer_forward(const struct shore__model *m, struct shore__compute *c, struct shore__stream *s,
                         const struct shore__weights *w, shore__buf cos_sin, size_t rows, size_t seq_len, shore__buf in,
                         const struct shore__inner *inner, shore__buf out) {
    struct whole whole = {cos_sin, attention(m, rows, seq_len)};
    return shore__layer_forward_attending(m, c, s, w, rows, in, inner, out, attend_whole, &whole);
}

int shore__layer_forward_attending(const struct shore__model *m, struct shore__compute *c, struct shore__stream *s,
                                   const struct shore__weights *w, size_t rows, shore__buf in,
                                   const struct shore__inner *inner, shore__buf out, shore__attend_fn attend,
                                   void *ctx) {
    const struct shore__compute_ops *op = c->ops;
    const struct shore__arch *a = &m->arch;
    const shore__buf *p = w->role;
    size_t d = a->d_model;
    TRY(op->norm(c, s, inner->norm1, inner->stats1, in, p[SHORE__NORM1_GAIN], p[SHORE__NORM1_BIAS], a->norm_eps,
                 a->rms_norm, rows, d));
    TRY(op->linear(c, s, inner->qkv, inner->norm1, p[SHORE__QKV_W], p[SHORE__QKV_B], rows, m->qkv_width, d, true));
    TRY(attend(ctx, c, s, inner));
    TRY(op->linear(c, s, inner->mid, inner->attn, p[SHORE__OUT_W], p[SHORE__OUT_B], rows, d, m->attn_width, true));
    TRY(op->add(c, s, inner->mid, in, inner->mid, rows * d));
    TRY(op->norm(c, s, inner->norm2, inner->stats2, inner->mid, p[SHORE__NORM2_GAIN], p[SHORE__NORM2_BIAS], a->norm_eps,
                 a->rms_norm, rows, d));
    TRY(op->linear(c, s, inner->up, inner->norm2, p[SHORE__UP_W], p[SHORE__UP_B], rows, m->up_width, d, true));
    TRY(op->act(c, s, inner->act, inner->up, a->act, a->gated, rows, m->up_width));
    if (shore__buf_is_none(out)) return 0;
    TRY(op->linear(c, s, out, inner->act, p[SHORE__DOWN_W], p[SHORE__DOWN_B], rows, d, a->d_ff, false));
    return op->add(c, s, out, inner->mid, out, rows * d);
}

int shore__layer_remake_cheap(const struct shore__model *m, struct shore__compute *c, struct shore__stream *s,
                              const struct shore__weights *w, size_t rows, shore__buf in,
                              const struct shore__inner *inner) {
    const struct shore__compute_ops *op = c->ops;
    const struct shore__arch *a = &m->arch;
    const shore__buf *p = w->role;
    TRY(op->norm(c, s, inner->norm1, inner->stats1, in, p[SHORE__NORM1_GAIN], p[SHORE__NORM1_BIAS], a->norm_eps,
                 a->rms_norm, rows, a->d_model));
    TRY(op->norm(c, s, inner->norm2, inner->stats2, inner->mid, p[SHORE__NORM2_GAIN], p[SHORE__NORM2_BIAS], a->norm_eps,
                 a->rms_norm, rows, a->d_model));
    return op->act(c, s, inner->act, inner->up, a->act, a->gated, rows, m->up_width);
}

/* Backward of y = x w + b: dw, db, dx. */
static int linear_backward(struct shore__compute *c, struct shore__stream *s, bool add, shore__buf dx, shore__buf dw,
                           shore__buf db, shore__buf dy, shore__buf x, shore__buf w, size_t rows, size_t n, size_t k,
                           bool w_is_nk) {
    if (!shore__buf_is_none(dw)) TRY(c->ops->linear_backward_w(c, s, dw, dy, x, rows, n, k, w_is_nk, add));
    if (!shore__buf_is_none(db)) TRY(c->ops->bias_backward(c, s, db, dy, rows, n));
    return c->ops->linear_backward_x(c, s, dx, dy, w, rows, n, k, w_is_nk);
}

int shore__layer_backward(const struct shore__model *m, struct shore__compute *c, struct shore__stream *s,
                          const struct shore__weights *w, const struct shore__gradients *g, shore__buf cos_sin,
                          size_t rows, size_t seq_len, shore__buf in, const struct shore__inner *inner,
                          shore__buf scratch, shore__buf dx) {
    const struct shore__compute_ops *op = c->ops;
    const struct shore__arch *a = &m->arch;
    const shore__buf *p = w->role, *q = g->role;
    struct shore__attention attn = attention(m, rows, seq_len);
    struct widths size = widths(m, c->mode, rows);
    size_t d = a->d_model;
    shore__buf narrow = take(&scratch, size.ff > size.attn ? size.ff : size.attn);
    shore__buf wide = take(&scratch, size.up > size.qkv ? size.up : size.qkv);
    shore__buf normed = scratch, dup = wide, dqkv = wide;

    TRY(linear_backward(c, s, g->add, narrow, q[SHORE__DOWN_W], q[SHORE__DOWN_B], dx, inner->act, p[SHORE__DOWN_W],
                        rows, d, a->d_ff, false));
    TRY(op->act_backward(c, s, dup, narrow, inner->up, a->act, a->gated, rows, m->up_width));
    TRY(linear_backward(c, s, g->add, normed, q[SHORE__UP_W], q[SHORE__UP_B], dup, inner->norm2, p[SHORE__UP_W], rows,
                        m->up_width, d, true));
    TRY(op->norm_backward(c, s, dx, q[SHORE__NORM2_GAIN], q[SHORE__NORM2_BIAS], normed, dx, inner->mid,
                          p[SHORE__NORM2_GAIN], inner->stats2, a->rms_norm, rows, d));
    TRY(linear_backward(c, s, g->add, narrow, q[SHORE__OUT_W], q[SHORE__OUT_B], dx, inner->attn, p[SHORE__OUT_W], rows,
                        d, m->attn_width, true));
    TRY(op->attention_backward(c, s, dqkv, narrow, inner->qkv, inner->attn, inner->lse, &attn));
    if (!shore__buf_is_none(cos_sin)) TRY(op->rope(c, s, dqkv, cos_sin, &attn, 0, true));
    TRY(linear_backward(c, s, g->add, normed, q[SHORE__QKV_W], q[SHORE__QKV_B], dqkv, inner->norm1, p[SHORE__QKV_W],
                        rows, m->qkv_width, d, true));
    return op->norm_backward(c, s, dx, q[SHORE__NORM1_GAIN], q[SHORE__NORM1_BIAS], normed, dx, in, p[SHORE__NORM1_GAIN],
                             inner->stats1, a->rms_norm, rows, d);
}
