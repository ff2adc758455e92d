#include "plan/program.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/diag.h"
#include "base/sized.h"
#include "machine/machine.h"

#define NOBODY UINT32_MAX
#define BYTES_MOST (UINT64_C(1) << 56) /* of a tensor, or of all: a larger size has overflowed */

struct shore_program *shore_program_new(void) {
    return calloc(1, sizeof(struct shore_program));
}

void shore_program_free(struct shore_program *p) {
    if (!p) return;
    free(p->op);
    free(p->cost);
    free(p->computes);
    free(p->tensor);
    free(p->use);
    free(p);
}

/* Makes room for one more item; the room doubles. */
static void *grow(struct shore_program *p, void *list, uint32_t count, size_t bytes) {
    if (count & (count - 1) || p->rc) return list;
    void *more = realloc(list, (count ? 2 * (size_t)count : 1) * bytes);
    if (!more) p->rc = shore__fail(&p->wrong, -ENOMEM, "out of memory for a program");
    return more ? more : list;
}

uint32_t shore_program_operation(struct shore_program *p, const char *name) {
    p->op = grow(p, p->op, p->nops, sizeof *p->op);
    if (p->rc) return 0;
    p->op[p->nops] = name;
    return p->nops++;
}

void shore_program_costs(struct shore_program *p, uint32_t operation, enum shore_lane lane, uint32_t drive,
                         uint64_t work) {
    p->cost = grow(p, p->cost, p->ncosts, sizeof *p->cost);
    if (p->rc) return;
    if (operation >= p->nops || (unsigned)lane >= SHORE_LANES || lane == SHORE_LANE_COMPUTE)
        p->rc = shore__fail(&p->wrong, -EINVAL,
                            "a program of %u operations has no operation %u with work behind it in lane %d", p->nops,
                            operation, (int)lane);
    else
        p->cost[p->ncosts++] = (struct shore__cost){lane, operation, drive, work};
}

void shore_program_computes(struct shore_program *p, uint32_t operation, const struct shore_computing *computing) {
    p->computes = grow(p, p->computes, p->ncomputes, sizeof *p->computes);
    if (p->rc) return;
    struct shore_computing *what = &p->computes[p->ncomputes].what;
    p->computes[p->ncomputes].operation = operation;
    p->rc = shore__sized_in(what, sizeof *what, computing, "shore_computing", &p->wrong);
    if (p->rc) return;
    if (operation >= p->nops || (unsigned)what->kind >= SHORE_WORKS || (unsigned)what->precision >= SHORE_PRECISIONS ||
        !(what->seconds >= 0))
        p->rc = shore__fail(&p->wrong, -EINVAL,
                            "a program of %u operations has no operation %u that computes work of kind %d in precision "
                            "%d for %g seconds",
                            p->nops, operation, (int)what->kind, (int)what->precision, what->seconds);
    else
        p->ncomputes++;
}

uint32_t shore_program_tensor(struct shore_program *p, const struct shore_tensor *tensor) {
    p->tensor = grow(p, p->tensor, p->ntensors, sizeof *p->tensor);
    if (!p->rc) p->rc = shore__sized_in(&p->tensor[p->ntensors], sizeof *p->tensor, tensor, "shore_tensor", &p->wrong);
    return p->rc ? 0 : p->ntensors++;
}

static void use(struct shore_program *p, enum shore__use_kind kind, uint32_t operation, uint32_t tensor) {
    p->use = grow(p, p->use, p->nuses, sizeof *p->use);
    if (p->rc) return;
    if (operation >= p->nops || tensor >= p->ntensors)
        p->rc = shore__fail(&p->wrong, -EINVAL,
                            "a program of %u operations and %u tensors has no operation %u that could use tensor %u",
                            p->nops, p->ntensors, operation, tensor);
    else
        p->use[p->nuses++] = (struct shore__use){kind, operation, tensor};
}

void shore_program_makes(struct shore_program *p, uint32_t operation, uint32_t tensor) {
    use(p, SHORE__MAKES, operation, tensor);
}

void shore_program_reads(struct shore_program *p, uint32_t operation, uint32_t tensor) {
    use(p, SHORE__READS, operation, tensor);
}

void shore_program_frees(struct shore_program *p, uint32_t operation, uint32_t tensor) {
    use(p, SHORE__FREES, operation, tensor);
}

void shore_program_changes(struct shore_program *p, uint32_t operation, uint32_t tensor) {
    use(p, SHORE__CHANGES, operation, tensor);
}

double shore__computing_seconds(const struct shore_computing *c, const struct shore_machine *machine) {
    return c->seconds > 0 ? c->seconds : shore__machine_seconds(machine, c->kind, c->precision, c->rows, c->work);
}

uint64_t shore__program_work(const struct shore_program *p, enum shore_lane lane, uint32_t drive) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < p->ncosts; i++)
        if (p->cost[i].lane == lane && (drive == SHORE__ALL_DRIVES || p->cost[i].drive == drive))
            sum += p->cost[i].work;
    return sum;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static int wrong_use(const struct shore_program *p, const struct shore__use *u, const char *what,
                     struct shore_diag *diag) {
    static const char *const verb[] = {"makes", "reads", "frees", "changes"};
    const struct shore_tensor *t = &p->tensor[u->tensor];
    return shore__fail(diag, -EINVAL, "%s (operation %u) %s %s %u %s", p->op[u->operation], u->operation, verb[u->kind],
                       t->name, t->index, what);
}

/* Whether operation `to` depends on operation `from`, directly or through others. seen: by operation. */
static bool depends(const struct shore_program *p, const uint32_t *maker, uint32_t to, uint32_t from, bool *seen) {
    if (to == from) return true;
    if (seen[to]) return false;
    seen[to] = true;
    for (uint32_t i = 0; i < p->nuses; i++) {
        const struct shore__use *u = &p->use[i];
        if (u->kind == SHORE__READS && u->operation == to && maker[u->tensor] != NOBODY &&
            depends(p, maker, maker[u->tensor], from, seen))
            return true;
    }
    return false;
}

static int read_early(const struct shore_program *p, const struct shore__use *u, const uint32_t *maker,
                      struct shore_diag *diag) {
    uint32_t by = maker[u->tensor];
    bool *seen = calloc(p->nops, sizeof *seen), circle;
    if (!seen) return shore__fail(diag, -ENOMEM, "out of memory for a program");
    circle = depends(p, maker, by, u->operation, seen);
    free(seen);
    char what[160];
    if (circle)
        snprintf(what, sizeof what, "of %s (operation %u), which needs what it makes itself: a cycle", p->op[by], by);
    else
        snprintf(what, sizeof what, "before %s (operation %u) makes it: put it behind", p->op[by], by);
    return wrong_use(p, u, what, diag);
}

/* Checks the uses of all tensors, and writes lifetimes. maker: the operation that makes each tensor; NOBODY: it exists
 * before the program. */
static int check_uses(const struct shore_program *p, uint32_t *maker, struct shore__lifetime *live,
                      struct shore_diag *diag) {
    uint32_t *freed = malloc((p->ntensors + (size_t)1) * sizeof *freed);
    int rc = freed ? 0 : shore__fail(diag, -ENOMEM, "out of memory for a program");
    for (uint32_t i = 0; !rc && i < p->ntensors; i++)
        freed[i] = NOBODY;
    for (uint32_t i = 0; !rc && i < p->nuses; i++) {
        const struct shore__use *u = &p->use[i];
        uint32_t *once = u->kind == SHORE__MAKES ? &maker[u->tensor] : &freed[u->tensor];
        if (u->kind == SHORE__READS || u->kind == SHORE__CHANGES) continue;
        if (*once != NOBODY) rc = wrong_use(p, u, "a second time", diag);
        *once = u->operation;
    }
    for (uint32_t i = 0; !rc && i < p->nuses; i++) {
        const struct shore__use *u = &p->use[i];
        uint32_t by = maker[u->tensor], end = freed[u->tensor];
        bool over = by != NOBODY && end != NOBODY && end < by; /* it lives on into the next step */
        if (u->kind != SHORE__READS || over) continue;
        if (by != NOBODY && u->operation < by) rc = read_early(p, u, maker, diag);
        if (!rc && end != NOBODY && u->operation > end) rc = wrong_use(p, u, "after it was freed", diag);
    }
    for (uint32_t i = 0; !rc && i < p->ntensors; i++)
        live[i] = (struct shore__lifetime){maker[i] == NOBODY ? 0 : maker[i],
                                           freed[i] == NOBODY ? p->nops ? p->nops - 1 : 0 : freed[i]};
    free(freed);
    return rc;
}

static int check_sizes(const struct shore_program *p, struct shore_diag *diag) {
    unsigned __int128 sum = 0;
    for (uint32_t i = 0; i < p->ntensors; i++) {
        const struct shore_tensor *t = &p->tensor[i];
        uint64_t bytes = t->full_bytes > t->bytes ? t->full_bytes : t->bytes;
        if ((unsigned)t->place > SHORE_PLACE_BOTH || !t->name || t->ways >= 2 * SHORE_WAY_HOST ||
            (unsigned)t->saves_lane >= SHORE_LANES)
            return shore__fail(diag, -EINVAL, "tensor %u of a program has no name, or an unknown way, place or lane",
                               i);
        if (t->buffers && t->ways) return shore__fail(diag, -EINVAL, "%s %u: buffers have no ways", t->name, t->index);
        if (t->place == SHORE_PLACE_BOTH && t->margin)
            return shore__fail(diag, -EINVAL, "%s %u: what needs a margin lies in one place", t->name, t->index);
        if (t->again > p->nops)
            return shore__fail(diag, -EINVAL, "%s %u: its computing is that of an operation that the program lacks",
                               t->name, t->index);
        if (t->with > p->ntensors || t->without > p->ntensors)
            return shore__fail(diag, -EINVAL, "%s %u goes with a tensor that the program does not have", t->name,
                               t->index);
        sum += bytes;
        if (bytes > BYTES_MOST || sum > BYTES_MOST)
            return shore__fail(diag, -EINVAL, "%s %u: its size of %" PRIu64 " bytes has overflowed", t->name, t->index,
                               bytes);
    }
    return 0;
}

int shore__program_check(const struct shore_program *p, struct shore__lifetime *live, struct shore_diag *diag) {
    if (p->rc) return shore__fail(diag, p->rc, "%s", p->wrong.text);
    uint32_t *maker = malloc((p->ntensors + (size_t)1) * sizeof *maker);
    if (!maker) return shore__fail(diag, -ENOMEM, "out of memory for a program");
    for (uint32_t i = 0; i < p->ntensors; i++)
        maker[i] = NOBODY;
    int rc = check_sizes(p, diag);
    if (!rc) rc = check_uses(p, maker, live, diag);
    free(maker);
    return rc;
}
