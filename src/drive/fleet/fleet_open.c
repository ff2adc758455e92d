/* Opening, sealing and closing a fleet. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "base/diag.h"
#include "base/sized.h"
#include "base/units.h"
#include "drive/fleet/fleet.h"
#include "drive/fleet/peer.h"
#include "drive/layout.h"
#include "drive/remote/remote.h"

/* Whether two paths are one file: by hard links, or by two nodes of a device. */
static bool same_file(const char *a, const char *b) {
    struct stat here, there;
    if (stat(a, &here) || stat(b, &there)) return false;
    if (S_ISBLK(here.st_mode) && S_ISBLK(there.st_mode)) return here.st_rdev == there.st_rdev;
    return here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

/* Whether two addresses name one volume. On other hosts only equal addresses count: paths there are not resolved
 * here. */
static bool same_drive(const struct shore__address *a, const struct shore__address *b) {
    char *here = NULL, *there = NULL;
    bool same = strcmp(a->text, b->text) == 0;
    if (!same && a->kind->has_file && b->kind->has_file)
        same = !shore__volume_path(a->path, &here, NULL) && !shore__volume_path(b->path, &there, NULL) &&
               (strcmp(here, there) == 0 || same_file(here, there));
    free(here);
    free(there);
    return same;
}

static int check_part(const struct shore_fleet_options *o, struct shore_diag *diag) {
    bool ended = false;
    for (uint32_t d = 0; d < o->ndrives; d++) {
        if (!shore__kind_of(o->drives[d])->keeps)
            return shore__fail(
                diag, SHORE_EUSAGE,
                "%s cannot be a drive of several processes: name files, devices or drives of other hosts",
                o->drives[d]);
        if (o->mine[d] && ended)
            return shore__fail(diag, SHORE_EUSAGE, "the drives of a process follow each other, and %s does not",
                               o->drives[d]);
        ended |= d && o->mine[d - 1] && !o->mine[d];
    }
    if (!o->accept_step) return 0;
    return shore__fail(diag, SHORE_EUSAGE,
                       "accept_step looks at every drive: let one process open the whole fleet with it first");
}

static int check_options(const struct shore_layout *layout, const struct shore_fleet_options *o,
                         struct shore_diag *diag) {
    if (!layout || layout->nblocks == 0) return shore__fail(diag, -EINVAL, "the layout has no blocks");
    if (o->ndrives == 0 || o->ndrives > SHORE__DRIVES_MAX) {
        return shore__fail(diag, SHORE_EUSAGE, "%u drives are given; a fleet has 1 to %u", o->ndrives,
                           SHORE__DRIVES_MAX);
    }
    if ((unsigned)o->optimizer >= SHORE_OPTIMIZER_COUNT) return shore__fail(diag, -EINVAL, "unknown optimizer");
    if (o->identity_bytes > SHORE__IDENTITY_BYTES) {
        return shore__fail(diag, -EINVAL, "the identity has %u bytes; at most %u fit", o->identity_bytes,
                           SHORE__IDENTITY_BYTES);
    }
    return o->mine ? check_part(o, diag) : 0;
}

static int take_addresses(struct shore_fleet *f, const struct shore_fleet_options *o, struct shore_diag *diag) {
    int rc = 0;
    for (uint32_t d = 0; !rc && d < o->ndrives; d++) {
        rc = shore__addresses_parse(&f->at, o->drives[d], diag);
        for (uint32_t e = 0; !rc && f->at.item[d]->kind->keeps && e < d; e++)
            if (same_drive(f->at.item[d], f->at.item[e]))
                rc = shore__fail(diag, SHORE_EUSAGE, "the drive %s is given twice", o->drives[d]);
    }
    return rc;
}

/* Knows the own drives, and lets peers stand for the others. */
static int take_part(struct shore_fleet *f, const struct shore_fleet_options *o, struct shore_diag *diag) {
    f->is_part = o->mine;
    f->united = !f->is_part;
    int rc = f->is_part && shore__fleet_follow_writes(f) ? shore__out_of_memory(diag) : 0;
    for (uint32_t d = 0; !rc && d < o->ndrives; d++) {
        if (o->mine && !o->mine[d])
            rc = shore__peer_make(o, d, o->drives[d], NULL, &f->drives[d], diag);
        else if (!f->own_count++)
            f->own_first = d;
    }
    return rc;
}

/* Whether the arena has too little memory, so that rings get the smallest size. A plan without bytes for rings intends
 * this; any other plan gets a note. */
static bool has_too_little(const struct shore_layout *layout, const struct shore_fleet_options *o) {
    uint64_t wanted = o->arena ? shore_fleet_memory_bytes(layout, o) : 0;
    if (!o->arena || shore__arena_left(o->arena) >= wanted) return false;
    char note[200];
    snprintf(note, sizeof note, "the drives get %s of memory instead of %s: their buffers are the least there are",
             shore__format_size(shore__arena_left(o->arena)).text, shore__format_size_up(wanted).text);
    if (o->ring_bytes && o->note) o->note(o->note_ctx, note);
    return true;
}

int shore__fleet_new(const struct shore_layout *layout, const struct shore_fleet_options *options,
                     struct shore_fleet_options *known, struct shore_fleet **out, struct shore_diag *diag) {
    const struct shore_fleet_options *o = known;
    int rc = shore__sized_in(known, sizeof *known, options, "shore_fleet_options", diag);
    if (!rc) rc = check_options(layout, o, diag);
    if (rc) return rc;
    struct shore_fleet *f = calloc(1, sizeof *f);
    if (!f) return shore__fail(diag, -ENOMEM, "out of memory");
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->idle, NULL);
    f->ndrives = o->ndrives;
    f->attempt = f->round = 1;
    f->first_epoch = o->epoch ? o->epoch : 1;
    f->drives = calloc(o->ndrives, sizeof *f->drives);
    f->ranges = calloc((size_t)layout->nblocks * o->ndrives, sizeof *f->ranges);
    f->busy = calloc(o->ndrives, sizeof *f->busy);
    for (uint32_t d = 0; f->busy && d < o->ndrives; d++)
        shore__busy_init(&f->busy[d]);
    rc = f->drives && f->ranges && f->busy ? shore__layout_copy(layout, &f->layout) : -ENOMEM;
    rc = rc ? shore__fail(diag, rc, "the layout cannot be used: %s", shore_error_text(rc)) : take_addresses(f, o, diag);
    if (!rc) rc = take_part(f, o, diag);
    if (rc) {
        shore_fleet_close(f);
        return rc;
    }
    f->opening = *o;
    bool least = has_too_little(layout, o);
    f->config = shore__fleet_config(f->layout, o, least);
    *out = f;
    return 0;
}

void shore__fleet_set_gate(struct shore_fleet *f, struct shore__gate *gate) {
    f->gate = gate;
    for (uint32_t d = 0; d < f->ndrives; d++)
        f->drives[d]->gate = gate;
}

void shore__fleet_set_recorder(struct shore_fleet *f, struct shore__recorder *recorder) {
    f->recorder = recorder;
    for (uint32_t d = 0; d < f->ndrives; d++)
        f->drives[d]->recorder = recorder;
}

struct shore__recorder *shore__fleet_recorder(const struct shore_fleet *f) {
    return f ? f->recorder : NULL;
}

void shore_fleet_close(struct shore_fleet *f) {
    if (!f) return;
    pthread_mutex_lock(&f->lock);
    while (f->joins) {
        if (!f->unconfirmed || !f->held) {
            pthread_cond_wait(&f->idle, &f->lock);
            continue;
        }
        pthread_mutex_unlock(&f->lock);
        shore__fleet_discard_held(f);
        pthread_mutex_lock(&f->lock);
    }
    pthread_mutex_unlock(&f->lock);
    shore__fleet_set_wait_watch(f, NULL);
    for (uint32_t d = 0; f->drives && d < f->ndrives; d++) {
        if (f->drives[d]) f->drives[d]->ops->close(f->drives[d]);
    }
    free(f->drives);
    shore__addresses_free(&f->at);
    for (uint32_t d = 0; f->busy && d < f->ndrives; d++)
        shore__busy_fini(&f->busy[d]);
    free(f->busy);
    free(f->ranges);
    shore__fleet_unfollow_writes(f);
    shore__stripes_free(&f->stripes);
    shore_layout_free(f->layout);
    pthread_cond_destroy(&f->idle);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

void shore__fleet_forked(struct shore_fleet *f) {
    for (uint32_t d = 0; f && f->drives && d < f->ndrives; d++)
        if (f->drives[d] && f->drives[d]->ops->forked) f->drives[d]->ops->forked(f->drives[d]);
}

int shore__fleet_set_scratch(struct shore_fleet *f, struct shore_diag *diag) {
    uint64_t *counts = calloc(f->ndrives, sizeof *counts);
    f->keeps_data = true;
    for (uint32_t d = 0; d < f->ndrives; d++) {
        if (counts) counts[d] = f->drives[d]->desc->scratch_bytes / SHORE__SCRATCH_STRIPE_BYTES;
        if (!(f->drives[d]->ops->caps & SHORE__DRIVE_KEEPS_DATA)) f->keeps_data = false;
        f->has_remote |= shore__is_remote(f->drives[d]);
    }
    int rc = counts ? shore__stripes_make(counts, f->ndrives, &f->stripes) : -ENOMEM;
    f->scratch_bytes = f->stripes.total * SHORE__SCRATCH_STRIPE_BYTES;
    free(counts);
    return rc ? shore__fail(diag, rc, "out of memory for the pattern of scratch") : 0;
}

/* Loads the tables of all drives, and with `verify` checks all their bytes, before anything is written anywhere. */
static int load(struct shore_fleet *f, uint64_t step, bool verify, struct shore_diag *diag) {
    for (uint32_t d = 0; d < f->ndrives; d++) {
        unsigned char sum[16];
        int rc = f->drives[d]->ops->load(f->drives[d], step, diag);
        if (!rc && verify) rc = f->drives[d]->ops->leaf_sum(f->drives[d], true, sum, diag);
        if (rc) return rc;
    }
    return 0;
}

/* Writes the new epoch to every drive before anything else. A read-only fleet writes nothing. */
static int begin(struct shore_fleet *f, uint64_t epoch, uint64_t step, struct shore_diag *diag) {
    for (uint32_t d = 0; d < f->ndrives; d++) {
        int rc = f->config.read_only ? 0 : f->drives[d]->ops->begin(f->drives[d], epoch, step, diag);
        if (rc) return rc;
        f->begun = !f->config.read_only;
        f->drives[d]->ops->discard(f->drives[d], f->attempt);
    }
    pthread_mutex_lock(&f->lock);
    f->step = step;
    f->epoch = epoch;
    f->ready = true;
    pthread_mutex_unlock(&f->lock);
    return 0;
}

int shore_fleet_seal(struct shore_fleet *f, uint64_t step, struct shore_diag *diag) {
    if (f->ready || !f->united)
        return shore__fail(diag, -EINVAL, f->ready ? "the fleet is sealed already" : "the parts have not united yet");
    if (step >= UINT64_MAX - 1) return shore__fail(diag, -EINVAL, "step out of range");
    return begin(f, f->first_epoch, step, diag);
}

/* ---- open ---- */

/* Advises on a drive that does not answer: it may only have a new name. Snapshots get no advice: they are looked for
 * beside their drive. */
static int say_where(const char *drive, int rc, struct shore_diag *diag) {
    if (!diag || strstr(drive, ".snapshot-") || (rc != SHORE_EMISSING && rc != SHORE_ELINK)) return rc;
    return shore__advise(diag, rc, SHORE_ADVICE_MOVED, drive);
}

int shore__fleet_place(struct shore_fleet *f, const struct shore_fleet_options *o, struct shore__drive *drive,
                       uint32_t i, struct shore_diag *diag) {
    const struct shore__volume_desc *desc = drive->desc;
    const char *path = drive->path;
    bool asked = o->fleet_id[0] || o->fleet_id[1], later = f->fleet_id[0] || f->fleet_id[1];
    const uint64_t *id = asked ? o->fleet_id : later ? f->fleet_id : desc->fleet_id;
    uint64_t generation = o->generation ? o->generation : later ? f->generation : desc->generation;
    if (desc->fleet_id[0] != id[0] || desc->fleet_id[1] != id[1])
        return shore__fail(diag, SHORE_EMISMATCH,
                           "%s belongs to another %s; put its own volume there, or name the drive that has it", path,
                           asked ? "run" : "fleet");
    if (desc->generation != generation)
        return shore__fail(diag, SHORE_EMISMATCH,
                           "%s has placement %llu, and the others have placement %llu: it stayed behind when the state "
                           "was moved to other drives",
                           path, (unsigned long long)desc->generation, (unsigned long long)generation);
    if (desc->ndrives != o->ndrives)
        return shore__fail(diag, SHORE_EMISMATCH, "%s belongs to %u drives, but %u are given", path, desc->ndrives,
                           o->ndrives);
    if (f->is_part && desc->drive != i)
        return shore__fail(
            diag, SHORE_EMISMATCH,
            "%s is drive %u of its fleet, and is given as drive %u: several processes give the drives in "
            "the order of the fleet",
            path, desc->drive, i);
    if (desc->drive >= f->ndrives || f->drives[desc->drive]) {
        const struct shore__drive *first = desc->drive < f->ndrives ? f->drives[desc->drive] : drive;
        return shore__fail(diag, SHORE_EMISMATCH, "%s is drive %u of its fleet, and so is %s: %s", path, desc->drive,
                           first->path,
                           f->is_part ? "two processes have it, or one is a copy of the other; give each drive to one "
                                        "process"
                                      : "one is a copy of the other; give the drive that is missing");
    }
    if (desc->plane_form != (uint32_t)f->config.moments)
        return shore__fail(diag, SHORE_EMISMATCH, "%s holds moments of %s, and the optimizer wants %s moments", path,
                           desc->plane_form == SHORE_MOMENTS_FP32   ? "32 bits"
                           : desc->plane_form == SHORE_MOMENTS_8BIT ? "8 bits"
                                                                    : "an unknown kind",
                           f->config.moments == SHORE_MOMENTS_FP32 ? "32-bit" : "8-bit");
    if (memcmp(desc->plane_bytes, f->config.plane_bytes, sizeof desc->plane_bytes) != 0)
        return shore__fail(diag, SHORE_EMISMATCH, "%s holds the state of another optimizer", path);
    memcpy(f->fleet_id, desc->fleet_id, sizeof f->fleet_id);
    f->generation = desc->generation;
    f->drives[desc->drive] = drive;
    return 0;
}

/* Explains drives that do not fit each other by an interrupted creation: some may still belong to the fleet that it
 * replaces, or to another attempt. Not if the caller asks for a certain fleet, or knows of a committed step. */
static int explain_mismatch(const struct shore_fleet *f, const struct shore_fleet_options *o,
                            struct shore__drive *const *opened, int rc, struct shore_diag *diag) {
    if (o->fleet_id[0] || o->fleet_id[1] || o->hint_step) return rc;
    for (uint32_t i = 0; i < f->own_count; i++) {
        struct shore__drive_recovery found;
        if (opened[i]->ops->recovery(opened[i], &found, NULL) || found.valid || found.damaged_record) continue;
        return shore__fail(diag, SHORE_EMISSING, "%s was being made and holds no whole state yet: make it again",
                           opened[i]->path);
    }
    return rc;
}

/* Opens the drives in any order and puts each in its place. */
static int open_drives(struct shore_fleet *f, const struct shore_fleet_options *o, struct shore_diag *diag) {
    const uint32_t first = f->own_first, count = f->own_count;
    struct shore__drive **opened = calloc(count + 1u, sizeof(struct shore__drive *));
    int rc = opened ? 0 : shore__fail(diag, -ENOMEM, "out of memory");
    for (uint32_t i = 0; !rc && i < count; i++) {
        rc = shore__drive_open_at(&f->config, f->at.item[first + i], &opened[i], diag);
        if (rc) rc = say_where(o->drives[first + i], rc, diag);
    }
    uint32_t placed = 0;
    for (; !rc && placed < count; placed += !rc) {
        rc = shore__fleet_place(f, o, opened[placed], first + placed, diag);
        if (rc) rc = explain_mismatch(f, o, opened, rc, diag);
    }
    for (uint32_t i = placed; opened && i < count; i++) {
        if (opened[i]) opened[i]->ops->close(opened[i]);
    }
    free(opened);
    return rc;
}

static int match_placement(struct shore_fleet *f, struct shore_diag *diag) {
    const struct shore__volume_desc **descs = calloc(f->ndrives, sizeof *descs);
    if (!descs) return shore__fail(diag, -ENOMEM, "out of memory");
    for (uint32_t d = 0; d < f->ndrives; d++) {
        descs[d] = f->drives[d]->desc;
    }
    int rc = shore__placement_read(f->layout, descs, f->ndrives, f->ranges, diag);
    free(descs);
    return rc;
}

/* Reports damage that was found, even if it did no harm. */
static void tell_damage(const struct shore_fleet *f) {
    for (uint32_t d = f->own_first; d < f->own_first + f->own_count && f->config.note; d++) {
        struct shore__drive_recovery found;
        int rc = f->drives[d]->ops->recovery(f->drives[d], &found, NULL);
        if (!rc && found.damage.text[0]) f->config.note(f->config.note_ctx, found.damage.text);
    }
}

/* Checks the step that the user accepts. A newer step is given up only if it is not whole, and if every byte of the
 * accepted step is. */
static int check_accepted(struct shore_fleet *f, const struct shore__fleet_state *state, struct shore_diag *diag) {
    unsigned long long kept = state->step, given_up = state->given_up;
    struct shore_diag why = {0}, text = {0};
    int rc = state->gives_up ? load(f, state->given_up, true, &why) : SHORE_ECORRUPT;
    if (rc == SHORE_ELINK || rc == -ENOMEM) return shore__fail_of(diag, rc, &why, "%s", why.text);
    if (!rc)
        return shore__fail(diag, SHORE_EUSAGE,
                           "step %llu is whole on every drive: continue with it, and do not accept step %llu", given_up,
                           kept);
    rc = load(f, state->step, true, &text);
    if (rc == SHORE_ECORRUPT && state->gives_up)
        return shore__fail(diag, rc, "step %llu cannot be accepted: it is not whole either: %.900s", kept, text.text);
    if (rc) return shore__fail_of(diag, rc, &text, "%s", text.text);
    if (state->gives_up && f->config.note) {
        shore__fail(&text, 0,
                    "step %llu is given up for step %llu: every byte of that step was read and is whole: %.900s",
                    given_up, kept, why.text);
        f->config.note(f->config.note_ctx, text.text);
    }
    return 0;
}

static int load_newest(struct shore_fleet *f, const struct shore__fleet_state *state, struct shore_diag *diag) {
    char before[24];
    int rc = load(f, state->step, false, diag);
    if (rc != SHORE_ECORRUPT || !state->step_before) return rc;
    snprintf(before, sizeof before, "%llu", (unsigned long long)state->step - 1);
    return shore__advise(diag, rc, SHORE_ADVICE_ACCEPT_STEP, before);
}

/* Makes the fleet ready at the step that the drives' records give. */
static int go_on_at(struct shore_fleet *f, const struct shore__fleet_state *state, struct shore_diag *diag) {
    tell_damage(f);
    int rc = state->verify ? check_accepted(f, state, diag) : load_newest(f, state, diag);
    if (!rc) rc = begin(f, state->epoch + 1, state->step, diag);
    if (rc) return rc;
    memcpy(f->metrics, state->metrics, state->metrics_bytes);
    f->metrics_bytes = state->metrics_bytes;
    return 0;
}

int shore__fleet_go_on(struct shore_fleet *f, struct shore_diag *diag) {
    struct shore__fleet_state state;
    if (f->made) return match_placement(f, diag);
    /* The records come first: two interrupted creations may have placed the state differently. */
    int rc = shore__fleet_recover(f->drives, f->ndrives, &f->opening, &state, diag);
    if (!rc) rc = match_placement(f, diag);
    if (!rc) rc = shore__fleet_set_scratch(f, diag);
    if (!rc) rc = go_on_at(f, &state, diag);
    if (rc && f->begun) rc = -EIO; /* interrupted, not refused: no code that says that nothing was written */
    return rc;
}

int shore_fleet_open(const struct shore_layout *layout, const struct shore_fleet_options *given,
                     struct shore_fleet **out, struct shore_diag *diag) {
    struct shore_fleet *f = NULL;
    struct shore_fleet_options options;
    *out = NULL;
    int rc = shore__fleet_new(layout, given, &options, &f, diag);
    if (rc) return rc;
    rc = open_drives(f, &options, diag);
    if (!rc && !f->is_part) rc = shore__fleet_go_on(f, diag);
    if (rc) {
        shore_fleet_close(f);
        return rc;
    }
    *out = f;
    return 0;
}

/* ---- after a connection broke ---- */

int shore_fleet_reconnect(struct shore_fleet *f, struct shore_diag *diag) {
    if (f->is_part)
        return shore__fail(diag, -ENOTSUP,
                           "a drive of one of several processes was lost: end all of them and start them again");
    pthread_mutex_lock(&f->lock);
    while (f->joins) {
        pthread_cond_wait(&f->idle, &f->lock);
    }
    f->attempt++;
    struct shore_fleet_options options = {.hint_step = f->step};
    struct shore__fleet_state state;
    bool ready = f->ready;
    pthread_mutex_unlock(&f->lock);
    if (!ready) return shore__fail(diag, -EINVAL, "the fleet was not sealed");
    int rc = 0;
    for (uint32_t d = 0; !rc && d < f->ndrives; d++) {
        struct shore__drive *drive = f->drives[d];
        if (shore__is_remote(drive) && shore__remote_is_broken(drive, NULL))
            rc = shore__remote_reconnect(drive, diag);
        else
            drive->ops->discard(drive, f->attempt); /* it may still be busy with earlier requests */
    }
    if (!rc) rc = shore__fleet_recover(f->drives, f->ndrives, &options, &state, diag);
    if (!rc) rc = go_on_at(f, &state, diag);
    if (rc) return rc;
    pthread_mutex_lock(&f->lock);
    f->attempt_rc = f->broken_rc = 0;
    pthread_mutex_unlock(&f->lock);
    return 0;
}
