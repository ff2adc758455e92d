/* Updates of a fleet: which wait, in which order they end, what is refused. */
#include "conformance/drive_bench.h"

#include <pthread.h>

struct order_log {
    pthread_mutex_t lock;
    char text[32];
    size_t n;
};

struct order_entry {
    struct order_log *log;
    char letter;
    struct shore_wait *wait;
};

static void note_order(void *ctx, int rc, const struct shore_diag *diag) {
    struct order_entry *entry = ctx;
    pthread_mutex_lock(&entry->log->lock);
    entry->log->text[entry->log->n++] = rc ? '!' : entry->letter;
    pthread_mutex_unlock(&entry->log->lock);
    struct shore_completion done = shore_wait_completion(entry->wait);
    done.fn(done.ctx, rc, diag);
}

static void test_updates_wait_for_their_base(void **state) {
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b;
        if (!bench_open(&b, &configs[c], SHORE_ADAMW, false)) continue;
        struct order_log log = {.lock = PTHREAD_MUTEX_INITIALIZER};
        struct order_entry entry[1 + BLOCKS];
        struct shore_wait wait[1 + BLOCKS];
        struct shore_hyper groups[GROUPS];
        float *gradient[BLOCKS];
        struct step_how how = {.coefficient = 1};
        must(&b, fleet_updates(b.fleet, &b.plain, 0, &how, &b.diag));
        plain_step(&b.plain, 1);
        for (uint32_t i = 0; i <= BLOCKS; i++) {
            shore_wait_init(&wait[i]);
            entry[i] = (struct order_entry){&log, (char)('0' + i), &wait[i]};
        }
        must(&b, shore_fleet_commit(b.fleet, 0, false, NULL, 0, (struct shore_completion){note_order, &entry[0]}));
        hypers(&b.plain, 2, groups);
        for (uint32_t i = 0; i < BLOCKS; i++) {
            gradient[i] = pages(b.plain.layout->blocks[i].padded_elems * 4);
            gradient_of_step(&b.plain, i, 2, gradient[i]);
            struct shore_update update = {.size = sizeof update,
                                          .base_step = 1,
                                          .attempt = shore_fleet_attempt(b.fleet),
                                          .block = i,
                                          .count = b.plain.layout->blocks[i].segments,
                                          .gradient = gradient[i],
                                          .coefficient = 1,
                                          .groups = groups,
                                          .ngroups = GROUPS};
            must(&b, shore_fleet_update(b.fleet, &update, (struct shore_completion){note_order, &entry[1 + i]}));
        }
        /* copied at submit */
        memset(groups, 0xff, sizeof groups);
        for (uint32_t i = 0; i <= BLOCKS; i++) {
            must(&b, shore_wait(&wait[i], &b.diag));
        }
        assert_int_equal(log.text[0], '0');
        assert_digest(b.fleet, &b.plain, true);
        must(&b, fleet_commit(b.fleet, 1, false, &b.diag));
        plain_step(&b.plain, 1);
        assert_digest(b.fleet, &b.plain, true);
        for (uint32_t i = 0; i < BLOCKS; i++) {
            free(gradient[i]);
        }
        bench_close(&b);
    }
}

/* Far more requests than a ring has buffers, by segments and by blocks, so that requests wait for buffers that come
 * free in every order: each must end once (UPDATE may be repeated). */
static void test_many_updates(void **state) {
    enum { REPEATS = 60 };
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b;
        if (!bench_open(&b, &configs[c], SHORE_ADAMW, false)) continue;
        struct shore_wait wait;
        struct shore_hyper groups[GROUPS];
        float *gradient[BLOCKS];
        shore_wait_init(&wait);
        hypers(&b.plain, 1, groups);
        for (uint32_t i = 0; i < BLOCKS; i++) {
            gradient[i] = pages(b.plain.layout->blocks[i].padded_elems * 4);
            gradient_of_step(&b.plain, i, 1, gradient[i]);
        }
        alarm(300); /* a request that is lost never ends */
        for (uint32_t repeat = 0; repeat < REPEATS; repeat++)
            for (uint32_t i = 0; i < BLOCKS; i++)
                for (uint32_t s = 0, count; s < b.plain.layout->blocks[i].segments; s += count) {
                    count = repeat % 3 ? b.plain.layout->blocks[i].segments : 1;
                    struct shore_update update = {.size = sizeof update,
                                                  .base_step = 0,
                                                  .attempt = shore_fleet_attempt(b.fleet),
                                                  .block = i,
                                                  .segment = s,
                                                  .count = count,
                                                  .gradient = gradient[i] + (size_t)s * SHORE_SEGMENT_ELEMS,
                                                  .coefficient = 1,
                                                  .groups = groups,
                                                  .ngroups = GROUPS,
                                                  .order = (repeat + s) % 3};
                    shore_wait_add(&wait);
                    must(&b, shore_fleet_update(b.fleet, &update, shore_wait_completion(&wait)));
                }
        struct shore_completion last = shore_wait_completion(&wait);
        last.fn(last.ctx, 0, NULL);
        must(&b, shore_wait(&wait, &b.diag));
        must(&b, fleet_commit(b.fleet, 0, false, &b.diag));
        alarm(0);
        plain_step(&b.plain, 1);
        assert_digest(b.fleet, &b.plain, true);
        for (uint32_t i = 0; i < BLOCKS; i++)
            free(gradient[i]);
        bench_close(&b);
    }
}

static void test_refusals(void **state) {
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b;
        if (!bench_open(&b, &configs[c], SHORE_ADAMW, false)) continue;
        struct shore_hyper groups[GROUPS];
        struct shore_wait wait;
        float *gradient = pages(b.plain.layout->blocks[1].padded_elems * 4);
        hypers(&b.plain, 1, groups);
        struct shore_update update = {.size = sizeof update,
                                      .attempt = shore_fleet_attempt(b.fleet),
                                      .block = 1,
                                      .count = b.plain.layout->blocks[1].segments,
                                      .gradient = gradient,
                                      .coefficient = 1,
                                      .groups = groups,
                                      .ngroups = GROUPS};
        struct shore_update other = update;
        shore_wait_init(&wait);
        other.base_step = 1;
        assert_int_equal(shore_fleet_update(b.fleet, &other, shore_wait_completion(&wait)), SHORE_ESTALE);
        other = update;
        other.attempt--;
        assert_int_equal(shore_fleet_update(b.fleet, &other, shore_wait_completion(&wait)), SHORE_EDISCARDED);
        other = update;
        other.segment = 1;
        assert_int_equal(shore_fleet_update(b.fleet, &other, shore_wait_completion(&wait)), -EINVAL);
        other = update;
        other.ngroups = 1;
        assert_int_equal(shore_fleet_update(b.fleet, &other, shore_wait_completion(&wait)), -EINVAL);
        assert_int_equal(fleet_commit(b.fleet, 5, false, &b.diag), SHORE_ESTALE);

        /* a value that is not finite: the attempt cannot be committed, but thrown away */
        gradient[7] = 1.0f / 0.0f;
        must(&b, shore_fleet_update(b.fleet, &update, shore_wait_completion(&wait)));
        assert_int_equal(shore_wait(&wait, &b.diag), SHORE_ENONFINITE);
        assert_int_equal(fleet_commit(b.fleet, 0, false, &b.diag), SHORE_ENONFINITE);
        shore_fleet_discard(b.fleet);
        step(&b);
        assert_digest(b.fleet, &b.plain, true);

        /* half a step is no step */
        update.base_step = 1;
        update.attempt = shore_fleet_attempt(b.fleet);
        gradient[7] = 0;
        struct shore_hyper many[2000] = {{0}}; /* more than a tensor is of */
        memcpy(many, groups, sizeof groups);
        update.groups = many;
        update.ngroups = 2000;
        shore_wait_init(&wait);
        must(&b, shore_fleet_update(b.fleet, &update, shore_wait_completion(&wait)));
        must(&b, shore_wait(&wait, &b.diag));
        assert_int_not_equal(fleet_commit(b.fleet, 1, false, &b.diag), 0);
        if (is_durable(&configs[c])) {
            reopen(&b);
            assert_digest(b.fleet, &b.plain, true);
            b.options.read_only = true;
            reopen(&b);
            update.attempt = shore_fleet_attempt(b.fleet);
            assert_int_equal(shore_fleet_update(b.fleet, &update, shore_wait_completion(&wait)), -EROFS);
            assert_int_equal(fleet_commit(b.fleet, 1, true, &b.diag), -EROFS);
            assert_digest(b.fleet, &b.plain, true);
        }
        free(gradient);
        bench_close(&b);
    }
}

/* The wire has a limit that drives of this host have not. */
static void test_more_groups_than_the_wire_takes(void **state) {
    static const struct shore_tensor_spec tensors[] = {{"first", 100, 1023}, {"next", 100, 1024}};
    static const struct shore_block_spec blocks[] = {{"block", tensors, 2}};
    static const char *const kinds[] = {"f", "u"};
    struct shore_layout *layout;
    assert_int_equal(shore_layout_make(blocks, 1, &layout), 0);
    for (int remote = 0; remote < 2; remote++) {
        struct place place;
        struct shore_fleet *fleet;
        struct shore_diag diag;
        place_open(&place, kinds[remote]);
        struct shore_fleet_options options = {.size = sizeof options, .drives = place.paths, .ndrives = place.ndrives};
        assert_int_equal(shore_fleet_create(layout, &options, &fleet, &diag), remote ? SHORE_EINPUT : 0);
        if (remote) assert_non_null(strstr(diag.text, "tensor next is in group 1024"));
        if (!remote) shore_fleet_close(fleet);
        place_close(&place);
    }
    shore_layout_free(layout);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_updates_wait_for_their_base),
        cmocka_unit_test(test_many_updates),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_more_groups_than_the_wire_takes),
    };
    server_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    server_stop();
    return failed;
}
