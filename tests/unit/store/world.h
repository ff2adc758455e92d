/* A store on a fleet whose reads and writes are held up or fail, beside what each entry has to hold. */
#ifndef TESTS_STORE_WORLD_H
#define TESTS_STORE_WORLD_H

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/prng.h"
#include "longshore/store.h"
#include "storage/blockio.h"

enum { PAGE = 4096, EACH = 4 * PAGE, POOL = 4 };

struct world {
    char path[32], drive[48], second[48];
    struct shore_layout *layout;
    struct shore_fleet *fleet;
    struct shore_activation_store *store;
    struct shore_device *device;
    bool keeps;
    struct shore_diag diag;
};

/* ---- faults ------------------------------------------------------------------------------------------------------ */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool held;         /* writes wait */
    int reads, writes; /* what they fail with */
} fault = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0, 0};

static inline int shim(void *ctx, const struct shore__file *file, const struct shore__io_op *op) {
    pthread_mutex_lock(&fault.lock);
    while (op->kind == SHORE__IO_WRITE && fault.held)
        pthread_cond_wait(&fault.changed, &fault.lock);
    int rc = op->kind == SHORE__IO_WRITE ? fault.writes : op->kind == SHORE__IO_READ ? fault.reads : 0;
    pthread_mutex_unlock(&fault.lock);
    return rc;
}

/* What the second drive gives back is something else. */
static inline void damage(void *ctx, const struct shore__file *file, const struct shore__io_op *op) {
    const atomic_bool *damaging = ctx;
    if (*damaging && op->kind == SHORE__IO_READ && strstr(file->path, "second")) *(unsigned char *)op->buffer ^= 1;
}

static inline void set_fault(bool held, int reads, int writes) {
    pthread_mutex_lock(&fault.lock);
    fault.held = held;
    fault.reads = reads;
    fault.writes = writes;
    pthread_cond_broadcast(&fault.changed);
    pthread_mutex_unlock(&fault.lock);
}

/* ---- the world --------------------------------------------------------------------------------------------------- */

#define assert_ok(w, rc) assert_code(w, rc, 0, __LINE__)
#define assert_says(w, rc, code, text) assert_sentence(w, rc, code, text, __LINE__)
static inline void assert_code(struct world *w, int rc, int expected, int line) {
    if (rc != expected) fail_msg("line %d: %d instead of %d: %s", line, rc, expected, w->diag.text);
}
static inline void assert_sentence(struct world *w, int rc, int expected, const char *text, int line) {
    assert_code(w, rc, expected, line);
    if (!strstr(w->diag.text, text)) fail_msg("line %d: \"%s\" does not contain \"%s\"", line, w->diag.text, text);
}

static inline int open_store(struct world *w, uint64_t pool, uint64_t scratch) {
    const struct shore_store_options options = {
        .size = sizeof options,
        .pool_bytes = pool,
        .scratch_offset = PAGE,
        .scratch_bytes = scratch,
        .device = w->device,
        .keeps = w->keeps,
    };
    return shore_store_open(w->fleet, &options, &w->store, &w->diag);
}

static inline void open_drives(struct world *w, uint32_t ndrives) {
    *w = (struct world){.path = "/tmp/shore-store-XXXXXX"};
    assert_non_null(mkdtemp(w->path));
    snprintf(w->drive, sizeof w->drive, "%s/state.volume", w->path);
    snprintf(w->second, sizeof w->second, "%s/second.volume", w->path);
    const struct shore_tensor_spec tensor = {"w", SHORE_SEGMENT_ELEMS, 0};
    const struct shore_block_spec block = {"b", &tensor, 1};
    const char *const drives[] = {w->drive, w->second};
    const struct shore_fleet_options options = {.size = sizeof options,
                                                .drives = drives,
                                                .ndrives = ndrives,
                                                .optimizer = SHORE_SGD,
                                                .scratch_bytes = 4 << 20,
                                                .io = SHORE_IO_THREADS};
    set_fault(false, 0, 0);
    shore__io_set_shim(shim, NULL);
    assert_ok(w, shore_layout_make(&block, 1, &w->layout));
    assert_ok(w, shore_fleet_create(w->layout, &options, &w->fleet, &w->diag));
    float *master = calloc(SHORE_SEGMENT_ELEMS, sizeof *master);
    assert_ok(w, shore_fleet_init_block(w->fleet, 0, 0, 1, master, NULL, NULL, &w->diag));
    free(master);
    assert_ok(w, shore_fleet_seal(w->fleet, 0, &w->diag));
    assert_ok(w, open_store(w, (uint64_t)POOL * EACH, 3 << 20));
    shore_store_begin(w->store, 7);
}

/* A pool of POOL entries of EACH bytes. */
static inline void open_world(struct world *w) {
    open_drives(w, 1);
}

static inline struct shore_store_counts count(struct world *w) {
    struct shore_store_counts counts = {.size = sizeof counts};
    assert_ok(w, shore_store_count(w->store, &counts));
    return counts;
}

static inline void close_world(struct world *w) {
    set_fault(false, 0, 0);
    struct shore_store_counts counts = count(w);
    assert_true(counts.pool_most_bytes <= counts.pool_bytes);
    shore_store_close(w->store);
    shore_fleet_close(w->fleet);
    shore_layout_free(w->layout);
    shore__io_set_shim(NULL, NULL);
    unlink(w->drive);
    unlink(w->second);
    rmdir(w->path);
}

static inline void fill(void *memory, uint64_t key, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes / 8; i++)
        ((uint64_t *)memory)[i] = key << 32 ^ i;
}
static inline void assert_holds(const void *memory, uint64_t key, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes / 8; i++)
        if (((const uint64_t *)memory)[i] != (key << 32 ^ i)) fail_msg("key %" PRIu64 ": other bytes", key);
}

static inline int try_store(struct world *w, uint64_t key, bool wait) {
    void *memory;
    int rc = shore_store_take(w->store, key, EACH, wait, &memory, &w->diag);
    if (rc) return rc;
    fill(memory, key, EACH);
    assert_ok(w, shore_store_put(w->store, key, &w->diag));
    assert_ok(w, shore_store_release(w->store, key, &w->diag));
    return 0;
}
static inline void check(struct world *w, uint64_t key) {
    void *memory;
    assert_ok(w, shore_store_get(w->store, key, &memory, &w->diag));
    assert_holds(memory, key, EACH);
    assert_ok(w, shore_store_release(w->store, key, &w->diag));
}

/* The first half is away. */
static inline void store_two_pools(struct world *w) {
    for (uint64_t key = 0; key < 2 * POOL; key++) {
        assert_ok(w, try_store(w, key, true));
        assert_ok(w, shore_store_settle(w->store, &w->diag));
    }
}

#endif
