/* Files of moments in a Hugging Face directory. DIR/optimizer/NAME holds one moment of all tensors under their names;
 * NAME is torch.optim's. DIR/optimizer/optimizer.json names the optimizer and the number of updates that the moments
 * have seen. */
#ifndef SHORE_RUN_EXCHANGE_MOMENT_FILES_H
#define SHORE_RUN_EXCHANGE_MOMENT_FILES_H

#include "files/atomic.h"
#include "run/run.h"

#define SHORE__MOMENTS_DIRECTORY "optimizer"
#define SHORE__MOMENTS_FILE "optimizer.json"

/* NULL: the optimizer has none in that plane (SHORE_PLANE_M or SHORE_PLANE_V). */
const char *shore__moment_name(enum shore_optimizer optimizer, enum shore_plane plane);
struct shore__path shore__moments_path(const char *directory, const char *name);
/* Writes the JSON. updates 0: left out. */
int shore__moments_describe(const char *directory, enum shore_optimizer optimizer, uint64_t updates,
                            struct shore_diag *diag);

#endif
