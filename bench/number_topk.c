/* Top-k selection against a plain read of the same buffer, on all threads, out of memory.
 * Usage: number_topk [MILLIONS OF ELEMENTS, default 64] [RATIO, default 0.01] [SECONDS for each, default 2] */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/prng.h"
#include "base/units.h"
#include "number/sparse.h"
#include "number/topk.h"

#define READ_UNROLL 64u

#ifdef __x86_64__
#define FOR_EACH_VECTOR_WIDTH __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define FOR_EACH_VECTOR_WIDTH
#endif

/* As fast as memory gives: the compiler makes vectors of it. */
FOR_EACH_VECTOR_WIDTH static uint64_t read_segment(const uint32_t *x) {
    uint32_t lane[READ_UNROLL] = {0};
    for (size_t i = 0; i < SHORE__TOPK_SEGMENT; i += READ_UNROLL)
        for (size_t j = 0; j < READ_UNROLL; j++)
            lane[j] += x[i + j];
    uint64_t sum = 0;
    for (size_t j = 0; j < READ_UNROLL; j++)
        sum += lane[j];
    return sum;
}

static uint64_t read_all(const float *x, uint32_t segments) {
    uint64_t sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum)
    for (uint32_t s = 0; s < segments; s++)
        sum += read_segment((const uint32_t *)(const void *)(x + (size_t)s * SHORE__TOPK_SEGMENT));
    return sum;
}

/* Gradients of a layer: rows of different scale. */
static void fill(float *x, uint32_t segments) {
#pragma omp parallel for schedule(static)
    for (uint32_t s = 0; s < segments; s++)
        for (size_t i = (size_t)s * SHORE__TOPK_SEGMENT; i < (s + 1) * (size_t)SHORE__TOPK_SEGMENT; i++)
            x[i] = shore__random_normal(1, 0, i) * 1e-4f * expf(shore__random_normal(1, 1, i / 1024));
}

static double rate(double bytes, uint64_t rounds, uint64_t begin) {
    return bytes * (double)rounds / ((double)(shore__now_ns() - begin) * 1e-9);
}

int main(int argc, char **argv) {
    double millions = argc > 1 ? atof(argv[1]) : 64, ratio = argc > 2 ? atof(argv[2]) : 0.01;
    double limit = argc > 3 ? atof(argv[3]) : 2;
    uint32_t segments = (uint32_t)(millions * 1e6 / SHORE__TOPK_SEGMENT) + 1;
    uint64_t elems = (uint64_t)segments * SHORE__TOPK_SEGMENT, k = shore_sparse_count(ratio, elems), rounds, begin;
    int threads = omp_get_max_threads();
    float *x = aligned_alloc(4096, elems * sizeof *x);
    size_t bytes = (shore__topk_bytes(k, segments, threads) + 63) / 64 * 64;
    void *memory = aligned_alloc(64, bytes);
    if (!x || !memory) return 1;
    struct shore__topk t;
    shore__topk_lay_out(&t, memory, k, segments, threads);
    fill(x, segments);

    uint64_t check = read_all(x, segments), selected = shore__topk_select(&t, x, segments, k), code_bytes = 0;
    double best_read = 0, best_select = 0;
    for (int turn = 0; turn < 4; turn++) {
        for (rounds = 0, begin = shore__now_ns(); (double)(shore__now_ns() - begin) < limit * 0.25e9; rounds++)
            check += read_all(x, segments);
        best_read = fmax(best_read, rate((double)elems * 4, rounds, begin));
        for (rounds = 0, begin = shore__now_ns(); (double)(shore__now_ns() - begin) < limit * 0.25e9; rounds++)
            selected = shore__topk_select(&t, x, segments, k);
        best_select = fmax(best_select, rate((double)elems * 4, rounds, begin));
    }
    for (uint32_t s = 0; s < segments; s++)
        code_bytes += shore__sparse_bytes(SHORE_SPARSE_BF16, t.list[s].index, t.list[s].count);
    printf("%d threads, %.1f M elements, top %g%%: read %.1f GB/s, select %.1f GB/s, ratio %.2f; %.2f bytes an entry "
           "with bf16 values (%llu of %llu entries, check %llu)\n",
           threads, (double)elems * 1e-6, ratio * 100, best_read * 1e-9, best_select * 1e-9, best_select / best_read,
           (double)code_bytes / (double)selected, (unsigned long long)selected, (unsigned long long)k,
           (unsigned long long)check % 997);
    free(memory);
    free(x);
    return 0;
}
