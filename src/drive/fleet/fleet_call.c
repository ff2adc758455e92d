/* Calls of the drives' functions: spilled gradients, and scratch. */
#include "drive/function.h"

#include <assert.h>
#include <errno.h>

#include "drive/chunk.h"
#include "drive/fleet/join.h"

_Static_assert(SHORE__SCRATCH_STRIPE_BYTES % SHORE__IO_ALIGN == 0, "stripes are moved alone");

void shore__join_call(struct shore__join *join, uint32_t d, const struct shore__call *call) {
    struct shore_fleet *f = join->fleet;
    const struct shore__function *function = shore__function(call->function);
    const uint64_t in = shore__call_crossing(call, f->layout, shore__call_in_bytes(call));
    const uint64_t out = shore__call_crossing(call, f->layout, shore__call_out_bytes(call));
    int rc = f->drives[d]->ops->call(f->drives[d], call, shore__share_completion(join, d));
    if (rc) shore__share_refused(join, d, rc);
    shore__fleet_count(f, d, function->link_in, in);
    shore__fleet_count(f, d, function->link_out, out);
}

int shore__fleet_call(struct shore_fleet *f, uint32_t d, const struct shore__call *call, struct shore_completion done) {
    if (!shore__fleet_is_ready(f) || d >= f->ndrives || !shore__function(call->function)) return -EINVAL;
    struct shore__join *join = shore__join_new(f, SHORE__JOIN_CALL, 0, done);
    if (!join) return -ENOMEM;
    shore__join_call(join, d, call);
    shore__join_share_done(join, 0, NULL);
    return 0;
}

int shore_fleet_spill(struct shore_fleet *f, uint32_t block, uint32_t segment, uint32_t count,
                      enum shore_gradient_form form, const void *gradient, struct shore_completion done) {
    size_t each = shore__gradient_segment_bytes(form);
    int rc = shore__fleet_is_ready(f) && each ? shore__fleet_check_range(f, block, segment, count) : -EINVAL;
    if (rc) return rc;
    struct shore__join *join = shore__join_new(f, SHORE__JOIN_SPILL, 0, done);
    if (!join) return -ENOMEM;
    for (uint32_t d = 0; d < f->ndrives; d++) {
        struct shore__range part;
        if (!shore__fleet_intersect(f, block, d, segment, count, &part)) continue;
        struct shore__call call = {.function = SHORE__SPILL,
                                   .block = block,
                                   .segment = part.first,
                                   .count = part.count,
                                   .form = form,
                                   .in = (const unsigned char *)gradient + (part.first - segment) * each};
        shore__join_call(join, d, &call);
    }
    shore__join_share_done(join, 0, NULL);
    return 0;
}

/* Scratch: stripes of 1 MiB are spread over the drives, in proportion to their shares. */

uint32_t shore__fleet_scratch_parts(const struct shore_fleet *f, uint64_t offset, uint64_t bytes) {
    const uint64_t stripe = SHORE__SCRATCH_STRIPE_BYTES;
    return f->ndrives == 1 ? 1 : (uint32_t)((offset + bytes - 1) / stripe - offset / stripe + 1);
}

static int scratch(struct shore_fleet *f, bool put, uint64_t offset, uint64_t bytes, void *buffer, unsigned char *seals,
                   bool seals_each, struct shore_completion done) {
    if (!shore__fleet_is_ready(f) || bytes == 0 || offset % SHORE__IO_ALIGN || bytes % SHORE__IO_ALIGN ||
        offset > f->scratch_bytes || bytes > f->scratch_bytes - offset) {
        return -EINVAL;
    }
    uint32_t nparts = shore__fleet_scratch_parts(f, offset, bytes);
    struct shore__join *join = shore__join_new(f, put ? SHORE__JOIN_PUT : SHORE__JOIN_GET, (size_t)nparts * 16, done);
    if (!join) return -ENOMEM;
    join->nparts = nparts;
    join->seals = seals;
    join->seals_each = seals_each;
    join->scratch_at = offset;
    join->scratch_bytes = bytes;
    uint64_t at = offset;
    for (uint32_t i = 0; i < nparts; i++) {
        struct shore__scratch_part p = shore__join_scratch_part(join, i);
        assert(p.at == at);
        at += p.bytes;
        struct shore__call call = {.function = put ? SHORE__SCRATCH_PUT : SHORE__SCRATCH_GET,
                                   .start = p.local,
                                   .bytes = p.bytes,
                                   .in = (unsigned char *)buffer + (p.at - offset),
                                   .out = (unsigned char *)buffer + (p.at - offset),
                                   .seal = join->tail + 16 * (size_t)i};
        shore__join_call(join, p.drive, &call);
    }
    assert(at == offset + bytes);
    shore__join_share_done(join, 0, NULL);
    return 0;
}

int shore__fleet_scratch(struct shore_fleet *f, bool put, uint64_t offset, uint64_t bytes, void *buffer,
                         unsigned char *seals, struct shore_completion done) {
    return scratch(f, put, offset, bytes, buffer, seals, true, done);
}

int shore_fleet_scratch_put(struct shore_fleet *f, uint64_t offset, uint64_t bytes, const void *src,
                            unsigned char seal[16], struct shore_completion done) {
    return scratch(f, true, offset, bytes, (void *)(uintptr_t)src, seal, false, done);
}

int shore_fleet_scratch_get(struct shore_fleet *f, uint64_t offset, uint64_t bytes, void *dst,
                            const unsigned char seal[16], struct shore_completion done) {
    return scratch(f, false, offset, bytes, dst, (unsigned char *)(uintptr_t)seal, false, done);
}
