/* Parts of snapshots: copies of volumes. They lie where they were made, or beside a drive that was moved since. */
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "drive/probe/probe.h"
#include "run/lifecycle/snapshots.h"
#include "run/lifecycle/volumes.h"

static bool part_is_at(const uint64_t fleet_id[2], uint64_t generation, size_t i, const struct shore__address *at) {
    uint32_t drive;
    return shore__volume_is_placed(at, fleet_id, generation, &drive) && drive == i;
}

bool shore__snapshot_part_is_at(const struct shore__snapshot *s, size_t i, const struct shore__address *at) {
    return part_is_at(s->fleet_id, s->generation, i, at);
}

static bool is_away(const struct shore__parts *p, const struct shore__address *at) {
    return p->away && shore__address_shares_server(p->away, at);
}

static int note_away(struct shore__parts *p, const struct shore__address *at, int rc, const struct shore_diag *why) {
    if (rc != SHORE_ELINK) return rc;
    free(p->away);
    p->away = shore__address_copy(at);
    shore__fail(&p->why, rc, "%s", shore__said_of(why, at->text));
    return rc;
}

static int discard_at(struct shore__parts *p, const struct shore__address *at, bool begun, struct shore_diag *diag) {
    if (is_away(p, at)) return shore__fail_of(diag, SHORE_ELINK, &p->why, "%s: %s", at->text, p->why.text);
    return note_away(p, at, shore__drive_remove(at, p->fleet_id, p->generation, begun, diag), diag);
}

/* Whether the part's name begins with this volume's present name, so it was made beside it. */
static bool is_named_after(const struct shore__address *part, const struct shore__address *volume) {
    const char *name = strrchr(part->text, '/'), *owner = strrchr(volume->text, '/');
    size_t n = owner ? strlen(owner) : 0;
    return name && owner && strncmp(name, owner, n) == 0 && strncmp(name + n, ".snapshot-", 10) == 0;
}

/* Removes a part. begun: also a file without a header, if its name tells whose it is. A file beside another drive may
 * be that drive's part: it goes as well, but then this part may still be where it was. */
static int discard_where_it_is(struct shore__parts *p, size_t i, const struct shore__address *part, bool begun,
                               struct shore_diag *diag) {
    struct shore_diag why = {0};
    int rc = discard_at(p, part, begun, diag);
    for (size_t d = 0; rc && p->drives && d < p->drives->count; d++) {
        const struct shore__address *drive = p->drives->item[d];
        struct shore__spot spot;
        if (!drive->kind->keeps || is_away(p, drive)) continue;
        if (note_away(p, drive, shore__spot_of(drive, &spot, &why), &why)) continue;
        struct shore__address *at = shore__part_beside(spot.volume, part);
        bool elsewhere = at && strcmp(at->text, part->text) != 0;
        bool found = elsewhere && part_is_at(p->fleet_id, p->generation, i, at);
        if (elsewhere && discard_at(p, at, begun && is_named_after(part, spot.volume), &why) == 0 && found) rc = 0;
        free(at);
        free(spot.volume);
    }
    return rc;
}

/* Waits for a server whose client was killed: it may have a snapshot still to begin, and holds the volume until that is
 * made. */
static int wait_for_server(struct shore__parts *p, const struct shore__address *part, struct shore_diag *why) {
    struct shore__probe probe;
    const char *end = strstr(part->text, ".snapshot-");
    bool asks = p->unopened && end && part->kind->served && !is_away(p, part);
    struct shore__address *volume = asks ? shore__address_named(part, (size_t)(end - part->text), "") : NULL;
    int rc = 0;
    if (volume && note_away(p, volume, shore__drive_probe_idle(volume, &probe, why), why) == 0) {
        if (probe.busy) rc = shore__fail(why, SHORE_EBUSY, "%s: in use by another process", volume->text);
        shore__probe_free(&probe);
    }
    free(volume);
    return rc; /* removing the part shows any other failure */
}

/* Looks at the .partial first: a server whose client was killed goes on copying into it. */
bool shore__part_discard(struct shore__parts *p, size_t i, const struct shore__address *part, struct shore_diag *held,
                         shore__note_fn note, void *ctx) {
    struct shore_diag why = {0};
    struct shore__address *partial = shore__address_named(part, strlen(part->text), ".partial");
    if (!partial) return false;
    int rc = wait_for_server(p, part, &why);
    if (!rc) rc = discard_where_it_is(p, i, partial, true, &why);
    if (shore__removal_is_over(rc) || rc == SHORE_ELINK) rc = discard_where_it_is(p, i, part, false, &why);
    free(partial);
    if (!shore__removal_is_over(rc)) {
        if (!*held->text) *held = why;
        return true;
    }
    if (rc && rc != SHORE_EMISSING) shore__note(note, ctx, "%s", why.text);
    return false;
}
