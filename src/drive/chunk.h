/* What every kind of drive that computes does with a chunk; and sums of leaves. */
#ifndef SHORE_DRIVE_CHUNK_H
#define SHORE_DRIVE_CHUNK_H

#include "drive/drive.h"
#include "near/update.h"

/* UPDATE of segments [segment, segment + count) of the request's block, by runs of one parameter group; the gaps
 * between tensors belong to the tensor before them. The arrays begin at `segment`; in and out may be the same. */
int shore__chunk_update(const struct shore__drive_config *config, const struct shore_update *update, uint32_t segment,
                        uint32_t count, const struct shore__planes *in, const struct shore__planes *out,
                        const float *gradient, void *params_out, struct shore_diag *diag);

/* Checks that a request lies in its block and that hyper-parameters are there for each group of it. */
int shore__update_check(const struct shore__drive_config *config, const struct shore_update *update);

/* The extent of a drive that holds [segment, segment + count) of block; NULL: not all of it is here. */
const struct shore__extent *shore__extent_find(const struct shore__volume_desc *desc, uint32_t block, uint32_t segment,
                                               uint32_t count);

/* Leaves are numbers of 128 bits, most significant byte first; sums are little-endian. */
void shore__sum_add_leaf(unsigned char sum[16], const struct shore__leaf *leaf);
void shore__sum_add(unsigned char sum[16], const unsigned char other[16]);

#endif
