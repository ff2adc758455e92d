/* What a budget buys: the plan of a step for random models, batches and budgets. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/prng.h"
#include "train/trainer.h"

enum { CASES = 24, BUDGETS = 24 };

static uint64_t seed, stream;

static uint32_t pick(uint64_t *draw, uint32_t first, uint32_t last) {
    return first + (uint32_t)(shore__random_u64(seed, stream, (*draw)++) % (last - first + 1));
}

static struct shore__model *random_model(uint64_t *draw) {
    uint32_t heads = 1u << pick(draw, 0, 3), head_dim = 16u << pick(draw, 0, 2);
    bool llama = pick(draw, 0, 1);
    struct shore__arch arch = {
        .model_type = llama ? "llama" : "gpt2",
        .n_layer = pick(draw, 1, 12),
        .d_model = heads * head_dim,
        .n_head = heads,
        .n_kv_head = llama ? heads >> pick(draw, 0, heads > 1) : heads,
        .head_dim = head_dim,
        .d_ff = heads * head_dim * pick(draw, 1, 4),
        .vocab = pick(draw, 300, 40000),
        .max_positions = 2048,
        .rms_norm = llama,
        .norm_eps = 1e-5f,
        .act = llama ? SHORE__SILU : SHORE__GELU_TANH,
        .gated = llama,
        .qkv_bias = !llama,
        .out_bias = !llama,
        .mlp_bias = !llama,
        .learned_positions = !llama,
        .rope = {.theta = 10000, .factor = 1},
        .tied = pick(draw, 0, 1),
        .init_std = 0.02f,
        .padding = -1,
        .bos = -1,
    };
    struct shore__model *m = NULL;
    assert_int_equal(shore__model_make(&arch, &m, NULL), 0);
    return m;
}

static struct shore__settings random_settings(uint64_t *draw) {
    struct shore__settings s;
    shore__settings_defaults(&s);
    static const char *const drives[] = {"ram:", "/tmp", "ssh://host/tmp"};
    s.batch = pick(draw, 1, 12);
    s.seq_len = 32u << pick(draw, 0, 4);
    s.threads = 1;
    s.fp32 = pick(draw, 0, 1);
    s.gradient_bf16 = pick(draw, 0, 1);
    s.compress = pick(draw, 0, 3) ? 0 : 0.01;
    if (s.compress > 0) s.gradient_bf16 = false;
    s.sample_every = pick(draw, 0, 1);
    uint32_t offload = pick(draw, 0, 2);
    s.offload = offload == 0 ? SHORE__AUTO : offload == 1 ? SHORE__ON : SHORE__OFF;
    const char *drive = drives[pick(draw, 0, 2)];
    s.host_update = s.compress == 0 && strcmp(drive, "ram:") != 0 && pick(draw, 0, 3) == 0;
    for (uint32_t n = pick(draw, 1, 3); n; n--)
        assert_int_equal(shore__strings_add(&s.drives, drive), 0);
    return s;
}

struct plan_case {
    struct shore__model *m;
    struct shore__settings s;
    struct shore__needs needs;
};

static struct plan_case random_case(uint64_t index) {
    struct plan_case x = {0};
    struct train_plan plan;
    struct shore_diag diag = {{0}};
    uint64_t draw = 0;
    stream = index;
    x.m = random_model(&draw);
    x.s = random_settings(&draw);
    x.s.memory_bytes = 0;
    if (shore__train_plan_make(&x.s, x.m, &plan, &x.needs, &diag)) fail_msg("case %" PRIu64 ": %s", index, diag.text);
    return x;
}

static void end_case(struct plan_case *x) {
    shore__settings_free(&x->s);
    shore__model_free(x->m);
}

static struct train_plan plan_of(struct plan_case *x, uint64_t budget) {
    struct train_plan plan;
    struct shore_diag diag = {{0}};
    x->s.memory_bytes = budget;
    if (shore__train_plan_make(&x->s, x->m, &plan, NULL, &diag)) fail_msg("%" PRIu64 ": %s", budget, diag.text);
    return plan;
}

static void check_bounds(const struct plan_case *x, const struct train_plan *p, uint64_t budget) {
    const struct shore__model *m = x->m;
    size_t pairs = m->arch.n_layer * p->units;
    assert_in_range(p->total_bytes, 1, budget);
    assert_int_equal(p->total_bytes, p->buffers_bytes + p->fleet_bytes + p->reserve_bytes + p->hole_bytes);
    assert_in_range(p->residency.layers, 0, m->arch.n_layer);
    assert_in_range(p->residency.table_slices, 0, m->nslices);
    assert_in_range(p->residency.input_slices, 0, m->arch.tied ? 0 : m->nslices);
    assert_in_range(p->residency.buffers, 1, 2);
    assert_in_range(p->kept_boundaries, 0, m->arch.n_layer + 1);
    assert_in_range(p->kept_inner, 0, pairs);
    assert_in_range(p->full_inner, 0, p->kept_inner);
    assert_in_range(p->offloaded_inner, 0, pairs - p->kept_inner);
    assert_in_range(p->head_units, 1, p->units);
    assert_in_range(p->kept_logits, 0, m->nslices * p->head_units);
    assert_in_range(p->gradient_buffers, 1, m->arch.n_layer + 2 * m->nslices + 1);
}

static void no_plan_is_above_its_budget(void **state) {
    for (uint64_t i = 0; i < CASES; i++) {
        struct plan_case x = random_case(i);
        double least = (double)x.needs.minimum_bytes, most = (double)x.needs.comfortable_bytes * 1.1;
        for (int b = 0; b <= BUDGETS; b++) {
            uint64_t budget = (uint64_t)(least + (most - least) * b / BUDGETS);
            struct train_plan p = plan_of(&x, budget);
            check_bounds(&x, &p, budget);
        }
        end_case(&x);
    }
}

static void the_least_budget_is_the_least(void **state) {
    for (uint64_t i = 0; i < CASES; i++) {
        struct plan_case x = random_case(i);
        struct train_plan p = plan_of(&x, x.needs.minimum_bytes);
        struct shore_diag diag = {{0}};
        check_bounds(&x, &p, x.needs.minimum_bytes);
        x.s.memory_bytes = x.needs.minimum_bytes - 1;
        assert_int_equal(shore__train_plan_make(&x.s, x.m, &p, NULL, &diag), SHORE_EBUDGET);
        assert_non_null(strstr(diag.text, "minimum"));
        end_case(&x);
    }
}

static void what_is_comfortable_keeps_everything(void **state) {
    for (uint64_t i = 0; i < CASES; i++) {
        struct plan_case x = random_case(i);
        struct train_plan p = plan_of(&x, x.needs.comfortable_bytes);
        check_bounds(&x, &p, x.needs.comfortable_bytes);
        assert_int_equal(p.residency.layers, x.m->arch.n_layer);
        assert_int_equal(p.residency.table_slices, x.m->nslices);
        assert_int_equal(p.residency.input_slices, x.m->arch.tied ? 0 : x.m->nslices);
        assert_int_equal(p.kept_boundaries, x.m->arch.n_layer + 1);
        assert_int_equal(p.full_inner, x.m->arch.n_layer * p.units);
        assert_int_equal(p.offloaded_inner, 0);
        assert_int_equal(p.kept_logits, x.m->nslices * p.head_units);
        if (x.m->arch.tied) assert_true(p.hold_table_gradient);
        end_case(&x);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_plan_is_above_its_budget),
        cmocka_unit_test(the_least_budget_is_the_least),
        cmocka_unit_test(what_is_comfortable_keeps_everything),
    };
    const char *given = getenv("SEED");
    seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
    print_message("SEED=%" PRIu64 "\n", seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
