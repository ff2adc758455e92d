/* Several processes share a fleet: what its parts make together is what one process makes, to the bit, in the state as
 * in the records, and either goes on from the other. Here the processes are fleets of one process, which answer each
 * other's fetches. */
#include "conformance/drive_parts.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

static void end_alike(struct whole *one, struct parts *p) {
    parts_close(p);
    shore_fleet_close(one->fleet);
    assert_same_records(&one->place, &p->place);
    whole_end(one);
    parts_end(p);
}

static void parts_make_what_one_process_makes(void **state) {
    for (uint32_t nparts = 1; nparts <= PARTS_MOST; nparts += 1 + nparts / 3) {
        struct whole one;
        struct parts p;
        whole_open(&one);
        parts_make(&p, nparts);
        for (uint64_t step = 0; step < 3; step++) {
            whole_step(&one);
            parts_step(&p);
            parts_assert_state(&p);
        }
        end_alike(&one, &p);
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
    end_alike(&one, &p);
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

/* Asks one part for what it owns of a block, as a serving thread does. */
struct asker {
    struct shore_fleet *fleet;
    uint32_t block;
    uint64_t step;
    const float *want;
    pthread_t thread;
};

static void *ask(void *ctx) {
    const struct asker *a = ctx;
    struct shore_diag diag = {0};
    struct shore_wait wait;
    uint32_t first, count;
    if (!shore_fleet_own(a->fleet, a->block, &first, &count)) return NULL;
    float *read = pages((size_t)count * SHORE_SEGMENT_ELEMS * 4);
    must(&diag, shore_fleet_await(a->fleet, a->step, a->block, first, count, 60000, &diag));
    shore_wait_init(&wait);
    must(&diag, shore_fleet_fetch(a->fleet, a->step, a->block, first, count, SHORE_FETCH_MASTER, read,
                                  shore_wait_completion(&wait)));
    must(&diag, shore_wait(&wait, &diag));
    assert_memory_equal(read, a->want + (size_t)first * SHORE_SEGMENT_ELEMS, (size_t)count * SHORE_SEGMENT_ELEMS * 4);
    free(read);
    return NULL;
}

static void askers_start(struct parts *p, struct asker asker[PARTS_MOST][BLOCKS]) {
    for (uint32_t i = 0; i < p->nparts; i++) {
        for (uint32_t b = 0; b < BLOCKS; b++) {
            asker[i][b] = (struct asker){p->fleet[i], b, p->plain.step, p->plain.master[b], 0};
            assert_int_equal(pthread_create(&asker[i][b].thread, NULL, ask, &asker[i][b]), 0);
        }
    }
}

static void askers_end(struct parts *p, struct asker asker[PARTS_MOST][BLOCKS]) {
    for (uint32_t i = 0; i < p->nparts; i++)
        for (uint32_t b = 0; b < BLOCKS; b++)
            pthread_join(asker[i][b].thread, NULL);
}

static int await_block(struct parts *p, uint32_t part, uint64_t step, uint32_t block, uint32_t timeout_ms) {
    uint32_t first, count;
    assert_true(shore_fleet_own(p->fleet[part], block, &first, &count));
    return shore_fleet_await(p->fleet[part], step, block, first, count, timeout_ms, &p->diag);
}

/* Others get what an update has written as soon as it has, and not before; also after an attempt that was given up. */
static void what_is_written_can_be_fetched(void **state) {
    struct parts p;
    struct asker asker[PARTS_MOST][BLOCKS];
    struct step_how half = {.coefficient = 0.5f}, how = {.coefficient = 1};
    parts_make(&p, 2);
    for (uint64_t step = 0; step < 4; step++) {
        assert_int_equal(await_block(&p, 0, step, 1, 0), 0);
        assert_int_equal(await_block(&p, 0, step + 1, 1, 1), -ETIMEDOUT);
        for (uint32_t i = 0; step % 2 && i < p.nparts; i++) {
            must(&p.diag, fleet_updates(p.fleet[i], &p.plain, step, &half, &p.diag));
            assert_int_equal(await_block(&p, i, step + 1, 1, 0), 0);
            shore_fleet_discard(p.fleet[i]);
            assert_int_equal(await_block(&p, i, step + 1, 1, 1), -ETIMEDOUT);
        }
        plain_step(&p.plain, 1);
        askers_start(&p, asker);
        for (uint32_t i = 0; i < p.nparts; i++)
            must(&p.diag, fleet_updates(p.fleet[i], &p.plain, step, &how, &p.diag));
        askers_end(&p, asker);
        for (uint32_t i = 0; i < p.nparts; i++)
            must(&p.diag, fleet_commit(p.fleet[i], step, false, &p.diag));
        assert_int_equal(await_block(&p, 0, step, 1, 0), 0);
        assert_int_equal(await_block(&p, 0, step + 1, 1, 0), 0);
        for (uint32_t i = 0; i < p.nparts; i++)
            assert_int_equal(shore_fleet_confirm(p.fleet[i], step + 1), 0);
        assert_int_equal(await_block(&p, 0, step, 1, 0), SHORE_ESTALE);
        assert_non_null(strstr(p.diag.text, "is over"));
        parts_assert_state(&p);
    }
    assert_int_equal(shore_fleet_await(p.fleet[0], 4, 1, 0, p.plain.layout->blocks[1].segments, 0, &p.diag), -EINVAL);
    parts_end(&p);
}

/* A skipped step, and one that carries: both come to who waits for them. */
static void waiting_ends_with_every_kind_of_step(void **state) {
    struct parts p;
    struct asker asker[PARTS_MOST][BLOCKS];
    struct step_how how = {.coefficient = 1};
    parts_make(&p, 4);
    p.plain.step = 1; /* as it is */
    askers_start(&p, asker);
    for (uint32_t i = 0; i < p.nparts; i++)
        must(&p.diag, fleet_commit(p.fleet[i], 0, true, &p.diag));
    askers_end(&p, asker);
    for (uint32_t i = 0; i < p.nparts; i++)
        assert_int_equal(shore_fleet_confirm(p.fleet[i], 1), 0);
    memset(p.plain.carried, true, sizeof p.plain.carried);
    p.plain.step = 2;
    askers_start(&p, asker);
    for (uint32_t i = 0; i < p.nparts; i++)
        must(&p.diag, fleet_updates(p.fleet[i], &p.plain, 1, &how, &p.diag));
    askers_end(&p, asker);
    /* an update that fails is said at once */
    struct shore_hyper groups[GROUPS] = {{0}};
    const float nan = (float)NAN;
    struct shore_gather item = {&nan, 0, 1, SHORE_DTYPE_FP32};
    struct shore_update update = {.size = sizeof update,
                                  .base_step = 1,
                                  .attempt = shore_fleet_discard(p.fleet[0]),
                                  .block = 1,
                                  .count = 1,
                                  .form = SHORE_GRADIENT_FP32,
                                  .gather = &item,
                                  .ngather = 1,
                                  .groups = groups,
                                  .ngroups = GROUPS,
                                  .coefficient = 1};
    struct shore_wait wait;
    hypers(&p.plain, 2, groups);
    shore_wait_init(&wait);
    must(&p.diag, shore_fleet_update(p.fleet[0], &update, shore_wait_completion(&wait)));
    assert_int_equal(shore_wait(&wait, NULL), SHORE_ENONFINITE);
    assert_int_equal(await_block(&p, 0, 2, 1, 60000), SHORE_ENONFINITE);
    parts_end(&p);
}

static int commit_blob(struct shore_fleet *f, uint64_t step, const char *blob, struct shore_diag *diag) {
    struct shore_commit commit = {
        .size = sizeof commit, .step = step, .how = SHORE_COMMIT_SKIPPED, .blob = blob, .blob_bytes = strlen(blob) + 1};
    struct shore_wait wait;
    shore_wait_init(&wait);
    int rc = shore_fleet_commit_with(f, &commit, shore_wait_completion(&wait));
    return rc ? rc : shore_wait(&wait, diag);
}

static void assert_blob(struct shore_fleet *f, const char *want) {
    char got[64] = "";
    uint32_t bytes = sizeof got;
    struct shore_diag diag = {0};
    must(&diag, shore_fleet_blob(f, got, &bytes, &diag));
    assert_int_equal(bytes, want ? strlen(want) + 1 : 0);
    if (want) assert_string_equal(got, want);
}

static void each_part_has_a_blob(void **state) {
    static const char *const blobs[] = {NULL, "first", "second", NULL, "third", "fourth"};
    struct parts p;
    struct shore_fleet *whole;
    parts_make(&p, PARTS_MOST);
    for (uint32_t i = 0; i < p.nparts; i++) {
        must(&p.diag, commit_blob(p.fleet[i], 1, blobs[i] ? blobs[i] : "none", &p.diag));
        assert_blob(p.fleet[i], blobs[i]);
    }
    parts_close(&p);
    parts_open(&p);
    for (uint32_t i = 0; i < p.nparts; i++)
        assert_blob(p.fleet[i], blobs[i]);
    parts_close(&p);
    struct shore_fleet_options options = whole_options(&p.place);
    must(&p.diag, shore_fleet_open(p.plain.layout, &options, &whole, &p.diag));
    assert_blob(whole, "first");
    must(&p.diag, commit_blob(whole, 2, "of all", &p.diag));
    shore_fleet_close(whole);
    p.nparts = 2;
    parts_open(&p);
    assert_blob(p.fleet[0], "of all");
    assert_blob(p.fleet[1], NULL); /* none with that step */
    parts_end(&p);
}

/* Spilled gradients and scratch stay on own drives, those of others behind a server. */
static void parts_keep_their_bytes_on_own_drives(void **state) {
    struct parts p;
    struct whole one;
    struct step_how spill = {.coefficient = 1, .spill = true};
    parts_make_on(&p, 2, "fuuf");
    whole_open(&one);
    struct shore_fleet_info info = {.size = sizeof info};
    shore_fleet_info(one.fleet, &info);
    uint64_t scratch = info.scratch_bytes;
    for (uint32_t i = 0; i < p.nparts; i++) {
        unsigned char seal[16], *out = pages(3 << 20), *back = pages(3 << 20);
        struct shore_wait wait;
        shore_fleet_info(p.fleet[i], &info);
        scratch -= info.scratch_bytes;
        assert_int_equal(info.away, 0);
        memset(out, (int)i + 1, 3 << 20);
        shore_wait_init(&wait);
        must(&p.diag, shore_fleet_scratch_put(p.fleet[i], 1 << 20, 3 << 20, out, seal, shore_wait_completion(&wait)));
        must(&p.diag, shore_wait(&wait, &p.diag));
        shore_wait_init(&wait);
        must(&p.diag, shore_fleet_scratch_get(p.fleet[i], 1 << 20, 3 << 20, back, seal, shore_wait_completion(&wait)));
        must(&p.diag, shore_wait(&wait, &p.diag));
        assert_memory_equal(out, back, 3 << 20);
        free(out);
        free(back);
        must(&p.diag, fleet_updates(p.fleet[i], &p.plain, 0, &spill, &p.diag));
        must(&p.diag, fleet_commit(p.fleet[i], 0, false, &p.diag));
    }
    assert_int_equal(scratch, 0);
    plain_step(&p.plain, 1);
    for (uint32_t i = 0; i < p.nparts; i++)
        assert_int_equal(shore_fleet_confirm(p.fleet[i], 1), 0);
    parts_assert_state(&p);
    uint32_t first, count;
    struct shore_wait wait;
    float *dst = pages(SHORE_SEGMENT_ELEMS * 4);
    assert_true(shore_fleet_own(p.fleet[1], 1, &first, &count));
    shore_wait_init(&wait);
    must(&p.diag,
         shore_fleet_fetch(p.fleet[0], 1, 1, first, 1, SHORE_FETCH_SPILLED, dst, shore_wait_completion(&wait)));
    assert_int_equal(shore_wait(&wait, &p.diag), -EINVAL);
    assert_non_null(strstr(p.diag.text, "spilled gradients are read by their own"));
    free(dst);
    parts_close(&p);
    parts_open(&p);
    parts_step(&p);
    parts_assert_state(&p);
    parts_end(&p);
    shore_fleet_close(one.fleet);
    whole_end(&one);
}

/* Ends every connection of this process to the server. */
static unsigned cut_links(void) {
    unsigned cut = 0;
    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_un peer = {0};
        socklen_t bytes = sizeof peer;
        if (getpeername(fd, (struct sockaddr *)&peer, &bytes) || strcmp(peer.sun_path, server_socket) != 0) continue;
        cut += shutdown(fd, SHUT_RDWR) == 0;
    }
    return cut;
}

/* All processes end then, and open again at the step that all have. */
static void a_link_that_is_lost_ends_the_parts(void **state) {
    struct parts p;
    parts_make_on(&p, 2, "fffu");
    parts_step(&p);
    must(&p.diag, fleet_step(p.fleet[0], &p.plain, 1, &p.diag));
    assert_true(cut_links() > 0);
    assert_int_equal(fleet_step(p.fleet[1], &p.plain, 1, &p.diag), SHORE_ELINK);
    assert_int_equal(shore_fleet_reconnect(p.fleet[1], &p.diag), -ENOTSUP);
    assert_non_null(strstr(p.diag.text, "end all of them and start them again"));
    parts_close(&p);
    parts_open(&p);
    parts_assert_state(&p);
    parts_step(&p);
    parts_assert_state(&p);
    parts_end(&p);
}

static int setup(void **state) {
    int rc = parts_go_to_memory(state);
    server_start();
    return rc;
}

static int teardown(void **state) {
    server_stop();
    return parts_come_back(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_make_what_one_process_makes),
        cmocka_unit_test(the_whole_goes_on_from_parts_and_back),
        cmocka_unit_test(updates_wait_for_the_confirmation),
        cmocka_unit_test(a_part_alone_is_not_ready),
        cmocka_unit_test(what_is_written_can_be_fetched),
        cmocka_unit_test(waiting_ends_with_every_kind_of_step),
        cmocka_unit_test(each_part_has_a_blob),
        cmocka_unit_test(parts_keep_their_bytes_on_own_drives),
        cmocka_unit_test(a_link_that_is_lost_ends_the_parts),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
