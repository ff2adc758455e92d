/* The operations of a model, as a plan counts them, are those of PaLM's formula, whatever the plan computes again. */
#include <math.h>

#include "model/model.h"
#include "pass/describe.h"
#include "pass/operations.h"
#include "unit/model/configs.h"

enum { SEQUENCES = 3, T = 300 };

static double counted(const struct shore__model *m, enum shore_policy policy) {
    static const char *const drives[] = {"/nowhere/a"};
    const struct shore__facts f = {
        .model = m,
        .batch = shore__batch_shape(SEQUENCES, T),
        .mode = SHORE__BF16,
        .products = SHORE_PRECISION_BF16,
        .threads = 2,
        .workspace_bytes = 8 << 20,
        .one_memory = true,
        .drives = {.size = sizeof f.drives, .drives = drives, .ndrives = 1},
        .policy = policy,
    };
    struct shore__train_plan plan;
    struct shore_diag diag = {0};
    if (shore__plan_training(&f, UINT64_C(1) << 42, &plan, NULL, &diag)) fail_msg("%s", diag.text);
    double operations = shore__operations_of_model(plan.program);
    shore__train_plan_close(&plan);
    return operations;
}

/* d: width; kv: of keys and values together; up: of the first product of an MLP; ff: of what the second one reads. */
static void is_counted(const char *preset, double layers, double d, double kv, double up, double ff, double vocab,
                       double heads, double head_dim) {
    struct shore__arch arch;
    struct shore__model *m;
    assert_int_equal(shore__arch_preset(preset, 0, &arch, NULL), 0);
    assert_int_equal(shore__model_make(&arch, &m, NULL), 0);
    double n = layers * (d * (d + kv) + d * d + d * up + ff * d) + vocab * d;
    double seen = (T + 1) / 2.0; /* keys, on average */
    double wanted = (6 * n + 12 * layers * heads * head_dim * seen) * SEQUENCES * T;
    for (int policy = SHORE_POLICY_KEEP; policy <= SHORE_POLICY_AGAIN; policy++) {
        double got = counted(m, (enum shore_policy)policy);
        if (fabs(got / wanted - 1) > 1e-12) fail_msg("%s: %.17g and not %.17g", preset, got, wanted);
    }
    shore__model_free(m);
}

static void operations_are_of_the_formula(void **state) {
    is_counted("gpt2-124m", 12, 768, 2 * 768, 3072, 3072, 50257, 12, 64);
    is_counted("llama3-8b", 32, 4096, 2 * 1024, 2 * 14336, 14336, 128256, 32, 128);
}

static double of_config(const char *text) {
    struct shore__arch arch = arch_of(text);
    struct shore__model *m;
    assert_int_equal(shore__model_make(&arch, &m, NULL), 0);
    double operations = counted(m, SHORE_POLICY_KEEP);
    shore__model_free(m);
    return operations;
}

/* A row's experts do what a gated product of their width together does; the router's product comes on top. */
static void operations_are_of_the_experts_of_a_row(void **state) {
#define BOTH                                                                                         \
    "\"num_hidden_layers\": 3, \"hidden_size\": 256, \"num_attention_heads\": 4, \"head_dim\": 64, " \
    "\"num_key_value_heads\": 2, \"vocab_size\": 1000, "
    double dense = of_config("{\"model_type\": \"qwen3\", " BOTH "\"intermediate_size\": 384}");
    double experts = of_config("{\"model_type\": \"qwen3_moe\", " BOTH "\"intermediate_size\": 1, "
                               "\"moe_intermediate_size\": 96, \"num_experts\": 20, \"num_experts_per_tok\": 4}");
    double router = 6.0 * 3 * 256 * 20 * SEQUENCES * T;
    assert_true(fabs(experts / (dense + router) - 1) < 1e-12);
}

/* Layers that rest below the lowest trained one have no backward, and what rests takes no gradient. */
static void operations_of_what_rests_are_those_of_forward(void **state) {
    struct shore__arch arch = arch_of("{\"model_type\": \"qwen3\", " BOTH "\"intermediate_size\": 384}");
    struct shore__model *m;
    const char *const rest[] = {"model.embed_tokens*", "model.layers.[01].*"};
    assert_int_equal(shore__model_make(&arch, &m, NULL), 0);
    assert_int_equal(shore__model_freeze(m, rest, 2, NULL), 0);
    double layer = 256 * (256 + 2 * 128) + 256 * 256 + 3 * 256 * 384, head = 256 * 1000;
    double attention = 4 * 256 * (T + 1) / 2.0;
    double wanted = (2 * (3 * layer + head) + 3 * attention + 4 * (layer + head) + 2 * attention) * SEQUENCES * T;
    assert_true(fabs(counted(m, SHORE_POLICY_KEEP) / wanted - 1) < 1e-12);
    shore__model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_are_of_the_formula),
        cmocka_unit_test(operations_are_of_the_experts_of_a_row),
        cmocka_unit_test(operations_of_what_rests_are_those_of_forward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
