/* The plan of inference: which pages stay, beside what a batch or a generated text takes.
 */
#ifndef SHORE_PLAN_INFERENCE_H
#define SHORE_PLAN_INFERENCE_H

#include "plan/facts.h"
#include "plan/pages.h"

struct shore__infer_plan {
    struct shore__residency residency;
    uint64_t buffers_bytes, reserve_bytes; /* results */
};

/* The plan for a budget, and its rows, laid out (opened here; the caller closes them, whatever is returned): those of
 * the pages, WORKSPACE, X, and those of a batch, or GENERATION of so many bytes. resident_bytes: of the process
 * so far. Errors: SHORE_EBUDGET with "minimum SIZE". */
int shore__plan_inference(const struct shore__facts *f, uint64_t generation_bytes, uint64_t resident_bytes,
                          uint64_t budget, struct shore__infer_plan *out, struct shore__region_list *rows,
                          struct shore_diag *diag);

#endif
