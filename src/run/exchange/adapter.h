/* A PEFT adapter (LoRA, DoRA), merged into the tensors of a model as they are read. The values are those of PEFT's
 * merge_and_unload() of a model in fp32: W + scale B A, summed in fp32 in the order of ranks. */
#ifndef SHORE_RUN_EXCHANGE_ADAPTER_H
#define SHORE_RUN_EXCHANGE_ADAPTER_H

#include "files/safetensors.h"
#include "run/contents.h"

struct shore__adapter;
/* Reads canonical elements of a tensor, by its number in contents, before the adapter is merged. */
typedef int (*shore__base_fn)(void *ctx, uint32_t shape, uint64_t first, uint64_t count, float *out,
                              struct shore_diag *diag);

/* Opens an adapter's directory for a model. Refuses by name what cannot be merged: features that the configuration
 * says, tensors for which the model has no weight, shapes that do not fit. contents, base: borrowed. Memory: the larger
 * factor of one tensor; for DoRA also 4 MiB. */
int shore__adapter_open(const char *directory, const struct shore__contents *contents, const char *model_type,
                        shore__base_fn base, void *ctx, struct shore__adapter **out, struct shore_diag *diag);
void shore__adapter_close(struct shore__adapter *a); /* NULL is allowed */
/* The tensor that the adapter has instead of the model's, in *files; NULL: it has none. */
const struct shore__st_tensor *shore__adapter_instead(const struct shore__adapter *a, uint32_t shape,
                                                      const struct shore__safetensors **files);
/* Merges the adapter into canonical elements [first, first + count) of a tensor as they were read. */
int shore__adapter_merge(struct shore__adapter *a, uint32_t shape, uint64_t first, uint64_t count, float *values,
                         struct shore_diag *diag);

#endif
