/* Copies to a device from host memory that it does not reach, through a ring of buffers in memory that it reaches:
 *
 *     host      copy part 1   copy part 2   ...       copy part 5      waits until part 1 has been put
 *     stream              put 1         put 2   ...              put 5
 */
#ifndef SHORE_STREAM_STAGING_H
#define SHORE_STREAM_STAGING_H

#include <stdbool.h>

#include "longshore/device.h"

enum { SHORE__STAGING_PARTS = 4 };

struct shore__staging {
    struct shore_device *device;
    void *stream;
    const char *reached; /* copies from here need no ring */
    size_t reached_bytes;
    char *ring; /* NULL: the device reaches all memory */
    size_t part_bytes;
    struct shore_event until[SHORE__STAGING_PARTS]; /* once it has passed, the part is free */
    unsigned next;                                  /* the part whose turn it is */
};

/* Takes what options say. Errors: -EINVAL (too small a ring). */
int shore__staging_open(struct shore__staging *s, const struct shore_shown_options *options, struct shore_diag *diag);
/* Waits until the ring is free. */
void shore__staging_close(struct shore__staging *s);
/* Whether a copy from these bytes goes through the ring. */
bool shore__staging_takes(const struct shore__staging *s, const void *from, size_t bytes);
/* Whether nothing that was called before keeps the ring waiting. */
bool shore__staging_is_free(const struct shore__staging *s);
/* Puts bytes on the device. On return the host may change them, also after an error. Waits where the whole ring is
 * under way. Errors: -ETIMEDOUT, with its sentence (the device is lost); other codes of the device, without one. */
int shore__staging_put(struct shore__staging *s, uint64_t to, const void *from, size_t bytes, struct shore_diag *diag);

#endif
