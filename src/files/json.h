/* Small JSON documents from untrusted files, as trees. Large ones, and JSON lines, are read as a stream, which also
 * builds these trees. Size and depth are limited; duplicate keys are refused. */
#ifndef SHORE_FILES_JSON_H
#define SHORE_FILES_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "longshore/error.h"

/* Reads a whole file of at most limit_bytes as a JSON object. Errors name the file and the place. */
int shore__json_read(const char *path, size_t limit_bytes, json_t **out, struct shore_diag *diag);
int shore__json_parse(const char *text, size_t bytes, const char *name, json_t **out, struct shore_diag *diag);
/* Writes beside path, syncs, and renames. */
int shore__json_write(const char *path, const json_t *value, size_t indent, struct shore_diag *diag);
/* The same for a file of a directory. value: taken over, also on failure; NULL: it could not be allocated. */
int shore__json_write_in(const char *directory, const char *name, json_t *value, struct shore_diag *diag);

/* Whether a JSON string can hold the text: it is UTF-8. */
bool shore__json_holds(const char *text);
/* A number that counts something, of an object that may be damaged: 0 unless it is above 0 and can be counted. */
double shore__json_amount(const json_t *object, const char *key);

#endif
