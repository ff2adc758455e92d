#include "drive/chunk.h"

#include <errno.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "near/gradient.h"

/* The tensor that element `at` belongs to: the last one that starts at or before it. */
static uint32_t tensor_at(const struct shore_layout_block *block, uint64_t at) {
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

static struct shore__planes planes_from(const struct shore__planes *planes, uint64_t elem) {
    return (struct shore__planes){planes->hi + elem, planes->lo + elem, planes->m ? planes->m + elem : NULL,
                                  planes->v ? planes->v + elem : NULL};
}

size_t shore__gradient_segment_bytes(enum shore_gradient_form form) {
    return form == SHORE_GRADIENT_FP32   ? SHORE_SEGMENT_ELEMS * sizeof(float)
           : form == SHORE_GRADIENT_BF16 ? SHORE_SEGMENT_ELEMS * sizeof(uint16_t)
                                         : 0;
}

struct shore_update shore__update_part(const struct shore__drive_config *config, const struct shore_update *whole,
                                       uint32_t segment, uint32_t count) {
    struct shore_update part = *whole;
    size_t skipped = segment - whole->segment;
    part.segment = segment;
    part.count = count;
    if (part.gradient)
        part.gradient = (const unsigned char *)part.gradient + skipped * shore__gradient_segment_bytes(part.form);
    if (part.offsets) part.offsets += skipped;
    if (part.residual) part.residual += skipped * SHORE_SEGMENT_ELEMS;
    if (part.params_out)
        part.params_out =
            (unsigned char *)part.params_out + skipped * SHORE_SEGMENT_ELEMS * (config->fp32_params ? 4 : 2);
    return part;
}

void shore__update_residual(const struct shore_update *update, uint16_t *to) {
    size_t bytes = (size_t)update->count * SHORE_SEGMENT_ELEMS * sizeof *to;
    update->residual ? memcpy(to, update->residual, bytes) : memset(to, 0, bytes);
}

/* UPDATE of [at, stop) of a block, in one parameter group; the request's arrays begin at element `first`. */
static int update_group(const struct shore__drive_config *config, const struct shore_update *update,
                        const struct shore_hyper *hyper, const struct shore__planes *in,
                        const struct shore__planes *out, struct shore__gradient *gradient, uint64_t first, uint64_t at,
                        uint64_t stop) {
    size_t param_bytes = config->fp32_params ? 4 : 2;
    int worst = 0;
    while (at < stop) {
        uint64_t elems = stop - at;
        const float *dense = shore__gradient_next(gradient, at - first, &elems);
        struct shore__planes from = planes_from(in, at - first), to = planes_from(out, at - first);
        void *params = update->params_out ? (unsigned char *)update->params_out + (at - first) * param_bytes : NULL;
        int rc = shore__near_update(config->optimizer, hyper, update->coefficient, &from, &to, dense, params,
                                    config->fp32_params, elems);
        if (rc) worst = rc;
        at += elems;
    }
    return worst;
}

int shore__chunk_update(const struct shore__drive_config *config, const struct shore_update *update,
                        const struct shore__planes *in, const struct shore__planes *out, struct shore_diag *diag) {
    const struct shore_layout_block *block = &config->layout->blocks[update->block];
    uint64_t first = (uint64_t)update->segment * SHORE_SEGMENT_ELEMS;
    uint64_t end = first + (uint64_t)update->count * SHORE_SEGMENT_ELEMS;
    struct shore__gradient gradient;
    uint32_t segment;
    int worst =
        shore__gradient_open(&gradient, update->form, update->gradient, update->offsets, update->count, &segment);
    if (worst)
        return shore__fail(diag, worst, "the compressed gradient of block %u, segment %u came damaged to its drive",
                           update->block, update->segment + segment);
    uint64_t at = first;
    for (uint32_t t = tensor_at(block, first); at < end; t++) {
        uint64_t stop = end;
        if (t + 1 < block->ntensors && block->tensors[t + 1].offset_elems < end) {
            stop = block->tensors[t + 1].offset_elems;
        }
        const struct shore_hyper *hyper = &update->groups[block->tensors[t].group];
        int rc = update_group(config, update, hyper, in, out, &gradient, first, at, stop);
        if (rc && !worst) {
            char name[96];
            worst =
                shore__fail(diag, rc, "a new value of tensor %s is not finite",
                            shore__escape(block->tensors[t].name, strlen(block->tensors[t].name), name, sizeof name));
        }
        at = stop;
    }
    return worst;
}

int shore__update_check(const struct shore__drive_config *config, const struct shore_update *update) {
    if (update->block >= config->layout->nblocks || update->count == 0 || !update->groups) return -EINVAL;
    if ((unsigned)update->form > SHORE_GRADIENT_SPARSE) return -EINVAL;
    if (update->form == SHORE_GRADIENT_SPARSE && (!update->gradient || !update->offsets)) return -EINVAL;
    const struct shore_layout_block *block = &config->layout->blocks[update->block];
    if (update->segment >= block->segments || update->count > block->segments - update->segment) return -EINVAL;
    for (uint32_t t = 0; t < block->ntensors; t++) {
        if (block->tensors[t].group >= update->ngroups) return -EINVAL;
    }
    return 0;
}

bool shore__all_spilled(const unsigned char *spilled, uint32_t count, enum shore_gradient_form form) {
    for (uint32_t i = 0; i < count; i++)
        if (spilled[i] != 1 + (unsigned)form) return false;
    return true;
}

const struct shore__extent *shore__extent_find(const struct shore__volume_desc *desc, uint32_t block, uint32_t segment,
                                               uint32_t count) {
    uint32_t low = 0, high = desc->nextents;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct shore__extent *extent = &desc->extents[middle];
        if (extent->block < block || (extent->block == block && extent->first + extent->count <= segment)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == desc->nextents || count == 0) return NULL;
    const struct shore__extent *extent = &desc->extents[low];
    bool inside = extent->block == block && extent->first <= segment && segment - extent->first < extent->count &&
                  count <= extent->count - (segment - extent->first);
    return inside ? extent : NULL;
}

void shore__sum_add(unsigned char sum[16], const unsigned char other[16]) {
    uint64_t low = shore__get_u64(sum), high = shore__get_u64(sum + 8);
    uint64_t total = low + shore__get_u64(other);
    shore__put_u64(sum, total);
    shore__put_u64(sum + 8, high + shore__get_u64(other + 8) + (total < low));
}

void shore__sum_add_leaf(unsigned char sum[16], const struct shore__leaf *leaf) {
    unsigned char reversed[16];
    for (int i = 0; i < 16; i++) {
        reversed[i] = leaf->hash[15 - i];
    }
    shore__sum_add(sum, reversed);
}
