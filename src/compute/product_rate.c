/* Times single operations. */
#include "compute/product_rate.h"

#include <errno.h>
#include <oneapi/dnnl/dnnl.h>
#include <string.h>

#include "base/arena.h"
#include "base/units.h"
#include "compute/cpu.h"

#define BENCH_NS 100000000u

static shore__buf allocate(struct shore_arena *arena, size_t bytes) {
    return (shore__buf){(uintptr_t)shore__arena_alloc(arena, bytes)};
}
/* Takes an arena for the workspace and the operands, which get small values that are neither zero nor denormal. */
static int bench_open(struct shore_arena **arena, struct shore__compute *c, const struct shore__shapes *shapes,
                      size_t bytes) {
    size_t workspace = 0, packed;
    int err = shore__cpu_room(shore__cpu_of(c), shapes, false, &workspace, &packed, NULL);
    if (!err) err = shore_arena_open(bytes + workspace + (1u << 20), 0, arena, NULL);
    if (err) return err;
    return c->ops->make(c, shapes, allocate(*arena, workspace), workspace, NULL);
}
static shore__buf new_operand(struct shore_arena *arena, size_t elems, size_t width) {
    shore__buf operand = allocate(arena, elems * width);
    unsigned char *p = shore__cpu_ptr(operand);
    for (size_t i = 0; p && i < elems; i++) { /* both halves of a float are the same bf16, near 1 / 64 */
        uint16_t h = (uint16_t)(0x3C80u + i % 61 + (i % 7 < 3 ? 0x8000u : 0u));
        for (size_t j = 0; j < width; j += 2)
            memcpy(p + i * width + j, &h, 2);
    }
    return operand;
}

static int one(struct shore__compute *c, shore__buf y, shore__buf x, shore__buf w, shore__buf dw, size_t rows, size_t n,
               size_t k, bool nk, int kind) {
    if (kind == SHORE__BENCH_FORWARD) return c->ops->linear(c, NULL, y, x, w, SHORE__NO_BUF, rows, n, k, nk);
    if (kind == SHORE__BENCH_BACKWARD_X) return c->ops->linear_backward_x(c, NULL, x, y, w, rows, n, k, nk);
    return c->ops->linear_backward_w(c, NULL, dw, y, x, rows, n, k, nk, true);
}

int shore__compute_bench(struct shore__compute *c, size_t rows, size_t n, size_t k, bool w_is_nk, int kind,
                         double *gflops) {
    struct shore__shapes shapes = {.unit_rows = rows, .linear = {{n, k, w_is_nk}}, .nlinear = 1, .backward = true};
    size_t width = shore__mode_bytes(c->mode);
    struct shore_arena *arena = NULL;
    int err = bench_open(&arena, c, &shapes, (rows * n + rows * k + n * k) * width + n * k * 4);
    if (err) {
        shore_arena_close(arena);
        return err;
    }
    shore__buf y = new_operand(arena, rows * n, width), x = new_operand(arena, rows * k, width),
               w = new_operand(arena, n * k, width);
    shore__buf dw = new_operand(arena, n * k, 4);
    if (!dw.handle) err = -ENOMEM;
    uint64_t best = UINT64_MAX, begin = shore__now_ns();
    for (int i = 0; !err && (i < 4 || shore__now_ns() - begin < BENCH_NS); i++) {
        uint64_t from = shore__now_ns();
        err = one(c, y, x, w, dw, rows, n, k, w_is_nk, kind);
        uint64_t ns = shore__now_ns() - from;
        if (i > 0 && ns < best) best = ns;
    }
    shore_arena_close(arena);
    if (!err) *gflops = 2.0 * (double)rows * (double)n * (double)k / (double)best;
    return err;
}

/* ---- the best that oneDNN can do, with layouts of its choice ---- */

static dnnl_status_t own_layout(const struct shore__cpu *c, size_t m, size_t n, size_t k, bool f32_out,
                                dnnl_primitive_desc_t *pd, dnnl_engine_t engine) {
    dnnl_data_type_t type = c->bf16_products ? dnnl_bf16 : dnnl_f32;
    dnnl_memory_desc_t a, b, dst;
    dnnl_matmul_desc_t desc;
    dnnl_dims_t a_dims = {(dnnl_dim_t)m, (dnnl_dim_t)k}, b_dims = {(dnnl_dim_t)k, (dnnl_dim_t)n};
    dnnl_dims_t dst_dims = {(dnnl_dim_t)m, (dnnl_dim_t)n};
    dnnl_status_t st = dnnl_memory_desc_init_by_tag(&a, 2, a_dims, type, dnnl_format_tag_any);
    if (!st) st = dnnl_memory_desc_init_by_tag(&b, 2, b_dims, type, dnnl_format_tag_any);
    if (!st) st = dnnl_memory_desc_init_by_tag(&dst, 2, dst_dims, f32_out ? dnnl_f32 : type, dnnl_format_tag_any);
    if (!st) st = dnnl_matmul_desc_init(&desc, &a, &b, NULL, &dst);
    if (!st) st = dnnl_primitive_desc_create(pd, &desc, NULL, engine, NULL);
    return st;
}

int shore__compute_bench_best(struct shore__compute *base, size_t rows, size_t n, size_t k, bool w_is_nk, int kind,
                              double *gflops) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    size_t dims[3] = {rows, n, k}; /* m, n and k of the product */
    if (kind == SHORE__BENCH_BACKWARD_X) dims[1] = k, dims[2] = n;
    if (kind == SHORE__BENCH_BACKWARD_W) dims[0] = w_is_nk ? n : k, dims[1] = w_is_nk ? k : n, dims[2] = rows;
    static const dnnl_query_t places[3] = {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md};
    static const int names[3] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    dnnl_engine_t engine = NULL;
    dnnl_stream_t stream = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_t primitive = NULL;
    dnnl_exec_arg_t args[3] = {{0, NULL}, {0, NULL}, {0, NULL}};
    dnnl_status_t st = dnnl_engine_create(&engine, dnnl_cpu, 0);
    if (!st) st = dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
    if (!st) st = own_layout(c, dims[0], dims[1], dims[2], kind == SHORE__BENCH_BACKWARD_W, &pd, engine);
    if (!st) st = dnnl_primitive_create(&primitive, pd);
    for (int i = 0; !st && i < 3; i++) {
        const dnnl_memory_desc_t *md = dnnl_primitive_desc_query_md(pd, places[i], 0);
        void *data = NULL;
        args[i].arg = names[i];
        st = dnnl_memory_create(&args[i].memory, md, engine, DNNL_MEMORY_ALLOCATE);
        if (!st) st = dnnl_memory_get_data_handle(args[i].memory, &data);
        if (!st) memset(data, 0x3C, dnnl_memory_desc_get_size(md)); /* 0.0115, as bf16 or as fp32 */
    }
    uint64_t best = UINT64_MAX, begin = shore__now_ns();
    for (int i = 0; !st && (i < 4 || shore__now_ns() - begin < BENCH_NS); i++) {
        uint64_t from = shore__now_ns();
        st = dnnl_primitive_execute(primitive, stream, 3, args);
        if (!st) st = dnnl_stream_wait(stream);
        uint64_t ns = shore__now_ns() - from;
        if (i > 0 && ns < best) best = ns;
    }
    for (int i = 0; i < 3; i++)
        if (args[i].memory) dnnl_memory_destroy(args[i].memory);
    if (primitive) dnnl_primitive_destroy(primitive);
    if (pd) dnnl_primitive_desc_destroy(pd);
    if (stream) dnnl_stream_destroy(stream);
    if (engine) dnnl_engine_destroy(engine);
    if (st) return st == dnnl_out_of_memory ? -ENOMEM : -ENOTSUP;
    *gflops = 2.0 * (double)rows * (double)n * (double)k / (double)best;
    return 0;
}
