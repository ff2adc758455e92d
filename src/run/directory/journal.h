/* Journals: files of a run directory that name volumes that are changing, and say how. A journal is durable before the
 * first of its volumes changes, and is removed at the end. After a kill, whoever opens the run next reads it, and
 * undoes or finishes the change. Names are relative to the run's directory. */
#ifndef SHORE_RUN_DIRECTORY_JOURNAL_H
#define SHORE_RUN_DIRECTORY_JOURNAL_H

#include <jansson.h>
#include <stdbool.h>

#include "base/diag.h"

bool shore__journal_is_there(const char *run_path, const char *name);
/* j: taken over, also on failure; NULL: it could not be allocated. Durable: on return. */
int shore__journal_write(const char *run_path, const char *name, json_t *j, struct shore_diag *diag);
/* SHORE_EMISSING: there is none; diag stays empty. */
int shore__journal_read(const char *run_path, const char *name, json_t **out, struct shore_diag *diag);
/* Refuses an incomplete journal. what: the change it describes. */
int shore__journal_refuse(const char *run_path, const char *name, const char *what, struct shore_diag *diag);
/* Removes it, and what a killed replacement of it has left. It is no failure if there was none. Durable: on return. */
int shore__journal_clear(const char *run_path, const char *name, struct shore_diag *diag);

#endif
