/* Parameters on demand: a model's parameters come from a fleet (or a Hugging Face directory) page by page, some pages
 * stay, the others share a few buffers, and the next one is fetched while this one is computed with.
 *
 * Threading: one caller; completions of updates come from threads of the fleet.
 */
#ifndef SHORE_INFER_PAGER_H
#define SHORE_INFER_PAGER_H

#include "infer/infer.h"
#include "plan/pages.h"

struct shore__pager;

/* memory: with the rows of shore__pages_add(). */
/* stream: what is done with pages is called on it. */
int shore__pager_open(const struct shore__weights_of *weights, struct shore__compute *c, struct shore__stream *stream,
                      const struct shore__residency *r, const struct shore__memory *memory, struct shore__pager **out,
                      struct shore_diag *diag);
void shore__pager_close(struct shore__pager *p); /* waits for what is being fetched */

/* The step whose parameters are asked for from now on. */
void shore__pager_set_step(struct shore__pager *p, uint64_t step);

/* Parameters ready for products. They stay valid until the next call for the same kind (layer, slice, tail of that
 * block). want_... only starts the fetch, where a buffer is free for it. */
int shore__pager_layer(struct shore__pager *p, uint32_t layer, struct shore__weights *out, struct shore_diag *diag);
int shore__pager_tail(struct shore__pager *p, uint32_t block, struct shore__weights *out, struct shore_diag *diag);
int shore__pager_slice(struct shore__pager *p, uint32_t block, uint32_t slice, shore__buf *out,
                       struct shore_diag *diag);
void shore__pager_want_layer(struct shore__pager *p, uint32_t layer);
void shore__pager_want_slice(struct shore__pager *p, uint32_t block, uint32_t slice);
void shore__pager_want_tail(struct shore__pager *p, uint32_t block);

/* Memory for a page (a layer or a slice) that has none of its own, as if it stayed: updates that begin from now on hand
 * back to it. Until reclaim, which takes back all that was lent. A page that is being updated, or that stays, is left
 * as it is. */
void shore__pager_lend(struct shore__pager *p, struct shore__page_id id, struct shore__both memory);
int shore__pager_reclaim(struct shore__pager *p, struct shore_diag *diag);

/* Nanoseconds spent waiting for pages since the last call. */
uint64_t shore__pager_waited_ns(struct shore__pager *p);

/* Each page is updated as one, in one part or more. Submits the update of a part: update's segment and count, inside
 * the page's range (block, params_out and order are filled here; the rest is the caller's), towards step base_step + 1.
 * done, the same for all parts, runs as the fleet's does. After _end, which follows the last part, the page is what the
 * update hands back, or is fetched again; before, it may not be asked for. */
int shore__pager_update(struct shore__pager *p, struct shore__page_id id, struct shore_update *update,
                        struct shore_completion done);
void shore__pager_update_end(struct shore__pager *p, struct shore__page_id id);
/* Instead of _end, where the caller has computed the rest of a page that is handed back, and put it into its place. */
void shore__pager_updated(struct shore__pager *p, struct shore__page_id id, uint64_t next_step);
/* For updates that are computed on the host. Where the parameters of a segment are kept that stay, or NULL; threading:
 * any. */
void *shore__pager_place(const struct shore__pager *p, uint32_t block, uint32_t segment);
/* What the places hold now: the parameters of `step`, all of them; SHORE__NO_STEP: nothing that counts. Other pages are
 * fetched again. */
#define SHORE__NO_STEP UINT64_MAX
void shore__pager_placed(struct shore__pager *p, uint64_t step);

/* Forgets all pages, waiting for what is under way, whatever comes of it: the fleet goes on from another state. */
void shore__pager_forget(struct shore__pager *p);
/* After a discard: forgets everything that updates handed back. Their completions have run. */
void shore__pager_discarded(struct shore__pager *p);

#endif
