/* Layout of a segment's moments in their plane. As fp32: in element order. As 8 bits, where E elements stay fp32 (those
 * of tensors below SHORE_MOMENTS_8BIT_LEAST elements):
 *
 *     65,536 - E bytes             a code for each of the other elements, in order
 *     (65,536 - E) / 256 floats    an absmax for each block of these
 *     E floats                     the elements that stay fp32, in order
 *     zeros                        to the end of the plane: all segments take as much as the largest
 */
#ifndef SHORE_DRIVE_MOMENT_TILES_H
#define SHORE_DRIVE_MOMENT_TILES_H

#include "near/moments.h"

/* A run of elements of one tensor within a segment, with moments of one kind. Gaps and padding belong to the tensor
 * before them; after a small tensor they are in 8 bits. */
struct shore__moment_run {
    uint32_t tensor;
    uint32_t first, stop;   /* elements of the segment */
    bool fp32;              /* with 8-bit moments, these stay fp32 */
    uint32_t before, other; /* elements of the segment before `first`: of this kind, and of the other */
};

/* Advances to the next run of a segment; *run is zero before the first. False: there is none. */
bool shore__moment_run_next(const struct shore_layout_block *block, uint32_t segment, struct shore__moment_run *run);

/* The moments of a segment, in the stored form of the plane. */
struct shore__moments {
    enum shore_moments kind;
    unsigned char *plane; /* NULL: not stored */
    uint32_t fp32_elems;  /* of the segment, with 8-bit moments */
};

/* Number of the segment's elements that stay fp32 with 8-bit moments. */
uint32_t shore__moments_fp32_elems(const struct shore_layout_block *block, uint32_t segment);

/* Elements of a run from `at` on: floats if the kind or the run is fp32; otherwise blocks of codes, and `at` is the
 * start of a block. */
float *shore__moments_floats(const struct shore__moments *m, const struct shore__moment_run *run, uint32_t at);
struct shore__moment8 shore__moments_codes(const struct shore__moments *m, const struct shore__moment_run *run,
                                           uint32_t at);

/* Used bytes of a segment's plane with 8-bit moments: whole pages. */
size_t shore__moments_stored_bytes(const struct shore_layout_block *block, uint32_t segment);

/* Zeroes the unused rest of a segment's plane, if it is stored. */
void shore__moments_end(const struct shore__moments *m, uint32_t plane_bytes);

/* Room for the moments of any segment of a layout: whole pages. */
uint32_t shore__moments_segment_bytes(const struct shore_layout *layout, enum shore_moments kind);

/* Converts a segment's moment between fp32 in canonical order and the stored plane. values NULL: zeros. Storing fills
 * the whole plane of plane_bytes. */
void shore__moments_store(const struct shore_layout_block *block, uint32_t segment, enum shore_moments kind,
                          enum shore_plane which, void *plane, uint32_t plane_bytes, const float *values);
/* The same for one tensor, whatever the others have. */
void shore__moments_put(const struct shore_layout_block *block, uint32_t segment, enum shore_moments kind,
                        enum shore_plane which, void *plane, uint32_t tensor, const float *values);
void shore__moments_load(const struct shore_layout_block *block, uint32_t segment, enum shore_moments kind,
                         enum shore_plane which, const void *plane, float *values);

#endif
