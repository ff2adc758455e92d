#include "storage/volume_internal.h"

#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "base/diag.h"
#include "storage/io_internal.h"

#define VOLUME_NAME "longshore.volume"

int shore__volume_path(const char *path, char **out, struct shore_diag *diag) {
    *out = NULL;
    struct stat st;
    char *full = NULL;
    if (stat(path, &st) == 0) {
        char *real = realpath(path, NULL);
        if (!real) return shore__fail_errno(diag, path, "cannot be resolved");
        if (!S_ISDIR(st.st_mode))
            full = real;
        else if (asprintf(&full, "%s/%s", strcmp(real, "/") == 0 ? "" : real, VOLUME_NAME) < 0)
            full = NULL;
        if (full != real) free(real);
    } else {
        char *head = strdup(path), *tail = strdup(path);
        char *parent = head ? realpath(dirname(head), NULL) : NULL;
        int code = -errno;
        if (head && tail && !parent) {
            shore__fail(diag, code, "%s: does not exist, and its directory cannot be used: %s", path,
                        shore_error_text(code));
            free(head);
            free(tail);
            return code;
        }
        if (!parent || !tail || asprintf(&full, "%s/%s", strcmp(parent, "/") == 0 ? "" : parent, basename(tail)) < 0)
            full = NULL;
        free(parent);
        free(head);
        free(tail);
    }
    if (!full) return shore__fail(diag, -ENOMEM, "%s: out of memory", path);
    if (stat(full, &st) && errno != ENOENT && errno != ENOTDIR) {
        int rc = shore__fail_errno(diag, full, "cannot be examined");
        free(full);
        return rc;
    }
    *out = full;
    return 0;
}

int shore__transfer(struct shore__io *io, const char *path, enum shore__io_kind kind, void *buffer, uint64_t offset,
                    uint64_t bytes, struct shore_diag *diag) {
    enum { SPAN_BYTES = 8 << 20 };
    for (uint64_t at = 0; at < bytes; at += SPAN_BYTES) {
        uint32_t span = bytes - at < SPAN_BYTES ? (uint32_t)(bytes - at) : SPAN_BYTES;
        struct shore__io_op op = {.kind = kind, .offset = offset + at, .bytes = span};
        op.rc = shore__io_do(io, kind, (char *)buffer + at, op.offset, span);
        if (op.rc) return shore__io_explain(path, &op, diag);
    }
    return 0;
}

int shore__flush(struct shore__io *io, const char *path, struct shore_diag *diag) {
    int rc = shore__io_do(io, SHORE__IO_FLUSH, NULL, 0, 0);
    if (rc)
        return shore__fail(diag, rc, "%s: a flush failed: %s; what was written since the last commit is lost; %s", path,
                           shore_error_text(rc), shore__io_advice(rc));
    return 0;
}

void shore__volume_close(struct shore__volume *v) {
    shore__file_close(&v->file);
    shore__arena_free(v->arena, v->page);
    shore__arena_free(v->arena, (void *)(uintptr_t)v->desc.extents);
    shore__arena_free(v->arena, (void *)(uintptr_t)v->desc.identity);
    shore__arena_free(v->arena, v->table[0]);
    shore__arena_free(v->arena, v->table[1]);
    free((void *)(uintptr_t)v->map.bits[0]);
    free((void *)(uintptr_t)v->map.bits[1]);
    *v = (struct shore__volume){.file = {.fd = -1}};
}
