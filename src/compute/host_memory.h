/* Memory, streams and transfers for backends that compute in the host's memory. */
#ifndef SHORE_COMPUTE_HOST_MEMORY_H
#define SHORE_COMPUTE_HOST_MEMORY_H

#include "compute/compute.h"

int shore__host_alloc(struct shore__compute *, enum shore_place place, uint64_t bytes, struct shore__span *out,
                      struct shore_diag *diag);
void shore__host_free(struct shore__compute *, struct shore__span *span);
int shore__host_stream_open(struct shore__compute *, struct shore__stream **out, struct shore_diag *diag);
void shore__host_stream_close(struct shore__compute *, struct shore__stream *s);
int shore__host_fill(struct shore__compute *, struct shore__stream *s, shore__buf dst, float value, size_t n);

#define SHORE__HOST_MEMORY_OPS                                                                    \
    .alloc = shore__host_alloc, .free = shore__host_free, .stream_open = shore__host_stream_open, \
    .stream_close = shore__host_stream_close, .fill = shore__host_fill

extern const struct shore_device shore__host_device;

#endif
