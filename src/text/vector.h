/* Growing vectors of ids and of bytes. */
#ifndef SHORE_TEXT_VECTOR_H
#define SHORE_TEXT_VECTOR_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer.h"

/* Reserves room for count more ids. */
static inline int shore__ids_reserve(struct shore__ids *v, size_t count) {
    if (count <= v->capacity - v->count) return 0;
    size_t capacity = v->capacity ? v->capacity * 2 : 256;
    while (capacity - v->count < count)
        capacity *= 2;
    uint32_t *ids = realloc(v->ids, capacity * sizeof *ids);
    if (!ids) return -ENOMEM;
    v->ids = ids;
    v->capacity = capacity;
    return 0;
}

static inline int shore__ids_push(struct shore__ids *v, uint32_t id) {
    if (v->count == v->capacity && shore__ids_reserve(v, 1)) return -ENOMEM;
    v->ids[v->count++] = id;
    return 0;
}

static inline int shore__ids_append(struct shore__ids *v, const uint32_t *ids, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (shore__ids_push(v, ids[i])) return -ENOMEM;
    return 0;
}

static inline int shore__text_append(struct shore__text *v, const char *bytes, size_t count) {
    if (count > v->capacity - v->count) {
        size_t capacity = v->capacity ? v->capacity * 2 : 256;
        while (capacity - v->count < count)
            capacity *= 2;
        char *grown = realloc(v->bytes, capacity);
        if (!grown) return -ENOMEM;
        v->bytes = grown;
        v->capacity = capacity;
    }
    if (count) memcpy(v->bytes + v->count, bytes, count);
    v->count += count;
    return 0;
}

/* Removes count bytes from the front. */
static inline void shore__text_drop(struct shore__text *v, size_t count) {
    memmove(v->bytes, v->bytes + count, v->count - count);
    v->count -= count;
}

#endif
