/* An order of thumb for spending a budget: what keeps the drives busy, then what saves most in a byte. The search
 * begins with its plans, and one that it finds is never worse. */
#include <string.h>

#include "machine/machine.h"
#include "plan/plan.h"

/* This many buffers keep the drives busy while speculative updates run beside backward. More buffers save only replays,
 * and spilling of waiting gradients: 8 bytes moved for 4 held, no more than parameters that stay save in every step. */
#define PIECE_BUFFERS_FIRST 3u
#define PIECE_BUFFERS 6u
#define FETCH_BUFFERS 2u /* one is read while the other is filled */

/* ---- what a byte saves ------------------------------------------------------------------------------------------- */

static double drive_seconds(const struct shore_machine *machine, double bytes) {
    const struct shore__machine_drive *drive = shore__machine_drive(machine ? machine : shore__machine_assumed(), 0);
    if (!drive || !(drive->mixed > 0 || drive->read > 0)) drive = shore__machine_drive(shore__machine_assumed(), 0);
    return bytes / (drive->mixed > 0 ? drive->mixed : drive->read);
}

/* Seconds of an operation's computing, or of all. */
static double compute_seconds(const struct shore_plan *plan, uint32_t operation, bool all) {
    const struct shore_program *p = plan->program;
    double seconds = 0;
    for (uint32_t i = 0; i < p->ncomputes; i++)
        if (all || p->computes[i].operation == operation)
            seconds += shore__computing_seconds(&p->computes[i].what, plan->options.machine);
    return seconds;
}

/* Whether computing takes longer than the drives, as it does above some number of tokens per step. Then memory goes
 * first to activations, which need not be computed again; otherwise to parameters, which need not be fetched again. */
bool shore__plan_outlasts(const struct shore_plan *plan) {
    const struct shore_program *p = plan->program;
    uint64_t moved = shore__program_work(p, SHORE_LANE_DRIVE_READ, SHORE__ALL_DRIVES) +
                     shore__program_work(p, SHORE_LANE_DRIVE_WRITE, SHORE__ALL_DRIVES) +
                     shore__program_work(p, SHORE_LANE_DRIVE_MIXED, SHORE__ALL_DRIVES);
    return moved && compute_seconds(plan, 0, true) > drive_seconds(plan->options.machine, (double)moved);
}

static bool is_again(const struct shore__class *k) {
    return k->like->ways & SHORE_WAY_AGAIN || (shore__class_amount(k) && k->like->again);
}

/* Seconds that a byte saves: of computing, or of bytes that move. */
static double worth(const struct shore_plan *plan, const struct shore__class *k) {
    const struct shore_tensor *t = k->like;
    uint64_t amount = shore__class_amount(k), bytes = amount ? amount : t->bytes;
    double moved = (double)shore__moved_bytes(t) * k->reads;
    if (!bytes) return 0;
    if (!is_again(k)) return drive_seconds(plan->options.machine, moved) / (double)bytes;
    if (!t->again) return 0;
    return compute_seconds(plan, t->again - 1, false) / (t->again_parts ? t->again_parts : 1) / (double)bytes;
}

/* ---- what is what ------------------------------------------------------------------------------------------------ */

static bool is_buffers_of(const struct shore_plan *plan, const struct shore__class *k, bool of_made) {
    for (uint32_t i = 0; k->like->buffers && !k->like->there && i < plan->nclasses; i++) {
        const struct shore_tensor *t = plan->class[i].like;
        if (!t->buffers && t->group && t->group == k->like->group) return plan->class[i].made == of_made;
    }
    return false;
}

static bool is_parameters(const struct shore__class *k) {
    return !k->made && k->reads && k->like->ways & SHORE_WAY_KEEP && k->like->ways & ~(unsigned)SHORE_WAY_KEEP;
}

/* An activation that is not computed again. */
static bool is_boundary(const struct shore__class *k) {
    return k->made && !k->decides && !is_again(k) && k->like->ways & SHORE_WAY_KEEP &&
           k->like->ways & ~(unsigned)SHORE_WAY_KEEP;
}

/* An amount of which no lane counts what it saves. */
static bool is_plain_amount(const struct shore__class *k) {
    return shore__class_amount(k) && !is_again(k) && !(k->like->saves > 0) && !k->like->margin;
}
static bool is_saving_amount(const struct shore__class *k) {
    return shore__class_amount(k) && !is_again(k) && k->like->saves > 0;
}

/* ---- raising ----------------------------------------------------------------------------------------------------- */

static bool fits(struct shore_plan *plan) {
    return shore__plan_excess(plan) == 0;
}

static bool is_accepted(const struct shore_plan *plan) {
    return !plan->accepts || plan->accepts(plan->accepts_ctx);
}

static void raise_to(struct shore_plan *plan, size_t *field, size_t most) {
    size_t before = *field;
    shore__raise(field, most, 0, shore__plan_excess, plan);
    if (*field != before && !is_accepted(plan)) *field = before;
}

static size_t keep_most(const struct shore__class *k) {
    return k->like->ways & SHORE_WAY_KEEP ? k->n : 0;
}

static void raise_amount(struct shore_plan *plan, uint32_t k) {
    size_t *more = &plan->share[k].more, before = *more, most = shore__class_amount(&plan->class[k]);
    if (!plan->class[k].like->whole) {
        raise_to(plan, more, most);
        return;
    }
    *more = most;
    if (!fits(plan) || (before != most && !is_accepted(plan))) *more = before;
}

/* Raises amounts for which there is a test, the smallest first: most of them get what they need. */
static void raise_amounts(struct shore_plan *plan, bool (*is)(const struct shore__class *), bool made_only) {
    uint64_t done = 0; /* of amounts up to this many bytes */
    for (uint64_t next; done != UINT64_MAX; done = next) {
        next = UINT64_MAX;
        for (uint32_t k = 0; k < plan->nclasses; k++) {
            uint64_t amount = shore__class_amount(&plan->class[k]);
            if (!is(&plan->class[k]) || (made_only && !plan->class[k].made)) continue;
            if (amount == done) raise_amount(plan, k);
            if (amount > done && amount < next) next = amount;
        }
    }
}

static bool has_room(const struct shore_plan *plan, const struct shore_tensor *t, const struct shore__bytes *used,
                     const struct shore__bytes *limit) {
    uint32_t b = shore__plan_budget(plan, t->place);
    return used->of[b] <= limit->of[b] && t->margin <= limit->of[b] - used->of[b];
}

static void raise_margins(struct shore_plan *plan) {
    for (uint32_t k = 0; k < plan->nclasses; k++)
        if (plan->class[k].like->margin && has_room(plan, plan->class[k].like, &plan->minimum, &plan->limit))
            raise_amount(plan, k);
}

static void raise_buffers(struct shore_plan *plan, bool of_made, size_t most) {
    for (uint32_t k = 0; k < plan->nclasses; k++) {
        if (!is_buffers_of(plan, &plan->class[k], of_made)) continue;
        size_t n = plan->class[k].like->most;
        raise_to(plan, &plan->share[k].more, n < most ? n : most);
    }
}

/* The class of a test that is worth most, of those that are worth less than *below; or nclasses. */
static uint32_t next_best(const struct shore_plan *plan, bool (*is)(const struct shore__class *), double *below,
                          uint32_t *after) {
    uint32_t best = plan->nclasses;
    double most = -1;
    for (uint32_t k = 0; k < plan->nclasses; k++) {
        if (!is(&plan->class[k])) continue;
        double is_worth = worth(plan, &plan->class[k]);
        bool done = is_worth > *below || (is_worth == *below && k <= *after && *after != UINT32_MAX);
        if (done || is_worth <= most) continue;
        most = is_worth;
        best = k;
    }
    *below = most;
    *after = best;
    return best;
}

static void raise_parameters(struct shore_plan *plan) {
    double below = 1e300;
    for (uint32_t after = UINT32_MAX, k; (k = next_best(plan, is_parameters, &below, &after)) < plan->nclasses;)
        raise_to(plan, &plan->share[k].kept, keep_most(&plan->class[k]));
    raise_buffers(plan, false, SIZE_MAX);
}

/* Where all of them move, a byte of memory for parameters saves the drives as much as one for activations: two bytes in
 * a step. If drives are so slow that none move, this stays true of parameters, while kept activations only save
 * computing, which is worth more with drives of a speed in between. So each gets half of what is left. */
static void share_with_parameters(struct shore_plan *plan) {
    struct shore__bytes limit = plan->limit;
    shore__plan_excess(plan);
    for (int b = 0; b < SHORE__BUDGETS; b++)
        plan->limit.of[b] -= (limit.of[b] - plan->total.of[b] + 1) / 2;
    double below = 1e300;
    for (uint32_t after = UINT32_MAX, k; (k = next_best(plan, is_parameters, &below, &after)) < plan->nclasses;)
        raise_to(plan, &plan->share[k].kept, keep_most(&plan->class[k]));
    plan->limit = limit;
}

static void keep_activations(struct shore_plan *plan, uint32_t k) {
    struct shore__share *s = &plan->share[k], before = *s;
    size_t most = keep_most(&plan->class[k]);
    if (s->moved == plan->class[k].n) { /* first tries to keep them all */
        s->moved = 0;
        s->kept = most;
        if (fits(plan) && is_accepted(plan)) return;
        *s = before;
        share_with_parameters(plan);
    }
    raise_to(plan, &s->kept, most);
    before = *s;
    if (s->moved > plan->class[k].n - s->kept) s->moved = plan->class[k].n - s->kept;
    if (s->moved < before.moved && !(fits(plan) && is_accepted(plan))) *s = before; /* they are kept in another order */
}

/* Raises what is computed again otherwise: first what is expensive to compute, then the cheap parts too. */
static void raise_activations(struct shore_plan *plan) {
    double below = 1e300;
    for (uint32_t after = UINT32_MAX, k; (k = next_best(plan, is_again, &below, &after)) < plan->nclasses;) {
        if (shore__class_amount(&plan->class[k]))
            raise_amount(plan, k);
        else
            keep_activations(plan, k);
    }
    for (uint32_t k = 0; k < plan->nclasses; k++)
        if (plan->class[k].like->ways && plan->class[k].like->full_bytes > plan->class[k].like->bytes)
            raise_to(plan, &plan->share[k].full, plan->share[k].kept);
}

static void move_activations(struct shore_plan *plan, bool all) {
    for (uint32_t k = 0; k < plan->nclasses; k++) {
        struct shore__share *s = &plan->share[k], before = *s;
        if (!is_again(&plan->class[k]) || !(plan->class[k].like->ways & SHORE_WAY_MOVE)) continue;
        if (!all) s->moved = plan->class[k].n - s->kept - s->host;
        if (!all && (!fits(plan) || !is_accepted(plan))) *s = before;
        if (all) raise_to(plan, &s->moved, plan->class[k].n);
    }
}

/* Raises what a step needs to run at the speed of the drives. This comes before anything that is kept. */
static void raise_first(struct shore_plan *plan, enum shore_policy policy, bool moves) {
    raise_margins(plan);
    raise_buffers(plan, false, FETCH_BUFFERS);
    raise_buffers(plan, true, PIECE_BUFFERS_FIRST);
    raise_amounts(plan, is_plain_amount, false);
    for (uint32_t k = 0; k < plan->nclasses; k++)
        if (plan->class[k].decides) raise_to(plan, &plan->share[k].kept, keep_most(&plan->class[k]));
    if (moves && (policy == SHORE_POLICY_ORDER || policy == SHORE_POLICY_MOVE))
        move_activations(plan, policy == SHORE_POLICY_MOVE);
    for (uint32_t k = 0; k < plan->nclasses; k++)
        if (is_boundary(&plan->class[k]) && policy != SHORE_POLICY_MOVE)
            raise_to(plan, &plan->share[k].kept, plan->class[k].n);
    raise_amounts(plan, is_saving_amount, true);
}

static void raise_all(struct shore_plan *plan, enum shore_policy policy, bool moves) {
    bool activations = policy == SHORE_POLICY_ORDER || policy == SHORE_POLICY_KEEP;
    raise_first(plan, policy, moves);
    bool first = activations && (policy == SHORE_POLICY_KEEP || shore__plan_outlasts(plan));
    if (first) raise_activations(plan);
    raise_buffers(plan, true, PIECE_BUFFERS);
    raise_parameters(plan);
    if (activations && !first) raise_activations(plan);
    raise_buffers(plan, true, SIZE_MAX);
    raise_amounts(plan, is_saving_amount, false);
    shore__plan_excess(plan);
}

static const struct shore__bytes no_limit = {{UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}};

static void copy_shares(const struct shore_plan *plan, struct shore__share *to, const struct shore__share *from) {
    memcpy(to, from, plan->nclasses * sizeof *to);
}

/* Tries to raise everything at once first. Raised one after the other, the first ones would still share the room with
 * buffers that are not needed once the last ones are raised. */
void shore__order_spend(struct shore_plan *plan, enum shore_policy policy, bool moves) {
    struct shore__bytes limit = plan->limit;
    copy_shares(plan, plan->share, plan->least);
    if (policy == SHORE_POLICY_ORDER || policy == SHORE_POLICY_KEEP) {
        plan->limit = no_limit;
        raise_all(plan, policy, moves);
        plan->limit = limit;
        for (uint32_t k = 0; k < plan->nclasses; k++)
            if (plan->class[k].like->margin && !has_room(plan, plan->class[k].like, &plan->minimum, &limit))
                plan->share[k].more = 0;
        if (fits(plan)) return;
        copy_shares(plan, plan->share, plan->least);
    }
    raise_all(plan, policy, moves);
}

void shore__order_fill(struct shore_plan *plan) {
    raise_all(plan, SHORE_POLICY_ORDER, true);
}

struct shore__bytes shore__order_comfortable(struct shore_plan *plan) {
    plan->limit = no_limit;
    shore__order_spend(plan, SHORE_POLICY_ORDER, true);
    struct shore__bytes most = plan->total;
    for (uint32_t k = 0; k < plan->nclasses; k++) {
        const struct shore_tensor *t = plan->class[k].like;
        if (t->margin && !has_room(plan, t, &plan->minimum, &most))
            most.of[shore__plan_budget(plan, t->place)] -= plan->share[k].more;
    }
    copy_shares(plan, plan->share, plan->least);
    return most;
}

/* Bytes of all places. */
static uint64_t sum(struct shore_plan *plan) {
    shore__plan_excess(plan);
    return plan->place_total[SHORE_PLACE_DEVICE] + plan->place_total[SHORE_PLACE_PINNED] +
           plan->place_total[SHORE_PLACE_PLAIN];
}

void shore__order_least(struct shore_plan *plan) {
    for (uint32_t k = 0; k < plan->nclasses; k++)
        plan->share[k] = (struct shore__share){.more = plan->class[k].like->buffers ? plan->class[k].like->least : 0};
    uint64_t least = sum(plan);
    for (uint32_t k = 0; k < plan->nclasses; k++) {
        if (!plan->class[k].decides || !keep_most(&plan->class[k])) continue;
        plan->share[k].kept = plan->class[k].n;
        uint64_t kept = sum(plan);
        if (kept <= least)
            least = kept;
        else
            plan->share[k].kept = 0;
    }
    sum(plan);
    plan->minimum = plan->total;
    memcpy(plan->place_minimum, plan->place_total, sizeof plan->place_minimum);
    copy_shares(plan, plan->least, plan->share);
}
