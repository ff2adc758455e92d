/* Memory, streams and transfers for backends that compute in the host's memory. Every call has run when it returns. */
#include "compute/host_memory.h"

#include <string.h>

#include "base/arena.h"
#include "number/bf16.h"

int shore__host_alloc(struct shore__compute *c, enum shore_place place, uint64_t bytes, struct shore__span *out,
                      struct shore_diag *diag) {
    struct shore_arena *arena;
    int rc = shore_arena_open(bytes, 0, &arena, diag);
    if (rc) return rc;
    void *memory = shore__arena_alloc(arena, bytes);
    *out = (struct shore__span){place, memory, {(uintptr_t)memory}, bytes, arena};
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

static struct shore_event record(void *ctx, void *stream) {
    return (struct shore_event){NULL, 0}; /* it has passed */
}
static int wait_for(void *ctx, struct shore_event event, uint64_t timeout_ns, struct shore_diag *diag) {
    return 0;
}
static int follow(void *ctx, void *stream, struct shore_event event) {
    return 0;
}
static int put(void *ctx, void *stream, uint64_t to, const void *from, size_t bytes) {
    void *at = (void *)(uintptr_t)to;
    if (at != from) memcpy(at, from, bytes);
    return 0;
}
static int get(void *ctx, void *stream, void *to, uint64_t from, size_t bytes) {
    const void *at = (const void *)(uintptr_t)from;
    if (at != to) memcpy(to, at, bytes);
    return 0;
}
static int widen(void *ctx, void *stream, uint64_t to, uint64_t from, size_t elems) {
    shore__f32_from_bf16_below((float *)(uintptr_t)to, (const uint16_t *)(uintptr_t)from, elems);
    return 0;
}
const struct shore_device shore__host_device = {.size = sizeof shore__host_device,
                                                .put = put,
                                                .get = get,
                                                .record = record,
                                                .follow = follow,
                                                .wait = wait_for,
                                                .widen = widen};

int shore__host_fill(struct shore__compute *c, struct shore__stream *s, shore__buf dst, float value, size_t n) {
    float *to = (float *)dst.handle;
    for (size_t i = 0; i < n; i++)
        to[i] = value;
    return 0;
}
