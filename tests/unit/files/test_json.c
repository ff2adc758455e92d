#include <errno.h>
#include <limits.h>
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

#include "files/atomic.h"
#include "files/json.h"
#include "files/json_stream.h"

static char directory[64];

static int setup(void **state) {
    strcpy(directory, "/tmp/shore-json-XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static int teardown(void **state) {
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", directory);
    return system(command);
}

static void expect_refusal(const char *text, size_t bytes, const char *part) {
    struct shore_diag diag = {0};
    json_t *value;
    assert_int_equal(shore__json_parse(text, bytes, "x.json", &value, &diag), SHORE_EINPUT);
    if (!strstr(diag.text, part)) fail_msg("\"%s\" does not say \"%s\"", diag.text, part);
    assert_non_null(strstr(diag.text, "x.json"));
}

static void faults_are_named(void **state) {
    char deep[400];
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    expect_refusal(deep, sizeof deep, "nested");
    expect_refusal("", 0, "not valid JSON");
    expect_refusal("[]", 2, "not an object");
    expect_refusal("{\"a\":1,\n\"a\":2}", 15, "\"a\" stands twice");
    expect_refusal("{\"a\":1,\n\"b\"}", 13, "x.json:2");
    expect_refusal("{\"a\":1} x", 9, "x.json:1");
    expect_refusal("{\"a\":\"\xff\"}", 9, "not valid JSON");
    expect_refusal("{\"a\":1e400}", 11, "the value of \"a\"");
    expect_refusal("{\"a\":\"x\\u0000\"}", 15, "U+0000");
}

/* It must not become the path of another file. */
static void a_path_that_is_too_long_is_refused(void **state) {
    char name[PATH_MAX + 100];
    struct stat st;
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    for (size_t i = 100; i < sizeof name - 1; i += 100)
        name[i] = '/';
    const struct shore__path path = shore__path_in(directory, name);
    assert_int_equal(strlen(path.text), PATH_MAX);
    assert_int_equal(stat(path.text, &st), -1);
    assert_int_equal(errno, ENAMETOOLONG);
}

/* Editors on Windows put a byte order mark before a file. */
static void a_byte_order_mark_is_skipped(void **state) {
    static const char *const texts[] = {"\xEF\xBB\xBF{\"a\":1}", "\xEF\xBB\xBF \n{\"a\":1}\n"};
    char path[96];
    (void)state;
    snprintf(path, sizeof path, "%s/marked.json", directory);
    for (size_t i = 0; i < 2; i++) {
        json_t *value, *read;
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        assert_true(fputs(texts[i], f) >= 0 && fclose(f) == 0);
        assert_int_equal(shore__json_parse(texts[i], strlen(texts[i]), "x.json", &value, NULL), 0);
        assert_int_equal(shore__json_read(path, 1 << 20, &read, NULL), 0);
        assert_true(json_integer_value(json_object_get(value, "a")) == 1 && json_equal(value, read));
        json_decref(value);
        json_decref(read);
    }
    expect_refusal("\xEF\xBB\xBF", 3, "not valid JSON");
    expect_refusal("\xEF\xBB\xBF\xEF\xBB\xBF{}", 8, "not valid JSON");
    expect_refusal("\xEF\xBB", 2, "not valid JSON");
}

static void huge_whole_numbers_are_real(void **state) {
    static const char text[] = "{\"a\":1000000000000000019884624838656,\"b\":9223372036854775807}";
    struct shore_diag diag = {0};
    json_t *value;
    (void)state;
    assert_int_equal(shore__json_parse(text, strlen(text), "x.json", &value, &diag), 0);
    assert_true(json_is_real(json_object_get(value, "a")));
    assert_true(json_real_value(json_object_get(value, "a")) == 1e30);
    assert_int_equal(json_integer_value(json_object_get(value, "b")), INT64_MAX);
    json_decref(value);
}

static void what_is_written_is_read(void **state) {
    char path[128];
    struct shore_diag diag = {0};
    json_t *value = json_pack("{s:i, s:[s]}", "a", 1, "b", "\xc3\xa9\n"), *again;
    snprintf(path, sizeof path, "%s/a.json", directory);
    assert_int_equal(shore__json_write(path, value, 2, &diag), 0);
    assert_int_equal(shore__json_read(path, 1000, &again, &diag), 0);
    assert_true(json_equal(value, again));
    json_decref(again);
    assert_int_equal(shore__json_read(path, 10, &again, &diag), SHORE_EINPUT);
    assert_non_null(strstr(diag.text, "at most 10"));
    assert_int_equal(shore__json_read(directory, 10, &again, &diag), SHORE_EINPUT);
    snprintf(path, sizeof path, "%s/none.json", directory);
    assert_int_equal(shore__json_read(path, 10, &again, &diag), SHORE_EMISSING);
    snprintf(path, sizeof path, "%s/none/a.json", directory);
    assert_true(shore__json_write(path, value, 0, &diag) < 0);
    json_decref(value);
}

struct trace {
    char text[256];
};

static int on_event(void *ctx, const struct shore__json_event *e, struct shore_diag *diag) {
    struct trace *t = ctx;
    size_t n = strlen(t->text);
    snprintf(t->text + n, sizeof t->text - n, "%c%u%.*s ", "nb#skOoAa"[e->kind], e -> depth,
             e -> text ? (int)e -> bytes : 0, e -> text ? e -> text : "");
    return 0;
}

static void events_come_in_order(void **state) {
    struct trace t = {{0}};
    struct shore_diag diag = {0};
    const char *text = "{\"a\":[1,null,true],\"b\":{\"c\":\"\\u00e9\"}}";
    assert_int_equal(shore__json_stream_text(text, strlen(text), "x", 1, on_event, &t, &diag), 0);
    assert_string_equal(t.text, "O1 k1a A2 #21 n2 b2 a2 k1b O2 k2c s2\xc3\xa9 o2 o1 ");
    char deep[200];
    memset(deep, '[', sizeof deep);
    memset(&t, 0, sizeof t);
    assert_int_equal(shore__json_stream_text(deep, sizeof deep, "x", 1, on_event, &t, &diag), SHORE_EINPUT);
    assert_non_null(strstr(diag.text, "nested"));
    assert_int_equal(shore__json_stream_text("{\n\n\"a\" 1}", 9, "x", 1, on_event, &t, &diag), SHORE_EINPUT);
    assert_non_null(strstr(diag.text, "x:3:"));
    assert_int_equal(shore__json_stream_text("{\n", 2, "x", 1, on_event, &t, &diag), SHORE_EINPUT);
    assert_non_null(strstr(diag.text, "x:2:"));
    assert_int_equal(shore__json_stream_text("{}\"abc", 6, "x", 1, on_event, &t, &diag), SHORE_EINPUT);
    assert_int_equal(shore__json_stream_text("[] \n\t ", 6, "x", 1, on_event, &t, &diag), 0);
    assert_int_equal(shore__json_stream_text("12", 2, "x", 1, on_event, &t, &diag), 0);
    assert_int_equal(shore__json_stream_text("1 2", 3, "x", 1, on_event, &t, &diag), SHORE_EINPUT);
}

static int build_event(void *ctx, const struct shore__json_event *e, struct shore_diag *diag) {
    return shore__json_builder_feed(ctx, e, diag);
}

static void a_stream_builds_a_tree(void **state) {
    struct shore__json_builder b = {0};
    struct shore_diag diag = {0};
    const char *text = "{\"a\":[1,-2.5,null,true,{\"c\":\"x\"}],\"b\":{}}";
    assert_int_equal(shore__json_stream_text(text, strlen(text), "x", 1, build_event, &b, &diag), 0);
    assert_true(b.done);
    json_t *same = json_loads(text, 0, NULL);
    assert_true(json_equal(b.root, same));
    json_decref(same);
    shore__json_builder_fini(&b);
    text = "{\"a\":{\"b\":1,\"b\":2}}";
    assert_int_equal(shore__json_stream_text(text, strlen(text), "x", 1, build_event, &b, &diag), SHORE_EINPUT);
    assert_non_null(strstr(diag.text, "\"b\""));
    shore__json_builder_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_path_that_is_too_long_is_refused),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(a_byte_order_mark_is_skipped),
        cmocka_unit_test(huge_whole_numbers_are_real),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(events_come_in_order),
        cmocka_unit_test(a_stream_builds_a_tree),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
