#include "storage/io_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/directory.h"
#include "base/units.h"

static int busy(struct shore_diag *diag, const char *path) {
    return shore__fail(diag, SHORE_EBUSY, "%s: in use by another process; stop that run first, or name another drive",
                       path);
}

static uint64_t deadline_in(double seconds) {
    return shore__now_ns() + (uint64_t)(seconds * 1e9);
}

/* Waits for a moment. False: the deadline has passed. */
static bool may_wait(uint64_t deadline) {
    const struct timespec moment = {.tv_nsec = 10 * 1000 * 1000};
    if (shore__now_ns() >= deadline) return false;
    nanosleep(&moment, NULL);
    return true;
}

static int lock_descriptor(int fd, int how, const char *path, uint64_t deadline, struct shore_diag *diag) {
    while (flock(fd, how | LOCK_NB)) {
        if (errno != EWOULDBLOCK && errno != EINTR) return shore__fail_errno(diag, path, "cannot be locked");
        if (!may_wait(deadline)) return busy(diag, path);
    }
    return 0;
}

static bool same_file(int fd, const char *path) {
    struct stat opened, named;
    return fstat(fd, &opened) == 0 && stat(path, &named) == 0 && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
}

/* Turns on direct I/O if the file system takes it: some refuse the flag, others only the first transfer. */
static bool try_direct(const struct shore__file *file) {
    int flags = fcntl(file->fd, F_GETFL);
    if (flags < 0 || fcntl(file->fd, F_SETFL, flags | O_DIRECT)) return false;
    if (file->size_bytes < SHORE__IO_ALIGN) return true;
    void *page = NULL;
    bool refused = posix_memalign(&page, SHORE__IO_ALIGN, SHORE__IO_ALIGN) != 0 ||
                   (pread(file->fd, page, SHORE__IO_ALIGN, 0) < 0 && errno == EINVAL);
    free(page);
    if (refused) fcntl(file->fd, F_SETFL, flags);
    return !refused;
}

static int measure(struct shore__file *file, struct shore_diag *diag) {
    struct stat st;
    if (fstat(file->fd, &st)) return shore__fail_errno(diag, file->path, "cannot be examined");
    file->is_device = S_ISBLK(st.st_mode);
    file->size_bytes = (uint64_t)st.st_size;
    if (file->is_device && ioctl(file->fd, BLKGETSIZE64, &file->size_bytes))
        return shore__fail_errno(diag, file->path, "the size of the device cannot be read");
    return 0;
}

static int refuse_other_kinds(const char *path, const struct stat *st, struct shore_diag *diag) {
    if (S_ISREG(st->st_mode) || S_ISBLK(st->st_mode)) return 0;
    return shore__fail(diag, SHORE_EINPUT, "%s: %s, not a file or a block device", path,
                       S_ISDIR(st->st_mode) ? "a directory" : "a special file");
}

/* Refuses a read-only device: opening it succeeds, but its first write fails. */
static int refuse_read_only(const struct shore__file *file, struct shore_diag *diag) {
    int read_only = 0;
    if (!file->is_device || ioctl(file->fd, BLKROGET, &read_only) || !read_only) return 0;
    return shore__fail(diag, SHORE_EUSAGE,
                       "%s: the device is read-only; make it writable (blockdev --setrw), or name another drive",
                       file->path);
}

/* Opens and locks an existing file. The path may name another file after the wait for the lock, so it is checked
 * again. */
static int open_locked(const char *path, bool to_write, double lock_seconds, struct shore__file *file,
                       struct shore_diag *diag) {
    const uint64_t deadline = deadline_in(lock_seconds);
    for (;;) {
        struct stat st;
        if (stat(path, &st)) return shore__fail_errno(diag, path, "cannot be opened");
        int rc = refuse_other_kinds(path, &st, diag);
        if (rc) return rc;
        /* a claimed device cannot be shared, so a reader claims none */
        bool claimed = to_write && S_ISBLK(st.st_mode);
        file->fd = open(path, (to_write ? O_RDWR : O_RDONLY) | O_CLOEXEC | (claimed ? O_EXCL : 0));
        if (file->fd < 0 && errno == EBUSY && may_wait(deadline)) continue;
        if (file->fd < 0 && errno == EBUSY)
            return shore__fail(diag, SHORE_EBUSY,
                               "%s: the device is mounted or in use by another process; unmount it or stop that, or "
                               "name another drive",
                               path);
        if (file->fd < 0)
            return shore__fail_errno(diag, path,
                                     to_write ? "cannot be opened for reading and writing" : "cannot be opened");
        rc = lock_descriptor(file->fd, to_write ? LOCK_EX : LOCK_SH, path, deadline, diag);
        if (rc) return rc;
        if (same_file(file->fd, path)) {
            rc = measure(file, diag);
            return !rc && to_write ? refuse_read_only(file, diag) : rc;
        }
        close(file->fd);
        file->fd = -1;
    }
}

void shore__file_close(struct shore__file *file) {
    /* Unlocks explicitly: a child that was forked meanwhile shares the descriptor and its lock. */
    if (file->fd >= 0) {
        flock(file->fd, LOCK_UN);
        close(file->fd);
    }
    if (file->rest) shore__file_close(file->rest);
    free(file->rest);
    free(file->path);
    *file = (struct shore__file){.fd = -1};
}

void shore__file_forked(const struct shore__file *file) {
    if (file->fd >= 0) close(file->fd);
    if (file->rest) shore__file_forked(file->rest);
}

static int start(const char *path, struct shore__file *out, struct shore_diag *diag) {
    *out = (struct shore__file){.fd = -1, .path = strdup(path)};
    return out->path ? 0 : shore__fail(diag, -ENOMEM, "%s: out of memory", path);
}

static int open_file(const char *path, enum shore_io io, bool to_write, double lock_seconds, struct shore__file *out,
                     struct shore_diag *diag) {
    int rc = start(path, out, diag);
    if (rc == 0) rc = open_locked(path, to_write, lock_seconds, out, diag);
    if (rc) {
        shore__file_close(out);
        return rc;
    }
    out->direct = io != SHORE_IO_BUFFERED && try_direct(out);
    return 0;
}

int shore__file_open(const char *path, enum shore_io io, double lock_seconds, struct shore__file *out,
                     struct shore_diag *diag) {
    return open_file(path, io, true, lock_seconds, out, diag);
}

int shore__file_open_to_read(const char *path, enum shore_io io, double lock_seconds, struct shore__file *out,
                             struct shore_diag *diag) {
    return open_file(path, io, false, lock_seconds, out, diag);
}

static int no_room(struct shore_diag *diag, const char *path, uint64_t needs, uint64_t has) {
    return shore__fail(diag, -ENOSPC, "%s: needs %s (%llu bytes), has %s (%llu bytes); free space, or add a drive",
                       path, shore__format_size(needs).text, (unsigned long long)needs, shore__format_size(has).text,
                       (unsigned long long)has);
}

static int check_room(const char *path, int dir, uint64_t bytes, uint64_t freed, struct shore_diag *diag) {
    struct statvfs fs;
    if (fstatvfs(dir, &fs)) return shore__fail_errno(diag, path, "the free space cannot be read");
    uint64_t has = (uint64_t)fs.f_bavail * fs.f_frsize + freed;
    return has < bytes ? no_room(diag, path, bytes, has) : 0;
}

static int open_parent(const char *path, struct shore_diag *diag) {
    char *copy = strdup(path);
    if (!copy) return shore__fail(diag, -ENOMEM, "%s: out of memory", path);
    int dir = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) {
        dir = -errno;
        shore__fail(diag, dir, "%s: cannot be made, because its directory cannot be opened: %s", path,
                    shore_error_text(dir));
    }
    free(copy);
    return dir;
}

/* Writes the claim first: without it, a file that a kill leaves half filled could not be told from somebody else's. */
static int fill_with_zeros(int fd, const void *claim, struct shore__file_range range) {
    enum { SPAN = 1 << 20 };
    char *zeros = calloc(1, SPAN);
    if (!zeros) return -ENOMEM;
    int rc = 0;
    const uint64_t behind = range.offset + range.bytes;
    for (uint64_t at = range.offset; at < behind && rc == 0;) {
        bool claiming = claim && at < SHORE__IO_ALIGN;
        uint64_t end = claiming ? SHORE__IO_ALIGN : behind - at < SPAN ? behind : at + SPAN;
        const char *from = claiming ? (const char *)claim + at : zeros;
        ssize_t n = pwrite(fd, from, (size_t)(end - at), (off_t)at);
        if (n > 0)
            at += (uint64_t)n;
        else if (n == 0 || errno != EINTR)
            rc = n == 0 ? -EIO : -errno;
        shore__io_count(1);
    }
    free(zeros);
    return rc;
}

/* Turns off copy-on-write on Btrfs. With it, a second write goes elsewhere, so preallocated room would not be enough
 * for the second step. Btrfs also has no direct transfers for files with checksums; Longshore has checksums of its
 * own. Only an empty file takes the flag. */
static void write_in_place(const struct shore__file *file) {
    int flags = 0;
    if (ioctl(file->fd, FS_IOC_GETFLAGS, &flags)) return;
    flags |= FS_NOCOW_FL;
    ioctl(file->fd, FS_IOC_SETFLAGS, &flags);
}

/* The shape of a new file: its size, and the ranges that get room. */
struct shape {
    uint64_t bytes, room_bytes;
    const struct shore__file_range *ranges;
    size_t nranges;
};

static int give_room(int fd, struct shore__file_range range, const void *claim) {
    while (fallocate(fd, 0, (off_t)range.offset, (off_t)range.bytes)) {
        if (errno == EOPNOTSUPP || errno == ENOSYS) return fill_with_zeros(fd, claim, range);
        if (errno != EINTR) return -errno;
    }
    return 0;
}

static int preallocate(const struct shore__file *file, const struct shape *shape, const void *claim,
                       struct shore_diag *diag) {
    int rc = 0;
    write_in_place(file);
    for (size_t i = 0; rc == 0 && i < shape->nranges; i++)
        rc = give_room(file->fd, shape->ranges[i], claim);
    if (rc == 0 && (ftruncate(file->fd, (off_t)shape->bytes) || fsync(file->fd))) rc = -errno;
    if (rc == 0) return 0;
    return shore__fail(diag, rc, "%s: %llu bytes could not be preallocated: %s; %s", file->path,
                       (unsigned long long)shape->room_bytes, shore_error_text(rc), shore__io_advice(rc));
}

bool shore__file_punch(const struct shore__file *file, uint64_t offset, uint64_t bytes) {
    const int how = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    return !file->is_device && fallocate(file->fd, how, (off_t)offset, (off_t)bytes) == 0;
}

/* Room that was preallocated and then read lies in the page cache, where lseek() takes it for data: it is dropped
 * first. What was written and is not on the drive yet stays there. */
static bool holds_no_data(int fd) {
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    off_t at = lseek(fd, 0, SEEK_DATA);
    return at < 0 && errno == ENXIO;
}

static int already_there(struct shore_diag *diag, const char *path) {
    shore__fail(diag, SHORE_EEXISTS, "%s: exists already; name another path", path);
    return shore__advise(diag, SHORE_EEXISTS, SHORE_ADVICE_OVERWRITE, NULL);
}

int shore__file_refuse_data(const struct shore__file *file, struct shore_diag *diag) {
    return holds_no_data(file->fd) ? 0 : already_there(diag, file->path);
}

static int create_on_device(struct shore__file *file, uint64_t bytes, bool overwrite, shore__replaceable_fn replaceable,
                            struct shore_diag *diag) {
    enum shore__replaceable answer = replaceable && !overwrite ? replaceable(file) : SHORE__REPLACE_UNKNOWN;
    if (!overwrite && answer == SHORE__REPLACE_NO) {
        shore__fail(diag, SHORE_EEXISTS,
                    "%s: the device holds a volume of longshore's, or cannot be read; name another one", file->path);
        return shore__advise(diag, SHORE_EEXISTS, SHORE_ADVICE_OVERWRITE, NULL);
    }
    if (!overwrite && answer == SHORE__REPLACE_UNKNOWN) {
        int rc = shore__device_check(file, diag);
        if (rc) return rc;
    }
    return file->size_bytes < bytes ? no_room(diag, file->path, bytes, file->size_bytes) : 0;
}

int shore__file_refuse_links(const struct shore__file *file, struct shore_diag *diag) {
    struct stat st;
    if (fstat(file->fd, &st) || !S_ISREG(st.st_mode) || st.st_nlink <= 1) return 0;
    return shore__fail(diag, SHORE_EUSAGE,
                       "%s: is one file under %llu names (hard links, such as those of a backup by cp -al): what is "
                       "written here would change there, too; make it a file of its own, by cp to another name and mv "
                       "back",
                       file->path, (unsigned long long)st.st_nlink);
}

static int create_over_file(struct shore__file *file, int dir, const struct shape *shape, bool overwrite,
                            shore__replaceable_fn replaceable, const void *claim, struct shore_diag *diag) {
    struct stat st;
    bool may_be_replaced = overwrite || (replaceable && replaceable(file) == SHORE__REPLACE_YES);
    int rc = may_be_replaced ? 0 : shore__file_refuse_data(file, diag);
    if (!rc) rc = shore__file_refuse_links(file, diag);
    if (rc) return rc;
    if (fstat(file->fd, &st)) return shore__fail_errno(diag, file->path, "cannot be examined");
    rc = check_room(file->path, dir, shape->room_bytes, (uint64_t)st.st_blocks * 512, diag);
    if (rc) return rc;
    if (ftruncate(file->fd, 0)) return shore__fail_errno(diag, file->path, "cannot be emptied");
    return preallocate(file, shape, claim, diag);
}

/* What is at path can be written to, as far as it can be told without opening it. */
static int refuse_what_is_there(const char *path, struct shore_diag *diag) {
    struct stat st;
    if (stat(path, &st) && errno == ENOENT)
        return shore__fail(diag, SHORE_EEXISTS, "%s: is a link to nothing; name another path", path);
    if (stat(path, &st)) return 0;
    int rc = S_ISDIR(st.st_mode) ? 0 : refuse_other_kinds(path, &st, diag);
    if (rc || access(path, W_OK | (S_ISDIR(st.st_mode) ? X_OK : 0)) == 0) return rc;
    return shore__fail_errno(diag, path, "cannot be written to");
}

int shore__file_may_be_made(const char *path, struct shore_diag *diag) {
    struct stat st;
    size_t n = strlen(path);
    bool is_directory = n && path[n - 1] == '/';
    while (n > 1 && path[n - 1] == '/')
        n--;
    if (lstat(path, &st) == 0) return refuse_what_is_there(path, diag);
    if (errno != ENOENT) return 0;
    char *copy = strndup(path, n);
    if (!copy) return shore__fail(diag, -ENOMEM, "out of memory");
    bool in_dev = strncmp(copy, "/dev/", 5) == 0 && strncmp(copy, "/dev/shm/", 9) != 0;
    const char *slash = strrchr(copy, '/'), *name = slash ? slash + 1 : copy, *suffix = strrchr(name, '.');
    int rc = 0;
    if (in_dev) /* a new file there would lie in memory */
        rc = shore__fail(diag, SHORE_EMISSING, "%s: there is no such device", copy);
    else if (is_directory || !suffix || suffix == name || !suffix[1])
        rc = shore__fail(diag, SHORE_EUSAGE,
                         "%s: nothing is there: mount the drive or mkdir the directory; a new file needs a name with a "
                         "suffix, such as %s.volume",
                         path, copy);
    if (rc && stat(dirname(copy), &st)) rc = 0; /* its directory itself is missing */
    free(copy);
    return rc;
}

static int create_new(struct shore__file *file, int dir, const struct shape *shape, const void *claim,
                      struct shore_diag *diag) {
    int rc = shore__file_may_be_made(file->path, diag);
    if (!rc) rc = check_room(file->path, dir, shape->room_bytes, 0, diag);
    if (rc) return rc;
    file->fd = open(file->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file->fd < 0) return shore__fail_errno(diag, file->path, "cannot be created");
    rc = lock_descriptor(file->fd, LOCK_EX, file->path, shore__now_ns(), diag);
    if (rc) return rc;
    file->made = true;
    return preallocate(file, shape, claim, diag);
}

int shore__file_create(const char *path, uint64_t bytes, const struct shore__file_range *ranges, size_t nranges,
                       enum shore_io io, bool overwrite, shore__replaceable_fn replaceable, const void *claim,
                       struct shore__file *out, struct shore_diag *diag) {
    const struct shore__file_range all = {0, bytes};
    struct shape shape = {bytes, 0, ranges ? ranges : &all, ranges ? nranges : 1};
    for (size_t i = 0; i < shape.nranges; i++)
        shape.room_bytes += shape.ranges[i].bytes;
    int dir = -1;
    int rc = start(path, out, diag);
    if (rc) return rc;
    if (bytes > INT64_MAX || bytes % SHORE__IO_ALIGN) {
        rc = shore__fail(diag, -EINVAL, "%s: a volume cannot have %llu bytes", path, (unsigned long long)bytes);
        goto failed;
    }
    dir = rc = open_parent(path, diag);
    if (rc < 0) goto failed;
    struct stat st;
    if (stat(path, &st)) {
        rc = errno == ENOENT ? create_new(out, dir, &shape, claim, diag)
                             : shore__fail_errno(diag, path, "cannot be examined");
    } else {
        rc = open_locked(path, true, SHORE__LOCK_SECONDS, out, diag);
        if (rc == 0)
            rc = out->is_device ? create_on_device(out, bytes, overwrite, replaceable, diag)
                                : create_over_file(out, dir, &shape, overwrite, replaceable, claim, diag);
    }
    if (rc == 0) rc = measure(out, diag);
    if (rc == 0) rc = shore__parent_sync(path, diag);
    if (rc) goto failed;
    close(dir);
    out->direct = io != SHORE_IO_BUFFERED && try_direct(out);
    return 0;

failed:
    if (dir >= 0) close(dir);
    if (out->made) unlink(path);
    shore__file_close(out);
    return rc;
}

/* If the file system has no files without a name, makes one with a name and unlinks it while it is empty. */
static int open_unnamed(int dir, const char *path) {
    int fd = openat(dir, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOENT)) return fd;
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) unlink(path);
    return fd;
}

int shore__file_create_unnamed(const char *path, uint64_t bytes, enum shore_io io, struct shore__file *out,
                               struct shore_diag *diag) {
    int rc = start(path, out, diag);
    if (rc) return rc;
    int dir = rc = open_parent(path, diag);
    if (dir >= 0) rc = check_room(path, dir, bytes, 0, diag);
    if (!rc && (out->fd = open_unnamed(dir, path)) < 0) rc = shore__fail_errno(diag, path, "cannot be created");
    const struct shore__file_range all = {0, bytes};
    if (!rc) rc = preallocate(out, &(struct shape){bytes, bytes, &all, 1}, NULL, diag);
    if (!rc) rc = measure(out, diag);
    if (dir >= 0) close(dir);
    if (rc) {
        shore__file_close(out);
        return rc;
    }
    out->direct = io != SHORE_IO_BUFFERED && try_direct(out);
    return 0;
}

bool shore__files_share_blocks(const char *path) {
    enum { BYTES = 1 << 16 };
    struct shore__file from, to;
    bool shares = false;
    if (shore__file_create_unnamed(path, BYTES, SHORE_IO_BUFFERED, &from, NULL)) return false;
    if (!shore__file_create_unnamed(path, BYTES, SHORE_IO_BUFFERED, &to, NULL)) {
        shares = ioctl(to.fd, FICLONE, from.fd) == 0;
        shore__file_close(&to);
    }
    shore__file_close(&from);
    return shares;
}
