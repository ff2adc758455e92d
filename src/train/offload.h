/* How many (layer, unit) pairs send their inner activations to scratch, from step to step. */
#ifndef SHORE_TRAIN_OFFLOAD_H
#define SHORE_TRAIN_OFFLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Storing pays until the drives cannot keep up with it: then every further pair is waited for longer than computing it
 * again takes. So the number goes down as soon as a step waits, by as much as it waited; up again by one layer, and
 * by twice as much each time while that works and nothing else of the drives is waited for; and after a pause, twice as
 * long each time, when it did not. */
struct offload {
    size_t pairs;             /* of the step that begins */
    size_t most, layer, more; /* more: by how much it goes up next */
    uint32_t changed;         /* steps to go until what is measured is of so many pairs alone */
    uint32_t rest, pause;     /* steps to go until more are tried; how many they were */
    bool tried;               /* what was changed last was to try more */
};

/* most: pairs that there is room for; layer: pairs of a layer. Begins with all of them. */
struct offload offload_begin(size_t most, size_t layer);

/* A step has ended. Shares of its time in which it waited for scratch, and for drives in all. */
void offload_weigh(struct offload *o, double for_scratch, double for_drives);

#endif
