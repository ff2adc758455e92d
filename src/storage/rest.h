/* Files of resting blocks (SHORE_GROUP_RESTS): where a file system shares no blocks between files, snapshots keep
 * resting blocks in a file beside them, shared by all snapshots with the same contents. Resting blocks are the same
 * from one snapshot to the next. The file's key follows from their leaves, so that contents that were written anyway
 * are not taken for the old ones.
 *
 * A file has a volume's header and placement, its key as identity, and only these blocks as data, in the room of slot
 * 1; a snapshot's map says that they lie there. It has no record. It is removed once no snapshot in its directory names
 * it. */
#ifndef SHORE_STORAGE_REST_H
#define SHORE_STORAGE_REST_H

#include "storage/volume.h"

/* Whether a volume has resting blocks. False if its layout is unknown. */
bool shore__rest_is_there(const struct shore__volume *v);
/* The key of the resting blocks in a slot whose table is loaded. */
void shore__rest_key(const struct shore__volume *v, unsigned slot, unsigned char key[SHORE__REST_KEY_BYTES]);
/* Whether the file that a new snapshot of this volume needs exists already. */
bool shore__rest_is_made(const struct shore__volume *v, const struct shore__volume *snapshot);
/* Makes a new one, to be filled, and named once it is durable. The user closes *out. */
int shore__rest_create(const struct shore__volume *snapshot, struct shore__volume *out, struct shore_diag *diag);
int shore__rest_name(const struct shore__volume *snapshot, struct shore_diag *diag);
/* Removes a fleet's files in the directory of path that neither an existing nor an unfinished snapshot there names. */
int shore__rest_sweep(const char *path, const uint64_t fleet_id[2], struct shore_diag *diag);

/* rest_file.c. Path beside a snapshot: longshore-FLEET-KEY.rest, each with the first 16 hexadecimal digits. begun:
 * while it is being filled. malloc'ed. */
char *shore__rest_path(const struct shore__volume *snapshot, bool begun);
/* Whether a name is one of these for this fleet; *key: its digits. */
bool shore__rest_is_name(const char *name, const uint64_t fleet_id[2], uint64_t *key);
/* Length of the directory part of a path, with the slash; 0: the current directory. */
size_t shore__rest_directory_bytes(const char *path);
/* Opens the one of a snapshot, beside it; only the snapshot's header was read. */
int shore__rest_open(struct shore__volume *snapshot, enum shore_io io, struct shore_diag *diag);

#endif
