#include "base/fields.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "members are copied as they are");

unsigned char *shore__fields_put(unsigned char *at, const struct shore__field *table, const void *from) {
    for (const struct shore__field *f = table; f->bytes; f++)
        for (unsigned i = 0; i < f->count; i++, at += f->bytes) {
            uint64_t value = f->member ? 0 : f->at;
            if (f->member) memcpy(&value, (const unsigned char *)from + f->at + (size_t)i * f->member, f->member);
            memcpy(at, &value, f->bytes);
        }
    return at;
}

const unsigned char *shore__fields_get(const unsigned char *at, const unsigned char *end,
                                       const struct shore__field *table, void *to) {
    for (const struct shore__field *f = table; at && f->bytes; f++) {
        if ((size_t)(end - at) < (size_t)f->bytes * f->count) return NULL;
        for (unsigned i = 0; i < f->count; i++, at += f->bytes) {
            uint64_t value = 0;
            memcpy(&value, at, f->bytes);
            if (!f->member && f->bytes > 1 && value != f->at) return NULL;
            if (f->member < f->bytes) value = value != 0;
            if (f->member) memcpy((unsigned char *)to + f->at + (size_t)i * f->member, &value, f->member);
        }
    }
    return at;
}
