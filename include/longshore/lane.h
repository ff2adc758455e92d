/* Lanes: what works at the same time during a step. Costs of a plan, the emulation of another machine, the times in
 * metrics, and messages all take their lanes from this list. A drive's lanes exist once for each drive; where one of
 * them counts, the drive's number stands beside the lane.
 *
 * Units of work: multiplications and additions of COMPUTE, elements of _UPDATE, otherwise bytes.
 */
#ifndef LONGSHORE_LANE_H
#define LONGSHORE_LANE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Each lane: its name in metrics and JSON; for people, its work, and what a step is bound by whose longest work this
 * is. Of lanes that share a name, what JSON says is the longer one's. */
#define SHORE_LANE_LIST(X)                                                                                 \
    X(SHORE_LANE_COMPUTE, "gpu", "computing", "computing") /* the device, in forward and backward */       \
    X(SHORE_LANE_BUS_IN, "bus_in", "copies to the GPU", "copies to the GPU")                               \
    X(SHORE_LANE_BUS_OUT, "bus_out", "copies from the GPU", "copies from the GPU")                         \
    X(SHORE_LANE_LINK_IN, "link", "the link", "the link")                                                  \
    X(SHORE_LANE_LINK_OUT, "link", "the link", "the link")                                                 \
    X(SHORE_LANE_DRIVE_READ, "drive_read", "the drives' reads", "reading the drives") /* of each drive */  \
    X(SHORE_LANE_DRIVE_WRITE, "drive_write", "the drives' writes", "writing the drives")                   \
    X(SHORE_LANE_DRIVE_MIXED, "drive_mixed", "reads and writes", "the drives") /* both, under one limit */ \
    X(SHORE_LANE_DRIVE_UPDATE, "drive_compute", "updates", "updates beside the drives")                    \
    X(SHORE_LANE_HOST_UPDATE, "host_update", "updates on the host", "updates on the host")                 \
    X(SHORE_LANE_COMMIT, "commit", "commits", "commits")

enum shore_lane {
#define SHORE_LANE_ENUM(lane, ...) lane,
    SHORE_LANE_LIST(SHORE_LANE_ENUM)
#undef SHORE_LANE_ENUM
        SHORE_LANES
};

/* Kinds of computing that differ in how fast a device is at them, and the numbers that products are computed with. */
enum shore_work_kind {
    SHORE_WORK_PRODUCT,        /* activations with weights, forward */
    SHORE_WORK_PRODUCT_INPUT,  /* backward: the gradient of the activations */
    SHORE_WORK_PRODUCT_WEIGHT, /* backward: the gradient of the weights */
    SHORE_WORK_ATTENTION,
    SHORE_WORK_ATTENTION_BACKWARD,
    SHORE_WORK_ROWS,      /* norms, activation functions, sums: its work is the bytes that they move */
    SHORE_WORK_FUNCTIONS, /* where a framework computes functions over rows: bytes that as much tanh would move */
    SHORE_WORK_CALLS,     /* operations that a framework begins: their number */
    SHORE_WORKS
};

enum shore_precision {
    SHORE_PRECISION_FP32,
    SHORE_PRECISION_BF16,
    SHORE_PRECISION_FP16,
    SHORE_PRECISION_TF32,
    SHORE_PRECISION_FP8,
    SHORE_PRECISIONS
};

/* A lane's name. SHORE_LANES, here and below: no lane, but the limit of what may be written in a day. Threading: any.
 */
const char *shore_lane_name(enum shore_lane lane);
/* What people read for its work. Threading: any. */
const char *shore_lane_work(enum shore_lane lane);
/* What people read for what a step waits for, if it waits for this lane most. Threading: any. */
const char *shore_lane_bound(enum shore_lane lane);

#ifdef __cplusplus
}
#endif

#endif
