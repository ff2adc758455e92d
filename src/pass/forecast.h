/* What a run will cost, before anything is made: its plan, the memory of a step by class, its time, and the bytes that
 * it moves. Needs no weights, no data and no drives. */
#ifndef SHORE_PASS_FORECAST_H
#define SHORE_PASS_FORECAST_H

#include "longshore/lane.h"
#include "pass/facts.h"
#include "pass/row_keys.h"

const char *shore__memory_class_name(enum shore__memory_class of);

/* Parts of a step. */
enum shore__step_part { SHORE__IN_FORWARD, SHORE__IN_HEAD, SHORE__IN_BACKWARD, SHORE__IN_COMMIT, SHORE__STEP_PARTS };

/* What moves in a step: parameters that are fetched; activations (and a table's gradient) that go to the drives and
 * come back; gradients, and the state that they update. */
enum shore__moved { SHORE__MOVED_PARAMETERS, SHORE__MOVED_ACTIVATIONS, SHORE__MOVED_UPDATES, SHORE__MOVED_CLASSES };
struct shore__moved_bytes {
    uint64_t link, read, written;
};

/* Bytes and seconds are those of one steady step, unless the name says otherwise. */
struct shore__forecast {
    uint64_t minimum_bytes;     /* the least budget: training refuses a mebibyte less */
    uint64_t comfortable_bytes; /* the least budget that keeps everything */
    uint64_t budget_bytes; /* of the plan. 0: the budget is below minimum_bytes. Then all below is 0, except disk */
    uint64_t peak_bytes;   /* of the process; and of a device that has memory of its own */
    uint64_t place_bytes[SHORE_PLACES];           /* the same by place, if a device has memory of its own */
    uint64_t memory_bytes[SHORE__MEMORY_CLASSES]; /* by class when a step needs most: together peak_bytes */
    uint64_t part_bytes[SHORE__STEP_PARTS][SHORE__MEMORY_CLASSES]; /* the same of each part of it */
    uint64_t disk_bytes;                                           /* of all volumes */
    double step_seconds, tokens_per_second;
    double lane_seconds[SHORE_LANES]; /* of work; of drives the busiest one's */
    enum shore_lane bound;            /* the lane that works longest; SHORE_LANES: the limit of writes a day */
    uint64_t link_bytes, drive_read_bytes, drive_write_bytes; /* as metrics.jsonl counts them */
    struct shore__moved_bytes moved[SHORE__MOVED_CLASSES];    /* the same by class */
    uint64_t drive_write_most_bytes;                          /* of the drive that writes most */
    /* activations (boundary and inner) that backward needs: in memory, computed again, on the drives */
    uint64_t kept_bytes, recomputed_bytes, offloaded_bytes;
    bool gathers;        /* the rows of the embedding that a batch looks up come, instead of all of it */
    double plan_seconds; /* that planning took */
};

/* Plans a step within a budget (0: the default of the machine). Threading: any. Errors: those of
 * shore__plan_training(); a budget that is too small is no error, see budget_bytes. */
int shore__forecast(const struct shore__facts *f, uint64_t budget, struct shore__forecast *out,
                    struct shore_diag *diag);

/* The budget above which the step gets no faster (within 1 %), by a few plans; at least the minimum. */
int shore__forecast_useful(const struct shore__facts *f, uint64_t *bytes, struct shore_diag *diag);

#endif
