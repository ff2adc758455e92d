#include <stdlib.h>
#include <string.h>

#include "drive/layout.h"
#include "storage/room.h"

static int add_tensor(struct shore_layout_block *block, const struct shore_tensor_spec *spec, uint64_t *end) {
    struct shore_layout_tensor *tensor = &block->tensors[block->ntensors];
    if (spec->elems == 0 || spec->elems > SHORE__BLOCK_ELEMS_MAX) return SHORE_EINPUT;
    uint64_t start = (*end + SHORE_TENSOR_ALIGN_ELEMS - 1) / SHORE_TENSOR_ALIGN_ELEMS * SHORE_TENSOR_ALIGN_ELEMS;
    tensor->offset_elems = start;
    tensor->elems = spec->elems;
    tensor->group = spec->group;
    tensor->name = strdup(spec->name ? spec->name : "");
    block->ntensors++;
    if (!tensor->name) return -ENOMEM;
    *end = start + spec->elems;
    return *end > SHORE__BLOCK_ELEMS_MAX ? SHORE_EINPUT : 0;
}

static int add_block(struct shore_layout_block *block, const struct shore_block_spec *spec) {
    if (spec->ntensors == 0) return SHORE_EINPUT;
    block->name = strdup(spec->name ? spec->name : "");
    block->tensors = calloc(spec->ntensors, sizeof *block->tensors);
    if (!block->name || !block->tensors) return -ENOMEM;
    uint64_t end = 0;
    for (uint32_t i = 0; i < spec->ntensors; i++) {
        int rc = add_tensor(block, &spec->tensors[i], &end);
        if (rc) return rc;
        if ((spec->tensors[i].group == SHORE_GROUP_RESTS) != shore__block_rests(block)) return SHORE_EINPUT;
    }
    block->elems = end;
    block->segments = (uint32_t)((end + SHORE_SEGMENT_ELEMS - 1) / SHORE_SEGMENT_ELEMS);
    block->padded_elems = (uint64_t)block->segments * SHORE_SEGMENT_ELEMS;
    return 0;
}

int shore_layout_make(const struct shore_block_spec *blocks, uint32_t nblocks, struct shore_layout **out) {
    *out = NULL;
    if (nblocks == 0) return SHORE_EINPUT;
    struct shore_layout *layout = calloc(1, sizeof *layout);
    if (!layout) return -ENOMEM;
    layout->blocks = calloc(nblocks, sizeof *layout->blocks);
    int rc = layout->blocks ? 0 : -ENOMEM;
    for (uint32_t b = 0; b < nblocks && !rc; b++) {
        layout->nblocks++;
        struct shore_layout_block *block = &layout->blocks[b];
        rc = add_block(block, &blocks[b]);
        layout->segments += block->segments;
        for (uint32_t i = 0; i < block->ntensors && !rc; i++) {
            layout->elems += block->tensors[i].elems;
        }
        /* local segment numbers are 32 bits */
        if (!rc && layout->segments > UINT32_MAX / 2) rc = SHORE_EINPUT;
    }
    if (rc) {
        shore_layout_free(layout);
        return rc;
    }
    *out = layout;
    return 0;
}

void shore_layout_free(struct shore_layout *layout) {
    if (!layout) return;
    for (uint32_t b = 0; b < layout->nblocks; b++) {
        struct shore_layout_block *block = &layout->blocks[b];
        for (uint32_t i = 0; i < block->ntensors; i++) {
            free(block->tensors[i].name);
        }
        free(block->tensors);
        free(block->name);
    }
    free(layout->blocks);
    free(layout);
}

int shore__layout_copy(const struct shore_layout *layout, struct shore_layout **out) {
    struct shore_block_spec *blocks = calloc(layout->nblocks ? layout->nblocks : 1, sizeof *blocks);
    int rc = blocks ? 0 : -ENOMEM;
    for (uint32_t b = 0; b < layout->nblocks && !rc; b++) {
        const struct shore_layout_block *block = &layout->blocks[b];
        struct shore_tensor_spec *tensors = calloc(block->ntensors ? block->ntensors : 1, sizeof *tensors);
        if (!tensors) {
            rc = -ENOMEM;
            break;
        }
        for (uint32_t i = 0; i < block->ntensors; i++) {
            tensors[i] =
                (struct shore_tensor_spec){block->tensors[i].name, block->tensors[i].elems, block->tensors[i].group};
        }
        blocks[b] = (struct shore_block_spec){block->name, tensors, block->ntensors};
    }
    if (!rc) rc = shore_layout_make(blocks, layout->nblocks, out);
    for (uint32_t b = 0; blocks && b < layout->nblocks; b++) {
        free((void *)blocks[b].tensors);
    }
    free(blocks);
    return rc;
}

uint32_t shore__layout_tensor_at(const struct shore_layout_block *block, uint64_t at) {
    uint32_t low = 0, high = block->ntensors;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (block->tensors[middle].offset_elems <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

uint64_t shore__layout_elems(const struct shore_layout *layout, uint32_t block, uint32_t segment, uint32_t count) {
    if (block >= layout->nblocks) return 0;
    uint64_t first = (uint64_t)segment * SHORE_SEGMENT_ELEMS, end = first + (uint64_t)count * SHORE_SEGMENT_ELEMS;
    if (end > layout->blocks[block].elems) end = layout->blocks[block].elems;
    return end > first ? end - first : 0;
}
