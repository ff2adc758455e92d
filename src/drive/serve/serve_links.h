/* Connections of a session: for each, one thread reads requests and one writes their answers. */
#ifndef SHORE_DRIVE_SERVE_SERVE_LINKS_H
#define SHORE_DRIVE_SERVE_SERVE_LINKS_H

#include "drive/serve/serve_session.h"

/* Starts the threads of a connection whose fields are set. reads: also the reader. */
int shore__serve_link_start(struct link *l, bool reads);
/* Takes requests until the connection ends. Returns why, or 1: the client takes leave. */
int shore__serve_read(struct link *l, struct shore_diag *diag);
/* Adds a connection, confirms it, and starts it. Takes the descriptors, also on failure. */
int shore__serve_add_link(struct session *s, int in, int out, uint64_t id, struct shore_diag *diag);
/* Lets the writer send what is queued, and waits for its end. */
void shore__serve_link_stop(struct link *l);

#endif
