/* A vocabulary: strings with ids, found by either, in one block of bytes and one hash table.
 */
#ifndef SHORE_TEXT_VOCAB_H
#define SHORE_TEXT_VOCAB_H

#include "text/tokenizer.h"

#define SHORE__VOCAB_NONE UINT32_MAX
#define SHORE__VOCAB_ID_LIMIT (4u << 20)

struct shore__vocab {
    struct shore__text bytes; /* a zero behind each */
    struct shore__vocab_entry {
        uint32_t offset, bytes; /* bytes SHORE__VOCAB_NONE: no such id */
    } * entries;
    uint32_t nids, ids_capacity; /* largest id + 1 */
    uint32_t *slots;             /* id + 1, or 0 */
    uint32_t nslots, count;
};

/* 0, -ENOMEM, or SHORE_EINPUT: the id is taken or too large, or the string stands there already. */
int shore__vocab_add(struct shore__vocab *v, const char *text, size_t bytes, uint32_t id);
/* The id, or SHORE__VOCAB_NONE. */
uint32_t shore__vocab_find(const struct shore__vocab *v, const char *text, size_t bytes);
/* NULL if there is no such id. Not terminated. */
const char *shore__vocab_text(const struct shore__vocab *v, uint32_t id, size_t *bytes);
void shore__vocab_fini(struct shore__vocab *v);

#endif
