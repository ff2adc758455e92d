/* Tensors of a Hugging Face directory: finds ours by name, and checks those that are no parameters. */
#ifndef SHORE_RUN_EXCHANGE_TENSORS_H
#define SHORE_RUN_EXCHANGE_TENSORS_H

#include "files/safetensors.h"
#include "model/model.h"

/* Opens the safetensors files of a model's directory. Quantised weights are read as transformers widens them. */
int shore__tensors_open(const char *directory, const struct shore__arch *arch, struct shore__safetensors **out,
                        struct shore_diag *diag);
/* Finds a tensor by its name in exports. Files of the bare model leave out the first word: the original gpt2 has
 * "h.0.ln_1.weight". If a tied model's files have no head, it is the embedding. NULL: there is none. */
const struct shore__st_tensor *shore__tensor_find(const struct shore__safetensors *files,
                                                  const struct shore__arch *arch, const char *name);
/* Of an expert whose name no tensor has: its part, in *out, of the one that transformers 5 has for all of a layer, with
 * gates above ups. NULL: there is none. */
const struct shore__st_tensor *shore__tensor_of_expert(const struct shore__safetensors *files,
                                                       const struct shore__arch *arch, const char *name,
                                                       struct shore__st_tensor *out);
/* A tensor whose name is this one behind another program's word; or NULL. */
const struct shore__st_tensor *shore__tensor_prefixed(const struct shore__safetensors *files, const char *name);
/* Refuses names that a wrapper of the model has changed, and says how to undo that. */
int shore__tensors_refuse_wrapped(const struct shore__safetensors *files, struct shore_diag *diag);
/* Sets arch->tied to false if the files of a tied model hold a head that differs from the embedding. */
int shore__tensors_untie(const struct shore__safetensors *files, struct shore__arch *arch, struct shore_diag *diag);
/* A tensor that is no parameter, as old versions of transformers stored some. It is an error unless it equals the value
 * that is computed without it. */
int shore__tensor_check_unused(const struct shore__safetensors *files, const struct shore__arch *arch,
                               const struct shore__st_tensor *t, struct shore_diag *diag);

#endif
