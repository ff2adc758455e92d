/* How the moments of a segment lie in their plane. As fp32: one behind the other. As 8 bits, with the E elements that
 * stay fp32 (those of tensors below SHORE_MOMENTS_8BIT_LEAST elements):
 *
 *     65,536 - E bytes             a code for each of the other elements, in their order
 *     (65,536 - E) / 256 floats    an absmax for each block of these
 *     E floats                     the elements that stay fp32, in their order
 *     zeros                        up to the end of the plane: all segments take what the largest needs
 */
#ifndef SHORE_DRIVE_MOMENT_TILES_H
#define SHORE_DRIVE_MOMENT_TILES_H

#include "near/moments.h"

/* A run of elements of one tensor within a segment, which all have moments of one kind. Gaps and padding belong to the
 * tensor before them, and are in 8 bits where they follow a small one. */
struct shore__moment_run {
    uint32_t tensor;
    uint32_t first, stop;   /* elements of the segment */
    bool fp32;              /* with 8-bit moments, these stay fp32 */
    uint32_t before, other; /* elements of the segment before `first`: of this kind, and of the other one */
};

/* Goes to the next run of a segment; *run is zero before the first. False: there is none. */
bool shore__moment_run_next(const struct shore_layout_block *block, uint32_t segment, struct shore__moment_run *run);

/* The moments of a segment: plane points to it, as it is stored. */
struct shore__moments {
    enum shore_moments kind;
    unsigned char *plane; /* NULL: not stored */
    uint32_t fp32_elems;  /* of the segment, with 8 bits */
};

/* How many elements of the segment stay fp32 with 8-bit moments. */
uint32_t shore__moments_fp32_elems(const struct shore_layout_block *block, uint32_t segment);

/* Element `at` of a run and those behind it: floats where the kind or the run is fp32, blocks of codes elsewhere (then
 * `at` is the first of a block). */
float *shore__moments_floats(const struct shore__moments *m, const struct shore__moment_run *run, uint32_t at);
struct shore__moment8 shore__moments_codes(const struct shore__moments *m, const struct shore__moment_run *run,
                                           uint32_t at);

/* Bytes of the plane of a segment that hold something, with 8-bit moments: whole pages. */
size_t shore__moments_stored_bytes(const struct shore_layout_block *block, uint32_t segment);

/* Zeros behind what a segment uses of its plane, if it is stored. */
void shore__moments_end(const struct shore__moments *m, uint32_t plane_bytes);

/* Room for the moments of a segment of a layout, the same for all: whole pages. */
uint32_t shore__moments_segment_bytes(const struct shore_layout *layout, enum shore_moments kind);

/* A segment's moment, between fp32 in canonical order and the stored plane. values NULL: zeros. Storing fills the whole
 * plane of plane_bytes. */
void shore__moments_store(const struct shore_layout_block *block, uint32_t segment, enum shore_moments kind,
                          enum shore_plane which, void *plane, uint32_t plane_bytes, const float *values);
/* The same of one tensor, whatever the others have. */
void shore__moments_put(const struct shore_layout_block *block, uint32_t segment, enum shore_moments kind,
                        enum shore_plane which, void *plane, uint32_t tensor, const float *values);
void shore__moments_load(const struct shore_layout_block *block, uint32_t segment, enum shore_moments kind,
                         enum shore_plane which, const void *plane, float *values);

#endif
