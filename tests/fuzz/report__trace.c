/* RUN/trace.spans: any bytes; and any head and spans with checksums that match. */
#include <stdlib.h>
#include <string.h>

#include "report/trace_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check(const unsigned char *file, size_t bytes) {
    struct shore__trace_read read;
    struct shore_diag diag = {0};
    if (shore__trace_parse(file, bytes, "x", &read, &diag)) {
        if (!diag.text[0]) abort();
        return;
    }
    size_t ndrives = json_array_size(json_object_get(read.head, "drives")), steps = 0;
    for (size_t i = 0; i < read.count; i++) {
        const struct shore__work_span *s = &read.spans[i];
        if (s->begin_ns > s->end_ns || (s->drive >= ndrives && s->drive != SHORE__NO_DRIVE)) abort();
        steps += s->kind == SHORE__SPAN_STEP;
    }
    if (steps < read.steps) abort();
    shore__trace_free(&read);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    check(data, bytes);
    const uint8_t *end = bytes ? memchr(data, '\n', bytes) : NULL; /* of the head */
    size_t head = end ? (size_t)(end - data) : bytes, left = end ? bytes - head - 1 : 0;
    struct shore__recorded spans = {.count = (uint32_t)(left / sizeof(struct shore__work_span))};
    size_t at = SHORE__TRACE_START_BYTES + head, size = spans.count * sizeof *spans.spans;
    unsigned char *file = malloc(at + SHORE__TRACE_FRAME_BYTES + size), *copy = malloc(size + 1);
    if (file && copy) {
        if (size) memcpy(copy, end + 1, size);
        spans.spans = (const struct shore__work_span *)(const void *)copy;
        shore__trace_start((const char *)data, head, file);
        memcpy(file + SHORE__TRACE_START_BYTES, data, head);
        shore__trace_frame(&spans, file + at);
        if (size) memcpy(file + at + SHORE__TRACE_FRAME_BYTES, copy, size);
        check(file, at + SHORE__TRACE_FRAME_BYTES + size);
    }
    free(file);
    free(copy);
    return 0;
}
