/* Codes of sparse gradients from strangers: what opens is read whole, within its segment, the same in tiles of any
 * size, and as many entries as it says.
 *
 * Input: one byte that chooses the tile, the rest a code. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "number/sparse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static float whole[SHORE__SPARSE_SEGMENT], tiled[SHORE__SPARSE_SEGMENT];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes < 1) return 0;
    uint32_t tile = 1u << data[0] % 17;
    struct shore__sparse_reader r, again;
    /* a buffer of its own: the address sanitizer sees a read beyond its end */
    unsigned char *code = malloc(bytes > 1 ? bytes - 1 : 1);
    if (!code) return 0;
    memcpy(code, data + 1, bytes - 1);
    if (shore__sparse_open(code, bytes - 1, &r) == 0) {
        again = r;
        memset(whole, 0, sizeof whole);
        memset(tiled, 0, sizeof tiled);
        shore__sparse_scatter(&r, 0, SHORE__SPARSE_SEGMENT, whole);
        for (uint32_t at = 0; at < SHORE__SPARSE_SEGMENT; at += tile)
            shore__sparse_scatter(&again, at, at + tile, tiled + at);
        if (r.left || again.left || memcmp(whole, tiled, sizeof whole) != 0) abort();
    }
    free(code);
    return 0;
}
