/* Rules of thumb for spending a budget: what a step keeps, what is raised first, and how far. A planner with a model of
 * time would replace this file. */
#include <string.h>

#include "plan/plan.h"

/* Buffers of updates on the host: one chunk is computed, one read, one written. Chunks are large, for large
 * requests. */
#define HOST_BUFFERS 3u
#define HOST_BUFFERS_LEAST 2u
#define HOST_SEGMENTS 32u

#define POOL_PARTS 8u /* of a place's budget; a pool takes one of them */

/* This many buffers keep the drives busy while speculative updates run beside backward. More buffers save only replays,
 * and spilling of waiting gradients: 8 bytes moved for 4 held, no more than parameters that stay save in every step. */
#define PIECE_BUFFERS_FIRST 3u
#define PIECE_BUFFERS 6u

/* A budget this far above the minimum leaves room for holes in the heap: more than they were seen to take. The room is
 * worth 5 % of a step of 256 tokens with AVX2, and less of longer steps, so memory that activations need more comes
 * first. */
#define HOLES_FROM_BYTES (UINT64_C(256) << 20)

/* Defaults, until they are measured: a processor of some cores, and one fast drive. */
#define OPERATIONS_PER_SECOND 400e9
#define DRIVE_BYTES_PER_SECOND 2e9

/* Whether computing takes longer than the drives, as it does above some number of tokens per step. Then memory goes
 * first to activations, which need not be computed again; otherwise to parameters, which need not be fetched again. */
bool shore__rules_outlasts(uint64_t operations, uint64_t bytes, double operations_per_second, double bytes_per_second) {
    if (!(operations_per_second > 0)) operations_per_second = OPERATIONS_PER_SECOND;
    if (!(bytes_per_second > 0)) bytes_per_second = DRIVE_BYTES_PER_SECOND;
    return bytes && (double)operations / (double)bytes * bytes_per_second > operations_per_second;
}

static bool outlasts(const struct shore_plan *plan) {
    const struct shore_plan_options *o = &plan->options;
    const struct shore_program *p = plan->program;
    uint64_t moved = shore__program_work(p, SHORE_LANE_DRIVE_READ) + shore__program_work(p, SHORE_LANE_DRIVE_WRITE) +
                     shore__program_work(p, SHORE_LANE_DRIVE_MIXED);
    return shore__rules_outlasts(shore__program_work(p, SHORE_LANE_COMPUTE), moved, o->operations_per_second,
                                 o->drive_bytes_per_second);
}

/* Whether the head runs unit by unit: the table's gradient must be held in memory, where units can add to it. */
static bool head_goes_by_units(const struct shore_plan *plan) {
    return plan->head.apart && plan->choice.held;
}

/* ---- raising ----------------------------------------------------------------------------------------------------- */

static void raise_to(struct shore_plan *plan, size_t *field, size_t most) {
    shore__raise(field, most, 0, shore__plan_excess, plan);
}

static bool fits(struct shore_plan *plan) {
    return shore__plan_excess(plan) == 0;
}

/* Sets an all-or-nothing flag, if there is room. */
static void raise_flag(struct shore_plan *plan, bool *flag) {
    if (*flag) return;
    *flag = true;
    if (!fits(plan)) *flag = false;
}

/* How many tensors of a role may stay. */
static size_t most_of(const struct shore_plan *plan, enum shore_role role) {
    const struct shore_program *p = plan->program;
    size_t most = 0;
    for (uint32_t i = 0; i < p->ntensors; i++)
        most += p->tensor[i].role == role && (!p->tensor[i].ways || p->tensor[i].ways & SHORE_WAY_KEEP);
    return most;
}

/* The smallest or largest number of buffers of a kind, as far as something passes through them. */
static size_t buffers_of(const struct shore_plan *plan, enum shore__passing what, bool most) {
    const struct shore_program *p = plan->program;
    size_t found = 0;
    for (uint32_t b = 0; b < p->ntensors; b++)
        for (uint32_t i = 0; i < p->ntensors && p->tensor[b].role == SHORE_ROLE_BUFFERS; i++) {
            const struct shore_tensor *t = &p->tensor[i];
            if (t->group != p->tensor[b].group || shore__passing(plan, t->role, &p->tensor[b]) != what) continue;
            found = most ? p->tensor[b].most : p->tensor[b].least;
        }
    return found;
}

/* Raises the buffers of parameters: to two, or beyond, where the last that came stay in them. */
static void raise_passing(struct shore_plan *plan, bool beyond) {
    for (enum shore__passing what = SHORE__PAGES; what <= SHORE__SLOTS; what++) {
        size_t most = buffers_of(plan, what, true);
        if (most > (beyond ? 2 : 1)) raise_to(plan, &plan->choice.buffers[what], beyond ? most : 2);
    }
}

/* Pieces of gradient that a step makes. */
static size_t pieces(struct shore_plan *plan) {
    const struct shore_program *p = plan->program;
    size_t made = 0;
    shore__plan_excess(plan);
    for (uint32_t i = 0; i < p->ntensors; i++)
        made += p->tensor[i].role == SHORE_ROLE_PIECE && plan->fate[i].count;
    return made;
}

/* Bytes that a role may have beyond its least. */
static size_t amount_of(const struct shore_plan *plan, enum shore_role role) {
    const struct shore_tensor *t = shore__plan_nth(plan, role, 0);
    return t && t->full_bytes > t->bytes ? t->full_bytes - t->bytes : 0;
}

static void raise_parameters(struct shore_plan *plan) {
    struct shore__choice *c = &plan->choice;
    raise_to(plan, &c->tables, most_of(plan, SHORE__ROLE_TABLE));
    raise_to(plan, &c->layers, most_of(plan, SHORE_ROLE_LAYER));
    raise_to(plan, &c->lookups, most_of(plan, SHORE__ROLE_LOOKUP));
    raise_passing(plan, true);
}

/* Number of logits of so many units at once. */
static size_t logits_of(const struct shore_plan *plan, size_t units) {
    const struct shore_tensor *logits = shore__plan_nth(plan, SHORE__ROLE_LOGITS, 0);
    return logits && plan->head.units ? logits->most / plan->head.units * units : 0;
}

/* Raises the logits: of one unit, if units go through the head one by one and there is room for all of its logits. */
static void raise_logits(struct shore_plan *plan) {
    struct shore__choice *c = &plan->choice, before = *c;
    if (head_goes_by_units(plan)) {
        c->head_units = 1;
        c->logits = logits_of(plan, 1);
        if (fits(plan)) return;
        *c = before;
    }
    raise_to(plan, &c->logits, logits_of(plan, c->head_units));
}

/* Compares the multiplications that a byte saves: of one unit's logits, in the turns of all units, and of a layer's
 * inner activations, in their own turn. */
static bool logits_save_more(const struct shore_plan *plan) {
    const struct shore_tensor *logits = shore__plan_nth(plan, SHORE__ROLE_LOGITS, 0);
    const struct shore_tensor *inner = shore__plan_nth(plan, SHORE_ROLE_INNER, 0);
    if (!logits || !inner || !logits->bytes || !inner->bytes) return false;
    return (double)plan->head.units * ((double)logits->again / (double)logits->bytes) >
           (double)inner->again / (double)inner->bytes;
}

/* Raises inner activations: first, for all pairs, those that are expensive to compute, then the cheap ones too. */
static void raise_activations(struct shore_plan *plan) {
    struct shore__choice *c = &plan->choice;
    size_t pairs = plan->count[SHORE_ROLE_INNER];
    bool by_units = head_goes_by_units(plan), stored = pairs && c->moved_inner == pairs;
    if (stored) { /* first tries to keep them all in memory */
        struct shore__choice before = *c;
        c->moved_inner = 0;
        c->inner = pairs;
        if (by_units) c->head_units = 1;
        c->logits = logits_of(plan, c->head_units);
        if (!fits(plan)) *c = before;
    }
    bool logits_first = stored || (by_units && logits_save_more(plan));
    if (logits_first) raise_logits(plan);
    if (stored) {
        /* A byte of memory for parameters then saves the drives as much as one for inner activations: two bytes in a
         * step. If drives are so slow that none are stored, this stays true of parameters, while kept activations only
         * save computing, which is worth more with drives of a speed in between. So each gets half of what is left. */
        struct shore__bytes limit = plan->limit;
        shore__plan_excess(plan);
        for (int b = 0; b < SHORE__BUDGETS; b++)
            plan->limit.of[b] -= (limit.of[b] - plan->total.of[b] + 1) / 2;
        raise_to(plan, &c->layers, most_of(plan, SHORE_ROLE_LAYER));
        plan->limit = limit;
    }
    raise_to(plan, &c->inner, pairs);
    if (c->moved_inner > pairs - c->inner) c->moved_inner = pairs - c->inner;
    if (!logits_first) raise_logits(plan);
    raise_to(plan, &c->full_inner, c->inner);
}

/* Sends all units through the head together: the table is read, and packed for products, only once, and a slice of its
 * gradient is added to while it is in the cache. */
static void raise_head_units(struct shore_plan *plan) {
    struct shore__choice *c = &plan->choice, before = *c;
    if (c->head_units == plan->head.units) return;
    c->head_units = plan->head.units;
    c->logits = logits_of(plan, c->head_units);
    if (!fits(plan)) *c = before;
}

static bool has_room_for_holes(const struct shore_plan *plan, const struct shore__bytes *used,
                               const struct shore__bytes *limit) {
    uint32_t b = shore__plan_budget(plan, SHORE_PLACE_PLAIN);
    return used->of[b] + HOLES_FROM_BYTES <= limit->of[b];
}

static size_t host_buffers(const struct shore_plan *plan, size_t wanted) {
    const struct shore_tensor *host = shore__plan_nth(plan, SHORE_ROLE_HOST, 0);
    return !host ? 0 : host->most && wanted > host->most ? host->most : wanted;
}

static void raise_drives(struct shore_plan *plan) {
    struct shore__choice *c = &plan->choice;
    if (c->host_buffers) {
        raise_to(plan, &c->host_segments, HOST_SEGMENTS);
        raise_to(plan, &c->host_buffers, host_buffers(plan, HOST_BUFFERS));
    }
    raise_flag(plan, &c->drives);
}

/* Raises what a step needs to run at the speed of the drives. This comes before anything that is kept. */
static void raise_buffers(struct shore_plan *plan) {
    struct shore__choice *c = &plan->choice;
    raise_passing(plan, false);
    raise_to(plan, &c->buffers[SHORE__PIECES], buffers_of(plan, SHORE__PIECES, true) ? PIECE_BUFFERS_FIRST : 0);
    raise_drives(plan);
    if (plan->count[SHORE__ROLE_HELD]) raise_flag(plan, &c->held);
    c->moved_inner = plan->head.moved_most;
    if (!fits(plan)) c->moved_inner = 0;
    raise_to(plan, &c->inputs, plan->count[SHORE_ROLE_INPUT]);
    if (plan->head.units > 1) raise_flag(plan, &c->workspace);
}

static void raise_all(struct shore_plan *plan) {
    struct shore__choice *c = &plan->choice;
    shore__plan_excess(plan);
    if (has_room_for_holes(plan, &plan->total, &plan->limit)) c->holes = true;
    raise_buffers(plan);
    raise_to(plan, &c->gradients, amount_of(plan, SHORE_ROLE_GRADIENTS));
    size_t made = pieces(plan);
    /* each unit reads the table twice; inner activations on the drives move twice for all units */
    if (head_goes_by_units(plan) && plan->head.units > 1 && c->moved_inner)
        raise_to(plan, &c->tables, most_of(plan, SHORE__ROLE_TABLE));
    if (outlasts(plan)) raise_activations(plan);
    raise_to(plan, &c->buffers[SHORE__PIECES], made < PIECE_BUFFERS ? made : PIECE_BUFFERS);
    raise_parameters(plan);
    if (!outlasts(plan)) raise_activations(plan);
    raise_to(plan, &c->buffers[SHORE__PIECES], made);
    raise_head_units(plan);
    raise_to(plan, &c->spare, amount_of(plan, SHORE_ROLE_SPARE));
    shore__plan_excess(plan);
}

static const struct shore__bytes no_limit = {{UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}};

static void raise_pool(struct shore_plan *plan) {
    const struct shore_tensor *pool = shore__plan_nth(plan, SHORE_ROLE_POOL, 0);
    size_t most = amount_of(plan, SHORE_ROLE_POOL);
    if (!pool) return;
    uint64_t part = plan->limit.of[shore__plan_budget(plan, pool->place)] / (pool->most ? pool->most : POOL_PARTS);
    if (part < pool->bytes + most) most = part > pool->bytes ? part - pool->bytes : 0;
    raise_to(plan, &plan->choice.pool, most);
}

/* Tries to raise everything at once first. Raised one after the other, the first ones would still share the room with
 * buffers that are not needed once the last ones are raised. */
void shore__rules_spend(struct shore_plan *plan) {
    struct shore__bytes limit = plan->limit;
    raise_pool(plan);
    struct shore__choice least = plan->choice;
    if (plan->count[SHORE_ROLE_PIECE]) {
        plan->limit = no_limit;
        raise_all(plan);
        plan->limit = limit;
        if (!has_room_for_holes(plan, &plan->minimum, &limit)) plan->choice.holes = false;
        if (fits(plan)) return;
    }
    plan->choice = least;
    raise_all(plan);
}

struct shore__bytes shore__rules_comfortable(struct shore_plan *plan) {
    struct shore__choice least = plan->choice;
    const struct shore_tensor *holes = shore__plan_nth(plan, SHORE_ROLE_HOLES, 0);
    plan->limit = no_limit;
    shore__rules_spend(plan);
    struct shore__bytes most = plan->total;
    if (holes && !has_room_for_holes(plan, &plan->minimum, &most))
        most.of[shore__plan_budget(plan, holes->place)] -= holes->bytes;
    plan->choice = least;
    return most;
}

/* Bytes of all places. */
static uint64_t sum(struct shore_plan *plan) {
    shore__plan_excess(plan);
    return plan->place_total[SHORE_PLACE_DEVICE] + plan->place_total[SHORE_PLACE_PINNED] +
           plan->place_total[SHORE_PLACE_PLAIN];
}

void shore__rules_least(struct shore_plan *plan) {
    const struct shore_program *p = plan->program;
    const struct shore_tensor *held = shore__plan_nth(plan, SHORE__ROLE_HELD, 0);
    size_t inputs = 0;
    for (uint32_t i = p->ntensors; i--;)
        if (p->tensor[i].role == SHORE_ROLE_INPUT && !(p->tensor[i].ways & SHORE_WAY_MOVE)) inputs++;
    plan->choice = (struct shore__choice){
        .head_units = plan->head.units,
        .inputs = inputs,
        .held = held && !(held->ways & SHORE_WAY_MOVE),
        .host_buffers = host_buffers(plan, HOST_BUFFERS_LEAST),
        .host_segments = 1,
    };
    for (enum shore__passing what = SHORE__PAGES; what < SHORE__PASSING; what++)
        plan->choice.buffers[what] = buffers_of(plan, what, false);
    uint64_t moved = sum(plan);
    if (held && !plan->choice.held) {
        plan->choice.held = true;
        if (sum(plan) > moved) {
            plan->choice.held = false;
            sum(plan);
        }
    }
    plan->minimum = plan->total;
    memcpy(plan->place_minimum, plan->place_total, sizeof plan->place_minimum);
}
