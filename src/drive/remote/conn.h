/* One connection: a pair of descriptors that frames go through, whatever they are (a socket, two pipes). Every wait has
 * an end, every byte is counted where it is read and written.
 *
 * One thread sends, one receives. The descriptors belong to the connection and do not block.
 */
#ifndef SHORE_DRIVE_REMOTE_CONN_H
#define SHORE_DRIVE_REMOTE_CONN_H

#include <stdatomic.h>
#include <sys/uio.h>
#include <time.h>

#include "drive/remote/wire.h"

#define SHORE__SILENCE_MS 30000u /* a peer that says nothing for so long is gone */
#define SHORE__STANDSTILL 20u    /* silences: a server whose work stands still for so long is given up */
#define SHORE__CONN_PARTS 6u     /* of bulk, at most */

struct shore__conn {
    int in, out;
    int wake;                /* eventfd: becomes readable when the connection is to end */
    int err;                 /* what the far side's shell says, or -1 */
    uint32_t sent, received; /* frames */
    uint32_t silence_ms;
    atomic_uint_fast64_t in_bytes, out_bytes;
    atomic_bool ended; /* by this side */
    atomic_bool gone;  /* the other side has closed it, or is silent, or it broke */
    uint64_t work;     /* of a server, as its last sign of life counted it */
    uint64_t moved_ns; /* when that grew, or something else came */
    char errors[1024]; /* the end of what came from err */
    size_t nerrors;
};

/* Seconds of silence that mean that the other side is gone, from the environment (tests shorten it). */
#define SHORE__SILENCE_VARIABLE "LONGSHORE_SILENCE"
uint32_t shore__conn_silence_ms(void);

/* Takes in, out and err, which it closes also on failure. */
int shore__conn_init(struct shore__conn *c, int in, int out, int err);
void shore__conn_fini(struct shore__conn *c);
/* Wakes both threads: what they wait for fails with SHORE_ELINK. Threading: any. */
void shore__conn_end(struct shore__conn *c);

/* Bytes as they come; all or SHORE_ELINK with a sentence (it ended, broke, was silent for too long). */
int shore__conn_read(struct shore__conn *c, void *buffer, size_t bytes, struct shore_diag *diag);
int shore__conn_readv(struct shore__conn *c, struct iovec *parts, unsigned nparts, struct shore_diag *diag);

/* When a side that has said nothing since now must give a sign of life, on the monotonic clock. */
void shore__conn_next_beat(const struct shore__conn *c, struct timespec *at);

/* A frame: header, body in up to two parts, bulk. */
struct shore__frame {
    uint16_t type;
    uint64_t id;
    const void *body;
    uint32_t body_bytes;
    struct iovec bulk[SHORE__CONN_PARTS];
    unsigned nbulk;
};
int shore__conn_send(struct shore__conn *c, const struct shore__frame *f, struct shore_diag *diag);

/* The answer to request `id`; why: where rc is not 0. */
int shore__conn_answer(struct shore__conn *c, uint64_t id, int rc, const struct shore_diag *why, const void *result,
                       uint32_t result_bytes, struct shore_diag *diag);

/* Receives header and body; the bulk is the caller's to read. body: grown as needed (*room), malloc'ed. */
int shore__conn_receive(struct shore__conn *c, bool to_server, struct shore__wire_header *h, unsigned char **body,
                        size_t *room, struct shore_diag *diag);

/* Of a client that waits for an answer: from now on the server has to get on with it; and whether it still does, for
 * each header that comes. SHORE_ELINK. */
void shore__conn_expect(struct shore__conn *c);
int shore__conn_gets_on(struct shore__conn *c, const struct shore__wire_header *h, struct shore_diag *diag);

/* The server's first bytes, behind at most SHORE__WIRE_SCAN_BYTES of something else, which may not take longer than
 * silence may. The end of what was skipped is shown in the diagnostic if the greeting does not come. */
int shore__conn_greeting(struct shore__conn *c, uint32_t *version, struct shore_diag *diag);
int shore__conn_greet(struct shore__conn *c, struct shore_diag *diag);

/* Takes what is there on err. */
void shore__conn_drain_errors(struct shore__conn *c);

#endif
