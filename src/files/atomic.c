#include "files/atomic.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/directory.h"
#include "base/units.h"

char *shore__path_join(const char *directory, const char *name) {
    char *path;
    return asprintf(&path, "%s/%s", directory, name) < 0 ? NULL : path;
}

struct shore__path shore__path_in(const char *directory, const char *name) {
    struct shore__path path;
    snprintf(path.text, sizeof path.text, "%s/%s", directory, name);
    return path;
}

bool shore__path_exists(const char *directory, const char *name) {
    struct stat st;
    return lstat(shore__path_in(directory, name).text, &st) == 0;
}

int shore__check_replaced(const char *path, bool (*is_kind)(const char *path), const char *kind,
                          struct shore_diag *diag) {
    struct stat st;
    if (lstat(path, &st) || (S_ISREG(st.st_mode) && (!st.st_size || is_kind(path)))) return 0;
    return shore__fail(diag, SHORE_EEXISTS, "%s: is there, and is no %s, so it is not replaced: choose another name",
                       shore__shown(path).text, kind);
}

bool shore__file_begins(const char *path, const char *text) {
    FILE *file = fopen(path, "re");
    bool begins = file;
    for (int c; begins && *text; text++)
        begins = (c = fgetc(file)) != EOF && c == (unsigned char)*text;
    if (file) fclose(file);
    return begins;
}

int shore__write_at(int fd, const void *data, size_t bytes, uint64_t offset, const char *name,
                    struct shore_diag *diag) {
    const char *from = data;
    while (bytes > 0) {
        ssize_t n = pwrite(fd, from, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            int code = n < 0 ? errno : EIO;
            return shore__fail(diag, -code, "%s: cannot write %zu bytes at offset %llu: %s", name, bytes,
                               (unsigned long long)offset, strerror(code));
        }
        from += n;
        bytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

int shore__read_at(int fd, void *data, size_t bytes, uint64_t offset, const char *name, struct shore_diag *diag) {
    char *to = data;
    while (bytes > 0) {
        ssize_t n = pread(fd, to, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            int code = errno;
            return shore__fail(diag, -code, "%s: cannot read %zu bytes at offset %llu: %s", name, bytes,
                               (unsigned long long)offset, strerror(code));
        }
        if (n == 0)
            return shore__fail(diag, SHORE_EINPUT, "%s: ends at offset %llu, %zu bytes too early; has it been cut?",
                               name, (unsigned long long)offset, bytes);
        to += n;
        bytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

static char *temporary_of(const char *path) {
    const char *slash = strrchr(path, '/');
    int directory_bytes = slash ? (int)(slash - path) + 1 : 0;
    char *temporary = NULL;
    return asprintf(&temporary, "%.*s.%s.partial", directory_bytes, path, path + directory_bytes) < 0 ? NULL
                                                                                                      : temporary;
}

int shore__atomic_remove(const char *path) {
    char *temporary = temporary_of(path);
    if (temporary) unlink(temporary);
    free(temporary);
    return unlink(path);
}

int shore__atomic_open(const char *path, struct shore__atomic *file, struct shore_diag *diag) {
    *file = (struct shore__atomic){.fd = -1, .path = strdup(path)};
    file->temporary = temporary_of(path);
    if (!file->path || !file->temporary) {
        free(file->temporary);
        free(file->path);
        *file = (struct shore__atomic){.fd = -1};
        return shore__fail(diag, -ENOMEM, "%s: out of memory", path);
    }
    file->fd = open(file->temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file->fd < 0) {
        int code = errno;
        shore__fail(diag, -code, "%s: cannot create it: %s", code == ENOENT ? path : file->temporary,
                    code == ENOENT ? "its directory is not there" : strerror(code));
        free(file->path);
        free(file->temporary);
        *file = (struct shore__atomic){.fd = -1};
        return -code;
    }
    return 0;
}

/* Opens a nameless file. Where the file system has none, the file has a name for an instant. */
static int open_unnamed(const char *directory) {
    int fd = open(directory, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
    struct shore__path path = shore__path_in(directory, "longshore-XXXXXX");
    fd = mkostemp(path.text, O_CLOEXEC);
    if (fd >= 0) unlink(path.text);
    return fd;
}

int shore__atomic_unnamed(const char *directory, struct shore__atomic *file, struct shore_diag *diag) {
    *file = (struct shore__atomic){.fd = open_unnamed(directory), .path = strdup(directory)};
    int code = file->fd < 0 ? errno : 0;
    if (code == 0 && file->path) return 0;
    if (code == 0) close(file->fd);
    free(file->path);
    *file = (struct shore__atomic){.fd = -1};
    return code ? shore__fail(diag, -code, "%s: cannot make a temporary file: %s (TMPDIR says where)", directory,
                              strerror(code))
                : shore__fail(diag, -ENOMEM, "%s: out of memory", directory);
}

int shore__atomic_commit(struct shore__atomic *file, struct shore_diag *diag) {
    if (!file->temporary) return 0;
    int rc = fsync(file->fd) ? -errno : 0;
    if (close(file->fd) != 0 && rc == 0) rc = -errno;
    file->fd = -1;
    if (rc == 0 && rename(file->temporary, file->path) != 0) rc = -errno;
    if (rc == 0) rc = shore__parent_sync(file->path, NULL);
    if (rc) {
        shore__fail(diag, rc, "%s: cannot finish writing it: %s", file->path, strerror(-rc));
        unlink(file->temporary);
    }
    free(file->path);
    free(file->temporary);
    *file = (struct shore__atomic){.fd = -1};
    return rc;
}

int shore__atomic_reserve(const struct shore__atomic *file, uint64_t bytes, struct shore_diag *diag) {
    int code = posix_fallocate(file->fd, 0, (off_t)bytes);
    if (code == EOPNOTSUPP || code == EINVAL) code = ftruncate(file->fd, (off_t)bytes) ? errno : 0;
    if (code == ENOSPC) {
        struct statvfs space = {0};
        (void)!fstatvfs(file->fd, &space);
        return shore__fail(diag, -ENOSPC, "%s: no space: needs %s, has %s", file->path, shore__format_size(bytes).text,
                           shore__format_size((uint64_t)space.f_bavail * space.f_frsize).text);
    }
    return code ? shore__fail(diag, -code, "%s: cannot make it %llu bytes long: %s", file->path,
                              (unsigned long long)bytes, strerror(code))
                : 0;
}

void shore__atomic_abort(struct shore__atomic *file) {
    if (file->path) close(file->fd);
    if (file->temporary) unlink(file->temporary);
    free(file->path);
    free(file->temporary);
    *file = (struct shore__atomic){.fd = -1};
}

/* Copies from an open file; its read position does not matter. */
static int copy(int from, const char *name, const char *to, struct shore_diag *diag) {
    char block[16384];
    struct shore__atomic file = {.fd = -1};
    ssize_t n = 0;
    int rc = shore__atomic_open(to, &file, diag);
    if (rc) return rc;
    bool shares = ioctl(file.fd, FICLONE, from) == 0;
    for (uint64_t at = 0; !shares && !rc && (n = pread(from, block, sizeof block, (off_t)at)) > 0; at += (uint64_t)n)
        rc = shore__write_at(file.fd, block, (size_t)n, at, to, diag);
    if (n < 0) rc = shore__fail_errno(diag, name, "cannot be read");
    if (!rc) return shore__atomic_commit(&file, diag);
    shore__atomic_abort(&file);
    return rc;
}

int shore__file_copy(const char *from, const char *to, struct shore_diag *diag) {
    struct stat st;
    int fd = open(from, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return shore__fail_errno(diag, from, "cannot be opened");
    bool regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    int rc = regular ? copy(fd, from, to, diag) : shore__fail(diag, SHORE_EINPUT, "%s: is not a regular file", from);
    close(fd);
    return rc;
}
