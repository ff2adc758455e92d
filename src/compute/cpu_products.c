/* Matrix products: by our own kernel if this processor has one, otherwise by oneDNN. */
#include "compute/cpu.h"

/* With fewer rows of activations, packing takes longer than it saves. With more, oneDNN's products for AVX2 are as fast
 * or faster. */
#define F32_FROM_ROWS 48
#define F32_UNTIL_ROWS 768

/* oneDNN multiplies bf16 operands in bf16 only. */
static bool ours_alone(const struct shore__cpu *c) {
    return c->base.mode == SHORE__BF16 && !c->bf16_products;
}
/* NULL: oneDNN's product. */
static const struct shore__product_kernel *kernel_for(const struct shore__cpu *c, const struct shore__product *p) {
    const struct shore__product_kernel *kernel = c->product;
    if (p->k == 0) return NULL;
    if (ours_alone(c)) return kernel;
    if (!kernel || kernel->packed) return p->pack != SHORE__PACK_NOTHING ? kernel : NULL;
    size_t rows = p->a_transposed ? p->k : p->m;
    return rows >= F32_FROM_ROWS && rows < F32_UNTIL_ROWS ? kernel : NULL;
}
bool shore__cpu_product_allocates(const struct shore__cpu *c, size_t rows) {
    const struct shore__product p = {.m = rows, .n = 1, .k = 1, .pack = SHORE__PACK_WEIGHTS};
    return rows && !shore__can_multiply_bf16() && !kernel_for(c, &p);
}

/* Blocks of rows: one job each, or several jobs that share the block's columns. */
static size_t blocks_of(const struct shore__cpu *c, const struct shore__product_kernel *kernel,
                        const struct shore__product *p) {
    size_t threads = (size_t)c->base.threads, strips = (p->m + kernel->strip - 1) / kernel->strip;
    size_t rows = kernel->job_size(p->k, p->a_transposed).rows, blocks = (p->m + rows - 1) / rows;
    size_t even = (blocks + threads - 1) / threads * threads; /* the same number for each thread */
    return even <= strips && (even - blocks) * 4 <= blocks ? even : blocks;
}
/* 0: not packed in advance. If only one block reads B, its jobs pack it. */
static size_t packed_bytes(const struct shore__cpu *c, const struct shore__product_kernel *kernel,
                           const struct shore__product *p) {
    if (!kernel->packed || (kernel->packs_too && blocks_of(c, kernel, p) == 1)) return 0;
    return shore__cpu_whole_pages(kernel->packed(p->k, p->n));
}
static size_t scratch_bytes(const struct shore__product_kernel *kernel, const struct shore__product *p) {
    return shore__cpu_whole_pages(kernel->scratch(p->k));
}
static size_t workspace_bytes(const struct shore__cpu *c, const struct shore__product_kernel *kernel,
                              const struct shore__product *p) {
    return packed_bytes(c, kernel, p) + scratch_bytes(kernel, p) * (size_t)c->base.threads;
}

int shore__cpu_product_room(struct shore__cpu *c, const struct shore__product *p, size_t *bytes, size_t *packed,
                            struct shore_diag *diag) {
    const struct shore__product_kernel *kernel = kernel_for(c, p);
    /* Prompts bring numbers of rows that make() does not know; some of them use this kernel. */
    struct shore__product other = *p;
    if (!other.a_transposed) other.m = F32_FROM_ROWS;
    const struct shore__product_kernel *for_other = kernel_for(c, &other);
    int err = 0;
    *bytes = 0;
    if (kernel)
        *packed = packed_bytes(c, kernel, p);
    else
        err = shore__onednn_product_room(c, p, bytes, packed, diag);
    if (for_other && workspace_bytes(c, for_other, p) > *bytes) *bytes = workspace_bytes(c, for_other, p);
    return err;
}

int shore__cpu_product_make(struct shore__cpu *c, const struct shore__product *p, struct shore_diag *diag) {
    return kernel_for(c, p) ? 0 : shore__onednn_product_make(c, p, diag);
}

static const void *pack(struct shore__cpu *c, const struct shore__product_kernel *kernel,
                        const struct shore__product *p, const void *b, size_t bytes) {
    /* The order depends on nothing else. */
    struct shore__product of = {.n = p->n, .k = p->k, .b_transposed = p->b_transposed, .pack = p->pack};
    bool there;
    char *to = shore__cpu_packed_room(c, &of, b, bytes, &there);
    if (there) return to;
    SHORE__FOR_PART(c, p->n, kernel->panel, part) {
        kernel->pack(to, b, c->base.mode, p->b_transposed, p->k, p->n, part.begin, part.end);
    }
    return to;
}

/* Multiplies in jobs that threads take as they become free: a thread that shares its processor, for example with
 * UPDATE, takes fewer. A job is a block of rows, or a group of its columns if blocks alone would be too few jobs. */
static void multiply(struct shore__cpu *c, const struct shore__product_kernel *kernel, const struct shore__product *p,
                     void *dst, const void *a, const void *b, const float *bias, size_t packed) {
    size_t threads = (size_t)c->base.threads, blocks = blocks_of(c, kernel, p);
    size_t groups = (kernel->job_size(p->k, p->a_transposed).jobs * threads + blocks - 1) / blocks;
    size_t panels = (p->n + kernel->panel - 1) / kernel->panel;
    if (groups > panels) groups = panels;
    if (packed) b = pack(c, kernel, p, b, packed);
    char *scratch = c->workspace + packed;
#pragma omp parallel for num_threads(c->base.threads) schedule(dynamic)
    for (size_t i = 0; i < blocks * groups; i++) {
        struct shore__part rows = shore__cpu_part_of(p->m, kernel->strip, i / groups, blocks);
        struct shore__part columns = shore__cpu_part_of(p->n, kernel->panel, i % groups, groups);
        struct shore__product_job job = {.c = dst,
                                         .a = a,
                                         .b = b,
                                         .bias = bias,
                                         .m = p->m,
                                         .n = p->n,
                                         .k = p->k,
                                         .row_begin = rows.begin,
                                         .row_end = rows.end,
                                         .column_begin = columns.begin,
                                         .column_end = columns.end,
                                         .packed = packed > 0,
                                         .a_transposed = p->a_transposed,
                                         .b_transposed = p->b_transposed,
                                         .accumulate = p->accumulate,
                                         .mode = c->base.mode,
                                         .c_mode = p->f32_out ? SHORE__F32 : c->base.mode};
        shore__cpu_flush_to_zero();
        kernel->run(&job, scratch + (size_t)omp_get_thread_num() * scratch_bytes(kernel, p));
    }
}

int shore__cpu_product(struct shore__cpu *c, const struct shore__product *p, void *dst, const void *a, const void *b,
                       const float *bias) {
    if (p->m == 0 || p->n == 0) return 0;
    const struct shore__product_kernel *kernel = kernel_for(c, p);
    if (kernel) {
        size_t jobs = scratch_bytes(kernel, p) * (size_t)c->base.threads, packed = packed_bytes(c, kernel, p);
        if (kernel->packs_too && packed + jobs > c->workspace_bytes) packed = 0;
        if (packed + jobs <= c->workspace_bytes) {
            multiply(c, kernel, p, dst, a, b, bias, packed);
            return 0;
        }
    }
    /* Also for numbers of rows that make() did not know and that have no room: oneDNN takes them in parts. */
    return shore__onednn_product(c, p, dst, a, b, bias);
}
