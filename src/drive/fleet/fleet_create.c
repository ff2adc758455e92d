/* Creating a fleet: what its paths hold now, placement, new volumes, their initial state. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/diag.h"
#include "drive/fleet/join.h"
#include "drive/probe/probe.h"
#include "drive/probe/speed.h"

/* What a drive's address holds now, and what to do with it. */
struct found {
    char *path;  /* of the volume; NULL: virtual, or on another host */
    char *there; /* of the volume on another host */
    bool replace;
    bool existed, is_volume;
    bool sealed;  /* a volume with a record */
    bool settled; /* it was used after it was made: opened since, or it has lost a record */
    uint64_t fleet_id[2];
    uint64_t device, capacity_bytes; /* 0: unknown */
    uint64_t stripes;                /* scratch stripes that it will get */
};

/* Looks at a drive's path. It may hold a volume with a whole state, or something that the creation decides about. A
 * volume in use is always refused. */
static int look_here(const struct shore_fleet_options *o, struct found *found, struct shore_diag *diag) {
    struct stat st;
    struct shore__volume volume;
    if (stat(found->path, &st) != 0) return 0;
    found->existed = true;
    int rc = shore__volume_open_records(found->path, o->io, &volume, diag);
    if (rc) return rc == SHORE_EBUSY ? rc : 0;
    found->is_volume = true;
    found->sealed = volume.record_valid || volume.damaged_record;
    found->settled = volume.damaged_record || (volume.record_valid && volume.record.sequence > 1);
    memcpy(found->fleet_id, volume.desc.fleet_id, sizeof found->fleet_id);
    shore__volume_close(&volume);
    return 0;
}

/* The same for a drive on another host. */
static int look_there(const struct shore_fleet_options *o, const struct shore__address *at, struct found *found,
                      struct shore_diag *diag) {
    struct shore__probe probe;
    int rc = shore__drive_probe_idle(at, &probe, diag);
    if (rc) return rc;
    found->existed = probe.exists;
    found->is_volume = probe.is_volume;
    found->sealed = shore__probe_is_sealed(&probe);
    found->settled = probe.recovery.damaged_record || (probe.recovery.valid && probe.recovery.record.sequence > 1);
    memcpy(found->fleet_id, probe.desc.fleet_id, sizeof found->fleet_id);
    found->capacity_bytes = probe.capacity_bytes;
    found->device = probe.device;
    found->there = probe.path;
    probe.path = NULL;
    if (!probe.exists) rc = shore__probe_may_be_made(at, &probe, diag);
    if (probe.busy && shore__probe_is_of(&probe, o->fleet_id) && probe.desc.generation < o->generation)
        rc = shore__fail(diag, SHORE_EUSAGE, "%s: is a drive of this run already, by another name", at->text);
    else if (probe.busy)
        rc = shore__fail(diag, SHORE_EBUSY, "%s: another process works on this volume", at->text);
    shore__probe_free(&probe);
    return rc;
}

static int look_at_all(const struct shore_fleet *f, const struct shore_fleet_options *o, struct found *found,
                       struct shore_diag *diag) {
    const uint32_t own = f->own_first, end = own + f->own_count;
    for (uint32_t d = own; d < end; d++) {
        found[d].replace = o->overwrite;
        const struct shore__address *at = f->at.item[d];
        int rc = shore__drive_may_be_made(at, diag);
        if (!rc && at->kind->served) rc = look_there(o, at, &found[d], diag);
        if (!rc && at->kind->has_file) rc = shore__volume_path(at->path, &found[d].path, diag);
        if (!rc && at->kind->has_file) rc = look_here(o, &found[d], diag);
        for (uint32_t e = own; !rc && at->kind->served && e < d; e++) {
            if (found[e].there && strcmp(found[d].there, found[e].there) == 0 &&
                shore__address_shares_server(at, f->at.item[e]))
                rc = shore__fail(diag, SHORE_EUSAGE, "the drive %s is given twice", at->text);
        }
        if (rc) return rc;
    }
    for (uint32_t d = own; d < end; d++) {
        struct found *at = &found[d];
        /* a volume without a record: its fleet was still being made, and none of it was used since */
        for (uint32_t e = own; e < end && !at->replace && !at->settled; e++) {
            bool same_fleet = memcmp(found[e].fleet_id, at->fleet_id, sizeof at->fleet_id) == 0;
            at->replace = at->is_volume && found[e].is_volume && !found[e].sealed && same_fleet;
        }
        /* The one without a record may be of another part: who knows the id is the creation that was cut off. */
        if (f->is_part && at->is_volume && !at->settled)
            at->replace |= memcmp(at->fleet_id, o->fleet_id, sizeof at->fleet_id) == 0;
        if (at->sealed && !at->replace) {
            return shore__fail(diag, SHORE_EEXISTS, "%s: holds the state of a run already; name another path",
                               at->path ? at->path : o->drives[d]);
        }
    }
    return 0;
}

static int create_drive(struct shore_fleet *f, const struct shore_fleet_options *o, uint32_t d,
                        const struct found *found, struct shore_diag *diag) {
    struct shore__extent *extents = NULL;
    struct shore__volume_desc desc = {
        .fleet_id = {f->fleet_id[0], f->fleet_id[1]},
        .drive = d,
        .ndrives = f->ndrives,
        .generation = f->generation,
        .scratch_bytes = found->stripes * SHORE__SCRATCH_STRIPE_BYTES,
        .spill = o->spill,
        .identity = o->identity,
        .identity_bytes = o->identity_bytes,
        .layout = f->layout,
        .resting_planes = shore__planes_resting(o->moments),
    };
    if (getrandom(desc.volume_id, sizeof desc.volume_id, 0) != sizeof desc.volume_id) return -EIO;
    int rc = shore__placement_extents(f->layout, f->ranges, f->ndrives, d, &extents, &desc.nextents, &desc.segments);
    if (rc) return shore__fail(diag, rc, "out of memory");
    desc.extents = extents;
    memcpy(desc.plane_bytes, f->config.plane_bytes, sizeof desc.plane_bytes);
    desc.plane_form = f->config.moments;
    rc = shore__drive_create_at(&f->config, f->at.item[d], &desc, found->replace, &f->drives[d], diag);
    free(extents);
    return rc;
}

/* Finds each drive's capacity and speed. */
static int know_drives(const struct shore_fleet *f, const struct shore_fleet_options *o, const struct found *found,
                       uint64_t *capacity, uint64_t *speeds, struct shore_diag *diag) {
    if (o->drive_speeds) {
        int rc = shore__speeds_parse(o->drive_speeds, f->ndrives, speeds, diag);
        if (rc) return rc;
    }
    if (f->is_part) return 0; /* nobody knows all drives, and all must place alike: equal shares, room or not */
    struct shore__site *sites = calloc(f->ndrives, sizeof *sites);
    if (!sites) return shore__fail(diag, -ENOMEM, "out of memory");
    for (uint32_t d = 0; d < f->ndrives; d++) {
        const struct found *at = &found[d];
        bool remote = at->there;
        sites[d].at = f->at.item[d];
        sites[d].volume = at->path;
        sites[d].device = remote ? at->device : at->path ? shore__drive_device(at->path) : 0;
        capacity[d] = remote ? at->capacity_bytes : at->path ? shore__drive_capacity_bytes(f->at.item[d]->path) : 0;
    }
    if (!o->drive_speeds)
        shore__sites_measure(sites, f->ndrives, shore__state_segment_bytes(f->config.plane_bytes), o, speeds);
    free(sites);
    return 0;
}

/* Places blocks by the speed of the drives, as far as they have room: all shards of a block finish together. Scratch
 * likewise. */
static int place_blocks(struct shore_fleet *f, const struct shore_fleet_options *o, struct found *found,
                        struct shore_diag *diag) {
    uint64_t *numbers = calloc((size_t)f->ndrives * 4, sizeof *numbers);
    if (!numbers) return shore__fail(diag, -ENOMEM, "out of memory");
    uint64_t *speeds = numbers, *capacity = speeds + f->ndrives, *weights = capacity + f->ndrives;
    uint64_t *stripes = weights + f->ndrives;
    int rc = know_drives(f, o, found, capacity, speeds, diag);
    if (!rc) {
        const uint64_t total = shore__fleet_disk_bytes(f->layout, o, shore__fleet_takes_whole(o));
        if (f->is_part)
            memcpy(weights, speeds, f->ndrives * sizeof *weights);
        else
            shore__placement_weights(speeds, capacity, f->ndrives, total, weights);
        shore__placement_make(f->layout, weights, f->ndrives, f->ranges);
        shore__stripes_share(o->scratch_bytes, weights, f->ndrives, stripes);
    }
    for (uint32_t d = 0; !rc && d < f->ndrives; d++)
        found[d].stripes = stripes[d];
    free(numbers);
    return rc;
}

/* Continues with the id of an interrupted creation. With a new id, a second interruption would leave the volumes that
 * were not reached yet in another fleet. */
static int choose_id(const struct shore_fleet_options *o, const struct found *found, uint64_t id[2],
                     struct shore_diag *diag) {
    memcpy(id, o->fleet_id, sizeof o->fleet_id);
    if (o->mine && !id[0] && !id[1])
        return shore__fail(diag, -EINVAL, "processes that make a fleet together need its fleet_id");
    for (uint32_t d = 0; d < o->ndrives && !id[0] && !id[1]; d++)
        if (found[d].is_volume && !found[d].sealed) memcpy(id, found[d].fleet_id, sizeof o->fleet_id);
    if (id[0] || id[1] || getrandom(id, sizeof o->fleet_id, 0) == sizeof o->fleet_id) return 0;
    return shore__fail(diag, -EIO, "the system gives no random numbers for a new fleet");
}

static int create_all(struct shore_fleet *f, const struct shore_fleet_options *o, struct found *found,
                      struct shore_diag *diag) {
    f->made = true;
    f->generation = o->generation ? o->generation : 1;
    int rc = choose_id(o, found, f->fleet_id, diag);
    if (!rc) rc = place_blocks(f, o, found, diag);
    if (rc) return rc;
    for (uint32_t d = f->own_first; d < f->own_first + f->own_count; d++) {
        rc = create_drive(f, o, d, &found[d], diag);
        if (!rc) continue;
        /* remove everything new; another host may have begun to make the drive that failed here */
        for (uint32_t e = f->own_first; e <= d; e++) {
            if (e < d && found[e].path && !found[e].existed) unlink(found[e].path);
            if (!f->at.item[e]->kind->served || found[e].existed) continue;
            if (f->drives[e]) f->drives[e]->ops->close(f->drives[e]);
            f->drives[e] = NULL;
            shore__drive_remove(f->at.item[e], f->fleet_id, f->generation, true, NULL);
        }
        return rc;
    }
    return shore__fleet_set_scratch(f, diag);
}

int shore_fleet_create(const struct shore_layout *layout, const struct shore_fleet_options *given,
                       struct shore_fleet **out, struct shore_diag *diag) {
    struct shore_fleet *f;
    struct shore_fleet_options known, *options = &known;
    *out = NULL;
    int rc = shore__fleet_new(layout, given, options, &f, diag);
    if (rc) return rc;
    struct found *found = calloc(options->ndrives, sizeof *found);
    if (!found) {
        rc = shore__fail(diag, -ENOMEM, "out of memory");
    } else {
        rc = look_at_all(f, options, found, diag);
        if (!rc) rc = create_all(f, options, found, diag);
    }
    for (uint32_t d = 0; found && d < options->ndrives; d++) {
        free(found[d].path);
        free(found[d].there);
    }
    free(found);
    if (rc) {
        shore_fleet_close(f);
        return rc;
    }
    *out = f;
    return 0;
}

int shore_fleet_init_block(struct shore_fleet *f, uint32_t block, uint32_t segment, uint32_t count, const float *master,
                           const float *m, const float *v, struct shore_diag *diag) {
    if (!shore__fleet_is_new(f) || shore__fleet_check_range(f, block, segment, count))
        return shore__fail(diag, -EINVAL,
                           "initial state lies outside of the layout, comes after the fleet was sealed, or before its "
                           "parts have united");
    for (uint32_t d = 0; d < f->ndrives; d++) {
        struct shore__range part;
        if (!shore__fleet_intersect(f, block, d, segment, count, &part)) continue;
        size_t skip = (size_t)(part.first - segment) * SHORE_SEGMENT_ELEMS;
        int rc = f->drives[d]->ops->init(f->drives[d], block, part.first, part.count, master + skip,
                                         m ? m + skip : NULL, v ? v + skip : NULL, diag);
        if (rc) return rc;
    }
    return 0;
}
