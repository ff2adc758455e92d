/* Adapts how much a round stores. Storing pays until the drives cannot keep up. Beyond that, each further byte is
 * waited for longer than the caller would need to do without it. A round that waits therefore lowers the limit, by as
 * much as it waited. While nothing else waits for the drives, the limit rises again: halfway to what they kept up with
 * before, and beyond that in small parts. A rise that turns out too large is taken back, and the next one follows after
 * a pause that doubles each time. */
#include <assert.h>

#include "base/units.h"
#include "store/store_impl.h"

/* below this it is noise */
#define WAITED_SHARE (1.0 / 32)
/* A round that waits this much, for whatever, also waits for what the store moves. Doing without would cost about as
 * much. */
#define COSTLY_SHARE (1.0 / 8)
/* The share that a round would wait if everything it stored was too much. */
#define WORTH_SHARE (1.0 / 4)
#define PARTS 8u
#define PAUSE_MOST 256u

static void take_less(struct store_round *r, uint64_t went, double waited) {
    double less = (double)went * waited / WORTH_SHARE;
    uint64_t fewer = less < (double)went ? (uint64_t)less + 1 : went;
    if (fewer < r->added) fewer = r->added;
    if (r->added || r->enough_bytes < went) r->enough_bytes = went - r->added;
    r->allowed_bytes = went - (fewer < went ? fewer : went);
    if (!r->pause)
        r->pause = 1;
    else if (r->added && r->pause < PAUSE_MOST)
        r->pause *= 2;
    r->rest = r->pause;
    r->added = 0;
}

static void try_more(struct store_round *r, uint64_t went, uint64_t asked) {
    uint64_t left = asked - went, more = asked / PARTS + 1;
    uint64_t gap = r->enough_bytes > went ? r->enough_bytes - went : 0, half = gap / 2 + gap % 2;
    if (half > more) more = half;
    if (r->added) r->pause = 0; /* the last rise was not too much */
    r->added = left < more ? left : more;
    r->allowed_bytes = left < more ? UINT64_MAX : went + more;
}

void shore__round_weigh(struct store_round *r, uint64_t went, uint64_t asked, double for_scratch, double for_drives) {
    double waited = for_drives > COSTLY_SHARE ? for_drives : for_scratch;
    uint64_t before = r->allowed_bytes;
    assert(asked >= went && r->pause <= PAUSE_MOST && r->rest <= r->pause);
    if (r->changed) {
        r->changed = false;
        return;
    }
    if (went && waited > WAITED_SHARE)
        take_less(r, went, waited);
    else if (r->rest)
        r->rest--;
    else if (for_drives <= WAITED_SHARE)
        try_more(r, went, asked);
    else
        r->added = 0;
    r->changed = r->allowed_bytes != before;
}

void shore__round_open(struct store_round *r) {
    /* the first round differs: it writes its files for the first time */
    *r = (struct store_round){.allowed_bytes = UINT64_MAX, .enough_bytes = UINT64_MAX, .changed = true};
}

void shore__round_begin(struct shore_activation_store *s) {
    struct store_round *r = &s->round;
    const struct shore_store_counts *c = &s->counts;
    uint64_t now = shore__now_ns(), waited_ns = c->waited_take_ns + c->waited_get_ns;
    uint64_t went = c->taken_bytes - r->taken_bytes, asked = went + c->full_bytes - r->full_bytes;
    uint64_t waits_ns = s->fleet ? shore__fleet_waits_ns(s->fleet) : r->waits_ns; /* the store's own among them */
    double ns = (double)(now - r->began_ns) + 1;
    if (r->began_ns)
        shore__round_weigh(r, went, asked, (double)(waited_ns - r->waited_ns) / ns,
                           (double)(waits_ns - r->waits_ns) / ns);
    r->began_ns = now;
    r->waits_ns = waits_ns;
    r->waited_ns = waited_ns;
    r->taken_bytes = c->taken_bytes;
    r->full_bytes = c->full_bytes;
}

bool shore__round_allows(const struct shore_activation_store *s, uint64_t bytes) {
    const struct store_round *r = &s->round;
    uint64_t went = s->counts.taken_bytes - r->taken_bytes;
    return !s->adapts || (went <= r->allowed_bytes && bytes <= r->allowed_bytes - went);
}
