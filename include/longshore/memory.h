/* Memory that is mapped and touched when it is made, in whole pages, and locked if asked for. A forked child has none
 * of it, since it would otherwise take pages from under direct I/O.
 *
 * A fleet takes its memory from an arena (shore_fleet_options.arena), so a program decides once how much that is.
 * shore_fleet_memory_bytes() says how much is useful. A buffer holds data that is handed to a fleet: parameters,
 * gradients, state, scratch.
 */
#ifndef LONGSHORE_MEMORY_H
#define LONGSHORE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHORE_BUFFER_ALIGN_BYTES 4096u /* of buffers that direct I/O fills and reads */

enum shore_memory_flags {
    SHORE_MEMORY_LOCKED = 1 /* never paged out: counts against `ulimit -l` */
};

struct shore_arena;

/* Makes an arena. Units: bytes, rounded up to pages. flags: of shore_memory_flags, or 0. Ownership: the caller's, for
 * shore_arena_close(). Errors: SHORE_EBUDGET (there is too little memory, or too little can be locked), -EINVAL (an
 * unknown flag). */
int shore_arena_open(uint64_t bytes, unsigned flags, struct shore_arena **out, struct shore_diag *diag);

/* Gives all its memory back. Ownership: no fleet that was made with it is still open. NULL is allowed. */
void shore_arena_close(struct shore_arena *arena);

/* A part of the arena, zeroed, aligned to SHORE_BUFFER_ALIGN_BYTES. Parts are only given back all together. NULL: too
 * little is left. Units: bytes, rounded up to pages. Ownership: the arena's. Threading: any. */
void *shore_arena_alloc(struct shore_arena *arena, uint64_t bytes);

/* Bytes that are left. Threading: any. */
uint64_t shore_arena_left(const struct shore_arena *arena);

/* Where the arena lies, to register it with a driver (cudaHostRegister, ibv_reg_mr). Threading: any. */
void *shore_arena_memory(const struct shore_arena *arena, uint64_t *bytes);

/* A zeroed buffer that begins at a multiple of SHORE_BUFFER_ALIGN_BYTES. Units: bytes, rounded up to pages. flags: as
 * shore_arena_open(). Ownership: the caller's, for shore_buffer_free(). Threading: any. Errors: as shore_arena_open().
 */
int shore_buffer_alloc(uint64_t bytes, unsigned flags, void **out, struct shore_diag *diag);

/* Units: bytes as they were given to shore_buffer_alloc(). Ownership: no request that uses it is under way. NULL is
 * allowed. Threading: any. */
void shore_buffer_free(void *buffer, uint64_t bytes);

/* A size as people write it: "2GiB", "500M", "1.5 GiB", "64k", "4096". K, M, G, T, P and KiB, MiB.. are powers of
 * 1,024, and KB, MB.. of 1,000; case does not matter. Units: bytes. Threading: any. Errors: -EINVAL (anything else). */
int shore_size_parse(const char *text, uint64_t *bytes);

/* A size for people: "1.50 GiB". up: at least bytes, for minimums, which shore_size_parse() takes. Returns out, always
 * terminated. Threading: any. */
const char *shore_size_say(uint64_t bytes, bool up, char *out, size_t out_bytes);

/* A time for people: "12 ms", "1.2 s", "2 min 3 s". Units: seconds. Returns out, always terminated. Threading: any. */
const char *shore_seconds_say(double seconds, char *out, size_t out_bytes);

#ifdef __cplusplus
}
#endif

#endif
