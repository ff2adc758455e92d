/* The power is cut at every write and flush of a volume's life: recovery gives the last acknowledged commit, or the one
 * that was being made, and either is whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fault/crash_disk.h"
#include "storage/format.h"

#define STEPS 4u
#define SEGMENTS 2u
#define PLANES 2u
#define SEGMENT_BYTES (SHORE_SEGMENT_ELEMS * 2u)
#define NONE (-1)

static char folder[] = "/dev/shm/shore-crash-XXXXXX";
static char path[128];
static unsigned char *buffers[SEGMENTS * PLANES], *blob, *found_blob;

static const struct shore__extent extents[] = {{0, 0, 1, 0}, {3, 5, 1, 1}};

static void pattern(unsigned char *data, uint64_t step, unsigned segment, unsigned plane) {
    uint64_t x = (step << 8 | segment << 4 | plane) * 0x9E3779B97F4A7C15u;
    for (size_t i = 0; i < SEGMENT_BYTES; i += 8, x += 0xD1B54A32D192ED03u)
        memcpy(data + i, &x, 8);
}

/* From step 2 on, each step updates one segment and carries the other. */
static bool is_carried(uint64_t step, unsigned segment) {
    return step >= 2 && step % SEGMENTS == segment;
}

/* The step that wrote what a step has of a segment. The last one is skipped, which keeps its predecessor's. */
static uint64_t content_of(uint64_t step, unsigned segment) {
    if (step == STEPS) step--;
    return is_carried(step, segment) ? step - 1 : step;
}

/* Step 1 has no blob, the others have different ones. */
static uint32_t blob_of(uint64_t step, unsigned char *out) {
    uint32_t bytes = step == 1 ? 0 : step == 3 ? SHORE_BLOB_BYTES : 100 + 20000 * (uint32_t)(step % 3);
    memset(out, (int)step + 7, bytes);
    return bytes;
}

/* Returns whether the volume could be made. */
static bool make(struct shore__volume *v) {
    struct shore__volume_desc desc = {.volume_id = {1, 2},
                                      .fleet_id = {3, 4},
                                      .ndrives = 1,
                                      .plane_bytes = {SHORE_SEGMENT_ELEMS * 2, SHORE_SEGMENT_ELEMS * 2},
                                      .nextents = 2,
                                      .segments = SEGMENTS,
                                      .extents = extents,
                                      .identity = "identity",
                                      .identity_bytes = 8};
    return shore__volume_create(path, &desc, SHORE_IO_AUTO, false, NULL, v, NULL) == 0;
}

static bool write_slot(struct shore__volume *v, struct shore__io *io, unsigned slot, uint64_t step) {
    struct shore__io_op ops[SEGMENTS * PLANES], *done[SEGMENTS * PLANES];
    unsigned sent = 0;
    for (unsigned segment = 0; segment < SEGMENTS; segment++) {
        if (!is_carried(step, segment)) {
            shore__slot_map_update(&v->map, slot, segment, 1);
            continue;
        }
        v->table[slot][segment] = v->table[!slot][segment];
        shore__slot_map_carry(&v->map, slot, segment, 1);
    }
    for (unsigned i = 0; i < SEGMENTS * PLANES; i++) {
        unsigned segment = i / PLANES, plane = i % PLANES;
        if (is_carried(step, segment)) continue;
        pattern(buffers[i], step, segment, plane);
        shore__leaf_make(buffers[i], SEGMENT_BYTES,
                         shore__leaf_seed(extents[segment].block, extents[segment].first, (enum shore_plane)plane),
                         &v->table[slot][segment].plane[plane]);
        ops[i] = (struct shore__io_op){.kind = SHORE__IO_WRITE,
                                       .buffer = buffers[i],
                                       .bytes = SEGMENT_BYTES,
                                       .offset = shore__volume_plane_offset(v, slot, (enum shore_plane)plane, segment)};
        if (shore__io_submit(io, &ops[i]) == 0) sent++;
    }
    assert_int_equal(shore__io_reap(io, done, SEGMENTS * PLANES, sent), sent);
    for (unsigned i = 0; i < sent; i++)
        if (done[i]->rc) return false;
    return sent == PLANES * (step < 2 ? SEGMENTS : 1);
}

static bool commit_step(struct shore__volume *v, struct shore__io *io, uint64_t step, bool skip) {
    struct shore__record next = v->record;
    if (!v->record_valid) {
        next = (struct shore__record){.epoch = 1};
        next.slot[0].step = next.slot[1].step = SHORE__STEP_NONE;
    }
    unsigned slot = !v->record_valid ? 0 : skip ? v->record.active : !v->record.active;
    if (!skip && !write_slot(v, io, slot, step)) return false;
    next.slot[slot].step = step;
    next.active = slot;
    next.metrics_bytes = SHORE__METRICS_BYTES;
    memset(next.metrics, (int)step + 1, SHORE__METRICS_BYTES);
    if (shore__volume_put_blob(v, io, &next, blob, blob_of(step, blob), NULL, NULL)) return false;
    return shore__volume_commit(v, io, &next, skip ? -1 : (int)slot, NULL, NULL) == 0;
}

/* Creates and commits steps 0 to STEPS until the power goes. Returns the last acknowledged step, or NONE. */
static int live(bool *made) {
    struct shore__volume v;
    struct shore__io *io;
    int acknowledged = NONE;
    *made = make(&v);
    if (!*made) return NONE;
    assert_int_equal(shore__io_open(&v.file, SHORE_IO_AUTO, SEGMENTS * PLANES, NULL, 0, &io, NULL), 0);
    for (int step = 0; step <= (int)STEPS && commit_step(&v, io, (uint64_t)step, step == STEPS); step++)
        acknowledged = step;
    shore__io_close(io);
    shore__volume_close(&v);
    return acknowledged;
}

static void check_slot(struct shore__volume *v, struct shore__io *io, unsigned slot) {
    struct shore_diag diag = {0};
    if (shore__volume_load_table(v, io, &v->record, slot, &diag)) fail_msg("%s", diag.text);
    unsigned char *expected = buffers[1], *data = buffers[0];
    for (unsigned i = 0; i < SEGMENTS * PLANES; i++) {
        unsigned segment = i / PLANES, plane = i % PLANES;
        uint64_t at = shore__volume_plane_offset(v, slot, (enum shore_plane)plane, segment);
        assert_int_equal(shore__io_do(io, SHORE__IO_READ, data, at, SEGMENT_BYTES), 0);
        if (shore__volume_check(v, slot, extents[segment].block, extents[segment].first, (enum shore_plane)plane, data,
                                &diag))
            fail_msg("%s", diag.text);
        pattern(expected, content_of(v->record.slot[slot].step, segment), segment, plane);
        assert_memory_equal(data, expected, SEGMENT_BYTES);
    }
    uint32_t bytes = blob_of(v->record.slot[slot].step, blob);
    assert_int_equal(v->record.slot[slot].blob_bytes, bytes);
    if (shore__volume_read_blob(v, io, &v->record.slot[slot], found_blob, &diag)) fail_msg("%s", diag.text);
    assert_memory_equal(found_blob, blob, bytes);
}

static void go_on(struct shore__volume *v, struct shore__io *io) {
    struct shore__record next = v->record;
    next.epoch++;
    assert_int_equal(shore__volume_commit(v, io, &next, -1, NULL, NULL), 0);
    uint64_t sequence = v->record.sequence;
    assert_true(commit_step(v, io, v->record.slot[v->record.active].step + 1, false));
    assert_true(v->record.sequence == sequence + 1);
}

static void recover(bool made, int acknowledged, unsigned variant) {
    struct shore__volume v;
    struct shore_diag diag = {0};
    int rc = shore__volume_open(path, SHORE_IO_AUTO, NULL, &v, &diag);
    if (!made && rc) {
        assert_int_equal(rc, SHORE_EMISSING); /* unfinished, not damaged */
        assert_true(make(&v));                /* the same command again makes it */
        shore__volume_close(&v);
        return;
    }
    if (rc) fail_msg("%s", diag.text);
    if (acknowledged == NONE && !v.record_valid) {
        shore__volume_close(&v);
        return;
    }
    assert_true(v.record_valid);
    struct shore__io *io;
    assert_int_equal(shore__io_open(&v.file, SHORE_IO_AUTO, SEGMENTS * PLANES, NULL, 0, &io, NULL), 0);
    int step = (int)v.record.slot[v.record.active].step;
    assert_in_range(step, acknowledged == NONE ? 0 : acknowledged, acknowledged + 1);
    check_slot(&v, io, v.record.active);
    for (unsigned i = 0; i < SHORE__METRICS_BYTES; i++)
        assert_int_equal(v.record.metrics[i], step + 1);
    /* Another drive may not have got so far: then the fleet goes back to the slot that was committed. */
    if (step == acknowledged + 1 && acknowledged != NONE && step != STEPS) {
        assert_true(v.record.slot[!v.record.active].step == (uint64_t)acknowledged);
        check_slot(&v, io, !v.record.active);
    }
    if (variant % 4 == 0) go_on(&v, io);
    shore__io_close(io);
    shore__volume_close(&v);
    if (variant % 4 == 0) {
        assert_int_equal(shore__volume_open(path, SHORE_IO_AUTO, NULL, &v, &diag), 0);
        assert_true(v.record_valid && (int)v.record.slot[v.record.active].step == step + 1 && !v.damaged_record);
        shore__volume_close(&v);
    }
}

static void every_cut_leaves_a_whole_step(void **state) {
    (void)state;
    unsigned tried = 0;
    for (uint64_t cut = 0;; cut++) {
        struct crash_disks disks = {.cut_at = cut};
        bool made;
        crash_disks_install(&disks);
        int acknowledged = live(&made);
        bool reached = disks.off;
        unsigned variants = crash_disks_variants(&disks, 64);
        for (unsigned i = 0; i < variants; i++, tried++) {
            crash_disks_power_on(&disks, i);
            recover(made, acknowledged, i);
        }
        crash_disks_remove(&disks);
        if (reached) continue;
        assert_int_equal(acknowledged, STEPS);
        assert_true(cut > 30);
        break;
    }
    assert_true(tried > 1000);
}

/* The epoch is made durable after a first cut, and the power goes again. */
static void a_cut_during_recovery_loses_nothing(void **state) {
    (void)state;
    for (uint64_t first = 28; first < 34; first++) {
        for (uint64_t second = 0; second < 2; second++) {
            struct crash_disks disks = {.cut_at = first};
            bool made;
            crash_disks_install(&disks);
            int acknowledged = live(&made);
            assert_true(made && acknowledged != NONE && disks.off);
            crash_disks_power_on(&disks, 3);
            crash_disks_settle(&disks);

            struct shore__volume v;
            disks.cut_at = UINT64_MAX;
            assert_int_equal(shore__volume_open(path, SHORE_IO_AUTO, NULL, &v, NULL), 0);
            disks.cut_at = disks.operations + second;
            struct shore__io *io;
            assert_int_equal(shore__io_open(&v.file, SHORE_IO_AUTO, 1, NULL, 0, &io, NULL), 0);
            struct shore__record next = v.record;
            next.epoch++;
            assert_true(shore__volume_commit(&v, io, &next, -1, NULL, NULL) < 0);
            assert_true(shore__volume_commit(&v, io, &next, -1, NULL, NULL) < 0);
            shore__io_close(io);
            shore__volume_close(&v);
            unsigned variants = crash_disks_variants(&disks, 64);
            for (unsigned i = 0; i < variants; i++) {
                crash_disks_power_on(&disks, i);
                recover(made, acknowledged, i);
            }
            crash_disks_remove(&disks);
        }
    }
}

/* As version 2 left it: headers and records of that version. */
static void make_old(void) {
    struct shore__volume v;
    struct shore__io *io;
    unsigned char *page = buffers[0];
    assert_true(make(&v));
    assert_int_equal(shore__io_open(&v.file, SHORE_IO_AUTO, SEGMENTS * PLANES, NULL, 0, &io, NULL), 0);
    assert_true(commit_step(&v, io, 0, false) && commit_step(&v, io, 1, false));
    for (unsigned copy = 0; copy < 2; copy++) {
        struct shore__header header;
        uint64_t at = copy ? SHORE__HEADER_B_OFFSET : SHORE__HEADER_A_OFFSET;
        assert_int_equal(shore__io_do(io, SHORE__IO_READ, page, at, SHORE__PAGE_BYTES), 0);
        assert_int_equal(shore__header_parse(page, &header), SHORE__PARSE_OK);
        header.version = 2;
        shore__header_write(&header, page);
        assert_int_equal(shore__io_do(io, SHORE__IO_WRITE, page, at, SHORE__PAGE_BYTES), 0);
        struct shore__record *record = copy ? &v.older : &v.record;
        record->slot[0].blob_bytes = record->slot[1].blob_bytes = 0;
        shore__record_write(&v.desc, 2, record, page);
        at = SHORE__RECORD_OFFSET + (record->sequence & 1) * SHORE__RECORD_STRIDE;
        assert_int_equal(shore__io_do(io, SHORE__IO_WRITE, page, at, SHORE__PAGE_BYTES), 0);
    }
    shore__io_close(io);
    shore__volume_close(&v);
}

/* Who knows version 2 alone opens a volume of which a copy of the header says so: then that must be right. */
static bool is_right_for_version_2(void) {
    struct shore__header header;
    struct shore__record record;
    struct shore__file file;
    struct shore__io *io;
    unsigned char *page = buffers[0];
    bool old = false, right = true;
    assert_int_equal(shore__file_open(path, SHORE_IO_AUTO, 1, &file, NULL), 0);
    assert_int_equal(shore__io_open(&file, SHORE_IO_AUTO, 1, NULL, 0, &io, NULL), 0);
    for (unsigned copy = 0; copy < 2; copy++) {
        uint64_t at = copy ? SHORE__HEADER_B_OFFSET : SHORE__HEADER_A_OFFSET;
        assert_int_equal(shore__io_do(io, SHORE__IO_READ, page, at, SHORE__PAGE_BYTES), 0);
        old |= shore__header_parse(page, &header) == SHORE__PARSE_OK && header.version == 2;
    }
    struct shore__volume_desc desc = {.volume_id = {1, 2}, .fleet_id = {3, 4}};
    for (unsigned place = 0; place < 2; place++) {
        uint64_t at = SHORE__RECORD_OFFSET + place * SHORE__RECORD_STRIDE;
        assert_int_equal(shore__io_do(io, SHORE__IO_READ, page, at, SHORE__PAGE_BYTES), 0);
        right &= shore__record_parse(&desc, 2, place, page, &record) == SHORE__PARSE_OK;
    }
    shore__io_close(io);
    shore__file_close(&file);
    return !old || right;
}

/* The power goes while a volume of version 2 becomes one of version 3, and in the first step after. */
static void every_cut_of_a_renewal_leaves_a_whole_step(void **state) {
    (void)state;
    for (uint64_t cut = 0;; cut++) {
        struct crash_disks disks = {.cut_at = UINT64_MAX};
        struct shore__volume v;
        struct shore__io *io;
        crash_disks_install(&disks);
        make_old();
        crash_disks_power_on(&disks, 1);
        crash_disks_settle(&disks);
        disks.cut_at = cut;
        assert_int_equal(shore__volume_open(path, SHORE_IO_AUTO, NULL, &v, NULL), 0);
        assert_int_equal(v.version, 2);
        assert_int_equal(shore__io_open(&v.file, SHORE_IO_AUTO, SEGMENTS * PLANES, NULL, 0, &io, NULL), 0);
        struct shore__record next = v.record;
        next.epoch++;
        int acknowledged = 1;
        if (shore__volume_load_table(&v, io, &v.record, v.record.active, NULL) == 0 &&
            shore__volume_commit(&v, io, &next, -1, NULL, NULL) == 0 && commit_step(&v, io, 2, false))
            acknowledged = 2;
        bool reached = disks.off;
        shore__io_close(io);
        shore__volume_close(&v);
        unsigned variants = crash_disks_variants(&disks, 64);
        for (unsigned i = 0; i < variants; i++) {
            crash_disks_power_on(&disks, i);
            assert_true(is_right_for_version_2());
            recover(true, acknowledged, i);
        }
        crash_disks_remove(&disks);
        if (reached) continue;
        assert_int_equal(acknowledged, 2);
        assert_true(cut > 8);
        break;
    }
}

static int begin(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return -1;
    if (posix_memalign((void **)&blob, SHORE__IO_ALIGN, SHORE_BLOB_BYTES)) return -1;
    if (posix_memalign((void **)&found_blob, SHORE__IO_ALIGN, SHORE_BLOB_BYTES)) return -1;
    snprintf(path, sizeof path, "%s/v.volume", folder);
    for (unsigned i = 0; i < SEGMENTS * PLANES; i++)
        if (posix_memalign((void **)&buffers[i], SHORE__IO_ALIGN, SEGMENT_BYTES)) return -1;
    return 0;
}

static int end(void **state) {
    (void)state;
    for (unsigned i = 0; i < SEGMENTS * PLANES; i++)
        free(buffers[i]);
    free(blob);
    free(found_blob);
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_leaves_a_whole_step),
        cmocka_unit_test(a_cut_during_recovery_loses_nothing),
        cmocka_unit_test(every_cut_of_a_renewal_leaves_a_whole_step),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
