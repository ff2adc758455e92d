#include "run/strings.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int shore__strings_add(struct shore__strings *list, const char *item) {
    char **grown = realloc(list->item, (list->count + 1) * sizeof *grown);
    if (!grown) return -ENOMEM;
    list->item = grown;
    if (!(grown[list->count] = strdup(item))) return -ENOMEM;
    list->count++;
    return 0;
}

void shore__strings_free(struct shore__strings *list) {
    for (size_t i = 0; i < list->count; i++)
        free(list->item[i]);
    free(list->item);
    *list = (struct shore__strings){0};
}

json_t *shore__texts_to_json(const char *const *item, size_t count) {
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        if (json_array_append_new(array, json_string(item[i]))) {
            json_decref(array);
            return NULL;
        }
    return array;
}

int shore__addresses_from_json(const json_t *array, struct shore__addresses *out) {
    const json_t *item = NULL;
    size_t i = 0;
    int rc = json_is_array(array) ? 0 : -EINVAL;
    json_array_foreach((json_t *)(uintptr_t)array, i, item) {
        if (!rc) rc = json_is_string(item) ? shore__addresses_parse(out, json_string_value(item), NULL) : -EINVAL;
    }
    return rc;
}
