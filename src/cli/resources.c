#include <stdlib.h>

#include "cli/cli.h"
#include "drive/probe/probe.h"
#include "run/paths.h"
#include "train/train.h"

int shore__cli_disk_space(const struct shore__addresses *drives, uint64_t disk_bytes, struct shore_diag *diag) {
    return shore__making_refuse_room(shore__making_room(NULL, drives), disk_bytes, diag);
}

/* Refuses a place that is missing, of which no room is known, and files of others. Other hosts are not asked. */
static int refuse_places(const struct shore__addresses *drives, bool overwrite, struct shore_diag *diag) {
    int rc = 0;
    for (size_t i = 0; !rc && i < drives->count; i++) {
        const struct shore__address *at = drives->item[i];
        struct shore__address *absolute = NULL;
        rc = shore__drive_may_be_made(at, diag);
        if (!rc && !overwrite && at->kind->has_file && !at->kind->served)
            rc = shore__volume_refuse_foreign(at->path, diag);
        if (!rc) rc = shore__drive_absolute(at, &absolute, diag);
        free(absolute);
    }
    return rc;
}

int shore__cli_room_for_run(struct shore__settings *s, const struct shore__model *model, const char *path,
                            bool overwrite, struct shore_diag *diag) {
    int rc = refuse_places(&s->drives, overwrite, diag);
    if (rc) return rc;
    uint64_t room = shore__making_room(path, &s->drives);
    struct shore__facts facts = shore__train_facts_of(s, model);
    facts.offload = shore__plan_offload_within(&facts, room);
    bool changed = facts.offload != s->offload;
    s->offload = facts.offload;
    rc = shore__making_refuse_room(room, shore__plan_disk_bytes(&facts), diag);
    if (changed && !rc)
        shore__cli_say("the drives have no room for inner activations: those that do not fit in memory are recomputed "
                       "(--offload off)");
    return rc;
}

int shore__cli_check_tbw(uint64_t bytes, struct shore_diag *diag) {
    const uint64_t least = UINT64_C(1000000000); /* whoever says less has forgotten the unit */
    if (!bytes || bytes >= least) return 0;
    return shore__fail(diag, SHORE_EUSAGE, "--tbw is %s: give what the drive is rated to write, such as 600TB",
                       shore__format_size(bytes).text);
}
