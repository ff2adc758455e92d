/* Products of experts: as many as there are experts with rows, each of other rows, so no code is made for them. Our
 * kernels take any number of rows. A job is some columns of one expert's product: a thread packs them, if the kernel
 * reads packed columns, and multiplies all rows. Where oneDNN alone multiplies, an expert's rows are taken in powers of
 * two, so that it makes few primitives, each when it is first needed. */
#include <stdlib.h>
#include <string.h>

#include "compute/cpu.h"

#define COLUMNS_BYTES ((size_t)256 << 10) /* packed columns of a job, which stay in the second-level cache */

enum which { FORWARD, BACKWARD_X, BACKWARD_W };

struct product {
    enum which which;
    size_t n, k;
    bool w_is_nk, add;
    char *y, *x, *w; /* in the places that they have in the forward product */
    const float *bias;
    const int32_t *first; /* of the experts' rows */
    const struct shore__routing *routing;
};

static struct shore__product of_rows(const struct product *g, size_t rows) {
    if (g->which == FORWARD)
        return (struct shore__product){.m = rows, .n = g->n, .k = g->k, .b_transposed = g->w_is_nk, .bias = true};
    if (g->which == BACKWARD_X)
        return (struct shore__product){.m = rows, .n = g->k, .k = g->n, .b_transposed = !g->w_is_nk};
    return (struct shore__product){.m = g->w_is_nk ? g->n : g->k,
                                   .n = g->w_is_nk ? g->k : g->n,
                                   .k = rows,
                                   .a_transposed = true,
                                   .accumulate = g->add,
                                   .f32_out = true};
}

/* What the product of an expert's rows from `row` on (of all rows in experts' order) reads and writes. */
struct operands {
    char *c;
    const char *a, *b;
    const float *bias;
};
static struct operands of_expert(const struct shore__cpu *c, const struct product *g, size_t expert, size_t row) {
    size_t e = shore__mode_bytes(c->base.mode), weights = expert * g->routing->stride;
    char *y = g->y + row * g->n * e, *x = g->x + row * g->k * e;
    if (g->which == FORWARD)
        return (struct operands){y, x, g->w + weights * e, g->bias ? g->bias + expert * g->routing->bias_stride : NULL};
    if (g->which == BACKWARD_X) return (struct operands){x, y, g->w + weights * e, NULL};
    return (struct operands){g->w + weights * sizeof(float), g->w_is_nk ? y : x, g->w_is_nk ? x : y, NULL};
}

/* ---- with our kernel --------------------------------------------------------------------------------------------- */

/* Columns of a job: whole panels. */
static size_t columns_of(const struct shore__product_kernel *kernel, size_t k) {
    size_t panel = kernel->packed ? kernel->packed(k, kernel->panel) : k * kernel->panel * sizeof(float);
    size_t panels = COLUMNS_BYTES / (panel ? panel : 1);
    return kernel->panel * (panels ? panels : 1);
}
static size_t job_bytes(const struct shore__product_kernel *kernel, size_t k) {
    size_t packed = kernel->packed ? kernel->packed(k, columns_of(kernel, k)) : 0;
    return shore__cpu_whole_pages(packed) + shore__cpu_whole_pages(kernel->scratch(k));
}

static void run_job(const struct shore__cpu *c, const struct product *g, size_t expert, size_t begin, char *room) {
    const struct shore__product_kernel *kernel = c->product;
    const size_t first = (size_t)g->first[expert], rows = (size_t)g->first[expert + 1] - first;
    const struct shore__product p = of_rows(g, rows);
    const struct operands o = of_expert(c, g, expert, first);
    size_t columns = columns_of(kernel, p.k), end = p.n - begin < columns ? p.n : begin + columns;
    size_t most = kernel->job_size(p.k, p.a_transposed).rows;
    const char *b = o.b;
    if (kernel->packed) {
        /* where the packed matrix would begin if it were whole */
        char *packed = (char *)((uintptr_t)room - kernel->packed(p.k, begin));
        kernel->pack(packed, o.b, c->base.mode, p.b_transposed, p.k, p.n, begin, end);
        b = packed;
        room += shore__cpu_whole_pages(kernel->packed(p.k, columns));
    }
    for (size_t row = 0; row < p.m; row += most) {
        const struct shore__product_job job = {.c = o.c,
                                               .a = o.a,
                                               .b = b,
                                               .bias = o.bias,
                                               .m = p.m,
                                               .n = p.n,
                                               .k = p.k,
                                               .row_begin = row,
                                               .row_end = p.m - row < most ? p.m : row + most,
                                               .column_begin = begin,
                                               .column_end = end,
                                               .packed = kernel->packed != NULL,
                                               .a_transposed = p.a_transposed,
                                               .b_transposed = p.b_transposed,
                                               .accumulate = p.accumulate,
                                               .mode = c->base.mode,
                                               .c_mode = p.f32_out ? SHORE__F32 : c->base.mode};
        kernel->run(&job, room);
    }
}

static void run_jobs(const struct shore__cpu *c, const struct product *g) {
    size_t last[SHORE__EXPERTS_MOST], jobs = 0, bytes = c->workspace_bytes / (size_t)c->base.threads / 4096 * 4096;
    for (size_t e = 0; e < g->routing->experts; e++) {
        size_t rows = (size_t)(g->first[e + 1] - g->first[e]);
        const struct shore__product p = of_rows(g, rows);
        size_t columns = rows ? columns_of(c->product, p.k) : 1;
        last[e] = jobs += rows ? (p.n + columns - 1) / columns : 0;
    }
#pragma omp parallel for num_threads(c->base.threads) schedule(dynamic)
    for (size_t i = 0; i < jobs; i++) {
        size_t e = 0;
        while (last[e] <= i)
            e++;
        size_t k = of_rows(g, (size_t)(g->first[e + 1] - g->first[e])).k;
        shore__cpu_flush_to_zero();
        run_job(c, g, e, (i - (e ? last[e - 1] : 0)) * columns_of(c->product, k),
                c->workspace + (size_t)omp_get_thread_num() * bytes);
    }
}

/* ---- with oneDNN's ----------------------------------------------------------------------------------------------- */

static int run_onednn(struct shore__cpu *c, struct product g) {
    const bool add = g.add;
    int err = 0;
    for (size_t e = 0; e < g.routing->experts; e++) {
        g.add = add;
        for (size_t row = (size_t)g.first[e], end = (size_t)g.first[e + 1], n; !err && row < end; row += n) {
            for (n = 1; 2 * n <= end - row;)
                n *= 2;
            const struct shore__product p = of_rows(&g, n);
            const struct operands o = of_expert(c, &g, e, row);
            err = shore__onednn_product(c, &p, o.c, o.a, o.b, o.bias);
            g.add = true;
        }
    }
    return err;
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

static int run(struct shore__cpu *c, const struct product *g) {
    SHORE__CPU_SCOPE(c);
    if (g->which == BACKWARD_W && !g->add) /* of experts without rows */
        for (size_t e = 0; e < g->routing->experts; e++)
            if (g->first[e] == g->first[e + 1])
                shore__cpu_zero(&c->base, NULL, (shore__buf){(uintptr_t)of_expert(c, g, e, 0).c}, g->n * g->k * 4);
    if (!c->product) return run_onednn(c, *g);
    run_jobs(c, g);
    return 0;
}

static const int32_t *first_of(shore__buf route, size_t rows, const struct shore__routing *r) {
    return (const int32_t *)shore__cpu_ptr(route) + shore__route_at(SHORE__ROUTE_FIRST, rows, r);
}

int shore__cpu_experts_linear(struct shore__compute *base, struct shore__stream *s, shore__buf y, shore__buf x,
                              shore__buf w, shore__buf bias, shore__buf route, size_t rows, size_t n, size_t k,
                              bool w_is_nk, const struct shore__routing *r) {
    const struct product g = {.which = FORWARD,
                              .n = n,
                              .k = k,
                              .w_is_nk = w_is_nk,
                              .y = shore__cpu_ptr(y),
                              .x = shore__cpu_ptr(x),
                              .w = shore__cpu_ptr(w),
                              .bias = shore__cpu_ptr(bias),
                              .first = first_of(route, rows, r),
                              .routing = r};
    return run(shore__cpu_of(base), &g);
}

int shore__cpu_experts_linear_backward_x(struct shore__compute *base, struct shore__stream *s, shore__buf dx,
                                         shore__buf dy, shore__buf w, shore__buf route, size_t rows, size_t n, size_t k,
                                         bool w_is_nk, const struct shore__routing *r) {
    const struct product g = {.which = BACKWARD_X,
                              .n = n,
                              .k = k,
                              .w_is_nk = w_is_nk,
                              .y = shore__cpu_ptr(dy),
                              .x = shore__cpu_ptr(dx),
                              .w = shore__cpu_ptr(w),
                              .first = first_of(route, rows, r),
                              .routing = r};
    return run(shore__cpu_of(base), &g);
}

int shore__cpu_experts_linear_backward_w(struct shore__compute *base, struct shore__stream *s, shore__buf dw,
                                         shore__buf dy, shore__buf x, shore__buf route, size_t rows, size_t n, size_t k,
                                         bool w_is_nk, bool add, const struct shore__routing *r) {
    const struct product g = {.which = BACKWARD_W,
                              .n = n,
                              .k = k,
                              .w_is_nk = w_is_nk,
                              .add = add,
                              .y = shore__cpu_ptr(dy),
                              .x = shore__cpu_ptr(x),
                              .w = shore__cpu_ptr(dw),
                              .first = first_of(route, rows, r),
                              .routing = r};
    return run(shore__cpu_of(base), &g);
}

int shore__cpu_experts_bias_backward(struct shore__compute *base, struct shore__stream *s, shore__buf db, shore__buf dy,
                                     shore__buf route, size_t rows, size_t n, const struct shore__routing *r) {
    const int32_t *first = first_of(route, rows, r);
    int err = 0;
    for (size_t e = 0; !err && e < r->experts; e++)
        err = shore__cpu_bias_backward(base, s, shore__at(db, e * r->stride * sizeof(float)),
                                       shore__at(dy, (size_t)first[e] * n * shore__mode_bytes(base->mode)),
                                       (size_t)(first[e + 1] - first[e]), n);
    return err;
}

int shore__cpu_experts_room(struct shore__cpu *c, const struct shore__shapes *s, size_t *bytes,
                            struct shore_diag *diag) {
    const size_t widths[][2] = {{s->expert_up, s->d_model}, {s->d_model, s->expert_ff}};
    int err = 0;
    *bytes = 0;
    for (size_t i = 0; s->experts && i < 2; i++)
        for (enum which which = FORWARD; !err && which <= (s->backward ? BACKWARD_W : FORWARD); which++) {
            /* an expert may have any number of rows; only gradients of weights sum over them */
            struct product g = {.which = which, .n = widths[i][0], .k = widths[i][1], .w_is_nk = i == 0, .add = true};
            for (size_t rows = 1; !err && rows <= s->unit_rows; rows += c->product ? 1 : rows) {
                const struct shore__product p = of_rows(&g, rows);
                size_t room = 0, packed;
                if (c->product)
                    room = job_bytes(c->product, p.k) * (size_t)c->base.threads;
                else
                    err = shore__onednn_product_room(c, &p, &room, &packed, diag);
                if (room > *bytes) *bytes = room;
                if (c->product && which != BACKWARD_W) break;
            }
        }
    return err;
}
