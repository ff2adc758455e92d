/* A store beside a device: what a copy fills or reads stays until the copy has passed, and nobody waits for the device
 * who does not need it. */
#include "moments.h"
#include "seed.h"
#include "unit/store/world.h"

static struct moments m;
static uint64_t seed, drawn;
static uint32_t pick(uint32_t first, uint32_t last) {
    return first + (uint32_t)(shore__random_u64(seed, 1, drawn++) % (last - first + 1));
}

enum { KEYS = 40 };
static unsigned char there[KEYS][EACH], back[KEYS][EACH]; /* the device's memory */

static void open_beside(struct world *w) {
    open_world(w);
    moments_open(&m);
    w->device = &m.device;
    shore_store_close(w->store);
    assert_ok(w, open_store(w, (uint64_t)POOL * EACH, 3 << 20));
    shore_store_begin(w->store, 7);
    for (uint64_t key = 0; key < KEYS; key++)
        fill(there[key], key, EACH);
}
static void close_beside(struct world *w) {
    close_world(w);
    moments_close(&m);
}

/* The copy from the device begins; its memory holds something else until then. */
static int leave(struct world *w, uint64_t key) {
    void *memory;
    int rc = shore_store_take(w->store, key, EACH, true, &memory, &w->diag);
    if (rc) return rc;
    memset(memory, 0xff, EACH);
    struct shore_event until = moments_copy(&m, memory, there[key], EACH);
    assert_ok(w, shore_store_put_after(w->store, key, until, &w->diag));
    assert_ok(w, shore_store_release(w->store, key, &w->diag));
    return 0;
}

/* The copy back to the device begins. */
static void come_back(struct world *w, uint64_t key) {
    void *memory;
    int rc = shore_store_get(w->store, key, &memory, &w->diag);
    assert_ok(w, rc);
    assert_holds(memory, key, EACH);
    memset(back[key], 0, EACH);
    struct shore_event until = moments_copy(&m, back[key], memory, EACH);
    assert_ok(w, shore_store_release_after(w->store, key, until, &w->diag));
    assert_ok(w, shore_store_drop(w->store, key, &w->diag));
}

static void pass_some(void) {
    moments_pass(&m, m.called - pick(0, (uint32_t)moments_under_way(&m)));
}

static void everything_comes_back_whenever_events_pass(void **state) {
    struct world w;
    for (int n = 0; n < 12; n++) {
        bool taken[KEYS] = {false}, brought[KEYS] = {false};
        open_beside(&w);
        m.by_itself = true;
        if (n % 2) assert_ok(&w, shore_device_watch(&m.device, &w.diag));
        for (uint64_t key = 0; key < KEYS; key++) {
            if (pick(0, 9) == 0) continue;
            assert_ok(&w, leave(&w, key));
            taken[key] = true;
            if (pick(0, 2) == 0) pass_some();
            if (pick(0, 9) == 0) { /* it is not needed after all */
                assert_ok(&w, shore_store_drop(w.store, key, &w.diag));
                taken[key] = false;
                if (pick(0, 1)) assert_ok(&w, leave(&w, key)), taken[key] = true; /* or again */
            }
            if (pick(0, 9) == 0) assert_ok(&w, shore_store_settle(w.store, &w.diag));
        }
        for (uint64_t key = KEYS; key--;) {
            if (!taken[key]) continue;
            if (key && taken[key - 1]) shore_store_want(w.store, key - 1, &w.diag);
            come_back(&w, key);
            brought[key] = true;
            if (pick(0, 2) == 0) pass_some();
            if (pick(0, 29) == 0) break; /* an interruption */
        }
        assert_ok(&w, shore_store_drop_all(w.store, &w.diag));
        assert_int_equal(count(&w).entries + count(&w).pool_used_bytes + count(&w).scratch_used_bytes, 0);
        assert_int_equal(moments_under_way(&m), 0);
        for (uint64_t key = 0; key < KEYS; key++)
            if (brought[key]) assert_holds(back[key], key, EACH);
        shore_device_unwatch(&m.device);
        close_beside(&w);
    }
}

static void nobody_waits_who_need_not(void **state) {
    struct world w;
    open_beside(&w);
    for (uint64_t key = 0; key < POOL; key++)
        assert_ok(&w, leave(&w, key));
    assert_ok(&w, shore_store_want(w.store, 0, &w.diag));
    assert_ok(&w, shore_store_drop(w.store, 3, &w.diag));
    assert_int_equal(m.waits, 0);
    assert_int_equal(count(&w).pool_used_bytes, POOL * EACH); /* the device may write into 3 still */
    assert_int_equal(count(&w).written_bytes, 0);
    moments_pass(&m, POOL);
    check(&w, 0);
    assert_int_equal(m.waits, 0);
    assert_ok(&w, shore_store_settle(w.store, &w.diag));
    assert_int_equal(count(&w).entries, POOL - 1);
    assert_int_equal(count(&w).pool_used_bytes, (POOL - 1) * EACH);
    /* what is asked for is waited for */
    m.by_itself = true;
    assert_ok(&w, leave(&w, 9));
    check(&w, 9);
    assert_int_equal(m.waits, 1);
    close_beside(&w);
}

/* A device that still writes an entry copies it back behind the event. */
static void what_is_being_filled_is_given_to_the_device(void **state) {
    struct world w;
    void *memory;
    struct shore_event after;
    open_beside(&w);
    for (uint64_t key = 0; key < POOL; key++)
        assert_ok(&w, leave(&w, key));
    for (uint64_t key = POOL; key--;) {
        assert_true(shore_store_has(w.store, key));
        assert_ok(&w, shore_store_get_after(w.store, key, &memory, &after, &w.diag));
        assert_int_equal(after.position, key + 1);
        memset(back[key], 0, EACH);
        struct shore_event until = moments_copy(&m, back[key], memory, EACH);
        assert_ok(&w, shore_store_release_after(w.store, key, until, &w.diag));
        assert_ok(&w, shore_store_drop(w.store, key, &w.diag));
    }
    assert_int_equal(m.waits, 0);
    assert_false(shore_store_has(w.store, KEYS));
    moments_pass(&m, m.called);
    for (uint64_t key = 0; key < POOL; key++)
        assert_holds(back[key], key, EACH);
    m.by_itself = true;
    for (uint64_t key = 0; key < 2 * POOL; key++)
        assert_ok(&w, leave(&w, key));
    assert_ok(&w, shore_store_settle(w.store, &w.diag));
    assert_false(shore_store_has(w.store, 0)); /* it is away */
    assert_ok(&w, shore_store_get_after(w.store, 0, &memory, &after, &w.diag));
    assert_null(after.stream);
    assert_holds(memory, 0, EACH);
    assert_ok(&w, shore_store_release(w.store, 0, &w.diag));
    close_beside(&w);
}

static void a_device_that_fails_is_told(void **state) {
    struct world w;
    void *memory;
    for (int lost = 0; lost < 2; lost++) {
        open_beside(&w);
        m.device.timeout_ns = 20000000;
        m.by_itself = !lost;
        m.failed = lost ? 0 : -EIO;
        int code = lost ? -ETIMEDOUT : -EIO;
        assert_ok(&w, leave(&w, 1));
        assert_says(&w, shore_store_get(w.store, 1, &memory, &w.diag), code,
                    lost ? "device is lost" : "copy has failed");
        assert_says(&w, shore_store_get(w.store, 1, &memory, &w.diag), code, "step 7");
        assert_says(&w, leave(&w, 2), code, lost ? "device is lost" : "copy has failed");
        assert_says(&w, shore_store_drop_all(w.store, &w.diag), code, lost ? "device is lost" : "copy has failed");
        assert_int_equal(count(&w).entries, 0);
        close_beside(&w);
    }
}

static void what_cannot_be_is_refused(void **state) {
    struct world w;
    void *memory;
    open_world(&w);
    const struct shore_event event = {&w, 1};
    assert_ok(&w, shore_store_take(w.store, 1, EACH, true, &memory, &w.diag));
    assert_says(&w, shore_store_put_after(w.store, 1, event, &w.diag), -EINVAL, "no device");
    fill(memory, 1, EACH);
    assert_ok(&w, shore_store_put(w.store, 1, &w.diag));
    assert_says(&w, shore_store_release_after(w.store, 1, event, &w.diag), -EINVAL, "no device");
    assert_ok(&w, shore_store_release(w.store, 1, &w.diag));
    close_world(&w);
    open_beside(&w);
    assert_ok(&w, shore_store_take(w.store, 1, EACH, true, &memory, &w.diag));
    assert_says(&w, shore_store_get(w.store, 1, &memory, &w.diag), -EINVAL, "being filled");
    assert_ok(&w, shore_store_put_after(w.store, 1, moments_copy(&m, memory, there[1], EACH), &w.diag));
    assert_says(&w, shore_store_put(w.store, 1, &w.diag), -EINVAL, "was put already");
    m.by_itself = true;
    check(&w, 1);
    close_beside(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_comes_back_whenever_events_pass),
        cmocka_unit_test(nobody_waits_who_need_not),
        cmocka_unit_test(what_is_being_filled_is_given_to_the_device),
        cmocka_unit_test(a_device_that_fails_is_told),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
