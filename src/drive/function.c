#include <assert.h>
#include <errno.h>
#include <stddef.h>

#include "drive/chunk.h"
#include "drive/function.h"
#include "drive/layout.h"

static const struct shore__function functions[SHORE__FUNCTIONS] = {
    [SHORE__SPILL] = {"SPILL", SHORE__OVER_SEGMENTS, .brings = true, .link = SHORE__COUNTER(link_in_gradients),
                      .counter = SHORE__COUNTER(drive_write_spill)},
    [SHORE__SCRATCH_PUT] = {"SCRATCH_PUT", SHORE__OVER_SCRATCH, .brings = true, .seals = true,
                            .link = SHORE__COUNTER(link_activations), .counter = SHORE__COUNTER(drive_write_scratch)},
    [SHORE__SCRATCH_GET] = {"SCRATCH_GET", SHORE__OVER_SCRATCH, .seals = true, .link = SHORE__COUNTER(link_activations),
                            .counter = SHORE__COUNTER(drive_read_scratch)},
};

const struct shore__function *shore__function(enum shore__function_id id) {
    assert((unsigned)id < SHORE__FUNCTIONS);
    return &functions[id];
}

static enum shore__operand over(const struct shore__call *c) {
    return shore__function(c->function)->over;
}

uint64_t shore__call_units(const struct shore__call *c) {
    return over(c) == SHORE__OVER_SEGMENTS ? c->count : c->bytes;
}

size_t shore__call_unit_bytes(const struct shore__call *c) {
    return over(c) == SHORE__OVER_SEGMENTS ? shore__gradient_segment_bytes(c->form) : 1;
}

uint64_t shore__call_bytes(const struct shore__call *c) {
    return shore__call_units(c) * shore__call_unit_bytes(c);
}

uint64_t shore__call_crossing(const struct shore__call *c, const struct shore_layout *layout) {
    if (over(c) != SHORE__OVER_SEGMENTS) return shore__call_bytes(c);
    return shore__layout_bytes(layout, c->block, c->segment, c->count, shore__call_unit_bytes(c));
}

int shore__call_check(const struct shore__call *c, const struct shore__volume_desc *desc) {
    bool good;
    if (over(c) == SHORE__OVER_SEGMENTS)
        good = desc->spill && shore__call_unit_bytes(c) && shore__extent_find(desc, c->block, c->segment, c->count);
    else
        good = c->bytes && c->start <= desc->scratch_bytes && c->bytes <= desc->scratch_bytes - c->start;
    return good ? 0 : -EINVAL;
}

struct shore__call shore__call_part(const struct shore__call *c, uint64_t at, uint64_t units) {
    struct shore__call part = *c;
    uint64_t skipped = at * shore__call_unit_bytes(c);
    assert(at + units <= shore__call_units(c));
    if (part.in) part.in = (const unsigned char *)part.in + skipped;
    if (part.out) part.out = (unsigned char *)part.out + skipped;
    if (over(c) == SHORE__OVER_SEGMENTS) {
        part.segment += (uint32_t)at;
        part.count = (uint32_t)units;
    } else {
        part.start += at;
        part.bytes = units;
    }
    return part;
}

void shore__calls_count(const atomic_uint_fast64_t moved[SHORE__FUNCTIONS], struct shore_ledger *add_to) {
    for (int i = 0; i < SHORE__FUNCTIONS; i++)
        *shore__counter(add_to, functions[i].counter) += moved[i];
}
