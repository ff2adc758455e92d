#include "files/read_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/diag.h"
#include "files/atomic.h"

int shore__regular_open(const char *path, uint64_t limit_bytes, int *fd, uint64_t *bytes, struct shore_diag *diag) {
    struct stat info;
    int rc = 0;
    /* non-blocking, so that a fifo under this name cannot hold us */
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return shore__fail(diag, errno == ENOENT ? SHORE_EMISSING : -errno, "%s: cannot open it: %s", path,
                           strerror(errno));
    if (fstat(*fd, &info) != 0)
        rc = shore__fail_errno(diag, path, "cannot stat it");
    else if (!S_ISREG(info.st_mode))
        rc = shore__fail(diag, SHORE_EINPUT, "%s: is not a regular file", path);
    else if ((uint64_t)info.st_size > limit_bytes)
        rc = shore__fail(diag, SHORE_EINPUT, "%s: has %lld bytes; at most %llu are expected here", path,
                         (long long)info.st_size, (unsigned long long)limit_bytes);
    if (rc) {
        close(*fd);
        *fd = -1;
        return rc;
    }
    *bytes = (uint64_t)info.st_size;
    return 0;
}

int shore__file_read(const char *path, size_t limit_bytes, char **out, size_t *bytes, struct shore_diag *diag) {
    int fd;
    uint64_t size;
    int rc = shore__regular_open(path, limit_bytes, &fd, &size, diag);
    if (rc) return rc;
    char *text = malloc(size + 1);
    rc = text ? shore__read_at(fd, text, size, 0, path, diag)
              : shore__fail(diag, -ENOMEM, "%s: no memory for its %llu bytes", path, (unsigned long long)size);
    close(fd);
    if (rc) {
        free(text);
        return rc;
    }
    text[size] = 0;
    *out = text;
    *bytes = size;
    return 0;
}
