/* Spilling gradients that lie in several places: they are gathered first. */
#include <errno.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/diag.h"
#include "drive/chunk.h"
#include "drive/fleet/join.h"
#include "number/gather.h"

struct spilling {
    struct shore_completion done;
    void *memory;
};

static void spilled(void *ctx, int rc, const struct shore_diag *diag) {
    struct spilling *s = ctx;
    s->done.fn(s->done.ctx, rc, diag);
    shore__arena_free(NULL, s->memory);
    free(s);
}

int shore_fleet_spill_gathered(struct shore_fleet *f, uint32_t block, uint32_t segment, uint32_t count,
                               enum shore_gradient_form form, const struct shore_gather *gather, uint32_t ngather,
                               struct shore_completion done) {
    const struct shore__gather_list list = {gather, ngather};
    size_t each = shore__gradient_segment_bytes(form);
    if (!each || block >= f->layout->nblocks || count > f->layout->blocks[block].segments) return -EINVAL;
    const char *fault = shore__gather_fault(&list, &f->layout->blocks[block]);
    if (fault) {
        struct shore_diag why;
        return shore__join_refuse(done, shore__fail(&why, -EINVAL, "shore_fleet_spill_gathered: %s", fault), &why);
    }
    struct spilling *s = malloc(sizeof *s);
    if (!s) return -ENOMEM;
    *s = (struct spilling){done, shore__arena_alloc(NULL, count * each)};
    uint64_t first = (uint64_t)segment * SHORE_SEGMENT_ELEMS, elems = (uint64_t)count * SHORE_SEGMENT_ELEMS;
    int rc = s->memory ? 0 : -ENOMEM;
    if (!rc && form == SHORE_GRADIENT_BF16) shore__gather_fill_bf16(&list, first, elems, s->memory);
    if (!rc && form == SHORE_GRADIENT_FP32) shore__gather_fill(&list, first, elems, s->memory);
    if (!rc) rc = shore_fleet_spill(f, block, segment, count, form, s->memory, (struct shore_completion){spilled, s});
    if (!rc) return 0;
    shore__arena_free(NULL, s->memory);
    free(s);
    return rc;
}
