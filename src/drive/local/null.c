/* A null drive: accepts everything, keeps nothing, returns zeros. It shows what a fleet costs without its drives. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "drive/chunk.h"
#include "drive/function.h"
#include "drive/lane.h"

struct null_job {
    struct shore__job job;
    struct shore_completion done;
    void *zero; /* zeros to write, or NULL */
    size_t zero_bytes;
    bool commit, skip;
    uint64_t step;
};

struct null_drive {
    struct shore__drive drive;
    struct shore__drive_config config;
    struct shore__volume_desc desc;
    struct shore__slots slots;
    struct shore__lane lane;
    bool begun;
};

static struct null_drive *null_of(const struct shore__drive *d) {
    return (struct null_drive *)d;
}

static void *null_lane(void *ctx) {
    struct null_drive *n = ctx;
    struct shore__job *next;
    while ((next = shore__lane_pop(&n->lane, true))) {
        struct null_job *job = (struct null_job *)next;
        if (job->zero) memset(job->zero, 0, job->zero_bytes);
        if (job->commit) shore__slots_commit(&n->slots, job->step, job->skip);
        struct shore_completion done = job->done;
        free(job);
        done.fn(done.ctx, 0, NULL);
        shore__lane_finished(&n->lane);
    }
    return NULL;
}

static int push(struct null_drive *n, struct null_job with) {
    struct null_job *job = malloc(sizeof *job);
    if (!job) return -ENOMEM;
    *job = with;
    shore__lane_push(&n->lane, &job->job);
    return 0;
}

static int null_recovery(const struct shore__drive *d, struct shore__drive_recovery *out, struct shore_diag *diag) {
    memset(out, 0, sizeof *out);
    return 0;
}

static int null_load(struct shore__drive *d, uint64_t step, struct shore_diag *diag) {
    return shore__fail(diag, SHORE_EMISSING, "null: keeps nothing");
}

static int null_begin(struct shore__drive *d, uint64_t epoch, uint64_t step, struct shore_diag *diag) {
    shore__slots_set(&null_of(d)->slots, 0, step);
    null_of(d)->begun = true;
    return 0;
}

static int null_init(struct shore__drive *d, uint32_t block, uint32_t segment, uint32_t count, const float *master,
                     const float *m, const float *v, struct shore_diag *diag) {
    return 0;
}

static int null_fetch(struct shore__drive *d, const struct shore__drive_fetch *fetch, struct shore_completion done) {
    if (!shore__extent_find(d->desc, fetch->block, fetch->segment, fetch->count)) return -EINVAL;
    size_t each = shore__fetch_segment_bytes(d->desc->plane_bytes, fetch->kind);
    return push(null_of(d), (struct null_job){.done = done, .zero = fetch->dst, .zero_bytes = each * fetch->count});
}

static int null_update(struct shore__drive *d, const struct shore_update *update, struct shore_completion done) {
    struct null_drive *n = null_of(d);
    int rc = shore__update_check(&n->config, update);
    if (rc) return rc;
    rc = shore__slots_write(&n->slots, update->base_step, update->attempt);
    if (rc < 0) return rc;
    size_t elem_bytes = n->config.fp32_params ? 4 : 2;
    return push(n, (struct null_job){.done = done,
                                     .job.order = update->order,
                                     .zero = update->params_out,
                                     .zero_bytes = elem_bytes * update->count * SHORE_SEGMENT_ELEMS});
}

static int null_store(struct shore__drive *d, const struct shore_store *store, struct shore_completion done) {
    struct null_drive *n = null_of(d);
    int rc = n->begun ? shore__slots_write(&n->slots, store->base_step, store->attempt) : 0;
    return rc < 0 ? rc : push(n, (struct null_job){.done = done, .job.order = store->order});
}

static int null_call(struct shore__drive *d, const struct shore__call *call, struct shore_completion done) {
    int rc = shore__call_check(call, d->desc);
    if (rc) return rc;
    bool brings = shore__function(call->function)->brings;
    if (shore__function(call->function)->seals) memset(call->seal, 0, 16);
    return push(
        null_of(d),
        (struct null_job){.done = done, .zero = brings ? NULL : call->out, .zero_bytes = shore__call_bytes(call)});
}

static int null_commit(struct shore__drive *d, const struct shore_commit *commit, struct shore_completion done) {
    return push(null_of(d), (struct null_job){.done = done,
                                              .job.order = UINT32_MAX,
                                              .commit = true,
                                              .skip = commit->how == SHORE_COMMIT_SKIPPED,
                                              .step = commit->step});
}

static int null_blob(struct shore__drive *d, void *blob, uint32_t *bytes, struct shore_diag *diag) {
    *bytes = 0;
    return 0;
}

static void null_discard(struct shore__drive *d, uint64_t attempt) {
    shore__slots_discard(&null_of(d)->slots, attempt);
    shore__lane_drain(&null_of(d)->lane);
}

static int null_leaf_sum(struct shore__drive *d, bool deep, unsigned char sum[16], struct shore_diag *diag) {
    memset(sum, 0, 16);
    return 0;
}

static int null_snapshot(struct shore__drive *d, enum shore__snapshot_act act, const char *name,
                         struct shore_diag *diag) {
    return shore__fail(diag, -ENOTSUP, "null: keeps nothing, so it has no snapshots");
}

static void null_ledger(const struct shore__drive *d, struct shore_ledger *add_to) {}

static int null_describe(const struct shore__drive *d, char *text, size_t bytes) {
    snprintf(text, bytes, "null: keeps nothing");
    return 0;
}

static void null_close(struct shore__drive *d) {
    struct null_drive *n = null_of(d);
    shore__lane_stop(&n->lane);
    pthread_mutex_destroy(&n->slots.mutex);
    free((void *)(uintptr_t)n->desc.extents);
    free(n);
}

static const struct shore__drive_ops null_ops = {
    .recovery = null_recovery,
    .load = null_load,
    .begin = null_begin,
    .init = null_init,
    .fetch = null_fetch,
    .update = null_update,
    .store = null_store,
    .carry = null_store,
    .call = null_call,
    .commit = null_commit,
    .blob = null_blob,
    .discard = null_discard,
    .leaf_sum = null_leaf_sum,
    .snapshot = null_snapshot,
    .ledger = null_ledger,
    .describe = null_describe,
    .close = null_close,
};

int shore__null_create(const struct shore__drive_config *config, const struct shore__volume_desc *desc,
                       struct shore__drive **out, struct shore_diag *diag) {
    struct null_drive *n = calloc(1, sizeof *n);
    if (!n) return shore__fail(diag, -ENOMEM, "null: out of memory");
    n->drive.ops = &null_ops;
    n->drive.desc = &n->desc;
    n->drive.path = "null:";
    n->config = *config;
    shore__slots_init(&n->slots);
    int rc = shore__desc_copy(desc, &n->desc);
    if (!rc) rc = shore__lane_start(&n->lane, "shore-null", null_lane, n);
    if (rc) {
        null_close(&n->drive);
        return shore__fail(diag, rc, "null: %s", shore_error_text(rc));
    }
    *out = &n->drive;
    return 0;
}
