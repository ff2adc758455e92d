/* Arenas: the only source of buffers that grow with the model or the batch.
 *
 * An arena is one anonymous mapping, touched at start and handed out from the front. Single allocations are never
 * freed. madvise asks for transparent huge pages; MADV_DONTFORK keeps the mapping out of child processes. */
#ifndef SHORE_BASE_ARENA_H
#define SHORE_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/memory.h"

#define SHORE__ARENA_ALIGN 4096u

/* Allocates bytes, rounded up to SHORE__ARENA_ALIGN and zeroed at open. NULL: the arena is exhausted. arena NULL:
 * zeroed, aligned memory from the system; free it with shore__arena_free. */
void *shore__arena_alloc(struct shore_arena *arena, uint64_t bytes);
/* Does nothing for an arena's memory; frees the system's. */
void shore__arena_free(struct shore_arena *arena, void *memory);
uint64_t shore__arena_left(const struct shore_arena *arena);

static inline uint64_t shore__arena_round(uint64_t bytes) {
    return (bytes + SHORE__ARENA_ALIGN - 1) / SHORE__ARENA_ALIGN * SHORE__ARENA_ALIGN;
}

/* Configures the heap of the whole process, which is separate from arenas. keep: the heap keeps freed memory for reuse.
 * That is faster where kernels allocate for every product (oneDNN's for AVX2), but leaves holes: aligned allocations of
 * a MiB between small ones that stay. Otherwise allocations of 256 KiB and more return to the system at once. */
void shore__heap_keep(bool keep);

#endif
