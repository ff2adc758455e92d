/* Prints where a run's drives lie, and what is odd about them, before anything is written. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "drive/probe/probe.h"
#include "storage/whereabouts.h"

struct found {
    bool here, there; /* known, on this host or on another */
    struct shore__whereabouts at;
    uint64_t device; /* there */
};

/* Asks a server about room and device. A server that cannot be asked gets its error when the drive is opened. */
static void say_remote(const struct shore__address *drive, bool ask, struct found *f) {
    struct shore__probe probe;
    char where[256] = "behind a socket";
    if (drive->host) snprintf(where, sizeof where, "on %.200s", drive->host);
    bool known = ask && shore__drive_probe(drive, &probe, NULL) == 0;
    f->there = known && probe.device;
    f->device = known ? probe.device : 0;
    if (known && probe.capacity_bytes)
        shore__cli_say("drive %s: %s, room for %s", shore__shown(drive->text).text, where,
                       shore__format_size(probe.capacity_bytes).text);
    else
        shore__cli_say("drive %s: %s", shore__shown(drive->text).text, where);
    if (known) shore__probe_free(&probe);
}

/* is_new: the run is. Lasting oddities are noted once per run. */
static void say_local(const struct shore__address *drive, bool is_new, struct found *f) {
    char text[1024];
    const struct shore__shown name = shore__shown(drive->text);
    f->here = shore__file_may_be_made(drive->path, NULL) == 0 && shore__whereabouts(drive->path, &f->at, NULL) == 0;
    if (!f->here) return; /* making the volume reports the error */
    shore__cli_say("drive %s: %s", shore__shown(drive->text).text, shore__whereabouts_text(&f->at, text, sizeof text));
    if (!is_new) return;
    if (f->at.ground == SHORE__GROUND_MEMORY)
        shore__cli_say(
            "warning: drive %s lies in memory (%s): it takes that beside --memory, and is gone with the next "
            "start of this machine",
            name.text, f->at.file_system);
    else if (f->at.ground != SHORE__GROUND_DEVICE && f->at.is_root)
        shore__cli_say("warning: drive %s lies on the file system of /: if it is to be a drive of its own, mount that",
                       name.text);
}

static bool share(const struct found *a, const struct found *b, const struct shore__address *drive_a,
                  const struct shore__address *drive_b) {
    if (a->here && b->here) return shore__whereabouts_share(&a->at, &b->at);
    return a->there && b->there && a->device == b->device && shore__address_shares_server(drive_a, drive_b);
}

void shore__cli_say_drives(const struct shore__addresses *drives, bool is_new) {
    struct found *found = calloc(drives->count ? drives->count : 1, sizeof *found);
    for (size_t i = 0; found && i < drives->count; i++) {
        const struct shore__address *drive = drives->item[i];
        if (!drive->kind->keeps) continue;
        if (drive->kind->served)
            say_remote(drive, is_new, &found[i]);
        else
            say_local(drive, is_new, &found[i]);
        for (size_t k = 0; is_new && k < i; k++) {
            if (!share(&found[k], &found[i], drives->item[k], drive)) continue;
            shore__cli_say("warning: drives %s and %s lie on one device, and share its speed",
                           shore__shown(drives->text[k]).text, shore__shown(drive->text).text);
            break;
        }
    }
    free(found);
}
