/* Moves a run's state to another placement. Makes and fills new volumes of the next generation beside the old ones,
 * rewrites run.json, and removes the old ones. RUN/moving.json says what to undo before run.json is rewritten, and what
 * to finish after it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/directory.h"
#include "drive/counters.h"
#include "drive/fleet/fleet.h"
#include "drive/probe/probe.h"
#include "drive/probe/speed.h"
#include "plan/transfers.h"
#include "run/directory/journal.h"
#include "run/internal.h"
#include "run/lifecycle/copy.h"
#include "run/lifecycle/mend.h"
#include "run/lifecycle/places.h"
#include "run/lifecycle/volumes.h"
#include "run/paths.h"

#define RING_BYTES ((uint64_t)32 << 20)

/* ---- settling a move --------------------------------------------------------------------------------------------- */

/* Whether the move is over; volumes that could not be removed may be left. */
static bool is_settled(const struct shore__journal *in) {
    return in->new.count == 0 && in->old.count == 0;
}

/* Removes a volume where it was made, or beside a drive moved by hand since: *v then has that place. */
static int discard(const struct shore__run *run, struct shore__left *v, struct shore_diag *diag) {
    const struct shore__addresses *moved = &run->private->moved;
    int rc = shore__drive_remove(v->at, run->fleet_id, v->generation, v->begun, diag);
    for (size_t i = 0; rc == SHORE_EMISSING && i < moved->count; i++) {
        struct shore__spot spot;
        if (shore__spot_of(moved->item[i], &spot, NULL)) continue; /* opening the drives says why */
        struct shore__address *at = shore__part_beside(spot.volume, v->at);
        int found = at ? shore__drive_remove(at, run->fleet_id, v->generation, v->begun, diag) : SHORE_EMISSING;
        if (found != SHORE_EMISSING && found != SHORE_EMISMATCH) {
            free(v->at);
            v->at = at;
            at = NULL;
            rc = found;
        }
        free(at);
        free(spot.volume);
    }
    return rc;
}

/* Notes each volume that it cannot remove: a drive that is gone must not block the run. Volumes that are still there
 * stay in the list for the next opening of the run. */
static int remove_left(const struct shore__run *run, struct shore__journal *in, shore__note_fn note, void *ctx,
                       struct shore_diag *diag) {
    size_t kept = 0;
    const struct shore__address *away = NULL; /* its server does not answer; do not wait for it again */
    for (size_t i = 0; i < in->nleft; i++) {
        struct shore__left *v = &in->left[i];
        struct shore_diag why = {0};
        if (v->generation == run->generation) { /* a later try succeeded: the state itself may lie there now */
            shore__note(note, ctx, "%.900s: what an earlier move has left there, if anything, stays", v->at->text);
            free(v->at);
            continue;
        }
        bool again = away && shore__address_shares_server(away, v->at);
        int rc =
            again ? shore__fail(&why, SHORE_ELINK, "%s: is out of reach, too", v->at->text) : discard(run, v, &why);
        /* a file that was refused as a new drive is still what it was before */
        bool anothers = v->undone && (rc == SHORE_EMISMATCH || rc == SHORE_EINPUT || (rc == SHORE_EBUSY && !v->begun));
        bool stays = !shore__removal_is_over(rc) && (rc == SHORE_ELINK || !v->undone || v->begun);
        if (stays) {
            shore__note(note, ctx,
                        "%.900s; the volume stays there: the next command that opens the run tries again, as long as "
                        "%s/moving.json is there",
                        why.text, run->path);
            if (rc == SHORE_ELINK) away = v->at;
            in->left[kept++] = *v;
            continue;
        }
        if (rc && rc != SHORE_EMISSING && !anothers) shore__note(note, ctx, "%s", why.text);
        free(v->at);
    }
    in->nleft = kept;
    return kept ? shore__journal_write(run->path, SHORE__MOVING, NULL, in, diag)
                : shore__journal_clear(run->path, SHORE__MOVING, NULL, diag);
}

/* Undoes the move if run.json still has the old placement, else finishes it. */
static int settle(struct shore__run *run, struct shore__journal *in, shore__note_fn note, void *ctx,
                  struct shore_diag *diag) {
    bool switched = run->generation == in->to;
    const struct shore__addresses *drop = switched ? &in->old : &in->new;
    if (!is_settled(in) && run->generation != in->from && !switched)
        return shore__fail(diag, SHORE_EINPUT,
                           "%s/moving.json is of another placement than run.json: put the run's directory back as it "
                           "was",
                           run->path);
    int rc = shore__directory_sync(run->path, diag); /* the switch is durable before the volumes that it replaces go */
    for (size_t i = 0; !rc && i < drop->count; i++) {
        struct shore__left volume = {shore__address_copy(drop->item[i]), switched ? in->from : in->to, !switched,
                                     !switched && in->fresh[i]};
        if (shore__journal_leave(in, volume)) rc = shore__out_of_memory(diag);
    }
    if (rc) return rc;
    shore__addresses_free(&in->new);
    shore__addresses_free(&in->old);
    return remove_left(run, in, note, ctx, diag);
}

int shore__move_mend(struct shore__run *run, shore__note_fn note, void *ctx, struct shore_diag *diag) {
    struct shore__journal in;
    int rc = shore__journal_read(run->path, SHORE__MOVING, NULL, &in, diag);
    if (rc == SHORE_EMISSING) return 0;
    bool settled = is_settled(&in), switched = !rc && run->generation == in.to;
    if (!rc) rc = settle(run, &in, note, ctx, diag);
    if (!rc && settled && !in.nleft)
        shore__note(note, ctx, "what a change of drives had to leave behind is removed now");
    else if (!rc && !settled)
        shore__note(note, ctx,
                    switched ? "a change of drives had been interrupted after its last copy: it is done now"
                             : "a change of drives had been interrupted: it is undone, the state is where it was");
    shore__journal_free(&in);
    return rc;
}

/* ---- choosing volumes -------------------------------------------------------------------------------------------- */

/* kind: an address of the kind that the drive becomes. */
static int place_kept(const struct shore__address *drive, const struct shore__address *kind, uint64_t generation,
                      struct shore__journal *in, struct shore_diag *diag) {
    struct shore__spot spot;
    int rc = shore__spot_of(drive, &spot, diag);
    if (rc) return rc;
    if (spot.is_device) {
        rc = shore__fail(diag, SHORE_EUSAGE,
                         "%s is a block device and would have to hold the old and the new placement at once: move it "
                         "to a file first, or leave the other drives as they are",
                         spot.volume->text);
    } else {
        struct shore__address *next = shore__volume_next(spot.volume, generation), *at = next;
        if (next && next->kind != kind->kind) {
            at = shore__address_beside(kind, next->path);
            free(next);
        }
        rc = shore__addresses_add(&in->new, at) ? shore__out_of_memory(diag) : 0;
    }
    free(spot.volume);
    return rc;
}

/* A directory may be given for several volumes. */
static int place_new(const struct shore__run *run, const struct shore__addresses *drives, size_t i,
                     struct shore__journal *in, struct shore_diag *diag) {
    struct shore__address *at = NULL;
    size_t number = 0;
    for (size_t k = 0; k < i; k++)
        number += strcmp(drives->text[k], drives->text[i]) == 0;
    int rc = shore__drive_may_be_made(drives->item[i], diag);
    if (!rc) rc = shore__volume_place(drives->item[i], run->private->home, run->fleet_id, number, &at, diag);
    return !rc && shore__addresses_add(&in->new, at) ? shore__out_of_memory(diag) : rc;
}

static int check_twice(const struct shore__addresses *drives, const struct shore__addresses *volumes, size_t i,
                       struct shore_diag *diag) {
    for (size_t k = 0; k < i; k++)
        if (shore__same_path(shore__address_file(volumes->text[k]), shore__address_file(volumes->text[i])))
            return shore__fail(diag, SHORE_EUSAGE, "the drive %s would be in the run twice",
                               shore__shown(drives->text[i]).text);
    return 0;
}

/* Index of the present drive that is meant, also as one of another kind with the same file. A path there may be a
 * directory that is named like a file of ours: only its volume's path tells. */
static size_t find_kept(const struct shore__addresses *present, const struct shore__journal *in,
                        const struct shore__address *drive) {
    const char *name = drive->text;
    size_t k = shore__drive_find(present, in->from, name, 0);
    bool kept = k < present->count &&
                (shore__same_path(present->text[k], name) || shore__drive_is_named(in->old.text[k], in->from, name));
    if (kept || !drive->kind->has_file) return kept ? k : present->count;
    for (k = 0; k < present->count; k++)
        if (present->item[k]->kind->has_file && present->item[k]->kind != drive->kind &&
            (shore__same_path(present->item[k]->path, drive->path) ||
             shore__drive_is_named(in->old.item[k]->path, in->from, drive->path)))
            break;
    return k;
}

static int resolve(const struct shore__run *run, const struct shore__addresses *drives, struct shore__journal *in,
                   struct shore_diag *diag) {
    const struct shore__addresses *present = &run->settings.drives;
    int rc = 0;
    for (size_t i = 0; !rc && i < present->count; i++) {
        struct shore__spot spot;
        if (!present->item[i]->kind->keeps)
            return shore__fail(diag, SHORE_EUSAGE,
                               "%s keeps its state in memory (%s): it went with the process that trained it", run->path,
                               present->text[i]);
        rc = shore__spot_of(present->item[i], &spot, diag);
        if (!rc && shore__addresses_add(&in->old, spot.volume)) rc = shore__out_of_memory(diag);
    }
    for (size_t i = 0; !rc && i < drives->count; i++) {
        const struct shore__address *drive = drives->item[i];
        size_t k = find_kept(present, in, drive);
        if (!drive->kind->keeps)
            return shore__fail(diag, SHORE_EUSAGE, "%s keeps nothing after its process: give a directory", drive->text);
        rc = k < present->count ? place_kept(present->item[k], drive, in->to, in, diag)
                                : place_new(run, drives, i, in, diag);
        if (!rc) rc = check_twice(drives, &in->new, i, diag);
    }
    in->fresh = calloc(drives->count + 1, sizeof *in->fresh);
    if (!rc && !in->fresh) return shore__out_of_memory(diag);
    for (size_t i = 0; !rc && i < in->new.count; i++) {
        struct shore__spot spot = {.exists = false};
        const struct shore__address *new = in->new.item[i];
        char *name = shore__drive_name(new->text, in->to);
        rc = name ? shore__spot_of(new, &spot, diag) : shore__out_of_memory(diag);
        in->fresh[i] = !rc && !spot.exists;
        /* a served directory that is named like a file of ours would lose the end of its name */
        if (!rc && new->kind->served && strcmp(name, new->text) != 0)
            shore__addresses_put(&in->new, i, spot.volume);
        else if (!rc)
            free(spot.volume);
        free(name);
    }
    return rc;
}

/* ---- the move ---------------------------------------------------------------------------------------------------- */

void shore__run_fleet(const struct shore__run *run, const struct shore__addresses *drives, uint64_t generation,
                      struct shore_fleet_options *options) {
    shore__run_fleet_options(&run->settings, 0, false, options);
    options->drives = drives->text;
    options->ndrives = (uint32_t)drives->count;
    options->chunk_segments = 0;
    options->ring_bytes = RING_BYTES;
    if (shore__copy_is_tight(run, options)) shore__transfer_rings(options);
    options->generation = generation;
    options->drive_speeds = NULL;
    memcpy(options->fleet_id, run->fleet_id, sizeof options->fleet_id);
}

/* Seals the same step with the same metrics and blob: after a kill before the next step, its line is still found. */
static int seal(struct shore_fleet *new, struct shore_fleet *old, uint64_t step, struct shore_diag *diag) {
    if (step == 0) return shore_fleet_seal(new, step, diag);
    int rc = shore_fleet_seal(new, step - 1, diag);
    return rc ? rc : shore__fleet_commit_like(new, old, step, SHORE_COMMIT_SKIPPED, diag);
}

static int check_digest(struct shore_fleet *new, struct shore_fleet *old, struct shore_diag *diag) {
    char a[33], b[33];
    int rc = shore__digest_text(old, a, diag);
    if (!rc) rc = shore__digest_text(new, b, diag);
    if (!rc && strcmp(a, b) != 0)
        rc = shore__fail(diag, SHORE_ECORRUPT, "the copy has another digest than the state: the old volumes stay");
    return rc;
}

static int copy_to_new(struct shore__run *run, const struct shore__journal *in, const struct shore__placing *how,
                       struct shore_fleet *old, struct shore_diag *diag) {
    struct shore_fleet_options options;
    struct shore_fleet *new = NULL;
    const struct shore__volume_desc *desc = old->drives[0]->desc;
    const struct shore_fleet_info info = shore__fleet_info(old);
    shore__run_fleet(run, &in->new, in->to, &options);
    shore__run_new_fleet(run, &options);
    options.epoch = info.epoch + 1;
    options.drive_speeds = how->speeds;
    options.scratch_bytes = old->scratch_bytes;
    options.spill = desc->spill;
    options.note = how->note;
    options.note_ctx = how->note_ctx;
    int rc = shore_fleet_create(run->layout, &options, &new, diag);
    run->begun = !rc;
    if (!rc)
        rc = shore__fleet_copy(old, new, run->layout, 0, options.chunk_segments == 1, how->progress, how->progress_ctx,
                               diag);
    if (!rc) rc = seal(new, old, info.step, diag);
    if (!rc) rc = check_digest(new, old, diag);
    shore_fleet_close(new);
    return rc;
}

/* Writes run.json with the new placement: the one step that decides. */
static int switch_over(struct shore__run *run, const struct shore__journal *in, const struct shore__placing *how,
                       uint64_t step, struct shore_diag *diag) {
    struct shore__addresses drives = {0};
    char what[600] = "drives:";
    char *speeds = how->speeds ? strdup(how->speeds) : NULL;
    int rc = how->speeds && !speeds ? -ENOMEM : shore__addresses_copy(&in->new, &drives);
    for (size_t i = 0; !rc && i < in->new.count; i++) {
        char *name = shore__drive_name(in->new.text[i], in->to);
        if (!name) rc = -ENOMEM;
        if (name) shore__append(what, sizeof what, "%s %s", i ? "," : "", shore__shown(name).text);
        free(name);
    }
    if (rc) {
        free(speeds);
        shore__addresses_free(&drives);
        return shore__out_of_memory(diag);
    }
    shore__addresses_free(&run->settings.drives);
    run->settings.drives = drives;
    free(run->settings.drive_speeds);
    run->settings.drive_speeds = speeds;
    run->generation = in->to;
    rc = shore__origin_take(run->path, &run->private->origin, diag); /* the new volumes belong to no other directory */
    return rc ? rc : shore__run_record_change(run, step, what, diag);
}

/* Takes over the volumes that earlier moves left: the new journal replaces the one that lists them. */
static int take_left(const char *run_path, struct shore__journal *in, struct shore_diag *diag) {
    struct shore__journal before;
    int rc = shore__journal_read(run_path, SHORE__MOVING, NULL, &before, diag);
    if (rc) return rc == SHORE_EMISSING ? 0 : rc;
    in->left = before.left;
    in->nleft = before.nleft;
    before.left = NULL;
    before.nleft = 0;
    shore__journal_free(&before);
    return 0;
}

/* Whether a volume that this move made is still there. */
static bool leaves_new(const struct shore__journal *in) {
    for (size_t i = 0; i < in->nleft; i++)
        if (in->left[i].generation == in->to) return true;
    return false;
}

int shore__run_place(struct shore__run *run, const struct shore__placing *how, struct shore_diag *diag) {
    struct shore__journal in = {.from = run->generation, .to = run->generation + 1};
    struct shore_fleet_options options;
    struct shore_fleet *old = NULL;
    int rc = shore__run_refuse_copy(run, SHORE__RUN_ELSEWHERE, diag);
    if (!rc) rc = shore__run_find_home(run, diag);
    if (!rc) rc = resolve(run, how->drives, &in, diag);
    if (!rc && how->speeds) rc = shore__speeds_parse(how->speeds, (uint32_t)how->drives->count, NULL, diag);
    if (!rc) {
        shore__run_fleet(run, &run->settings.drives, run->generation, &options);
        options.hint_step = run->hint_step;
        options.read_only = true; /* if the new drives are refused, nothing has been written */
        options.note = how->note;
        options.note_ctx = how->note_ctx;
        rc = shore_fleet_open(run->layout, &options, &old, diag);
    }
    if (!rc) {
        rc = take_left(run->path, &in, diag);
    }
    if (!rc) rc = shore__journal_write(run->path, SHORE__MOVING, NULL, &in, diag);
    if (!rc) {
        rc = copy_to_new(run, &in, how, old, diag);
        if (!rc) {
            rc = switch_over(run, &in, how, shore__fleet_info(old).step, diag);
            shore_fleet_close(old);
            old = NULL;
            /* if writing run.json failed, only its next reader knows which version is there */
            if (!rc) rc = settle(run, &in, how->note, how->note_ctx, diag);
        } else {
            struct shore_diag why = {0};
            bool unsettled = settle(run, &in, how->note, how->note_ctx, &why);
            if (unsettled) shore__note(how->note, how->note_ctx, "%s", why.text);
            if (unsettled || leaves_new(&in)) run->begun = true;
        }
    }
    shore_fleet_close(old);
    shore__journal_free(&in);
    return rc;
}
