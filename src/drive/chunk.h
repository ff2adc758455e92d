/* Work on a chunk that all computing kinds of drives share: UPDATE, initial state, and sums of leaves. */
#ifndef SHORE_DRIVE_CHUNK_H
#define SHORE_DRIVE_CHUNK_H

#include "drive/drive.h"
#include "drive/moment_tiles.h"
#include "near/gradient.h"

/* Whether the gradient lies on the drives. */
static inline bool shore__update_is_spilled(const struct shore_update *update) {
    return !update->gradient && !update->gather;
}

/* The part of a request for [segment, segment + count) of its block. */
struct shore_update shore__update_part(const struct shore__drive_config *config, const struct shore_update *whole,
                                       uint32_t segment, uint32_t count);

/* Bytes that the host sends with a request (gradient and residual), and receives. Padding does not cross. */
uint64_t shore__update_gradient_bytes(const struct shore__drive_config *config, const struct shore_update *update);
uint64_t shore__update_residual_bytes(const struct shore__drive_config *config, const struct shore_update *update);
uint64_t shore__update_bytes_in(const struct shore__drive_config *config, const struct shore_update *update);
uint64_t shore__update_bytes_out(const struct shore__drive_config *config, const struct shore_update *update);

/* The new contents of plane R for the request's segments. */
void shore__update_residual(const struct shore_update *update, uint16_t *to);

/* Stored planes of a run of segments; NULL: not stored. */
struct shore__stored {
    unsigned char *plane[SHORE_PLANE_COUNT];
};

/* Used bytes of a segment's plane, in whole pages. The rest of plane_bytes is zero, and is neither read nor written. */
size_t shore__stored_bytes(const struct shore__drive_config *config, uint32_t block, uint32_t segment,
                           enum shore_plane plane);

/* The same of all planes of a run of segments. residual: plane R too. */
uint64_t shore__stored_range_bytes(const struct shore__drive_config *config, uint32_t block, uint32_t segment,
                                   uint32_t count, bool residual);

/* Zeroes that rest in one segment's plane. */
void shore__stored_end(const struct shore__drive_config *config, uint32_t block, uint32_t segment,
                       enum shore_plane plane, unsigned char *data);

/* UPDATE of the request's segments, by runs of one tensor. Gaps belong to the tensor before them. in and out may be the
 * same. */
int shore__chunk_update(const struct shore__drive_config *config, const struct shore_update *update,
                        const struct shore__stored *in, const struct shore__stored *out, struct shore_diag *diag);

/* Says in which tensor it has failed. Returns rc. */
int shore__update_not_finite(int rc, const char *tensor, struct shore_diag *diag);

/* The same for one segment, in its state image. */
int shore__image_update(const struct shore__drive_config *config, const struct shore_update *update,
                        unsigned char *image, struct shore_diag *diag);

/* Initial state of segments [segment, segment + count), from fp32 in canonical order; m, v NULL: zeros. */
void shore__chunk_init(const struct shore__drive_config *config, uint32_t block, uint32_t segment, uint32_t count,
                       const float *master, const float *m, const float *v, const struct shore__stored *to);

/* Checks that a request lies in its block, and has hyper-parameters for each of its groups. */
int shore__update_check(const struct shore__drive_config *config, const struct shore_update *update);

/* spilled: by segment, 1 + the spilled form, or 0. */
bool shore__all_spilled(const unsigned char *spilled, uint32_t count, enum shore_gradient_form form);

/* The extent of a drive that contains [segment, segment + count) of block; NULL: not all of it is here. */
const struct shore__extent *shore__extent_find(const struct shore__volume_desc *desc, uint32_t block, uint32_t segment,
                                               uint32_t count);

/* A copy without the identity, with malloc'ed extents. -ENOMEM. */
int shore__desc_copy(const struct shore__volume_desc *desc, struct shore__volume_desc *out);

/* Leaves are 128-bit numbers, most significant byte first; sums are little-endian. */
void shore__sum_add_leaf(unsigned char sum[16], const struct shore__leaf *leaf);
void shore__sum_add(unsigned char sum[16], const unsigned char other[16]);

#endif
