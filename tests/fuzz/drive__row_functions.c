/* Requests for rows from strangers: what check() lets through stays within its range, its buffers and its memory, and
 * each page is read once.
 *
 * Input: a byte that chooses the function, 24 of the argument, a byte each for first page and pages (or segment and
 * segments), three for the bytes of the answer; the rest is what the request brings. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "drive/reach.h"
#include "drive/row_functions.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define SPACE_PAGES 512u /* of scratch, and of the planes of 16 segments */
#define MEMORY_PAGES 32u
#define HEAD (1u + SHORE__ROWS_ARGUMENT_BYTES + 5u)

struct world {
    struct shore__reach reach;
    const struct shore__call *call;
    unsigned char read[2][SPACE_PAGES], written[SPACE_PAGES];
};

static void move(struct shore__reach *reach, bool write, const struct shore__piece *p) {
    struct world *w = (struct world *)reach;
    const struct shore__call *c = w->call;
    uint64_t at = p->offset, from = c->start, to = c->start + c->bytes;
    const unsigned char *end = reach->memory + reach->memory_bytes, *buffer = p->buffer;
    if (p->of == SHORE__PIECE_PLANE) {
        if (write || p->block != c->block || p->offset + p->bytes > SHORE_SEGMENT_ELEMS * 2) abort();
        at += (uint64_t)p->segment * SHORE_SEGMENT_ELEMS * 2;
        from = (uint64_t)c->segment * SHORE_SEGMENT_ELEMS * 2;
        to = from + (uint64_t)c->count * SHORE_SEGMENT_ELEMS * 2;
    }
    if (at % SHORE__IO_ALIGN || p->bytes % SHORE__IO_ALIGN || !p->bytes || at < from || p->bytes > to - at) abort();
    if (buffer < reach->memory || p->bytes > (size_t)(end - buffer)) abort();
    for (uint64_t page = at / SHORE__IO_ALIGN; page < (at + p->bytes) / SHORE__IO_ALIGN; page++)
        if ((write ? w->written : w->read[p->plane == SHORE_PLANE_LO])[page]++) abort();
    if (!write) memset(p->buffer, (int)(at / SHORE__IO_ALIGN), p->bytes);
}

static int wait(struct shore__reach *reach, struct shore_diag *diag) {
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const struct {
        unsigned id;
        const struct shore__function *f;
    } functions[] = {{SHORE__GATHER, &shore__gather},
                     {SHORE__GATHER_SCRATCH, &shore__gather_scratch},
                     {SHORE__SCATTER, &shore__scatter},
                     {SHORE__SCATTER_ADD, &shore__scatter_add}};
    static const struct shore__volume_desc desc;
    struct shore_diag diag;
    if (bytes < HEAD) return 0;
    const uint8_t *range = data + 1 + SHORE__ROWS_ARGUMENT_BYTES;
    const unsigned which = data[0] % 4;
    struct shore__call call = {.function = functions[which].id,
                               .argument = data + 1,
                               .argument_bytes = SHORE__ROWS_ARGUMENT_BYTES,
                               .in_bytes = bytes - HEAD};
    call.out_bytes = which > 1 ? 0 : (uint64_t)range[2] << range[3] % 16 | range[4];
    if (which) {
        call.start = range[0] * (uint64_t)SHORE__IO_ALIGN;
        call.bytes = (1 + range[1] % (SPACE_PAGES - range[0])) * (uint64_t)SHORE__IO_ALIGN;
    } else {
        call.segment = range[0] % 16;
        call.count = 1 + range[1] % (16 - call.segment);
    }
    if (functions[which].f->check(&call, &desc, &diag)) return 0;
    /* buffers of their own: the address sanitizer sees what goes beyond their ends */
    unsigned char *in = malloc(call.in_bytes + 1), *out = malloc(call.out_bytes + 1);
    struct world w = {.reach = {NULL, &desc, aligned_alloc(SHORE__IO_ALIGN, MEMORY_PAGES * SHORE__IO_ALIGN),
                                MEMORY_PAGES * SHORE__IO_ALIGN, move, wait},
                      .call = &call};
    if (in && out && w.reach.memory) {
        memcpy(in, data + HEAD, call.in_bytes);
        call.in = in;
        call.out = out;
        functions[which].f->run(&w.reach, &call, &diag);
    }
    free(w.reach.memory);
    free(in);
    free(out);
    return 0;
}
