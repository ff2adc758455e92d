/* Codes of a run of segments, for programs that select for themselves. */
#include <errno.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "number/bf16.h"
#include "number/gather.h"
#include "number/residual.h"
#include "number/sparse.h"
#include "number/topk.h"

struct run {
    enum shore_sparse_values values;
    unsigned char *codes;
    uint64_t room, used;
    uint32_t *offsets;
};

/* Counts on where there is no room left, so that the caller learns how much is needed. */
static void add(struct run *run, const uint16_t *index, const uint32_t *bits, uint32_t count) {
    uint64_t bytes = shore__sparse_bytes(run->values, index, count);
    if (run->used + bytes <= run->room) shore__sparse_encode(run->values, index, bits, count, run->codes + run->used);
    run->used += bytes;
    *++run->offsets = (uint32_t)run->used;
}

static struct run begin(enum shore_sparse_values values, void *codes, const uint64_t *bytes, uint32_t *offsets) {
    offsets[0] = 0;
    return (struct run){values, codes, *bytes, 0, offsets};
}

static int end(const struct run *run, uint64_t *bytes) {
    *bytes = run->used;
    return run->used > UINT32_MAX ? -E2BIG : run->used > run->room ? -ENOSPC : 0;
}

static bool is_ordered(const uint64_t *index, uint64_t count, uint32_t segments) {
    for (uint64_t i = 1; i < count; i++)
        if (index[i] <= index[i - 1]) return false;
    return count == 0 || index[count - 1] / SHORE__SPARSE_SEGMENT < segments;
}

int shore_sparse_encode(enum shore_sparse_values values, uint32_t segments, const uint64_t *index, const float *value,
                        uint64_t count, void *codes, uint64_t *bytes, uint32_t *offsets) {
    if ((unsigned)values > SHORE_SPARSE_FP32 || !is_ordered(index, count, segments)) return -EINVAL;
    uint32_t *bits = malloc(SHORE__SPARSE_SEGMENT * (sizeof *bits + sizeof(uint16_t)));
    if (!bits) return -ENOMEM;
    uint16_t *within = (uint16_t *)(bits + SHORE__SPARSE_SEGMENT);
    struct run run = begin(values, codes, bytes, offsets);
    uint64_t at = 0;
    for (uint32_t s = 0; s < segments; s++) {
        uint32_t n = 0;
        for (; at < count && index[at] / SHORE__SPARSE_SEGMENT == s; at++, n++) {
            within[n] = (uint16_t)(index[at] % SHORE__SPARSE_SEGMENT);
            bits[n] = shore__f32_bits(value[at]);
        }
        add(&run, within, bits, n);
    }
    free(bits);
    return end(&run, bytes);
}

int shore_sparse_encode_feedback(enum shore_sparse_values values, uint32_t segments, const float *sums, uint64_t k,
                                 void *codes, uint64_t *bytes, uint32_t *offsets, uint16_t *residual) {
    struct shore__topk select;
    uint64_t elems = (uint64_t)segments * SHORE__SPARSE_SEGMENT;
    if ((unsigned)values > SHORE_SPARSE_FP32) return -EINVAL;
    if (k > elems) k = elems;
    int threads = omp_get_max_threads();
    size_t room = (shore__topk_bytes(k, segments, threads) + 63) / 64 * 64;
    void *memory = aligned_alloc(64, room);
    if (!memory) return -ENOMEM;
    shore__topk_place(&select, memory, k, segments, threads);
    shore__topk_select(&select, sums, segments, k);
    struct run run = begin(values, codes, bytes, offsets);
    for (uint32_t s = 0; s < segments; s++)
        add(&run, select.list[s].index, select.list[s].bits, select.list[s].count);
    int rc = end(&run, bytes);
    for (uint32_t s = 0; !rc && residual && s < segments; s++)
        shore__residual_sent(residual + (size_t)s * SHORE__SPARSE_SEGMENT, &select.list[s], values);
    free(memory);
    return rc;
}

int shore_sparse_encode_largest(enum shore_sparse_values values, uint32_t segments, const float *gradient, uint64_t k,
                                void *codes, uint64_t *bytes, uint32_t *offsets) {
    return shore_sparse_encode_feedback(values, segments, gradient, k, codes, bytes, offsets, NULL);
}

void shore_sparse_add_residual(uint32_t segments, const struct shore_gather *gather, uint32_t ngather, float *sums,
                               uint16_t *residual) {
    const struct shore__gather_list list = {gather, ngather};
#pragma omp parallel for schedule(static)
    for (uint32_t s = 0; s < segments; s++) {
        uint64_t first = (uint64_t)s * SHORE__SPARSE_SEGMENT, behind = first + SHORE__SPARSE_SEGMENT;
        shore__gather_fill(&list, first, SHORE__SPARSE_SEGMENT, sums + first);
        for (uint32_t i = shore__gather_first(&list, first); i < ngather && gather[i].offset_elems < behind; i++) {
            uint64_t from = gather[i].offset_elems > first ? gather[i].offset_elems : first;
            uint64_t stop = gather[i].offset_elems + gather[i].elems;
            if (stop > behind) stop = behind;
            shore__residual_add(sums + from, residual + from, residual + from, stop - from);
        }
    }
}

int shore_sparse_decode(const void *codes, const uint32_t *offsets, uint32_t segments, float *gradient) {
    const unsigned char *code = codes;
    memset(gradient, 0, (size_t)segments * SHORE__SPARSE_SEGMENT * sizeof *gradient);
    for (uint32_t s = 0; s < segments; s++) {
        struct shore__sparse_reader reader;
        int rc = offsets[s + 1] < offsets[s]
                     ? SHORE_ECORRUPT
                     : shore__sparse_open(code + offsets[s], offsets[s + 1] - offsets[s], &reader);
        if (rc) return rc;
        shore__sparse_scatter(&reader, 0, SHORE__SPARSE_SEGMENT, gradient + (size_t)s * SHORE__SPARSE_SEGMENT);
    }
    return 0;
}
