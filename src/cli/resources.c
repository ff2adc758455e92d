#include "cli/cli.h"
#include "train/train.h"

int shore__cli_disk_space(const struct shore__addresses *drives, uint64_t disk_bytes, struct shore_diag *diag) {
    return shore__making_refuse_room(shore__making_room(NULL, drives), disk_bytes, diag);
}

int shore__cli_room_for_run(struct shore__settings *s, const struct shore__model *model, const char *path,
                            struct shore_diag *diag) {
    uint64_t room = shore__making_room(path, &s->drives);
    struct shore__facts facts = shore__train_facts_of(s, model);
    facts.offload = shore__plan_offload_within(&facts, room);
    bool changed = facts.offload != s->offload;
    s->offload = facts.offload;
    int rc = shore__making_refuse_room(room, shore__plan_disk_bytes(&facts), diag);
    if (changed && !rc)
        shore__cli_say("the drives have no room for inner activations: those that do not fit in memory are recomputed "
                       "(--offload off)");
    return rc;
}
