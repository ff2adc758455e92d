/* What fails, what cannot be, and pages without a fleet. */
#include <semaphore.h>
#include <unistd.h>

#include "base/diag.h"
#include "storage/blockio.h"
#include "unit/stream/world.h"

/* ---- what fails -------------------------------------------------------------------------------------------------- */

static int fail_reads(void *ctx, const struct shore__file *file, const struct shore__io_op *op) {
    const atomic_bool *failing = ctx;
    return *failing && op->kind == SHORE__IO_READ ? -EIO : SHORE__IO_PASS;
}

static void a_fetch_that_failed_is_tried_again(void **state) {
    struct world w;
    static atomic_bool failing;
    const void *at;
    char path[] = "/tmp/shore-pages-XXXXXX", drive[sizeof path + 16];
    assert_non_null(mkdtemp(path));
    snprintf(drive, sizeof drive, "%s/state.volume", path);
    shore__io_set_shim(fail_reads, &failing);
    open_world(&w, drive);
    for (uint32_t i = 0; i < w.npages; i++) {
        if (!w.page[i].range.count) continue;
        failing = true;
        if (pick(0, 1)) shore_pages_want(w.pages, i);
        assert_int_equal(shore_pages_get(w.pages, i, &at, &w.diag), -EIO);
        assert_non_null(strstr(w.diag.text, drive));
        failing = false;
        get(&w, i);
        assert_int_equal(w.page[i].uses, 1);
        release(&w, i);
    }
    close_world(&w);
    shore__io_set_shim(NULL, NULL);
    unlink(drive);
    rmdir(path);
}

/* What an update failed with is said once; then the page is fetched again. */
static void an_update_that_failed_is_said_once(void **state) {
    struct world w;
    const void *at;
    const struct shore_hyper hyper = {.lr = 1};
    open_world(&w, "ram:");
    struct shore_update u = {
        .size = sizeof u, .attempt = shore_fleet_attempt(w.fleet), .coefficient = 0, .groups = &hyper, .ngroups = 1};
    u.segment = w.page[0].range.segment;
    u.count = 1;
    u.gradient = gradient_of(&w, 0, u.segment, 1);
    assert_ok(&w, shore_pages_update(w.pages, 0, &u, (struct shore_completion){NULL, NULL}));
    shore_pages_update_end(w.pages, 0);
    assert_int_equal(shore_pages_get(w.pages, 0, &at, &w.diag), -EINVAL);
    assert_non_null(strstr(w.diag.text, "coefficient"));
    shore_fleet_discard(w.fleet);
    shore_pages_discarded(w.pages);
    get(&w, 0);
    assert_int_equal(w.page[0].uses, 1);
    close_world(&w);
}

/* ---- without a fleet --------------------------------------------------------------------------------------------- */

struct reader {
    uint32_t calls;
    int rc;
    sem_t *begun, *go_on; /* of a block: its read begins, and waits until it may go on */
    uint32_t held_block;
};

static int read_numbers(void *ctx, uint32_t block, uint32_t segment, uint32_t count, void *dst,
                        struct shore_diag *diag) {
    struct reader *r = ctx;
    r->calls++;
    if (r->begun && block == r->held_block) {
        sem_post(r->begun);
        sem_wait(r->go_on);
    }
    memset(dst, (int)(block * 16 + segment), (size_t)count * SHORE_SEGMENT_ELEMS * 2);
    return r->rc ? shore__fail(diag, r->rc, "no numbers") : 0;
}

/* Of blocks 1 and 3. */
static struct shore_pages *pages_read_by(struct reader *reader, uint32_t buffers) {
    struct shore_pages *pages;
    struct shore_diag diag;
    const struct shore_pages_range ranges[] = {{.block = 1, .segment = 2, .count = 1}, {.block = 3, .count = 2}};
    const struct shore_pages_pool pool = {.nbuffers = buffers};
    const struct shore_pages_options options = {.size = sizeof options,
                                                .ranges = ranges,
                                                .nranges = 2,
                                                .pools = &pool,
                                                .npools = 1,
                                                .read = read_numbers,
                                                .read_ctx = reader};
    assert_int_equal(shore_pages_open(NULL, &options, &pages, &diag), 0);
    return pages;
}

static void a_page_is_read_while_another_is_computed_with(void **state) {
    sem_t begun, go_on;
    struct reader reader = {.begun = &begun, .go_on = &go_on, .held_block = 3};
    struct shore_pages *pages = pages_read_by(&reader, 2);
    struct shore_diag diag;
    const void *at, *next;
    sem_init(&begun, 0, 0), sem_init(&go_on, 0, 0);
    assert_int_equal(shore_pages_get(pages, 0, &at, &diag), 0);
    assert_int_equal(shore_pages_want(pages, 1), SHORE_PAGE_COMING);
    sem_wait(&begun);
    assert_int_equal(((const unsigned char *)at)[77], 18); /* computed with, while the read is under way */
    assert_int_equal(shore_pages_want(pages, 1), SHORE_PAGE_COMING);
    sem_post(&go_on);
    assert_int_equal(shore_pages_get(pages, 1, &next, &diag), 0);
    assert_int_equal(((const unsigned char *)next)[77], 48);
    assert_int_equal(reader.calls, 2);
    shore_pages_release(pages, 1);
    shore_pages_forget(pages);
    assert_int_equal(shore_pages_want(pages, 1), SHORE_PAGE_COMING);
    sem_post(&go_on);
    shore_pages_close(pages); /* waits for what is read */
    assert_int_equal(reader.calls, 3);
    sem_destroy(&begun), sem_destroy(&go_on);
}

static void a_read_that_failed_is_said_where_the_page_is_got(void **state) {
    struct reader reader = {.rc = -EIO};
    struct shore_pages *pages = pages_read_by(&reader, 1);
    struct shore_diag diag;
    const void *at;
    assert_int_equal(shore_pages_get(pages, 0, &at, &diag), -EIO);
    assert_string_equal(diag.text, "no numbers");
    assert_int_not_equal(shore_pages_want(pages, 0), SHORE_PAGE_LATER);
    assert_int_equal(shore_pages_get(pages, 0, &at, &diag),
                     -EIO); /* here the fault of a page that was wanted is said */
    assert_int_equal(reader.calls, 2);
    reader.rc = 0;
    assert_int_equal(shore_pages_get(pages, 0, &at, &diag), 0);
    assert_int_equal(((const unsigned char *)at)[77], 18);
    assert_int_equal(shore_pages_get(pages, 1, &at, &diag), -EBUSY);
    assert_non_null(strstr(diag.text, "in use"));
    shore_pages_release(pages, 0);
    assert_int_equal(shore_pages_get(pages, 1, &at, &diag), 0);
    assert_int_equal(((const unsigned char *)at)[77], 48);
    assert_int_equal(reader.calls, 4);
    struct shore_update update = {.size = sizeof update, .count = 1};
    assert_int_equal(shore_pages_update(pages, 0, &update, (struct shore_completion){NULL, NULL}), -EINVAL);
    shore_pages_close(pages);
}

static void what_cannot_be_is_refused(void **state) {
    static _Alignas(4096) char memory[2 * SHORE_SEGMENT_ELEMS];
    void *const crooked[] = {memory + 1};
    struct reader reader = {0};
    struct shore_pages *pages;
    struct shore_diag diag;
    struct shore_pages_range range = {.count = 1};
    struct shore_pages_pool pool = {.nbuffers = 1};
    struct shore_pages_options options = {.ranges = &range, .nranges = 1, .read = read_numbers, .read_ctx = &reader};
    assert_int_equal(shore_pages_open(NULL, &options, &pages, &diag), -EINVAL);
    assert_string_equal(diag.text, "the size of a struct shore_pages_options was not set: it is "
                                   "sizeof(struct shore_pages_options)");
    options.size = sizeof options;
    assert_int_equal(shore_pages_open(NULL, &options, &pages, &diag), -EINVAL);
    assert_non_null(strstr(diag.text, "without buffers"));
    options.pools = &pool;
    options.npools = 1;
    pool.buffers = crooked;
    assert_int_equal(shore_pages_open(NULL, &options, &pages, &diag), -EINVAL);
    assert_non_null(strstr(diag.text, "not aligned"));
    pool.buffers = NULL;
    range = (struct shore_pages_range){.count = 1, .pool = SHORE_PAGES_STAYS, .memory = memory + 1};
    assert_int_equal(shore_pages_open(NULL, &options, &pages, &diag), -EINVAL);
    range = (struct shore_pages_range){.count = 1, .kind = SHORE_FETCH_M};
    assert_int_equal(shore_pages_open(NULL, &options, &pages, &diag), -EINVAL);
    assert_non_null(strstr(diag.text, "must hold"));
    range = (struct shore_pages_range){.count = 1, .pool = SHORE_PAGES_STAYS, .memory = memory};
    options.read = NULL;
    assert_int_equal(shore_pages_open(NULL, &options, &pages, &diag), -EINVAL);
    struct world w;
    open_world(&w, "ram:");
    range = (struct shore_pages_range){.block = 1, .segment = segments_of[1], .count = 1, .pool = SHORE_PAGES_STAYS};
    assert_int_equal(shore_pages_open(w.fleet, &options, &pages, &diag), -EINVAL);
    assert_non_null(strstr(diag.text, "layout"));
    close_world(&w);
}

int main(void) {
    take_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fetch_that_failed_is_tried_again),
        cmocka_unit_test(an_update_that_failed_is_said_once),
        cmocka_unit_test(a_page_is_read_while_another_is_computed_with),
        cmocka_unit_test(a_read_that_failed_is_said_where_the_page_is_got),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
