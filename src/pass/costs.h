/* What operations of our models compute and move: products by kind, attention, rows; the way of gradients, updates and
 * the commit, to the byte. */
#ifndef SHORE_PASS_COSTS_H
#define SHORE_PASS_COSTS_H

#include "pass/facts.h"
#include "plan/program.h"

/* An exponential, with what is around it, takes as long as so many bytes that norms move. */
#define SHORE__EXPONENTIAL_BYTES 6u

/* The width of the layer by which a processor is measured: see measure_computing.h. */
#define SHORE__MEASURED_WIDTH 768u

/* What a program is being told of an operation. */
struct shore__costing {
    const struct shore__facts *f;
    struct shore_program *program;
    struct shore__range *ranges; /* [block * drives + drive]: who owns which segments */
    bool least_ring;             /* drives update with the least buffers */
};

/* Errors: -ENOMEM; SHORE_EUSAGE: speeds of drives that cannot be. The caller closes it, whatever is returned. */
int shore__costing_open(struct shore__costing *c, const struct shore__facts *f, struct shore_program *program,
                        struct shore_diag *diag);
void shore__costing_close(struct shore__costing *c);

/* What a drive has of a step's updates, as a share of all drives'. */
double shore__costing_share(const struct shore__costing *c, uint32_t drive);

/* Segments of a block that a step updates: all of them, or none. */
uint32_t shore__trained_segments(const struct shore__facts *f, uint32_t block);

/* Rows of the embedding that a batch looks up: at most, and as many as are expected if its tokens are spread over the
 * vocabulary. */
uint64_t shore__rows_most(const struct shore__facts *f);
uint64_t shore__rows_expected(const struct shore__facts *f);

/* Whether the machine knows how much slower its drives are with the least buffers. */
bool shore__knows_least_ring(const struct shore__facts *f);

/* Computing of operation `op`. */
void shore__costs_embed(const struct shore__costing *c, uint32_t op);
void shore__costs_forward(const struct shore__costing *c, uint32_t op,
                          uint32_t layer);                             /* of a layer, without its last product */
void shore__costs_output(const struct shore__costing *c, uint32_t op); /* that product */
void shore__costs_loss(const struct shore__costing *c, uint32_t op);
void shore__costs_head(const struct shore__costing *c, uint32_t op);
void shore__costs_backward(const struct shore__costing *c, uint32_t op, uint32_t layer);
void shore__costs_lookups(const struct shore__costing *c, uint32_t op);

/* Work behind `op` for a gradient of these segments that it has made: its way, and the update. */
void shore__costs_gradient(const struct shore__costing *c, uint32_t op, uint32_t block, uint32_t segment,
                           uint32_t count);
/* Work behind `op` and behind `last` for such a gradient, if it waits on the drives until the norm is known. */
void shore__costs_spill(const struct shore__costing *c, uint32_t op, uint32_t last, uint32_t block, uint32_t segment,
                        uint32_t count);
/* Work behind `op`, the last one of a step: the update on the host, and the commit. */
void shore__costs_end(const struct shore__costing *c, uint32_t op);
/* Work behind `op` for rows that are gathered, whose bytes are a tensor's: drives read whole pages, in each plane. */
void shore__costs_gather(const struct shore__costing *c, uint32_t op);
/* Work behind `op` for parameters that are fetched there whatever the plan: those of a tail. */
void shore__costs_tail(const struct shore__costing *c, uint32_t op, uint32_t block);

#endif
