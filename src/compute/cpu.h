/* The CPU backend, as its files share it: its object, threads, products and operations. */
#ifndef SHORE_COMPUTE_CPU_H
#define SHORE_COMPUTE_CPU_H

#include <omp.h>

#include "compute/compute.h"
#include "kernel/kernels.h"

/* Goes up whenever the bits of an operation change on any kind of processor. */
#define SHORE__COMPUTE_KERNELS 3

/* Whether B is packed in advance into the order that products read, instead of by every block of rows (oneDNN: bf16
 * only). Packed weights are kept until they change, if there is room. */
enum shore__pack { SHORE__PACK_NOTHING, SHORE__PACK_ACTIVATIONS, SHORE__PACK_WEIGHTS };

/* C [m, n] = A [m, k] B [k, n] (+ bias [n]) or, accumulating, C += A B. A and B may be stored transposed. */
struct shore__product {
    size_t m, n, k;
    bool a_transposed, b_transposed, bias, accumulate, f32_out;
    enum shore__pack pack;
};

struct shore__onednn_table;

/* Weights kept packed: four matrices of one layer, for forward and backward, for full and short units. */
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
    const struct shore__product_kernel *product; /* NULL: oneDNN's only */
    bool bf16_products;                          /* false: products are in fp32, whatever the operands are */
    struct shore__onednn_table *onednn;
    struct shore__packed packed;
    char *workspace;
    size_t workspace_bytes; /* without the packed weights */
};

static inline struct shore__cpu *shore__cpu_of(struct shore__compute *c) {
    return (struct shore__cpu *)c;
}
/* Rounds scratch up to whole pages, so that threads share none. */
static inline size_t shore__cpu_whole_pages(size_t bytes) {
    return (bytes + 4095) / 4096 * 4096;
}
static inline void *shore__cpu_ptr(shore__buf b) {
    return (void *)b.handle;
}

/* The kernels for this processor, within oneDNN's limit (ONEDNN_MAX_CPU_ISA), so that one setting gives the bits of a
 * lesser processor. bf16: products are in bf16. */
const struct shore__kernels *shore__kernels_for_this_processor(bool bf16);

/* ---- state of a computing thread: flush to zero, and exactly so many threads for oneDNN ---- */
struct shore__cpu_thread {
    uint64_t control;
    int threads, dynamic;
};
struct shore__cpu_thread shore__cpu_enter(const struct shore__cpu *c);
void shore__cpu_leave(struct shore__cpu_thread *state);
void shore__cpu_flush_to_zero(void);
/* Sets it for the rest of the scope, and restores the caller's state at its end, since near/ computes with
 * denormals. */
#define SHORE__CPU_SCOPE(c) \
    __attribute__((cleanup(shore__cpu_leave), unused)) struct shore__cpu_thread scope = shore__cpu_enter(c)

/* ---- parts of work, one for each thread: FOR_PART(c, n, unit, p) { uses p.begin .. p.end - 1 } ---- */
struct shore__part {
    size_t begin, end;
    bool done;
};
/* Part `self` of n elements, divided into parts of whole units. */
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

/* Whether products of so many rows of activations allocate memory of their own: below AVX-512, oneDNN's do. */
bool shore__cpu_product_allocates(const struct shore__cpu *c, size_t rows);

/* ---- products ---- */
/* Workspace of a product, and the part of it that packed B takes. Makes no code. */
int shore__cpu_product_room(struct shore__cpu *c, const struct shore__product *p, size_t *bytes, size_t *packed_bytes,
                            struct shore_diag *diag);
/* Makes a product's code, so that no later call does. Returns 0 or a negative code. */
int shore__cpu_product_make(struct shore__cpu *c, const struct shore__product *p, struct shore_diag *diag);
int shore__cpu_product(struct shore__cpu *c, const struct shore__product *p, void *dst, const void *a, const void *b,
                       const float *bias);

bool shore__same_product(const struct shore__product *a, const struct shore__product *b);
/* Where packed B of a product lies or should go: kept, or in the workspace. there: it is packed already. */
char *shore__cpu_packed_room(struct shore__cpu *c, const struct shore__product *of, const void *plain, size_t bytes,
                             bool *there);

/* The same with oneDNN. */
int shore__onednn_open(struct shore__onednn_table **out, struct shore_diag *diag);
void shore__onednn_close(struct shore__onednn_table *t);
int shore__onednn_product_room(struct shore__cpu *c, const struct shore__product *p, size_t *bytes,
                               size_t *packed_bytes, struct shore_diag *diag);
int shore__onednn_product_make(struct shore__cpu *c, const struct shore__product *p, struct shore_diag *diag);
int shore__onednn_product(struct shore__cpu *c, const struct shore__product *p, void *dst, const void *a, const void *b,
                          const float *bias);

/* The products of the head's operations. */
struct shore__product shore__cpu_head_logits_product(const struct shore__cpu *c, size_t rows, size_t n, size_t d);
struct shore__product shore__cpu_head_backward_x_product(size_t rows, size_t n, size_t d);

/* Workspace for all operations with these shapes. make: also makes the products' code. */
int shore__cpu_room(struct shore__cpu *c, const struct shore__shapes *s, bool make, size_t *workspace_bytes,
                    size_t *packed_bytes, struct shore_diag *diag);
int shore__cpu_products_room(struct shore__cpu *c, const struct shore__shapes *s, bool make, size_t *workspace_bytes,
                             size_t *packed_bytes, struct shore_diag *diag);

/* Workspace for the products of experts. */
int shore__cpu_experts_room(struct shore__cpu *c, const struct shore__shapes *s, size_t *bytes,
                            struct shore_diag *diag);

size_t shore__cpu_attention_workspace(struct shore__cpu *c, const struct shore__shapes *s);

/* Operations in files of their own: the table's member NAME is shore__cpu_NAME. */
#define SHORE__CPU_OPS(X)        \
    X(weights_changed)           \
    X(zero)                      \
    X(copy)                      \
    X(widen)                     \
    X(store)                     \
    X(load)                      \
    X(linear)                    \
    X(linear_backward_x)         \
    X(linear_backward_w)         \
    X(bias_backward)             \
    X(head_logits)               \
    X(head_merge)                \
    X(head_loss)                 \
    X(head_dlogits)              \
    X(head_backward_x)           \
    X(head_backward_w)           \
    X(round)                     \
    X(embed)                     \
    X(embed_backward)            \
    X(position)                  \
    X(position_backward)         \
    X(norm)                      \
    X(norm_backward)             \
    X(head_norm)                 \
    X(head_norm_backward)        \
    X(add)                       \
    X(act)                       \
    X(act_backward)              \
    X(scale)                     \
    X(columns_take)              \
    X(columns_add)               \
    X(rope)                      \
    X(route)                     \
    X(route_backward)            \
    X(route_count)               \
    X(experts_gather)            \
    X(experts_scatter)           \
    X(experts_weigh_bias)        \
    X(experts_weigh)             \
    X(experts_linear)            \
    X(experts_linear_backward_x) \
    X(experts_linear_backward_w) \
    X(experts_bias_backward)     \
    X(attention)                 \
    X(attention_backward)        \
    X(sink_backward)             \
    X(attention_cached)
#define SHORE__DECLARE_CPU_OP(name) SHORE__OP_TYPE(name) shore__cpu_##name;
SHORE__CPU_OPS(SHORE__DECLARE_CPU_OP)

#endif
