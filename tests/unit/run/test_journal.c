/* Files that say what is under way with volumes: whole or not there, refused where they miss something, gone at the
 * end. */
#include <errno.h>
#include <fcntl.h>

#include "files/json.h"
#include "run/directory/journal.h"
#include "run/strings.h"
#include "unit/run/support.h"

#define NAME "under.json"

static void what_is_written_is_read(void **state) {
    struct shore_diag diag = {0};
    struct shore__addresses volumes = {0}, again = {0};
    json_t *j = NULL;
    assert_int_equal(shore__journal_read(".", NAME, &j, &diag), SHORE_EMISSING);
    assert_string_equal(diag.text, "");
    assert_int_equal(shore__addresses_parse(&volumes, "/a/one.volume", NULL), 0);
    assert_int_equal(shore__addresses_parse(&volumes, "ssh://far/two", NULL), 0);
    json_t *texts = shore__texts_to_json(volumes.text, volumes.count);
    assert_ok(shore__journal_write(".", NAME, json_pack("{s:o}", "volumes", texts), &diag));
    assert_true(shore__journal_is_there(".", NAME));
    assert_ok(shore__journal_read(".", NAME, &j, &diag));
    assert_ok(shore__addresses_from_json(json_object_get(j, "volumes"), &again));
    assert_int_equal(again.count, 2);
    assert_string_equal(again.text[0], volumes.text[0]);
    assert_string_equal(again.text[1], volumes.text[1]);
    assert_true(again.item[0]->kind->has_file && again.item[1]->kind->served);
    json_decref(j);
    shore__addresses_free(&volumes);
    shore__addresses_free(&again);
}

static void another_takes_its_place_whole(void **state) {
    struct shore_diag diag = {0};
    json_t *j = NULL;
    assert_int_equal(shore__journal_write(".", NAME, NULL, &diag), -ENOMEM);
    assert_true(shore__journal_is_there(".", NAME));
    assert_int_equal(shore__journal_write("nowhere", NAME, json_object(), &diag), -ENOENT);
    assert_ok(shore__journal_write(".", NAME, json_pack("{s:i}", "step", 7), &diag));
    assert_ok(shore__journal_read(".", NAME, &j, &diag));
    assert_int_equal(json_object_size(j), 1);
    assert_int_equal(json_integer_value(json_object_get(j, "step")), 7);
    json_decref(j);
}

static void lists_of_anything_else_are_refused(void **state) {
    struct shore__addresses list = {0};
    struct shore_diag diag = {0};
    json_t *mixed = json_pack("[s, i]", "/a/one.volume", 3), *unclear = json_pack("[s]", "ssh:far/two");
    assert_int_equal(shore__addresses_from_json(mixed, &list), -EINVAL);
    assert_int_equal(shore__addresses_from_json(unclear, &list), SHORE_EUSAGE);
    assert_int_equal(shore__addresses_from_json(NULL, &list), -EINVAL);
    assert_int_equal(shore__journal_refuse("RUN", NAME, "where the state is", &diag), SHORE_EINPUT);
    assert_string_equal(diag.text, "RUN/" NAME ": has been changed by hand, and says where the state is; put it back");
    json_decref(mixed);
    json_decref(unclear);
    shore__addresses_free(&list);
}

static void it_goes_with_what_a_kill_has_left_of_it(void **state) {
    struct shore_diag diag = {0};
    close(open("." NAME ".partial", O_CREAT | O_WRONLY, 0600));
    assert_ok(shore__journal_clear(".", NAME, &diag));
    assert_false(shore__journal_is_there(".", NAME));
    assert_false(shore__journal_is_there(".", "." NAME ".partial"));
    assert_ok(shore__journal_clear(".", NAME, &diag));
    assert_int_equal(mkdir(NAME, 0700), 0);
    assert_true(shore__journal_clear(".", NAME, &diag) < 0);
    assert_says(diag, NAME ": cannot be removed");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(another_takes_its_place_whole),
        cmocka_unit_test(lists_of_anything_else_are_refused),
        cmocka_unit_test(it_goes_with_what_a_kill_has_left_of_it),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
