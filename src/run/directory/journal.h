/* Journals: what is under way with a run's volumes. A journal is durable before the first of them changes, and is
 * removed at the end. After a kill, whoever opens the run next reads it, and undoes or finishes the change. All have
 * one form, of which each kind of change uses some fields. Names are relative to the run's directory:
 *
 *   making/plan.json         a run is being made: its fleet, and the volumes that a killed making may have left
 *   moving.json              volumes go to other places; and what earlier moves could not remove yet
 *   rollback.json            a snapshot's state is put back
 *   snapshots/NAME.partial   a snapshot is being made or removed: its fleet, and the files that are to go
 */
#ifndef SHORE_RUN_DIRECTORY_JOURNAL_H
#define SHORE_RUN_DIRECTORY_JOURNAL_H

#include <jansson.h>

#include "run/internal.h"

enum shore__change { SHORE__MAKING, SHORE__MOVING, SHORE__ROLLING_BACK, SHORE__SNAPSHOT };

/* A volume that a finished move could not remove yet. */
struct shore__left {
    struct shore__address *at;
    uint64_t generation;
    bool undone, begun; /* made by an undone move; nothing was there before */
};

struct shore__journal {
    uint64_t fleet_id[2];             /* making, snapshot */
    uint64_t from, to;                /* generations; making: to; rollback: the step that every drive held before */
    struct shore__addresses new, old; /* volumes that are to go if the change is undone, or done */
    struct shore__addresses drives;   /* making: all volumes, in the order of the fleet, for processes that join it */
    bool *fresh;                      /* of new: nothing was there before */
    struct shore__left *left;         /* of earlier moves */
    size_t nleft;
    char *snapshot;              /* rollback: its name */
    bool committed;              /* rollback */
    char *maker;                 /* making: another program's name; NULL: train or import */
    struct shore__origin origin; /* making: read only; it is written for the current directory */
};

/* snapshot: its name; otherwise NULL. */
bool shore__journal_is_there(const char *run_path, enum shore__change what, const char *snapshot);
/* SHORE_EMISSING: there is none; diag stays empty. SHORE_EINPUT: it misses something. Free the result in any case. */
int shore__journal_read(const char *run_path, enum shore__change what, const char *snapshot, struct shore__journal *out,
                        struct shore_diag *diag);
/* Durable: on return. */
int shore__journal_write(const char *run_path, enum shore__change what, const char *snapshot,
                         const struct shore__journal *j, struct shore_diag *diag);
/* Removes it, and what a killed replacement of it has left. It is no failure if there was none. Durable: on return. */
int shore__journal_clear(const char *run_path, enum shore__change what, const char *snapshot, struct shore_diag *diag);
void shore__journal_free(struct shore__journal *j);
/* Takes over the volume's address, also on failure; NULL: it could not be allocated. */
int shore__journal_leave(struct shore__journal *j, struct shore__left volume);

/* standing.c. SHORE_EUSAGE: the volumes of a making are not this directory's to remove. */
int shore__making_refuse_copy(const char *run_path, const struct shore__journal *j, struct shore_diag *diag);

/* Reads a JSON file of a directory. SHORE_EMISSING as above. */
int shore__json_read_in(const char *directory, const char *name, json_t **out, struct shore_diag *diag);

#endif
