/* What the files of this room share: a page and what is known of it.
 *
 *     absent ──want, get──► loading ──► there ──get──► in use ──release──► there ──► absent: its buffer is taken
 *     any but in use ──update──► updating, in parts ──end──► updating ──► there, at the next step: it stays
 *                                                                    └──► absent: it is fetched again
 *
 * "There" is said by `step`: it is that of the pages. What invalidates a page makes it SHORE__NO_STEP.
 */
#ifndef SHORE_STREAM_PAGES_IMPL_H
#define SHORE_STREAM_PAGES_IMPL_H

#include "stream/stream.h"

struct page {
    uint32_t block, segment, count;
    uint32_t pool; /* or SHORE_PAGES_STAYS */
    enum shore_fetch_kind kind;
    bool shares; /* another page has one of its segments, too */
    void *at;    /* NULL: not in memory */
    struct buffer *buffer;
    uint32_t users;
    bool loading;      /* load is under way, or has not been looked at */
    bool updating;     /* update is under way, or has not been looked at */
    bool in_parts;     /* more of it is to come */
    bool handed_back;  /* the update fills what is at */
    bool whole;        /* so that all of it is of the next step: the rest is so already */
    uint32_t covered;  /* segments that it fills */
    uint32_t from, to; /* between these it has touched segments */
    uint64_t step;     /* whose parameters it holds, or SHORE__NO_STEP */
    uint64_t next_step;
    uint64_t touched; /* towards this step an update has changed segments of it */
    struct shore_wait load, update;
    struct shore_completion then; /* the caller's, after update */
    struct page *next_read;       /* the reader's */
};

struct buffer {
    void *at;
    struct page *holds;
    uint64_t used; /* when it was asked for last; 0: it is free */
};

struct pool {
    struct buffer *buffers;
    uint32_t nbuffers;
};

struct shore_pages {
    struct shore_fleet *fleet;
    struct reader *reader; /* without one */
    uint64_t step, clock, waited_ns;
    uint32_t npages, npools;
    struct page *pages;
    struct pool *pools;
    struct buffer *buffers; /* of all pools */
    struct shore_arena *arena;
    void *memory; /* from it */
};

static inline size_t pages_bytes(enum shore_fetch_kind kind, uint32_t segments) {
    return (size_t)segments * SHORE_SEGMENT_ELEMS * (kind == SHORE_FETCH_MASTER ? 4 : 2);
}
/* It has memory of its own. */
static inline bool page_stays(const struct page *page) {
    return page->at && !page->buffer;
}
static inline bool page_meets(const struct page *page, uint32_t block, uint32_t from, uint32_t to) {
    return page->block == block && page->segment < to && from < page->segment + page->count;
}

/* pages_fetch.c: waits for w, counting the time. */
int shore__pages_wait(struct shore_pages *p, struct shore_wait *w, struct shore_diag *diag);
/* pages_read.c: fills pages by a function, on a thread; the page's load says when it is over. close waits. */
int shore__reader_open(shore_pages_read_fn read, void *ctx, struct reader **out);
void shore__reader_begin(struct reader *r, struct page *page);
void shore__reader_close(struct reader *r);
/* pages_update.c: looks at the end of a page's update, and waits for it; ahead: only if it is there. */
int shore__page_end_update(struct shore_pages *p, struct page *page, bool ahead, bool *pending,
                           struct shore_diag *diag);

#endif
