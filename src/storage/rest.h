/* The blocks of a snapshot that rest (SHORE_GROUP_RESTS), where the file system shares no blocks between files: in a
 * file of their own, NAME.rest beside the snapshot's NAME. What rests is the same in one snapshot as in the next, so
 * these are names of one file: a hard link each, and the file goes with the last. Which bytes it holds is told by the
 * leaves of what rests, so that what was written all the same is not taken for what it was.
 *
 * A file has a volume's header and placement, the hash of those leaves as its identity, and of all data only these, in
 * the room of slot 1; the snapshot's map says that it has them there. It holds no record.
 */
#ifndef SHORE_STORAGE_REST_H
#define SHORE_STORAGE_REST_H

#include "storage/volume.h"

/* Whether a volume has blocks that rest. Not of one whose layout is not known. */
bool shore__rest_is_there(const struct shore__volume *v);
/* Of what rests in a slot whose table is loaded. */
void shore__rest_key(const struct shore__volume *v, unsigned slot, unsigned char key[16]);
/* Gives a snapshot that is to be made at path the rest of another snapshot of the same state beside it. 1: there is
 * none, or the file system has no hard links. */
int shore__rest_link(const struct shore__volume *v, const unsigned char key[16], const char *path,
                     struct shore_diag *diag);
/* A new one, to be filled and then named. *out: closed by its user. */
int shore__rest_create(const struct shore__volume *v, const unsigned char key[16], const char *path,
                       struct shore__volume *out, struct shore_diag *diag);
/* Once it is durable. */
int shore__rest_name(const char *path, struct shore_diag *diag);
/* Opens it beside its snapshot, of which only the header was read. */
int shore__rest_open(struct shore__volume *snapshot, enum shore_io io, struct shore_diag *diag);
/* Removes what a snapshot at this path has of it, or was to have. What is not of the fleet stays. */
int shore__rest_remove(const char *snapshot, const uint64_t fleet_id[2], struct shore_diag *diag);

#endif
