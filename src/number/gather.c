#include "number/gather.h"

#include <string.h>

#include "number/fp16.h"

#define TILE_ELEMS 1024u

static size_t dtype_bytes(enum shore_dtype dtype) {
    return dtype == SHORE_DTYPE_FP32 ? 4 : dtype == SHORE_DTYPE_BF16 || dtype == SHORE_DTYPE_FP16 ? 2 : 0;
}

const char *shore__gather_fault(const struct shore__gather_list *list, const struct shore_layout_block *block) {
    uint64_t end = 0;
    uint32_t t = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        const struct shore_gather *item = &list->item[i];
        size_t bytes = dtype_bytes(item->dtype);
        if (!bytes) return "an item of the gather list has an unknown dtype";
        if (!item->from || (uintptr_t)item->from % bytes)
            return "an item of the gather list points to nothing, or between two elements";
        if (item->elems == 0 || item->offset_elems < end)
            return "the gather list is not in block order, has an empty item, or has items that overlap";
        while (t + 1 < block->ntensors && block->tensors[t + 1].offset_elems <= item->offset_elems)
            t++;
        const struct shore_layout_tensor *tensor = &block->tensors[t];
        uint64_t within = item->offset_elems - tensor->offset_elems;
        if (within >= tensor->elems || item->elems > tensor->elems - within)
            return "an item of the gather list does not lie within one tensor";
        end = item->offset_elems + item->elems;
    }
    return NULL;
}

uint32_t shore__gather_first(const struct shore__gather_list *list, uint64_t elem) {
    uint32_t low = 0, high = list->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (list->item[middle].offset_elems + list->item[middle].elems <= elem)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void widen(const struct shore_gather *item, uint64_t at, uint64_t elems, float *to) {
    const uint16_t *half = (const uint16_t *)item->from + at;
    if (item->dtype == SHORE_DTYPE_FP32)
        memcpy(to, (const float *)item->from + at, elems * sizeof *to);
    else if (item->dtype == SHORE_DTYPE_BF16)
        shore__f32_from_bf16(to, half, elems);
    else
        for (uint64_t i = 0; i < elems; i++)
            to[i] = shore__f16_to_f32(half[i]);
}

void shore__gather_fill(const struct shore__gather_list *list, uint64_t first, uint64_t elems, float *to) {
    uint64_t at = first, end = first + elems;
    for (uint32_t i = shore__gather_first(list, first); at < end; i++) {
        const struct shore_gather *item = i < list->count ? &list->item[i] : NULL;
        uint64_t begin = item && item->offset_elems < end ? item->offset_elems : end;
        if (begin > at) {
            memset(to + (at - first), 0, (begin - at) * sizeof *to);
            at = begin;
        }
        if (at == end) break;
        uint64_t stop = item->offset_elems + item->elems < end ? item->offset_elems + item->elems : end;
        widen(item, at - item->offset_elems, stop - at, to + (at - first));
        at = stop;
    }
}

void shore__gather_fill_bf16(const struct shore__gather_list *list, uint64_t first, uint64_t elems, uint16_t *to) {
    float tile[TILE_ELEMS];
    for (uint64_t at = 0; at < elems; at += TILE_ELEMS) {
        uint64_t n = elems - at < TILE_ELEMS ? elems - at : TILE_ELEMS;
        shore__gather_fill(list, first + at, n, tile);
        shore__bf16_from_f32(to + at, tile, n);
    }
}

const float *shore__gather_view(const struct shore__gather_list *list, uint64_t first, uint64_t *elems) {
    uint32_t i = shore__gather_first(list, first);
    const struct shore_gather *item = i < list->count ? &list->item[i] : NULL;
    if (!item || item->offset_elems > first || item->dtype != SHORE_DTYPE_FP32) return NULL;
    uint64_t at = first - item->offset_elems;
    if (*elems > item->elems - at) *elems = item->elems - at;
    return (const float *)item->from + at;
}
