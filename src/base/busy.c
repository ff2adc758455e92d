#include "base/busy.h"

#include <assert.h>
#include <string.h>

#include "base/units.h"

void shore__busy_init(struct shore__busy *b) {
    memset(b, 0, sizeof *b);
    pthread_mutex_init(&b->lock, NULL);
}

void shore__busy_fini(struct shore__busy *b) {
    pthread_mutex_destroy(&b->lock);
}

void shore__busy_begin(struct shore__busy *b) {
    pthread_mutex_lock(&b->lock);
    if (b->under_way++ == 0) b->since_ns = shore__now_ns();
    pthread_mutex_unlock(&b->lock);
}

void shore__busy_end(struct shore__busy *b) {
    pthread_mutex_lock(&b->lock);
    assert(b->under_way > 0);
    if (--b->under_way == 0) b->busy_ns += shore__now_ns() - b->since_ns;
    pthread_mutex_unlock(&b->lock);
}

uint64_t shore__busy_ns(struct shore__busy *b) {
    pthread_mutex_lock(&b->lock);
    uint64_t ns = b->busy_ns + (b->under_way ? shore__now_ns() - b->since_ns : 0);
    pthread_mutex_unlock(&b->lock);
    return ns;
}
