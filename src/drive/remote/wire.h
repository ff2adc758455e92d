/* The wire protocol of remote drives: frames and their contents. It encodes and decodes without I/O, so that tests can
 * feed any bytes to both sides' decoders. docs/wire-protocol.md describes every byte.
 *
 * A frame has a header of 40 bytes, a body (fields), and bulk: bytes that are read directly to where they are used. All
 * numbers are little-endian. Every request except OPEN has the same fixed fields, of which it uses some, and a tail. */
#ifndef SHORE_DRIVE_REMOTE_WIRE_H
#define SHORE_DRIVE_REMOTE_WIRE_H

#include "drive/drive.h"
#include "drive/function.h"

#define SHORE__WIRE_VERSION 6u
#define SHORE__WIRE_OLDEST 6u /* that this build still speaks */

/* The first bytes of a server. */
#define SHORE__WIRE_MAGIC "\x89LongshoreDrive\n"
#define SHORE__WIRE_MAGIC_BYTES 16u
#define SHORE__WIRE_GREETING_BYTES 24u
#define SHORE__WIRE_SCAN_BYTES 65536u /* of what login scripts print before it */

#define SHORE__WIRE_HEADER_BYTES 40u
#define SHORE__WIRE_FIELDS_BYTES 80u
#define SHORE__WIRE_BODY_BYTES (64u * 1024u)          /* most, of every other body */
#define SHORE__WIRE_COMMIT_BYTES (128u * 1024u)       /* most, of COMMIT's: it brings a blob */
#define SHORE__WIRE_OPEN_BYTES (8u * 1024u * 1024u)   /* most, of OPEN's */
#define SHORE__WIRE_BULK_BYTES (256u * 1024u * 1024u) /* most that any peer may announce */
#define SHORE__WIRE_GROUPS_MOST 1024u
#define SHORE__WIRE_SLOTS_MOST 1024u

enum shore__wire_type {
    /* requests, client to server */
    SHORE__WIRE_OPEN = 1,
    SHORE__WIRE_PROBE = 2,
    SHORE__WIRE_REMOVE = 3,
    SHORE__WIRE_ATTACH = 4,
    SHORE__WIRE_CLOSE = 5,
    SHORE__WIRE_RECOVERY = 6,
    SHORE__WIRE_LOAD = 7,
    SHORE__WIRE_BEGIN = 8,
    SHORE__WIRE_DISCARD = 9,
    SHORE__WIRE_COMMIT = 10,
    SHORE__WIRE_LEAF_SUM = 11,
    SHORE__WIRE_SNAPSHOT = 12,
    SHORE__WIRE_LEDGER = 13,
    SHORE__WIRE_MEASURE = 14,
    SHORE__WIRE_CARRY = 15,
    SHORE__WIRE_BLOB = 16,
    /* requests that take a slot of the server */
    SHORE__WIRE_INIT = 32,
    SHORE__WIRE_FETCH = 33,
    SHORE__WIRE_UPDATE = 34,
    SHORE__WIRE_CALL = 35, /* any function of function.h */
    SHORE__WIRE_STORE = 36,
    /* server to client */
    SHORE__WIRE_DONE = 64,
    SHORE__WIRE_NOTE = 65,
    /* both ways: a sign of life; a server's has a number that grows while its drive makes progress */
    SHORE__WIRE_ALIVE = 96,
};

static inline bool shore__wire_takes_slot(unsigned type) {
    return type >= SHORE__WIRE_INIT && type <= SHORE__WIRE_STORE;
}

/* ---- greeting ---------------------------------------------------------------------------------------------------- */

void shore__wire_greeting_put(unsigned char out[SHORE__WIRE_GREETING_BYTES]);
/* After the magic: the versions that the server speaks. Picks the newest version that both sides speak. SHORE_EFORMAT
 * says which side is older. */
int shore__wire_greeting_get(const unsigned char in[SHORE__WIRE_GREETING_BYTES], uint32_t *version,
                             struct shore_diag *diag);

/* ---- headers ----------------------------------------------------------------------------------------------------- */

struct shore__wire_header {
    uint16_t type;
    uint32_t sequence; /* number of the frame on this connection in this direction, from 0 */
    uint32_t body_bytes;
    uint64_t id;         /* of the request, chosen by the client */
    uint64_t bulk_bytes; /* after the body */
};

/* body: the one that will follow; its checksum is part of the header. */
void shore__wire_header_put(unsigned char out[SHORE__WIRE_HEADER_BYTES], const struct shore__wire_header *h,
                            const void *body);
/* to_server: decides which types and sizes are valid. sequence: the expected one. SHORE_ELINK with a sentence. */
int shore__wire_header_get(const unsigned char in[SHORE__WIRE_HEADER_BYTES], bool to_server, uint32_t sequence,
                           struct shore__wire_header *out, struct shore_diag *diag);
/* After the body has arrived: whether the header, read as h, and the body are undamaged. */
int shore__wire_check(const unsigned char header[SHORE__WIRE_HEADER_BYTES], const struct shore__wire_header *h,
                      const void *body, struct shore_diag *diag);

/* ---- requests ---------------------------------------------------------------------------------------------------- */

enum shore__wire_flag {
    SHORE__WIRE_HAS_M = 1,     /* INIT: bulk is master, then m and v if present */
    SHORE__WIRE_HAS_V = 2,     /* INIT */
    SHORE__WIRE_PARAMS = 4,    /* UPDATE: the answer's bulk is the new parameters */
    SHORE__WIRE_SPILLED = 8,   /* UPDATE: the gradient was spilled, so it is not in the bulk */
    SHORE__WIRE_RESIDUAL = 16, /* UPDATE: a residual follows the gradient */
    SHORE__WIRE_DEEP = 32,     /* LEAF_SUM */
    SHORE__WIRE_BEGUN = 64,    /* REMOVE: also a volume that was begun and never finished */
};

enum shore__wire_measure {
    SHORE__WIRE_MEASURE_DRIVE, /* the tail is its path */
    SHORE__WIRE_MEASURE_LINK,  /* the tail is any bytes; without an id, there is no answer */
};

/* Fixed fields of a request, which uses some of them. */
struct shore__wire_request {
    uint16_t type;
    uint64_t step;  /* LOAD, BEGIN, FETCH, COMMIT, CALL; UPDATE, STORE, CARRY: the base */
    uint64_t era;   /* BEGIN: epoch; UPDATE, STORE, CARRY, DISCARD, CALL: attempt; REMOVE: generation */
    uint64_t start; /* CALL */
    uint64_t bytes; /* CALL; UPDATE: of the gradient in the bulk; COMMIT: of the blob in the tail */
    uint32_t block, segment, count;
    uint32_t kind;  /* FETCH: what; UPDATE: form of the gradient; CALL: which function; SNAPSHOT: act; COMMIT: how;
                     * MEASURE: what */
    uint32_t order; /* UPDATE, STORE; CALL: form */
    uint32_t flags;
    float coefficient;  /* UPDATE */
    uint64_t out_bytes; /* CALL: that its function gives, unless it only moves bytes */
    uint64_t in_bytes;  /* CALL: the bulk that comes with it; not a field */
    uint32_t ngroups;   /* UPDATE: in the tail, 40 bytes each; then, if sparse, count + 1 offsets */
    /* UPDATE: hyper-parameters; COMMIT: metrics, then the blob; PROBE, REMOVE, MEASURE: path; SNAPSHOT: name; ATTACH:
     * token; CALL: argument. */
    const unsigned char *tail;
    uint32_t tail_bytes;
};

#define SHORE__WIRE_HYPER_BYTES 40u

/* out has SHORE__WIRE_FIELDS_BYTES; the tail is sent after it. */
void shore__wire_request_put(unsigned char out[SHORE__WIRE_FIELDS_BYTES], const struct shore__wire_request *r);
/* tail points into body. Checks everything that can be checked without the drive. */
int shore__wire_request_get(const struct shore__wire_header *h, const unsigned char *body,
                            struct shore__wire_request *out, struct shore_diag *diag);
/* A function call without its buffers. get: for a checked request, of which it borrows the argument. */
void shore__wire_call_put(struct shore__wire_request *r, const struct shore__call *c);
struct shore__call shore__wire_call_get(const struct shore__wire_request *r);
void shore__wire_hyper_put(unsigned char out[SHORE__WIRE_HYPER_BYTES], const struct shore_hyper *h);
void shore__wire_hyper_get(const unsigned char in[SHORE__WIRE_HYPER_BYTES], struct shore_hyper *out);

/* ---- answers ----------------------------------------------------------------------------------------------------- */

/* The body of DONE: rc, the length of a sentence, the sentence, then results, or, for an error, the advice. */
struct shore__wire_answer {
    int rc; /* 0 or negative */
    const char *text;
    uint32_t text_bytes;
    int advice; /* and its subject; one that this build does not know counts as none */
    const char *of;
    uint32_t of_bytes;
    const unsigned char *result;
    uint32_t result_bytes;
};
#define SHORE__WIRE_ANSWER_BYTES 8u                                         /* without the sentence and the results */
#define SHORE__WIRE_ANSWER_MOST (16u + (uint32_t)sizeof(struct shore_diag)) /* without results */

/* Everything except results; diag: if rc is not 0. Returns the bytes, at most SHORE__WIRE_ANSWER_MOST. */
uint32_t shore__wire_answer_put(unsigned char *out, int rc, const struct shore_diag *diag);
int shore__wire_answer_get(const struct shore__wire_header *h, const unsigned char *body,
                           struct shore__wire_answer *out, struct shore_diag *diag);
/* Fills the diagnostic with an answer's error, behind "WHOSE: " (NULL: without that). Returns its code. */
int shore__wire_answer_fail(const struct shore__wire_answer *a, const char *whose, struct shore_diag *diag);

/* Counters of the far side, in the results of BEGIN, COMMIT and LEDGER. */
#define SHORE__WIRE_LEDGER_BYTES (4u + 8u * 10u)
void shore__wire_ledger_put(unsigned char out[SHORE__WIRE_LEDGER_BYTES], const struct shore_ledger *l);
void shore__wire_ledger_add(struct shore_ledger *to, const struct shore_ledger *from); /* these counters only */
bool shore__wire_ledger_get(const unsigned char *in, uint32_t bytes, struct shore_ledger *add_to);

/* Result of RECOVERY, and part of OPEN's. At most SHORE__WIRE_RECOVERY_BYTES. */
#define SHORE__WIRE_RECOVERY_BYTES (2u * (8u * 2u + 2u * 24u + 8u + SHORE__METRICS_BYTES) + 8u + 1024u)
uint32_t shore__wire_recovery_put(unsigned char out[SHORE__WIRE_RECOVERY_BYTES], const struct shore__drive_recovery *r);
bool shore__wire_recovery_get(const unsigned char *in, uint32_t bytes, struct shore__drive_recovery *out);

#endif
