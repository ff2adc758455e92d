#include "drive/fleet/peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "drive/function.h"
#include "drive/remote/wire_open.h"

struct peer {
    struct shore__drive drive;
    struct shore__wire_open told;
    int (*fetch_elsewhere)(void *ctx, const struct shore_elsewhere *request, struct shore_completion done);
    void *ctx;
};

static int done_already(struct shore_completion done) {
    done.fn(done.ctx, 0, NULL);
    return 0;
}

static int peer_recovery(const struct shore__drive *d, struct shore__drive_recovery *out, struct shore_diag *diag) {
    *out = ((const struct peer *)d)->told.recovery;
    return 0;
}

static int peer_load(struct shore__drive *d, uint64_t step, struct shore_diag *diag) {
    return 0;
}

static int peer_begin(struct shore__drive *d, uint64_t epoch, uint64_t step, struct shore_diag *diag) {
    return 0;
}

static int peer_init(struct shore__drive *d, uint32_t block, uint32_t segment, uint32_t count, const float *master,
                     const float *m, const float *v, struct shore_diag *diag) {
    return 0;
}

static int peer_fetch(struct shore__drive *d, const struct shore__drive_fetch *fetch, struct shore_completion done) {
    const struct peer *p = (const struct peer *)d;
    struct shore_elsewhere request = {
        .size = sizeof request,
        .step = fetch->step,
        .drive = d->desc->drive,
        .block = fetch->block,
        .segment = fetch->segment,
        .count = fetch->count,
        .kind = fetch->kind,
        .dst = fetch->dst,
        .bytes = fetch->count * shore__fetch_segment_bytes(d->desc->plane_bytes, fetch->kind),
    };
    if (p->fetch_elsewhere && !shore__fetch_is_spilled(fetch->kind)) return p->fetch_elsewhere(p->ctx, &request, done);
    struct shore_diag why;
    done.fn(done.ctx,
            shore__fail(&why, -EINVAL, "%s: another process has this drive, and %s", d->path,
                        p->fetch_elsewhere ? "spilled gradients are read by their own" : "fetch_elsewhere was not set"),
            &why);
    return 0;
}

static int peer_update(struct shore__drive *d, const struct shore_update *update, struct shore_completion done) {
    return done_already(done);
}

static int peer_store(struct shore__drive *d, const struct shore_store *store, struct shore_completion done) {
    return done_already(done);
}

static int peer_call(struct shore__drive *d, const struct shore__call *call, struct shore_completion done) {
    struct shore_diag why;
    if (!shore__call_out_bytes(call)) return done_already(done);
    return shore__call_refuse(done, shore__fail(&why, -EINVAL, "another process has this drive"), d->path, &why);
}

static int peer_commit(struct shore__drive *d, const struct shore_commit *commit, struct shore_completion done) {
    return done_already(done);
}

static int peer_blob(struct shore__drive *d, void *blob, uint32_t *bytes, struct shore_diag *diag) {
    *bytes = 0;
    return 0;
}

static void peer_discard(struct shore__drive *d, uint64_t attempt) {}

static int peer_leaf_sum(struct shore__drive *d, bool deep, unsigned char sum[16], struct shore_diag *diag) {
    memset(sum, 0, 16);
    return 0;
}

static int peer_snapshot(struct shore__drive *d, enum shore__snapshot_act act, const char *name,
                         struct shore_diag *diag) {
    return 0;
}

static void peer_ledger(const struct shore__drive *d, struct shore_ledger *add_to) {}

static int peer_describe(const struct shore__drive *d, char *text, size_t bytes) {
    snprintf(text, bytes, "%s: another process has it", d->path);
    return 0;
}

static void peer_close(struct shore__drive *d) {
    struct peer *p = (struct peer *)d;
    shore__wire_open_free(&p->told);
    free(p);
}

/* It counts nothing, and claims what its own process has checked. */
static const struct shore__drive_ops peer_ops = {
    .caps = SHORE__DRIVE_DURABLE | SHORE__DRIVE_KEEPS_DATA | SHORE__DRIVE_COUNTS_LINK | SHORE__DRIVE_CARRIES,
    .recovery = peer_recovery,
    .load = peer_load,
    .begin = peer_begin,
    .init = peer_init,
    .fetch = peer_fetch,
    .update = peer_update,
    .store = peer_store,
    .carry = peer_store,
    .call = peer_call,
    .commit = peer_commit,
    .blob = peer_blob,
    .discard = peer_discard,
    .leaf_sum = peer_leaf_sum,
    .snapshot = peer_snapshot,
    .ledger = peer_ledger,
    .describe = peer_describe,
    .close = peer_close,
};

int shore__peer_make(const struct shore_fleet_options *options, uint32_t drive, const char *path,
                     struct shore__wire_open *told, struct shore__drive **out, struct shore_diag *diag) {
    struct peer *p = calloc(1, sizeof *p);
    if (!p) return shore__out_of_memory(diag);
    if (!told) p->told = (struct shore__wire_open){.path = strdup(path), .desc = {.drive = drive}};
    if (told) {
        p->told = *told;
        *told = (struct shore__wire_open){0};
        p->told.desc.scratch_bytes = 0; /* the stripes of this process lie on its own drives */
    }
    p->drive = (struct shore__drive){&peer_ops, &p->told.desc, p->told.path, p->told.disk_bytes, NULL, NULL};
    p->fetch_elsewhere = options->fetch_elsewhere;
    p->ctx = options->elsewhere_ctx;
    *out = &p->drive;
    if (p->told.path) return 0;
    free(p);
    return shore__out_of_memory(diag);
}

bool shore__peer_is_unknown(const struct shore__drive *d) {
    return d->ops == &peer_ops && !((const struct peer *)d)->told.has_desc;
}

/* It is what the server of a drive answers to OPEN. What only concerns requests over the wire is the least that the
 * reader accepts. */
int shore__peer_tell(const struct shore__drive *d, struct shore__wire_open *told, struct shore_diag *diag) {
    *told = (struct shore__wire_open){
        .path = (char *)(uintptr_t)d->path,
        .has_desc = true,
        .desc = *d->desc,
        .disk_bytes = d->disk_bytes,
        .slots = 1,
        .span_segments = 1,
        .slot_bytes = (uint64_t)SHORE_SEGMENT_ELEMS * 16,
        .has_recovery = true,
    };
    told->desc.identity_bytes = 0;
    return d->ops->recovery(d, &told->recovery, diag);
}
