/* Additional connections of a client. Each arrives at a server process of its own, which passes its descriptors to the
 * process with the drive, authorized by a token. Also requests that need no open drive. */
#ifndef SHORE_DRIVE_SERVE_SERVE_ATTACH_H
#define SHORE_DRIVE_SERVE_SERVE_ATTACH_H

#include "drive/serve/serve_session.h"

/* Makes the token, and listens for it. */
int shore__serve_attach_open(struct session *s, unsigned char token[16], struct shore_diag *diag);
int shore__serve_attach_start(struct session *s);
void shore__serve_attach_close(struct session *s);
/* In the process where the additional connection arrived: passes it on, waits until it is no longer used, and returns
 * 1. */
int shore__serve_attach_to(struct shore__conn *c, const struct shore__wire_header *h,
                           const struct shore__wire_request *r, struct shore_diag *diag);

/* serve_probe.c: PROBE, REMOVE and MEASURE. */
int shore__serve_probe(struct session *s, const struct shore__wire_header *h, const struct shore__wire_request *r,
                       struct shore_diag *diag);

#endif
