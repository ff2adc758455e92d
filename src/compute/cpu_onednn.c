/* Matrix products by oneDNN's matmul: a table of primitives, made once for each shape.
 *
 * Operands are contiguous, plain or (B alone) packed, so that oneDNN takes its brgemm kernels, whose bits depend
 * neither on where the operands lie, nor on the number of threads, nor on the rows beside a row. (An output whose
 * leading dimension is not n, or a shape that brgemm refuses, takes gemm:jit, which keeps the first and the last but
 * whose sums over rows may follow the number of threads.)
 */
#include <errno.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "compute/cpu.h"

/* More than training needs. Generation makes others as prompts come, and evicts the oldest. */
#define TABLE_ENTRIES 96

/* A product as oneDNN would run it. */
struct described {
    dnnl_primitive_desc_t product, pack; /* pack: NULL if B is read in place */
    size_t packed_bytes, scratch;        /* of the workspace: B comes first */
};

struct entry {
    struct shore__product shape;
    uint64_t used;
    size_t packed_bytes, scratch;
    dnnl_primitive_t product, pack;
    dnnl_memory_t a, b, bias, dst, scratchpad;
    dnnl_memory_t plain_b, pack_scratchpad;
};

struct shore__onednn_table {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    uint64_t clock;
    float *no_bias; /* zeros, so that a layer without a bias needs no code of its own */
    size_t no_bias_elems;
    struct entry entries[TABLE_ENTRIES];
};

int shore__onednn_open(struct shore__onednn_table **out, struct shore_diag *diag) {
    struct shore__onednn_table *t = calloc(1, sizeof *t);
    if (!t) return shore__fail(diag, -ENOMEM, "no memory for the table of products");
    if (dnnl_engine_create(&t->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&t->stream, t->engine, dnnl_stream_default_flags) != dnnl_success) {
        shore__onednn_close(t);
        return shore__fail(diag, -ENOMEM, "oneDNN cannot make an engine");
    }
    *out = t;
    return 0;
}

static void entry_drop(struct entry *e) {
    dnnl_memory_t memory[] = {e->a, e->b, e->bias, e->dst, e->scratchpad, e->plain_b, e->pack_scratchpad};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        if (memory[i]) dnnl_memory_destroy(memory[i]);
    if (e->product) dnnl_primitive_destroy(e->product);
    if (e->pack) dnnl_primitive_destroy(e->pack);
    memset(e, 0, sizeof *e);
}

void shore__onednn_close(struct shore__onednn_table *t) {
    if (!t) return;
    for (size_t i = 0; i < TABLE_ENTRIES; i++)
        entry_drop(&t->entries[i]);
    free(t->no_bias);
    if (t->stream) dnnl_stream_destroy(t->stream);
    if (t->engine) dnnl_engine_destroy(t->engine);
    free(t);
}

static dnnl_status_t matrix(dnnl_memory_desc_t *md, size_t rows, size_t columns, bool transposed,
                            dnnl_data_type_t type) {
    dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)columns};
    dnnl_dims_t strides = {transposed ? 1 : (dnnl_dim_t)columns, transposed ? (dnnl_dim_t)rows : 1};
    return dnnl_memory_desc_init_by_strides(md, 2, dims, type, strides);
}

static size_t described_bytes(dnnl_primitive_desc_t pd, dnnl_query_t what) {
    return dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(pd, what, 0));
}

static void described_drop(struct described *d) {
    if (d->product) dnnl_primitive_desc_destroy(d->product);
    if (d->pack) dnnl_primitive_desc_destroy(d->pack);
}

static dnnl_status_t scratchpad_of_ours(dnnl_primitive_attr_t *attr) {
    dnnl_status_t st = dnnl_primitive_attr_create(attr);
    return st ? st : dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
}

static dnnl_status_t describe_product(const struct shore__cpu *c, const struct shore__product *p,
                                      const dnnl_memory_desc_t *b, dnnl_primitive_desc_t *result) {
    dnnl_data_type_t type = c->bf16_products ? dnnl_bf16 : dnnl_f32;
    dnnl_memory_desc_t a, bias, dst;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t post = NULL;
    dnnl_status_t st = matrix(&a, p->m, p->k, p->a_transposed, type);
    if (!st) st = matrix(&bias, 1, p->n, false, dnnl_f32);
    if (!st) st = matrix(&dst, p->m, p->n, false, p->f32_out ? dnnl_f32 : type);
    if (!st) st = dnnl_matmul_desc_init(&desc, &a, b, p->bias ? &bias : NULL, &dst);
    if (!st) st = scratchpad_of_ours(&attr);
    if (!st && p->accumulate) {
        st = dnnl_post_ops_create(&post);
        if (!st) st = dnnl_post_ops_append_sum(post, 1.0f);
        if (!st) st = dnnl_primitive_attr_set_post_ops(attr, post);
    }
    if (!st) st = dnnl_primitive_desc_create(result, &desc, attr, c->onednn->engine, NULL);
    if (post) dnnl_post_ops_destroy(post);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return st;
}

/* The caller destroys d, whatever is returned. */
static dnnl_status_t describe(const struct shore__cpu *c, const struct shore__product *p, struct described *d) {
    bool bf16 = c->bf16_products;
    dnnl_data_type_t type = bf16 ? dnnl_bf16 : dnnl_f32;
    dnnl_dims_t dims = {(dnnl_dim_t)p->k, (dnnl_dim_t)p->n};
    dnnl_memory_desc_t plain, any;
    dnnl_primitive_attr_t attr = NULL;
    *d = (struct described){0};
    dnnl_status_t st = matrix(&plain, p->k, p->n, p->b_transposed, type);
    if (!st) st = dnnl_memory_desc_init_by_tag(&any, 2, dims, type, dnnl_format_tag_any);
    if (!st) st = describe_product(c, p, p->pack && bf16 ? &any : &plain, &d->product);
    if (st) return st;
    const dnnl_memory_desc_t *b = dnnl_primitive_desc_query_md(d->product, dnnl_query_weights_md, 0);
    d->scratch = described_bytes(d->product, dnnl_query_scratchpad_md);
    if (dnnl_memory_desc_equal(b, &plain)) return dnnl_success;
    st = scratchpad_of_ours(&attr);
    if (!st) st = dnnl_reorder_primitive_desc_create(&d->pack, &plain, c->onednn->engine, b, c->onednn->engine, attr);
    if (attr) dnnl_primitive_attr_destroy(attr);
    if (st) return st;
    d->packed_bytes = shore__cpu_whole_pages(dnnl_memory_desc_get_size(b));
    size_t scratch = described_bytes(d->pack, dnnl_query_scratchpad_md);
    if (scratch > d->scratch) d->scratch = scratch;
    return dnnl_success;
}

static int refuse(dnnl_status_t st, const struct shore__product *p, struct shore_diag *diag) {
    int code = st == dnnl_out_of_memory ? -ENOMEM : -ENOTSUP;
    return shore__fail(diag, code, "oneDNN cannot make the product [%zu, %zu] x [%zu, %zu] (status %d)", p->m, p->k,
                       p->k, p->n, (int)st);
}

int shore__onednn_product_room(struct shore__cpu *c, const struct shore__product *p, size_t *bytes,
                               size_t *packed_bytes, struct shore_diag *diag) {
    struct described d;
    dnnl_status_t st = describe(c, p, &d);
    *bytes = d.packed_bytes + d.scratch;
    *packed_bytes = d.packed_bytes;
    described_drop(&d);
    return st ? refuse(st, p, diag) : 0;
}

static dnnl_status_t remember(const struct shore__onednn_table *t, dnnl_memory_t *memory, dnnl_primitive_desc_t pd,
                              dnnl_query_t what, int index) {
    return dnnl_memory_create(memory, dnnl_primitive_desc_query_md(pd, what, index), t->engine, DNNL_MEMORY_NONE);
}

static int make(struct shore__cpu *c, const struct shore__product *p, struct entry *e, struct shore_diag *diag) {
    struct shore__onednn_table *t = c->onednn;
    struct described d;
    if (p->bias && t->no_bias_elems < p->n) {
        float *zeros = calloc(p->n, sizeof *zeros);
        if (!zeros) return shore__fail(diag, -ENOMEM, "no memory for a bias of %zu elements", p->n);
        free(t->no_bias);
        t->no_bias = zeros;
        t->no_bias_elems = p->n;
    }
    dnnl_status_t st = describe(c, p, &d);
    e->shape = *p;
    e->packed_bytes = d.packed_bytes;
    e->scratch = d.scratch;
    if (!st) st = dnnl_primitive_create(&e->product, d.product);
    if (!st) st = remember(t, &e->a, d.product, dnnl_query_src_md, 0);
    if (!st) st = remember(t, &e->b, d.product, dnnl_query_weights_md, 0);
    if (!st && p->bias) st = remember(t, &e->bias, d.product, dnnl_query_weights_md, 1);
    if (!st) st = remember(t, &e->dst, d.product, dnnl_query_dst_md, 0);
    if (!st) st = remember(t, &e->scratchpad, d.product, dnnl_query_scratchpad_md, 0);
    if (!st && d.pack) st = dnnl_primitive_create(&e->pack, d.pack);
    if (!st && d.pack) st = remember(t, &e->plain_b, d.pack, dnnl_query_src_md, 0);
    if (!st && d.pack) st = remember(t, &e->pack_scratchpad, d.pack, dnnl_query_scratchpad_md, 0);
    described_drop(&d);
    if (st) {
        entry_drop(e);
        return refuse(st, p, diag);
    }
    return 0;
}

static int find(struct shore__cpu *c, const struct shore__product *p, struct entry **out, struct shore_diag *diag) {
    struct shore__onednn_table *t = c->onednn;
    struct entry *oldest = t->entries;
    for (size_t i = 0; i < TABLE_ENTRIES; i++) {
        struct entry *e = &t->entries[i];
        if (e->product && shore__same_product(&e->shape, p)) {
            e->used = ++t->clock;
            *out = e;
            return 0;
        }
        if (e->used < oldest->used) oldest = e;
    }
    entry_drop(oldest);
    int err = make(c, p, oldest, diag);
    if (err) return err;
    oldest->used = ++t->clock;
    *out = oldest;
    return 0;
}

int shore__onednn_product_make(struct shore__cpu *c, const struct shore__product *p, struct shore_diag *diag) {
    struct entry *e;
    return find(c, p, &e, diag);
}

/* Rounds an activation that oneDNN wrote as fp32. */
static void round_values(struct shore__cpu *c, float *y, size_t n) {
    SHORE__FOR_PART(c, n, 64, part) {
        c->kernels->round(y + part.begin, y + part.begin, part.end - part.begin, SHORE__BF16_IN_F32);
    }
}

/* Runs a product in halves: make() did not know its number of rows, and its scratchpad is larger than the workspace.
 * Fewer rows at a time give the same bits. */
static int in_halves(struct shore__cpu *c, const struct shore__product *p, void *dst, const void *a, const void *b,
                     const float *bias) {
    if (p->m < 2 || p->a_transposed) return -ENOMEM;
    struct shore__product head = *p, tail = *p;
    size_t width = shore__mode_bytes(c->base.mode);
    head.m = p->m / 2;
    tail.m = p->m - head.m;
    head.pack = tail.pack = SHORE__PACK_NOTHING;
    int err = shore__onednn_product(c, &head, dst, a, b, bias);
    if (err) return err;
    return shore__onednn_product(c, &tail, (char *)dst + head.m * p->n * (p->f32_out ? 4 : width),
                                 (const char *)a + head.m * p->k * width, b, bias);
}

static dnnl_status_t pack(struct shore__cpu *c, const struct entry *e, const void **b) {
    const void *from = *b;
    bool there;
    char *to = shore__cpu_packed_room(c, &e->shape, from, e->packed_bytes, &there);
    *b = to;
    if (there) return dnnl_success;
    dnnl_memory_set_data_handle(e->plain_b, (void *)from);
    dnnl_memory_set_data_handle(e->b, to);
    dnnl_memory_set_data_handle(e->pack_scratchpad, c->workspace + e->packed_bytes);
    const dnnl_exec_arg_t args[3] = {
        {DNNL_ARG_FROM, e->plain_b}, {DNNL_ARG_TO, e->b}, {DNNL_ARG_SCRATCHPAD, e->pack_scratchpad}};
    return dnnl_primitive_execute(e->pack, c->onednn->stream, 3, args);
}

int shore__onednn_product(struct shore__cpu *c, const struct shore__product *p, void *dst, const void *a, const void *b,
                          const float *bias) {
    struct entry *e;
    if (p->m == 0 || p->n == 0) return 0;
    int err = find(c, p, &e, NULL);
    if (err) return err;
    if (e->packed_bytes + e->scratch > c->workspace_bytes) return in_halves(c, p, dst, a, b, bias);
    dnnl_status_t st = e->pack ? pack(c, e, &b) : dnnl_success;
    dnnl_memory_set_data_handle(e->a, (void *)a);
    dnnl_memory_set_data_handle(e->b, (void *)b);
    dnnl_memory_set_data_handle(e->dst, dst);
    dnnl_memory_set_data_handle(e->scratchpad, c->workspace + e->packed_bytes);
    dnnl_exec_arg_t args[5] = {
        {DNNL_ARG_SRC, e->a}, {DNNL_ARG_WEIGHTS, e->b}, {DNNL_ARG_DST, e->dst}, {DNNL_ARG_SCRATCHPAD, e->scratchpad}};
    int count = 4;
    if (p->bias) {
        if (!bias) bias = c->onednn->no_bias;
        dnnl_memory_set_data_handle(e->bias, (void *)bias);
        args[count++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, e->bias};
    }
    if (!st) st = dnnl_primitive_execute(e->product, c->onednn->stream, count, args);
    if (!st) st = dnnl_stream_wait(c->onednn->stream);
    if (st) return st == dnnl_out_of_memory ? -ENOMEM : -EIO;
    if (!p->f32_out && c->base.mode == SHORE__BF16_IN_F32) round_values(c, dst, p->m * p->n);
    return 0;
}
