/* Which gradient goes where. Pure: everything that decides is in the structs. */
#ifndef SHORE_TRAIN_GRADIENT_WAY_H
#define SHORE_TRAIN_GRADIENT_WAY_H

#include <stdbool.h>
#include <stdint.h>

/* A moment of backward: the lookups of so many units have been added; or all has. */
#define ALL_LOOKED_UP UINT32_MAX

/* A segment. Of a tied table that is held, segments are complete at different moments and handed over when they are;
 * all else is complete with its piece. */
struct segment_facts {
    bool by_segment; /* it is of a tied and held table */
    uint32_t due;    /* units whose lookups it waits for */
    bool early;      /* it was handed over at an earlier moment */
    bool ahead;      /* its state has been read ahead */
};
enum segment_way {
    SEGMENT_WAITS,     /* it is not complete yet */
    SEGMENT_IS_GONE,   /* to a drive, at an earlier moment, or to where its state was read */
    SEGMENT_TO_DRIVE,  /* UPDATE takes it now */
    SEGMENT_STAYS_HERE /* processors update it, once all are complete */
};
enum segment_way shore__segment_way(const struct segment_facts *s, uint32_t looked_up);

/* A piece that is complete as a whole. */
struct piece_facts {
    bool host_update; /* the update takes all gradients from the drives */
    bool speculates;  /* the step does, or did until the norm passed the limit */
    bool goes_on;     /* and the norm has not */
    bool all_fit;     /* every piece of the step has memory of its own */
    bool held;        /* this one has, in the table's */
    uint32_t left;    /* buffers that other pieces can have */
};
enum piece_way {
    PIECE_TO_DRIVES,  /* segment by segment */
    PIECE_IS_HELD,    /* it waits for the norm in memory */
    PIECE_IS_SPILLED, /* it waits for the norm on the drives */
    PIECE_IS_GIVEN_UP /* the step is computed again, without speculating */
};
enum piece_way shore__piece_way(const struct piece_facts *p);

#endif
