/* A drive on another host, or behind a socket of this host. Every request goes over a connection to a server that has
 * the drive. Requests are cut into spans that fit the server's slots, and many are under way at once. */
#ifndef SHORE_DRIVE_REMOTE_REMOTE_H
#define SHORE_DRIVE_REMOTE_REMOTE_H

#include "drive/drive.h"

/* Sets the number of connections per drive (--connections of command lines). */
#define SHORE__CONNECTIONS_VARIABLE "LONGSHORE_CONNECTIONS"

int shore__remote_create(const struct shore__drive_config *config, const struct shore__address *at,
                         const struct shore__volume_desc *desc, bool overwrite, struct shore__drive **out,
                         struct shore_diag *diag);
int shore__remote_open(const struct shore__drive_config *config, const struct shore__address *at,
                       struct shore__drive **out, struct shore_diag *diag);
/* For tests: the same over existing descriptors, which it takes over. It cannot reconnect. */
int shore__remote_create_over(const struct shore__drive_config *config, int in, int out_fd,
                              const struct shore__volume_desc *desc, struct shore__drive **out,
                              struct shore_diag *diag);

bool shore__is_remote(const struct shore__drive *d);
/* Whether the connection is broken: every request fails with SHORE_ELINK until it is reconnected. why: NULL, or
 * receives the reason. */
bool shore__remote_is_broken(const struct shore__drive *d, struct shore_diag *why);
/* Reopens the same volume, with nothing under way. The drive is then as after opening: load and begin come next.
 * SHORE_ELINK, SHORE_EBUSY: it may work later. */
int shore__remote_reconnect(struct shore__drive *d, struct shore_diag *diag);

/* Bytes that crossed the connection since the drive was opened, counted where they were read and written. */
void shore__remote_link_bytes(const struct shore__drive *d, uint64_t *in, uint64_t *out);
/* For how long any of its connections has been receiving an answer's bytes or sending, since then. */
uint64_t shore__remote_link_ns(const struct shore__drive *d);

#endif
