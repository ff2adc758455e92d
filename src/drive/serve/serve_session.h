/* A session of a server, as its files share it: one client, one drive, its slots and threads. */
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

/* A request under way. Jobs with a slot live as long as the slot, the others as long as the request. */
struct shore__serve_job {
    struct shore__job job; /* for the control lane */
    struct shore__serve_job *next;
    struct session *session;
    struct link *link; /* the connection it came on, which gets the answer */
    uint64_t id;
    uint16_t type;
    struct shore__wire_request request;
    struct shore_commit commit;
    unsigned char *memory; /* the slot's; NULL: no slot */
    unsigned char *body;   /* the slot's own copy of groups, offsets, metrics */
    size_t body_room;
    struct shore_hyper *groups;
    uint32_t *offsets;
    struct shore_gather *items;
    size_t groups_room, offsets_room, items_room;
    void *out; /* the answer's bulk */
    size_t out_bytes;
    int rc;
    struct shore_diag diag;
    unsigned char seal[16];
    unsigned char *result; /* malloc'ed */
    uint32_t result_bytes;
};

/* One connection: one thread reads from it, one writes answers. */
struct link {
    struct session *session;
    struct shore__conn conn;
    pthread_t reader, writer;
    bool reads, writes; /* the thread was started */
    pthread_cond_t due;
    struct shore__serve_job *answers, *last_answer;
    bool closing; /* the queue is still sent */
};

struct session {
    const struct shore__serve_options *options;
    struct shore__drive_config config;
    struct shore__wire_open open; /* the client's request; owns the layout */
    struct shore__drive *drive;
    struct serve_pulse *pulse; /* while the drive is being opened */
    struct shore__serve_plan plan;
    struct shore__lane controls;
    bool has_controls;
    pthread_mutex_t lock; /* guards the fields below, and the links' queues */
    pthread_cond_t freed;
    struct shore__serve_job *slots, *free_slots;
    unsigned ncontrols;
    uint64_t answered;
    bool ended; /* reading has stopped, for this reason */
    int why_rc;
    struct shore_diag why;
    struct shore__serve_job *leave; /* the client takes leave: answered once the drive is closed */
    struct link links[SHORE__LINKS_MOST];
    unsigned nlinks;
    int attach; /* listens for further connections, or -1 */
    pthread_t attacher;
    bool attaches;
};

/* serve_requests.c: takes one request whose header and body have arrived, and its bulk. An error ends the connection;
 * 1: the client takes leave. */
int shore__serve_request(struct link *l, const struct shore__wire_header *h, unsigned char *body,
                         struct shore_diag *diag);
/* The control lane. */
void *shore__serve_controls(void *session);
/* A number that grows while the drive makes progress; signs of life carry it. */
uint64_t shore__serve_work(struct session *s);
/* Passes the job to the writer of its link. */
void shore__serve_answer(struct shore__serve_job *job);
/* Called when the answer is sent, or cannot be. */
void shore__serve_job_free(struct shore__serve_job *job);
/* Why the connection ended, in shore__serve()'s codes. A lost client is no protocol error. */
int shore__serve_end_code(const struct link *l, int rc);
/* Ends all connections because of this one, except the one on which the client takes leave. Reading stops. The first
 * reason is kept. Threading: any. */
void shore__serve_end(struct link *l, int rc, const struct shore_diag *why);

#endif
