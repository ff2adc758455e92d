/* Parameters on demand: ranges of segments as pages in memory. Some pages stay, in memory of their own, and updates
 * leave their new parameters there. The others share the buffers of a pool: the next pages are fetched while these are
 * computed with. Buffers never move, so a reader may keep their addresses.
 *
 *     shore_pages_open(fleet, &options, &pages, &diag)
 *     each step:
 *       shore_pages_set_step(pages, step)
 *       each page, forward and backward:  shore_pages_get() ... shore_pages_want() of the next ones ... compute ...
 *                                         shore_pages_release()
 *       when its gradient is there:       shore_pages_update(), once or in parts, shore_pages_update_end()
 *       shore_fleet_commit(), and step is one more
 *
 * A page is absent; or coming: its fetch is under way; or there: it holds the parameters of the step; or in use:
 * shore_pages_get() gave it and it was not released as often; or it is being updated. A page in use stays where and as
 * it is, whatever else is asked for. Any other page of a pool may be evicted when another one needs a buffer, the least
 * recently used page first. Pages may share segments: if an update of one page touches segments of another, that other
 * page is fetched again.
 *
 * Threading: one thread at a time. Completions of updates run on threads of the fleet, as its own do.
 */
#ifndef LONGSHORE_PAGES_H
#define LONGSHORE_PAGES_H

#include "longshore/state.h"

#ifdef __cplusplus
extern "C" {
#endif

struct shore_pages;

#define SHORE_PAGES_STAYS UINT32_MAX /* a page's pool: none */

/* A page: segments [segment, segment + count) of a block. Pages are numbered from 0 in the given order. count 0: it
 * holds nothing, and is always there. */
struct shore_pages_range {
    uint32_t block, segment, count;
    uint32_t pool;              /* the pool with its buffers, or SHORE_PAGES_STAYS */
    enum shore_fetch_kind kind; /* SHORE_FETCH_BF16, or SHORE_FETCH_MASTER: fp32 */
    void *memory;               /* of a page that stays: where it lies; NULL: from the arena */
};

/* Buffers that pages share; each holds the largest of them. */
struct shore_pages_pool {
    uint32_t nbuffers;
    void *const *buffers; /* NULL: from the arena */
};

/* Fills a page when there is no fleet: segments [segment, segment + count) of a block, in the page's kind.
 * Threading: on a thread of the pages, one call after the other. Errors: its own, which shore_pages_get() returns with
 * the sentence in diag. */
typedef int (*shore_pages_read_fn)(void *ctx, uint32_t block, uint32_t segment, uint32_t count, void *dst,
                                   struct shore_diag *diag);

/* Zero-initialise; every zero but that of size is the default. */
struct shore_pages_options {
    size_t size; /* sizeof(struct shore_pages_options) */
    const struct shore_pages_range *ranges;
    uint32_t nranges;
    const struct shore_pages_pool *pools;
    uint32_t npools;
    /* Source of the memory that is not given, of pages that stay and of buffers, which hold any page of their pool: 2
     * (bf16) or 4 (fp32) * SHORE_SEGMENT_ELEMS bytes a segment. NULL: the system. It outlives the pages. */
    struct shore_arena *arena;
    shore_pages_read_fn read; /* without a fleet: fills a page, when it is got or wanted */
    void *read_ctx;
};

/* Opens pages of a fleet; all are absent at first. fleet NULL: options.read fills them, and they cannot be updated.
 * Units: given memory is aligned to SHORE_BUFFER_ALIGN_BYTES and has 2 (bf16) or 4 (fp32) * SHORE_SEGMENT_ELEMS bytes a
 * segment. Ownership: the pages are the caller's, for shore_pages_close(); the fleet and given memory are borrowed
 * until then, options and their lists during the call. Errors: -EINVAL (options.size; a range outside the layout, or
 * of another kind; a page whose pool has no buffer; memory that is not aligned), -ENOMEM. */
int shore_pages_open(struct shore_fleet *fleet, const struct shore_pages_options *options, struct shore_pages **out,
                     struct shore_diag *diag);

/* Waits for everything under way, and releases everything. The fleet may have been closed before. NULL is allowed. */
void shore_pages_close(struct shore_pages *pages);

/* Sets the step whose parameters are asked for from now on (0 at first): the committed step, or the one being written.
 * A page of the latter is fetched once its update has been written. Pages in use stay as they are. */
void shore_pages_set_step(struct shore_pages *pages, uint64_t step);

enum shore_page_state {
    SHORE_PAGE_THERE,  /* get would not wait */
    SHORE_PAGE_COMING, /* it is being fetched */
    SHORE_PAGE_LATER,  /* nothing has begun: its update is under way, or every buffer of its pool is in use or being
                          filled; or its fetch was refused (get would try again) */
};

/* Prefetches a page, if this needs no waiting, and returns its state. It takes no buffer that is in use or being
 * filled. */
enum shore_page_state shore_pages_want(struct shore_pages *pages, uint32_t page);

/* Gives a page as it is in the step, and waits for it if it must. *out: where it lies (NULL if it holds nothing); valid
 * and unchanged until the page was released as often as it was got. Ownership: to read only. Errors: -EBUSY (every
 * buffer of its pool is in use; or the page itself is, with the parameters of another step), -EINVAL (no such page; or
 * it is being updated, and more parts are to come), those of shore_fleet_fetch(), and those of its update, once: then
 * the page is absent, and the next get fetches it. */
int shore_pages_get(struct shore_pages *pages, uint32_t page, const void **out, struct shore_diag *diag);

/* Segments [segment, segment + count) of a page's block, all of them the page's. */
struct shore_pages_span {
    uint32_t segment, count;
};

/* As shore_pages_want(), of some segments of a page: such as those of the experts that rows go to. Other segments are
 * not fetched for it. Ownership: spans are borrowed during the call. */
enum shore_page_state shore_pages_want_spans(struct shore_pages *pages, uint32_t page,
                                             const struct shore_pages_span *spans, uint32_t nspans);
/* As shore_pages_get(), of some segments of a page. What lies in the place of others is undefined. *out is where the
 * page's first segment would lie. More spans of a page may be got while it is in use, and all of it: what it holds
 * stays as it is. Each get is a use, and is released. Ownership: spans are borrowed during the call. Errors: those of
 * shore_pages_get(); -EINVAL (no spans, or one outside the page); -ENOMEM. */
int shore_pages_get_spans(struct shore_pages *pages, uint32_t page, const struct shore_pages_span *spans,
                          uint32_t nspans, const void **out, struct shore_diag *diag);

/* Ends one use of a page, if it is in use. The page stays there until its buffer is taken. */
void shore_pages_release(struct shore_pages *pages, uint32_t page);

/* Takes a page out in fp32: waits for it as get does, widens it to out, and forgets it. The next get or take fetches it
 * again. It is for programs that compute in fp32 while drives keep bf16, in one range of memory: out may be the memory
 * in which the page lies, if the page lies at its end (the upper half). Units: out has 4 * SHORE_SEGMENT_ELEMS bytes a
 * segment. Errors: -EBUSY (it is in use), those of shore_pages_get(). */
int shore_pages_take(struct shore_pages *pages, uint32_t page, float *out, struct shore_diag *diag);

/* Submits the update of a page, or of a part of it: segments within its range, towards base_step + 1. A page that stays
 * holds the new parameters afterwards, if the fleet hands them back in its kind (fp32_params) and the
 * whole page was updated, or the page was there at base_step and the rest was carried. Any other page is fetched at its
 * next get. done may be {NULL}; otherwise it is the same for all parts. Ownership: block and params_out of update are
 * filled in here; the rest as of shore_fleet_update(). Errors: those of shore_fleet_update(), -EBUSY (the page is in
 * use), -EINVAL (beyond its range; without a fleet; another done or base_step than its other parts). */
int shore_pages_update(struct shore_pages *pages, uint32_t page, struct shore_update *update,
                       struct shore_completion done);

/* Ends a page's update, after its last part. */
void shore_pages_update_end(struct shore_pages *pages, uint32_t page);

/* Ends the update of a page that stays and is not in use, or stands for the whole update. The caller has put the
 * segments that were not updated there (after shore_pages_settle()), or knows that they are the same (carried). The
 * page now holds the parameters of `step`; if another process has the drive of one of its segments, it is fetched. */
void shore_pages_updated(struct shore_pages *pages, uint32_t page, uint64_t step);

/* The segments of a page were carried into `step` (shore_fleet_carry()): if it held the step before, it now holds this
 * one. So do copies of it on a device (longshore/device.h). */
void shore_pages_carried(struct shore_pages *pages, uint32_t page, uint64_t step);

/* Somebody else has changed segments of a page in `step`, such as a process with other drives of the fleet. Whatever
 * updates here leave in the page: in that step it is fetched again, and so are copies of it on a device. Call it after
 * the step's updates and carries of its own segments, if it has any (shore_step_make()), and before the page is asked
 * for in that step. shore_pages_discarded() forgets it. */
void shore_pages_outdate(struct shore_pages *pages, uint32_t page, uint64_t step);

/* Waits until nothing is being fetched into a page. Call it before you put something there. */
void shore_pages_settle(struct shore_pages *pages, uint32_t page);

/* After shore_fleet_discard(): forgets parameters that the attempt's updates have left, and pages that were fetched of
 * its step. */
void shore_pages_discarded(struct shore_pages *pages);

/* Waits for everything under way, whatever its result, and forgets all pages: the fleet goes on from another state. No
 * page is in use. */
void shore_pages_forget(struct shore_pages *pages);

#ifdef __cplusplus
}
#endif

#endif
