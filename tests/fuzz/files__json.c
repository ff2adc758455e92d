/* JSON from strangers, as a tree and as a stream; what both accept as an object must give the same tree. */
#include <stdint.h>
#include <stdlib.h>

#include "files/json.h"
#include "files/json_stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int on_event(void *ctx, const struct shore__json_event *event, struct shore_diag *diag) {
    uint64_t number;
    (void)shore__json_event_u64(event, &number);
    return shore__json_builder_feed(ctx, event, diag);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct shore__json_builder builder = {0};
    struct shore_diag diag = {{0}};
    json_t *tree = NULL;
    int as_tree = shore__json_parse((const char *)data, bytes, "x", &tree, &diag);
    int as_stream = shore__json_stream_text((const char *)data, bytes, "x", on_event, &builder, &diag);
    /* an escaped half of a surrogate pair is an error to one parser and a replacement to the other */
    if (as_tree == 0 && as_stream == 0 && !json_equal(tree, builder.root)) abort();
    if (as_tree == 0) json_decref(tree);
    shore__json_builder_fini(&builder);
    return 0;
}
