#include "stream/staging.h"

#include <errno.h>
#include <string.h>

#include "base/diag.h"

#define PART_ALIGN_BYTES ((size_t)64)

int shore__staging_open(struct shore__staging *s, const struct shore_shown_options *options, struct shore_diag *diag) {
    *s = (struct shore__staging){.device = options->device,
                                 .stream = options->copying,
                                 .reached = options->reached,
                                 .reached_bytes = options->reached_bytes,
                                 .ring = options->ring,
                                 .part_bytes = options->ring_bytes / SHORE__STAGING_PARTS};
    s->part_bytes -= s->part_bytes % PART_ALIGN_BYTES;
    if (s->ring && !s->part_bytes) return shore__fail(diag, -EINVAL, "a ring of so few bytes takes no copy");
    return 0;
}

void shore__staging_close(struct shore__staging *s) {
    for (unsigned i = 0; s->ring && i < SHORE__STAGING_PARTS; i++)
        shore_device_wait(s->device, s->until[i], NULL);
}

bool shore__staging_takes(const struct shore__staging *s, const void *from, size_t bytes) {
    uintptr_t at = (uintptr_t)from, first = (uintptr_t)s->reached;
    return s->ring && !(at >= first && at - first <= s->reached_bytes && bytes <= s->reached_bytes - (at - first));
}

bool shore__staging_is_free(const struct shore__staging *s) {
    return shore_device_passed(s->device, s->until[(s->next + SHORE__STAGING_PARTS - 1) % SHORE__STAGING_PARTS]);
}

int shore__staging_put(struct shore__staging *s, uint64_t to, const void *from, size_t bytes, struct shore_diag *diag) {
    struct shore_device *d = s->device;
    int rc = 0;
    for (size_t done = 0, part; !rc && done < bytes; done += part) {
        unsigned n = s->next;
        char *at = s->ring + n * s->part_bytes;
        part = bytes - done < s->part_bytes ? bytes - done : s->part_bytes;
        rc = shore_device_wait(d, s->until[n], diag);
        if (rc) break;
        memcpy(at, (const char *)from + done, part);
        rc = d->put(d->ctx, s->stream, to + done, at, part);
        s->until[n] = d->record(d->ctx, s->stream);
        s->next = (n + 1) % SHORE__STAGING_PARTS;
    }
    return rc;
}
