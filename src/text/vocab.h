/* A vocabulary: strings and ids, each found by the other, in one block of bytes and one hash table. */
#ifndef SHORE_TEXT_VOCAB_H
#define SHORE_TEXT_VOCAB_H

#include "text/tokenizer.h"

#define SHORE__VOCAB_NONE UINT32_MAX
#define SHORE__VOCAB_ID_LIMIT (4u << 20)

struct shore__vocab {
    struct shore__text bytes; /* zero-terminated strings */
    struct shore__vocab_entry {
        uint32_t offset, bytes; /* bytes SHORE__VOCAB_NONE: the id does not exist */
    } * entries;
    uint32_t nids, ids_capacity; /* largest id + 1 */
    uint32_t *slots;             /* id + 1, or 0 */
    uint32_t nslots, count;
};

/* Returns 0, -ENOMEM, or SHORE_EINPUT: the id is taken or too large, or the string is already there. */
int shore__vocab_add(struct shore__vocab *v, const char *text, size_t bytes, uint32_t id);
/* The id, or SHORE__VOCAB_NONE. */
uint32_t shore__vocab_find(const struct shore__vocab *v, const char *text, size_t bytes);
/* Not zero-terminated; NULL: the id does not exist. */
const char *shore__vocab_text(const struct shore__vocab *v, uint32_t id, size_t *bytes);
void shore__vocab_fini(struct shore__vocab *v);

#endif
