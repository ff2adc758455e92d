/* What a tokenizer.json asks for that is not supported, or that contradicts itself, is named. */
#include "unit/text/tokenizer_files.h"

static void expect_refusal(const char *json, const char *part) {
    struct shore__tokenizer *t;
    struct shore_diag diag = {0};
    put_text("tokenizer.json", json);
    int rc = shore__tokenizer_open(directory, &t, &diag);
    drop("tokenizer.json");
    if (rc == 0) fail_msg("this was taken: %s", json);
    if (!strstr(diag.text, part)) fail_msg("\"%s\" does not say \"%s\"", diag.text, part);
    assert_non_null(strstr(diag.text, "tokenizer.json"));
}

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
    expect_refusal(WITH("\"added_tokens\":[{\"id\":4,\"content\":\"x\"}]"),
                   "\"x\" has the id 4, but the tokenizers library, which counts on from the vocabulary, gives it 3");
    expect_refusal(WITH("\"added_tokens\":[{\"id\":2,\"content\":\"ab\"},{\"id\":3,\"content\":\"x\"},{\"id\":5,"
                        "\"content\":\"y\"}]"),
                   "\"y\" has the id 5, but the tokenizers library, which counts on from the vocabulary, gives it 4");
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

static void patterns_have_limits(void **state) {
    struct shore__tokenizer *t;
    struct shore__ids ids = {0};
    struct shore_diag diag = {0};
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_supported_is_named),
        cmocka_unit_test(patterns_have_limits),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
