#include "base/directory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int shore__directory_sync(const char *path, struct shore_diag *diag) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int code = fd < 0 || (fsync(fd) < 0 && errno != EINVAL) ? errno : 0;
    if (fd >= 0) close(fd);
    return code ? shore__fail(diag, -code, "%s: the directory cannot be made durable: %s", path, strerror(code)) : 0;
}

int shore__parent_sync(const char *path, struct shore_diag *diag) {
    const char *slash = strrchr(path, '/');
    char *parent = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    int rc = parent ? shore__directory_sync(parent, diag) : shore__out_of_memory(diag);
    free(parent);
    return rc;
}
