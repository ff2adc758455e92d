/* Rows of a table, picked out of the pages that they lie in, or added to there. Pure: no I/O, no allocation.
 *
 * A table lies in a space of bytes. A request names rows, ascending and each once, so those of one page follow each
 * other: the page is read once, and pages that are neighbours are one read. The caller goes through the space in
 * windows of pages, with one cursor for what is read and one for what is done:
 *
 *     n = shore__rows_collect(&rows, &ahead, page, most)     the pages of the next rows, ascending; 0: no more
 *     read these pages into memory, one behind the other
 *     while (shore__rows_part(&rows, &cursor, page, n, &part))
 *         work on part.bytes bytes at memory + part.at
 *
 * If all bytes of all rows stood in one row, those of a part would begin at part.offset. No page is in two windows. */
#ifndef SHORE_NEAR_ROW_PAGES_H
#define SHORE_NEAR_ROW_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHORE__ROWS_PAGE 4096u

struct shore__rows {
    uint64_t first;      /* where row 0 begins */
    uint32_t bytes;      /* of a row */
    uint32_t per_stripe; /* so many rows follow each other, and the next ones begin at the next stripe; 0: all follow */
    uint64_t stripe;     /* bytes */
    uint64_t from, to;   /* what lies outside of these, in whole pages, is left out: rows may be cut off */
    const uint32_t *row;
    uint32_t count;
};

/* Zero-initialise. */
struct shore__rows_cursor {
    uint32_t row;    /* index of the next one */
    uint32_t done;   /* bytes of it that are done, of those that are not left out */
    uint32_t page;   /* of the window */
    uint64_t offset; /* bytes of all rows that are done */
};

struct shore__rows_page {
    uint64_t number; /* where it lies, divided by SHORE__ROWS_PAGE */
    uint32_t wanted; /* bytes of it */
};

struct shore__rows_part {
    uint64_t at, offset;
    uint32_t bytes;
};

/* Whether rows[] is ascending, and each row is below `rows`. */
bool shore__rows_valid(const uint32_t *row, uint32_t count, uint64_t rows);
/* Bytes of all the rows that are not left out. */
uint64_t shore__rows_bytes(const struct shore__rows *rows);

/* See above. */
uint32_t shore__rows_collect(const struct shore__rows *rows, struct shore__rows_cursor *cursor,
                             struct shore__rows_page *page, uint32_t most);
bool shore__rows_part(const struct shore__rows *rows, struct shore__rows_cursor *cursor,
                      const struct shore__rows_page *page, uint32_t npages, struct shore__rows_part *part);
/* Pages from page[0] on that follow each other. */
uint32_t shore__rows_run(const struct shore__rows_page *page, uint32_t npages);

/* Adds elements: to[i] + from[i] in fp32, rounded once to what `to` holds. NaN is stored as 0x7FC00000 and 0x7FC0. Any
 * alignment of elements. */
void shore__rows_add_f32(float *to, const float *from, size_t elems);
void shore__rows_add_bf16(uint16_t *to, const float *from, size_t elems);

/* All versions, for tests: scalar, avx2, avx512, neon. name is NULL at the end. */
struct shore__rows_version {
    const char *name;
    bool (*usable)(void);
    void (*add_f32)(float *to, const float *from, size_t elems);
    void (*add_bf16)(uint16_t *to, const float *from, size_t elems);
};
const struct shore__rows_version *shore__rows_versions(void);

#endif
