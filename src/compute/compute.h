/* Tensor operations that a backend provides. tests/reference/ says in plain C what each means, and tests/conformance
 * runs one suite against all backends.
 *
 * Buffers are handles in memory that the backend has given out. Only the backend may dereference them; shore__at() adds
 * an offset in bytes. The host puts data into them, and gets data from them. Every call takes a stream. Calls on a
 * stream run in order, perhaps long after they have returned. Before writing what a call reads, or reading what it
 * writes, wait for an event that was recorded behind it.
 *
 * Modes of activations (the numeric contract: Bits in ARCHITECTURE.md):
 *   SHORE__F32          fp32, as computed
 *   SHORE__BF16         bf16 storage
 *   SHORE__BF16_IN_F32  fp32 storage of values rounded to bf16: the same values as SHORE__BF16, for processors whose
 *                       products are in fp32 and take no operands in bf16
 * Every operation reads and writes activations in the mode of the compute object, computes in fp32, and rounds once,
 * when it writes (ties to even). Sums, norms, softmax and loss are fp32. Weights ("w") come in the product type: bf16
 * in mode SHORE__BF16, otherwise fp32. Gradients of weights are fp32 and are accumulated: dw += ...; the first unit of
 * a step writes those of products, the others add to them.
 *
 * The same call gives the same bits, whatever the number of rows around it, the residency of its operands, or the run.
 * The number of threads may matter, and is part of a run's identity. On the CPU backend with AVX-512, it does not. On
 * lesser processors, oneDNN's gemm:jit cuts the sums of weight gradients by threads, and may treat a few rows
 * differently.
 *
 * The number of rows in a product's call also decides the bits. oneDNN's bf16 products on AMX cut a long sum (k above
 * about 1,000) by its number of rows, but not by threads. From 768 rows on, products with AVX-512 and AMX are ours,
 * which add in another order than oneDNN's (with any number of rows, if they take bf16 and multiply in fp32). The
 * number of rows follows from batch and sequence length: units, full or short.
 *
 * Shapes are row-major; [rows, d] has leading dimension d unless said otherwise. Errors: 0 or a negative code.
 * Threading: one caller per compute object.
 */
#ifndef SHORE_COMPUTE_COMPUTE_H
#define SHORE_COMPUTE_COMPUTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "kernel/mode.h"
#include "longshore/device.h"
#include "longshore/plan.h"

typedef struct shore__buf {
    uintptr_t handle; /* 0: none */
} shore__buf;

static inline shore__buf shore__at(shore__buf b, size_t bytes) {
    return (shore__buf){b.handle + bytes};
}
static inline bool shore__buf_is_none(shore__buf b) {
    return b.handle == 0;
}
#define SHORE__NO_BUF ((shore__buf){0})
/* Rounds a size up, so that every buffer starts on a cache line in any shape. */
static inline size_t shore__line_bytes(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}
/* Returns from the function if an operation fails. */
#define SHORE__TRY(call)           \
    do {                           \
        int try_rc = (call);       \
        if (try_rc) return try_rc; \
    } while (0)

/* Memory of one place, which is never BOTH, aligned to SHORE__ARENA_ALIGN, with its address on both sides. */
struct shore__span {
    enum shore_place place;
    void *host;        /* NULL: not visible to the host */
    shore__buf device; /* none: not visible to operations */
    uint64_t bytes;
    void *owner; /* the backend's */
};

/* Bytes of an activation element, and of a weight as products read it. */
static inline size_t shore__mode_bytes(enum shore__mode mode) {
    return mode == SHORE__BF16 ? 2 : 4;
}
/* The mode whose element size ops->store() writes: both bf16 modes store 2 bytes. */
static inline enum shore__mode shore__stored_mode(enum shore__mode mode) {
    return mode == SHORE__BF16_IN_F32 ? SHORE__BF16 : mode;
}

struct shore__compute;
struct shore__stream;

/* A product with weights. */
struct shore__linear_shape {
    size_t n, k;  /* widths of its result and of its input */
    bool w_is_nk; /* w [n, k], else [k, n] */
};
#define SHORE__LINEARS_MOST 48u

/* The largest shapes to expect. They determine workspace and primitives. */
struct shore__shapes {
    size_t unit_rows;  /* rows of a full unit: the largest `rows` of a product */
    size_t short_rows; /* rows of the last, short unit; 0: none */
    size_t seq_len;    /* T */
    size_t d_model;
    struct shore__linear_shape linear[SHORE__LINEARS_MOST]; /* of a layer, in order */
    uint32_t nlinear;
    size_t n_head, n_kv_head, head_dim;
    size_t vocab_slice;                   /* rows of a vocabulary slice */
    size_t last_slice;                    /* rows of the last slice; 0: the same */
    size_t experts, expert_up, expert_ff; /* of a layer, and the widths of one; 0: none */
    bool backward;                        /* false: forward only */
};

struct shore__attention {
    size_t sequences, seq_len; /* rows = sequences * seq_len */
    size_t n_head, n_kv_head, head_dim;
    size_t window; /* 0: none; a query sees the last `window` keys, itself included */
    float scale;
    float softcap;     /* scores become softcap tanh(score / softcap); 0: they do not */
    size_t rotary_dim; /* elements of a head that rope turns; 0: all */
    shore__buf sinks;  /* fp32 [n_head]: a score of each head that counts in the sum of its softmax; or none */
};
static inline size_t shore__rotary_dim(const struct shore__attention *a) {
    return a->rotary_dim ? a->rotary_dim : a->head_dim;
}

/* Experts: a row goes to those with the largest router logits, or, of equal logits, to the ones with the smaller
 * numbers. Their weights are the softmax of all its logits; renormalised: divided by the sum of the chosen ones. They
 * are rounded as activations are.
 *
 * `route` of a call says what goes where, in the memory of operations: arrays of 4 bytes an element, one after another.
 * A row's choices are in the order of their experts. "In experts' order" are the rows [rows * chosen, ...] of each
 * expert in turn, each expert's in the order of rows. */
struct shore__routing {
    size_t experts, chosen; /* of a layer; of a row */
    bool renormalised;
    size_t stride;      /* elements from an expert's weights to the next one's; the same of gradients, biases' too */
    size_t bias_stride; /* of biases, as products read them */
};
#define SHORE__EXPERTS_MOST 1000u
enum shore__route_part {
    SHORE__ROUTE_WEIGHT, /* fp32 [rows, chosen] */
    SHORE__ROUTE_EXPERT, /* [rows, chosen]: of each choice */
    SHORE__ROUTE_PLACE,  /* [rows, chosen]: of each choice, in experts' order */
    SHORE__ROUTE_ROW,    /* [rows * chosen]: of each place */
    SHORE__ROUTE_FIRST   /* [experts + 1]: place of an expert's first row */
};
static inline size_t shore__route_at(enum shore__route_part part, size_t rows, const struct shore__routing *r) {
    return part * rows * r->chosen;
}
static inline size_t shore__route_elems(size_t rows, const struct shore__routing *r) {
    return shore__route_at(SHORE__ROUTE_FIRST, rows, r) + r->experts + 1;
}

struct shore__compute_ops {
    /* make: makes every primitive for these shapes, so that no later call does, and takes the workspace: at least the
     * bytes of shore__compute_describe(), aligned to 4096. Call it again to change shapes or workspace. Additional
     * bytes keep the weights of forward and backward_x packed, so that units of rows need not reorder them each; the
     * bits stay the same.
     * weights_changed: says that the memory behind a product's w may have changed. */
    int (*make)(struct shore__compute *c, const struct shore__shapes *shapes, shore__buf workspace, size_t bytes,
                struct shore_diag *diag);
    void (*weights_changed)(struct shore__compute *c);

    /* ---- memory and streams ---- (transfers and events are the device's)
     * alloc: memory is zeroed and touched; SHORE_EBUDGET. free it when nothing uses it.
     * fill: fp32 values. */
    int (*alloc)(struct shore__compute *c, enum shore_place place, uint64_t bytes, struct shore__span *out,
                 struct shore_diag *diag);
    void (*free)(struct shore__compute *c, struct shore__span *span);
    int (*stream_open)(struct shore__compute *c, struct shore__stream **out, struct shore_diag *diag);
    void (*stream_close)(struct shore__compute *c, struct shore__stream *s); /* waits */
    int (*fill)(struct shore__compute *c, struct shore__stream *s, shore__buf dst, float value, size_t n);

    /* ---- moving on the device ---- */
    int (*zero)(struct shore__compute *c, struct shore__stream *s, shore__buf dst, size_t bytes);
    int (*copy)(struct shore__compute *c, struct shore__stream *s, shore__buf dst, shore__buf src, size_t bytes);
    /* fp32 from bf16, exact */
    int (*widen)(struct shore__compute *c, struct shore__stream *s, shore__buf dst_f32, shore__buf src_bf16, size_t n);
    /* stored form of an activation that leaves the working set: bf16 in both bf16 modes (exact), fp32 in F32 */
    int (*store)(struct shore__compute *c, struct shore__stream *s, shore__buf dst, shore__buf act, size_t n);
    int (*load)(struct shore__compute *c, struct shore__stream *s, shore__buf act, shore__buf src, size_t n);

    /* ---- products ---- x [rows, k], y [rows, n]: activations. w_is_nk: w [n, k] (else [k, n]). bias fp32 [n] or none.
     * forward:      y = x w^T (+ bias)         (w [n, k])      y = x w (+ bias)    (w [k, n])
     * backward_x:   dx = dy w                                  dx = dy w^T
     * backward_w:   dw = dy^T x  ([n, k], fp32)                dw = x^T dy         ([k, n], fp32)
     *               add: dw +=, otherwise overwritten */
    int (*linear)(struct shore__compute *c, struct shore__stream *s, shore__buf y, shore__buf x, shore__buf w,
                  shore__buf bias, size_t rows, size_t n, size_t k, bool w_is_nk);
    int (*linear_backward_x)(struct shore__compute *c, struct shore__stream *s, shore__buf dx, shore__buf dy,
                             shore__buf w, size_t rows, size_t n, size_t k, bool w_is_nk);
    int (*linear_backward_w)(struct shore__compute *c, struct shore__stream *s, shore__buf dw, shore__buf dy,
                             shore__buf x, size_t rows, size_t n, size_t k, bool w_is_nk, bool add);
    /* db [n] fp32 += column sums of dy [rows, n], rows in order */
    int (*bias_backward)(struct shore__compute *c, struct shore__stream *s, shore__buf db, shore__buf dy, size_t rows,
                         size_t n);

    /* ---- head ---- logits are fp32 [rows, n] of vocabulary entries [first, first + n).
     * A row whose target is -1 does not count: its loss and its dlogits are 0, whatever its logits are.
     * head_logits: logits = x w^T, x [rows, d], w [n, d]; with a cap (0: none), cap tanh(x w^T / cap).
     * head_merge: folds a slice into running max and sum of exponentials [rows] fp32 (start: -inf and 0) and picks up
     *   target_logit [rows] of the targets (int32 [rows]) that lie in the slice.
     * head_loss: loss[rows] = log(sum) - (target_logit - max).
     * head_dlogits: dlogits (activation mode, [rows, n]) = (exp(logits - max) / sum - [target]) * scale, times the
     *   cap's slope: gradients of what it caps. log(sum) + max would be rounded to the precision of logits, which would
     *   drown a much smaller loss.
     * head_backward_x: dx_f32 [rows, d] += dlogits w  (fp32: summed over slices, rounded once at the end by `round`)
     * head_backward_w: dw [n, d] fp32 = dlogits^T x; add: += */
    int (*head_logits)(struct shore__compute *c, struct shore__stream *s, shore__buf logits, shore__buf x, shore__buf w,
                       float cap, size_t rows, size_t n, size_t d);
    int (*head_merge)(struct shore__compute *c, struct shore__stream *s, shore__buf max, shore__buf sum,
                      shore__buf target_logit, shore__buf logits, shore__buf targets, size_t rows, size_t n,
                      size_t first);
    int (*head_loss)(struct shore__compute *c, struct shore__stream *s, shore__buf loss, shore__buf max, shore__buf sum,
                     shore__buf target_logit, shore__buf targets, size_t rows);
    int (*head_dlogits)(struct shore__compute *c, struct shore__stream *s, shore__buf dlogits, shore__buf logits,
                        shore__buf max, shore__buf sum, shore__buf targets, float scale, float cap, size_t rows,
                        size_t n, size_t first);
    int (*head_backward_x)(struct shore__compute *c, struct shore__stream *s, shore__buf dx_f32, shore__buf dlogits,
                           shore__buf w, size_t rows, size_t n, size_t d);
    int (*head_backward_w)(struct shore__compute *c, struct shore__stream *s, shore__buf dw, shore__buf dlogits,
                           shore__buf x, size_t rows, size_t n, size_t d, bool add);
    /* act [n] = fp32 [n] in the mode */
    int (*round)(struct shore__compute *c, struct shore__stream *s, shore__buf act, shore__buf src_f32, size_t n);

    /* ---- embedding ---- tokens int32 [rows]. table: rows [first, first + n) of the vocabulary, weights [n, d].
     * A token below 0 is in no slice.
     * embed: x[r] = table[token] for the tokens inside the slice; leaves other rows alone.
     * embed_backward: dtable [n, d] fp32 += dx[r], rows in order.
     * position: x[r] += table[r mod seq_len] (w [>= seq_len, d]); position_backward: dtable[p] += dx, rows in order. */
    int (*embed)(struct shore__compute *c, struct shore__stream *s, shore__buf x, shore__buf table, shore__buf tokens,
                 size_t rows, size_t d, size_t first, size_t n);
    int (*embed_backward)(struct shore__compute *c, struct shore__stream *s, shore__buf dtable, shore__buf dx,
                          shore__buf tokens, size_t rows, size_t d, size_t first, size_t n);
    int (*position)(struct shore__compute *c, struct shore__stream *s, shore__buf x, shore__buf table, size_t rows,
                    size_t d, size_t seq_len, size_t first_position);
    int (*position_backward)(struct shore__compute *c, struct shore__stream *s, shore__buf dtable, shore__buf dx,
                             size_t rows, size_t d, size_t seq_len);

    /* ---- norms ---- gain, bias: fp32 [d]; stats fp32 [rows, 2] (mean, 1/std; rms: the second only).
     * Layer norm (bias given) and RMS norm (y = x / rms(x) * gain; SHORE__RMS_NORM_FROM_1: * (1 + gain)).
     * norm: y may be none: statistics alone.
     * backward: dx = dx_add + d/dx, where dx_add [rows, d] may be none and may be dx itself; dgain, dbias fp32 +=,
     * summed over rows in order; either may be none.
     * head_norm: y = x, queries and keys and values as attention takes them, with queries and keys normed: each head,
     *   or (whole) all heads of queries together and all of keys. gain: the queries', then the keys', of a head each or
     *   whole of all. stats [rows, 2 (n_head + n_kv_head)], whole [rows, 4]. backward: dx may be dy, and dgain none. */
    int (*norm)(struct shore__compute *c, struct shore__stream *s, shore__buf y, shore__buf stats, shore__buf x,
                shore__buf gain, shore__buf bias, float eps, enum shore__norm_kind kind, size_t rows, size_t d);
    int (*norm_backward)(struct shore__compute *c, struct shore__stream *s, shore__buf dx, shore__buf dgain,
                         shore__buf dbias, shore__buf dy, shore__buf dx_add, shore__buf x, shore__buf gain,
                         shore__buf stats, enum shore__norm_kind kind, size_t rows, size_t d);
    int (*head_norm)(struct shore__compute *c, struct shore__stream *s, shore__buf y, shore__buf stats, shore__buf x,
                     shore__buf gain, float eps, enum shore__norm_kind kind, bool whole,
                     const struct shore__attention *a);
    int (*head_norm_backward)(struct shore__compute *c, struct shore__stream *s, shore__buf dx, shore__buf dgain,
                              shore__buf dy, shore__buf x, shore__buf gain, shore__buf stats,
                              enum shore__norm_kind kind, bool whole, const struct shore__attention *a);

    /* ---- columns ---- [first, first + n) of x [rows, width], for activations.
     * columns_take: y [rows, n] = these columns.  columns_add: these columns += y [rows, n]. */
    int (*columns_take)(struct shore__compute *c, struct shore__stream *s, shore__buf y, shore__buf x, size_t rows,
                        size_t width, size_t first, size_t n);
    int (*columns_add)(struct shore__compute *c, struct shore__stream *s, shore__buf x, shore__buf y, size_t rows,
                       size_t width, size_t first, size_t n);

    /* ---- elementwise ----  y = a + b [n];  x *= factor [n], for activations;  act: y = f(x), x [rows, width];
     * gated: y [rows, width / 2] = f(left half of x) * right half (SHORE__SWIGLU_CLAMPED says otherwise); backward
     * writes dx from dy and x. dx may be x. */
    int (*scale)(struct shore__compute *c, struct shore__stream *s, shore__buf x, float factor, size_t n);
    int (*add)(struct shore__compute *c, struct shore__stream *s, shore__buf y, shore__buf a, shore__buf b, size_t n);
    int (*act)(struct shore__compute *c, struct shore__stream *s, shore__buf y, shore__buf x, enum shore__act_fn f,
               bool gated, size_t rows, size_t width);
    int (*act_backward)(struct shore__compute *c, struct shore__stream *s, shore__buf dx, shore__buf dy, shore__buf x,
                        enum shore__act_fn f, bool gated, size_t rows, size_t width);

    /* ---- experts ---- rows: of tokens, in every call; logits [rows, experts]
     * route: fills route.
     * route_backward: dlogits from dweights (fp32 [rows, chosen]) and from `balance` (fp32 [experts], or none), the
     *   gradient of every row's softmax over all experts.
     * route_count: load (double [2, experts]) += how often each expert was chosen, and the sums of its softmax, rows in
     *   order; without logits the first alone.
     * experts_gather: y [rows * chosen, d], in experts' order, from x [rows, d].
     * experts_scatter: y [rows, d] (add: +=) = the sum of a row's choices of x [rows * chosen, d], weighted or not.
     * experts_linear and its backward: products as above of each expert's rows with its own weights. Gradients of an
     *   expert without rows are zeros, or stay (add).
     * experts_bias_backward: db of each expert += column sums of its rows of dy [rows * chosen, n].
     * experts_weigh: act and dact [rows * chosen, width] are multiplied by the weights of their choices; first,
     *   dweights = the products of rows of dact with those of act.
     * experts_weigh_bias: so is dy [rows * chosen, n]; first, dweights += the products of its rows with biases. */
    int (*route)(struct shore__compute *c, struct shore__stream *s, shore__buf route, shore__buf logits, size_t rows,
                 const struct shore__routing *r);
    int (*route_backward)(struct shore__compute *c, struct shore__stream *s, shore__buf dlogits, shore__buf dweights,
                          shore__buf logits, shore__buf route, shore__buf balance, size_t rows,
                          const struct shore__routing *r);
    int (*route_count)(struct shore__compute *c, struct shore__stream *s, shore__buf load, shore__buf logits,
                       shore__buf route, size_t rows, const struct shore__routing *r);
    int (*experts_gather)(struct shore__compute *c, struct shore__stream *s, shore__buf y, shore__buf x,
                          shore__buf route, size_t rows, size_t d, const struct shore__routing *r);
    int (*experts_scatter)(struct shore__compute *c, struct shore__stream *s, shore__buf y, shore__buf x,
                           shore__buf route, size_t rows, size_t d, bool weighted, bool add,
                           const struct shore__routing *r);
    int (*experts_linear)(struct shore__compute *c, struct shore__stream *s, shore__buf y, shore__buf x, shore__buf w,
                          shore__buf bias, shore__buf route, size_t rows, size_t n, size_t k, bool w_is_nk,
                          const struct shore__routing *r);
    int (*experts_linear_backward_x)(struct shore__compute *c, struct shore__stream *s, shore__buf dx, shore__buf dy,
                                     shore__buf w, shore__buf route, size_t rows, size_t n, size_t k, bool w_is_nk,
                                     const struct shore__routing *r);
    int (*experts_linear_backward_w)(struct shore__compute *c, struct shore__stream *s, shore__buf dw, shore__buf dy,
                                     shore__buf x, shore__buf route, size_t rows, size_t n, size_t k, bool w_is_nk,
                                     bool add, const struct shore__routing *r);
    int (*experts_bias_backward)(struct shore__compute *c, struct shore__stream *s, shore__buf db, shore__buf dy,
                                 shore__buf route, size_t rows, size_t n, const struct shore__routing *r);
    int (*experts_weigh_bias)(struct shore__compute *c, struct shore__stream *s, shore__buf dweights, shore__buf dy,
                              shore__buf bias, shore__buf route, size_t rows, size_t n, const struct shore__routing *r);
    int (*experts_weigh)(struct shore__compute *c, struct shore__stream *s, shore__buf dweights, shore__buf dact,
                         shore__buf act, shore__buf route, size_t rows, size_t width, const struct shore__routing *r);

    /* ---- attention ---- qkv [rows, (n_head + 2 n_kv_head) * head_dim]: queries, keys, values.
     * rope: rotates queries and keys in place by half (GPT-NeoX style: pairs (i, i + rotary_dim / 2)); cos_sin fp32
     *   [>= first_position + seq_len, rotary_dim] (rotary_dim / 2 cosines, then as many sines); inverse: the backward.
     * attention: causal, out [rows, n_head * head_dim], lse fp32 [n_head, rows] (of a sink too).
     * attention_backward: dqkv from dout; recomputes the probabilities from qkv and lse.
     * sink_backward: dsinks fp32 [n_head] +=, rows in order.
     * attention_cached: `rows` queries, one or many, at positions first .. first + rows - 1 of ONE sequence, against
     *   cached keys and values [n_kv_head, capacity, head_dim] (activation mode), which already hold positions
     *   0 .. first + rows - 1. lse as in attention, or none. */
    int (*rope)(struct shore__compute *c, struct shore__stream *s, shore__buf qkv, shore__buf cos_sin,
                const struct shore__attention *a, size_t first_position, bool inverse);
    int (*attention)(struct shore__compute *c, struct shore__stream *s, shore__buf out, shore__buf lse, shore__buf qkv,
                     const struct shore__attention *a);
    int (*attention_backward)(struct shore__compute *c, struct shore__stream *s, shore__buf dqkv, shore__buf dout,
                              shore__buf qkv, shore__buf out, shore__buf lse, const struct shore__attention *a);
    int (*sink_backward)(struct shore__compute *c, struct shore__stream *s, shore__buf dsinks, shore__buf dout,
                         shore__buf out, shore__buf lse, const struct shore__attention *a);
    int (*attention_cached)(struct shore__compute *c, struct shore__stream *s, shore__buf out, shore__buf lse,
                            shore__buf qkv, shore__buf keys, shore__buf values, size_t rows, size_t first,
                            size_t capacity, const struct shore__attention *a);

    void (*close)(struct shore__compute *c);
};

/* Declares a backend's function for the table's member `name`: SHORE__OP_TYPE(add) my_add; */
#define SHORE__OP_TYPE(name) __typeof__(*((struct shore__compute_ops *)NULL)->name)

/* The start of every backend's object. */
struct shore__compute {
    const struct shore__compute_ops *ops;
    enum shore__mode mode;
    int threads;
    bool
        one_memory; /* it shares the host's memory: operations see PINNED and PLAIN spans, the host sees DEVICE spans */
    /* Transfers and events of the backend, on streams of stream_open(). With one memory, put and get do nothing between
     * equal addresses: memory that both sides use then exists once. */
    struct shore_device device;
};

static inline int shore__put(struct shore__compute *c, struct shore__stream *s, shore__buf dst, const void *src,
                             size_t bytes) {
    return c->device.put(c->device.ctx, s, dst.handle, src, bytes);
}
static inline int shore__get(struct shore__compute *c, struct shore__stream *s, void *dst, shore__buf src,
                             size_t bytes) {
    return c->device.get(c->device.ctx, s, dst, src.handle, bytes);
}
static inline struct shore_event shore__record(struct shore__compute *c, struct shore__stream *s) {
    return c->device.record(c->device.ctx, s);
}
/* Waits for all calls on the stream. */
static inline int shore__sync(struct shore__compute *c, struct shore__stream *s, struct shore_diag *diag) {
    return shore_device_wait(&c->device, shore__record(c, s), diag);
}
/* Says what an operation, put or get returned, if that is an error. */
static inline int shore__op_failed(struct shore_diag *diag, int rc) {
    return rc ? shore__fail(diag, rc, "a tensor operation failed: %s", shore_error_text(rc)) : 0;
}

/* ---- backends ---------------------------------------------------------------------------------------------------- */

enum shore__products { SHORE__PRODUCTS_AUTO, SHORE__PRODUCTS_BF16, SHORE__PRODUCTS_F32 };

struct shore__compute_options {
    const char *device; /* a backend's name; NULL: "cpu" */
    bool fp32;          /* otherwise activations are bf16 values */
    enum shore__products products;
    int threads; /* 0: shore__machine_threads() */
};

/* Description of a backend, available before it is opened. */
struct shore__compute_description {
    /* kind: the processor, with the instruction set that products run on ("x86-64 amx", "x86-64 avx2", ...). kernels: a
     * number that goes up whenever the bits of an operation change on any kind of processor. A run's identity records
     * both, with products and threads. */
    char kind[64];
    int kernels;
    enum shore__mode mode;
    enum shore_precision products; /* what it multiplies in */
    int threads;
    bool one_memory;
    size_t workspace_bytes; /* the least that make() needs */
    uint64_t heap_bytes;    /* that products may allocate beside it */
    bool allocates;         /* products of these shapes do */
    size_t packed_bytes;    /* additional bytes that keep a layer's weights packed; may be 0 */
};

/* Describes a backend from the options and the machine alone; opens nothing and makes no code. shapes NULL: no
 * workspace. Errors: those of shore__compute_open(). */
int shore__compute_describe(const struct shore__compute_options *options, const struct shore__shapes *shapes,
                            struct shore__compute_description *out, struct shore_diag *diag);
/* Writes "KIND, bf16 products, N threads, kernels N", which a run records about its processor. 64 bytes hold it. */
void shore__compute_identity(const struct shore__compute_description *d, char *out, size_t bytes);

/* Opens a backend: "cpu" (oneDNN, OpenMP; flush-to-zero in each of its threads; a table of processors decides AUTO
 * products), or a registered one. From then on, the caller's parallel regions have as many threads, so that work beside
 * it, such as norms and codes, keeps to them. */
int shore__compute_open(const struct shore__compute_options *options, struct shore__compute **out,
                        struct shore_diag *diag);

struct shore__compute_backend {
    const char *name;
    int (*describe)(const struct shore__compute_options *options, const struct shore__shapes *shapes,
                    struct shore__compute_description *out, struct shore_diag *diag);
    int (*open)(const struct shore__compute_options *options, struct shore__compute **out, struct shore_diag *diag);
};
extern const struct shore__compute_backend shore__compute_cpu;
/* Registers a backend by name, for the life of the process. Threading: before any is opened. */
void shore__compute_register(const struct shore__compute_backend *backend);

/* ---- this machine's processor ------------------------------------------------------------------------------------ */

/* Decides by kind of processor, from a fixed table: bf16 with AMX or AMD's AVX512_BF16, otherwise fp32. */
enum shore__products shore__products_for_this_processor(void);

/* Whether products can run in bf16 at all. oneDNN supports them from AVX-512 on, slower than fp32 on some
 * processors. */
bool shore__can_multiply_bf16(void);

/* The processor's kind, as in descriptions. */
const char *shore__processor_kind(void);

#endif
