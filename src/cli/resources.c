#include <errno.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "cli/cli.h"
#include "train/train.h"

/* Finds the free bytes where path lies, its file system, and the bytes of a file that is already there. -1: unknown. */
static int room_at(const char *path, uint64_t *free_bytes, uint64_t *held_bytes, dev_t *device) {
    struct stat st;
    struct statvfs fs;
    *held_bytes = 0;
    if (stat(path, &st) == 0) {
        if (S_ISBLK(st.st_mode)) return -1;
        if (statvfs(path, &fs)) return -1;
        if (S_ISREG(st.st_mode)) *held_bytes = (uint64_t)st.st_blocks * 512;
    } else {
        char *copy = strdup(path);
        if (!copy) return -1;
        const char *directory = dirname(copy);
        int rc = stat(directory, &st) || statvfs(directory, &fs) ? -1 : 0;
        free(copy);
        if (rc) return -1;
    }
    *free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    *device = st.st_dev;
    return 0;
}

/* Free bytes on all drives together, including those of existing files. UINT64_MAX: unknown here; making the volume
 * will tell. */
static uint64_t room_on(const struct shore__addresses *drives) {
    enum { SEEN = 64 };
    dev_t seen[SEEN];
    size_t nseen = 0;
    uint64_t room = 0;
    for (size_t i = 0; i < drives->count; i++) {
        uint64_t free_bytes, held_bytes;
        dev_t device;
        if (!drives->item[i]->kind->keeps) return UINT64_MAX;
        if (room_at(drives->text[i], &free_bytes, &held_bytes, &device) || nseen == SEEN) return UINT64_MAX;
        bool again = false;
        for (size_t k = 0; k < nseen; k++)
            again |= seen[k] == device;
        seen[nseen++] = device;
        room += held_bytes + (again ? 0 : free_bytes);
    }
    return drives->count ? room : UINT64_MAX;
}

static int disk_space(uint64_t room, uint64_t disk_bytes, struct shore_diag *diag) {
    char a[32], b[32];
    if (room >= disk_bytes) return 0;
    return shore__fail(diag, -ENOSPC, "there is too little room on the drives: needs %s, has %s",
                       shore__format_size(disk_bytes, a, sizeof a), shore__format_size(room, b, sizeof b));
}

int shore__cli_disk_space(const struct shore__addresses *drives, uint64_t disk_bytes, struct shore_diag *diag) {
    return disk_space(room_on(drives), disk_bytes, diag);
}

int shore__cli_room_for_run(struct shore__settings *s, const struct shore__model *model, const char *path,
                            struct shore_diag *diag) {
    uint64_t room = room_on(&s->drives);
    if (room != UINT64_MAX) room += shore__making_holds(path, &s->drives);
    struct shore__facts facts = shore__train_facts_of(s, model);
    facts.offload = shore__plan_offload_within(&facts, room);
    bool changed = facts.offload != s->offload;
    s->offload = facts.offload;
    int rc = disk_space(room, shore__plan_disk_bytes(&facts), diag);
    if (changed && !rc)
        shore__cli_say("the drives have no room for inner activations: those that do not fit in memory are recomputed "
                       "(--offload off)");
    return rc;
}
