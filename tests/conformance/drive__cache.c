/* One suite against the cache of every kind of fleet. */
#include "conformance/drive_bench.h"

#include <dirent.h>
#include <fcntl.h>

#include "drive/fleet/fleet.h"
#include "drive/fleet/fleet_cache.h"

enum { PAGE = 16384, PAGES = 100 };

struct cached {
    struct bench b;
    struct shore__fleet_cache *cache;
};

/* What part `part` of a key holds. */
static void fill_page(const struct shore__cache_key *key, uint64_t part, unsigned char *to) {
    uint64_t x = shore__cache_key_hash(key) + part * 977;
    for (size_t i = 0; i < PAGE; i++)
        to[i] = (unsigned char)((x >> (i % 8 * 8)) + i / 8);
}

static int put(struct cached *c, const struct shore__cache_key *key, uint64_t first, uint64_t parts) {
    struct shore_wait wait;
    unsigned char *bytes = pages(parts * PAGE);
    for (uint64_t i = 0; i < parts; i++)
        fill_page(key, first + i, bytes + i * PAGE);
    shore_wait_init(&wait);
    int rc = shore__fleet_cache_put(c->cache, key, first * PAGE, parts * PAGE, bytes, shore_wait_completion(&wait));
    if (!rc) rc = shore_wait(&wait, &c->b.diag);
    free(bytes);
    return rc;
}

static int get(struct cached *c, const struct shore__cache_key *key, uint64_t first, uint64_t parts) {
    struct shore_wait wait;
    unsigned char *bytes = pages(parts * PAGE), *want = pages(PAGE);
    shore_wait_init(&wait);
    int rc = shore__fleet_cache_get(c->cache, key, first * PAGE, parts * PAGE, bytes, shore_wait_completion(&wait));
    if (!rc) rc = shore_wait(&wait, &c->b.diag);
    for (uint64_t i = 0; i < parts && !rc; i++) {
        fill_page(key, first + i, want);
        assert_memory_equal(bytes + i * PAGE, want, PAGE);
    }
    free(bytes);
    free(want);
    return rc;
}

static bool open_cached(struct cached *c, const struct config *config, uint64_t bytes) {
    if (!bench_open(&c->b, config, SHORE_ADAMW, false)) return false;
    must(&c->b, shore__fleet_cache_open(c->b.fleet, bytes, PAGE, &c->cache, &c->b.diag));
    return true;
}

static void close_cached(struct cached *c) {
    must(&c->b, shore__fleet_cache_close(c->cache, &c->b.diag));
    bench_close(&c->b);
}

static unsigned cache_files(const struct place *place) {
    DIR *directory = opendir(place->directory);
    unsigned n = 0;
    for (struct dirent *e; directory && (e = readdir(directory));)
        n += strlen(e->d_name) > 6 && strcmp(e->d_name + strlen(e->d_name) - 6, ".cache") == 0;
    if (directory) closedir(directory);
    return n;
}

static void kept_found_freed(void **state) {
    for (size_t i = 0; i < NCONFIGS; i++) {
        struct cached c;
        if (!open_cached(&c, &configs[i], PAGES * PAGE)) continue;
        assert_int_equal(shore__fleet_cache_bytes(c.cache), PAGES * PAGE);
        step(&c.b); /* beside a step of training */
        struct shore__cache_key keys[6], all = {1, SHORE__CACHE_ANY, SHORE__CACHE_ANY};
        for (uint32_t k = 0; k < 6; k++) {
            keys[k] = (struct shore__cache_key){k / 4, k % 4 / 2, k % 2};
            must(&c.b, put(&c, &keys[k], 0, 2));
        }
        for (uint32_t k = 0; k < 6; k++)
            must(&c.b, put(&c, &keys[k], 2, 1)); /* later, behind others' */
        for (uint32_t k = 0; k < 6; k++) {
            must(&c.b, get(&c, &keys[k], 0, 3));
            must(&c.b, get(&c, &keys[k], 1, 1));
            assert_int_equal(get(&c, &keys[k], 2, 2), SHORE_EMISSING);
        }
        must(&c.b, shore__fleet_cache_free(c.cache, &keys[1], &c.b.diag));
        assert_int_equal(get(&c, &keys[1], 0, 1), SHORE_EMISSING);
        must(&c.b, get(&c, &keys[0], 0, 3));
        must(&c.b, shore__fleet_cache_free(c.cache, &all, &c.b.diag));
        assert_int_equal(get(&c, &keys[4], 0, 1), SHORE_EMISSING);
        assert_int_equal(get(&c, &keys[5], 2, 1), SHORE_EMISSING);
        must(&c.b, get(&c, &keys[3], 0, 3));
        assert_digest(c.b.fleet, &c.b.plain, true); /* no part of the state */
        close_cached(&c);
    }
}

/* What fills a drive fails there, and there is room again for what is freed. */
static void full(void **state) {
    for (size_t i = 0; i < NCONFIGS; i++) {
        struct cached c;
        if (!open_cached(&c, &configs[i], 20 * PAGE)) continue;
        uint32_t stored = 0, used[DRIVES_MOST] = {0};
        uint64_t sequence = 0;
        for (; stored < 20 && sequence < 2000; sequence++) {
            struct shore__cache_key key = {sequence, 0, 0};
            int rc = put(&c, &key, 0, 1);
            if (rc) assert_int_equal(rc, -ENOSPC);
            if (rc) continue;
            used[shore__fleet_cache_drive(c.cache, &key)]++;
            stored++;
        }
        assert_int_equal(stored, 20); /* all of it can be used */
        struct shore__cache_key first = {0, 0, 0}, more = {sequence, 0, 0};
        uint32_t drive = shore__fleet_cache_drive(c.cache, &first);
        while (shore__fleet_cache_drive(c.cache, &more) != drive)
            more.sequence++;
        assert_int_equal(put(&c, &more, 0, 1), -ENOSPC);
        must(&c.b, get(&c, &first, 0, 1));
        must(&c.b, shore__fleet_cache_free(c.cache, &first, &c.b.diag));
        must(&c.b, put(&c, &more, 0, 1));
        must(&c.b, get(&c, &more, 0, 1));
        close_cached(&c);
    }
}

static void refused(void **state) {
    for (size_t i = 0; i < NCONFIGS; i++) {
        struct cached c;
        struct shore__fleet_cache *again = NULL;
        struct shore__cache_key key = {1, 1, 1}, any = {1, SHORE__CACHE_ANY, 1};
        struct shore_wait wait;
        if (!open_cached(&c, &configs[i], PAGES * PAGE)) continue;
        unsigned char *bytes = pages(PAGE);
        assert_int_equal(shore__fleet_cache_open(c.b.fleet, PAGES * PAGE, PAGE, &again, &c.b.diag), SHORE_EBUSY);
        assert_null(again);
        must(&c.b, put(&c, &key, 0, 1)); /* that of the first is still there */
        shore_wait_init(&wait);
        assert_int_equal(shore__fleet_cache_put(c.cache, &any, 0, PAGE, bytes, shore_wait_completion(&wait)), -EINVAL);
        assert_int_equal(shore__fleet_cache_put(c.cache, &key, 0, 0, bytes, shore_wait_completion(&wait)), -EINVAL);
        int rc = shore__fleet_cache_put(c.cache, &key, 4096, 4096, bytes, shore_wait_completion(&wait));
        assert_int_equal(rc ? rc : shore_wait(&wait, NULL), -EINVAL); /* no whole page */
        must(&c.b, get(&c, &key, 0, 1));
        must(&c.b, shore__fleet_cache_close(c.cache, &c.b.diag));
        assert_int_equal(cache_files(&c.b.place), 0);
        assert_int_equal(shore__fleet_cache_open(c.b.fleet, PAGES * PAGE, 5000, &c.cache, &c.b.diag), -EINVAL);
        assert_int_equal(shore__fleet_cache_open(c.b.fleet, 5, PAGE, &c.cache, &c.b.diag), -EINVAL);
        must(&c.b, shore__fleet_cache_open(c.b.fleet, PAGES * PAGE, PAGE, &c.cache, &c.b.diag));
        assert_int_equal(get(&c, &key, 0, 1), SHORE_EMISSING); /* another cache */
        free(bytes);
        bench_close(&c.b); /* a fleet that is closed takes its cache with it */
        free(c.cache);
    }
}

/* A flipped byte is named, and so is what cannot be read. */
static void damage_is_seen(void **state) {
    struct cached c;
    struct shore__cache_key key = {1, 1, 1};
    char path[sizeof c.b.place.path[0] + 32];
    const struct config config = {"page cache", "f", SHORE_IO_BUFFERED, 0, 0, SHORE_MOMENTS_FP32};
    assert_true(open_cached(&c, &config, PAGES * PAGE));
    assert_int_equal(cache_files(&c.b.place), 1);
    must(&c.b, put(&c, &key, 0, 1));
    snprintf(path, sizeof path, "%s.cache", c.b.fleet->drives[0]->path);
    int fd = open(path, O_RDWR);
    unsigned char byte;
    assert_int_equal(pread(fd, &byte, 1, 4096 + 100), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, 4096 + 100), 1);
    close(fd);
    assert_int_equal(get(&c, &key, 0, 1), SHORE_ECORRUPT);
    assert_non_null(strstr(c.b.diag.text, "does not match its checksum"));
    must(&c.b, put(&c, &key, 0, 1)); /* put again, it is whole */
    must(&c.b, get(&c, &key, 0, 1));
    assert_int_equal(truncate(path, 4096), 0);
    assert_int_equal(get(&c, &key, 0, 1), -EIO);
    close_cached(&c);
}

/* A server's --memory holds, whatever is asked of it. */
static void budget_of_a_server(void **state) {
    struct bench b;
    struct shore__fleet_cache *cache;
    const struct config config = {"remote", "u", SHORE_IO_AUTO, 0, 0, SHORE_MOMENTS_FP32};
    assert_true(bench_open(&b, &config, SHORE_ADAMW, false));
    assert_int_equal(shore__fleet_cache_open(b.fleet, UINT64_C(16) << 30, 4096, &cache, &b.diag), SHORE_EBUDGET);
    assert_non_null(strstr(b.diag.text, "is free"));
    assert_int_equal(cache_files(&b.place), 0);
    must(&b, shore__fleet_cache_open(b.fleet, PAGES * PAGE, PAGE, &cache, &b.diag));
    must(&b, shore__fleet_cache_close(cache, &b.diag));
    bench_close(&b);
}

/* All that has one key is on one drive, and keys are shared out as the state is. */
static void placed_by_key(void **state) {
    struct cached c;
    uint32_t count[DRIVES_MOST] = {0};
    const struct config config = {"five drives", "fffff", SHORE_IO_AUTO, 1, 0, SHORE_MOMENTS_FP32};
    assert_true(open_cached(&c, &config, PAGES * PAGE));
    uint32_t segments = 0;
    for (uint32_t d = 0; d < c.b.fleet->ndrives; d++)
        segments += c.b.fleet->drives[d]->desc->segments;
    for (uint64_t s = 0; s < 500; s++)
        for (uint32_t h = 0; h < 20; h++)
            count[shore__fleet_cache_drive(c.cache, &(struct shore__cache_key){s, h / 5, h % 5})]++;
    for (uint32_t d = 0; d < c.b.fleet->ndrives; d++) {
        double want = 10000.0 * c.b.fleet->drives[d]->desc->segments / segments;
        if (count[d] < 0.85 * want - 100 || count[d] > 1.15 * want + 100)
            fail_msg("drive %u has %u of 10,000 keys, not about %.0f", d, count[d], want);
    }
    close_cached(&c);
}

/* What a cache takes is of the arena that was planned: no more than was said; and what is too little is refused. */
static void memory_is_what_was_planned(void **state) {
    const char *const drives[][2] = {{"ram:", "ram:"}, {"a.volume", "b.volume"}};
    for (int kind = 0; kind < 2; kind++) {
        char dir[] = "/tmp/shore-cache-XXXXXX", path[2][64];
        assert_non_null(mkdtemp(dir));
        const char *where[2];
        for (int d = 0; d < 2; d++) {
            snprintf(path[d], sizeof path[d], "%s/%s", dir, drives[kind][d]);
            where[d] = kind ? path[d] : drives[kind][d];
        }
        struct shore_diag diag = {0};
        struct shore_layout *layout;
        struct shore_fleet *fleet;
        struct shore__fleet_cache *cache;
        struct shore_fleet_options o = {.size = sizeof o, .drives = where, .ndrives = 2};
        assert_int_equal(shore_layout_make(harness_blocks, BLOCKS, &layout), 0);
        uint64_t fleet_bytes = shore_fleet_memory_bytes(layout, &o), bytes = PAGES * PAGE;
        uint64_t planned = shore__fleet_cache_memory_bytes(&o, bytes, PAGE);
        assert_int_equal(shore_arena_open(fleet_bytes + planned, 0, &o.arena, &diag), 0);
        assert_int_equal(shore_fleet_create(layout, &o, &fleet, &diag), 0);
        uint64_t left = shore_arena_left(o.arena);
        for (int i = 0; i < 3; i++) { /* one after the other has it */
            assert_int_equal(shore__fleet_cache_open(fleet, bytes, PAGE, &cache, &diag), 0);
            assert_int_equal(shore__fleet_cache_close(cache, &diag), 0);
        }
        assert_in_range(left - shore_arena_left(o.arena), 1, planned);
        uint64_t more = (fleet_bytes + planned) / 48 * PAGE; /* as many pages as have tables of all of it */
        assert_int_equal(shore__fleet_cache_open(fleet, more, PAGE, &cache, &diag), SHORE_EBUDGET);
        assert_non_null(strstr(diag.text, "is free"));
        shore_fleet_close(fleet);
        shore_arena_close(o.arena);
        shore_layout_free(layout);
        for (int d = 0; d < 2 && kind; d++)
            unlink(path[d]);
        rmdir(dir);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(memory_is_what_was_planned),
                                       cmocka_unit_test(kept_found_freed),
                                       cmocka_unit_test(full),
                                       cmocka_unit_test(refused),
                                       cmocka_unit_test(budget_of_a_server),
                                       cmocka_unit_test(damage_is_seen),
                                       cmocka_unit_test(placed_by_key)};
    server_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    server_stop();
    return failed;
}
