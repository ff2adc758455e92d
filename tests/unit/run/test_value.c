/* Values that people give as text or JSON. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/units.h"
#include "run/value.h"

static const struct shore__value batch = {.kind = SHORE__VALUE_WHOLE, .bytes = 4, .least = 1, .most = 100};
static const struct shore__value seed = {.kind = SHORE__VALUE_WHOLE, .bytes = 8};
static const struct shore__value narrow = {.kind = SHORE__VALUE_WHOLE, .bytes = 4};
static const struct shore__value memory = {.kind = SHORE__VALUE_SIZE, .bytes = 8};
static const struct shore__value chunk = {.kind = SHORE__VALUE_SIZE, .bytes = 8, .least = 1 << 20, .most = 1 << 30};
static const struct shore__value rate = {.kind = SHORE__VALUE_REAL, .bytes = 8, .high = 1};
static const struct shore__value share = {.kind = SHORE__VALUE_SHARE, .bytes = 8, .high = 1};
static const struct shore__value pace = {
    .kind = SHORE__VALUE_PACE, .bytes = sizeof(struct shore__pace), .least = 1, .most = 50};
static const struct shore__value choice = {.kind = SHORE__VALUE_CHOICE, .bytes = 4, .choices = "auto|on|off"};
static const struct shore__value truth = {.kind = SHORE__VALUE_CHOICE, .bytes = 1, .choices = "stop|skip"};
static const struct shore__value flag = {.kind = SHORE__VALUE_FLAG, .bytes = 1};

static void what_is_taken_is_written_again(void **state) {
    static const struct {
        const struct shore__value *value;
        const char *json, *text; /* text: NULL: refused */
    } cases[] = {
        {&batch, "100", "100"},
        {&batch, "\"7\"", "7"},
        {&batch, "8.0", "8"},
        {&batch, "0", NULL},
        {&batch, "101", NULL},
        {&batch, "-1", NULL},
        {&batch, "1.5", NULL},
        {&batch, "true", NULL},
        {&batch, "[1]", NULL},
        {&batch, "null", NULL},
        {&batch, "\" 7\"", NULL},
        {&batch, "\"\"", NULL},
        {&narrow, "4294967295", "4294967295"},
        {&narrow, "4294967296", NULL},
        {&seed, "\"18446744073709551614\"", "18446744073709551614"},
        {&seed, "\"18446744073709551616\"", NULL},
        {&memory, "\"2GiB\"", "2.00 GiB"},
        {&memory, "1073741824", "1.00 GiB"},
        {&memory, "\"0\"", NULL},
        {&chunk, "\"512KiB\"", NULL},
        {&chunk, "0", NULL},
        {&chunk, "\"2GiB\"", NULL},
        {&rate, "0.5", "0.5"},
        {&rate, "\"1e-3\"", "0.001"},
        {&rate, "1.5", NULL},
        {&rate, "\"nan\"", NULL},
        {&share, "\"top1%\"", "top1%"},
        {&share, "0", "none"},
        {&share, "\"0\"", NULL},
        {&pace, "10", "10"},
        {&pace, "\"30s\"", "30s"},
        {&pace, "51", NULL},
        {&pace, "0", NULL},
        {&choice, "\"off\"", "off"},
        {&choice, "true", "on"},
        {&choice, "\"of\"", NULL},
        {&choice, "1", NULL},
        {&flag, "true", "on"},
        {&flag, "false", "off"},
        {&truth, "\"skip\"", "skip"},
        {&truth, "true", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        union {
            unsigned char bytes[16];
            double aligned;
        } at, again;
        char text[64], untouched[sizeof at];
        memset(&at, 0xA5, sizeof at);
        memcpy(untouched, &at, sizeof at);
        json_t *json = json_loads(cases[i].json, JSON_DECODE_ANY, NULL);
        assert_non_null(json);
        bool taken = shore__value_read_json(cases[i].value, "it", json, &at, NULL) == 0;
        json_decref(json);
        if (taken != (cases[i].text != NULL)) fail_msg("case %zu: %s", i, cases[i].json);
        size_t bytes = taken ? cases[i].value->bytes : 0;
        assert_memory_equal(at.bytes + bytes, untouched + bytes, sizeof at - bytes);
        if (!taken) continue;
        assert_true(shore__value_fits(cases[i].value, &at));
        assert_string_equal(shore__value_text(cases[i].value, &at, text, sizeof text), cases[i].text);
        json = shore__value_json(cases[i].value, &at);
        assert_int_equal(shore__value_read_json(cases[i].value, "it", json, &again, NULL), 0);
        assert_memory_equal(&again, &at, bytes);
        json_decref(json);
    }
}

static void expect_texts(const struct shore__value *v, const void *at, size_t count, const char *last) {
    size_t n;
    const char *const *item = shore__value_texts(v, at, &n);
    assert_int_equal(n, count);
    if (count) assert_string_equal(item[count - 1], last);
}

static void texts_are_read_and_copied(void **state) {
    static const struct {
        enum shore__value_kind kind;
        const char *json, *last; /* last: NULL: refused */
        size_t count;
    } cases[] = {
        {SHORE__VALUE_TEXT, "\"a\"", "a", 1},
        {SHORE__VALUE_TEXT, "\"\"", NULL, 0},
        {SHORE__VALUE_TEXT, "[\"a\"]", NULL, 0},
        {SHORE__VALUE_TEXT, "1", NULL, 0},
        {SHORE__VALUE_LIST, "\"a\"", "a", 1},
        {SHORE__VALUE_LIST, "[\"a\", \"b\"]", "b", 2},
        {SHORE__VALUE_LIST, "[\"a\", \"\"]", NULL, 0},
        {SHORE__VALUE_LIST, "[\"a\", 1]", NULL, 0},
        {SHORE__VALUE_LIST, "[[\"a\"]]", NULL, 0},
        {SHORE__VALUE_LIST, "{}", NULL, 0},
        {SHORE__VALUE_PLACES, "[\"d\", \"ssh://h/e\"]", "ssh://h/e", 2},
        {SHORE__VALUE_PLACES, "[\"ssh://\"]", NULL, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct shore__value v = {.kind = cases[i].kind};
        void *at[3] = {NULL}, *copy[3] = {NULL};
        json_t *json = json_loads(cases[i].json, JSON_DECODE_ANY, NULL);
        assert_non_null(json);
        assert_int_equal(shore__value_read(&v, "it", "old", at, NULL), 0);
        int rc = shore__value_read_json(&v, "it", json, at, NULL);
        json_decref(json);
        if ((rc == 0) != (cases[i].last != NULL)) fail_msg("case %zu: %s", i, cases[i].json);
        if (rc == 0) {
            expect_texts(&v, at, cases[i].count, cases[i].last);
            assert_int_equal(shore__value_copy(&v, at, copy), 0);
            expect_texts(&v, copy, cases[i].count, cases[i].last);
        }
        shore__value_clear(&v, at);
        shore__value_clear(&v, copy);
        expect_texts(&v, at, 0, NULL);
    }
}

static void takes(const struct shore__value *v, const char *wanted) {
    char text[160];
    assert_string_equal(shore__value_takes(v, text, sizeof text), wanted);
}

static void what_is_taken_is_said(void **state) {
    takes(&batch, "a whole number from 1 to 100");
    takes(&seed, "a whole number");
    takes(&narrow, "a whole number from 0 to 4294967295");
    takes(&memory, "a size such as 2GiB or 500M");
    takes(&chunk, "a size from 1.00 MiB to 1.00 GiB");
    takes(&rate, "a number from 0 to 1");
    takes(&choice, "auto, on or off");
    takes(&flag, "off or on");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_taken_is_written_again),
        cmocka_unit_test(texts_are_read_and_copied),
        cmocka_unit_test(what_is_taken_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
