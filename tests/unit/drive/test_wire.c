/* The bytes of each message, pinned by their hashes, so that both hosts may have different builds of one version; and
 * what is read of them again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "drive/probe/probe.h"
#include "drive/remote/wire_open.h"
#include "storage/hash.h"

/* A frame's header in front: the length counts, too. */
static void bytes_are(const char *what, const void *data, size_t bytes, const char *expected) {
    unsigned char hash[16];
    char text[60];
    shore__hash128(data, bytes, 0, hash);
    int n = snprintf(text, sizeof text, "%zu ", bytes);
    for (int i = 0; i < 16; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%02x", hash[i]);
    if (strcmp(text, expected) != 0) fail_msg("%s: %s, and it was %s", what, text, expected);
}

static void fill(void *data, size_t bytes, unsigned first) {
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)data)[i] = (unsigned char)(first + i);
}

static struct shore__record record_of(unsigned first) {
    struct shore__record r = {.sequence = first + (UINT64_C(7) << 40),
                              .epoch = first + (UINT64_C(5) << 33),
                              .active = first & 1,
                              .metrics_bytes = 100 + first};
    for (unsigned s = 0; s < 2; s++) {
        r.slot[s].step = first * 1000 + s + (UINT64_C(3) << 35);
        fill(r.slot[s].table_hash, 16, first + 16 * s);
    }
    fill(r.metrics, r.metrics_bytes, first);
    return r;
}

static struct shore__drive_recovery recovery_of(bool older) {
    struct shore__drive_recovery r = {.valid = true, .record = record_of(3), .damaged_record = true};
    strcpy(r.damage.text, "a record is damaged");
    if (older) r.older_valid = true, r.older = record_of(8);
    return r;
}

static struct shore__volume_desc desc_of(const struct shore__extent *extents, uint32_t nextents) {
    static const char identity[] = "/home/of/the/run";
    struct shore__volume_desc d = {.fleet_id = {0x1122334455667788, 0x99AABBCCDDEEFF00},
                                   .volume_id = {0x0102030405060708, 0x1112131415161718},
                                   .drive = 1,
                                   .ndrives = 3,
                                   .generation = UINT64_C(9) << 36,
                                   .plane_form = SHORE_MOMENTS_FP32,
                                   .segments = 5,
                                   .scratch_bytes = UINT64_C(4096) << 22,
                                   .spill = true,
                                   .extents = extents,
                                   .nextents = nextents,
                                   .identity = identity,
                                   .identity_bytes = sizeof identity - 1};
    for (int p = 0; p < 4; p++)
        d.plane_bytes[p] = SHORE_SEGMENT_ELEMS * (p < 2 ? 2 : 4);
    return d;
}

static const struct shore__extent extents[] = {{0, 0, 2, 0}, {1, 1, 3, 2}};

static struct shore_layout *layout_of(void) {
    const struct shore_tensor_spec a[] = {{"a.weight", 2 * SHORE_SEGMENT_ELEMS + 100, 0}, {"a.bias", 70, 3}};
    const struct shore_tensor_spec b[] = {{"b", 4 * (uint64_t)SHORE_SEGMENT_ELEMS, SHORE_GROUP_RESTS}};
    const struct shore_block_spec blocks[] = {{"one", a, 2}, {"two", b, 1}};
    struct shore_layout *layout;
    assert_int_equal(shore_layout_make(blocks, 2, &layout), 0);
    return layout;
}

static void headers_and_requests(void **state) {
    unsigned char head[SHORE__WIRE_HEADER_BYTES], body[SHORE__WIRE_FIELDS_BYTES + 5], greeting[24];
    struct shore__wire_header back, h = {.type = SHORE__WIRE_UPDATE,
                                         .sequence = 0x01020304,
                                         .body_bytes = sizeof body,
                                         .id = 0x1122334455667788,
                                         .bulk_bytes = 0x00ABCDEF};
    struct shore__wire_request again, r = {.type = SHORE__WIRE_UPDATE,
                                           .step = 0x0102030405060708,
                                           .era = 0x1112131415161718,
                                           .start = 0x2122232425262728,
                                           .bytes = 0x3132333435363738,
                                           .block = 0x41424344,
                                           .segment = 0x51525354,
                                           .count = 0x61626364,
                                           .kind = 0x71727374,
                                           .order = 0x81828384,
                                           .flags = 0x91929394,
                                           .coefficient = 0.3f,
                                           .tail_bytes = 5};
    struct shore_diag diag;
    fill(body, sizeof body, 200);
    shore__wire_request_put(body, &r);
    bytes_are("request", body, sizeof body, "85 1da2240ac24b7ba29f58aef0e65e1431");
    shore__wire_header_put(head, &h, body);
    bytes_are("header", head, sizeof head, "40 9d9da2dcbd1105690d024f34621ebc37");
    shore__wire_greeting_put(greeting);
    bytes_are("greeting", greeting, sizeof greeting, "24 d18b163e68b3497eb7293eea39668c23");
    assert_int_equal(shore__wire_header_get(head, true, h.sequence, &back, &diag), 0);
    assert_int_equal(shore__wire_check(head, &h, body, &diag), 0);
    assert_true(back.type == h.type && back.sequence == h.sequence && back.body_bytes == h.body_bytes &&
                back.id == h.id && back.bulk_bytes == h.bulk_bytes);
    assert_int_equal(shore__wire_request_get(&h, body, &again, &diag), 0);
    assert_ptr_equal(again.tail, body + SHORE__WIRE_FIELDS_BYTES);
    r.tail = again.tail;
    assert_true(again.step == r.step && again.era == r.era && again.start == r.start && again.bytes == r.bytes);
    assert_true(again.block == r.block && again.segment == r.segment && again.count == r.count);
    assert_true(again.kind == r.kind && again.order == r.order && again.flags == r.flags);
    assert_true(again.coefficient == r.coefficient && again.ngroups == 0 && again.tail_bytes == 5);
    head[0] ^= 1;
    assert_int_equal(shore__wire_header_get(head, true, h.sequence, &back, &diag), SHORE_ELINK);
    head[0] ^= 1, head[6] = 1;
    assert_int_equal(shore__wire_header_get(head, true, h.sequence, &back, &diag), SHORE_ELINK);
}

static void numbers_of_a_group(void **state) {
    unsigned char bytes[SHORE__WIRE_HYPER_BYTES];
    struct shore_hyper again, h = {.lr = 0.1f,
                                   .beta1 = 0.2f,
                                   .beta2 = 0.3f,
                                   .eps = 0.4f,
                                   .weight_decay = 0.5f,
                                   .momentum = 0.6f,
                                   .step_size = 0.7f,
                                   .inv_sqrt_bias2 = 0.8f,
                                   .first_step = 9,
                                   .frozen = 1};
    shore__wire_hyper_put(bytes, &h);
    bytes_are("hyper", bytes, sizeof bytes, "40 4f6cf94a12b59a38da24b1d33fd0bc16");
    shore__wire_hyper_get(bytes, &again);
    assert_memory_equal(&again, &h, sizeof h);
}

static void counters(void **state) {
    unsigned char bytes[SHORE__WIRE_LEDGER_BYTES];
    struct shore_ledger l, sum = {.drive_read_state = 5};
    fill(&l, sizeof l, 1);
    shore__wire_ledger_put(bytes, &l);
    bytes_are("ledger", bytes, sizeof bytes, "84 37f9b6d1640af0c6f495aa1684534604");
    assert_true(shore__wire_ledger_get(bytes, sizeof bytes, &sum));
    assert_int_equal(sum.drive_read_state, l.drive_read_state + 5);
    assert_int_equal(sum.update_compute_ns, l.update_compute_ns);
    assert_int_equal(sum.commit_ns, 0);
    assert_false(shore__wire_ledger_get(bytes, sizeof bytes - 1, &sum));
    bytes[0]++;
    assert_false(shore__wire_ledger_get(bytes, sizeof bytes, &sum));
}

static void records(void **state) {
    unsigned char bytes[SHORE__WIRE_RECOVERY_BYTES];
    struct shore__drive_recovery again, r = recovery_of(true);
    uint32_t n = shore__wire_recovery_put(bytes, &r);
    bytes_are("recovery", bytes, n, "382 764afa3ccaafa1e5a32d94ecc47b2c32");
    assert_true(shore__wire_recovery_get(bytes, n, &again));
    assert_memory_equal(&again.record, &r.record, sizeof r.record);
    assert_memory_equal(&again.older, &r.older, sizeof r.older);
    assert_true(again.damaged_record && !strcmp(again.damage.text, r.damage.text));
    assert_false(shore__wire_recovery_get(bytes, n - 1, &again));
}

static void answers(void **state) {
    unsigned char bytes[SHORE__WIRE_ANSWER_MOST];
    struct shore_diag diag = {0};
    shore__fail(&diag, SHORE_EBUSY, "it is in use");
    shore__advise(&diag, SHORE_EBUSY, SHORE_ADVICE_OVERWRITE, "/a/run");
    struct shore__wire_answer a;
    uint32_t n = shore__wire_answer_put(bytes, SHORE_EBUSY, &diag);
    const struct shore__wire_header h = {.type = SHORE__WIRE_DONE, .body_bytes = n}, cut = {.body_bytes = n - 1};
    bytes_are("answer", bytes, n, "34 a84fe3c2ac767475d05c50b1a532c833");
    assert_int_equal(shore__wire_answer_get(&h, bytes, &a, &diag), 0);
    assert_true(a.rc == SHORE_EBUSY && a.advice == SHORE_ADVICE_OVERWRITE && a.result_bytes == 14);
    assert_memory_equal(a.text, "it is in use", a.text_bytes);
    assert_memory_equal(a.of, "/a/run", a.of_bytes);
    assert_int_equal(shore__wire_answer_get(&cut, bytes, &a, &diag), SHORE_ELINK);
}

static void what_is_at_a_path(void **state) {
    struct shore__probe again, p = {.exists = true,
                                    .is_volume = true,
                                    .is_device = true,
                                    .capacity_bytes = UINT64_C(11) << 40,
                                    .device = 0x2122,
                                    .path = (char *)(uintptr_t) "/a/volume",
                                    .size_bytes = UINT64_C(13) << 39,
                                    .desc = desc_of(extents, 2),
                                    .recovery = recovery_of(false)};
    uint32_t n;
    strcpy(p.trouble.text, "why not");
    unsigned char *bytes = shore__probe_put(&p, &n);
    bytes_are("probe", bytes, n, "370 c0fb582dd017e1d7550485eaec4b247e");
    assert_true(shore__probe_get(bytes, n, &again));
    assert_string_equal(again.path, p.path);
    assert_true(again.desc.nextents == 2 && again.capacity_bytes == p.capacity_bytes && again.device == p.device);
    assert_int_equal(again.recovery.record.sequence, p.recovery.record.sequence);
    shore__probe_free(&again);
    assert_false(shore__probe_get(bytes, n - 1, &again));
    free(bytes);
}

static void opening(void **state) {
    struct shore_layout *layout = layout_of();
    struct shore__wire_open back, o = {.path = (char *)(uintptr_t) "/a/path",
                                       .build = (char *)(uintptr_t) "1.2.3",
                                       .has_desc = true,
                                       .desc = desc_of(extents, 2),
                                       .mode = SHORE__WIRE_MODE_CREATE,
                                       .layout = layout,
                                       .optimizer = SHORE_ADAMW,
                                       .io = SHORE_IO_THREADS,
                                       .fp32_params = true,
                                       .silence_ms = 30001,
                                       .connections = 4};
    struct shore_diag diag = {0};
    unsigned char *bytes;
    uint32_t n;
    memcpy(o.plane_bytes, o.desc.plane_bytes, sizeof o.plane_bytes);
    assert_int_equal(shore__wire_open_put(&o, false, &bytes, &n), 0);
    bytes_are("open", bytes, n, "383 31ccb647cdf8db1b61318f2a63772d2a");
    if (shore__wire_open_get(bytes, n, false, &back, &diag)) fail_msg("%s", diag.text);
    assert_string_equal(back.path, o.path);
    assert_true(back.mode == o.mode && back.io == o.io && back.fp32_params && back.silence_ms == 30001);
    assert_true(back.connections == 4 && back.layout->segments == layout->segments);
    assert_true(back.layout->blocks[1].tensors[0].group == SHORE_GROUP_RESTS);
    assert_true(back.desc.nextents == 2 && back.desc.extents[1].first == 1 && back.desc.spill);
    assert_memory_equal(back.desc.identity, o.desc.identity, o.desc.identity_bytes);
    shore__wire_open_free(&back);
    free(bytes);
    shore_layout_free(layout);
}

static void opened(void **state) {
    struct shore__wire_open back, o = {.path = (char *)(uintptr_t) "/a/path",
                                       .build = (char *)(uintptr_t) "1.2.3",
                                       .has_desc = true,
                                       .desc = desc_of(extents, 2),
                                       .caps = 11,
                                       .describe = (char *)(uintptr_t) "a drive",
                                       .disk_bytes = UINT64_C(17) << 37,
                                       .slots = 8,
                                       .span_segments = 6,
                                       .slot_bytes = UINT64_C(3) << 20,
                                       .has_recovery = true,
                                       .recovery = recovery_of(true)};
    struct shore_diag diag = {0};
    unsigned char *bytes;
    uint32_t n;
    fill(o.token, sizeof o.token, 40);
    assert_int_equal(shore__wire_open_put(&o, true, &bytes, &n), 0);
    bytes_are("opened", bytes, n, "685 ec6cb69ebdcbb66e7e49e97bd7812e25");
    if (shore__wire_open_get(bytes, n, true, &back, &diag)) fail_msg("%s", diag.text);
    assert_string_equal(back.describe, o.describe);
    assert_memory_equal(back.token, o.token, sizeof o.token);
    assert_true(back.caps == 11 && back.slots == 8 && back.span_segments == 6 && back.slot_bytes == o.slot_bytes);
    assert_true(back.disk_bytes == o.disk_bytes && back.recovery.older.epoch == o.recovery.older.epoch);
    shore__wire_open_free(&back);
    /* a request does not know an answer's settings */
    assert_int_equal(shore__wire_open_get(bytes, n, false, &back, &diag), SHORE_EFORMAT);
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_and_requests),
        cmocka_unit_test(numbers_of_a_group),
        cmocka_unit_test(counters),
        cmocka_unit_test(records),
        cmocka_unit_test(answers),
        cmocka_unit_test(what_is_at_a_path),
        cmocka_unit_test(opening),
        cmocka_unit_test(opened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
