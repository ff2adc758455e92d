#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "report/trace_file.h"

#define MS UINT64_C(1000000)

static struct shore__recorder *opened(uint32_t ndrives) {
    struct shore__recorder *r;
    assert_int_equal(shore__recorder_open(ndrives, &r), 0);
    return r;
}

static size_t count_of(const struct shore__recorded *spans, enum shore__span_kind kind, uint64_t *ns) {
    size_t count = 0;
    for (uint32_t i = 0; i < spans->count; i++) {
        const struct shore__work_span *s = &spans->spans[i];
        if (s->kind != kind) continue;
        count++;
        *ns += s->end_ns - s->begin_ns;
    }
    return count;
}

static void a_lane_works_on_one_thing_at_a_time(void **state) {
    struct shore__recorder *r = opened(2);
    struct shore__recorded spans;
    uint64_t ns = 0;
    /* two that were asked for together, and two of other lanes */
    shore__recorder_worked(r, SHORE_LANE_DRIVE_READ, 1, 10 * MS, 30 * MS, 100);
    shore__recorder_worked(r, SHORE_LANE_DRIVE_READ, 1, 11 * MS, 50 * MS, 10);
    shore__recorder_worked(r, SHORE_LANE_DRIVE_READ, 0, 11 * MS, 12 * MS, 1);
    shore__recorder_worked(r, SHORE_LANE_DRIVE_WRITE, 1, 11 * MS, 12 * MS, 1);
    shore__recorder_stepped(r, 7, 0, 60 * MS);
    assert_true(shore__recorder_take(r, &spans));
    assert_int_equal(count_of(&spans, SHORE__SPAN_LANE, &ns), 4);
    assert_int_equal(ns, 20 * MS + 20 * MS + MS + MS);
    assert_int_equal(spans.steps, 1);
    shore__recorder_end(r);
    assert_false(shore__recorder_take(r, &spans));
    shore__recorder_close(r);
}

static void short_spans_that_follow_become_one(void **state) {
    struct shore__recorder *r = opened(1);
    struct shore__recorded spans;
    uint64_t ns = 0, bytes = 0;
    for (uint64_t i = 0; i < 10; i++)
        shore__recorder_worked(r, SHORE_LANE_DRIVE_READ, 0, i * MS / 10, (i + 1) * MS / 10, 5);
    for (uint64_t i = 0; i < 10; i++) /* charges, only if they are the same and nothing lies between */
        shore__recorder_charged(r, (unsigned)i / 5, i * MS, (i + 1) * MS - (i == 2));
    shore__recorder_stepped(r, 1, 0, MS);
    assert_true(shore__recorder_take(r, &spans));
    for (uint32_t i = 0; i < spans.count; i++)
        if (spans.spans[i].kind == SHORE__SPAN_LANE) bytes += spans.spans[i].amount;
    assert_int_equal(count_of(&spans, SHORE__SPAN_LANE, &ns), 1);
    assert_int_equal(ns, MS);
    assert_int_equal(bytes, 50);
    ns = 0;
    assert_int_equal(count_of(&spans, SHORE__SPAN_CHARGE, &ns), 3);
    assert_int_equal(ns, 10 * MS - 1);
    assert_int_equal(spans.lost, 0);
    shore__recorder_close(r);
}

static void a_full_recorder_keeps_steps_and_time(void **state) {
    enum { MANY = 200000 };
    struct shore__recorder *r = opened(1);
    struct shore__recorded spans;
    uint64_t ns = 0, at = 0;
    for (uint64_t i = 0; i < MANY; i++, at += 4 * MS) /* far apart */
        shore__recorder_worked(r, SHORE_LANE_DRIVE_READ, 0, at, at + 2 * MS, 1);
    shore__recorder_charged(r, 1, 0, at);
    shore__recorder_stepped(r, 3, 0, at);
    assert_true(shore__recorder_take(r, &spans));
    assert_int_equal(count_of(&spans, SHORE__SPAN_STEP, &ns), 1);
    assert_int_equal(count_of(&spans, SHORE__SPAN_CHARGE, &ns), 1);
    assert_int_equal(ns, 2 * at);
    assert_in_range(spans.lost, MANY / 2, MANY);
    for (uint64_t i = 0; i < MANY; i++, at += MS) /* the same of charges: steps still have room */
        shore__recorder_charged(r, (unsigned)i % 2, at, at + MS);
    shore__recorder_stepped(r, 4, 0, at);
    assert_true(shore__recorder_take(r, &spans));
    ns = 0;
    assert_int_equal(count_of(&spans, SHORE__SPAN_STEP, &ns), 1);
    shore__recorder_close(r);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static const char head[] = "{\"steps\":2,\"lanes\":[\"a\",\"b\"],\"charges\":[\"c\"],\"drives\":[\"d\"]}";

/* Three frames of a step each, every one with 2 spans more. Returns the bytes, *last: where the last frame begins. */
static size_t make_file(unsigned char *file, size_t *last) {
    struct shore__work_span spans[3] = {
        {.drive = 0, .kind = SHORE__SPAN_LANE, .what = 1, .amount = 9},
        {.drive = SHORE__NO_DRIVE, .kind = SHORE__SPAN_CHARGE, .what = 0},
        {.drive = SHORE__NO_DRIVE, .kind = SHORE__SPAN_STEP},
    };
    struct shore__recorded frame = {spans, 3, 1, 4};
    shore__trace_start(head, sizeof head - 1, file);
    memcpy(file + SHORE__TRACE_START_BYTES, head, sizeof head - 1);
    size_t at = SHORE__TRACE_START_BYTES + sizeof head - 1;
    for (uint64_t step = 1; step <= 3; step++) {
        *last = at;
        for (int i = 0; i < 3; i++) {
            spans[i].begin_ns = step * 100;
            spans[i].end_ns = step * 100 + 100;
        }
        spans[2].amount = step;
        shore__trace_frame(&frame, file + at);
        memcpy(file + at + SHORE__TRACE_FRAME_BYTES, spans, sizeof spans);
        at += SHORE__TRACE_FRAME_BYTES + sizeof spans;
    }
    return at;
}

static void the_last_steps_are_read(void **state) {
    unsigned char file[1024];
    size_t last, bytes = make_file(file, &last);
    struct shore__trace_read read;
    struct shore_diag diag;
    assert_int_equal(shore__trace_parse(file, bytes, "F", &read, &diag), 0);
    assert_int_equal(read.steps, 2); /* as its head says */
    assert_int_equal(read.count, 6);
    assert_int_equal(read.begin_ns, 200);
    assert_int_equal(read.lost, 12);
    shore__trace_free(&read);
}

static void a_torn_end_is_left_out(void **state) {
    unsigned char file[1024];
    size_t last, bytes = make_file(file, &last);
    struct shore__trace_read read;
    struct shore_diag diag;
    for (size_t cut = last; cut < bytes; cut++) {
        assert_int_equal(shore__trace_parse(file, cut, "F", &read, &diag), 0);
        assert_int_equal(read.steps, 2);
        assert_int_equal(read.begin_ns, 100);
        shore__trace_free(&read);
    }
    memset(file + last, 0, bytes - last); /* power was cut before the bytes were written */
    assert_int_equal(shore__trace_parse(file, bytes, "F", &read, &diag), 0);
    assert_int_equal(read.steps, 2);
    shore__trace_free(&read);
}

static void damage_is_one_sentence(void **state) {
    unsigned char file[1024], copy[1024];
    size_t last, bytes = make_file(file, &last);
    struct shore__trace_read read;
    struct shore_diag diag;
    for (size_t i = 0; i < bytes; i++) {
        memcpy(copy, file, bytes);
        copy[i] ^= 0x41;
        int rc = shore__trace_parse(copy, bytes, "F", &read, &diag);
        if (rc) {
            assert_true(rc == SHORE_EINPUT || rc == SHORE_EFORMAT);
            assert_memory_equal(diag.text, "F: ", 3);
        } else { /* a length that is too large looks like a torn end; other bytes are unused */
            assert_in_range(read.steps, 0, 2);
            shore__trace_free(&read);
        }
        bool in_spans = i >= last + SHORE__TRACE_FRAME_BYTES || i < SHORE__TRACE_START_BYTES + sizeof head - 1;
        if (in_spans) assert_int_not_equal(rc, i >= 24 && i < SHORE__TRACE_START_BYTES ? 1 : 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lane_works_on_one_thing_at_a_time),
        cmocka_unit_test(short_spans_that_follow_become_one),
        cmocka_unit_test(a_full_recorder_keeps_steps_and_time),
        cmocka_unit_test(the_last_steps_are_read),
        cmocka_unit_test(a_torn_end_is_left_out),
        cmocka_unit_test(damage_is_one_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
