/* The way to a remote drive: ssh (or a replacement) in a child process, or a Unix socket. */
#ifndef SHORE_DRIVE_REMOTE_TRANSPORT_H
#define SHORE_DRIVE_REMOTE_TRANSPORT_H

#include <sys/types.h>

#include "drive/address.h"
#include "drive/remote/conn.h"

/* Replaces ssh; split at blanks. Command lines set it from --rsh; runs never store it. */
#define SHORE__RSH_VARIABLE "LONGSHORE_RSH"

/* A connection on which only the greeting was exchanged. */
struct shore__way {
    struct shore__conn conn;
    pid_t child; /* 0: none */
    uint32_t version;
};

/* Errors: one sentence that starts with the address and says what to do. SHORE_ELINK: it may work later. */
int shore__way_open(const struct shore__address *at, struct shore__way *out, struct shore_diag *diag);
/* Also ends the child, politely at first. */
void shore__way_close(struct shore__way *w);
/* Explains a failure of an open connection: rc and why, and the child's last words. */
int shore__way_explain(const struct shore__address *at, struct shore__way *w, int rc, const struct shore_diag *why,
                       struct shore_diag *diag);

/* ---- the server's side ------------------------------------------------------------------------------------------- */

/* Opens a socket at path, in a directory of this user alone, which is made if missing. Replaces a killed server's
 * socket. A running server: SHORE_EBUSY. */
int shore__listen(const char *path, int *fd, struct shore_diag *diag);
/* Accepts the next client of this user or root. SHORE_EMISMATCH: another user's, which was refused. */
int shore__accept(int listener, int *fd, struct shore_diag *diag);

#endif
