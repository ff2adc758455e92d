/* The way to a remote drive: ssh (or what stands in for it) in a child process, or a Unix socket. */
#ifndef SHORE_DRIVE_REMOTE_TRANSPORT_H
#define SHORE_DRIVE_REMOTE_TRANSPORT_H

#include <sys/types.h>

#include "drive/address.h"
#include "drive/remote/conn.h"

/* Replaces ssh; split at blanks. Command lines set it from --rsh; it is never stored in a run. */
#define SHORE__RSH_VARIABLE "LONGSHORE_RSH"

/* A connection on which nothing has been said yet but the greeting. */
struct shore__way {
    struct shore__conn conn;
    pid_t child; /* 0: none */
    uint32_t version;
};

/* Errors: one sentence that begins with the address and says what to do. SHORE_ELINK: it may be there later. */
int shore__way_open(const struct shore__address *at, struct shore__way *out, struct shore_diag *diag);
/* Ends the child too, politely first. */
void shore__way_close(struct shore__way *w);
/* What went wrong on a connection that was open: rc and why, and what the child said on its way out. */
int shore__way_explain(const struct shore__address *at, struct shore__way *w, int rc, const struct shore_diag *why,
                       struct shore_diag *diag);

/* ---- the server's side ------------------------------------------------------------------------------------------- */

/* A socket at path, in a directory that belongs to this user alone (made if it is not there). What a server that was
 * killed has left is replaced; one that is alive is SHORE_EBUSY. */
int shore__listen(const char *path, int *fd, struct shore_diag *diag);
/* The next client of this user (or of root). SHORE_EMISMATCH: another user's, which was turned away. */
int shore__accept(int listener, int *fd, struct shore_diag *diag);

#endif
