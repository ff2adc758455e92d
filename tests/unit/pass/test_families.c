/* Families beside those of test_arch.c: layers of two kinds, texts of multimodal models, limits of positions, presets.
 */
#include "unit/model/configs.h"

#define SIZES                                                                                         \
    "\"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 6, \"vocab_size\": 260, " \
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"pad_token_id\": null, "

static void layers_are_of_two_kinds(void **state) {
    (void)state;
    struct shore__arch a = arch_of("{\"model_type\": \"gemma3_text\", " SIZES "\"sliding_window\": 7}");
    for (uint32_t l = 1; l <= 6; l++)
        assert_int_equal(shore__layer_kind(&a, l)->window, l == 6 ? 0 : 7);
    assert_int_equal(shore__layer_kind(&a, 1)->rope, 1);
    assert_true(a.rope[0].theta == 1e6 && a.rope[1].theta == 1e4);
    a = arch_of("{\"model_type\": \"gemma2\", " SIZES "\"sliding_window\": 7}");
    assert_int_equal(shore__layer_kind(&a, 1)->window, 7);
    assert_int_equal(shore__layer_kind(&a, 2)->window, 0);
    a = arch_of("{\"model_type\": \"smollm3\", " SIZES "\"no_rope_layer_interval\": 3}");
    for (uint32_t l = 1; l <= 6; l++)
        assert_int_equal(shore__layer_kind(&a, l)->unrotated, l % 3 == 0);
    a = arch_of("{\"model_type\": \"ministral\", " SIZES "\"head_dim\": 16, \"sliding_window\": 7}");
    assert_int_equal(shore__layer_kind(&a, 6)->window, 7); /* without a list, all of them */
    expect_refusal("{\"model_type\": \"olmo3\", " SIZES "\"layer_types\": [\"full_attention\"]}", "one entry for each");
    expect_refusal("{\"model_type\": \"olmo3\", " SIZES "\"sliding_window\": null}", "\"sliding_window\" is null");
    expect_refusal("{\"model_type\": \"olmo3\", " SIZES "\"rope_theta\": 10000}", "read alike by transformers 4 and 5");
    expect_refusal("{\"model_type\": \"smollm3\", " SIZES "\"no_rope_layers\": [1, 0]}", "\"no_rope_layers\" is [1,0]");
}

static void what_transformers_reads_otherwise_is_refused_of_both_kinds(void **state) {
    (void)state;
#define BOTH(full, sliding)                                                                                        \
    "{\"model_type\": \"gemma3_text\", \"rope_theta\": 2e6, \"rope_local_base_freq\": 500, \"rope_parameters\": {" \
    "\"full_attention\": {\"rope_type\": \"" full "}, \"sliding_attention\": {\"rope_type\": \"" sliding "}}}"
    struct shore__arch a = arch_of(BOTH("linear\", \"factor\": 2", "default\""));
    assert_true(a.rope[0].theta == 2e6 && a.rope[1].theta == 500);
    expect_refusal(BOTH("default\"", "default\", \"rope_theta\": 1e4"), "\"rope_theta\" is 10000.0");
    expect_refusal(BOTH("default\"", "dynamic\", \"factor\": 2"), "all of these but dynamic");
    expect_refusal("{\"model_type\": \"olmo3\", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}",
                   "call it \"rope_type\"");
    expect_refusal(BOTH("yarn\", \"factor\": 2, \"truncate\": false", "default\""), "\"truncate\" that is true");
}

#define LONGROPE(n)                                                                                              \
    "{\"model_type\": \"phi3\", " SIZES "\"original_max_position_embeddings\": 8, \"rope_scaling\": {\"type\": " \
    "\"longrope\", \"short_factor\": [" n "], \"long_factor\": [2, 2, 2, 2, 2, 2, 2, 2]}}"

static void positions_end_where_factors_change(void **state) {
    (void)state;
    struct shore__arch a = arch_of(LONGROPE("1, 1, 1, 1, 1, 1, 1, 1"));
    assert_int_equal(shore__arch_most_positions(&a, 8), 8);
    assert_int_equal(shore__arch_most_positions(&a, 9), 0);
    float table_short[8 * 16], table_long[9 * 16];
    shore__rope_table(&a, 0, 8, table_short);
    shore__rope_table(&a, 0, 9, table_long);
    assert_memory_equal(&table_short[2 * 16], &table_long[4 * 16], 16 * sizeof(float)); /* twice as far */
    expect_refusal(LONGROPE("1, 1"), "\"long_factor\"");
    expect_refusal("{\"model_type\": \"phi3\", " SIZES "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}}",
                   "only longrope");
    expect_refusal("{\"model_type\": \"ministral3\", " SIZES "\"rope_theta\": 1e6}", "yarn is needed");
}

static void experts_are_counted_by_both_names(void **state) {
    static const char *const families[] = {"olmoe", "qwen3_moe", "gpt_oss"};
    (void)state;
    for (size_t f = 0; f < 3; f++)
        for (int both = 0; both < 3; both++) {
            char text[500];
            snprintf(text, sizeof text,
                     "{\"model_type\": \"%s\", " SIZES "\"rope_parameters\": {\"rope_type\": \"default\"}, "
                     "\"num_experts_per_tok\": 2, %s}",
                     families[f],
                     both == 2 ? "\"num_experts\": 5, \"num_local_experts\": 6"
                     : both    ? "\"num_experts\": 5"
                               : "\"num_local_experts\": 5");
            if (both == 2)
                expect_refusal(text, "num_experts says another number");
            else
                assert_int_equal(arch_of(text).experts, 5);
        }
}

/* Runs and exports hold what is written. */
static void what_is_written_is_read_again(void **state) {
    static const char *const families[] = {"\"llama\"",   "\"mistral\"",   "\"ministral\", \"head_dim\": 8",
                                           "\"qwen2\"",   "\"qwen3\"",     "\"gemma2\"",
                                           "\"smollm3\"", "\"olmo2\"",     "\"gemma3_text\"",
                                           "\"olmoe\"",   "\"qwen3_moe\"", "\"gpt_oss\""};
    static const char *const angles[] = {
        "{\"rope_type\": \"default\"}", "{\"rope_type\": \"linear\", \"factor\": 2}",
        "{\"rope_type\": \"dynamic\", \"factor\": 2}",
        "{\"rope_type\": \"yarn\", \"factor\": 4, \"attention_factor\": 1.5}",
        "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4}"};
    (void)state;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++)
        for (size_t i = 0; i < sizeof angles / sizeof *angles; i++) {
            char text[800];
            struct shore_diag diag = {0};
            snprintf(text, sizeof text, "{\"model_type\": %s, " SIZES "\"rope_theta\": 3e4, \"rope_scaling\": %s}",
                     families[f], angles[i]);
            struct shore__arch arch = arch_of(text), again;
            json_t *written = shore__arch_to_json(&arch);
            if (shore__arch_from_json(written, text, &again, &diag)) fail_msg("%s", diag.text);
            json_t *twice = shore__arch_to_json(&again);
            assert_true(json_equal(written, twice));
            for (int t = 0; t < 2; t++)
                assert_memory_equal(&arch.rope[t], &again.rope[t], sizeof again.rope[t]);
            json_decref(written);
            json_decref(twice);
        }
}

#define WRAPPED(type, text)                                                                                       \
    "{\"model_type\": \"" type "\", \"architectures\": [\"X\"], \"vision_config\": {\"a\": 1}, \"text_config\": " \
    "{\"model_type\": \"mistral\", \"other\": 3, " SIZES text "}}"

static void texts_of_multimodal_models_are_models(void **state) {
    (void)state;
    struct shore__arch a = arch_of(WRAPPED("mistral3", "\"head_dim\": 16"));
    assert_string_equal(a.model_type, "mistral");
    assert_string_equal(a.wrapper, "mistral3");
    json_t *config = json_loads(WRAPPED("mistral3", "\"head_dim\": 16"), 0, NULL);
    struct shore__model *m;
    char unknown[40];
    assert_int_equal(shore__model_of_config(&a, config, &m, NULL), 0);
    assert_string_equal(m->blocks[0].tensors[0].parts[0].name, "language_model.model.embed_tokens.weight");
    assert_int_equal(shore__config_keys_unknown(m->kept, m->family, unknown, sizeof unknown), 1);
    assert_string_equal(unknown, "\"other\"");
    json_t *written = shore__model_to_json(m, &m->arch), *text = json_object_get(written, "text_config");
    assert_string_equal(json_string_value(json_object_get(written, "model_type")), "mistral3");
    assert_true(json_is_object(json_object_get(written, "vision_config")));
    assert_int_equal(json_integer_value(json_object_get(text, "head_dim")), 16);
    assert_int_equal(json_integer_value(json_object_get(text, "other")), 3);
    struct shore__arch again;
    assert_int_equal(shore__arch_from_json(written, "config.json", &again, NULL), 0);
    assert_string_equal(again.wrapper, "mistral3");
    assert_false(again.tied);
    json_decref(written);
    json_decref(config);
    shore__model_free(m);
    expect_refusal("{\"model_type\": \"qwen2_5_vl\", " SIZES
                   "\"architectures\": [\"Qwen2_5_VLForConditionalGeneration\"]}",
                   "from Python, any model trains");
    /* as transformers 5 saves a model whose files hold a head */
    a = arch_of(WRAPPED("mistral3", "\"tie_word_embeddings\": false}, \"tie_word_embeddings\": true, \"a\": {"));
    assert_true(a.tied);
    expect_refusal(WRAPPED("mistral3", "\"tie_word_embeddings\": true}, \"tie_word_embeddings\": false, \"a\": {"),
                   "text_config says something else");
    expect_refusal(WRAPPED("llava", "\"head_dim\": 16"), "only the text of gemma3 and mistral3");
}

static void presets_have_their_published_sizes(void **state) {
    static const struct {
        const char *name;
        uint64_t parameters;
    } published[] = {
        {"qwen3-0.6b", 596049920}, {"qwen3-8b", 8190735360}, {"gemma3-1b", 999885952}, {"smollm3-3b", 3075098624}};
    (void)state;
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        struct shore__arch a;
        struct shore__model *m;
        assert_int_equal(shore__arch_preset(published[i].name, 0, &a, NULL), 0);
        assert_int_equal(shore__model_make(&a, &m, NULL), 0);
        assert_int_equal(m->parameters, published[i].parameters);
        shore__model_free(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_of_two_kinds),
        cmocka_unit_test(what_transformers_reads_otherwise_is_refused_of_both_kinds),
        cmocka_unit_test(positions_end_where_factors_change),
        cmocka_unit_test(experts_are_counted_by_both_names),
        cmocka_unit_test(what_is_written_is_read_again),
        cmocka_unit_test(texts_of_multimodal_models_are_models),
        cmocka_unit_test(presets_have_their_published_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
