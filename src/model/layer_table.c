#include "model/layer_table.h"

#include <assert.h>
#include <string.h>

#include "model/families/families.h"
#include "model/model.h"

static void widths(const struct shore__model *m, struct shore__layer_shape *s) {
    uint32_t *width = s->width, *fp32 = s->fp32, d = m->arch.d_model;
    width[SHORE__IN] = width[SHORE__OUT] = width[SHORE__MID] = d;
    width[SHORE__NORM1] = width[SHORE__NORM2] = d;
    width[SHORE__ATTN_OUT] = width[SHORE__FF_OUT] = d;
    width[SHORE__QKV] = width[SHORE__HEADS] = m->qkv_width;
    width[SHORE__ATTN] = m->attn_width;
    width[SHORE__UP] = m->up_width;
    width[SHORE__ACT] = m->arch.d_ff;
    fp32[SHORE__STATS1] = fp32[SHORE__STATS2] = 2;
    fp32[SHORE__ATTN_OUT_STATS] = fp32[SHORE__FF_OUT_STATS] = 2;
    fp32[SHORE__HEAD_STATS] = m->arch.heads_normed_together ? 4 : 2 * (m->arch.n_head + m->arch.n_kv_head);
    fp32[SHORE__LSE] = m->arch.n_head;
    const struct shore__routing r = shore__model_routing(m, SHORE__F32);
    uint32_t k = m->arch.experts_chosen, up = m->arch.gated ? 2 * m->arch.expert_ff : m->arch.expert_ff;
    width[SHORE__ROUTER] = m->arch.experts;
    fp32[SHORE__ROUTE] = (uint32_t)shore__route_elems(1, &r);
    width[SHORE__EXPERTS_IN] = width[SHORE__EXPERTS_OUT] = k * d;
    width[SHORE__EXPERTS_UP] = k * up;
    width[SHORE__EXPERTS_ACT] = k * m->arch.expert_ff;
    for (enum shore__activation v = 0; v < SHORE__VALUES; v++)
        s->times[v] = v >= SHORE__EXPERTS_IN ? k : 1;
}

static void save(struct shore__layer_shape *s, enum shore__activation v) {
    if (v == SHORE__NO_VALUE || v == SHORE__IN || v == SHORE__OUT || v == s->passing) return;
    for (uint32_t i = 0; i < s->nsaved; i++)
        if (s->saved[i] == v) return;
    s->saved[s->nsaved++] = v;
}

static void list_saved(struct shore__layer_shape *s) {
    for (uint32_t i = 0; i < s->nrows; i++)
        if (s->rows[i].op == SHORE__OP_SCATTER) s->passing = s->rows[i].in;
    for (int cheap = 0; cheap < 2; cheap++) {
        for (uint32_t i = 0; i < s->nrows; i++) {
            const struct shore__layer_row *row = &s->rows[i];
            if (row->cheap == cheap) save(s, row->out);
            if (!cheap) save(s, row->aux);
        }
        if (!cheap) s->ncostly = s->nsaved;
    }
}

/* Slots that are in use while backward passes through the rows. */
struct slots {
    struct shore__layer_shape *s;
    bool used[SHORE__LAYER_SLOTS];
};

static uint8_t take_slot(struct slots *slots, uint32_t width) {
    struct shore__layer_shape *s = slots->s;
    uint8_t i = 0;
    while (slots->used[i])
        i++;
    assert(i < SHORE__LAYER_SLOTS);
    slots->used[i] = true;
    if (i >= s->nslots) s->nslots = i + 1u;
    if (width > s->slot_width[i]) s->slot_width[i] = width;
    return i;
}

static bool is_made_before(const struct shore__layer_shape *s, uint32_t row) {
    for (uint32_t i = 0; i < row; i++)
        if (s->rows[i].out == s->rows[row].out) return true;
    return false;
}

static void place_gradients(struct shore__layer_shape *s) {
    enum { NOWHERE = 0xFE };
    struct slots slots = {.s = s};
    uint8_t at[SHORE__VALUES];
    memset(at, NOWHERE, sizeof at);
    at[SHORE__IN] = at[SHORE__OUT] = SHORE__IN_STREAM;
    for (uint32_t i = 0; i < s->nrows; i++)
        if (s->rows[i].op == SHORE__OP_ADD) at[s->rows[i].in] = at[s->rows[i].out] = SHORE__IN_STREAM;
    for (uint32_t i = s->nrows; i-- > 0;) {
        const struct shore__layer_row *row = &s->rows[i];
        if (row->op == SHORE__OP_HEAD_NORM) at[row->in] = at[row->out]; /* in place */
        bool adds = at[row->in] != NOWHERE;
        assert(at[row->out] != NOWHERE);
        if (!adds) at[row->in] = take_slot(&slots, s->width[row->in]);
        if (row->op == SHORE__OP_WEIGHTED) /* fp32 */
            at[SHORE__ROUTE] = s->gradient[i].through = take_slot(&slots, 2 * s->times[row->in]);
        s->gradient[i].out = at[row->out];
        s->gradient[i].in = at[row->in];
        s->gradient[i].adds = adds;
        if (adds && row->op == SHORE__OP_LINEAR) {
            s->gradient[i].through = take_slot(&slots, s->width[row->in]);
            slots.used[s->gradient[i].through] = false;
        }
        if (at[row->out] != SHORE__IN_STREAM && at[row->out] != at[row->in] && !is_made_before(s, i))
            slots.used[at[row->out]] = false;
    }
}

void shore__layer_shape(struct shore__model *m) {
    struct shore__layer_shape *s = &m->layer;
    *s = (struct shore__layer_shape){.rows = m->family->layer, .nrows = m->family->nlayer};
    assert(s->nrows <= SHORE__LAYER_ROWS);
    widths(m, s);
    list_saved(s);
    place_gradients(s);
}
