/* Tempo: takes another machine's time, so that it can be studied on this one. All work is really done, and reported as
 * done when the other machine would have done it.
 *
 * A tempo has token buckets: for the link; for each drive's reads, writes, both together, and computing; for the
 * processor; and for the update on the host. A bucket serves requests in order. A request never waits: it returns when
 * it will be served. The caller may continue with other requests, so that work that overlaps there overlaps here. */
#ifndef SHORE_RUN_EMULATION_TEMPO_H
#define SHORE_RUN_EMULATION_TEMPO_H

#include "drive/gate.h"
#include "pass/facts.h"
#include "run/settings.h"

#define SHORE__EMULATED_DRIVES_MAX 64u

/* Rates in bytes per second; 0: no limit. Computing counts the bytes it streams: 16 per parameter, for fp32 state and
 * gradient, in whatever form they are stored. */
#define SHORE__COMPUTE_BYTES_PER_ELEM 16u

struct shore__emulated_drive {
    uint64_t read, write;
    uint64_t mixed; /* reads and writes together */
    uint64_t compute;
    uint64_t memory_bytes; /* the most memory for UPDATE's buffers there; 0: no limit */
};

struct shore__emulation {
    char name[64];    /* without controls */
    double scale;     /* the real machine's rates and model are larger by this factor */
    bool link_shared; /* one rate for both directions: link[0] */
    uint64_t link[2]; /* to the drives, from them */
    uint32_t ndrives; /* of drive[]; more drives equal the last; 0: drives are not emulated */
    struct shore__emulated_drive drive[SHORE__EMULATED_DRIVES_MAX];
    double forward_seconds, backward_seconds; /* a step's computing on the host; 0: the actual time */
    uint64_t host_update;                     /* rate of --update host */
    uint32_t host_buffers;                    /* its chunks in memory at a time; 0: chosen */
};

struct shore__tempo;

/* Opens a tempo for these drives; refuses drives that it cannot pace. name: see emulate.h; NULL or "none": *out is
 * NULL, which the functions below accept, except computed and busy. */
int shore__tempo_open(const char *name, const struct shore__addresses *drives, struct shore__tempo **out,
                      struct shore_diag *diag);
int shore__tempo_make(const struct shore__emulation *e, uint32_t ndrives, struct shore__tempo **out,
                      struct shore_diag *diag);
void shore__tempo_close(struct shore__tempo *t);

const struct shore__emulation *shore__tempo_emulation(const struct shore__tempo *t);
/* The gate for its drives and the update on the host. */
struct shore__gate *shore__tempo_gate(struct shore__tempo *t);
/* Speeds of its drives' updates, in the form of --drive-speeds; NULL: drives are not emulated. */
const char *shore__tempo_speeds(const struct shore__tempo *t);
/* Applies it to a plan's facts: its drives' speeds, if none were given, and its memory. */
void shore__tempo_facts(const struct shore__tempo *t, struct shore__facts *facts);

/* A block's part of a pass was computed since start_ns, for a share of the batch. Returns when the other machine is
 * done. t NULL: at once. */
void shore__tempo_computed(struct shore__tempo *t, const struct shore__model *model, uint64_t start_ns, uint32_t block,
                           double share, bool backward);

/* Busy times of its lanes since it was opened, as struct shore_step_report has them. */
void shore__tempo_busy(struct shore__tempo *t, double seconds[SHORE_LANES]);

#endif
