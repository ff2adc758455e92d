/* Tempo: takes another machine's time, so that it can be studied on this one. All work is really done, and reported as
 * done when the other machine would have done it.
 *
 * A tempo has token buckets: for the link; for each drive's reads, writes, both together, and computing; for the
 * processor; and for the update on the host. A bucket serves requests in order. A request never waits: it returns when
 * it will be served. The caller may continue with other requests, so that work that overlaps there overlaps here. */
#ifndef SHORE_RUN_EMULATION_TEMPO_H
#define SHORE_RUN_EMULATION_TEMPO_H

#include "drive/gate.h"
#include "machine/machine.h"
#include "pass/facts.h"
#include "run/settings.h"

struct shore__tempo;

/* Opens a tempo for these drives; refuses drives that it cannot pace. name: see emulate.h; NULL or "none": *out is
 * NULL, which the functions below accept, except computed and busy. */
int shore__tempo_open(const char *name, const struct shore__addresses *drives, struct shore__tempo **out,
                      struct shore_diag *diag);
/* machine: copied. */
int shore__tempo_make(const struct shore_machine *machine, uint32_t ndrives, struct shore__tempo **out,
                      struct shore_diag *diag);
void shore__tempo_close(struct shore__tempo *t);

const struct shore_machine *shore__tempo_machine(const struct shore__tempo *t);
/* The gate for its drives and the update on the host. */
struct shore__gate *shore__tempo_gate(struct shore__tempo *t);
/* Speeds of its drives' updates, in the form of --drive-speeds; NULL: drives are not emulated. */
const char *shore__tempo_speeds(const struct shore__tempo *t);
/* Applies it to a plan's facts: its drives' speeds, if none were given, and its memory. */
void shore__tempo_facts(const struct shore__tempo *t, struct shore__facts *facts);

/* A step's computing, in seconds, by the rates of the machine's products. Counts where its file gives products and no
 * seconds; without either, computing takes this machine's own time. t NULL: nothing happens. */
void shore__tempo_take_computing(struct shore__tempo *t, double forward, double backward);

/* A step begins: drives that get slower there are so from now on. t NULL: nothing happens. */
void shore__tempo_take_step(struct shore__tempo *t, uint64_t step);

/* A block's part of a pass was computed since start_ns, for a share of the batch. Returns when the other machine is
 * done. t NULL: at once. */
void shore__tempo_computed(struct shore__tempo *t, const struct shore__model *model, uint64_t start_ns, uint32_t block,
                           double share, bool backward);

/* Whether computing takes this machine longer than the other one, by a tenth at least since the last call, so that its
 * own time counts. t NULL: no. */
bool shore__tempo_is_late(struct shore__tempo *t);

/* Busy times of its lanes since it was opened, as struct shore_step_report has them. */
void shore__tempo_busy(struct shore__tempo *t, double seconds[SHORE_LANES]);

#endif
