#include <errno.h>
#include <stdlib.h>

#include "base/diag.h"
#include "base/units.h"
#include "train/offload.h"
#include "train/trainer.h"

/* Between memory and scratch. */
struct scratch_transfer {
    struct shore_wait wait;
    bool pending, back; /* back: from scratch */
};

struct activations {
    shore__buf *boundary; /* [n_layer + 2]: input of layer l at l, input of the head at n_layer + 1 */
    struct scratch_transfer *boundary_transfer; /* the same */
    unsigned char (*boundary_seal)[16];         /* the same */
    shore__buf *kept;                           /* [layers * units]: inner activations, or none */
    unsigned char (*inner_seal)[16];            /* the same */
    struct shore__both passing[2];              /* boundaries that are not kept take turns in them */
    struct shore__both offload_slot[SHORE__OFFLOAD_SLOTS];
    struct scratch_transfer offload_transfer[SHORE__OFFLOAD_SLOTS];
    unsigned char (*slice_seal)[16]; /* of a tied table's gradient */
    size_t offloaded_inner;          /* of plan.offloaded_inner, those that these volumes have room for */
    struct offload offload;
    size_t offloading; /* in this step: instead of being computed again */
};

/* ---- on their way to scratch, or back ------------------------------------------------------------------------------
 */

static int transfer_wait(struct trainer *t, struct scratch_transfer *x, struct shore_diag *diag) {
    if (!x->pending) return 0;
    uint64_t start = shore__now_ns();
    int rc = shore_wait(&x->wait, diag);
    t->waits.drives_ns += shore__now_ns() - start;
    x->pending = false;
    return rc;
}

/* Starts a transfer, after the one before it; seal: made by a put, checked by a get. memory is the transfer's until it
 * has been waited for. what: for the message. */
static int transfer(struct trainer *t, struct scratch_transfer *x, bool put, const char *what, uint64_t offset,
                    uint64_t bytes, void *memory, unsigned char seal[16], struct shore_diag *diag) {
    int rc = transfer_wait(t, x, diag);
    if (rc) return rc;
    shore_wait_init(&x->wait);
    struct shore_completion done = shore_wait_completion(&x->wait);
    rc = put ? shore_fleet_scratch_put(t->fleet, offset, bytes, memory, seal, done)
             : shore_fleet_scratch_get(t->fleet, offset, bytes, memory, seal, done);
    x->pending = !rc;
    x->back = !put;
    return rc ? shore__fail(diag, rc, "%s cannot be %s: %s", what, put ? "stored" : "read back", shore_error_text(rc))
              : 0;
}

/* The same between scratch and memory that the device has too: what goes has come from there before, and what has come
 * back is put there once it has been waited for. */
static int both_transfer(struct trainer *t, struct scratch_transfer *x, bool put, uint64_t offset, uint64_t bytes,
                         struct shore__both memory, unsigned char seal[16], struct shore_diag *diag) {
    int rc = put ? train_get(t, memory.host, memory.device, bytes, diag) : shore__sync(t->c, t->pass.stream, diag);
    return rc ? rc : transfer(t, x, put, "activations", offset, bytes, memory.host, seal, diag);
}

static int both_wait(struct trainer *t, struct scratch_transfer *x, uint64_t bytes, struct shore__both memory,
                     struct shore_diag *diag) {
    bool back = x->pending && x->back;
    int rc = transfer_wait(t, x, diag);
    if (rc || !back) return rc;
    return train_op_failed(diag, t->c->ops->put(t->c, t->pass.stream, memory.device, memory.host, bytes));
}

/* ---- boundaries ----------------------------------------------------------------------------------------------------
 */

/* Where products widen bf16, what is kept for backward is stored as bf16 beside what is computed with; elsewhere it is
 * computed with where it is kept. */
static bool stores_apart(const struct trainer *t) {
    return shore__stored_mode(t->c->mode) != t->c->mode;
}

shore__buf shore__boundary(const struct trainer *t, uint32_t layer) {
    return t->activations->boundary[layer];
}

/* Then all layers work on the head's input, in place. */
shore__buf shore__boundary_working(const struct trainer *t, uint32_t layer) {
    return shore__boundary(t, stores_apart(t) ? t->m->arch.n_layer + 1 : layer);
}

static int boundary_move(struct trainer *t, uint32_t layer, bool put, struct shore_diag *diag) {
    if (layer < 1 || layer > t->m->arch.n_layer + 1 - t->plan.kept_boundaries) return 0;
    struct activations *a = t->activations;
    return both_transfer(t, &a->boundary_transfer[layer], put, shore__plan_scratch_boundary(&t->facts, layer),
                         shore__plan_boundary_bytes(&t->facts), a->passing[layer % 2], a->boundary_seal[layer], diag);
}

int shore__boundary_leave(struct trainer *t, uint32_t layer, struct shore_diag *diag) {
    if (stores_apart(t)) {
        int rc = t->c->ops->store(t->c, t->pass.stream, shore__boundary(t, layer), shore__boundary_working(t, layer),
                                  shore__pass_rows(&t->pass) * t->m->arch.d_model);
        if (rc) return train_op_failed(diag, rc);
    }
    return boundary_move(t, layer, true, diag);
}

int shore__boundary_fetch(struct trainer *t, uint32_t layer, struct shore_diag *diag) {
    return boundary_move(t, layer, false, diag);
}

int shore__boundary_wait(struct trainer *t, uint32_t layer, struct shore_diag *diag) {
    struct activations *a = t->activations;
    return both_wait(t, &a->boundary_transfer[layer], shore__plan_boundary_bytes(&t->facts), a->passing[layer % 2],
                     diag);
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

/* ---- inner activations ---------------------------------------------------------------------------------------------
 */

static bool is_offloaded(const struct trainer *t, size_t nth) {
    return nth >= t->plan.kept_inner && nth - t->plan.kept_inner < t->activations->offloading;
}

struct unit_inner shore__train_inner_of(const struct trainer *t, uint32_t layer, size_t u) {
    size_t nth = (size_t)(t->m->arch.n_layer - layer) * t->plan.units + u;
    struct unit_inner i = {
        .nth = nth,
        .rows = shore__pass_unit_rows(&t->pass, u),
        .place = t->activations->kept[(size_t)(layer - 1) * t->plan.units + u],
        .offloaded = is_offloaded(t, nth),
    };
    if (i.offloaded) i.place = t->activations->offload_slot[nth % SHORE__OFFLOAD_SLOTS].device;
    i.kept = !shore__buf_is_none(i.place);
    i.stays = i.kept && !i.offloaded && !stores_apart(t);
    i.cheap = !i.kept || nth < t->plan.full_inner;
    i.at = !i.kept || stores_apart(t) ? shore__inner_at(t->m, t->c->mode, i.rows, t->pass.inner, true, SHORE__NO_BUF)
                                      : shore__inner_at(t->m, t->c->mode, i.rows, i.place, i.cheap, t->pass.inner);
    return i;
}

static int inner_move(struct trainer *t, size_t nth, bool put, struct shore_diag *diag) {
    size_t slot = nth % SHORE__OFFLOAD_SLOTS;
    uint64_t before = t->waits.drives_ns; /* for the one that the slot is used by */
    struct activations *a = t->activations;
    int rc = both_transfer(t, &a->offload_transfer[slot], put,
                           shore__plan_scratch_inner(&t->facts, nth - t->plan.kept_inner),
                           shore__plan_offload_bytes(&t->facts), a->offload_slot[slot], a->inner_seal[nth], diag);
    t->waits.scratch_ns += t->waits.drives_ns - before;
    return rc;
}

static int slot_wait(struct trainer *t, const struct unit_inner *i, struct shore_diag *diag) {
    uint64_t before = t->waits.drives_ns;
    struct activations *a = t->activations;
    size_t slot = i->nth % SHORE__OFFLOAD_SLOTS;
    int rc = i->offloaded ? both_wait(t, &a->offload_transfer[slot], shore__plan_offload_bytes(&t->facts),
                                      a->offload_slot[slot], diag)
                          : 0;
    t->waits.scratch_ns += t->waits.drives_ns - before;
    return rc;
}

static int fetch_next(struct trainer *t, const struct unit_inner *i, struct shore_diag *diag) {
    size_t next = i->nth + SHORE__OFFLOAD_SLOTS;
    return i->offloaded && is_offloaded(t, next) ? inner_move(t, next, false, diag) : 0;
}

int shore__train_inner_enter(struct trainer *t, const struct unit_inner *i, struct shore_diag *diag) {
    return stores_apart(t) ? 0 : slot_wait(t, i, diag);
}

int shore__train_inner_leave(struct trainer *t, const struct unit_inner *i, struct shore_diag *diag) {
    int rc = slot_wait(t, i, diag);
    if (rc) return rc;
    if (i->kept && stores_apart(t))
        rc = shore__inner_store(t->m, t->c, t->pass.stream, i->rows, &i->at, i->place, i->cheap);
    if (rc) return train_op_failed(diag, rc);
    return i->offloaded ? inner_move(t, i->nth, true, diag) : 0;
}

int shore__train_inner_load(struct trainer *t, const struct unit_inner *i, const struct shore__inner *at,
                            struct shore_diag *diag) {
    int rc = slot_wait(t, i, diag);
    if (rc || !i->kept) return rc;
    if (stores_apart(t)) {
        rc = shore__inner_load(t->m, t->c, t->pass.stream, i->rows, at, i->place, i->cheap);
        return rc ? train_op_failed(diag, rc) : fetch_next(t, i, diag);
    }
    if (at->attn.handle == i->at.attn.handle) return 0;
    return train_op_failed(diag, t->c->ops->copy(t->c, t->pass.stream, at->attn, i->at.attn,
                                                 i->rows * t->m->attn_width * shore__mode_bytes(t->c->mode)));
}

int shore__train_inner_release(struct trainer *t, const struct unit_inner *i, struct shore_diag *diag) {
    return stores_apart(t) ? 0 : fetch_next(t, i, diag);
}

int shore__train_inner_fetch_first(struct trainer *t, struct shore_diag *diag) {
    int rc = 0;
    for (size_t i = 0; !rc && i < SHORE__OFFLOAD_SLOTS; i++)
        if (is_offloaded(t, t->plan.kept_inner + i)) rc = inner_move(t, t->plan.kept_inner + i, false, diag);
    return rc;
}

/* ---- a table's gradient --------------------------------------------------------------------------------------------
 */

int shore__train_scratch_move(struct trainer *t, uint32_t slice, bool put, void *gradient, uint64_t bytes,
                              struct shore_diag *diag) {
    struct scratch_transfer x = {.pending = false};
    int rc = transfer(t, &x, put, "gradients", shore__plan_scratch_slice(&t->facts, slice), bytes, gradient,
                      t->activations->slice_seal[slice], diag);
    return rc ? rc : transfer_wait(t, &x, diag);
}

/* ---- all of them ---------------------------------------------------------------------------------------------------
 */

int shore__activations_settle(struct trainer *t, struct shore_diag *diag) {
    int rc = 0;
    for (uint32_t l = 1; !rc && l <= t->m->arch.n_layer; l++)
        rc = transfer_wait(t, &t->activations->boundary_transfer[l], diag);
    for (size_t i = 0; !rc && i < SHORE__OFFLOAD_SLOTS; i++)
        rc = transfer_wait(t, &t->activations->offload_transfer[i], diag);
    return rc;
}

void shore__activations_give_up(struct trainer *t) {
    while (shore__activations_settle(t, NULL)) {
    }
}

void shore__activations_begin_step(struct trainer *t) {
    struct activations *a = t->activations;
    a->offloading = t->s->offload == SHORE__ON ? a->offloaded_inner : a->offload.pairs;
}

void shore__activations_weigh(struct trainer *t, double for_scratch, double for_drives) {
    shore__offload_weigh(&t->activations->offload, for_scratch, for_drives);
}

static void place(struct activations *a, const struct trainer *t) {
    const struct shore__train_plan *plan = &t->plan;
    uint32_t layers = t->m->arch.n_layer;
    for (uint32_t i = 0; i < 2; i++)
        a->passing[i] = shore__memory_both(&t->memory, SHORE__ROW_PASSING_BOUNDARY, i);
    for (uint32_t l = 1; l <= layers + 1; l++) {
        bool kept = l > layers + 1 - plan->kept_boundaries;
        a->boundary[l] = kept ? shore__memory_at(&t->memory, SHORE__ROW_BOUNDARY, l) : a->passing[l % 2].device;
    }
    for (size_t i = 0; i < plan->kept_inner; i++) {
        uint32_t layer = layers - (uint32_t)(i / plan->units);
        uint64_t first = shore__plan_kept_bytes(&t->facts, plan, i - i % plan->units);
        a->kept[(layer - 1) * plan->units + i % plan->units] =
            shore__at(shore__memory_at(&t->memory, SHORE__ROW_INNER_KEPT, layer),
                      shore__plan_kept_bytes(&t->facts, plan, i) - first);
    }
    for (uint32_t i = 0; i < SHORE__OFFLOAD_SLOTS; i++)
        a->offload_slot[i] = shore__memory_both(&t->memory, SHORE__ROW_INNER_PASSING, i);
}

int shore__activations_open(struct trainer *t, struct shore_diag *diag) {
    size_t n = t->m->arch.n_layer + 2, pairs = t->m->arch.n_layer * t->plan.units;
    struct shore_fleet_info info = {.size = sizeof info};
    struct activations *a = t->activations = calloc(1, sizeof *a);
    if (!a) return shore__fail(diag, -ENOMEM, "out of memory for the trainer");
    a->boundary = calloc(n, sizeof *a->boundary);
    a->boundary_transfer = calloc(n, sizeof *a->boundary_transfer);
    a->boundary_seal = calloc(n, sizeof *a->boundary_seal);
    a->kept = calloc(pairs, sizeof *a->kept);
    a->inner_seal = calloc(pairs, sizeof *a->inner_seal);
    a->slice_seal = calloc(t->m->nslices, sizeof *a->slice_seal);
    if (!a->boundary || !a->boundary_transfer || !a->boundary_seal || !a->kept || !a->inner_seal || !a->slice_seal)
        return shore__fail(diag, -ENOMEM, "out of memory for the trainer");
    place(a, t);
    /* volumes that were made without room for them have less */
    shore_fleet_info(t->fleet, &info);
    while (a->offloaded_inner < t->plan.offloaded_inner &&
           shore__plan_scratch_inner(&t->facts, a->offloaded_inner + 1) <= info.scratch_bytes)
        a->offloaded_inner++;
    a->offload = shore__offload_begin(a->offloaded_inner, t->plan.units);
    if (a->offloaded_inner < t->plan.offloaded_inner && t->events->note)
        t->events->note(t->events->ctx, "these volumes were made without room for inner activations: what memory does "
                                        "not hold of them is computed again");
    return 0;
}

void shore__activations_close(struct activations *a) {
    if (!a) return;
    free(a->boundary);
    free(a->boundary_transfer);
    free(a->boundary_seal);
    free(a->kept);
    free(a->inner_seal);
    free(a->slice_seal);
    free(a);
}
