#include "near/row_pages.h"

bool shore__rows_valid(const uint32_t *row, uint32_t count, uint64_t rows) {
    for (uint32_t i = 0; i < count; i++)
        if (row[i] >= rows || (i && row[i] <= row[i - 1])) return false;
    return true;
}

/* The bytes of row i that are not left out: [*begin, *end). */
static void extent_of(const struct shore__rows *r, uint32_t i, uint64_t *begin, uint64_t *end) {
    uint64_t n = r->row[i], at = r->first;
    if (r->per_stripe) {
        at += n / r->per_stripe * r->stripe;
        n %= r->per_stripe;
    }
    at += n * r->bytes;
    *begin = at > r->from ? at : r->from;
    *end = at + r->bytes < r->to ? at + r->bytes : r->to;
    if (*end < *begin) *end = *begin;
}

uint64_t shore__rows_bytes(const struct shore__rows *r) {
    uint64_t bytes = 0, begin, end;
    for (uint32_t i = 0; i < r->count; i++) {
        extent_of(r, i, &begin, &end);
        bytes += end - begin;
    }
    return bytes;
}

uint32_t shore__rows_collect(const struct shore__rows *r, struct shore__rows_cursor *c, struct shore__rows_page *page,
                             uint32_t most) {
    uint32_t n = 0;
    for (; c->row < r->count; c->row++, c->done = 0) {
        uint64_t begin, end, stop;
        extent_of(r, c->row, &begin, &end);
        for (begin += c->done; begin < end; begin = stop) {
            uint64_t number = begin / SHORE__ROWS_PAGE;
            stop = (number + 1) * SHORE__ROWS_PAGE < end ? (number + 1) * SHORE__ROWS_PAGE : end;
            if (!n || page[n - 1].number != number) {
                if (n == most) return n;
                page[n++] = (struct shore__rows_page){.number = number};
            }
            page[n - 1].wanted += (uint32_t)(stop - begin);
            c->done += (uint32_t)(stop - begin);
        }
    }
    return n;
}

uint32_t shore__rows_run(const struct shore__rows_page *page, uint32_t npages) {
    uint32_t n = 1;
    while (n < npages && page[n].number == page[0].number + n)
        n++;
    return npages ? n : 0;
}

bool shore__rows_part(const struct shore__rows *r, struct shore__rows_cursor *c, const struct shore__rows_page *page,
                      uint32_t npages, struct shore__rows_part *part) {
    for (; c->row < r->count; c->row++, c->done = 0) {
        uint64_t begin, end;
        extent_of(r, c->row, &begin, &end);
        begin += c->done;
        if (begin == end) continue;
        while (c->page < npages && page[c->page].number < begin / SHORE__ROWS_PAGE)
            c->page++;
        if (c->page == npages) break;
        uint32_t n = 1;
        while (c->page + n < npages && (page[c->page].number + n) * SHORE__ROWS_PAGE < end &&
               page[c->page + n].number == page[c->page].number + n)
            n++;
        uint64_t stop = (page[c->page].number + n) * SHORE__ROWS_PAGE;
        if (stop > end) stop = end;
        *part = (struct shore__rows_part){.at = c->page * (uint64_t)SHORE__ROWS_PAGE + begin % SHORE__ROWS_PAGE,
                                          .offset = c->offset,
                                          .bytes = (uint32_t)(stop - begin)};
        c->done += part->bytes;
        c->offset += part->bytes;
        return true;
    }
    c->page = 0; /* the next window */
    return false;
}
