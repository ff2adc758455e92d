#include "files/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/diag.h"
#include "files/atomic.h"

#define DEPTH_LIMIT 64

int shore__file_read(const char *path, size_t limit_bytes, char **out, size_t *bytes, struct shore_diag *diag) {
    struct stat info;
    /* non-blocking, so that a fifo under this name cannot hold us */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        int code = errno;
        return shore__fail(diag, code == ENOENT ? SHORE_EMISSING : -code, "%s: cannot open it: %s", path,
                           strerror(code));
    }
    int rc = 0;
    char *text = NULL;
    if (fstat(fd, &info) != 0)
        rc = shore__fail(diag, -errno, "%s: cannot stat it: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        rc = shore__fail(diag, SHORE_EINPUT, "%s: is not a regular file", path);
    else if ((uint64_t)info.st_size > limit_bytes)
        rc = shore__fail(diag, SHORE_EINPUT, "%s: has %lld bytes; at most %zu are expected here", path,
                         (long long)info.st_size, limit_bytes);
    else if (!(text = malloc((size_t)info.st_size + 1)))
        rc = shore__fail(diag, -ENOMEM, "%s: no memory for its %lld bytes", path, (long long)info.st_size);
    else
        rc = shore__read_at(fd, text, (size_t)info.st_size, 0, path, diag);
    close(fd);
    if (rc) {
        free(text);
        return rc;
    }
    text[info.st_size] = 0;
    *out = text;
    *bytes = (size_t)info.st_size;
    return 0;
}

/* jansson's own limit is 2,048 levels of recursion, too many for a thread's stack */
static bool too_deep(const char *text, size_t bytes) {
    unsigned depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\') i++;
            if (c == '"') in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > DEPTH_LIMIT) return true;
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
        }
    }
    return false;
}

int shore__json_parse(const char *text, size_t bytes, const char *name, json_t **out, struct shore_diag *diag) {
    json_error_t error;
    char shown[JSON_ERROR_TEXT_LENGTH * 2];
    if (too_deep(text, bytes))
        return shore__fail(diag, SHORE_EINPUT, "%s: is nested more than %d levels deep", name, DEPTH_LIMIT);
    json_t *value = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!value) {
        if (json_error_code(&error) == json_error_out_of_memory)
            return shore__fail(diag, -ENOMEM, "%s: out of memory", name);
        return shore__fail(diag, SHORE_EINPUT, "%s:%d: not valid JSON: %s", name, error.line,
                           shore__printable(error.text, strlen(error.text), shown, sizeof shown));
    }
    if (!json_is_object(value)) {
        json_decref(value);
        return shore__fail(diag, SHORE_EINPUT, "%s: holds JSON, but not an object in braces", name);
    }
    *out = value;
    return 0;
}

int shore__json_read(const char *path, size_t limit_bytes, json_t **out, struct shore_diag *diag) {
    char *text;
    size_t bytes;
    int rc = shore__file_read(path, limit_bytes, &text, &bytes, diag);
    if (rc) return rc;
    rc = shore__json_parse(text, bytes, path, out, diag);
    free(text);
    return rc;
}

int shore__json_write(const char *path, const json_t *value, size_t indent, struct shore_diag *diag) {
    char *text = json_dumps(value, JSON_INDENT(indent > 31 ? 31 : indent));
    struct shore__atomic file;
    if (!text) return shore__fail(diag, -ENOMEM, "%s: no memory to write it", path);
    int rc = shore__atomic_open(path, &file, diag);
    if (rc == 0) {
        size_t bytes = strlen(text);
        rc = shore__write_at(file.fd, text, bytes, 0, path, diag);
        if (rc == 0) rc = shore__write_at(file.fd, "\n", 1, bytes, path, diag);
        if (rc == 0)
            rc = shore__atomic_commit(&file, diag);
        else
            shore__atomic_abort(&file);
    }
    free(text);
    return rc;
}
