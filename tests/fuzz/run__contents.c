/* What run.json says of another program's tensors: what is taken is written and taken again as the same. */
#include <stdlib.h>

#include "files/json.h"
#include "run/contents.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct shore_diag diag = {0};
    struct shore__contents *c = NULL, *again = NULL;
    json_t *j = NULL;
    if (shore__json_parse((const char *)data, bytes, "x", &j, &diag)) return 0;
    const json_t *program = json_object_get(j, "program");
    if (shore__contents_from_json(json_object_get(j, "blocks"), program, "x", &c, &diag) == 0) {
        json_t *first = shore__contents_to_json(c), *second = NULL;
        if (!first || shore__contents_from_json(first, c->program, "x", &again, &diag)) abort();
        second = shore__contents_to_json(again);
        if (!json_equal(first, second)) abort();
        json_decref(first);
        json_decref(second);
        shore__contents_free(again);
        shore__contents_free(c);
    }
    json_decref(j);
    return 0;
}
