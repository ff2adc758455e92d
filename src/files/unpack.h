/* A file as the bytes that are in it: gzip and Zstandard are taken off as they come, in bounded memory.
 */
#ifndef SHORE_FILES_UNPACK_H
#define SHORE_FILES_UNPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"

struct shore__unpack;

/* Asked while a pipe has nothing to give; nonzero gives up with that code. */
typedef int (*shore__wait_fn)(void *ctx, struct shore_diag *diag);

/* Bytes of the name before .gz, .zst or .zstd; of other names, all. */
size_t shore__unpack_name(const char *path);
/* path stays the caller's. Reads the beginning: what the name says and what the bytes say have to agree (SHORE_EINPUT).
 * window_bytes: the most that a Zstandard frame's window may take; 0: its own default. */
int shore__unpack_open(const char *path, uint64_t window_bytes, shore__wait_fn wait, void *wait_ctx,
                       struct shore__unpack **out, struct shore_diag *diag);
/* Fills block unless the end comes first. SHORE_EINPUT for what is cut off or damaged. */
int shore__unpack_read(struct shore__unpack *u, char *block, size_t bytes, size_t *got, struct shore_diag *diag);
uint64_t shore__unpack_done(const struct shore__unpack *u); /* bytes of the file itself */
bool shore__unpack_packed(const struct shore__unpack *u);
void shore__unpack_close(struct shore__unpack *u); /* NULL is fine */

#endif
