/* Gradients of rows from strangers: what opens lies within its bytes, and packs into the same bytes again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "number/gather.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define ELEMS 4096u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static struct shore_layout_tensor tensor = {.elems = ELEMS};
    static const struct shore_layout_block block = {.tensors = &tensor, .ntensors = 1, .elems = ELEMS};
    static float dense[ELEMS];
    /* a buffer of its own: the address sanitizer sees a read beyond its end */
    unsigned char *packed = malloc(bytes + 1), *again = malloc(bytes + 1);
    struct shore__gather_list list = {.count = shore__gather_packed_count(data, bytes)};
    struct shore_gather *items = calloc(list.count + 1, sizeof *items);
    if (packed && again && items) {
        memcpy(packed, data, bytes);
        list.item = items;
        if (shore__gather_unpack(packed, bytes, items) && !shore__gather_fault(&list, &block)) {
            shore__gather_fill(&list, 0, ELEMS, dense);
            if (shore__gather_packed_bytes(&list, 0, ELEMS) != bytes) abort();
            shore__gather_pack(&list, 0, ELEMS, again);
            struct shore_gather *twice = calloc(list.count + 1, sizeof *twice);
            if (twice &&
                (!shore__gather_unpack(again, bytes, twice) || memcmp(again, packed, 8 + 16 * (size_t)list.count)))
                abort();
            free(twice);
        }
    }
    free(items);
    free(again);
    free(packed);
    return 0;
}
