/* Files that say what is under way with volumes: one form for every change, and the older ones; whole or not there,
 * refused where they miss something, gone at the end. */
#include <errno.h>
#include <fcntl.h>

#include "files/json.h"
#include "run/directory/journal.h"
#include "run/lifecycle/mend.h"
#include "run/strings.h"
#include "unit/run/support.h"

static void put(const char *name, const char *text) {
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static const enum shore__change changes[] = {SHORE__MAKING, SHORE__MOVING, SHORE__ROLLING_BACK, SHORE__SNAPSHOT};
static const char *const names[] = {"making/plan.json", "moving.json", "rollback.json", "snapshots/one.partial"};
enum { CHANGES = 4 };

static const char *snapshot_of(enum shore__change what) {
    return what == SHORE__SNAPSHOT ? "one" : NULL;
}

static void what_is_written_is_read(void **state) {
    mkdir("making", 0700), mkdir("snapshots", 0700);
    for (int i = 0; i < CHANGES; i++) {
        const enum shore__change what = changes[i];
        struct shore_diag diag = {0};
        bool fresh[] = {true, false};
        struct shore__journal again, j = {.fleet_id = {1, 2},
                                          .from = 7,
                                          .to = 8,
                                          .fresh = fresh,
                                          .snapshot = (char *)(uintptr_t) "five",
                                          .committed = true,
                                          .maker = (char *)(uintptr_t) "a program"};
        assert_int_equal(shore__journal_read(".", what, snapshot_of(what), &again, &diag), SHORE_EMISSING);
        assert_string_equal(diag.text, "");
        assert_int_equal(shore__addresses_parse(&j.new, "/a/one.volume", NULL), 0);
        assert_int_equal(shore__addresses_parse(&j.new, "ssh://far/two", NULL), 0);
        assert_int_equal(shore__addresses_parse(&j.old, "/a/old.volume", NULL), 0);
        struct shore__left left = {.generation = 3, .begun = true};
        assert_int_equal(shore__address_parse("/a/left", &left.at, NULL), 0);
        assert_int_equal(shore__journal_leave(&j, left), 0);
        assert_ok(shore__journal_write(".", what, snapshot_of(what), &j, &diag));
        assert_int_equal(access(names[i], F_OK), 0);
        assert_true(shore__journal_is_there(".", what, snapshot_of(what)));
        assert_int_equal(shore__run_interrupted(".") >> what & 1, 1);
        assert_ok(shore__journal_read(".", what, snapshot_of(what), &again, &diag));
        assert_true(again.fleet_id[0] == 1 && again.fleet_id[1] == 2 && again.from == 7 && again.to == 8);
        assert_true(again.new.count == 2 && again.fresh[0] && !again.fresh[1] && again.new.item[1]->kind->served);
        assert_string_equal(again.new.text[0], "/a/one.volume");
        assert_true(again.old.count == 1 && again.nleft == 1 && again.left[0].generation == 3);
        assert_true(again.left[0].begun && !again.left[0].undone && again.committed);
        assert_string_equal(again.left[0].at->text, "/a/left");
        assert_string_equal(again.snapshot, "five");
        assert_string_equal(again.maker, "a program");
        assert_true(!again.origin.home == (what != SHORE__MAKING));
        shore__journal_free(&again);
        assert_ok(shore__journal_clear(".", what, snapshot_of(what), &diag));
        assert_false(shore__journal_is_there(".", what, snapshot_of(what)));
        j.fresh = NULL, j.snapshot = j.maker = NULL; /* not from the heap */
        shore__journal_free(&j);
    }
}

/* As versions before this form have left them. */
static void older_ones_are_read(void **state) {
    static const char *const older[] = {
        "{\"fleet\": \"00000000000000010000000000000002\", \"volumes\": [\"/a/one\"], \"home\": null, \"directory\": "
        "\"1:2\"}",
        "{\"from\": 7, \"to\": 8, \"new\": [{\"path\": \"/a/one\", \"fresh\": true}], \"old\": [\"/a/old\"], \"left\": "
        "[{\"path\": \"/a/left\", \"generation\": 6, \"undone\": true, \"begun\": false}]}",
        "{\"snapshot\": \"five\", \"from\": 7, \"committed\": true}",
        "{\"name\": \"one\", \"step\": 3, \"fleet\": \"00000000000000010000000000000002\", \"generation\": 7, "
        "\"volumes\": [\"/a/one\"]}"};
    for (int i = 0; i < CHANGES; i++) {
        const enum shore__change what = changes[i];
        struct shore_diag diag = {0};
        struct shore__journal j;
        put(names[i], older[i]);
        assert_ok(shore__journal_read(".", what, snapshot_of(what), &j, &diag));
        assert_int_equal(j.from, what == SHORE__MAKING ? 0 : 7);
        assert_int_equal(j.fleet_id[1], what == SHORE__MAKING || what == SHORE__SNAPSHOT ? 2 : 0);
        assert_int_equal(j.new.count, what == SHORE__ROLLING_BACK ? 0 : 1);
        if (what == SHORE__MOVING) assert_true(j.fresh[0] && j.nleft == 1 && j.left[0].undone && j.old.count == 1);
        if (what == SHORE__ROLLING_BACK) assert_true(j.committed && strcmp(j.snapshot, "five") == 0);
        shore__journal_free(&j);
        assert_ok(shore__journal_clear(".", what, snapshot_of(what), &diag));
    }
}

static void one_that_misses_something_is_refused(void **state) {
    static const char *const missing[] = {"{\"volumes\": []}", "{\"from\": 1, \"to\": 2, \"new\": []}",
                                          "{\"snapshot\": \"five\"}",
                                          "{\"fleet\": \"00000000000000010000000000000002\"}"};
    static const char *const says[] = {"remove the directory making", "what to do with volumes; put it back",
                                       "where the state is; put it back", "which files are to go; put it back"};
    for (int i = 0; i < CHANGES; i++) {
        struct shore_diag diag = {0};
        struct shore__journal j;
        put(names[i], missing[i]);
        assert_int_equal(shore__journal_read(".", changes[i], snapshot_of(changes[i]), &j, &diag), SHORE_EINPUT);
        assert_says(diag, names[i]);
        assert_says(diag, "has been changed by hand");
        assert_says(diag, says[i]);
        assert_ok(shore__journal_clear(".", changes[i], snapshot_of(changes[i]), &diag));
    }
}

static void another_takes_its_place_whole(void **state) {
    struct shore_diag diag = {0};
    json_t *j = NULL;
    assert_ok(shore__json_write_in(".", "under.json", json_object(), &diag));
    assert_int_equal(shore__json_write_in(".", "under.json", NULL, &diag), -ENOMEM);
    assert_int_equal(access("under.json", F_OK), 0);
    assert_int_equal(shore__json_write_in("nowhere", "under.json", json_object(), &diag), -ENOENT);
    assert_ok(shore__json_write_in(".", "under.json", json_pack("{s:i}", "step", 7), &diag));
    assert_ok(shore__json_read_in(".", "under.json", &j, &diag));
    assert_int_equal(json_object_size(j), 1);
    assert_int_equal(json_integer_value(json_object_get(j, "step")), 7);
    json_decref(j);
}

static void lists_of_anything_else_are_refused(void **state) {
    struct shore__addresses list = {0};
    json_t *mixed = json_pack("[s, i]", "/a/one.volume", 3), *unclear = json_pack("[s]", "ssh:far/two");
    assert_int_equal(shore__addresses_from_json(mixed, &list), -EINVAL);
    assert_int_equal(shore__addresses_from_json(unclear, &list), SHORE_EUSAGE);
    assert_int_equal(shore__addresses_from_json(NULL, &list), -EINVAL);
    json_decref(mixed);
    json_decref(unclear);
    shore__addresses_free(&list);
}

static void it_goes_with_what_a_kill_has_left_of_it(void **state) {
    struct shore_diag diag = {0};
    close(open(".moving.json.partial", O_CREAT | O_WRONLY, 0600));
    assert_ok(shore__journal_clear(".", SHORE__MOVING, NULL, &diag));
    assert_int_equal(access(".moving.json.partial", F_OK), -1);
    assert_ok(shore__journal_clear(".", SHORE__MOVING, NULL, &diag));
    assert_int_equal(mkdir("moving.json", 0700), 0);
    assert_true(shore__journal_clear(".", SHORE__MOVING, NULL, &diag) < 0);
    assert_says(diag, "moving.json: cannot be removed");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(older_ones_are_read),
        cmocka_unit_test(one_that_misses_something_is_refused),
        cmocka_unit_test(another_takes_its_place_whole),
        cmocka_unit_test(lists_of_anything_else_are_refused),
        cmocka_unit_test(it_goes_with_what_a_kill_has_left_of_it),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
