/* Fleets come and go here: what they take, making them, opening them, closing them; and what is asked of them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/diag.h"
#include "base/units.h"
#include "drive/chunk.h"
#include "drive/fleet.h"
#include "drive/layout.h"
#include "drive/speed.h"

#define RING_BYTES_DEFAULT (UINT64_C(16) << 20)
#define RING_BUFFERS 5u
#define RING_BUFFERS_LEAST 3u
#define CHUNK_SEGMENTS_MAX 64u
#define STAGE_SEGMENTS 4u
#define STAGE_SEGMENTS_LEAST 2u

static uint64_t ring_segment_bytes(unsigned planes, bool spill) {
    uint64_t bytes = spill ? SHORE_SEGMENT_ELEMS * UINT64_C(4) : 0;
    for (int p = 0; p < SHORE_PLANE_COUNT; p++) {
        if (planes & 1u << p) bytes += shore__plane_elem_bytes(p) * SHORE_SEGMENT_ELEMS;
    }
    return bytes;
}

/* How the memory of one drive's ring is cut: about 5 buffers, large ones; fewer and smaller ones where it is little. */
static void choose_ring(struct shore__drive_config *config, const struct shore_fleet_options *o, bool least) {
    uint64_t bytes = o->ring_bytes ? o->ring_bytes / (o->ndrives ? o->ndrives : 1) : RING_BYTES_DEFAULT;
    uint64_t segments = bytes / ring_segment_bytes(config->planes, true);
    if (least || segments < RING_BUFFERS_LEAST) segments = RING_BUFFERS_LEAST;
    uint64_t chunk = o->chunk_segments;
    if (!chunk) {
        chunk = segments / RING_BUFFERS ? segments / RING_BUFFERS : 1;
        if (chunk > 8) chunk = 8;
    }
    if (chunk > CHUNK_SEGMENTS_MAX) chunk = CHUNK_SEGMENTS_MAX;
    uint64_t buffers = segments / chunk;
    if (buffers < RING_BUFFERS_LEAST) buffers = RING_BUFFERS_LEAST;
    if (buffers > 16) buffers = 16;
    config->chunk_segments = (uint32_t)chunk;
    config->ring_buffers = (uint32_t)buffers;
    config->stage_segments = least ? STAGE_SEGMENTS_LEAST : STAGE_SEGMENTS;
}

static struct shore__drive_config config_of(const struct shore_layout *layout, const struct shore_fleet_options *o,
                                            bool least) {
    struct shore__drive_config config = {
        .layout = layout,
        .optimizer = o->optimizer,
        .planes = shore_optimizer_planes(o->optimizer, o->with_momentum),
        .fp32_params = o->fp32_params,
        .io = o->io,
        .arena = o->arena,
        .note = o->note,
        .note_ctx = o->note_ctx,
    };
    choose_ring(&config, o, least);
    return config;
}

/* The sum over any placement: sizes are sums of pieces rounded up to pages, so one drive that owns everything and empty
 * ones beside it take as much as any other split, but for a page for each piece. */
static uint64_t memory_bytes(const struct shore_layout *layout, const struct shore_fleet_options *o, bool least) {
    struct shore__drive_config config = config_of(layout, o, least);
    struct shore__volume_desc desc = {
        .ndrives = o->ndrives,
        .planes = config.planes,
        .nextents = layout->nblocks,
        .segments = (uint32_t)layout->segments,
        .scratch_bytes = o->scratch_bytes,
        .spill = o->spill,
        .identity_bytes = SHORE__IDENTITY_BYTES,
    };
    uint64_t locals = 0, rams = 0;
    for (uint32_t d = 0; d < o->ndrives; d++) {
        if (strcmp(o->drives[d], "ram:") == 0) {
            rams++;
        } else if (strcmp(o->drives[d], "null:") != 0) {
            locals++;
        }
    }
    uint64_t bytes = 0;
    if (rams) bytes += shore__ram_memory_bytes(&desc) + rams * 2 * SHORE__SCRATCH_STRIPE_BYTES;
    if (locals) bytes += shore__local_memory_bytes(&config, &desc);
    desc.segments = 1;
    if (locals > 1) bytes += (locals - 1) * shore__local_memory_bytes(&config, &desc);
    return bytes;
}

uint64_t shore_fleet_memory_bytes(const struct shore_layout *layout, const struct shore_fleet_options *options) {
    return memory_bytes(layout, options, false);
}

uint64_t shore_fleet_memory_least_bytes(const struct shore_layout *layout, const struct shore_fleet_options *options) {
    return memory_bytes(layout, options, true);
}

static int check_options(const struct shore_layout *layout, const struct shore_fleet_options *o,
                         struct shore_diag *diag) {
    if (!layout || layout->nblocks == 0) return shore__fail(diag, -EINVAL, "the layout has no blocks");
    if (o->ndrives == 0 || o->ndrives > SHORE__DRIVES_MAX) {
        return shore__fail(diag, SHORE_EUSAGE, "%u drives given; 1 to %u can be used", o->ndrives, SHORE__DRIVES_MAX);
    }
    if ((unsigned)o->optimizer >= SHORE_OPTIMIZER_COUNT) return shore__fail(diag, -EINVAL, "unknown optimizer");
    if (o->identity_bytes > SHORE__IDENTITY_BYTES) {
        return shore__fail(diag, -EINVAL, "an identity of %u bytes; %u fit", o->identity_bytes, SHORE__IDENTITY_BYTES);
    }
    for (uint32_t d = 0; d < o->ndrives; d++) {
        if (shore__path_is_virtual(o->drives[d])) continue;
        for (uint32_t e = 0; e < d; e++) {
            if (strcmp(o->drives[d], o->drives[e]) == 0) {
                return shore__fail(diag, SHORE_EUSAGE, "the drive %s is given twice", o->drives[d]);
            }
        }
    }
    return 0;
}

static int fleet_new(const struct shore_layout *layout, const struct shore_fleet_options *o, struct shore_fleet **out,
                     struct shore_diag *diag) {
    int rc = check_options(layout, o, diag);
    if (rc) return rc;
    struct shore_fleet *f = calloc(1, sizeof *f);
    if (!f) return shore__fail(diag, -ENOMEM, "out of memory");
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->idle, NULL);
    f->ndrives = o->ndrives;
    f->attempt = 1;
    f->drives = calloc(o->ndrives, sizeof *f->drives);
    f->ranges = calloc((size_t)layout->nblocks * o->ndrives, sizeof *f->ranges);
    rc = f->drives && f->ranges ? shore__layout_copy(layout, &f->layout) : -ENOMEM;
    if (rc) {
        shore_fleet_close(f);
        return shore__fail(diag, rc, "the layout cannot be used: %s", shore_error_text(rc));
    }
    bool least = false;
    if (o->arena) {
        least = shore__arena_left(o->arena) < shore_fleet_memory_bytes(layout, o);
    }
    f->config = config_of(f->layout, o, least);
    *out = f;
    return 0;
}

void shore_fleet_close(struct shore_fleet *f) {
    if (!f) return;
    pthread_mutex_lock(&f->lock);
    while (f->joins) {
        pthread_cond_wait(&f->idle, &f->lock);
    }
    pthread_mutex_unlock(&f->lock);
    for (uint32_t d = 0; f->drives && d < f->ndrives; d++) {
        if (f->drives[d]) f->drives[d]->ops->close(f->drives[d]);
    }
    free(f->drives);
    free(f->ranges);
    shore_layout_free(f->layout);
    pthread_cond_destroy(&f->idle);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

/* ---- create ---- */

struct place {
    char *path; /* of the volume; NULL: virtual */
    bool replace;
    bool existed, is_volume;
    bool sealed; /* a volume with a record */
    uint64_t fleet_id[2];
};

/* What is at a drive's path now: a volume that holds a whole state, or something whose fate creating decides. One that
 * is in use is refused always. */
static int look_at_place(const struct shore_fleet_options *o, struct place *place, struct shore_diag *diag) {
    struct stat st;
    struct shore__volume volume;
    if (stat(place->path, &st) != 0) return 0;
    place->existed = true;
    int rc = shore__volume_open(place->path, o->io, NULL, &volume, diag);
    if (rc) return rc == SHORE_EBUSY ? rc : 0;
    place->is_volume = true;
    place->sealed = volume.record_valid || volume.damaged_record;
    memcpy(place->fleet_id, volume.desc.fleet_id, sizeof place->fleet_id);
    shore__volume_close(&volume);
    return 0;
}

static int look_at_places(const struct shore_fleet_options *o, struct place *places, struct shore_diag *diag) {
    for (uint32_t d = 0; d < o->ndrives; d++) {
        places[d].replace = o->overwrite;
        if (shore__path_is_virtual(o->drives[d])) continue;
        int rc = shore__volume_path(o->drives[d], &places[d].path, diag);
        if (!rc) rc = look_at_place(o, &places[d], diag);
        if (rc) return rc;
    }
    for (uint32_t d = 0; d < o->ndrives; d++) {
        struct place *place = &places[d];
        /* a volume without a record says that its whole fleet was being made */
        for (uint32_t e = 0; e < o->ndrives && !place->replace; e++) {
            bool same_fleet = memcmp(places[e].fleet_id, place->fleet_id, sizeof place->fleet_id) == 0;
            place->replace = place->is_volume && places[e].is_volume && !places[e].sealed && same_fleet;
        }
        if (place->sealed && !place->replace) {
            return shore__fail(diag, SHORE_EEXISTS,
                               "%s: holds the state of a run already; name another path, or give --overwrite to "
                               "replace it",
                               place->path);
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
        .generation = 1,
        .planes = f->config.planes,
        .spill = o->spill,
        .identity = o->identity,
        .identity_bytes = o->identity_bytes,
    };
    const uint64_t round = (uint64_t)SHORE__SCRATCH_STRIPE_BYTES * f->ndrives;
    desc.scratch_bytes = (o->scratch_bytes + round - 1) / round * SHORE__SCRATCH_STRIPE_BYTES;
    if (getrandom(desc.volume_id, sizeof desc.volume_id, 0) != sizeof desc.volume_id) return -EIO;
    int rc = shore__placement_extents(f->layout, f->ranges, f->ndrives, d, &extents, &desc.nextents, &desc.segments);
    if (rc) return shore__fail(diag, rc, "out of memory");
    desc.extents = extents;
    if (strcmp(o->drives[d], "ram:") == 0) {
        rc = shore__ram_create(&f->config, &desc, &f->drives[d], diag);
    } else if (strcmp(o->drives[d], "null:") == 0) {
        rc = shore__null_create(&f->config, &desc, &f->drives[d], diag);
    } else {
        rc = shore__local_create(&f->config, place->path, &desc, place->replace, &f->drives[d], diag);
    }
    free(extents);
    return rc;
}

static void set_scratch(struct shore_fleet *f) {
    uint64_t least = UINT64_MAX;
    f->keeps_data = true;
    for (uint32_t d = 0; d < f->ndrives; d++) {
        if (f->drives[d]->desc->scratch_bytes < least) least = f->drives[d]->desc->scratch_bytes;
        if (!(f->drives[d]->ops->caps & SHORE__DRIVE_KEEPS_DATA)) f->keeps_data = false;
    }
    f->scratch_bytes = least * f->ndrives;
}

/* Every block's shards finish together: by speed, as far as there is room. */
static int place_blocks(struct shore_fleet *f, const struct shore_fleet_options *o, const struct place *places,
                        struct shore_diag *diag) {
    uint64_t *numbers = calloc((size_t)f->ndrives * 3, sizeof *numbers);
    char **paths = calloc(f->ndrives, sizeof *paths);
    if (numbers && paths) {
        uint64_t *speeds = numbers, *capacity = numbers + f->ndrives, *weights = capacity + f->ndrives;
        for (uint32_t d = 0; d < f->ndrives; d++) {
            paths[d] = places[d].path;
            capacity[d] = shore__drive_capacity_bytes(o->drives[d]);
        }
        shore__drives_measure(paths, f->ndrives, o, speeds);
        shore__placement_weights(speeds, capacity, f->ndrives, shore_fleet_disk_bytes(f->layout, o), weights);
        shore__placement_make(f->layout, weights, f->ndrives, f->ranges);
    }
    int rc = numbers && paths ? 0 : shore__fail(diag, -ENOMEM, "out of memory");
    free(numbers);
    free(paths);
    return rc;
}

static int create_all(struct shore_fleet *f, const struct shore_fleet_options *o, struct place *places,
                      struct shore_diag *diag) {
    int placed = place_blocks(f, o, places, diag);
    if (placed) return placed;
    memcpy(f->fleet_id, o->fleet_id, sizeof f->fleet_id);
    if (!f->fleet_id[0] && !f->fleet_id[1]) {
        if (getrandom(f->fleet_id, sizeof f->fleet_id, 0) != sizeof f->fleet_id) {
            return shore__fail(diag, -EIO, "no random numbers for a new fleet");
        }
    }
    for (uint32_t d = 0; d < f->ndrives; d++) {
        int rc = create_drive(f, o, d, &places[d], diag);
        if (!rc) continue;
        /* nothing new stays behind */
        for (uint32_t e = 0; e < d; e++) {
            if (places[e].path && !places[e].existed) unlink(places[e].path);
        }
        return rc;
    }
    set_scratch(f);
    return 0;
}

int shore_fleet_create(const struct shore_layout *layout, const struct shore_fleet_options *options,
                       struct shore_fleet **out, struct shore_diag *diag) {
    struct shore_fleet *f;
    *out = NULL;
    int rc = fleet_new(layout, options, &f, diag);
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
    }
    free(places);
    if (rc) {
        shore_fleet_close(f);
        return rc;
    }
    *out = f;
    return 0;
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

/* The tables of all drives, and their bytes too where that is wanted, before anything is written anywhere. */
static int load(struct shore_fleet *f, uint64_t step, bool verify, struct shore_diag *diag) {
    for (uint32_t d = 0; d < f->ndrives; d++) {
        unsigned char sum[16];
        int rc = f->drives[d]->ops->load(f->drives[d], step, diag);
        if (!rc && verify) rc = f->drives[d]->ops->leaf_sum(f->drives[d], true, sum, diag);
        if (rc) return rc;
    }
    return 0;
}

/* The new epoch on every drive before anything else is written. */
static int begin(struct shore_fleet *f, uint64_t epoch, uint64_t step, struct shore_diag *diag) {
    for (uint32_t d = 0; d < f->ndrives; d++) {
        int rc = f->drives[d]->ops->begin(f->drives[d], epoch, step, diag);
        if (rc) return rc;
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
    if (f->ready) return shore__fail(diag, -EINVAL, "the fleet is sealed already");
    if (step >= UINT64_MAX - 1) return shore__fail(diag, -EINVAL, "step out of range");
    return begin(f, 1, step, diag);
}

/* ---- open ---- */

/* Opens the drives in any order and puts each in its place. */
static int open_drives(struct shore_fleet *f, const struct shore_fleet_options *o, struct shore_diag *diag) {
    for (uint32_t i = 0; i < o->ndrives; i++) {
        struct shore__drive *drive;
        if (shore__path_is_virtual(o->drives[i])) {
            return shore__fail(diag, SHORE_EMISSING, "%s keeps nothing after its process has ended", o->drives[i]);
        }
        int rc = shore__local_open(&f->config, o->drives[i], &drive, diag);
        if (rc) return rc;
        const struct shore__volume_desc *desc = drive->desc;
        const char *path = drive->ops->path(drive);
        bool asked = o->fleet_id[0] || o->fleet_id[1];
        const uint64_t *id = asked ? o->fleet_id : i ? f->fleet_id : desc->fleet_id;
        if (desc->fleet_id[0] != id[0] || desc->fleet_id[1] != id[1]) {
            rc = shore__fail(diag, SHORE_EMISMATCH, "%s belongs to another %s", path, asked ? "run" : "fleet");
        } else if (desc->ndrives != o->ndrives) {
            rc = shore__fail(diag, SHORE_EMISMATCH, "%s is one of %u drives, and %u are given", path, desc->ndrives,
                             o->ndrives);
        } else if (desc->drive >= f->ndrives || f->drives[desc->drive]) {
            rc = shore__fail(diag, SHORE_EMISMATCH, "%s is drive %u of its fleet, and so is another one that was given",
                             path, desc->drive);
        } else if (desc->planes != f->config.planes) {
            rc = shore__fail(diag, SHORE_EMISMATCH, "%s holds the state of another optimizer", path);
        }
        if (rc) {
            drive->ops->close(drive);
            return rc;
        }
        memcpy(f->fleet_id, desc->fleet_id, sizeof f->fleet_id);
        f->drives[desc->drive] = drive;
    }
    return 0;
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

/* What was found and did no harm is said all the same. */
static void tell_damage(const struct shore_fleet *f) {
    for (uint32_t d = 0; d < f->ndrives && f->config.note; d++) {
        struct shore__drive_recovery found;
        f->drives[d]->ops->recovery(f->drives[d], &found);
        if (found.damage.text[0]) f->config.note(f->config.note_ctx, found.damage.text);
    }
}

int shore_fleet_open(const struct shore_layout *layout, const struct shore_fleet_options *options,
                     struct shore_fleet **out, struct shore_diag *diag) {
    struct shore_fleet *f;
    struct shore__fleet_state state;
    *out = NULL;
    int rc = fleet_new(layout, options, &f, diag);
    if (rc) return rc;
    rc = open_drives(f, options, diag);
    if (!rc) rc = match_placement(f, diag);
    if (!rc) rc = shore__fleet_recover(f->drives, f->ndrives, options->hint_step, options->accept_step, &state, diag);
    if (!rc) {
        tell_damage(f);
        set_scratch(f);
        memcpy(f->metrics, state.metrics, state.metrics_bytes);
        f->metrics_bytes = state.metrics_bytes;
        rc = load(f, state.step, state.verify, diag);
        if (!rc) rc = begin(f, state.epoch + 1, state.step, diag);
    }
    if (rc) {
        shore_fleet_close(f);
        return rc;
    }
    *out = f;
    return 0;
}

int shore_volume_identity(const char *path, void *identity, uint32_t *bytes, struct shore_diag *diag) {
    struct shore__volume volume;
    char *file;
    int rc = shore__volume_path(path, &file, diag);
    if (rc) return rc;
    rc = shore__volume_peek(file, &volume, diag);
    free(file);
    if (rc) return rc;
    uint32_t capacity = *bytes;
    *bytes = volume.desc.identity_bytes;
    if (volume.desc.identity_bytes > capacity) {
        rc = shore__fail(diag, -ENOSPC, "%s: its identity has %u bytes", path, volume.desc.identity_bytes);
    } else if (volume.desc.identity_bytes) {
        memcpy(identity, volume.desc.identity, volume.desc.identity_bytes);
    }
    shore__volume_close(&volume);
    return rc;
}

/* ---- questions ---- */

void shore_fleet_info(const struct shore_fleet *fleet, struct shore_fleet_info *out) {
    struct shore_fleet *f = (struct shore_fleet *)(uintptr_t)fleet;
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&f->lock);
    out->step = f->step;
    out->epoch = f->epoch;
    pthread_mutex_unlock(&f->lock);
    memcpy(out->fleet_id, f->fleet_id, sizeof out->fleet_id);
    out->ndrives = f->ndrives;
    out->planes = f->config.planes;
    for (uint32_t d = 0; d < f->ndrives; d++) {
        out->disk_bytes += f->drives[d]->ops->disk_bytes(f->drives[d]);
    }
}

const char *shore_fleet_drive_path(const struct shore_fleet *f, uint32_t drive) {
    return drive < f->ndrives ? f->drives[drive]->ops->path(f->drives[drive]) : NULL;
}

int shore_fleet_drive_describe(const struct shore_fleet *f, uint32_t drive, char *text, size_t bytes) {
    return drive < f->ndrives ? f->drives[drive]->ops->describe(f->drives[drive], text, bytes) : -EINVAL;
}

int shore_fleet_metrics(const struct shore_fleet *fleet, void *metrics, uint32_t *bytes) {
    struct shore_fleet *f = (struct shore_fleet *)(uintptr_t)fleet;
    uint32_t capacity = *bytes;
    pthread_mutex_lock(&f->lock);
    *bytes = f->metrics_bytes;
    int rc = f->metrics_bytes > capacity ? -ENOSPC : 0;
    if (!rc) memcpy(metrics, f->metrics, f->metrics_bytes);
    pthread_mutex_unlock(&f->lock);
    return rc;
}

int shore_fleet_digest(struct shore_fleet *f, bool deep, unsigned char digest[16], struct shore_diag *diag) {
    unsigned char message[24] = {0};
    for (uint32_t d = 0; d < f->ndrives; d++) {
        unsigned char sum[16];
        int rc = f->drives[d]->ops->leaf_sum(f->drives[d], deep, sum, diag);
        if (rc) return rc;
        shore__sum_add(message + 8, sum);
    }
    pthread_mutex_lock(&f->lock);
    shore__put_u64(message, f->step);
    pthread_mutex_unlock(&f->lock);
    struct shore__leaf leaf;
    shore__leaf_make(message, sizeof message, 0, &leaf);
    memcpy(digest, leaf.hash, 16);
    return 0;
}

void shore_fleet_ledger(const struct shore_fleet *fleet, struct shore_ledger *out) {
    struct shore_fleet *f = (struct shore_fleet *)(uintptr_t)fleet;
    memset(out, 0, sizeof *out);
    out->link_in_gradients = f->link_in_gradients;
    out->link_out_params = f->link_out_params;
    out->link_activations = f->link_activations;
    out->link_control = f->link_control;
    out->commit_ns = f->commit_ns;
    for (uint32_t d = 0; d < f->ndrives; d++) {
        f->drives[d]->ops->ledger(f->drives[d], out);
    }
}
