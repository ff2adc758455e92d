/* Reads pages without a fleet. A thread fills them with the caller's function, in the order of requests, so that the
 * next page is read while this one is used. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/diag.h"
#include "base/thread.h"
#include "stream/pages_impl.h"

struct reader {
    shore_pages_read_fn read;
    void *ctx;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards the fields below */
    pthread_cond_t changed;
    struct page *first, **end; /* queue of pages to read */
    bool closing;
};

static void *run(void *arg) {
    struct reader *r = arg;
    pthread_mutex_lock(&r->mutex);
    for (;;) {
        while (!r->first && !r->closing)
            pthread_cond_wait(&r->changed, &r->mutex);
        struct page *page = r->first;
        if (!page) break;
        if (!(r->first = page->next_read)) r->end = &r->first;
        pthread_mutex_unlock(&r->mutex);
        struct shore_diag diag = {0};
        struct shore_completion done = shore_wait_completion(&page->load);
        int rc = 0;
        for (uint32_t from = 0, n; !rc && (n = page_next_span(page, &from)); from += n)
            rc = r->read(r->ctx, page->block, page->segment + from, n, page_segment(page, from), &diag);
        done.fn(done.ctx, rc, &diag); /* last: from here on the caller may use the page */
        pthread_mutex_lock(&r->mutex);
    }
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

int shore__reader_open(shore_pages_read_fn read, void *ctx, struct reader **out) {
    struct reader *r = calloc(1, sizeof *r);
    if (!r) return -ENOMEM;
    r->read = read;
    r->ctx = ctx;
    r->end = &r->first;
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->changed, NULL);
    int rc = shore__thread_start(&r->thread, "pages", run, r);
    if (!rc) {
        *out = r;
        return 0;
    }
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->mutex);
    free(r);
    return rc;
}

void shore__reader_begin(struct reader *r, struct page *page) {
    pthread_mutex_lock(&r->mutex);
    assert(!r->closing && !*r->end);
    page->next_read = NULL;
    *r->end = page;
    r->end = &page->next_read;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->mutex);
}

void shore__reader_close(struct reader *r) {
    if (!r) return;
    pthread_mutex_lock(&r->mutex);
    r->closing = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->mutex);
    pthread_join(r->thread, NULL);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->mutex);
    free(r);
}
