/* Fields of a message or of a page on a drive, as a table: a row for each, in the order of the bytes, without gaps. All
 * numbers are little-endian, as in the structs of the machines that this is built for. No I/O, no memory. */
#ifndef SHORE_BASE_FIELDS_H
#define SHORE_BASE_FIELDS_H

#include <stddef.h>
#include <stdint.h>

struct shore__field {
    uint32_t at;    /* in the struct; of a fixed number: the number */
    uint8_t member; /* bytes of an element there; 0: it has no member */
    uint8_t bytes;  /* of an element in the message; 0: ends the table */
    uint16_t count; /* elements */
};

#define SHORE__MEMBER(type, member) (((type *)0)->member)
/* A number of so many bytes. A member of one byte is a flag, and becomes 1 if it is not 0. */
#define SHORE__FIELD(type, name, bytes) \
    { offsetof(type, name), sizeof SHORE__MEMBER(type, name), bytes, 1 }
/* An array of bytes or numbers, each with its own size. */
#define SHORE__FIELD_ARRAY(type, name)                                                              \
    {                                                                                               \
        offsetof(type, name), sizeof *SHORE__MEMBER(type, name), sizeof *SHORE__MEMBER(type, name), \
            sizeof SHORE__MEMBER(type, name) / sizeof *SHORE__MEMBER(type, name)                    \
    }
#define SHORE__FIELD_FIXED(number, bytes) \
    { number, 0, bytes, 1 } /* at least 2 bytes; any other number is refused */
#define SHORE__FIELD_SPARE(bytes) \
    { 0, 0, 1, bytes } /* zeros; whatever is read there is ignored */
#define SHORE__FIELDS_END \
    { 0, 0, 0, 0 }

/* Both return where the fields end. get: NULL if they are cut off, or a fixed number is another one; `to` is then half
 * filled. at: may be NULL, and is then returned. */
unsigned char *shore__fields_put(unsigned char *at, const struct shore__field *table, const void *from);
const unsigned char *shore__fields_get(const unsigned char *at, const unsigned char *end,
                                       const struct shore__field *table, void *to);

#endif
