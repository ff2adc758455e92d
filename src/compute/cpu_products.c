/* Matrix products: by our own kernel where this processor has one, otherwise by oneDNN. */
#include "compute/cpu.h"

/* Whose strips read b packed: what is not to be packed is oneDNN's. */
static bool has_kernel(const struct shore__cpu *c, const struct shore__product *p) {
    return c->kernels->product && c->base.mode == SHORE__BF16 && p->pack != SHORE__PACK_NOTHING;
}
static size_t packed_bytes(const struct shore__cpu *c, const struct shore__product *p) {
    return shore__cpu_whole_pages(c->kernels->product_packed(p->k, p->n));
}
static size_t scratch_bytes(const struct shore__cpu *c, const struct shore__product *p) {
    return shore__cpu_whole_pages(c->kernels->product_scratch(p->k));
}
static size_t workspace_bytes(const struct shore__cpu *c, const struct shore__product *p) {
    return packed_bytes(c, p) + scratch_bytes(c, p) * (size_t)c->base.threads;
}

int shore__cpu_product_room(struct shore__cpu *c, const struct shore__product *p, size_t *bytes, size_t *packed,
                            struct shore_diag *diag) {
    if (!has_kernel(c, p)) return shore__onednn_product_room(c, p, bytes, packed, diag);
    *bytes = workspace_bytes(c, p);
    *packed = packed_bytes(c, p);
    return 0;
}

int shore__cpu_product_make(struct shore__cpu *c, const struct shore__product *p, struct shore_diag *diag) {
    return has_kernel(c, p) ? 0 : shore__onednn_product_make(c, p, diag);
}

static const void *pack(struct shore__cpu *c, const struct shore__product *p, const void *b) {
    /* The order depends on nothing else. */
    struct shore__product of = {.n = p->n, .k = p->k, .b_transposed = p->b_transposed, .pack = p->pack};
    bool there;
    char *to = shore__cpu_packed_place(c, &of, b, packed_bytes(c, p), &there);
    if (there) return to;
    SHORE__FOR_PART(c, p->n, SHORE__PRODUCT_PANEL, part) {
        c->kernels->product_pack(to, b, p->b_transposed, p->k, p->n, part.begin, part.end);
    }
    return to;
}

/* Threads take jobs as they come free: one that has to share its processor, with UPDATE say, takes fewer. A job is a
 * block of rows, or a group of their columns where that would be too few jobs. */
static void multiply(struct shore__cpu *c, const struct shore__product *p, void *dst, const void *a,
                     const void *packed_b, const float *bias) {
    /* Small jobs leave less to wait for at the end. But half as many rows to turn would take half lines of a, and more
     * groups turn them again. */
    size_t block_rows = p->a_transposed ? SHORE__PRODUCT_ROWS : SHORE__PRODUCT_ROWS / 2;
    size_t jobs = (p->a_transposed ? 2 : 64) * (size_t)c->base.threads;
    size_t blocks = (p->m + block_rows - 1) / block_rows, groups = (jobs + blocks - 1) / blocks;
    size_t panels = (p->n + SHORE__PRODUCT_PANEL - 1) / SHORE__PRODUCT_PANEL;
    if (groups > panels) groups = panels;
    char *scratch = c->workspace + packed_bytes(c, p);
#pragma omp parallel for num_threads(c->base.threads) schedule(dynamic)
    for (size_t i = 0; i < blocks * groups; i++) {
        size_t row = i / groups * block_rows;
        struct shore__part columns = shore__cpu_part_of(p->n, SHORE__PRODUCT_PANEL, i % groups, groups);
        struct shore__product_job job = {.c = dst,
                                         .a = a,
                                         .packed_b = packed_b,
                                         .bias = bias,
                                         .m = p->m,
                                         .n = p->n,
                                         .k = p->k,
                                         .row_begin = row,
                                         .row_end = row + block_rows < p->m ? row + block_rows : p->m,
                                         .column_begin = columns.begin,
                                         .column_end = columns.end,
                                         .a_transposed = p->a_transposed,
                                         .accumulate = p->accumulate,
                                         .f32_out = p->f32_out};
        shore__cpu_flush_to_zero();
        c->kernels->product(&job, scratch + (size_t)omp_get_thread_num() * scratch_bytes(c, p));
    }
}

int shore__cpu_product(struct shore__cpu *c, const struct shore__product *p, void *dst, const void *a, const void *b,
                       const float *bias) {
    if (p->m == 0 || p->n == 0) return 0;
    /* Too small for it: numbers of rows that prepare() was not told of; oneDNN takes them in pieces. */
    if (!has_kernel(c, p) || workspace_bytes(c, p) > c->workspace_bytes)
        return shore__onednn_product(c, p, dst, a, b, bias);
    multiply(c, p, dst, a, pack(c, p, b), bias);
    return 0;
}
