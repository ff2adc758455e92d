/* Makes valid UTF-8 of text that may be invalid: file names can be any bytes. */
#ifndef SHORE_CLI_CLEAN_TEXT_H
#define SHORE_CLI_CLEAN_TEXT_H

#include <jansson.h>
#include <stddef.h>

/* A JSON string of text, with U+FFFD for invalid bytes, as in Python. NULL: out of memory. */
json_t *shore__clean_json(const char *text, size_t bytes);

#endif
