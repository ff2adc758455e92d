/* Functions of each kind of drive that work on an address. */
#include <stdlib.h>
#include <time.h>

#include "base/diag.h"
#include "drive/drive.h"
#include "drive/probe/probe.h"
#include "drive/remote/remote.h"
#include "near/opencl/opencl_device.h"

static int keeps_nothing(const struct shore__address *at, struct shore_diag *diag) {
    return shore__fail(diag, SHORE_EMISSING, "%s keeps nothing after its process has ended", at->text);
}

static struct shore__drive_config of_kind(const struct shore__drive_config *config, const struct shore__address *at) {
    struct shore__drive_config own = *config;
    own.on_device = at->kind->id == SHORE__KIND_OPENCL;
    return own;
}

int shore__drive_create_at(const struct shore__drive_config *config, const struct shore__address *at,
                           const struct shore__volume_desc *desc, bool overwrite, struct shore__drive **out,
                           struct shore_diag *diag) {
    struct shore__drive_config own;
    switch (at->kind->id) {
    case SHORE__KIND_FILE:
    case SHORE__KIND_OPENCL:
        own = of_kind(config, at);
        return shore__local_create(&own, at->path, desc, overwrite, out, diag);
    case SHORE__KIND_RAM:
        return shore__ram_create(config, desc, out, diag);
    case SHORE__KIND_NULL:
        return shore__null_create(config, desc, out, diag);
    case SHORE__KIND_SSH:
    case SHORE__KIND_UNIX:
        break;
    }
    return shore__remote_create(config, at, desc, overwrite, out, diag);
}

int shore__drive_open_at(const struct shore__drive_config *config, const struct shore__address *at,
                         struct shore__drive **out, struct shore_diag *diag) {
    if (at->kind->served) return shore__remote_open(config, at, out, diag);
    if (!at->kind->has_file) return keeps_nothing(at, diag);
    const struct shore__drive_config own = of_kind(config, at);
    return shore__local_open(&own, at->path, out, diag);
}

uint64_t shore__drive_memory_bytes(const struct shore__address *at, const struct shore__drive_config *config,
                                   const struct shore__volume_desc *desc) {
    if (at->kind->id == SHORE__KIND_RAM) return shore__ram_memory_bytes(config, desc);
    const struct shore__drive_config own = of_kind(config, at);
    return at->kind->has_file ? shore__local_memory_bytes(&own, desc) : 0;
}

int shore__drive_remove(const struct shore__address *at, const uint64_t fleet_id[2], uint64_t generation, bool begun,
                        struct shore_diag *diag) {
    if (at->kind->served) return shore__remote_remove(at, fleet_id, generation, begun, diag);
    return at->kind->has_file ? shore__volume_remove(at->path, fleet_id, generation, begun, diag) : 0;
}

int shore__drive_may_be_made(const struct shore__address *at, struct shore_diag *diag) {
    struct shore__cl_device device;
    int rc = at->kind->id == SHORE__KIND_OPENCL ? shore__opencl_device_here(0, &device, diag) : 0;
    if (rc) return rc;
    return at->kind->has_file ? shore__file_may_be_made(at->path, diag) : 0;
}

int shore__drive_probe(const struct shore__address *at, struct shore__probe *out, struct shore_diag *diag) {
    *out = (struct shore__probe){0};
    if (at->kind->served) return shore__remote_probe(at, out, diag);
    return at->kind->has_file ? shore__file_probe(at->path, out, diag) : keeps_nothing(at, diag);
}

int shore__drive_probe_idle(const struct shore__address *at, struct shore__probe *out, struct shore_diag *diag) {
    const struct timespec pause = {.tv_nsec = 250 * 1000 * 1000};
    int rc = shore__drive_probe(at, out, diag);
    for (int tries = (int)(SHORE__LOCK_SECONDS / 0.25); !rc && out->busy && tries > 0; tries--) {
        shore__probe_free(out);
        nanosleep(&pause, NULL);
        rc = shore__drive_probe(at, out, diag);
    }
    return rc;
}
