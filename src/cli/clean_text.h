/* UTF-8 that a model wrote: tokens may end within a character, and may hold bytes that are none. */
#ifndef SHORE_CLI_CLEAN_TEXT_H
#define SHORE_CLI_CLEAN_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Copies whole characters of text to out, what belongs to none as U+FFFD, as Python does. Stops before a character
 * whose rest may still come (unless last), and where out is full. used: bytes of text taken. Returns bytes written. */
size_t shore__clean_text(const char *text, size_t bytes, bool last, char *out, size_t out_bytes, size_t *used);

#endif
