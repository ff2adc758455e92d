/* Operations of a fleet's drives that fail: each has its own message, nothing wrong is used, and the last committed
 * step is still there. */
#include "fault/faulty_fleet.h"

#include <errno.h>
#include <pthread.h>

struct failing {
    enum shore__io_kind kind;
    int after, rc; /* of this kind, counted down; -1: never */
};

static int fail_one(void *ctx, const struct shore__file *file, const struct shore__io_op *op) {
    struct failing *f = ctx;
    if (op->kind != f->kind || f->after < 0 || f->after--) return SHORE__IO_PASS;
    return f->rc;
}

static void a_failed_transfer_fails_its_attempt_only(void **state) {
    static const enum shore__io_kind kinds[] = {SHORE__IO_READ, SHORE__IO_WRITE};
    struct failing failing = {.rc = -EIO, .after = -1};
    struct fault t;
    shore__io_set_shim(fail_one, &failing);
    start(&t, "ff");
    for (int k = 0; k < 2; k++) {
        for (int after = 0; after < 14; after += 4) {
            struct step_how how = {.coefficient = 1};
            failing.kind = kinds[k];
            failing.after = after;
            assert_int_equal(fleet_updates(t.fleet, &t.plain, t.plain.step, &how, &t.diag), -EIO);
            says(&t, ".volume");
            says(&t, k ? "writing" : "reading");
            says(&t, "at offset");
            assert_int_equal(failing.after, -1);
            assert_int_equal(fleet_commit(t.fleet, t.plain.step, false, &t.diag), -EIO);
            shore_fleet_discard(t.fleet);
            assert_digest(t.fleet, &t.plain, true);
        }
        step(&t);
        assert_digest(t.fleet, &t.plain, true);
    }
    finish(&t);
}

static void a_full_disk_is_named(void **state) {
    struct failing failing = {.kind = SHORE__IO_WRITE, .rc = -ENOSPC, .after = -1};
    struct step_how how = {.coefficient = 1};
    struct fault t;
    shore__io_set_shim(fail_one, &failing);
    start(&t, "f");
    failing.after = 0; /* a write of bf16 parameters */
    assert_int_equal(fleet_updates(t.fleet, &t.plain, 0, &how, &t.diag), -ENOSPC);
    says(&t, "No space left");
    /* who reads what it should have written hears of the disk, not of damage */
    static _Alignas(SHORE_BUFFER_ALIGN_BYTES) unsigned char params[64 * SHORE_SEGMENT_ELEMS * 2];
    unsigned failed = 0;
    for (uint32_t b = 0; b < t.plain.layout->nblocks; b++) {
        struct shore_wait wait;
        shore_wait_init(&wait);
        assert_true(t.plain.layout->blocks[b].segments <= 64);
        must(&t, shore_fleet_fetch(t.fleet, 1, b, 0, t.plain.layout->blocks[b].segments, SHORE_FETCH_BF16, params,
                                   shore_wait_completion(&wait)));
        int rc = shore_wait(&wait, &t.diag);
        if (!rc) continue;
        failed++;
        assert_int_equal(rc, -ENOSPC);
        says(&t, "No space left");
    }
    assert_true(failed > 0);
    finish(&t);
}

static void a_failed_flush_is_final(void **state) {
    for (int after = 0; after < 4; after++) {
        struct failing failing = {.kind = SHORE__IO_FLUSH, .rc = -EIO, .after = -1};
        struct step_how how = {.coefficient = 1};
        struct fault t;
        shore__io_set_shim(fail_one, &failing);
        start(&t, "ff");
        step(&t);
        must(&t, fleet_updates(t.fleet, &t.plain, 1, &how, &t.diag));
        failing.after = after;
        assert_int_equal(fleet_commit(t.fleet, 1, false, &t.diag), -EIO);
        says(&t, "flush");
        assert_int_equal(fleet_commit(t.fleet, 1, false, &t.diag), -EIO);
        assert_int_equal(fleet_updates(t.fleet, &t.plain, 1, &how, &t.diag), -EIO);
        must(&t, open_again(&t));
        struct shore_fleet_info info = {.size = sizeof info};
        shore_fleet_info(t.fleet, &info);
        assert_in_range(info.step, 1, 2);
        if (info.step == 2) plain_step(&t.plain, 1);
        assert_digest(t.fleet, &t.plain, true);
        step(&t);
        assert_digest(t.fleet, &t.plain, true);
        finish(&t);
    }
}

/* Lost one count in some 300,000 commits. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define COMMITS 20000u
#else
#define COMMITS 1000000u
#endif
#define UPDATERS 4u

struct updater {
    struct fault *t;
    atomic_bool over;
};

static void *update_on_and_on(void *ctx) {
    struct updater *u = ctx;
    const struct plain *p = &u->t->plain;
    struct shore_hyper groups[GROUPS];
    struct shore_update update = {.size = sizeof update,
                                  .base_step = 1,
                                  .attempt = shore_fleet_attempt(u->t->fleet),
                                  .count = p->layout->blocks[0].segments,
                                  .gradient = pages(p->layout->blocks[0].padded_elems * 4),
                                  .coefficient = 1,
                                  .groups = groups,
                                  .ngroups = GROUPS};
    hypers(p, 2, groups);
    while (!atomic_load(&u->over)) {
        struct shore_wait wait;
        shore_wait_init(&wait);
        if (shore_fleet_update(u->t->fleet, &update, shore_wait_completion(&wait)) == 0) shore_wait(&wait, NULL);
    }
    free((void *)(uintptr_t)update.gradient);
    return NULL;
}

static void note_that_it_came(void *ctx, int rc, const struct shore_diag *diag) {
    atomic_store((atomic_int *)ctx, rc);
}

/* A commit waits for the updates that are under way, and must go on knowing how many those are. */
static void a_broken_fleet_answers_every_commit(void **state) {
    struct failing failing = {.kind = SHORE__IO_FLUSH, .rc = -EIO, .after = -1};
    struct step_how how = {.coefficient = 1};
    struct fault t;
    struct updater updater = {.t = &t};
    pthread_t threads[UPDATERS];
    shore__io_set_shim(fail_one, &failing);
    start(&t, "ff");
    step(&t);
    must(&t, fleet_updates(t.fleet, &t.plain, 1, &how, &t.diag));
    failing.after = 0;
    assert_int_equal(fleet_commit(t.fleet, 1, false, &t.diag), -EIO);
    for (unsigned i = 0; i < UPDATERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, update_on_and_on, &updater), 0);
    for (uint32_t i = 0; i < COMMITS; i++) {
        atomic_int came;
        atomic_init(&came, 0);
        must(&t, shore_fleet_commit(t.fleet, 1, false, NULL, 0, (struct shore_completion){note_that_it_came, &came}));
        uint64_t deadline = shore__now_ns() + 300 * UINT64_C(1000000000);
        while (!atomic_load(&came) && shore__now_ns() < deadline)
            sched_yield();
        assert_int_equal(atomic_load(&came), -EIO);
    }
    atomic_store(&updater.over, true);
    for (unsigned i = 0; i < UPDATERS; i++)
        pthread_join(threads[i], NULL);
    finish(&t);
}

/* What would make every step one that changes nothing is refused in a sentence, and the attempt can go on without it.
 */
static void what_is_left_out_of_an_update_is_named(void **state) {
    static const struct {
        const char *word;
        float coefficient;
        bool with_hyper, frozen;
    } cases[] = {{"coefficient", 0, true, false}, {"shore_hyper_at_step", 1, false, false}, {NULL, 1, false, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fault t;
        struct shore_hyper groups[GROUPS];
        struct shore_wait wait;
        start(&t, "f");
        for (uint32_t g = 0; g < GROUPS; g++) {
            groups[g] = (struct shore_hyper){.lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f};
            groups[g].frozen = cases[i].frozen;
            if (cases[i].with_hyper) shore_hyper_at_step(&groups[g], t.options.optimizer, 1);
        }
        float *gradient = pages(t.plain.layout->blocks[0].padded_elems * 4);
        struct shore_update update = {.size = sizeof update,
                                      .attempt = shore_fleet_attempt(t.fleet),
                                      .count = t.plain.layout->blocks[0].segments,
                                      .gradient = gradient,
                                      .coefficient = cases[i].coefficient,
                                      .groups = groups,
                                      .ngroups = GROUPS};
        shore_wait_init(&wait);
        assert_int_equal(shore_fleet_update(t.fleet, &update, shore_wait_completion(&wait)), 0);
        assert_int_equal(shore_wait(&wait, &t.diag), cases[i].word ? -EINVAL : 0);
        if (cases[i].word) says(&t, cases[i].word);
        free(gradient);
        shore_fleet_discard(t.fleet);
        step(&t);
        assert_digest(t.fleet, &t.plain, true);
        finish(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_transfer_fails_its_attempt_only),
        cmocka_unit_test(a_full_disk_is_named),
        cmocka_unit_test(a_failed_flush_is_final),
        cmocka_unit_test(a_broken_fleet_answers_every_commit),
        cmocka_unit_test(what_is_left_out_of_an_update_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
