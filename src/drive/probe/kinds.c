/* What each kind of drive does where others ask for a drive by its address: one row a kind. */
#include <time.h>

#include "base/diag.h"
#include "drive/address.h"
#include "drive/drive.h"
#include "drive/probe/probe.h"
#include "drive/remote/remote.h"

/* NULL: there is nothing to do, or (open, probe) nothing that was kept. */
struct row {
    int (*create)(const struct shore__drive_config *config, const char *address, const struct shore__volume_desc *desc,
                  bool overwrite, struct shore__drive **out, struct shore_diag *diag);
    int (*open)(const struct shore__drive_config *config, const char *address, struct shore__drive **out,
                struct shore_diag *diag);
    uint64_t (*memory_bytes)(const struct shore__drive_config *config, const struct shore__volume_desc *desc);
    int (*probe)(const char *address, struct shore__probe *out, struct shore_diag *diag);
    int (*may_be_made)(const char *address, struct shore_diag *diag);
    int (*remove)(const char *address, const uint64_t fleet_id[2], uint64_t generation, bool begun,
                  struct shore_diag *diag);
};

static const struct row file = {.create = shore__local_create,
                                .open = shore__local_open,
                                .memory_bytes = shore__local_memory_bytes,
                                .probe = shore__file_probe,
                                .may_be_made = shore__file_may_be_made,
                                .remove = shore__volume_remove},
                        ram = {.create = shore__ram_create, .memory_bytes = shore__ram_memory_bytes},
                        null = {.create = shore__null_create},
                        remote = {.create = shore__remote_create,
                                  .open = shore__remote_open,
                                  .probe = shore__remote_probe,
                                  .remove = shore__remote_remove};

static const struct row *row_of(const char *address) {
    static const struct row *const rows[] = {[SHORE__KIND_FILE] = &file,
                                             [SHORE__KIND_RAM] = &ram,
                                             [SHORE__KIND_NULL] = &null,
                                             [SHORE__KIND_SSH] = &remote,
                                             [SHORE__KIND_UNIX] = &remote};
    return rows[shore__kind_of(address)->id];
}

static int keeps_nothing(const char *address, struct shore_diag *diag) {
    return shore__fail(diag, SHORE_EMISSING, "%s keeps nothing after its process has ended", address);
}

int shore__drive_create_at(const struct shore__drive_config *config, const char *address,
                           const struct shore__volume_desc *desc, bool overwrite, struct shore__drive **out,
                           struct shore_diag *diag) {
    return row_of(address)->create(config, address, desc, overwrite, out, diag);
}

int shore__drive_open_at(const struct shore__drive_config *config, const char *address, struct shore__drive **out,
                         struct shore_diag *diag) {
    const struct row *row = row_of(address);
    return row->open ? row->open(config, address, out, diag) : keeps_nothing(address, diag);
}

uint64_t shore__drive_memory_bytes(const char *address, const struct shore__drive_config *config,
                                   const struct shore__volume_desc *desc) {
    const struct row *row = row_of(address);
    return row->memory_bytes ? row->memory_bytes(config, desc) : 0;
}

int shore__drive_remove(const char *drive, const uint64_t fleet_id[2], uint64_t generation, bool begun,
                        struct shore_diag *diag) {
    const struct row *row = row_of(drive);
    return row->remove ? row->remove(drive, fleet_id, generation, begun, diag) : 0;
}

int shore__drive_may_be_made(const char *drive, struct shore_diag *diag) {
    const struct row *row = row_of(drive);
    return row->may_be_made ? row->may_be_made(drive, diag) : 0;
}

int shore__drive_probe(const char *path, struct shore__probe *out, struct shore_diag *diag) {
    const struct row *row = row_of(path);
    *out = (struct shore__probe){0};
    return row->probe ? row->probe(path, out, diag) : keeps_nothing(path, diag);
}

int shore__drive_probe_idle(const char *path, struct shore__probe *out, struct shore_diag *diag) {
    const struct timespec pause = {.tv_nsec = 250 * 1000 * 1000};
    int rc = shore__drive_probe(path, out, diag);
    for (int tries = (int)(SHORE__LOCK_SECONDS / 0.25); !rc && out->busy && tries > 0; tries--) {
        shore__probe_free(out);
        nanosleep(&pause, NULL);
        rc = shore__drive_probe(path, out, diag);
    }
    return rc;
}
