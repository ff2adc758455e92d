/* UTF-8 of what may be none: a model's tokens end within characters, and names of files are any bytes. */
#ifndef SHORE_CLI_CLEAN_TEXT_H
#define SHORE_CLI_CLEAN_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Copies whole characters of text to out, what belongs to none as U+FFFD, as Python does. Stops before a character
 * whose rest may still come (unless last), and where out is full. used: bytes of text taken. Returns bytes written. */
size_t shore__clean_text(const char *text, size_t bytes, bool last, char *out, size_t out_bytes, size_t *used);
/* A JSON string, which holds only UTF-8: all of text, cleaned. NULL: out of memory. */
json_t *shore__clean_json(const char *text, size_t bytes);

#endif
