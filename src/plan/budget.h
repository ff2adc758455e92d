/* Budgets: what a process takes beside its plan, and what is said of one that cannot be.
 */
#ifndef SHORE_PLAN_BUDGET_H
#define SHORE_PLAN_BUDGET_H

#include <stdint.h>

#include "longshore/error.h"

/* What a process of training takes beside buffers: libraries, stacks, descriptions of so many blocks and of a tokenizer
 * of so many tokens. */
uint64_t shore__reserve_bytes(uint32_t blocks, uint32_t tokens, uint32_t threads, uint32_t ndrives);
/* The same of a process whose resident memory was measured before primitives and libraries were used. */
uint64_t shore__reserve_measured_bytes(uint64_t resident);

/* The budget to use: what was asked; or half of the machine's memory, no more than is comfortable and no less than the
 * minimum (0: unknown). Refuses a budget above the machine's memory or below the minimum. */
int shore__budget(uint64_t asked, uint64_t minimum, uint64_t comfortable, uint64_t *budget, struct shore_diag *diag);
/* The same where what is needed was measured in this process: names a minimum that does in the next one too. */
int shore__budget_measured(uint64_t asked, uint64_t needed, struct shore_diag *diag);

/* SHORE_EBUDGET, with the words that scripts look for: "ASKED of memory is too little for WHAT: minimum SIZE". asked
 * 0: not said. */
int shore__budget_too_little(uint64_t asked, const char *what, uint64_t minimum, struct shore_diag *diag);

#endif
