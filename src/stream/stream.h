/* Pages, for the program alone: it computes updates itself, where the parameters lie. */
#ifndef SHORE_STREAM_STREAM_H
#define SHORE_STREAM_STREAM_H

#include "longshore/pages.h"

/* Where a page that stays keeps the parameters of a segment, or NULL. Threading: any. */
void *shore__pages_params(const struct shore_pages *p, uint32_t block, uint32_t segment);
/* Whether an update of this page leaves the new parameters in it: the page stays, in the form that the fleet hands
 * back. Of a page with segments of other processes, it would. */
bool shore__pages_hands_back(const struct shore_pages *p, uint32_t page);
/* Segments of a page. */
uint32_t shore__pages_segments(const struct shore_pages *p, uint32_t page);
/* Begins a part of a page's update, as shore_pages_update() does, for a caller that computes it itself: params_out is
 * filled in. Call *done, from any thread, once a fetch gives the new segments, or params_out has them and the update is
 * one of the whole page. */
int shore__pages_part(struct shore_pages *p, uint32_t page, struct shore_update *update, struct shore_completion *done);
/* Carries some segments of a page as a part of its update: see shore_fleet_carry(). Errors: those of
 * shore_pages_update(). */
int shore__pages_carry(struct shore_pages *p, uint32_t page, uint64_t base_step, uint64_t attempt, uint32_t segment,
                       uint32_t count, struct shore_completion done);
/* Waits until no update changes segments of a page, for a caller that reads some of them itself, of *step: the one that
 * the pages are of. Errors: those of the update. */
int shore__pages_await(struct shore_pages *p, uint32_t page, uint64_t *step, struct shore_diag *diag);
/* Declares that pages that stay hold all parameters of `step`; SHORE__NO_STEP: they hold nothing valid. Other pages are
 * fetched again. No page may be in use. */
#define SHORE__NO_STEP UINT64_MAX
void shore__pages_hold(struct shore_pages *p, uint64_t step);

#endif
