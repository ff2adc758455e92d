/* A table whose drive fails, whose link is lost, that many threads use, or that is asked for what it has not. */
#include "conformance/drive_harness.h"
#include "conformance/drive_ssh.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>

#include "longshore/table.h"

#define ROWS 40000u
#define COLUMNS 24u
#define DIES "LONGSHORE_TEST_DIES" /* names a file: after how many operations the server of that start dies */

struct world {
    struct place place;
    struct shore_table_options options;
    struct shore_table *table;
    struct shore_diag diag;
};

static void must(struct world *w, int rc) {
    if (rc) fail_msg("%d: %s", rc, w->diag.text);
}

static void says(const struct shore_diag *diag, const char *text) {
    if (!strstr(diag->text, text)) fail_msg("'%s' does not say '%s'", diag->text, text);
}

static void world_open(struct world *w, const char *where) {
    memset(w, 0, sizeof *w);
    place_open(&w->place, where);
    w->options = (struct shore_table_options){.size = sizeof w->options,
                                              .drives = w->place.paths,
                                              .ndrives = w->place.ndrives,
                                              .rows = ROWS,
                                              .columns = COLUMNS,
                                              .element = SHORE_TABLE_FP32};
    must(w, shore_table_create(&w->options, &w->table, &w->diag));
}

static void world_close(struct world *w) {
    shore_table_close(w->table);
    place_close(&w->place);
}

/* The rows' numbers; what was put there. */
static uint32_t row[ROWS];
static float value[ROWS][COLUMNS], got[ROWS][COLUMNS];

static void make_values(float of) {
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t k = 0; k < COLUMNS; k++)
            value[i][k] = of + (float)(i * 7 + k);
}

enum request { GATHER, PUT, ADD };

static int ask(struct world *w, enum request what, uint32_t first, uint32_t count) {
    struct shore_wait wait;
    shore_wait_init(&wait);
    memset(&w->diag, 0, sizeof w->diag);
    struct shore_completion done = shore_wait_completion(&wait);
    int rc = what == GATHER ? shore_table_gather(w->table, row + first, count, got, done)
             : what == PUT  ? shore_table_put(w->table, row + first, count, value[first], done)
                            : shore_table_scatter_add(w->table, row + first, count, value[first], done);
    if (rc) shore_wait_end(&wait, rc);
    return shore_wait(&wait, &w->diag);
}

/* ---- a drive that fails ------------------------------------------------------------------------------------------ */

static struct {
    int left; /* operations until it fails; below 0: never */
    enum shore__io_kind kind;
    bool dies;
} failing = {.left = -1};

static int fail_one(void *ctx, const struct shore__file *file, const struct shore__io_op *op) {
    if (op->kind != failing.kind || failing.left < 0 || failing.left-- > 0) return SHORE__IO_PASS;
    if (failing.dies) _exit(9);
    return -EIO;
}

static void an_error_of_a_drive_is_one_of_the_request(void **state) {
    for (int what = GATHER; what <= ADD; what++) {
        for (int at = 0; at < 6; at += 2) {
            struct world w;
            world_open(&w, "ff");
            make_values(1);
            must(&w, ask(&w, PUT, 0, ROWS));
            must(&w, shore_table_commit(w.table, &w.diag));
            failing.kind = what == PUT ? SHORE__IO_WRITE : SHORE__IO_READ;
            failing.left = at;
            assert_int_equal(ask(&w, (enum request)what, 1000, ROWS - 2000), -EIO);
            assert_int_equal(failing.left, -1);
            says(&w.diag, ".volume");
            /* rows that were not named are as they were, and all can be put again */
            for (uint32_t first = 0; first < ROWS; first += ROWS - 1000) {
                must(&w, ask(&w, GATHER, first, 1000));
                assert_memory_equal(got, value[first], 1000 * sizeof got[0]);
            }
            make_values(5);
            must(&w, ask(&w, PUT, 0, ROWS));
            must(&w, ask(&w, GATHER, 0, ROWS));
            assert_memory_equal(got, value, sizeof got);
            world_close(&w);
        }
    }
}

static void a_lost_link_loses_only_the_request(void **state) {
    for (int what = GATHER; what <= ADD; what++) {
        for (int at = 20; at <= 100; at += 40) {
            struct world w;
            char plan[600], number[16];
            world_open(&w, "s");
            make_values(2);
            must(&w, ask(&w, PUT, 0, ROWS));
            must(&w, shore_table_commit(w.table, &w.diag));
            shore_table_close(w.table);
            /* the next server dies, and the one after does not */
            snprintf(plan, sizeof plan, "%s/dies", w.place.directory);
            int fd = open(plan, O_WRONLY | O_CREAT, 0600), n = snprintf(number, sizeof number, "%d", at);
            assert_int_equal(write(fd, number, (size_t)n), n);
            close(fd);
            setenv(DIES, plan, 1);
            must(&w, shore_table_open(&w.options, &w.table, &w.diag));
            unsetenv(DIES);
            int rc = 0;
            for (int i = 0; i < 300 && !rc; i++) /* until it has read so often */
                rc = ask(&w, (enum request)what, 1000, ROWS - 2000);
            assert_int_equal(rc, SHORE_ELINK);
            must(&w, shore_fleet_reconnect(shore_table_fleet(w.table), &w.diag));
            must(&w, ask(&w, GATHER, 0, 1000));
            assert_memory_equal(got, value, 1000 * sizeof got[0]);
            make_values(3);
            must(&w, ask(&w, PUT, 0, ROWS));
            must(&w, ask(&w, ADD, 0, ROWS));
            must(&w, ask(&w, GATHER, 0, ROWS));
            for (uint32_t i = 0; i < ROWS * COLUMNS; i++)
                assert_true((&got[0][0])[i] == 2 * (&value[0][0])[i]);
            must(&w, shore_table_commit(w.table, &w.diag));
            unlink(plan);
            world_close(&w);
        }
    }
}

/* ---- many threads ------------------------------------------------------------------------------------------------ */

static float ones[500][COLUMNS];

static void *add_ones(void *ctx) {
    struct world *w = ctx;
    for (uint32_t round = 0; round < 40; round++) {
        struct shore_wait wait;
        struct shore_diag diag;
        shore_wait_init(&wait);
        int rc = shore_table_scatter_add(w->table, row + round * 100, 500, &ones[0][0], shore_wait_completion(&wait));
        if (rc) shore_wait_end(&wait, rc);
        if (shore_wait(&wait, &diag)) return ctx;
        if (round % 10 == 3 && shore_table_commit(w->table, &diag)) return ctx;
    }
    return NULL;
}

static void no_addition_of_many_threads_is_lost(void **state) {
    pthread_t thread[4];
    struct world w;
    world_open(&w, "frf");
    memset(value, 0, sizeof value);
    for (uint32_t i = 0; i < 500 * COLUMNS; i++)
        (&ones[0][0])[i] = 1;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, add_ones, &w), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(thread[i], &failed);
        assert_null(failed);
    }
    for (uint32_t round = 0; round < 40; round++)
        for (uint32_t i = 0; i < 500; i++)
            for (uint32_t k = 0; k < COLUMNS; k++)
                value[round * 100 + i][k] += 4;
    must(&w, ask(&w, GATHER, 0, ROWS));
    assert_memory_equal(got, value, sizeof got);
    world_close(&w);
}

/* ---- bad input --------------------------------------------------------------------------------------------------- */

static void what_it_has_not_is_refused(void **state) {
    const uint32_t beyond[] = {3, ROWS, 4};
    struct world w;
    struct shore_wait wait;
    float three[3][COLUMNS] = {{0}};
    world_open(&w, "f");
    make_values(1);
    must(&w, ask(&w, PUT, 0, ROWS));
    shore_wait_init(&wait);
    assert_int_equal(shore_table_put(w.table, beyond, 3, three, shore_wait_completion(&wait)), 0);
    assert_int_equal(shore_wait(&wait, &w.diag), -EINVAL);
    says(&w.diag, "there is no row 40000 in a table of 40000 rows");
    must(&w, ask(&w, GATHER, 0, 10)); /* nothing was put */
    assert_memory_equal(got, value, 10 * sizeof got[0]);
    for (int what = GATHER; what <= ADD; what++)
        must(&w, ask(&w, (enum request)what, 0, 0));
    must(&w, shore_table_commit(w.table, &w.diag));
    shore_table_close(w.table);

    w.options.columns++;
    assert_int_equal(shore_table_open(&w.options, &w.table, &w.diag), SHORE_EMISMATCH);
    says(&w.diag, "a table of 40000 rows of 24 elements of 4 bytes");
    assert_null(w.table);
    assert_int_equal(shore_table_create(&w.options, &w.table, &w.diag), SHORE_EEXISTS);
    w.options.columns = w.options.rows = 0;
    w.options.read_only = true;
    must(&w, shore_table_open(&w.options, &w.table, &w.diag));
    must(&w, ask(&w, GATHER, 0, ROWS));
    assert_memory_equal(got, value, sizeof got);
    assert_int_equal(ask(&w, PUT, 0, 1), -EROFS);
    assert_int_equal(ask(&w, ADD, 0, 1), -EROFS);
    assert_int_equal(shore_table_commit(w.table, &w.diag), -EROFS);
    world_close(&w);
}

static void tables_that_cannot_be_are_refused(void **state) {
    struct world w;
    struct {
        uint64_t rows;
        uint32_t columns, element_bytes;
        enum shore_table_element element;
        int rc;
        const char *why;
    } wrong[] = {
        {0, 5, 0, SHORE_TABLE_FP32, -EINVAL, "a table has 1 to 4294967295 rows"},
        {5, 0, 0, SHORE_TABLE_FP32, -EINVAL, "a table has 1 to"},
        {UINT64_C(1) << 32, 1, 0, SHORE_TABLE_FP32, -EINVAL, "a table has 1 to"},
        {5, 65537, 0, SHORE_TABLE_FP32, -EINVAL, "of 1 to 262144 bytes each, not 5 rows of 262148"},
        {5, 1u << 31, 1u << 31, SHORE_TABLE_BYTES, -EINVAL, "a table has 1 to"},
        {5, 5, 0, (enum shore_table_element)9, -EINVAL, "there is no element 9"},
        {UINT32_MAX, 65536, 0, SHORE_TABLE_FP32, -ENOSPC, ""},
    };
    memset(&w, 0, sizeof w);
    place_open(&w.place, "f");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        w.options = (struct shore_table_options){.size = sizeof w.options,
                                                 .drives = w.place.paths,
                                                 .ndrives = 1,
                                                 .rows = wrong[i].rows,
                                                 .columns = wrong[i].columns,
                                                 .element = wrong[i].element,
                                                 .element_bytes = wrong[i].element_bytes};
        assert_int_equal(shore_table_create(&w.options, &w.table, &w.diag), wrong[i].rc);
        says(&w.diag, wrong[i].why);
        assert_null(w.table);
        assert_int_equal(access(w.place.path[0], F_OK), -1);
    }
    assert_int_equal(shore_table_open(&w.options, &w.table, &w.diag), SHORE_EMISSING);
    w.options.size = 0;
    assert_int_equal(shore_table_open(&w.options, &w.table, &w.diag), -EINVAL);
    /* bytes are not added to */
    w.options = (struct shore_table_options){.size = sizeof w.options, .drives = w.place.paths, .ndrives = 1};
    w.options.rows = w.options.columns = 9;
    must(&w, shore_table_create(&w.options, &w.table, &w.diag));
    assert_int_equal(ask(&w, ADD, 0, 1), -EINVAL);
    world_close(&w);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_of_a_drive_is_one_of_the_request),
        cmocka_unit_test(a_lost_link_loses_only_the_request),
        cmocka_unit_test(no_addition_of_many_threads_is_lost),
        cmocka_unit_test(what_it_has_not_is_refused),
        cmocka_unit_test(tables_that_cannot_be_are_refused),
    };
    shore__io_set_shim(fail_one, NULL);
    if (argc > 1) {
        const char *plan = getenv(DIES);
        FILE *f = plan ? fopen(plan, "r") : NULL;
        failing.dies = f && fscanf(f, "%d", &failing.left) == 1;
        if (f) fclose(f);
        return serve_as_ssh();
    }
    take_the_place_of_ssh();
    for (uint32_t i = 0; i < ROWS; i++)
        row[i] = i;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
