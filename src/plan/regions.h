/* Memory in rows: the contents of each, its size, and when in a step it is in use. One function places the rows and
 * sums them, so that a plan's count and the actual use cannot differ. Rows whose lifetimes do not meet may share a
 * place.
 *
 *     phase    forward 0 .. n   head   backward n .. 1   lookups   between
 *     kept 3        3-----------------------3
 *     logits                    ----
 */
#ifndef SHORE_PLAN_REGIONS_H
#define SHORE_PLAN_REGIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "compute/compute.h"
#include "longshore/plan.h"

/* Phases [from, to], both included. to < from: across the end of a step into the next one. */
struct shore__lifetime {
    uint32_t from, to;
};
static inline bool shore__lifetime_has(struct shore__lifetime live, uint32_t phase) {
    return live.from <= live.to ? live.from <= phase && phase <= live.to : phase >= live.from || phase <= live.to;
}

struct shore__region {
    uint32_t key, index; /* index: tells rows of one key apart */
    const char *name;
    enum shore_place place;
    uint64_t bytes;
    struct shore__lifetime live;
    uint64_t offset; /* in the stretch of its place */
};

struct shore__region_list {
    struct shore__region *item;
    uint32_t count, room, phases; /* phases: of a step; 1: everything is always in use */
    bool one_memory;              /* all places are one stretch, the device's: the host is the device */
    bool failed;                  /* out of memory for a row */
    uint64_t bytes[SHORE_PLACES]; /* of each stretch */
    uint32_t *by_offset, placed;  /* placed rows by offset, without those below `taken` */
    uint64_t taken[SHORE_PLACES]; /* end of the rows that are always in use */
};

void shore__regions_open(struct shore__region_list *r, uint32_t phases, bool one_memory);
void shore__regions_close(struct shore__region_list *r);
/* Removes all rows, so that they can be added again. */
void shore__regions_clear(struct shore__region_list *r);
/* bytes are rounded up to SHORE__ARENA_ALIGN; a row without bytes has no offset. SHORE_PLACE_BOTH: two rows, device and
 * pinned, with transfers between them. */
void shore__regions_add(struct shore__region_list *r, uint32_t key, uint32_t index, const char *name,
                        enum shore_place place, uint64_t bytes, struct shore__lifetime live);
/* Places the rows in order, each at the lowest offset where no earlier row is in use at the same time. Returns the sum
 * over all places. */
uint64_t shore__regions_lay_out(struct shore__region_list *r);
/* Grows a row of the list to the largest stretch that is free in all its lifetime; the sums stay. */
void shore__regions_grow(struct shore__region_list *r, struct shore__region *row);

/* The row, or NULL. */
struct shore__region *shore__regions_find(const struct shore__region_list *r, uint32_t key, uint32_t index);

/* Address on the host and on the device: the same if they share memory. */
struct shore__both {
    void *host;        /* NULL: none there */
    shore__buf device; /* none: not there */
};

/* Rows that are laid out, with their memory. */
struct shore__memory {
    const struct shore__region_list *regions;
    struct shore__span span[SHORE_PLACES];
};
int shore__memory_open(struct shore__memory *memory, const struct shore__region_list *regions, struct shore__compute *c,
                       struct shore_diag *diag);
void shore__memory_close(struct shore__memory *memory, struct shore__compute *c);
/* Rows of one stretch, in borrowed memory. */
struct shore__memory shore__memory_lent(const struct shore__region_list *regions, struct shore__both lent);
/* Address of the row; none if it has no bytes, or does not exist. */
struct shore__both shore__memory_both(const struct shore__memory *memory, uint32_t key, uint32_t index);
static inline shore__buf shore__memory_at(const struct shore__memory *memory, uint32_t key, uint32_t index) {
    return shore__memory_both(memory, key, index).device;
}
/* The device's view of host memory in here, or none. */
shore__buf shore__memory_seen(const struct shore__memory *memory, const void *host);
static inline void *shore__memory_host(const struct shore__memory *memory, uint32_t key, uint32_t index) {
    return shore__memory_both(memory, key, index).host;
}

/* Raises *field, up to most, to the largest value for which bytes(ctx) fits the room. bytes grows with it, but may drop
 * at `most`: pages that all stay share no buffers. */
void shore__raise(size_t *field, size_t most, uint64_t room, uint64_t (*bytes)(void *ctx), void *ctx);

#endif
