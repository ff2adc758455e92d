/* How fast a device updates: AdamW, in chunks like a drive's, several under way. */
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "near/opencl/opencl.h"

enum { SEGMENTS = 4, SLOTS = 3, ROUNDS = 40, BLOCKS = SHORE_SEGMENT_ELEMS / SHORE__ENGINE_BLOCK_ELEMS };

/* Memory of one slot: planes, gradient, blocks, starts. */
#define PLANES_BYTES ((size_t)SEGMENTS * SHORE_SEGMENT_ELEMS * 12)
#define GRADIENT_BYTES ((size_t)SEGMENTS * SHORE_SEGMENT_ELEMS * 4)
#define TABLE_BYTES (SEGMENTS * BLOCKS * (sizeof(struct shore__engine_block) + SHORE__ENGINE_START_WORDS * 4))
#define SLOT_BYTES ((PLANES_BYTES + GRADIENT_BYTES + TABLE_BYTES + 4095) / 4096 * 4096)

static int prepare(struct shore__engine *engine, uint32_t slot, unsigned char *at, const struct shore_hyper *hyper,
                   struct shore__engine_job *job, struct shore_diag *diag) {
    unsigned char *planes = at;
    double seconds;
    *job = (struct shore__engine_job){.slot = slot};
    job->update = (struct shore_update){
        .count = SEGMENTS, .gradient = at + PLANES_BYTES, .groups = hyper, .ngroups = 1, .coefficient = 1};
    job->blocks = (struct shore__engine_block *)(void *)(at + PLANES_BYTES + GRADIENT_BYTES);
    job->starts = (uint32_t *)(void *)(job->blocks + SEGMENTS * BLOCKS);
    int rc = shore__opencl_attach(engine, slot, &planes, diag);
    if (!rc && slot == 0) rc = shore__opencl_check(engine, planes, job->blocks, job->starts, &seconds, diag);
    memset(planes, 0, PLANES_BYTES);
    for (uint32_t b = 0; b < SEGMENTS * BLOCKS; b++)
        job->blocks[b] = (struct shore__engine_block){.at = b * SHORE__ENGINE_BLOCK_ELEMS};
    return rc;
}

static int measure(struct shore__engine *engine, unsigned char *memory, double *rate, struct shore_diag *diag) {
    struct shore_hyper hyper = {.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.1f};
    struct shore__engine_job job[SLOTS];
    uint64_t start = 0;
    int rc = 0;
    shore_hyper_at_step(&hyper, SHORE_ADAMW, 10);
    for (uint32_t s = 0; !rc && s < SLOTS; s++)
        rc = prepare(engine, s, memory + s * SLOT_BYTES, &hyper, &job[s], diag);
    for (uint32_t i = 0; !rc && i < ROUNDS + SLOTS; i++) {
        struct shore__engine_job *ended = i < SLOTS ? NULL : engine->ops->reap(engine, true);
        if (ended && ended->rc) rc = shore__fail_of(diag, ended->rc, &ended->diag, "%s", ended->diag.text);
        if (i == 2 * SLOTS) start = shore__now_ns(); /* what was lent first is warm */
        if (i < ROUNDS) engine->ops->submit(engine, &job[i % SLOTS]);
    }
    while (engine->first)
        engine->ops->reap(engine, true);
    if (!rc)
        *rate = (double)(ROUNDS - SLOTS) * SEGMENTS * SHORE_SEGMENT_ELEMS * 1e9 / (double)(shore__now_ns() - start);
    return rc;
}

int shore__opencl_rate(const char *options, double *rate, struct shore_diag *diag) {
    struct shore__opencl_config config = {
        .drive = "opencl", .options = options, .optimizer = SHORE_ADAMW, .chunk_segments = SEGMENTS, .slots = SLOTS};
    for (int p = SHORE_PLANE_HI; p <= SHORE_PLANE_V; p++)
        config.plane_bytes[p] = SHORE_SEGMENT_ELEMS * (p <= SHORE_PLANE_LO ? 2 : 4);
    unsigned char *memory = aligned_alloc(4096, SLOTS * SLOT_BYTES);
    struct shore__engine *engine = NULL;
    int rc = memory ? 0 : shore__out_of_memory(diag);
    if (!rc) memset(memory, 0, SLOTS * SLOT_BYTES);
    if (!rc) rc = shore__opencl_open(&config, &engine, diag);
    if (!rc && (config.slots < SLOTS || config.chunk_segments < SEGMENTS))
        rc = shore__fail(diag, SHORE_EUSAGE, "opencl memory: measuring the device takes more");
    if (!rc) rc = measure(engine, memory, rate, diag);
    if (engine) engine->ops->close(engine);
    free(memory);
    return rc;
}
