#include "drive/local/front.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"

static struct shore__front *front_of(const struct shore__drive *d) {
    return (struct shore__front *)(uintptr_t)d;
}

struct shore__local_job *shore__front_job(enum shore__local_kind kind, struct shore_completion done) {
    struct shore__local_job *job = calloc(1, sizeof *job);
    if (job) {
        job->kind = kind;
        job->done = done;
    }
    return job;
}

int shore__front_locate(const struct shore__front *f, struct shore__local_job *job, uint32_t block, uint32_t segment,
                        uint32_t count) {
    const struct shore__extent *extent = shore__extent_find(f->drive.desc, block, segment, count);
    if (!extent) return -EINVAL;
    job->block = block;
    job->segment = segment;
    job->count = count;
    job->local = extent->local + (segment - extent->first);
    return 0;
}

int shore__front_ask(struct shore__front *f, struct shore__local_job *job, struct shore_diag *diag) {
    return shore__lane_ask(&f->updates, &job->job, &job->done, diag);
}

int shore__front_ask_step(struct shore__front *f, enum shore__local_kind kind, uint64_t epoch, uint64_t step,
                          struct shore_diag *diag) {
    struct shore__local_job *job = shore__front_job(kind, (struct shore_completion){0});
    if (!job) return shore__fail(diag, -ENOMEM, "out of memory");
    job->begin.epoch = epoch;
    job->begin.step = step;
    return shore__front_ask(f, job, diag);
}

void shore__front_finish(struct shore__front *f, struct shore__lane *lane, struct shore__local_job *job) {
    if (job->rc && !job->diag.text[0]) shore__fail(&job->diag, job->rc, "%s", shore_error_text(job->rc));
    if (job->rc && job->rc != SHORE_EDISCARDED && !f->attempt_rc && shore__front_is_of_attempt(f, job)) {
        f->attempt_rc = job->rc;
        f->attempt_diag = job->diag;
    }
    bool of_waiter = job->kind == SHORE__LOCAL_DISCARD;
    job->done.fn(job->done.ctx, job->rc, job->rc ? &job->diag : NULL);
    if (!of_waiter) free(job);
    shore__lane_finished(lane);
}

bool shore__front_is_of_attempt(const struct shore__front *f, const struct shore__local_job *job) {
    return job->kind == SHORE__LOCAL_UPDATE || job->kind == SHORE__LOCAL_CARRY ||
           (job->kind == SHORE__LOCAL_STORE && !f->created);
}

bool shore__front_is_discarded(struct shore__front *f, const struct shore__local_job *job) {
    bool update = job->kind == SHORE__LOCAL_UPDATE;
    uint64_t base = update ? job->update.base_step : job->store.base_step;
    uint64_t attempt = update ? job->update.attempt : job->store.attempt;
    return shore__front_is_of_attempt(f, job) && !shore__slots_holds(&f->slots, job->slot, base, attempt);
}

void shore__front_begin_attempt(struct shore__front *f) {
    memset(f->written, 0, f->drive.desc->segments);
    f->attempt_rc = 0;
}

int shore__front_check_written(const struct shore__front *f, const char *what, struct shore_diag *diag) {
    for (uint32_t e = 0; e < f->drive.desc->nextents; e++) {
        const struct shore__extent *extent = &f->drive.desc->extents[e];
        for (uint32_t i = 0; i < extent->count; i++) {
            if (f->written[extent->local + i]) continue;
            return shore__fail(diag, -EINVAL,
                               "%s: block %u, segment %u was not %s, so there is no whole state to commit",
                               f->drive.path, extent->block, extent->first + i, what);
        }
    }
    return 0;
}

int shore__front_check_attempt(const struct shore__front *f, struct shore_diag *diag) {
    if (!f->attempt_rc) return shore__front_check_written(f, "updated or carried in this step", diag);
    *diag = f->attempt_diag;
    return f->attempt_rc;
}

int shore__front_init(struct shore__drive *d, uint32_t block, uint32_t segment, uint32_t count, const float *master,
                      const float *m, const float *v, struct shore_diag *diag) {
    struct shore__front *f = front_of(d);
    struct shore__local_job *job = shore__front_job(SHORE__LOCAL_INIT, (struct shore_completion){0});
    if (!job) return shore__fail(diag, -ENOMEM, "out of memory");
    if (!f->created || shore__front_locate(f, job, block, segment, count)) {
        free(job);
        return shore__fail(diag, -EINVAL, "%s: initial state has segments that are not on this drive", d->path);
    }
    job->init.master = master;
    job->init.m = m;
    job->init.v = v;
    return shore__front_ask(f, job, diag);
}

void shore__front_ledger(const struct shore__drive *d, struct shore_ledger *add_to) {
    struct shore__front *f = front_of(d);
    add_to->drive_read_state += f->read_state;
    add_to->drive_write_state += f->write_state;
    add_to->drive_read_fetch += f->read_fetch;
    add_to->drive_read_spill += f->read_spill;
    add_to->drive_write_commit += f->write_commit;
    for (size_t i = 1; i < SHORE__COUNTERS; i++)
        *shore__counter(add_to, i) += f->moved[i];
    add_to->update_io_wait_ns += f->io_wait_ns;
    add_to->update_compute_ns += f->compute_ns;
}

int shore__front_begin(struct shore__drive *d, uint64_t epoch, uint64_t step, struct shore_diag *diag) {
    return shore__front_ask_step(front_of(d), SHORE__LOCAL_BEGIN, epoch, step, diag);
}

static bool is_fit(const struct shore__front *f, const void *buffer) {
    return !f->aligned || (uintptr_t)buffer % SHORE_BUFFER_ALIGN_BYTES == 0;
}

static bool has_spilled(const struct shore__front *f, const struct shore__local_job *job,
                        enum shore_gradient_form form) {
    return f->spilled && shore__all_spilled(f->spilled + job->local, job->count, form);
}

int shore__front_fetch(struct shore__drive *d, const struct shore__drive_fetch *fetch, struct shore_completion done) {
    struct shore__front *f = front_of(d);
    const uint32_t *bytes = f->config.plane_bytes;
    bool spilled = shore__fetch_is_spilled(fetch->kind);
    int slot = spilled ? 0 : shore__slots_find(&f->slots, fetch->step);
    if (slot < 0 || !is_fit(f, fetch->dst)) return -EINVAL;
    if (fetch->kind == SHORE_FETCH_M && !bytes[SHORE_PLANE_M]) return -EINVAL;
    if (fetch->kind == SHORE_FETCH_V && !bytes[SHORE_PLANE_V]) return -EINVAL;
    if (fetch->kind == SHORE_FETCH_R && !bytes[SHORE_PLANE_R]) return -EINVAL;
    struct shore__local_job *job = shore__front_job(SHORE__LOCAL_FETCH, done);
    if (!job) return -ENOMEM;
    int rc = shore__front_locate(f, job, fetch->block, fetch->segment, fetch->count);
    if (!rc && spilled && !has_spilled(f, job, shore__fetch_form(fetch->kind))) rc = -EINVAL;
    if (rc) {
        free(job);
        return rc;
    }
    job->slot = (unsigned)slot;
    job->fetch = *fetch;
    shore__lane_push(&f->fetches, &job->job);
    return 0;
}

/* Pushes the job to the update lane, or frees it. slot: the one to read, or a negative code. */
static int push_update(struct shore__front *f, struct shore__local_job *job, int slot, uint32_t order) {
    if (slot < 0) {
        free(job);
        return slot;
    }
    job->slot = (unsigned)slot;
    job->job.order = order;
    shore__lane_push(&f->updates, &job->job);
    return 0;
}

int shore__front_update(struct shore__drive *d, const struct shore_update *update, struct shore_completion done) {
    struct shore__front *f = front_of(d);
    int rc = shore__update_check(&f->config, update);
    if (rc) return rc;
    struct shore__local_job *job = shore__front_job(SHORE__LOCAL_UPDATE, done);
    if (!job) return -ENOMEM;
    rc = shore__front_locate(f, job, update->block, update->segment, update->count);
    if (!rc && shore__update_is_spilled(update) && !has_spilled(f, job, update->form)) rc = -EINVAL;
    job->update = *update;
    return push_update(f, job, rc ? rc : shore__slots_write(&f->slots, update->base_step, update->attempt),
                       update->order);
}

int shore__front_store(struct shore__drive *d, const struct shore_store *store, struct shore_completion done) {
    struct shore__front *f = front_of(d);
    struct shore__local_job *job = shore__front_job(SHORE__LOCAL_STORE, done);
    if (!job) return -ENOMEM;
    int rc = shore__front_locate(f, job, store->block, store->segment, store->count);
    /* a new drive gets its initial state in slot 0 */
    int slot = rc ? rc : f->created ? 1 : shore__slots_write(&f->slots, store->base_step, store->attempt);
    job->store = *store;
    return push_update(f, job, slot, store->order);
}

int shore__front_carry(struct shore__drive *d, const struct shore_store *which, struct shore_completion done) {
    struct shore__front *f = front_of(d);
    struct shore__local_job *job = shore__front_job(SHORE__LOCAL_CARRY, done);
    if (!job) return -ENOMEM;
    int rc = shore__front_locate(f, job, which->block, which->segment, which->count);
    job->store = *which;
    return push_update(f, job, rc ? rc : shore__slots_write(&f->slots, which->base_step, which->attempt), 0);
}

int shore__front_call(struct shore__drive *d, const struct shore__call *call, struct shore_completion done) {
    struct shore__front *f = front_of(d);
    struct shore_diag why;
    int rc = shore__call_check(call, d->desc, &why);
    if (rc) return shore__call_refuse(done, rc, d->path, &why);
    const struct shore__function *function = shore__function(call->function);
    if (!function->run && !is_fit(f, function->link_in ? call->in : call->out)) return -EINVAL;
    struct shore__local_job *job = shore__front_job(SHORE__LOCAL_CALL, done);
    if (!job) return -ENOMEM;
    if (function->over == SHORE__OVER_SEGMENTS) shore__front_locate(f, job, call->block, call->segment, call->count);
    job->call = *call;
    shore__lane_push(&f->fetches, &job->job);
    return 0;
}

int shore__front_call_begins(struct shore__front *f, struct shore__local_job *job) {
    const struct shore__call *c = &job->call;
    const struct shore__function *function = shore__function(c->function);
    int slot = function->of_step ? shore__slots_find(&f->slots, c->step) : 0;
    if (function->of_attempt && !shore__slots_attempt_is(&f->slots, c->attempt)) return SHORE_EDISCARDED;
    if (slot < 0)
        return shore__fail(&job->diag, SHORE_ESTALE, "%s: %s is of step %" PRIu64 ", which the drive does not hold",
                           f->drive.path, function->name, c->step);
    job->slot = (unsigned)slot;
    return 0;
}

int shore__front_commit(struct shore__drive *d, const struct shore_commit *commit, struct shore_completion done) {
    struct shore__local_job *job = shore__front_job(SHORE__LOCAL_COMMIT, done);
    if (!job) return -ENOMEM;
    job->commit = commit;
    return push_update(front_of(d), job, 0, UINT32_MAX);
}

void shore__front_discard(struct shore__drive *d, uint64_t attempt) {
    struct shore__front *f = front_of(d);
    /* not from the heap: a discard cannot fail */
    struct shore__local_job behind_all = {.kind = SHORE__LOCAL_DISCARD, .job.order = UINT32_MAX};
    shore__slots_discard(&f->slots, attempt);
    shore__front_ask(f, &behind_all, NULL);
    shore__lane_drain(&f->fetches);
}
