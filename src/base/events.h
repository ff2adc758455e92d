/* What waits for events tells a device's watch of them: see longshore/device.h. */
#ifndef SHORE_BASE_EVENTS_H
#define SHORE_BASE_EVENTS_H

#include "longshore/device.h"

/* Items that wait for events, the oldest first. Each begins with its struct shore_event. Threading: the caller's. */
struct shore__fifo {
    void *items; /* [count], owned */
    size_t count, room;
    uint64_t taken; /* how many have left */
};

/* Adds a copy of an item of so many bytes, which all have. false: out of memory. */
bool shore__fifo_add(struct shore__fifo *f, const void *item, size_t bytes);

/* The event of the first item. There is one, here and below. */
static inline struct shore_event shore__fifo_event(const struct shore__fifo *f) {
    return *(const struct shore_event *)f->items;
}

/* Removes the first item, and copies it to *item. */
void shore__fifo_take(struct shore__fifo *f, void *item, size_t bytes);

/* The watch of the device, if it has one, waits for this event, too. Events are noted in the order of these calls. */
void shore__device_expect(struct shore_device *device, struct shore_event event);

#endif
