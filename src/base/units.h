/* Sizes and counts as people write them, little-endian fields, and time. */
#ifndef SHORE_BASE_UNITS_H
#define SHORE_BASE_UNITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "2GiB", "500M", "1.5 GiB", "64k", "4096": K, M, G, T and KiB, MiB.. are powers of 1,024; KB, MB, GB, TB of 1,000.
 * Case does not matter. Rejects signs, overflow and trailing text with -EINVAL. */
int shore__parse_size(const char *text, uint64_t *bytes);

/* A number in decimal form; no names, no hexadecimal, no leading space. Rejects all else, and what a double cannot
 * hold, with -EINVAL. */
int shore__parse_real(const char *text, double *value);

/* A share of a whole: "top1%", "1%", "0.01", or "none" for 0; above 0, up to 1. Rejects all else with -EINVAL. */
int shore__parse_share(const char *text, double *share);
/* "top1%", or "none": what the above accepts. */
const char *shore__format_share(double share, char *out, size_t out_bytes);

/* A size that is enough, as shore__format_size() writes sizes, which shore__parse_size() accepts and takes for no less
 * than bytes: rounded up to whole MiB from 1 MiB on ("397.00 MiB", "29.80 GiB"), KiB below. Returns out. */
const char *shore__format_size_up(uint64_t bytes, char *out, size_t out_bytes);
const char *shore__format_size(uint64_t bytes, char *out, size_t out_bytes);
/* As 32 hexadecimal digits. Returns out. */
const char *shore__format_digest(const unsigned char digest[16], char out[33]);
/* "50,257" */
const char *shore__format_count(uint64_t count, char *out, size_t out_bytes);
/* "3 h 12 min", "4.2 s". */
const char *shore__format_seconds(double seconds, char *out, size_t out_bytes);

/* How often: after so many steps ("10"), or so much time ("30s", "5m", "1h"); the other one is 0. */
struct shore__pace {
    uint64_t steps;
    double seconds;
};
/* Rejects all else, and 0, with -EINVAL. */
int shore__parse_pace(const char *text, struct shore__pace *pace);
const char *shore__format_pace(const struct shore__pace *pace, char *out, size_t out_bytes); /* as it is read */
/* "10:18:52", local time. seconds: since the epoch. */
const char *shore__format_time_of_day(int64_t seconds, char *out, size_t out_bytes);

/* CLOCK_MONOTONIC, or what a test has put in its place while it had no other thread; NULL: back to that. */
uint64_t shore__now_ns(void);
void shore__set_clock(uint64_t (*now_ns)(void));
void shore__sleep_until(uint64_t instant_ns); /* at once by a test's clock */
void shore__pause_until(uint64_t instant_ns); /* the same; a signal ends it, which somebody may want to look at */

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

/* What a setting says that may be left to the program. */
enum shore__when { SHORE__AUTO, SHORE__ON, SHORE__OFF };

/* Resident memory of this process from /proc/self/status: VmRSS and VmHWM, bytes; 0 where it cannot be read. */
void shore__resident_bytes(uint64_t *now, uint64_t *peak);
/* By how much that differs between two starts, and more: a minimum that one names must do for the next. */
#define SHORE__RESIDENT_VARIES_BYTES (UINT64_C(1) << 20)

#endif
