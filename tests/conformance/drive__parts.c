/* Several processes share a fleet: what its parts make together is what one process makes, to the bit, in the state as
 * in the records, and either goes on from the other. Here the processes are fleets of one process, which answer each
 * other's fetches. */
#include "conformance/drive_parts.h"

#include <errno.h>

static void parts_make_what_one_process_makes(void **state) {
    for (uint32_t nparts = 1; nparts <= DRIVES; nparts++) {
        struct whole one;
        struct parts p;
        whole_open(&one);
        parts_make(&p, nparts);
        for (uint64_t step = 0; step < 3; step++) {
            whole_step(&one);
            parts_step(&p);
            parts_assert_state(&p);
        }
        parts_close(&p);
        shore_fleet_close(one.fleet);
        assert_same_records(&one.place, &p.place);
        whole_end(&one);
        parts_end(&p);
    }
}

static void the_whole_goes_on_from_parts_and_back(void **state) {
    struct whole one;
    struct parts p;
    whole_open(&one);
    parts_make(&p, 2);
    for (uint32_t round = 0; round < 3; round++) {
        whole_step(&one);
        parts_step(&p);
        parts_close(&p);
        /* what one process sees of it */
        struct shore_fleet *whole;
        struct shore_fleet_options options = whole_options(&p.place);
        unsigned char metrics[64] = "";
        uint32_t bytes = sizeof metrics;
        must(&p.diag, shore_fleet_open(p.plain.layout, &options, &whole, &p.diag));
        assert_digest(whole, &p.plain, true);
        assert_int_equal(shore_fleet_metrics(whole, metrics, &bytes), 0);
        char said[64];
        snprintf(said, sizeof said, "step %u", 2 * round + 1);
        assert_string_equal((char *)metrics, said);
        must(&p.diag, fleet_step(whole, &p.plain, p.plain.step, &p.diag));
        plain_step(&p.plain, 1);
        shore_fleet_close(whole);
        /* the other one was opened as often */
        must(&one.diag, whole_again(&one));
        whole_step(&one);
        must(&one.diag, whole_again(&one));
        p.nparts = round ? 4 : 3;
        parts_open(&p);
        parts_assert_state(&p);
    }
    parts_close(&p);
    shore_fleet_close(one.fleet);
    assert_same_records(&one.place, &p.place);
    whole_end(&one);
    parts_end(&p);
}

static void updates_wait_for_the_confirmation(void **state) {
    struct parts p;
    struct shore_hyper groups[GROUPS];
    parts_make(&p, 2);
    parts_step_unconfirmed(&p);
    struct shore_fleet *f = p.fleet[0];
    hypers(&p.plain, 2, groups);
    struct shore_update update = {.size = sizeof update,
                                  .base_step = 1,
                                  .attempt = shore_fleet_attempt(f),
                                  .count = 1,
                                  .form = SHORE_GRADIENT_FP32,
                                  .gather = (const struct shore_gather[1]){{0}},
                                  .groups = groups,
                                  .ngroups = GROUPS,
                                  .coefficient = 1};
    struct shore_wait wait, end;
    shore_wait_init(&wait);
    must(&p.diag, shore_fleet_update(f, &update, shore_wait_completion(&wait)));
    assert_int_equal(shore_fleet_commit(f, 1, true, NULL, 0, (struct shore_completion){0}), -EBUSY);
    assert_int_equal(shore_fleet_confirm(f, 2), SHORE_ESTALE);
    assert_int_equal(shore_fleet_confirm(f, 0), SHORE_ESTALE);
    assert_false(shore_wait_is_done(&wait));
    assert_int_equal(shore_fleet_confirm(f, 1), 0);
    must(&p.diag, shore_wait(&wait, &p.diag));
    /* held updates end with their attempt, and with their fleet */
    f = p.fleet[1];
    shore_wait_init(&wait);
    update.attempt = shore_fleet_attempt(f);
    must(&p.diag, shore_fleet_update(f, &update, shore_wait_completion(&wait)));
    update.attempt = shore_fleet_discard(f);
    assert_int_equal(shore_wait(&wait, NULL), SHORE_EDISCARDED);
    shore_wait_init(&wait);
    must(&p.diag, shore_fleet_update(f, &update, shore_wait_completion(&wait)));
    assert_false(shore_wait_is_done(&wait));
    shore_fleet_close(f);
    assert_int_equal(shore_wait(&wait, NULL), SHORE_EDISCARDED);
    /* and while a commit is under way */
    f = p.fleet[0];
    shore_wait_init(&end);
    shore_wait_init(&wait);
    shore_fleet_discard(f);
    update.attempt = shore_fleet_attempt(f);
    update.base_step = 2;
    must(&p.diag, shore_fleet_commit(f, 1, true, NULL, 0, shore_wait_completion(&end)));
    int rc = shore_fleet_update(f, &update, shore_wait_completion(&wait));
    assert_int_equal(rc, 0);
    shore_fleet_close(f);
    assert_int_equal(shore_wait(&end, NULL), 0);
    assert_int_equal(shore_wait(&wait, NULL), SHORE_EDISCARDED);
    p.fleet[0] = p.fleet[1] = NULL;
    parts_end(&p);
}

/* A fleet that was opened is nothing to work with before all parts are known, and one drive of each has a blob. */
static void a_part_alone_is_not_ready(void **state) {
    struct parts p;
    parts_make(&p, 2);
    parts_close(&p);
    struct shore_fleet *f;
    struct shore_fleet_options options = part_options(&p, 0);
    must(&p.diag, shore_fleet_open(p.plain.layout, &options, &f, &p.diag));
    assert_int_equal(shore_fleet_fetch(f, 0, 0, 0, 1, SHORE_FETCH_BF16, NULL, (struct shore_completion){0}), -EINVAL);
    assert_int_equal(shore_fleet_carry(f, 0, 1, 0, 0, 1, (struct shore_completion){0}), -EINVAL);
    assert_int_equal(shore_fleet_commit(f, 0, true, NULL, 0, (struct shore_completion){0}), -EINVAL);
    assert_int_equal(shore_fleet_init_block(f, 0, 0, 1, p.plain.master[0], NULL, NULL, &p.diag), -EINVAL);
    assert_int_equal(shore_fleet_seal(f, 0, &p.diag), -EINVAL);
    struct shore_store store = {.size = sizeof store, .count = 1};
    assert_int_equal(shore_fleet_store(f, &store, (struct shore_completion){0}), -EINVAL);
    char text[256];
    assert_int_equal(shore_fleet_drive_describe(f, 3, text, sizeof text), 0);
    assert_non_null(strstr(text, "another process"));
    shore_fleet_close(f);
    parts_end(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_make_what_one_process_makes),
        cmocka_unit_test(the_whole_goes_on_from_parts_and_back),
        cmocka_unit_test(updates_wait_for_the_confirmation),
        cmocka_unit_test(a_part_alone_is_not_ready),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
