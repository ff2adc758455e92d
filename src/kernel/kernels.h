/* Kernels: inner loops, compiled once per instruction set from the same text (kernels_*_body.h). They are pure: no
 * threads, no memory and no I/O of their own. They therefore run wherever the operands are: in the CPU backend, or
 * beside a drive.
 *
 * A kernel works on the rows, columns or elements that it is given. Each gets the same arithmetic, whatever the others
 * are, so callers may split the work over threads. Sums over a row have a fixed number of lanes and a fixed tree.
 * Activations are void * in the mode of the call; everything else is fp32. */
#ifndef SHORE_KERNEL_KERNELS_H
#define SHORE_KERNEL_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernel/mode.h"

/* One sequence and one key/value head, with the query heads that share it. Strides in elements. */
struct shore__attention_job {
    const void *q, *k, *v, *out_in, *dout;
    void *out, *dq, *dk, *dv;
    float *lse;                  /* [heads] rows at stride lse_stride, NULL: not kept */
    const float *sinks;          /* [heads], NULL: none */
    size_t lse_stride;           /* between heads */
    size_t q_ld, kv_ld, out_ld;  /* between rows of q (and dq, dk, dv); of k and v; of out and dout */
    size_t heads;                /* query heads that share this key/value head, adjacent */
    size_t queries, first, keys; /* query r is at position first + r; keys are positions 0 .. keys - 1 */
    size_t head_dim, window;
    float scale, softcap; /* softcap 0: none */
    enum shore__mode mode;
};

/* A part of c [m, n] = a [m, k] b [k, n] (+ bias) or c += a b: some of its rows and columns. */
struct shore__product_job {
    void *c;
    const void *a, *b; /* b: packed, if the kernel packs it and `packed` says so */
    const float *bias; /* NULL: none */
    size_t m, n, k;
    size_t row_begin, row_end;       /* at most as many as job_size() says */
    size_t column_begin, column_end; /* multiples of the kernel's panel; the end may also be n */
    bool a_transposed, b_transposed, packed, accumulate;
    enum shore__mode mode;   /* of a and b */
    enum shore__mode c_mode; /* accumulate: SHORE__F32 */
};

/* Most rows of a job (whole strips), and least jobs of a thread. */
struct shore__job_size {
    size_t rows, jobs;
};

/* A kernel of products in bf16, or in fp32. */
struct shore__product_kernel {
    bool widens;         /* in fp32, also of operands in SHORE__BF16 */
    bool packs_too;      /* run() also takes b unpacked, and packs one panel at a time */
    size_t strip, panel; /* rows and columns computed together */
    struct shore__job_size (*job_size)(size_t k, bool a_transposed);
    /* Scratch bytes of one job. */
    size_t (*scratch)(size_t k);
    /* Bytes of packed b; and packing its columns begin .. end - 1 (begin: a multiple of the panel). NULL: b is read in
     * place. */
    size_t (*packed)(size_t k, size_t n);
    void (*pack)(void *packed, const void *b, enum shore__mode mode, bool transposed, size_t k, size_t n, size_t begin,
                 size_t end);
    void (*run)(const struct shore__product_job *job, void *scratch);
};

struct shore__kernels {
    void (*round)(void *act, const float *src, size_t n, enum shore__mode mode);
    void (*add)(void *y, const void *a, const void *b, size_t n, enum shore__mode mode);
    void (*add_to)(float *dst, const void *src, size_t n, enum shore__mode mode);
    void (*act)(void *y, const void *x, enum shore__act_fn f, bool gated, size_t rows, size_t width,
                enum shore__mode mode);
    void (*act_backward)(void *dx, const void *dy, const void *x, enum shore__act_fn f, bool gated, size_t rows,
                         size_t width, enum shore__mode mode);
    /* x *= factor */
    void (*scale)(void *x, float factor, size_t n, enum shore__mode mode);
    /* y = exp(x - minus) */
    void (*exp)(float *y, const float *x, float minus, size_t n);
    /* x = cap tanh(x / cap) */
    void (*softcap)(float *x, float cap, size_t n);
    /* Rotates the first `rotary` elements of each head. */
    void (*rope)(void *qkv_row, const float *cos_sin, size_t heads, size_t head_dim, size_t rotary, bool inverse,
                 enum shore__mode mode);

    /* y NULL: statistics alone. */
    void (*norm)(void *y, float *stats, const void *x, const float *gain, const float *bias, float eps,
                 enum shore__norm_kind kind, size_t rows, size_t d, enum shore__mode mode);
    void (*norm_backward)(void *dx, const void *dy, const void *dx_add, const void *x, const float *gain,
                          const float *stats, enum shore__norm_kind kind, size_t rows, size_t d, enum shore__mode mode);
    /* Columns begin .. end - 1 only. dbias may be NULL. */
    void (*norm_columns)(float *dgain, float *dbias, const void *dy, const void *x, const float *stats,
                         enum shore__norm_kind kind, size_t rows, size_t d, size_t begin, size_t end,
                         enum shore__mode mode);
    void (*column_sums)(float *db, const void *dy, size_t rows, size_t n, size_t begin, size_t end,
                        enum shore__mode mode);

    void (*head_merge)(float *max, float *sum, float *target_logit, const float *logits, const int32_t *targets,
                       size_t rows, size_t n, size_t first);
    void (*head_dlogits)(void *dlogits, const float *logits, const float *max, const float *sum, const int32_t *targets,
                         float scale, float cap, size_t rows, size_t n, size_t first, enum shore__mode mode);

    /* for one job */
    size_t (*attention_scratch)(size_t keys, size_t head_dim, bool backward);
    void (*attention)(const struct shore__attention_job *job, void *scratch);
    void (*attention_backward)(const struct shore__attention_job *job, void *scratch);
    /* Of one head: *dsink -= exp(sink - lse) (dout . out), rows in order; ld: between rows of out and dout. */
    void (*sink_backward)(float *dsink, float sink, const void *dout, const void *out, const float *lse, size_t rows,
                          size_t ld, size_t head_dim, enum shore__mode mode);

    const struct shore__product_kernel *product; /* NULL where oneDNN's are fastest */
};

extern const struct shore__kernels shore__kernels_plain;
#ifdef __x86_64__
extern const struct shore__kernels shore__kernels_avx2;
extern const struct shore__kernels shore__kernels_avx512;
extern const struct shore__kernels shore__kernels_avx512_bf16;
extern const struct shore__kernels shore__kernels_amx;
#endif

#endif
