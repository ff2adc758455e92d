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

#endif
