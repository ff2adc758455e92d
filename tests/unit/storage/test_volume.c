/* Volumes: what is written comes back, and what is damaged is noticed and named. */
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

#include "base/arena.h"
#include "storage/format.h"
#include "storage/hash.h"

static char folder[] = "/var/tmp/shore-volume-XXXXXX";
static char path[128];

static const struct shore__extent extents[] = {{0, 0, 2, 0}, {1, 3, 1, 2}, {1, 7, 2, 3}, {4, 0, 1, 5}};

static struct shore__volume_desc make_desc(void) {
    return (struct shore__volume_desc){
        .fleet_id = {11, 12},
        .volume_id = {21, 22},
        .ndrives = 2,
        .drive = 1,
        .generation = 3,
        .plane_bytes = {131072, 131072, 262144, 262144},
        .nextents = 4,
        .segments = 6,
        .extents = extents,
        .scratch_bytes = 8192,
        .spill = true,
        .identity = "who we are",
        .identity_bytes = 10,
    };
}

static int begin(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/v.volume", folder);
    return 0;
}

static int end(void **state) {
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static int clean(void **state) {
    (void)state;
    unlink(path);
    return 0;
}

static void fill(struct shore__volume *v, unsigned slot, unsigned salt) {
    unsigned char *bytes = (unsigned char *)v->table[slot];
    for (size_t i = 0; i < v->desc.segments * sizeof(struct shore__leaves); i++)
        bytes[i] = (unsigned char)(i * 31 + salt);
}

static void create(struct shore__volume *v) {
    struct shore_diag diag = {0};
    struct shore__volume_desc desc = make_desc();
    if (shore__volume_create(path, &desc, SHORE_IO_AUTO, false, NULL, v, &diag)) fail_msg("%s", diag.text);
}

static struct shore__io *queue(struct shore__volume *v) {
    struct shore__io *io;
    assert_int_equal(shore__io_open(&v->file, SHORE_IO_AUTO, 1, NULL, 0, &io, NULL), 0);
    return io;
}

static void commit(struct shore__volume *v, uint64_t step, uint64_t epoch) {
    struct shore_diag diag = {0};
    struct shore__io *io = queue(v);
    struct shore__record next = v->record;
    if (!v->record_valid) next.slot[0].step = next.slot[1].step = SHORE__STEP_NONE;
    unsigned slot = v->record_valid ? !v->record.active : 0;
    next.epoch = epoch;
    next.slot[slot].step = step;
    next.active = slot;
    next.metrics_bytes = 3;
    memcpy(next.metrics, "abc", 3);
    fill(v, slot, (unsigned)step);
    uint64_t written = 0;
    if (shore__volume_commit(v, io, &next, (int)slot, &written, &diag)) fail_msg("%s", diag.text);
    assert_true(written == v->at.table_bytes + 4096);
    shore__io_close(io);
}

static int reopen(struct shore__volume *v, struct shore_diag *diag) {
    return shore__volume_open(path, SHORE_IO_AUTO, NULL, v, diag);
}

static void what_is_written_comes_back(void **state) {
    (void)state;
    struct shore__volume v;
    struct shore_diag diag = {0};
    create(&v);
    assert_false(v.record_valid);
    struct shore__volume_desc desc = make_desc();
    struct shore__regions at;
    assert_int_equal(shore__regions_make(&desc, SHORE__VOLUME_VERSION, &at), 0);
    assert_true(v.size_bytes == at.end);
    shore__volume_close(&v);
    assert_int_equal(reopen(&v, &diag), 0);
    assert_false(v.record_valid || v.damaged_record || v.damaged_header);
    assert_int_equal(v.desc.segments, 6);
    assert_memory_equal(v.desc.extents, extents, sizeof extents);
    assert_memory_equal(v.desc.identity, "who we are", 10);
    assert_true(v.desc.generation == 3 && v.desc.drive == 1 && v.desc.ndrives == 2 && v.desc.spill);
    commit(&v, 0, 1);
    commit(&v, 1, 1);
    commit(&v, 2, 2);
    shore__volume_close(&v);

    assert_int_equal(reopen(&v, &diag), 0);
    assert_true(v.record_valid && v.older_valid && !v.damaged_record);
    assert_true(v.record.sequence == 3 && v.record.epoch == 2 && v.record.active == 0);
    assert_true(v.record.slot[0].step == 2 && v.record.slot[1].step == 1 && v.older.sequence == 2);
    assert_memory_equal(v.record.metrics, "abc", 3);
    struct shore__io *io = queue(&v);
    for (unsigned slot = 0; slot < 2; slot++)
        assert_int_equal(shore__volume_load_table(&v, io, &v.record, slot, &diag), 0);
    shore__io_close(io);
    shore__volume_close(&v);

    assert_int_equal(shore__volume_peek(path, &v, &diag), 0);
    assert_true(v.record.slot[0].step == 2 && v.file.fd == -1);
    shore__volume_close(&v);
}

static void segments_are_found(void **state) {
    (void)state;
    struct shore__volume v;
    create(&v);
    assert_int_equal(shore__volume_local(&v, 0, 1), 1);
    assert_int_equal(shore__volume_local(&v, 0, 2), -1);
    assert_int_equal(shore__volume_local(&v, 1, 3), 2);
    assert_int_equal(shore__volume_local(&v, 1, 4), -1);
    assert_int_equal(shore__volume_local(&v, 1, 8), 4);
    assert_int_equal(shore__volume_local(&v, 1, 9), -1);
    assert_int_equal(shore__volume_local(&v, 3, 0), -1);
    assert_int_equal(shore__volume_local(&v, 4, 0), 5);
    assert_int_equal(shore__volume_local(&v, 5, 0), -1);
    assert_true(shore__volume_plane_offset(&v, 1, SHORE_PLANE_M, 2) ==
                v.at.plane[1][SHORE_PLANE_M] + 2 * SHORE_SEGMENT_ELEMS * 4);
    assert_true(v.at.plane[0][SHORE_PLANE_LO] - v.at.plane[0][SHORE_PLANE_HI] == 6 * SHORE_SEGMENT_ELEMS * 2);
    assert_true(shore__volume_scratch_offset(&v) + 8192 == v.size_bytes);
    shore__volume_close(&v);
}

static void a_drive_may_own_nothing(void **state) {
    (void)state;
    struct shore__volume v;
    struct shore_diag diag = {0};
    struct shore__volume_desc desc = {.ndrives = 1, .plane_bytes = {131072, 131072}};
    assert_int_equal(shore__volume_create(path, &desc, SHORE_IO_AUTO, false, NULL, &v, &diag), 0);
    commit(&v, 0, 1);
    shore__volume_close(&v);
    assert_int_equal(reopen(&v, &diag), 0);
    struct shore__io *io = queue(&v);
    assert_int_equal(shore__volume_load_table(&v, io, &v.record, 0, &diag), 0);
    shore__io_close(io);
    shore__volume_close(&v);
}

static void a_leaf_tells_place_and_content(void **state) {
    (void)state;
    struct shore__volume v;
    struct shore_diag diag = {0};
    create(&v);
    uint16_t *data = calloc(SHORE_SEGMENT_ELEMS, 2);
    data[77] = 5;
    shore__leaf_make(data, SHORE_SEGMENT_ELEMS * 2, shore__leaf_seed(1, 7, SHORE_PLANE_LO), &v.table[1][3].plane[1]);
    assert_int_equal(shore__volume_check(&v, 1, 1, 7, SHORE_PLANE_LO, data, &diag), 0);
    assert_int_equal(shore__volume_check(&v, 1, 1, 8, SHORE_PLANE_LO, data, &diag), SHORE_ECORRUPT);
    data[9] = 1;
    assert_int_equal(shore__volume_check(&v, 1, 1, 7, SHORE_PLANE_LO, data, &diag), SHORE_ECORRUPT);
    assert_non_null(strstr(diag.text, path));
    assert_non_null(strstr(diag.text, "block 1, segment 7, plane lo"));
    free(data);
    shore__volume_close(&v);
}

static void an_unsealed_volume_is_simply_made_again(void **state) {
    (void)state;
    struct shore__volume v;
    struct shore_diag diag = {0};
    struct shore__volume_desc desc = make_desc();
    create(&v);
    shore__volume_close(&v);
    create(&v);
    commit(&v, 0, 1);
    shore__volume_close(&v);
    assert_int_equal(shore__volume_create(path, &desc, SHORE_IO_AUTO, false, NULL, &v, &diag), SHORE_EEXISTS);
    assert_int_equal(diag.advice, SHORE_ADVICE_OVERWRITE);
    assert_int_equal(shore__volume_create(path, &desc, SHORE_IO_AUTO, true, NULL, &v, &diag), 0);
    shore__volume_close(&v);
    assert_int_equal(reopen(&v, &diag), 0);
    assert_false(v.record_valid || v.damaged_record);
    shore__volume_close(&v);
}

static void a_strangers_file_is_refused(void **state) {
    (void)state;
    struct shore__volume v;
    struct shore_diag diag = {0};
    struct shore__volume_desc desc = make_desc();
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_int_equal(write(fd, "precious", 8), 8);
    assert_int_equal(shore__volume_create(path, &desc, SHORE_IO_AUTO, false, NULL, &v, &diag), SHORE_EEXISTS);
    char back[8];
    assert_int_equal(pread(fd, back, 8, 0), 8);
    assert_memory_equal(back, "precious", 8);
    close(fd);
    assert_int_equal(reopen(&v, &diag), SHORE_EFORMAT);
    assert_non_null(strstr(diag.text, "not a longshore volume"));
}

static void memory_is_what_was_announced(void **state) {
    (void)state;
    struct shore__volume v;
    struct shore_diag diag = {0};
    struct shore_arena *arena;
    struct shore__volume_desc desc = make_desc();
    uint64_t bytes = shore__volume_memory_bytes(&desc);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(shore_arena_open(bytes, 0, &arena, &diag), 0);
        int rc = i == 0 ? shore__volume_create(path, &desc, SHORE_IO_AUTO, false, arena, &v, &diag)
                        : shore__volume_open(path, SHORE_IO_AUTO, arena, &v, &diag);
        if (rc) fail_msg("%s", diag.text);
        assert_true(shore__arena_left(arena) == 0);
        shore__volume_close(&v);
        shore_arena_close(arena);
    }
    assert_int_equal(shore_arena_open(bytes - SHORE__ARENA_ALIGN, 0, &arena, &diag), 0);
    assert_int_equal(shore__volume_open(path, SHORE_IO_AUTO, arena, &v, &diag), -ENOMEM);
    shore_arena_close(arena);
}

static void a_path_stands_for_a_volume(void **state) {
    (void)state;
    char *found = NULL, expected[160];
    struct shore_diag diag = {0};
    assert_int_equal(shore__volume_path(folder, &found, &diag), 0);
    snprintf(expected, sizeof expected, "%s/longshore.volume", folder);
    assert_string_equal(found, expected);
    free(found);
    assert_int_equal(shore__volume_path(path, &found, &diag), 0); /* not there yet */
    assert_string_equal(found, path);
    free(found);
    snprintf(expected, sizeof expected, "%s/none/v", folder);
    assert_int_equal(shore__volume_path(expected, &found, &diag), -ENOENT);
    assert_non_null(strstr(diag.text, expected));
}

/* The same bits in every width: a volume moves between machines. */
static void a_leaf_does_not_depend_on_the_processor(void **state) {
    (void)state;
    static const unsigned char expected[16] = {0x33, 0x76, 0xb0, 0xd0, 0x84, 0x25, 0xb6, 0xc0,
                                               0xed, 0x9b, 0x25, 0x2c, 0x51, 0x2f, 0x4b, 0xd6};
    unsigned char *data = malloc(SHORE_SEGMENT_ELEMS * 2);
    struct shore__leaf leaf;
    for (size_t i = 0; i < SHORE_SEGMENT_ELEMS * 2; i++)
        data[i] = (unsigned char)(i * 31 >> 3);
    shore__leaf_make(data, SHORE_SEGMENT_ELEMS * 2, shore__leaf_seed(5, 6, SHORE_PLANE_LO), &leaf);
    assert_memory_equal(leaf.hash, expected, 16);
#if defined(__x86_64__)
    unsigned char wide[16];
    if (__builtin_cpu_supports("avx2")) {
        shore__hash128_avx2(data, SHORE_SEGMENT_ELEMS * 2, shore__leaf_seed(5, 6, SHORE_PLANE_LO), wide);
        assert_memory_equal(wide, expected, 16);
    }
#endif
    free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(what_is_written_comes_back, clean),
        cmocka_unit_test_teardown(segments_are_found, clean),
        cmocka_unit_test_teardown(a_drive_may_own_nothing, clean),
        cmocka_unit_test_teardown(a_leaf_tells_place_and_content, clean),
        cmocka_unit_test_teardown(an_unsealed_volume_is_simply_made_again, clean),
        cmocka_unit_test_teardown(memory_is_what_was_announced, clean),
        cmocka_unit_test(a_path_stands_for_a_volume),
        cmocka_unit_test(a_leaf_does_not_depend_on_the_processor),
        cmocka_unit_test_teardown(a_strangers_file_is_refused, clean),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
