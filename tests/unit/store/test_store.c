/* A store on a fleet whose reads and writes are held up or fail, beside what each entry has to hold. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/prng.h"
#include "longshore/store.h"
#include "storage/blockio.h"

enum { PAGE = 4096, EACH = 4 * PAGE, POOL = 4 };

struct world {
    char path[32], drive[48];
    struct shore_layout *layout;
    struct shore_fleet *fleet;
    struct shore_activation_store *store;
    struct shore_diag diag;
};

/* ---- faults --------------------------------------------------------------------------------------------------------
 */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool held;         /* writes wait */
    int reads, writes; /* what they fail with */
} fault = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0, 0};

static int shim(void *ctx, const struct shore__file *file, const struct shore__io_op *op) {
    pthread_mutex_lock(&fault.lock);
    while (op->kind == SHORE__IO_WRITE && fault.held)
        pthread_cond_wait(&fault.changed, &fault.lock);
    int rc = op->kind == SHORE__IO_WRITE ? fault.writes : op->kind == SHORE__IO_READ ? fault.reads : 0;
    pthread_mutex_unlock(&fault.lock);
    return rc;
}

static void set_fault(bool held, int reads, int writes) {
    pthread_mutex_lock(&fault.lock);
    fault.held = held;
    fault.reads = reads;
    fault.writes = writes;
    pthread_cond_broadcast(&fault.changed);
    pthread_mutex_unlock(&fault.lock);
}

/* ---- the world -----------------------------------------------------------------------------------------------------
 */

#define assert_ok(w, rc) assert_code(w, rc, 0, __LINE__)
#define assert_says(w, rc, code, text) assert_sentence(w, rc, code, text, __LINE__)
static void assert_code(struct world *w, int rc, int expected, int line) {
    if (rc != expected) fail_msg("line %d: %d instead of %d: %s", line, rc, expected, w->diag.text);
}
static void assert_sentence(struct world *w, int rc, int expected, const char *text, int line) {
    assert_code(w, rc, expected, line);
    if (!strstr(w->diag.text, text)) fail_msg("line %d: \"%s\" does not contain \"%s\"", line, w->diag.text, text);
}

static int open_store(struct world *w, uint64_t pool, uint64_t scratch) {
    const struct shore_store_options options = {
        .size = sizeof options, .pool_bytes = pool, .scratch_offset = PAGE, .scratch_bytes = scratch};
    return shore_store_open(w->fleet, &options, &w->store, &w->diag);
}

/* A pool of POOL entries of EACH bytes. */
static void open_world(struct world *w) {
    *w = (struct world){.path = "/tmp/shore-store-XXXXXX"};
    assert_non_null(mkdtemp(w->path));
    snprintf(w->drive, sizeof w->drive, "%s/state.volume", w->path);
    const struct shore_tensor_spec tensor = {"w", SHORE_SEGMENT_ELEMS, 0};
    const struct shore_block_spec block = {"b", &tensor, 1};
    const char *const drives[] = {w->drive};
    const struct shore_fleet_options options = {.size = sizeof options,
                                                .drives = drives,
                                                .ndrives = 1,
                                                .optimizer = SHORE_SGD,
                                                .scratch_bytes = 4 << 20,
                                                .io = SHORE_IO_THREADS};
    set_fault(false, 0, 0);
    shore__io_set_shim(shim, NULL);
    assert_ok(w, shore_layout_make(&block, 1, &w->layout));
    assert_ok(w, shore_fleet_create(w->layout, &options, &w->fleet, &w->diag));
    float *master = calloc(SHORE_SEGMENT_ELEMS, sizeof *master);
    assert_ok(w, shore_fleet_init_block(w->fleet, 0, 0, 1, master, NULL, NULL, &w->diag));
    free(master);
    assert_ok(w, shore_fleet_seal(w->fleet, 0, &w->diag));
    assert_ok(w, open_store(w, (uint64_t)POOL * EACH, 3 << 20));
    shore_store_begin(w->store, 7, 0);
}

static struct shore_store_counts count(struct world *w) {
    struct shore_store_counts counts = {.size = sizeof counts};
    assert_ok(w, shore_store_count(w->store, &counts));
    return counts;
}

static void close_world(struct world *w) {
    set_fault(false, 0, 0);
    struct shore_store_counts counts = count(w);
    assert_true(counts.pool_most_bytes <= counts.pool_bytes);
    shore_store_close(w->store);
    shore_fleet_close(w->fleet);
    shore_layout_free(w->layout);
    shore__io_set_shim(NULL, NULL);
    unlink(w->drive);
    rmdir(w->path);
}

static void fill(void *memory, uint64_t key, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes / 8; i++)
        ((uint64_t *)memory)[i] = key << 32 ^ i;
}
static void assert_holds(const void *memory, uint64_t key, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes / 8; i++)
        if (((const uint64_t *)memory)[i] != (key << 32 ^ i)) fail_msg("key %" PRIu64 ": other bytes", key);
}

static int try_store(struct world *w, uint64_t key, bool wait) {
    void *memory;
    int rc = shore_store_take(w->store, key, EACH, wait, &memory, &w->diag);
    if (rc) return rc;
    fill(memory, key, EACH);
    assert_ok(w, shore_store_put(w->store, key, &w->diag));
    assert_ok(w, shore_store_release(w->store, key, &w->diag));
    return 0;
}
static void check(struct world *w, uint64_t key) {
    void *memory;
    assert_ok(w, shore_store_get(w->store, key, &memory, &w->diag));
    assert_holds(memory, key, EACH);
    assert_ok(w, shore_store_release(w->store, key, &w->diag));
}

/* The first half is away. */
static void store_two_pools(struct world *w) {
    for (uint64_t key = 0; key < 2 * POOL; key++) {
        assert_ok(w, try_store(w, key, true));
        assert_ok(w, shore_store_settle(w->store, &w->diag));
    }
}

/* ---- what it is for ------------------------------------------------------------------------------------------------
 */

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
    assert_says(&w, shore_store_get(w.store, 10, &memory, &w.diag), -EIO, "step 7"); /* 100 is away instead */
    set_fault(false, 0, 0);
    for (uint64_t key = 11; key < 14; key++)
        check(&w, key);
    assert_int_equal(count(&w).read_bytes, 0);
    check(&w, 10);
    check(&w, 100);
    assert_int_equal(count(&w).read_bytes, 2 * EACH);
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
    assert_says(&w, shore_store_write(w.store, 3, own, EACH, &w.diag), -EINVAL, "there already");
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
    shore_store_begin(w->store, 7, waited_elsewhere_ns);
    for (uint64_t key = 0; key < POOL; key++) {
        int rc = try_store(w, key, true);
        assert_true(rc == 0 || rc == SHORE_STORE_FULL);
        n += !rc;
    }
    shore_store_begin(w->store, 7, UINT64_MAX / 2); /* not empty: the round goes on */
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

/* ---- what goes wrong -----------------------------------------------------------------------------------------------
 */

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
    assert_says(&w, shore_store_take(w.store, 5, 1, true, &memory, &w.diag), -EINVAL, "asked for twice");
    assert_says(&w, shore_store_get(w.store, 5, &memory, &w.diag), -EINVAL, "not put yet");
    assert_ok(&w, shore_store_put(w.store, 5, &w.diag));
    assert_says(&w, shore_store_put(w.store, 5, &w.diag), -EINVAL, "put already");
    assert_ok(&w, shore_store_release(w.store, 5, &w.diag));
    assert_says(&w, shore_store_release(w.store, 5, &w.diag), -EINVAL, "nobody uses it");
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
        assert_says(&w, -EIO, -EIO, "step 7 is lost");
    }
    assert_ok(&w, shore_buffer_alloc(EACH, 0, &memory, &w.diag));
    assert_says(&w, shore_store_read(w.store, 0, memory, &w.diag), -EIO, "step 7 is lost");
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
    assert_says(&w, shore_store_get(w.store, 0, &memory, &w.diag), SHORE_EMISSING, "the drives, which are closed");
    assert_says(&w, try_store(&w, 100, true), SHORE_EMISSING, "the drives are closed");
    close_world(&w);
}

/* ---- at random, by two threads -------------------------------------------------------------------------------------
 */

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
        cmocka_unit_test(a_key_that_is_known_counts),
        cmocka_unit_test(what_is_beside_the_pool),
        cmocka_unit_test(less_goes_where_drives_do_not_keep_up),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(a_write_that_fails_is_said_and_loses_nothing),
        cmocka_unit_test(a_read_that_fails_is_tried_again),
        cmocka_unit_test(a_key_that_is_dropped_while_it_is_written_can_be_taken_again),
        cmocka_unit_test(what_is_in_memory_outlives_the_fleet),
        cmocka_unit_test(two_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
