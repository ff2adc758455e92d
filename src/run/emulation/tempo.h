/* The tempo of another machine, so that it can be studied on one that is here. Nothing is computed differently: what is
 * asked for happens, and is reported as done at the instant at which the other machine would have done it.
 *
 * A tempo has a token bucket for the link, for each drive's reading, writing, both together and computing, for the
 * processor and for the update on the host. A bucket serves in the order of asking. Asking never waits: it says when
 * it will be served, and who asked may go on and ask elsewhere, so that what overlaps there overlaps here.
 */
#ifndef SHORE_RUN_EMULATION_TEMPO_H
#define SHORE_RUN_EMULATION_TEMPO_H

#include "drive/gate.h"
#include "pass/facts.h"
#include "report/report.h"
#include "run/settings.h"

#define SHORE__EMULATED_DRIVES_MAX 64u

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
    uint64_t link[2]; /* to the drives, from them */
    uint32_t ndrives; /* of drive[]; drives beyond are like the last; 0: drives are not emulated */
    struct shore__emulated_drive drive[SHORE__EMULATED_DRIVES_MAX];
    double forward_seconds, backward_seconds; /* computing of a step on the host; 0: as it comes */
    uint64_t host_update;                     /* rate of --update host */
    uint32_t host_buffers;                    /* its chunks in memory at once; 0: chosen */
};

struct shore__tempo;

/* With these drives, which are refused if they cannot be paced. name: see emulate.h; NULL or "none": *out is NULL,
 * which may be passed to what follows, but for computed and busy. */
int shore__tempo_open(const char *name, const struct shore__addresses *drives, struct shore__tempo **out,
                      struct shore_diag *diag);
int shore__tempo_make(const struct shore__emulation *e, uint32_t ndrives, struct shore__tempo **out,
                      struct shore_diag *diag);
void shore__tempo_close(struct shore__tempo *t);

const struct shore__emulation *shore__tempo_emulation(const struct shore__tempo *t);
/* What its drives and the update on the host go through. */
struct shore__gate *shore__tempo_gate(struct shore__tempo *t);
/* How fast its drives update, as --drive-speeds says it; NULL: drives are not emulated. */
const char *shore__tempo_speeds(const struct shore__tempo *t);
/* What it changes of a plan: its drives' speeds, where none were given, and the memory that it has. */
void shore__tempo_facts(const struct shore__tempo *t, struct shore__facts *facts);

/* A block's part of a pass was computed since start_ns, for a share of the batch; returns when it is over there. t
 * NULL: at once. */
void shore__tempo_computed(struct shore__tempo *t, const struct shore__model *model, uint64_t start_ns, uint32_t block,
                           double share, bool backward);

/* Since it was opened. */
void shore__tempo_busy(struct shore__tempo *t, struct shore__busy *out);

#endif
