#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/diag.h"
#include "longshore/store.h"
#include "train/trainer.h"

enum { PARTS = 2 };

/* Memory through which the entries of a store pass, shared with the device. */
struct passing {
    struct shore_activation_store *store; /* NULL: nothing goes to scratch */
    struct shore__both part[PARTS];
    uint64_t bytes;                /* of an entry, which is also a part */
    struct shore_event put[PARTS]; /* once it has passed, the device has the entry that came back */
};

struct activations {
    shore__buf *boundary; /* [n_layer + 2]: the input of layer l at l, the head's at n_layer + 1 */
    shore__buf *kept;     /* [layers * units]: inner activations, or none */
    struct passing boundaries, inner;
    struct shore_activation_store *slices; /* slices of a tied table's gradient; or NULL */
    size_t offloaded_inner;                /* of the pairs that move, those that these volumes have room for */
};
_Static_assert(SHORE__OFFLOAD_SLOTS == PARTS, "all of them");

/* ---- on their way to scratch, or back ---------------------------------------------------------------------------- */

static int part_of(const struct passing *p, const void *memory) {
    return memory == p->part[1].host;
}

/* Gets memory for an entry to store: of two parts, one is free or becomes free, and scratch has room for all. */
static int enter(struct trainer *t, struct passing *p, uint64_t key, shore__buf *out, struct shore_diag *diag) {
    void *memory;
    int rc = shore_store_take(p->store, key, p->bytes, true, &memory, diag);
    assert(rc <= 0);
    if (!rc) *out = p->part[part_of(p, memory)].device;
    return rc;
}

/* Stores the entry once it has arrived from the device. */
static int leave(struct trainer *t, struct passing *p, uint64_t key, shore__buf device, struct shore_diag *diag) {
    void *host = p->part[device.handle == p->part[1].device.handle].host;
    int rc = shore__op_failed(diag, shore__get(t->c, t->pass.stream, host, device, p->bytes));
    return rc ? rc : shore_store_put_after(p->store, key, shore__record(t->c, t->pass.stream), diag);
}

/* Fetches an entry back, for the device too. */
static int bring(struct trainer *t, struct passing *p, uint64_t key, shore__buf *out, struct shore_diag *diag) {
    void *memory;
    int rc = shore_store_get(p->store, key, &memory, diag);
    assert(rc <= 0); /* a part is free */
    if (rc) return rc;
    int part = part_of(p, memory);
    *out = p->part[part].device;
    rc = shore__op_failed(diag, shore__put(t->c, t->pass.stream, *out, memory, p->bytes));
    p->put[part] = shore__record(t->c, t->pass.stream);
    return rc;
}

/* Releases an entry that is used up. Its memory is reused once the device has read it. */
static int use_up(struct passing *p, uint64_t key, shore__buf device, struct shore_diag *diag) {
    int part = device.handle == p->part[1].device.handle;
    int rc = shore_store_release_after(p->store, key, p->put[part], diag);
    return rc ? rc : shore_store_drop(p->store, key, diag);
}

static int want(struct passing *p, uint64_t key, struct shore_diag *diag) {
    int rc = shore_store_want(p->store, key, diag);
    return rc == SHORE_STORE_FULL ? 0 : rc; /* otherwise it is fetched when it is asked for */
}

/* ---- boundaries -------------------------------------------------------------------------------------------------- */

/* Where products widen bf16, boundaries are kept as bf16, apart from the buffer that layers compute in. Elsewhere
 * layers compute where the boundary is kept. */
static bool stores_apart(const struct trainer *t) {
    return shore__stored_mode(t->c->mode) != t->c->mode;
}

shore__buf shore__boundary(const struct trainer *t, uint32_t layer) {
    return t->activations->boundary[layer];
}

/* Where they are apart, all layers compute in place on the head's input. Otherwise those that have no backward compute
 * in place on the first input that is kept. */
shore__buf shore__boundary_working(const struct trainer *t, uint32_t layer) {
    uint32_t kept = layer > t->m->lowest ? layer : t->m->lowest;
    return shore__boundary(t, stores_apart(t) ? t->m->arch.n_layer + 1 : kept);
}

static bool passes(const struct trainer *t, uint32_t layer) {
    return layer >= t->m->lowest && layer <= t->m->arch.n_layer &&
           shore__plan_input(&t->plan, layer)->way == SHORE_WAY_MOVE;
}

int shore__boundary_enter(struct trainer *t, uint32_t layer, struct shore_diag *diag) {
    struct activations *a = t->activations;
    return passes(t, layer) ? enter(t, &a->boundaries, layer, &a->boundary[layer], diag) : 0;
}

int shore__boundary_leave(struct trainer *t, uint32_t layer, struct shore_diag *diag) {
    if (layer < t->m->lowest) return 0;
    if (stores_apart(t)) {
        int rc = t->c->ops->store(t->c, t->pass.stream, shore__boundary(t, layer), shore__boundary_working(t, layer),
                                  shore__pass_rows(&t->pass) * t->m->arch.d_model);
        if (rc) return shore__op_failed(diag, rc);
    }
    if (!passes(t, layer)) return 0;
    return leave(t, &t->activations->boundaries, layer, shore__boundary(t, layer), diag);
}

int shore__boundary_release(struct trainer *t, uint32_t layer, struct shore_diag *diag) {
    return passes(t, layer) ? shore_store_release(t->activations->boundaries.store, layer, diag) : 0;
}

int shore__boundary_fetch(struct trainer *t, uint32_t layer, struct shore_diag *diag) {
    struct passing *p = &t->activations->boundaries;
    int rc = 0;
    if (passes(t, layer + 2)) rc = use_up(p, layer + 2, shore__boundary(t, layer + 2), diag);
    return rc || !passes(t, layer) ? rc : want(p, layer, diag);
}

int shore__boundary_wait(struct trainer *t, uint32_t layer, struct shore_diag *diag) {
    struct activations *a = t->activations;
    return passes(t, layer) ? bring(t, &a->boundaries, layer, &a->boundary[layer], diag) : 0;
}

int shore__boundary_load(struct trainer *t, uint32_t layer, size_t u, shore__buf *in) {
    struct shore__pass *pass = &t->pass;
    size_t d = t->m->arch.d_model,
           at = u * shore__pass_unit(pass) * d * shore__mode_bytes(shore__stored_mode(t->c->mode));
    *in = shore__pass_at(pass, shore__boundary_working(t, layer), u);
    if (!stores_apart(t)) return 0;
    return t->c->ops->load(t->c, t->pass.stream, *in, shore__at(shore__boundary(t, layer), at),
                           shore__pass_unit_rows(pass, u) * d);
}

/* ---- inner activations ------------------------------------------------------------------------------------------- */

/* Entries needed sooner have a greater key. */
static uint64_t key_of(const struct trainer *t, size_t nth) {
    return t->m->arch.n_layer * t->plan.units - nth;
}

/* Whether the plan moves it, and these volumes have room for it. nth: in the order in which backward uses them. */
static bool is_stored(const struct trainer *t, size_t nth) {
    const struct shore__fate *fate = &t->plan.plan->fate[t->plan.inner + nth];
    return fate->way == SHORE_WAY_MOVE && fate->moved < t->activations->offloaded_inner;
}

static void place_inner(const struct trainer *t, struct unit_inner *i) {
    i->kept = !shore__buf_is_none(i->place);
    i->cheap = !i->kept || i->fate->full;
    i->at = !i->kept || stores_apart(t) ? shore__inner_at(t->m, t->c->mode, i->rows, t->pass.inner, true, SHORE__NO_BUF)
                                        : shore__inner_at(t->m, t->c->mode, i->rows, i->place, i->cheap, t->pass.inner);
}

static struct unit_inner inner_of(const struct trainer *t, uint32_t layer, size_t u) {
    size_t nth = (size_t)(t->m->arch.n_layer - layer) * t->plan.units + u;
    if (layer < t->m->lowest) return (struct unit_inner){.rows = shore__pass_unit_rows(&t->pass, u)};
    return (struct unit_inner){
        .fate = shore__plan_inner(&t->facts, &t->plan, layer, u),
        .nth = nth,
        .offloaded = is_stored(t, nth),
        .rows = shore__pass_unit_rows(&t->pass, u),
        .place = t->activations->kept[(size_t)(layer - 1) * t->plan.units + u],
    };
}

int shore__train_inner_enter(struct trainer *t, uint32_t layer, size_t u, struct unit_inner *i,
                             struct shore_diag *diag) {
    *i = inner_of(t, layer, u);
    int rc = i->offloaded ? enter(t, &t->activations->inner, key_of(t, i->nth), &i->place, diag) : 0;
    if (!rc) place_inner(t, i);
    return rc;
}

int shore__train_inner_leave(struct trainer *t, const struct unit_inner *i, struct shore_diag *diag) {
    int rc = 0;
    if (i->kept && stores_apart(t))
        rc = shore__inner_store(t->m, t->c, t->pass.stream, i->rows, &i->at, i->place, i->cheap);
    if (rc) return shore__op_failed(diag, rc);
    if (!i->offloaded) return 0;
    struct passing *p = &t->activations->inner;
    rc = leave(t, p, key_of(t, i->nth), i->place, diag);
    return rc ? rc : shore_store_release(p->store, key_of(t, i->nth), diag);
}

/* Next stored pair from nth on; the number of pairs if there is none. */
static size_t next_stored(const struct trainer *t, size_t nth) {
    size_t pairs = shore__plan_pairs(&t->facts);
    while (nth < pairs && !is_stored(t, nth))
        nth++;
    return nth;
}

int shore__train_inner_want(struct trainer *t, size_t nth, struct shore_diag *diag) {
    int rc = 0;
    for (uint32_t slot = 0; !rc && slot < SHORE__OFFLOAD_SLOTS; slot++, nth++) {
        nth = next_stored(t, nth);
        if (nth == shore__plan_pairs(&t->facts)) break;
        rc = want(&t->activations->inner, key_of(t, nth), diag);
    }
    return rc;
}

static int inner_used_up(struct trainer *t, const struct unit_inner *i, struct shore_diag *diag) {
    int rc = i->offloaded ? use_up(&t->activations->inner, key_of(t, i->nth), i->place, diag) : 0;
    return rc ? rc : shore__train_inner_want(t, i->nth + 1, diag);
}

int shore__train_inner_fetch(struct trainer *t, uint32_t layer, size_t u, struct unit_inner *i,
                             struct shore_diag *diag) {
    *i = inner_of(t, layer, u);
    int rc = i->offloaded ? bring(t, &t->activations->inner, key_of(t, i->nth), &i->place, diag) : 0;
    if (!rc) place_inner(t, i);
    return rc;
}

int shore__train_inner_load(struct trainer *t, const struct unit_inner *i, struct shore_diag *diag) {
    if (!i->kept || !stores_apart(t)) return 0;
    int rc = shore__inner_load(t->m, t->c, t->pass.stream, i->rows, &i->at, i->place, i->cheap);
    return rc ? shore__op_failed(diag, rc) : inner_used_up(t, i, diag);
}

int shore__train_inner_release(struct trainer *t, const struct unit_inner *i, struct shore_diag *diag) {
    return stores_apart(t) ? 0 : inner_used_up(t, i, diag);
}

/* ---- a table's gradient ------------------------------------------------------------------------------------------ */

int shore__train_scratch_move(struct trainer *t, uint32_t slice, bool put, void *gradient, uint64_t bytes,
                              struct shore_diag *diag) {
    struct shore_activation_store *s = t->activations->slices;
    int rc = put ? shore_store_write(s, slice, gradient, bytes, diag) : shore_store_read(s, slice, gradient, diag);
    assert(rc <= 0);
    return rc || put ? rc : shore_store_drop(s, slice, diag);
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

int shore__activations_settle(struct trainer *t, struct shore_diag *diag) {
    struct activations *a = t->activations;
    struct shore_activation_store *stores[] = {a->boundaries.store, a->inner.store, a->slices};
    int rc = 0;
    for (int i = 0; i < 3; i++) {
        int failed = stores[i] ? shore_store_drop_all(stores[i], rc ? NULL : diag) : 0;
        if (!rc) rc = failed;
    }
    return rc;
}

void shore__activations_begin_step(struct trainer *t) {
    struct activations *a = t->activations;
    struct shore_activation_store *stores[] = {a->boundaries.store, a->inner.store, a->slices};
    for (int i = 0; i < 3; i++)
        if (stores[i]) shore_store_begin(stores[i], t->base_step + 1);
}

static void lay_out(struct activations *a, const struct trainer *t) {
    const struct shore__train_plan *plan = &t->plan;
    uint32_t layers = t->m->arch.n_layer;
    for (uint32_t i = 0; i < PARTS; i++) {
        a->boundaries.part[i] = shore__memory_both(&t->memory, SHORE__ROW_PASSING_BOUNDARY, i);
        a->inner.part[i] = shore__memory_both(&t->memory, SHORE__ROW_INNER_PASSING, i);
    }
    a->boundaries.bytes = shore__plan_boundary_bytes(&t->facts);
    a->inner.bytes = shore__plan_offload_bytes(&t->facts);
    for (uint32_t l = t->m->lowest; l <= layers + 1; l++) /* an offloaded boundary has none until it enters */
        a->boundary[l] = shore__memory_at(&t->memory, SHORE__ROW_BOUNDARY, l);
    for (size_t i = (t->m->lowest - 1) * plan->units; i < layers * plan->units; i++) {
        uint32_t layer = 1 + (uint32_t)(i / plan->units);
        const struct shore__fate *fate = shore__plan_inner(&t->facts, plan, layer, i % plan->units);
        if (fate->way != SHORE_WAY_KEEP) continue;
        a->kept[i] = shore__at(shore__memory_at(&t->memory, SHORE__ROW_INNER_KEPT, layer), fate->at);
    }
}

static int open_passing(struct trainer *t, struct passing *p, uint64_t from, uint64_t to, struct shore_diag *diag) {
    const struct shore_store_memory pool[PARTS] = {{p->part[0].host, p->bytes}, {p->part[1].host, p->bytes}};
    const struct shore_store_options options = {.size = sizeof options,
                                                .pool = pool,
                                                .npool = PARTS,
                                                .scratch_offset = from,
                                                .scratch_bytes = to - from,
                                                .device = &t->c->device};
    return shore_store_open(t->fleet, &options, &p->store, diag);
}

static int open_stores(struct trainer *t, struct shore_diag *diag) {
    struct activations *a = t->activations;
    uint64_t slices = shore__plan_scratch_slice(&t->facts, 0), inner = shore__plan_scratch_inner(&t->facts, 0);
    const struct shore_store_options options = {
        .size = sizeof options, .scratch_offset = slices, .scratch_bytes = inner - slices};
    int rc = 0;
    if (a->boundaries.part[0].host) rc = open_passing(t, &a->boundaries, 0, slices, diag);
    if (!rc && a->offloaded_inner)
        rc = open_passing(t, &a->inner, inner, shore__plan_scratch_inner(&t->facts, a->offloaded_inner), diag);
    if (!rc && t->m->arch.tied && !t->plan.hold_table_gradient)
        rc = shore_store_open(t->fleet, &options, &a->slices, diag);
    return rc;
}

int shore__activations_open(struct trainer *t, struct shore_diag *diag) {
    size_t n = t->m->arch.n_layer + 2, pairs = shore__plan_pairs(&t->facts);
    struct shore_fleet_info info = {.size = sizeof info};
    struct activations *a = t->activations = calloc(1, sizeof *a);
    if (!a) return shore__fail(diag, -ENOMEM, "out of memory for the trainer");
    a->boundary = calloc(n, sizeof *a->boundary);
    a->kept = calloc(t->m->arch.n_layer * t->plan.units, sizeof *a->kept);
    if (!a->boundary || !a->kept) return shore__fail(diag, -ENOMEM, "out of memory for the trainer");
    lay_out(a, t);
    /* volumes made without room for scratch have less of it */
    shore_fleet_info(t->fleet, &info);
    size_t moved = 0;
    for (size_t i = 0; i < pairs; i++)
        moved += t->plan.plan->fate[t->plan.inner + i].way == SHORE_WAY_MOVE;
    while (a->offloaded_inner < moved &&
           shore__plan_scratch_inner(&t->facts, a->offloaded_inner + 1) <= info.scratch_bytes)
        a->offloaded_inner++;
    if (a->offloaded_inner < moved)
        train_note(t, "these volumes were made without room for inner activations: those that do not fit in memory are "
                      "recomputed");
    return open_stores(t, diag);
}

void shore__activations_close(struct activations *a) {
    if (!a) return;
    shore_store_close(a->boundaries.store);
    shore_store_close(a->inner.store);
    shore_store_close(a->slices);
    free(a->boundary);
    free(a->kept);
    free(a);
}
