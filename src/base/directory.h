/* Syncs directories: entries made, renamed or removed are durable when these return 0. A file system that says it
 * cannot sync a directory (EINVAL) counts as success, because nothing more can be done there. Threading: any. Errors:
 * diag (or NULL) names the directory. */
#ifndef SHORE_BASE_DIRECTORY_H
#define SHORE_BASE_DIRECTORY_H

#include "base/diag.h"

int shore__directory_sync(const char *path, struct shore_diag *diag);
int shore__parent_sync(const char *path, struct shore_diag *diag); /* the directory that holds path */

#endif
