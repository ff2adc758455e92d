/* What the volumes of a run are called, where they are, and whose. */
#ifndef SHORE_RUN_LIFECYCLE_VOLUMES_H
#define SHORE_RUN_LIFECYCLE_VOLUMES_H

#include "run/run.h"

/* What the volume of a run that is made at `home` is called in a directory, so that no other run's stands there.
 * malloc'ed; NULL: no memory. */
char *shore__volume_own_name(const char *home, const uint64_t fleet_id[2]);
/* The drive that a recorded path is on, as people name it: the directory, or the file without the ".gN" that a volume
 * of this generation was given. malloc'ed. */
char *shore__drive_name(const char *recorded, uint64_t generation);
/* Whether a recorded drive is what a user means by this name. */
bool shore__drive_is_named(const char *recorded, uint64_t generation, const char *name);
/* Index in the list, of a whole path before all others; its count if there is none. */
size_t shore__drive_find(const struct shore__addresses *drives, uint64_t generation, const char *name);
/* OLD=NEW. Paths may hold '=' themselves: the one counts before which a drive's name ends. */
struct shore__move {
    size_t drive;   /* of the run; their count: it has no such drive */
    const char *to; /* the end of the word; NULL: there is no '=' */
};
struct shore__move shore__move_split(const struct shore__run *run, const char *word);
/* The volume that a drive's path stands for: here, or on the host that it names, which is asked. */
struct shore__spot {
    struct shore__address *volume;
    bool exists, is_device;
};
int shore__spot_of(const struct shore__address *drive, struct shore__spot *out, struct shore_diag *diag);
/* A drive that lies elsewhere now, or is reached in another way, holds its part of a snapshot beside its volume. This
 * is the part's address there. malloc'ed. */
struct shore__address *shore__part_beside(const struct shore__address *volume, const struct shore__address *part);
/* A name for a new volume of this generation beside the one of the generation before: malloc'ed. */
struct shore__address *shore__volume_next(const struct shore__address *volume, uint64_t generation);
/* Whether a volume of this fleet and placement, or a snapshot of one, is there; drive (or NULL): the one it is of. */
bool shore__volume_is_placed(const struct shore__address *at, const uint64_t fleet_id[2], uint64_t generation,
                             uint32_t *drive);
/* Where a recorded drive is now that the user names a place: a directory holds the file of the same name, and a file's
 * name may miss what this program has added to it. malloc'ed. */
struct shore__address *shore__drive_moved(const struct shore__run *run, const char *recorded,
                                          const struct shore__address *place);

/* SHORE__BEGUN: nothing was written yet, or not whole. */
enum shore__owner { SHORE__BEGUN, SHORE__OURS, SHORE__ANOTHERS };
/* The volume of a drive (volume: may be NULL) and whose it is: here, or on another host, where it is known by the
 * drive's name. to_make: fails where it would be over there, and none may be made. */
int shore__volume_owner(const struct shore__address *drive, bool to_make, const uint64_t fleet_id[2],
                        struct shore__address **volume, bool *exists, enum shore__owner *owner,
                        struct shore_diag *diag);
bool shore__volume_is(const struct shore__address *drive, const uint64_t fleet_id[2], enum shore__owner owner);
/* Reads only the header. begun: a file without one counts too. diag says why not. */
bool shore__volume_is_of(const char *volume, const uint64_t fleet_id[2], bool begun, struct shore_diag *diag);

#endif
