#include "drive/local/on_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "near/gradient.h"
#include "near/opencl/opencl.h"

enum { BLOCK = SHORE__ENGINE_BLOCK_ELEMS, BLOCKS = SHORE_SEGMENT_ELEMS / BLOCK };
#define GRADIENT_BYTES (SHORE_SEGMENT_ELEMS * 4u)
#define BLOCKS_BYTES (BLOCKS * (uint32_t)sizeof(struct shore__engine_block))
#define STARTS_BYTES (2 * SHORE_BUFFER_ALIGN_BYTES)

_Static_assert(BLOCK == SHORE_TENSOR_ALIGN_ELEMS, "a block is of one tensor");
_Static_assert(BLOCKS_BYTES % SHORE_BUFFER_ALIGN_BYTES == 0, "tables are whole pages");
_Static_assert(STARTS_BYTES >= BLOCKS * SHORE__ENGINE_START_WORDS * 4, "the starts fit");

int shore__on_device_open(struct shore__local *l, struct shore_diag *diag) {
    struct shore__drive_config *config = &l->front.config;
    struct shore__opencl_config c = {
        .drive = l->volume.file.path,
        .options = getenv(SHORE__OPENCL_VARIABLE),
        .number = l->volume.desc.drive,
        .optimizer = config->optimizer,
        .moments = config->moments,
        .fp32_params = config->fp32_params,
        .chunk_segments = config->chunk_segments,
        .slots = config->ring_buffers,
    };
    memcpy(c.plane_bytes, config->plane_bytes, sizeof c.plane_bytes);
    int rc = shore__opencl_open(&c, &l->engine, diag);
    if (rc) return rc;
    config->chunk_segments = c.chunk_segments;
    config->ring_buffers = c.slots;
    return 0;
}

size_t shore__on_device_segment_bytes(void) {
    return GRADIENT_BYTES + BLOCKS_BYTES + STARTS_BYTES;
}

void shore__on_device_lay_out(struct shore__engine_job *job, unsigned char *at, uint32_t segments) {
    job->blocks = (struct shore__engine_block *)(void *)(at + (size_t)segments * GRADIENT_BYTES);
    job->starts = (uint32_t *)(void *)((unsigned char *)job->blocks + (size_t)segments * BLOCKS_BYTES);
}

int shore__on_device_check(struct shore__local *l, struct shore__engine_job *job, unsigned char *planes,
                           struct shore_diag *diag) {
    double seconds;
    char note[500];
    int rc = shore__opencl_check(l->engine, planes, job->blocks, job->starts, &seconds, diag);
    if (rc || seconds == 0 || !l->front.config.note) return rc;
    snprintf(note, sizeof note, "%s: compiling kernels for the OpenCL device %s and testing it took %s",
             l->volume.file.path, l->engine->ops->name(l->engine), shore__format_seconds(seconds).text);
    l->front.config.note(l->front.config.note_ctx, note);
    return 0;
}

/* The blocks of one run of a segment. */
static void locate(const struct shore_layout_block *block, const struct shore__moments *m,
                   const struct shore__moment_run *run, const unsigned char *plane, struct shore__engine_block *out) {
    const bool coded = m->kind != SHORE_MOMENTS_FP32 && !run->fp32;
    const uint32_t group = block->tensors[run->tensor].group | (coded ? SHORE__ENGINE_CODED : 0);
    for (uint32_t at = run->first; at < run->stop; at += BLOCK) {
        struct shore__engine_block *b = &out[at / BLOCK];
        *b = (struct shore__engine_block){.group = group};
        if (!m->plane) continue;
        struct shore__moment8 codes = coded ? shore__moments_codes(m, run, at) : (struct shore__moment8){0};
        b->at = (uint32_t)(coded ? codes.code - plane : (unsigned char *)shore__moments_floats(m, run, at) - plane);
        if (!coded) b->at /= sizeof(float);
        if (coded) b->absmax = (uint32_t)((unsigned char *)codes.absmax - plane) / (uint32_t)sizeof(float);
    }
}

/* The gradient as fp32, where its own form is none that a device reads. */
static int put_together(struct shore_update *u, float *to, struct shore_diag *diag) {
    struct shore__gradient gradient;
    uint32_t segment;
    const uint64_t elems = (uint64_t)u->count * SHORE_SEGMENT_ELEMS;
    int rc = shore__gradient_open(&gradient, u, &segment);
    if (rc) return shore__fail(diag, rc, "the gradient of block %u arrived damaged at its drive", u->block);
    for (uint64_t at = 0, n; at < elems; at += n) {
        n = SHORE_SEGMENT_ELEMS - at % SHORE_SEGMENT_ELEMS;
        const float *part = shore__gradient_next(&gradient, at, &n);
        memcpy(to + at, part, n * sizeof *to);
    }
    u->form = SHORE_GRADIENT_FP32;
    u->gather = NULL;
    u->gradient = to;
    return 0;
}

int shore__on_device_prepare(const struct shore__drive_config *config, struct shore__engine_job *job,
                             const struct shore__stored *stored, unsigned char *gradient) {
    struct shore_update *u = &job->update;
    const struct shore_layout_block *block = &config->layout->blocks[u->block];
    const enum shore_plane which = config->plane_bytes[SHORE_PLANE_M] ? SHORE_PLANE_M : SHORE_PLANE_V;
    const unsigned char *plane = config->plane_bytes[which] ? stored->plane[which] : NULL;
    for (uint32_t i = 0; i < u->count; i++) {
        struct shore__moment_run run = {0};
        struct shore__moments m = {config->moments, NULL, shore__moments_fp32_elems(block, u->segment + i)};
        if (plane) m.plane = stored->plane[which] + (size_t)i * config->plane_bytes[which];
        while (shore__moment_run_next(block, u->segment + i, &run))
            locate(block, &m, &run, plane, job->blocks + (size_t)i * BLOCKS);
    }
    return u->gather || u->form > SHORE_GRADIENT_SPARSE ? put_together(u, (float *)(void *)gradient, &job->diag) : 0;
}

void shore__on_device_explain(const struct shore__drive_config *config, struct shore__engine_job *job) {
    const struct shore_update *u = &job->update;
    const struct shore_layout_block *block = &config->layout->blocks[u->block];
    uint32_t b = 0;
    while (!job->blocks[b].nonfinite)
        b++;
    struct shore__moment_run run = {0};
    while (shore__moment_run_next(block, u->segment + b / BLOCKS, &run) && run.stop <= b % BLOCKS * BLOCK) {
    }
    shore__update_not_finite(job->rc, block->tensors[run.tensor].name, &job->diag);
}
