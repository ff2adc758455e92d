/* Tokenizers of tests/data/tokenizers, and files of one in a scratch directory. */
#ifndef SHORE_TESTS_TOKENIZER_FILES_H
#define SHORE_TESTS_TOKENIZER_FILES_H

#include "text/tokenizer.h"
#include "unit/text/scratch.h"

#ifndef SHORE_TEST_DATA
#error "SHORE_TEST_DATA is tests/data"
#endif

static inline unsigned char *slurp(const char *path, size_t *bytes) {
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

static inline uint32_t word(const unsigned char *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

#define V "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]"
#define MODEL(x) "{\"model\":{\"type\":\"BPE\"," x V "}}"
#define WITH(x) "{" x ",\"model\":{\"type\":\"BPE\"," V "}}"
#define PATTERN(x) \
    WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"" x "\"}}")

#endif
