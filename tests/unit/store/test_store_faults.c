/* What goes wrong in a store, or cannot be. */
#include "unit/store/world.h"

static void what_cannot_be_is_refused(void **state) {
    struct world w;
    void *memory;
    open_world(&w);
    assert_says(&w, shore_store_get(w.store, 5, &memory, &w.diag), -ENOENT, "key 5 of step 7 is not in the store");
    assert_says(&w, shore_store_want(w.store, 5, &w.diag), -ENOENT, "key 5");
    assert_says(&w, shore_store_read(w.store, 5, &memory, &w.diag), -ENOENT, "key 5");
    assert_says(&w, shore_store_put(w.store, 5, &w.diag), -ENOENT, "key 5");
    assert_says(&w, shore_store_release(w.store, 5, &w.diag), -ENOENT, "key 5");
    assert_says(&w, shore_store_drop(w.store, 5, &w.diag), -ENOENT, "key 5");
    assert_says(&w, shore_store_take(w.store, 5, 0, true, &memory, &w.diag), -EINVAL, "no bytes");
    assert_says(&w, shore_store_take(w.store, 5, UINT64_MAX, true, &memory, &w.diag), -EINVAL, "too many");
    assert_ok(&w, shore_store_take(w.store, 5, 1, true, &memory, &w.diag));
    assert_says(&w, shore_store_take(w.store, 5, 1, true, &memory, &w.diag), -EINVAL, "taken twice");
    assert_says(&w, shore_store_get(w.store, 5, &memory, &w.diag), -EINVAL, "put it first");
    assert_ok(&w, shore_store_put(w.store, 5, &w.diag));
    assert_says(&w, shore_store_put(w.store, 5, &w.diag), -EINVAL, "put already");
    assert_ok(&w, shore_store_release(w.store, 5, &w.diag));
    assert_says(&w, shore_store_release(w.store, 5, &w.diag), -EINVAL, "not in use");
    assert_ok(&w, shore_store_drop(w.store, 5, &w.diag));
    assert_int_equal(shore_store_count(w.store, &(struct shore_store_counts){.size = 0}), -EINVAL);
    struct shore_activation_store *store;
    struct shore_store_memory part = {.at = (char *)NULL + 1, .bytes = PAGE};
    const struct shore_store_options bad[] = {{.size = 0},
                                              {.size = sizeof *bad, .scratch_bytes = 1},
                                              {.size = sizeof *bad, .scratch_bytes = UINT64_C(1) << 40},
                                              {.size = sizeof *bad, .scratch_offset = UINT64_C(1) << 40},
                                              {.size = sizeof *bad, .npool = 1, .pool = &part}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_code(&w, shore_store_open(w.fleet, &bad[i], &store, &w.diag), -EINVAL, (int)i);
    close_world(&w);
}

static void a_write_that_fails_is_said_and_loses_nothing(void **state) {
    struct world w;
    open_world(&w);
    set_fault(false, 0, -EIO);
    assert_ok(&w, try_store(&w, 1, true));
    int rc = 0;
    for (uint64_t key = 2; !rc; key++) /* until it has failed; the pool ends */
        rc = try_store(&w, key, true);
    assert_says(&w, rc, -EIO, w.drive);
    check(&w, 1);
    assert_says(&w, shore_store_settle(w.store, &w.diag), -EIO, w.drive);
    set_fault(false, 0, 0);
    assert_ok(&w, shore_store_settle(w.store, &w.diag));
    for (uint64_t key = 100; key < 100 + 2 * POOL; key++) {
        assert_ok(&w, try_store(&w, key, true));
        assert_ok(&w, shore_store_settle(w.store, &w.diag));
    }
    check(&w, 1);
    assert_int_equal(count(&w).read_bytes, EACH);
    set_fault(false, 0, -EIO);
    assert_ok(&w, try_store(&w, 200, true));
    assert_says(&w, shore_store_drop_all(w.store, &w.diag), -EIO, w.drive);
    assert_ok(&w, shore_store_drop_all(w.store, &w.diag));
    assert_int_equal(count(&w).entries + count(&w).pool_used_bytes + count(&w).scratch_used_bytes, 0);
    close_world(&w);
}

static void a_read_that_fails_is_tried_again(void **state) {
    struct world w;
    void *memory;
    open_world(&w);
    store_two_pools(&w);
    set_fault(false, -EIO, 0);
    for (int wanted = 0; wanted < 2; wanted++) {
        if (wanted) shore_store_want(w.store, 0, &w.diag);
        assert_says(&w, shore_store_get(w.store, 0, &memory, &w.diag), -EIO, w.drive);
        assert_says(&w, -EIO, -EIO, "loses step 7");
    }
    assert_ok(&w, shore_buffer_alloc(EACH, 0, &memory, &w.diag));
    assert_says(&w, shore_store_read(w.store, 0, memory, &w.diag), -EIO, "loses step 7");
    shore_buffer_free(memory, EACH);
    set_fault(false, 0, 0);
    check(&w, 0);
    close_world(&w);
}

static void a_key_that_is_dropped_while_it_is_written_can_be_taken_again(void **state) {
    struct world w;
    open_world(&w);
    for (int i = 0; i < 3; i++) {
        assert_ok(&w, try_store(&w, 1, true));
        assert_ok(&w, shore_store_drop(w.store, 1, &w.diag));
    }
    assert_ok(&w, shore_store_drop_all(w.store, &w.diag));
    assert_int_equal(count(&w).entries, 0);
    close_world(&w);
}

static void what_is_in_memory_outlives_the_fleet(void **state) {
    struct world w;
    void *memory;
    open_world(&w);
    store_two_pools(&w);
    shore_store_end(w.store);
    check(&w, 2 * POOL - 1);
    assert_says(&w, shore_store_get(w.store, 0, &memory, &w.diag), SHORE_EMISSING, "when the drives were closed");
    assert_says(&w, try_store(&w, 100, true), SHORE_EMISSING, "the drives are closed");
    close_world(&w);
}

static void bytes_that_are_damaged_are_named(void **state) {
    enum { MIB = 1 << 20 };
    static atomic_bool damaging;
    struct world w;
    void *memory;
    damaging = false;
    shore__io_set_done_hook(damage, &damaging);
    open_drives(&w, 2);
    shore_store_close(w.store);
    assert_ok(&w, open_store(&w, 3 * MIB, 4 * MIB - PAGE));
    shore_store_begin(w.store, 9);
    assert_ok(&w, shore_store_take(w.store, 1, 5 * MIB / 2, true, &memory, &w.diag));
    fill(memory, 1, 5 * MIB / 2);
    assert_ok(&w, shore_store_put(w.store, 1, &w.diag));
    assert_ok(&w, shore_store_release(w.store, 1, &w.diag));
    assert_ok(&w, shore_store_settle(w.store, &w.diag));
    assert_ok(&w, shore_store_take(w.store, 2, MIB, true, &memory, &w.diag)); /* 1 is away */
    assert_ok(&w, shore_store_drop(w.store, 2, &w.diag));
    assert_ok(&w, shore_store_release(w.store, 2, &w.diag));
    damaging = true;
    assert_says(&w, shore_store_get(w.store, 1, &memory, &w.diag), SHORE_ECORRUPT, w.second);
    assert_says(&w, SHORE_ECORRUPT, SHORE_ECORRUPT,
                "returned other bytes than were stored: 1048576 bytes at 0 of its scratch");
    assert_says(&w, SHORE_ECORRUPT, SHORE_ECORRUPT, "loses step 9");
    damaging = false;
    assert_ok(&w, shore_store_get(w.store, 1, &memory, &w.diag));
    assert_holds(memory, 1, 5 * MIB / 2);
    assert_ok(&w, shore_store_release(w.store, 1, &w.diag));
    close_world(&w);
    shore__io_set_done_hook(NULL, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(a_write_that_fails_is_said_and_loses_nothing),
        cmocka_unit_test(a_read_that_fails_is_tried_again),
        cmocka_unit_test(a_key_that_is_dropped_while_it_is_written_can_be_taken_again),
        cmocka_unit_test(what_is_in_memory_outlives_the_fleet),
        cmocka_unit_test(bytes_that_are_damaged_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
