/* Reads regular files up to an expected size. */
#ifndef SHORE_FILES_READ_FILE_H
#define SHORE_FILES_READ_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"

/* Opens a regular file of at most limit_bytes for reading. *fd: the caller closes it; -1 on failure. SHORE_EMISSING:
 * there is no such file. */
int shore__regular_open(const char *path, uint64_t limit_bytes, int *fd, uint64_t *bytes, struct shore_diag *diag);
/* Reads a small file into malloc'ed memory, with a terminating 0. */
int shore__file_read(const char *path, size_t limit_bytes, char **out, size_t *bytes, struct shore_diag *diag);

#endif
