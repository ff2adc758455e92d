/* Files that are whole or not there: written beside their path, synced, renamed.
 */
#ifndef SHORE_FILES_ATOMIC_H
#define SHORE_FILES_ATOMIC_H

#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"

struct shore__atomic {
    int fd; /* write here; seek freely */
    char *path, *temporary;
};

/* The temporary's name follows from the path, so that what a killed process left is overwritten by the next try.
 * After a failure there is nothing to abort. */
int shore__atomic_open(const char *path, struct shore__atomic *file, struct shore_diag *diag);
/* One in the directory that nobody else sees, and that goes when it is closed, whatever ends this process. */
int shore__atomic_unnamed(const char *directory, struct shore__atomic *file, struct shore_diag *diag);
/* Syncs, renames, syncs the directory. Also closes, whatever the outcome. Durable: on return. One without a
 * name stays as it is. */
int shore__atomic_commit(struct shore__atomic *file, struct shore_diag *diag);
/* Closes and removes what was written. Harmless after commit and on a zeroed structure. */
void shore__atomic_abort(struct shore__atomic *file);
/* A file's bytes, wherever it is read, by blocks: it may be larger than what a budget has left. Shared with it where
 * the file system can. name: of the file, for messages. Durable: on return. */
int shore__atomic_copy(int from, const char *name, const char *to, struct shore_diag *diag);
/* Removes the file, and what a killed process left of one that was to take its place. -1 with errno: the file stays. */
int shore__atomic_remove(const char *path);

/* The whole of data at offset; name only for the message. */
int shore__write_at(int fd, const void *data, size_t bytes, uint64_t offset, const char *name, struct shore_diag *diag);
/* Exactly bytes from offset: a file that ends before is an error. */
int shore__read_at(int fd, void *data, size_t bytes, uint64_t offset, const char *name, struct shore_diag *diag);
/* malloc'ed "directory/name"; NULL when memory is short. */
char *shore__path_join(const char *directory, const char *name);

#endif
