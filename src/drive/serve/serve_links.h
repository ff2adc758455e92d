/* A session's connections: one thread reads requests from each, one writes their answers. */
#ifndef SHORE_DRIVE_SERVE_SERVE_LINKS_H
#define SHORE_DRIVE_SERVE_SERVE_LINKS_H

#include "drive/serve/serve_session.h"

/* Starts the threads of a connection whose fields are set; reads: also the one that reads. */
int shore__serve_link_start(struct link *l, bool reads);
/* Takes requests until the connection ends: why, or 1: the client takes its leave. */
int shore__serve_read(struct link *l, struct shore_diag *diag);
/* A further connection, started, once it is told so. Takes the descriptors in, also on failure. */
int shore__serve_add_link(struct session *s, int in, int out, uint64_t id, struct shore_diag *diag);
/* What is queued is still sent; waits for the writer's end. */
void shore__serve_link_stop(struct link *l);

#endif
