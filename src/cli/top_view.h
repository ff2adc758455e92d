/* What `longshore top` shows, from a run's files in whatever state they are. */
#ifndef SHORE_CLI_TOP_VIEW_H
#define SHORE_CLI_TOP_VIEW_H

#include "cli/cli.h"

#define SHORE__TOP_STEPS 10 /* of a mean, at most */

struct shore__top {
    struct shore__run *run;
    struct shore__worker worker;
    bool in_use;
    json_t *line;          /* the newest of the metrics; NULL: none */
    double loss, val_loss; /* the newest known; NaN: none */
    /* means of the newest steps that have charges */
    uint32_t steps; /* 0: none has */
    double step_seconds, tokens_per_second, charge_seconds[SHORE_CHARGES], busy_seconds[SHORE__BUSY_LANES];
    struct shore__pulse pulse; /* medians, and what is left */
    bool damaged;              /* lines were left out */
    json_t *drives;            /* the newest line of drives.jsonl; NULL: none */
    json_t *plan;              /* plan.json; NULL: none */
};

/* Reads a run, without a lock. SHORE_EMISSING: there is none. */
int shore__top_look(const char *path, struct shore__top *out, struct shore_diag *diag);
void shore__top_free(struct shore__top *top);
/* Prints it within so many columns, and rows (0: any). line_end: ends each line. */
void shore__top_print(FILE *out, const struct shore__top *top, unsigned columns, unsigned rows, const char *line_end);

#endif
