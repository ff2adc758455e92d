/* Files that are either complete or absent: written beside their path, synced, and renamed. */
#ifndef SHORE_FILES_ATOMIC_H
#define SHORE_FILES_ATOMIC_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"

struct shore__atomic {
    int fd; /* write here; seek freely */
    char *path, *temporary;
};

/* The temporary's name follows from the path, so the next try overwrites what a killed process left. After a failure
 * there is nothing to abort. */
int shore__atomic_open(const char *path, struct shore__atomic *file, struct shore_diag *diag);
/* Takes the room of so many bytes, which the file then has. -ENOSPC says what is missing. */
int shore__atomic_reserve(const struct shore__atomic *file, uint64_t bytes, struct shore_diag *diag);
/* Opens a nameless file in the directory. It disappears when it is closed or the process ends. */
int shore__atomic_unnamed(const char *directory, struct shore__atomic *file, struct shore_diag *diag);
/* Syncs, renames, and syncs the directory. Always closes. A nameless file keeps no name. Durable: on return. */
int shore__atomic_commit(struct shore__atomic *file, struct shore_diag *diag);
/* Closes, and removes what was written. Harmless after a commit and on a zeroed structure. */
void shore__atomic_abort(struct shore__atomic *file);
/* Copies a regular file block by block, because it may be larger than the rest of a budget. Shares its data where the
 * file system can. Durable: on return. */
int shore__file_copy(const char *from, const char *to, struct shore_diag *diag);
/* Removes a file, and the temporary that a killed process left beside it. -1 with errno: the file stays. */
int shore__atomic_remove(const char *path);

/* Whether a result may take this name: nothing has it, or an empty file, or a file of the same kind. Links, devices and
 * directories stay. kind: for the message. */
int shore__check_replaced(const char *path, bool (*is_kind)(const char *path), const char *kind,
                          struct shore_diag *diag);
bool shore__file_begins(const char *path, const char *text);

/* Writes all of data at offset. name: for messages. */
int shore__write_at(int fd, const void *data, size_t bytes, uint64_t offset, const char *name, struct shore_diag *diag);
/* Reads exactly so many bytes from offset; a shorter file is an error. */
int shore__read_at(int fd, void *data, size_t bytes, uint64_t offset, const char *name, struct shore_diag *diag);
/* malloc'ed "directory/name"; NULL: out of memory. */
char *shore__path_join(const char *directory, const char *name);
/* The same as a value: shore__path_in(directory, name).text lives as long as the statement. One that is too long for
 * system calls is cut to a length that they refuse (ENAMETOOLONG). */
struct shore__path {
    char text[PATH_MAX + 1];
};
struct shore__path shore__path_in(const char *directory, const char *name);
/* Whether something has this name there, also a link to nothing. */
bool shore__path_exists(const char *directory, const char *name);

#endif
