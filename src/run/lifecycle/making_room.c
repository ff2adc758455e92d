/* The room that a new run finds on its drives. */
#include <errno.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/diag.h"
#include "base/units.h"
#include "run/directory/journal.h"
#include "run/lifecycle/making.h"

enum { MOST = 256 };

struct file {
    dev_t device;
    ino_t inode;
};

struct room {
    uint64_t bytes;
    dev_t devices[MOST]; /* file systems of the drives */
    struct file files[MOST];
    size_t ndevices, nfiles;
};

/* Adds the free bytes of the file system that path lies on, or will. Returns whether they are known. */
static bool add_free(struct room *room, const char *path) {
    struct stat st;
    struct statvfs fs;
    char *copy = strdup(path);
    const char *at = copy && stat(path, &st) ? dirname(copy) : copy;
    bool known = at && stat(at, &st) == 0 && !S_ISBLK(st.st_mode) && statvfs(at, &fs) == 0;
    bool again = false;
    for (size_t i = 0; known && i < room->ndevices; i++)
        again |= room->devices[i] == st.st_dev;
    if (known && !again) {
        room->bytes += (uint64_t)fs.f_bavail * fs.f_frsize;
        if (room->ndevices < MOST) room->devices[room->ndevices++] = st.st_dev;
    }
    free(copy);
    return known;
}

/* Adds the bytes of a volume that goes, once, if it lies where the drives do. */
static void add_held(struct room *room, const char *drive) {
    struct stat st;
    char *volume = NULL;
    bool here = false;
    if (!shore__kind_of(drive)->has_file || shore__volume_path(shore__address_file(drive), &volume, NULL)) return;
    bool counts = stat(volume, &st) == 0 && S_ISREG(st.st_mode);
    free(volume);
    for (size_t i = 0; counts && i < room->ndevices; i++)
        here |= room->devices[i] == st.st_dev;
    for (size_t i = 0; counts && i < room->nfiles; i++)
        counts = room->files[i].device != st.st_dev || room->files[i].inode != st.st_ino;
    if (!counts || !here || room->nfiles == MOST) return;
    room->files[room->nfiles++] = (struct file){st.st_dev, st.st_ino};
    room->bytes += (uint64_t)st.st_blocks * 512;
}

uint64_t shore__making_room(const char *run_path, const struct shore__addresses *drives) {
    struct room room = {0};
    struct shore__journal journal = {0};
    bool known = drives->count > 0;
    for (size_t i = 0; known && i < drives->count; i++)
        known =
            drives->item[i]->kind->keeps && !drives->item[i]->kind->served && add_free(&room, drives->item[i]->path);
    if (!known) return UINT64_MAX;
    struct shore__run *old = run_path ? shore__run_before(run_path) : NULL;
    if (run_path) shore__journal_read(run_path, SHORE__MAKING, NULL, &journal, NULL);
    for (size_t i = 0; i < drives->count; i++)
        add_held(&room, drives->text[i]);
    for (size_t i = 0; i < journal.new.count; i++)
        add_held(&room, journal.new.text[i]);
    for (size_t i = 0; old && i < old->settings.drives.count; i++)
        add_held(&room, old->settings.drives.text[i]);
    shore__journal_free(&journal);
    shore__run_free(old);
    return room.bytes;
}

int shore__making_refuse_room(uint64_t room, uint64_t disk_bytes, struct shore_diag *diag) {
    if (room >= disk_bytes) return 0;
    return shore__fail(diag, -ENOSPC, "there is too little room on the drives: needs %s, has %s",
                       shore__format_size(disk_bytes).text, shore__format_size(room).text);
}
