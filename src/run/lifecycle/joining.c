/* Several processes have a part of a run each. One keeps it: it has the lock, and writes to the directory. The others
 * join it. What proves that they belong together: each volume is locked by the process that has it, all of them are of
 * one fleet and placement, and nothing is written before all have been found, each once (shore_fleet_unite()). The
 * directory adds that somebody keeps the run, so that no step goes unrecorded. */
#include "run/lifecycle/joining.h"

#include <string.h>
#include <unistd.h>

#include "base/diag.h"
#include "run/directory/journal.h"
#include "run/lifecycle/places.h"
#include "run/lifecycle/volumes.h"
#include "run/paths.h"

/* A lock may not be seen from another host: there, what the keeper has signed counts. */
int shore__run_ask_keeper(const char *path, struct shore_diag *diag) {
    struct shore__worker keeper;
    char host[sizeof keeper.host] = "";
    if (shore__run_worker(path, &keeper)) return 0;
    gethostname(host, sizeof host - 1);
    if (*keeper.host && strcmp(keeper.host, host) != 0) return 0;
    return shore__fail(diag, SHORE_EUSAGE,
                       "%s: no process keeps this run, so it cannot be joined: the process of rank 0 opens or makes it "
                       "first",
                       path);
}

static int take_places(struct shore__run *run, const struct shore__journal *journal, struct shore_diag *diag) {
    struct shore__addresses *drives = &run->settings.drives;
    int rc = drives->count == journal->drives.count
                 ? 0
                 : shore__fail(diag, SHORE_EMISMATCH, "%s: is being made on %zu drives, and %zu are given here",
                               run->path, journal->drives.count, drives->count);
    for (size_t i = 0; rc == 0 && i < drives->count; i++) {
        const char *made = journal->drives.text[i];
        if (run->mine[i] && !shore__drive_is_named(made, journal->to, drives->text[i]))
            rc = shore__fail(diag, SHORE_EMISMATCH,
                             "the drive %s is %s in the run that is being made: all processes give the same drives in "
                             "the same order",
                             shore__shown(drives->text[i]).text, made);
        struct shore__address *at = rc ? NULL : shore__address_copy(journal->drives.item[i]);
        if (rc == 0 && !at) rc = shore__out_of_memory(diag);
        if (at) shore__addresses_put(drives, i, at);
    }
    return rc;
}

int shore__making_join(struct shore__run *run, struct shore_diag *diag) {
    struct shore__journal journal = {0};
    struct shore__journal nothing = {0}; /* the keeper has removed what an earlier making left */
    int rc = shore__run_ask_keeper(run->path, diag);
    if (rc == 0) rc = shore__journal_read(run->path, SHORE__MAKING, NULL, &journal, diag);
    if (rc == SHORE_EMISSING)
        rc = shore__fail(diag, rc, "%s: no run is being made there: the process of rank 0 begins", run->path);
    if (rc == 0) rc = take_places(run, &journal, diag);
    if (rc == 0) rc = shore__run_find_home(run, diag);
    if (rc == 0) {
        run->making = true;
        run->generation = journal.to;
        memcpy(run->fleet_id, journal.fleet_id, sizeof run->fleet_id);
        memcpy(nothing.fleet_id, journal.fleet_id, sizeof run->fleet_id);
        rc = shore__making_place(run, &nothing, NULL, diag);
    }
    shore__journal_free(&journal);
    return rc;
}
