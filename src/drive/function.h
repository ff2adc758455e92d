/* Functions of drives: what a drive can do with bytes beside the state, or on their way to it. Each is a row of one
 * table. It goes through one entry (call in drive.h), one wire request, one stub in the server and one count in the
 * ledger, all driven by its row. A new function is one file, with its row and its code, and one line of the table.
 *
 * UPDATE is not one of them: it belongs to attempts and slots, and has its own lane. */
#ifndef SHORE_DRIVE_FUNCTION_H
#define SHORE_DRIVE_FUNCTION_H

#include "drive/counters.h"
#include "storage/volume.h"

struct shore__reach;

/* The numbers go over the wire. 3 to 7 were functions of caches; do not give them to others. */
enum shore__function_id {
    SHORE__SPILL,       /* keeps gradients of segments for a later update or fetch */
    SHORE__SCRATCH_PUT, /* keeps bytes until the drive is closed */
    SHORE__SCRATCH_GET,
    SHORE__GATHER = 8, /* rows of a table: see row_functions.h */
    SHORE__GATHER_SCRATCH,
    SHORE__SCATTER,
    SHORE__SCATTER_ADD,
    SHORE__FUNCTIONS,
    SHORE__FUNCTIONS_ADDED = 64 /* and above: of a program; see shore__function_add() */
};

#define SHORE__ARGUMENT_BYTES 4096u /* most of a call */

/* The range that a function works on. */
enum shore__operand {
    SHORE__OVER_SEGMENTS, /* segments of a block that the drive owns */
    SHORE__OVER_SCRATCH,  /* bytes of the drive's scratch */
    SHORE__OVER_NOTHING,  /* what its argument says */
};

struct shore__call;

struct shore__function {
    const char *name;
    enum shore__operand over;
    bool seals;           /* it answers with a seal: XXH3-128 of the bytes, seeded with their start */
    bool cuttable;        /* a request may be cut: what its parts take and give, in a row, is what the whole does */
    bool of_step;         /* its calls name a step, which the drive must hold: committed, or being written */
    bool of_attempt;      /* and the attempt, which must be the current one */
    bool repeats;         /* a call may be made again, as after a lost link: the second one changes nothing. A function
                           * without this is of_attempt: its call is refused once the attempt was given up */
    size_t link_in;       /* in struct shore_ledger: its bytes over the host link to the drive; 0: control */
    size_t link_out;      /* and from it */
    size_t reads, writes; /* in struct shore_ledger: bytes that the drive read and wrote for it */
    /* What a call asks for beyond its range: whether it can be done, and says why not. Checks every byte of the
     * argument, which may come from anywhere, and that in_bytes and out_bytes fit it. Threading: any. */
    int (*check)(const struct shore__call *call, const struct shore__volume_desc *desc, struct shore_diag *diag);
    /* Does it, on a thread of the drive: see reach.h. NULL: the function moves bytes between its buffer and its range,
     * which each kind of drive does by itself. */
    int (*run)(struct shore__reach *reach, const struct shore__call *call, struct shore_diag *diag);
};

/* A function call. Buffers are borrowed until the completion. Those of functions that only move bytes hold whole
 * segments, and have in_bytes and out_bytes of 0: the range says how much it is. */
struct shore__call {
    unsigned function;              /* enum shore__function_id */
    uint32_t block, segment, count; /* over segments */
    uint32_t form;                  /* SPILL: the gradient's */
    uint64_t start, bytes;          /* over scratch */
    uint64_t step, attempt;         /* as the row says */
    const void *argument;
    uint32_t argument_bytes;
    const void *in;
    uint64_t in_bytes;
    void *out;
    uint64_t out_bytes;
    unsigned char *seal; /* 16 bytes, if it seals: the caller keeps those of PUT, and compares those of GET */
};

/* NULL: there is none of this number. */
const struct shore__function *shore__function(unsigned id);
/* Adds a function of the program, which outlives all drives. Call before any drive is open; a server needs it too.
 * Returns its number. */
unsigned shore__function_add(const struct shore__function *function);

/* Number of segments or bytes (over nothing: 1), and, for functions that only move bytes, the bytes of each; 0: the
 * form has no fixed size. */
uint64_t shore__call_units(const struct shore__call *c);
size_t shore__call_unit_bytes(const struct shore__call *c);
/* Bytes of its buffers, and those of them that cross the link: the padding behind a block does not. */
uint64_t shore__call_in_bytes(const struct shore__call *c);
uint64_t shore__call_out_bytes(const struct shore__call *c);
uint64_t shore__call_crossing(const struct shore__call *c, const struct shore_layout *layout, uint64_t bytes);
/* Whether this drive can do it. -EINVAL: not on this drive, or as the row's check() says. Needs no buffer. */
int shore__call_check(const struct shore__call *c, const struct shore__volume_desc *desc, struct shore_diag *diag);
/* Refuses it through its completion, which can carry the sentence. Returns 0. */
int shore__call_refuse(struct shore_completion done, int rc, const char *path, const struct shore_diag *why);
/* The part of `units` units from unit `at` on. */
struct shore__call shore__call_part(const struct shore__call *c, uint64_t at, uint64_t units);

#endif
