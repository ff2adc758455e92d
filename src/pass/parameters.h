/* Parameters of a model, in the form that products read: fetches the pages of layers, table slices and tails, copies
 * them to the device, and prepares them.
 *
 * Threading: one caller; updates complete on threads of the fleet. */
#ifndef SHORE_PASS_PARAMETERS_H
#define SHORE_PASS_PARAMETERS_H

#include "pass/pages.h"
#include "plan/regions.h"
#include "stream/stream.h"

struct shore__parameters;

/* Source of the parameters: fleet or read, one of them. */
struct shore__parameters_of {
    const struct shore__model *model;
    struct shore_fleet *fleet;
    shore_pages_read_fn read;
    void *read_ctx;
};

/* memory: has the rows of shore__pages_describe(). stream: everything is called on it. */
int shore__parameters_open(const struct shore__parameters_of *of, struct shore__compute *c,
                           struct shore__stream *stream, const struct shore__memory *memory,
                           struct shore__parameters **out, struct shore_diag *diag);
void shore__parameters_close(struct shore__parameters *p); /* waits for fetches */

/* The pages, by shore__page_number(). The page of a result below is in use. */
struct shore_pages *shore__parameters_pages(struct shore__parameters *p);

/* Returns parameters that are ready for products. They stay valid until the next call for the same kind (layer, slice,
 * tail of that block), or until the page is updated or released. want_... only starts the fetch, if a buffer is
 * free. */
int shore__parameters_layer(struct shore__parameters *p, uint32_t layer, struct shore__weights *out,
                            struct shore_diag *diag);
int shore__parameters_tail(struct shore__parameters *p, uint32_t block, struct shore__weights *out,
                           struct shore_diag *diag);
int shore__parameters_slice(struct shore__parameters *p, uint32_t block, uint32_t slice, shore__buf *out,
                            struct shore_diag *diag);
void shore__parameters_want_layer(struct shore__parameters *p, uint32_t layer);
void shore__parameters_want_slice(struct shore__parameters *p, uint32_t block, uint32_t slice);
void shore__parameters_want_tail(struct shore__parameters *p, uint32_t block);

/* Whether so few rows go to so few of a layer's experts that these are fetched one by one, once the router has chosen
 * them. shore__parameters_want_layer_of() wants what that needs, or the whole layer. In this order:
 * shore__parameters_but_experts() gives a layer without experts, shore__parameters_experts() adds `count` of them to
 * out. It is for the host's own memory: elsewhere whole layers are copied. */
bool shore__parameters_by_expert(const struct shore__parameters *p, size_t rows);
void shore__parameters_want_layer_of(struct shore__parameters *p, uint32_t layer, size_t rows);
int shore__parameters_but_experts(struct shore__parameters *p, uint32_t layer, struct shore__weights *out,
                                  struct shore_diag *diag);
int shore__parameters_experts(struct shore__parameters *p, uint32_t layer, const int32_t *experts, size_t count,
                              struct shore__weights *out, struct shore_diag *diag);

/* Ends the use of one page, by number, or of all results. */
void shore__parameters_release_page(struct shore__parameters *p, uint32_t page);
void shore__parameters_release(struct shore__parameters *p);

#endif
