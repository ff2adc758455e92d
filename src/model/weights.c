#include "model/model.h"

static bool is_table(enum shore__role role) {
    return role == SHORE__TOKEN_TABLE || role == SHORE__HEAD_TABLE;
}

size_t shore__prepared_bytes(const struct shore__model *m, uint32_t block, enum shore__mode mode) {
    const struct shore__model_block *b = &m->blocks[block];
    if (mode == SHORE__F32) return 0;
    if (mode == SHORE__BF16_IN_F32) return (size_t)b->tail_segments * SHORE_SEGMENT_ELEMS * 4;
    size_t bytes = 0;
    for (uint32_t t = 0; t < b->ntensors; t++)
        if (!b->tensors[t].matrix) bytes += shore__line_bytes(b->tensors[t].rows * 4);
    return bytes;
}

int shore__block_prepare(const struct shore__model *m, struct shore__compute *c, struct shore__stream *s,
                         uint32_t block, shore__buf raw, shore__buf prepared, const bool *which,
                         struct shore__weights *out) {
    const struct shore__model_block *b = &m->blocks[block];
    const struct shore_layout_block *layout = &m->layout->blocks[block];
    uint64_t first = (uint64_t)b->tail_segment * SHORE_SEGMENT_ELEMS;
    int rc = 0;
    size_t at = 0;
    c->ops->weights_changed(c);
    if (c->mode == SHORE__BF16_IN_F32 && b->tail_segments && !which)
        rc = c->ops->widen(c, s, prepared, raw, (size_t)(layout->elems - first));
    for (uint32_t t = 0; !rc && t < b->ntensors; t++) {
        const struct shore__model_tensor *tensor = &b->tensors[t];
        if (is_table(tensor->role)) continue;
        shore__buf other, *role = b->of_role[tensor->role] == (int)t ? &out->role[tensor->role] : &other; /* expert's */
        uint64_t offset = layout->tensors[t].offset_elems - first;
        bool asked = !which || which[tensor->expert];
        if (c->mode == SHORE__F32) {
            *role = shore__at(raw, offset * 4);
        } else if (c->mode == SHORE__BF16_IN_F32) {
            *role = shore__at(prepared, offset * 4);
            if (which && asked)
                rc = c->ops->widen(c, s, *role, shore__at(raw, offset * 2), (size_t)layout->tensors[t].elems);
        } else if (tensor->matrix) {
            *role = shore__at(raw, offset * 2);
        } else {
            *role = shore__at(prepared, at);
            if (asked) rc = c->ops->widen(c, s, *role, shore__at(raw, offset * 2), tensor->rows);
            at += shore__line_bytes(tensor->rows * 4);
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
        if (m->blocks[block].of_role[m->blocks[block].tensors[t].role] != (int)t) continue; /* another expert's */
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

struct shore__routing shore__model_routing(const struct shore__model *m, enum shore__mode mode) {
    struct shore__routing r = {
        .experts = m->arch.experts, .chosen = m->arch.experts_chosen, .renormalised = m->arch.experts_renormalised};
    if (m->arch.experts < 2 || !m->layout) return r;
    const struct shore__model_block *b = &m->blocks[1];
    if (b->of_role[SHORE__EXPERT_UP_W] < 0) b = &m->blocks[b->side];
    const uint32_t first = (uint32_t)b->of_role[SHORE__EXPERT_UP_W];
    const struct shore_layout_tensor *lies = &m->layout->blocks[b - m->blocks].tensors[first];
    r.stride = lies[m->expert_tensors].offset_elems - lies->offset_elems;
    for (uint32_t t = first; t < first + m->expert_tensors; t++)
        if (!b->tensors[t].matrix)
            r.bias_stride += shore__line_bytes(b->tensors[t].rows * sizeof(float)) / sizeof(float);
    if (mode != SHORE__BF16) r.bias_stride = r.stride;
    return r;
}
