/* Chat templates: where they are found, and what of a row they refuse. */
#include <jansson.h>

#include "unit/text/tokenizer_files.h"

#include "text/chat.h"

static struct shore__tokenizer *tokenizer;

static int with_tokenizer(void **state) {
    struct shore_diag diag = {0};
    if (setup(state)) return -1;
    put_text("tokenizer.json", MODEL(""));
    return shore__tokenizer_open(directory, &tokenizer, &diag);
}

static int without_it(void **state) {
    shore__tokenizer_close(tokenizer);
    return teardown(state);
}

/* The template's identity; 0: there is none. */
static uint64_t identity(void) {
    struct shore__chat *chat;
    struct shore_diag diag = {0};
    int rc = shore__chat_open(tokenizer, &chat, &diag);
    if (rc) {
        assert_int_equal(rc, SHORE_EMISSING);
        assert_non_null(strstr(diag.text, "no chat template"));
        return 0;
    }
    uint64_t found = shore__chat_identity(chat);
    shore__chat_close(chat);
    return found;
}

static void it_is_found_where_models_keep_it(void **state) {
    assert_int_equal(identity(), 0);
    put_text("chat_template.json", "{\"chat_template\": \"json\"}");
    uint64_t json = identity();
    put_text("tokenizer_config.json", "{\"chat_template\": null}");
    assert_int_equal(identity(), json);
    put_text("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"rag\"}]}");
    assert_int_equal(identity(), 0);
    put_text("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"default\", \"template\": \"config\"}]}");
    uint64_t named = identity();
    put_text("tokenizer_config.json", "{\"chat_template\": \"config\"}");
    assert_int_equal(identity(), named);
    put_text("tokenizer_config.json", "{\"chat_template\": \"config\", \"eos_token\": \"b\"}");
    assert_int_not_equal(identity(), named);
    put_text("chat_template.jinja", "jinja");
    uint64_t jinja = identity();
    assert_true(json && named && jinja && json != named && jinja != named);
    drop("chat_template.json");
    drop("tokenizer_config.json");
    assert_int_not_equal(identity(), 0);
    drop("chat_template.jinja");
}

static void a_template_of_another_type_is_refused(void **state) {
    static const char *const bad[] = {"{\"chat_template\": 1}", "{\"chat_template\": [\"text\"]}",
                                      "{\"chat_template\": [{\"name\": \"default\"}]}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct shore__chat *chat;
        struct shore_diag diag = {0};
        put_text("tokenizer_config.json", bad[i]);
        assert_int_equal(shore__chat_open(tokenizer, &chat, &diag), SHORE_EINPUT);
        assert_non_null(strstr(diag.text, "tokenizer_config.json: "));
    }
    drop("tokenizer_config.json");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_found_where_models_keep_it),
        cmocka_unit_test(a_template_of_another_type_is_refused),
    };
    return cmocka_run_group_tests(tests, with_tokenizer, without_it);
}
