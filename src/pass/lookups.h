/* The rows of an untied embedding that a batch looks up: forward gathers them from the drives into a table of their
 * own, and looks up there. The bits are those of lookups in the whole table.
 *
 * Threading: one caller. */
#ifndef SHORE_PASS_LOOKUPS_H
#define SHORE_PASS_LOOKUPS_H

#include "pass/facts.h"
#include "plan/regions.h"
#include "stream/stream.h"

struct shore__lookups {
    const struct shore__model *m;
    struct shore__compute *c;
    struct shore__stream *stream;
    struct shore_fleet *fleet;
    struct shore_pages *pages; /* of the parameters: whose step is gathered, and which updates are under way */
    struct shore__both table;  /* the rows, in the order of row, as parameters */
    shore__buf prepared;       /* the same as embed reads it, if that differs */
    struct shore__both index;  /* int32 [tokens of the batch]: the row in the table; -1: none */
    uint32_t *row, count;      /* tokens of the batch, ascending, each once */
    struct shore_event put;    /* once it has passed, the device has table and index */
    struct shore_wait coming;  /* of want */
};

/* Adds what gathering takes to the program of a training step: GATHERED and its buffer, LOOKUP, LOOKUP_LISTS, and
 * ROW_GRADIENT if the gradient leaves as rows. */
void shore__lookups_describe(const struct shore__facts *f, struct shore_program *program);

/* Takes its memory. The caller has set the members up to pages. Errors: -ENOMEM. */
int shore__lookups_open(struct shore__lookups *l, const struct shore__facts *f, const struct shore__memory *memory,
                        struct shore_diag *diag);
void shore__lookups_close(struct shore__lookups *l);

/* Begins to gather the rows of these tokens, of the step of the pages. Waits until no update changes them any more.
 * Then _take() follows. Errors: those of the update, and of shore_fleet_gather(). */
int shore__lookups_want(struct shore__lookups *l, const int32_t *tokens, size_t count, struct shore_diag *diag);
/* Waits for them. out: the table, on the device, as the index is. */
int shore__lookups_take(struct shore__lookups *l, size_t tokens, shore__buf *out, struct shore_diag *diag);
/* Puts the index once more: tokens that became -1 are looked up no more. */
int shore__lookups_forget(struct shore__lookups *l, const int32_t *tokens, size_t count, struct shore_diag *diag);

#endif
