/* The files of a tokenizer: which of them are needed, what those beside tokenizer.json say, what is saved and copied.
 */
#include <sys/stat.h>

#include "unit/text/tokenizer_files.h"

static void the_byte_level_one_is_saved_as_itself(void **state) {
    struct shore__tokenizer *t, *again;
    struct shore_diag diag = {0};
    struct shore__ids ids = {0};
    assert_int_equal(shore__tokenizer_bytes(&t), 0);
    assert_int_equal(shore__tokenizer_save(t, directory, &diag), 0);
    assert_int_equal(shore__tokenizer_open(directory, &again, &diag), 0);
    assert_string_equal(shore__tokenizer_name(again), shore__tokenizer_name(t));
    assert_int_equal(shore__tokenizer_vocab(again), 257);
    assert_int_equal(shore__tokenizer_end_of_text(again), 256);
    assert_int_equal(shore__tokenizer_encode(again, "\xff\xc3\xa9", 3, false, &ids, &diag), 0);
    assert_int_equal(ids.count, 3);
    assert_int_equal(ids.ids[0], 255);
    free(ids.ids);
    shore__tokenizer_close(again);
    shore__tokenizer_close(t);
    /* transformers would add token types, which its models of our kinds refuse */
    char path[128], text[1024];
    snprintf(path, sizeof path, "%s/tokenizer_config.json", directory);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    assert_non_null(strstr(text, "\"model_input_names\""));
    assert_null(strstr(text, "token_type_ids"));
    drop("tokenizer.json");
    drop("tokenizer_config.json");
}

static void a_copy_has_the_same_name(void **state) {
    static const char *const sources[] = {"llama3", "gpt2_files"};
    static const int64_t end_of_text[] = {0, 0};
    for (int i = 0; i < 2; i++) {
        struct shore__tokenizer *t, *again;
        struct shore_diag diag = {0};
        char path[512];
        snprintf(path, sizeof path, "%s/tokenizers/%s", SHORE_TEST_DATA, sources[i]);
        assert_int_equal(shore__tokenizer_open(path, &t, &diag), 0);
        assert_int_equal(shore__tokenizer_end_of_text(t), end_of_text[i]);
        assert_int_equal(shore__tokenizer_save(t, directory, &diag), 0);
        assert_int_equal(shore__tokenizer_open(directory, &again, &diag), 0);
        assert_string_equal(shore__tokenizer_name(again), shore__tokenizer_name(t));
        shore__tokenizer_close(again);
        shore__tokenizer_close(t);
        snprintf(path, sizeof path, "%s/tokenizer_config.json", directory); /* it names the class for transformers */
        assert_int_equal(access(path, F_OK), 0);
        drop("tokenizer.json");
        drop("tokenizer_config.json");
    }
    drop("vocab.json");
    drop("merges.txt");
}

static void what_belongs_to_it_is_copied(void **state) {
    struct shore__tokenizer *t;
    struct shore_diag diag = {0};
    char copy[80], path[128];
    (void)state;
    snprintf(copy, sizeof copy, "%s/copy", directory);
    snprintf(path, sizeof path, "%s/chat_template.jinja", copy);
    put_text("tokenizer.json", "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}");
    put_text("chat_template.jinja", "{{ messages }}");
    assert_int_equal(mkdir(copy, 0755), 0);
    assert_int_equal(shore__tokenizer_open(directory, &t, &diag), 0);
    assert_int_equal(shore__tokenizer_save(t, copy, &diag), 0);
    assert_int_equal(access(path, F_OK), 0);
    shore__tokenizer_close(t);
    drop("tokenizer.json");
    drop("chat_template.jinja");
}

/* What AutoTokenizer says; vocabulary and end of text are made by make_expected.py, too. */
static void files_beside_it_say_what_ends_a_text(void **state) {
    static const char *const names[] = {"beside", "beside_old", "beside_pair"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct shore__tokenizer *t;
        struct shore_diag diag = {0};
        char path[512];
        size_t bytes;
        snprintf(path, sizeof path, "%s/tokenizers/%s/end_of_text.bin", SHORE_TEST_DATA, names[i]);
        unsigned char *expected = slurp(path, &bytes);
        assert_int_equal(bytes, 8);
        snprintf(path, sizeof path, "%s/tokenizers/%s", SHORE_TEST_DATA, names[i]);
        assert_int_equal(shore__tokenizer_open(path, &t, &diag), 0);
        assert_int_equal(shore__tokenizer_end_of_text(t), word(expected));
        assert_int_equal(shore__tokenizer_vocab(t), word(expected + 4));
        shore__tokenizer_close(t);
        free(expected);
    }
}

static void end_of_text_is_what_the_files_say(void **state) {
    static const struct {
        const char *tokenizer_config, *config;
        int64_t id;
    } cases[] = {{NULL, NULL, 3},
                 {"{\"eos_token\":\"b\",\"add_prefix_space\":null}", NULL, 1},
                 {"{\"eos_token\":\"b\",\"model_max_length\":1000000000000000019884624838656}", NULL, 1},
                 {"{\"eos_token\":{\"content\":\"ab\"}}", "{\"eos_token_id\":1}", 2},
                 {"{\"eos_token\":\"b\",\"unk_token\":{\"content\":\"?\"},\"x\":[{\"split\":1}]}", NULL, 1},
                 {"{\"eos_token\":\"?\"}", "{\"eos_token_id\":1}", 4}, /* transformers adds it */
                 {"{\"eos_token\":null,\"pad_token\":\"?\"}", NULL, 3},
                 {NULL, "{\"eos_token_id\":[2,1]}", 2},
                 {NULL, "{\"eos_token_id\":null}", 3},
                 {NULL, "{\"eos_token_id\":77}", -1},
                 {NULL, "{\"eos_token_id\":\"b\"}", -1},
                 {NULL, "{\"eos_token_id\":-1}", -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct shore__tokenizer *t;
        struct shore_diag diag = {0};
        put_text("tokenizer.json", WITH("\"added_tokens\":[{\"id\":3,\"content\":\"</s>\",\"special\":true}]"));
        if (cases[i].tokenizer_config) put_text("tokenizer_config.json", cases[i].tokenizer_config);
        if (cases[i].config) put_text("config.json", cases[i].config);
        int rc = shore__tokenizer_open(directory, &t, &diag);
        assert_int_equal(rc, cases[i].id < 0 ? SHORE_EINPUT : 0);
        if (rc) {
            assert_non_null(strstr(diag.text, "config.json: \"eos_token_id\""));
        } else {
            assert_int_equal(shore__tokenizer_end_of_text(t), cases[i].id);
            assert_int_equal(shore__tokenizer_needed(t), cases[i].id < 4 ? 4 : cases[i].id + 1);
            shore__tokenizer_close(t);
        }
        drop("tokenizer_config.json");
        drop("config.json");
    }
    drop("tokenizer.json");
    struct shore__tokenizer *t;
    struct shore_diag diag = {0};
    assert_int_equal(shore__tokenizer_open(directory, &t, &diag), SHORE_EMISSING);
    put_text("vocab.json", "{\"a\":0}");
    put_text("merges.txt", "#version: 0.2\n");
    put_text("tokenizer_config.json", "{\"tokenizer_class\":\"Qwen2Tokenizer\"}");
    assert_int_equal(shore__tokenizer_open(directory, &t, &diag), SHORE_EINPUT);
    assert_non_null(strstr(diag.text, "Qwen2Tokenizer"));
    drop("tokenizer_config.json");
    put_text("merges.txt", "#version: 0.2\na b c\n");
    assert_int_equal(shore__tokenizer_open(directory, &t, &diag), SHORE_EINPUT);
    assert_non_null(strstr(diag.text, "merges.txt"));
    drop("merges.txt");
    char path[128];
    snprintf(path, sizeof path, "%s/merges.txt", directory);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(shore__tokenizer_open(directory, &t, &diag), SHORE_EINPUT);
    assert_non_null(strstr(diag.text, "merges.txt: is not a regular file"));
    drop("merges.txt");
    drop("vocab.json");
}

static void two_files_say_what_gpt2_is_alone(void **state) {
    static const struct {
        const char *file, *text, *part; /* NULL: is taken */
    } cases[] = {
        {"tokenizer_config.json", "{\"tokenizer_class\":\"GPT2Tokenizer\"}", NULL},
        {"tokenizer_config.json", "{\"tokenizer_class\":\"Qwen2Tokenizer\"}", "for Qwen2Tokenizer a"},
        {"tokenizer_config.json", "{\"add_prefix_space\":1}", "tokenizer_config.json: \"add_prefix_space\" takes"},
        {"tokenizer_config.json", "{\"add_prefix_space\":null}", NULL},
        {"tokenizer_config.json", "{\"eos_token\":5}", "tokenizer_config.json: \"eos_token\" takes"},
        {"tokenizer_config.json", "{\"add_prefix_space\":true}", NULL},
        {"config.json", "{\"model_type\":\"qwen2\"}", "for Qwen2Tokenizer a"},
        {"added_tokens.json", "{\"<tool>\":3}", NULL},
        {"added_tokens.json", "{\"<tool>\":4}",
         "added_tokens.json: the token \"<tool>\" has the id 4, but transformers, which counts on from the vocabulary, "
         "gives it 3"},
        {"added_tokens.json", "{\"<tool>\":\"3\"}", "added_tokens.json: the token \"<tool>\" has no whole number"},
        {"added_tokens.json", "{}", NULL}};
    (void)state;
    put_text("vocab.json", "{\"a\":0,\"b\":1,\"ab\":2}");
    put_text("merges.txt", "a b\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct shore__tokenizer *t = NULL;
        struct shore_diag diag = {0};
        put_text(cases[i].file, cases[i].text);
        assert_int_equal(shore__tokenizer_open(directory, &t, &diag), cases[i].part ? SHORE_EINPUT : 0);
        if (cases[i].part) assert_non_null(strstr(diag.text, cases[i].part));
        drop(cases[i].file);
        shore__tokenizer_close(t);
    }
    drop("vocab.json");
    drop("merges.txt");
}

#define LISTED(x) "{\"added_tokens_decoder\":" x "}"

static void what_the_files_beside_it_say_is_checked(void **state) {
    static const struct {
        const char *file, *text, *part;
    } cases[] = {
        {"tokenizer_config.json", LISTED("[]"), "takes tokens by their ids"},
        {"tokenizer_config.json", LISTED("3"), "takes tokens by their ids"},
        {"tokenizer_config.json", LISTED("{\"x\":{\"content\":\"y\"}}"), "\"x\", which is no id"},
        {"tokenizer_config.json", LISTED("{\"99999999999\":{\"content\":\"y\"}}"), "no id in range"},
        {"tokenizer_config.json", LISTED("{\"3\":{}}"), "token 3 of \"added_tokens_decoder\" has no content"},
        {"tokenizer_config.json", LISTED("{\"3\":\"y\"}"), "has no content"},
        {"tokenizer_config.json", LISTED("{\"3\":{\"content\":\"y\",\"special\":1}}"),
         "\"special\" takes true or false"},
        {"tokenizer_config.json", LISTED("{\"4\":{\"content\":\"y\"}}"),
         "\"y\" has the id 4, but transformers, which counts on from the vocabulary, gives it 3"},
        {"tokenizer_config.json", LISTED("{\"3\":{\"content\":\"a\"}}"),
         "\"a\" has the id 3, but is 0 in the vocabulary"},
        {"tokenizer_config.json", LISTED("{},\"added_tokens_decoder\":{}"), "stands twice"},
        {"tokenizer_config.json", "{\"eos_token\":\"a\",\"eos_token\":\"b\"}", "stands twice"},
        {"tokenizer_config.json", "{\"pad_token\":[]}", "\"pad_token\" takes a text"},
        {"tokenizer_config.json", "[]", "not a JSON object"},
        {"special_tokens_map.json", "{\"eos_token\":7}", "special_tokens_map.json: \"eos_token\" takes a text"},
        {"special_tokens_map.json", "{", "special_tokens_map.json"},
        {"added_tokens.json", "{\"y\":-3}", "added_tokens.json: the token \"y\" has no whole number"},
        {"generation_config.json", "{\"eos_token_id\":9}", "generation_config.json: \"eos_token_id\" is 9"}};
    (void)state;
    put_text("tokenizer.json", MODEL(""));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct shore__tokenizer *t = NULL;
        struct shore_diag diag = {0};
        put_text(cases[i].file, cases[i].text);
        if (shore__tokenizer_open(directory, &t, &diag) != SHORE_EINPUT || !strstr(diag.text, cases[i].part))
            fail_msg("%s: \"%s\" does not say \"%s\"", cases[i].text, diag.text, cases[i].part);
        drop(cases[i].file);
    }
    drop("tokenizer.json");
}

static void half_a_tokenizer_is_named(void **state) {
    static const char *const halves[][2] = {
        {"tokenizer.model", "tokenizer.json"}, {"vocab.json", "merges.txt"},
        {"merges.txt", "vocab.json"},          {"encoder.json", "vocab.bpe"},
        {"vocab.bpe", "encoder.json"},         {"tokenizer_config.json", "tokenizer.json"}};
    struct shore__tokenizer *t;
    struct shore_diag diag = {0};
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
        put_text(halves[i][0], "{}");
        assert_int_equal(shore__tokenizer_open(directory, &t, &diag), SHORE_EINPUT);
        assert_non_null(strstr(diag.text, halves[i][0]));
        assert_non_null(strstr(diag.text, halves[i][1]));
        drop(halves[i][0]);
    }
    char path[128];
    snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    assert_int_equal(symlink("../blobs/nowhere", path), 0);
    assert_int_equal(shore__tokenizer_open(directory, &t, &diag), SHORE_EINPUT);
    assert_non_null(strstr(diag.text, "links to"));
    drop("tokenizer.json");
    assert_int_equal(shore__tokenizer_open(directory, &t, &diag), SHORE_EMISSING);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_byte_level_one_is_saved_as_itself),
        cmocka_unit_test(a_copy_has_the_same_name),
        cmocka_unit_test(what_belongs_to_it_is_copied),
        cmocka_unit_test(files_beside_it_say_what_ends_a_text),
        cmocka_unit_test(end_of_text_is_what_the_files_say),
        cmocka_unit_test(two_files_say_what_gpt2_is_alone),
        cmocka_unit_test(what_the_files_beside_it_say_is_checked),
        cmocka_unit_test(half_a_tokenizer_is_named),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
