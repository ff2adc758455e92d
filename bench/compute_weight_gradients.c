/* Products of oneDNN on the shapes of GPT-2 124M's weight gradients (k: the rows of a unit), by the ways in which they
 * could be asked for, in GFLOP/s of one thread's own time, so that other work on the machine shows little: as training
 * does where it has no kernel of its own (kernels_product_*_body.h), added to what is there; written over it; with
 * dy transposed before; with both operands as oneDNN likes them. And whether the bits are those of the first way.
 * Usage: OMP_NUM_THREADS=1 compute_weight_gradients [ROUNDS] DNNL_MAX_CPU_ISA=AVX512_CORE_BF16 shows a processor
 * without AMX. */
#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "number/bf16.h"

enum { SUM = 1, TRANSPOSED_BEFORE = 2, OWN_LAYOUT = 4 };
static const struct way {
    const char *name;
    unsigned how;
} ways[] = {
    {"added", SUM},
    {"written over", 0},
    {"transposed before, added", SUM | TRANSPOSED_BEFORE},
    {"own layouts", TRANSPOSED_BEFORE | OWN_LAYOUT},
};
#define WAYS (sizeof ways / sizeof *ways)

struct product {
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, dst, scratch;
};

static dnnl_engine_t engine;
static dnnl_stream_t stream;

static void must(dnnl_status_t st) {
    if (!st) return;
    fprintf(stderr, "oneDNN: status %d\n", (int)st);
    exit(1);
}

static void describe(dnnl_memory_desc_t *md, dnnl_dim_t rows, dnnl_dim_t columns, bool transposed, bool own,
                     dnnl_data_type_t type) {
    dnnl_dims_t dims = {rows, columns}, strides = {transposed ? 1 : columns, transposed ? rows : 1};
    must(own ? dnnl_memory_desc_init_by_tag(md, 2, dims, type, dnnl_format_tag_any)
             : dnnl_memory_desc_init_by_strides(md, 2, dims, type, strides));
}

static dnnl_memory_t memory_of(dnnl_primitive_desc_t pd, dnnl_query_t what) {
    dnnl_memory_t memory;
    must(dnnl_memory_create(&memory, dnnl_primitive_desc_query_md(pd, what, 0), engine, DNNL_MEMORY_ALLOCATE));
    return memory;
}

static void *data_of(dnnl_memory_t memory) {
    void *data;
    must(dnnl_memory_get_data_handle(memory, &data));
    return data;
}

static void make(struct product *p, unsigned how, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k) {
    dnnl_memory_desc_t a, b, dst;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t pd;
    dnnl_post_ops_t post;
    describe(&a, m, k, !(how & TRANSPOSED_BEFORE), how & OWN_LAYOUT, dnnl_bf16);
    describe(&b, k, n, false, how & OWN_LAYOUT, dnnl_bf16);
    describe(&dst, m, n, false, how & OWN_LAYOUT, dnnl_f32);
    must(dnnl_matmul_desc_init(&desc, &a, &b, NULL, &dst));
    must(dnnl_primitive_attr_create(&attr));
    must(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    must(dnnl_post_ops_create(&post));
    if (how & SUM) must(dnnl_post_ops_append_sum(post, 1.0f));
    must(dnnl_primitive_attr_set_post_ops(attr, post));
    must(dnnl_primitive_desc_create(&pd, &desc, attr, engine, NULL));
    must(dnnl_primitive_create(&p->primitive, pd));
    p->a = memory_of(pd, dnnl_query_src_md);
    p->b = memory_of(pd, dnnl_query_weights_md);
    p->dst = memory_of(pd, dnnl_query_dst_md);
    p->scratch = memory_of(pd, dnnl_query_scratchpad_md);
    srand(1);
    uint16_t *to_a = data_of(p->a), *to_b = data_of(p->b);
    for (dnnl_dim_t r = 0; r < k; r++)
        for (dnnl_dim_t j = 0; j < m; j++) {
            float x = (float)rand() / (float)RAND_MAX - 0.5f;
            shore__bf16_from_f32(&to_a[how & TRANSPOSED_BEFORE ? j * k + r : r * m + j], &x, 1);
        }
    for (dnnl_dim_t i = 0; i < k * n; i++) {
        float x = (float)rand() / (float)RAND_MAX - 0.5f;
        shore__bf16_from_f32(&to_b[i], &x, 1);
    }
    memset(data_of(p->dst), 0, (size_t)(m * n) * 4);
    dnnl_post_ops_destroy(post);
    dnnl_primitive_attr_destroy(attr);
    dnnl_primitive_desc_destroy(pd);
}

static double seconds(const struct product *p) {
    dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, p->a}, {DNNL_ARG_WEIGHTS, p->b}, {DNNL_ARG_DST, p->dst}, {DNNL_ARG_SCRATCHPAD, p->scratch}};
    struct timespec from, to;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    must(dnnl_primitive_execute(p->primitive, stream, 4, args));
    must(dnnl_stream_wait(stream));
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    return (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        dnnl_dim_t m, n;
    } shapes[] = {{"qkv", 2304, 768}, {"out", 768, 768}, {"up, down", 3072, 768}, {"head", 2048, 768}};
    const dnnl_dim_t k = 1024;
    int rounds = argc > 1 ? atoi(argv[1]) : 30;
    must(dnnl_engine_create(&engine, dnnl_cpu, 0));
    must(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct product p[WAYS];
        double best[WAYS];
        bool same[WAYS];
        for (size_t w = 0; w < WAYS; w++) {
            make(&p[w], ways[w].how, shapes[i].m, shapes[i].n, k);
            best[w] = seconds(&p[w]);
            same[w] = !memcmp(data_of(p[w].dst), data_of(p[0].dst), (size_t)(shapes[i].m * shapes[i].n) * 4);
        }
        for (int r = 0; r < rounds; r++)
            for (size_t w = 0; w < WAYS; w++) {
                double s = seconds(&p[w]);
                if (s < best[w]) best[w] = s;
            }
        printf("%-9s %4d x %d:", shapes[i].name, (int)shapes[i].m, (int)shapes[i].n);
        for (size_t w = 0; w < WAYS; w++)
            printf("  %s %.0f%s", ways[w].name, 2.0 * (double)(shapes[i].m * shapes[i].n * k) / best[w] * 1e-9,
                   ways[w].how & OWN_LAYOUT ? ""
                   : same[w]                ? ""
                                            : " (other bits)");
        putchar('\n');
        for (size_t w = 0; w < WAYS; w++) {
            dnnl_memory_t memory[] = {p[w].a, p[w].b, p[w].dst, p[w].scratch};
            for (size_t j = 0; j < 4; j++)
                dnnl_memory_destroy(memory[j]);
            dnnl_primitive_destroy(p[w].primitive);
        }
    }
    dnnl_stream_destroy(stream);
    dnnl_engine_destroy(engine);
    return 0;
}
