/* Every region of a volume damaged, every operation failed: each gets its own message, and nothing wrong is used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/units.h"
#include "storage/format.h"

#define SEGMENT_BYTES (SHORE_SEGMENT_ELEMS * 2u)

static char folder[] = "/var/tmp/shore-faults-XXXXXX";
static char path[128];
static unsigned char *data;
static const struct shore__extent extents[] = {{2, 4, 2, 0}};
static const struct shore__volume_desc desc = {.fleet_id = {1, 2},
                                               .volume_id = {3, 4},
                                               .ndrives = 1,
                                               .plane_bytes = {SHORE_SEGMENT_ELEMS * 2},
                                               .nextents = 1,
                                               .segments = 2,
                                               .extents = extents,
                                               .scratch_bytes = 4096,
                                               .identity = "identity",
                                               .identity_bytes = 8};

static int begin(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/v.volume", folder);
    return posix_memalign((void **)&data, SHORE__IO_ALIGN, SEGMENT_BYTES);
}

static int end(void **state) {
    (void)state;
    free(data);
    return rmdir(folder);
}

static int clean(void **state) {
    (void)state;
    shore__io_set_shim(NULL, NULL);
    unlink(path);
    return 0;
}

/* One whole step: data, leaves, commit. */
static int write_step(struct shore__volume *v, uint64_t step, struct shore_diag *diag) {
    struct shore__io *io;
    int rc = shore__io_open(&v->file, SHORE_IO_AUTO, 1, NULL, 0, &io, diag);
    if (rc) return rc;
    struct shore__record next = v->record;
    if (!v->record_valid) {
        next = (struct shore__record){.epoch = 1};
        next.slot[0].step = next.slot[1].step = SHORE__STEP_NONE;
    }
    unsigned slot = v->record_valid ? !v->record.active : 0;
    for (unsigned segment = 0; segment < 2 && rc == 0; segment++) {
        memset(data, (int)(step * 2 + segment + 1), SEGMENT_BYTES);
        shore__leaf_make(data, SEGMENT_BYTES, shore__leaf_seed(2, 4 + segment, SHORE_PLANE_HI),
                         &v->table[slot][segment].plane[SHORE_PLANE_HI]);
        rc = shore__io_do(io, SHORE__IO_WRITE, data, shore__volume_plane_offset(v, slot, SHORE_PLANE_HI, segment),
                          SEGMENT_BYTES);
    }
    next.slot[slot].step = step;
    next.active = slot;
    memset(next.metrics, 7, sizeof next.metrics);
    next.metrics_bytes = sizeof next.metrics;
    if (rc == 0) rc = shore__volume_commit(v, io, &next, (int)slot, NULL, diag);
    shore__io_close(io);
    return rc;
}

/* Steps 0 to 2 are committed: slot 0 holds step 2 (record 3, place 1), slot 1 step 1 (record 2, place 0). */
static struct shore__regions make_used(void) {
    struct shore__volume v;
    struct shore_diag diag = {0};
    if (shore__volume_create(path, &desc, SHORE_IO_AUTO, true, NULL, &v, &diag)) fail_msg("%s", diag.text);
    for (uint64_t step = 0; step < 3; step++)
        if (write_step(&v, step, &diag)) fail_msg("%s", diag.text);
    struct shore__regions at = v.at;
    shore__volume_close(&v);
    return at;
}

static void damage(uint64_t offset, const void *bytes, size_t count) {
    int fd = open(path, O_RDWR);
    assert_int_equal(pwrite(fd, bytes, count, (off_t)offset), (ssize_t)count);
    close(fd);
}

static void flip(uint64_t offset) {
    unsigned char byte;
    int fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    close(fd);
    byte ^= 0x10;
    damage(offset, &byte, 1);
}

/* Opens, loads the table of the newest record's slot, reads and checks everything. */
static int read_all(struct shore__volume *v, struct shore_diag *diag) {
    diag->text[0] = '\0';
    int rc = shore__volume_open(path, SHORE_IO_AUTO, NULL, v, diag);
    if (rc) return rc;
    struct shore__io *io;
    assert_true(v->record_valid);
    assert_int_equal(shore__io_open(&v->file, SHORE_IO_AUTO, 1, NULL, 0, &io, NULL), 0);
    unsigned slot = v->record.active;
    rc = shore__volume_load_table(v, io, &v->record, slot, diag);
    for (unsigned segment = 0; segment < 2 && rc == 0; segment++) {
        rc = shore__io_do(io, SHORE__IO_READ, data, shore__volume_plane_offset(v, slot, SHORE_PLANE_HI, segment),
                          SEGMENT_BYTES);
        if (rc == 0) rc = shore__volume_check(v, slot, 2, 4 + segment, SHORE_PLANE_HI, data, diag);
    }
    shore__io_close(io);
    return rc;
}

static void says(const struct shore_diag *diag, const char *what, uint64_t offset) {
    char number[32];
    snprintf(number, sizeof number, "offset %llu ", (unsigned long long)offset);
    if (!strstr(diag->text, path) || !strstr(diag->text, what) || !strstr(diag->text, number))
        fail_msg("\"%s\" says nothing of %s at %s", diag->text, what, number);
}

static void one_damaged_header_is_repaired(void **state) {
    (void)state;
    static const uint64_t places[] = {SHORE__HEADER_A_OFFSET, SHORE__HEADER_B_OFFSET};
    struct shore__volume v;
    struct shore_diag diag = {0};
    make_used();
    for (unsigned i = 0; i < 2; i++)
        for (unsigned at = 0; at < SHORE__PAGE_BYTES; at += 37) { /* magic, version, every field, the empty rest */
            flip(places[i] + at);
            assert_int_equal(shore__volume_peek(path, &v, &diag), 0);
            assert_true(v.damaged_header && v.record.sequence == 3);
            says(&v.damage, "header", places[i]);
            shore__volume_close(&v);
            assert_int_equal(shore__volume_open(path, SHORE_IO_BUFFERED, NULL, &v, &diag), 0);
            assert_true(v.damaged_header && !v.damaged_record);
            shore__volume_close(&v);
            assert_int_equal(shore__volume_open(path, SHORE_IO_BUFFERED, NULL, &v, &diag), 0);
            assert_false(v.damaged_header);
            shore__volume_close(&v);
        }
}

static void two_damaged_headers_are_refused(void **state) {
    (void)state;
    struct shore__volume v;
    struct shore_diag diag = {0};
    make_used();
    flip(SHORE__HEADER_A_OFFSET + 70);
    flip(SHORE__HEADER_B_OFFSET + 100);
    assert_int_equal(shore__volume_open(path, SHORE_IO_AUTO, NULL, &v, &diag), SHORE_ECORRUPT);
    assert_non_null(strstr(diag.text, "no copy of the volume's header is whole"));
    /* What is damaged is not replaced unasked. */
    assert_int_equal(shore__volume_create(path, &desc, SHORE_IO_AUTO, false, NULL, &v, &diag), SHORE_EEXISTS);
}

static void every_region_has_its_own_message(void **state) {
    (void)state;
    struct shore__volume v;
    struct shore_diag diag;
    make_used();
    flip(SHORE__PLACEMENT_OFFSET + 5);
    assert_int_equal(read_all(&v, &diag), SHORE_ECORRUPT);
    says(&diag, "placement table", SHORE__PLACEMENT_OFFSET);

    make_used();
    flip(SHORE__IDENTITY_OFFSET + 7);
    assert_int_equal(read_all(&v, &diag), SHORE_ECORRUPT);
    says(&diag, "identity", SHORE__IDENTITY_OFFSET);

    struct shore__regions at = make_used();
    flip(at.table[0] + 3);
    assert_int_equal(read_all(&v, &diag), SHORE_ECORRUPT);
    says(&diag, "table of step 2", at.table[0]);
    shore__volume_close(&v);

    at = make_used();
    flip(at.plane[0][SHORE_PLANE_HI] + SEGMENT_BYTES + 1000);
    assert_int_equal(read_all(&v, &diag), SHORE_ECORRUPT);
    says(&diag, "block 2, segment 5, plane hi", at.plane[0][SHORE_PLANE_HI] + SEGMENT_BYTES);
    shore__volume_close(&v);

    make_used();
    assert_int_equal(read_all(&v, &diag), 0);
    shore__volume_close(&v);
}

/* A table that was never written (a lost write) shows, although it matches an older record. */
static void a_lost_table_shows(void **state) {
    (void)state;
    struct shore__volume v;
    struct shore_diag diag = {0};
    struct shore__regions at = make_used();
    unsigned char old[SHORE__PAGE_BYTES];
    int fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, old, sizeof old, (off_t)at.table[1]), sizeof old);
    close(fd);
    assert_int_equal(shore__volume_open(path, SHORE_IO_BUFFERED, NULL, &v, &diag), 0);
    assert_int_equal(write_step(&v, 3, &diag), 0);
    shore__volume_close(&v);
    damage(at.table[1], old, sizeof old);
    assert_int_equal(read_all(&v, &diag), SHORE_ECORRUPT);
    says(&diag, "table of step 3", at.table[1]);
    shore__volume_close(&v);
}

static void a_damaged_record_is_never_used(void **state) {
    (void)state;
    struct shore__volume v;
    struct shore_diag diag;
    unsigned char nothing[SHORE__PAGE_BYTES] = {0};
    for (unsigned place = 0; place < 2; place++) {
        uint64_t offset = SHORE__RECORD_OFFSET + place * SHORE__RECORD_STRIDE;
        make_used();
        for (unsigned at = 0; at < SHORE__PAGE_BYTES; at += 41) {
            flip(offset + at);
            assert_int_equal(read_all(&v, &diag), 0);
            assert_true(v.damaged_record && v.record.sequence == (place == 1 ? 2 : 3) && !v.older_valid);
            assert_true(v.record.slot[v.record.active].step == (place == 1 ? 1 : 2));
            says(&v.damage, "commit record", offset);
            shore__volume_close(&v);
            flip(offset + at);
        }
        damage(offset, nothing, sizeof nothing);
        assert_int_equal(read_all(&v, &diag), 0);
        assert_true(v.damaged_record);
        says(&v.damage, "is gone", offset);
        shore__volume_close(&v);
    }
    /* Both: nothing is left, and it is not taken for a volume that was never sealed. */
    make_used();
    flip(SHORE__RECORD_OFFSET + 60);
    flip(SHORE__RECORD_OFFSET + SHORE__RECORD_STRIDE + 60);
    assert_int_equal(shore__volume_open(path, SHORE_IO_AUTO, NULL, &v, &diag), 0);
    assert_true(!v.record_valid && v.damaged_record);
    shore__volume_close(&v);
    assert_int_equal(shore__volume_create(path, &desc, SHORE_IO_AUTO, false, NULL, &v, &diag), SHORE_EEXISTS);
}

/* A record of another volume, or one that should have been replaced, is not taken for this volume's. */
static void a_strange_record_is_noticed(void **state) {
    (void)state;
    struct shore__volume v;
    struct shore_diag diag;
    unsigned char page[SHORE__PAGE_BYTES];
    struct shore__volume_desc other = desc;
    other.volume_id[0]++;
    struct shore__record record = {.sequence = 9, .epoch = 9};
    make_used();
    shore__record_write(&other, SHORE__VOLUME_VERSION, &record, page);
    damage(SHORE__RECORD_OFFSET + SHORE__RECORD_STRIDE, page, sizeof page);
    assert_int_equal(read_all(&v, &diag), 0);
    assert_true(v.damaged_record && v.record.sequence == 2);
    says(&v.damage, "belongs to another volume", SHORE__RECORD_OFFSET + SHORE__RECORD_STRIDE);
    shore__volume_close(&v);

    make_used();
    record = (struct shore__record){.sequence = 8, .epoch = 0};
    shore__record_write(&desc, SHORE__VOLUME_VERSION, &record, page);
    damage(SHORE__RECORD_OFFSET, page, sizeof page);
    assert_int_equal(read_all(&v, &diag), 0);
    assert_true(v.damaged_record && v.record.sequence == 3);
    says(&v.damage, "is out of turn", SHORE__RECORD_OFFSET);
    shore__volume_close(&v);
}

static void other_files_and_versions_are_named(void **state) {
    (void)state;
    struct shore__volume v;
    struct shore_diag diag;
    unsigned char version[4];
    make_used();
    assert_int_equal(truncate(path, 3 << 20), 0);
    assert_int_equal(truncate(path, 1 << 20), 0);
    assert_int_equal(shore__volume_open(path, SHORE_IO_AUTO, NULL, &v, &diag), SHORE_ECORRUPT);
    assert_non_null(strstr(diag.text, "cut off"));
    assert_int_equal(truncate(path, 5000), 0);
    assert_int_equal(shore__volume_open(path, SHORE_IO_AUTO, NULL, &v, &diag), SHORE_ECORRUPT);
    assert_non_null(strstr(diag.text, "cut off"));
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(shore__volume_open(path, SHORE_IO_AUTO, NULL, &v, &diag), SHORE_EFORMAT);

    make_used();
    shore__put_u32(version, 7);
    damage(SHORE__HEADER_A_OFFSET + 8, version, 4);
    damage(SHORE__HEADER_B_OFFSET + 8, version, 4);
    assert_int_equal(shore__volume_open(path, SHORE_IO_AUTO, NULL, &v, &diag), SHORE_EFORMAT);
    assert_non_null(strstr(diag.text, "format version 7"));
    assert_int_equal(shore__volume_create(path, &desc, SHORE_IO_AUTO, false, NULL, &v, &diag), SHORE_EEXISTS);

    flip(SHORE__HEADER_A_OFFSET);
    flip(SHORE__HEADER_B_OFFSET);
    assert_int_equal(shore__volume_open(path, SHORE_IO_AUTO, NULL, &v, &diag), SHORE_EFORMAT);
    assert_non_null(strstr(diag.text, "not a longshore volume"));
}

static void a_second_run_is_refused(void **state) {
    (void)state;
    struct shore__volume v;
    struct shore_diag diag;
    int ready[2];
    make_used();
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (shore__volume_open(path, SHORE_IO_AUTO, NULL, &v, NULL) || write(ready[1], "r", 1) != 1) _exit(1);
        for (;;)
            pause();
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(shore__volume_open(path, SHORE_IO_AUTO, NULL, &v, &diag), SHORE_EBUSY);
    assert_non_null(strstr(diag.text, path));
    assert_int_equal(shore__volume_peek(path, &v, &diag), 0); /* looking is allowed */
    shore__volume_close(&v);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(ready[0]);
    close(ready[1]);
    assert_int_equal(read_all(&v, &diag), 0);
    shore__volume_close(&v);
}

static void a_file_that_goes_away_fails_the_commit(void **state) {
    (void)state;
    struct shore__volume v;
    struct shore_diag diag;
    make_used();
    assert_int_equal(shore__volume_open(path, SHORE_IO_AUTO, NULL, &v, &diag), 0);
    unlink(path);
    assert_int_equal(write_step(&v, 3, &diag), -EIO);
    assert_non_null(strstr(diag.text, "deleted or replaced"));
    shore__volume_close(&v);

    make_used();
    assert_int_equal(shore__volume_open(path, SHORE_IO_AUTO, NULL, &v, &diag), 0);
    assert_int_equal(truncate(path, (off_t)v.size_bytes - 4096), 0); /* the scratch: no write of the step fails */
    assert_int_equal(write_step(&v, 3, &diag), -EIO);
    assert_non_null(strstr(diag.text, "was cut"));
    shore__volume_close(&v);
}

struct failing {
    unsigned at, seen;
    int code;
};

static int fail_one(void *ctx, const struct shore__file *file, const struct shore__io_op *op) {
    struct failing *f = ctx;
    (void)file;
    (void)op;
    return f->seen++ == f->at ? f->code : 0;
}

static int fail_first_two(void *ctx, const struct shore__file *file, const struct shore__io_op *op) {
    unsigned *seen = ctx;
    (void)file;
    (void)op;
    return (*seen)++ < 2 ? -EIO : 0;
}

static void every_failed_operation_is_reported(void **state) {
    (void)state;
    static const int codes[] = {-EIO, -ENOSPC};
    for (unsigned c = 0; c < 2; c++) {
        bool finished = false;
        for (unsigned at = 0; !finished; at++) {
            struct failing failing = {.at = at, .code = codes[c]};
            struct shore__volume v;
            struct shore_diag diag = {0};
            unlink(path);
            shore__io_set_shim(fail_one, &failing);
            int rc = shore__volume_create(path, &desc, SHORE_IO_AUTO, false, NULL, &v, &diag);
            if (rc) {
                assert_int_equal(rc, codes[c]);
                assert_non_null(strstr(diag.text, path));
                assert_int_equal(access(path, F_OK), -1); /* nothing new is left behind */
                continue;
            }
            uint64_t committed = UINT64_MAX;
            for (uint64_t step = 0; step < 3 && rc == 0; step++) {
                rc = write_step(&v, step, &diag);
                if (rc == 0) committed = step;
            }
            if (rc) {
                assert_int_equal(rc, codes[c]);
                if (v.commit_failed) { /* never a second try on the same data */
                    assert_int_equal(write_step(&v, committed + 1, &diag), -EIO);
                    assert_non_null(strstr(diag.text, "a commit failed before"));
                }
            }
            shore__volume_close(&v);
            finished = failing.seen <= at;
            shore__io_set_shim(NULL, NULL);
            if (committed == UINT64_MAX) continue;
            assert_int_equal(read_all(&v, &diag), 0);
            uint64_t step = v.record.slot[v.record.active].step;
            assert_true(step == committed || step == committed + 1);
            shore__volume_close(&v);
        }
    }
}

/* The other copy does, and is not taken for a reason to replace the volume. */
static void a_header_copy_that_cannot_be_read_is_written_anew(void **state) {
    (void)state;
    static const uint64_t places[] = {SHORE__HEADER_A_OFFSET, SHORE__HEADER_B_OFFSET};
    struct shore__volume v;
    struct shore_diag diag = {0};
    make_used();
    for (unsigned i = 0; i < 2; i++) {
        struct failing failing = {.at = i, .code = -EIO};
        shore__io_set_shim(fail_one, &failing);
        assert_int_equal(shore__volume_peek(path, &v, &diag), 0);
        assert_true(v.damaged_header && v.record.sequence == 3);
        says(&v.damage, "cannot be read: ", places[i]);
        shore__volume_close(&v);
        failing.seen = 0;
        assert_int_equal(shore__volume_create(path, &desc, SHORE_IO_AUTO, false, NULL, &v, &diag), SHORE_EEXISTS);
        shore__io_set_shim(NULL, NULL);

        flip(places[i] + 3); /* so that only writing it makes it whole again */
        failing.seen = 0;
        shore__io_set_shim(fail_one, &failing);
        assert_int_equal(shore__volume_open(path, SHORE_IO_AUTO, NULL, &v, &diag), 0);
        shore__volume_close(&v);
        shore__io_set_shim(NULL, NULL);
        assert_int_equal(read_all(&v, &diag), 0);
        assert_false(v.damaged_header);
        shore__volume_close(&v);
    }
}

/* Opening a volume whose reads fail says so and does not take it for an empty one. */
static void failing_reads_at_open_are_reported(void **state) {
    (void)state;
    make_used();
    for (unsigned at = 2; at < 6; at++) { /* placement, identity, records */
        struct failing failing = {.at = at, .code = -EIO};
        struct shore__volume v;
        struct shore_diag diag = {0};
        shore__io_set_shim(fail_one, &failing);
        assert_int_equal(shore__volume_open(path, SHORE_IO_AUTO, NULL, &v, &diag), -EIO);
        assert_non_null(strstr(diag.text, "reading 4096 bytes at offset"));
        failing.seen = 0;
        assert_int_equal(shore__volume_create(path, &desc, SHORE_IO_AUTO, false, NULL, &v, &diag), SHORE_EEXISTS);
        shore__io_set_shim(NULL, NULL);
    }
    struct shore__volume v;
    struct shore_diag diag = {0};
    shore__io_set_shim(fail_first_two, &(unsigned){0}); /* both copies of the header */
    assert_int_equal(shore__volume_open(path, SHORE_IO_AUTO, NULL, &v, &diag), -EIO);
    assert_non_null(strstr(diag.text, "reading 4096 bytes at offset"));
    shore__io_set_shim(NULL, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(one_damaged_header_is_repaired, clean),
        cmocka_unit_test_teardown(two_damaged_headers_are_refused, clean),
        cmocka_unit_test_teardown(every_region_has_its_own_message, clean),
        cmocka_unit_test_teardown(a_lost_table_shows, clean),
        cmocka_unit_test_teardown(a_damaged_record_is_never_used, clean),
        cmocka_unit_test_teardown(a_strange_record_is_noticed, clean),
        cmocka_unit_test_teardown(other_files_and_versions_are_named, clean),
        cmocka_unit_test_teardown(a_second_run_is_refused, clean),
        cmocka_unit_test_teardown(a_file_that_goes_away_fails_the_commit, clean),
        cmocka_unit_test_teardown(every_failed_operation_is_reported, clean),
        cmocka_unit_test_teardown(a_header_copy_that_cannot_be_read_is_written_anew, clean),
        cmocka_unit_test_teardown(failing_reads_at_open_are_reported, clean),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
