/* The one place that buffers which grow with the model or the batch come from.
 *
 * An arena is one anonymous mapping, touched at start, handed out from the front in order; there is no free of single
 * allocations. Transparent huge pages are asked for by madvise. The mapping is marked MADV_DONTFORK.
 */
#ifndef SHORE_BASE_ARENA_H
#define SHORE_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/memory.h"

#define SHORE__ARENA_ALIGN 4096u

/* bytes rounded up to SHORE__ARENA_ALIGN, zeroed at open. NULL when it is exhausted. arena NULL: aligned memory from
 * the system, zeroed, to be given back with shore__arena_free. */
void *shore__arena_alloc(struct shore_arena *arena, uint64_t bytes);
/* With an arena: nothing. Without: gives the memory back. */
void shore__arena_free(struct shore_arena *arena, void *memory);
uint64_t shore__arena_left(const struct shore_arena *arena);

static inline uint64_t shore__arena_round(uint64_t bytes) {
    return (bytes + SHORE__ARENA_ALIGN - 1) / SHORE__ARENA_ALIGN * SHORE__ARENA_ALIGN;
}

/* The heap of the whole process, which is not the arena's. keep: what is freed stays for what comes next, which is
 * faster where kernels allocate memory for every product (oneDNN's for AVX2), but leaves holes: aligned allocations of
 * a MiB between small ones that stay. Otherwise allocations of 256 KiB and more go back to the system at once. */
void shore__heap_keep(bool keep);

#endif
