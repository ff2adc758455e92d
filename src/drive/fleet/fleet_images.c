/* State images in a program's memory: their size, replacing their masters and moments, and UPDATE on them. */
#include <errno.h>

#include "base/diag.h"
#include "base/sized.h"
#include "drive/chunk.h"
#include "drive/fleet/fleet.h"
#include "drive/moment_tiles.h"
#include "number/bf16.h"

size_t shore_fleet_state_bytes(const struct shore_fleet *f) {
    return shore__state_segment_bytes(f->config.plane_bytes);
}

void shore_fleet_put_masters(const struct shore_fleet *f, void *state, uint32_t count, const float *master) {
    for (uint32_t i = 0; i < count; i++) {
        char *hi = (char *)state + i * shore_fleet_state_bytes(f), *lo = hi + f->config.plane_bytes[SHORE_PLANE_HI];
        shore__f32_split((uint16_t *)hi, (uint16_t *)lo, master + (size_t)i * SHORE_SEGMENT_ELEMS, SHORE_SEGMENT_ELEMS);
    }
}

void shore_fleet_put_moments(const struct shore_fleet *f, void *state, uint32_t block, uint32_t tensor,
                             uint32_t segment, uint32_t count, const float *m, const float *v) {
    const uint32_t *bytes = f->config.plane_bytes;
    const float *const values[] = {m, v};
    for (uint32_t i = 0; i < count; i++) {
        char *plane = (char *)state + i * shore_fleet_state_bytes(f) + bytes[SHORE_PLANE_HI] + bytes[SHORE_PLANE_LO];
        for (enum shore_plane p = SHORE_PLANE_M; p <= SHORE_PLANE_V; plane += bytes[p++])
            if (bytes[p] && values[p - SHORE_PLANE_M])
                shore__moments_put(&f->layout->blocks[block], segment + i, f->config.moments, p, plane, tensor,
                                   values[p - SHORE_PLANE_M] + (size_t)i * SHORE_SEGMENT_ELEMS);
    }
}

static uint16_t *residual_of(const struct shore_fleet *f, unsigned char *image) {
    for (int p = 0; p < SHORE_PLANE_R; p++)
        image += f->config.plane_bytes[p];
    return f->config.plane_bytes[SHORE_PLANE_R] ? (uint16_t *)(void *)image : NULL;
}

int shore_fleet_update_images(struct shore_fleet *f, const struct shore_update *given, void *state,
                              struct shore_diag *diag) {
    struct shore_update update;
    int rc = shore__sized_in(&update, sizeof update, given, "shore_update", diag);
    if (rc) return rc;
    rc = shore__update_check(&f->config, &update);
    if (rc) return shore__fail(diag, rc, "shore_fleet_update_images: the segments do not exist, or groups are missing");
    const char *what =
        shore__update_is_spilled(&update) ? "the gradient is not in memory" : shore__update_left_out(f, &update);
    if (what) return shore__fail(diag, -EINVAL, "shore_fleet_update_images: %s", what);
    int worst = 0;
#pragma omp parallel for schedule(dynamic)
    for (uint32_t i = 0; i < update.count; i++) {
        struct shore_diag why = {0};
        struct shore_update part = shore__update_part(&f->config, &update, update.segment + i, 1);
        unsigned char *image = (unsigned char *)state + i * shore_fleet_state_bytes(f);
        int failed = shore__image_update(&f->config, &part, image, &why);
        uint16_t *residual = residual_of(f, image);
        if (residual) shore__update_residual(&part, residual);
        if (!failed) continue;
#pragma omp critical
        {
            /* report damage before a value that is not finite, as drives do: they check for damage first */
            if (!worst || (failed == SHORE_ECORRUPT && worst != failed)) {
                if (diag) *diag = why;
                worst = failed;
            }
        }
    }
    return worst;
}
