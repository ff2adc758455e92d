/* Rotary positions: what configurations say of them, held to transformers; and that it is written as it was read. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/model.h"
#include "unit/model/rope_expected.h"

static json_t *config_of(const char *keys) {
    json_t *config = json_loads(SIZES, 0, NULL), *more = json_loads(keys, 0, NULL);
    assert_non_null(config);
    assert_non_null(more);
    json_object_update(config, more);
    json_decref(more);
    return config;
}

static struct shore__arch arch_of(const char *keys) {
    struct shore_diag diag = {0};
    struct shore__arch arch;
    json_t *config = config_of(keys);
    if (shore__arch_from_json(config, "config.json", &arch, &diag)) fail_msg("%s: %s", keys, diag.text);
    json_decref(config);
    return arch;
}

static void angles_are_those_of_transformers(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof expected / sizeof expected[0]; c++) {
        struct shore__arch a = arch_of(expected[c].config);
        float table[3 * 16];
        shore__rope_table(&a, 0, 3, table);
        for (size_t i = 0; i < 8; i++) {
            float f = expected[c].frequency[i], s = expected[c].scale;
            if (!(fabsf(shore__rope_frequency(&a, 0, i) - f) <= 2e-7f * f)) fail_msg("%s: %zu", expected[c].config, i);
            for (size_t p = 0; p < 3; p++) {
                assert_true(fabsf(table[p * 16 + i] - s * cosf((float)p * f)) < 1e-6f);
                assert_true(fabsf(table[p * 16 + 8 + i] - s * sinf((float)p * f)) < 1e-6f);
            }
        }
    }
}

static void is_written_as_it_was_read(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof expected / sizeof expected[0]; c++) {
        struct shore__arch a = arch_of(expected[c].config), again;
        json_t *written = shore__arch_to_json(&a);
        assert_int_equal(shore__arch_from_json(written, "config.json", &again, NULL), 0);
        assert_memory_equal(&a.rope[0], &again.rope[0], sizeof a.rope[0]);
        json_decref(written);
    }
}

static void both_kinds_of_layers_are_written_as_they_were_read(void **state) {
    static const char *const configs[] = {
        "{\"model_type\": \"olmo3\", \"rope_parameters\": {"
        "\"full_attention\": {\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 16, "
        "\"rope_theta\": 2e4}, \"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 1e4}}}",
        "{\"model_type\": \"olmo3\", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1e6}, "
        "\"sliding_attention\": {\"rope_theta\": 1e4}}}",
        "{\"model_type\": \"gemma3_text\", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1e6}, "
        "\"sliding_attention\": {\"rope_type\": \"linear\", \"factor\": 2, \"rope_theta\": 1e4}}}",
    };
    (void)state;
    for (size_t c = 0; c < sizeof configs / sizeof configs[0]; c++) {
        struct shore_diag diag = {0};
        struct shore__arch a = arch_of(configs[c]), again;
        json_t *written = shore__arch_to_json(&a);
        if (shore__arch_from_json(written, "config.json", &again, &diag)) fail_msg("%s: %s", configs[c], diag.text);
        assert_memory_equal(a.rope, again.rope, sizeof a.rope);
        json_decref(written);
    }
}

static void every_key_of_yarn_is_written(void **state) {
    static const char said[] =
        "{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":32,\"attention_factor\":1.5,"
        "\"beta_fast\":8.0,\"beta_slow\":0.5,\"mscale\":0.7,\"mscale_all_dim\":1.25,\"truncate\":false}";
    char keys[512];
    (void)state;
    snprintf(keys, sizeof keys, "{\"rope_scaling\": %s}", said);
    struct shore__arch a = arch_of(keys);
    json_t *config = shore__arch_to_json(&a), *wanted = json_loads(said, 0, NULL);
    assert_true(json_equal(json_object_get(config, "rope_scaling"), wanted));
    json_decref(config);
    json_decref(wanted);
}

static void two_spellings_may_stand_if_they_agree(void **state) {
    (void)state;
    struct shore__arch a =
        arch_of("{\"rope_scaling\": {\"rope_type\": \"linear\", \"type\": \"linear\", \"factor\": 2}, "
                "\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2.0, \"rope_theta\": 10000}}");
    assert_true(a.rope[0].factor == 2);
    a = arch_of("{\"rope_scaling\": {}, \"rope_parameters\": {\"rope_theta\": 5e5, \"finetuned\": null}}");
    assert_true(a.rope[0].kind == SHORE__ROPE_DEFAULT && a.rope[0].theta == 5e5);
    a = arch_of("{\"rope_theta\": 5e5, \"rope_parameters\": {\"rope_theta\": 500000}}");
    assert_true(a.rope[0].theta == 5e5);
}

static void what_is_not_understood_is_refused(void **state) {
    static const struct {
        const char *keys, *said;
    } cases[] = {
        {"\"rope_scaling\": {\"rope_type\": \"linear\", \"type\": \"default\", \"factor\": 2}",
         "\"rope_type\" is \"linear\": its old name"},
        {"\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}, \"rope_parameters\": {\"rope_theta\": 5e5}",
         "\"rope_parameters\" says something else"},
        {"\"rope_theta\": 10000, \"rope_parameters\": {\"rope_theta\": 5e5}",
         "\"rope_theta\" is 500000.0: the configuration has another beside it"},
        {"\"original_max_position_embeddings\": 16, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2, "
         "\"original_max_position_embeddings\": 32}",
         "\"original_max_position_embeddings\" is 32: the configuration has another"},
        {"\"rope_scaling\": {\"factor\": 2}", "\"rope_type\" is missing: default, linear, dynamic"},
        {"\"rope_scaling\": {\"alpha\": 2}", "\"alpha\" is 2: rotary positions of the kind default have no such key"},
        {"\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1], \"long_factor\": [1]}",
         "\"short_factor\" is [1]: as many numbers as"},
        {"\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1], \"long_factor\": [1, 1]}",
         "\"long_factor\" is [1,1]: as many"},
        {"\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [0], \"long_factor\": [1]}",
         "\"short_factor\" is [0]: numbers above 0"},
        {"\"rope_scaling\": {\"type\": \"ntk\"}",
         "\"type\" is \"ntk\": only default, linear, dynamic, llama3, yarn and longrope"},
        {"\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}", "\"full_attention\" is "},
        {"\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"finetuned\": true}", "\"finetuned\" is true"},
        {"\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2, \"alpha\": 1000}", "\"alpha\" is 1000"},
        {"\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, \"attention_factor\": 1}", "\"attention_factor\""},
        {"\"rope_scaling\": {\"type\": \"dynamic\"}", "\"factor\" is missing"},
        {"\"rope_scaling\": {\"type\": \"yarn\"}", "\"factor\" is missing"},
        {"\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 0.5}", "\"factor\" is 0.5: a number from 1"},
        {"\"rope_scaling\": {\"type\": \"yarn\", \"factor\": null, \"original_max_position_embeddings\": 256}",
         "is 256: it is above max_position_embeddings"},
        {"\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"beta_slow\": 40}",
         "\"beta_fast\" is missing: it must"},
        {"\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"truncate\": 0}", "\"truncate\" is 0: true or false"},
        {"\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"mscale\": \"1\"}", "\"mscale\" is \"1\""},
        {"\"rope_theta\": 1, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2}", "yarn needs one above 1"},
        {"\"rope_scaling\": \"yarn\"", "\"rope_scaling\" is \"yarn\": an object"},
        {"\"rope_parameters\": []", "\"rope_parameters\" is []: an object"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct shore_diag diag = {0};
        struct shore__arch arch;
        char keys[400];
        snprintf(keys, sizeof keys, "{%s}", cases[i].keys);
        json_t *config = config_of(keys);
        assert_int_equal(shore__arch_from_json(config, "config.json", &arch, &diag), SHORE_EINPUT);
        if (!strstr(diag.text, cases[i].said)) fail_msg("\"%s\" does not say \"%s\"", diag.text, cases[i].said);
        json_decref(config);
    }
}

static void positions_end_where_angles_would_change(void **state) {
    (void)state;
    struct shore__arch a = arch_of("{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}}");
    assert_int_equal(shore__arch_most_positions(&a, 1), a.max_positions);
    a = arch_of("{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2}}");
    assert_int_equal(shore__arch_most_positions(&a, 1), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(angles_are_those_of_transformers),
        cmocka_unit_test(is_written_as_it_was_read),
        cmocka_unit_test(both_kinds_of_layers_are_written_as_they_were_read),
        cmocka_unit_test(every_key_of_yarn_is_written),
        cmocka_unit_test(two_spellings_may_stand_if_they_agree),
        cmocka_unit_test(what_is_not_understood_is_refused),
        cmocka_unit_test(positions_end_where_angles_would_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
