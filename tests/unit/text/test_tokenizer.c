/* Ids beside those of the tokenizers library: tests/data/tokenizers, made by tests/text/make_expected.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "text/tokenizer.h"

#ifndef SHORE_TEST_DATA
#error "SHORE_TEST_DATA is tests/data"
#endif

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

static unsigned char *slurp(const char *path, size_t *bytes) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(f);
    rewind(f);
    unsigned char *data = malloc(*bytes + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *bytes, f), *bytes);
    fclose(f);
    return data;
}

static uint32_t word(const unsigned char *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static bool same(const void *a, const void *b, size_t count) {
    return count == 0 || memcmp(a, b, count * sizeof(uint32_t)) == 0;
}

static void in_parts(struct shore__tokenizer *t, const char *text, size_t bytes, bool special, size_t part,
                     struct shore__ids *out) {
    struct shore__encoder *e;
    struct shore_diag diag = {{0}};
    assert_int_equal(shore__encoder_open(t, special, &e), 0);
    for (size_t at = 0; at < bytes; at += part)
        assert_int_equal(shore__encoder_feed(e, text + at, bytes - at < part ? bytes - at : part, out, &diag), 0);
    assert_int_equal(shore__encoder_end(e, out, &diag), 0);
    shore__encoder_close(e);
}

static void one_kind(const char *name) {
    char path[512];
    struct shore_diag diag = {{0}};
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

static char directory[64];

static int setup(void **state) {
    strcpy(directory, "/tmp/shore-tokenizer-XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static int teardown(void **state) {
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", directory);
    return system(command);
}

static void put_text(const char *name, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    fclose(f);
}

static void drop(const char *name) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    unlink(path);
}

static void the_byte_level_one_is_saved_as_itself(void **state) {
    struct shore__tokenizer *t, *again;
    struct shore_diag diag = {{0}};
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
        struct shore_diag diag = {{0}};
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
    struct shore_diag diag = {{0}};
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

static void decoding_gives_the_text_back(void **state) {
    static const char *const exact[] = {"gpt2", "llama3", "qwen2", "llama2", "metaspace_first"};
    static const char text[] = "Over the stones: \xC3\xA9 12\n  caf\xC3\xA9 \xF0\x9F\x9A\x80 ends";
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++) {
        struct shore__tokenizer *t;
        struct shore_diag diag = {{0}};
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

static void expect_refusal(const char *json, const char *part) {
    struct shore__tokenizer *t;
    struct shore_diag diag = {{0}};
    put_text("tokenizer.json", json);
    int rc = shore__tokenizer_open(directory, &t, &diag);
    drop("tokenizer.json");
    if (rc == 0) fail_msg("this was taken: %s", json);
    if (!strstr(diag.text, part)) fail_msg("\"%s\" does not say \"%s\"", diag.text, part);
    assert_non_null(strstr(diag.text, "tokenizer.json"));
}

#define V "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]"
#define MODEL(x) "{\"model\":{\"type\":\"BPE\"," x V "}}"
#define WITH(x) "{" x ",\"model\":{\"type\":\"BPE\"," V "}}"
#define PATTERN(x) \
    WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"" x "\"}}")

static void what_is_not_supported_is_named(void **state) {
    expect_refusal("[]", "not a JSON object");
    expect_refusal("{}", "no \"model\"");
    expect_refusal("{\"model\":1}", "not an object");
    expect_refusal("{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]]}}", "\"Unigram\"");
    expect_refusal("{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}}", "\"WordPiece\"");
    expect_refusal("{\"model\":{\"type\":\"BPE\",\"vocab\":{}, \"merges\":[]}}", "empty");
    expect_refusal("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}", "no merges");
    expect_refusal("{\"model\":{\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}", "stands twice");
    expect_refusal("{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "has its id");
    expect_refusal("{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "whole number");
    expect_refusal("{\"model\":{\"vocab\":{\"a\":4294967295},\"merges\":[]}}", "whole number");
    expect_refusal("{\"model\":{\"vocab\":{\"a\":0},\"vocab\":{},\"merges\":[]}}", "\"vocab\" stands twice");
    expect_refusal("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", "not in the vocabulary");
    expect_refusal("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", "two tokens");
    expect_refusal("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", "not a pair");
    expect_refusal("{\"model\":{\"vocab\":{\"a\":0},\"merges\":{}}}", "not a pair");
    expect_refusal(MODEL("\"dropout\":0.1,"), "dropout");
    expect_refusal(MODEL("\"end_of_word_suffix\":\"</w>\","), "end_of_word_suffix");
    expect_refusal(MODEL("\"continuing_subword_prefix\":\"##\","), "continuing_subword_prefix");
    expect_refusal(MODEL("\"unk_token\":\"u\","), "unk_token");
    expect_refusal(WITH("\"normalizer\":{\"type\":\"Precompiled\"}"), "normalizer \"Precompiled\"");
    expect_refusal(WITH("\"normalizer\":{\"type\":\"Strip\",\"strip_left\":1}"), "\"strip_left\" takes true or false");
    expect_refusal(WITH("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a*\"},\"content\":\"\"}"),
                   "match the empty text");
    expect_refusal(WITH("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"}}"), "Replace without");
    expect_refusal(
        WITH("\"normalizer\":{\"type\":\"Strip\"},\"pre_tokenizer\":{\"type\":\"Metaspace\",\"prepend_scheme\":"
             "\"first\"}"),
        "take the beginning away");
    expect_refusal(WITH("\"pre_tokenizer\":{\"type\":\"Whitespace\"}"), "pre_tokenizer \"Whitespace\"");
    expect_refusal(WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Odd\"}"),
                   "behavior \"Odd\"");
    expect_refusal(WITH("\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\"}"), "replacement \"_\"");
    expect_refusal(WITH("\"decoder\":{\"type\":\"WordPiece\"}"), "decoder \"WordPiece\"");
    expect_refusal(WITH("\"added_tokens\":[{\"id\":0,\"content\":\"x\"}]"), "contradicts");
    expect_refusal(WITH("\"added_tokens\":[{\"id\":9,\"content\":\"a\"}]"), "contradicts");
    expect_refusal(WITH("\"added_tokens\":[{\"id\":3,\"content\":\"x\"},{\"id\":4,\"content\":\"x\"}]"),
                   "stands twice");
    expect_refusal(WITH("\"added_tokens\":[{\"id\":4,\"content\":\"x\"}]"), "\"x\" has the id 4, but comes to be 3");
    expect_refusal(WITH("\"added_tokens\":[{\"id\":2,\"content\":\"ab\"},{\"id\":3,\"content\":\"x\"},{\"id\":5,"
                        "\"content\":\"y\"}]"),
                   "\"y\" has the id 5, but comes to be 4");
    expect_refusal(WITH("\"added_tokens\":[{\"id\":3,\"content\":\"\"}]"), "empty");
    expect_refusal(WITH("\"added_tokens\":[{\"content\":\"x\"}]"), "no id");
    expect_refusal(MODEL("\"byte_fallback\":1,"), "tokenizer.json: \"byte_fallback\" takes true or false");
    expect_refusal(MODEL("\"unk_token\":0,"), "\"unk_token\" takes a text");
    expect_refusal(MODEL("\"dropout\":\"0.1\","), "\"dropout\" takes a number");
    expect_refusal(WITH("\"added_tokens\":{}"), "\"added_tokens\" takes a list");
    expect_refusal(WITH("\"added_tokens\":3"), "\"added_tokens\" takes a list");
    expect_refusal(WITH("\"added_tokens\":[3]"), "no id");
    expect_refusal(WITH("\"added_tokens\":[],\"added_tokens\":[]"), "\"added_tokens\" stands twice");
    expect_refusal(WITH("\"added_tokens\":[{\"id\":3,\"content\":\"x\",\"special\":\"true\"}]"), "\"special\" takes");
    expect_refusal(WITH("\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":\"false\"}"),
                   "\"add_prefix_space\" takes");
    expect_refusal(WITH("\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":{}}"), "\"pretokenizers\" takes");
    expect_refusal(PATTERN("(?<=a)b"), "a group of another kind");
    expect_refusal(PATTERN("a*"), "match the empty text");
    expect_refusal(PATTERN("a$|^"), "match the empty text");
    expect_refusal(PATTERN("^a|\\\\Ab"), "both ^ and");
    expect_refusal(PATTERN("a^*"), "a repeated anchor");
    expect_refusal(PATTERN("a[\\\\z]"), "an escape of another kind");
    expect_refusal(PATTERN("[a[b]]"), "a class inside brackets");
    expect_refusal(PATTERN("\\\\ba"), "an escape of another kind");
    expect_refusal(PATTERN("(a"), "cannot be used");
    expect_refusal(PATTERN("\\\\p{Nonsense}"), "cannot be used");
}

/* The second of two finds that its spaces went with the first: the `tokenizers` library finds one. */
static void spaces_go_with_one_token(void **state) {
    static const uint32_t expected[] = {0, 3, 1};
    struct shore__tokenizer *t;
    struct shore__ids ids = {0};
    struct shore_diag diag = {{0}};
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
    struct shore_diag diag = {{0}};
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
        struct shore_diag diag = {{0}};
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

static void patterns_have_limits(void **state) {
    struct shore__tokenizer *t;
    struct shore__ids ids = {0};
    struct shore_diag diag = {{0}};
    char text[64];
    memset(text, 'a', sizeof text);
    put_text("tokenizer.json", PATTERN("(?:a|aa)+(?:a|aa)+(?:a|aa)+(?:b|cd)"));
    assert_int_equal(shore__tokenizer_open(directory, &t, &diag), 0);
    assert_int_equal(shore__tokenizer_encode(t, text, sizeof text, false, &ids, &diag), SHORE_EINPUT);
    assert_non_null(strstr(diag.text, "pattern"));
    free(ids.ids);
    shore__tokenizer_close(t);
    drop("tokenizer.json");
}

/* One letter many times is one piece: whole pieces of it by themselves are what it must give. */
static void an_endless_piece_is_encoded_in_parts(void **state) {
    struct shore__tokenizer *t;
    struct shore__encoder *e;
    struct shore__ids ids = {0}, last = {0};
    struct shore_diag diag = {{0}};
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
    struct shore_diag diag = {{0}};
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

/* What AutoTokenizer says; vocabulary and end of text are made by make_expected.py, too. */
static void files_beside_it_say_what_ends_a_text(void **state) {
    static const char *const names[] = {"beside", "beside_old", "beside_pair"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct shore__tokenizer *t;
        struct shore_diag diag = {{0}};
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
        struct shore_diag diag = {{0}};
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
    struct shore_diag diag = {{0}};
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
         "added_tokens.json: the token \"<tool>\" has the id 4, but comes to be 3"},
        {"added_tokens.json", "{\"<tool>\":\"3\"}", "added_tokens.json: the token \"<tool>\" has no whole number"},
        {"added_tokens.json", "{}", NULL}};
    (void)state;
    put_text("vocab.json", "{\"a\":0,\"b\":1,\"ab\":2}");
    put_text("merges.txt", "a b\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct shore__tokenizer *t = NULL;
        struct shore_diag diag = {{0}};
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
        {"tokenizer_config.json", LISTED("{\"4\":{\"content\":\"y\"}}"), "\"y\" has the id 4, but comes to be 3"},
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
        struct shore_diag diag = {{0}};
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
    struct shore_diag diag = {{0}};
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
        cmocka_unit_test(ids_are_those_of_the_library),
        cmocka_unit_test(bytes_come_back),
        cmocka_unit_test(the_byte_level_one_is_saved_as_itself),
        cmocka_unit_test(a_copy_has_the_same_name),
        cmocka_unit_test(what_belongs_to_it_is_copied),
        cmocka_unit_test(decoding_gives_the_text_back),
        cmocka_unit_test(what_is_not_supported_is_named),
        cmocka_unit_test(spaces_go_with_one_token),
        cmocka_unit_test(many_tokens_can_be_added),
        cmocka_unit_test(decoding_follows_the_decoder),
        cmocka_unit_test(patterns_have_limits),
        cmocka_unit_test(an_endless_piece_is_encoded_in_parts),
        cmocka_unit_test(a_later_step_divides_a_long_text),
        cmocka_unit_test(files_beside_it_say_what_ends_a_text),
        cmocka_unit_test(end_of_text_is_what_the_files_say),
        cmocka_unit_test(two_files_say_what_gpt2_is_alone),
        cmocka_unit_test(what_the_files_beside_it_say_is_checked),
        cmocka_unit_test(half_a_tokenizer_is_named),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
