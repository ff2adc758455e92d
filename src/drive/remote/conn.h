/* One connection: a pair of descriptors of any kind (a socket, two pipes) that carries frames. Every wait has a time
 * limit, and every byte is counted where it is read or written.
 *
 * One thread sends, one receives. The connection owns the descriptors, which do not block. */
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
    int wake;                /* eventfd: readable when the connection should end */
    int err;                 /* output of the far side's shell, or -1 */
    uint32_t sent, received; /* frames */
    uint32_t silence_ms;
    atomic_uint_fast64_t in_bytes, out_bytes;
    atomic_bool ended; /* by this side */
    atomic_bool gone;  /* the other side has closed it or is silent, or it broke */
    uint64_t work;     /* a server's work, as its last sign of life counted it */
    uint64_t moved_ns; /* when work grew, or anything else arrived */
    char errors[1024]; /* the end of the text from err */
    size_t nerrors;
};

/* Seconds of silence after which the other side counts as gone, from the environment (tests shorten it). */
#define SHORE__SILENCE_VARIABLE "LONGSHORE_SILENCE"
uint32_t shore__conn_silence_ms(void);

/* Takes over in, out and err. Closes them also on failure. */
int shore__conn_init(struct shore__conn *c, int in, int out, int err);
void shore__conn_fini(struct shore__conn *c);
/* Wakes both threads: their waits fail with SHORE_ELINK. Threading: any. */
void shore__conn_end(struct shore__conn *c);

/* Reads or writes plain bytes: all of them, or SHORE_ELINK with a sentence (it ended, broke, or was silent too
 * long). */
int shore__conn_read(struct shore__conn *c, void *buffer, size_t bytes, struct shore_diag *diag);
int shore__conn_readv(struct shore__conn *c, struct iovec *parts, unsigned nparts, struct shore_diag *diag);

/* When a side that has been silent from now on must give a sign of life, on the monotonic clock. */
void shore__conn_next_beat(const struct shore__conn *c, struct timespec *at);

/* Sends a frame: header, body in up to two parts, bulk. */
struct shore__frame {
    uint16_t type;
    uint64_t id;
    const void *body;
    uint32_t body_bytes;
    struct iovec bulk[SHORE__CONN_PARTS];
    unsigned nbulk;
};
int shore__conn_send(struct shore__conn *c, const struct shore__frame *f, struct shore_diag *diag);

/* Answers request `id`. why: the reason if rc is not 0. */
int shore__conn_answer(struct shore__conn *c, uint64_t id, int rc, const struct shore_diag *why, const void *result,
                       uint32_t result_bytes, struct shore_diag *diag);

/* Receives header and body; the caller reads the bulk. body: malloc'ed, grown as needed (*room). */
int shore__conn_receive(struct shore__conn *c, bool to_server, struct shore__wire_header *h, unsigned char **body,
                        size_t *room, struct shore_diag *diag);

/* For a client that waits for an answer: starts to expect progress of the server, and checks it with each header that
 * arrives. SHORE_ELINK. */
void shore__conn_expect(struct shore__conn *c);
int shore__conn_gets_on(struct shore__conn *c, const struct shore__wire_header *h, struct shore_diag *diag);

/* Receives the server's greeting, which may follow up to SHORE__WIRE_SCAN_BYTES of other text, within the time allowed
 * for silence. If it does not come, the diagnostic shows the end of that text. */
int shore__conn_greeting(struct shore__conn *c, uint32_t *version, struct shore_diag *diag);
int shore__conn_greet(struct shore__conn *c, struct shore_diag *diag);

/* Reads what is available on err. */
void shore__conn_drain_errors(struct shore__conn *c);

#endif
