/* Tensors of a Hugging Face directory: which is which, and what those that are no parameters may hold. */
#ifndef SHORE_RUN_EXCHANGE_TENSORS_H
#define SHORE_RUN_EXCHANGE_TENSORS_H

#include "files/safetensors.h"
#include "model/model.h"

/* By its name in exports; files of the bare model leave out the first word: the original gpt2 has "h.0.ln_1.weight". Of
 * a tied model, the head is the embedding where that is not stored. NULL: there is none. */
const struct shore__st_tensor *shore__tensor_find(const struct shore__safetensors *files,
                                                  const struct shore__arch *arch, const char *name);
/* One whose name ends in this one, behind a word of somebody else; or NULL. */
const struct shore__st_tensor *shore__tensor_prefixed(const struct shore__safetensors *files, const char *name);
/* Refuses names that a wrapper of the model has left its mark on, and says how to get rid of it. */
int shore__tensors_refuse_wrapped(const struct shore__safetensors *files, struct shore_diag *diag);
/* A tied model whose files hold a head that is not the embedding has two tables: arch->tied becomes false. */
int shore__tensors_untie(const struct shore__safetensors *files, struct shore__arch *arch, struct shore_diag *diag);
/* A tensor that is no parameter, as old versions of transformers stored some: an error unless what it holds is what is
 * computed without it. */
int shore__tensor_check_unused(const struct shore__safetensors *files, const struct shore__arch *arch,
                               const struct shore__st_tensor *t, struct shore_diag *diag);

#endif
