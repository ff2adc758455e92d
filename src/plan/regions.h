/* Memory as rows: what lies in it, how large it is, and when in a step it is in use. One function gives every row its
 * place and one sums them, so that what a plan counts and what is used cannot differ. Rows whose lifetimes do not meet
 * may share a place.
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
#include "plan/row_keys.h"

enum shore__region_kind {
    SHORE__REGION_DEVICE = SHORE__MEMORY_DEVICE,
    SHORE__REGION_PINNED = SHORE__MEMORY_PINNED,
    SHORE__REGION_PLAIN = SHORE__MEMORY_PLAIN,
    SHORE__REGION_KINDS = SHORE__MEMORY_KINDS,
    SHORE__REGION_BOTH, /* added as two rows, of the device and pinned, between which it is put and got */
};

/* Phases [from, to], both included; to < from: over the end of a step into the next one. */
struct shore__lifetime {
    uint32_t from, to;
};

/* The phases of a step over n layers. A commit has none of its own: it goes on beside the next forward pass, so what an
 * update reads lives until lookups again. Between two steps means that the commit is done, and samples are made. */
static inline uint32_t shore__phase_forward(uint32_t layer) { /* 0: lookups of the embedding */
    return layer;
}
static inline uint32_t shore__phase_head(uint32_t n) {
    return n + 1;
}
static inline uint32_t shore__phase_backward(uint32_t n, uint32_t layer) { /* 0: the embedding's, "lookups" */
    return 2 * n + 2 - layer;
}
static inline uint32_t shore__phase_between(uint32_t n) {
    return 2 * n + 3;
}
static inline uint32_t shore__phases(uint32_t n) {
    return 2 * n + 4;
}

struct shore__region {
    enum shore__row key;
    uint32_t index; /* rows of one key are told apart by it */
    const char *name;
    enum shore__region_kind kind;
    uint64_t bytes;
    struct shore__lifetime live;
    uint64_t offset; /* in the stretch of its kind */
};

struct shore__region_list {
    struct shore__region *item;
    uint32_t count, room, phases; /* phases: of a step; 1: everything is in use all the time */
    bool one_memory;              /* all kinds lie in one stretch, that of the first: the host is the device */
    bool failed;                  /* there was no memory for a row */
    uint64_t bytes[SHORE__REGION_KINDS];
    uint32_t *by_offset, placed;         /* rows that have a place, the lowest first, but for those below `taken` */
    uint64_t taken[SHORE__REGION_KINDS]; /* up to here rows lie that are always in use */
};

void shore__regions_open(struct shore__region_list *r, uint32_t phases, bool one_memory);
void shore__regions_close(struct shore__region_list *r);
/* The rows are forgotten, and added anew. */
void shore__regions_clear(struct shore__region_list *r);
/* bytes are rounded up to SHORE__ARENA_ALIGN; a row of none has no place. */
void shore__regions_add(struct shore__region_list *r, enum shore__row key, uint32_t index, enum shore__region_kind kind,
                        uint64_t bytes, struct shore__lifetime live);
/* Of a row that is in use in every phase. */
void shore__regions_add_always(struct shore__region_list *r, enum shore__row key, uint32_t index,
                               enum shore__region_kind kind, uint64_t bytes);

/* Gives every row, in their order, the lowest place where no row before it lies that is in use at the same time.
 * Returns the sum over all kinds. */
uint64_t shore__regions_lay_out(struct shore__region_list *r);
/* The row, of the list, becomes the largest stretch that is free in all its lifetime; the sums stay. */
void shore__regions_grow(struct shore__region_list *r, struct shore__region *row);

/* The row, or NULL. */
struct shore__region *shore__regions_find(const struct shore__region_list *r, enum shore__row key, uint32_t index);

/* Where something lies on the host and on the device: the same memory where there is one, otherwise two. */
struct shore__both {
    void *host;        /* NULL: not there */
    shore__buf device; /* none: not there */
};
static inline struct shore__both shore__both_at(struct shore__both b, uint64_t bytes) {
    if (b.host) b.host = (char *)b.host + bytes;
    if (!shore__buf_is_none(b.device)) b.device = shore__at(b.device, bytes);
    return b;
}

/* Rows that have been laid out, and the memory that they lie in. */
struct shore__memory {
    const struct shore__region_list *regions;
    struct shore__span span[SHORE__REGION_KINDS];
};
int shore__memory_open(struct shore__memory *memory, const struct shore__region_list *regions, struct shore__compute *c,
                       struct shore_diag *diag);
void shore__memory_close(struct shore__memory *memory, struct shore__compute *c);
/* Rows of one stretch, in memory that is lent. */
struct shore__memory shore__memory_lent(const struct shore__region_list *regions, struct shore__both lent);
/* Where the row lies; nowhere if it has no bytes, or is not there. */
struct shore__both shore__memory_both(const struct shore__memory *memory, enum shore__row key, uint32_t index);
static inline shore__buf shore__memory_at(const struct shore__memory *memory, enum shore__row key, uint32_t index) {
    return shore__memory_both(memory, key, index).device;
}
/* What the device sees of memory of the host's that is in here, or none. */
shore__buf shore__memory_seen(const struct shore__memory *memory, const void *host);
static inline void *shore__memory_host(const struct shore__memory *memory, enum shore__row key, uint32_t index) {
    return shore__memory_both(memory, key, index).host;
}

/* Raises *field, up to most, to the largest value with which bytes(ctx) fits the room. bytes grows with it, but may
 * drop at `most`: pages that all stay share no buffers. */
void shore__raise(size_t *field, size_t most, uint64_t room, uint64_t (*bytes)(void *ctx), void *ctx);

#endif
