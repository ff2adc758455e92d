/* Files of a run's directory that say what is under way with volumes, and name them. One is there, durable, before the
 * first of its volumes changes, and goes once all is done: whoever opens the run next reads what a kill has left, and
 * undoes it or goes on. Names: relative to the run's directory.
 */
#ifndef SHORE_RUN_DIRECTORY_JOURNAL_H
#define SHORE_RUN_DIRECTORY_JOURNAL_H

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>

#include "base/diag.h"

bool shore__journal_is_there(const char *run_path, const char *name);
/* j: taken, also where it fails; NULL: there was no memory for it. Durable: on return. */
int shore__journal_write(const char *run_path, const char *name, json_t *j, struct shore_diag *diag);
/* SHORE_EMISSING: there is none, which diag does not say. */
int shore__journal_read(const char *run_path, const char *name, json_t **out, struct shore_diag *diag);
/* Refuses what does not say all. what: that it says. */
int shore__journal_refuse(const char *run_path, const char *name, const char *what, struct shore_diag *diag);
/* It and what a kill has left of its being replaced; that there was none is no failure. Durable: on return. */
int shore__journal_clear(const char *run_path, const char *name, struct shore_diag *diag);

static inline int shore__out_of_memory(struct shore_diag *diag) {
    return shore__fail(diag, -ENOMEM, "out of memory");
}

#endif
