/* What a config.json says, and what it leaves to be known. */
#include <stdio.h>
#include <stdlib.h>

#include "unit/model/configs.h"

#define SMALL "\"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 1, \"vocab_size\": 260"

static void heads_of_keys_have_defaults(void **state) {
    (void)state;
    struct shore__arch a = arch_of("{\"model_type\": \"mistral\", \"num_attention_heads\": 16, " SMALL "}");
    assert_int_equal(a.n_kv_head, 8);
    a = arch_of("{\"model_type\": \"mistral\", \"num_attention_heads\": 4, \"num_key_value_heads\": null, " SMALL "}");
    assert_int_equal(a.n_kv_head, 4);
    a = arch_of("{\"model_type\": \"llama\", \"num_attention_heads\": 4, " SMALL "}");
    assert_int_equal(a.n_kv_head, 4);
    a = arch_of("{\"model_type\": \"qwen2\", \"num_attention_heads\": 64, \"head_dim\": 2, " SMALL "}");
    assert_int_equal(a.n_kv_head, 32);
}

static void gpt2_is_known_by_general_names(void **state) {
    (void)state;
    struct shore__arch a = arch_of("{\"model_type\": \"gpt2\", \"n_head\": 4, \"num_attention_heads\": 2, "
                                   "\"hidden_size\": 6, \"num_hidden_layers\": 3, \"max_position_embeddings\": 5}");
    assert_int_equal(a.n_head, 2);
    assert_int_equal(a.d_model, 6);
    assert_int_equal(a.n_layer, 3);
    assert_int_equal(a.max_positions, 5);
    expect_refusal("{\"model_type\": \"gpt2\", \"num_attention_heads\": 7}", "\"num_attention_heads\" is 7");
}

static void null_flags_are_false(void **state) {
    (void)state;
    assert_true(arch_of("{\"model_type\": \"gpt2\"}").tied);
    assert_false(arch_of("{\"model_type\": \"gpt2\", \"tie_word_embeddings\": null}").tied);
    expect_refusal("{\"model_type\": \"gpt2\", \"scale_attn_weights\": null}", "\"scale_attn_weights\" is null");
}

#define OF(type) "{\"model_type\": \"" type "\", \"num_attention_heads\": 4, \"num_key_value_heads\": 2, " SMALL ", "

static void layers_attend_alike(void **state) {
    (void)state;
    assert_int_equal(arch_of(OF("qwen2") "\"layer_types\": [\"full_attention\"]}").kinds[0].window, 0);
    expect_refusal(OF("qwen2") "\"layer_types\": [\"sliding_attention\"]}",
                   "\"layer_types\" is [\"sliding_attention\"]");
    assert_int_equal(arch_of(OF("mistral") "\"layer_types\": [\"sliding_attention\"]}").kinds[0].window, 4096);
    expect_refusal(OF("mistral") "\"layer_types\": [\"sliding_attention\", \"full_attention\"]}",
                   "only sliding_attention");
    expect_refusal(OF("mistral") "\"sliding_window\": null, \"layer_types\": [\"sliding_attention\"]}",
                   "only full_attention");
    expect_refusal(OF("llama") "\"layer_types\": 3}", "only full_attention");
}

static void padding_is_a_row_of_the_table(void **state) {
    static const struct {
        const char *text;
        int64_t row;
    } cases[] = {{"null", -1}, {"0", 0}, {"259", 259}, {"-1", 259}, {"-260", 0}};
    static const char *const refused[] = {"260", "-261", "1.0", "true", "\"<pad>\"", "[1]"};
    char text[256];
    (void)state;
    assert_int_equal(arch_of(OF("llama") "\"pad\": 1}").padding, -1);
    assert_int_equal(arch_of("{\"model_type\": \"gpt2\", \"pad_token_id\": 3}").padding, -1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text, OF("qwen2") "\"pad_token_id\": %s}", cases[i].text);
        struct shore__arch a = arch_of(text), again;
        assert_int_equal(a.padding, cases[i].row);
        json_t *config = shore__arch_to_json(&a);
        assert_int_equal(shore__arch_from_json(config, "config.json", &again, NULL), 0);
        assert_int_equal(again.padding, cases[i].row);
        json_decref(config);
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        snprintf(text, sizeof text, OF("mistral") "\"pad_token_id\": %s}", refused[i]);
        expect_refusal(text, "\"pad_token_id\" is ");
    }
}

static void values_that_mean_nothing_are_refused(void **state) {
    static const struct {
        const char *keys, *said;
    } cases[] = {
        {"\"rms_norm_eps\": 0", "\"rms_norm_eps\" is 0: a number from 1.17549e-38 to 1"},
        {"\"bos_token_id\": \"<s>\"", "\"bos_token_id\" is \"<s>\": a token"},
        {"\"bos_token_id\": 1.5", "\"bos_token_id\" is 1.5: a token"},
        {"\"bos_token_id\": [1]", "\"bos_token_id\" is [1]: a token"},
        {"\"eos_token_id\": true", "\"eos_token_id\" is true: a token"},
        {"\"eos_token_id\": [2, \"</s>\"]", "\"eos_token_id\" is [2,\"</s>\"]: a token"},
        {"\"eos_token_id\": [-1, \"x\", 3]", "\"eos_token_id\" is [-1,\"x\",3]: a token"},
        {"\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
         "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 8192.5}",
         "\"original_max_position_embeddings\" is 8192.5: a whole number from 1 to 1000000000"},
    };
    char text[512];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text, OF("llama") "%s}", cases[i].keys);
        expect_refusal(text, cases[i].said);
    }
    expect_refusal("{\"model_type\": \"gpt2\", \"layer_norm_epsilon\": 0.0}", "\"layer_norm_epsilon\" is 0.0");
    /* as transformers writes them */
    assert_int_equal(arch_of(OF("llama") "\"bos_token_id\": null, \"eos_token_id\": null}").bos, -1);
    assert_int_equal(arch_of(OF("llama") "\"bos_token_id\": -1}").bos, -1);
    assert_int_equal(arch_of(OF("llama") "\"bos_token_id\": 50256}").bos, 50256);
}

static void all_ends_are_kept(void **state) {
    (void)state;
    static const char *const ends[] = {"null", "7", "[7,9,0]"};
    for (uint32_t i = 0; i < 3; i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"model_type\": \"gpt2\", \"eos_token_id\": %s}", ends[i]);
        struct shore__arch a = arch_of(text);
        assert_int_equal(a.neos, i == 2 ? 3 : i);
        json_t *config = shore__arch_to_json(&a);
        char *written = json_dumps(json_object_get(config, "eos_token_id"), JSON_COMPACT | JSON_ENCODE_ANY);
        assert_string_equal(written, ends[i]);
        free(written);
        json_decref(config);
    }
    assert_int_equal(arch_of("{\"model_type\": \"gpt2\", \"eos_token_id\": [-1, null, 3]}").neos, 1);
    expect_refusal("{\"model_type\": \"gpt2\", \"eos_token_id\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}",
                   "eos_token_id");
}

static void generation_adds_ends(void **state) {
    static const struct {
        const char *text;
        int neos;
    } cases[] = {
        {"{}", 1},
        {"{\"eos_token_id\": null}", 1},
        {"{\"eos_token_id\": 7}", 1},
        {"{\"eos_token_id\": [5, 7, 5]}", 2},
        {"{\"eos_token_id\": 5, \"_from_model_config\": true}", 1},
        {"{\"eos_token_id\": [1,2,3,4,5,6,8,9,10,11,12,13,14,15,16,17]}", -1},
        {"{\"_from_model_config\": 1}", -1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct shore_diag diag = {0};
        struct shore__arch a = arch_of("{\"model_type\": \"gpt2\", \"eos_token_id\": 7}");
        json_t *generation = json_loads(cases[i].text, 0, NULL);
        int rc = shore__arch_add_ends(generation, "generation_config.json", &a, &diag);
        json_decref(generation);
        if (cases[i].neos < 0) {
            assert_int_equal(rc, SHORE_EINPUT);
            assert_non_null(strstr(diag.text, "generation_config.json"));
        } else {
            assert_int_equal(rc, 0);
            assert_int_equal(a.neos, cases[i].neos);
            assert_int_equal(a.eos[0], 7);
        }
    }
}

static void keys_that_count_are_read_or_refused(void **state) {
    (void)state;
    expect_refusal(OF("llama") "\"is_causal\": false}", "\"is_causal\" is false: only true is supported");
    expect_refusal(OF("llama") "\"is_causal\": null}", "\"is_causal\" is null");
    expect_refusal(OF("qwen2") "\"use_sliding_window\": true}", "\"use_sliding_window\" is true: only false");
    expect_refusal("{\"model_type\": \"gpt2\", \"pruned_heads\": {\"0\": [1]}}", "only null is supported");
    assert_int_equal(arch_of(OF("llama") "\"is_causal\": true, \"torchscript\": null}").max_positions, 2048);
    assert_int_equal(arch_of(OF("mistral") "\"pruned_heads\": {}}").max_positions, 131072);
    assert_int_equal(arch_of(OF("qwen2") "\"use_sliding_window\": false}").max_positions, 32768);
    expect_refusal("{\"model_type\": \"mamba\"}", "from Python, any model trains");
}

static void what_changes_nothing_is_kept(void **state) {
    char names[64];
    (void)state;
    json_t *config = json_loads(OF("llama") "\"b\": [1], \"a\": 2, \"attention_dropout\": 0.5}", 0, NULL);
    json_t *kept = shore__config_keys_kept(config, &shore__llama);
    assert_int_equal(shore__config_keys_unknown(kept, &shore__llama, names, sizeof names), 2);
    assert_string_equal(names, "\"b\", \"a\"");
    assert_int_equal(json_object_size(kept), 3);
    assert_true(json_real_value(json_object_get(kept, "attention_dropout")) == 0.5);
    json_decref(config);
    json_decref(kept);
    kept = json_pack("{si}", "pretraining_tp", 2); /* published models of several families have it */
    assert_int_equal(shore__config_keys_unknown(kept, &shore__smollm3, names, sizeof names), 0);
    json_decref(kept);
}

static void what_is_refused_is_shown_as_it_stands(void **state) {
    (void)state;
    expect_refusal("{\"model_type\": \"gpt2\", \"activation_function\": \"mish\"}",
                   "\"activation_function\" is \"mish\":");
    expect_refusal("{\"model_type\": \"x\\\"\\n\\u202e\"}", "is \"x\\\"\\n\\u{202e}\":");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_of_keys_have_defaults),
        cmocka_unit_test(gpt2_is_known_by_general_names),
        cmocka_unit_test(null_flags_are_false),
        cmocka_unit_test(layers_attend_alike),
        cmocka_unit_test(padding_is_a_row_of_the_table),
        cmocka_unit_test(values_that_mean_nothing_are_refused),
        cmocka_unit_test(all_ends_are_kept),
        cmocka_unit_test(generation_adds_ends),
        cmocka_unit_test(keys_that_count_are_read_or_refused),
        cmocka_unit_test(what_changes_nothing_is_kept),
        cmocka_unit_test(what_is_refused_is_shown_as_it_stands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
