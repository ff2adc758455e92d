/* Index of tensors by name: their hashes in order. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/sized.h"
#include "drive/layout.h"

struct entry {
    uint64_t hash;
    uint32_t block, tensor;
};

struct names {
    size_t count;
    struct entry entry[];
};

static uint64_t hash_of(const char *name) {
    return XXH3_64bits(name, strlen(name));
}

static int by_hash(const void *a, const void *b) {
    uint64_t x = ((const struct entry *)a)->hash, y = ((const struct entry *)b)->hash;
    return x < y ? -1 : x > y;
}

int shore__layout_names_make(struct shore_layout *layout) {
    size_t count = 0;
    for (uint32_t b = 0; b < layout->nblocks; b++)
        count += layout->blocks[b].ntensors;
    struct names *names = malloc(sizeof *names + count * sizeof *names->entry);
    if (!names) return -ENOMEM;
    names->count = 0;
    for (uint32_t b = 0; b < layout->nblocks; b++)
        for (uint32_t t = 0; t < layout->blocks[b].ntensors; t++)
            names->entry[names->count++] = (struct entry){hash_of(layout->blocks[b].tensors[t].name), b, t};
    qsort(names->entry, count, sizeof *names->entry, by_hash);
    layout->names = names;
    return 0;
}

static size_t first_of(const struct names *names, uint64_t hash) {
    size_t low = 0, high = names->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (names->entry[middle].hash < hash)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct shore_tensor_view view_of(const struct shore_layout *layout, const struct entry *at) {
    const struct shore_layout_tensor *tensor = &layout->blocks[at->block].tensors[at->tensor];
    uint64_t first = tensor->offset_elems / SHORE_SEGMENT_ELEMS;
    uint64_t last = (tensor->offset_elems + tensor->elems - 1) / SHORE_SEGMENT_ELEMS;
    return (struct shore_tensor_view){
        .block = at->block,
        .tensor = at->tensor,
        .offset_elems = tensor->offset_elems,
        .elems = tensor->elems,
        .segment = (uint32_t)first,
        .segments = (uint32_t)(last - first + 1),
        .view_elems = tensor->offset_elems - first * SHORE_SEGMENT_ELEMS,
    };
}

int shore_layout_find(const struct shore_layout *layout, const char *name, struct shore_tensor_view *out) {
    const struct names *names = layout->names;
    const struct entry *found = NULL;
    uint64_t hash = hash_of(name);
    for (size_t i = first_of(names, hash); i < names->count && names->entry[i].hash == hash; i++) {
        const struct entry *at = &names->entry[i];
        if (strcmp(layout->blocks[at->block].tensors[at->tensor].name, name) != 0) continue;
        if (found) return SHORE_EINPUT;
        found = at;
    }
    if (!found) return SHORE_EMISSING;
    const struct shore_tensor_view view = view_of(layout, found);
    return shore__sized_out(out, &view, sizeof view);
}
