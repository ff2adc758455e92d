#include "train/offload.h"

/* Less is noise. */
#define WAITED_SHARE (1.0 / 32)
/* A step that waits for so much, whatever for, waits for what these move, too. Computing all again costs about as much.
 */
#define COSTLY_SHARE (1.0 / 8)
/* What a step would wait for if all pairs were too many. */
#define WORTH_SHARE (1.0 / 4)
#define PAUSE_LEAST 1u
#define PAUSE_MOST 256u

struct offload shore__offload_begin(size_t most, size_t layer) {
    /* the first step is not like others: files are written for the first time, and nothing speculates */
    return (struct offload){.pairs = most, .most = most, .layer = layer, .enough = most, .changed = 1};
}

static void take_fewer(struct offload *o, double waited) {
    size_t fewer = (size_t)((double)o->pairs * waited / WORTH_SHARE) + 1;
    if (fewer < o->added) fewer = o->added;
    if (o->added || o->enough < o->pairs) o->enough = o->pairs - o->added;
    o->pairs -= fewer < o->pairs ? fewer : o->pairs;
    if (!o->pause)
        o->pause = PAUSE_LEAST;
    else if (o->added && o->pause < PAUSE_MOST)
        o->pause *= 2;
    o->rest = o->pause;
    o->added = 0;
}

static void try_more(struct offload *o) {
    size_t left = o->most - o->pairs, half = o->enough > o->pairs ? (o->enough - o->pairs + 1) / 2 : 0;
    size_t more = half > o->layer ? half : o->layer;
    if (o->added) o->pause = 0; /* the one before was not too much */
    o->added = left < more ? left : more;
    o->pairs += o->added;
}

void shore__offload_weigh(struct offload *o, double for_scratch, double for_drives) {
    double waited = for_drives > COSTLY_SHARE ? for_drives : for_scratch;
    size_t before = o->pairs;
    if (o->changed) {
        o->changed--;
        return;
    }
    if (o->pairs && waited > WAITED_SHARE)
        take_fewer(o, waited);
    else if (o->rest)
        o->rest--;
    else if (for_drives <= WAITED_SHARE)
        try_more(o);
    else
        o->added = 0;
    o->changed = o->pairs != before;
}
