/* Lists of strings: files, drives, volumes. */
#ifndef SHORE_RUN_STRINGS_H
#define SHORE_RUN_STRINGS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct shore__strings {
    char **item;
    size_t count;
};

int shore__strings_add(struct shore__strings *list, const char *item); /* copies; -ENOMEM */
void shore__strings_free(struct shore__strings *list);
bool shore__strings_has(const struct shore__strings *list, const char *item);
/* NULL: out of memory. */
json_t *shore__strings_to_json(const struct shore__strings *list);
/* Adds to the list. -EINVAL, -ENOMEM. */
int shore__strings_from_json(const json_t *array, struct shore__strings *out);

#endif
