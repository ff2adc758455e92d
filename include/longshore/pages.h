/* Parameters on demand: ranges of segments as pages in memory. Some pages stay, in memory of their own, and what
 * updates make of them is left there; the others share the buffers of a pool, and the next ones are fetched while these
 * are computed with. Buffers never move, so that whoever reads them may know their addresses once and for all.
 *
 *     shore_pages_open(fleet, &options, &pages, &diag)
 *     each step:
 *       shore_pages_set_step(pages, step)
 *       each page, forward and backward:  shore_pages_get() ... shore_pages_want() of the next ones ... compute ...
 *                                         shore_pages_release()
 *       when its gradient is there:       shore_pages_update(), once or in parts, shore_pages_update_end()
 *       shore_fleet_commit(), and step is one more
 *
 * A page is absent; or coming: its fetch is under way; or there: it holds the parameters of the step; or in use: it was
 * given by shore_pages_get() and not released as often; or it is being updated. While it is in use it stays where and
 * as it is, whatever else is asked for. Otherwise a page of a pool gives its buffer to another one that is asked for:
 * the page first that was asked for least recently. Pages may share segments: one that an update has touched which was
 * of another page is fetched again.
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

/* A page: segments [segment, segment + count) of a block. Pages are numbered from 0 in the order in which they are
 * given. count 0: it holds nothing, and is always there. */
struct shore_pages_range {
    uint32_t block, segment, count;
    uint32_t pool;   /* whose buffers it is fetched into, or SHORE_PAGES_STAYS */
    void *memory;    /* of one that stays: where; NULL: from the arena */
    bool other_kind; /* of one that stays: it is bf16 where the options say fp32, and fp32 where they say bf16 */
};

/* Buffers that pages share; each holds the largest of them. */
struct shore_pages_pool {
    uint32_t nbuffers;
    void *const *buffers; /* NULL: from the arena */
};

/* What a page is filled with instead of what a fleet has: segments [segment, segment + count) of a block, in the form
 * of the pages. Threading: on a thread of the pages, one call after the other. Errors: its own, which shore_pages_get()
 * gives back with the sentence in diag. */
typedef int (*shore_pages_read_fn)(void *ctx, uint32_t block, uint32_t segment, uint32_t count, void *dst,
                                   struct shore_diag *diag);

/* Zero-initialise; every zero but that of size is the default. */
struct shore_pages_options {
    size_t size; /* sizeof(struct shore_pages_options) */
    const struct shore_pages_range *ranges;
    uint32_t nranges;
    const struct shore_pages_pool *pools;
    uint32_t npools;
    enum shore_fetch_kind kind; /* of pages: SHORE_FETCH_BF16, or SHORE_FETCH_MASTER: fp32 */
    /* Where memory comes from that is not given: shore_pages_bytes() of it. NULL: from the system. Outlives the pages.
     */
    struct shore_arena *arena;
    shore_pages_read_fn read; /* without a fleet: what fills a page, when it is got or wanted */
    void *read_ctx;
};

/* Bytes of memory that shore_pages_open() takes: of what stays, and of the pools, without memory given. 0: without
 * options.size. Threading: any. */
uint64_t shore_pages_bytes(const struct shore_pages_options *options);

/* Opens pages of a fleet, of which none is there yet. fleet NULL: options.read fills them, and they cannot be updated.
 * Units: memory that is given is aligned to SHORE_BUFFER_ALIGN_BYTES and has 2 (bf16) or 4 (fp32) * SHORE_SEGMENT_ELEMS
 * bytes a segment. Ownership: the pages are the caller's, for shore_pages_close(); the fleet and memory that is given
 * are borrowed until then, options and the lists that they name during the call. Errors: -EINVAL (options.size; a range
 * outside the layout; a page whose pool has no buffer, or that is of the other kind and does not stay, or memory that
 * is not aligned), -ENOMEM. */
int shore_pages_open(struct shore_fleet *fleet, const struct shore_pages_options *options, struct shore_pages **out,
                     struct shore_diag *diag);

/* Waits for what is under way, and gives everything back. The fleet may have been closed before. NULL is allowed. */
void shore_pages_close(struct shore_pages *pages);

/* The step whose parameters are asked for from now on (0 at first): the committed one, or the one being written, of
 * which a page is fetched once its update has been written. Pages in use stay as they are. */
void shore_pages_set_step(struct shore_pages *pages, uint64_t step);

enum shore_page_state {
    SHORE_PAGE_THERE,  /* get would not wait */
    SHORE_PAGE_COMING, /* it is being fetched */
    SHORE_PAGE_LATER,  /* nothing has begun: its update is under way, or every buffer of its pool is in use or being
                        * filled; or its fetch was refused, which get would try again */
};

/* Begins to fetch a page, if that can be begun without waiting, and says how it stands. It takes no buffer that is in
 * use or being filled. */
enum shore_page_state shore_pages_want(struct shore_pages *pages, uint32_t page);

/* Gives a page as it is in the step, and waits for it where it must. *out: where it lies (NULL if it holds nothing):
 * good, and unchanged, until it has been released as often as it was got. Ownership: to read only. Errors: -EBUSY
 * (every buffer of its pool is in use; or the page itself is, with the parameters of another step), -EINVAL (no such
 * page; or it is being updated, and more parts are to come), those of shore_fleet_fetch(), and those of its update,
 * once: then the page is not there, and the next get fetches it. */
int shore_pages_get(struct shore_pages *pages, uint32_t page, const void **out, struct shore_diag *diag);

/* Ends one use of a page, if it is in use. It stays there until its buffer is taken. */
void shore_pages_release(struct shore_pages *pages, uint32_t page);

/* Takes a page out in fp32: waits for it as get does, widens it to out, and forgets it, so that the next get or take
 * fetches it again. For programs that compute in fp32 with what drives keep in bf16, in one piece of memory: out may be
 * that in which the page lies, if it lies at its end (its upper half). Units: out has 4 * SHORE_SEGMENT_ELEMS bytes a
 * segment. Errors: -EBUSY (it is in use), those of shore_pages_get(). */
int shore_pages_take(struct shore_pages *pages, uint32_t page, float *out, struct shore_diag *diag);

/* Submits the update of a page, or of a part of it: segments within its range, towards base_step + 1. A page that stays
 * is left with the new parameters, if the fleet hands them back in the form of the pages (fp32_params) and all of the
 * page was updated; or, where it was there at base_step, is right by now, because the rest was carried. Any other page
 * is fetched when it is got again. done may be {NULL}; otherwise it is the same for all parts. Ownership: block and
 * params_out of update are filled in here; the rest as of shore_fleet_update(). Errors: those of shore_fleet_update(),
 * -EBUSY (the page is in use), -EINVAL (beyond its range; without a fleet; another
 * done or base_step than its other parts). */
int shore_pages_update(struct shore_pages *pages, uint32_t page, struct shore_update *update,
                       struct shore_completion done);

/* Follows the last part of a page's update. */
void shore_pages_update_end(struct shore_pages *pages, uint32_t page);

/* The same, or instead of any update, of a page that stays and is not in use: what was not updated of it the caller has
 * put there (after shore_pages_settle()), or knows to be the same (carried). It holds the parameters of `step`. */
void shore_pages_updated(struct shore_pages *pages, uint32_t page, uint64_t step);

/* The segments of a page were carried into `step` (shore_fleet_carry()): what it held of the step before, it holds of
 * this one. */
void shore_pages_carried(struct shore_pages *pages, uint32_t page, uint64_t step);

/* Waits until nothing is being fetched into a page: before a caller puts something there. */
void shore_pages_settle(struct shore_pages *pages, uint32_t page);

/* After shore_fleet_discard(): forgets what the attempt's updates have left, and what was fetched of its step. */
void shore_pages_discarded(struct shore_pages *pages);

/* Forgets everything, waiting for what is under way, whatever comes of it: the fleet goes on from another state. No
 * page is in use. */
void shore_pages_forget(struct shore_pages *pages);

/* Nanoseconds that this and get have waited since the last call. */
uint64_t shore_pages_waited_ns(struct shore_pages *pages);

#ifdef __cplusplus
}
#endif

#endif
