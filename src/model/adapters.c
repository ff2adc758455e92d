#include "model/adapters.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/prng.h"
#include "base/units.h"

static enum shore__role role_a(uint32_t adapter) {
    return SHORE__ADAPTERS + 2 * adapter;
}
static enum shore__role role_b(uint32_t adapter) {
    return SHORE__ADAPTERS + 2 * adapter + 1;
}

/* ---- which ------------------------------------------------------------------------------------------------------- */

size_t shore__module_bytes(const char *part) {
    const char *weight = strstr(part, ".weight");
    return weight ? (size_t)(weight - part) : strlen(part);
}

/* Whether a target is the module's name, or its end from a dot on. */
static bool is_target(const char *target, const char *module, size_t bytes) {
    size_t n = strlen(target);
    return n && n <= bytes && memcmp(module + bytes - n, target, n) == 0 &&
           (n == bytes || module[bytes - n - 1] == '.');
}

static bool is_wanted(const struct shore__lora *lora, bool *used, const char *part) {
    const struct shore__newer_name newer = shore__newer_name(part);
    bool wanted = lora->ntargets == 0;
    for (size_t i = 0; i < lora->ntargets; i++)
        if (is_target(lora->targets[i], part, shore__module_bytes(part)) ||
            is_target(lora->targets[i], newer.text, shore__module_bytes(newer.text)))
            wanted = used[i] = true;
    return wanted;
}

/* Whether experts are chosen by what a row makes: no module of PEFT's kind makes it in every transformers. */
static bool routes(const struct shore__model *m, const struct shore__layer_row *row) {
    for (uint32_t i = 0; i < m->layer.nrows; i++)
        if (m->layer.rows[i].op == SHORE__OP_ROUTE && m->layer.rows[i].in == row->out) return true;
    return false;
}

/* The product with a weight; NULL: there is none of the kind that adapters go beside. */
static const struct shore__layer_row *product_of(const struct shore__model *m, enum shore__role weight) {
    for (uint32_t i = 0; i < m->layer.nrows; i++) {
        const struct shore__layer_row *row = &m->layer.rows[i];
        if (row->op == SHORE__OP_LINEAR && row->weight == weight && !routes(m, row)) return row;
    }
    return NULL;
}

/* Whether a list with ", " between its names has one. */
static bool is_listed(const char *list, const char *name, size_t bytes) {
    for (; *list; list += strcspn(list, ","), list += strspn(list, ", "))
        if (strcspn(list, ",") == bytes && memcmp(list, name, bytes) == 0) return true;
    return false;
}

struct names {
    char text[512];
};
/* Which modules can be targets. */
static struct names targets_of(const struct shore__model *m) {
    struct names list = {""};
    const struct shore__model_block *b = &m->blocks[1];
    for (uint32_t t = 0; t < b->ntensors; t++)
        for (uint32_t i = 0; i < b->tensors[t].nparts && product_of(m, b->tensors[t].role); i++) {
            const char *name = b->tensors[t].parts[i].name;
            int end = (int)shore__module_bytes(name), from = end;
            while (from && name[from - 1] != '.')
                from--;
            if (!is_listed(list.text, name + from, (size_t)(end - from)))
                shore__append(list.text, sizeof list.text, "%s%.*s", *list.text ? ", " : "", end - from, name + from);
        }
    return list;
}

static int refuse_target(const struct shore__model *m, const char *target, struct shore_diag *diag) {
    return shore__fail(diag, SHORE_EUSAGE, "lora: the target '%s' is no product of the layers, which are %s",
                       shore__shown(target).text, targets_of(m).text);
}

/* The number of a part's adapter, which is the same in all layers. */
static int number_of(struct shore__model *m, const struct shore__model_tensor *t, const struct shore__part *p,
                     uint32_t *number, struct shore_diag *diag) {
    const struct shore__layer_row *row = product_of(m, t->role);
    struct shore__adapters *all = &m->adapters;
    if (!row)
        return shore__fail(diag, SHORE_EUSAGE,
                           "lora: %.*s is no plain product of the layers, beside which adapters go: those are %s",
                           (int)shore__module_bytes(p->name), p->name, targets_of(m).text);
    const struct shore__adapter_place is = {.weight = t->role,
                                            .first = row->input_major ? 0 : (uint32_t)p->row,
                                            .out = (uint32_t)(row->input_major ? t->cols : p->rows),
                                            .in = (uint32_t)(row->input_major ? t->rows : t->cols)};
    for (*number = 0; *number < all->count; ++*number)
        if (all->of[*number].weight == is.weight && all->of[*number].first == is.first) return 0;
    if (all->count == SHORE__ADAPTERS_MOST)
        return shore__fail(diag, SHORE_EUSAGE, "lora: a layer takes %u adapters at most", SHORE__ADAPTERS_MOST);
    if (all->rank > is.in || all->rank > is.out)
        return shore__fail(diag, SHORE_EUSAGE,
                           "lora: a rank is at most the width of the matrices, and %.*s is %u by %u",
                           (int)shore__module_bytes(p->name), p->name, is.out, is.in);
    all->of[all->count++] = is;
    return 0;
}

static int add_tensor(struct shore__model_block *side, enum shore__role role, uint64_t rows, uint64_t cols,
                      const struct shore__part *of, const char *end) {
    struct shore__model_tensor *t = &side->tensors[side->ntensors];
    *t = (struct shore__model_tensor){.role = role, .rows = rows, .cols = cols, .matrix = true};
    if (!(t->parts = calloc(1, sizeof *t->parts))) return -ENOMEM;
    side->ntensors++;
    t->nparts = 1;
    t->draws = 1u << 31 | side->side << 6 | (role - SHORE__ADAPTERS);
    t->parts[0] = (struct shore__part){.rows = rows};
    const struct shore__newer_name name = shore__newer_name(of->name);
    int n =
        asprintf(&t->parts[0].name, SHORE__PEFT_PREFIX "%.*s%s", (int)shore__module_bytes(name.text), name.text, end);
    if (n < 0) t->parts[0].name = NULL;
    return n < 0 ? -ENOMEM : 0;
}

/* Adds the adapters of a layer, in a block of their own. */
static int adapt_layer(struct shore__model *m, uint32_t layer, const struct shore__lora *lora, bool *used,
                       struct shore_diag *diag) {
    struct shore__model_block *b = &m->blocks[layer], *side = &m->blocks[m->nblocks];
    *side = (struct shore__model_block){.side = layer};
    side->tensors = calloc(2 * SHORE__ADAPTERS_MOST, sizeof *side->tensors);
    if (!side->tensors) return shore__out_of_memory(diag);
    b->side = m->nblocks++;
    for (uint32_t t = 0; t < b->ntensors; t++)
        for (uint32_t i = 0; b->tensors[t].matrix && i < b->tensors[t].nparts; i++) {
            const struct shore__part *p = &b->tensors[t].parts[i];
            uint32_t n = 0;
            if (!is_wanted(lora, used, p->name)) continue;
            int rc = number_of(m, &b->tensors[t], p, &n, diag);
            if (rc) return rc;
            const struct shore__adapter_place *a = &m->adapters.of[n];
            rc = add_tensor(side, role_a(n), lora->rank, a->in, p, SHORE__PEFT_A);
            if (!rc) rc = add_tensor(side, role_b(n), a->out, lora->rank, p, SHORE__PEFT_B);
            if (rc) return shore__out_of_memory(diag);
        }
    if (side->ntensors) return 0;
    free(side->tensors);
    *side = (struct shore__model_block){.side = 0};
    b->side = 0;
    m->nblocks--;
    return 0;
}

int shore__model_adapt(struct shore__model *m, const struct shore__lora *lora, struct shore_diag *diag) {
    uint32_t layers = m->arch.n_layer;
    bool *used = calloc(lora->ntargets + 1, sizeof *used);
    struct shore__model_block *grown = realloc(m->blocks, (m->nblocks + (size_t)layers) * sizeof *grown);
    if (grown) m->blocks = grown;
    int rc = used && grown ? 0 : shore__out_of_memory(diag);
    m->adapters.rank = lora->rank;
    m->adapters.scale = (float)(lora->alpha / (lora->rslora ? sqrt(lora->rank) : lora->rank));
    for (uint32_t b = 0; !rc && b < m->nblocks; b++)
        for (uint32_t t = 0; t < m->blocks[b].ntensors; t++)
            m->blocks[b].tensors[t].rests = true;
    for (uint32_t l = 1; !rc && l <= layers; l++)
        rc = adapt_layer(m, l, lora, used, diag);
    for (size_t i = 0; !rc && i < lora->ntargets; i++)
        if (!used[i]) rc = refuse_target(m, lora->targets[i], diag);
    free(used);
    if (rc) return rc;
    rc = shore__model_lay_out(m);
    return rc ? shore__fail(diag, rc, "the model's description cannot be laid out: %s", shore_error_text(rc)) : 0;
}

void shore__adapters_init(const struct shore__model_tensor *t, uint64_t seed, uint64_t from, uint64_t count,
                          float *out) {
    const double bound = 1 / sqrt((double)t->cols);
    bool b = (t->role - SHORE__ADAPTERS) % 2;
    for (uint64_t i = 0; i < count; i++)
        out[i] = b ? 0 : (float)(bound * (2 * shore__random_unit(seed, t->draws, from + i) - 1));
}

/* ---- mathematics ------------------------------------------------------------------------------------------------- */

static size_t widest(const struct shore__model *m) {
    size_t most = 0;
    for (uint32_t i = 0; i < m->adapters.count; i++) {
        const struct shore__adapter_place *a = &m->adapters.of[i];
        if (a->in > most) most = a->in;
        if (a->out > most) most = a->out;
    }
    return most;
}

size_t shore__adapters_bytes(const struct shore__model *m, enum shore__mode mode, size_t rows) {
    size_t each = shore__mode_bytes(mode);
    return m->adapters.count
               ? 2 * shore__line_bytes(rows * m->adapters.rank * each) + shore__line_bytes(rows * widest(m) * each)
               : 0;
}

/* Scratch of one adapter: thin [rows, rank], twice; wide [rows, in or out]. */
struct scratch {
    shore__buf thin[2], wide;
};
static struct scratch scratch_of(const struct shore__layer_call *l) {
    size_t thin = shore__line_bytes(l->rows * l->m->adapters.rank * shore__mode_bytes(l->c->mode));
    return (struct scratch){{l->adapting, shore__at(l->adapting, thin)}, shore__at(l->adapting, 2 * thin)};
}

int shore__adapters_add(const struct shore__layer_call *l, enum shore__role weight, shore__buf y, size_t width,
                        shore__buf x) {
    const struct shore__compute_ops *op = l->c->ops;
    const struct shore__adapters *all = &l->m->adapters;
    for (uint32_t i = 0; i < all->count; i++) {
        const struct shore__adapter_place *is = &all->of[i];
        shore__buf a = l->w->role[role_a(i)], b = l->w->role[role_b(i)];
        if (is->weight != weight || shore__buf_is_none(a)) continue;
        struct scratch s = scratch_of(l);
        SHORE__TRY(op->linear(l->c, l->s, s.thin[0], x, a, SHORE__NO_BUF, l->rows, all->rank, is->in, true));
        SHORE__TRY(op->linear(l->c, l->s, s.wide, s.thin[0], b, SHORE__NO_BUF, l->rows, is->out, all->rank, true));
        SHORE__TRY(op->scale(l->c, l->s, s.wide, all->scale, l->rows * is->out));
        SHORE__TRY(op->columns_add(l->c, l->s, y, s.wide, l->rows, width, is->first, is->out));
    }
    return 0;
}

int shore__adapters_backward(const struct shore__layer_call *l, const struct shore__gradients *g,
                             enum shore__role weight, shore__buf dy, size_t width, shore__buf x, shore__buf dx) {
    const struct shore__compute_ops *op = l->c->ops;
    const struct shore__adapters *all = &l->m->adapters;
    for (uint32_t i = 0; i < all->count; i++) {
        const struct shore__adapter_place *is = &all->of[i];
        shore__buf a = l->w->role[role_a(i)], b = l->w->role[role_b(i)], thin, dthin;
        if (is->weight != weight || shore__buf_is_none(a)) continue;
        struct scratch s = scratch_of(l);
        thin = s.thin[0], dthin = s.thin[1];
        SHORE__TRY(op->linear(l->c, l->s, thin, x, a, SHORE__NO_BUF, l->rows, all->rank, is->in, true));
        SHORE__TRY(op->columns_take(l->c, l->s, s.wide, dy, l->rows, width, is->first, is->out));
        SHORE__TRY(op->scale(l->c, l->s, s.wide, all->scale, l->rows * is->out));
        SHORE__TRY(op->linear_backward_w(l->c, l->s, g->role[role_b(i)], s.wide, thin, l->rows, is->out, all->rank,
                                         true, g->add));
        SHORE__TRY(op->linear_backward_x(l->c, l->s, dthin, s.wide, b, l->rows, is->out, all->rank, true));
        SHORE__TRY(
            op->linear_backward_w(l->c, l->s, g->role[role_a(i)], dthin, x, l->rows, all->rank, is->in, true, g->add));
        SHORE__TRY(op->linear_backward_x(l->c, l->s, s.wide, dthin, a, l->rows, all->rank, is->in, true));
        SHORE__TRY(op->add(l->c, l->s, dx, dx, s.wide, l->rows * is->in));
    }
    return 0;
}
