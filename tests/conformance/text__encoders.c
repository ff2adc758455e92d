/* Documents through many threads, in parts of any size, against each encoded as a whole: the same ids in the same
 * order, with every kind of tokenizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>

#include "base/prng.h"
#include "seed.h"
#include "text/encoders.h"
#include "text/vector.h"

#define TEXT_BYTES (900u << 10)

static uint64_t seed, draws;

static uint32_t draw(uint32_t below) {
    return (uint32_t)(shore__random_u64(seed, 0, draws++) % below);
}

/* The patterns of some take the square of a run's time, in any engine. */
static bool takes_runs(const char *name) {
    return strncmp(name, "line_", 5) != 0 && strncmp(name, "text_", 5) != 0;
}

/* Words, numbers, spaces, several scripts, marks, bytes that are no text; now and then a run of one kind. */
static size_t make_text(char *text, size_t most, bool runs) {
    static const char *const kinds[] = {" stone", "Water ", "it's",          "\n", "  \n\t ",   "2027", ".",
                                        "...!",   "\r\n",   "日本語",        "é",  "e\xCC\x81", "\xFF", "\xE4\xB8",
                                        " сад",   "😀",      "<|endoftext|>", "▁"};
    size_t n = 0;
    while (n + 400000 < most || n == 0) {
        const char *kind = kinds[draw(sizeof kinds / sizeof *kinds)];
        size_t bytes = strlen(kind), times = !runs || draw(20000) ? 1 + draw(3) : (1u + draw(300000)) / bytes;
        for (; times > 0; times--, n += bytes)
            memcpy(text + n, kind, bytes);
    }
    return n;
}

struct seen {
    struct shore__ids ids;
    unsigned documents;
};

static int on_document(void *ctx, const char *source, uint64_t line, struct shore_diag *diag) {
    struct seen *s = ctx;
    (void)diag;
    assert_string_equal(source, "text");
    assert_int_equal(line, s->documents++);
    return shore__ids_push(&s->ids, UINT32_MAX);
}

static int on_ids(void *ctx, const char *source, uint64_t line, const uint32_t *ids, size_t count,
                  struct shore_diag *diag) {
    struct seen *s = ctx;
    (void)source;
    (void)diag;
    assert_int_equal(line + 1, s->documents);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(shore__ids_push(&s->ids, ids[i]), 0);
    return 0;
}

static int on_failure(void *ctx, const char *source, uint64_t line, int rc, const char *why, struct shore_diag *diag) {
    (void)ctx;
    (void)diag;
    fail_msg("%s:%llu: %d: %s", source, (unsigned long long)line, rc, why);
    return rc;
}

/* Small documents among large ones. */
static void compare(const struct shore__tokenizer *t, const char *text, size_t bytes, unsigned threads) {
    struct seen seen = {{0}, 0};
    struct shore__ids whole = {0};
    struct shore_diag diag = {0};
    struct shore__encoders *x;
    struct shore__encoder *e;
    const struct shore__encoders_sink sink = {on_document, on_ids, on_failure, &seen};
    bool special = draw(2);
    assert_int_equal(shore__encoders_open(t, special, threads, &sink, &x), 0);
    assert_int_equal(shore__encoder_open(t, special, &e), 0);
    unsigned documents = 0;
    for (size_t at = 0, end; at < bytes; at = end) {
        end = at + (draw(3) ? draw(3000) : 1 + draw(900000));
        if (end > bytes) end = bytes;
        assert_int_equal(shore__ids_push(&whole, UINT32_MAX), 0);
        assert_int_equal(shore__encoder_feed(e, text + at, end - at, &whole, &diag), 0);
        assert_int_equal(shore__encoder_end(e, &whole, &diag), 0);
        assert_int_equal(shore__encoders_begin(x, "text", documents++, &diag), 0);
        for (size_t part; at < end; at += part) {
            part = 1 + draw(draw(4) ? 100000 : 100);
            if (part > end - at) part = end - at;
            assert_int_equal(shore__encoders_feed(x, text + at, part, &diag), 0);
        }
        shore__encoders_end(x);
        if (draw(50) == 0) assert_int_equal(shore__encoders_drain(x, &diag), 0);
    }
    assert_int_equal(shore__encoders_drain(x, &diag), 0);
    assert_int_equal(seen.documents, documents);
    assert_int_equal(seen.ids.count, whole.count);
    assert_memory_equal(seen.ids.ids, whole.ids, whole.count * sizeof *whole.ids);
    shore__encoders_close(x);
    shore__encoder_close(e);
    free(seen.ids.ids);
    free(whole.ids);
}

static void any_number_of_threads_gives_the_same(void **state) {
    char path[1024], *text = malloc(TEXT_BYTES);
    (void)state;
    DIR *directory = opendir(SHORE_TEST_DATA "/tokenizers");
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory));) {
        struct shore__tokenizer *t;
        struct shore_diag diag = {0};
        snprintf(path, sizeof path, "%s/tokenizers/%s", SHORE_TEST_DATA, entry->d_name);
        if (entry->d_name[0] == '.' || draw(3) || shore__tokenizer_open(path, &t, &diag) != 0) continue;
        size_t bytes = make_text(text, TEXT_BYTES, takes_runs(entry->d_name));
        print_message("%s\n", entry->d_name);
        compare(t, text, bytes, 1 + draw(4));
        shore__tokenizer_close(t);
    }
    closedir(directory);
    free(text);
}

int main(void) {
    seed = test_seed();
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_number_of_threads_gives_the_same)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
