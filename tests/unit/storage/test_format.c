/* The bytes of a header and of records, pinned by their hashes: a volume outlives the build that made it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "storage/format.h"
#include "storage/hash.h"

static void page_is(const char *what, const unsigned char *page, const char *expected) {
    unsigned char hash[16];
    char text[33];
    shore__hash128(page, SHORE__PAGE_BYTES, 0, hash);
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", hash[i]);
    if (strcmp(text, expected) != 0) fail_msg("%s: %s, and it was %s", what, text, expected);
}

static void fill(unsigned char *data, size_t bytes, unsigned first) {
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(first + i);
}

static struct shore__volume_desc desc_of(bool apart) {
    struct shore__volume_desc d = {.fleet_id = {0x1122334455667788, 0x99AABBCCDDEEFF00},
                                   .volume_id = {0x0102030405060708, 0x1112131415161718},
                                   .drive = 1,
                                   .ndrives = 3,
                                   .generation = UINT64_C(9) << 36,
                                   .plane_bytes = {131072, 131072, 262144, 262144},
                                   .plane_form = 1,
                                   .nextents = 4,
                                   .segments = 6,
                                   .scratch_bytes = 8192,
                                   .spill = true,
                                   .apart = apart,
                                   .identity_bytes = 10};
    if (apart) fill(d.rest_key, sizeof d.rest_key, 70);
    return d;
}

static void headers(void **state) {
    static const char *const expected[] = {"361c03dea730011a39826eef40967d96", "a7d04b7f6c6147b1dc106ee24c2433f2"};
    for (int apart = 0; apart < 2; apart++) {
        unsigned char page[SHORE__PAGE_BYTES];
        struct shore__regions at;
        struct shore__header again, h = {.desc = desc_of(apart), .unfinished = !apart};
        h.version = apart ? SHORE__VOLUME_APART : SHORE__VOLUME_VERSION;
        fill(h.placement_hash, 16, 20);
        fill(h.identity_hash, 16, 50);
        assert_int_equal(shore__regions_make(&h.desc, h.version, &at), 0);
        h.size_bytes = at.end;
        shore__header_write(&h, page);
        page_is("header", page, expected[apart]);
        assert_int_equal(shore__header_parse(page, &again), SHORE__PARSE_OK);
        assert_memory_equal(&again.desc, &h.desc, sizeof h.desc);
        assert_true(again.version == h.version && again.unfinished == h.unfinished && again.size_bytes == h.size_bytes);
        assert_memory_equal(again.placement_hash, h.placement_hash, 16);
        assert_memory_equal(again.identity_hash, h.identity_hash, 16);
    }
}

static void records(void **state) {
    static const char *const expected[] = {"912ae5dd4f33b7f440cb71e364d87d0a", "3dddb71b3b32af9c393676bff68bec38"};
    const struct shore__volume_desc desc = desc_of(false);
    for (uint32_t version = 2; version <= 3; version++) {
        unsigned char page[SHORE__PAGE_BYTES];
        struct shore__record again, r = {.sequence = 7, .epoch = UINT64_C(5) << 33, .active = 1, .metrics_bytes = 300};
        fill(r.metrics, r.metrics_bytes, 3);
        for (unsigned s = 0; s < 2; s++) {
            r.slot[s].step = s + (UINT64_C(3) << 35);
            fill(r.slot[s].table_hash, 16, 10 * s);
            if (version < 3) continue;
            fill(r.slot[s].map_hash, 16, 100 + s);
            fill(r.slot[s].blob_hash, 16, 150 + s);
            r.slot[s].blob_bytes = 1000 + s;
            r.slot[s].mapped = (uint16_t)s;
            r.slot[s].blob_place = (uint16_t)!s;
        }
        shore__record_write(&desc, version, &r, page);
        page_is("record", page, expected[version - 2]);
        assert_int_equal(shore__record_parse(&desc, version, 1, page, &again), SHORE__PARSE_OK);
        assert_memory_equal(&again, &r, sizeof r);
        assert_int_equal(shore__record_parse(&desc, version, 0, page, &again), SHORE__PARSE_DAMAGED);
        page[100] ^= 1;
        assert_int_equal(shore__record_parse(&desc, version, 1, page, &again), SHORE__PARSE_DAMAGED);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(headers), cmocka_unit_test(records)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
