/* One pass over the model, layer by layer, for a batch of whole units: what evaluation and training share.
 */
#ifndef SHORE_PASS_PASS_H
#define SHORE_PASS_PASS_H

#include "base/diag.h"
#include "pass/batches.h"
#include "pass/parameters.h"

struct shore__pass {
    const struct shore__model *m;
    struct shore__compute *c;
    struct shore__stream *stream; /* all of it is called on this one */
    struct shore__parameters *parameters;
    struct shore_pages *pages; /* that they come in */
    size_t sequences, seq_len; /* of the batch in hand */
    size_t most_unit_rows;
    struct shore__both tokens, targets; /* int32 [rows]; a row whose target is -1 counts as nothing */
    size_t counting;                    /* rows of the batch in hand that count */
    struct shore_event put;             /* from then on the device has them */
    shore__buf cos_sin;                 /* fp32 [seq_len, head_dim], or none */
    shore__buf normed;                  /* [rows, d]: final norm's output */
    shore__buf stats;                   /* fp32 [rows, 2] */
    shore__buf max, sum, target_logit;  /* fp32 [rows] */
    struct shore__both loss;            /* the same */
    shore__buf logits;                  /* fp32 [unit rows, slice rows] */
    shore__buf inner;                   /* inner activations of one unit */
    shore__buf kept_logits;             /* tiles (slice, unit) 0 .. nkept - 1 are kept for backward, */
    size_t nkept, kept_units;           /* of kept_units units at a time */
};

static inline int shore__op_failed(struct shore_diag *diag, int rc) {
    return rc ? shore__fail(diag, rc, "a tensor operation failed: %s", shore_error_text(rc)) : 0;
}

/* For batches of at most that shape. memory: with the rows of shore__batch_describe(). pass->m and c are set by the
 * caller; fills the rotary table. */
int shore__pass_lay_out(struct shore__pass *pass, const struct shore__batch_shape *most,
                        const struct shore__memory *memory, struct shore_diag *diag);
/* The rotary table of so many positions, in the row ROTARY; none where positions are learned. */
int shore__rotary_fill(const struct shore__model *m, struct shore__compute *c, struct shore__stream *stream,
                       size_t positions, const struct shore__memory *memory, shore__buf *out, struct shore_diag *diag);

/* Units of the batch in hand: how many, and the rows of unit u, which begins at row u * shore__pass_unit(pass). */
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
/* What sums over so many rows that count are divided by: where none does, they are 0, and so are the means. */
static inline double shore__divisor(uint64_t counting) {
    return counting ? (double)counting : 1;
}
/* Where unit u of an activation [rows, d] begins. */
static inline shore__buf shore__pass_at(const struct shore__pass *pass, shore__buf act, size_t u) {
    return shore__at(act, u * shore__pass_unit(pass) * pass->m->arch.d_model * shore__mode_bytes(pass->c->mode));
}
/* Where tile (slice, unit) of the kept logits lies, or the buffer that is shared. */
shore__buf shore__pass_logits(const struct shore__pass *pass, uint32_t slice, size_t u);

/* x [rows, d] from tokens [rows] of sequences of seq_len, the first at first_position. */
int shore__embed(const struct shore__model *m, struct shore__compute *c, struct shore__stream *stream,
                 struct shore__parameters *parameters, struct shore__both tokens, size_t rows, size_t seq_len,
                 size_t first_position, shore__buf x, struct shore_diag *diag);
/* The batch's tokens and targets, to the device; the host's may be changed again after pass->put. */
int shore__pass_put(struct shore__pass *pass, struct shore_diag *diag);
/* x [rows, d] from the batch in hand. */
int shore__pass_embed(struct shore__pass *pass, shore__buf x, struct shore_diag *diag);
/* Final norm and losses of x, which fill normed, stats, max, sum, loss: the norm of all, and the losses of `count`
 * units from unit `first` on (of kept_logits, what is to be kept). */
int shore__pass_norm(struct shore__pass *pass, shore__buf x, struct shore_diag *diag);
int shore__pass_losses(struct shore__pass *pass, size_t first, size_t count, struct shore_diag *diag);
/* Sum of the losses of the batch, rows in order. */
int shore__pass_loss_sum(const struct shore__pass *pass, double *sum, struct shore_diag *diag);
/* The same of the batch in hand, which goes through all layers in x. */
int shore__pass_forward(struct shore__pass *pass, shore__buf x, double *sum, struct shore_diag *diag);

#endif
