/* The server side of a remote drive: opens the drive that the client names, and runs the client's requests until it is
 * gone. */
#ifndef SHORE_DRIVE_SERVE_SERVE_H
#define SHORE_DRIVE_SERVE_SERVE_H

#include "drive/remote/transport.h"

struct shore__serve_options {
    const char *root;      /* allows only paths in this directory; NULL: any path that the user may access */
    uint64_t memory_bytes; /* of the process, approximately; 0: SHORE__SERVE_MEMORY_BYTES */
    const char *build;     /* told to the client */
};

#define SHORE__SERVE_MEMORY_BYTES (UINT64_C(256) << 20)

/* Serves one client on a pair of descriptors (taken over) until it is gone, then drains the drive and releases its
 * lock. 0: the client took leave. SHORE_ELINK: it went without. -EPROTO: it broke the protocol. */
int shore__serve(int in, int out, const struct shore__serve_options *options, struct shore_diag *diag);

/* Resolves a client's path on this host, below the root if there is one, and follows symbolic links. malloc'ed. Errors:
 * SHORE_EUSAGE. */
int shore__serve_path(const struct shore__serve_options *options, const char *path, struct shore__address **out,
                      struct shore_diag *diag);

/* Memory that opening with this description takes. Fills in the ring's shape and the slots. SHORE_EBUDGET. */
struct shore__serve_plan {
    uint32_t slots, span_segments;
    uint64_t slot_bytes, total_bytes;
};
int shore__serve_plan(const struct shore__serve_options *options, const struct shore__address *at,
                      const struct shore__volume_desc *desc, struct shore__drive_config *config,
                      struct shore__serve_plan *out, struct shore_diag *diag);

#endif
