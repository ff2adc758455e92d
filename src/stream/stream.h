/* What only the program does with pages: it computes updates itself, where the parameters lie. */
#ifndef SHORE_STREAM_STREAM_H
#define SHORE_STREAM_STREAM_H

#include "longshore/pages.h"

/* Where the parameters of a segment are kept by a page that stays, or NULL. Threading: any. */
void *shore__pages_params(const struct shore_pages *p, uint32_t block, uint32_t segment);
/* Whether an update of this page leaves the new parameters in it: it stays, in the form that the fleet hands back. */
bool shore__pages_hands_back(const struct shore_pages *p, uint32_t page);
/* What pages that stay hold now: the parameters of `step`, all of them; SHORE__NO_STEP: nothing that counts. Other
 * pages are fetched again. No page is in use. */
#define SHORE__NO_STEP UINT64_MAX
void shore__pages_hold(struct shore_pages *p, uint64_t step);

#endif
