/* Sizes, counts and times as people write them; little-endian fields; clocks. */
#ifndef SHORE_BASE_UNITS_H
#define SHORE_BASE_UNITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is written for people, as a value: shore__format_size(bytes).text lives as long as the statement. */
struct shore__written {
    char text[36];
};

/* "2GiB", "500M", "1.5 GiB", "64k", "4096": K, M, G, T, P and KiB, MiB.. are powers of 1,024; KB, MB.. of 1,000.
 * Case does not matter. Rejects signs, overflow and trailing text with -EINVAL. */
int shore__parse_size(const char *text, uint64_t *bytes);

/* A decimal number without names, hexadecimal or leading space. Rejects everything else, and numbers beyond a double,
 * with -EINVAL. */
int shore__parse_real(const char *text, double *value);

/* A share: "top1%", "1%", "0.01", or "none" for 0; above 0, up to 1. Rejects everything else with -EINVAL. */
int shore__parse_share(const char *text, double *share);
/* "top1%", or "none": accepted by the function above. */
struct shore__written shore__format_share(double share);

/* A size of at least bytes, in the form of shore__format_size(), which shore__parse_size() accepts. Rounded up to whole
 * MiB from 1 MiB on ("397.00 MiB", "29.80 GiB"), to KiB below. */
struct shore__written shore__format_size_up(uint64_t bytes);
struct shore__written shore__format_size(uint64_t bytes);
/* 32 hexadecimal digits. */
struct shore__written shore__format_digest(const unsigned char digest[16]);
/* "50,257" */
struct shore__written shore__format_count(uint64_t count);
/* "0.312", "50,257": three digits; from 100 on whole. */
struct shore__written shore__format_number(double value);
/* "3 h 12 min", "4.2 s". */
struct shore__written shore__format_seconds(double seconds);

/* An interval: a number of steps ("10") or a time ("30s", "5m", "1h"); the other one is 0. */
struct shore__pace {
    uint64_t steps;
    double seconds;
};
/* Rejects everything else, and 0, with -EINVAL. */
int shore__parse_pace(const char *text, struct shore__pace *pace);
/* in the form that is parsed */
struct shore__written shore__format_pace(const struct shore__pace *pace);
/* "10:18:52", local time. seconds: since the epoch. */
struct shore__written shore__format_time_of_day(int64_t seconds);

/* 0: there are none. Sorts them. */
double shore__median(double *values, size_t count);
/* The value that a quarter of them lie below, for times that other work on the machine prolongs. The same otherwise. */
double shore__lower_quartile(double *values, size_t count);

/* Sorts numbers, and leaves each once. Returns how many are left. */
uint32_t shore__sort_once(uint32_t *numbers, uint32_t count);
/* A number among those; NULL: it is none of them. */
const uint32_t *shore__find_sorted(const uint32_t *numbers, uint32_t count, uint32_t number);

#define SHORE__DAY_SECONDS 86400

/* CLOCK_MONOTONIC, or a test's clock, set while it had no other thread; NULL: back to the former. */
uint64_t shore__now_ns(void);
void shore__set_clock(uint64_t (*now_ns)(void));
void shore__sleep_until(uint64_t instant_ns); /* returns at once with a test's clock */
void shore__pause_until(uint64_t instant_ns); /* the same, but a signal ends it, so that the caller can check for one */

static inline void shore__put_u16(unsigned char *p, uint16_t v) {
    p[0] = (unsigned char)v;
    p[1] = (unsigned char)(v >> 8);
}
static inline void shore__put_u32(unsigned char *p, uint32_t v) {
    shore__put_u16(p, (uint16_t)v);
    shore__put_u16(p + 2, (uint16_t)(v >> 16));
}
static inline void shore__put_u64(unsigned char *p, uint64_t v) {
    shore__put_u32(p, (uint32_t)v);
    shore__put_u32(p + 4, (uint32_t)(v >> 32));
}
static inline uint16_t shore__get_u16(const unsigned char *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}
static inline uint32_t shore__get_u32(const unsigned char *p) {
    return shore__get_u16(p) | (uint32_t)shore__get_u16(p + 2) << 16;
}
static inline uint64_t shore__get_u64(const unsigned char *p) {
    return shore__get_u32(p) | (uint64_t)shore__get_u32(p + 4) << 32;
}

/* A setting that may be left to the program. */
enum shore__when { SHORE__AUTO, SHORE__ON, SHORE__OFF };

/* Resident memory of this process in bytes, from VmRSS and VmHWM of /proc/self/status; 0 if unreadable. */
void shore__resident_bytes(uint64_t *now, uint64_t *peak);
/* More than resident memory differs between two starts: a minimum named by one start must be enough for the next. */
#define SHORE__RESIDENT_VARIES_BYTES (UINT64_C(1) << 20)

#endif
