#include "drive/reach.h"

#include <errno.h>

#include "base/diag.h"
#include "drive/chunk.h"

int shore__piece_check(const struct shore__reach *r, const struct shore__call *call, bool write,
                       const struct shore__piece *p, uint32_t *local, struct shore_diag *diag) {
    const struct shore__function *f = shore__function(call->function);
    const size_t spilled = r->desc->spill ? shore__gradient_segment_bytes(call->form) : 0;
    uint64_t room = r->desc->scratch_bytes;
    bool good = p->bytes && p->offset % SHORE__IO_ALIGN == 0 && p->bytes % SHORE__IO_ALIGN == 0 &&
                (uintptr_t)p->buffer % SHORE__IO_ALIGN == 0;
    if (p->of != SHORE__PIECE_SCRATCH) {
        const struct shore__extent *extent = shore__extent_find(r->desc, p->block, p->segment, 1);
        good = good && extent;
        if (extent) *local = extent->local + (p->segment - extent->first);
    }
    if (p->of == SHORE__PIECE_PLANE) {
        room = r->config->plane_bytes[p->plane];
        good = good && f->of_step && !write;
    } else if (p->of == SHORE__PIECE_SPILLED) {
        room = spilled;
        good = good && (!write || p->bytes == spilled);
    }
    if (good && p->offset <= room && p->bytes <= room - p->offset) return 0;
    return shore__fail(diag, -EINVAL, "%s reaches for what is not on the drive", f->name);
}
