/* Functions of drives: what a drive does with bytes that it has beside the state, or on its way to it. Each is a row of
 * one table, and goes through one entry (call in drive.h), one request of the wire, one stub in the server and one
 * count in the ledger, all of which ask its row: a new function is a new row, and what a drive does for it.
 *
 * UPDATE is none of them: it belongs to attempts and slots, and has a lane of its own.
 */
#ifndef SHORE_DRIVE_FUNCTION_H
#define SHORE_DRIVE_FUNCTION_H

#include <stdatomic.h>

#include "drive/link.h"
#include "storage/volume.h"

/* The numbers go over the wire. */
enum shore__function_id {
    SHORE__SPILL,       /* keeps gradients of segments, which an update or a fetch takes later */
    SHORE__SCRATCH_PUT, /* keeps bytes until the drive is closed */
    SHORE__SCRATCH_GET,
    SHORE__CACHE_OPEN, /* makes the drive's cache: `bytes` of it in pages of `start` bytes */
    SHORE__CACHE_PUT,  /* keeps pages of a key's bytes, until they are freed or the cache is closed */
    SHORE__CACHE_GET,
    SHORE__CACHE_FREE, /* what a key has, or all keys do that fit it */
    SHORE__CACHE_CLOSE,
    SHORE__FUNCTIONS
};

/* What a function is about. */
enum shore__operand {
    SHORE__OVER_SEGMENTS, /* of a block, which the drive owns */
    SHORE__OVER_SCRATCH,  /* bytes of the drive's scratch */
    SHORE__OVER_KEY,      /* bytes that a key has in the drive's cache */
    SHORE__OVER_CACHE,    /* the cache: no bytes are moved */
};

struct shore__function {
    const char *name;
    enum shore__operand over;
    bool brings; /* bytes go to the drive; else they come from it */
    bool seals;  /* it answers with a seal: XXH3-128 of the bytes, seeded with their start */
    enum shore__link_class link;
    size_t counter; /* of struct shore_ledger: bytes that the drive moved for it; 0: it moves none that count */
};

/* Whose bytes they are in a cache. All that has one key lies on one drive, so that what computes beside the drive finds
 * it together. In FREE, SHORE__CACHE_ANY as layer and head stands for all of the sequence. */
struct shore__cache_key {
    uint64_t sequence;
    uint32_t layer, head;
};
#define SHORE__CACHE_ANY UINT32_MAX
#define SHORE__CACHE_PAGE_LEAST 4096u /* a page has a power of two of bytes */
#define SHORE__CACHE_PAGE_MOST (1u << 20)

uint64_t shore__cache_key_hash(const struct shore__cache_key *key);
/* Whether a key is the one that is asked for, or one of those. */
bool shore__cache_key_fits(const struct shore__cache_key *asked, const struct shore__cache_key *key);

/* What is asked of a drive. Buffers are borrowed until the completion; they hold whole segments. */
struct shore__call {
    enum shore__function_id function;
    uint32_t block, segment, count; /* over segments */
    uint32_t form;                  /* SPILL: of the gradient */
    uint64_t start, bytes;          /* over scratch or a key: which of these; CACHE_OPEN */
    struct shore__cache_key key;    /* over a key; CACHE_FREE */
    const void *in;
    void *out;
    unsigned char *seal; /* 16 bytes, if it seals: the caller keeps those of PUT, and compares those of GET */
};

const struct shore__function *shore__function(enum shore__function_id id);

/* Whether it is one of a cache: see local/cache.h. */
bool shore__call_is_of_cache(const struct shore__call *c);
/* Segments or bytes, and the bytes of each; 0: the form has no fixed size. */
uint64_t shore__call_units(const struct shore__call *c);
size_t shore__call_unit_bytes(const struct shore__call *c);
/* Bytes of its buffer; and of these, what crosses the link: the padding behind a block stays where it is. */
uint64_t shore__call_bytes(const struct shore__call *c);
uint64_t shore__call_crossing(const struct shore__call *c, const struct shore_layout *layout);
/* -EINVAL for what is not of this drive. */
int shore__call_check(const struct shore__call *c, const struct shore__volume_desc *desc);
/* `units` of it from unit `at` on. */
struct shore__call shore__call_part(const struct shore__call *c, uint64_t at, uint64_t units);
/* moved: bytes, by function. */
void shore__calls_count(const atomic_uint_fast64_t moved[SHORE__FUNCTIONS], struct shore_ledger *add_to);

#endif
