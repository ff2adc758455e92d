/* Budgets: the memory of a process beside its plan, and the refusal of budgets that are too small. */
#ifndef SHORE_PLAN_BUDGET_H
#define SHORE_PLAN_BUDGET_H

#include <stdint.h>

#include "longshore/plan.h"

/* A training process beside its buffers. */
struct shore__process {
    uint32_t blocks, tokens, threads, ndrives; /* tokens: of its tokenizer */
    uint64_t heap_bytes;                       /* that products allocate */
    uint64_t trace_bytes;                      /* that a trace takes */
    bool opencl;                               /* a drive is a device */
};
/* Memory that it takes: as it was measured, and at most, which is what a budget reserves. */
uint64_t shore__process_bytes(const struct shore__process *process);
uint64_t shore__reserve_bytes(const struct shore__process *process);
/* The most for a process whose resident memory was measured before primitives and libraries were used. */
uint64_t shore__reserve_measured_bytes(uint64_t resident);

/* shore_budget() on a machine of this name with so much memory; 0: unknown. */
int shore__budget_of(const char *name, uint64_t machine, uint64_t asked, uint64_t minimum, uint64_t comfortable,
                     uint64_t *budget, struct shore_diag *diag);
/* shore_budget() if the need was measured in this process: names a minimum that is also enough for the next process. */
int shore__budget_measured(uint64_t asked, uint64_t needed, struct shore_diag *diag);

/* SHORE_EBUDGET, in the words that scripts look for: "ASKED of MEMORY is too little for WHAT: minimum SIZE". memory:
 * "memory", or that of a place. asked 0: not mentioned. */
int shore__budget_too_little(uint64_t asked, const char *memory, const char *what, uint64_t minimum,
                             struct shore_diag *diag);

#endif
