/* Reads a file's contents, and decompresses gzip and Zstandard in bounded memory. */
#ifndef SHORE_FILES_UNPACK_H
#define SHORE_FILES_UNPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"

struct shore__unpack;

/* Called while a pipe has nothing to give. Nonzero gives up with that code. */
typedef int (*shore__wait_fn)(void *ctx, struct shore_diag *diag);

/* Length of the name without .gz, .zst or .zstd. */
size_t shore__unpack_name(const char *path);
/* Opens a file and reads its start: its name and its bytes must agree on the compression (SHORE_EINPUT). The caller
 * keeps path. window_bytes: limit of a Zstandard frame's window; 0: Zstandard's own. */
int shore__unpack_open(const char *path, uint64_t window_bytes, shore__wait_fn wait, void *wait_ctx,
                       struct shore__unpack **out, struct shore_diag *diag);
/* Fills block, unless the end comes first. SHORE_EINPUT: the file is cut off or damaged. */
int shore__unpack_read(struct shore__unpack *u, char *block, size_t bytes, size_t *got, struct shore_diag *diag);
uint64_t shore__unpack_done(const struct shore__unpack *u); /* bytes read of the file itself */
bool shore__unpack_packed(const struct shore__unpack *u);
void shore__unpack_close(struct shore__unpack *u); /* NULL is allowed */

#endif
