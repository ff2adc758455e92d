/* Budgets: the memory of a process beside its plan, and the refusal of budgets that are too small. */
#ifndef SHORE_PLAN_BUDGET_H
#define SHORE_PLAN_BUDGET_H

#include <stdint.h>

#include "longshore/plan.h"

/* Memory of a training process beside its buffers: libraries, stacks, and the descriptions of so many blocks and of a
 * tokenizer with so many tokens. */
uint64_t shore__reserve_bytes(uint32_t blocks, uint32_t tokens, uint32_t threads, uint32_t ndrives);
/* The same for a process whose resident memory was measured before primitives and libraries were used. */
uint64_t shore__reserve_measured_bytes(uint64_t resident);

/* shore_budget() on a machine with so much memory; 0: unknown. */
int shore__budget_of(uint64_t machine, uint64_t asked, uint64_t minimum, uint64_t comfortable, uint64_t *budget,
                     struct shore_diag *diag);
/* shore_budget() if the need was measured in this process: names a minimum that is also enough for the next process. */
int shore__budget_measured(uint64_t asked, uint64_t needed, struct shore_diag *diag);

/* SHORE_EBUDGET, in the words that scripts look for: "ASKED of MEMORY is too little for WHAT: minimum SIZE". memory:
 * "memory", or that of a place. asked 0: not mentioned. */
int shore__budget_too_little(uint64_t asked, const char *memory, const char *what, uint64_t minimum,
                             struct shore_diag *diag);

#endif
