/* Facts of a run's plan, and the places of the trainer's buffers in it. */
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "longshore/trace.h"
#include "pass/costs.h"
#include "run/emulation/tempo.h"
#include "train/trainer.h"

struct shore__facts shore__train_facts_of(const struct shore__settings *s, const struct shore__model *m) {
    struct shore__facts f = {
        .model = m,
        .machine = s->machine,
        .batch = shore__batch_shape(s->batch, s->seq_len),
        .mode = s->fp32 ? SHORE__F32 : SHORE__BF16,
        .one_memory = true,
        .scratch = !shore__settings_in_ram(s),
        .remote = shore__addresses_away(&s->drives),
        .compressed = s->compress > 0,
        .compress = s->compress,
        .gradient_bf16 = s->gradient_bf16,
        .host_update = s->host_update,
        .never_speculates = s->speculate == SHORE__OFF,
        .samples = s->sample_every != 0,
        .tokens = s->model || (s->tokenizer && strcmp(s->tokenizer, "bytes") != 0) ? m->arch.vocab : 0,
        .offload = s->offload,
        .gather = s->gather,
    };
    shore__run_fleet_options(s, 0, false, &f.drives);
    if (s->trace) f.trace_bytes = shore_trace_memory_bytes(f.drives.ndrives);
    return f;
}

/* LONGSHORE_POLICY: what plans all activations, to compare the planner with. */
static int read_policy(enum shore_policy *policy, struct shore_diag *diag) {
    static const char *const names[SHORE_POLICIES] = {"planned", "keep", "again", "move", "order"};
    const char *asked = getenv("LONGSHORE_POLICY");
    for (int p = 0; asked && p < SHORE_POLICIES; p++)
        if (!strcmp(asked, names[p])) {
            *policy = (enum shore_policy)p;
            return 0;
        }
    return asked ? shore__fail(diag, SHORE_EUSAGE,
                               "LONGSHORE_POLICY=%.32s is none of planned, keep, again, move and order", asked)
                 : 0;
}

/* What the drives may write in a day, together: the first one to reach its own limit stops all. */
static int limit_writes(const struct shore__settings *s, struct shore__facts *f, struct shore_diag *diag) {
    if (!s->max_writes) return 0;
    uint64_t *each = calloc(s->drives.count + 1, sizeof *each);
    struct shore__costing costing = {0};
    int rc = each ? shore__settings_max_writes(s, &f->written_per_day_most, each, diag) : shore__out_of_memory(diag);
    if (!rc) rc = shore__costing_open(&costing, f, NULL, diag);
    for (uint32_t d = 0; !rc && d < s->drives.count; d++) {
        double share = shore__costing_share(&costing, d), all = share > 0 ? (double)each[d] / share : 0;
        if (all > 0 && (!f->written_per_day_most || all < (double)f->written_per_day_most))
            f->written_per_day_most = (uint64_t)all;
    }
    shore__costing_close(&costing);
    free(each);
    return rc;
}

int shore__train_facts(const struct shore__settings *s, const struct shore__model *m, const struct shore__tempo *tempo,
                       struct shore__facts *out, struct shore_diag *diag) {
    *out = shore__train_facts_of(s, m);
    struct shore__shapes shapes = shore__batch_shapes(m, &out->batch, true);
    struct shore__compute_options options = shore__settings_compute(s);
    struct shore__compute_description compute;
    int rc = read_policy(&out->policy, diag);
    if (!rc) rc = shore__compute_describe(&options, &shapes, &compute, diag);
    if (!rc) rc = shore__compress_bytes(s, m, compute.threads, &out->compression_bytes, diag);
    if (rc) return rc;
    out->mode = compute.mode;
    out->products = compute.products;
    out->threads = compute.threads;
    out->workspace_bytes = compute.workspace_bytes;
    out->packed_bytes = compute.packed_bytes;
    out->heap_bytes = compute.heap_bytes;
    out->products_allocate = compute.allocates;
    out->one_memory = compute.one_memory;
    shore__tempo_facts(tempo, out);
    return limit_writes(s, out, diag);
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

int shore__train_lay_out(struct trainer *t, const struct shore__memory *memory, struct shore_diag *diag) {
    const struct shore__parameters_of of = {.model = t->m, .fleet = t->fleet};
    int rc = shore__pass_lay_out(&t->pass, &t->facts.batch, memory, diag);
    if (rc) return rc;
    t->pass.nkept = t->plan.kept_logits;
    t->pass.kept_units = t->plan.head_units;
    t->pass.kept_logits = shore__memory_at(memory, SHORE__ROW_LOGITS_KEPT, 0);
    t->dx = shore__memory_at(memory, SHORE__ROW_DX, 0);
    t->dx_f32 = shore__memory_at(memory, SHORE__ROW_DX_FP32, 0);
    t->dlogits = shore__memory_at(memory, SHORE__ROW_DLOGITS, 0);
    t->scratch = shore__memory_at(memory, SHORE__ROW_BACKWARD_SCRATCH, 0);
    t->table_gradient = shore__memory_host(memory, SHORE__ROW_TABLE_GRADIENT, 0);
    t->table_there = shore__memory_at(memory, SHORE__ROW_TABLE_GRADIENT, 0);
    t->table_narrow = shore__memory_host(memory, SHORE__ROW_TABLE_GRADIENT_BF16, 0);
    rc = shore__parameters_open(&of, t->c, t->pass.stream, memory, &t->pass.parameters, diag);
    if (rc) return rc;
    t->pass.pages = shore__parameters_pages(t->pass.parameters);
    if (!t->plan.gathers) return 0;
    t->lookups = (struct shore__lookups){
        .m = t->m, .c = t->c, .stream = t->pass.stream, .fleet = t->fleet, .pages = t->pass.pages};
    t->pass.lookups = &t->lookups;
    return shore__lookups_open(&t->lookups, &t->facts, memory, diag);
}
