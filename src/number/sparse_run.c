/* Codes of a run of segments, for programs that make their own selection. */
#include <errno.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/limits.h"
#include "longshore/clip.h"
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

int shore_sparse_size_of(enum shore_sparse_values values, double share, const struct shore_layout_block *block,
                         int threads, struct shore_sparse_size *out, struct shore_diag *diag) {
    uint64_t elems = 0;
    if (!threads) threads = (int)shore__machine_threads();
    for (uint32_t i = 0; i < block->ntensors; i++)
        elems += block->tensors[i].elems;
    out->count = shore_sparse_count(share, elems);
    out->code_bytes = shore_sparse_bound(values, out->count, block->segments);
    out->work_bytes = shore__topk_bytes(out->count, block->segments, threads);
    if (out->code_bytes <= UINT32_MAX) return 0;
    return shore__fail(diag, SHORE_EUSAGE,
                       "compress: this share of block %s would take more than 4 GiB; send less, or leave it out",
                       block->name);
}

static double sum_squares_of(const struct shore__topk_list *list) {
    double sum = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        double x = shore__bits_f32(list->bits[i]);
        sum += x * x;
    }
    return sum;
}

static int encode(const struct shore__topk *select, enum shore_sparse_values values, uint32_t segments, void *codes,
                  uint64_t *bytes, uint32_t *offsets, uint16_t *residual) {
    uint64_t used = 0, room = *bytes;
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
    }
    return 0;
}

int shore_sparse_encode_feedback(enum shore_sparse_values values, uint32_t segments, const float *sums, uint64_t k,
                                 void *codes, uint64_t *bytes, uint32_t *offsets, uint16_t *residual, void *work,
                                 uint64_t work_bytes, double *energy, double *sent) {
    uint64_t elems = (uint64_t)segments * SHORE__SPARSE_SEGMENT;
    int threads = omp_get_max_threads(), rc = -EINVAL;
    void *own = NULL;
    if ((unsigned)values > SHORE_SPARSE_FP32) return -EINVAL;
    if (k > elems) k = elems;
    if (!work) {
        work_bytes = shore__topk_bytes(k, segments, threads);
        work = own = aligned_alloc(64, work_bytes);
        if (!work) return -ENOMEM;
    }
    while (threads > 1 && shore__topk_bytes(k, segments, threads) > work_bytes)
        threads--;
    if (shore__topk_bytes(k, segments, threads) <= work_bytes) {
        struct shore__topk select;
        shore__topk_lay_out(&select, work, k, segments, threads);
        shore__topk_select(&select, sums, segments, k);
        rc = encode(&select, values, segments, codes, bytes, offsets, residual);
#pragma omp parallel for schedule(static)
        for (uint32_t s = 0; s < segments; s++) {
            if (energy) energy[s] = shore_clip_sum(sums + (size_t)s * SHORE__SPARSE_SEGMENT);
            if (sent) sent[s] = sum_squares_of(&select.list[s]);
        }
    }
    free(own);
    return rc;
}

int shore_sparse_encode_largest(enum shore_sparse_values values, uint32_t segments, const float *gradient, uint64_t k,
                                void *codes, uint64_t *bytes, uint32_t *offsets) {
    return shore_sparse_encode_feedback(values, segments, gradient, k, codes, bytes, offsets, NULL, NULL, 0, NULL,
                                        NULL);
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
