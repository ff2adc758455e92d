/* Functions that both lanes of a local drive share. */
#include "drive/local/local.h"

#include <string.h>

#include "base/diag.h"
#include "base/units.h"

void shore__local_io_failed(struct shore__local *l, struct shore__local_job *job, const struct shore__io_op *op) {
    if (job->rc && job->rc != SHORE_ENONFINITE) return;
    const char *path = l->volume.file.path;
    if (op->kind == SHORE__IO_READ) path = shore__volume_file_at(&l->volume, op->offset);
    job->rc = shore__io_explain(path, op, &job->diag);
}

void shore__local_io_done(const struct shore__local *l, const struct shore__io_op *op) {
    struct shore__recorder *r = l->front.drive.recorder;
    if (!r || !op->begun_ns || op->kind == SHORE__IO_PAUSE) return;
    enum shore_lane lane = op->kind == SHORE__IO_READ ? SHORE_LANE_DRIVE_READ : SHORE_LANE_DRIVE_WRITE;
    shore__recorder_worked(r, lane, l->volume.desc.drive, op->begun_ns, shore__now_ns(), op->bytes);
}

uint64_t shore__local_gate_ns(const struct shore__local *l, enum shore_lane lane, uint64_t amount) {
    struct shore__gate *gate = l->front.drive.gate;
    struct shore__recorder *r = l->front.drive.recorder;
    const bool link = lane == SHORE_LANE_LINK_IN || lane == SHORE_LANE_LINK_OUT;
    uint64_t over_ns = gate ? gate->over_ns(gate, lane, l->volume.desc.drive, amount) : 0;
    /* one link takes all drives' bytes, in the order in which they ask */
    if (link && r && over_ns) shore__recorder_worked(r, lane, SHORE__NO_DRIVE, shore__now_ns(), over_ns, amount);
    return over_ns;
}

bool shore__local_io_begin(struct shore__local *l, struct shore__io *io, struct shore__local_job *job,
                           struct shore__io_op *op) {
    op->begun_ns = shore__recorder_clock(l->front.drive.recorder);
    int rc = shore__io_submit(io, op);
    if (!rc) return true;
    op->rc = rc;
    shore__local_io_failed(l, job, op);
    return false;
}

int shore__local_check_spilled(const struct shore__local *l, struct shore__local_job *job, uint32_t local,
                               uint32_t count, const unsigned char *gradient, size_t each) {
    for (uint32_t i = 0; i < count; i++) {
        struct shore__leaf leaf;
        shore__leaf_make(gradient + i * each, each, local + i, &leaf);
        if (memcmp(&leaf, &l->spill_leaf[local + i], sizeof leaf) != 0) {
            return shore__fail(&job->diag, SHORE_ECORRUPT,
                               "%s: spilled gradient of block %u, segment %u at offset %llu does not match its "
                               "checksum; check the drive",
                               l->volume.file.path, job->block, job->segment + (local - job->local) + i,
                               (unsigned long long)shore__volume_spill_offset(&l->volume, local + i, each));
        }
    }
    return 0;
}

size_t shore__local_ring_segment_bytes(const uint32_t plane_bytes[SHORE_PLANE_COUNT], bool spill) {
    return shore__state_segment_bytes(plane_bytes) + (spill ? (size_t)SHORE_SEGMENT_ELEMS * 4 : 0);
}
