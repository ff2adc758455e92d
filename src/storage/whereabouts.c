#include "storage/whereabouts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/fs.h>
#include <mntent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/suggest.h"
#include "base/units.h"

static enum shore__ground ground_of(const char *file_system) {
    static const char memory[] = "tmpfs ramfs devtmpfs hugetlbfs";
    static const char network[] = "nfs nfs4 cifs smb3 9p ceph afs lustre fuse.glusterfs fuse.sshfs";
    return shore__has_word(memory, file_system)    ? SHORE__GROUND_MEMORY
           : shore__has_word(network, file_system) ? SHORE__GROUND_NETWORK
                                                   : SHORE__GROUND_DISK;
}

/* Gets the only entry of a directory; false if there are more, or none. */
static bool only_entry(const char *directory, char *name, size_t bytes) {
    DIR *d = opendir(directory);
    const struct dirent *entry = NULL;
    unsigned count = 0;
    while (d && (entry = readdir(d))) {
        if (entry->d_name[0] == '.') continue;
        snprintf(name, bytes, "%s", entry->d_name);
        count++;
    }
    if (d) closedir(d);
    return count == 1;
}

/* Finds the disk of a device. A partition's disk is the directory above it. A mapped device (LVM, LUKS, RAID) lies on
 * its slaves; if there are several, it counts as a disk itself. */
static void find_disk(dev_t device, char *out, size_t bytes) {
    char link[64], slave[256], *at = NULL;
    snprintf(link, sizeof link, "/sys/dev/block/%u:%u", major(device), minor(device));
    for (char *here = realpath(link, NULL); here; here = at) {
        char *slaves = NULL, *next = NULL, *partition = NULL;
        bool is_partition = asprintf(&partition, "%s/partition", here) >= 0 && access(partition, F_OK) == 0;
        char *slash = strrchr(here, '/');
        if (is_partition && slash) *slash = '\0';
        at = NULL;
        if (asprintf(&slaves, "%s/slaves", here) >= 0 && only_entry(slaves, slave, sizeof slave) &&
            asprintf(&next, "%s/%s", slaves, slave) >= 0)
            at = realpath(next, NULL);
        slash = strrchr(here, '/');
        if (!at) snprintf(out, bytes, "%s", slash ? slash + 1 : here);
        free(slaves);
        free(next);
        free(partition);
        free(here);
    }
}

/* Whether path is directory or lies below it. */
static bool lies_in(const char *path, const char *directory) {
    size_t n = strlen(directory);
    return strcmp(directory, "/") == 0 || (strncmp(path, directory, n) == 0 && (path[n] == '/' || path[n] == '\0'));
}

/* Finds the mount of a path. The last mount of the longest mount point hides those before it. */
static void find_mount(const char *real, struct shore__whereabouts *out) {
    FILE *mounts = setmntent("/proc/self/mounts", "r");
    struct mntent entry;
    char line[8192];
    size_t longest = 0;
    while (mounts && getmntent_r(mounts, &entry, line, sizeof line)) {
        size_t n = strlen(entry.mnt_dir);
        if (n < longest || !lies_in(real, entry.mnt_dir)) continue;
        longest = n;
        snprintf(out->device, sizeof out->device, "%s", entry.mnt_fsname);
        snprintf(out->file_system, sizeof out->file_system, "%s", entry.mnt_type);
        snprintf(out->mount_point, sizeof out->mount_point, "%s", entry.mnt_dir);
    }
    if (mounts) endmntent(mounts);
}

static void describe_device(const char *real, const struct stat *st, struct shore__whereabouts *out) {
    int fd = open(real, O_RDONLY | O_CLOEXEC);
    out->ground = SHORE__GROUND_DEVICE;
    out->device_id = st->st_rdev;
    snprintf(out->device, sizeof out->device, "%s", real);
    if (fd >= 0 && ioctl(fd, BLKGETSIZE64, &out->total_bytes)) out->total_bytes = 0;
    if (fd >= 0) close(fd);
    out->free_bytes = out->total_bytes;
    find_disk(st->st_rdev, out->disk, sizeof out->disk);
}

static void describe_files(const char *real, const struct stat *st, struct shore__whereabouts *out) {
    struct statvfs fs;
    struct stat other;
    find_mount(real, out);
    out->ground = ground_of(out->file_system);
    out->device_id = st->st_dev;
    out->is_root = stat("/", &other) == 0 && other.st_dev == st->st_dev;
    if (statvfs(real, &fs) == 0) {
        out->total_bytes = (uint64_t)fs.f_blocks * fs.f_frsize;
        out->free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    }
    /* btrfs gives its files device numbers of its own */
    dev_t device = st->st_dev;
    if (major(device) == 0 && out->device[0] == '/' && stat(out->device, &other) == 0 && S_ISBLK(other.st_mode))
        device = other.st_rdev;
    find_disk(device, out->disk, sizeof out->disk);
}

int shore__whereabouts(const char *path, struct shore__whereabouts *out, struct shore_diag *diag) {
    struct stat st = {0};
    int rc = 0;
    *out = (struct shore__whereabouts){0};
    char *copy = strdup(path);
    if (!copy) return shore__fail(diag, -ENOMEM, "out of memory");
    char *real = realpath(path, NULL);
    if (!real && errno == ENOENT) real = realpath(dirname(copy), NULL);
    if (!real || stat(real, &st)) {
        rc = -errno;
        shore__fail(diag, rc, "%s: cannot be examined: %s", path, shore_error_text(rc));
    } else if (S_ISBLK(st.st_mode)) {
        describe_device(real, &st, out);
    } else {
        describe_files(real, &st, out);
    }
    free(copy);
    free(real);
    return rc;
}

bool shore__whereabouts_share(const struct shore__whereabouts *a, const struct shore__whereabouts *b) {
    return a->device_id == b->device_id || (a->disk[0] && strcmp(a->disk, b->disk) == 0);
}

const char *shore__whereabouts_text(const struct shore__whereabouts *w, char *out, size_t bytes) {
    const struct shore__written room = shore__format_size(w->free_bytes);
    const struct shore__shown device = shore__shown(w->device);
    if (w->ground == SHORE__GROUND_DEVICE)
        snprintf(out, bytes, "block device, %s", w->total_bytes ? room.text : "size unknown");
    else if (w->mount_point[0])
        snprintf(out, bytes, "%s (%s on %s), %s free", device.text, w->file_system, shore__shown(w->mount_point).text,
                 room.text);
    else
        snprintf(out, bytes, "%s free", room.text);
    return out;
}
