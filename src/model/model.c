#include "model/model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/prng.h"
#include "model/adapters.h"
#include "model/families/families.h"

/* ---- tensors of each block --------------------------------------------------------------------------------------- */

static int add_part(struct shore__model_tensor *t, const char *prefix, const char *name, uint64_t rows, bool transposed,
                    uint32_t nslices) {
    struct shore__part *parts = realloc(t->parts, (t->nparts + 1u) * sizeof *parts), *p;
    if (!parts) return -ENOMEM;
    t->parts = parts;
    p = &parts[t->nparts];
    *p = (struct shore__part){NULL, t->rows, rows, transposed, nslices, nslices ? t->expert - 1 : 0};
    if (asprintf(&p->name, "%s%s", prefix, name) < 0) return -ENOMEM;
    t->nparts++;
    t->rows += rows;
    return 0;
}

/* Before the names of a text in a multimodal model, as published files have them. */
static const char *head_prefix(const struct shore__arch *a) {
    return a->wrapper ? SHORE__TEXT_PREFIX : "";
}

static int add(struct shore__model *m, struct shore__model_block *b, const struct shore__tensor_row *r, uint32_t expert,
               const char *prefix) {
    const struct shore__arch *a = &m->arch;
    const uint64_t widths[] = {1,
                               a->d_model,
                               a->d_ff,
                               m->attn_width,
                               m->kv_width,
                               m->qkv_width,
                               m->up_width,
                               a->n_head,
                               a->head_dim,
                               a->vocab,
                               a->max_positions,
                               a->experts,
                               a->expert_ff,
                               a->gated ? 2 * (uint64_t)a->expert_ff : a->expert_ff};
    if ((r->flag && !*((const bool *)a + r->flag)) || (r->role == SHORE__HEAD_TABLE && a->tied)) return 0;
    struct shore__model_tensor *tensors = realloc(b->tensors, (b->ntensors + 1u) * sizeof *tensors), *t;
    if (!tensors) return -ENOMEM;
    b->tensors = tensors;
    t = &tensors[b->ntensors++];
    *t = (struct shore__model_tensor){
        .role = r->role, .expert = expert, .cols = widths[r->cols], .matrix = r->cols != SHORE__WIDTH_ONE};
    uint64_t block = (uint64_t)(b - m->blocks), nth = b->ntensors;
    t->draws = nth <= 16 ? block * 16 + nth : nth << 32 | block;
    int rc = 0;
    for (uint32_t i = 0; !rc && i < 3 && r->parts[i].name; i++)
        rc = add_part(t, r->role == SHORE__HEAD_TABLE ? head_prefix(a) : prefix, r->parts[i].name,
                      widths[r->parts[i].rows], r->transposed, expert && m->family->stacked ? a->experts : 0);
    return rc;
}

static int add_experts(struct shore__model *m, struct shore__model_block *b, const char *prefix) {
    const struct shore__family *f = m->family;
    int rc = 0;
    for (uint32_t e = 0; e < m->arch.experts; e++) {
        char whole[80];
        uint32_t before = b->ntensors;
        if (f->stacked)
            snprintf(whole, sizeof whole, "%s%s", prefix, f->experts);
        else
            snprintf(whole, sizeof whole, "%s%s%u.", prefix, f->experts, e);
        for (size_t i = 0; !rc && i < f->ntensors; i++)
            if (f->tensors[i].where == SHORE__EXPERT) rc = add(m, b, &f->tensors[i], 1 + e, whole);
        m->expert_tensors = b->ntensors - before;
    }
    return rc;
}

static int add_all(struct shore__model *m) {
    const struct shore__family *f = m->family;
    int rc = 0;
    for (uint32_t b = 0; b < m->nblocks; b++) {
        enum shore__where where = b == 0 ? SHORE__EMBEDDING : b + 1 == m->nblocks ? SHORE__HEAD : SHORE__LAYER;
        char whole[48];
        snprintf(whole, sizeof whole, where == SHORE__LAYER ? "%s%s%s%u." : "%s%s", head_prefix(&m->arch), f->prefix,
                 f->layers, b - 1);
        for (size_t i = 0; !rc && i < f->ntensors; i++)
            if (f->tensors[i].where == where) rc = add(m, &m->blocks[b], &f->tensors[i], 0, whole);
        if (!rc && where == SHORE__LAYER) rc = add_experts(m, &m->blocks[b], whole);
    }
    return rc;
}

int shore__model_make(const struct shore__arch *arch, struct shore__model **out, struct shore_diag *diag) {
    /* Sums of products cannot overflow: the limits of shore__arch_from_json keep the largest far below 2^63. */
    struct shore__model *m = calloc(1, sizeof *m);
    if (!m) return shore__fail(diag, -ENOMEM, "out of memory for the model's description");
    m->arch = *arch;
    if (!arch->rotary_dim) m->arch.rotary_dim = arch->head_dim;
    m->family = shore__family_of(arch->model_type);
    m->nblocks = arch->n_layer + 2;
    m->ngroups = (1 + arch->experts) * SHORE__MODEL_GROUPS;
    m->attn_width = arch->n_head * arch->head_dim;
    m->kv_width = arch->n_kv_head * arch->head_dim;
    m->qkv_width = m->attn_width + 2 * m->kv_width;
    m->up_width = arch->gated ? 2 * arch->d_ff : arch->d_ff;
    for (uint32_t l = 1; l <= arch->n_layer && !arch->learned_positions; l++) {
        const struct shore__layer_kind *kind = shore__layer_kind(arch, l);
        if (!kind->unrotated && kind->rope >= m->nrotary) m->nrotary = kind->rope + 1u;
    }
    shore__layer_shape(m);
    m->blocks = calloc(m->nblocks, sizeof *m->blocks);
    int rc = m->blocks ? 0 : -ENOMEM;
    if (!rc) rc = add_all(m);
    if (!rc) rc = shore__model_lay_out(m);
    if (rc) {
        shore__model_free(m);
        return shore__fail(diag, rc, "the model's description cannot be laid out: %s", shore_error_text(rc));
    }
    uint32_t step = SHORE_SEGMENT_ELEMS, d = arch->d_model;
    for (uint32_t g = d; g % 2 == 0 && step > 1; g /= 2)
        step /= 2;
    uint32_t rows = (2048 + step / 2) / step * step;
    m->slice_rows = rows ? rows : step;
    if (m->slice_rows > arch->vocab) m->slice_rows = arch->vocab;
    m->nslices = (arch->vocab + m->slice_rows - 1) / m->slice_rows;
    *out = m;
    return 0;
}

int shore__model_of_config(const struct shore__arch *arch, const json_t *config, struct shore__model **out,
                           struct shore_diag *diag) {
    int rc = shore__model_make(arch, out, diag);
    if (rc || ((*out)->kept = shore__config_keys_kept(config, (*out)->family))) return rc;
    shore__model_free(*out);
    return shore__fail(diag, -ENOMEM, "out of memory for the model's description");
}

json_t *shore__model_to_json(const struct shore__model *m, const struct shore__arch *arch) {
    json_t *config = shore__arch_to_json(arch);
    json_t *text = arch->wrapper ? json_object_get(m->kept, "text_config") : NULL;
    if (m->kept) json_object_update(config, text ? text : m->kept);
    if (arch->wrapper) {
        json_t *whole = json_copy(m->kept);
        json_object_set_new(whole, "text_config", config);
        json_object_set(whole, "tie_word_embeddings", json_object_get(config, "tie_word_embeddings"));
        return whole;
    }
    return config;
}

void shore__model_free(struct shore__model *m) {
    if (!m) return;
    json_decref(m->kept);
    for (uint32_t i = 0; m->blocks && i < m->nblocks; i++) {
        for (uint32_t t = 0; t < m->blocks[i].ntensors; t++) {
            for (uint32_t p = 0; p < m->blocks[i].tensors[t].nparts; p++)
                free(m->blocks[i].tensors[t].parts[p].name);
            free(m->blocks[i].tensors[t].parts);
        }
        free(m->blocks[i].tensors);
    }
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
            bool ones = shore__is_gain(tensor->role) && m->arch.norm != SHORE__RMS_NORM_FROM_1;
            for (uint64_t i = from; ones && i < end; i++)
                out[i - first] = 1;
            continue;
        }
        if (tensor->role >= SHORE__ADAPTERS) {
            shore__adapters_init(tensor, seed, from - place->offset_elems, end - from, out + (from - first));
            continue;
        }
        /* GPT-2: residual projections are scaled with the depth (Radford et al. 2019, section 2.3) */
        bool residual =
            tensor->role == SHORE__OUT_W || tensor->role == SHORE__DOWN_W || tensor->role == SHORE__EXPERT_DOWN_W;
        float std = m->arch.init_std * (residual ? 1 / sqrtf(2.0f * (float)m->arch.n_layer) : 1);
#pragma omp parallel for schedule(static)
        for (uint64_t i = from; i < end; i++)
            out[i - first] = std * shore__random_normal(seed, tensor->draws, i - place->offset_elems);
        if (tensor->role != SHORE__TOKEN_TABLE || m->arch.padding < 0) continue;
        uint64_t row = place->offset_elems + (uint64_t)m->arch.padding * tensor->cols;
        for (uint64_t i = row > from ? row : from; i < end && i < row + tensor->cols; i++)
            out[i - first] = 0;
    }
}
