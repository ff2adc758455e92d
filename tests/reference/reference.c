/* The scalar reference: what every operation means, written as plainly as possible. Sums are in double, so that a
 * backend's error is its own. Results are rounded once, when they are written. */
#include "reference/reference.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "compute/host_memory.h"

static double get(const struct shore__compute *c, shore__buf b, size_t i) {
    return shore__reference_get(c, b, i);
}
static void put(const struct shore__compute *c, shore__buf b, size_t i, double value) {
    shore__reference_put(c, b, i, value);
}
static float *floats(shore__buf b) {
    return (float *)b.handle;
}
static const int32_t *ints(shore__buf b) {
    return (const int32_t *)b.handle;
}

static int make(struct shore__compute *c, const struct shore__shapes *shapes, shore__buf workspace, size_t bytes,
                struct shore_diag *diag) {
    return 0;
}
static void weights_changed(struct shore__compute *c) {}

static int zero(struct shore__compute *c, struct shore__stream *s, shore__buf dst, size_t bytes) {
    memset((void *)dst.handle, 0, bytes);
    return 0;
}
static int copy(struct shore__compute *c, struct shore__stream *s, shore__buf dst, shore__buf src, size_t bytes) {
    memcpy((void *)dst.handle, (const void *)src.handle, bytes);
    return 0;
}
static int widen(struct shore__compute *c, struct shore__stream *s, shore__buf dst, shore__buf src, size_t n) {
    for (size_t i = 0; i < n; i++)
        floats(dst)[i] = shore__bf16_to_f32(((const uint16_t *)src.handle)[i]);
    return 0;
}
static int store(struct shore__compute *c, struct shore__stream *s, shore__buf dst, shore__buf act, size_t n) {
    if (c->mode != SHORE__BF16_IN_F32) return copy(c, s, dst, act, n * shore__mode_bytes(c->mode));
    for (size_t i = 0; i < n; i++)
        ((uint16_t *)dst.handle)[i] = shore__f32_to_bf16(floats(act)[i]);
    return 0;
}
static int load(struct shore__compute *c, struct shore__stream *s, shore__buf act, shore__buf src, size_t n) {
    if (c->mode != SHORE__BF16_IN_F32) return copy(c, s, act, src, n * shore__mode_bytes(c->mode));
    return widen(c, s, act, src, n);
}
static int round_act(struct shore__compute *c, struct shore__stream *s, shore__buf act, shore__buf src, size_t n) {
    for (size_t i = 0; i < n; i++)
        put(c, act, i, floats(src)[i]);
    return 0;
}

static int linear(struct shore__compute *c, struct shore__stream *s, shore__buf y, shore__buf x, shore__buf w,
                  shore__buf bias, size_t rows, size_t n, size_t k, bool w_is_nk) {
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < n; j++) {
            double sum = shore__buf_is_none(bias) ? 0 : floats(bias)[j];
            for (size_t i = 0; i < k; i++)
                sum += get(c, x, r * k + i) * get(c, w, w_is_nk ? j * k + i : i * n + j);
            put(c, y, r * n + j, sum);
        }
    return 0;
}
static int linear_backward_x(struct shore__compute *c, struct shore__stream *s, shore__buf dx, shore__buf dy,
                             shore__buf w, size_t rows, size_t n, size_t k, bool w_is_nk) {
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < k; i++) {
            double sum = 0;
            for (size_t j = 0; j < n; j++)
                sum += get(c, dy, r * n + j) * get(c, w, w_is_nk ? j * k + i : i * n + j);
            put(c, dx, r * k + i, sum);
        }
    return 0;
}
static int linear_backward_w(struct shore__compute *c, struct shore__stream *s, shore__buf dw, shore__buf dy,
                             shore__buf x, size_t rows, size_t n, size_t k, bool w_is_nk, bool add) {
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < k; i++) {
            float *to = floats(dw) + (w_is_nk ? j * k + i : i * n + j);
            double sum = add ? *to : 0;
            for (size_t r = 0; r < rows; r++)
                sum += get(c, dy, r * n + j) * get(c, x, r * k + i);
            *to = (float)sum;
        }
    return 0;
}
static int bias_backward(struct shore__compute *c, struct shore__stream *s, shore__buf db, shore__buf dy, size_t rows,
                         size_t n) {
    for (size_t j = 0; j < n; j++) {
        double sum = floats(db)[j];
        for (size_t r = 0; r < rows; r++)
            sum += get(c, dy, r * n + j);
        floats(db)[j] = (float)sum;
    }
    return 0;
}

static int head_logits(struct shore__compute *c, struct shore__stream *s, shore__buf logits, shore__buf x, shore__buf w,
                       float cap, size_t rows, size_t n, size_t d) {
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < n; j++) {
            double sum = 0;
            for (size_t i = 0; i < d; i++)
                sum += get(c, x, r * d + i) * get(c, w, j * d + i);
            floats(logits)[r * n + j] = (float)(cap == 0 ? sum : cap * tanh(sum / cap));
        }
    return 0;
}
static bool in_slice(int32_t target, size_t first, size_t n) {
    return target >= 0 && (size_t)target >= first && (size_t)target - first < n;
}
static int head_merge(struct shore__compute *c, struct shore__stream *s, shore__buf max, shore__buf sum,
                      shore__buf target_logit, shore__buf logits, shore__buf targets, size_t rows, size_t n,
                      size_t first) {
    for (size_t r = 0; r < rows; r++) {
        const float *row = floats(logits) + r * n;
        float top = floats(max)[r];
        for (size_t j = 0; j < n; j++)
            if (row[j] > top) top = row[j];
        double total = floats(sum)[r] == 0 ? 0 : floats(sum)[r] * exp((double)floats(max)[r] - top);
        for (size_t j = 0; j < n; j++)
            total += exp((double)row[j] - top);
        floats(max)[r] = top;
        floats(sum)[r] = (float)total;
        if (in_slice(ints(targets)[r], first, n)) floats(target_logit)[r] = row[(size_t)ints(targets)[r] - first];
    }
    return 0;
}
static int head_loss(struct shore__compute *c, struct shore__stream *s, shore__buf loss, shore__buf max, shore__buf sum,
                     shore__buf target_logit, shore__buf targets, size_t rows) {
    for (size_t r = 0; r < rows; r++) {
        double above = (double)floats(target_logit)[r] - floats(max)[r];
        floats(loss)[r] = ints(targets)[r] < 0 ? 0 : (float)(log((double)floats(sum)[r]) - above);
    }
    return 0;
}
static int head_dlogits(struct shore__compute *c, struct shore__stream *s, shore__buf dlogits, shore__buf logits,
                        shore__buf max, shore__buf sum, shore__buf targets, float factor, float cap, size_t rows,
                        size_t n, size_t first) {
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < n; j++) {
            bool is_target = in_slice(ints(targets)[r], first, n) && (size_t)ints(targets)[r] == first + j;
            double logit = floats(logits)[r * n + j], p = exp(logit - floats(max)[r]) / floats(sum)[r];
            double slope = cap == 0 ? 1 : 1 - logit / cap * (logit / cap);
            put(c, dlogits, r * n + j, ints(targets)[r] < 0 ? 0 : (p - is_target) * factor * slope);
        }
    return 0;
}
static int head_backward_x(struct shore__compute *c, struct shore__stream *s, shore__buf dx_f32, shore__buf dlogits,
                           shore__buf w, size_t rows, size_t n, size_t d) {
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < d; i++) {
            double sum = floats(dx_f32)[r * d + i];
            for (size_t j = 0; j < n; j++)
                sum += get(c, dlogits, r * n + j) * get(c, w, j * d + i);
            floats(dx_f32)[r * d + i] = (float)sum;
        }
    return 0;
}
static int head_backward_w(struct shore__compute *c, struct shore__stream *s, shore__buf dw, shore__buf dlogits,
                           shore__buf x, size_t rows, size_t n, size_t d, bool add) {
    return linear_backward_w(c, s, dw, dlogits, x, rows, n, d, true, add);
}

static int embed(struct shore__compute *c, struct shore__stream *s, shore__buf x, shore__buf table, shore__buf tokens,
                 size_t rows, size_t d, size_t first, size_t n) {
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; in_slice(ints(tokens)[r], first, n) && i < d; i++)
            put(c, x, r * d + i, get(c, table, ((size_t)ints(tokens)[r] - first) * d + i));
    return 0;
}
static int embed_backward(struct shore__compute *c, struct shore__stream *s, shore__buf dtable, shore__buf dx,
                          shore__buf tokens, size_t rows, size_t d, size_t first, size_t n) {
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; in_slice(ints(tokens)[r], first, n) && i < d; i++)
            floats(dtable)[((size_t)ints(tokens)[r] - first) * d + i] += (float)get(c, dx, r * d + i);
    return 0;
}
static int position(struct shore__compute *c, struct shore__stream *s, shore__buf x, shore__buf table, size_t rows,
                    size_t d, size_t seq_len, size_t first_position) {
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < d; i++)
            put(c, x, r * d + i, get(c, x, r * d + i) + get(c, table, (first_position + r % seq_len) * d + i));
    return 0;
}
static int position_backward(struct shore__compute *c, struct shore__stream *s, shore__buf dtable, shore__buf dx,
                             size_t rows, size_t d, size_t seq_len) {
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < d; i++)
            floats(dtable)[r % seq_len * d + i] += (float)get(c, dx, r * d + i);
    return 0;
}
static int add(struct shore__compute *c, struct shore__stream *s, shore__buf y, shore__buf a, shore__buf b, size_t n) {
    for (size_t i = 0; i < n; i++)
        put(c, y, i, get(c, a, i) + get(c, b, i));
    return 0;
}

static int scale(struct shore__compute *c, struct shore__stream *s, shore__buf x, float factor, size_t n) {
    for (size_t i = 0; i < n; i++)
        put(c, x, i, get(c, x, i) * factor);
    return 0;
}

static int columns_take(struct shore__compute *c, struct shore__stream *s, shore__buf y, shore__buf x, size_t rows,
                        size_t width, size_t first, size_t n) {
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < n; i++)
            put(c, y, r * n + i, get(c, x, r * width + first + i));
    return 0;
}

static int columns_add(struct shore__compute *c, struct shore__stream *s, shore__buf x, shore__buf y, size_t rows,
                       size_t width, size_t first, size_t n) {
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < n; i++)
            put(c, x, r * width + first + i, get(c, x, r * width + first + i) + get(c, y, r * n + i));
    return 0;
}

static void close_reference(struct shore__compute *c) {
    free(c);
}

static const struct shore__compute_ops reference_ops = {
    .make = make,
    SHORE__HOST_MEMORY_OPS,
    .weights_changed = weights_changed,
    .zero = zero,
    .copy = copy,
    .widen = widen,
    .store = store,
    .load = load,
    .linear = linear,
    .linear_backward_x = linear_backward_x,
    .linear_backward_w = linear_backward_w,
    .bias_backward = bias_backward,
    .head_logits = head_logits,
    .head_merge = head_merge,
    .head_loss = head_loss,
    .head_dlogits = head_dlogits,
    .head_backward_x = head_backward_x,
    .head_backward_w = head_backward_w,
    .round = round_act,
    .embed = embed,
    .embed_backward = embed_backward,
    .position = position,
    .position_backward = position_backward,
    .norm = shore__reference_norm,
    .norm_backward = shore__reference_norm_backward,
    .head_norm = shore__reference_head_norm,
    .head_norm_backward = shore__reference_head_norm_backward,
    .scale = scale,
    .columns_take = columns_take,
    .columns_add = columns_add,
    .add = add,
    .act = shore__reference_act,
    .act_backward = shore__reference_act_backward,
    .rope = shore__reference_rope,
    .route = shore__reference_route,
    .route_backward = shore__reference_route_backward,
    .route_count = shore__reference_route_count,
    .experts_gather = shore__reference_experts_gather,
    .experts_scatter = shore__reference_experts_scatter,
    .experts_weigh_bias = shore__reference_experts_weigh_bias,
    .experts_weigh = shore__reference_experts_weigh,
    .experts_linear = shore__reference_experts_linear,
    .experts_linear_backward_x = shore__reference_experts_linear_backward_x,
    .experts_linear_backward_w = shore__reference_experts_linear_backward_w,
    .experts_bias_backward = shore__reference_experts_bias_backward,
    .attention = shore__reference_attention,
    .attention_backward = shore__reference_attention_backward,
    .sink_backward = shore__reference_sink_backward,
    .attention_cached = shore__reference_attention_cached,
    .close = close_reference,
};

static int describe(const struct shore__compute_options *o, const struct shore__shapes *shapes,
                    struct shore__compute_description *out, struct shore_diag *diag) {
    *out = (struct shore__compute_description){.kind = "reference", .threads = 1, .one_memory = true};
    out->mode = o->fp32 ? SHORE__F32 : o->products == SHORE__PRODUCTS_BF16 ? SHORE__BF16 : SHORE__BF16_IN_F32;
    return 0;
}

static int open_reference(const struct shore__compute_options *o, struct shore__compute **out,
                          struct shore_diag *diag) {
    struct shore__compute_description d;
    int rc = describe(o, NULL, &d, diag);
    if (rc) return rc;
    struct shore__compute *c = calloc(1, sizeof *c);
    if (!c) return shore__fail(diag, -ENOMEM, "no memory for the reference backend");
    *c = (struct shore__compute){&reference_ops, d.mode, d.threads, d.one_memory, shore__host_device};
    *out = c;
    return 0;
}

const struct shore__compute_backend shore__compute_reference = {"reference", describe, open_reference};

__attribute__((constructor)) static void register_itself(void) {
    shore__compute_register(&shore__compute_reference);
}
