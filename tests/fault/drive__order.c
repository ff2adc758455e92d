/* A drive that is asked in an order that no fleet asks in: what comes late, or too early, is refused, and the committed
 * state stays what it is. */
#include "conformance/drive_harness.h"

#include <errno.h>
#include <pthread.h>

#include "drive/fleet/fleet.h"

struct order {
    struct place place;
    struct plain plain;
    struct shore_fleet_options options;
    struct shore_fleet *fleet;
    struct shore_diag diag;
};

static void must(struct order *t, int rc) {
    if (rc) fail_msg("%d: %s", rc, t->diag.text);
}

static void says(struct order *t, int rc, int wanted, const char *text) {
    assert_int_equal(rc, wanted);
    if (!strstr(t->diag.text, text)) fail_msg("\"%s\" does not contain \"%s\"", t->diag.text, text);
}

static void start(struct order *t, const char *kinds) {
    memset(t, 0, sizeof *t);
    place_open(&t->place, kinds);
    plain_open(&t->plain, SHORE_ADAMW, false);
    t->options = (struct shore_fleet_options){
        .size = sizeof(struct shore_fleet_options), .drives = t->place.paths, .ndrives = t->place.ndrives};
    must(t, shore_fleet_create(t->plain.layout, &t->options, &t->fleet, &t->diag));
}

static void finish(struct order *t) {
    shore_fleet_close(t->fleet);
    plain_close(&t->plain);
    place_close(&t->place);
}

static void open_again(struct order *t) {
    shore_fleet_close(t->fleet);
    t->fleet = NULL;
    must(t, shore_fleet_open(t->plain.layout, &t->options, &t->fleet, &t->diag));
}

static int drive_commit(struct shore__drive *d, uint64_t step, enum shore_commit_how how, struct shore_diag *diag) {
    struct shore_wait wait;
    shore_wait_init(&wait);
    struct shore_commit commit = {.size = sizeof commit, .step = step, .how = how};
    int rc = d->ops->commit(d, &commit, shore_wait_completion(&wait));
    return rc ? rc : shore_wait(&wait, diag);
}

static void assert_drive_digest(struct order *t) {
    unsigned char want[16], message[24];
    struct shore__drive *drive = t->fleet->drives[0];
    struct shore__leaf leaf;
    plain_digest(&t->plain, want);
    shore__put_u64(message, t->plain.step);
    must(t, drive->ops->leaf_sum(drive, true, message + 8, &t->diag));
    shore__leaf_make(message, sizeof message, 0, &leaf);
    assert_memory_equal(leaf.hash, want, 16);
}

/* A repeat of a step's update that reaches the drive behind the step's commit. */
static void update_behind_the_commit(const char *kinds) {
    struct order t;
    struct step_how how = {.coefficient = 1};
    struct shore_wait committed, late;
    struct shore_hyper groups[GROUPS];
    start(&t, kinds);
    must(&t, fleet_init(t.fleet, &t.plain, &t.diag));
    hypers(&t.plain, 1, groups);
    float *gradient = pages(t.plain.layout->blocks[1].padded_elems * 4);
    struct shore__drive *drive = t.fleet->drives[0];
    struct shore_update update = {.size = sizeof update,
                                  .attempt = shore_fleet_attempt(t.fleet),
                                  .block = 1,
                                  .count = t.plain.layout->blocks[1].segments,
                                  .gradient = gradient,
                                  .coefficient = 1,
                                  .groups = groups,
                                  .ngroups = GROUPS,
                                  .order = UINT32_MAX};
    struct shore_commit commit = {.size = sizeof commit, .step = 1};
    must(&t, fleet_updates(t.fleet, &t.plain, 0, &how, &t.diag));
    plain_step(&t.plain, 1);
    shore_wait_init(&committed);
    shore_wait_init(&late);
    must(&t, drive->ops->commit(drive, &commit, shore_wait_completion(&committed)));
    int rc = drive->ops->update(drive, &update, shore_wait_completion(&late));
    if (!rc) rc = shore_wait(&late, NULL);
    must(&t, shore_wait(&committed, &t.diag));
    if (rc != SHORE_EDISCARDED && rc != SHORE_ESTALE) fail_msg("%s: %d", kinds, rc);
    assert_drive_digest(&t);
    if (*kinds != 'r') {
        open_again(&t);
        assert_digest(t.fleet, &t.plain, true);
    }
    free(gradient);
    finish(&t);
}

static void test_an_update_behind_its_commit(void **state) {
    for (unsigned i = 0; i < 12; i++)
        update_behind_the_commit(i % 3 == 0 ? "f" : i % 3 == 1 ? "u" : "r");
}

struct sealing {
    struct order *t;
    atomic_uint stores;
    atomic_bool over;
};

static void *seal(void *ctx) {
    struct sealing *s = ctx;
    /* amid them; without order between the threads, which would hide a race */
    while (atomic_load_explicit(&s->stores, memory_order_relaxed) < 8) {
        sched_yield();
    }
    must(s->t, shore_fleet_seal(s->t->fleet, 0, &s->t->diag));
    atomic_store(&s->over, true);
    return NULL;
}

/* Initial state that is still coming when the drive is told to go on with it. */
static void test_initial_state_behind_its_seal(void **state) {
    for (const char *const *kinds = (const char *const[]){"f", "u", "r", NULL}; *kinds; kinds++) {
        struct order t;
        pthread_t thread;
        start(&t, *kinds);
        for (uint32_t b = 0; b < BLOCKS; b++)
            must(&t, shore_fleet_init_block(t.fleet, b, 0, t.plain.layout->blocks[b].segments, t.plain.master[b], NULL,
                                            NULL, &t.diag));
        struct sealing sealing = {.t = &t};
        struct shore__drive *drive = t.fleet->drives[0];
        unsigned char *image = pages(shore_fleet_state_bytes(t.fleet)), one[16], other[16];
        pthread_create(&thread, NULL, seal, &sealing);
        for (unsigned char n = 1; !atomic_load(&sealing.over); n++) {
            struct shore_store store = {.size = sizeof store, .block = 2, .count = 1, .state = image};
            struct shore_wait wait;
            memset(image, n, 64);
            shore_wait_init(&wait);
            if (drive->ops->store(drive, &store, shore_wait_completion(&wait)) == 0) shore_wait(&wait, NULL);
            atomic_fetch_add_explicit(&sealing.stores, 1, memory_order_relaxed);
        }
        pthread_join(thread, NULL);
        must(&t, shore_fleet_digest(t.fleet, true, one, &t.diag));
        if (**kinds != 'r') open_again(&t);
        must(&t, shore_fleet_digest(t.fleet, true, other, &t.diag));
        assert_memory_equal(one, other, 16);
        free(image);
        finish(&t);
    }
}

/* A record of an older epoch would lose against those that are there, and the steps in it with it. */
static void test_an_epoch_that_is_over(void **state) {
    for (const char *const *kinds = (const char *const[]){"f", "u", "r", NULL}; *kinds; kinds++) {
        struct order t;
        start(&t, *kinds);
        must(&t, fleet_init(t.fleet, &t.plain, &t.diag));
        struct shore__drive *drive = t.fleet->drives[0];
        says(&t, drive->ops->begin(drive, 1, 0, &t.diag), SHORE_ESTALE, "is in epoch 1, so epoch 1 cannot begin");
        must(&t, fleet_step(t.fleet, &t.plain, 0, &t.diag));
        plain_step(&t.plain, 1);
        if (**kinds != 'r') open_again(&t);
        assert_digest(t.fleet, &t.plain, true);
        finish(&t);
    }
}

static void test_a_commit_without_an_epoch(void **state) {
    for (const char *const *kinds = (const char *const[]){"f", "u", NULL}; *kinds; kinds++) {
        struct order t;
        start(&t, *kinds);
        must(&t, fleet_init(t.fleet, &t.plain, &t.diag));
        must(&t, fleet_step(t.fleet, &t.plain, 0, &t.diag));
        plain_step(&t.plain, 1);
        shore_fleet_close(t.fleet);
        t.fleet = NULL;
        struct shore__drive_config config = shore__fleet_config(t.plain.layout, &t.options, false);
        struct shore__address *at;
        struct shore__drive *drive;
        must(&t, shore__address_parse(t.place.paths[0], &at, &t.diag));
        must(&t, shore__drive_open_at(&config, at, &drive, &t.diag));
        says(&t, drive->ops->begin(drive, 9, SHORE__STEP_NONE, &t.diag), -EINVAL, "was not loaded");
        must(&t, drive->ops->load(drive, 1, &t.diag));
        says(&t, drive_commit(drive, 2, SHORE_COMMIT_SKIPPED, &t.diag), SHORE_ESTALE, "no epoch has begun");
        drive->ops->close(drive);
        free(at);
        open_again(&t);
        assert_digest(t.fleet, &t.plain, true);
        finish(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_update_behind_its_commit),
        cmocka_unit_test(test_initial_state_behind_its_seal),
        cmocka_unit_test(test_an_epoch_that_is_over),
        cmocka_unit_test(test_a_commit_without_an_epoch),
    };
    server_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    server_stop();
    return failed;
}
