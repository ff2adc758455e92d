#include "base/arena.h"

#include <assert.h>
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

/* Maps exactly bytes, starting where a huge page may. Unmaps the excess, so that no huge page reaches beyond the
 * end. */
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

/* bytes: rounded up to pages. *rc: the reason if it returns NULL. */
static unsigned char *map_touched(uint64_t *bytes, unsigned flags, int *rc) {
    *rc = flags & ~(unsigned)SHORE_MEMORY_LOCKED ? -EINVAL : *bytes > UINT64_MAX / 2 ? -ENOMEM : 0;
    if (*rc) return NULL;
    *bytes = *bytes ? shore__arena_round(*bytes) : SHORE__ARENA_ALIGN;
    unsigned char *base = map_aligned(*bytes);
    *rc = base ? 0 : -ENOMEM;
    if (!base) return NULL;
    /* advice only: a kernel may know neither */
    madvise(base, *bytes, MADV_HUGEPAGE);
    madvise(base, *bytes, MADV_DONTFORK);
    *rc = touch(base, *bytes) ? -EAGAIN : 0;
    if (!*rc && flags & SHORE_MEMORY_LOCKED && mlock(base, *bytes)) *rc = -EPERM;
    if (!*rc) return base;
    munmap(base, *bytes);
    return NULL;
}

static struct shore_arena *arena_new(uint64_t bytes, unsigned flags, int *rc) {
    struct shore_arena *arena = malloc(sizeof *arena);
    *rc = -ENOMEM;
    unsigned char *base = arena ? map_touched(&bytes, flags, rc) : NULL;
    if (!base) {
        free(arena);
        return NULL;
    }
    arena->base = base;
    arena->bytes = bytes;
    atomic_init(&arena->used, 0);
    return arena;
}

void shore_arena_close(struct shore_arena *arena) {
    if (!arena) return;
    munmap(arena->base, arena->bytes);
    free(arena);
}

/* ---- the same for other programs ---- */

static int refuse(uint64_t bytes, unsigned flags, int rc, struct shore_diag *diag) {
    const struct shore__written size = shore__format_size(bytes);
    if (rc == -EINVAL) return shore__fail(diag, rc, "memory cannot be asked for with flags 0x%x", flags);
    if (rc == -EPERM)
        return shore__fail(diag, SHORE_EBUDGET, "%s of memory cannot be locked; `ulimit -l` says how much can",
                           size.text);
    return shore__fail(diag, SHORE_EBUDGET, "this machine cannot give %s of memory now", size.text);
}

int shore_arena_open(uint64_t bytes, unsigned flags, struct shore_arena **out, struct shore_diag *diag) {
    int rc;
    *out = arena_new(bytes, flags, &rc);
    return rc ? refuse(bytes, flags, rc, diag) : 0;
}

void *shore_arena_alloc(struct shore_arena *arena, uint64_t bytes) {
    return arena ? shore__arena_alloc(arena, bytes) : NULL;
}

uint64_t shore_arena_left(const struct shore_arena *arena) {
    return arena ? shore__arena_left(arena) : 0;
}

void *shore_arena_memory(const struct shore_arena *arena, uint64_t *bytes) {
    *bytes = arena->bytes;
    return arena->base;
}

int shore_buffer_alloc(uint64_t bytes, unsigned flags, void **out, struct shore_diag *diag) {
    uint64_t rounded = bytes;
    int rc;
    *out = map_touched(&rounded, flags, &rc);
    return rc ? refuse(bytes, flags, rc, diag) : 0;
}

void shore_buffer_free(void *buffer, uint64_t bytes) {
    if (buffer) munmap(buffer, bytes ? shore__arena_round(bytes) : SHORE__ARENA_ALIGN);
}

/* ---- allocations ---- */

/* In huge pages as far as they are whole: drives read and write these up to twice as fast. */
static void *from_system(uint64_t bytes) {
    const bool huge = bytes >= HUGE_PAGE_BYTES;
    void *memory = NULL;
    if (posix_memalign(&memory, huge ? HUGE_PAGE_BYTES : SHORE__ARENA_ALIGN, bytes)) return NULL;
    if (huge) madvise(memory, bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES, MADV_HUGEPAGE);
    memset(memory, 0, bytes);
    return memory;
}

void *shore__arena_alloc(struct shore_arena *arena, uint64_t bytes) {
    if (bytes > UINT64_MAX / 2) return NULL;
    uint64_t rounded = bytes ? shore__arena_round(bytes) : SHORE__ARENA_ALIGN;
    if (!arena) return from_system(rounded);
    uint64_t used = atomic_load(&arena->used);
    do {
        assert(used <= arena->bytes);
        if (rounded > arena->bytes - used) return NULL;
    } while (!atomic_compare_exchange_weak(&arena->used, &used, used + rounded));
    return arena->base + used;
}

void shore__arena_free(struct shore_arena *arena, void *memory) {
    if (!arena) free(memory);
}

uint64_t shore__arena_left(const struct shore_arena *arena) {
    return arena ? arena->bytes - atomic_load(&((struct shore_arena *)arena)->used) : UINT64_MAX;
}

void shore__heap_keep(bool keep) {
    mallopt(M_MMAP_THRESHOLD, keep ? 32 << 20 : 256 << 10);
    mallopt(M_TRIM_THRESHOLD, keep ? 64 << 20 : 256 << 10);
}
