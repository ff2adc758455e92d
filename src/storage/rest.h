/* The blocks of snapshots that rest (SHORE_GROUP_RESTS), where the file system shares no blocks between files: in a
 * file of their own beside them, which all snapshots name that have the same. What rests is the same in one snapshot as
 * in the next; the key of it follows from its leaves, so that what was written all the same is not taken for what it
 * was.
 *
 * A file has a volume's header and placement, its key as identity, and of all data only these blocks, in the room of
 * slot 1; a snapshot's map says that it has them there. It holds no record. It goes once no snapshot in its directory
 * names it.
 */
#ifndef SHORE_STORAGE_REST_H
#define SHORE_STORAGE_REST_H

#include "storage/volume.h"

/* Whether a volume has blocks that rest. Not of one whose layout is not known. */
bool shore__rest_is_there(const struct shore__volume *v);
/* Of what rests in a slot whose table is loaded. */
void shore__rest_key(const struct shore__volume *v, unsigned slot, unsigned char key[SHORE__REST_KEY_BYTES]);
/* Whether the file that a snapshot of this volume names, which is to be made, is there already. */
bool shore__rest_is_made(const struct shore__volume *v, const struct shore__volume *snapshot);
/* A new one, to be filled and then named, once it is durable. *out: closed by its user. */
int shore__rest_create(const struct shore__volume *snapshot, struct shore__volume *out, struct shore_diag *diag);
int shore__rest_name(const struct shore__volume *snapshot, struct shore_diag *diag);
/* Removes those files of a fleet in the directory of path that no snapshot there names, nor one that is being made. */
int shore__rest_sweep(const char *path, const uint64_t fleet_id[2], struct shore_diag *diag);

/* rest_file.c. Beside a snapshot: longshore-FLEET-KEY.rest, both the first 16 hexadecimal digits; begun: while it is
 * filled. malloc'ed. */
char *shore__rest_path(const struct shore__volume *snapshot, bool begun);
/* Whether a name is one of those for this fleet; *key: the digits in it. */
bool shore__rest_is_name(const char *name, const uint64_t fleet_id[2], uint64_t *key);
/* Of the directory in a path, with the slash; 0: here. */
size_t shore__rest_directory_bytes(const char *path);
/* Opens it beside its snapshot, of which only the header was read. */
int shore__rest_open(struct shore__volume *snapshot, enum shore_io io, struct shore_diag *diag);

#endif
