#include "number/gather.h"

#include <string.h>

#include "base/fields.h"
#include "base/units.h"
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

/* ---- as they travel ---------------------------------------------------------------------------------------------- */

#define HEAD_BYTES 16u

static const struct shore__field head_fields[] = {SHORE__FIELD(struct shore_gather, offset_elems, 8),
                                                  SHORE__FIELD(struct shore_gather, elems, 4),
                                                  SHORE__FIELD(struct shore_gather, dtype, 4), SHORE__FIELDS_END};

static uint64_t data_bytes(const struct shore_gather *item) {
    return (item->elems * dtype_bytes(item->dtype) + 7) / 8 * 8;
}

/* The part of item i in [first, end); false: there is none, and none behind it. */
static bool part_of(const struct shore__gather_list *list, uint32_t i, uint64_t first, uint64_t end,
                    struct shore_gather *part) {
    if (i >= list->count || list->item[i].offset_elems >= end) return false;
    *part = list->item[i];
    uint64_t skipped = part->offset_elems < first ? first - part->offset_elems : 0;
    part->from = (const unsigned char *)part->from + skipped * dtype_bytes(part->dtype);
    part->offset_elems += skipped;
    part->elems -= skipped;
    if (part->elems > end - part->offset_elems) part->elems = end - part->offset_elems;
    return true;
}

uint64_t shore__gather_packed_bytes(const struct shore__gather_list *list, uint64_t first, uint64_t elems) {
    struct shore_gather part;
    uint64_t bytes = 8;
    for (uint32_t i = shore__gather_first(list, first); part_of(list, i, first, first + elems, &part); i++)
        bytes += HEAD_BYTES + data_bytes(&part);
    return bytes;
}

void shore__gather_pack(const struct shore__gather_list *list, uint64_t first, uint64_t elems, unsigned char *out) {
    struct shore_gather part;
    uint32_t begin = shore__gather_first(list, first), n = 0;
    while (part_of(list, begin + n, first, first + elems, &part))
        n++;
    unsigned char *head = out + 8, *data = head + (size_t)n * HEAD_BYTES;
    shore__put_u64(out, n);
    for (uint32_t i = 0; part_of(list, begin + i, first, first + elems, &part) && i < n; i++) {
        uint64_t bytes = part.elems * dtype_bytes(part.dtype), whole = data_bytes(&part);
        head = shore__fields_put(head, head_fields, &part);
        memcpy(data, part.from, bytes);
        memset(data + bytes, 0, whole - bytes);
        data += whole;
    }
}

uint32_t shore__gather_packed_count(const unsigned char *in, uint64_t bytes) {
    uint64_t n = bytes < 8 ? 0 : shore__get_u64(in);
    return n <= (bytes - 8) / HEAD_BYTES ? (uint32_t)n : 0;
}

bool shore__gather_unpack(const unsigned char *in, uint64_t bytes, struct shore_gather *items) {
    uint32_t n = shore__gather_packed_count(in, bytes);
    const unsigned char *head = in + 8, *data = head + (size_t)n * HEAD_BYTES, *end = in + bytes;
    if (bytes < 8 || shore__get_u64(in) != n) return false;
    for (uint32_t i = 0; i < n; i++) {
        items[i] = (struct shore_gather){.from = data};
        head = shore__fields_get(head, end, head_fields, &items[i]);
        if (!dtype_bytes(items[i].dtype) || data_bytes(&items[i]) > (uint64_t)(end - data)) return false;
        data += data_bytes(&items[i]);
    }
    return data == end;
}

const float *shore__gather_view(const struct shore__gather_list *list, uint64_t first, uint64_t *elems) {
    uint32_t i = shore__gather_first(list, first);
    const struct shore_gather *item = i < list->count ? &list->item[i] : NULL;
    if (!item || item->offset_elems > first || item->dtype != SHORE_DTYPE_FP32) return NULL;
    uint64_t at = first - item->offset_elems;
    if (*elems > item->elems - at) *elems = item->elems - at;
    return (const float *)item->from + at;
}
