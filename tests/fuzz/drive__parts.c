/* What a part makes of any bytes that another process may send: the first says whether it was made or opened. Of two
 * drives it has none, so that all of them are told. */
#include <stdlib.h>

#include "longshore/state.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct shore_tensor_spec tensors[] = {{"a", 100, 0}, {"b", 200000, 0}};
    static const struct shore_block_spec blocks[] = {{"first", tensors, 2}, {"second", tensors, 1}};
    static const char *const drives[] = {"/nowhere/a.volume", "/nowhere/b.volume"};
    static const bool mine[2];
    struct shore_fleet_options options = {
        .size = sizeof options, .drives = drives, .ndrives = 2, .mine = mine, .fleet_id = {54, 1}};
    struct shore_layout *layout;
    struct shore_fleet *f;
    struct shore_diag diag;
    if (size < 1 || shore_layout_make(blocks, 2, &layout)) return 0;
    int rc =
        data[0] % 2 ? shore_fleet_create(layout, &options, &f, &diag) : shore_fleet_open(layout, &options, &f, &diag);
    if (rc) abort();
    const void *part = data + 1;
    const size_t bytes = size - 1;
    if (shore_fleet_unite(f, &part, &bytes, 1, &diag) == 0) {
        struct shore_fleet_info info = {.size = sizeof info};
        uint32_t segment, count;
        char text[64];
        if (shore_fleet_info(f, &info) || info.ndrives != 2 || shore_fleet_own(f, 0, &segment, &count)) abort();
        for (uint32_t d = 0; d < 2; d++)
            if (!shore_fleet_drive_path(f, d) || shore_fleet_drive_describe(f, d, text, sizeof text)) abort();
    }
    shore_fleet_close(f);
    shore_layout_free(layout);
    return 0;
}
