/* How much goes from round to round. Storing pays until the drives cannot keep up with it: then every further byte is
 * waited for longer than what the caller does without it takes. So less goes as soon as a round waits, by as much as it
 * waited; and more again while nothing else of the drives is waited for, half of the way to what they kept up with
 * before, and beyond that a part at a time. What they do not keep up with is taken back, and more is tried after a
 * pause, twice as long each time. */
#include "base/units.h"
#include "store/store_impl.h"

/* Less is noise. */
#define WAITED_SHARE (1.0 / 32)
/* A round that waits for so much, whatever for, waits for what these move, too. Doing without costs about as much. */
#define COSTLY_SHARE (1.0 / 8)
/* What a round would wait for if all that went was too much. */
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
    if (r->added) r->pause = 0; /* what was added before was not too much */
    r->added = left < more ? left : more;
    r->allowed_bytes = left < more ? UINT64_MAX : went + more;
}

void shore__round_weigh(struct store_round *r, uint64_t went, uint64_t asked, double for_scratch, double for_drives) {
    double waited = for_drives > COSTLY_SHARE ? for_drives : for_scratch;
    uint64_t before = r->allowed_bytes;
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
    /* the first round is not like others: files are written for the first time */
    *r = (struct store_round){.allowed_bytes = UINT64_MAX, .enough_bytes = UINT64_MAX, .changed = true};
}

void shore__round_begin(struct shore_activation_store *s, uint64_t waited_elsewhere_ns) {
    struct store_round *r = &s->round;
    const struct shore_store_counts *c = &s->counts;
    uint64_t now = shore__now_ns(), waited_ns = c->waited_take_ns + c->waited_get_ns;
    uint64_t went = c->taken_bytes - r->taken_bytes, asked = went + c->full_bytes - r->full_bytes;
    double ns = (double)(now - r->began_ns) + 1, for_scratch = (double)(waited_ns - r->waited_ns) / ns;
    if (r->began_ns) shore__round_weigh(r, went, asked, for_scratch, for_scratch + (double)waited_elsewhere_ns / ns);
    r->began_ns = now;
    r->waited_ns = waited_ns;
    r->taken_bytes = c->taken_bytes;
    r->full_bytes = c->full_bytes;
}

bool shore__round_allows(const struct shore_activation_store *s, uint64_t bytes) {
    const struct store_round *r = &s->round;
    uint64_t went = s->counts.taken_bytes - r->taken_bytes;
    return !s->adapts || (went <= r->allowed_bytes && bytes <= r->allowed_bytes - went);
}
