/* What a store is for. */
#include "base/units.h"
#include "drive/counters.h"
#include "unit/store/world.h"

/* ---- what it is for ---------------------------------------------------------------------------------------------- */

static void more_than_the_pool_comes_back(void **state) {
    struct world w;
    open_world(&w);
    for (uint64_t key = 0; key < 5 * POOL; key++)
        assert_ok(&w, try_store(&w, key, true));
    assert_true(count(&w).waited_take_ns > 0);
    for (uint64_t key = 5 * POOL; key--;) {
        check(&w, key);
        assert_ok(&w, shore_store_drop(w.store, key, &w.diag));
        if (key) shore_store_want(w.store, key - 1, &w.diag);
    }
    struct shore_store_counts counts = count(&w);
    assert_int_equal(counts.pool_most_bytes, POOL * EACH);
    assert_int_equal(counts.entries + counts.pool_used_bytes + counts.scratch_used_bytes, 0);
    assert_true(counts.written_bytes <= 5 * POOL * EACH);
    assert_in_range(counts.read_bytes, 4 * POOL * EACH, (5 * POOL - 1) * EACH); /* the last are in the pool still */
    assert_true(counts.forwarded_bytes >= EACH);
    close_world(&w);
}

static void what_is_not_written_yet_is_given_from_memory(void **state) {
    struct world w;
    open_world(&w);
    set_fault(true, -EIO, 0);
    for (uint64_t key = 0; key < POOL; key++)
        assert_ok(&w, try_store(&w, key, true));
    for (uint64_t key = POOL; key--;)
        check(&w, key);
    assert_int_equal(count(&w).written_bytes + count(&w).read_bytes, 0);
    assert_int_equal(count(&w).forwarded_bytes, POOL * EACH);
    close_world(&w);
}

static void what_is_needed_last_gives_its_memory(void **state) {
    struct world w;
    void *memory;
    open_world(&w);
    for (uint64_t key = 0; key < POOL; key++)
        assert_ok(&w, try_store(&w, 10 + key, true));
    assert_ok(&w, shore_store_settle(w.store, &w.diag));
    assert_ok(&w, try_store(&w, 100, false)); /* 10 is away */
    assert_ok(&w, shore_store_settle(w.store, &w.diag));
    set_fault(false, -EIO, 0);
    check(&w, 11);
    assert_int_equal(shore_store_want(w.store, 10, &w.diag), SHORE_STORE_FULL); /* all others are needed sooner */
    assert_int_equal(count(&w).read_bytes, 0);
    assert_says(&w, shore_store_get(w.store, 10, &memory, &w.diag), -EIO, "step 7"); /* 11, which was had, is away */
    set_fault(false, 0, 0);
    check(&w, 12);
    check(&w, 13);
    check(&w, 100);
    assert_int_equal(count(&w).read_bytes, 0);
    check(&w, 10);
    check(&w, 11);
    assert_int_equal(count(&w).read_bytes, 2 * EACH);
    assert_ok(&w, shore_store_drop_all(w.store, &w.diag));
    /* what was read ahead stays for whoever reads ahead, and gives its memory to who needs it now */
    store_two_pools(&w);
    for (uint64_t key = POOL; key < 2 * POOL; key++)
        assert_ok(&w, shore_store_drop(w.store, key, &w.diag));
    for (uint64_t key = POOL; key--;)
        assert_ok(&w, shore_store_want(w.store, key, &w.diag));
    assert_ok(&w, shore_store_settle(w.store, &w.diag));
    assert_int_equal(count(&w).read_bytes, (2 + POOL) * EACH);
    shore_store_take(w.store, 50, EACH, true, &memory, &w.diag); /* 0 is away */
    assert_int_equal(shore_store_want(w.store, 0, &w.diag), SHORE_STORE_FULL);
    assert_ok(&w, shore_store_put(w.store, 50, &w.diag));
    assert_ok(&w, shore_store_release(w.store, 50, &w.diag));
    check(&w, 0);
    assert_int_equal(count(&w).read_bytes, (3 + POOL) * EACH);
    close_world(&w);
}

static void room_that_is_used_up_is_an_answer(void **state) {
    struct world w;
    void *memory, *own;
    open_world(&w);
    set_fault(true, 0, 0);
    for (uint64_t key = 0; key < POOL; key++)
        assert_ok(&w, try_store(&w, key, false));
    assert_int_equal(try_store(&w, POOL, false), SHORE_STORE_FULL);
    assert_int_equal(count(&w).full_bytes, EACH);
    set_fault(false, 0, 0);
    assert_ok(&w, try_store(&w, POOL, true));
    assert_int_equal(shore_store_take(w.store, 50, (uint64_t)POOL * EACH + 1, true, &memory, &w.diag),
                     SHORE_STORE_FULL);
    /* all of the pool is used */
    for (uint64_t key = 1; key <= POOL; key++)
        assert_ok(&w, shore_store_get(w.store, key, &memory, &w.diag));
    assert_int_equal(shore_store_get(w.store, 0, &memory, &w.diag), SHORE_STORE_FULL);
    assert_int_equal(try_store(&w, 50, true), SHORE_STORE_FULL);
    assert_ok(&w, shore_buffer_alloc(EACH, 0, &own, &w.diag));
    for (uint64_t key = 0; key < 2; key++) { /* from scratch; from memory */
        assert_ok(&w, shore_store_read(w.store, key, own, &w.diag));
        assert_holds(own, key, EACH);
    }
    shore_buffer_free(own, EACH);
    /* scratch is used up */
    shore_store_close(w.store);
    assert_ok(&w, open_store(&w, (uint64_t)POOL * EACH, (uint64_t)2 * EACH));
    assert_ok(&w, try_store(&w, 1, true));
    assert_ok(&w, try_store(&w, 2, true));
    assert_int_equal(try_store(&w, 3, true), SHORE_STORE_FULL);
    assert_ok(&w, shore_store_settle(w.store, &w.diag));
    assert_ok(&w, shore_store_drop(w.store, 1, &w.diag));
    assert_ok(&w, try_store(&w, 3, true));
    check(&w, 2);
    close_world(&w);
}

/* A store that keeps writes nothing that the pool has room for, and takes what scratch has no room for. */
static void what_stays_as_long_as_there_is_room(void **state) {
    struct world w;
    open_world(&w);
    w.keeps = true;
    for (uint64_t scratch = 0; scratch <= 2; scratch += 2) {
        shore_store_close(w.store);
        assert_ok(&w, open_store(&w, (uint64_t)POOL * EACH, scratch * EACH));
        uint64_t taken = POOL + scratch;
        for (uint64_t key = 0; key < POOL - 1; key++)
            assert_ok(&w, try_store(&w, key, true));
        assert_ok(&w, shore_store_settle(w.store, &w.diag));
        assert_int_equal(count(&w).written_bytes, 0);
        for (uint64_t key = POOL - 1; key < taken; key++)
            assert_ok(&w, try_store(&w, key, true));
        assert_int_equal(try_store(&w, taken, true), SHORE_STORE_FULL);
        assert_ok(&w, shore_store_settle(w.store, &w.diag));
        assert_int_equal(count(&w).written_bytes, scratch * EACH);
        assert_int_equal(shore_store_write(w.store, taken, &w, PAGE, &w.diag), SHORE_STORE_FULL);
        for (uint64_t key = taken; key--;) {
            check(&w, key);
            assert_ok(&w, shore_store_drop(w.store, key, &w.diag));
        }
        struct shore_store_counts counts = count(&w);
        assert_int_equal(counts.entries + counts.pool_used_bytes + counts.scratch_used_bytes, 0);
    }
    close_world(&w);
}

static void a_key_that_is_known_counts(void **state) {
    struct world w;
    void *memory;
    open_world(&w);
    assert_ok(&w, try_store(&w, 1, true));
    assert_int_equal(shore_store_take(w.store, 1, EACH, true, &memory, &w.diag), SHORE_STORE_KNOWN);
    assert_ok(&w, shore_store_drop(w.store, 1, &w.diag));
    check(&w, 1);
    assert_ok(&w, shore_store_get(w.store, 1, &memory, &w.diag));
    assert_ok(&w, shore_store_drop(w.store, 1, &w.diag));
    assert_holds(memory, 1, EACH); /* it is used */
    assert_ok(&w, shore_store_release(w.store, 1, &w.diag));
    assert_says(&w, shore_store_drop(w.store, 1, &w.diag), -ENOENT, "key 1 ");
    assert_ok(&w, shore_store_settle(w.store, &w.diag));
    assert_int_equal(count(&w).entries, 0);
    assert_int_equal(count(&w).written_bytes, EACH);
    close_world(&w);
}

static void what_is_beside_the_pool(void **state) {
    struct world w;
    void *own;
    open_world(&w);
    assert_ok(&w, shore_buffer_alloc(EACH, 0, &own, &w.diag));
    for (uint64_t key = 0; key < 2 * POOL; key++) {
        fill(own, key, EACH);
        assert_ok(&w, shore_store_write(w.store, key, own, EACH, &w.diag));
    }
    for (uint64_t key = 0; key < 2 * POOL; key++) {
        assert_ok(&w, shore_store_read(w.store, key, own, &w.diag));
        assert_holds(own, key, EACH);
        check(&w, key);
    }
    assert_says(&w, shore_store_write(w.store, 3, own, EACH, &w.diag), -EINVAL, "already");
    set_fault(false, 0, -ENOSPC);
    assert_says(&w, shore_store_write(w.store, 100, own, EACH, &w.diag), -ENOSPC, w.drive);
    set_fault(false, 0, 0);
    assert_ok(&w, shore_store_write(w.store, 100, own, EACH, &w.diag));
    assert_ok(&w, shore_store_drop_all(w.store, &w.diag));
    shore_buffer_free(own, EACH);
    close_world(&w);
}

/* Of so many that are asked for in a round, those that went. */
static uint64_t one_round(struct world *w, uint64_t waited_elsewhere_ns) {
    uint64_t n = 0;
    shore__fleet_waited(w->fleet, SHORE_LANE_DRIVE_UPDATE, shore__now_ns() - waited_elsewhere_ns);
    shore_store_begin(w->store, 7);
    for (uint64_t key = 0; key < POOL; key++) {
        int rc = try_store(w, key, true);
        assert_true(rc == 0 || rc == SHORE_STORE_FULL);
        n += !rc;
    }
    shore_store_begin(w->store, 7); /* not empty: the round goes on */
    assert_ok(w, shore_store_drop_all(w->store, &w->diag));
    return n;
}

static void less_goes_where_drives_do_not_keep_up(void **state) {
    struct world w;
    const uint64_t hour_ns = UINT64_C(3600) * 1000 * 1000 * 1000;
    open_world(&w);
    for (int adapts = 0; adapts < 2; adapts++) {
        const struct shore_store_options options = {
            .size = sizeof options, .pool_bytes = POOL * EACH, .scratch_bytes = 3 << 20, .adapts = adapts};
        shore_store_close(w.store);
        assert_ok(&w, shore_store_open(w.fleet, &options, &w.store, &w.diag));
        assert_int_equal(one_round(&w, 0), POOL);
        assert_int_equal(one_round(&w, hour_ns), POOL); /* the first one does not count */
        assert_int_equal(one_round(&w, hour_ns), adapts ? 0 : POOL);
        uint64_t most = 0;
        for (int i = 0; i < 12 && most < POOL; i++)
            most = one_round(&w, 0);
        assert_int_equal(most, POOL);
    }
    close_world(&w);
}

/* ---- at random, by two threads ----------------------------------------------------------------------------------- */

static uint64_t seed;

struct worker {
    struct world w;
    uint64_t number;
    int failures;
};

/* Entries of its own, of random sizes: in turn stored, asked for, used, dropped. */
static void *work(void *ctx) {
    struct worker *me = ctx;
    struct shore_activation_store *s = me->w.store;
    enum { KEYS = 24 };
    uint64_t bytes[KEYS] = {0}, drawn = 0;
    struct shore_diag diag;
    for (int i = 0; i < 3000; i++) {
        uint64_t r = shore__random_u64(seed, me->number, drawn++), at = r % KEYS, key = at * 2 + me->number;
        void *memory;
        if (!bytes[at]) {
            uint64_t size = (r >> 20) % EACH + 8;
            int rc = shore_store_take(s, key, size, r >> 62, &memory, &diag);
            if (rc == SHORE_STORE_FULL) continue;
            if (rc) me->failures++;
            fill(memory, key, size);
            me->failures += shore_store_put(s, key, &diag) || shore_store_release(s, key, &diag);
            bytes[at] = size;
        } else if ((r >> 40) % 4 == 0) {
            me->failures += shore_store_drop(s, key, &diag) != 0;
            bytes[at] = 0;
        } else if ((r >> 40) % 4 == 1) {
            me->failures += shore_store_want(s, key, &diag) < 0;
        } else {
            int rc = shore_store_get(s, key, &memory, &diag);
            if (rc == SHORE_STORE_FULL) continue;
            if (rc) me->failures++;
            for (uint64_t n = 0; !rc && n < bytes[at] / 8; n++)
                me->failures += ((uint64_t *)memory)[n] != (key << 32 ^ n);
            me->failures += shore_store_release(s, key, &diag) != 0;
        }
    }
    return NULL;
}

static void two_threads(void **state) {
    struct worker worker[2];
    pthread_t thread[2];
    struct world w;
    open_world(&w);
    for (int i = 0; i < 2; i++) {
        worker[i] = (struct worker){.w = w, .number = (uint64_t)i};
        assert_int_equal(pthread_create(&thread[i], NULL, work, &worker[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(worker[i].failures, 0);
    }
    assert_true(count(&w).read_bytes > 0);
    assert_ok(&w, shore_store_drop_all(w.store, &w.diag));
    assert_int_equal(count(&w).entries + count(&w).pool_used_bytes + count(&w).scratch_used_bytes, 0);
    close_world(&w);
}

int main(void) {
    const char *given = getenv("SEED");
    seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
    print_message("SEED=%" PRIu64 "\n", seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_than_the_pool_comes_back),
        cmocka_unit_test(what_is_not_written_yet_is_given_from_memory),
        cmocka_unit_test(what_is_needed_last_gives_its_memory),
        cmocka_unit_test(room_that_is_used_up_is_an_answer),
        cmocka_unit_test(what_stays_as_long_as_there_is_room),
        cmocka_unit_test(a_key_that_is_known_counts),
        cmocka_unit_test(what_is_beside_the_pool),
        cmocka_unit_test(less_goes_where_drives_do_not_keep_up),
        cmocka_unit_test(two_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
