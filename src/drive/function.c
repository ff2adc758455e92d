#include <assert.h>
#include <errno.h>
#include <stddef.h>

#include "drive/chunk.h"
#include "drive/function.h"
#include "drive/layout.h"

#define COUNTER(field) offsetof(struct shore_ledger, field)

static const struct shore__function functions[SHORE__FUNCTIONS] = {
    [SHORE__SPILL] = {"SPILL", SHORE__OVER_SEGMENTS, .brings = true, .link = SHORE__LINK_IN_GRADIENTS,
                      .counter = COUNTER(drive_write_spill)},
    [SHORE__SCRATCH_PUT] = {"SCRATCH_PUT", SHORE__OVER_SCRATCH, .brings = true, .seals = true,
                            .link = SHORE__LINK_ACTIVATIONS, .counter = COUNTER(drive_write_scratch)},
    [SHORE__SCRATCH_GET] = {"SCRATCH_GET", SHORE__OVER_SCRATCH, .seals = true, .link = SHORE__LINK_ACTIVATIONS,
                            .counter = COUNTER(drive_read_scratch)},
    /* bytes that a cache moves count as scratch */
    [SHORE__CACHE_OPEN] = {"CACHE_OPEN", SHORE__OVER_CACHE, .link = SHORE__LINK_CONTROL},
    [SHORE__CACHE_PUT] = {"CACHE_PUT", SHORE__OVER_KEY, .brings = true, .link = SHORE__LINK_ACTIVATIONS,
                          .counter = COUNTER(drive_write_scratch)},
    [SHORE__CACHE_GET] = {"CACHE_GET", SHORE__OVER_KEY, .link = SHORE__LINK_ACTIVATIONS,
                          .counter = COUNTER(drive_read_scratch)},
    [SHORE__CACHE_FREE] = {"CACHE_FREE", SHORE__OVER_CACHE, .link = SHORE__LINK_CONTROL},
    [SHORE__CACHE_CLOSE] = {"CACHE_CLOSE", SHORE__OVER_CACHE, .link = SHORE__LINK_CONTROL},
};

const struct shore__function *shore__function(enum shore__function_id id) {
    assert((unsigned)id < SHORE__FUNCTIONS);
    return &functions[id];
}

static enum shore__operand over(const struct shore__call *c) {
    return shore__function(c->function)->over;
}

/* The finaliser of SplitMix64 over both words of the key. */
uint64_t shore__cache_key_hash(const struct shore__cache_key *key) {
    uint64_t x = key->sequence * UINT64_C(0x9E3779B97F4A7C15) ^ ((uint64_t)key->layer << 32 | key->head);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

bool shore__cache_key_fits(const struct shore__cache_key *asked, const struct shore__cache_key *key) {
    return asked->sequence == key->sequence && (asked->layer == key->layer || asked->layer == SHORE__CACHE_ANY) &&
           (asked->head == key->head || asked->head == SHORE__CACHE_ANY);
}

bool shore__call_is_of_cache(const struct shore__call *c) {
    return over(c) == SHORE__OVER_KEY || over(c) == SHORE__OVER_CACHE;
}

uint64_t shore__call_units(const struct shore__call *c) {
    return over(c) == SHORE__OVER_SEGMENTS ? c->count : over(c) == SHORE__OVER_CACHE ? 0 : c->bytes;
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

static bool is_within(const struct shore__call *c, uint64_t room) {
    return c->bytes && c->start <= room && c->bytes <= room - c->start;
}

int shore__call_check(const struct shore__call *c, const struct shore__volume_desc *desc) {
    bool good = true;
    if (over(c) == SHORE__OVER_SEGMENTS)
        good = desc->spill && shore__call_unit_bytes(c) && shore__extent_find(desc, c->block, c->segment, c->count);
    else if (over(c) == SHORE__OVER_SCRATCH)
        good = is_within(c, desc->scratch_bytes);
    else if (over(c) == SHORE__OVER_KEY)
        good = is_within(c, UINT64_MAX / 2) && c->key.layer != SHORE__CACHE_ANY && c->key.head != SHORE__CACHE_ANY;
    else if (c->function == SHORE__CACHE_OPEN)
        good =
            c->start >= SHORE__CACHE_PAGE_LEAST && c->start <= SHORE__CACHE_PAGE_MOST && !(c->start & (c->start - 1));
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
    } else if (over(c) != SHORE__OVER_CACHE) {
        part.start += at;
        part.bytes = units;
    }
    return part;
}

void shore__calls_count(const atomic_uint_fast64_t moved[SHORE__FUNCTIONS], struct shore_ledger *add_to) {
    for (int i = 0; i < SHORE__FUNCTIONS; i++)
        if (functions[i].counter) *(uint64_t *)(void *)((unsigned char *)add_to + functions[i].counter) += moved[i];
}
