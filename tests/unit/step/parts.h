/* A fleet in two parts, each updated by a step of its own, beside a whole one that one step updates. */
#ifndef TESTS_STEP_PARTS_H
#define TESTS_STEP_PARTS_H

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/prng.h"
#include "base/units.h"
#include "drive/gate.h"
#include "longshore/step.h"
#include "seed.h"

enum { BLOCKS = 4, PARTS = 2, MOST = 13, SEGMENTS = 22, IMAGE_BYTES = 12 * SHORE_SEGMENT_ELEMS };
static const uint32_t segments_of[BLOCKS] = {5, 3, 1, MOST};

static uint64_t seed, drawn;
static inline uint32_t pick(uint32_t first, uint32_t last) {
    return first + (uint32_t)(shore__random_u64(seed, 1, drawn++) % (last - first + 1));
}

/* A part, or (the last) the whole. Each has drives of its own. */
struct part {
    struct shore_fleet *fleet;
    struct shore_pages *pages;
    struct shore_step *step;
    struct shore_step_options options;
    struct shore_step_unit unit[PARTS * BLOCKS];
    double sums[SEGMENTS];
    float *given[PARTS * BLOCKS]; /* what is handed over of a unit */
};

struct parts {
    struct shore_layout *layout;
    struct part part[PARTS + 1];
    float *gradient[BLOCKS];
    bool had[PARTS][BLOCKS]; /* which part's segments of a block have a gradient */
    double limit;
    bool refuses; /* the next fetch from another part fails */
    char directory[32], path[2][PARTS][64];
    struct shore_diag diag;
};

#define assert_ok(w, rc) assert_rc(w, rc, __LINE__)
static inline void assert_rc(struct parts *w, int rc, int line) {
    if (rc) fail_msg("line %d: %d: %s", line, rc, w->diag.text);
}

static inline void *memory_of(struct parts *w, uint32_t segments) {
    void *memory;
    assert_ok(w, shore_buffer_alloc((uint64_t)segments * SHORE_SEGMENT_ELEMS * 4, 0, &memory, &w->diag));
    return memory;
}
static inline void give_back(void *memory, uint32_t segments) {
    shore_buffer_free(memory, (uint64_t)segments * SHORE_SEGMENT_ELEMS * 4);
}

/* Writes of updates take long, so that who does not wait for them reads what was there before. */
static uint64_t writes_late(struct shore__gate *gate, enum shore_lane lane, uint32_t drive, uint64_t amount) {
    return shore__now_ns() + (lane == SHORE_LANE_DRIVE_WRITE ? 30 * UINT64_C(1000000) : 0);
}
static struct shore__gate late = {.over_ns = writes_late};

/* The owner reads it for the other part, once it is written. */
static int fetch_elsewhere(void *ctx, const struct shore_elsewhere *r, struct shore_completion done) {
    struct parts *w = ctx;
    struct shore_fleet *owner = w->part[r->drive].fleet;
    if (w->refuses) {
        w->refuses = false;
        shore_complete(done, SHORE_ESTALE, "that step is over");
        return 0;
    }
    int rc = shore_fleet_await(owner, r->step, r->block, r->segment, r->count, 60000, &w->diag);
    return rc ? rc : shore_fleet_fetch(owner, r->step, r->block, r->segment, r->count, r->kind, r->dst, done);
}

static inline void create_fleet(struct parts *w, uint32_t number) {
    static const bool mine[PARTS][PARTS] = {{true, false}, {false, true}};
    const char *drives[PARTS];
    for (uint32_t d = 0; d < PARTS; d++)
        drives[d] = w->path[number == PARTS][d];
    const struct shore_fleet_options options = {.size = sizeof options,
                                                .drives = drives,
                                                .ndrives = PARTS,
                                                .optimizer = SHORE_ADAMW,
                                                .spill = true,
                                                .fp32_params = true,
                                                .drive_speeds = "1,1",
                                                .io = SHORE_IO_BUFFERED,
                                                .fleet_id = {54, number == PARTS},
                                                .mine = number < PARTS ? mine[number] : NULL,
                                                .fetch_elsewhere = fetch_elsewhere,
                                                .elsewhere_ctx = w};
    assert_ok(w, shore_fleet_create(w->layout, &options, &w->part[number].fleet, &w->diag));
}

static inline void unite(struct parts *w) {
    static unsigned char told[PARTS][1 << 16];
    const void *parts[PARTS] = {told[0], told[1]};
    size_t bytes[PARTS] = {sizeof told[0], sizeof told[1]};
    for (uint32_t p = 0; p < PARTS; p++)
        assert_ok(w, shore_fleet_part(w->part[p].fleet, told[p], &bytes[p], &w->diag));
    for (uint32_t p = 0; p < PARTS; p++)
        assert_ok(w, shore_fleet_unite(w->part[p].fleet, parts, bytes, PARTS, &w->diag));
}

static inline void make_fleets(struct parts *w) {
    float *masters = calloc(SHORE_SEGMENT_ELEMS, sizeof *masters);
    snprintf(w->directory, sizeof w->directory, "step-parts-XXXXXX");
    assert_non_null(mkdtemp(w->directory));
    for (uint32_t i = 0; i < 2 * PARTS; i++)
        snprintf(w->path[i / PARTS][i % PARTS], sizeof w->path[0][0], "%s/%u.volume", w->directory, i);
    for (uint32_t p = 0; p <= PARTS; p++)
        create_fleet(w, p);
    unite(w);
    for (uint32_t p = 0; p <= PARTS; p++) {
        for (uint32_t b = 0; b < BLOCKS; b++)
            for (uint32_t s = 0; s < segments_of[b]; s++) {
                for (size_t i = 0; i < SHORE_SEGMENT_ELEMS; i++)
                    masters[i] = (float)((i + s + b) % 97) / 97;
                assert_ok(w, shore_fleet_init_block(w->part[p].fleet, b, s, 1, masters, NULL, NULL, &w->diag));
            }
        assert_ok(w, shore_fleet_seal(w->part[p].fleet, 0, &w->diag));
        if (p < PARTS && pick(0, 1)) shore__fleet_set_gate(w->part[p].fleet, &late);
    }
    free(masters);
}

static inline void range_of(const struct parts *w, uint32_t part, uint32_t block, uint32_t *segment, uint32_t *count) {
    shore_fleet_own(w->part[part].fleet, block, segment, count);
}

/* The unit of a part of a block. Its page is the block's; that of the whole is its own. */
static inline struct shore_step_unit unit_of(const struct parts *w, uint32_t part, uint32_t block, uint32_t page) {
    struct shore_step_unit u = {.block = block, .nparts = 1};
    range_of(w, part, block, &u.segment, &u.count);
    u.part[0] = (struct shore_step_part){page, u.segment, u.count};
    return u;
}

static inline void open_part(struct parts *w, uint32_t number) {
    struct part *p = &w->part[number];
    struct shore_pages_range range[PARTS * BLOCKS];
    bool whole = number == PARTS;
    uint32_t n = whole ? PARTS * BLOCKS : BLOCKS;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t b = i % BLOCKS;
        p->unit[i] = unit_of(w, whole ? i / BLOCKS : number, b, i);
        range[i] = (struct shore_pages_range){.block = b,
                                              .segment = whole ? p->unit[i].segment : 0,
                                              .count = whole ? p->unit[i].count : segments_of[b],
                                              .pool = b % 2 ? SHORE_PAGES_STAYS : 0,
                                              .kind = SHORE_FETCH_MASTER};
        p->given[i] = memory_of(w, segments_of[b]);
    }
    const struct shore_pages_pool pool = {.nbuffers = BLOCKS};
    const struct shore_pages_options pages = {
        .size = sizeof pages, .ranges = range, .nranges = n, .pools = &pool, .npools = 1};
    assert_ok(w, shore_pages_open(p->fleet, &pages, &p->pages, &w->diag));
    p->options = (struct shore_step_options){
        .size = sizeof p->options,
        .units = p->unit,
        .nunits = n,
        .clip = w->limit,
        .speculate = w->part[0].options.speculate,
        .form = w->part[0].options.form,
        .room_bytes = pick(0, 1) ? UINT64_MAX : pick(0, 8) * (uint64_t)SHORE_SEGMENT_ELEMS * 4,
        .aside_bytes = pick(0, 3) * (uint64_t)SHORE_SEGMENT_ELEMS * 4,
        .keeps_made = pick(0, 1),
        .sums = p->sums,
    };
    if (!number) {
        p->options.speculate = (enum shore_step_speculate)pick(0, 2);
        p->options.form = pick(0, 3) ? SHORE_GRADIENT_FP32 : SHORE_GRADIENT_BF16;
    }
    assert_ok(w, shore_step_open(p->fleet, p->pages, &p->options, &p->step, &w->diag));
}

static inline void open_parts(struct parts *w) {
    struct shore_tensor_spec tensor[BLOCKS][2];
    struct shore_block_spec block[BLOCKS];
    *w = (struct parts){.limit = pick(0, 3) ? 60 : 0};
    for (uint32_t b = 0; b < BLOCKS; b++) { /* two tensors with a gap between them */
        uint64_t elems = (uint64_t)segments_of[b] * SHORE_SEGMENT_ELEMS, first = elems / 3 / 256 * 256 + 17;
        tensor[b][0] = (struct shore_tensor_spec){"v", first, 0};
        tensor[b][1] = (struct shore_tensor_spec){"w", elems - (first + 255) / 256 * 256, 0};
        block[b] = (struct shore_block_spec){"b", tensor[b], 2};
        w->gradient[b] = memory_of(w, segments_of[b]);
    }
    assert_ok(w, shore_layout_make(block, BLOCKS, &w->layout));
    assert_int_equal(w->layout->segments, SEGMENTS);
    make_fleets(w);
    for (uint32_t p = 0; p <= PARTS; p++)
        open_part(w, p);
}

static inline void close_parts(struct parts *w) {
    for (uint32_t p = 0; p <= PARTS; p++) {
        struct part *part = &w->part[p];
        shore_step_close(part->step);
        shore_pages_close(part->pages);
        shore_fleet_close(part->fleet);
        for (uint32_t i = 0; i < part->options.nunits; i++)
            give_back(part->given[i], segments_of[i % BLOCKS]);
    }
    for (uint32_t i = 0; i < 2 * PARTS; i++)
        unlink(w->path[i / PARTS][i % PARTS]);
    rmdir(w->directory);
    for (uint32_t b = 0; b < BLOCKS; b++)
        give_back(w->gradient[b], segments_of[b]);
    shore_layout_free(w->layout);
}

/* ---- what must be equal ------------------------------------------------------------------------------------------ */

static inline void fetch(struct parts *w, uint32_t part, uint32_t block, enum shore_fetch_kind kind, void *to) {
    struct shore_fleet_info info = {.size = sizeof info};
    struct shore_wait wait;
    shore_fleet_info(w->part[part].fleet, &info);
    shore_wait_init(&wait);
    assert_ok(w, shore_fleet_fetch(w->part[part].fleet, info.step, block, 0, segments_of[block], kind, to,
                                   shore_wait_completion(&wait)));
    assert_ok(w, shore_wait(&wait, &w->diag));
}

/* The state of all segments is that of the whole, whichever part is asked; so are the parameters in pages. */
static inline void assert_same(struct parts *w) {
    void *got = memory_of(w, 3 * MOST), *want = memory_of(w, 3 * MOST);
    assert_true(shore_fleet_state_bytes(w->part[0].fleet) == IMAGE_BYTES);
    for (uint32_t p = 0; p < PARTS; p++)
        for (uint32_t b = 0; b < BLOCKS; b++) {
            const void *page;
            uint32_t count = segments_of[b];
            assert_ok(w, shore_pages_get(w->part[p].pages, b, &page, &w->diag));
            shore_pages_release(w->part[p].pages, b);
            fetch(w, p, b, SHORE_FETCH_STATE, got);
            fetch(w, PARTS, b, SHORE_FETCH_STATE, want);
            assert_memory_equal(got, want, (size_t)count * IMAGE_BYTES);
            fetch(w, PARTS, b, SHORE_FETCH_MASTER, want);
            assert_memory_equal(page, want, (size_t)count * SHORE_SEGMENT_ELEMS * 4);
        }
    give_back(got, 3 * MOST);
    give_back(want, 3 * MOST);
}

#endif
