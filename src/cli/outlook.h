/* What a training will cost, as `longshore plan` and the first and last lines of train say it: a forecast, and the
 * rates that it is made of. */
#ifndef SHORE_CLI_OUTLOOK_H
#define SHORE_CLI_OUTLOOK_H

#include <jansson.h>

#include "machine/machine.h"
#include "pass/forecast.h"
#include "run/settings.h"

/* The machine whose rates a plan takes. */
struct shore__plan_rates {
    struct shore_machine *machine; /* NULL: none is described, so a plan assumes rates */
    bool named;                    /* it was named: its memory and its drives count, and not this machine's */
    char from[512];                /* where they are from, for people */
};
/* The machine that --machine names (NULL: not given), or --emulate; otherwise this one, as `longshore machine` kept it;
 * otherwise none. gpu: a step may compute on its GPU; otherwise on the processor, as this program does. */
int shore__plan_rates_open(const char *named, const struct shore__settings *s, bool gpu, struct shore__plan_rates *out,
                           struct shore_diag *diag);
void shore__plan_rates_close(struct shore__plan_rates *rates);

/* Stands in for drives that nobody named: those of a machine that was named, or one. Nothing is made there. rates: may
 * be NULL. */
int shore__outlook_assume_drives(struct shore__settings *s, const struct shore__plan_rates *rates,
                                 struct shore_diag *diag);

struct shore__outlook {
    const struct shore__settings *settings;
    const struct shore__model *model;
    const struct shore_machine *machine; /* NULL: assumed */
    bool named;                          /* its memory counts, and not this machine's */
    struct shore__facts facts;
    struct shore__forecast forecast;
};
/* Fills facts and forecast from the rest, within s->memory_bytes or the default of the machine. at_least: a budget
 * below the minimum is raised to it. Errors: SHORE_EBUDGET (more than the machine has, or less than the minimum; or a
 * step alone writes more than the drives may in a day). */
int shore__outlook_make(struct shore__outlook *o, bool at_least, struct shore_diag *diag);
/* The short of it: "1.00 GiB of 2.00 GiB of memory; activations ...; a step takes about 1.2 s, bound by ..." */
const char *shore__outlook_text(const struct shore__outlook *o, char *out, size_t bytes);

/* What a change would buy: another outlook. */
struct shore__what_if {
    char change[96];
    struct shore__forecast forecast;
};
#define SHORE__WHAT_IFS_MOST 8u

/* All that `longshore plan` says. */
struct shore__plan_report {
    const struct shore__outlook *outlook;
    const char *rates;
    uint64_t useful_bytes, tbw_bytes; /* tbw_bytes: what a drive may write in its life; 0: not said */
    struct shore__what_if what_if[SHORE__WHAT_IFS_MOST];
    uint32_t what_ifs;
};
/* Fills useful_bytes and what_if from an outlook that was made. */
int shore__outlook_report(const struct shore__outlook *o, struct shore__plan_report *r, struct shore_diag *diag);
json_t *shore__plan_json(const struct shore__plan_report *r);
/* The same of an outlook that was made, with all that is found out for it. NULL: diag says why. */
json_t *shore__outlook_json(const struct shore__outlook *o, const char *rates, struct shore_diag *diag);

#endif
