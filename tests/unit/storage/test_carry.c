/* Maps and blobs: where they lie, and that damage to them is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "storage/format.h"

#define SEGMENTS 40u
#define MAP_SMALL_MOST 229376u /* segments */

static char folder[] = "/var/tmp/shore-carry-XXXXXX";
static char path[128];
static const struct shore__extent extents[] = {{0, 0, SEGMENTS, 0}};
static unsigned char *blob;

static struct shore__volume_desc make_desc(uint32_t segments) {
    return (struct shore__volume_desc){
        .ndrives = 1, .plane_bytes = {131072, 131072}, .nextents = 1, .segments = segments, .extents = extents};
}

static int begin(void **state) {
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/v.volume", folder);
    return posix_memalign((void **)&blob, SHORE__IO_ALIGN, SHORE_BLOB_BYTES);
}

static int end(void **state) {
    free(blob);
    unlink(path);
    return rmdir(folder);
}

/* Step 1 updates every other segment and carries the rest, and has a blob. */
static void make(struct shore__volume *v, struct shore__io **io) {
    struct shore_diag diag = {0};
    struct shore__volume_desc desc = make_desc(SEGMENTS);
    if (shore__volume_create(path, &desc, SHORE_IO_THREADS, true, NULL, v, &diag)) fail_msg("%s", diag.text);
    assert_int_equal(shore__io_open(&v->file, SHORE_IO_THREADS, 1, NULL, 0, io, NULL), 0);
    struct shore__record next = {.epoch = 1, .slot[1].step = SHORE__STEP_NONE};
    uint64_t written = 0;
    if (shore__volume_commit(v, *io, &next, 0, &written, &diag)) fail_msg("%s", diag.text);
    assert_int_equal(written, v->at.table_bytes + SHORE__PAGE_BYTES);
    for (uint32_t i = 0; i < SEGMENTS; i++)
        (i % 2 ? shore__slot_map_carry : shore__slot_map_update)(&v->map, 1, i, 1);
    next.slot[1].step = next.active = 1;
    memset(blob, 5, SHORE_BLOB_BYTES);
    written = 0;
    if (shore__volume_put_blob(v, *io, &next, blob, 40000, &written, &diag)) fail_msg("%s", diag.text);
    if (shore__volume_commit(v, *io, &next, 1, &written, &diag)) fail_msg("%s", diag.text);
    assert_int_equal(written, 40960 + v->at.table_bytes + v->at.map_bytes + SHORE__PAGE_BYTES);
}

static void damage(uint64_t offset) {
    unsigned char byte;
    int fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= 8;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    close(fd);
}

static void segments_are_where_the_map_says(void **state) {
    struct shore__volume v;
    struct shore__io *io;
    struct shore_diag diag = {0};
    make(&v, &io);
    for (int again = 0; again < 2; again++) {
        for (uint32_t i = 0; i < SEGMENTS; i++) {
            uint64_t other = shore__volume_plane_offset(&v, 0, SHORE_PLANE_LO, i);
            uint64_t own = v.at.plane[1][SHORE_PLANE_LO] + (uint64_t)i * 131072;
            assert_int_equal(shore__volume_plane_offset(&v, 1, SHORE_PLANE_LO, i), i % 2 ? other : own);
            assert_int_equal(shore__slot_map_run(&v.map, 1, i, SEGMENTS - i), 1);
            assert_int_equal(shore__slot_map_run(&v.map, 0, i, SEGMENTS - i), SEGMENTS - i);
        }
        /* read again */
        shore__io_close(io);
        shore__volume_close(&v);
        assert_int_equal(shore__volume_open(path, SHORE_IO_THREADS, NULL, &v, &diag), 0);
        assert_int_equal(shore__io_open(&v.file, SHORE_IO_THREADS, 1, NULL, 0, &io, NULL), 0);
        assert_int_equal(v.record.slot[1].mapped, 1);
        assert_int_equal(shore__volume_load_table(&v, io, &v.record, 1, &diag), 0);
        assert_int_equal(shore__volume_load_table(&v, io, &v.record, 0, &diag), 0);
        memset(blob, 0, SHORE_BLOB_BYTES);
        assert_int_equal(shore__volume_read_blob(&v, io, &v.record.slot[1], blob, &diag), 0);
        assert_true(blob[0] == 5 && blob[39999] == 5 && blob[40000] == 0);
    }
    shore__io_close(io);
    shore__volume_close(&v);
}

static void damage_is_named(void **state) {
    struct shore__volume v;
    struct shore__io *io;
    struct shore_diag diag = {0};
    make(&v, &io);
    damage(v.at.map[1] + 2);
    assert_int_equal(shore__volume_load_table(&v, io, &v.record, 1, &diag), SHORE_ECORRUPT);
    assert_non_null(strstr(diag.text, "the table of step 1 at offset"));
    damage(v.at.map[1] + 2);
    assert_int_equal(shore__volume_load_table(&v, io, &v.record, 1, &diag), 0);
    damage(SHORE__BLOB_HALF_OFFSET + SHORE__BLOB_HALF_STRIDE + 7000);
    assert_int_equal(shore__volume_read_blob(&v, io, &v.record.slot[1], blob, &diag), SHORE_ECORRUPT);
    assert_non_null(strstr(diag.text, "the blob of step 1 at offset 32768"));
    shore__io_close(io);
    shore__volume_close(&v);
}

/* Small maps take no room; large ones lie between tables and data, where there may be room for them or not. */
static void maps_of_any_size_have_a_place(void **state) {
    struct shore__regions at, old;
    unsigned renewable = 0, not = 0;
    for (uint32_t segments = MAP_SMALL_MOST - 3; segments < MAP_SMALL_MOST + 16000; segments += 3) {
        struct shore__volume_desc desc = make_desc(segments);
        assert_int_equal(shore__regions_make(&desc, 2, &old), 0);
        assert_int_equal(shore__regions_make(&desc, SHORE__VOLUME_VERSION, &at), 0);
        if (segments <= MAP_SMALL_MOST) {
            assert_true(at.map[0] == 0x1000 && at.map[1] == 0x11000 && at.map_bytes <= 0x7000 && at.end == old.end);
            assert_true(shore__regions_renewable(&desc, 2));
            continue;
        }
        assert_true(at.map[0] == at.table[1] + at.table_bytes && at.map[1] == at.map[0] + at.map_bytes);
        assert_true(at.map[1] + at.map_bytes <= at.plane[0][0]);
        *(at.end == old.end ? &renewable : &not ) += 1;
        assert_int_equal(shore__regions_renewable(&desc, 2), at.end == old.end);
        struct shore__volume v = {.file.path = path, .desc = desc, .version = 2};
        struct shore_diag diag = {0};
        assert_int_equal(shore__volume_can_carry(&v, &diag), at.end == old.end ? 0 : -ENOTSUP);
        if (at.end != old.end) assert_non_null(strstr(diag.text, "has format version 2, which holds no blob"));
    }
    assert_true(renewable && not );
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_are_where_the_map_says),
        cmocka_unit_test(damage_is_named),
        cmocka_unit_test(maps_of_any_size_have_a_place),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
