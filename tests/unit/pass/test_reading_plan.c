/* What a budget keeps of a model that is only read: plans of evaluation and generation, and the buffers of an export,
 * for random models and budgets. */
#include "unit/plan/random_models.h"

#include "base/units.h"
#include "pass/describe.h"
#include "plan/budget.h"
#include "plan/transfers.h"
#include "seed.h"

enum { CASES = 40, BUDGETS = 24 };

struct reading {
    struct shore__model *m;
    struct shore__facts f;
    uint64_t generation_bytes, resident_bytes;
};

static struct reading random_reading(uint64_t index) {
    struct reading x = {0};
    uint64_t draw = 0;
    stream = index;
    x.m = random_model(&draw);
    x.resident_bytes = pick(&draw, 0, 100 << 20);
    x.f = (struct shore__facts){
        .model = x.m,
        .batch = shore__batch_shape(pick(&draw, 1, 12), (size_t)32 << pick(&draw, 0, 4)),
        .mode = (enum shore__mode)pick(&draw, 0, 2),
        .workspace_bytes = pick(&draw, 0, 64 << 20),
        .one_memory = pick(&draw, 0, 3),
    };
    if (pick(&draw, 0, 1)) x.generation_bytes = shore__generate_bytes(x.m, x.f.mode, pick(&draw, 1, 500));
    return x;
}

/* What is read of a plan that is closed again. */
struct read {
    size_t buffers, layers, tables, lookups;
    uint64_t bytes;
};

static struct read read_of(const struct reading *x, const struct shore__infer_plan *plan) {
    struct read r = {.bytes = plan->reserve_bytes + plan->buffers_bytes};
    for (uint32_t i = 0; i < plan->program->ntensors; i++) {
        const struct shore_tensor *t = &plan->program->tensor[i];
        if (t->key == SHORE__ROW_LAYER_BUFFER) r.buffers = plan->plan->fate[i].count;
        if (t->key != SHORE__ROW_PAGE || plan->plan->fate[i].way != SHORE_WAY_KEEP) continue;
        struct shore__page_id id = shore__page_at(x->m, t->index);
        if (id.kind == SHORE__PAGE_LAYER) r.layers++;
        if (id.kind == SHORE__PAGE_SLICE) *(id.block == shore__model_table_block(x->m) ? &r.tables : &r.lookups) += 1;
    }
    return r;
}

static int plan_with(const struct reading *x, uint64_t budget, struct read *out, struct shore_diag *diag) {
    struct shore__infer_plan plan;
    int rc = shore__plan_reading(&x->f, x->generation_bytes, x->resident_bytes, budget, &plan, diag);
    if (!rc) {
        const struct shore__region_list *rows = &plan.plan->rows;
        size_t kept = 0;
        *out = read_of(x, &plan);
        assert_true(out->bytes <= budget);
        assert_int_equal(rows->bytes[0] + rows->bytes[1] + rows->bytes[2], plan.buffers_bytes);
        for (uint32_t i = 0; i < shore__pages_count(x->m); i++)
            kept += shore__regions_find(rows, SHORE__ROW_PAGE, i) != NULL;
        size_t tails = shore__page_bytes(x->m, x->f.mode, shore__page_at(x->m, 0)) ? 2 : 1; /* one may hold nothing */
        assert_int_equal(kept, tails + out->layers + out->tables + out->lookups);
        assert_int_equal(shore__regions_find(rows, SHORE__ROW_GENERATION, 0) != NULL, x->generation_bytes != 0);
        assert_int_equal(shore__regions_find(rows, SHORE__ROW_LOGITS, 0) != NULL, x->generation_bytes == 0);
    }
    shore__infer_plan_close(&plan);
    return rc;
}

/* The least budget, by halving. */
static uint64_t least_of(const struct reading *x) {
    uint64_t refused = 0, enough = UINT64_C(1) << 40;
    struct read plan;
    assert_int_equal(plan_with(x, enough, &plan, NULL), 0);
    while (refused + 1 < enough) {
        uint64_t middle = refused + (enough - refused) / 2;
        if (plan_with(x, middle, &plan, NULL))
            refused = middle;
        else
            enough = middle;
    }
    return enough;
}

static uint64_t largest_page(const struct reading *x) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < shore__pages_count(x->m); i++) {
        uint64_t bytes = shore__page_bytes(x->m, x->f.mode, shore__page_at(x->m, i));
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Buffers, which are raised first, never shrink with more memory, but where one is enough for what moves. Of pages so
 * many are kept that no other one fits, beside what the last of a kind to be kept gives back of its buffers. */
static void check_kept(const struct reading *x, const struct read *a, const struct read *before, uint64_t budget,
                       const struct read *all) {
    size_t layers = x->m->arch.n_layer;
    if (a->layers + 1 < layers && before->layers + 1 < layers) assert_true(a->buffers >= before->buffers);
    bool kept = a->layers == layers && a->tables == all->tables && a->lookups == all->lookups;
    if (!kept) assert_in_range(budget - a->bytes, 0, 3 * largest_page(x) - 1);
}

static void a_plan_keeps_to_its_budget(void **state) {
    for (uint64_t i = 0; i < CASES; i++) {
        struct reading x = random_reading(i);
        struct read all, plan;
        uint64_t least = least_of(&x);
        assert_int_equal(plan_with(&x, UINT64_MAX, &all, NULL), 0);
        assert_int_equal(all.layers, x.m->arch.n_layer);
        assert_int_equal(all.tables, x.m->nslices);
        uint64_t most = all.bytes;
        struct read before = {.layers = 0};
        for (int b = 0; b <= BUDGETS && most > least; b++) {
            uint64_t budget = least + (most - least) * (uint64_t)b / BUDGETS;
            assert_int_equal(plan_with(&x, budget, &plan, NULL), 0);
            check_kept(&x, &plan, &before, budget, &all);
            before = plan;
        }
        shore__model_free(x.m);
    }
}

static void what_is_too_little_names_a_minimum_that_will_do(void **state) {
    for (uint64_t i = 0; i < CASES; i++) {
        struct reading x = random_reading(i);
        struct read plan;
        struct shore_diag diag = {0};
        uint64_t minimum = 0;
        assert_int_equal(plan_with(&x, least_of(&x) - 1, &plan, &diag), SHORE_EBUDGET);
        const char *said = strstr(diag.text, "minimum ");
        assert_non_null(said);
        assert_int_equal(shore__parse_size(said + strlen("minimum "), &minimum), 0);
        x.resident_bytes += SHORE__RESIDENT_VARIES_BYTES / 2; /* as the next process may begin */
        assert_int_equal(plan_with(&x, minimum, &plan, NULL), 0);
        shore__model_free(x.m);
    }
}

static uint64_t widest_transposed(const struct shore__model *m) {
    uint64_t widest = 1;
    for (uint32_t b = 0; b < m->nblocks; b++)
        for (uint32_t t = 0; t < m->blocks[b].ntensors; t++)
            for (uint32_t i = 0; i < m->blocks[b].tensors[t].nparts; i++)
                if (m->blocks[b].tensors[t].parts[i].transposed && m->blocks[b].tensors[t].cols > widest)
                    widest = m->blocks[b].tensors[t].cols;
    return widest;
}

static void an_export_keeps_to_its_buffers(void **state) {
    for (uint64_t i = 0; i < CASES; i++) {
        uint64_t draw = 0;
        stream = i;
        struct shore__model *m = random_model(&draw);
        const uint64_t widest = widest_transposed(m);
        struct shore__export_plan before = shore__plan_export(widest, 0);
        uint64_t least = (uint64_t)before.segments * SHORE_SEGMENT_ELEMS * 4 + 2 * before.tile_elems * 4;
        assert_true(before.segments >= 1 && before.tile_elems >= 1);
        assert_true(least <= SHORE__EXPORT_LEAST_BYTES);
        for (uint64_t bytes = SHORE__EXPORT_LEAST_BYTES; bytes < UINT64_C(1) << 32; bytes += bytes / 2 + 1) {
            struct shore__export_plan plan = shore__plan_export(widest, bytes);
            assert_true((uint64_t)plan.segments * SHORE_SEGMENT_ELEMS * 4 + 2 * plan.tile_elems * 4 <= bytes);
            assert_true(plan.segments >= before.segments && plan.tile_elems >= before.tile_elems);
            before = plan;
        }
        shore__model_free(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_keeps_to_its_budget),
        cmocka_unit_test(what_is_too_little_names_a_minimum_that_will_do),
        cmocka_unit_test(an_export_keeps_to_its_buffers),
    };
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
