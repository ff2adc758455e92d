/* What is at the path of a remote drive, asked without opening it. */
#ifndef SHORE_DRIVE_PROBE_H
#define SHORE_DRIVE_PROBE_H

#include "drive/wire.h"

struct shore__probe {
    bool exists, is_volume, sealed, busy, is_device;
    uint64_t fleet_id[2];
    uint64_t capacity_bytes; /* 0: unknown */
    char *path;              /* of the volume, there */
    unsigned char *identity;
    uint32_t identity_bytes;
};

/* Asks the far side. The result is owned: shore__probe_free(). */
int shore__remote_probe(const char *uri, struct shore__probe *out, struct shore_diag *diag);
void shore__probe_free(struct shore__probe *p);
#define SHORE__ANY_GENERATION UINT64_MAX

/* shore__drive_discard() over there. */
int shore__remote_remove(const char *uri, const uint64_t fleet_id[2], uint64_t generation, bool begun,
                         struct shore_diag *diag);

/* The result of PROBE; malloc'ed, NULL: out of memory. */
unsigned char *shore__probe_put(const struct shore__probe *p, uint32_t *bytes);
bool shore__probe_get(const unsigned char *in, uint32_t bytes, struct shore__probe *out);

#endif
