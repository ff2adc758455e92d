#include "drive/moment_tiles.h"

#include <string.h>

#include "drive/layout.h"

#define PAGE_BYTES SHORE_BUFFER_ALIGN_BYTES
#define BLOCK_ELEMS SHORE__MOMENT_BLOCK_ELEMS

/* Whether the tensor's moments stay fp32, and where its whole blocks end. */
static bool is_small(const struct shore_layout_tensor *tensor) {
    return tensor->elems < SHORE_MOMENTS_8BIT_LEAST;
}
static uint64_t blocks_end(const struct shore_layout_tensor *tensor) {
    return tensor->offset_elems + (tensor->elems + BLOCK_ELEMS - 1) / BLOCK_ELEMS * BLOCK_ELEMS;
}

bool shore__moment_run_next(const struct shore_layout_block *block, uint32_t segment, struct shore__moment_run *run) {
    uint64_t start = (uint64_t)segment * SHORE_SEGMENT_ELEMS, at = start + run->stop;
    if (run->stop == SHORE_SEGMENT_ELEMS) return false;
    uint32_t counts[2] = {run->fp32 ? run->other : run->before, run->fp32 ? run->before : run->other};
    counts[run->fp32] += run->stop - run->first;
    uint32_t t = run->stop ? run->tensor : shore__layout_tensor_at(block, at);
    while (t + 1 < block->ntensors && block->tensors[t + 1].offset_elems <= at)
        t++;
    const struct shore_layout_tensor *tensor = &block->tensors[t];
    uint64_t stop = t + 1 < block->ntensors ? tensor[1].offset_elems : UINT64_MAX;
    uint64_t end = blocks_end(tensor);
    run->fp32 = is_small(tensor) && at < end;
    if (run->fp32 && end < stop) stop = end;
    if (stop > start + SHORE_SEGMENT_ELEMS) stop = start + SHORE_SEGMENT_ELEMS;
    run->tensor = t;
    run->first = (uint32_t)(at - start);
    run->stop = (uint32_t)(stop - start);
    run->before = counts[run->fp32];
    run->other = counts[!run->fp32];
    return true;
}

uint32_t shore__moments_fp32_elems(const struct shore_layout_block *block, uint32_t segment) {
    struct shore__moment_run run = {0};
    uint32_t elems = 0;
    while (shore__moment_run_next(block, segment, &run))
        if (run.fp32) elems += run.stop - run.first;
    return elems;
}

/* Bytes of the codes and their absmax. */
static size_t coded_bytes(uint32_t elems) {
    return elems + elems / BLOCK_ELEMS * sizeof(float);
}

float *shore__moments_floats(const struct shore__moments *m, const struct shore__moment_run *run, uint32_t at) {
    if (!m->plane) return NULL;
    if (m->kind == SHORE_MOMENTS_FP32) return (float *)(void *)m->plane + at;
    unsigned char *floats = m->plane + coded_bytes(SHORE_SEGMENT_ELEMS - m->fp32_elems);
    return (float *)(void *)floats + run->before + (at - run->first);
}

struct shore__moment8 shore__moments_codes(const struct shore__moments *m, const struct shore__moment_run *run,
                                           uint32_t at) {
    if (!m->plane) return (struct shore__moment8){NULL, NULL};
    uint32_t rank = run->before + (at - run->first);
    unsigned char *absmax = m->plane + (SHORE_SEGMENT_ELEMS - m->fp32_elems);
    return (struct shore__moment8){m->plane + rank, (float *)(void *)absmax + rank / BLOCK_ELEMS};
}

static size_t used_bytes(uint32_t fp32_elems) {
    return coded_bytes(SHORE_SEGMENT_ELEMS - fp32_elems) + fp32_elems * sizeof(float);
}

void shore__moments_end(const struct shore__moments *m, uint32_t plane_bytes) {
    if (!m->plane || m->kind == SHORE_MOMENTS_FP32) return;
    size_t used = used_bytes(m->fp32_elems);
    memset(m->plane + used, 0, plane_bytes - used);
}

static size_t stored_bytes(uint32_t fp32_elems) {
    return (used_bytes(fp32_elems) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

size_t shore__moments_stored_bytes(const struct shore_layout_block *block, uint32_t segment) {
    return stored_bytes(shore__moments_fp32_elems(block, segment));
}

uint32_t shore__moments_segment_bytes(const struct shore_layout *layout, enum shore_moments kind) {
    if (kind == SHORE_MOMENTS_FP32) return SHORE_SEGMENT_ELEMS * sizeof(float);
    /* Only segments with small tensors take more, so that an untrusted, huge layout costs no time. */
    size_t most = stored_bytes(0);
    for (uint32_t b = 0; b < layout->nblocks; b++) {
        const struct shore_layout_block *block = &layout->blocks[b];
        uint32_t next = 0;
        for (uint32_t t = 0; t < block->ntensors; t++) {
            const struct shore_layout_tensor *tensor = &block->tensors[t];
            if (!is_small(tensor)) continue;
            uint64_t end = blocks_end(tensor);
            uint32_t first = (uint32_t)(tensor->offset_elems / SHORE_SEGMENT_ELEMS);
            if (next < first) next = first;
            for (; next < block->segments && (uint64_t)next * SHORE_SEGMENT_ELEMS < end; next++) {
                size_t bytes = shore__moments_stored_bytes(block, next);
                if (bytes > most) most = bytes;
            }
        }
    }
    return (uint32_t)most;
}

static const struct shore__dynamic_code *code_of(enum shore_plane which) {
    return shore__dynamic_code(which == SHORE_PLANE_M);
}

static void store_run(const struct shore__moments *m, const struct shore__moment_run *run, enum shore_plane which,
                      const float *values) {
    uint32_t elems = run->stop - run->first;
    if (m->kind == SHORE_MOMENTS_FP32 || run->fp32) {
        float *to = shore__moments_floats(m, run, run->first);
        values ? memcpy(to, values + run->first, elems * sizeof *to) : memset(to, 0, elems * sizeof *to);
        return;
    }
    struct shore__moment8 to = shore__moments_codes(m, run, run->first);
    if (values) {
        shore__moment8_quantise(code_of(which), &to, values + run->first, elems);
    } else {
        memset(to.code, code_of(which)->zero, elems);
        memset(to.absmax, 0, elems / BLOCK_ELEMS * sizeof *to.absmax);
    }
}

void shore__moments_store(const struct shore_layout_block *block, uint32_t segment, enum shore_moments kind,
                          enum shore_plane which, void *plane, uint32_t plane_bytes, const float *values) {
    struct shore__moments m = {kind, plane, shore__moments_fp32_elems(block, segment)};
    struct shore__moment_run run = {0};
    shore__moments_end(&m, plane_bytes);
    while (shore__moment_run_next(block, segment, &run))
        store_run(&m, &run, which, values);
}

void shore__moments_put(const struct shore_layout_block *block, uint32_t segment, enum shore_moments kind,
                        enum shore_plane which, void *plane, uint32_t tensor, const float *values) {
    struct shore__moments m = {kind, plane, shore__moments_fp32_elems(block, segment)};
    struct shore__moment_run run = {0};
    while (shore__moment_run_next(block, segment, &run))
        if (run.tensor == tensor) store_run(&m, &run, which, values);
}

void shore__moments_load(const struct shore_layout_block *block, uint32_t segment, enum shore_moments kind,
                         enum shore_plane which, const void *plane, float *values) {
    struct shore__moments m = {kind, (unsigned char *)(uintptr_t)plane, shore__moments_fp32_elems(block, segment)};
    struct shore__moment_run run = {0};
    while (shore__moment_run_next(block, segment, &run)) {
        uint32_t elems = run.stop - run.first;
        if (kind == SHORE_MOMENTS_FP32 || run.fp32) {
            memcpy(values + run.first, shore__moments_floats(&m, &run, run.first), elems * sizeof *values);
        } else {
            struct shore__moment8 from = shore__moments_codes(&m, &run, run.first);
            shore__moment8_dequantise(code_of(which), values + run.first, &from, elems);
        }
    }
}
