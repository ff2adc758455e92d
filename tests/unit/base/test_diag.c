#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/diag.h"
#include "base/prng.h"

static void every_code_has_a_text(void **state) {
    assert_string_equal(shore_error_text(0), "no error");
    assert_string_equal(shore_error_text(SHORE_ECORRUPT), "stored bytes do not match their checksum");
    assert_string_equal(shore_error_text(-ENOSPC), strerror(ENOSPC));
    static const int odd[] = {-123456, 5, INT_MIN, INT_MAX};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++)
        assert_string_equal(shore_error_text(odd[i]), "unknown error");
}

static void fail_fills_truncates_and_keeps_errno(void **state) {
    struct shore_diag diag;
    errno = EXDEV;
    assert_int_equal(shore__fail(&diag, -EIO, "cannot read %s at %d", "x", 7), -EIO);
    assert_string_equal(diag.text, "cannot read x at 7");
    assert_int_equal(errno, EXDEV);
    assert_int_equal(shore__fail(NULL, SHORE_EINPUT, "nobody reads this"), SHORE_EINPUT);
    assert_int_equal(shore__fail(&diag, -EIO, "%2000d", 1), -EIO);
    assert_int_equal(strlen(diag.text), sizeof diag.text - 1);
}

static void advice_is_said_in_the_words_of_who_says_it(void **state) {
    static const char *const words[SHORE_ADVICE_COUNT] = {
        [SHORE_ADVICE_GO_ON] = "take {} up", [SHORE_ADVICE_OVERWRITE] = "do not"};
    struct shore_diag diag, outer;
    char line[2048], tiny[10];
    assert_int_equal(shore__advise(&diag, shore__fail(&diag, -EIO, "it fails"), SHORE_ADVICE_GO_ON, "runs/a"), -EIO);
    assert_string_equal(diag.text, "it fails");
    assert_string_equal(shore_diag_say(&diag, words, line, sizeof line), "it fails; take runs/a up");
    assert_string_equal(shore_diag_say(&diag, NULL, line, sizeof line),
                        "it fails; open runs/a to go on with it, or make another one with overwrite");
    assert_string_equal(shore_diag_say(&diag, words, tiny, sizeof tiny), "it ... up");
    /* kept by who adds to it, not by who says something else */
    assert_int_equal(shore__fail_of(&outer, -ENXIO, &diag, "drive: %s", diag.text), -ENXIO);
    assert_string_equal(shore_diag_say(&outer, words, line, sizeof line), "drive: it fails; take runs/a up");
    shore__fail_of(&diag, -EIO, &diag, "%s again", diag.text);
    assert_string_equal(shore_diag_say(&diag, words, line, sizeof line), "it fails again; take runs/a up");
    shore__fail(&diag, -EIO, "something else");
    assert_string_equal(shore_diag_say(&diag, words, line, sizeof line), "something else");
    diag.advice = SHORE_ADVICE_COUNT + 7; /* of a newer library */
    assert_string_equal(shore_diag_say(&diag, words, line, sizeof line), "something else");
    assert_int_equal(shore__advise(NULL, -EIO, SHORE_ADVICE_GO_ON, "a"), -EIO);
    assert_int_equal(shore__fail_of(NULL, -EIO, NULL, "nobody"), -EIO);
    for (int advice = 1; advice < SHORE_ADVICE_COUNT; advice++) { /* each has words of the library's */
        shore__advise(&diag, 0, (enum shore_advice)advice, "OF");
        assert_non_null(strstr(shore_diag_say(&diag, NULL, line, sizeof line), "something else; "));
        assert_null(strstr(line, "{}"));
        assert_null(strstr(line, "--"));
    }
}

static void who_named_it_says_the_rest(void **state) {
    const struct shore_diag diag = {.text = "/mnt/a: is full"};
    assert_string_equal(shore__said_of(&diag, "/mnt/a"), "is full");
    assert_string_equal(shore__said_of(&diag, "/mnt"), diag.text);
    assert_string_equal(shore__said_of(&diag, "/mnt/b"), diag.text);
}

static void a_long_path_leaves_its_reason(void **state) {
    struct shore_diag diag;
    char path[4096], wide[4096];
    memset(path, 'p', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    shore__fail(&diag, -EIO, "%s: cannot open it: %s", path, "no such thing");
    assert_int_equal(strlen(diag.text), sizeof diag.text - 1);
    assert_non_null(strstr(diag.text, "ppp...ppp"));
    assert_string_equal(strstr(diag.text, ": cannot"), ": cannot open it: no such thing");
    /* of itself, as what a caller adds */
    shore__fail(&diag, -EIO, "%s; and %s", diag.text, "more");
    assert_non_null(strstr(diag.text, "no such thing; and more"));
    for (size_t shift = 0; shift < 3; shift++) { /* characters of three bytes, cut at each of them */
        size_t n = shift;
        memset(wide, 'x', shift);
        for (; n + 3 < sizeof wide; n += 3)
            memcpy(wide + n, "\xe9\xaf\xa8", 3);
        wide[n] = '\0';
        char printable[sizeof diag.text];
        shore__fail(&diag, -EIO, "%s", wide);
        assert_string_equal(shore__printable(diag.text, strlen(diag.text), printable, sizeof printable), diag.text);
    }
}

static void a_word_is_what_a_shell_takes(void **state) {
    static const char *const words[][2] = {{"runs/a-1_b.c", "runs/a-1_b.c"}, {"my run", "'my run'"}, {"", "''"},
                                           {"it's", "'it'\\''s'"},           {"$x;`y`", "'$x;`y`'"}, {"~a", "'~a'"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char *word = shore__shell_word(words[i][0]);
        assert_string_equal(word, words[i][1]);
        free(word);
    }
}

static void assert_escaped(const char *name, size_t bytes, const char *expected) {
    char out[256];
    assert_string_equal(shore__escape(name, bytes, out, sizeof out), expected);
}

static void what_could_mislead_is_escaped(void **state) {
    assert_escaped("h.0.attn", 8, "h.0.attn");
    assert_escaped("", 0, "");
    assert_escaped("a\0b", 3, "a\\x00b");
    assert_escaped("\x1b[31m\n\t\r\x7f", 9, "\\x1b[31m\\n\\t\\r\\x7f");
    assert_escaped("say \"it's\" \\", 12, "say \\\"it\\'s\\\" \\\\");
    assert_escaped("gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80", 11, "gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80");
    assert_escaped("\xc2\x9b", 2, "\\u{9b}");
    assert_escaped("\xe2\x80\xae", 3, "\\u{202e}");
    assert_escaped("\xe2\x80\xa8\xef\xbb\xbf", 6, "\\u{2028}\\u{feff}");
}

static void a_message_keeps_its_own_quotes(void **state) {
    char out[64];
    static const char message[] = "no 'x\xc2\x9b' in \"a\\x1b\", \xff\n";
    assert_string_equal(shore__printable(message, sizeof message - 1, out, sizeof out),
                        "no 'x\\u{9b}' in \"a\\x1b\", \\xff\\n");
}

static void invalid_utf8_is_escaped_by_byte(void **state) {
    assert_escaped("\xff\x80", 2, "\\xff\\x80");
    assert_escaped("\xc0\xaf", 2, "\\xc0\\xaf");
    assert_escaped("\xe0\x80\xaf", 3, "\\xe0\\x80\\xaf");
    assert_escaped("\xed\xa0\x80", 3, "\\xed\\xa0\\x80");
    assert_escaped("\xf4\x90\x80\x80", 4, "\\xf4\\x90\\x80\\x80");
    assert_escaped("\xe2\x82", 2, "\\xe2\\x82");
    assert_escaped("\xe2\x82x", 3, "\\xe2\\x82x");
}

static void long_names_are_cut_between_units(void **state) {
    char out[16];
    assert_string_equal(shore__escape("0123456789", 10, out, 11), "0123456789");
    assert_string_equal(shore__escape("0123456789", 10, out, 10), "012345...");
    assert_string_equal(shore__escape("\n\n\n\n\n", 5, out, 8), "\\n\\n...");
    assert_string_equal(shore__escape("01234", 5, out, 4), "...");
    assert_string_equal(shore__escape("01234", 5, out, 2), ".");
    assert_string_equal(shore__escape("01234", 5, out, 1), "");
    out[0] = 'z';
    shore__escape("01234", 5, out, 0);
    assert_int_equal(out[0], 'z');
}

static void any_bytes_give_clean_text_that_fits(void **state) {
    for (uint64_t i = 0; i < 20000; i++) {
        unsigned char name[24];
        size_t bytes = shore__random_u64(1, 0, i) % (sizeof name + 1), room = shore__random_u64(1, 1, i) % 40 + 1;
        for (size_t j = 0; j < bytes; j++)
            name[j] = (unsigned char)shore__random_u64(2, i, j);
        char *exact = malloc(bytes ? bytes : 1), *out = malloc(room);
        assert_true(exact && out);
        memcpy(exact, name, bytes);
        shore__escape(exact, bytes, out, room);
        assert_true(strlen(out) < room);
        for (const char *p = out; *p; p++)
            assert_true((unsigned char)*p >= 0x20 && *p != 0x7f);
        free(exact);
        free(out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_a_text),
        cmocka_unit_test(fail_fills_truncates_and_keeps_errno),
        cmocka_unit_test(advice_is_said_in_the_words_of_who_says_it),
        cmocka_unit_test(who_named_it_says_the_rest),
        cmocka_unit_test(a_long_path_leaves_its_reason),
        cmocka_unit_test(a_word_is_what_a_shell_takes),
        cmocka_unit_test(what_could_mislead_is_escaped),
        cmocka_unit_test(a_message_keeps_its_own_quotes),
        cmocka_unit_test(invalid_utf8_is_escaped_by_byte),
        cmocka_unit_test(long_names_are_cut_between_units),
        cmocka_unit_test(any_bytes_give_clean_text_that_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
