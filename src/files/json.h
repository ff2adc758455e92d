/* JSON that strangers wrote, as a tree, for small documents; large ones and lines are read as a stream, from which the
 * tree is built. Limits on size and depth; duplicate keys are refused.
 */
#ifndef SHORE_FILES_JSON_H
#define SHORE_FILES_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"

/* Reads a whole file of at most limit_bytes as a JSON object. Errors name the file and the place. */
int shore__json_read(const char *path, size_t limit_bytes, json_t **out, struct shore_diag *diag);
int shore__json_parse(const char *text, size_t bytes, const char *name, json_t **out, struct shore_diag *diag);
/* Writes beside path, syncs, and renames. */
int shore__json_write(const char *path, const json_t *value, size_t indent, struct shore_diag *diag);

/* Whether a JSON string can hold it: it is UTF-8. */
bool shore__json_holds(const char *text);

/* Opens a regular file of at most limit_bytes to be read. *fd: to be closed, -1 where it fails. SHORE_EMISSING: there
 * is none. */
int shore__regular_open(const char *path, uint64_t limit_bytes, int *fd, uint64_t *bytes, struct shore_diag *diag);
/* Whole small file into malloc'ed memory, with a terminating 0. */
int shore__file_read(const char *path, size_t limit_bytes, char **out, size_t *bytes, struct shore_diag *diag);

#endif
