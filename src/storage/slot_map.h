/* Maps of slots: where the segments of each slot lie. A slot is a state of all segments. A step writes updated segments
 * beside their base, and leaves carried ones in place. A segment's data therefore lie in its own slot or in the other
 * one. The map has a bit per segment, as stored in a volume: 1: in the other slot. Threading: one thread writes, any
 * read. */
#ifndef SHORE_STORAGE_SLOT_MAP_H
#define SHORE_STORAGE_SLOT_MAP_H

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

struct shore__slot_map {
    _Atomic unsigned char *bits[2]; /* by slot; NULL: all segments lie in their own */
};

static inline unsigned shore__slot_map_bit(const struct shore__slot_map *m, unsigned slot, uint32_t local) {
    if (!m->bits[slot]) return 0;
    return atomic_load_explicit(&m->bits[slot][local / 8], memory_order_relaxed) >> local % 8 & 1;
}

static inline void shore__slot_map_set(struct shore__slot_map *m, unsigned slot, uint32_t local, unsigned bit) {
    unsigned char mask = (unsigned char)(1u << local % 8);
    assert(m->bits[slot]);
    if (bit)
        atomic_fetch_or_explicit(&m->bits[slot][local / 8], mask, memory_order_relaxed);
    else
        atomic_fetch_and_explicit(&m->bits[slot][local / 8], (unsigned char)~mask, memory_order_relaxed);
}

/* The slot that contains the data of a segment of `slot`. */
static inline unsigned shore__slot_map_data(const struct shore__slot_map *m, unsigned slot, uint32_t local) {
    return slot ^ shore__slot_map_bit(m, slot, local);
}

/* Says that segments of `slot` are written where the other slot's data are not, so that those are never touched. */
static inline void shore__slot_map_update(struct shore__slot_map *m, unsigned slot, uint32_t local, uint32_t count) {
    for (uint32_t i = local; i < local + count; i++) {
        if (shore__slot_map_bit(m, slot, i) != shore__slot_map_bit(m, 1 - slot, i))
            shore__slot_map_set(m, slot, i, shore__slot_map_bit(m, 1 - slot, i));
        assert(shore__slot_map_data(m, slot, i) != shore__slot_map_data(m, 1 - slot, i));
    }
}

/* Says that segments of `slot` are those of the other slot. */
static inline void shore__slot_map_carry(struct shore__slot_map *m, unsigned slot, uint32_t local, uint32_t count) {
    for (uint32_t i = local; i < local + count; i++) {
        shore__slot_map_set(m, slot, i, !shore__slot_map_bit(m, 1 - slot, i));
        assert(shore__slot_map_data(m, slot, i) == shore__slot_map_data(m, 1 - slot, i));
    }
}

/* Number of segments from `local` on, at most count, whose data lie in the same slot, and so in a row. */
static inline uint32_t shore__slot_map_run(const struct shore__slot_map *m, unsigned slot, uint32_t local,
                                           uint32_t count) {
    uint32_t n = 1;
    while (n < count && shore__slot_map_bit(m, slot, local + n) == shore__slot_map_bit(m, slot, local))
        n++;
    return n < count ? n : count;
}

#endif
