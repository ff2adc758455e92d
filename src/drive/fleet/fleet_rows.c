/* Rows of a table. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/arena.h"
#include "base/diag.h"
#include "base/sized.h"
#include "drive/fleet/join.h"

/* The elements of a row that lie in one segment. */
static int pick(struct shore_fleet *f, const struct shore_rows *r, uint32_t i, unsigned char *segment, uint32_t *held) {
    const size_t bytes = r->kind == SHORE_FETCH_BF16 ? 2 : 4;
    uint64_t first = r->offset_elems + (uint64_t)r->row[i] * r->columns;
    unsigned char *to = (unsigned char *)r->dst + (size_t)i * r->columns * bytes;
    for (uint64_t at = first, end = first + r->columns, n; at < end; at += n) {
        uint32_t s = (uint32_t)(at / SHORE_SEGMENT_ELEMS);
        uint64_t within = at % SHORE_SEGMENT_ELEMS;
        n = end - at < SHORE_SEGMENT_ELEMS - within ? end - at : SHORE_SEGMENT_ELEMS - within;
        if (*held != s) {
            struct shore_wait wait;
            shore_wait_init(&wait);
            int rc = shore_fleet_fetch(f, r->step, r->block, s, 1, r->kind, segment, shore_wait_completion(&wait));
            if (!rc) rc = shore_wait(&wait, NULL);
            if (rc) return rc;
            *held = s;
        }
        memcpy(to + (at - first) * bytes, segment + within * bytes, n * bytes);
    }
    return 0;
}

int shore_fleet_gather(struct shore_fleet *f, const struct shore_rows *given, struct shore_completion done) {
    struct shore_rows known, *r = &known;
    struct shore_diag why;
    int rc = shore__sized_in(r, sizeof *r, given, "shore_rows", &why);
    if (rc) return shore__join_refuse(done, rc, &why);
    if (r->block >= f->layout->nblocks || (r->kind != SHORE_FETCH_BF16 && r->kind != SHORE_FETCH_MASTER))
        return shore__join_refuse(done, shore__fail(&why, -EINVAL, "shore_fleet_gather: no such block or kind"), &why);
    uint64_t elems = f->layout->blocks[r->block].elems;
    uint64_t rows = r->columns && r->offset_elems < elems ? (elems - r->offset_elems) / r->columns : 0;
    for (uint32_t i = 0; i < r->count; i++)
        if (r->row[i] >= rows)
            return shore__join_refuse(
                done, shore__fail(&why, -EINVAL, "shore_fleet_gather: row %u of a table of %" PRIu64, r->row[i], rows),
                &why);
    unsigned char *segment = shore__arena_alloc(NULL, SHORE_SEGMENT_ELEMS * sizeof(float));
    if (!segment) return -ENOMEM;
    uint32_t held = UINT32_MAX;
    for (uint32_t i = 0; !rc && i < r->count; i++)
        rc = pick(f, r, i, segment, &held);
    shore__arena_free(NULL, segment);
    shore_complete(done, rc, NULL);
    return 0;
}
