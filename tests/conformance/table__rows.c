/* A table on every kind of drive against the same rows in memory. */
#include "conformance/drive_harness.h"
#include "conformance/drive_ssh.h"

#include <errno.h>

#include "longshore/table.h"
#include "seed.h"

#define COUNT_MOST 700u

static uint64_t seed, drawn;

static uint64_t draw(uint64_t below) {
    return (uint64_t)(shore__random_unit(seed, 1, drawn++) * (double)below);
}

static const char *const kinds[] = {"r", "f", "ff", "frf", "u", "fuu", "s", "fo"};

/* Rows within a page, of many pages, that divide neither a page nor a stripe; tables of more than a stripe of each
 * drive. */
static const struct shape {
    enum shore_table_element element;
    uint32_t element_bytes, columns;
    uint64_t rows;
} shapes[] = {
    {SHORE_TABLE_BYTES, 0, 1, 1},      {SHORE_TABLE_BYTES, 3, 7, 170000},  {SHORE_TABLE_FP32, 0, 16, 60000},
    {SHORE_TABLE_BF16, 0, 100, 13000}, {SHORE_TABLE_BF16, 0, 131072, 13},  {SHORE_TABLE_FP32, 0, 1024, 900},
    {SHORE_TABLE_FP32, 0, 6000, 150},  {SHORE_TABLE_BYTES, 0, 100001, 31}, {SHORE_TABLE_BF16, 0, 1, 1500000},
};
#define NSHAPES (sizeof shapes / sizeof shapes[0])

struct world {
    struct place place;
    struct shore_table_options options;
    struct shore_table *table;
    struct shore_table_info info;
    unsigned char *rows; /* as they should be */
    struct shore_diag diag;
};

static void must(struct world *w, int rc) {
    if (rc) fail_msg("%d: %s", rc, w->diag.text);
}

/* false: this machine has no OpenCL device. */
static bool world_open(struct world *w, const char *where, const struct shape *s) {
    memset(w, 0, sizeof *w);
    place_open(&w->place, where);
    w->options = (struct shore_table_options){.size = sizeof w->options,
                                              .drives = w->place.paths,
                                              .ndrives = w->place.ndrives,
                                              .rows = s->rows,
                                              .columns = s->columns,
                                              .element = s->element,
                                              .element_bytes = s->element_bytes};
    int rc = shore_table_create(&w->options, &w->table, &w->diag);
    if (rc == SHORE_EMISSING && strchr(where, 'o')) {
        print_message("%s: not here: %s\n", where, w->diag.text);
        place_close(&w->place);
        return false;
    }
    must(w, rc);
    w->info.size = sizeof w->info;
    assert_int_equal(shore_table_info(w->table, &w->info), 0);
    assert_int_equal(w->info.rows, s->rows);
    w->rows = calloc(w->info.rows, w->info.row_bytes);
    assert_non_null(w->rows);
    return true;
}

static void world_close(struct world *w) {
    shore_table_close(w->table);
    free(w->rows);
    place_close(&w->place);
}

/* Several times the same, or each once in order. */
static uint32_t some_rows(const struct world *w, uint32_t *row) {
    uint32_t count = 0, most = 1 + (uint32_t)draw(w->info.row_bytes > 10000 ? 20 : COUNT_MOST);
    uint64_t every = 1 + draw(40), narrow = 1 + draw(w->info.rows);
    if (draw(2))
        for (uint64_t r = draw(w->info.rows); r < w->info.rows && count < most; r += 1 + draw(every))
            row[count++] = (uint32_t)r;
    else
        while (count < most)
            row[count++] = (uint32_t)draw(narrow);
    return count;
}

static void put_some(struct world *w) {
    uint32_t row[COUNT_MOST], count = some_rows(w, row);
    unsigned char *values = malloc(count * w->info.row_bytes + 1);
    struct shore_wait wait;
    assert_non_null(values);
    for (uint64_t i = 0; i < count * w->info.row_bytes; i++)
        values[i] = (unsigned char)draw(256);
    for (uint64_t i = 0; i < count * w->info.row_bytes / 4 && w->info.element != SHORE_TABLE_BYTES; i++) {
        uint32_t u = shore__f32_bits((float)shore__random_unit(seed, 2, drawn++) - 0.5f);
        memcpy(values + 4 * i, &u, 4);
    }
    shore_wait_init(&wait);
    must(w, shore_table_put(w->table, row, count, values, shore_wait_completion(&wait)));
    must(w, shore_wait(&wait, &w->diag));
    for (uint32_t i = 0; i < count; i++)
        memcpy(w->rows + row[i] * w->info.row_bytes, values + i * w->info.row_bytes, w->info.row_bytes);
    free(values);
}

static void add_one(struct world *w, uint32_t row, const float *sum) {
    unsigned char *at = w->rows + row * w->info.row_bytes;
    for (uint32_t c = 0; c < w->info.columns; c++) {
        float x;
        uint16_t half;
        if (w->info.element == SHORE_TABLE_FP32) {
            memcpy(&x, at + 4 * (size_t)c, 4);
            x += sum[c];
            if (x != x) x = shore__bits_f32(0x7FC00000);
            memcpy(at + 4 * (size_t)c, &x, 4);
        } else {
            memcpy(&half, at + 2 * (size_t)c, 2);
            x = shore__bf16_to_f32(half) + sum[c];
            half = x == x ? shore__f32_to_bf16(x) : 0x7FC0;
            memcpy(at + 2 * (size_t)c, &half, 2);
        }
    }
}

static void add_some(struct world *w) {
    uint32_t row[COUNT_MOST], count = some_rows(w, row), columns = w->info.columns;
    float *values = malloc((size_t)count * columns * sizeof *values), *sum = malloc(columns * sizeof *sum);
    struct shore_wait wait;
    assert_non_null(values);
    for (size_t i = 0; i < (size_t)count * columns; i++)
        values[i] = (float)(shore__random_unit(seed, 3, drawn++) - 0.5) * (draw(5) ? 1 : 1e30f);
    shore_wait_init(&wait);
    must(w, shore_table_scatter_add(w->table, row, count, values, shore_wait_completion(&wait)));
    must(w, shore_wait(&wait, &w->diag));
    for (uint32_t i = 0; i < count; i++) {
        uint32_t before = 0;
        while (before < i && row[before] != row[i])
            before++;
        if (before < i) continue;
        memcpy(sum, values + (size_t)i * columns, columns * sizeof *sum);
        for (uint32_t k = i + 1; k < count; k++)
            for (uint32_t c = 0; row[k] == row[i] && c < columns; c++)
                sum[c] += values[(size_t)k * columns + c];
        add_one(w, row[i], sum);
    }
    free(sum);
    free(values);
}

static void gather_some(struct world *w) {
    uint32_t row[COUNT_MOST], count = some_rows(w, row);
    unsigned char *got = malloc(count * w->info.row_bytes + 1);
    struct shore_wait wait;
    assert_non_null(got);
    memset(got, 0xA5, count * w->info.row_bytes + 1);
    shore_wait_init(&wait);
    must(w, shore_table_gather(w->table, row, count, got, shore_wait_completion(&wait)));
    must(w, shore_wait(&wait, &w->diag));
    for (uint32_t i = 0; i < count; i++)
        assert_memory_equal(got + i * w->info.row_bytes, w->rows + row[i] * w->info.row_bytes, w->info.row_bytes);
    assert_int_equal(got[count * w->info.row_bytes], 0xA5);
    free(got);
}

static void all_is_there(struct world *w) {
    uint32_t *row = malloc(w->info.rows * sizeof *row);
    unsigned char *got = malloc(w->info.rows * w->info.row_bytes);
    struct shore_wait wait;
    assert_true(row && got);
    for (uint32_t i = 0; i < w->info.rows; i++)
        row[i] = i;
    shore_wait_init(&wait);
    must(w, shore_table_gather(w->table, row, (uint32_t)w->info.rows, got, shore_wait_completion(&wait)));
    must(w, shore_wait(&wait, &w->diag));
    assert_memory_equal(got, w->rows, w->info.rows * w->info.row_bytes);
    free(row);
    free(got);
}

static void rows_are_as_in_memory(void **state) {
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        for (size_t s = 0; s < NSHAPES; s++) {
            struct world w;
            if (k > 1 && (k + s) % 3) continue; /* enough of each */
            if (!world_open(&w, kinds[k], &shapes[s])) continue;
            for (int i = 0; i < 8; i++) {
                put_some(&w);
                if (w.info.element != SHORE_TABLE_BYTES) add_some(&w);
                gather_some(&w);
            }
            must(&w, shore_table_commit(w.table, &w.diag));
            if (!strchr(kinds[k], 'r')) {
                const char *swap = w.place.paths[0]; /* drives may come in any order */
                shore_table_close(w.table);
                w.place.paths[0] = w.place.paths[w.place.ndrives - 1];
                w.place.paths[w.place.ndrives - 1] = swap;
                must(&w, shore_table_open(&w.options, &w.table, &w.diag));
                w.info.commits++;
            }
            all_is_there(&w);
            world_close(&w);
        }
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_as_in_memory),
    };
    if (argc > 1) return serve_as_ssh();
    take_the_place_of_ssh();
    seed = test_seed();
    server_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    server_stop();
    return failed;
}
