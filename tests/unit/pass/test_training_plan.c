/* What a budget buys: the plan of a step for random models, batches and budgets. */
#include <math.h>

#include "unit/plan/random_models.h"

#include "machine/machine.h"
#include "pass/describe.h"
#include "seed.h"
#include "unit/plan/lifetimes.h"

enum { CASES = 24, BUDGETS = 24 };

static struct shore__facts random_facts(const struct shore__model *m, uint64_t *draw) {
    static const char *const ram[] = {"ram:", "ram:", "ram:"};
    static const char *const local[] = {"/tmp/a", "/tmp/b", "/tmp/c"};
    static const char *const remote[] = {"ssh://host/a", "ssh://host/b", "ssh://host/c"};
    uint32_t where = pick(draw, 0, 2), compressed = !pick(draw, 0, 3);
    bool scratch = where != 0;
    struct shore__facts f = {
        .model = m,
        .batch = shore__batch_shape(pick(draw, 1, 12), (size_t)32 << pick(draw, 0, 4)),
        .mode = (enum shore__mode)pick(draw, 0, 2),
        .threads = (int)pick(draw, 1, 8),
        .workspace_bytes = pick(draw, 0, 64 << 20),
        .packed_bytes = pick(draw, 0, 1) ? pick(draw, 1, 64 << 20) : 0,
        .one_memory = pick(draw, 0, 3),
        .scratch = scratch,
        .remote = where == 2,
        .ring_bytes_most = scratch && !pick(draw, 0, 3) ? pick(draw, 0, 1) * UINT64_C(3) << 20 : 0,
        .compressed = compressed,
        .gradient_bf16 = !compressed && pick(draw, 0, 1),
        .host_update = scratch && !compressed && !pick(draw, 0, 3),
        .samples = pick(draw, 0, 1),
        .offload = (enum shore__when)pick(draw, 0, 2),
        .compression_bytes = compressed ? pick(draw, 1, 1 << 24) : 0,
    };
    f.drives = (struct shore_fleet_options){
        .size = sizeof f.drives,
        .drives = where == 0   ? ram
                  : where == 1 ? local
                               : remote,
        .ndrives = pick(draw, 1, 3),
        .optimizer = SHORE_ADAMW,
        .fp32_params = f.mode == SHORE__F32,
    };
    f.gather = pick(draw, 0, 1) ? SHORE__ON : SHORE__OFF;
    return f;
}

struct plan_case {
    struct shore__model *m;
    struct shore__facts f;
    struct shore__needs needs;
};

static struct plan_case random_case(uint64_t index) {
    struct plan_case x = {0};
    struct shore__train_plan plan;
    struct shore_diag diag = {0};
    uint64_t draw = 0;
    stream = index;
    x.m = random_model(&draw);
    x.f = random_facts(x.m, &draw);
    if (shore__plan_training(&x.f, 0, &plan, &x.needs, &diag)) fail_msg("case %" PRIu64 ": %s", index, diag.text);
    shore__train_plan_close(&plan);
    return x;
}

static void end_case(struct plan_case *x) {
    shore__model_free(x->m);
}

static void check_apart(const struct shore__region_list *rows, const struct shore__region *a,
                        const struct shore__region *b) {
    if (a->place != b->place || a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset) return;
    for (uint32_t phase = 0; a->bytes && b->bytes && phase < rows->phases; phase++)
        if (live_in(a, rows->phases, phase) && live_in(b, rows->phases, phase))
            fail_msg("%s %u and %s %u share a place in phase %u", a->name, a->index, b->name, b->index, phase);
}

static uint64_t row_bytes(const struct shore__region_list *rows, enum shore__row key, uint32_t index) {
    const struct shore__region *row = shore__regions_find(rows, key, index);
    return row ? row->bytes : 0;
}

static uint64_t total_bytes(const struct shore_plan *plan) {
    struct shore_plan_sums sums = {.size = sizeof sums};
    shore_plan_sums(plan, &sums);
    return sums.total_bytes;
}

/* Every row lies in the stretch that is counted, and those of a name and number are there once, or once on each side.
 */
static void check_rows(const struct plan_case *x, const struct shore__train_plan *p) {
    const struct shore__region_list *rows = &p->plan->rows;
    uint64_t sum = 0;
    for (uint32_t k = 0; k < SHORE_PLACES; k++)
        sum += rows->bytes[k];
    for (uint32_t i = 0; i < p->program->ntensors; i++)
        if (p->program->tensor[i].own) sum += p->plan->fate[i].bytes * p->plan->fate[i].count;
    assert_int_equal(sum, total_bytes(p->plan));
    for (uint32_t i = 0; i < rows->count; i++) {
        const struct shore__region *row = &rows->item[i];
        assert_true(row->offset + row->bytes <= rows->bytes[row->place]);
        const struct shore__region *first = shore__regions_find(rows, row->key, row->index);
        assert_true(first == row || (first->place == SHORE_PLACE_DEVICE && row->place == SHORE_PLACE_PINNED));
        for (uint32_t k = 0; k < i; k++)
            check_apart(rows, row, &rows->item[k]);
    }
    for (uint32_t l = 1; l <= x->m->arch.n_layer; l++) {
        uint64_t kept = 0;
        for (size_t u = 0; u < p->units; u++) {
            const struct shore__fate *unit = shore__plan_inner(&x->f, p, l, u);
            if (unit->way != SHORE_WAY_KEEP) continue;
            assert_int_equal(unit->at, kept);
            kept += unit->bytes;
        }
        assert_int_equal(row_bytes(rows, SHORE__ROW_INNER_KEPT, l), kept);
    }
    assert_true(row_bytes(rows, SHORE__ROW_SAMPLE, 0) >=
                (x->f.samples ? shore__generate_bytes(x->m, x->f.mode, 1) : 0));
}

/* What was chosen, and summed: of a plan that is closed again. */
struct chosen {
    size_t layers, tables, lookups, buffers, inputs, inner, full_inner, moved_inner;
    struct shore__train_plan p;
    uint64_t bytes;
};

static struct chosen counted(const struct shore__facts *f, const struct shore__train_plan *p) {
    const struct shore__model *m = f->model;
    struct chosen c = {.p = *p, .bytes = total_bytes(p->plan)};
    for (uint32_t i = 0; i < p->program->ntensors; i++) {
        const struct shore_tensor *t = &p->program->tensor[i];
        const struct shore__fate *fate = &p->plan->fate[i];
        bool kept = fate->way == SHORE_WAY_KEEP;
        if (t->key == SHORE__ROW_LAYER_BUFFER) c.buffers = fate->count;
        if (t->key == SHORE__ROW_BOUNDARY) c.inputs += kept;
        if (t->key == SHORE__ROW_INNER_KEPT) {
            c.inner += kept;
            c.full_inner += kept && fate->full;
            c.moved_inner += fate->way == SHORE_WAY_MOVE;
        }
        if (t->key != SHORE__ROW_PAGE || !kept) continue;
        struct shore__page_id id = shore__page_at(m, t->index);
        if (id.kind == SHORE__PAGE_LAYER) c.layers++;
        if (id.kind == SHORE__PAGE_SLICE) *(id.block == shore__model_table_block(m) ? &c.tables : &c.lookups) += 1;
    }
    return c;
}

static struct chosen plan_of(const struct plan_case *x, uint64_t budget) {
    struct shore__train_plan plan;
    struct shore_diag diag = {0};
    if (shore__plan_training(&x->f, budget, &plan, NULL, &diag)) fail_msg("%" PRIu64 ": %s", budget, diag.text);
    check_rows(x, &plan);
    struct chosen chosen = counted(&x->f, &plan);
    shore__train_plan_close(&plan);
    return chosen;
}

static void check_bounds(const struct plan_case *x, const struct chosen *chosen, uint64_t budget) {
    const struct shore__train_plan *p = &chosen->p;
    const struct chosen *c = chosen;
    const struct shore__model *m = x->m;
    size_t pairs = m->arch.n_layer * p->units;
    assert_in_range(chosen->bytes, 1, budget);
    assert_in_range(c->layers, 0, m->arch.n_layer);
    assert_in_range(c->tables, 0, m->nslices);
    assert_in_range(c->lookups, 0, m->arch.tied ? 0 : m->nslices);
    assert_in_range(c->buffers, c->layers < m->arch.n_layer, 2);
    assert_in_range(c->inputs, 0, m->arch.n_layer + 1);
    assert_in_range(c->inner, 0, pairs);
    assert_in_range(c->full_inner, 0, c->inner);
    assert_in_range(c->moved_inner, 0, pairs - c->inner);
    assert_in_range(p->head_units, 1, p->units);
    assert_in_range(p->kept_logits, 0, m->nslices * p->head_units);
    assert_in_range(p->gradient_buffers, 1, m->arch.n_layer + 2 * m->nslices + 1);
}

/* With more memory, room for holes in the heap comes first, and is not given up for what comes after it. No other count
 * grows with the budget in all models: the search takes what makes the step shortest. */
static void no_plan_is_above_its_budget(void **state) {
    for (uint64_t i = 0; i < CASES; i++) {
        struct plan_case x = random_case(i);
        double least = (double)x.needs.minimum_bytes, most = (double)x.needs.comfortable_bytes * 1.1;
        struct chosen before = {.layers = 0};
        for (int b = 0; b <= BUDGETS; b++) {
            uint64_t budget = (uint64_t)(least + (most - least) * b / BUDGETS);
            struct chosen p = plan_of(&x, budget);
            check_bounds(&x, &p, budget);
            assert_true(p.p.hole_bytes >= before.p.hole_bytes);
            before = p;
        }
        end_case(&x);
    }
}

static double seconds_of(const struct shore__facts *f, enum shore_policy policy, uint64_t budget) {
    struct shore__facts with = *f;
    struct shore__train_plan plan;
    struct shore_diag diag = {0};
    struct shore_plan_times times = {.size = sizeof times};
    with.policy = policy;
    if (shore__plan_training(&with, budget, &plan, NULL, &diag)) fail_msg("%" PRIu64 ": %s", budget, diag.text);
    assert_int_equal(shore_plan_times(plan.plan, &times), 0);
    shore__train_plan_close(&plan);
    return times.step_seconds;
}

static void no_policy_makes_a_shorter_step(void **state) {
    uint64_t shorter = 0;
    for (uint64_t i = 0; i < CASES; i++) {
        struct plan_case x = random_case(i);
        for (int b = 0; b <= 4; b++) {
            uint64_t budget = x.needs.minimum_bytes + (x.needs.comfortable_bytes - x.needs.minimum_bytes) / 4 * b;
            double planned = seconds_of(&x.f, SHORE_POLICY_PLANNED, budget), best = INFINITY;
            for (int policy = SHORE_POLICY_KEEP; policy < SHORE_POLICIES; policy++)
                best = fmin(best, seconds_of(&x.f, (enum shore_policy)policy, budget));
            if (planned > best * (1 + 1e-9))
                fail_msg("SEED=%" PRIu64 " case %" PRIu64 ": %g s, not %g s", seed, i, planned, best);
            shorter += planned < best * 0.999;
        }
        end_case(&x);
    }
    assert_in_range(shorter, CASES / 4, 5 * CASES); /* the search finds something */
}

/* That activations may move makes no step longer than the same policies' where they may not. */
static void drives_that_may_take_activations_make_no_step_longer(void **state) {
    uint64_t shorter = 0;
    for (uint64_t i = 0; i < CASES; i++) {
        struct plan_case x = random_case(i);
        uint64_t budget = x.needs.minimum_bytes + (x.needs.comfortable_bytes - x.needs.minimum_bytes) / 4;
        x.f.offload = SHORE__AUTO;
        double may = seconds_of(&x.f, SHORE_POLICY_PLANNED, budget);
        x.f.offload = SHORE__OFF;
        for (int policy = SHORE_POLICY_KEEP; policy < SHORE_POLICIES; policy++) {
            double may_not = seconds_of(&x.f, (enum shore_policy)policy, budget);
            if (may > may_not * (1 + 1e-9))
                fail_msg("SEED=%" PRIu64 " case %" PRIu64 ": %g s, not %g s", seed, i, may, may_not);
            shorter += may < may_not * 0.999;
        }
        end_case(&x);
    }
    assert_true(shorter >= CASES / 4);
}

/* Drives behind a network take activations if the link is fast enough, whatever the batch. */
static void the_link_decides_what_moves(void **state) {
    static const char *const remote[] = {"ssh://host/a"};
    struct shore_machine machine = *shore__machine_assumed();
    machine.link_shared = true;
    struct shore__arch arch;
    struct shore__model *m;
    assert_int_equal(shore__arch_preset("gpt2-124m", 0, &arch, NULL), 0);
    assert_int_equal(shore__model_make(&arch, &m, NULL), 0);
    struct shore__facts f = {
        .model = m,
        .machine = &machine,
        .batch = shore__batch_shape(4, 512),
        .mode = SHORE__BF16,
        .threads = 2,
        .workspace_bytes = 8 << 20,
        .one_memory = true,
        .drives = {.size = sizeof f.drives, .drives = remote, .ndrives = 1},
        .scratch = true,
        .remote = true,
        .offload = SHORE__AUTO,
    };
    for (int fast = 0; fast < 2; fast++) {
        struct shore__train_plan plan;
        struct shore_diag diag = {0};
        machine.link[0] = fast ? 4e9 : 100e6;
        if (shore__plan_training(&f, UINT64_C(512) << 20, &plan, NULL, &diag)) fail_msg("%s", diag.text);
        struct chosen p = counted(&f, &plan);
        assert_true(fast ? p.moved_inner > 0 : p.moved_inner == 0);
        shore__train_plan_close(&plan);
    }
    shore__model_free(m);
}

/* --gather auto: rows, or the whole table, whichever makes the shorter step. Rows, where a slow link carries both. */
static void the_plan_gathers_where_the_step_is_shorter(void **state) {
    struct shore_machine machine = *shore__machine_assumed();
    uint32_t shorter = 0;
    machine.link[0] = 1e6;
    machine.link_shared = true;
    for (uint64_t i = 0; i < CASES; i++) {
        struct plan_case x = random_case(i);
        uint64_t budget = 2 * x.needs.comfortable_bytes;
        double seconds[3];
        for (int slow = 0; slow < 2 && !x.m->arch.tied; slow++) {
            x.f.machine = slow ? &machine : NULL;
            for (int when = SHORE__AUTO; when <= SHORE__OFF; when++) {
                x.f.gather = (enum shore__when)when;
                seconds[when] = seconds_of(&x.f, SHORE_POLICY_PLANNED, budget);
            }
            double best = fmin(seconds[SHORE__ON], seconds[SHORE__OFF]);
            if (seconds[SHORE__AUTO] > best * (1 + 1e-9))
                fail_msg("SEED=%" PRIu64 " case %" PRIu64 ": %g s, not %g s", seed, i, seconds[SHORE__AUTO], best);
            if (slow && x.f.batch.rows * 8 < x.m->arch.vocab) {
                assert_true(seconds[SHORE__ON] <= seconds[SHORE__OFF] * (1 + 1e-9));
                shorter += seconds[SHORE__ON] < seconds[SHORE__OFF] * 0.99;
            }
        }
        end_case(&x);
    }
    assert_true(shorter);
}

static void the_least_budget_is_the_least(void **state) {
    for (uint64_t i = 0; i < CASES; i++) {
        struct plan_case x = random_case(i);
        struct chosen p = plan_of(&x, x.needs.minimum_bytes);
        struct shore_diag diag = {0};
        check_bounds(&x, &p, x.needs.minimum_bytes);
        assert_int_equal(shore__plan_training(&x.f, x.needs.minimum_bytes - 1, &p.p, NULL, &diag), SHORE_EBUDGET);
        assert_non_null(strstr(diag.text, "minimum"));
        shore__train_plan_close(&p.p);
        end_case(&x);
    }
}

static void what_is_comfortable_keeps_everything(void **state) {
    for (uint64_t i = 0; i < CASES; i++) {
        struct plan_case x = random_case(i);
        struct chosen p = plan_of(&x, x.needs.comfortable_bytes);
        check_bounds(&x, &p, x.needs.comfortable_bytes);
        assert_int_equal(p.layers, x.m->arch.n_layer);
        assert_int_equal(p.tables, x.m->nslices);
        assert_int_equal(p.lookups, x.m->arch.tied || p.p.gathers ? 0 : x.m->nslices);
        assert_int_equal(p.inputs, x.m->arch.n_layer + 1);
        assert_int_equal(p.full_inner, x.m->arch.n_layer * p.p.units);
        assert_int_equal(p.moved_inner, 0);
        assert_int_equal(p.p.kept_logits, x.m->nslices * p.p.head_units);
        if (x.m->arch.tied) assert_true(p.p.hold_table_gradient);
        end_case(&x);
    }
}

static uint64_t work(const struct shore_program *p, enum shore_lane lane, uint32_t drive) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < p->ncosts; i++)
        if (p->cost[i].lane == lane && p->cost[i].drive == drive) sum += p->cost[i].work;
    return sum;
}

static bool is_read(const struct shore_program *p, uint32_t tensor, const char *by) {
    for (uint32_t i = 0; i < p->nuses; i++)
        if (p->use[i].kind == SHORE__READS && p->use[i].tensor == tensor && !strcmp(p->op[p->use[i].operation], by))
            return true;
    return false;
}

static bool is_layer(const struct shore__facts *f, const struct shore_tensor *t) {
    return t->key == SHORE__ROW_PAGE && shore__page_at(f->model, t->index).kind == SHORE__PAGE_LAYER;
}

static void check_program(const struct plan_case *x, const struct shore_program *p) {
    static const char *const names[] = {"embedding", "forward", "head", "backward", "lookups", "between steps"};
    static const enum shore_lane lanes[] = {SHORE_LANE_DRIVE_READ, SHORE_LANE_DRIVE_WRITE, SHORE_LANE_DRIVE_UPDATE};
    for (uint32_t id = 0; id < p->ntensors; id++) {
        const struct shore_tensor *t = &p->tensor[id];
        bool read = t->own;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            read |= is_read(p, id, names[i]);
        if (!read) fail_msg("nothing reads %s %u", t->name, t->index);
        if (is_layer(&x->f, t)) assert_true(is_read(p, id, "forward") && is_read(p, id, "backward"));
    }
    for (uint32_t d = 0; d < x->f.drives.ndrives; d++)
        for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++)
            assert_int_equal(work(p, lanes[i], d) == 0, lanes[i] == SHORE_LANE_DRIVE_UPDATE && x->f.host_update);
    assert_int_equal(work(p, SHORE_LANE_HOST_UPDATE, 0) == 0, !x->f.host_update);
    assert_int_equal(work(p, SHORE_LANE_BUS_IN, 0), 0); /* what is read before an operation follows from its reads */
    assert_int_equal(work(p, SHORE_LANE_BUS_OUT, 0) == 0, x->f.one_memory);
}

static void operations_read_every_row_and_work_in_every_lane(void **state) {
    for (uint64_t i = 0; i < CASES; i++) {
        struct plan_case x = random_case(i);
        struct shore__train_plan plan;
        struct shore_diag diag = {0};
        assert_int_equal(shore__plan_training(&x.f, x.needs.minimum_bytes, &plan, NULL, &diag), 0);
        check_program(&x, plan.program);
        shore__train_plan_close(&plan);
        end_case(&x);
    }
}

/* What the order of thumb keeps of models that people train, on a machine like those of bench/results. A change
 * of the order changes this table, and says so. */
struct kept {
    const char *preset;
    size_t sequences, seq_len;
    uint64_t mib;
    bool remote, compressed;
    size_t layers, table_slices, boundaries, inner, full, offloaded, logits, gradients;
    bool held;
};

static const struct kept table[] = {
    {"gpt2-124m", 4, 64, 400, false, false, 0, 2, 13, 0, 0, 0, 1, 5, true},
    {"gpt2-124m", 4, 64, 1024, false, false, 12, 25, 13, 12, 12, 0, 25, 13, true},
    {"gpt2-124m", 4, 64, 4096, false, false, 12, 25, 13, 12, 12, 0, 25, 13, true},
    {"gpt2-124m", 4, 1024, 400, false, false, 2, 0, 13, 2, 0, 46, 0, 3, false},
    {"gpt2-124m", 4, 1024, 1024, false, false, 12, 10, 13, 12, 0, 36, 25, 3, true},
    {"gpt2-124m", 4, 1024, 4096, false, false, 12, 25, 13, 48, 48, 0, 25, 13, true},
    {"gpt2-1.5b", 4, 1024, 1024, false, false, 0, 0, 21, 0, 0, 192, 0, 3, false},
    {"gpt2-1.5b", 4, 1024, 4096, false, false, 19, 0, 49, 39, 1, 153, 25, 3, true},
    {"gpt2-1.5b", 4, 1024, 16384, false, false, 48, 25, 49, 192, 192, 0, 25, 26, true},
    {"llama-tiny", 8, 256, 128, false, false, 6, 1, 7, 7, 0, 4, 1, 3, true},
    {"llama-tiny", 8, 256, 160, false, false, 1, 1, 7, 12, 10, 0, 1, 3, true},
    {"llama-tiny", 8, 256, 512, false, false, 6, 1, 7, 12, 12, 0, 1, 7, true},
    {"gpt2-124m", 4, 1024, 1024, true, false, 12, 25, 13, 24, 0, 24, 1, 3, true},
    {"gpt2-124m", 4, 64, 1536, false, true, 12, 25, 13, 12, 12, 0, 25, 13, true},
};

static void check_kept(const struct kept *k) {
    static const char *const local[] = {"/tmp/a"}, *const remote[] = {"ssh://host/a"};
    struct shore__arch arch;
    struct shore__model *m;
    struct chosen p;
    struct shore_diag diag = {0};
    assert_int_equal(shore__arch_preset(k->preset, 0, &arch, &diag), 0);
    assert_int_equal(shore__model_make(&arch, &m, &diag), 0);
    struct shore__facts f = {
        .model = m,
        .batch = shore__batch_shape(k->sequences, k->seq_len),
        .mode = SHORE__BF16,
        .threads = 2,
        .workspace_bytes = 8 << 20,
        .one_memory = true,
        .drives = {.size = sizeof f.drives, .drives = k->remote ? remote : local, .ndrives = 1},
        .scratch = true,
        .remote = k->remote,
        .compressed = k->compressed,
        .policy = SHORE_POLICY_ORDER,
    };
    if (shore__plan_training(&f, k->mib << 20, &p.p, NULL, &diag)) fail_msg("%s: %s", k->preset, diag.text);
    p = counted(&f, &p.p);
    assert_int_equal(p.layers, k->layers);
    assert_int_equal(p.tables, k->table_slices);
    assert_int_equal(p.inputs, k->boundaries);
    assert_int_equal(p.inner, k->inner);
    assert_int_equal(p.full_inner, k->full);
    assert_int_equal(p.moved_inner, k->offloaded);
    assert_int_equal(p.p.kept_logits, k->logits);
    assert_int_equal(p.p.gradient_buffers, k->gradients);
    assert_int_equal(p.p.hold_table_gradient, k->held);
    shore__train_plan_close(&p.p);
    shore__model_free(m);
}

static void what_is_kept_of_known_models(void **state) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        check_kept(&table[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_kept_of_known_models),
        cmocka_unit_test(no_plan_is_above_its_budget),
        cmocka_unit_test(the_least_budget_is_the_least),
        cmocka_unit_test(no_policy_makes_a_shorter_step),
        cmocka_unit_test(drives_that_may_take_activations_make_no_step_longer),
        cmocka_unit_test(the_link_decides_what_moves),
        cmocka_unit_test(the_plan_gathers_where_the_step_is_shorter),
        cmocka_unit_test(what_is_comfortable_keeps_everything),
        cmocka_unit_test(operations_read_every_row_and_work_in_every_lane),
    };
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
