#include "train/experts.h"

#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "train/trainer.h"

struct experts {
    uint32_t layers, count; /* count: experts of a layer */
    uint32_t *missed;       /* [layers, count]: committed steps that brought no row, as the blob has them */
    struct shore__both load, balance;
};

static uint32_t blob_bytes(const struct experts *e) {
    return e->layers * e->count * (uint32_t)sizeof *e->missed;
}

int shore__experts_open(struct trainer *t, struct shore_diag *diag) {
    const struct shore__arch *a = &t->m->arch;
    struct experts *e = t->experts;
    uint32_t bytes = SHORE_BLOB_BYTES;
    if (!a->experts) return 0;
    if (!e) {
        e = t->experts = calloc(1, sizeof *e);
        if (!e || !(e->missed = malloc(SHORE_BLOB_BYTES))) return shore__out_of_memory(diag);
        e->layers = a->n_layer;
        e->count = a->experts;
        e->load = shore__memory_both(&t->memory, SHORE__ROW_EXPERTS_LOAD, 0);
        e->balance = shore__memory_both(&t->memory, SHORE__ROW_EXPERTS_BALANCE, 0);
    }
    int rc = shore_fleet_blob(t->fleet, e->missed, &bytes, diag);
    if (rc) return rc;
    if (bytes && bytes != blob_bytes(e))
        return shore__fail(diag, SHORE_ECORRUPT, "the drives hold %u bytes about this run's experts instead of %u",
                           bytes, blob_bytes(e));
    if (!bytes) memset(e->missed, 0, blob_bytes(e)); /* before the first step */
    return 0;
}

void shore__experts_close(struct experts *e) {
    if (e) free(e->missed);
    free(e);
}

static bool balances(const struct trainer *t) {
    return t->experts && t->m->arch.balance > 0;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Of a layer: how often each expert was chosen, then the sums of its probabilities. */
static double *load_of(const struct experts *e, uint32_t layer) {
    return (double *)e->load.host + (size_t)(layer - 1) * 2 * e->count;
}
static size_t load_bytes(const struct experts *e) {
    return (size_t)e->layers * 2 * e->count * sizeof(double);
}

int shore__experts_begin(struct trainer *t, struct shore_diag *diag) {
    struct experts *e = t->experts;
    return e ? shore__op_failed(diag, t->c->ops->zero(t->c, t->pass.stream, e->load.device, load_bytes(e))) : 0;
}

int shore__experts_count(struct trainer *t, uint32_t layer, const struct unit_inner *unit, struct shore_diag *diag) {
    struct experts *e = t->experts;
    if (!e) return 0;
    const struct shore__routing routing = shore__model_routing(t->m, t->c->mode);
    shore__buf load = shore__at(e->load.device, (size_t)(layer - 1) * 2 * e->count * sizeof(double));
    const shore__buf logits = balances(t) ? unit->at.at[SHORE__ROUTER] : SHORE__NO_BUF; /* for its sums alone */
    return shore__op_failed(diag, t->c->ops->route_count(t->c, t->pass.stream, load, logits, unit->at.at[SHORE__ROUTE],
                                                         unit->rows, &routing));
}

/* transformers' load_balancing_loss_func: over the rows of all layers, the sum over experts of the share of rows that
 * chose it times its mean probability, times the number of experts. */
int shore__experts_counted(struct trainer *t, double *loss, struct shore_diag *diag) {
    struct experts *e = t->experts;
    *loss = 0;
    if (!e) return 0;
    int rc = shore__op_failed(diag, shore__get(t->c, t->pass.stream, e->load.host, e->load.device, load_bytes(e)));
    if (!rc) rc = shore__sync(t->c, t->pass.stream, diag);
    if (rc || !balances(t)) return rc;
    double rows = (double)e->layers * (double)shore__pass_rows(&t->pass);
    for (uint32_t i = 0; i < e->count; i++) {
        double chosen = 0, probability = 0;
        for (uint32_t l = 1; l <= e->layers; l++) {
            chosen += load_of(e, l)[i];
            probability += load_of(e, l)[e->count + i];
        }
        double scale = t->m->arch.balance * e->count * (chosen / rows) / rows;
        ((float *)e->balance.host)[i] = (float)scale;
        *loss += scale * probability;
    }
    return shore__op_failed(
        diag, shore__put(t->c, t->pass.stream, e->balance.device, e->balance.host, e->count * sizeof(float)));
}

shore__buf shore__experts_balance(const struct trainer *t) {
    return balances(t) ? t->experts->balance.device : SHORE__NO_BUF;
}

/* ---- updates ----------------------------------------------------------------------------------------------------- */

static bool is_missed(const struct experts *e, uint32_t layer, uint32_t expert) {
    return !(load_of(e, layer)[expert] > 0);
}

void shore__experts_groups(const struct trainer *t, uint32_t layer, struct shore_hyper *groups) {
    const struct experts *e = t->experts;
    uint64_t step = t->s->updates_before + t->base_step + 1;
    for (uint32_t g = SHORE__MODEL_GROUPS; e && g < t->m->ngroups; g++) {
        uint32_t expert = (g - SHORE__MODEL_GROUPS) / SHORE__MODEL_GROUPS;
        groups[g] = groups[g % SHORE__MODEL_GROUPS];
        groups[g].frozen = is_missed(e, layer, expert);
        shore_hyper_at_step(&groups[g], t->s->optimizer, step - e->missed[(size_t)(layer - 1) * e->count + expert]);
    }
}

void shore__experts_commit(struct trainer *t, bool skipped, struct shore_commit *commit) {
    struct experts *e = t->experts;
    if (!e) return;
    for (uint32_t l = 1; l <= e->layers && !skipped; l++)
        for (uint32_t i = 0; i < e->count; i++)
            e->missed[(size_t)(l - 1) * e->count + i] += is_missed(e, l, i);
    commit->blob = e->missed;
    commit->blob_bytes = blob_bytes(e);
}
