#include "drive/local/volume_remove.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/directory.h"
#include "storage/format.h"
#include "storage/rest.h"

#define WIPE_BYTES (1u << 20) /* contains both headers */

static int transfer(const struct shore__file *file, enum shore__io_kind kind, void *buffer, uint32_t bytes,
                    struct shore_diag *diag) {
    struct shore__io *io = NULL;
    int rc = shore__io_open(file, SHORE_IO_THREADS, 1, NULL, 0, &io, diag);
    if (rc) return rc;
    rc = shore__io_do(io, kind, buffer, 0, bytes);
    if (!rc && kind == SHORE__IO_WRITE) rc = shore__io_do(io, SHORE__IO_FLUSH, NULL, 0, 0);
    shore__io_close(io);
    return rc ? shore__fail(diag, rc, "%s: cannot be %s: %s", file->path, kind == SHORE__IO_READ ? "read" : "wiped",
                            shore_error_text(rc))
              : 0;
}

static int check_owner(const struct shore__file *file, const uint64_t fleet_id[2], uint64_t generation, bool begun,
                       struct shore_diag *diag) {
    struct shore__header header;
    unsigned char *page = NULL;
    if (posix_memalign((void **)&page, SHORE__IO_ALIGN, SHORE__PAGE_BYTES))
        return shore__fail(diag, -ENOMEM, "out of memory");
    memset(page, 0, SHORE__PAGE_BYTES);
    bool shorter = file->size_bytes < SHORE__PAGE_BYTES;
    int rc = shorter ? 0 : transfer(file, SHORE__IO_READ, page, SHORE__PAGE_BYTES, diag);
    /* a new file gets its whole length as soon as it is opened */
    bool anothers = rc || (shorter && file->size_bytes);
    enum shore__parse parse = anothers ? SHORE__PARSE_FOREIGN : shore__header_parse(page, &header);
    free(page);
    if (rc) return rc;
    if (parse == SHORE__PARSE_OK && memcmp(header.desc.fleet_id, fleet_id, sizeof header.desc.fleet_id) == 0 &&
        (generation == SHORE__ANY_GENERATION || header.desc.generation == generation))
        return 0;
    if (begun && !file->is_device && (parse == SHORE__PARSE_EMPTY || parse == SHORE__PARSE_DAMAGED)) return 0;
    return shore__fail(diag, SHORE_EMISMATCH, "%s: is not the volume to remove, and stays", file->path);
}

static int wipe(const struct shore__file *file, struct shore_diag *diag) {
    void *zeros = NULL;
    if (posix_memalign(&zeros, SHORE__IO_ALIGN, WIPE_BYTES)) return shore__fail(diag, -ENOMEM, "out of memory");
    memset(zeros, 0, WIPE_BYTES);
    int rc = transfer(file, SHORE__IO_WRITE, zeros, WIPE_BYTES, diag);
    free(zeros);
    return rc;
}

int shore__volume_remove(const char *path, const uint64_t fleet_id[2], uint64_t generation, bool begun,
                         struct shore_diag *diag) {
    struct shore__file file;
    char *volume = NULL;
    int rc = shore__volume_path(path, &volume, diag);
    if (!rc) rc = shore__file_open(volume, SHORE_IO_BUFFERED, SHORE__LOCK_SECONDS, &file, diag);
    int of_rest = volume && rc == -ENOENT ? shore__rest_sweep(volume, fleet_id, diag) : 0;
    free(volume);
    if (of_rest) return of_rest;
    if (rc == -ENOENT || rc == -ENOTDIR || rc == -ENAMETOOLONG)
        return shore__fail(diag, SHORE_EMISSING, "%s: no volume is there any more", path);
    if (rc) return rc;
    rc = check_owner(&file, fleet_id, generation, begun, diag);
    if (!rc && file.is_device)
        rc = wipe(&file, diag);
    else if (!rc)
        rc = unlink(file.path) ? shore__fail_errno(diag, file.path, "cannot be removed")
                               : shore__rest_sweep(file.path, fleet_id, diag);
    if (!rc && !file.is_device) rc = shore__parent_sync(file.path, diag);
    shore__file_close(&file);
    return rc;
}

bool shore__removal_is_over(int rc) {
    return rc == 0 || rc == SHORE_EMISSING || rc == SHORE_EMISMATCH || rc == SHORE_EINPUT;
}
