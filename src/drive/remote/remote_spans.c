/* Cuts requests of a remote drive into spans that fit a slot. */
#include <stdlib.h>

#include "drive/layout.h"
#include "drive/remote/remote_link.h"

struct remote_whole *shore__remote_whole(uint32_t nparts, struct shore_completion done) {
    struct remote_whole *w = calloc(1, sizeof *w + nparts * sizeof w->part[0]);
    if (!w) return NULL;
    w->done = done;
    w->nparts = nparts;
    return w;
}

int shore__remote_send(struct remote *r, struct remote_whole *w) {
    int rc = shore__remote_submit(r, w);
    if (rc) free(w);
    return rc;
}

uint32_t shore__remote_span(const struct remote *r, uint64_t each) {
    uint64_t n = each ? r->info.slot_bytes / each : r->info.span_segments;
    return n ? (uint32_t)(n < 64 ? n : 64) : 1;
}

struct remote_whole *shore__remote_over_segments(uint16_t type, uint32_t block, uint32_t segment, uint32_t count,
                                                 uint32_t most, struct shore_completion done) {
    struct remote_whole *w = shore__remote_whole((count + most - 1) / most, done);
    for (uint32_t i = 0; w && i < w->nparts; i++) {
        uint32_t at = i * most;
        struct shore__wire_request *f = &w->part[i].fields;
        f->type = type;
        f->block = block;
        f->segment = segment + at;
        f->count = count - at < most ? count - at : most;
    }
    return w;
}

size_t shore__remote_crossing(const struct remote *r, const struct shore__wire_request *f, size_t segment_bytes) {
    return shore__layout_bytes(r->config.layout, f->block, f->segment, f->count, segment_bytes);
}
