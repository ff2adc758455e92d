/* The CPU backend: opens and prepares it, and lists its operations. */
#include <assert.h>
#include <errno.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/diag.h"
#include "base/limits.h"
#include "compute/cpu.h"
#include "compute/host_memory.h"

int shore__cpu_room(struct shore__cpu *c, const struct shore__shapes *shapes, bool make, size_t *workspace_bytes,
                    size_t *packed_bytes, struct shore_diag *diag) {
    SHORE__CPU_SCOPE(c);
    size_t products = 0, experts = 0;
    int err = shore__cpu_products_room(c, shapes, make, &products, packed_bytes, diag);
    if (!err) err = shore__cpu_experts_room(c, shapes, &experts, diag);
    if (err) return err;
    size_t most = shore__cpu_attention_workspace(c, shapes);
    if (products > most) most = products;
    if (experts > most) most = experts;
    *workspace_bytes = shore__cpu_whole_pages(most);
    return 0;
}

static int cpu_make(struct shore__compute *base, const struct shore__shapes *shapes, shore__buf workspace, size_t bytes,
                    struct shore_diag *diag) {
    struct shore__cpu *c = shore__cpu_of(base);
    size_t least, packed;
    int err = shore__cpu_room(c, shapes, true, &least, &packed, diag);
    if (err) return err;
    assert(bytes >= least);
    c->workspace = shore__cpu_ptr(workspace);
    c->workspace_bytes = least;
    c->packed = (struct shore__packed){.memory = c->workspace + least, .bytes = bytes - least};
    return 0;
}

static void cpu_close(struct shore__compute *base) {
    struct shore__cpu *c = shore__cpu_of(base);
    shore__onednn_close(c->onednn);
    free(c);
}

#define ROW(name) .name = shore__cpu_##name,

static const struct shore__compute_ops cpu_ops = {
    .make = cpu_make, .close = cpu_close, SHORE__HOST_MEMORY_OPS, SHORE__CPU_OPS(ROW) /* one row each */
};

/* OpenMP may give fewer threads than requested, and the bits depend on their number. */
static int threads_given(int threads) {
    if (omp_get_max_active_levels() < 1) return 1;
    return threads < omp_get_thread_limit() ? threads : omp_get_thread_limit();
}

/* Sets everything that follows from the options, except what oneDNN makes. */
static int configure(const struct shore__compute_options *o, struct shore__cpu *c, struct shore_diag *diag) {
    if (o->threads < 0) return shore__fail(diag, -EINVAL, "a number of threads cannot be negative: %d", o->threads);
    if (!o->fp32 && o->products == SHORE__PRODUCTS_BF16 && !shore__can_multiply_bf16())
        return shore__fail(diag, -ENOTSUP,
                           "this processor (%s) has no matrix products in bf16: --products bf16 needs AVX-512 or AMX, "
                           "auto and fp32 run here",
                           shore__processor_kind());
    int threads = o->threads ? o->threads : (int)shore__machine_threads(), given = threads_given(threads);
    if (given < o->threads)
        return shore__fail(diag, -EINVAL,
                           "--threads %d: OpenMP gives %d; look at OMP_THREAD_LIMIT and OMP_MAX_ACTIVE_LEVELS",
                           o->threads, given);
    enum shore__products products = o->products;
    if (products == SHORE__PRODUCTS_AUTO) products = shore__products_for_this_processor();
    c->base.ops = &cpu_ops;
    c->bf16_products = !o->fp32 && products == SHORE__PRODUCTS_BF16;
    c->kernels = shore__kernels_for_this_processor(c->bf16_products);
    c->product = c->kernels->product;
    bool widens = c->product && c->product->widens;
    if (widens && c->bf16_products) c->product = NULL; /* bf16 was requested: oneDNN emulates it */
    c->base.mode = o->fp32 ? SHORE__F32 : c->bf16_products || widens ? SHORE__BF16 : SHORE__BF16_IN_F32;
    c->base.threads = given;
    c->base.one_memory = true;
    c->base.device = shore__host_device;
    dnnl_set_primitive_cache_capacity(0); /* it would keep code that our own table no longer needs */
    return 0;
}

/* Below AVX-512, oneDNN packs operands of its products in memory of its own: 0.9 to 1.4 MiB for each product and
 * thread. Trainings were seen to take 4 MiB more for it with two threads. */
#define PACKED_BYTES (UINT64_C(8) << 20)
#define PACKED_BYTES_A_THREAD (UINT64_C(3) << 20)

static int cpu_describe(const struct shore__compute_options *o, const struct shore__shapes *shapes,
                        struct shore__compute_description *out, struct shore_diag *diag) {
    struct shore__cpu c = {0};
    int err = configure(o, &c, diag);
    if (err) return err;
    *out =
        (struct shore__compute_description){.kernels = SHORE__COMPUTE_KERNELS,
                                            .mode = c.base.mode,
                                            .products = c.bf16_products ? SHORE_PRECISION_BF16 : SHORE_PRECISION_FP32,
                                            .threads = c.base.threads,
                                            .one_memory = c.base.one_memory};
    snprintf(out->kind, sizeof out->kind, "%s", shore__processor_kind());
    if (!shore__can_multiply_bf16()) out->heap_bytes = PACKED_BYTES + PACKED_BYTES_A_THREAD * (uint64_t)c.base.threads;
    if (!shapes) return 0;
    out->allocates =
        shore__cpu_product_allocates(&c, shapes->unit_rows) || shore__cpu_product_allocates(&c, shapes->short_rows);
    err = shore__onednn_open(&c.onednn, diag);
    if (!err) err = shore__cpu_room(&c, shapes, false, &out->workspace_bytes, &out->packed_bytes, diag);
    shore__onednn_close(c.onednn);
    return err;
}

static int cpu_open(const struct shore__compute_options *o, struct shore__compute **out, struct shore_diag *diag) {
    struct shore__cpu *c = calloc(1, sizeof *c);
    if (!c) return shore__fail(diag, -ENOMEM, "no memory for the compute backend");
    int err = configure(o, c, diag);
    if (!err) err = shore__onednn_open(&c->onednn, diag);
    if (err) {
        free(c);
        return err;
    }
    *out = &c->base;
    return 0;
}

const struct shore__compute_backend shore__compute_cpu = {"cpu", cpu_describe, cpu_open};
