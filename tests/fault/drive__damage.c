/* Stored bytes of a fleet's drives that changed: none is used, and the step before a damaged one can be accepted. */
#include "fault/faulty_fleet.h"

#include <errno.h>
#include <fcntl.h>

#include "storage/format.h"

static void flip(const char *path, uint64_t offset) {
    unsigned char byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    assert_int_equal(fsync(fd), 0);
    close(fd);
}

/* Where a plane of the committed slot's first segment lies in a volume, and its newest record. */
static uint64_t offset_of_plane(struct fault *t, uint32_t drive, enum shore_plane plane, uint64_t *record_offset) {
    struct shore__volume v;
    must(t, shore__volume_peek(t->place.path[drive], &v, &t->diag));
    uint64_t offset = shore__volume_plane_offset(&v, v.record.active, plane, 0);
    if (record_offset) *record_offset = SHORE__RECORD_OFFSET + (v.record.sequence & 1) * SHORE__RECORD_STRIDE;
    shore__volume_close(&v);
    return offset;
}

static void a_flipped_bit_is_never_used(void **state) {
    static const enum shore_fetch_kind kinds[] = {SHORE_FETCH_BF16, SHORE_FETCH_MASTER, SHORE_FETCH_M, SHORE_FETCH_V};
    struct fault t;
    start(&t, "ff");
    step(&t);
    for (int plane = 0; plane < SHORE_PLANE_R; plane++) {
        struct step_how how = {.coefficient = 1};
        struct shore_wait wait;
        unsigned char digest[16];
        float *dst = pages(SHORE_SEGMENT_ELEMS * 4);
        stop(&t);
        uint64_t offset = offset_of_plane(&t, 0, plane, NULL);
        flip(t.place.path[0], offset + 77);
        must(&t, open_again(&t));
        assert_int_equal(shore_fleet_digest(t.fleet, true, digest, &t.diag), SHORE_ECORRUPT);
        says(&t, t.place.directory);
        says(&t, "segment 0");
        shore_wait_init(&wait);
        must(&t, shore_fleet_fetch(t.fleet, 1, 0, 0, 1, kinds[plane], dst, shore_wait_completion(&wait)));
        bool joined = plane == SHORE_PLANE_LO;
        assert_int_equal(shore_wait(&wait, &t.diag), SHORE_ECORRUPT);
        if (joined) says(&t, "plane lo");
        assert_int_equal(fleet_updates(t.fleet, &t.plain, 1, &how, &t.diag), SHORE_ECORRUPT);
        assert_int_equal(fleet_commit(t.fleet, 1, false, &t.diag), SHORE_ECORRUPT);
        stop(&t);
        flip(t.place.path[0], offset + 77);
        must(&t, open_again(&t));
        assert_digest(t.fleet, &t.plain, true);
        free(dst);
    }
    finish(&t);
}

/* Changes what is read of spilled gradients. */
static int flip_reads_of_spill(void *ctx, const struct shore__file *file, const struct shore__io_op *op) {
    const struct shore__volume *v = ctx;
    if (op->kind != SHORE__IO_READ || op->offset < v->at.spill || op->offset >= v->at.scratch) return SHORE__IO_PASS;
    if (pread(file->fd, op->buffer, op->bytes, (off_t)op->offset) != (ssize_t)op->bytes) return -EIO;
    ((unsigned char *)op->buffer)[5] ^= 1;
    return SHORE__IO_DONE;
}

static void a_flipped_bit_of_a_spilled_gradient_is_never_used(void **state) {
    struct step_how how = {.coefficient = 1, .spill = true};
    struct shore__volume v;
    struct fault t;
    start(&t, "f");
    must(&t, shore__volume_peek(t.place.path[0], &v, &t.diag));
    shore__io_set_shim(flip_reads_of_spill, &v);
    assert_int_equal(fleet_updates(t.fleet, &t.plain, 0, &how, &t.diag), SHORE_ECORRUPT);
    says(&t, "spilled gradient");
    shore__io_set_shim(NULL, NULL);
    shore_fleet_discard(t.fleet);
    must(&t, fleet_updates(t.fleet, &t.plain, 0, &how, &t.diag));
    must(&t, fleet_commit(t.fleet, 0, false, &t.diag));
    plain_step(&t.plain, 1);
    assert_digest(t.fleet, &t.plain, true);
    shore__volume_close(&v);
    finish(&t);
}

/* Of the first drive, where `step` was committed. */
static void lose_newest_record(struct fault *t, uint64_t step) {
    uint64_t record;
    stop(t);
    offset_of_plane(t, 0, SHORE_PLANE_HI, &record);
    flip(t->place.path[0], record + 100);
    t->options.hint_step = step;
}

static void a_damaged_record_explains_an_older_step(void **state) {
    for (uint32_t ndrives = 1; ndrives <= 2; ndrives++) {
        struct fault t;
        start(&t, ndrives == 1 ? "f" : "ff");
        step(&t);
        shore_fleet_close(t.fleet);
        t.fleet = NULL;
        must(&t, shore_fleet_open(t.plain.layout, &t.options, &t.fleet, &t.diag));
        step(&t);
        must(&t, fleet_step(t.fleet, &t.plain, 2, &t.diag));
        lose_newest_record(&t, 3);
        assert_int_equal(open_again(&t), SHORE_ESTALE);
        says(&t, "accept_step 2");
        says(&t, "commit record at offset");
        t.options.accept_step = &(uint64_t){1};
        assert_int_equal(open_again(&t), SHORE_ESTALE);
        t.options.accept_step = &(uint64_t){2};
        must(&t, open_again(&t));
        assert_non_null(strstr(t.note, "commit record"));
        assert_digest(t.fleet, &t.plain, true);
        t.options.accept_step = NULL;
        step(&t);
        must(&t, open_again(&t));
        assert_digest(t.fleet, &t.plain, true);
        finish(&t);
    }
}

/* Zeros in both places are a making that was interrupted only where nothing says that it was not: what the caller has
 * seen committed, or another drive. */
static void lost_records_are_no_unfinished_making(void **state) {
    static const unsigned char zeros[SHORE__PAGE_BYTES];
    for (uint32_t ndrives = 1; ndrives <= 2; ndrives++) {
        struct fault t;
        start(&t, ndrives == 1 ? "f" : "ff");
        step(&t);
        stop(&t);
        int fd = open(t.place.path[0], O_WRONLY);
        for (unsigned place = 0; place < 2; place++) {
            off_t at = SHORE__RECORD_OFFSET + place * SHORE__RECORD_STRIDE;
            assert_int_equal(pwrite(fd, zeros, sizeof zeros, at), sizeof zeros);
        }
        close(fd);
        if (ndrives == 1) t.options.hint_step = 1;
        assert_int_equal(open_again(&t), SHORE_ECORRUPT);
        says(&t, "both commit records are gone");
        says(&t, t.place.path[0]);
        finish(&t);
    }
}

/* Step 0 can be accepted like any other. */
static void step_0_is_accepted(void **state) {
    struct fault t;
    start(&t, "f");
    step(&t);
    lose_newest_record(&t, 1);
    assert_int_equal(open_again(&t), SHORE_ESTALE);
    says(&t, "accept_step 0");
    t.options.accept_step = &(uint64_t){0};
    must(&t, open_again(&t));
    finish(&t);
}

/* The slot of the step before was being overwritten when the newest record was lost: then nothing whole is left. */
static void a_half_overwritten_step_is_not_accepted(void **state) {
    struct step_how how = {.coefficient = 1};
    struct fault t;
    start(&t, "f");
    step(&t);
    step(&t);
    must(&t, fleet_updates(t.fleet, &t.plain, 2, &how, &t.diag));
    lose_newest_record(&t, 2);
    t.options.accept_step = &(uint64_t){1};
    assert_int_equal(open_again(&t), SHORE_ECORRUPT);
    says(&t, "block");
    /* and trying has changed nothing */
    t.options.accept_step = NULL;
    assert_int_equal(open_again(&t), SHORE_ESTALE);
    says(&t, "commit record at offset");
    finish(&t);
}

/* A byte of a plane of the newest step, in the drive's own slot of it. */
static void damage_newest(struct fault *t, uint32_t drive, enum shore_plane plane) {
    struct shore__volume v;
    must(t, shore__volume_peek(t->place.path[drive], &v, &t->diag));
    flip(t->place.path[drive], shore__volume_plane_offset(&v, v.record.active, plane, 0) + 99);
    shore__volume_close(&v);
}

/* Any plane, on any drive, also after starts that have met the damage and raised the epoch. */
static void the_step_before_a_damaged_one_is_accepted(void **state) {
    static const enum shore_plane planes[] = {SHORE_PLANE_HI, SHORE_PLANE_LO, SHORE_PLANE_M, SHORE_PLANE_V};
    for (uint32_t p = 0; p < 4; p++) {
        for (uint32_t ndrives = 1; ndrives <= 2; ndrives++) {
            struct fault t;
            start(&t, ndrives == 1 ? "f" : "ff");
            step(&t);
            step(&t);
            must(&t, open_again(&t));
            must(&t, fleet_step(t.fleet, &t.plain, 2, &t.diag));
            stop(&t);
            damage_newest(&t, ndrives - 1, planes[p]);
            t.options.hint_step = 3;
            must(&t, open_again(&t));
            must(&t, open_again(&t));
            t.options.accept_step = &(uint64_t){1};
            assert_int_equal(open_again(&t), SHORE_ESTALE);
            says(&t, "no longer holds it");
            t.options.accept_step = &(uint64_t){2};
            t.options.read_only = true;
            must(&t, open_again(&t));
            t.options.read_only = false;
            must(&t, open_again(&t));
            assert_non_null(strstr(t.note, "step 3 is given up for step 2"));
            assert_non_null(strstr(t.note, ndrives == 1 ? "0.volume: block" : "1.volume: block"));
            assert_digest(t.fleet, &t.plain, true);
            t.options.accept_step = NULL;
            t.options.hint_step = 2;
            must(&t, open_again(&t));
            assert_digest(t.fleet, &t.plain, true);
            step(&t);
            must(&t, open_again(&t));
            assert_digest(t.fleet, &t.plain, true);
            finish(&t);
        }
    }
}

/* Neither what is whole nor what is not takes the place of the newest step. */
static void a_step_before_is_not_accepted_without_need(void **state) {
    struct step_how how = {.coefficient = 1};
    struct fault t;
    start(&t, "ff");
    step(&t);
    step(&t);
    t.options.hint_step = 2;
    t.options.accept_step = &(uint64_t){1};
    assert_int_equal(open_again(&t), SHORE_EUSAGE);
    says(&t, "step 2 is whole on every drive");
    t.options.accept_step = NULL;
    must(&t, open_again(&t));
    assert_digest(t.fleet, &t.plain, true);
    /* the other slots have been written to since */
    must(&t, fleet_updates(t.fleet, &t.plain, 2, &how, &t.diag));
    stop(&t);
    damage_newest(&t, 1, SHORE_PLANE_V);
    t.options.accept_step = &(uint64_t){1};
    assert_int_equal(open_again(&t), SHORE_ECORRUPT);
    says(&t, "step 1 cannot be accepted: it is not whole either");
    finish(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flipped_bit_is_never_used),
        cmocka_unit_test(a_flipped_bit_of_a_spilled_gradient_is_never_used),
        cmocka_unit_test(a_damaged_record_explains_an_older_step),
        cmocka_unit_test(lost_records_are_no_unfinished_making),
        cmocka_unit_test(step_0_is_accepted),
        cmocka_unit_test(a_half_overwritten_step_is_not_accepted),
        cmocka_unit_test(the_step_before_a_damaged_one_is_accepted),
        cmocka_unit_test(a_step_before_is_not_accepted_without_need),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
