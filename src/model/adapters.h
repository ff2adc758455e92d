/* Adapters (LoRA): beside each of some products y = x w^T there are two thin matrices, and y + scale * (x a^T) b^T is
 * computed instead. They alone are trained. An adapter belongs to a matrix of the files: where we hold several as one,
 * each has its own. */
#ifndef SHORE_MODEL_ADAPTERS_H
#define SHORE_MODEL_ADAPTERS_H

#include "model/model.h"

/* How PEFT names an adapter's matrices in files: the prefix, the module, and one of the ends. */
#define SHORE__PEFT_PREFIX "base_model.model."
#define SHORE__PEFT_A ".lora_A.weight"
#define SHORE__PEFT_B ".lora_B.weight"

/* Which adapters, in PEFT's terms. */
struct shore__lora {
    uint32_t rank;
    double alpha;
    bool rslora;
    const char *const *targets; /* names of modules, or their ends */
    size_t ntargets;            /* 0: all linear modules of the layers */
};

/* Lets all of a model rest, and adds adapters. Errors (SHORE_EUSAGE): a target that is no product of the layers, a rank
 * above the model's width; -ENOMEM. */
int shore__model_adapt(struct shore__model *m, const struct shore__lora *lora, struct shore_diag *diag);

/* Initial values of elements [from, from + count) of an adapter's matrix, as PEFT's: a uniform within 1 / sqrt(in),
 * which is kaiming_uniform_(a = sqrt(5)), and b 0. */
void shore__adapters_init(const struct shore__model_tensor *t, uint64_t seed, uint64_t from, uint64_t count,
                          float *out);
/* Whether a block holds adapters. */
static inline bool shore__block_adapts(const struct shore__model *m, uint32_t block) {
    return m->blocks[block].tensors[0].role >= SHORE__ADAPTERS;
}
/* The name of a part's module in files: without ".weight". */
size_t shore__module_bytes(const char *part);

/* ---- mathematics, on one unit of rows ---- */

/* Bytes of scratch for shore__adapters_add() and shore__adapters_backward(). */
size_t shore__adapters_bytes(const struct shore__model *m, enum shore__mode mode, size_t rows);
/* Adds to y [rows, width], the product of x with the weight of this role, what its adapters make of x. */
int shore__adapters_add(const struct shore__layer_call *l, enum shore__role weight, shore__buf y, size_t width,
                        shore__buf x);
/* Backward: gradients of the adapters go to g, and dx gets what comes through them. */
int shore__adapters_backward(const struct shore__layer_call *l, const struct shore__gradients *g,
                             enum shore__role weight, shore__buf dy, size_t width, shore__buf x, shore__buf dx);

#endif
