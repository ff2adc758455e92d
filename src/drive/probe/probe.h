/* Finds out what is at a drive's path, here or on another host, without opening it. */
#ifndef SHORE_DRIVE_PROBE_PROBE_H
#define SHORE_DRIVE_PROBE_PROBE_H

#include <string.h>
#include <sys/stat.h>

#include "drive/address.h"
#include "drive/local/volume_remove.h"
#include "drive/remote/wire.h"

struct shore__probe {
    bool exists, is_volume, busy, is_device;
    bool in_directory;       /* the path given is a directory; the volume is the one with the default name in it */
    uint64_t capacity_bytes; /* 0: unknown */
    uint64_t device; /* the one that it lies on, as its host numbers them; 0: it is a device itself, or unknown */
    char *path;      /* of the volume, on its host */
    /* of a volume */
    uint64_t size_bytes;
    struct shore__volume_desc desc; /* without its extents */
    struct shore__drive_recovery recovery;
    /* why it is no usable volume, or none may be made there */
    struct shore_diag trouble;
};

/* Free the result with shore__probe_free(). Fails if nothing can be found out. SHORE_EMISSING: nothing is kept
 * there. */
int shore__drive_probe(const struct shore__address *at, struct shore__probe *out, struct shore_diag *diag);
/* The same once nobody uses it. busy: still in use after SHORE__LOCK_SECONDS. */
int shore__drive_probe_idle(const struct shore__address *at, struct shore__probe *out, struct shore_diag *diag);
void shore__probe_free(struct shore__probe *p);
/* Whether a volume may be made where the probe found none: shore__drive_may_be_made(), on the drive's host. */
int shore__probe_may_be_made(const struct shore__address *at, const struct shore__probe *p, struct shore_diag *diag);
/* Whether something is at a volume's path here. Fails if that is unknown: then none can be made there, or would be
 * found. */
int shore__drive_examine(const char *volume, struct stat *st, bool *exists, struct shore_diag *diag);
/* The device that a volume at path would lie on; 0: it is a device itself, or unknown. */
uint64_t shore__drive_device(const char *path);
/* Whether it once held a whole state. */
static inline bool shore__probe_is_sealed(const struct shore__probe *p) {
    return p->recovery.valid || p->recovery.damaged_record;
}
static inline bool shore__probe_is_of(const struct shore__probe *p, const uint64_t fleet_id[2]) {
    return p->is_volume && memcmp(p->desc.fleet_id, fleet_id, sizeof p->desc.fleet_id) == 0;
}

/* Of a file: here, and on the far side. */
int shore__file_probe(const char *path, struct shore__probe *out, struct shore_diag *diag);
int shore__remote_probe(const struct shore__address *at, struct shore__probe *out, struct shore_diag *diag);
/* shore__drive_remove() on the far side. */
int shore__remote_remove(const struct shore__address *at, const uint64_t fleet_id[2], uint64_t generation, bool begun,
                         struct shore_diag *diag);

/* Rates of a drive on the far side in the pattern of UPDATE, and of its connection there, in bytes per second. */
int shore__remote_measure(const struct shore__address *at, uint64_t *drive, uint64_t *link, struct shore_diag *diag);

/* The result of PROBE; malloc'ed, NULL: out of memory. */
unsigned char *shore__probe_put(const struct shore__probe *p, uint32_t *bytes);
bool shore__probe_get(const unsigned char *in, uint32_t bytes, struct shore__probe *out);

/* shore__volume_remove() wherever the drive is; does nothing in memory. */
int shore__drive_remove(const struct shore__address *at, const uint64_t fleet_id[2], uint64_t generation, bool begun,
                        struct shore_diag *diag);
/* Whether a file may be made here where there is none: see shore__file_may_be_made(). Other kinds tell when asked. */
int shore__drive_may_be_made(const struct shore__address *at, struct shore_diag *diag);

#endif
