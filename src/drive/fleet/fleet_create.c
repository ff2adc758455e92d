/* Making a fleet: what is at the paths now, placement, new volumes, their initial state. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/diag.h"
#include "drive/fleet/emulated.h"
#include "drive/fleet/fleet.h"
#include "drive/probe/probe.h"
#include "drive/probe/speed.h"
#include "drive/remote/transport.h"
#include "drive/throttle.h"

struct place {
    char *path;  /* of the volume; NULL: virtual, or on another host */
    char *there; /* of the volume on another host */
    bool replace;
    bool existed, is_volume;
    bool sealed;  /* a volume with a record */
    bool settled; /* not only by its making: it was opened since, or has lost a record */
    uint64_t fleet_id[2];
    uint64_t device, capacity_bytes; /* 0: unknown */
    uint64_t stripes;                /* of scratch that it will have */
};

/* What is at a drive's path now: a volume that holds a whole state, or something whose fate creating decides. One that
 * is in use is refused always. */
static int look_at_place(const struct shore_fleet_options *o, struct place *place, struct shore_diag *diag) {
    struct stat st;
    struct shore__volume volume;
    if (stat(place->path, &st) != 0) return 0;
    place->existed = true;
    int rc = shore__volume_open_records(place->path, o->io, &volume, diag);
    if (rc) return rc == SHORE_EBUSY ? rc : 0;
    place->is_volume = true;
    place->sealed = volume.record_valid || volume.damaged_record;
    place->settled = volume.damaged_record || (volume.record_valid && volume.record.sequence > 1);
    memcpy(place->fleet_id, volume.desc.fleet_id, sizeof place->fleet_id);
    shore__volume_close(&volume);
    return 0;
}

/* The same of a drive on another host. */
static int ask_of_place(const struct shore_fleet_options *o, const char *uri, struct place *place,
                        struct shore_diag *diag) {
    struct shore__probe probe;
    int rc = shore__drive_probe_idle(uri, &probe, diag);
    if (rc) return rc;
    place->existed = probe.exists;
    place->is_volume = probe.is_volume;
    place->sealed = shore__probe_is_sealed(&probe);
    place->settled = probe.recovery.damaged_record || (probe.recovery.valid && probe.recovery.record.sequence > 1);
    memcpy(place->fleet_id, probe.desc.fleet_id, sizeof place->fleet_id);
    place->capacity_bytes = probe.capacity_bytes;
    place->device = probe.device;
    place->there = probe.path;
    probe.path = NULL;
    if (!probe.exists) rc = shore__probe_may_be_made(uri, &probe, diag);
    if (probe.busy && shore__probe_is_of(&probe, o->fleet_id) && probe.desc.generation < o->generation)
        rc = shore__fail(diag, SHORE_EUSAGE, "%s: is a drive of this run already, by another name", uri);
    else if (probe.busy)
        rc = shore__fail(diag, SHORE_EBUSY, "%s: another process works on this volume", uri);
    shore__probe_free(&probe);
    return rc;
}

static int look_at_places(const struct shore_fleet_options *o, struct place *places, struct shore_diag *diag) {
    for (uint32_t d = 0; d < o->ndrives; d++) {
        places[d].replace = o->overwrite;
        if (shore__path_is_virtual(o->drives[d])) continue;
        bool remote = shore__path_is_remote(o->drives[d]);
        int rc = remote ? ask_of_place(o, o->drives[d], &places[d], diag) : shore__file_may_be_made(o->drives[d], diag);
        if (!rc && !remote) rc = shore__volume_path(o->drives[d], &places[d].path, diag);
        if (!rc && !remote) rc = look_at_place(o, &places[d], diag);
        for (uint32_t e = 0; !rc && remote && e < d; e++) {
            if (places[e].there && strcmp(places[d].there, places[e].there) == 0 &&
                shore__uris_share_server(o->drives[d], o->drives[e]))
                rc = shore__fail(diag, SHORE_EUSAGE, "the drive %s is given twice", o->drives[d]);
        }
        if (rc) return rc;
    }
    for (uint32_t d = 0; d < o->ndrives; d++) {
        struct place *place = &places[d];
        /* a volume without a record says that its whole fleet was being made, and none of it was used since */
        for (uint32_t e = 0; e < o->ndrives && !place->replace && !place->settled; e++) {
            bool same_fleet = memcmp(places[e].fleet_id, place->fleet_id, sizeof place->fleet_id) == 0;
            place->replace = place->is_volume && places[e].is_volume && !places[e].sealed && same_fleet;
        }
        if (place->sealed && !place->replace) {
            return shore__fail(diag, SHORE_EEXISTS,
                               "%s: holds the state of a run already; name another path; where a run is made, "
                               "--overwrite replaces it",
                               place->path ? place->path : o->drives[d]);
        }
    }
    return 0;
}

static int create_drive(struct shore_fleet *f, const struct shore_fleet_options *o, uint32_t d,
                        const struct place *place, struct shore_diag *diag) {
    struct shore__extent *extents = NULL;
    struct shore__volume_desc desc = {
        .fleet_id = {f->fleet_id[0], f->fleet_id[1]},
        .drive = d,
        .ndrives = f->ndrives,
        .generation = f->generation,
        .scratch_bytes = place->stripes * SHORE__SCRATCH_STRIPE_BYTES,
        .spill = o->spill,
        .identity = o->identity,
        .identity_bytes = o->identity_bytes,
    };
    if (getrandom(desc.volume_id, sizeof desc.volume_id, 0) != sizeof desc.volume_id) return -EIO;
    int rc = shore__placement_extents(f->layout, f->ranges, f->ndrives, d, &extents, &desc.nextents, &desc.segments);
    if (rc) return shore__fail(diag, rc, "out of memory");
    desc.extents = extents;
    memcpy(desc.plane_bytes, f->config.plane_bytes, sizeof desc.plane_bytes);
    desc.plane_form = f->config.moments;
    rc = shore__drive_create_at(&f->config, o->drives[d], place->path, &desc, place->replace, &f->drives[d], diag);
    free(extents);
    return rc;
}

/* What each drive has room for, and how fast it is. */
static int know_drives(const struct shore_fleet *f, const struct shore_fleet_options *o, const struct place *places,
                       uint64_t *capacity, uint64_t *speeds, struct shore_diag *diag) {
    if (o->drive_speeds) {
        int rc = shore__speeds_parse(o->drive_speeds, f->ndrives, speeds, diag);
        if (rc) return rc;
    }
    struct shore__site *sites = calloc(f->ndrives, sizeof *sites);
    if (!sites) return shore__fail(diag, -ENOMEM, "out of memory");
    for (uint32_t d = 0; d < f->ndrives; d++) {
        const struct place *place = &places[d];
        bool remote = place->there;
        sites[d].path = remote ? o->drives[d] : place->path;
        sites[d].device = remote ? place->device : place->path ? shore__drive_device(place->path) : 0;
        capacity[d] = remote ? place->capacity_bytes : shore__drive_capacity_bytes(o->drives[d]);
    }
    if (!o->drive_speeds && !shore__throttle_speeds(f->config.throttle, f->ndrives, speeds))
        shore__sites_measure(sites, f->ndrives, shore__state_segment_bytes(f->config.plane_bytes), o, speeds);
    free(sites);
    return 0;
}

/* Every block's shards finish together: by speed, as far as there is room. Scratch likewise. */
static int place_blocks(struct shore_fleet *f, const struct shore_fleet_options *o, struct place *places,
                        struct shore_diag *diag) {
    uint64_t *numbers = calloc((size_t)f->ndrives * 4, sizeof *numbers);
    if (!numbers) return shore__fail(diag, -ENOMEM, "out of memory");
    uint64_t *speeds = numbers, *capacity = speeds + f->ndrives, *weights = capacity + f->ndrives;
    uint64_t *stripes = weights + f->ndrives;
    int rc = know_drives(f, o, places, capacity, speeds, diag);
    if (!rc) {
        shore__placement_weights(speeds, capacity, f->ndrives, shore_fleet_disk_bytes(f->layout, o), weights);
        shore__placement_make(f->layout, weights, f->ndrives, f->ranges);
        shore__stripes_share(o->scratch_bytes, weights, f->ndrives, stripes);
    }
    for (uint32_t d = 0; !rc && d < f->ndrives; d++)
        places[d].stripes = stripes[d];
    free(numbers);
    return rc;
}

/* That of a making that was cut off goes on: were this one cut off too, the volumes that it has not come to yet would
 * else be of another fleet. */
static int choose_id(const struct shore_fleet_options *o, const struct place *places, uint64_t id[2],
                     struct shore_diag *diag) {
    memcpy(id, o->fleet_id, sizeof o->fleet_id);
    for (uint32_t d = 0; d < o->ndrives && !id[0] && !id[1]; d++)
        if (places[d].is_volume && !places[d].sealed) memcpy(id, places[d].fleet_id, sizeof o->fleet_id);
    if (id[0] || id[1] || getrandom(id, sizeof o->fleet_id, 0) == sizeof o->fleet_id) return 0;
    return shore__fail(diag, -EIO, "no random numbers for a new fleet");
}

static int create_all(struct shore_fleet *f, const struct shore_fleet_options *o, struct place *places,
                      struct shore_diag *diag) {
    f->generation = o->generation ? o->generation : 1;
    int rc = choose_id(o, places, f->fleet_id, diag);
    if (!rc) rc = place_blocks(f, o, places, diag);
    if (rc) return rc;
    for (uint32_t d = 0; d < f->ndrives; d++) {
        rc = create_drive(f, o, d, &places[d], diag);
        if (!rc) continue;
        /* nothing new stays behind; another host may have begun what failed here */
        for (uint32_t e = 0; e <= d; e++) {
            if (e < d && places[e].path && !places[e].existed) unlink(places[e].path);
            if (!shore__path_is_remote(o->drives[e]) || places[e].existed) continue;
            if (f->drives[e]) f->drives[e]->ops->close(f->drives[e]);
            f->drives[e] = NULL;
            shore__drive_remove(o->drives[e], f->fleet_id, f->generation, true, NULL);
        }
        return rc;
    }
    return shore__fleet_set_scratch(f, diag);
}

int shore__fleet_create_emulated(const struct shore_layout *layout, const struct shore_fleet_options *given,
                                 struct shore__throttle *throttle, struct shore_fleet **out, struct shore_diag *diag) {
    struct shore_fleet *f;
    struct shore_fleet_options known, *options = &known;
    *out = NULL;
    int rc = shore__fleet_new(layout, given, throttle, options, &f, diag);
    if (rc) return rc;
    struct place *places = calloc(options->ndrives, sizeof *places);
    if (!places) {
        rc = shore__fail(diag, -ENOMEM, "out of memory");
    } else {
        rc = look_at_places(options, places, diag);
        if (!rc) rc = create_all(f, options, places, diag);
    }
    for (uint32_t d = 0; places && d < options->ndrives; d++) {
        free(places[d].path);
        free(places[d].there);
    }
    free(places);
    if (rc) {
        shore_fleet_close(f);
        return rc;
    }
    *out = f;
    return 0;
}

int shore_fleet_create(const struct shore_layout *layout, const struct shore_fleet_options *options,
                       struct shore_fleet **out, struct shore_diag *diag) {
    return shore__fleet_create_emulated(layout, options, NULL, out, diag);
}

int shore_fleet_init_block(struct shore_fleet *f, uint32_t block, uint32_t segment, uint32_t count, const float *master,
                           const float *m, const float *v, struct shore_diag *diag) {
    if (block >= f->layout->nblocks || segment >= f->layout->blocks[block].segments || count == 0 ||
        count > f->layout->blocks[block].segments - segment || f->ready) {
        return shore__fail(diag, -EINVAL, "initial state outside of the layout, or after it was sealed");
    }
    for (uint32_t d = 0; d < f->ndrives; d++) {
        struct shore__range own = f->ranges[(size_t)block * f->ndrives + d];
        uint32_t first = own.first > segment ? own.first : segment;
        uint32_t end = own.first + own.count < segment + count ? own.first + own.count : segment + count;
        if (own.count == 0 || first >= end) continue;
        size_t skip = (size_t)(first - segment) * SHORE_SEGMENT_ELEMS;
        int rc = f->drives[d]->ops->init(f->drives[d], block, first, end - first, master + skip, m ? m + skip : NULL,
                                         v ? v + skip : NULL, diag);
        if (rc) return rc;
    }
    return 0;
}
