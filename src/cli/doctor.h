/* The report of `doctor`: its checks, as lines and as JSON. */
#ifndef SHORE_CLI_DOCTOR_H
#define SHORE_CLI_DOCTOR_H

#include <jansson.h>

#include "drive/address.h"
#include "storage/whereabouts.h"

enum shore__verdict {
    SHORE__FINE,
    SHORE__WEAK,   /* it works, but could work better */
    SHORE__BROKEN, /* something necessary does not work */
    SHORE__VERDICTS
};

struct shore__report {
    json_t *checks; /* an array */
    bool json;      /* nothing is printed before the end */
    unsigned count[SHORE__VERDICTS];
};

/* Adds a check. what: "processor", or a drive; facts: more keys of its JSON object, taken over; may be NULL. advice:
 * what to do; NULL: nothing. */
__attribute__((format(printf, 6, 7))) void shore__report_add(struct shore__report *r, const char *what,
                                                             enum shore__verdict verdict, const char *advice,
                                                             json_t *facts, const char *format, ...);

void shore__doctor_machine(struct shore__report *r);
void shore__doctor_graphics(struct shore__report *r);
/* Checks the client for drives at ssh://HOST/PATH. needed: there are some. */
void shore__doctor_ssh(struct shore__report *r, bool needed);
/* Reports a drive that cannot be used. why: with or without the drive's name in front. */
void shore__doctor_refuse(struct shore__report *r, const char *drive, const struct shore_diag *why);
/* before: the nbefore drives checked before this one. out: this drive's place; false: it is not on this host. */
bool shore__doctor_drive(struct shore__report *r, const struct shore__address *at,
                         const struct shore__whereabouts *before, size_t nbefore, struct shore__whereabouts *out);

/* Takes a command's output within some seconds. false: it cannot be run, fails, or hangs. words: NULL at the end. */
bool shore__doctor_ask(char *const *words, char *out, size_t bytes);

#endif
