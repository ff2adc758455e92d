/* Plans a server: resolves the client's path, and divides the memory. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/address.h"
#include "drive/serve/serve.h"

#define PROCESS_BYTES (UINT64_C(14) << 20) /* code, libraries, stacks, frames */
#define SLOT_BYTES_LEAST (UINT64_C(1) << 20)
#define SLOTS 8u
#define SLOTS_LEAST 2u

/* realpath of an existing path; of a new one, its directory's realpath with the name. */
static char *real_path(const char *path) {
    char *real = realpath(path, NULL);
    if (real || errno != ENOENT) return real;
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    char *directory = !slash ? strdup(".") : slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
    char *above = directory ? realpath(directory, NULL) : NULL;
    if (above && *name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0) {
        if (asprintf(&real, "%s/%s", strcmp(above, "/") == 0 ? "" : above, name) < 0) real = NULL;
    } else if (above) {
        errno = ENOENT;
    }
    int code = errno;
    free(directory);
    free(above);
    errno = code;
    return real;
}

int shore__serve_path(const struct shore__serve_options *o, const char *path, struct shore__address **out,
                      struct shore_diag *diag) {
    char shown[300], *asked = NULL, *root = NULL, *real = NULL;
    struct stat st;
    int rc = shore__address_parse(path, out, diag);
    bool remote = rc == SHORE_EUSAGE || (!rc && ((*out)->kind->served || (*out)->kind->id == SHORE__KIND_OPENCL));
    shore__escape(path, strlen(path), shown, sizeof shown);
    if (!remote && (rc || !(*out)->kind->keeps)) return rc;
    free(*out);
    *out = NULL;
    if (remote)
        return shore__fail(diag, SHORE_EUSAGE,
                           "%s: a server serves files and devices of its own host, on which its processor computes",
                           shown);
    if (!o->root && path[0] != '/')
        return shore__fail(diag, SHORE_EUSAGE, "'%s': the path of a drive on another host begins with '/'", shown);
    if (o->root && !(root = realpath(o->root, NULL)))
        return shore__fail(diag, SHORE_EUSAGE, "%s: the server's root cannot be used: %s", o->root, strerror(errno));
    if (root && path[0] != '/') {
        if (asprintf(&asked, "%s%s%s", root, *path ? "/" : "", path) < 0) asked = NULL;
    } else {
        asked = strdup(path);
    }
    real = asked ? real_path(asked) : NULL;
    if (!asked) {
        rc = shore__fail(diag, -ENOMEM, "out of memory");
    } else if (!real) {
        rc = shore__fail(diag, errno == ENOENT || errno == ENOTDIR ? SHORE_EMISSING : -errno,
                         "%s: there is no such directory on that host (%s)", shown, strerror(errno));
    } else if (root) {
        size_t n = strcmp(root, "/") == 0 ? 0 : strlen(root);
        if (strncmp(real, root, n) != 0 || (real[n] != '/' && real[n] != 0))
            rc = shore__fail(diag, SHORE_EUSAGE, "%s: lies outside of the server's root, the directory that it may use",
                             shown);
        /* a link in place of the volume itself would lead outside too */
        char *inside = NULL;
        if (!rc && stat(real, &st) == 0 && S_ISDIR(st.st_mode) && shore__volume_path(real, &inside, NULL) == 0 &&
            lstat(inside, &st) == 0 && S_ISLNK(st.st_mode))
            rc = shore__fail(diag, SHORE_EUSAGE, "%s: its volume is a symbolic link", shown);
        free(inside);
    }
    if (!rc) rc = shore__address_parse(real, out, diag);
    free(asked);
    free(root);
    free(real);
    return rc;
}

/* Bytes of one span of UPDATE: gradient, residual and new parameters, each starting at a page. */
static uint64_t span_bytes(const struct shore__drive_config *config, uint32_t segments) {
    uint64_t elems = (uint64_t)segments * SHORE_SEGMENT_ELEMS;
    uint64_t bytes = elems * 4 + elems * (config->fp32_params ? 4 : 2);
    return config->plane_bytes[SHORE_PLANE_R] ? bytes + elems * 2 : bytes;
}

int shore__serve_plan(const struct shore__serve_options *o, const struct shore__address *at,
                      const struct shore__volume_desc *desc, struct shore__drive_config *config,
                      struct shore__serve_plan *out, struct shore_diag *diag) {
    uint64_t most = o->memory_bytes ? o->memory_bytes : SHORE__SERVE_MEMORY_BYTES;
    static const struct {
        uint32_t chunk, buffers, stage, spans, slots;
    } shapes[] = {{3, 5, 4, 2, 2 * SLOTS},
                  {3, 5, 4, 2, SLOTS},
                  {2, 4, 4, 1, SLOTS},
                  {1, 4, 2, 1, SLOTS / 2},
                  {1, 3, 2, 1, SLOTS_LEAST}};
    enum { SHAPES = sizeof shapes / sizeof shapes[0] };
    for (unsigned i = 0; i < SHAPES; i++) {
        config->chunk_segments = shapes[i].chunk;
        config->ring_buffers = shapes[i].buffers;
        config->stage_segments = shapes[i].stage;
        out->span_segments = shapes[i].chunk * shapes[i].spans;
        out->slots = shapes[i].slots;
        out->slot_bytes = span_bytes(config, out->span_segments);
        if (out->slot_bytes < SLOT_BYTES_LEAST) out->slot_bytes = SLOT_BYTES_LEAST;
        out->total_bytes = PROCESS_BYTES + out->slots * out->slot_bytes + shore__drive_memory_bytes(at, config, desc);
        if (out->total_bytes <= most) return 0;
    }
    return shore__fail(diag, SHORE_EBUDGET, "the drive needs a server with at least %s of memory, and this one has %s",
                       shore__format_size_up(out->total_bytes).text, shore__format_size(most).text);
}
