/* Directories whose entries last: what was made, renamed or removed in one is durable when these return 0. A file
 * system that cannot sync a directory and says so (EINVAL) is taken at its word: there, nothing more can be had.
 * Threading: any. Errors: diag (or NULL) names the directory. */
#ifndef SHORE_BASE_DIRECTORY_H
#define SHORE_BASE_DIRECTORY_H

#include "base/diag.h"

int shore__directory_sync(const char *path, struct shore_diag *diag);
int shore__parent_sync(const char *path, struct shore_diag *diag); /* of the directory that holds path */

#endif
