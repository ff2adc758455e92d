/* Pages and their states, as the files of this room share them.
 *
 *     absent ──want, get──► loading ──► there ──get──► in use ──release──► there ──► absent: its buffer is taken
 *     any but in use ──update──► updating, in parts ──end──► updating ──► there, at the next step: it stays
 *                                                                    └──► absent: it is fetched again
 *
 * A page is "there" while its `step` equals the step of the pages. Invalidating it sets SHORE__NO_STEP.
 */
#ifndef SHORE_STREAM_PAGES_IMPL_H
#define SHORE_STREAM_PAGES_IMPL_H

#include "drive/counters.h"
#include "stream/stream.h"

struct page {
    uint32_t block, segment, count;
    uint32_t pool; /* or SHORE_PAGES_STAYS */
    enum shore_fetch_kind kind;
    bool shares; /* another page also has one of its segments */
    bool parted; /* another process has the drive of one of its segments */
    void *at;    /* NULL: not in memory */
    struct buffer *buffer;
    uint32_t users;
    bool loading;      /* load is under way, or its end not yet checked */
    bool updating;     /* update is under way, or its end not yet checked */
    bool in_parts;     /* more parts of the update are to come */
    bool handed_back;  /* the update writes the new parameters at `at` */
    bool whole;        /* the update covers all of it, or the rest already belongs to the next step */
    uint32_t covered;  /* segments that the update fills */
    uint32_t from, to; /* range of segments that the update has touched */
    uint64_t step;     /* the step whose parameters it holds, or SHORE__NO_STEP */
    bool partial;      /* it was got in spans: of its segments it holds those in has[] */
    bool *has;         /* [2 * count], or NULL: which segments it holds; and which of them are being fetched */
    uint64_t next_step;
    uint64_t touched;            /* the step towards which an update has changed segments of it */
    uint64_t same_from, same_to; /* steps in which its parameters are known to be the same */
    struct shore_wait load, update;
    struct shore_completion then; /* the caller's, called after update */
    struct page *next_read;       /* in the reader's queue */
};

struct buffer {
    void *at;
    struct page *holds;
    uint64_t used; /* clock when it was last asked for; 0: it is free */
};

struct pool {
    struct buffer *buffers;
    uint32_t nbuffers;
};

struct shore_pages {
    struct shore_fleet *fleet;
    struct reader *reader; /* instead of the fleet */
    uint64_t step, clock;
    uint32_t npages, npools;
    struct page *pages;
    struct pool *pools;
    struct buffer *buffers; /* all pools' buffers */
    struct shore_arena *arena;
    void *memory; /* taken from arena */
};

static inline size_t pages_bytes(enum shore_fetch_kind kind, uint32_t segments) {
    return (size_t)segments * SHORE_SEGMENT_ELEMS * (kind == SHORE_FETCH_MASTER ? 4 : 2);
}
/* Where the page keeps a segment of it. */
static inline void *page_segment(const struct page *page, uint32_t segment) {
    return (char *)page->at + pages_bytes(page->kind, segment);
}
/* Its parameters of this step are those of no other step. */
static inline void page_changes(struct page *page, uint64_t step) {
    page->same_from = page->same_to = step;
}
/* Whether a copy of its parameters of one step has those of another step. */
static inline bool page_is_same(const struct page *page, uint64_t copied, uint64_t step) {
    return copied == step ||
           (page->same_from <= copied && copied <= page->same_to && page->same_from <= step && step <= page->same_to);
}
/* Segments of the page that are to be fetched, from segment *from of it on: their number, and where they begin. 0:
 * none.
 */
static inline uint32_t page_next_span(const struct page *page, uint32_t *from) {
    uint32_t end;
    if (!page->partial) return *from ? 0 : page->count;
    while (*from < page->count && !page->has[page->count + *from])
        ++*from;
    for (end = *from; end < page->count && page->has[page->count + end];)
        end++;
    return end - *from;
}
/* The page's load has ended. */
static inline void page_loaded(struct page *page, int rc) {
    uint32_t had = 0;
    for (uint32_t s = 0; page->partial && s < page->count; s++)
        had += page->has[s] |= page->has[page->count + s];
    if (had == page->count) page->partial = false;
    if (rc) page->step = SHORE__NO_STEP;
    page->loading = false;
}
/* Whether the page has memory of its own. */
static inline bool page_stays(const struct page *page) {
    return page->at && !page->buffer;
}
static inline bool page_meets(const struct page *page, uint32_t block, uint32_t from, uint32_t to) {
    return page->block == block && page->segment < to && from < page->segment + page->count;
}

/* pages_read.c: fills pages with the caller's function on a thread; the page's load completes when one is filled. close
 * waits. */
int shore__reader_open(shore_pages_read_fn read, void *ctx, struct reader **out);
void shore__reader_begin(struct reader *r, struct page *page);
void shore__reader_close(struct reader *r);
/* pages_update.c: ends a page's update, and waits for it. ahead: does not wait; *pending tells. */
int shore__page_end_update(struct shore_pages *p, struct page *page, bool ahead, bool *pending,
                           struct shore_diag *diag);

#endif
