/* The parameters of a model as products read them: pages of shore_pages_* for its layers, the slices of its tables and
 * the tails, shown to the device, and prepared.
 *
 * Threading: one caller; completions of updates come from threads of the fleet.
 */
#ifndef SHORE_PASS_PARAMETERS_H
#define SHORE_PASS_PARAMETERS_H

#include "pass/pages.h"
#include "plan/regions.h"
#include "stream/stream.h"

struct shore__parameters;

/* Where they come from: fleet, or read. */
struct shore__parameters_of {
    const struct shore__model *model;
    struct shore_fleet *fleet;
    shore_pages_read_fn read;
    void *read_ctx;
};

/* memory: with the rows of shore__pages_describe(). stream: what is done with them is called on it. */
int shore__parameters_open(const struct shore__parameters_of *of, struct shore__compute *c,
                           struct shore__stream *stream, const struct shore__memory *memory,
                           struct shore__parameters **out, struct shore_diag *diag);
void shore__parameters_close(struct shore__parameters *p); /* waits for what is being fetched */

/* The pages, by shore__page_number(). Those that were given below are in use. */
struct shore_pages *shore__parameters_pages(struct shore__parameters *p);

/* Ready for products. They stay valid until the next call for the same kind (layer, slice, tail of that block), or an
 * update or release of the page. want_... only starts the fetch, where a buffer is free for it. */
int shore__parameters_layer(struct shore__parameters *p, uint32_t layer, struct shore__weights *out,
                            struct shore_diag *diag);
int shore__parameters_tail(struct shore__parameters *p, uint32_t block, struct shore__weights *out,
                           struct shore_diag *diag);
int shore__parameters_slice(struct shore__parameters *p, uint32_t block, uint32_t slice, shore__buf *out,
                            struct shore_diag *diag);
void shore__parameters_want_layer(struct shore__parameters *p, uint32_t layer);
void shore__parameters_want_slice(struct shore__parameters *p, uint32_t block, uint32_t slice);
void shore__parameters_want_tail(struct shore__parameters *p, uint32_t block);

/* The page, by number, is in use no more; nothing that was given is. */
void shore__parameters_release_page(struct shore__parameters *p, uint32_t page);
void shore__parameters_release(struct shore__parameters *p);

#endif
