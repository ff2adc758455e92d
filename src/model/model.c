#include "model/model.h"
#include "model/config_keys.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/prng.h"

/* ---- tensors of each block --------------------------------------------------------------------------------------- */

static struct shore__model_tensor *add(struct shore__model_block *b, enum shore__role role, uint64_t rows,
                                       uint64_t cols, bool matrix) {
    b->of_role[role] = (int)b->ntensors;
    struct shore__model_tensor *t = &b->tensors[b->ntensors++];
    *t = (struct shore__model_tensor){.role = role, .rows = rows, .cols = cols, .matrix = matrix};
    return t;
}

__attribute__((format(printf, 4, 5))) static int part(struct shore__model_tensor *t, uint64_t rows, bool transposed,
                                                      const char *format, ...) {
    struct shore__part *p = &t->parts[t->nparts];
    p->row = t->nparts ? p[-1].row + p[-1].rows : 0;
    p->rows = rows;
    p->transposed = transposed;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&p->name, format, args);
    va_end(args);
    if (n < 0) {
        p->name = NULL;
        return -ENOMEM;
    }
    t->nparts++;
    return 0;
}

static int vector(struct shore__model_block *b, enum shore__role role, uint64_t n, const char *prefix,
                  const char *name) {
    return part(add(b, role, n, 1, false), n, false, "%s%s", prefix, name);
}

static int gpt2_blocks(struct shore__model *m) {
    const struct shore__arch *a = &m->arch;
    uint64_t d = a->d_model, ff = a->d_ff;
    int rc = part(add(&m->blocks[0], SHORE__TOKEN_TABLE, a->vocab, d, true), a->vocab, false, "transformer.wte.weight");
    rc |= part(add(&m->blocks[0], SHORE__POSITION_TABLE, a->max_positions, d, true), a->max_positions, false,
               "transformer.wpe.weight");
    for (uint32_t l = 0; l < a->n_layer; l++) {
        struct shore__model_block *b = &m->blocks[l + 1];
        char h[48];
        snprintf(h, sizeof h, "transformer.h.%u.", l);
        rc |= vector(b, SHORE__NORM1_GAIN, d, h, "ln_1.weight");
        rc |= vector(b, SHORE__NORM1_BIAS, d, h, "ln_1.bias");
        rc |= part(add(b, SHORE__QKV_W, 3 * d, d, true), 3 * d, true, "%sattn.c_attn.weight", h);
        rc |= vector(b, SHORE__QKV_B, 3 * d, h, "attn.c_attn.bias");
        rc |= part(add(b, SHORE__OUT_W, d, d, true), d, true, "%sattn.c_proj.weight", h);
        rc |= vector(b, SHORE__OUT_B, d, h, "attn.c_proj.bias");
        rc |= vector(b, SHORE__NORM2_GAIN, d, h, "ln_2.weight");
        rc |= vector(b, SHORE__NORM2_BIAS, d, h, "ln_2.bias");
        rc |= part(add(b, SHORE__UP_W, ff, d, true), ff, true, "%smlp.c_fc.weight", h);
        rc |= vector(b, SHORE__UP_B, ff, h, "mlp.c_fc.bias");
        rc |= part(add(b, SHORE__DOWN_W, ff, d, true), ff, false, "%smlp.c_proj.weight", h);
        rc |= vector(b, SHORE__DOWN_B, d, h, "mlp.c_proj.bias");
    }
    struct shore__model_block *head = &m->blocks[a->n_layer + 1];
    if (!a->tied) rc |= part(add(head, SHORE__HEAD_TABLE, a->vocab, d, true), a->vocab, false, "lm_head.weight");
    rc |= vector(head, SHORE__NORMF_GAIN, d, "transformer.", "ln_f.weight");
    rc |= vector(head, SHORE__NORMF_BIAS, d, "transformer.", "ln_f.bias");
    return rc;
}

static int llama_blocks(struct shore__model *m) {
    const struct shore__arch *a = &m->arch;
    uint64_t d = a->d_model, ff = a->d_ff, q = m->attn_width, kv = m->kv_width;
    int rc =
        part(add(&m->blocks[0], SHORE__TOKEN_TABLE, a->vocab, d, true), a->vocab, false, "model.embed_tokens.weight");
    for (uint32_t l = 0; l < a->n_layer; l++) {
        struct shore__model_block *b = &m->blocks[l + 1];
        struct shore__model_tensor *t;
        char h[48];
        snprintf(h, sizeof h, "model.layers.%u.", l);
        rc |= vector(b, SHORE__NORM1_GAIN, d, h, "input_layernorm.weight");
        t = add(b, SHORE__QKV_W, m->qkv_width, d, true);
        rc |= part(t, q, false, "%sself_attn.q_proj.weight", h);
        rc |= part(t, kv, false, "%sself_attn.k_proj.weight", h);
        rc |= part(t, kv, false, "%sself_attn.v_proj.weight", h);
        if (a->qkv_bias) {
            t = add(b, SHORE__QKV_B, m->qkv_width, 1, false);
            rc |= part(t, q, false, "%sself_attn.q_proj.bias", h);
            rc |= part(t, kv, false, "%sself_attn.k_proj.bias", h);
            rc |= part(t, kv, false, "%sself_attn.v_proj.bias", h);
        }
        rc |= part(add(b, SHORE__OUT_W, d, q, true), d, false, "%sself_attn.o_proj.weight", h);
        if (a->out_bias) rc |= vector(b, SHORE__OUT_B, d, h, "self_attn.o_proj.bias");
        rc |= vector(b, SHORE__NORM2_GAIN, d, h, "post_attention_layernorm.weight");
        t = add(b, SHORE__UP_W, 2 * ff, d, true);
        rc |= part(t, ff, false, "%smlp.gate_proj.weight", h);
        rc |= part(t, ff, false, "%smlp.up_proj.weight", h);
        if (a->mlp_bias) {
            t = add(b, SHORE__UP_B, 2 * ff, 1, false);
            rc |= part(t, ff, false, "%smlp.gate_proj.bias", h);
            rc |= part(t, ff, false, "%smlp.up_proj.bias", h);
        }
        rc |= part(add(b, SHORE__DOWN_W, ff, d, true), ff, true, "%smlp.down_proj.weight", h);
        if (a->mlp_bias) rc |= vector(b, SHORE__DOWN_B, d, h, "mlp.down_proj.bias");
    }
    struct shore__model_block *head = &m->blocks[a->n_layer + 1];
    if (!a->tied) rc |= part(add(head, SHORE__HEAD_TABLE, a->vocab, d, true), a->vocab, false, "lm_head.weight");
    rc |= vector(head, SHORE__NORMF_GAIN, d, "model.", "norm.weight");
    return rc;
}

static int make_layout(struct shore__model *m) {
    struct shore_block_spec *specs = calloc(m->nblocks, sizeof *specs);
    struct shore_tensor_spec *tensors = calloc((size_t)m->nblocks * 16, sizeof *tensors);
    char(*names)[24] = calloc(m->nblocks, sizeof *names);
    int rc = specs && tensors && names ? 0 : -ENOMEM;
    for (uint32_t i = 0; !rc && i < m->nblocks; i++) {
        struct shore__model_block *b = &m->blocks[i];
        snprintf(names[i], sizeof names[i], i == 0 ? "embedding" : i + 1 == m->nblocks ? "head" : "layer %u", i - 1);
        specs[i] = (struct shore_block_spec){names[i], tensors + (size_t)i * 16, b->ntensors};
        for (uint32_t t = 0; t < b->ntensors; t++)
            tensors[(size_t)i * 16 + t] = (struct shore_tensor_spec){
                b->tensors[t].parts[0].name, b->tensors[t].rows * b->tensors[t].cols, b->tensors[t].matrix ? 0 : 1};
    }
    if (!rc) rc = shore_layout_make(specs, m->nblocks, &m->layout);
    free(specs);
    free(tensors);
    free(names);
    return rc;
}

int shore__model_make(const struct shore__arch *arch, struct shore__model **out, struct shore_diag *diag) {
    /* Sums of products cannot overflow: the limits of shore__arch_from_json keep the largest far below 2^63. */
    struct shore__model *m = calloc(1, sizeof *m);
    if (!m) return shore__fail(diag, -ENOMEM, "out of memory for the model's description");
    m->arch = *arch;
    m->nblocks = arch->n_layer + 2;
    m->attn_width = arch->n_head * arch->head_dim;
    m->kv_width = arch->n_kv_head * arch->head_dim;
    m->qkv_width = m->attn_width + 2 * m->kv_width;
    m->up_width = arch->gated ? 2 * arch->d_ff : arch->d_ff;
    m->blocks = calloc(m->nblocks, sizeof *m->blocks);
    int rc = m->blocks ? 0 : -ENOMEM;
    for (uint32_t i = 0; !rc && i < m->nblocks; i++)
        memset(m->blocks[i].of_role, -1, sizeof m->blocks[i].of_role);
    if (!rc && (arch->learned_positions ? gpt2_blocks(m) : llama_blocks(m))) rc = -ENOMEM;
    if (!rc) rc = make_layout(m);
    if (rc) {
        shore__model_free(m);
        return shore__fail(diag, rc, "the model's description cannot be laid out: %s", shore_error_text(rc));
    }
    m->parameters = m->layout->elems;
    uint32_t step = SHORE_SEGMENT_ELEMS, d = arch->d_model;
    for (uint32_t g = d; g % 2 == 0 && step > 1; g /= 2)
        step /= 2;
    uint32_t rows = (2048 + step / 2) / step * step;
    m->slice_rows = rows ? rows : step;
    if (m->slice_rows > arch->vocab) m->slice_rows = arch->vocab;
    m->nslices = (arch->vocab + m->slice_rows - 1) / m->slice_rows;
    for (uint32_t i = 0; i < m->nblocks; i++) {
        struct shore__model_block *b = &m->blocks[i];
        uint32_t table = b->tensors[0].role == SHORE__TOKEN_TABLE || b->tensors[0].role == SHORE__HEAD_TABLE;
        if (table == b->ntensors) continue;
        b->tail_segment = (uint32_t)(m->layout->blocks[i].tensors[table].offset_elems / SHORE_SEGMENT_ELEMS);
        b->tail_segments = m->layout->blocks[i].segments - b->tail_segment;
    }
    *out = m;
    return 0;
}

int shore__model_of_config(const struct shore__arch *arch, const json_t *config, struct shore__model **out,
                           struct shore_diag *diag) {
    int rc = shore__model_make(arch, out, diag);
    if (rc || ((*out)->kept = shore__config_keys_kept(config, arch->model_type))) return rc;
    shore__model_free(*out);
    return shore__fail(diag, -ENOMEM, "out of memory for the model's description");
}

json_t *shore__model_to_json(const struct shore__model *m, const struct shore__arch *arch) {
    json_t *config = shore__arch_to_json(arch);
    if (m->kept) json_object_update(config, m->kept);
    return config;
}

void shore__model_free(struct shore__model *m) {
    if (!m) return;
    json_decref(m->kept);
    for (uint32_t i = 0; m->blocks && i < m->nblocks; i++)
        for (uint32_t t = 0; t < m->blocks[i].ntensors; t++)
            for (uint32_t p = 0; p < m->blocks[i].tensors[t].nparts; p++)
                free(m->blocks[i].tensors[t].parts[p].name);
    shore_layout_free(m->layout);
    free(m->blocks);
    free(m);
}

struct shore__slice shore__model_slice(const struct shore__model *m, uint32_t i) {
    struct shore__slice s = {.first = i * m->slice_rows};
    s.rows = m->arch.vocab - s.first < m->slice_rows ? m->arch.vocab - s.first : m->slice_rows;
    uint64_t d = m->arch.d_model, end = (s.first + (uint64_t)s.rows) * d;
    s.segment = (uint32_t)(s.first * d / SHORE_SEGMENT_ELEMS);
    s.segments = (uint32_t)((end + SHORE_SEGMENT_ELEMS - 1) / SHORE_SEGMENT_ELEMS) - s.segment;
    return s;
}

/* ---- initial values ---------------------------------------------------------------------------------------------- */

void shore__model_init(const struct shore__model *m, uint64_t seed, uint32_t block, uint32_t segment, uint32_t count,
                       float *out) {
    uint64_t first = (uint64_t)segment * SHORE_SEGMENT_ELEMS, n = (uint64_t)count * SHORE_SEGMENT_ELEMS;
    memset(out, 0, n * sizeof *out);
    for (uint32_t t = 0; t < m->blocks[block].ntensors; t++) {
        const struct shore__model_tensor *tensor = &m->blocks[block].tensors[t];
        const struct shore_layout_tensor *place = &m->layout->blocks[block].tensors[t];
        uint64_t from = place->offset_elems > first ? place->offset_elems : first;
        uint64_t end = place->offset_elems + place->elems;
        if (end > first + n) end = first + n;
        if (from >= end) continue;
        if (!tensor->matrix) {
            bool gain = tensor->role == SHORE__NORM1_GAIN || tensor->role == SHORE__NORM2_GAIN ||
                        tensor->role == SHORE__NORMF_GAIN;
            for (uint64_t i = from; gain && i < end; i++)
                out[i - first] = 1;
            continue;
        }
        /* GPT-2: residual projections are scaled with the depth (Radford et al. 2019, section 2.3) */
        bool residual = tensor->role == SHORE__OUT_W || tensor->role == SHORE__DOWN_W;
        float std = m->arch.init_std * (residual ? 1 / sqrtf(2.0f * (float)m->arch.n_layer) : 1);
        uint64_t stream = (uint64_t)block * 16 + t + 1;
#pragma omp parallel for schedule(static)
        for (uint64_t i = from; i < end; i++)
            out[i - first] = std * shore__random_normal(seed, stream, i - place->offset_elems);
        if (tensor->role != SHORE__TOKEN_TABLE || m->arch.padding < 0) continue;
        uint64_t row = place->offset_elems + (uint64_t)m->arch.padding * tensor->cols;
        for (uint64_t i = row > from ? row : from; i < end && i < row + tensor->cols; i++)
            out[i - first] = 0;
    }
}
