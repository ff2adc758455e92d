/* A program as the simulation reads it: operations with their uses in order, work in seconds, and lanes. */
#ifndef SHORE_PLAN_SIMULATE_IMPL_H
#define SHORE_PLAN_SIMULATE_IMPL_H

#include "plan/lanes.h"
#include "plan/simulate.h"

#define SHORE__NONE UINT32_MAX
enum { STEPS_LEAST = 3, STEPS_MOST = 8 }; /* until a step is like the one before, and so like all later ones */

/* Lanes of the host, by number; those of each class of drives are behind them. */
enum { LANE_BUS_IN, LANE_BUS_OUT, LANE_BUS_BOTH, LANE_LINK_IN, LANE_LINK_OUT, LANE_HOST_UPDATE, LANES_OF_HOST };
enum { OF_READ, OF_WRITE, OF_MIXED, OF_UPDATE, LANES_OF_DRIVE };

struct lane {
    struct shore__bucket asked; /* what operations wait for, which goes before the work behind them */
    enum shore_lane as;
    double each;             /* seconds for a unit of work; 0: no limit */
    double behind;           /* when all work behind operations will be done */
    double *done;            /* the same of each job */
    uint32_t *queue, queued; /* jobs that may not be done */
    double slows; /* of work on the cores that operations compute on: how much longer both take while both run */
    double behind_seconds; /* of all jobs of a step */
    double left;           /* the part of it that memory does not save */
};

/* Where tensors move: between drives, host and device; from an update to what stays on the host. */
enum route { DRIVE_IN, DRIVE_OUT, BUS_IN, BUS_OUT, ACROSS_IN, ACROSS_OUT, LINK_ALONE, ROUTES };
struct way_on {
    struct lane *lane;
    double each; /* seconds for a byte */
};
struct route_lanes {
    struct way_on *on;
    uint32_t count;
};

/* Work behind an operation. */
struct job_part {
    struct lane *lane;
    double seconds;
};
struct job {
    uint32_t first, end; /* of its parts */
    uint32_t needed;     /* the first operation of the next step that reads what it changes */
};

struct timed_tensor {
    uint32_t maker, first_reader;        /* operations */
    uint32_t changer, changed;           /* the job that changes it, and the operation that it is behind */
    uint32_t copy_of;                    /* of a device's parameter: where it lies on the host */
    uint32_t group;                      /* by its number among the groups */
    double again_seconds, cheap_seconds; /* cheap: of what only all of it has no need of */
};

struct timed_operation {
    double seconds, rows_seconds;  /* rows: of these, those of row operations */
    double more_seconds;           /* for what is computed again, less what memory saves */
    double kept[2];                /* bytes that the job behind it sends to where they stay: all, and on to a device */
    uint32_t first, end;           /* of its uses */
    uint32_t job;                  /* behind it */
    uint32_t first_wait, end_wait; /* the last step's jobs that change what it reads in place */
    bool idle;                     /* it has no work: what it may read is rare, as between two steps */
    double began, ended;
};

/* A tensor passes a buffer: it comes, leaves, or is a gradient that waits for the work behind. */
enum passing { COMES, LEAVES, WAITS };
struct stream;
struct entry {
    uint32_t operation, tensor;
    uint32_t changer; /* the job whose update it waits for */
    uint32_t buffer;  /* the one it took */
    double bytes;
    double at;            /* when it is there, or its buffer is free */
    struct stream *other; /* what crosses the bus passes a buffer of the host and one of the device: the other stream */
    uint32_t its;         /* and the entry there */
    unsigned char passing, route;
    bool copy;  /* it is the device's */
    bool stays; /* of the device's: it is still there */
};
struct buffer {
    uint32_t tensor, before, after; /* before, after: in the order in which they were taken */
    uint64_t user;                  /* the entry that took it last */
    double there, free;             /* free: INFINITY while it is in use */
    uint32_t job, step;             /* or it is free once this job is done; of the user */
};
/* What passes through the buffers of a group, in the order of the operations, again and again. */
struct stream {
    struct entry *entry;
    struct buffer *buffer;
    uint32_t count, nbuffers, oldest, newest;
    uint32_t apart;             /* parameters that stay if there are as many buffers */
    uint32_t *where;            /* each second one by tensor: its buffer, if it is still there */
    uint32_t here, taken, gone; /* entries of the operation at hand; that it has taken, and is done with */
    /* entries that took buffers; that operations are done with. step, at: of the next that takes one. used_at: of the
     * next that an operation uses */
    uint64_t next, used;
    uint32_t step, at, used_at;
};

struct shore__simulation {
    const struct shore_program *program;
    bool one_memory;
    struct timed_tensor *tensor;
    struct timed_operation *op;
    struct shore__use *use; /* by operation */
    struct job *job;
    struct job_part *part;
    struct lane *lane;
    struct lane **busy, **sharing; /* with work behind; on the cores that operations compute on */
    struct route_lanes route[ROUTES];
    struct way_on *on;
    struct stream *stream;  /* two of each group: to and from drives, and on to a device */
    struct stream **active; /* those that something passes */
    struct stream **here;   /* those that something of the operation at hand passes */
    struct entry *entries;
    struct buffer *buffers;
    uint32_t *buffers_of, nbuffers; /* tensors that are buffers */
    uint32_t *saving, nsaving;      /* tensors that save work */
    uint32_t *wait;                 /* jobs, by operation */
    uint32_t *groups;               /* by number: as tensors call them */
    uint32_t *where;                /* of all streams: of the host and of a device */
    double *left;                   /* by tensor: when it has left */
    double *job_at;                 /* by job of all steps */
    double *done;                   /* of all lanes */
    uint32_t *queues;
    uint32_t njobs, nlanes, nbusy, nsharing, ngroups, nactive, nhere;
    uint32_t first_gradient;  /* the operation that waits for the last step's commit */
    double work[SHORE_LANES]; /* behind all operations, on all drives */
    double commit_seconds, computed_seconds;
    double compute_seconds, began; /* of the last step */
};

/* ---- streams ----------------------------------------------------------------------------------------------------- */

/* A buffer becomes the one that was taken last. */
static inline void to_newest(struct stream *st, uint32_t b) {
    struct buffer *of = &st->buffer[b];
    if (b == st->newest) return;
    if (b == st->oldest) st->oldest = of->after;
    if (of->before != SHORE__NONE) st->buffer[of->before].after = of->after;
    st->buffer[of->after].before = of->before;
    st->buffer[st->newest].after = b;
    of->before = st->newest;
    of->after = SHORE__NONE;
    st->newest = b;
}

static inline uint32_t *where(const struct stream *st, uint32_t tensor) {
    return &st->where[2 * tensor];
}

/* Whether a tensor still lies in a buffer of the stream, so that it need not come in this step. An update changes it on
 * the drives, and not there. */
static inline bool is_there(const struct stream *st, const struct entry *e) {
    uint32_t b = *where(st, e->tensor);
    if (b >= st->nbuffers || st->buffer[b].tensor != e->tensor) return false;
    return e->changer == SHORE__NONE || st->buffer[b].step == st->step;
}

/* Whether a parameter stays where it has a buffer of its own: those of a device are copied in each step. */
static inline bool shore__may_stay_apart(const struct shore_tensor *t) {
    return t->ways == SHORE_WAY_MOVE && t->place != SHORE_PLACE_DEVICE && !t->buffers;
}

/* Goes on to the next entry. */
static inline void advance(struct stream *st, struct entry *e, uint32_t buffer) {
    e->buffer = buffer;
    st->next++;
    if (++st->at < st->count) return;
    st->at = 0;
    st->step++;
}

/* simulate_fates.c: what passes, waits and is computed again with these fates, from the beginning. */
void shore__simulation_apply(struct shore__simulation *s, const struct shore__fate *fate);

#endif
