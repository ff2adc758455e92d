/* Passes over the model, layer by layer, for a batch of whole units. Evaluation and training share them. */
#ifndef SHORE_PASS_PASS_H
#define SHORE_PASS_PASS_H

#include "pass/batches.h"
#include "pass/lookups.h"
#include "pass/parameters.h"

struct shore__pass {
    const struct shore__model *m;
    struct shore__compute *c;
    struct shore__stream *stream; /* runs everything */
    struct shore__parameters *parameters;
    struct shore__lookups *lookups; /* of the embedding's rows; NULL: its slices are read */
    struct shore_pages *pages;      /* of parameters */
    size_t sequences, seq_len;      /* of the current batch */
    size_t most_unit_rows;
    struct shore__both tokens, targets; /* int32 [rows]; target -1: the row does not count */
    size_t counting;                    /* rows of the current batch that count */
    struct shore_event put;             /* once it has passed, the device has tokens and targets */
    shore__buf rotary;                  /* fp32, each table [rotary_positions, rotary dim]; or none */
    size_t rotary_positions;
    shore__buf normed;                 /* [rows, d]: final norm's output */
    shore__buf stats;                  /* fp32 [rows, 2] */
    shore__buf max, sum, target_logit; /* fp32 [rows] */
    struct shore__both loss;           /* fp32 [rows] */
    shore__buf logits;                 /* fp32 [unit rows, slice rows] */
    shore__buf inner;                  /* inner activations of one unit */
    shore__buf adapting;               /* scratch of adapters */
    shore__buf kept_logits;            /* logits of tiles (slice, unit) 0 .. nkept - 1, kept for backward, */
    size_t nkept, kept_units;          /* for kept_units units at a time */
};

/* Lays out a pass for batches of at most this shape, and fills the rotary table. memory: has the rows of
 * shore__batch_describe(). The caller sets pass->m and pass->c before. */
int shore__pass_lay_out(struct shore__pass *pass, const struct shore__batch_shape *most,
                        const struct shore__memory *memory, struct shore_diag *diag);
/* Fills the row ROTARY for so many positions. out: none if positions are learned. */
int shore__rotary_fill(const struct shore__model *m, struct shore__compute *c, struct shore__stream *stream,
                       size_t positions, const struct shore__memory *memory, shore__buf *out, struct shore_diag *diag);

/* Units of the current batch: their number, and the rows of unit u, which begins at row u * shore__pass_unit(pass). */
static inline size_t shore__pass_unit(const struct shore__pass *pass) {
    return shore__unit_sequences(pass->seq_len) * pass->seq_len;
}
static inline size_t shore__pass_rows(const struct shore__pass *pass) {
    return pass->sequences * pass->seq_len;
}
static inline size_t shore__pass_units(const struct shore__pass *pass) {
    return (shore__pass_rows(pass) + shore__pass_unit(pass) - 1) / shore__pass_unit(pass);
}
static inline size_t shore__pass_unit_rows(const struct shore__pass *pass, size_t u) {
    size_t left = shore__pass_rows(pass) - u * shore__pass_unit(pass);
    return left < shore__pass_unit(pass) ? left : shore__pass_unit(pass);
}
/* Divisor of sums over rows that count. Without any such row, the sum is 0 and so is the mean. */
static inline double shore__divisor(uint64_t counting) {
    return counting ? (double)counting : 1;
}
/* Start of unit u in an activation [rows, d]. */
static inline shore__buf shore__pass_at(const struct shore__pass *pass, shore__buf act, size_t u) {
    return shore__at(act, u * shore__pass_unit(pass) * pass->m->arch.d_model * shore__mode_bytes(pass->c->mode));
}
/* A unit of so many rows in a layer, for shore__layer_forward() and the others. */
struct shore__layer_call shore__pass_call(const struct shore__pass *pass, uint32_t layer,
                                          const struct shore__weights *w, size_t rows);
/* Place of tile (slice, unit): among the kept logits, or the shared buffer. */
shore__buf shore__pass_logits(const struct shore__pass *pass, uint32_t slice, size_t u);

/* x [rows, d] from tokens [rows] of sequences of seq_len, whose first position is first_position. */
int shore__embed(const struct shore__model *m, struct shore__compute *c, struct shore__stream *stream,
                 struct shore__parameters *parameters, struct shore__both tokens, size_t rows, size_t seq_len,
                 size_t first_position, shore__buf x, struct shore_diag *diag);
/* Copies the batch's tokens and targets to the device. The host may change its own again after pass->put. */
int shore__pass_put(struct shore__pass *pass, struct shore_diag *diag);
/* x [rows, d] from the current batch. */
int shore__pass_embed(struct shore__pass *pass, shore__buf x, struct shore_diag *diag);
/* Final norm of all of x; and the losses of `count` units from unit `first` on. They fill normed, stats, max, sum and
 * loss, and kept_logits where those are kept. */
int shore__pass_norm(struct shore__pass *pass, shore__buf x, struct shore_diag *diag);
int shore__pass_losses(struct shore__pass *pass, size_t first, size_t count, struct shore_diag *diag);
/* Sum of the batch's losses, in row order. */
int shore__pass_loss_sum(const struct shore__pass *pass, double *sum, struct shore_diag *diag);
/* Takes the current batch through all layers, in x, and sums its losses. */
int shore__pass_forward(struct shore__pass *pass, shore__buf x, double *sum, struct shore_diag *diag);

#endif
