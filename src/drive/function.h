/* Functions of drives: what a drive can do with bytes beside the state, or on their way to it. Each is a row of one
 * table. It goes through one entry (call in drive.h), one wire request, one stub in the server and one count in the
 * ledger, all driven by its row. A new function is therefore a new row, and its code in the drive.
 *
 * UPDATE is not one of them: it belongs to attempts and slots, and has its own lane. */
#ifndef SHORE_DRIVE_FUNCTION_H
#define SHORE_DRIVE_FUNCTION_H

#include <stdatomic.h>

#include "drive/counters.h"
#include "storage/volume.h"

/* The numbers go over the wire. 3 to 7 were functions of caches; do not give them to others. */
enum shore__function_id {
    SHORE__SPILL,       /* keeps gradients of segments for a later update or fetch */
    SHORE__SCRATCH_PUT, /* keeps bytes until the drive is closed */
    SHORE__SCRATCH_GET,
    SHORE__FUNCTIONS
};

/* The range that a function works on. */
enum shore__operand {
    SHORE__OVER_SEGMENTS, /* segments of a block that the drive owns */
    SHORE__OVER_SCRATCH,  /* bytes of the drive's scratch */
};

struct shore__function {
    const char *name;
    enum shore__operand over;
    bool brings;    /* bytes go to the drive; otherwise they come from it */
    bool seals;     /* it answers with a seal: XXH3-128 of the bytes, seeded with their start */
    size_t link;    /* in struct shore_ledger: its bytes over the host link */
    size_t counter; /* in struct shore_ledger: bytes that the drive moved for it */
};

/* A function call. Buffers are borrowed until the completion, and hold whole segments. */
struct shore__call {
    enum shore__function_id function;
    uint32_t block, segment, count; /* over segments */
    uint32_t form;                  /* SPILL: the gradient's */
    uint64_t start, bytes;          /* over scratch */
    const void *in;
    void *out;
    unsigned char *seal; /* 16 bytes, if it seals: the caller keeps those of PUT, and compares those of GET */
};

const struct shore__function *shore__function(enum shore__function_id id);

/* Number of segments or bytes, and the bytes of each; 0: the form has no fixed size. */
uint64_t shore__call_units(const struct shore__call *c);
size_t shore__call_unit_bytes(const struct shore__call *c);
/* Bytes of its buffer, and those of them that cross the link: the padding behind a block does not. */
uint64_t shore__call_bytes(const struct shore__call *c);
uint64_t shore__call_crossing(const struct shore__call *c, const struct shore_layout *layout);
/* -EINVAL: not on this drive. */
int shore__call_check(const struct shore__call *c, const struct shore__volume_desc *desc);
/* The part of `units` units from unit `at` on. */
struct shore__call shore__call_part(const struct shore__call *c, uint64_t at, uint64_t units);
/* moved: bytes, by function. */
void shore__calls_count(const atomic_uint_fast64_t moved[SHORE__FUNCTIONS], struct shore_ledger *add_to);

#endif
