/* A part of a fleet: what it tells the others, and what it learns of them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/fleet/fleet.h"
#include "drive/fleet/peer.h"
#include "drive/remote/wire_open.h"

/* The bytes of a part: for each own drive a length, and what the server of a drive would answer to OPEN. */
#define LENGTH_BYTES 4u

int shore_fleet_part(const struct shore_fleet *f, void *out, size_t *bytes, struct shore_diag *diag) {
    const size_t capacity = *bytes;
    if (!f->is_part) return shore__fail(diag, -EINVAL, "the fleet is whole: `mine` makes it a part");
    *bytes = 0;
    for (uint32_t d = f->own_first; d < f->own_first + f->own_count; d++) {
        struct shore__wire_open told;
        unsigned char *body = NULL;
        uint32_t body_bytes = 0;
        int rc = shore__peer_tell(f->drives[d], &told, diag);
        if (rc) return rc;
        rc = shore__wire_open_put(&told, true, &body, &body_bytes);
        if (rc) return shore__fail(diag, rc, "%s: what it holds is too long to tell", told.path);
        if (*bytes + LENGTH_BYTES + body_bytes <= capacity) {
            unsigned char *at = (unsigned char *)out + *bytes;
            shore__put_u32(at, body_bytes);
            memcpy(at + LENGTH_BYTES, body, body_bytes);
        }
        *bytes += LENGTH_BYTES + body_bytes;
        free(body);
    }
    return *bytes > capacity ? shore__fail(diag, -ENOSPC, "the part takes %zu bytes", *bytes) : 0;
}

/* Whether it is told of a drive of our own for the first time: by ourselves. */
static bool is_our_own(const struct shore_fleet *f, const struct shore__wire_open *told, bool *seen) {
    const uint32_t own = told->desc.drive - f->own_first;
    if (told->desc.drive < f->own_first || own >= f->own_count || seen[own]) return false;
    const struct shore__volume_desc *desc = f->drives[told->desc.drive]->desc;
    seen[own] = memcmp(desc->volume_id, told->desc.volume_id, sizeof desc->volume_id) == 0;
    return seen[own];
}

static int place_peer(struct shore_fleet *f, struct shore__wire_open *told, struct shore_diag *diag) {
    struct shore__drive *peer, **at;
    const uint32_t d = told->desc.drive;
    if (told->recovery.valid && f->made)
        return shore__fail(diag, SHORE_EMISMATCH,
                           "%s holds the state of a run already, and this process makes a new one: let all create, or "
                           "all open",
                           told->path);
    at = d < f->ndrives && shore__peer_is_unknown(f->drives[d]) ? &f->drives[d] : NULL;
    int rc = shore__peer_make(&f->opening, d, told->path, told, &peer, diag);
    if (rc) return rc;
    if (at) {
        (*at)->ops->close(*at);
        *at = NULL;
    }
    rc = shore__fleet_place(f, &f->opening, peer, d, diag);
    if (rc) peer->ops->close(peer);
    return rc;
}

/* Takes the drives of one part. seen: by drive, own ones that were told. */
static int take_part(struct shore_fleet *f, const unsigned char *at, size_t bytes, bool *seen,
                     struct shore_diag *diag) {
    for (const unsigned char *end = at + bytes; at < end;) {
        struct shore__wire_open told;
        const size_t left = (size_t)(end - at);
        const uint32_t length = left >= LENGTH_BYTES ? shore__get_u32(at) : 0;
        if (left < LENGTH_BYTES || length > left - LENGTH_BYTES ||
            shore__wire_open_get(at + LENGTH_BYTES, length, true, &told, NULL))
            return shore__fail(diag, -EINVAL,
                               "what another process tells of its drives is malformed: let all run the same version");
        at += LENGTH_BYTES + length;
        int rc = is_our_own(f, &told, seen) ? 0 : place_peer(f, &told, diag);
        shore__wire_open_free(&told);
        if (rc) return rc;
    }
    return 0;
}

bool shore_drive_holds(const char *drive, const uint64_t fleet_id[2], uint32_t number) {
    struct shore__address *at = NULL;
    struct shore__volume v;
    char *path = NULL;
    if (shore__address_parse(drive, &at, NULL)) return false;
    bool holds = at->kind->served;
    if (at->kind->has_file && !shore__volume_path(at->path, &path, NULL) && !shore__volume_peek(path, &v, NULL)) {
        holds = memcmp(v.desc.fleet_id, fleet_id, sizeof v.desc.fleet_id) == 0 && v.desc.drive == number;
        shore__volume_close(&v);
    }
    free(path);
    free(at);
    return holds;
}

static int find_missing(const struct shore_fleet *f, struct shore_diag *diag) {
    for (uint32_t d = 0; d < f->ndrives; d++)
        if (shore__peer_is_unknown(f->drives[d]))
            return shore__fail(diag, SHORE_EMISMATCH,
                               "no process has %s, drive %u of the fleet's %u: start the process that has it, or give "
                               "it to another one",
                               f->drives[d]->path, d, f->ndrives);
    return 0;
}

int shore_fleet_unite(struct shore_fleet *f, const void *const *parts, const size_t *bytes, uint32_t nparts,
                      struct shore_diag *diag) {
    if (f->united) return shore__fail(diag, -EINVAL, "all drives of the fleet are known already");
    bool *seen = calloc(f->own_count + 1u, sizeof *seen);
    int rc = seen ? 0 : shore__out_of_memory(diag);
    for (uint32_t p = 0; !rc && p < nparts; p++)
        rc = take_part(f, parts[p], bytes[p], seen, diag);
    free(seen);
    if (!rc) rc = find_missing(f, diag);
    if (!rc) rc = shore__fleet_go_on(f, diag);
    f->united = !rc;
    return rc;
}
