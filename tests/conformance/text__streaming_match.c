/* Matches that are followed character by character end where PCRE2 says they do, and never before what was seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/prng.h"
#include "seed.h"
#include "text/pattern.h"
#include "text/streaming_match.h"
#include "text/utf8.h"

static uint64_t seed, draws;

static uint32_t draw(uint32_t below) {
    return (uint32_t)(shore__random_u64(seed, 0, draws++) % below);
}

static const char *const patterns[] = {
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+",
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|"
    "'d)?|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re)?|\\p{N}{1,"
    "3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|"
    "\\s+(?!\\S)|\\s+",
    "(?:a|aa)+b?|(a|s){2,4}?s|[^a]+?(?=a)|\\s*+.",
    "(?i)ST*[^\\n]{0,3}?\\d|(?:s(?:t|ta)){2,}|a{3}|.+",
    "\\w+|\\W{2,5}|\\n",
};

static size_t make_text(char *text, size_t most) {
    static const char *const chars[] = {"a", "s", "t", "S", "T", "'",  " ", " ", "\n",       "\r",      "1",
                                        "2", ".", "/", "é", "É", "日", "ſ", "😀", "\xCC\x81", "\xC2\xA0"};
    size_t n = 0, some = 1 + draw(sizeof chars / sizeof *chars);
    while (n + 4 < most) {
        const char *c = chars[draw((uint32_t)some)];
        memcpy(text + n, c, strlen(c));
        n += strlen(c);
    }
    return n;
}

/* Of the match that may begin with the text. 0: none does. */
static size_t follow(const struct shore__machine *m, struct shore__matcher *matcher, const char *text, size_t bytes) {
    struct shore__follow f = {0};
    size_t end = 0, at = 0;
    assert_int_equal(shore__follow_begin(&f, m), 0);
    while (!f.over) {
        size_t n = 0, some = draw(4);
        for (size_t i = 0; i < some && at + n < bytes; i++)
            n += shore__utf8_bytes((unsigned char)text[at + n]);
        bool final = at + n == bytes && draw(2);
        shore__follow_feed(&f, shore__matcher_data(matcher), text + at, n, final);
        assert_true(f.end >= end);
        end = f.end;
        at += n;
        if (final) assert_true(f.over);
    }
    shore__follow_fini(&f);
    return end;
}

static void ends_are_those_of_pcre2(void **state) {
    struct shore__matcher *matcher = shore__matcher_open();
    struct shore_diag diag;
    char text[64];
    (void)state;
    for (size_t k = 0; k < sizeof patterns / sizeof *patterns; k++) {
        struct shore__pattern *p;
        assert_int_equal(shore__pattern_open(patterns[k], strlen(patterns[k]), false, &p, &diag), 0);
        const struct shore__machine *m = shore__pattern_machine(p);
        assert_non_null(m);
        for (unsigned round = 0; round < 2000; round++) {
            size_t bytes = make_text(text, 4 + draw(sizeof text - 4));
            for (size_t at = 0, start, end; at < bytes; at += shore__utf8_bytes((unsigned char)text[at])) {
                bool found =
                    shore__pattern_find(p, matcher, text, bytes, at, SHORE__PATTERN_BEGINS, true, &start, &end) == 1;
                size_t wanted = found && start == at ? end - at : 0;
                if (follow(m, matcher, text + at, bytes - at) != wanted)
                    fail_msg("pattern %zu, at %zu of \"%.*s\": not %zu", k, at, (int)bytes, text, wanted);
            }
        }
        shore__pattern_close(p);
    }
    shore__matcher_close(matcher);
}

static void what_cannot_be_followed_is_left(void **state) {
    static const char *const others[] = {"\\s+$", "^a+", "(?>a+|b)", "(?:a|b)++", "a(?=bc)", "(?:a*b*)*c", "(?!a+)b"};
    struct shore_diag diag;
    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct shore__pattern *p;
        if (shore__pattern_open(others[i], strlen(others[i]), false, &p, &diag) != 0)
            fail_msg("%s: %s", others[i], diag.text);
        if (shore__pattern_machine(p)) fail_msg("%s is followed", others[i]);
        shore__pattern_close(p);
    }
}

int main(void) {
    seed = test_seed();
    const struct CMUnitTest tests[] = {cmocka_unit_test(ends_are_those_of_pcre2),
                                       cmocka_unit_test(what_cannot_be_followed_is_left)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
