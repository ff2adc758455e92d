#include "drive/function.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>

#include "base/diag.h"
#include "drive/chunk.h"
#include "drive/layout.h"
#include "drive/row_functions.h"

#define ADDED_MOST 8u

static const struct shore__function spill = {
    .name = "SPILL",
    .over = SHORE__OVER_SEGMENTS,
    .cuttable = true,
    .repeats = true,
    .link_in = SHORE__COUNTER(link_in_gradients),
    .writes = SHORE__COUNTER(drive_write_spill),
};

static const struct shore__function scratch_put = {
    .name = "SCRATCH_PUT",
    .over = SHORE__OVER_SCRATCH,
    .seals = true,
    .cuttable = true,
    .repeats = true,
    .link_in = SHORE__COUNTER(link_activations),
    .writes = SHORE__COUNTER(drive_write_scratch),
};

static const struct shore__function scratch_get = {
    .name = "SCRATCH_GET",
    .over = SHORE__OVER_SCRATCH,
    .seals = true,
    .cuttable = true,
    .repeats = true,
    .link_out = SHORE__COUNTER(link_activations),
    .reads = SHORE__COUNTER(drive_read_scratch),
};

static const struct shore__function *const functions[SHORE__FUNCTIONS] = {[SHORE__SPILL] = &spill,
                                                                          [SHORE__SCRATCH_PUT] = &scratch_put,
                                                                          [SHORE__SCRATCH_GET] = &scratch_get,
                                                                          [SHORE__GATHER] = &shore__gather,
                                                                          [SHORE__GATHER_SCRATCH] =
                                                                              &shore__gather_scratch,
                                                                          [SHORE__SCATTER] = &shore__scatter,
                                                                          [SHORE__SCATTER_ADD] = &shore__scatter_add};
static const struct shore__function *added[ADDED_MOST];
static unsigned nadded;

const struct shore__function *shore__function(unsigned id) {
    if (id < SHORE__FUNCTIONS) return functions[id];
    return id >= SHORE__FUNCTIONS_ADDED && id - SHORE__FUNCTIONS_ADDED < nadded ? added[id - SHORE__FUNCTIONS_ADDED]
                                                                                : NULL;
}

unsigned shore__function_add(const struct shore__function *f) {
    assert(nadded < ADDED_MOST && f->run && (f->repeats || f->of_attempt) && !f->seals);
    added[nadded] = f;
    return SHORE__FUNCTIONS_ADDED + nadded++;
}

static enum shore__operand over(const struct shore__call *c) {
    return shore__function(c->function)->over;
}

uint64_t shore__call_units(const struct shore__call *c) {
    return over(c) == SHORE__OVER_SEGMENTS ? c->count : over(c) == SHORE__OVER_SCRATCH ? c->bytes : 1;
}

size_t shore__call_unit_bytes(const struct shore__call *c) {
    return over(c) == SHORE__OVER_SEGMENTS ? shore__gradient_segment_bytes(c->form) : 1;
}

uint64_t shore__call_in_bytes(const struct shore__call *c) {
    const struct shore__function *f = shore__function(c->function);
    return f->run ? c->in_bytes : f->link_in ? shore__call_units(c) * shore__call_unit_bytes(c) : 0;
}

uint64_t shore__call_out_bytes(const struct shore__call *c) {
    const struct shore__function *f = shore__function(c->function);
    return f->run ? c->out_bytes : f->link_out ? shore__call_units(c) * shore__call_unit_bytes(c) : 0;
}

uint64_t shore__call_crossing(const struct shore__call *c, const struct shore_layout *layout, uint64_t bytes) {
    if (!bytes || shore__function(c->function)->run || over(c) != SHORE__OVER_SEGMENTS) return bytes;
    return shore__layout_bytes(layout, c->block, c->segment, c->count, shore__call_unit_bytes(c));
}

int shore__call_check(const struct shore__call *c, const struct shore__volume_desc *desc, struct shore_diag *diag) {
    const struct shore__function *f = shore__function(c->function);
    if (!f) return shore__fail(diag, -EINVAL, "there is no function %u", c->function);
    bool good = true;
    if (f->over == SHORE__OVER_SEGMENTS)
        good = (f->run || (desc->spill && shore__call_unit_bytes(c))) &&
               shore__extent_find(desc, c->block, c->segment, c->count);
    else if (f->over == SHORE__OVER_SCRATCH)
        good = c->bytes && c->start <= desc->scratch_bytes && c->bytes <= desc->scratch_bytes - c->start;
    if (!good) return shore__fail(diag, -EINVAL, "%s: its range is not on this drive", f->name);
    if (c->argument_bytes > SHORE__ARGUMENT_BYTES)
        return shore__fail(diag, -EINVAL, "%s: its argument has %u bytes, more than %u", f->name, c->argument_bytes,
                           SHORE__ARGUMENT_BYTES);
    return f->check ? f->check(c, desc, diag) : 0;
}

int shore__call_refuse(struct shore_completion done, int rc, const char *path, const struct shore_diag *why) {
    struct shore_diag said;
    done.fn(done.ctx, shore__fail(&said, rc, "%s: %.700s", path, why->text), &said);
    return 0;
}

/* The share of the units before `at` in so many bytes. */
static uint64_t share(const struct shore__call *c, uint64_t bytes, uint64_t at) {
    const uint64_t units = shore__call_units(c);
    return units ? (uint64_t)((unsigned __int128)bytes * at / units) : 0;
}

struct shore__call shore__call_part(const struct shore__call *c, uint64_t at, uint64_t units) {
    struct shore__call part = *c;
    const uint64_t in = shore__call_in_bytes(c), out = shore__call_out_bytes(c);
    assert(at + units <= shore__call_units(c));
    if (part.in) part.in = (const unsigned char *)part.in + share(c, in, at);
    if (part.out) part.out = (unsigned char *)part.out + share(c, out, at);
    if (c->in_bytes) part.in_bytes = share(c, in, at + units) - share(c, in, at);
    if (c->out_bytes) part.out_bytes = share(c, out, at + units) - share(c, out, at);
    if (over(c) == SHORE__OVER_SEGMENTS) {
        part.segment += (uint32_t)at;
        part.count = (uint32_t)units;
    } else if (over(c) == SHORE__OVER_SCRATCH) {
        part.start += at;
        part.bytes = units;
    }
    return part;
}
