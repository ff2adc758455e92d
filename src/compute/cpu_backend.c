/* The CPU backend: opening, preparing, its table of operations. */
#include <errno.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>

#include "base/diag.h"
#include "base/machine.h"
#include "compute/cpu.h"

static int cpu_sync(struct shore__compute *c, struct shore__stream *s) {
    return 0;
}

static void cpu_set_workspace(struct shore__compute *base, shore__buf workspace, size_t bytes) {
    struct shore__cpu *c = shore__cpu_of(base);
    size_t kept = bytes > c->needed_bytes ? bytes - c->needed_bytes : 0;
    c->workspace = shore__cpu_ptr(workspace);
    c->workspace_bytes = bytes - kept;
    shore__cpu_keep_packed(c, kept ? c->workspace + c->workspace_bytes : NULL, kept);
}

static int cpu_prepare(struct shore__compute *base, const struct shore__shapes *shapes, size_t *workspace_bytes,
                       size_t *packed_bytes, struct shore_diag *diag) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    size_t products = 0, packed = 0;
    int err = shore__cpu_prepare_products(c, shapes, &products, &packed, diag);
    if (err) return err;
    size_t attention = shore__cpu_attention_workspace(c, shapes);
    size_t most = products > attention ? products : attention;
    c->needed_bytes = *workspace_bytes = shore__cpu_whole_pages(most);
    if (packed_bytes) *packed_bytes = packed;
    cpu_set_workspace(base, SHORE__NO_BUF, 0);
    return 0;
}

static void cpu_close(struct shore__compute *base) {
    struct shore__cpu *c = shore__cpu_of(base);
    shore__onednn_close(c->onednn);
    free(c);
}

static const struct shore__compute_ops cpu_ops = {
    .version = SHORE__COMPUTE_VERSION,
    .name = "cpu",
    .prepare = cpu_prepare,
    .set_workspace = cpu_set_workspace,
    .weights_changed = shore__cpu_weights_changed,
    .zero = shore__cpu_zero,
    .copy = shore__cpu_copy,
    .widen = shore__cpu_widen,
    .store = shore__cpu_store,
    .load = shore__cpu_load,
    .sync = cpu_sync,
    .linear = shore__cpu_linear,
    .linear_backward_x = shore__cpu_linear_backward_x,
    .linear_backward_w = shore__cpu_linear_backward_w,
    .bias_backward = shore__cpu_bias_backward,
    .head_logits = shore__cpu_head_logits,
    .head_merge = shore__cpu_head_merge,
    .head_loss = shore__cpu_head_loss,
    .head_dlogits = shore__cpu_head_dlogits,
    .head_backward_x = shore__cpu_head_backward_x,
    .head_backward_w = shore__cpu_head_backward_w,
    .round = shore__cpu_round,
    .embed = shore__cpu_embed,
    .embed_backward = shore__cpu_embed_backward,
    .position = shore__cpu_position,
    .position_backward = shore__cpu_position_backward,
    .norm = shore__cpu_norm,
    .norm_backward = shore__cpu_norm_backward,
    .add = shore__cpu_add,
    .act = shore__cpu_act,
    .act_backward = shore__cpu_act_backward,
    .rope = shore__cpu_rope,
    .attention = shore__cpu_attention,
    .attention_backward = shore__cpu_attention_backward,
    .attention_cached = shore__cpu_attention_cached,
    .close = cpu_close,
};

/* OpenMP may give fewer than are asked for, and the bits follow from their number. */
static int threads_given(const struct shore__cpu *c) {
    SHORE__CPU_SCOPE(c);
    int given = 0;
#pragma omp parallel num_threads(c->base.threads)
#pragma omp single
    given = omp_get_num_threads();
    return given;
}

int shore__compute_cpu_open(bool bf16, enum shore__products products, int threads, struct shore__compute **out,
                            struct shore_diag *diag) {
    if (threads < 0) return shore__fail(diag, -EINVAL, "a number of threads cannot be negative: %d", threads);
    if (bf16 && products == SHORE__PRODUCTS_BF16 && !shore__can_multiply_bf16())
        return shore__fail(diag, -ENOTSUP,
                           "this processor (%s) has no matrix products in bf16: --products bf16 needs AVX-512 or AMX, "
                           "auto and fp32 run here",
                           shore__processor_kind());
    struct shore__cpu *c = calloc(1, sizeof *c);
    if (!c) return shore__fail(diag, -ENOMEM, "no memory for the compute backend");
    if (products == SHORE__PRODUCTS_AUTO) products = shore__products_for_this_processor();
    c->base.ops = &cpu_ops;
    c->bf16_products = bf16 && products == SHORE__PRODUCTS_BF16;
    c->kernels = shore__kernels_for_this_processor(c->bf16_products);
    c->product = c->kernels->product;
    bool widens = c->product && c->product->widens;
    if (widens && c->bf16_products) c->product = NULL; /* asked for bf16: oneDNN emulates it */
    c->base.mode = !bf16 ? SHORE__F32 : c->bf16_products || widens ? SHORE__BF16 : SHORE__BF16_IN_F32;
    c->base.threads = threads ? threads : (int)shore__machine_threads();
    int given = threads_given(c);
    if (given < threads) {
        free(c);
        return shore__fail(diag, -EINVAL,
                           "--threads %d: OpenMP gives %d; look at OMP_THREAD_LIMIT and OMP_MAX_ACTIVE_LEVELS", threads,
                           given);
    }
    c->base.threads = given;
    dnnl_set_primitive_cache_capacity(0); /* it would keep code that our own table no longer needs */
    int err = shore__onednn_open(&c->onednn, diag);
    if (err) {
        free(c);
        return err;
    }
    *out = &c->base;
    return 0;
}
