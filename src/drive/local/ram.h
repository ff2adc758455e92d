/* A drive in memory as its files share it: its state, and the work of its lanes. */
#ifndef SHORE_DRIVE_LOCAL_RAM_H
#define SHORE_DRIVE_LOCAL_RAM_H

#include "drive/local/front.h"

struct ram {
    struct shore__front front;
    struct shore__volume_desc desc;
    bool keeps; /* "ram:"; "null:" takes everything, keeps nothing and returns zeros */
    unsigned char *plane[2][SHORE_PLANE_COUNT];
    struct shore__slot_map map;
    unsigned char *spill;
    unsigned char *scratch;
    unsigned char *stage;                        /* of functions, once one has run */
    unsigned char metrics[SHORE__METRICS_BYTES]; /* of the committed step. Used on the update lane, or when drained */
    uint32_t metrics_bytes;
    unsigned char *blob[2]; /* of the step in each slot. Used likewise */
    uint32_t blob_bytes[2];
};

static inline void *shore__ram_plane(const struct ram *r, unsigned slot, enum shore_plane plane, uint32_t local) {
    unsigned char *planes = r->plane[shore__slot_map_data(&r->map, slot, local)][plane];
    return planes ? planes + local * (size_t)r->desc.plane_bytes[plane] : NULL;
}

static inline struct shore__stored shore__ram_stored(const struct ram *r, unsigned slot, uint32_t local) {
    struct shore__stored stored;
    for (int p = 0; p < SHORE_PLANE_COUNT; p++)
        stored.plane[p] = shore__ram_plane(r, slot, p, local);
    return stored;
}

/* ram_call.c */
int shore__ram_run(struct ram *r, struct shore__local_job *job);

/* The lanes' threads. ctx: the drive. */
void *shore__ram_fetch_lane(void *ctx);
void *shore__ram_update_lane(void *ctx);

#endif
