#include "base/arena.h"

#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/diag.h"
#include "base/units.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define HUGE_PAGE_BYTES (UINT64_C(2) << 20)

struct shore_arena {
    unsigned char *base;
    uint64_t bytes;
    _Atomic uint64_t used;
};

/* A mapping of exactly bytes that starts where a huge page may: what is mapped beyond it is given back, so that no huge
 * page reaches over its end. */
static unsigned char *map_aligned(uint64_t bytes) {
    uint64_t mapped = bytes + HUGE_PAGE_BYTES;
    unsigned char *p = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    uint64_t head = (HUGE_PAGE_BYTES - (uintptr_t)p % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    if (head) munmap(p, head);
    munmap(p + head + bytes, mapped - head - bytes);
    return p + head;
}

static int touch(unsigned char *base, uint64_t bytes) {
    while (madvise(base, bytes, MADV_POPULATE_WRITE) != 0) {
        if (errno == EAGAIN || errno == EINTR) continue;
        if (errno != EINVAL && errno != ENOSYS) return -ENOMEM;
        /* kernels before 5.14 */
        for (uint64_t i = 0; i < bytes; i += SHORE__ARENA_ALIGN)
            *(volatile unsigned char *)(base + i) = 0;
        break;
    }
    return 0;
}

int shore__arena_open(uint64_t bytes, struct shore_arena **out, struct shore_diag *diag) {
    char size[32];
    shore__format_size(bytes, size, sizeof size);
    struct shore_arena *arena = malloc(sizeof *arena);
    bool possible = bytes <= UINT64_MAX / 2;
    if (possible) bytes = bytes ? shore__arena_round(bytes) : SHORE__ARENA_ALIGN;
    unsigned char *base = arena && possible ? map_aligned(bytes) : NULL;
    if (!base) {
        free(arena);
        return shore__fail(diag, SHORE_EBUDGET, "cannot map %s of memory; give a smaller --memory", size);
    }
    /* advice only: both may be unknown to a kernel */
    madvise(base, bytes, MADV_HUGEPAGE);
    madvise(base, bytes, MADV_DONTFORK);
    if (touch(base, bytes) != 0) {
        munmap(base, bytes);
        free(arena);
        return shore__fail(diag, SHORE_EBUDGET, "this machine cannot give %s of memory now; give a smaller --memory",
                           size);
    }
    arena->base = base;
    arena->bytes = bytes;
    atomic_init(&arena->used, 0);
    *out = arena;
    return 0;
}

void shore__arena_close(struct shore_arena *arena) {
    if (!arena) return;
    munmap(arena->base, arena->bytes);
    free(arena);
}

void *shore__arena_alloc(struct shore_arena *arena, uint64_t bytes) {
    if (bytes > UINT64_MAX / 2) return NULL;
    uint64_t rounded = bytes ? shore__arena_round(bytes) : SHORE__ARENA_ALIGN;
    if (!arena) {
        void *piece = aligned_alloc(SHORE__ARENA_ALIGN, rounded);
        if (piece) memset(piece, 0, rounded);
        return piece;
    }
    uint64_t used = atomic_load(&arena->used);
    do {
        if (rounded > arena->bytes - used) return NULL;
    } while (!atomic_compare_exchange_weak(&arena->used, &used, used + rounded));
    return arena->base + used;
}

void shore__arena_free(struct shore_arena *arena, void *piece) {
    if (!arena) free(piece);
}

uint64_t shore__arena_left(const struct shore_arena *arena) {
    return arena ? arena->bytes - atomic_load(&((struct shore_arena *)arena)->used) : UINT64_MAX;
}

void shore__heap_keep(bool keep) {
    mallopt(M_MMAP_THRESHOLD, keep ? 32 << 20 : 256 << 10);
    mallopt(M_TRIM_THRESHOLD, keep ? 64 << 20 : 256 << 10);
}
