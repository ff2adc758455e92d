/* Codes of a run of segments, for programs that make their own selection. */
#include <errno.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "number/bf16.h"
#include "number/gather.h"
#include "number/residual.h"
#include "number/sparse.h"
#include "number/topk.h"

static int too_many(uint64_t used, uint64_t room) {
    return used > UINT32_MAX ? -E2BIG : used > room ? -ENOSPC : 0;
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
    uint64_t at = 0, used = 0, room = *bytes;
    offsets[0] = 0;
    for (uint32_t s = 0; s < segments; s++) {
        uint32_t n = 0;
        for (; at < count && index[at] / SHORE__SPARSE_SEGMENT == s; at++, n++) {
            within[n] = (uint16_t)(index[at] % SHORE__SPARSE_SEGMENT);
            bits[n] = shore__f32_bits(value[at]);
        }
        /* continues counting without room, so that the caller learns how much is needed */
        uint64_t more = shore__sparse_bytes(values, within, n);
        if (used + more <= room) shore__sparse_encode(values, within, bits, n, (unsigned char *)codes + used);
        used += more;
        offsets[s + 1] = (uint32_t)used;
    }
    free(bits);
    *bytes = used;
    return too_many(used, room);
}

static double sum_squares_of(const struct shore__topk_list *list) {
    double sum = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        double x = shore__bits_f32(list->bits[i]);
        sum += x * x;
    }
    return sum;
}

int shore__residual_encode(struct shore__topk *select, enum shore_sparse_values values, uint32_t segments,
                           const float *sums, uint64_t k, void *codes, uint64_t *bytes, uint32_t *offsets,
                           uint16_t *residual, double *sent) {
    uint64_t used = 0, room = *bytes;
    shore__topk_select(select, sums, segments, k);
    offsets[0] = 0;
    for (uint32_t s = 0; s < segments; s++) {
        used += shore__sparse_bytes(values, select->list[s].index, select->list[s].count);
        offsets[s + 1] = (uint32_t)used;
    }
    *bytes = used;
    if (too_many(used, room)) return too_many(used, room);
#pragma omp parallel for schedule(static)
    for (uint32_t s = 0; s < segments; s++) {
        const struct shore__topk_list *list = &select->list[s];
        shore__sparse_encode(values, list->index, list->bits, list->count, (unsigned char *)codes + offsets[s]);
        if (residual) shore__residual_sent(residual + (size_t)s * SHORE__SPARSE_SEGMENT, list, values);
        if (sent) sent[s] = sum_squares_of(list);
    }
    return 0;
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
    shore__topk_lay_out(&select, memory, k, segments, threads);
    int rc = shore__residual_encode(&select, values, segments, sums, k, codes, bytes, offsets, residual, NULL);
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
