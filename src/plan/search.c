/* Which tensors stay, are computed again or move, so that the simulated step is shortest. The plans of all policies
 * come first. From the best of them, single numbers change by steps that halve, each with memory that is left, or that
 * another one gives up. What is left in the end goes where the order of thumb says, unless the step gets longer.
 *
 * It reads no clock, and tries as many plans as the program's size allows: the same everywhere. */
#include <stdlib.h>
#include <string.h>

#include "plan/simulate.h"

#define SIMULATIONS_MOST 600u /* of a small program */
#define SIMULATED_USES 3e6    /* of all simulations of a large one */
#define SIMULATIONS_LEAST 100u
#define HALVINGS 7u
#define SAME 1e-9  /* a smaller share of a step is no difference */
#define SLACK 1e-4 /* nor is this one, where memory is left that nothing else needs */

/* Of two plans whose steps take as long, the one with less work in all lanes is better: hardly anything hides it
 * altogether. So a second of work counts as this part of a second of the step. */
#define WORK 0.01

struct score {
    double seconds; /* of a step, with what it waits so as not to write too much */
    double cost;    /* seconds, and of work */
    uint64_t written, bytes;
};

/* A number that the search changes. */
struct knob {
    uint32_t class;
    enum { KEPT, FULL, HOSTED, MOVED, MORE } what;
    size_t least, most;
};

struct search {
    struct shore_plan *plan;
    struct shore__share *best;
    struct score score;
    double longest; /* no step may be longer: that of the best policy */
    struct knob *knob;
    uint32_t nknobs;
    uint32_t left; /* simulations */
};

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/* Of the last simulation. */
static struct score score_of(const struct shore_plan *plan) {
    struct score score = {.seconds = plan->times.step_seconds, .written = plan->times.drive_write_bytes};
    score.cost = score.seconds;
    for (int l = 0; l < SHORE_LANES; l++)
        score.cost += plan->times.lane_seconds[l] * WORK;
    for (int k = 0; k < SHORE_PLACES; k++)
        score.bytes += plan->place_total[k];
    return score;
}

/* Simulates what is laid out. */
static struct score simulated(struct search *s) {
    shore__plan_simulate(s->plan);
    s->left -= s->left > 0;
    return score_of(s->plan);
}

static bool is_more(double a, double b) {
    return a > b * (1 + SAME);
}

static bool costs_less(const struct score *a, const struct score *b) {
    if (is_more(a->cost, b->cost) || is_more(b->cost, a->cost)) return is_more(b->cost, a->cost);
    return a->written != b->written ? a->written < b->written : a->bytes < b->bytes;
}

static bool is_better(const struct search *s, const struct score *score) {
    return !is_more(score->seconds, s->longest) && costs_less(score, &s->score);
}

bool shore__plan_is_shorter(const struct shore_plan *a, const struct shore_plan *b) {
    const struct score one = score_of(a), other = score_of(b);
    if (is_more(one.seconds, other.seconds)) return false;
    return is_more(other.seconds, one.seconds) || costs_less(&one, &other);
}

static void copy(const struct search *s, struct shore__share *to, const struct shore__share *from) {
    memcpy(to, from, s->plan->nclasses * sizeof *to);
}

/* Takes the shares for the best, if they fit and are. */
static bool try_shares(struct search *s) {
    if (shore__plan_excess(s->plan)) return false;
    struct score score = simulated(s);
    if (!is_better(s, &score)) return false;
    s->score = score;
    copy(s, s->best, s->plan->share);
    return true;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void add_knob(struct search *s, uint32_t class, int what, size_t least, size_t most) {
    if (most > least) s->knob[s->nknobs++] = (struct knob){class, what, least, most};
}

static void find_knobs(struct search *s) {
    for (uint32_t k = 0; k < s->plan->nclasses; k++) {
        const struct shore__class *c = &s->plan->class[k];
        unsigned ways = shore__class_ways(s->plan, c), other = ways & ~(unsigned)SHORE_WAY_KEEP;
        if (c->like->buffers && !c->like->there) add_knob(s, k, MORE, c->like->least, c->like->most);
        if (shore__class_amount(c) && !c->like->whole && (c->like->again || c->like->saves > 0))
            add_knob(s, k, MORE, 0, shore__class_amount(c));
        if (ways & SHORE_WAY_KEEP && other) add_knob(s, k, KEPT, 0, c->n);
        if (ways && c->like->full_bytes > c->like->bytes) add_knob(s, k, FULL, 0, c->n);
        if (ways & SHORE_WAY_HOST && other != SHORE_WAY_HOST) add_knob(s, k, HOSTED, 0, c->n);
        if (ways & SHORE_WAY_MOVE && ways & SHORE_WAY_AGAIN) add_knob(s, k, MOVED, 0, c->n);
    }
}

static size_t *number(const struct search *s, const struct knob *k) {
    struct shore__share *share = &s->plan->share[k->class];
    size_t *const numbers[] = {&share->kept, &share->full, &share->host, &share->moved, &share->more};
    return numbers[k->what];
}

/* Sets a number, and makes the others of its class fit to it. Where nothing was computed again, nothing is. */
static void set(const struct search *s, const struct knob *k, size_t to) {
    struct shore__share *share = &s->plan->share[k->class];
    size_t n = s->plan->class[k->class].n;
    bool none_again = share->moved && share->kept + share->host + share->moved == n;
    *number(s, k) = to;
    if (k->what == MORE) return;
    if (share->kept > n) share->kept = n;
    if (share->full > share->kept) share->full = share->kept;
    if (share->host > n - share->kept) share->host = n - share->kept;
    if (share->moved > n - share->kept - share->host || (none_again && k->what < MOVED))
        share->moved = n - share->kept - share->host;
}

/* Lowers a number as little as makes the plan fit. Returns whether that is possible. */
static bool make_room(const struct search *s, const struct knob *k) {
    size_t high = *number(s, k), low = k->least;
    if (high <= low) return false;
    set(s, k, low);
    if (shore__plan_excess(s->plan)) return false;
    for (high--; low < high;) {
        size_t middle = low + (high - low + 1) / 2;
        set(s, k, middle);
        if (shore__plan_excess(s->plan))
            high = middle - 1;
        else
            low = middle;
    }
    set(s, k, low);
    return true;
}

/* Tries to change a number, with memory that is left or that another one gives up. */
static bool step(struct search *s, const struct knob *k, size_t by, bool up) {
    copy(s, s->plan->share, s->best);
    size_t now = *number(s, k), to = up                    ? k->most - now > by ? now + by : k->most
                                     : now - k->least > by ? now - by
                                                           : k->least;
    bool better = false;
    if (to == now) return false;
    set(s, k, to);
    if (!shore__plan_excess(s->plan)) return try_shares(s);
    for (uint32_t i = 0; i < s->nknobs && s->left; i++) {
        const struct knob *gives = &s->knob[i];
        if (gives == k || (gives->class == k->class && gives->what != MORE)) continue;
        copy(s, s->plan->share, s->best);
        if (*number(s, k) != now) break; /* a better plan has moved on */
        set(s, k, to);
        if (make_room(s, gives)) better |= try_shares(s);
    }
    return better;
}

static void improve(struct search *s) {
    for (uint32_t halved = 0; halved <= HALVINGS && s->left;) {
        bool better = false;
        for (uint32_t i = 0; i < s->nknobs && s->left; i++) {
            const struct knob *k = &s->knob[i];
            size_t by = (k->most - k->least) >> halved;
            if (!by && halved && (k->most - k->least) >> (halved - 1) <= 1) continue; /* by one: done */
            better |= step(s, k, by ? by : 1, true);
            if (k->what != MORE) better |= step(s, k, by ? by : 1, false);
        }
        halved += !better;
    }
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static bool is_no_worse(void *ctx) {
    struct search *s = ctx;
    if (shore__plan_excess(s->plan)) return false;
    struct score score = simulated(s);
    if (is_more(score.seconds, s->longest) || is_more(score.cost, s->score.cost * (1 + SLACK))) return false;
    if (score.cost < s->score.cost) s->score = score;
    return true;
}

static bool everything_fits(const struct shore_plan *plan) {
    for (int b = 0; b < SHORE__BUDGETS; b++)
        if (plan->comfortable.of[b] > plan->limit.of[b]) return false;
    return true;
}

/* Begins with a plan of the order if it is the shortest so far. */
static void try_order(struct search *s, enum shore_policy policy, bool moves) {
    shore__order_spend(s->plan, policy, moves);
    if (shore__plan_excess(s->plan)) return;
    struct score score = simulated(s);
    bool shorter = is_more(s->longest, score.seconds);
    if (shorter) s->longest = score.seconds;
    if (!shorter && !is_better(s, &score)) return;
    s->score = score;
    copy(s, s->best, s->plan->share);
}

static void search(struct search *s) {
    struct shore_plan *plan = s->plan;
    copy(s, s->best, plan->share);
    shore__plan_excess(plan);
    s->score = simulated(s);
    s->longest = s->score.seconds;
    for (int policy = SHORE_POLICY_KEEP; policy < SHORE_POLICIES; policy++)
        for (int moves = policy < SHORE_POLICY_MOVE; moves < 2; moves++)
            try_order(s, (enum shore_policy)policy, moves);
    if (!everything_fits(plan)) improve(s);
    copy(s, plan->share, s->best);
    plan->accepts = is_no_worse;
    plan->accepts_ctx = s;
    shore__order_fill(plan);
    plan->accepts = NULL;
}

bool shore__search(struct shore_plan *plan) {
    double uses = plan->program->nuses + 1.0, simulations = SIMULATED_USES / uses;
    struct search s = {.plan = plan,
                       .best = calloc(plan->nclasses + (size_t)1, sizeof *s.best),
                       .knob = calloc(4 * (size_t)plan->nclasses + 1, sizeof *s.knob)};
    s.left = simulations > SIMULATIONS_MOST    ? SIMULATIONS_MOST
             : simulations < SIMULATIONS_LEAST ? SIMULATIONS_LEAST
                                               : (uint32_t)simulations;
    bool ok = s.best && s.knob;
    if (ok) find_knobs(&s);
    if (ok) search(&s);
    free(s.best);
    free(s.knob);
    return ok;
}
