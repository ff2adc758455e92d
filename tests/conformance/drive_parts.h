/* A fleet of four drives by several parts, which are fleets of this process, beside one that is whole. */
#ifndef TESTS_DRIVE_PARTS_H
#define TESTS_DRIVE_PARTS_H

#include "conformance/drive_harness.h"

#define DRIVES 4u
#define PARTS_MOST 6u /* some have no drives */
#define PART_BYTES (1u << 20)

static char parts_folder[] = "/dev/shm/shore-parts-XXXXXX";

/* Many fleets are made, and each flushes its drives often: in memory that takes no time. */
static inline int parts_go_to_memory(void **state) {
    (void)state;
    assert_non_null(mkdtemp(parts_folder));
    return chdir(parts_folder);
}

static inline int parts_come_back(void **state) {
    (void)state;
    return chdir("/") || rmdir(parts_folder);
}

static inline void must(const struct shore_diag *diag, int rc) {
    if (rc) fail_msg("%d: %s", rc, diag->text);
}

struct whole {
    struct place place;
    struct plain plain;
    struct shore_fleet *fleet;
    struct shore_diag diag;
};

static const uint64_t fleet_id[2] = {54, 1};

static inline struct shore_fleet_options whole_options(const struct place *place) {
    return (struct shore_fleet_options){.size = sizeof(struct shore_fleet_options),
                                        .drives = place->paths,
                                        .ndrives = place->ndrives,
                                        .spill = true,
                                        .scratch_bytes = 8 << 20,
                                        .drive_speeds = "1,1,1,1",
                                        .io = SHORE_IO_THREADS,
                                        .fleet_id = {fleet_id[0], fleet_id[1]}};
}

static inline void whole_open(struct whole *w) {
    memset(w, 0, sizeof *w);
    place_open(&w->place, "ffff");
    plain_open(&w->plain, SHORE_ADAMW, false);
    struct shore_fleet_options options = whole_options(&w->place);
    must(&w->diag, shore_fleet_create(w->plain.layout, &options, &w->fleet, &w->diag));
    must(&w->diag, fleet_init(w->fleet, &w->plain, &w->diag));
}

static inline int whole_again(struct whole *w) {
    struct shore_fleet_options options = whole_options(&w->place);
    shore_fleet_close(w->fleet);
    return shore_fleet_open(w->plain.layout, &options, &w->fleet, &w->diag);
}

static inline void whole_step(struct whole *w) {
    must(&w->diag, fleet_step(w->fleet, &w->plain, w->plain.step, &w->diag));
    plain_step(&w->plain, 1);
}

static inline void whole_end(struct whole *w) {
    plain_close(&w->plain);
    place_close(&w->place);
}

struct parts {
    struct place place;
    struct plain plain;
    uint32_t nparts;
    bool mine[PARTS_MOST][DRIVES]; /* by part, by drive */
    struct shore_fleet *fleet[PARTS_MOST];
    struct shore_diag diag;
    atomic_uint asked; /* fetches between parts */
};

/* The owner reads it for the asker. */
static inline int fetch_from_owner(void *ctx, const struct shore_elsewhere *request, struct shore_completion done) {
    struct parts *p = ctx;
    uint32_t owner = 0;
    while (!p->mine[owner][request->drive])
        owner++;
    atomic_fetch_add(&p->asked, 1);
    return shore_fleet_fetch(p->fleet[owner], request->step, request->block, request->segment, request->count,
                             request->kind, request->dst, done);
}

static inline struct shore_fleet_options part_options(struct parts *p, uint32_t part) {
    struct shore_fleet_options options = whole_options(&p->place);
    for (uint32_t d = 0; d < DRIVES; d++)
        p->mine[part][d] = d >= part * DRIVES / p->nparts && d < (part + 1) * DRIVES / p->nparts;
    options.mine = p->mine[part];
    options.fetch_elsewhere = fetch_from_owner;
    options.elsewhere_ctx = p;
    options.drive_speeds = NULL;
    return options;
}

/* Tells all parts of all. */
static inline int parts_unite(struct parts *p) {
    static unsigned char told[PARTS_MOST][PART_BYTES];
    const void *parts[PARTS_MOST];
    size_t bytes[PARTS_MOST];
    int rc = 0;
    for (uint32_t i = 0; !rc && i < p->nparts; i++) {
        parts[i] = told[i];
        bytes[i] = PART_BYTES;
        rc = shore_fleet_part(p->fleet[i], told[i], &bytes[i], &p->diag);
    }
    for (uint32_t i = 0; !rc && i < p->nparts; i++)
        rc = shore_fleet_unite(p->fleet[i], parts, bytes, p->nparts, &p->diag);
    return rc;
}

static inline void parts_close(struct parts *p) {
    for (uint32_t i = 0; i < p->nparts; i++) {
        shore_fleet_close(p->fleet[i]);
        p->fleet[i] = NULL;
    }
}

static inline void parts_make_on(struct parts *p, uint32_t nparts, const char *kinds) {
    memset(p, 0, sizeof *p);
    place_open(&p->place, kinds);
    plain_open(&p->plain, SHORE_ADAMW, false);
    p->nparts = nparts;
    for (uint32_t i = 0; i < nparts; i++) {
        struct shore_fleet_options options = part_options(p, i);
        must(&p->diag, shore_fleet_create(p->plain.layout, &options, &p->fleet[i], &p->diag));
    }
    must(&p->diag, parts_unite(p));
    for (uint32_t i = 0; i < nparts; i++)
        must(&p->diag, fleet_init(p->fleet[i], &p->plain, &p->diag));
}

static inline void parts_make(struct parts *p, uint32_t nparts) {
    parts_make_on(p, nparts, "ffff");
}

static inline int parts_try_open(struct parts *p) {
    int rc = 0;
    for (uint32_t i = 0; !rc && i < p->nparts; i++) {
        struct shore_fleet_options options = part_options(p, i);
        rc = shore_fleet_open(p->plain.layout, &options, &p->fleet[i], &p->diag);
    }
    return rc ? rc : parts_unite(p);
}

static inline void parts_open(struct parts *p) {
    must(&p->diag, parts_try_open(p));
}

static inline void parts_step_unconfirmed(struct parts *p) {
    for (uint32_t i = 0; i < p->nparts; i++)
        must(&p->diag, fleet_step(p->fleet[i], &p->plain, p->plain.step, &p->diag));
    plain_step(&p->plain, 1);
}

static inline void parts_step(struct parts *p) {
    parts_step_unconfirmed(p);
    for (uint32_t i = 0; i < p->nparts; i++)
        assert_int_equal(shore_fleet_confirm(p->fleet[i], p->plain.step), 0);
}

/* The digest of all sums, and what each part reads of all blocks. */
static inline void parts_assert_state(struct parts *p) {
    unsigned char sums[PARTS_MOST][16], got[16], want[16];
    uint32_t owned = 0, segments = 0;
    for (uint32_t i = 0; i < p->nparts; i++) {
        must(&p->diag, shore_fleet_leaf_sum(p->fleet[i], true, sums[i], &p->diag));
        for (uint32_t b = 0; b < BLOCKS; b++) {
            const struct shore_layout_block *block = &p->plain.layout->blocks[b];
            float *read = pages(block->padded_elems * 4);
            uint32_t first, count;
            struct shore_wait wait;
            if (shore_fleet_own(p->fleet[i], b, &first, &count)) assert_true(first + count <= block->segments);
            owned += count;
            segments += i ? 0 : block->segments;
            shore_wait_init(&wait);
            must(&p->diag, shore_fleet_fetch(p->fleet[i], p->plain.step, b, 0, block->segments, SHORE_FETCH_MASTER,
                                             read, shore_wait_completion(&wait)));
            must(&p->diag, shore_wait(&wait, &p->diag));
            assert_memory_equal(read, p->plain.master[b], block->padded_elems * 4);
            free(read);
        }
    }
    assert_int_equal(owned, segments);
    shore_fleet_digest_of(p->plain.step, (const unsigned char(*)[16])sums, p->nparts, got);
    plain_digest(&p->plain, want);
    assert_memory_equal(got, want, 16);
    if (p->nparts > 1) assert_true(p->asked > 0);
}

static inline void parts_end(struct parts *p) {
    parts_close(p);
    plain_close(&p->plain);
    place_close(&p->place);
}

#endif
