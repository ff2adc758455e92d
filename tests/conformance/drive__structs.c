/* Programs that were built with another version of the header. */
#include "conformance/drive_bench.h"

static const struct config in_memory = {"ram", "r", SHORE_IO_AUTO, 0, 0, SHORE_MOMENTS_FP32};

static void options_without_size_are_refused(void **state) {
    struct place place;
    struct plain plain;
    struct shore_fleet *fleet;
    struct shore_diag diag = {0};
    place_open(&place, "f");
    plain_open(&plain, SHORE_ADAMW, false);
    struct shore_fleet_options options = options_of(&in_memory, &place, &plain);
    options.size = 0;
    assert_int_equal(shore_fleet_create(plain.layout, &options, &fleet, &diag), -EINVAL);
    assert_string_equal(diag.text, "the size of a struct shore_fleet_options was not set: it is "
                                   "sizeof(struct shore_fleet_options)");
    assert_null(fleet);
    assert_int_equal(access(place.path[0], F_OK), -1);
    diag.text[0] = 0;
    assert_int_equal(shore_fleet_open(plain.layout, &options, &fleet, &diag), -EINVAL);
    assert_non_null(strstr(diag.text, "shore_fleet_options"));
    assert_int_equal(shore_fleet_memory_bytes(plain.layout, &options), 0);
    assert_int_equal(shore_fleet_memory_least_bytes(plain.layout, &options), 0);
    assert_int_equal(shore_fleet_disk_bytes(plain.layout, &options), 0);
    plain_close(&plain);
    place_close(&place);
}

/* A program that knows drives, optimizer, momentum and size alone: what comes later in the struct is not looked at. */
static void options_of_an_older_header_work(void **state) {
    struct place place;
    struct plain plain;
    struct shore_fleet *fleet;
    struct shore_diag diag = {0};
    place_open(&place, "r");
    plain_open(&plain, SHORE_ADAMW, false);
    struct shore_fleet_options options;
    memset(&options, 0xFF, sizeof options);
    options.size = offsetof(struct shore_fleet_options, moments);
    options.drives = place.paths;
    options.ndrives = place.ndrives;
    options.optimizer = SHORE_ADAMW;
    options.with_momentum = false;
    assert_int_equal(shore_fleet_create(plain.layout, &options, &fleet, &diag), 0);
    assert_int_equal(fleet_init(fleet, &plain, &diag), 0);
    assert_digest(fleet, &plain, true);
    shore_fleet_close(fleet);
    plain_close(&plain);
    place_close(&place);
}

/* What a completion came to; the sentence lives during the call alone. */
struct outcome {
    int calls, rc;
    char text[128];
};

static void note_outcome(void *ctx, int rc, const struct shore_diag *diag) {
    struct outcome *o = ctx;
    o->calls++;
    o->rc = rc;
    snprintf(o->text, sizeof o->text, "%.127s", diag ? diag->text : "");
}

static void requests_without_size_are_refused(void **state) {
    struct bench b;
    struct outcome update = {0}, store = {0};
    assert_true(bench_open(&b, &in_memory, SHORE_ADAMW, false));
    struct shore_update u = {.attempt = shore_fleet_attempt(b.fleet), .count = 1, .coefficient = 1};
    struct shore_store s = {.attempt = u.attempt, .count = 1};
    assert_int_equal(shore_fleet_update(b.fleet, &u, (struct shore_completion){note_outcome, &update}), 0);
    assert_int_equal(shore_fleet_store(b.fleet, &s, (struct shore_completion){note_outcome, &store}), 0);
    assert_int_equal(update.calls, 1);
    assert_int_equal(update.rc, -EINVAL);
    assert_string_equal(update.text,
                        "the size of a struct shore_update was not set: it is sizeof(struct shore_update)");
    assert_int_equal(store.calls, 1);
    assert_int_equal(store.rc, -EINVAL);
    assert_string_equal(store.text, "the size of a struct shore_store was not set: it is sizeof(struct shore_store)");
    bench_close(&b);
}

static void results_fit_an_older_header(void **state) {
    struct bench b;
    struct shore_fleet_info info = {.size = offsetof(struct shore_fleet_info, fleet_id), .generation = 77}, none = {0};
    struct shore_ledger ledger = {.size = offsetof(struct shore_ledger, link_in_compressed), .commit_ns = 77};
    assert_true(bench_open(&b, &in_memory, SHORE_ADAMW, false));
    step(&b);
    assert_int_equal(shore_fleet_info(b.fleet, &info), 0);
    assert_int_equal(info.step, 1);
    assert_int_equal(info.epoch, 1);
    assert_int_equal(info.generation, 77);
    assert_int_equal(shore_fleet_ledger(b.fleet, &ledger), 0);
    assert_int_equal(ledger.link_in_gradients, crossing_elems(b.plain.layout) * 4);
    assert_int_equal(ledger.commit_ns, 77);
    assert_int_equal(shore_fleet_info(b.fleet, &none), -EINVAL);
    ledger.size = 0;
    assert_int_equal(shore_fleet_ledger(b.fleet, &ledger), -EINVAL);
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_without_size_are_refused),
        cmocka_unit_test(options_of_an_older_header_work),
        cmocka_unit_test(requests_without_size_are_refused),
        cmocka_unit_test(results_fit_an_older_header),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
