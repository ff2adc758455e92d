/* Operations of a training step of our models: their order, their work in each lane, and what each reads. */
#ifndef SHORE_PASS_OPERATIONS_H
#define SHORE_PASS_OPERATIONS_H

#include "pass/facts.h"
#include "plan/program.h"

/* Operations, by number, of a step over n layers. Forward of a layer is two: what leaves inner activations, which can
 * be done again alone, and the product behind them, whose output is the next layer's input. A commit has none of its
 * own: it runs beside the next forward pass, so memory that an update reads lives until lookups again. Between two
 * steps, the commit is done, and samples are made. */
static inline uint32_t shore__phase_forward(uint32_t layer) { /* 0: lookups of the embedding */
    return layer ? 2 * layer - 1 : 0;
}
static inline uint32_t shore__phase_output(uint32_t layer) {
    return 2 * layer;
}
static inline uint32_t shore__phase_loss(uint32_t n) {
    return 2 * n + 1;
}
static inline uint32_t shore__phase_head(uint32_t n) { /* backward */
    return 2 * n + 2;
}
static inline uint32_t shore__phase_backward(uint32_t n, uint32_t layer) { /* 0: the embedding's, "lookups" */
    return 3 * n + 3 - layer;
}
static inline uint32_t shore__phase_between(uint32_t n) {
    return 3 * n + 4;
}

/* Adds the operations to a program. least_ring: drives update with the least buffers. Errors: those of
 * shore__costing_open(). */
int shore__operations_describe(const struct shore__facts *f, bool least_ring, struct shore_program *program,
                               struct shore_diag *diag);
/* Says which tensors of the program each operation reads, and what it copies to and from a device. */
void shore__operations_read(const struct shore__facts *f, struct shore_program *program);

/* Adds to a program, once a plan has so many buffers for pieces of gradient, what gradients that wait for the norm and
 * do not fit write to the drives and read back: see shore_step_complete(). table_stays: the gradient of a tied table
 * stays in memory. Errors: those of shore__costing_open(). */
int shore__operations_spill(const struct shore__facts *f, uint32_t buffers, bool table_stays,
                            struct shore_program *program, bool *spills, struct shore_diag *diag);

/* Seconds that forward computes, by the rates of the facts' machine. */
double shore__operations_forward_seconds(const struct shore__facts *f, const struct shore_program *program);

/* Operations of the model in a step: multiplications and additions of its products, forward and backward, and of the
 * attention that masks leave, with twice as many backward. What is computed again counts once. It is 6 N + 12 L H Q T a
 * token (PaLM, appendix B), with the part of T that a token sees. */
double shore__operations_of_model(const struct shore_program *program);

#endif
