/* Segments that no update touches stay where they are. Any sequence of steps that update some segments and carry the
 * others, of attempts that are given up, of skipped steps, of crashes and of starts leaves the state that plain arrays
 * have; and the blob of the step. */
#include "base/prng.h"
#include "base/units.h"
#include "conformance/drive_bench.h"
#include "drive/fleet/fleet.h"
#include "seed.h"

#define SEGMENTS_MOST 16u

static bool carried[BLOCKS][SEGMENTS_MOST]; /* in the step in hand */

static void carry_nothing(void) {
    memset(carried, 0, sizeof carried);
}

static void copy_segment(const struct plain *from, struct plain *to, uint32_t b, uint32_t s) {
    size_t at = (size_t)s * SHORE_SEGMENT_ELEMS, n = SHORE_SEGMENT_ELEMS;
    memcpy(to->master[b] + at, from->master[b] + at, n * 4);
    memcpy(to->m[b] + at, from->m[b] + at, n * 4);
    memcpy(to->v[b] + at, from->v[b] + at, n * 4);
    for (int k = 0; k < 2 && from->moments == SHORE_MOMENTS_8BIT; k++) {
        memcpy(to->code[k][b] + at, from->code[k][b] + at, n);
        memcpy(to->absmax[k][b] + at / 256, from->absmax[k][b] + at / 256, n / 256 * 4);
    }
}

/* What a step makes of the plain arrays. */
static void plain_step_but_carried(struct plain *p) {
    struct plain before;
    plain_open(&before, p->optimizer, p->momentum);
    if (p->moments == SHORE_MOMENTS_8BIT) plain_use_8bit(&before);
    for (uint32_t b = 0; b < BLOCKS; b++)
        for (uint32_t s = 0; s < p->layout->blocks[b].segments; s++)
            copy_segment(p, &before, b, s);
    plain_step(p, 1);
    for (uint32_t b = 0; b < BLOCKS; b++)
        for (uint32_t s = 0; s < p->layout->blocks[b].segments; s++)
            if (carried[b][s]) copy_segment(&before, p, b, s);
    plain_close(&before);
}

/* A run of segments that are updated together, or carried together. */
static int ask_run(struct bench *b, uint32_t block, uint32_t segment, uint32_t count, const float *gradient,
                   const struct shore_hyper *groups) {
    struct shore_wait wait;
    uint64_t base = b->plain.step, attempt = shore_fleet_attempt(b->fleet);
    shore_wait_init(&wait);
    struct shore_update update = {.size = sizeof update,
                                  .base_step = base,
                                  .attempt = attempt,
                                  .block = block,
                                  .segment = segment,
                                  .count = count,
                                  .gradient = gradient ? gradient + (size_t)segment * SHORE_SEGMENT_ELEMS : NULL,
                                  .coefficient = 1,
                                  .groups = groups,
                                  .ngroups = GROUPS};
    int rc = carried[block][segment]
                 ? shore_fleet_carry(b->fleet, base, attempt, block, segment, count, shore_wait_completion(&wait))
                 : shore_fleet_update(b->fleet, &update, shore_wait_completion(&wait));
    return rc ? rc : shore_wait(&wait, &b->diag);
}

/* All updates of the next step, and what is carried. */
static int ask_all(struct bench *b) {
    struct shore_hyper groups[GROUPS];
    int rc = 0;
    hypers(&b->plain, b->plain.step + 1, groups);
    for (uint32_t i = 0; !rc && i < BLOCKS; i++) {
        const struct shore_layout_block *block = &b->plain.layout->blocks[i];
        float *gradient = pages(block->padded_elems * 4);
        gradient_of_step(&b->plain, i, b->plain.step + 1, gradient);
        for (uint32_t s = 0, n; !rc && s < block->segments; s += n) {
            for (n = 1; s + n < block->segments && carried[i][s + n] == carried[i][s];)
                n++;
            rc = ask_run(b, i, s, n, gradient, groups);
        }
        free(gradient);
    }
    return rc;
}

/* The masters of a step, those that were carried among them, are there before it is committed. */
static void assert_masters(struct bench *b, const struct plain *want, uint64_t step) {
    for (uint32_t i = 0; i < BLOCKS; i++) {
        const struct shore_layout_block *block = &want->layout->blocks[i];
        float *got = pages(block->padded_elems * 4);
        struct shore_wait wait;
        shore_wait_init(&wait);
        must(b, shore_fleet_fetch(b->fleet, step, i, 0, block->segments, SHORE_FETCH_MASTER, got,
                                  shore_wait_completion(&wait)));
        must(b, shore_wait(&wait, &b->diag));
        assert_memory_equal(got, want->master[i], block->padded_elems * 4);
        free(got);
    }
}

static int commit_with(struct bench *b, enum shore_commit_how how, const void *blob, uint32_t bytes) {
    struct shore_wait wait;
    shore_wait_init(&wait);
    struct shore_commit commit = {.size = sizeof commit,
                                  .step = b->plain.step + 1,
                                  .how = how,
                                  .metrics = "m",
                                  .metrics_bytes = 1,
                                  .blob = blob,
                                  .blob_bytes = bytes};
    int rc = shore_fleet_commit_with(b->fleet, &commit, shore_wait_completion(&wait));
    return rc ? rc : shore_wait(&wait, &b->diag);
}

/* The blob of a step: nothing for some, and for others all that fits. */
static uint32_t blob_of(uint64_t seed, uint64_t step, unsigned char blob[SHORE_BLOB_BYTES]) {
    static const uint32_t sizes[] = {0, 1, 4096, 32769, SHORE_BLOB_BYTES, 0, 40000};
    uint32_t bytes = step ? sizes[(seed + step) % 7] : 0;
    for (uint32_t i = 0; i < bytes; i++)
        blob[i] = (unsigned char)(step * 31 + i * 7 + seed);
    return bytes;
}

static void assert_blob(struct bench *b, uint64_t seed) {
    static unsigned char want[SHORE_BLOB_BYTES], got[SHORE_BLOB_BYTES];
    uint32_t bytes = blob_of(seed, b->plain.step, want), n = sizeof got;
    must(b, shore_fleet_blob(b->fleet, got, &n, &b->diag));
    assert_int_equal(n, bytes);
    assert_memory_equal(got, want, bytes);
}

/* As if the power went when one drive had the step and the others had not. */
static void commit_on_one_drive(struct bench *b, uint32_t d, uint64_t seed) {
    static unsigned char blob[SHORE_BLOB_BYTES];
    struct shore_wait wait;
    struct shore__drive *drive = b->fleet->drives[d];
    struct shore_commit commit = {.size = sizeof commit, .step = b->plain.step + 1, .blob = blob};
    if (d == 0) commit.blob_bytes = blob_of(seed, commit.step, blob);
    shore_wait_init(&wait);
    must(b, drive->ops->commit(drive, &commit, shore_wait_completion(&wait)));
    must(b, shore_wait(&wait, &b->diag));
}

static void act(struct bench *b, uint64_t seed, uint64_t turn) {
    static unsigned char blob[SHORE_BLOB_BYTES];
    double share = shore__random_unit(seed, 1, turn), what = shore__random_unit(seed, 2, turn);
    uint32_t bytes = blob_of(seed, b->plain.step + 1, blob);
    if (share > 0.9) share = 1;
    for (uint32_t i = 0; i < BLOCKS; i++)
        for (uint32_t s = 0; s < b->plain.layout->blocks[i].segments; s++)
            carried[i][s] = shore__random_unit(seed, 3 + i, turn * SEGMENTS_MOST + s) < share;
    if (what < 0.15) {
        must(b, commit_with(b, SHORE_COMMIT_SKIPPED, blob, bytes));
        b->plain.step++;
        return;
    }
    must(b, ask_all(b));
    if (what < 0.3) {
        shore_fleet_discard(b->fleet);
        return;
    }
    if (what < 0.45 && is_durable(b->config)) {
        if (b->place.ndrives > 1) commit_on_one_drive(b, (uint32_t)(turn % b->place.ndrives), seed);
        reopen(b);
        return;
    }
    struct plain *p = &b->plain;
    uint64_t base = p->step;
    plain_step_but_carried(p);
    assert_masters(b, p, base + 1);
    p->step = base;
    must(b, commit_with(b, SHORE_COMMIT_UPDATED, blob, bytes));
    p->step = base + 1;
    if (what > 0.9 && is_durable(b->config)) reopen(b);
}

static void test_any_sequence(void **state) {
    uint64_t first = test_seed();
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b;
        uint64_t seed = first + c;
        if (!bench_open(&b, &configs[c], c % 3 == 2 ? SHORE_SGD : SHORE_ADAMW, true)) continue;
        for (uint64_t turn = 0; turn < 14; turn++) {
            act(&b, seed, turn);
            assert_digest(b.fleet, &b.plain, true);
            assert_blob(&b, seed);
        }
        bench_close(&b);
    }
}

/* What is carried costs nothing, whatever segments lie beside it: UPDATE moves the bytes of the others. */
static void test_only_what_is_updated_moves(void **state) {
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b;
        uint64_t moved[2];
        if (!bench_open(&b, &configs[c], SHORE_ADAMW, false)) continue;
        for (int half = 0; half < 2; half++) {
            struct shore_ledger before = {.size = sizeof before}, after = {.size = sizeof after};
            uint64_t updated = 0, whole = 0;
            carry_nothing();
            for (uint32_t i = 0; i < BLOCKS; i++)
                for (uint32_t s = 0; s < b.plain.layout->blocks[i].segments; s++, whole++) {
                    carried[i][s] = half && whole % 2;
                    updated += !carried[i][s];
                }
            shore_fleet_ledger(b.fleet, &before);
            must(&b, ask_all(&b));
            must(&b, fleet_commit(b.fleet, b.plain.step, false, &b.diag));
            plain_step_but_carried(&b.plain);
            shore_fleet_ledger(b.fleet, &after);
            moved[half] =
                after.drive_read_state - before.drive_read_state + after.drive_write_state - before.drive_write_state;
            if (configs[c].moments == SHORE_MOMENTS_FP32) assert_int_equal(moved[half] * whole, moved[0] * updated);
            assert_true(moved[half] > 0 && (!half || moved[1] < moved[0] * 2 / 3));
        }
        assert_digest(b.fleet, &b.plain, true);
        bench_close(&b);
    }
}

/* A model of two halves, of which one is frozen: UPDATE moves half of the bytes. */
static void test_two_halves(void **state) {
    static const struct shore_tensor_spec tensor[] = {{"t", 3 * SHORE_SEGMENT_ELEMS, 0}};
    static const struct shore_block_spec halves[] = {{"trained", tensor, 1}, {"frozen", tensor, 1}};
    float *zeros = pages(3 * SHORE_SEGMENT_ELEMS * 4);
    struct shore_layout *layout;
    assert_int_equal(shore_layout_make(halves, 2, &layout), 0);
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b = {.config = &configs[c]};
        uint64_t moved[2] = {0};
        place_open(&b.place, configs[c].kinds);
        b.plain.optimizer = SHORE_ADAMW;
        b.options = options_of(&configs[c], &b.place, &b.plain);
        int rc = shore_fleet_create(layout, &b.options, &b.fleet, &b.diag);
        if (!refused_here(&configs[c], rc)) must(&b, rc);
        for (uint32_t half = 0; !rc && half < 2; half++)
            must(&b, shore_fleet_init_block(b.fleet, half, 0, 3, zeros, NULL, NULL, &b.diag));
        if (!rc) must(&b, shore_fleet_seal(b.fleet, 0, &b.diag));
        for (uint64_t step = 0; !rc && step < 2; step++) {
            struct shore_hyper groups[GROUPS];
            struct shore_ledger before = {.size = sizeof before}, after = {.size = sizeof after};
            shore_fleet_ledger(b.fleet, &before);
            hypers(&b.plain, step + 1, groups);
            b.plain.step = step;
            memset(carried, step == 1, sizeof carried);
            carried[0][0] = false;
            for (uint32_t half = 0; half < 2; half++)
                must(&b, ask_run(&b, half, 0, 3, zeros, groups));
            must(&b, commit_with(&b, SHORE_COMMIT_UPDATED, NULL, 0));
            shore_fleet_ledger(b.fleet, &after);
            moved[step] =
                after.drive_read_state - before.drive_read_state + after.drive_write_state - before.drive_write_state;
        }
        assert_true(moved[1] * 2 == moved[0] && (moved[0] || rc));
        if (!rc) print_message("%s: %.3f\n", configs[c].name, (double)moved[1] / (double)moved[0]);
        shore_fleet_close(b.fleet);
        place_close(&b.place);
    }
    shore_layout_free(layout);
    free(zeros);
}

/* Only what was said to be carried is. */
static void test_a_forgotten_update(void **state) {
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b;
        if (!bench_open(&b, &configs[c], SHORE_ADAMW, false)) continue;
        struct shore_wait wait;
        uint64_t attempt = shore_fleet_attempt(b.fleet);
        carry_nothing();
        carried[0][0] = carried[1][1] = true;
        must(&b, ask_all(&b));
        assert_int_equal(shore_fleet_discard(b.fleet), attempt + 1);
        shore_wait_init(&wait);
        int rc = shore_fleet_carry(b.fleet, 0, attempt, 0, 0, 1, shore_wait_completion(&wait));
        assert_int_equal(rc, SHORE_EDISCARDED);
        rc = shore_fleet_carry(b.fleet, 4, attempt + 1, 0, 0, 1, shore_wait_completion(&wait));
        assert_int_equal(rc, SHORE_ESTALE);
        rc = shore_fleet_carry(b.fleet, 0, attempt + 1, 0, 1, 7, shore_wait_completion(&wait));
        assert_int_equal(rc, -EINVAL);
        carried[1][1] = false;
        must(&b, ask_run(&b, 0, 0, 1, NULL, NULL));
        assert_int_equal(commit_with(&b, SHORE_COMMIT_UPDATED, NULL, 0), -EINVAL);
        assert_non_null(strstr(b.diag.text, "updated or carried in this step"));
        bench_close(&b);
    }
}

static void test_impossible_commits(void **state) {
    struct bench b;
    static unsigned char blob[SHORE_BLOB_BYTES + 1];
    assert_true(bench_open(&b, &configs[0], SHORE_ADAMW, false));
    struct shore_completion none = {0};
    struct shore_commit commit = {.size = sizeof commit, .step = 1, .how = SHORE_COMMIT_SKIPPED};
    commit.blob = blob;
    commit.blob_bytes = sizeof blob;
    assert_int_equal(shore_fleet_commit_with(b.fleet, &commit, none), -EINVAL);
    commit.blob_bytes = 1;
    commit.step = 2;
    assert_int_equal(shore_fleet_commit_with(b.fleet, &commit, none), SHORE_ESTALE);
    must(&b, commit_with(&b, SHORE_COMMIT_SKIPPED, blob, 9));
    uint32_t bytes = 8;
    assert_int_equal(shore_fleet_blob(b.fleet, blob, &bytes, &b.diag), -ENOSPC);
    assert_int_equal(bytes, 9);
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_sequence),       cmocka_unit_test(test_only_what_is_updated_moves),
        cmocka_unit_test(test_two_halves),         cmocka_unit_test(test_a_forgotten_update),
        cmocka_unit_test(test_impossible_commits),
    };
    server_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    server_stop();
    return failed;
}
