#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/prng.h"
#include "base/units.h"

static void sizes_read_as_people_write_them(void **state) {
    static const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {
        {"0", 0},
        {"4096", 4096},
        {"4096B", 4096},
        {"64k", 65536},
        {"500M", 524288000},
        {"500MB", 500000000},
        {"2GiB", UINT64_C(1) << 31},
        {"1.5 GiB", 1610612736},
        {"1.5gib", 1610612736},
        {"2 g", UINT64_C(1) << 31},
        {"1.1MB", 1100000},
        {"1PB", UINT64_C(1000000000000000)},
        {"2PiB", UINT64_C(1) << 51},
        {"3tb", UINT64_C(3000000000000)},
        {"0.5K", 512},
        {"1TiB", UINT64_C(1) << 40},
        {"18446744073709551615", UINT64_MAX},
        {"16777215T", UINT64_C(16777215) << 40},
        {"1.9999999999999999999999K", 2047},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t bytes = 1;
        if (shore__parse_size(cases[i].text, &bytes) != 0 || bytes != cases[i].bytes)
            fail_msg("'%s' gave %llu", cases[i].text, (unsigned long long)bytes);
    }
}

static void shares_read_as_people_write_them(void **state) {
    static const struct {
        const char *text;
        double share;
    } cases[] = {{"top1%", 0.01}, {"1%", 0.01}, {"0.01", 0.01},  {"top0.5%", 0.005}, {"none", 0},
                 {"top100%", 1},  {"1", 1},     {"1e-3", 0.001}, {"top1e-1%", 1e-3}};
    static const char *const bad[] = {"",       "top",      "top1", "%",   "top%",   "-1%",   "101%",
                                      "1.01",   " 1%",      "1 %",  "1%%", "0x1p-3", "inf",   "nan",
                                      "top1%x", "toptop1%", "None", "0",   "top0%",  "1e-400"};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double share = -1;
        if (shore__parse_share(cases[i].text, &share) != 0 || share != cases[i].share)
            fail_msg("'%s' gave %g", cases[i].text, share);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        double share = -1;
        if (shore__parse_share(bad[i], &share) == 0 || share != -1) fail_msg("'%s' gave %g", bad[i], share);
    }
    assert_string_equal(shore__format_share(0.01).text, "top1%");
    assert_string_equal(shore__format_share(0.005).text, "top0.5%");
    assert_string_equal(shore__format_share(0).text, "none");
}

static void bad_sizes_are_refused_and_leave_the_value(void **state) {
    static const char *const bad[] = {"",
                                      " ",
                                      "-1",
                                      "+1",
                                      " 1",
                                      "1 ",
                                      "G",
                                      ".5G",
                                      "1.G",
                                      "1..5G",
                                      "1.5",
                                      "1.5B",
                                      "1GiBx",
                                      "1 GiB ",
                                      "1e9",
                                      "0x10",
                                      "1,5G",
                                      "nan",
                                      "18446744073709551616",
                                      "16777216T",
                                      "99999999999999999999999999",
                                      "1EiB",
                                      "1GG",
                                      "1\tG"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t bytes = 77;
        if (shore__parse_size(bad[i], &bytes) != -EINVAL || bytes != 77) fail_msg("'%s' was accepted", bad[i]);
    }
}

static void a_minimum_is_never_below_and_is_readable(void **state) {
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t bytes = shore__random_u64(1, 0, i) >> (i % 64);
        if (i < 5) bytes = UINT64_MAX - i;
        if (i >= 5 && i < 600) bytes = (UINT64_C(1) << (i % 64)) + i / 64 - 4;
        uint64_t back = 0;
        assert_int_equal(shore__parse_size(shore__format_size_up(bytes).text, &back), 0);
        assert_true(back >= bytes);
        uint64_t step = bytes >= 1048576 ? 1048576 : 1024;
        assert_true(back - bytes < step || back - bytes < back / 100 + step);
        if (back < UINT64_C(1) << 60)
            assert_string_equal(shore__format_size(back).text, shore__format_size_up(bytes).text);
    }
    assert_string_equal(shore__format_size_up(UINT64_C(397) << 20).text, "397.00 MiB");
    assert_string_equal(shore__format_size_up((UINT64_C(396) << 20) + 1).text, "397.00 MiB");
    assert_string_equal(shore__format_size_up(1048575).text, "1.00 MiB");
    assert_string_equal(shore__format_size_up(UINT64_C(30512) << 20).text, "29.80 GiB");
    assert_string_equal(shore__format_size_up(UINT64_MAX).text, "18446744073709551615 B");
}

static void sizes_and_times_for_reading(void **state) {
    assert_string_equal(shore__format_size(512).text, "512 B");
    assert_string_equal(shore__format_size(1610612736).text, "1.50 GiB");
    assert_string_equal(shore__format_size(1048575).text, "1.00 MiB");
    assert_string_equal(shore__format_size(UINT64_MAX).text, "16.00 EiB");
    assert_string_equal(shore__format_count(257).text, "257");
    assert_string_equal(shore__format_count(50257).text, "50,257");
    assert_string_equal(shore__format_count(UINT64_MAX).text, "18,446,744,073,709,551,615");
    assert_string_equal(shore__format_seconds(0.012).text, "12 ms");
    assert_string_equal(shore__format_seconds(4.2).text, "4.2 s");
    assert_string_equal(shore__format_seconds(59.96).text, "1 min 0 s");
    assert_string_equal(shore__format_seconds(3 * 3600 + 12 * 60 + 5).text, "3 h 12 min");
    assert_string_equal(shore__format_seconds(90000).text, "1 d 1 h");
    assert_string_equal(shore__format_seconds(NAN).text, "unknown");
    assert_string_equal(shore__format_seconds(-1).text, "unknown");
}

static void fields_are_little_endian(void **state) {
    unsigned char p[8];
    shore__put_u64(p, UINT64_C(0xF1E2D3C4B5A69788));
    assert_int_equal(p[0], 0x88);
    assert_int_equal(p[7], 0xF1);
    assert_true(shore__get_u64(p) == UINT64_C(0xF1E2D3C4B5A69788));
    assert_int_equal(shore__get_u32(p), 0xB5A69788);
    assert_int_equal(shore__get_u16(p + 6), 0xF1E2);
}

static void resident_memory_is_seen(void **state) {
    uint64_t before, peak, after, bytes = UINT64_C(8) << 20;
    shore__resident_bytes(&before, &peak);
    assert_true(before > 0 && peak >= before);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    memset(p, 1, bytes);
    shore__resident_bytes(&after, NULL);
    munmap(p, bytes);
    /* the kernel counts by batches on each processor */
    assert_true(after > before + bytes / 2);
    assert_true(shore__machine_memory_bytes() >= after);
}

static void sleeps_until_an_instant(void **state) {
    uint64_t want = shore__now_ns() + 2000000;
    shore__sleep_until(want);
    assert_true(shore__now_ns() >= want);
    shore__sleep_until(1); /* long over */
}

static void the_clock_goes_forward(void **state) {
    uint64_t a = shore__now_ns(), b = shore__now_ns();
    assert_true(a > 0 && b >= a);
}

static void paces_and_times_of_day(void **state) {
    struct shore__pace pace = {0};
    static const struct {
        const char *text;
        uint64_t steps;
        double seconds;
    } good[] = {{"10", 10, 0}, {"30s", 0, 30}, {"0.5s", 0, 0.5}, {"5m", 0, 300}, {"1.5h", 0, 5400}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(shore__parse_pace(good[i].text, &pace), 0);
        assert_true(pace.steps == good[i].steps && pace.seconds == good[i].seconds);
        struct shore__pace again = {0};
        assert_int_equal(shore__parse_pace(shore__format_pace(&pace).text, &again), 0);
        assert_true(again.steps == pace.steps && again.seconds == pace.seconds);
    }
    static const char *const bad[] = {"",
                                      "0",
                                      "0s",
                                      "s",
                                      "-1",
                                      "1.5",
                                      "10 s",
                                      "10d",
                                      "10ss",
                                      "1e3s",
                                      " 10",
                                      "1.2.3s",
                                      "99999999999999999999",
                                      "9999999999h",
                                      "..s"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (shore__parse_pace(bad[i], &pace) != -EINVAL) fail_msg("'%s' was accepted", bad[i]);
    setenv("TZ", "UTC0", 1);
    tzset();
    assert_string_equal(shore__format_time_of_day(1795947532).text, "10:18:52");
}

static void numbers_are_sorted_and_left_once(void **state) {
    uint32_t numbers[] = {7, 0, UINT32_MAX, 7, 0, 7, 1u << 31}, one = 5;
    const uint32_t want[] = {0, 7, 1u << 31, UINT32_MAX};
    assert_int_equal(shore__sort_once(numbers, 7), 4);
    assert_memory_equal(numbers, want, sizeof want);
    for (uint32_t i = 0; i < 4; i++)
        assert_ptr_equal(shore__find_sorted(numbers, 4, want[i]), &numbers[i]);
    assert_null(shore__find_sorted(numbers, 4, 8));
    assert_int_equal(shore__sort_once(&one, 1), 1);
    assert_int_equal(shore__sort_once(&one, 0), 0);
    assert_null(shore__find_sorted(&one, 0, 5));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_read_as_people_write_them),
        cmocka_unit_test(shares_read_as_people_write_them),
        cmocka_unit_test(bad_sizes_are_refused_and_leave_the_value),
        cmocka_unit_test(a_minimum_is_never_below_and_is_readable),
        cmocka_unit_test(sizes_and_times_for_reading),
        cmocka_unit_test(paces_and_times_of_day),
        cmocka_unit_test(numbers_are_sorted_and_left_once),
        cmocka_unit_test(fields_are_little_endian),
        cmocka_unit_test(resident_memory_is_seen),
        cmocka_unit_test(the_clock_goes_forward),
        cmocka_unit_test(sleeps_until_an_instant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
