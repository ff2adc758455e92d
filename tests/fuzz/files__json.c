/* JSON from strangers, as a tree: what is read is written and read again as the same; and its numbers as counts. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "files/json.h"
#include "files/json_stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int on_event(void *ctx, const struct shore__json_event *event, struct shore_diag *diag) {
    uint64_t number;
    (void)ctx;
    (void)diag;
    (void)shore__json_event_u64(event, &number);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct shore_diag diag = {0};
    json_t *tree = NULL, *again = NULL;
    int as_tree = shore__json_parse((const char *)data, bytes, "x", &tree, &diag);
    int as_stream = shore__json_stream_text((const char *)data, bytes, "x", 1, on_event, NULL, &diag);
    if (as_tree == 0) {
        char *text = json_dumps(tree, 0);
        if (as_stream != 0 || !text) abort();
        if (shore__json_parse(text, strlen(text), "x", &again, &diag) != 0 || !json_equal(tree, again)) abort();
        free(text);
        json_decref(again);
        json_decref(tree);
    }
    return 0;
}
