/* Ids beside those of the tokenizers library: tests/data/tokenizers, made by tests/text/make_expected.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/tokenizer.h"

#ifndef SHORE_TEST_DATA
#error "SHORE_TEST_DATA is tests/data"
#endif

static const char *const kinds[] = {"gpt2",           "gpt2_added", "gpt2_files",      "llama3",
                                    "qwen2",          "digits",     "removed",         "llama2",
                                    "llama2_unknown", "across",     "metaspace_first", "metaspace_always",
                                    "metaspace_never"};

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
        struct shore__ids ids = {0};
        if (shore__tokenizer_encode(t, text, length, special, &ids, &diag)) fail_msg("%s: %s", name, diag.text);
        if (ids.count != count || memcmp(ids.ids, data + at + 4, (size_t)count * 4) != 0)
            fail_msg("%s, case %zu (special %d): %zu ids instead of %u for: %.*s", name, cases, special, ids.count,
                     count, (int)(length < 120 ? length : 120), text);
        at += 4 + (size_t)count * 4;
        free(ids.ids);
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
    assert_int_equal(shore__tokenizer_decode(t, &beyond, 1, &text), SHORE_EINPUT);
    free(ids.ids);
    free(text.bytes);
    shore__tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_the_library),
        cmocka_unit_test(bytes_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
