/* Linear layers as products, and the products that a model's shapes need. */
#include "compute/cpu.h"

/* From this many rows on, packing the weights for one product alone costs less than it saves. Fewer rows never pack,
 * whatever the memory, because the bits may depend on the order. */
#define PACK_FROM_ROWS 768

static enum shore__pack pack_weights(size_t rows) {
    return rows >= PACK_FROM_ROWS ? SHORE__PACK_WEIGHTS : SHORE__PACK_NOTHING;
}

static struct shore__product forward_product(size_t rows, size_t n, size_t k, bool w_is_nk) {
    return (struct shore__product){
        .m = rows, .n = n, .k = k, .b_transposed = w_is_nk, .bias = true, .pack = pack_weights(rows)};
}
static struct shore__product backward_x_product(size_t rows, size_t n, size_t k, bool w_is_nk) {
    return (struct shore__product){.m = rows, .n = k, .k = n, .b_transposed = !w_is_nk, .pack = pack_weights(rows)};
}
static struct shore__product backward_w_product(size_t rows, size_t n, size_t k, bool w_is_nk, bool add) {
    return (struct shore__product){.m = w_is_nk ? n : k,
                                   .n = w_is_nk ? k : n,
                                   .k = rows,
                                   .a_transposed = true,
                                   .accumulate = add,
                                   .f32_out = true,
                                   .pack = SHORE__PACK_ACTIVATIONS};
}

/* oneDNN reads a slice of the table equally fast in place. */
struct shore__product shore__cpu_head_logits_product(const struct shore__cpu *c, size_t rows, size_t n, size_t d) {
    return (struct shore__product){.m = rows,
                                   .n = n,
                                   .k = d,
                                   .b_transposed = true,
                                   .f32_out = true,
                                   .pack = c->product ? pack_weights(rows) : SHORE__PACK_NOTHING};
}
struct shore__product shore__cpu_head_backward_x_product(size_t rows, size_t n, size_t d) {
    return (struct shore__product){
        .m = rows, .n = d, .k = n, .accumulate = true, .f32_out = true, .pack = pack_weights(rows)};
}

int shore__cpu_linear(struct shore__compute *base, struct shore__stream *s, shore__buf y, shore__buf x, shore__buf w,
                      shore__buf bias, size_t rows, size_t n, size_t k, bool w_is_nk) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    struct shore__product p = forward_product(rows, n, k, w_is_nk);
    return shore__cpu_product(c, &p, shore__cpu_ptr(y), shore__cpu_ptr(x), shore__cpu_ptr(w), shore__cpu_ptr(bias));
}

int shore__cpu_linear_backward_x(struct shore__compute *base, struct shore__stream *s, shore__buf dx, shore__buf dy,
                                 shore__buf w, size_t rows, size_t n, size_t k, bool w_is_nk) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    struct shore__product p = backward_x_product(rows, n, k, w_is_nk);
    return shore__cpu_product(c, &p, shore__cpu_ptr(dx), shore__cpu_ptr(dy), shore__cpu_ptr(w), NULL);
}

int shore__cpu_linear_backward_w(struct shore__compute *base, struct shore__stream *s, shore__buf dw, shore__buf dy,
                                 shore__buf x, size_t rows, size_t n, size_t k, bool w_is_nk, bool add) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    struct shore__product p = backward_w_product(rows, n, k, w_is_nk, add);
    const void *a = shore__cpu_ptr(w_is_nk ? dy : x), *b = shore__cpu_ptr(w_is_nk ? x : dy);
    return shore__cpu_product(c, &p, shore__cpu_ptr(dw), a, b, NULL);
}

struct preparing {
    struct shore__cpu *c;
    struct shore_diag *diag;
    bool make;
    size_t most, packed;
};

/* Prepares a product. make: with its code. Otherwise only its scratch counts, so that a later call has room. */
static int want(struct preparing *w, struct shore__product p, bool make) {
    size_t bytes = 0, packed = 0;
    if (p.m == 0 || p.n == 0 || p.k == 0) return 0;
    int err = shore__cpu_product_room(w->c, &p, &bytes, &packed, w->diag);
    if (!err && make && w->make) err = shore__cpu_product_make(w->c, &p, w->diag);
    if (bytes > w->most) w->most = bytes;
    if (p.pack == SHORE__PACK_WEIGHTS) w->packed += packed;
    return err;
}

/* The first unit writes the gradients, the others add to them. A short unit next to full ones is never the first. */
static int want_backward_w(struct preparing *w, size_t rows, bool full, size_t n, size_t k, bool w_is_nk) {
    int err = full ? want(w, backward_w_product(rows, n, k, w_is_nk, false), true) : 0;
    return err ? err : want(w, backward_w_product(rows, n, k, w_is_nk, true), true);
}

static int want_linear(struct preparing *w, const struct shore__shapes *s, size_t n, size_t k, bool w_is_nk) {
    size_t rows[] = {s->unit_rows, s->short_rows};
    int err = want(w, forward_product(1, n, k, w_is_nk), false);
    for (int i = 0; i < 2 && !err; i++) {
        err = want(w, forward_product(rows[i], n, k, w_is_nk), true);
        if (!err && s->backward) err = want(w, backward_x_product(rows[i], n, k, w_is_nk), true);
        if (!err && s->backward) err = want_backward_w(w, rows[i], i == 0, n, k, w_is_nk);
    }
    return err;
}

static int want_head(struct preparing *w, const struct shore__shapes *s, size_t slice) {
    size_t rows[] = {s->unit_rows, s->short_rows}, d = s->d_model;
    int err = 0;
    for (int i = 0; i < 2 && !err; i++) {
        err = want(w, shore__cpu_head_logits_product(w->c, rows[i], slice, d), true);
        if (!err && s->backward) err = want(w, shore__cpu_head_backward_x_product(rows[i], slice, d), true);
        if (!err && s->backward) err = want_backward_w(w, rows[i], i == 0, slice, d, true);
    }
    return err;
}

int shore__cpu_products_room(struct shore__cpu *c, const struct shore__shapes *s, bool make, size_t *workspace_bytes,
                             size_t *packed_bytes, struct shore_diag *diag) {
    struct preparing w = {c, diag, make, 0, 0};
    int err = 0;
    for (uint32_t i = 0; !err && i < s->nlinear; i++)
        err = want_linear(&w, s, s->linear[i].n, s->linear[i].k, s->linear[i].w_is_nk);
    *packed_bytes = w.packed; /* of a layer: a single slice of the table takes their place */
    if (!err) err = want_head(&w, s, s->vocab_slice);
    if (!err && s->last_slice) err = want_head(&w, s, s->last_slice);
    *workspace_bytes = w.most;
    return err;
}
