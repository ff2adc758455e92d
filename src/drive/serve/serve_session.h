/* A session of a server inside: one client, one drive, its slots and threads. */
#ifndef SHORE_DRIVE_SERVE_SERVE_SESSION_H
#define SHORE_DRIVE_SERVE_SERVE_SESSION_H

#include <pthread.h>

#include "drive/chunk.h"
#include "drive/lane.h"
#include "drive/remote/wire_open.h"
#include "drive/serve/serve.h"

#define SHORE__LINKS_MOST 8u     /* connections of one drive */
#define SHORE__CONTROLS_MOST 16u /* requests without a slot that may be under way */

struct session;
struct link;
struct serve_pulse;

/* A request under way. Those that take a slot live with it, the others come and go. */
struct shore__serve_job {
    struct shore__job job; /* of the control lane */
    struct shore__serve_job *next;
    struct session *session;
    struct link *link; /* that it came on, and its answer goes to */
    uint64_t id;
    uint16_t type;
    struct shore__wire_request request;
    struct shore_commit commit;
    unsigned char *memory; /* of the slot; NULL: has none */
    unsigned char *body;   /* the slot's own copy: groups, offsets, metrics */
    size_t body_room;
    struct shore_hyper *groups;
    uint32_t *offsets;
    size_t groups_room, offsets_room;
    void *out; /* the answer's bulk */
    size_t out_bytes;
    int rc;
    struct shore_diag diag;
    unsigned char seal[16];
    unsigned char *result; /* malloc'ed */
    uint32_t result_bytes;
};

/* One connection: one thread reads it, one writes answers. */
struct link {
    struct session *session;
    struct shore__conn conn;
    pthread_t reader, writer;
    bool reads, writes; /* the threads are started */
    pthread_cond_t due;
    struct shore__serve_job *answers, *last_answer;
    bool closing; /* what is queued is still sent */
};

struct session {
    const struct shore__serve_options *options;
    struct shore__drive_config config;
    struct shore__wire_open open; /* what the client asked for: owns the layout */
    struct shore__drive *drive;
    struct serve_pulse *pulse; /* while it is being opened */
    struct shore__serve_plan plan;
    struct shore__lane controls;
    bool has_controls;
    pthread_mutex_t lock; /* of what follows, and of the links' queues */
    pthread_cond_t freed;
    struct shore__serve_job *slots, *free_slots;
    unsigned ncontrols;
    uint64_t answered;
    bool ended; /* no more is read, for this reason */
    int why_rc;
    struct shore_diag why;
    struct shore__serve_job *leave; /* the client takes its leave: answered when the drive is closed */
    struct link links[SHORE__LINKS_MOST];
    unsigned nlinks;
    int attach; /* listens for further connections, or -1 */
    pthread_t attacher;
    bool attaches;
};

/* serve_requests.c: takes one request whose header and body have come, and its bulk. A code ends the connection; 1: the
 * client takes its leave. */
int shore__serve_request(struct link *l, const struct shore__wire_header *h, unsigned char *body,
                         struct shore_diag *diag);
/* The control lane. */
void *shore__serve_controls(void *session);
/* A number that grows while the drive gets on: a sign of life is sent with it. */
uint64_t shore__serve_work(struct session *s);
/* Hands the job over to the writer of its link. */
void shore__serve_answer(struct shore__serve_job *job);
/* Once its answer is sent, or cannot be. */
void shore__serve_job_free(struct shore__serve_job *job);
/* Why the connection ended, as shore__serve() says it: who is gone is no fault of the protocol. */
int shore__serve_end_code(const struct link *l, int rc);
/* Ends all connections, but for the one on which the client takes its leave, because of what became of this one; no
 * more is read. The first reason is kept. Threading: any. */
void shore__serve_end(struct link *l, int rc, const struct shore_diag *why);

#endif
