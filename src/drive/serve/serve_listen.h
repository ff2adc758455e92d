/* A server of drives behind a Unix socket, with a process per client. */
#ifndef SHORE_DRIVE_SERVE_SERVE_LISTEN_H
#define SHORE_DRIVE_SERVE_SERVE_LISTEN_H

#include "drive/serve/serve.h"

/* Serves until should_stop returns true; it is called about every 200 ms and before each client. said: receives a
 * sentence about what went wrong with a client; may be NULL. The calling process must have no other threads. */
int shore__serve_listen(const char *path, const struct shore__serve_options *options, bool (*should_stop)(void),
                        void (*said)(const char *text), struct shore_diag *diag);

#endif
