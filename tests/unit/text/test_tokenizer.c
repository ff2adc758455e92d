/* Ids beside those of the tokenizers library: tests/data/tokenizers, made by tests/text/make_expected.py. */
#include "unit/text/tokenizer_files.h"

static const char *const kinds[] = {"gpt2",
                                    "gpt2_added",
                                    "gpt2_files",
                                    "llama3",
                                    "qwen2",
                                    "digits",
                                    "removed",
                                    "llama2",
                                    "llama2_unknown",
                                    "across",
                                    "metaspace_first",
                                    "metaspace_always",
                                    "metaspace_never",
                                    "spaces",
                                    "spaces_normalized",
                                    "words",
                                    "line_ends",
                                    "line_starts",
                                    "text_ends",
                                    "lowercase",
                                    "decomposed",
                                    "compatible",
                                    "replaced",
                                    "stripped",
                                    "beside",
                                    "beside_old",
                                    "beside_pair"};

static bool same(const void *a, const void *b, size_t count) {
    return count == 0 || memcmp(a, b, count * sizeof(uint32_t)) == 0;
}

static void in_parts(struct shore__tokenizer *t, const char *text, size_t bytes, bool special, size_t part,
                     struct shore__ids *out) {
    struct shore__encoder *e;
    struct shore_diag diag = {0};
    assert_int_equal(shore__encoder_open(t, special, &e), 0);
    for (size_t at = 0; at < bytes; at += part)
        assert_int_equal(shore__encoder_feed(e, text + at, bytes - at < part ? bytes - at : part, out, &diag), 0);
    assert_int_equal(shore__encoder_end(e, out, &diag), 0);
    shore__encoder_close(e);
}

static void one_kind(const char *name) {
    char path[512];
    struct shore_diag diag = {0};
    struct shore__tokenizer *t = NULL;
    size_t bytes, cases = 0;
    snprintf(path, sizeof path, "%s/tokenizers/%s", SHORE_TEST_DATA, name);
    if (shore__tokenizer_open(path, &t, &diag)) fail_msg("%s: %s", name, diag.text);
    snprintf(path, sizeof path, "%s/tokenizers/%s/cases.bin", SHORE_TEST_DATA, name);
    unsigned char *data = slurp(path, &bytes);
    for (size_t at = 0; at < bytes; cases++) {
        bool special = data[at] != 0;
        uint32_t length = word(data + at + 1);
        const char *text = (const char *)data + at + 5;
        at += 5 + (size_t)length;
        uint32_t count = word(data + at);
        struct shore__ids ids = {0}, parts = {0};
        if (shore__tokenizer_encode(t, text, length, special, &ids, &diag)) fail_msg("%s: %s", name, diag.text);
        in_parts(t, text, length, special, 1 + cases % 7, &parts);
        assert_int_equal(parts.count, ids.count);
        assert_true(same(parts.ids, ids.ids, ids.count));
        if (ids.count != count || !same(ids.ids, data + at + 4, count))
            fail_msg("%s, case %zu (special %d): %zu ids instead of %u for: %.*s", name, cases, special, ids.count,
                     count, (int)(length < 120 ? length : 120), text);
        at += 4 + (size_t)count * 4;
        free(ids.ids);
        free(parts.ids);
    }
    assert_true(cases > 10);
    free(data);
    shore__tokenizer_close(t);
}

static void ids_are_those_of_the_library(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        one_kind(kinds[i]);
}

static void bytes_come_back(void **state) {
    (void)state;
    struct shore__tokenizer *t;
    struct shore__ids ids = {0};
    struct shore__text text = {0};
    char all[256];
    for (int i = 0; i < 256; i++)
        all[i] = (char)i;
    assert_int_equal(shore__tokenizer_bytes(&t), 0);
    assert_int_equal(shore__tokenizer_encode(t, all, sizeof all, false, &ids, NULL), 0);
    assert_int_equal(ids.count, 256);
    assert_int_equal(shore__tokenizer_decode(t, ids.ids, ids.count, &text), 0);
    assert_int_equal(text.count, 256);
    assert_memory_equal(text.bytes, all, 256);
    uint32_t beyond = shore__tokenizer_vocab(t);
    size_t before = text.count;
    assert_int_equal(shore__tokenizer_decode(t, &beyond, 1, &text), 0);
    assert_int_equal(text.count, before);
    free(ids.ids);
    free(text.bytes);
    shore__tokenizer_close(t);
}

static void decoding_gives_the_text_back(void **state) {
    static const char *const exact[] = {"gpt2", "llama3", "qwen2", "llama2", "metaspace_first"};
    static const char text[] = "Over the stones: \xC3\xA9 12\n  caf\xC3\xA9 \xF0\x9F\x9A\x80 ends";
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++) {
        struct shore__tokenizer *t;
        struct shore_diag diag = {0};
        struct shore__ids ids = {0};
        struct shore__text whole = {0}, parts = {0};
        char path[512];
        snprintf(path, sizeof path, "%s/tokenizers/%s", SHORE_TEST_DATA, exact[i]);
        assert_int_equal(shore__tokenizer_open(path, &t, &diag), 0);
        assert_int_equal(shore__tokenizer_encode(t, text, strlen(text), false, &ids, &diag), 0);
        assert_int_equal(shore__tokenizer_decode(t, ids.ids, ids.count, &whole), 0);
        assert_int_equal(whole.count, strlen(text));
        assert_memory_equal(whole.bytes, text, whole.count);
        for (size_t k = 0; k < ids.count; k++)
            assert_int_equal(shore__tokenizer_decode(t, ids.ids + k, 1, &parts), 0);
        assert_int_equal(parts.count, whole.count);
        assert_memory_equal(parts.bytes, text, whole.count);
        free(ids.ids);
        free(whole.bytes);
        free(parts.bytes);
        shore__tokenizer_close(t);
    }
}

/* The second of two finds that its spaces went with the first: the `tokenizers` library finds one. */
static void spaces_go_with_one_token(void **state) {
    static const uint32_t expected[] = {0, 3, 1};
    struct shore__tokenizer *t;
    struct shore__ids ids = {0};
    struct shore_diag diag = {0};
    (void)state;
    put_text("tokenizer.json",
             WITH("\"added_tokens\":[{\"id\":3,\"content\":\"\\t\",\"lstrip\":true,\"rstrip\":true}]"));
    assert_int_equal(shore__tokenizer_open(directory, &t, &diag), 0);
    assert_int_equal(shore__tokenizer_encode(t, "a \t \t b", 7, false, &ids, &diag), 0);
    assert_int_equal(ids.count, 3);
    assert_memory_equal(ids.ids, expected, sizeof expected);
    free(ids.ids);
    shore__tokenizer_close(t);
    drop("tokenizer.json");
}

#define MANY 30000

/* As the codes of sound in a model that speaks: both files are larger than a part that is held as a tree may be. */
static void many_tokens_can_be_added(void **state) {
    static const uint32_t expected[] = {0, 3 + 7, 3 + 29999, 3 + 2999, 1};
    static const char text[] = "a<|s_7|><|s_29999|><|s_2999|>b";
    struct shore__tokenizer *t;
    struct shore__ids ids = {0};
    struct shore_diag diag = {0};
    char *json = NULL;
    size_t bytes;
    (void)state;
    FILE *f = open_memstream(&json, &bytes);
    assert_non_null(f);
    for (unsigned i = 0; i < MANY; i++)
        fprintf(f,
                "%s{\"id\":%u,\"content\":\"<|s_%u|>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                "\"normalized\":false,\"special\":false}",
                i ? "," : "", 3 + i, i);
    assert_int_equal(fclose(f), 0);
    char *whole = malloc(bytes + 200);
    assert_non_null(whole);
    sprintf(whole, WITH("\"added_tokens\":[%s]"), json);
    put_text("tokenizer.json", whole);
    free(json);
    f = open_memstream(&json, &bytes);
    assert_non_null(f);
    for (unsigned i = 0; i < MANY; i++)
        fprintf(f, "%s\"%u\":{\"content\":\"<|s_%u|>\",\"normalized\":false,\"special\":false}", i ? "," : "", 3 + i,
                i);
    assert_int_equal(fclose(f), 0);
    sprintf(whole, "{\"added_tokens_decoder\":{%s},\"eos_token\":\"<|s_9|>\"}", json);
    put_text("tokenizer_config.json", whole);
    if (shore__tokenizer_open(directory, &t, &diag)) fail_msg("%s", diag.text);
    assert_int_equal(shore__tokenizer_vocab(t), 3 + MANY);
    assert_int_equal(shore__tokenizer_end_of_text(t), 3 + 9);
    assert_int_equal(shore__tokenizer_encode(t, text, strlen(text), false, &ids, &diag), 0);
    assert_int_equal(ids.count, 5);
    assert_memory_equal(ids.ids, expected, sizeof expected);
    free(ids.ids);
    free(whole);
    free(json);
    shore__tokenizer_close(t);
    drop("tokenizer.json");
    drop("tokenizer_config.json");
}

static void decoding_follows_the_decoder(void **state) {
    static const struct {
        const char *rules, *text;
    } cases[] = {
        {"\"pre_tokenizer\":{\"type\":\"Metaspace\",\"prepend_scheme\":\"never\"},"
         "\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}",
         "xa x"},
        {"\"decoder\":{\"type\":\"Metaspace\",\"prepend_scheme\":\"first\"}", "xa x"},
        {"\"decoder\":{\"type\":\"Metaspace\",\"prepend_scheme\":\"never\"}", " xa x"},
        {"\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":0,\"stop\":0}", " xa x"},
    };
    static const uint32_t ids[] = {3, 0, 3};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct shore__tokenizer *t;
        struct shore__text text = {0};
        struct shore_diag diag = {0};
        char json[1024];
        snprintf(json, sizeof json, WITH("\"added_tokens\":[{\"id\":3,\"content\":\"\xE2\x96\x81x\"}],%s"),
                 cases[i].rules);
        put_text("tokenizer.json", json);
        assert_int_equal(shore__tokenizer_open(directory, &t, &diag), 0);
        assert_int_equal(shore__tokenizer_decode(t, ids, 3, &text), 0);
        assert_int_equal(text.count, strlen(cases[i].text));
        assert_memory_equal(text.bytes, cases[i].text, text.count);
        free(text.bytes);
        shore__tokenizer_close(t);
    }
    drop("tokenizer.json");
}

/* One letter many times is one pretoken: whole pretokens of it by themselves are what it must give. */
static void an_endless_pretoken_is_encoded_in_parts(void **state) {
    struct shore__tokenizer *t;
    struct shore__encoder *e;
    struct shore__ids ids = {0}, last = {0};
    struct shore_diag diag = {0};
    char path[512], block[4096];
    size_t tokens = 0;
    (void)state;
    memset(block, 'a', sizeof block);
    snprintf(path, sizeof path, "%s/tokenizers/gpt2", SHORE_TEST_DATA);
    assert_int_equal(shore__tokenizer_open(path, &t, &diag), 0);
    assert_int_equal(shore__encoder_open(t, false, &e), 0);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(shore__encoder_feed(e, block, sizeof block, &ids, &diag), 0);
        tokens += ids.count;
        ids.count = 0;
    }
    assert_int_equal(shore__encoder_end(e, &ids, &diag), 0);
    assert_int_equal(shore__tokenizer_encode(t, block, sizeof block, false, &last, &diag), 0);
    assert_in_range(tokens + ids.count, 1000 * (last.count - 1), 1000 * (last.count + 1));
    free(ids.ids);
    free(last.ids);
    shore__encoder_close(e);
    shore__tokenizer_close(t);
}

/* The kind "digits" divides at digits first: what is between them goes on to the next step in parts. */
static void a_later_step_divides_a_long_text(void **state) {
    static const char words[] = " stones and water\n over";
    const size_t times = (5u << 20) / 2 / strlen(words);
    struct shore__tokenizer *t;
    struct shore__ids once = {0}, ids = {0};
    struct shore_diag diag = {0};
    char path[512];
    snprintf(path, sizeof path, "%s/tokenizers/digits", SHORE_TEST_DATA);
    assert_int_equal(shore__tokenizer_open(path, &t, &diag), 0);
    assert_int_equal(shore__tokenizer_encode(t, words, strlen(words), false, &once, &diag), 0);
    char *text = malloc(2 * (times * strlen(words) + 1));
    assert_non_null(text);
    size_t bytes = 0;
    for (int half = 0; half < 2; half++) {
        for (size_t i = 0; i < times; i++, bytes += strlen(words))
            memcpy(text + bytes, words, strlen(words));
        text[bytes++] = '7';
    }
    in_parts(t, text, bytes, false, 100000, &ids);
    assert_int_equal(ids.count % 2, 0);
    size_t half = ids.count / 2, seven = half - times * once.count;
    assert_true(seven > 0 && seven <= 2); /* a space is put before it */
    for (size_t i = 0; i < ids.count; i++)
        if (i % half < half - seven) assert_int_equal(ids.ids[i], once.ids[i % half % once.count]);
    assert_true(same(ids.ids + half - seven, ids.ids + 2 * half - seven, seven));
    free(text);
    free(once.ids);
    free(ids.ids);
    shore__tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_the_library),
        cmocka_unit_test(bytes_come_back),
        cmocka_unit_test(decoding_gives_the_text_back),
        cmocka_unit_test(spaces_go_with_one_token),
        cmocka_unit_test(many_tokens_can_be_added),
        cmocka_unit_test(decoding_follows_the_decoder),
        cmocka_unit_test(an_endless_pretoken_is_encoded_in_parts),
        cmocka_unit_test(a_later_step_divides_a_long_text),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
