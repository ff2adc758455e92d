#include "storage/cache_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/units.h"
#include "storage/io_internal.h"

#define MAGIC "\x89LongshoreCache\n"
#define MAGIC_BYTES (sizeof MAGIC - 1)
#define VERSION 1u

_Static_assert(MAGIC_BYTES == 16, "the version follows it");

static char *path_of(const char *volume) {
    char *path = NULL;
    return asprintf(&path, "%s.cache", volume) < 0 ? NULL : path;
}

static enum shore__replaceable is_stale(const struct shore__file *file) {
    char magic[MAGIC_BYTES];
    bool ours =
        pread(file->fd, magic, sizeof magic, 0) == (ssize_t)sizeof magic && memcmp(magic, MAGIC, sizeof magic) == 0;
    return ours ? SHORE__REPLACE_YES : SHORE__REPLACE_UNKNOWN;
}

static void fill_head(unsigned char head[SHORE__CACHE_FILE_HEAD], const uint64_t fleet_id[2], uint64_t bytes) {
    memset(head, 0, SHORE__CACHE_FILE_HEAD);
    memcpy(head, MAGIC, MAGIC_BYTES);
    shore__put_u32(head + 16, VERSION);
    shore__put_u64(head + 24, fleet_id[0]);
    shore__put_u64(head + 32, fleet_id[1]);
    shore__put_u64(head + 40, bytes);
}

static int write_head(const struct shore__file *file, enum shore_io io, void *head, struct shore_diag *diag) {
    struct shore__io *queue;
    int rc = shore__io_open(file, io, 1, NULL, 0, &queue, diag);
    if (rc) return rc;
    struct shore__io_op op = {.kind = SHORE__IO_WRITE, .buffer = head, .bytes = SHORE__CACHE_FILE_HEAD};
    op.rc = shore__io_do(queue, op.kind, op.buffer, 0, op.bytes);
    shore__io_close(queue);
    return op.rc ? shore__io_explain(file->path, &op, diag) : 0;
}

int shore__cache_file_make(const char *volume, const uint64_t fleet_id[2], uint64_t bytes, enum shore_io io,
                           struct shore__file *out, struct shore_diag *diag) {
    struct stat st;
    *out = (struct shore__file){.fd = -1};
    if (stat(volume, &st) == 0 && S_ISBLK(st.st_mode))
        return shore__fail(diag, -ENOTSUP, "%s: is a device, and a cache file needs a file system beside the volume",
                           volume);
    char *path = path_of(volume);
    unsigned char *head = aligned_alloc(SHORE__IO_ALIGN, SHORE__CACHE_FILE_HEAD);
    int rc = path && head ? 0 : shore__fail(diag, -ENOMEM, "out of memory");
    if (!rc) {
        uint64_t whole = SHORE__CACHE_FILE_HEAD + bytes;
        fill_head(head, fleet_id, bytes);
        rc = shore__file_create(path, whole, NULL, 0, io, false, is_stale, head, out, diag);
        if (rc == SHORE_EEXISTS)
            shore__fail(diag, rc, "%s: has the name of a cache file and is not one: move it away", path);
        if (rc) *out = (struct shore__file){.fd = -1};
    }
    if (!rc) rc = write_head(out, io, head, diag);
    if (rc) shore__cache_file_remove(out);
    free(path);
    free(head);
    return rc;
}

void shore__cache_file_remove(struct shore__file *file) {
    if (file->fd < 0) return;
    unlink(file->path); /* while it is locked: no other process can own it */
    shore__file_close(file);
    *file = (struct shore__file){.fd = -1};
}

void shore__cache_file_sweep(const char *volume) {
    char *path = path_of(volume);
    struct shore__file file = {.fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1};
    if (file.fd >= 0 && flock(file.fd, LOCK_EX | LOCK_NB) == 0 && is_stale(&file) == SHORE__REPLACE_YES) unlink(path);
    if (file.fd >= 0) close(file.fd);
    free(path);
}
