/* Rows of a table: gradients of a few rows have the bits of dense ones, on every kind of drive, and only they travel.
 */
#include "conformance/drive_bench.h"

#include "seed.h"

#define ROWS_MOST 512u

static uint64_t seed;

static uint64_t draw(uint64_t *stream, uint64_t below) {
    return (uint64_t)(shore__random_unit(seed, 7, (*stream)++) * (double)below);
}

/* Tables within the harness's blocks; rows that divide neither a page nor a segment. */
static const struct table {
    uint32_t block, tensor, columns;
} tables[] = {{0, 1, 70}, {1, 0, 200}, {1, 0, 8000}, {1, 1, 5}, {2, 0, 40}};
#define NTABLES (sizeof tables / sizeof tables[0])

/* Gradients of some rows of a table, and the same as a dense one of its block. */
struct gradient {
    struct shore_gather item[ROWS_MOST];
    uint32_t count;
    uint64_t bytes; /* of the items as they travel */
    unsigned char *memory;
    float *dense;
};

static void make_gradient(const struct shore_layout *layout, const struct table *t, struct gradient *g,
                          uint64_t *stream) {
    const struct shore_layout_block *block = &layout->blocks[t->block];
    const struct shore_layout_tensor *tensor = &block->tensors[t->tensor];
    uint64_t rows = tensor->elems / t->columns, every = 1 + draw(stream, 40);
    memset(g, 0, sizeof *g);
    g->dense = pages(block->padded_elems * 4);
    g->memory = pages(ROWS_MOST * (t->columns * 4 + 4));
    unsigned char *at = g->memory;
    for (uint64_t r = draw(stream, every < rows ? every : rows); r < rows && g->count < ROWS_MOST;
         r += 1 + draw(stream, every)) {
        uint64_t first = tensor->offset_elems + r * t->columns;
        bool half = draw(stream, 2);
        for (uint32_t i = 0; i < t->columns; i++) {
            float x = shore__bf16_to_f32(shore__f32_to_bf16((float)shore__random_unit(seed, 9, (*stream)++) - 0.5f));
            uint16_t narrow = shore__f32_to_bf16(x);
            g->dense[first + i] = x;
            memcpy(at + (half ? 2 : 4) * i, half ? (void *)&narrow : (void *)&x, half ? 2 : 4);
        }
        g->item[g->count++] = (struct shore_gather){at, first, t->columns, half ? SHORE_DTYPE_BF16 : SHORE_DTYPE_FP32};
        at += (t->columns * (half ? 2 : 4) + 3) / 4 * 4;
    }
}

/* One step in which one table has gradients of rows, and the other blocks none. */
static void step_of(struct bench *b, const struct table *t, const struct gradient *g, bool rows, float coefficient) {
    struct shore_hyper groups[GROUPS];
    hypers(&b->plain, b->plain.step + 1, groups);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint32_t segments = b->plain.layout->blocks[i].segments, first = i == t->block ? segments / 2 : 0;
        float *zeros = pages((size_t)segments * SHORE_SEGMENT_ELEMS * 4);
        for (uint32_t at = 0; at < segments; at += at == 0 && first ? first : segments - at) {
            struct shore_wait wait;
            struct shore_update u = {.size = sizeof u,
                                     .base_step = b->plain.step,
                                     .attempt = shore_fleet_attempt(b->fleet),
                                     .block = i,
                                     .segment = at,
                                     .count = at == 0 && first ? first : segments - at,
                                     .coefficient = coefficient,
                                     .groups = groups,
                                     .ngroups = GROUPS};
            if (rows) {
                u.form = SHORE_GRADIENT_ROWS;
                u.gather = g->item;
                u.ngather = i == t->block ? g->count : 0;
            } else {
                u.gradient = (i == t->block ? g->dense : zeros) + (size_t)at * SHORE_SEGMENT_ELEMS;
            }
            shore_wait_init(&wait);
            must(b, shore_fleet_update(b->fleet, &u, shore_wait_completion(&wait)));
            must(b, shore_wait(&wait, &b->diag));
        }
        free(zeros);
    }
    must(b, fleet_commit(b->fleet, b->plain.step, false, &b->diag));
    b->plain.step++;
}

static void rows_have_the_bits_of_a_dense_gradient(void **state) {
    static const struct config whole = {"ram", "r", SHORE_IO_AUTO, 0, 0, SHORE_MOMENTS_FP32};
    uint64_t stream = 0;
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct config other = whole;
        struct bench a, b;
        other.moments = configs[c].moments;
        enum shore_optimizer optimizer = (enum shore_optimizer)(c % SHORE_OPTIMIZER_COUNT);
        if (!bench_open(&a, &configs[c], optimizer, true)) continue;
        assert_true(bench_open(&b, &other, optimizer, true));
        for (size_t t = 0; t < NTABLES; t++) {
            struct shore_ledger before = {.size = sizeof before}, after = before;
            unsigned char digest[2][16];
            struct gradient g;
            uint64_t items = 0;
            make_gradient(a.plain.layout, &tables[t], &g, &stream);
            assert_int_equal(shore_fleet_ledger(a.fleet, &before), 0);
            step_of(&a, &tables[t], &g, true, 0.5f);
            assert_int_equal(shore_fleet_ledger(a.fleet, &after), 0);
            step_of(&b, &tables[t], &g, false, 0.5f);
            must(&a, shore_fleet_digest(a.fleet, true, digest[0], &a.diag));
            must(&b, shore_fleet_digest(b.fleet, true, digest[1], &b.diag));
            assert_memory_equal(digest[0], digest[1], 16);
            for (uint32_t i = 0; i < g.count; i++)
                items += g.item[i].elems * (g.item[i].dtype == SHORE_DTYPE_FP32 ? 4 : 2);
            uint64_t crossed = after.link_in_gradients - before.link_in_gradients;
            assert_true(g.count && crossed >= items);
            /* the heads, those of rows that two requests share, and the number of rows in each request */
            assert_true(crossed <= items + 24 * g.count + 64 * a.plain.layout->segments);
            free(g.memory);
            free(g.dense);
        }
        bench_close(&a);
        bench_close(&b);
    }
}

/* A row for each element would be more bytes than all elements. */
static void rows_never_cost_more_than_all_elements(void **state) {
    for (size_t c = 0; c < NCONFIGS; c++) {
        static struct shore_gather item[200000];
        struct shore_ledger before = {.size = sizeof before}, after = before;
        struct gradient g = {.count = ROWS_MOST};
        struct bench b;
        struct shore_hyper groups[GROUPS];
        struct shore_wait wait;
        if (configs[c].moments != SHORE_MOMENTS_FP32 || !bench_open(&b, &configs[c], SHORE_ADAMW, false)) continue;
        const struct shore_layout_block *block = &b.plain.layout->blocks[1];
        g.dense = pages(block->padded_elems * 4);
        gradient_of_step(&b.plain, 1, 1, g.dense);
        for (uint32_t i = 0; i < 200000; i++)
            item[i] = (struct shore_gather){g.dense + i, i, 1, SHORE_DTYPE_FP32};
        hypers(&b.plain, 1, groups);
        assert_int_equal(shore_fleet_ledger(b.fleet, &before), 0);
        struct shore_update u = {.size = sizeof u,
                                 .attempt = shore_fleet_attempt(b.fleet),
                                 .block = 1,
                                 .count = block->segments,
                                 .form = SHORE_GRADIENT_ROWS,
                                 .coefficient = 1,
                                 .groups = groups,
                                 .ngroups = GROUPS,
                                 .gather = item,
                                 .ngather = 200000};
        shore_wait_init(&wait);
        must(&b, shore_fleet_update(b.fleet, &u, shore_wait_completion(&wait)));
        must(&b, shore_wait(&wait, &b.diag));
        assert_int_equal(shore_fleet_ledger(b.fleet, &after), 0);
        assert_true(after.link_in_gradients - before.link_in_gradients <= block->elems * 4);
        free(g.dense);
        bench_close(&b);
    }
}

/* ---- GATHER ------------------------------------------------------------------------------------------------------ */

static int ascending(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Bytes of pages that the rows lie in, and the number of distinct rows. */
static uint64_t pages_of(const uint32_t *row, uint32_t count, uint64_t offset, uint32_t columns, uint32_t *distinct) {
    uint32_t sorted[ROWS_MOST];
    uint64_t bytes = 0, next = 0;
    memcpy(sorted, row, count * sizeof *row);
    qsort(sorted, count, sizeof *sorted, ascending);
    *distinct = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (i && sorted[i] == sorted[i - 1]) continue;
        uint64_t from = (offset + (uint64_t)sorted[i] * columns) * 2 / 4096;
        uint64_t to = ((offset + (uint64_t)(sorted[i] + 1) * columns) * 2 - 1) / 4096 + 1;
        ++*distinct;
        if (from < next) from = next;
        if (to > from) bytes += (to - from) * 4096;
        if (to > next) next = to;
    }
    return bytes;
}

static void gather(struct bench *b, const struct table *t, uint64_t at_step, enum shore_fetch_kind kind, bool sorted,
                   uint64_t *stream) {
    const struct shore_layout_block *block = &b->plain.layout->blocks[t->block];
    const struct shore_layout_tensor *tensor = &block->tensors[t->tensor];
    uint64_t rows = tensor->elems / t->columns, each = kind == SHORE_FETCH_BF16 ? 2 : 4;
    struct shore_ledger before = {.size = sizeof before}, after = before;
    struct shore_wait wait;
    uint32_t row[ROWS_MOST], count = 0, distinct;
    uint64_t every = 1 + draw(stream, 30), most = 1 + draw(stream, ROWS_MOST);
    if (sorted)
        for (uint64_t r = draw(stream, every < rows ? every : rows); r < rows && count < most;
             r += 1 + draw(stream, every))
            row[count++] = (uint32_t)r;
    while (!sorted && count < most)
        row[count++] = (uint32_t)draw(stream, rows);
    unsigned char *whole = pages(block->padded_elems * 4), *got = malloc((count + 1) * t->columns * each);
    shore_wait_init(&wait);
    must(b,
         shore_fleet_fetch(b->fleet, at_step, t->block, 0, block->segments, kind, whole, shore_wait_completion(&wait)));
    must(b, shore_wait(&wait, &b->diag));
    memset(got, 0xA5, (count + 1) * t->columns * each);
    assert_int_equal(shore_fleet_ledger(b->fleet, &before), 0);
    struct shore_rows want = {.size = sizeof want,
                              .step = at_step,
                              .block = t->block,
                              .kind = kind,
                              .offset_elems = tensor->offset_elems,
                              .columns = t->columns,
                              .count = count,
                              .row = row,
                              .dst = got};
    shore_wait_init(&wait);
    must(b, shore_fleet_gather(b->fleet, &want, shore_wait_completion(&wait)));
    must(b, shore_wait(&wait, &b->diag));
    assert_int_equal(shore_fleet_ledger(b->fleet, &after), 0);
    for (uint32_t i = 0; i < count; i++)
        assert_memory_equal(got + i * t->columns * each,
                            whole + (tensor->offset_elems + (uint64_t)row[i] * t->columns) * each, t->columns * each);
    assert_int_equal(got[count * t->columns * each], 0xA5);
    uint64_t bytes = pages_of(row, count, tensor->offset_elems, t->columns, &distinct) * (each / 2);
    assert_int_equal(after.link_out_params - before.link_out_params, distinct * t->columns * each);
    if (!strchr(b->config->kinds, 'u')) assert_int_equal(after.drive_read_fetch - before.drive_read_fetch, bytes);
    free(whole);
    free(got);
}

static void every_drive_gathers_rows(void **state) {
    uint64_t stream = 5000;
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b;
        if (!bench_open(&b, &configs[c], SHORE_ADAMW, false)) continue;
        for (int k = 0; k < 3; k++) {
            for (size_t t = 0; t < NTABLES; t++)
                for (int i = 0; i < 4; i++)
                    gather(&b, &tables[t], b.plain.step, i % 2 ? SHORE_FETCH_MASTER : SHORE_FETCH_BF16, i / 2, &stream);
            b.plain.carried[1] = k == 1; /* then these segments lie where they were */
            step(&b);
        }
        bench_close(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_have_the_bits_of_a_dense_gradient),
        cmocka_unit_test(every_drive_gathers_rows),
        cmocka_unit_test(rows_never_cost_more_than_all_elements),
    };
    seed = test_seed();
    server_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    server_stop();
    return failed;
}
