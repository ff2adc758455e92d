#include "base/units.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "longshore/memory.h"

static const struct unit {
    const char *name;
    uint64_t bytes;
} units[] = {
    {"", 1},
    {"B", 1},
    {"K", UINT64_C(1) << 10},
    {"M", UINT64_C(1) << 20},
    {"G", UINT64_C(1) << 30},
    {"T", UINT64_C(1) << 40},
    {"P", UINT64_C(1) << 50},
    {"KiB", UINT64_C(1) << 10},
    {"MiB", UINT64_C(1) << 20},
    {"GiB", UINT64_C(1) << 30},
    {"TiB", UINT64_C(1) << 40},
    {"PiB", UINT64_C(1) << 50},
    {"KB", UINT64_C(1000)},
    {"MB", UINT64_C(1000000)},
    {"GB", UINT64_C(1000000000)},
    {"TB", UINT64_C(1000000000000)},
    {"PB", UINT64_C(1000000000000000)},
};

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

int shore__parse_real(const char *text, double *value) {
    char *end = NULL;
    if (*text == '\0' || text[strspn(text, "0123456789.eE+-")] != '\0') return -EINVAL;
    errno = 0;
    *value = strtod(text, &end);
    return *end == '\0' && errno == 0 && isfinite(*value) ? 0 : -EINVAL;
}

int shore__parse_share(const char *text, double *share) {
    const char *digits = strncmp(text, "top", 3) == 0 ? text + 3 : text;
    char *end = NULL;
    if (strcmp(text, "none") == 0) {
        *share = 0;
        return 0;
    }
    /* no names, no hexadecimal, no leading space */
    if (!is_digit(*digits) || digits[strspn(digits, "0123456789.eE+-%")] != '\0') return -EINVAL;
    double value = strtod(digits, &end);
    bool percent = *end == '%';
    if (end[percent] != '\0' || (digits != text && !percent)) return -EINVAL;
    if (percent) value /= 100;
    if (!(value > 0 && value <= 1)) return -EINVAL;
    *share = value;
    return 0;
}

struct shore__written shore__format_share(double share) {
    struct shore__written out;
    if (share > 0)
        snprintf(out.text, sizeof out.text, "top%.10g%%", share * 100);
    else
        snprintf(out.text, sizeof out.text, "none");
    return out;
}

int shore__parse_size(const char *text, uint64_t *bytes) {
    const char *p = text;
    uint64_t whole = 0, fraction = 0, scale = 1;
    if (!is_digit(*p)) return -EINVAL;
    for (; is_digit(*p); p++)
        if (__builtin_mul_overflow(whole, 10, &whole) || __builtin_add_overflow(whole, (uint64_t)(*p - '0'), &whole))
            return -EINVAL;
    if (*p == '.') {
        if (!is_digit(*++p)) return -EINVAL;
        for (; is_digit(*p); p++) {
            if (scale == UINT64_C(1000000000000000000)) continue;
            fraction = fraction * 10 + (uint64_t)(*p - '0');
            scale *= 10;
        }
    }
    if (*p == ' ') {
        p += strspn(p, " ");
        if (*p == '\0') return -EINVAL;
    }
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcasecmp(p, units[i].name) != 0) continue;
        if (units[i].bytes == 1 && scale > 1) return -EINVAL;
        unsigned __int128 sum = (unsigned __int128)whole * units[i].bytes;
        sum += (unsigned __int128)fraction * units[i].bytes / scale;
        if (sum > UINT64_MAX) return -EINVAL;
        *bytes = (uint64_t)sum;
        return 0;
    }
    return -EINVAL;
}

struct shore__written shore__format_size_up(uint64_t bytes) {
    struct shore__written out;
    static const char *const names[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
    unsigned i = bytes >= UINT64_C(1) << 20;
    uint64_t unit = UINT64_C(1) << 10 * (i + 1);
    uint64_t whole = bytes / unit + (bytes % unit != 0), hundredths = whole * 100;
    for (; hundredths >= 102400 && i + 1 < sizeof names / sizeof names[0]; i++)
        hundredths = hundredths / 1024 + (hundredths % 1024 != 0);
    if (whole == 0 || whole > UINT64_MAX / unit)
        snprintf(out.text, sizeof out.text, "%llu B", (unsigned long long)bytes);
    else
        snprintf(out.text, sizeof out.text, "%llu.%02llu %s", (unsigned long long)(hundredths / 100),
                 (unsigned long long)(hundredths % 100), names[i]);
    return out;
}

struct shore__written shore__format_size(uint64_t bytes) {
    struct shore__written out;
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t i = 0;
    /* otherwise 1023.995 would be printed as 1024.00 of its unit */
    for (; value >= (i == 0 ? 1024.0 : 1023.995) && i + 1 < sizeof names / sizeof names[0]; i++)
        value /= 1024.0;
    snprintf(out.text, sizeof out.text, i == 0 ? "%.0f %s" : "%.2f %s", value, names[i]);
    return out;
}

struct shore__written shore__format_count(uint64_t count) {
    struct shore__written out;
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)count);
    size_t used = 0;
    for (int i = 0; i < n && used + 2 < sizeof out.text; i++) {
        if (i && (n - i) % 3 == 0) out.text[used++] = ',';
        out.text[used++] = digits[i];
    }
    out.text[used] = 0;
    return out;
}

struct shore__written shore__format_number(double value) {
    struct shore__written out;
    if (value >= 99.95 && value < 1e15) return shore__format_count((uint64_t)(value + 0.5));
    snprintf(out.text, sizeof out.text, "%.3g", value);
    return out;
}

struct shore__written shore__format_seconds(double seconds) {
    struct shore__written out;
    if (!(seconds >= 0.0 && seconds < 1e15)) {
        snprintf(out.text, sizeof out.text, "unknown");
    } else if (seconds < 0.9995) {
        snprintf(out.text, sizeof out.text, "%.0f ms", seconds * 1e3);
    } else if (seconds < 59.95) {
        snprintf(out.text, sizeof out.text, "%.1f s", seconds);
    } else {
        uint64_t s = (uint64_t)llround(seconds);
        if (s < 3600)
            snprintf(out.text, sizeof out.text, "%u min %u s", (unsigned)(s / 60), (unsigned)(s % 60));
        else if (s < SHORE__DAY_SECONDS)
            snprintf(out.text, sizeof out.text, "%u h %u min", (unsigned)(s / 3600), (unsigned)(s / 60 % 60));
        else
            snprintf(out.text, sizeof out.text, "%llu d %u h", (unsigned long long)(s / SHORE__DAY_SECONDS),
                     (unsigned)(s / 3600 % 24));
    }
    return out;
}

int shore__parse_pace(const char *text, struct shore__pace *pace) {
    struct shore__pace read = {0};
    char number[32];
    size_t digits = strspn(text, "0123456789."), steps = strspn(text, "0123456789");
    const char *unit = text + digits;
    if (digits == 0 || digits >= sizeof number) return -EINVAL;
    memcpy(number, text, digits);
    number[digits] = 0;
    errno = 0;
    if (*unit == 0 && steps == digits) {
        read.steps = strtoull(number, NULL, 10);
    } else if (shore__parse_real(number, &read.seconds)) {
        return -EINVAL;
    } else {
        double scale = strcmp(unit, "s") == 0 ? 1 : strcmp(unit, "m") == 0 ? 60 : strcmp(unit, "h") == 0 ? 3600 : 0;
        read.seconds *= scale;
        if (!(read.seconds <= 1e7)) return -EINVAL;
    }
    if (errno || (read.steps == 0 && !(read.seconds > 0))) return -EINVAL;
    *pace = read;
    return 0;
}

struct shore__written shore__format_pace(const struct shore__pace *pace) {
    struct shore__written out;
    if (pace->steps)
        snprintf(out.text, sizeof out.text, "%llu", (unsigned long long)pace->steps);
    else
        snprintf(out.text, sizeof out.text, "%.10gs", pace->seconds);
    return out;
}

struct shore__written shore__format_time_of_day(int64_t seconds) {
    struct shore__written out;
    struct tm tm;
    time_t t = (time_t)seconds;
    if (!localtime_r(&t, &tm) || !strftime(out.text, sizeof out.text, "%H:%M:%S", &tm))
        snprintf(out.text, sizeof out.text, "--:--:--");
    return out;
}

static uint64_t (*_Atomic clock_of_a_test)(void); /* set while threads of drives ask */

void shore__set_clock(uint64_t (*now_ns)(void)) {
    clock_of_a_test = now_ns;
}

uint64_t shore__now_ns(void) {
    struct timespec t;
    uint64_t (*of_a_test)(void) = clock_of_a_test;
    if (of_a_test) return of_a_test();
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static int pause_until(uint64_t instant_ns) {
    struct timespec at = {.tv_sec = (time_t)(instant_ns / 1000000000), .tv_nsec = (long)(instant_ns % 1000000000)};
    return clock_of_a_test ? 0 : clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

void shore__sleep_until(uint64_t instant_ns) {
    while (pause_until(instant_ns) == EINTR) {
    }
}

void shore__pause_until(uint64_t instant_ns) {
    pause_until(instant_ns);
}

int shore_size_parse(const char *text, uint64_t *bytes) {
    return shore__parse_size(text, bytes);
}

const char *shore_size_say(uint64_t bytes, bool up, char *out, size_t out_bytes) {
    snprintf(out, out_bytes, "%s", (up ? shore__format_size_up(bytes) : shore__format_size(bytes)).text);
    return out;
}

const char *shore_seconds_say(double seconds, char *out, size_t out_bytes) {
    snprintf(out, out_bytes, "%s", shore__format_seconds(seconds).text);
    return out;
}

struct shore__written shore__format_digest(const unsigned char digest[16]) {
    struct shore__written out;
    for (size_t i = 0; i < 16; i++)
        snprintf(out.text + 2 * i, 3, "%02x", digest[i]);
    return out;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double shore__median(double *values, size_t count) {
    if (!count) return 0;
    qsort(values, count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

double shore__lower_quartile(double *values, size_t count) {
    if (!count) return 0;
    qsort(values, count, sizeof *values, by_value);
    return values[count / 4];
}

static int by_number(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

uint32_t shore__sort_once(uint32_t *numbers, uint32_t count) {
    uint32_t n = 0;
    if (count) qsort(numbers, count, sizeof *numbers, by_number);
    for (uint32_t i = 0; i < count; i++)
        if (!i || numbers[i] != numbers[n - 1]) numbers[n++] = numbers[i];
    return n;
}

const uint32_t *shore__find_sorted(const uint32_t *numbers, uint32_t count, uint32_t number) {
    return bsearch(&number, numbers, count, sizeof number, by_number);
}
