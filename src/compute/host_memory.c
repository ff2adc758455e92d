/* Memory, streams and transfers of backends that compute in the host's memory, where a call has run when it returns. */
#include "compute/host_memory.h"

#include <string.h>

#include "base/arena.h"

int shore__host_alloc(struct shore__compute *c, enum shore__memory_kind kind, uint64_t bytes, struct shore__span *out,
                      struct shore_diag *diag) {
    struct shore_arena *arena;
    int rc = shore__arena_open(bytes, &arena, diag);
    if (rc) return rc;
    void *memory = shore__arena_alloc(arena, bytes);
    *out = (struct shore__span){kind, memory, {(uintptr_t)memory}, bytes, arena};
    return 0;
}

void shore__host_free(struct shore__compute *c, struct shore__span *span) {
    shore_arena_close(span->owner);
    *span = (struct shore__span){0};
}

int shore__host_stream_open(struct shore__compute *c, struct shore__stream **out, struct shore_diag *diag) {
    *out = (struct shore__stream *)c; /* nothing is ever under way on it */
    return 0;
}
void shore__host_stream_close(struct shore__compute *c, struct shore__stream *s) {}

struct shore__event shore__host_record(struct shore__compute *c, struct shore__stream *s) {
    return (struct shore__event){s, 0};
}
int shore__host_wait(struct shore__compute *c, struct shore__event event, struct shore_diag *diag) {
    return 0;
}
int shore__host_follow(struct shore__compute *c, struct shore__stream *s, struct shore__event event) {
    return 0;
}

int shore__host_put(struct shore__compute *c, struct shore__stream *s, shore__buf dst, const void *src, size_t bytes) {
    void *to = (void *)dst.handle;
    if (to != src) memcpy(to, src, bytes);
    return 0;
}
int shore__host_get(struct shore__compute *c, struct shore__stream *s, void *dst, shore__buf src, size_t bytes) {
    const void *from = (const void *)src.handle;
    if (dst != from) memcpy(dst, from, bytes);
    return 0;
}

int shore__host_fill(struct shore__compute *c, struct shore__stream *s, shore__buf dst, float value, size_t n) {
    float *to = (float *)dst.handle;
    for (size_t i = 0; i < n; i++)
        to[i] = value;
    return 0;
}
