/* Which tensors of a program are of one class, so that one number says how many of them stay. */
#include <errno.h>
#include <stdlib.h>

#include "base/diag.h"
#include "plan/plan.h"

#define NOBODY UINT32_MAX

/* Of a tensor, while classes are found. */
struct use {
    uint32_t maker; /* NOBODY: it is there before the step */
    uint32_t reads;
    bool decides;
    uint32_t class;
};

/* By tensor, or NULL. Ownership: the caller's. */
static struct use *uses_of(const struct shore_program *p) {
    struct use *use = calloc(p->ntensors + (size_t)1, sizeof *use);
    for (uint32_t i = 0; use && i < p->ntensors; i++)
        use[i].maker = NOBODY;
    for (uint32_t i = 0; use && i < p->nuses; i++) {
        struct use *u = &use[p->use[i].tensor];
        if (p->use[i].kind == SHORE__MAKES) u->maker = p->use[i].operation;
        if (p->use[i].kind == SHORE__READS) u->reads++;
    }
    for (uint32_t i = 0; use && i < p->ntensors; i++) {
        const struct shore_tensor *t = &p->tensor[i];
        if (t->with) use[t->with - 1].decides = true;
        if (t->without) use[t->without - 1].decides = true;
    }
    return use;
}

static bool is_fixed(const struct shore_tensor *t) {
    return !t->ways && !t->buffers && t->full_bytes <= t->bytes;
}

static bool is_like(const struct shore__class *k, const struct shore_tensor *t, const struct use *u) {
    const struct shore_tensor *like = k->like;
    if (is_fixed(t) || is_fixed(like)) return is_fixed(t) && is_fixed(like);
    bool amount = !t->ways && !t->buffers; /* each is one of its own */
    return !amount && t->key == like->key && t->ways == like->ways && t->place == like->place &&
           t->buffers == like->buffers && t->there == like->there && (t->buffers || t->group == like->group) &&
           k->reads == u->reads && k->made == (u->maker != NOBODY) && k->decides == u->decides &&
           (shore__moved_bytes(t) > t->bytes) == (shore__moved_bytes(like) > like->bytes);
}

static void find_classes(struct shore_plan *plan, struct use *use) {
    const struct shore_program *p = plan->program;
    for (uint32_t i = 0, last = 0; i < p->ntensors; i++) {
        const struct shore_tensor *t = &p->tensor[i];
        uint32_t k = last; /* most are like the one before */
        if (!plan->nclasses || !is_like(&plan->class[k], t, &use[i]))
            for (k = 0; k < plan->nclasses && !is_like(&plan->class[k], t, &use[i]);)
                k++;
        if (k == plan->nclasses)
            plan->class[plan->nclasses++] = (struct shore__class){
                .like = t, .reads = use[i].reads, .made = use[i].maker != NOBODY, .decides = use[i].decides};
        plan->class[k].n++;
        use[i].class = last = k;
    }
}

struct ranked {
    uint32_t class, made, tensor;
};

static int by_rank(const void *one, const void *other) {
    const struct ranked *a = one, *b = other;
    if (a->class != b->class) return a->class < b->class ? -1 : 1;
    if (a->made != b->made) return a->made > b->made ? -1 : 1; /* what is made later is needed sooner */
    return a->tensor < b->tensor ? -1 : 1;
}

/* Whether memory, drives and computing may share a class. If some of it moves, each gets some of it everywhere in the
 * step, so that drives have all of forward for what moves, and all of backward for what comes back. */
static bool is_spread(const struct shore__class *k) {
    return k->made && k->like->again && k->like->ways & SHORE_WAY_MOVE;
}

/* Ranks of n tensors so that the first so many, however many, are spread evenly over all. */
static void spread(struct ranked *rank, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t reversed = 0;
        for (int bit = 0; bit < 32; bit++)
            reversed |= (i >> bit & 1) << (31 - bit);
        rank[i].made = UINT32_MAX - reversed;
    }
    qsort(rank, n, sizeof *rank, by_rank);
}

static bool put_in_order(struct shore_plan *plan, const struct use *use) {
    uint32_t n = plan->program->ntensors;
    struct ranked *rank = calloc(n + (size_t)1, sizeof *rank);
    for (uint32_t i = 0; rank && i < n; i++)
        rank[i] = (struct ranked){use[i].class, use[i].maker == NOBODY ? 0 : use[i].maker, i};
    if (rank && n) qsort(rank, n, sizeof *rank, by_rank);
    for (uint32_t i = 0; rank && i < n; i++)
        plan->order[i] = rank[i].tensor;
    for (uint32_t k = 0, first = 0; rank && k < plan->nclasses; first += plan->class[k++].n) {
        plan->class[k].first = first;
        if (is_spread(&plan->class[k])) spread(rank + first, plan->class[k].n);
    }
    for (uint32_t i = 0; rank && i < n; i++)
        plan->spread[i] = rank[i].tensor;
    free(rank);
    return rank;
}

static void find_groups(struct shore_plan *plan, const struct use *use) {
    const struct shore_program *p = plan->program;
    for (uint32_t i = 0, last = 0; i < p->ntensors; i++) {
        const struct shore_tensor *t = &p->tensor[i];
        uint32_t g = last;
        plan->group_of[i] = SHORE__NO_ROW;
        if (!t->group) continue;
        if (g >= plan->ngroups || plan->group[g].number != t->group)
            for (g = 0; g < plan->ngroups && plan->group[g].number != t->group;)
                g++;
        if (g == plan->ngroups)
            plan->group[plan->ngroups++] = (struct shore__passing){.number = t->group, .buffers = SHORE__NO_ROW};
        if (t->buffers && !t->there) plan->group[g].buffers = use[i].class;
        plan->group_of[i] = last = g;
    }
}

unsigned shore__class_ways(const struct shore_plan *plan, const struct shore__class *k) {
    return plan->options.one_memory ? k->like->ways & ~(unsigned)SHORE_WAY_HOST : k->like->ways;
}

int shore__classes_open(struct shore_plan *plan, struct shore_diag *diag) {
    size_t n = plan->program->ntensors + (size_t)1;
    struct use *use = uses_of(plan->program);
    plan->order = calloc(n, sizeof *plan->order);
    plan->spread = calloc(n, sizeof *plan->spread);
    plan->class = calloc(n, sizeof *plan->class);
    plan->share = calloc(n, sizeof *plan->share);
    plan->least = calloc(n, sizeof *plan->least);
    plan->group = calloc(n, sizeof *plan->group);
    plan->group_of = calloc(n, sizeof *plan->group_of);
    bool ok = use && plan->order && plan->spread && plan->class && plan->share && plan->least && plan->group &&
              plan->group_of;
    if (ok) find_classes(plan, use);
    if (ok) find_groups(plan, use);
    ok = ok && put_in_order(plan, use);
    free(use);
    return ok ? 0 : shore__fail(diag, -ENOMEM, "out of memory for a plan");
}
