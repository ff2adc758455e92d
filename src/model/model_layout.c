/* The canonical layout of a model's blocks, and what follows from it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"

static void find_tails(struct shore__model *m) {
    for (uint32_t i = 0; i < m->nblocks; i++) {
        struct shore__model_block *b = &m->blocks[i];
        uint32_t table = b->tensors[0].role == SHORE__TOKEN_TABLE || b->tensors[0].role == SHORE__HEAD_TABLE;
        b->tail_segment = b->tail_segments = 0;
        if (table == b->ntensors) continue;
        b->tail_segment = (uint32_t)(m->layout->blocks[i].tensors[table].offset_elems / SHORE_SEGMENT_ELEMS);
        b->tail_segments = m->layout->blocks[i].segments - b->tail_segment;
    }
}

static void count_trained(struct shore__model *m) {
    uint32_t head = shore__model_head(m);
    m->parameters = m->layout->elems;
    m->trained = 0;
    for (uint32_t i = 0; i < m->nblocks; i++)
        for (uint32_t t = 0; t < m->blocks[i].ntensors; t++)
            m->trained += m->blocks[i].tensors[t].rests ? 0 : m->layout->blocks[i].tensors[t].elems;
    m->lowest = 1;
    while (shore__model_trained(m, 0) == UINT32_MAX && m->lowest < head &&
           shore__model_trained(m, m->lowest) == UINT32_MAX)
        m->lowest++;
}

static void name_block(const struct shore__model *m, uint32_t block, char name[32]) {
    uint32_t main = block;
    const char *what = "";
    if (block >= m->arch.n_layer + 2) {
        main = m->blocks[block].side;
        what = m->blocks[block].tensors[0].rests ? ", frozen" : ", trained";
    }
    if (main > 0 && main <= m->arch.n_layer)
        snprintf(name, 32, "layer %u%s", main - 1, what);
    else
        snprintf(name, 32, "%s%s", main ? "head" : "embedding", what);
}

int shore__model_lay_out(struct shore__model *m) {
    struct shore_block_spec *specs = calloc(m->nblocks, sizeof *specs);
    size_t ntensors = 0;
    for (uint32_t i = 0; i < m->nblocks; i++)
        ntensors += m->blocks[i].ntensors;
    struct shore_tensor_spec *tensors = calloc(ntensors, sizeof *tensors), *next = tensors;
    char(*names)[32] = calloc(m->nblocks, sizeof *names);
    int rc = specs && tensors && names ? 0 : -ENOMEM;
    for (uint32_t i = 0; !rc && i < m->nblocks; i++) {
        struct shore__model_block *b = &m->blocks[i];
        name_block(m, i, names[i]);
        specs[i] = (struct shore_block_spec){names[i], next, b->ntensors};
        memset(b->of_role, -1, sizeof b->of_role);
        for (uint32_t t = 0; t < b->ntensors; t++) {
            const struct shore__model_tensor *is = &b->tensors[t];
            if (b->of_role[is->role] < 0) b->of_role[is->role] = (int)t;
            *next++ = (struct shore_tensor_spec){is->parts[0].name, is->rows * is->cols,
                                                 is->rests ? SHORE_GROUP_RESTS
                                                           : is->expert * SHORE__MODEL_GROUPS + !is->matrix};
        }
    }
    shore_layout_free(m->layout);
    m->layout = NULL;
    if (!rc) rc = shore_layout_make(specs, m->nblocks, &m->layout);
    free(specs);
    free(tensors);
    free(names);
    if (rc) return rc;
    find_tails(m);
    count_trained(m);
    return 0;
}
