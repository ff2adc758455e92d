/* Where the segments of two slots lie. A slot is a state of all segments; what a step updates is written beside its
 * base, and what it carries stays where it is, so that the data of a segment lie in its own slot or in the other one.
 * A bit for each segment, as a volume stores them: 1: in the other one. Threading: one thread writes, any read. */
#ifndef SHORE_STORAGE_SLOT_MAP_H
#define SHORE_STORAGE_SLOT_MAP_H

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

struct shore__slot_map {
    _Atomic unsigned char *bits[2]; /* of each slot; NULL: all lie in their own */
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

/* The slot that has the data of a segment of `slot`. */
static inline unsigned shore__slot_map_data(const struct shore__slot_map *m, unsigned slot, uint32_t local) {
    return slot ^ shore__slot_map_bit(m, slot, local);
}

/* Segments of `slot` are written where the other slot does not have them: its data are never touched. */
static inline void shore__slot_map_update(struct shore__slot_map *m, unsigned slot, uint32_t local, uint32_t count) {
    for (uint32_t i = local; i < local + count; i++) {
        if (shore__slot_map_bit(m, slot, i) != shore__slot_map_bit(m, 1 - slot, i))
            shore__slot_map_set(m, slot, i, shore__slot_map_bit(m, 1 - slot, i));
        assert(shore__slot_map_data(m, slot, i) != shore__slot_map_data(m, 1 - slot, i));
    }
}

/* Segments of `slot` are those of the other slot. */
static inline void shore__slot_map_carry(struct shore__slot_map *m, unsigned slot, uint32_t local, uint32_t count) {
    for (uint32_t i = local; i < local + count; i++) {
        shore__slot_map_set(m, slot, i, !shore__slot_map_bit(m, 1 - slot, i));
        assert(shore__slot_map_data(m, slot, i) == shore__slot_map_data(m, 1 - slot, i));
    }
}

/* How many segments from `local` on, count at most, lie in the same slot: one behind the other. */
static inline uint32_t shore__slot_map_run(const struct shore__slot_map *m, unsigned slot, uint32_t local,
                                           uint32_t count) {
    uint32_t n = 1;
    while (n < count && shore__slot_map_bit(m, slot, local + n) == shore__slot_map_bit(m, slot, local))
        n++;
    return n < count ? n : count;
}

#endif
