#include "files/atomic.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/directory.h"

char *shore__path_join(const char *directory, const char *name) {
    char *path;
    return asprintf(&path, "%s/%s", directory, name) < 0 ? NULL : path;
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
        shore__fail(diag, -code, "%s: cannot create it: %s", file->temporary, strerror(code));
        free(file->path);
        free(file->temporary);
        *file = (struct shore__atomic){.fd = -1};
        return -code;
    }
    return 0;
}

int shore__atomic_commit(struct shore__atomic *file, struct shore_diag *diag) {
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

void shore__atomic_abort(struct shore__atomic *file) {
    if (file->temporary) {
        close(file->fd);
        unlink(file->temporary);
    }
    free(file->path);
    free(file->temporary);
    *file = (struct shore__atomic){.fd = -1};
}
