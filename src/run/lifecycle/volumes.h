/* Volumes of a run: their names, their places, and their owners. */
#ifndef SHORE_RUN_LIFECYCLE_VOLUMES_H
#define SHORE_RUN_LIFECYCLE_VOLUMES_H

#include "run/run.h"

/* Name of the volume of a run made at `home`, in a directory, so that no two runs collide. number: of those that the
 * run has there already. malloc'ed; NULL: out of memory. */
char *shore__volume_own_name(const char *home, const uint64_t fleet_id[2], size_t number);
/* The drive of a recorded path, as people name it: the directory, or the file without the ".gN" of this generation.
 * malloc'ed. */
char *shore__drive_name(const char *recorded, uint64_t generation);
/* Whether a user's name means a recorded drive: also the name of its directory, which means all drives there. */
bool shore__drive_is_named(const char *recorded, uint64_t generation, const char *name);
/* The first index in the list from `from` on; the list's count if it is not there. A whole path has priority, and names
 * one drive. A directory names all volumes that the run has in it. */
size_t shore__drive_find(const struct shore__addresses *drives, uint64_t generation, const char *name, size_t from);
/* OLD=NEW. Paths may contain '='; the one that ends a drive's name counts. */
struct shore__move {
    size_t drive;   /* of the run, from `from` on; their count: no such drive */
    const char *to; /* the end of the word; NULL: there is no '=' */
};
struct shore__move shore__move_split(const struct shore__run *run, const char *word, size_t from);
/* The volume that a drive's path means: here, or on the host that it names, which is asked. */
struct shore__spot {
    struct shore__address *volume;
    bool exists, is_device;
};
int shore__spot_of(const struct shore__address *drive, struct shore__spot *out, struct shore_diag *diag);
/* Address of the part of a snapshot on a drive that has moved, or is reached in another way. The part lies beside the
 * drive's volume. malloc'ed. */
struct shore__address *shore__part_beside(const struct shore__address *volume, const struct shore__address *part);
/* A name for a new volume of this generation, beside the previous generation's. malloc'ed. */
struct shore__address *shore__volume_next(const struct shore__address *volume, uint64_t generation);
/* Whether a volume of this fleet and placement, or a snapshot of one, is there. *drive: its drive; drive may be
 * NULL. */
bool shore__volume_is_placed(const struct shore__address *at, const uint64_t fleet_id[2], uint64_t generation,
                             uint32_t *drive);
/* Where a recorded drive is, if a user names a place: a directory contains the file of the same name; a file's name may
 * lack what this program added. malloc'ed. */
struct shore__address *shore__drive_moved(const struct shore__run *run, const char *recorded,
                                          const struct shore__address *place);

/* SHORE__BEGUN: nothing was written yet, or not completely. */
enum shore__owner { SHORE__BEGUN, SHORE__OURS, SHORE__ANOTHERS };
/* Finds the volume of a drive (volume: may be NULL) and its owner, here or on another host, where the drive's name
 * identifies it. to_make: fails if it would be there, and none may be made. */
int shore__volume_owner(const struct shore__address *drive, bool to_make, const uint64_t fleet_id[2],
                        struct shore__address **volume, bool *exists, enum shore__owner *owner,
                        struct shore_diag *diag);
bool shore__volume_is(const struct shore__address *drive, const uint64_t fleet_id[2], enum shore__owner owner);
/* Reads only the header. begun: accepts a file without one. diag says why not. */
bool shore__volume_is_of(const char *volume, const uint64_t fleet_id[2], bool begun, struct shore_diag *diag);

#endif
