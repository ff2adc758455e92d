/* Chat templates: where they are found, and what of a row they refuse. */
#include <jansson.h>
#include <sys/stat.h>

#include "unit/text/tokenizer_files.h"

#include "text/chat_impl.h"

#include "base/diag.h"

static struct shore__tokenizer *tokenizer;

static int with_tokenizer(void **state) {
    struct shore_diag diag = {0};
    if (setup(state)) return -1;
    put_text("tokenizer.json", "{\"added_tokens\": [{\"id\": 3, \"content\": \"<s>\", \"special\": true}, {\"id\": 4, "
                               "\"content\": \"</s>\", \"special\": true}], \"model\": {\"type\": \"BPE\", " V "}}");
    return shore__tokenizer_open(directory, &tokenizer, &diag);
}

static int without_it(void **state) {
    shore__tokenizer_close(tokenizer);
    return teardown(state);
}

/* The default template that is found, and the end of text it may name. */
static void expect(const char *template, const char *eos) {
    struct shore__chat *chat;
    struct shore_diag diag = {0};
    int rc = shore__chat_open(tokenizer, NULL, NULL, &chat, &diag);
    if (!template) {
        assert_int_equal(rc, SHORE_EMISSING);
        assert_non_null(strstr(diag.text, "no chat template"));
        return;
    }
    assert_int_equal(rc, 0);
    assert_string_equal(json_string_value(json_object_get(chat->templates, "default")), template);
    assert_int_equal(json_object_get(chat->variables, "eos_token") != NULL, eos != NULL);
    if (eos) assert_string_equal(json_string_value(json_object_get(chat->variables, "eos_token")), eos);
    shore__chat_close(chat);
}

static void it_is_found_where_models_keep_it(void **state) {
    expect(NULL, NULL);
    put_text("chat_template.json", "{\"chat_template\": \"json\"}");
    expect("json", NULL);
    put_text("tokenizer_config.json", "{\"chat_template\": null}");
    expect("json", NULL);
    put_text("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"rag\"}]}");
    expect(NULL, NULL);
    put_text("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"rag\"}, {\"name\": "
                                      "\"default\", \"template\": \"config\"}], \"eos_token\": \"b\"}");
    expect("config", "b");
    put_text("tokenizer_config.json", "{\"chat_template\": \"text\", \"eos_token\": {\"content\": \"a\"}}");
    expect("text", "a");
    put_text("chat_template.jinja", "jinja");
    expect("jinja", "a");
    drop("chat_template.json");
    drop("tokenizer_config.json");
    expect("jinja", NULL);
    struct shore__chat *chat;
    struct shore_diag diag = {0};
    assert_int_equal(mkdir(in_directory("additional_chat_templates"), 0755), 0);
    put_text("additional_chat_templates/tool_use.jinja", "tools");
    assert_int_equal(shore__chat_open(tokenizer, NULL, NULL, &chat, &diag), SHORE_EINPUT);
    assert_non_null(strstr(diag.text, "additional_chat_templates/tool_use.jinja"));
    drop("additional_chat_templates/tool_use.jinja");
    drop("chat_template.jinja");
}

static void a_template_of_another_type_is_refused(void **state) {
    static const char *const bad[] = {"{\"chat_template\": 1}", "{\"chat_template\": [\"text\"]}",
                                      "{\"chat_template\": [{\"name\": \"default\"}]}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct shore__chat *chat;
        struct shore_diag diag = {0};
        put_text("tokenizer_config.json", bad[i]);
        assert_int_equal(shore__chat_open(tokenizer, NULL, NULL, &chat, &diag), SHORE_EINPUT);
        assert_non_null(strstr(diag.text, "tokenizer_config.json: "));
    }
    drop("tokenizer_config.json");
}

/* transformers has tokens of its own for some classes. */
static void a_token_that_the_class_would_give_is_asked_for(void **state) {
    struct shore__chat *chat;
    struct shore_diag diag = {0};
    put_text("chat_template.jinja", "{{ eos_token }}");
    put_text("tokenizer_config.json", "{\"tokenizer_class\": \"GemmaTokenizer\"}");
    assert_int_equal(shore__chat_open(tokenizer, NULL, NULL, &chat, &diag), SHORE_EINPUT);
    assert_non_null(strstr(diag.text, "\"eos_token\", of which the file says nothing"));
    put_text("tokenizer_config.json", "{\"tokenizer_class\": \"GemmaTokenizer\", \"eos_token\": null}");
    expect("{{ eos_token }}", NULL);
    put_text("tokenizer_config.json", "{\"tokenizer_class\": \"PreTrainedTokenizerFast\"}");
    expect("{{ eos_token }}", NULL);
    drop("tokenizer_config.json");
    drop("chat_template.jinja");
}

/* ---- rendering --------------------------------------------------------------------------------------------------- */

static const char tokens[] = "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}}";

/* Renders into "text|text", with [ and ] around what counts; or why not. */
static void render(struct shore__chat *chat, const char *row, char *out, size_t bytes) {
    struct shore__chat_text *texts;
    struct shore_diag diag = {0};
    size_t count;
    json_t *value = json_loads(row, 0, NULL);
    assert_non_null(value);
    int rc = shore__chat_render(chat, value, false, &texts, &count, &diag);
    json_decref(value);
    out[0] = 0;
    if (rc) shore__append(out, bytes, "%s", diag.text);
    for (size_t i = 0; i < count; i++) {
        size_t at = 0;
        if (i) shore__append(out, bytes, "|");
        for (size_t k = 0; k < texts[i].ncounts; k++) {
            struct shore__chat_span s = texts[i].counts[k];
            shore__append(out, bytes, "%.*s[%.*s]", (int)(s.begin - at), texts[i].text + at, (int)(s.end - s.begin),
                          texts[i].text + s.begin);
            at = s.end;
        }
        shore__append(out, bytes, "%.*s", (int)(texts[i].bytes - at), texts[i].text + at);
    }
    shore__chat_texts_free(texts, count);
}

/* Sequences that can be rendered one by one are the same so. */
static void each_alone(struct shore__chat *chat, const char *row) {
    struct shore__chat_text *texts, *one;
    struct shore_diag diag = {0};
    size_t count;
    json_t *value = json_loads(row, 0, NULL);
    assert_int_equal(shore__chat_render(chat, value, false, &texts, &count, &diag), 0);
    size_t alone = shore__chat_answers(chat, value);
    assert_true(alone == 0 || alone == count);
    for (size_t i = 0; i < alone; i++) {
        assert_int_equal(shore__chat_render_answer(chat, value, i, &one, &diag), 0);
        assert_int_equal(one->bytes, texts[i].bytes);
        assert_memory_equal(one->text, texts[i].text, one->bytes);
        assert_int_equal(one->ncounts, 1);
        assert_memory_equal(one->counts, texts[i].counts, sizeof *one->counts);
        shore__chat_texts_free(one, 1);
    }
    shore__chat_texts_free(texts, count);
    json_decref(value);
}

static struct shore__chat *open_chat(const char *template) {
    struct shore__chat *chat;
    struct shore_diag diag = {0};
    put_text("tokenizer_config.json", tokens);
    put_text("chat_template.jinja", template);
    assert_int_equal(shore__chat_open(tokenizer, NULL, NULL, &chat, &diag), 0);
    drop("tokenizer_config.json");
    drop("chat_template.jinja");
    return chat;
}

#define SAYS(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define ROW(messages) "{\"messages\": [" messages "]}"
#define TWICE SAYS("user", "a") ", " SAYS("assistant", "b") ", " SAYS("user", "c") ", " SAYS("assistant", "d")

static void known_ones_need_no_python(void **state) {
    static const struct {
        uint64_t hash;
        const char *row, *text;
    } cases[] = {
        {0xa04f41d813a07b13, ROW(SAYS("user", "a") ", " SAYS("assistant", "b")),
         "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>\n]"},
        {0xd5d943bd0bd9082f, ROW(SAYS("user", "a")),
         "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\na<|im_end|>\n"},
        {0x99ab995e9629dacd, ROW(SAYS("system", "") ", " SAYS("user", "a")),
         "<|im_start|>system\n<|im_end|>\n<|im_start|>user\na<|im_end|>\n"},
        {0xc9e0155c80737cf2, ROW(TWICE),
         "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[<think>\n\n</think>\n\nb<|im_end|>\n]|"
         "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
         "<|im_start|>assistant\n[<think>\n\n</think>\n\nd<|im_end|>\n]"},
        {0x9799ad6e2dea0594, ROW(SAYS("user", "\\u2003a\\n") ", " SAYS("assistant", " b\\u00a0")),
         "<s><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\n[b<|eot_id|>]"},
        {0x2c2e86beabccd2a4, ROW(SAYS("user", "a") ", " SAYS("assistant", "b")),
         "<s><start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\n[b<end_of_turn>\n]"},
        {0xa5d004210ebce758, ROW(TWICE), "<s>[INST] a [/INST][b</s>][INST] c [/INST][d</s>]"},
        {0xb7f52373b11c60d7, ROW(TWICE), "<s>[INST] a [/INST][b</s> ][INST] c [/INST][d</s> ]"},
        {0x1db34e9fc60441d8, ROW(TWICE),
         "<|user|>\na</s>\n<|assistant|>\n[b</s>\n]<|user|>\nc</s>\n<|assistant|>\n[d</s>\n]"},
        {0xd9c620dcaf86f38d, ROW(SAYS("system", " s") ", " SAYS("user", " a") ", " SAYS("assistant", "b")),
         "<s><start_of_turn>user\n s\n\na<end_of_turn>\n<start_of_turn>model\n[b<end_of_turn>\n]"},
        {0x82fc89c04c54ba66, ROW(TWICE),
         "<|user|>\na<|end|>\n<|assistant|>\n[b<|end|>\n]<|user|>\nc<|end|>\n<|assistant|>\n[d<|end|>\n</s>]"},
        {0xbc5711ad3f99d670, ROW(SAYS("user", "a") ", " SAYS("assistant", "b") ", " SAYS("assistant", "c")),
         "<|im_start|>user<|im_sep|>a<|im_end|><|im_start|>assistant<|im_sep|>[b<|im_end|>c<|im_end|>]"},
    };
    char text[1024];
    struct shore__chat *chat = open_chat("");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        chat->known = shore__chat_known_by(cases[i].hash);
        assert_non_null(chat->known);
        render(chat, cases[i].row, text, sizeof text);
        assert_string_equal(text, cases[i].text);
        each_alone(chat, cases[i].row);
    }
    assert_null(chat->helper);
    shore__chat_close(chat);
}

static bool has_jinja(void) {
    char text[1024];
    struct shore__chat *chat = open_chat("x");
    render(chat, ROW(SAYS("user", "a")), text, sizeof text);
    shore__chat_close(chat);
    return !strstr(text, "apt-get install python3-jinja2");
}

/* The token that ends an answer counts, also as the marker of the next role, and once as something else. */
static void others_are_rendered_by_jinja(void **state) {
    static const struct {
        const char *template, *text;
    } cases[] = {
        {"{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% "
         "endif %}",
         "<user>a<assistant>[b<]user>c<assistant>[d]"},
        {"{% for m in messages %}{{ eos_token if m.role == 'user' else bos_token }}{{ m.content }}{% endfor %}{% if "
         "add_generation_prompt %}{{ bos_token }}{% endif %}",
         "</s>a<s>[b</s>]c<s>[d]"},
        {"{% for m in messages %}{{ m.content }}{{ bos_token }}{% endfor %}{% if not add_generation_prompt %}{{ "
         "eos_token }}{% endif %}",
         "a<s>[b<s>]c<s>[d<s></s>]"},
        {"{% for m in messages %}{{ m.content }}{{ eos_token if loop.last and not add_generation_prompt else bos_token "
         "}}{% endfor %}",
         "a<s>[b</s>]|a<s>b<s>c<s>[d</s>]"},
        {"{% for m in messages %}{% generation %}{{ m.role[0] }}{% endgeneration %}{{ m.content }}{% endfor %}",
         "[u]a[a]b[u]c[a]d"},
        {"{% for m in messages %}{{ loop.index0 }}{% if loop.index0 == 1 %}{% break %}{% endif %}{% endfor %}{{ "
         "raise_exception('no\nmore') }}",
         "the template fails: TemplateError: no\\nmore"},
    };
    char text[1024];
    if (!has_jinja()) skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct shore__chat *chat = open_chat(cases[i].template);
        render(chat, ROW(TWICE), text, sizeof text);
        assert_string_equal(text, cases[i].text);
        render(chat, ROW(TWICE), text, sizeof text); /* the same process once more */
        assert_string_equal(text, cases[i].text);
        shore__chat_close(chat);
    }
}

static void a_template_without_end_is_ended(void **state) {
    char text[1024];
    if (!has_jinja()) skip();
    struct shore__chat *chat =
        open_chat("{% for i in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}");
    chat->seconds = 1;
    render(chat, ROW(TWICE), text, sizeof text);
    assert_string_equal(text, "the chat template does not come to an end: a row took too long");
    render(chat, ROW(TWICE), text, sizeof text);
    assert_non_null(strstr(text, "has ended"));
    shore__chat_close(chat);
}

static int give_up(void *ctx, struct shore_diag *diag) {
    return ++*(int *)ctx < 3 ? 0 : shore__fail(diag, -ECANCELED, "enough");
}

/* Whoever waits is asked meanwhile, so that a signal need not wait for the template. */
static void a_row_is_given_up_when_told(void **state) {
    char text[1024];
    int asked = 0;
    if (!has_jinja()) skip();
    struct shore__chat *chat = open_chat("{% for i in range(99999 if messages|length > 1 else 1) %}{% for k in "
                                         "range(99999) %}{% endfor %}{% endfor %}{{ messages[0].content }}");
    render(chat, ROW(SAYS("user", "a")), text, sizeof text);
    assert_string_equal(text, "a");
    chat->wait = give_up;
    chat->wait_ctx = &asked;
    render(chat, ROW(TWICE), text, sizeof text);
    assert_string_equal(text, "enough");
    assert_int_equal(asked, 3);
    shore__chat_close(chat);
}

/* Renders a row where another python3 is the first one of PATH. */
static void render_with(const char *python, mode_t mode, unsigned seconds, char *text, size_t bytes) {
    char *path = strdup(getenv("PATH")), *longer = malloc(strlen(path) + strlen(directory) + 2);
    struct shore__chat *chat = open_chat("{{ messages[0].content }}");
    chat->seconds = seconds;
    put_text("python3", python);
    assert_int_equal(chmod(in_directory("python3"), mode), 0);
    sprintf(longer, "%s:%s", directory, path);
    setenv("PATH", longer, 1);
    render(chat, ROW(SAYS("user", "a")), text, bytes);
    setenv("PATH", path, 1);
    shore__chat_close(chat);
    drop("python3");
    free(longer);
    free(path);
}

static void a_helper_that_does_not_answer_is_ended(void **state) {
    char text[1024];
    render_with("#!/bin/sh\nexec sleep 9999\n", 0755, 1, text, sizeof text);
    assert_non_null(strstr(text, "the helper that renders chat templates does not answer"));
}

/* As that of a manager of versions, of which none is chosen, or a file that nobody may run. */
static void a_python_that_does_not_run_is_passed_over(void **state) {
    char text[1024];
    if (!has_jinja()) skip();
    render_with("#!/bin/sh\nexit 127\n", 0755, 60, text, sizeof text);
    assert_string_equal(text, "a");
    render_with("#!/bin/sh\n", 0644, 60, text, sizeof text);
    assert_string_equal(text, "a");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_found_where_models_keep_it),
        cmocka_unit_test(a_template_of_another_type_is_refused),
        cmocka_unit_test(a_token_that_the_class_would_give_is_asked_for),
        cmocka_unit_test(known_ones_need_no_python),
        cmocka_unit_test(others_are_rendered_by_jinja),
        cmocka_unit_test(a_template_without_end_is_ended),
        cmocka_unit_test(a_row_is_given_up_when_told),
        cmocka_unit_test(a_helper_that_does_not_answer_is_ended),
        cmocka_unit_test(a_python_that_does_not_run_is_passed_over),
    };
    return cmocka_run_group_tests(tests, with_tokenizer, without_it);
}
