/* The far side of a remote drive: opens the drive that the client names and does on it what the client asks, until the
 * client is gone. */
#ifndef SHORE_DRIVE_SERVE_SERVE_H
#define SHORE_DRIVE_SERVE_SERVE_H

#include "drive/remote/transport.h"

struct shore__serve_options {
    const char *root;      /* nothing outside of this directory; NULL: whatever the user may reach */
    uint64_t memory_bytes; /* of the process, about; 0: SHORE__SERVE_MEMORY_BYTES */
    const char *build;     /* named to the client */
};

#define SHORE__SERVE_MEMORY_BYTES (UINT64_C(256) << 20)

/* Serves one client on a pair of descriptors (taken over) until it is gone; then the drive is drained, and its lock
 * released. 0: the client took its leave. SHORE_ELINK: it went without. -EPROTO: it sent what it must not. */
int shore__serve(int in, int out, const struct shore__serve_options *options, struct shore_diag *diag);

/* What a client's path means on this host, below the root if there is one, symbolic links followed. malloc'ed. Errors:
 * SHORE_EUSAGE. */
int shore__serve_path(const struct shore__serve_options *options, const char *path, struct shore__address **out,
                      struct shore_diag *diag);

/* What opening with this description takes of memory; fills the ring's shape and the slots. SHORE_EBUDGET. */
struct shore__serve_plan {
    uint32_t slots, span_segments;
    uint64_t slot_bytes, total_bytes;
};
int shore__serve_plan(const struct shore__serve_options *options, const struct shore__address *at,
                      const struct shore__volume_desc *desc, struct shore__drive_config *config,
                      struct shore__serve_plan *out, struct shore_diag *diag);

#endif
