/* Snapshots of another program's run, rolling back to one, and removing the run. */
#include <errno.h>
#include <inttypes.h>

#include "base/diag.h"
#include "base/sized.h"
#include "base/units.h"
#include "drive/counters.h"
#include "drive/fleet/fleet_snapshot.h"
#include "run/door/door.h"
#include "run/lifecycle/snapshots.h"
#include "run/standing.h"

static int take_work(const struct shore_work *given, struct shore_work *out, struct shore_diag *diag) {
    *out = (struct shore_work){.size = sizeof *out};
    return given ? shore__sized_in(out, sizeof *out, given, "shore_work", diag) : 0;
}

/* The same for a run that is not open; claims the directory if the caller says that it is not a copy. */
static int take_work_on(const char *path, const struct shore_work *given, struct shore_work *out,
                        struct shore_diag *diag) {
    int rc = take_work(given, out, diag);
    return rc == 0 && out->not_a_copy ? shore__run_claim(path, diag) : rc;
}

/* Between steps. part: as several processes make it together, each with its part of the run. */
static int may_snapshot(const struct shore_run *r, bool part, struct shore_diag *diag) {
    int rc = shore__door_writable(r, diag);
    if (rc == 0) rc = shore__door_idle(r, diag);
    if (rc == 0 && r->part != part)
        rc = shore__fail(diag, -EINVAL, "%s: is open %s: shore_run_snapshot%s", r->run->path,
                         part ? "as a whole" : "in parts", part ? "() makes its snapshots" : "_begin() begins one");
    if (rc == 0 && r->unconfirmed)
        rc = shore__fail(diag, -EBUSY, "%s: step %" PRIu64 " is not confirmed yet", r->run->path, r->step);
    return rc;
}

int shore_run_snapshot(struct shore_run *r, const char *name, uint64_t keep, struct shore_diag *diag) {
    int rc = may_snapshot(r, false, diag);
    if (rc) return rc;
    return name ? shore__snapshot_make(r->run, r->fleet, name, false, diag)
                : shore__snapshot_automatic(r->run, r->fleet, keep, r->note, r->note_ctx, diag);
}

struct name {
    char text[32];
};
static struct name name_of_step(const struct shore_run *r) {
    struct name name;
    shore__snapshot_name_of_step(shore__fleet_info(r->fleet).step, name.text);
    return name;
}

int shore_run_snapshot_begin(struct shore_run *r, const char *name, struct shore_diag *diag) {
    int rc = may_snapshot(r, true, diag);
    if (rc || r->run->joins) return rc;
    const struct name automatic = name_of_step(r);
    if (!name) rc = shore__snapshot_replace(r->run, automatic.text, r->note, r->note_ctx, diag);
    if (rc == 0) rc = shore__snapshot_begin(r->run, r->fleet, name ? name : automatic.text, diag);
    r->snapshot_begun = rc == 0;
    return rc;
}

int shore_run_snapshot_copy(struct shore_run *r, const char *name, struct shore_diag *diag) {
    int rc = may_snapshot(r, true, diag);
    if (rc == 0) rc = shore__fleet_snapshot(r->fleet, name ? name : name_of_step(r).text, diag);
    r->snapshot_copied = rc == 0;
    return rc;
}

int shore_run_snapshot_end(struct shore_run *r, const char *name, uint64_t keep, const unsigned char *digest,
                           struct shore_diag *diag) {
    int rc = may_snapshot(r, true, diag);
    if (rc) return rc;
    const struct name automatic = name_of_step(r);
    const bool own_name = name, begun = r->snapshot_begun;
    if (!name) name = automatic.text;
    if (!digest && r->snapshot_copied) shore__fleet_snapshot_remove(r->fleet, name);
    if (!digest && begun) shore__snapshot_give_up(r->run, name);
    r->snapshot_begun = r->snapshot_copied = false;
    if (!digest || !begun) return 0;
    rc = shore__snapshot_finish(r->run, r->fleet, name, !own_name, shore__format_digest(digest).text, diag);
    return rc || own_name ? rc : shore__snapshots_prune(r->run, keep, r->note, r->note_ctx, diag);
}

int shore_run_snapshot_remove(struct shore_run *r, const char *name, struct shore_diag *diag) {
    int rc = shore__door_writable(r, diag);
    if (rc == 0 && r->run->joins)
        rc = shore__fail(diag, -EROFS, "%s: only the process that keeps the run removes its snapshots", r->run->path);
    if (rc == 0) rc = shore__run_refuse_copy(r->run, SHORE__RUN_ELSEWHERE, diag);
    return rc ? rc : shore__snapshot_remove(r->run->path, name, &r->run->settings.drives, r->note, r->note_ctx, diag);
}

int shore_run_snapshots(const char *path, void (*each)(void *ctx, const struct shore_snapshot *snapshot), void *ctx,
                        struct shore_diag *diag) {
    struct shore__snapshot *list = NULL;
    size_t count = 0;
    int rc = shore__is_run(path) ? shore__snapshots_read(path, &list, &count, diag) : shore__not_a_run(path, diag);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        const struct shore_snapshot s = {list[i].name, list[i].date, list[i].digest, list[i].step, list[i].automatic};
        each(ctx, &s);
    }
    shore__snapshots_free(list, count);
    return rc;
}

int shore_run_rollback(const char *path, const char *name, const struct shore_work *given, uint64_t *step,
                       struct shore_diag *diag) {
    struct shore_work work;
    struct shore__run *run = NULL;
    struct shore__snapshot s = {.step = 0};
    uint64_t from = 0;
    int rc = take_work_on(path, given, &work, diag);
    if (rc == 0) rc = shore__run_open_to_roll_back(path, &run, diag);
    if (rc < 0) return rc;
    if (run->note && work.note) work.note(work.note_ctx, run->note);
    run->copy_memory_bytes = work.memory_bytes;
    rc = shore__snapshot_read(path, name, &s, diag);
    if (rc == 0)
        rc = shore__run_rollback(run, name, work.note, work.note_ctx, work.progress, work.progress_ctx, &from, diag);
    if (rc == 0 && step) *step = s.step;
    shore__snapshot_free(&s);
    shore__run_close(run);
    return rc;
}

int shore_run_export(struct shore_run *r, const char *directory, const struct shore_run_exporting *given,
                     const struct shore_work *given_work, struct shore_diag *diag) {
    struct shore_run_exporting how = {.size = sizeof how};
    struct shore_work work;
    int rc = shore__door_idle(r, diag);
    if (rc == 0) rc = given ? shore__sized_in(&how, sizeof how, given, "shore_run_exporting", diag) : 0;
    if (rc == 0) rc = take_work(given_work, &work, diag);
    if (rc == 0 && (unsigned)how.dtype > SHORE_DTYPE_FP16)
        rc = shore__fail(diag, -EINVAL, "an export is fp32, bf16 or fp16");
    if (rc < 0) return rc;
    const struct shore_fleet_info info = shore__fleet_info(r->fleet);
    const enum shore__st_type type = shore__st_type_of(how.dtype);
    const struct shore__exporting e = {
        .fleet = r->fleet,
        .contents = r->of_model ? r->of_model : r->run->contents,
        .step = info.step,
        .type = how.converted ? &type : NULL,
        .moments = how.moments,
        .memory_bytes = work.memory_bytes,
        .shard_bytes = how.shard_bytes,
        .nextras = how.nextras,
        .extras = how.extras,
        .progress = work.progress,
        .progress_ctx = work.progress_ctx,
    };
    return shore__export_contents(&e, directory, diag);
}

int shore_run_remove(const char *path, const struct shore_work *given, struct shore_diag *diag) {
    struct shore_work work;
    bool begun = false;
    int rc = take_work_on(path, given, &work, diag);
    return rc ? rc : shore__run_remove(path, &begun, work.note, work.note_ctx, diag);
}
