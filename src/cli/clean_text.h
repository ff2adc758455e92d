/* UTF-8 of what may be none: names of files are any bytes. */
#ifndef SHORE_CLI_CLEAN_TEXT_H
#define SHORE_CLI_CLEAN_TEXT_H

#include <jansson.h>
#include <stddef.h>

/* A JSON string, which holds only UTF-8: all of text, what is none as U+FFFD, as Python does. NULL: out of memory. */
json_t *shore__clean_json(const char *text, size_t bytes);

#endif
