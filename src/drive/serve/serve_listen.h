/* A server of drives behind a Unix socket: a process for each client. */
#ifndef SHORE_DRIVE_SERVE_SERVE_LISTEN_H
#define SHORE_DRIVE_SERVE_SERVE_LISTEN_H

#include "drive/serve/serve.h"

/* Until should_stop says so; called about every 200 ms, and before each client. said: what went wrong with a client,
 * one sentence; may be NULL. The calling process must have no other threads. */
int shore__serve_listen(const char *path, const struct shore__serve_options *options, bool (*should_stop)(void),
                        void (*said)(const char *text), struct shore_diag *diag);

#endif
