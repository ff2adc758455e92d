/* The summary at the end of `train`. */
#ifndef SHORE_CLI_SUMMARY_H
#define SHORE_CLI_SUMMARY_H

#include "run/run.h"

struct shore__summary {
    uint64_t steps;                         /* of this start */
    double first_loss, last_loss, val_loss; /* NaN: not measured */
    double seconds;
    uint64_t budget_bytes;
    bool emulated;
    uint64_t missed_snapshots; /* that were due */
    double step_seconds;       /* median */
    const double *charges;     /* [SHORE_CHARGES], of all steps but the first, unless that is the only one */
    /* by the plan */
    double planned_seconds;
    uint64_t planned_bytes;
};

/* Prints the lines of the summary to stdout. */
void shore__summary_print(struct shore__run *run, const struct shore__summary *summary);

/* UTF-8 bytes of text behind a dataset's tokens; 0 if unknown. */
uint64_t shore__summary_text_bytes(struct shore__dataset *data, struct shore__tokenizer *tokenizer);

#endif
