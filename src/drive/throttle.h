/* Emulated time: token buckets on a link, on drives and on processors, so that a machine that is not here can be
 * studied on one that is. Nothing is computed differently: what is asked for happens, and is reported as done at the
 * instant at which the emulated machine would have done it.
 *
 * A bucket serves in the order of asking. Reserving never waits: it says when it will be served, and who asked may go
 * on and reserve elsewhere, so that what overlaps on the real machine overlaps here. Instants are of shore__now_ns().
 */
#ifndef SHORE_DRIVE_THROTTLE_H
#define SHORE_DRIVE_THROTTLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/busy.h"
#include "longshore/error.h"

struct shore__bucket {
    pthread_mutex_t lock;
    uint64_t rate;    /* units a second; 0: no limit */
    uint64_t free_ns; /* when all that was reserved will have been served */
    uint64_t rest;    /* of a nanosecond, in 1 / rate */
    uint64_t busy_ns; /* time served and reserved, altogether */
    uint64_t units;   /* the same */
};
void shore__bucket_init(struct shore__bucket *bucket, uint64_t rate);
void shore__bucket_fini(struct shore__bucket *bucket);
/* When `units` that are asked for at now_ns will have been served. Threading: any. */
uint64_t shore__bucket_reserve(struct shore__bucket *bucket, uint64_t now_ns, uint64_t units);

/* ---- what is emulated -------------------------------------------------------------------------------------------- */

#define SHORE__EMULATED_DRIVES_MAX 64u

enum shore__link_direction { SHORE__LINK_IN, SHORE__LINK_OUT }; /* to the drives, from them */

/* Rates: bytes a second; 0: no limit. Computing counts the bytes that it streams: 16 a parameter, fp32 state and
 * gradient, whatever the form in which they are stored. */
#define SHORE__COMPUTE_BYTES_PER_ELEM 16u

struct shore__emulated_drive {
    uint64_t read, write;
    uint64_t mixed; /* both together */
    uint64_t compute;
    uint64_t memory_bytes; /* most that buffers of UPDATE may take there; 0: no limit */
};

struct shore__emulation {
    char name[64];    /* without controls */
    double scale;     /* the real machine's rates and model are this many times as large */
    bool link_shared; /* one rate for both directions together: link[0] */
    uint64_t link[2]; /* by shore__link_direction */
    uint32_t ndrives; /* of drive[]; 1: every drive is like that; 0: drives are not emulated */
    struct shore__emulated_drive drive[SHORE__EMULATED_DRIVES_MAX];
    double forward_seconds, backward_seconds; /* computing of a step on the host; 0: as it comes */
    uint64_t host_update;                     /* rate of --update host */
    uint32_t host_buffers;                    /* its chunks in memory at once; 0: chosen */
};

/* Of one drive; drives beyond the last that is listed are like the last. NULL: not emulated. */
const struct shore__emulated_drive *shore__emulation_drive(const struct shore__emulation *e, uint32_t drive);

/* ---- the buckets of one process ---------------------------------------------------------------------------------- */

struct shore__throttle;

int shore__throttle_open(const struct shore__emulation *e, uint32_t ndrives, struct shore__throttle **out,
                         struct shore_diag *diag);
void shore__throttle_close(struct shore__throttle *t); /* NULL is allowed */
const struct shore__emulation *shore__throttle_emulation(const struct shore__throttle *t);

/* How fast drives update, for placement. false: drives are not emulated. */
bool shore__throttle_speeds(const struct shore__throttle *t, uint32_t ndrives, uint64_t *speeds);

/* When that will be over that is asked for now. */
uint64_t shore__throttle_link(struct shore__throttle *t, enum shore__link_direction direction, uint64_t bytes);
uint64_t shore__throttle_io(struct shore__throttle *t, uint32_t drive, bool write, uint64_t bytes);
uint64_t shore__throttle_compute(struct shore__throttle *t, uint32_t drive, uint64_t elems);
uint64_t shore__throttle_host_update(struct shore__throttle *t, uint64_t elems);
/* Computing on the host that began at start_ns and takes ns there. */
uint64_t shore__throttle_host(struct shore__throttle *t, uint64_t start_ns, uint64_t ns);

/* Since the throttle was opened; of drives, the busiest of each kind. */
void shore__throttle_busy(const struct shore__throttle *t, struct shore__busy *out);
/* Bytes that crossed the emulated link, both directions. */
uint64_t shore__throttle_link_bytes(const struct shore__throttle *t);

void shore__sleep_until(uint64_t instant_ns);

#endif
