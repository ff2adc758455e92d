/* A remote drive as its files share it: requests, and the threads that carry them. */
#ifndef SHORE_DRIVE_REMOTE_REMOTE_LINK_H
#define SHORE_DRIVE_REMOTE_REMOTE_LINK_H

#include <pthread.h>

#include "base/busy.h"
#include "drive/chunk.h"
#include "drive/counters.h"
#include "drive/remote/remote.h"
#include "drive/remote/transport.h"
#include "drive/remote/wire_open.h"

#define REMOTE_LINKS_MOST 8u
#define REMOTE_CONTROLS 8u
#define REMOTE_PARTS 3 /* of bulk */

enum remote_state { REMOTE_QUEUED, REMOTE_SENDING, REMOTE_ANSWERED, REMOTE_SENT };

struct remote;
struct remote_link;
struct remote_whole;

/* A span of a request: one frame. */
struct remote_request {
    struct remote_request *next; /* in the queue */
    struct remote_whole *whole;
    struct shore__wire_request fields;
    const struct shore_update *update; /* UPDATE: groups and offsets */
    const void *tail;                  /* for other requests */
    uint32_t tail_bytes;
    const void *blob; /* COMMIT: after the tail */
    uint32_t blob_bytes;
    const void *bulk[REMOTE_PARTS]; /* of an update, the first is NULL until it is gathered */
    size_t bulk_bytes[REMOTE_PARTS];
    size_t bulk_counter[REMOTE_PARTS], dst_counter; /* 0: control, which is what no other one counts */
    void *dst;                                      /* for the answer's bulk */
    size_t dst_bytes;
    uint64_t rank; /* queued requests of lower rank go first */
    uint64_t id;
    struct remote_link *link; /* the connection it was sent on */
    enum remote_state state;
    uint64_t sent_ns; /* when sending had ended, if that is recorded */
    int rc;           /* of an answer that came before sending had ended */
    struct shore_diag *diag;
};

/* A request of the caller. */
struct remote_whole {
    struct shore_completion done;
    struct shore_update update;
    uint32_t left;
    int rc;
    struct shore_diag diag;
    unsigned char *seal; /* PUT, GET: seal of all spans */
    unsigned char seal_sum[16];
    unsigned char *result; /* malloc'ed; from the last answer */
    uint32_t result_bytes;
    void (*look)(struct remote *r, const struct remote_whole *whole); /* inspects the result before done; may be NULL */
    void *ctx;                                                        /* look's */
    uint32_t nparts;
    struct remote_request part[];
};

struct remote_link {
    struct remote *remote;
    struct shore__way way;
    pthread_t reader, writer;
    bool reads, writes;
    bool sends;     /* sends a request; under the drive's lock */
    void *gathered; /* the writer's: a gathered gradient while its request is sent */
    size_t gathered_bytes;
};

struct remote {
    struct shore__drive drive;
    struct shore__drive_config config;
    const struct shore__address *at; /* NULL: it cannot reconnect */
    struct shore__wire_open info;    /* from the server */
    char *describe;
    struct remote_link links[REMOTE_LINKS_MOST];
    unsigned nlinks;

    struct shore__busy link_busy;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t due;   /* there is something to send, or a slot is free */
    pthread_cond_t idle;  /* nothing is under way */
    struct remote_request *queue, *controls;
    struct remote_request **slot; /* requests sent, by slot; then the controls */
    uint32_t nslots, used_slots, updates_out;
    uint32_t serial; /* for ids */
    uint64_t under_way;
    bool broken;
    int broken_rc;
    struct shore_diag why;    /* it broke: a sentence for callers */
    struct shore_diag reason; /* the same without the name */
    unsigned threads;
    struct shore_ledger far, far_before; /* counters of this server, and of earlier ones */
    uint64_t crossed[SHORE__COUNTERS];   /* bulk bytes, by their counter */
    uint64_t closed_in, closed_out;      /* bytes of closed connections */
};

static inline struct remote *remote_of(const struct shore__drive *d) {
    return (struct remote *)(uintptr_t)d;
}

/* remote.c */
extern const struct shore__drive_ops shore__remote_ops;

/* remote_spans.c. A request of so many parts. NULL: out of memory. */
struct remote_whole *shore__remote_whole(uint32_t nparts, struct shore_completion done);
/* Number of segments of `each` bytes that fit a slot. */
uint32_t shore__remote_span(const struct remote *r, uint64_t each);
/* A request over segments, without buffers for its spans. A span has at most `most` segments. */
struct remote_whole *shore__remote_over_segments(uint16_t type, uint32_t block, uint32_t segment, uint32_t count,
                                                 uint32_t most, struct shore_completion done);
/* Bytes of the request's segments that cross the connection. The padding behind a block does not. */
size_t shore__remote_crossing(const struct remote *r, const struct shore__wire_request *f, size_t segment_bytes);
/* Queues the request, or frees it. */
int shore__remote_send(struct remote *r, struct remote_whole *w);

/* remote_update.c */
int shore__remote_update(struct shore__drive *d, const struct shore_update *update, struct shore_completion done);

/* remote_link.c. Queues all parts of whole. An error: the connection is broken, and nothing was queued. */
int shore__remote_submit(struct remote *r, struct remote_whole *whole);
/* Starts the threads of all connections. */
int shore__remote_start(struct remote *r);
/* Ends connections and threads; requests under way complete with SHORE_ELINK. */
void shore__remote_stop(struct remote *r);
/* Removes queued updates of other attempts, which complete with SHORE_EDISCARDED. */
void shore__remote_take_back(struct remote *r, uint64_t attempt);
void shore__remote_drain(struct remote *r);

#endif
