/* What the files of the CPU backend share. */
#ifndef SHORE_COMPUTE_CPU_H
#define SHORE_COMPUTE_CPU_H

#include <omp.h>
#include <pthread.h>

#include "compute/compute.h"
#include "kernel/kernels.h"

/* Goes up with every change of the bits of an operation, on whatever kind of processor. */
#define SHORE__COMPUTE_KERNELS 3

/* Whether B is copied before into the order that products read (of oneDNN's, those in bf16 alone), instead of by every
 * block of rows again; weights stay so until they change, where there is room. */
enum shore__pack { SHORE__PACK_NOTHING, SHORE__PACK_ACTIVATIONS, SHORE__PACK_WEIGHTS };

/* C [m, n] = A [m, k] B [k, n] (+ bias [n]) or, accumulating, C += A B. A and B may be stored transposed. */
struct shore__product {
    size_t m, n, k;
    bool a_transposed, b_transposed, bias, accumulate, f32_out;
    enum shore__pack pack;
};

struct shore__onednn_table;

/* Weights kept packed: of one layer, forward and backward, four matrices each, for full units and short ones. */
#define SHORE__PACKED_MOST 16
struct shore__packed {
    char *memory;
    size_t bytes, used, count;
    struct {
        struct shore__product product;
        const void *plain;
        char *packed;
    } of[SHORE__PACKED_MOST];
};

struct shore__cpu {
    struct shore__compute base;
    const struct shore__kernels *kernels;
    const struct shore__product_kernel *product; /* NULL: oneDNN's alone */
    bool bf16_products;                          /* otherwise in fp32, whatever the operands are */
    struct shore__onednn_table *onednn;
    struct shore__packed packed;
    char *workspace;
    size_t workspace_bytes; /* without what is kept packed */
};

static inline struct shore__cpu *shore__cpu_of(struct shore__compute *c) {
    return (struct shore__cpu *)c;
}
/* Scratch that lies so shares no page with another thread's. */
static inline size_t shore__cpu_whole_pages(size_t bytes) {
    return (bytes + 4095) / 4096 * 4096;
}
static inline void *shore__cpu_ptr(shore__buf b) {
    return (void *)b.handle;
}

/* The kernels for this processor, within what oneDNN is limited to (ONEDNN_MAX_CPU_ISA), so that one limit gives the
 * bits of a smaller processor; bf16: products are in bf16. */
const struct shore__kernels *shore__kernels_for_this_processor(bool bf16);

/* ---- the state of a thread while it computes: flush to zero, and how many threads oneDNN may use, not fewer ---- */
struct shore__cpu_thread {
    uint64_t control;
    int threads, dynamic;
};
struct shore__cpu_thread shore__cpu_enter(const struct shore__cpu *c);
void shore__cpu_leave(struct shore__cpu_thread *state);
void shore__cpu_flush_to_zero(void);
/* For the rest of the scope; the caller's own state comes back at its end, since near/ computes with denormals. */
#define SHORE__CPU_SCOPE(c) \
    __attribute__((cleanup(shore__cpu_leave), unused)) struct shore__cpu_thread scope = shore__cpu_enter(c)

/* ---- pieces of work, one for each thread: FOR_PART(c, n, unit, p) { uses p.begin .. p.end - 1 } ---- */
struct shore__part {
    size_t begin, end;
    bool done;
};
/* Part `self` of n elements in so many parts of whole units. */
static inline struct shore__part shore__cpu_part_of(size_t n, size_t unit, size_t self, size_t parts) {
    size_t units = (n + unit - 1) / unit;
    size_t begin = units * self / parts * unit, end = units * (self + 1) / parts * unit;
    struct shore__part p = {begin < n ? begin : n, end < n ? end : n, false};
    p.done = p.begin == p.end;
    return p;
}
static inline struct shore__part shore__cpu_part(size_t n, size_t unit) {
    shore__cpu_flush_to_zero();
    return shore__cpu_part_of(n, unit, (size_t)omp_get_thread_num(), (size_t)omp_get_num_threads());
}
#define SHORE__PRAGMA(x) _Pragma(#x)
#define SHORE__FOR_PART(c, n, unit, p)                         \
    SHORE__PRAGMA(omp parallel num_threads((c)->base.threads)) \
    for (struct shore__part p = shore__cpu_part((n), (unit)); !p.done; p.done = true)

/* ---- products ---- */
/* Workspace of the product, and how much of it B takes packed, without making its code. */
int shore__cpu_product_room(struct shore__cpu *c, const struct shore__product *p, size_t *bytes, size_t *packed_bytes,
                            struct shore_diag *diag);
/* Makes its code, so that no later call does; 0 or a negative code. */
int shore__cpu_product_make(struct shore__cpu *c, const struct shore__product *p, struct shore_diag *diag);
int shore__cpu_product(struct shore__cpu *c, const struct shore__product *p, void *dst, const void *a, const void *b,
                       const float *bias);

bool shore__same_product(const struct shore__product *a, const struct shore__product *b);
/* Where packed weights are kept (none: 0 bytes), and that they are void. */
void shore__cpu_keep_packed(struct shore__cpu *c, char *memory, size_t bytes);
void shore__cpu_weights_changed(struct shore__compute *c);
/* Where B of the product lies packed or is to go, to be kept or into the workspace; there: it is there already. */
char *shore__cpu_packed_place(struct shore__cpu *c, const struct shore__product *of, const void *plain, size_t bytes,
                              bool *there);

/* The same by oneDNN. */
int shore__onednn_open(struct shore__onednn_table **out, struct shore_diag *diag);
void shore__onednn_close(struct shore__onednn_table *t);
int shore__onednn_product_room(struct shore__cpu *c, const struct shore__product *p, size_t *bytes,
                               size_t *packed_bytes, struct shore_diag *diag);
int shore__onednn_product_make(struct shore__cpu *c, const struct shore__product *p, struct shore_diag *diag);
int shore__onednn_product(struct shore__cpu *c, const struct shore__product *p, void *dst, const void *a, const void *b,
                          const float *bias);

/* What the operations of the head ask for. */
struct shore__product shore__cpu_head_logits_product(const struct shore__cpu *c, size_t rows, size_t n, size_t d);
struct shore__product shore__cpu_head_backward_x_product(size_t rows, size_t n, size_t d);

int shore__cpu_linear(struct shore__compute *, struct shore__stream *, shore__buf y, shore__buf x, shore__buf w,
                      shore__buf bias, size_t rows, size_t n, size_t k, bool w_is_nk);
int shore__cpu_linear_backward_x(struct shore__compute *, struct shore__stream *, shore__buf dx, shore__buf dy,
                                 shore__buf w, size_t rows, size_t n, size_t k, bool w_is_nk);
int shore__cpu_linear_backward_w(struct shore__compute *, struct shore__stream *, shore__buf dw, shore__buf dy,
                                 shore__buf x, size_t rows, size_t n, size_t k, bool w_is_nk, bool add);
int shore__cpu_bias_backward(struct shore__compute *, struct shore__stream *, shore__buf db, shore__buf dy, size_t rows,
                             size_t n);
/* Workspace for all of these shapes' operations; make: also makes the products' code. */
int shore__cpu_room(struct shore__cpu *c, const struct shore__shapes *s, bool make, size_t *workspace_bytes,
                    size_t *packed_bytes, struct shore_diag *diag);
int shore__cpu_products_room(struct shore__cpu *c, const struct shore__shapes *s, bool make, size_t *workspace_bytes,
                             size_t *packed_bytes, struct shore_diag *diag);

/* ---- head ---- */
int shore__cpu_head_logits(struct shore__compute *, struct shore__stream *, shore__buf logits, shore__buf x,
                           shore__buf w, size_t rows, size_t n, size_t d);
int shore__cpu_head_merge(struct shore__compute *, struct shore__stream *, shore__buf max, shore__buf sum,
                          shore__buf target_logit, shore__buf logits, shore__buf targets, size_t rows, size_t n,
                          size_t first);
int shore__cpu_head_loss(struct shore__compute *, struct shore__stream *, shore__buf loss, shore__buf max,
                         shore__buf sum, shore__buf target_logit, shore__buf targets, size_t rows);
int shore__cpu_head_dlogits(struct shore__compute *, struct shore__stream *, shore__buf dlogits, shore__buf logits,
                            shore__buf max, shore__buf sum, shore__buf targets, float scale, size_t rows, size_t n,
                            size_t first);
int shore__cpu_head_backward_x(struct shore__compute *, struct shore__stream *, shore__buf dx_f32, shore__buf dlogits,
                               shore__buf w, size_t rows, size_t n, size_t d);
int shore__cpu_head_backward_w(struct shore__compute *, struct shore__stream *, shore__buf dw, shore__buf dlogits,
                               shore__buf x, size_t rows, size_t n, size_t d, bool add);

/* ---- rows and elements ---- */
int shore__cpu_zero(struct shore__compute *, struct shore__stream *, shore__buf dst, size_t bytes);
int shore__cpu_copy(struct shore__compute *, struct shore__stream *, shore__buf dst, shore__buf src, size_t bytes);
int shore__cpu_widen(struct shore__compute *, struct shore__stream *, shore__buf dst_f32, shore__buf src, size_t n);
int shore__cpu_store(struct shore__compute *, struct shore__stream *, shore__buf dst, shore__buf act, size_t n);
int shore__cpu_load(struct shore__compute *, struct shore__stream *, shore__buf act, shore__buf src, size_t n);
int shore__cpu_round(struct shore__compute *, struct shore__stream *, shore__buf act, shore__buf src_f32, size_t n);
int shore__cpu_add(struct shore__compute *, struct shore__stream *, shore__buf y, shore__buf a, shore__buf b, size_t n);
int shore__cpu_act(struct shore__compute *, struct shore__stream *, shore__buf y, shore__buf x, enum shore__act_fn f,
                   bool gated, size_t rows, size_t width);
int shore__cpu_act_backward(struct shore__compute *, struct shore__stream *, shore__buf dx, shore__buf dy, shore__buf x,
                            enum shore__act_fn f, bool gated, size_t rows, size_t width);
int shore__cpu_embed(struct shore__compute *, struct shore__stream *, shore__buf x, shore__buf table, shore__buf tokens,
                     size_t rows, size_t d, size_t first, size_t n);
int shore__cpu_embed_backward(struct shore__compute *, struct shore__stream *, shore__buf dtable, shore__buf dx,
                              shore__buf tokens, size_t rows, size_t d, size_t first, size_t n);
int shore__cpu_position(struct shore__compute *, struct shore__stream *, shore__buf x, shore__buf table, size_t rows,
                        size_t d, size_t seq_len, size_t first_position);
int shore__cpu_position_backward(struct shore__compute *, struct shore__stream *, shore__buf dtable, shore__buf dx,
                                 size_t rows, size_t d, size_t seq_len);
int shore__cpu_norm(struct shore__compute *, struct shore__stream *, shore__buf y, shore__buf stats, shore__buf x,
                    shore__buf gain, shore__buf bias, float eps, bool rms, size_t rows, size_t d);
int shore__cpu_norm_backward(struct shore__compute *, struct shore__stream *, shore__buf dx, shore__buf dgain,
                             shore__buf dbias, shore__buf dy, shore__buf dx_add, shore__buf x, shore__buf gain,
                             shore__buf stats, bool rms, size_t rows, size_t d);

/* ---- attention ---- */
size_t shore__cpu_attention_workspace(struct shore__cpu *c, const struct shore__shapes *s);
int shore__cpu_rope(struct shore__compute *, struct shore__stream *, shore__buf qkv, shore__buf cos_sin,
                    const struct shore__attention *a, size_t first_position, bool inverse);
int shore__cpu_attention(struct shore__compute *, struct shore__stream *, shore__buf out, shore__buf lse,
                         shore__buf qkv, const struct shore__attention *a);
int shore__cpu_attention_backward(struct shore__compute *, struct shore__stream *, shore__buf dqkv, shore__buf dout,
                                  shore__buf qkv, shore__buf out, shore__buf lse, const struct shore__attention *a);
int shore__cpu_attention_cached(struct shore__compute *, struct shore__stream *, shore__buf out, shore__buf lse,
                                shore__buf qkv, shore__buf keys, shore__buf values, size_t rows, size_t first,
                                size_t capacity, const struct shore__attention *a);
int shore__cpu_attention_merge(struct shore__compute *, struct shore__stream *, shore__buf out, shore__buf lse,
                               shore__buf outs, shore__buf lses, size_t parts, size_t rows,
                               const struct shore__attention *a);

#endif
