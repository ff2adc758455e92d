/* Lists of strings, such as files and words; and lists as JSON. */
#ifndef SHORE_RUN_STRINGS_H
#define SHORE_RUN_STRINGS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "drive/address.h"

struct shore__strings {
    char **item;
    size_t count;
};

int shore__strings_add(struct shore__strings *list, const char *item); /* copies; -ENOMEM */
void shore__strings_free(struct shore__strings *list);
/* NULL: out of memory. */
json_t *shore__texts_to_json(const char *const *item, size_t count);
/* Adds to the list. SHORE_EUSAGE, -EINVAL, -ENOMEM. */
int shore__addresses_from_json(const json_t *array, struct shore__addresses *out);

#endif
