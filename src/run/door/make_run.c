/* Makes, opens and closes a run for another program. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/sized.h"
#include "drive/counters.h"
#include "drive/fleet/fleet.h"
#include "run/door/door.h"
#include "run/lifecycle/joining.h"
#include "run/lifecycle/making.h"
#include "run/lifecycle/snapshots.h"

static struct shore_run *new_run(shore__note_fn note, void *note_ctx) {
    struct shore_run *r = calloc(1, sizeof *r);
    if (r) *r = (struct shore_run){.note = note, .note_ctx = note_ctx};
    return r;
}

static bool is_begun(const char *path) {
    return shore__is_run(path) || shore__path_exists(path, "making/plan.json");
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* Takes from the fleet's options what the run records. */
static int take_settings(struct shore__settings *s, const struct shore_fleet_options *o, uint64_t memory_bytes,
                         struct shore_diag *diag) {
    if (o->fleet_id[0] || o->fleet_id[1] || o->generation || o->epoch || o->identity_bytes)
        return shore__fail(diag, -EINVAL,
                           "the run chooses the fleet's id, generation, epoch and identity: leave them 0");
    if (!o->ndrives) return shore__fail(diag, SHORE_EUSAGE, "a run needs a drive for its state: name one");
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < o->ndrives; i++)
        rc = shore__addresses_parse(&s->drives, o->drives[i], diag);
    if (rc) return rc;
    s->optimizer = o->optimizer;
    s->momentum = o->with_momentum ? SHORE__MOMENTUM_OF_PROGRAM : 0;
    s->moments = o->moments;
    s->fp32 = o->fp32_params;
    s->residual_saved = o->residual;
    s->io = o->io;
    s->memory_bytes = memory_bytes;
    if (o->drive_speeds && !(s->drive_speeds = strdup(o->drive_speeds))) return shore__out_of_memory(diag);
    return shore__settings_in_range(s, diag);
}

/* Undoes what was begun. */
static void give_up(struct shore_run *r) {
    shore_fleet_close(r->fleet);
    if (r->run) shore__run_undo(r->run);
    shore__run_free(r->run);
    free(r);
}

/* A copy of the caller's structs, in this library's sizes. */
struct asked {
    struct shore_run_making how;
    struct shore_fleet_options fleet;
    bool joins; /* another process keeps the run */
};

static int ask(const struct shore_run_making *how, struct asked *out, struct shore_diag *diag) {
    *out = (struct asked){0};
    int rc = shore__sized_in(&out->how, sizeof out->how, how, "shore_run_making", diag);
    if (rc == 0 && !out->how.fleet) rc = shore__fail(diag, -EINVAL, "the options of the fleet are missing");
    if (rc == 0) rc = shore__sized_in(&out->fleet, sizeof out->fleet, out->how.fleet, "shore_fleet_options", diag);
    out->joins = out->fleet.mine && !out->how.keeps;
    return rc;
}

static void take_part(struct shore__run *run, const struct asked *asked) {
    run->mine = asked->fleet.mine;
    run->joins = asked->joins;
}

int shore_run_check(const char *path, const struct shore_run_making *how, struct shore_diag *diag) {
    struct asked asked;
    struct shore__run *run = NULL;
    int rc = ask(how, &asked, diag);
    if (rc == 0) rc = shore__run_alloc(path, &run, diag);
    if (rc < 0) return rc;
    take_part(run, &asked);
    rc = take_settings(&run->settings, &asked.fleet, asked.how.memory_bytes, diag);
    if (rc == 0) rc = shore__making_check(run, asked.fleet.overwrite, asked.how.not_a_copy, diag);
    shore__run_free(run);
    return rc;
}

int shore_run_create(const char *path, const struct shore_layout *layout, const struct shore_shape *shapes,
                     uint32_t nshapes, const struct shore_run_making *how, struct shore_run **out,
                     struct shore_diag *diag) {
    struct asked asked;
    int rc = ask(how, &asked, diag);
    if (rc == 0 && asked.how.not_a_copy && !asked.joins && is_begun(path)) rc = shore__run_claim(path, diag);
    if (rc < 0) return rc;
    struct shore_run *r = new_run(asked.fleet.note, asked.fleet.note_ctx);
    rc = r ? shore__run_alloc(path, &r->run, diag) : shore__out_of_memory(diag);
    if (rc < 0) {
        free(r);
        return rc;
    }
    struct shore__run *run = r->run;
    take_part(run, &asked);
    r->part = run->mine;
    rc = shore__contents_make(layout, shapes, nshapes, asked.how.program, &run->contents, diag);
    if (rc == 0) run->layout = run->contents->layout;
    if (rc == 0) rc = take_settings(&run->settings, &asked.fleet, asked.how.memory_bytes, diag);
    if (rc == 0)
        rc = run->joins ? shore__making_join(run, diag) : shore__making_begin(run, asked.fleet.overwrite, diag);
    if (rc == 0) shore__door_say(r);
    asked.fleet.drives = run->settings.drives.text;
    if (rc == 0) rc = shore__making_create(run, &asked.fleet, NULL, NULL, &r->fleet, diag);
    run->mine = NULL;
    if (rc < 0)
        give_up(r);
    else
        *out = r;
    return rc;
}

int shore_run_seal(struct shore_run *r, uint64_t step, struct shore_diag *diag) {
    if (!r->run->making) return shore__fail(diag, -EINVAL, "%s: is sealed already", r->run->path);
    int rc = shore_fleet_seal(r->fleet, step, diag);
    if (rc == 0 && r->run->joins) r->run->making = false;
    if (rc < 0 || r->run->joins) return rc;
    return shore__making_finish(r->run, shore__fleet_info(r->fleet).fleet_id, r->note, r->note_ctx, diag);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static int open_fleet(struct shore_run *r, const struct shore_run_opening *how, struct shore_diag *diag) {
    const struct shore__run *run = r->run;
    struct shore_fleet_options o;
    int rc = shore__run_refuse_memory(run, diag);
    if (rc) return rc;
    shore__run_fleet_options(&run->settings, 0, false, &o);
    o.drive_speeds = NULL;
    o.chunk_segments = how->chunk_segments;
    o.ring_bytes = how->ring_bytes;
    o.accept_step = how->accept_step;
    o.hint_step = run->hint_step;
    o.generation = run->generation;
    o.read_only = how->read_only;
    o.arena = how->arena;
    o.note = how->note;
    o.note_ctx = how->note_ctx;
    o.mine = how->mine;
    o.fetch_elsewhere = how->fetch_elsewhere;
    o.elsewhere_ctx = how->elsewhere_ctx;
    memcpy(o.fleet_id, run->fleet_id, sizeof o.fleet_id);
    rc = shore_fleet_open(run->layout, &o, &r->fleet, diag);
    return rc == SHORE_EBUSY && r->read_only ? shore__run_in_use(run->path, diag) : rc; /* a writer holds its lock */
}

/* Notes moved drives and an accepted step, which are recorded once the drives could be opened. */
static int note_opening(struct shore_run *r, const struct shore_run_opening *how, struct shore_diag *diag) {
    char what[1024] = "";
    for (uint32_t i = 0; i < how->nmoved; i++)
        shore__append(what, sizeof what, "%sdrive %s", *what ? ", " : "", shore__shown(how->moved[i]).text);
    if (how->accept_step)
        shore__append(what, sizeof what, "%saccept-step %" PRIu64, *what ? ", " : "", *how->accept_step);
    if (what[0] && !(r->opening = strdup(what))) return shore__out_of_memory(diag);
    return 0;
}

int shore__door_opened(struct shore_run *r, struct shore_diag *diag) {
    if (r->read_only || r->run->joins) return 0;
    int rc = r->opening ? shore__run_record_change(r->run, shore__fleet_info(r->fleet).step, r->opening, diag) : 0;
    return rc ? rc : shore__door_recover_metrics(r, diag);
}

static int open_all(struct shore_run *r, const char *path, const struct shore_run_opening *how,
                    struct shore_diag *diag) {
    struct shore__strings moved = {0};
    const bool joins = how->mine && !how->keeps && !how->read_only;
    int rc = 0;
    if (how->snapshot && how->mine)
        return shore__fail(diag, SHORE_EUSAGE, "%s: a snapshot is opened as a whole, by one process", path);
    if (how->snapshot && !how->read_only)
        return shore__fail(diag, SHORE_EUSAGE, "%s: a snapshot is opened for reading only", path);
    if (how->without_drives && how->snapshot)
        return shore__fail(diag, SHORE_EUSAGE, "%s: a snapshot cannot be opened without its drives", path);
    if (how->without_drives && !how->read_only)
        return shore__fail(diag, SHORE_EUSAGE, "%s: is opened without its drives for reading only", path);
    if (how->not_a_copy && !joins && is_begun(path)) rc = shore__run_claim(path, diag);
    if (rc == 0 && shore__run_is_unmade(path) && !shore__run_is_half_replaced(path))
        rc = shore__fail(diag, SHORE_EMISSING,
                         "%s: is not a run: it is empty, or making it was interrupted; make it again", path);
    for (uint32_t i = 0; rc == 0 && i < how->nmoved; i++)
        if (shore__strings_add(&moved, how->moved[i])) rc = shore__out_of_memory(diag);
    if (rc == 0)
        rc = joins ? shore__run_join(path, &moved, &r->run, diag)
                   : shore__run_open_state(path, !how->read_only, &moved, &r->run, diag);
    shore__strings_free(&moved);
    if (rc) return rc;
    shore__door_say(r);
    rc = r->run->model
             ? shore__contents_of_model(r->run->model, SHORE__WHOLE_MODEL, r->run->settings.fp32, &r->of_model, diag)
             : 0;
    if (rc == 0 && !how->without_drives)
        rc = how->snapshot ? shore__snapshot_open(r->run, how->snapshot, &r->fleet, diag) : open_fleet(r, how, diag);
    if (rc == 0) rc = note_opening(r, how, diag);
    return rc || r->part ? rc : shore__door_opened(r, diag);
}

int shore_run_open(const char *path, const struct shore_run_opening *given, struct shore_run **out,
                   struct shore_diag *diag) {
    struct shore_run_opening how = {.size = sizeof how};
    int rc = given ? shore__sized_in(&how, sizeof how, given, "shore_run_opening", diag) : 0;
    struct shore_run *r = rc ? NULL : new_run(how.note, how.note_ctx);
    if (rc == 0) rc = r ? 0 : shore__out_of_memory(diag);
    if (rc < 0) return rc;
    r->read_only = how.read_only;
    r->part = how.mine && !how.without_drives;
    rc = open_all(r, path, &how, diag);
    if (rc < 0)
        shore_run_close(r);
    else
        *out = r;
    return rc;
}

void shore_run_close(struct shore_run *r) {
    if (!r) return;
    shore_run_commit_wait(r, NULL);
    shore_fleet_close(r->fleet);
    shore__run_close(r->run);
    shore__contents_free(r->of_model);
    shore__door_forget_lines(r);
    free(r->opening);
    free(r);
}

int shore_run_unite(struct shore_run *r, const void *const *parts, const size_t *bytes, uint32_t nparts,
                    struct shore_diag *diag) {
    if (!r->part) return shore__fail(diag, -EINVAL, "%s: is open as a whole: it has no parts", r->run->path);
    int rc = shore_fleet_unite(r->fleet, parts, bytes, nparts, diag);
    return rc || r->run->making ? rc : shore__door_opened(r, diag);
}

void shore_run_forked(struct shore_run *r) {
    if (!r) return;
    shore__fleet_forked(r->fleet);
    shore__run_forked(r->run);
}

/* ---- properties -------------------------------------------------------------------------------------------------- */

struct shore_fleet *shore_run_fleet(const struct shore_run *r) {
    return r->fleet;
}

const char *shore_run_drive(const struct shore_run *r, uint32_t drive) {
    const struct shore__addresses *drives = &r->run->settings.drives;
    return drive < drives->count ? drives->text[drive] : NULL;
}

const struct shore_layout *shore_run_layout(const struct shore_run *r) {
    return r->run->layout;
}

const struct shore_shape *shore_run_shapes(const struct shore_run *r, uint32_t *count) {
    const struct shore__contents *c = r->of_model ? r->of_model : r->run->contents;
    *count = c->nshapes;
    return c->shapes;
}

const char *shore_run_program(const struct shore_run *r) {
    return r->run->contents ? r->run->contents->program_text : NULL;
}

int shore_run_info(const struct shore_run *r, struct shore_run_info *out) {
    const struct shore__settings *s = &r->run->settings;
    const struct shore_run_info info = {
        .optimizer = s->optimizer,
        .moments = s->moments,
        .with_momentum = shore__optimizer(s->optimizer)->takes_momentum && s->momentum > 0,
        .fp32_params = s->fp32,
        .residual = s->residual_saved,
        .memory_bytes = s->memory_bytes,
    };
    return shore__sized_out(out, &info, sizeof info);
}
