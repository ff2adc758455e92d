/* Time of a step: one event simulation over lanes says when each operation runs, and how long a step takes once steps
 * follow each other. longshore/plan.h says how time is read from a program.
 *
 *     shore__simulation_open(program, machine, one_memory, &simulation, &diag)     once
 *     shore__simulate(simulation, fates, &times)                                   for each choice of fates
 *
 * It reads no clock: the same program, machine and fates take the same time everywhere. */
#ifndef SHORE_PLAN_SIMULATE_H
#define SHORE_PLAN_SIMULATE_H

#include "machine/machine.h"
#include "plan/plan.h"

struct shore__simulation;

/* What a simulation needs of a program, whatever its fates. program outlives it and is complete; machine NULL: the
 * assumed one. one_memory: as in struct shore_plan_options. Errors: -ENOMEM. */
int shore__simulation_open(const struct shore_program *program, const struct shore_machine *machine, bool one_memory,
                           struct shore__simulation **out, struct shore_diag *diag);
void shore__simulation_close(struct shore__simulation *s); /* NULL is allowed */

/* fate: by tensor. out: all of it is filled. */
void shore__simulate(struct shore__simulation *s, const struct shore__fate *fate, struct shore_plan_times *out);
/* When an operation of the step that was last simulated began and ended, in seconds after the step's begin. */
void shore__simulated(const struct shore__simulation *s, uint32_t operation, double *begin, double *end);

#endif
