/* Copies state from one fleet to another, whatever drives and shares they have. Copies images of segments in bounded
 * memory, and reads and writes at the same time. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/counters.h"
#include "drive/fleet/fleet.h"
#include "plan/transfers.h"
#include "run/lifecycle/copy.h"
#include "storage/room.h"

#define SPANS 8u
#define SPANS_LEAST 4u
#define SPAN_BYTES (UINT64_C(2) << 20)

enum stage { FREE, FETCHING, STORING };

struct span {
    enum stage stage;
    unsigned char *state;
    uint32_t block, segment, count;
    struct shore_wait wait;
};

struct copy {
    struct shore_fleet *from, *to;
    const struct shore_layout *layout;
    uint64_t step, base_step, attempt;
    size_t segment_bytes;
    uint32_t span_segments, spans;
    uint32_t block, segment; /* the next ones */
    uint64_t done_bytes, total_bytes;
    unsigned char *there; /* a span read back from the target fleet */
    struct span span[SPANS];
};

static int fetch(struct copy *c, struct span *p, struct shore_diag *diag) {
    uint32_t left = c->layout->blocks[c->block].segments - c->segment;
    p->block = c->block;
    p->segment = c->segment;
    p->count = left < c->span_segments ? left : c->span_segments;
    shore_wait_init(&p->wait);
    int rc = shore_fleet_fetch(c->from, c->step, p->block, p->segment, p->count, SHORE_FETCH_STATE, p->state,
                               shore_wait_completion(&p->wait));
    if (rc)
        return shore__fail(diag, rc, "block %u, segment %u cannot be read: %s", p->block, p->segment,
                           shore_error_text(rc));
    p->stage = FETCHING;
    c->segment += p->count;
    while (c->block < c->layout->nblocks && c->segment == c->layout->blocks[c->block].segments) {
        c->block++;
        c->segment = 0;
    }
    return 0;
}

/* Whether the target already holds the span. It mostly does for a frozen block, and such a block's other slot has no
 * room of its own for it. */
static bool is_there_already(struct copy *c, const struct span *p) {
    struct shore_wait wait;
    if (!shore__block_rests(&c->layout->blocks[p->block])) return false;
    shore_wait_init(&wait);
    int rc = shore_fleet_fetch(c->to, c->base_step, p->block, p->segment, p->count, SHORE_FETCH_STATE, c->there,
                               shore_wait_completion(&wait));
    if (rc) shore_wait_end(&wait, rc); /* for example, it is not sealed */
    return shore_wait(&wait, NULL) == 0 && memcmp(c->there, p->state, p->count * c->segment_bytes) == 0;
}

static int store(struct copy *c, struct span *p, struct shore_diag *diag) {
    p->stage = FREE;
    int rc = shore_wait(&p->wait, diag);
    if (rc) return rc;
    bool carried = is_there_already(c, p);
    struct shore_store request = {.size = sizeof request,
                                  .base_step = c->base_step,
                                  .attempt = c->attempt,
                                  .block = p->block,
                                  .segment = p->segment,
                                  .count = p->count,
                                  .state = p->state};
    shore_wait_init(&p->wait);
    struct shore_completion done = shore_wait_completion(&p->wait);
    rc = carried ? shore_fleet_carry(c->to, c->base_step, c->attempt, p->block, p->segment, p->count, done)
                 : shore_fleet_store(c->to, &request, done);
    if (rc)
        return shore__fail(diag, rc, "block %u, segment %u cannot be written: %s", p->block, p->segment,
                           shore_error_text(rc));
    p->stage = STORING;
    return 0;
}

static int finish(struct copy *c, struct span *p, struct shore_diag *diag) {
    p->stage = FREE;
    int rc = shore_wait(&p->wait, diag);
    c->done_bytes += p->count * c->segment_bytes;
    return rc;
}

/* Uses the spans as a ring: reads the younger half while the older half is written. */
static int run(struct copy *c, shore__progress_fn progress, void *ctx, struct shore_diag *diag) {
    int rc = 0;
    uint64_t turn = 0;
    while (c->block < c->layout->nblocks && c->layout->blocks[c->block].segments == 0)
        c->block++;
    for (bool busy = true; !rc && busy; turn++) {
        struct span *young = &c->span[turn % c->spans], *old = &c->span[(turn + c->spans / 2) % c->spans];
        if (young->stage == STORING) rc = finish(c, young, diag);
        if (!rc && c->block < c->layout->nblocks) rc = fetch(c, young, diag);
        if (!rc && old->stage == FETCHING) rc = store(c, old, diag);
        busy = false;
        for (uint32_t i = 0; i < c->spans; i++)
            busy = busy || c->span[i].stage != FREE;
        if (!rc && progress && progress(ctx, c->done_bytes, c->total_bytes))
            rc = shore__fail(diag, -ECANCELED, "stopped");
    }
    for (uint32_t i = 0; i < c->spans; i++)
        if (c->span[i].stage != FREE) shore_wait(&c->span[i].wait, NULL);
    return rc;
}

bool shore__copy_is_tight(const struct shore__run *run, struct shore_fleet_options *fleet) {
    uint64_t budget = run->copy_memory_bytes ? run->copy_memory_bytes : run->settings.memory_bytes, now, peak;
    shore__resident_bytes(&now, &peak);
    return budget && shore__copy_in_spans_bytes(run->layout, fleet, SPANS * SPAN_BYTES, peak) > budget;
}

int shore__fleet_copy(struct shore_fleet *from, struct shore_fleet *to, const struct shore_layout *layout,
                      uint64_t base_step, bool tight, shore__progress_fn progress, void *ctx, struct shore_diag *diag) {
    struct copy c = {.from = from, .to = to, .layout = layout, .base_step = base_step};
    int rc = 0;
    c.step = shore__fleet_info(from).step;
    c.attempt = shore_fleet_attempt(to);
    c.segment_bytes = shore_fleet_state_bytes(from);
    if (c.segment_bytes == 0 || c.segment_bytes != shore_fleet_state_bytes(to))
        return shore__fail(diag, SHORE_EMISMATCH, "the two fleets store other planes: their state cannot be copied");
    c.spans = tight ? SPANS_LEAST : SPANS;
    c.span_segments = !tight && c.segment_bytes < SPAN_BYTES ? (uint32_t)(SPAN_BYTES / c.segment_bytes) : 1;
    c.total_bytes = layout->segments * c.segment_bytes;
    for (uint32_t i = 0; !rc && i < c.spans; i++) {
        c.span[i].state = aligned_alloc(SHORE_BUFFER_ALIGN_BYTES, c.span_segments * c.segment_bytes);
        if (!c.span[i].state) rc = shore__fail(diag, -ENOMEM, "out of memory for copying state");
    }
    c.there = aligned_alloc(SHORE_BUFFER_ALIGN_BYTES, c.span_segments * c.segment_bytes);
    if (!rc && !c.there) rc = shore__out_of_memory(diag);
    if (!rc) rc = run(&c, progress, ctx, diag);
    for (uint32_t i = 0; i < c.spans; i++)
        free(c.span[i].state);
    free(c.there);
    return rc;
}

/* Reads the blob that each drive has of its step. *count: how many have one. */
static int read_blobs(struct shore_fleet *from, struct shore_commit *blobs, uint32_t *count, struct shore_diag *diag) {
    void *blob = malloc(SHORE_BLOB_BYTES);
    int rc = blob ? 0 : shore__out_of_memory(diag);
    *count = 0;
    for (uint32_t d = 0; !rc && d < from->ndrives; d++) {
        uint32_t bytes = 0;
        rc = from->drives[d]->ops->blob(from->drives[d], blob, &bytes, diag);
        if (rc || !bytes) continue;
        void *own = malloc(bytes);
        if (!own) rc = shore__out_of_memory(diag);
        if (own) memcpy(own, blob, bytes);
        blobs[d] = (struct shore_commit){.blob = own, .blob_bytes = own ? bytes : 0};
        ++*count;
    }
    free(blob);
    return rc;
}

/* Several processes have a blob each on their first drive: it goes to the same drive of as many, or to the first of as
 * large a part of more or fewer. */
static int commit_blobs(struct shore_fleet *to, const struct shore_fleet *from, const struct shore_commit *commit,
                        const struct shore_commit *blobs, uint32_t count, struct shore_diag *diag) {
    struct shore_commit *each = calloc(to->ndrives, sizeof *each);
    struct shore_wait wait;
    uint32_t part = 0;
    if (!each) return shore__out_of_memory(diag);
    for (uint32_t d = 0; d < to->ndrives; d++)
        each[d] = *commit;
    for (uint32_t d = 0; d < from->ndrives; d++) {
        if (!blobs[d].blob_bytes) continue;
        struct shore_commit *at = &each[to->ndrives == from->ndrives ? d : (uint64_t)part * to->ndrives / count];
        part++;
        if (at->blob_bytes) continue;
        at->blob = blobs[d].blob;
        at->blob_bytes = blobs[d].blob_bytes;
    }
    shore_wait_init(&wait);
    int rc = shore__fleet_commit_each(to, each, shore_wait_completion(&wait));
    rc = rc ? shore__fail(diag, rc, "step %" PRIu64 " cannot be committed: %s", commit->step, shore_error_text(rc))
            : shore_wait(&wait, diag);
    free(each);
    return rc;
}

int shore__fleet_commit_like(struct shore_fleet *to, struct shore_fleet *from, uint64_t step, enum shore_commit_how how,
                             struct shore_diag *diag) {
    unsigned char metrics[SHORE__METRICS_BYTES];
    uint32_t bytes = sizeof metrics, count = 0;
    struct shore_commit *blobs = calloc(from->ndrives, sizeof *blobs);
    if (!blobs) return shore__out_of_memory(diag);
    if (shore_fleet_metrics(from, metrics, &bytes)) bytes = 0;
    const struct shore_commit commit = {
        .size = sizeof commit, .step = step, .how = how, .metrics = metrics, .metrics_bytes = bytes};
    int rc = read_blobs(from, blobs, &count, diag);
    if (!rc) rc = commit_blobs(to, from, &commit, blobs, count, diag);
    for (uint32_t d = 0; d < from->ndrives; d++)
        free((void *)(uintptr_t)blobs[d].blob);
    free(blobs);
    return rc;
}

int shore__digest_text(struct shore_fleet *fleet, char out[33], struct shore_diag *diag) {
    unsigned char digest[16];
    int rc = shore_fleet_digest(fleet, false, digest, diag);
    if (rc == 0) strcpy(out, shore__format_digest(digest).text);
    return rc;
}
