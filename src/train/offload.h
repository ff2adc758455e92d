/* How many (layer, unit) pairs send their inner activations to scratch, from step to step. */
#ifndef SHORE_TRAIN_OFFLOAD_H
#define SHORE_TRAIN_OFFLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Storing pays until the drives cannot keep up with it: then every further pair is waited for longer than computing it
 * again takes. So the number goes down as soon as a step waits, by as much as it waited; and up again while nothing
 * else of the drives is waited for, half of the way to what they kept up with before, and beyond that a layer at a
 * time. What they do not keep up with is taken back, and more is tried after a pause, twice as long each time. */
struct offload {
    size_t pairs; /* of the step that begins */
    size_t most, layer;
    size_t enough;        /* drives kept up with so many, until they last did not */
    size_t added;         /* by what was changed last; 0: that was not to try more */
    uint32_t changed;     /* steps to go until what is measured is of so many pairs alone */
    uint32_t rest, pause; /* steps to go until more are tried; how many they were */
};

/* most: pairs that there is room for; layer: pairs of a layer. Begins with all of them. */
struct offload shore__offload_begin(size_t most, size_t layer);

/* A step has ended. Shares of its time in which it waited for scratch, and for drives in all. */
void shore__offload_weigh(struct offload *o, double for_scratch, double for_drives);

#endif
