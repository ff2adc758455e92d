/* Pages as the device sees them: where its memory is the host's, there; otherwise in two buffers for each pool, so that
 * the next page is put, on a stream of its own, while this one is computed with.
 *
 *     host      fetch l + 1            fetch l + 2
 *     copying              put l + 1              put l + 2     follows what has read the buffer before
 *     computing      layer l                layer l + 1         follows the put
 */
#ifndef SHORE_PASS_SHOWN_H
#define SHORE_PASS_SHOWN_H

#include "plan/regions.h"
#include "stream/stream.h"

struct shore__shown;

#define SHORE__SHOWN_BUFFERS 2u

/* A pool's buffers on the device; none where it sees the host's memory. */
struct shore__shown_pool {
    shore__buf buffer[SHORE__SHOWN_BUFFERS];
};

/* stream: on which pages are computed with. memory: where they lie. */
int shore__shown_open(struct shore_pages *pages, struct shore__compute *c, struct shore__stream *stream,
                      const struct shore__memory *memory, const struct shore__shown_pool *pools, uint32_t npools,
                      struct shore__shown **out, struct shore_diag *diag);
void shore__shown_close(struct shore__shown *s); /* waits */

/* A page of `bytes`, in use until the next get of its pool, or its release. */
int shore__shown_get(struct shore__shown *s, uint32_t pool, uint32_t page, uint64_t bytes, shore__buf *out,
                     struct shore_diag *diag);
/* Fetches it, and puts it if it is there, as far as nothing has to be waited for that is in use. */
void shore__shown_want(struct shore__shown *s, uint32_t pool, uint32_t page, uint64_t bytes);
/* It is in use no more, and put again when it is got. */
void shore__shown_release(struct shore__shown *s, uint32_t pool, uint32_t page);
void shore__shown_release_all(struct shore__shown *s);

#endif
