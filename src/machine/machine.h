/* A machine in memory. */
#ifndef SHORE_MACHINE_MACHINE_H
#define SHORE_MACHINE_MACHINE_H

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "longshore/lane.h"
#include "longshore/machine.h"
#include "storage/whereabouts.h"

#define SHORE__MACHINE_DRIVES_MAX 64u
#define SHORE__MACHINE_ROWS_MAX 8u
#define SHORE__MACHINE_FORMAT 2u
#define SHORE__UPDATE_BYTES                                                                  \
    16u /* descriptions count so many of an element: fp32 state and gradient, however stored \
         */

/* Measured figures keep four digits, for people. */
static inline double shore__four_digits(double x) {
    double unit = x > 0 ? pow(10, floor(log10(x)) - 3) : 1;
    return round(x / unit) * unit;
}

/* A rate in units of lane.h a second, of products of so many rows. */
struct shore__rate_at {
    uint32_t rows; /* 0: of any number */
    double per_second;
};
/* Ascending rows; between two of them, the rate is linear in the logarithm of the rows. */
struct shore__rates {
    struct shore__rate_at at[SHORE__MACHINE_ROWS_MAX];
    uint32_t n; /* 0: not given */
};

/* Rates in units of lane.h a second, capacities in bytes. 0: none is given. */
struct shore__machine_drive {
    double read, write;
    double mixed;       /* reads and writes together */
    double mixed_least; /* the same of updates with the least buffers; 0: unknown */
    double update;      /* elements */
    uint64_t memory;    /* the most for UPDATE's buffers there */
    uint64_t room;
    double flush_seconds;
    uint32_t
        shares; /* 1 + the first drive on the same device, with which it shares rates and room; 0: none before it */
    bool host_computes;    /* UPDATE runs on this host's cores */
    uint32_t slower_after; /* an emulated drive works slower after this step, by the factor; 0: it does not */
    double slower_by;
    char device[32]; /* drives with the same text share it; "": one of its own */
    char path[256];  /* where it was measured; "": nowhere */
};

struct shore_machine {
    char name[64], about[1024]; /* without controls */
    char processor[64];
    uint32_t format;  /* of a file that was kept: SHORE__MACHINE_FORMAT, or it is stale */
    double scale;     /* the real machine's rates, capacities and model are larger by this factor */
    int64_t measured; /* seconds since the epoch; 0: it was not */
    uint64_t host_memory, gpu_memory, pinned_memory;
    uint32_t cores;
    double memory_bandwidth;
    struct shore__rates rate[SHORE_WORKS]
                            [SHORE_PRECISIONS]; /* of the GPU if there is one, otherwise of the processor */
    struct shore__rates torch_rate[SHORE_WORKS][SHORE_PRECISIONS]; /* the same of PyTorch, for the package alone */
    double forward_seconds, backward_seconds;                      /* of a step's computing, whatever the rates say */
    double bus_in, bus_out, bus_both;
    bool link_shared;      /* one rate for both directions: link[0] */
    double link_both;      /* that rate, as described */
    double link[2];        /* to the drives, from them */
    double host_update;    /* elements, of --update host */
    uint32_t host_buffers; /* its chunks in memory at a time */
    uint32_t ndrives;      /* 0: no drive is described. More drives equal the last */
    struct shore__machine_drive drive[SHORE__MACHINE_DRIVES_MAX];
};

/* shore_machine_parse() of a document. json: taken over. */
int shore__machine_from_json(json_t *json, const char *name, struct shore_machine **out, struct shore_diag *diag);

/* As descriptions have them. */
extern const char *const shore__precision_names[SHORE_PRECISIONS];

/* What this machine has, without rates. */
void shore__machine_here(struct shore_machine *out);

/* Of a machine whose description does not say how many it has. */
#define SHORE__CORES_ASSUMED 8u

/* What stands in for a machine that nobody measured: some cores, and one fast drive. */
const struct shore_machine *shore__machine_assumed(void);

/* Whether a description says how fast it computes products: machine->rate, torch_rate. */
bool shore__rates_given(const struct shore__rates rates[SHORE_WORKS][SHORE_PRECISIONS]);
/* The rate of work; rows 0: of many. Of a kind, precision or number of rows that is not given, the nearest that is.
 * machine NULL: the assumed one, which also has what no rate is near to. */
double shore__machine_rate(const struct shore_machine *machine, enum shore_work_kind kind,
                           enum shore_precision precision, uint64_t rows);
/* The highest rate of products in a precision, of any kind and number of rows; 0: none is given. machine: may be NULL.
 */
double shore__machine_peak(const struct shore_machine *machine, enum shore_precision precision);
/* Seconds that so much work takes. */
double shore__machine_seconds(const struct shore_machine *machine, enum shore_work_kind kind,
                              enum shore_precision precision, uint64_t rows, uint64_t work);

/* The description of a drive of a fleet: more drives than there are equal the last. NULL: none is described. */
const struct shore__machine_drive *shore__machine_drive(const struct shore_machine *machine, uint32_t drive);
/* Bytes a second that an update moves there if it reads as much as it writes, and computes at the same time: by these,
 * drives get their shares. Of a drive without a limit, the most that --drive-speeds takes. */
uint64_t shore__machine_update_speed(const struct shore__machine_drive *drive);

/* Makes the rates those of a step: drives that are slower from there on are so. */
void shore__machine_take_step(struct shore_machine *machine, uint64_t step);
/* Makes a drive slower by a factor, or with one below 1 faster. */
void shore__machine_slow_drive(struct shore__machine_drive *drive, double factor);
/* The same of all that computes. */
void shore__machine_slow_computing(struct shore_machine *machine, double factor);

/* Makes drives of a fleet the machine's. in_order: the description's drives stand for them, in order. Otherwise those
 * of a machine that was measured are known by their device. Returns how many are unknown, which are then assumed. */
uint32_t shore__machine_take_drives(struct shore_machine *machine, const char *const *drives, uint32_t ndrives,
                                    bool in_order);
/* A drive in memory: UPDATE without checksums, as fast as copies. path stays. */
void shore__machine_memory_drive(const struct shore_machine *machine, struct shore__machine_drive *drive);
/* The name of a drive's device in descriptions. */
void shore__machine_device(const struct shore__whereabouts *lies, char *out, size_t bytes);
/* Says which drives share a device. */
void shore__machine_share(struct shore_machine *machine);

/* What the plan says of a step, and of that which computes or the busiest drive does. The first steps are compared with
 * it, once: where they take far from it, shore_drift_end() says so. */
void shore__drift_planned(struct shore_drift *drift, double step_seconds, double compute_seconds, double drive_seconds);

#endif
