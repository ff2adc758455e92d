/* Functions that the benchmarks share. */
#ifndef SHORE_TOOLS_BENCH_H
#define SHORE_TOOLS_BENCH_H

#include "cli/cli.h"

/* Places for temporary volumes: a new file in each directory, or the path itself (a new file, or a device). At least
 * one drive is required. */
int shore__bench_places(const struct shore__strings *drives, const char *name, struct shore__addresses *places,
                        struct shore_diag *diag);
void shore__bench_remove(const struct shore__addresses *places); /* files only */
/* "124M", "1.5B", "1000000": units of 1,000. -EINVAL. */
int shore__bench_parse_count(const char *text, uint64_t *count);

#endif
