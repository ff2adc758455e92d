#include "drive/chunk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/layout.h"
#include "number/bf16.h"
#include "number/gather.h"

_Static_assert(SHORE_SEGMENT_ELEMS * sizeof(uint16_t) % SHORE__IO_ALIGN == 0, "segments are written alone");
_Static_assert(SHORE_BUFFER_ALIGN_BYTES % SHORE__IO_ALIGN == 0, "buffers of callers are read into directly");

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

uint64_t shore__update_gradient_bytes(const struct shore__drive_config *config, const struct shore_update *u) {
    uint64_t elems = shore__layout_elems(config->layout, u->block, u->segment, u->count);
    if (u->form == SHORE_GRADIENT_SPARSE)
        return u->offsets[u->count] - u->offsets[0] + (u->count + 1) * sizeof *u->offsets;
    if (u->form == SHORE_GRADIENT_ROWS) {
        const struct shore__gather_list list = {u->gather, u->ngather};
        uint64_t rows = shore__gather_packed_bytes(&list, (uint64_t)u->segment * SHORE_SEGMENT_ELEMS, elems);
        return rows < elems * sizeof(float) ? rows : elems * sizeof(float);
    }
    return shore__update_is_spilled(u) ? 0 : elems * (shore__gradient_segment_bytes(u->form) / SHORE_SEGMENT_ELEMS);
}

uint64_t shore__update_residual_bytes(const struct shore__drive_config *config, const struct shore_update *u) {
    uint64_t elems = shore__layout_elems(config->layout, u->block, u->segment, u->count);
    return u->residual ? elems * sizeof *u->residual : 0;
}

uint64_t shore__update_bytes_in(const struct shore__drive_config *config, const struct shore_update *u) {
    return shore__update_gradient_bytes(config, u) + shore__update_residual_bytes(config, u);
}

uint64_t shore__update_bytes_out(const struct shore__drive_config *config, const struct shore_update *u) {
    uint64_t elems = shore__layout_elems(config->layout, u->block, u->segment, u->count);
    return u->params_out ? elems * (config->fp32_params ? 4 : 2) : 0;
}

void shore__update_residual(const struct shore_update *update, uint16_t *to) {
    size_t bytes = (size_t)update->count * SHORE_SEGMENT_ELEMS * sizeof *to;
    update->residual ? memcpy(to, update->residual, bytes) : memset(to, 0, bytes);
}

size_t shore__stored_bytes(const struct shore__drive_config *config, uint32_t block, uint32_t segment,
                           enum shore_plane plane) {
    size_t bytes = config->plane_bytes[plane];
    if (!bytes || config->moments == SHORE_MOMENTS_FP32 || (plane != SHORE_PLANE_M && plane != SHORE_PLANE_V))
        return bytes;
    return shore__moments_stored_bytes(&config->layout->blocks[block], segment);
}

uint64_t shore__stored_range_bytes(const struct shore__drive_config *config, uint32_t block, uint32_t segment,
                                   uint32_t count, bool residual) {
    uint64_t bytes = 0;
    for (enum shore_plane plane = 0; plane < SHORE_PLANE_COUNT; plane++) {
        bool vary = config->moments != SHORE_MOMENTS_FP32 && (plane == SHORE_PLANE_M || plane == SHORE_PLANE_V);
        if (!residual && plane == SHORE_PLANE_R) continue;
        if (!vary) bytes += (uint64_t)count * config->plane_bytes[plane];
        for (uint32_t s = segment; vary && s < segment + count; s++)
            bytes += shore__stored_bytes(config, block, s, plane);
    }
    return bytes;
}

void shore__stored_end(const struct shore__drive_config *config, uint32_t block, uint32_t segment,
                       enum shore_plane plane, unsigned char *data) {
    size_t used = shore__stored_bytes(config, block, segment, plane);
    memset(data + used, 0, config->plane_bytes[plane] - used);
}

/* A segment of the planes, as near/ takes it. */
struct segment {
    uint16_t *hi, *lo;
    struct shore__moments m, v;
};

static struct segment segment_of(const struct shore__drive_config *config, const struct shore__stored *stored,
                                 uint32_t i, uint32_t fp32_elems) {
    unsigned char *at[SHORE_PLANE_COUNT];
    for (int p = 0; p < SHORE_PLANE_COUNT; p++)
        at[p] = config->plane_bytes[p] ? stored->plane[p] + (size_t)i * config->plane_bytes[p] : NULL;
    return (struct segment){
        (uint16_t *)(void *)at[SHORE_PLANE_HI],
        (uint16_t *)(void *)at[SHORE_PLANE_LO],
        {config->moments, at[SHORE_PLANE_M], fp32_elems},
        {config->moments, at[SHORE_PLANE_V], fp32_elems},
    };
}

/* UPDATE of `elems` elements of a run, from the segment's element `at` on. */
static int update_part(const struct shore__drive_config *config, const struct shore_hyper *hyper, float coefficient,
                       const struct segment *in, const struct segment *out, const struct shore__moment_run *run,
                       uint32_t at, uint32_t elems, const float *gradient, void *params_out) {
    if (config->moments == SHORE_MOMENTS_FP32 || run->fp32) {
        struct shore__planes from = {in->hi + at, in->lo + at, shore__moments_floats(&in->m, run, at),
                                     shore__moments_floats(&in->v, run, at)};
        struct shore__planes to = {out->hi + at, out->lo + at, shore__moments_floats(&out->m, run, at),
                                   shore__moments_floats(&out->v, run, at)};
        return shore__near_update(config->optimizer, hyper, coefficient, &from, &to, gradient, params_out,
                                  config->fp32_params, elems);
    }
    struct shore__planes8 from = {in->hi + at, in->lo + at, shore__moments_codes(&in->m, run, at),
                                  shore__moments_codes(&in->v, run, at)};
    struct shore__planes8 to = {out->hi + at, out->lo + at, shore__moments_codes(&out->m, run, at),
                                shore__moments_codes(&out->v, run, at)};
    return shore__near_update8(config->optimizer, hyper, coefficient, &from, &to, gradient, params_out,
                               config->fp32_params, elems);
}

/* UPDATE of a run of segment i of the request. */
static int update_run(const struct shore__drive_config *config, const struct shore_update *update, uint32_t i,
                      const struct segment *in, const struct segment *out, const struct shore__moment_run *run,
                      struct shore__gradient *gradient) {
    uint32_t group = config->layout->blocks[update->block].tensors[run->tensor].group;
    size_t param_bytes = config->fp32_params ? 4 : 2;
    int worst = 0;
    for (uint32_t at = run->first; at < run->stop;) {
        uint64_t elems = run->stop - at, elem = (uint64_t)i * SHORE_SEGMENT_ELEMS + at;
        const float *dense = shore__gradient_next(gradient, elem, &elems);
        void *params = update->params_out ? (unsigned char *)update->params_out + elem * param_bytes : NULL;
        int rc = update_part(config, &update->groups[group], update->coefficient, in, out, run, at, (uint32_t)elems,
                             dense, params);
        if (rc) worst = rc;
        at += (uint32_t)elems;
    }
    return worst;
}

int shore__update_not_finite(int rc, const char *tensor, struct shore_diag *diag) {
    char name[96];
    return shore__fail(diag, rc, "a new value of tensor %s is not finite",
                       shore__escape(tensor, strlen(tensor), name, sizeof name));
}

static int update_segment(const struct shore__drive_config *config, const struct shore_update *update, uint32_t i,
                          const struct shore__stored *in, const struct shore__stored *out,
                          struct shore__gradient *gradient, struct shore_diag *diag) {
    const struct shore_layout_block *block = &config->layout->blocks[update->block];
    uint32_t fp32_elems = shore__moments_fp32_elems(block, update->segment + i);
    struct segment from = segment_of(config, in, i, fp32_elems), to = segment_of(config, out, i, fp32_elems);
    struct shore__moment_run run = {0};
    int worst = 0;
    while (shore__moment_run_next(block, update->segment + i, &run)) {
        int rc = update_run(config, update, i, &from, &to, &run, gradient);
        if (rc && !worst) worst = shore__update_not_finite(rc, block->tensors[run.tensor].name, diag);
    }
    if (to.m.plane != from.m.plane) shore__moments_end(&to.m, config->plane_bytes[SHORE_PLANE_M]);
    if (to.v.plane != from.v.plane) shore__moments_end(&to.v, config->plane_bytes[SHORE_PLANE_V]);
    return worst;
}

int shore__chunk_update(const struct shore__drive_config *config, const struct shore_update *update,
                        const struct shore__stored *in, const struct shore__stored *out, struct shore_diag *diag) {
    struct shore__gradient gradient;
    uint32_t segment;
    int worst = shore__gradient_open(&gradient, update, &segment);
    if (worst)
        return shore__fail(diag, worst, "the compressed gradient of block %u, segment %u arrived damaged at its drive",
                           update->block, update->segment + segment);
    for (uint32_t i = 0; i < update->count; i++) {
        int rc = update_segment(config, update, i, in, out, &gradient, worst ? NULL : diag);
        if (rc && !worst) worst = rc;
    }
    return worst;
}

int shore__image_update(const struct shore__drive_config *config, const struct shore_update *update,
                        unsigned char *image, struct shore_diag *diag) {
    struct shore__stored stored;
    for (int p = 0; p < SHORE_PLANE_COUNT; p++) {
        stored.plane[p] = config->plane_bytes[p] ? image : NULL;
        image += config->plane_bytes[p];
    }
    return shore__chunk_update(config, update, &stored, &stored, diag);
}

void shore__chunk_init(const struct shore__drive_config *config, uint32_t block, uint32_t segment, uint32_t count,
                       const float *master, const float *m, const float *v, const struct shore__stored *to) {
    size_t elems = (size_t)count * SHORE_SEGMENT_ELEMS;
    const float *values[SHORE_PLANE_COUNT] = {[SHORE_PLANE_M] = m, [SHORE_PLANE_V] = v};
    shore__f32_split((uint16_t *)(void *)to->plane[SHORE_PLANE_HI], (uint16_t *)(void *)to->plane[SHORE_PLANE_LO],
                     master, elems);
    for (int p = SHORE_PLANE_M; p <= SHORE_PLANE_V; p++) {
        size_t bytes = config->plane_bytes[p];
        for (uint32_t i = 0; bytes && i < count; i++)
            shore__moments_store(&config->layout->blocks[block], segment + i, config->moments, p,
                                 to->plane[p] + i * bytes, (uint32_t)bytes,
                                 values[p] ? values[p] + (size_t)i * SHORE_SEGMENT_ELEMS : NULL);
    }
    if (config->plane_bytes[SHORE_PLANE_R])
        memset(to->plane[SHORE_PLANE_R], 0, (size_t)count * config->plane_bytes[SHORE_PLANE_R]);
}

int shore__update_check(const struct shore__drive_config *config, const struct shore_update *update) {
    if (update->block >= config->layout->nblocks || update->count == 0 || !update->groups) return -EINVAL;
    if ((unsigned)update->form > SHORE_GRADIENT_ROWS) return -EINVAL;
    if (update->form == SHORE_GRADIENT_ROWS && !update->gather) return -EINVAL;
    if (update->form == SHORE_GRADIENT_SPARSE && (!update->gradient || !update->offsets)) return -EINVAL;
    if (update->gather && update->gradient) return -EINVAL;
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

int shore__desc_copy(const struct shore__volume_desc *desc, struct shore__volume_desc *out) {
    struct shore__extent *extents = malloc((desc->nextents + 1) * sizeof *extents);
    if (!extents) return -ENOMEM;
    if (desc->nextents) memcpy(extents, desc->extents, desc->nextents * sizeof *extents);
    *out = *desc;
    out->extents = extents;
    out->identity = NULL;
    out->identity_bytes = 0;
    return 0;
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
