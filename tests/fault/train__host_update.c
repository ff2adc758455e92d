/* The update on the host: the bits of UPDATE beside the drives with any buffers; and when transfers fail or bytes come
 * back wrong, it ends, says where, and leaves the committed step as it was. */
#include "conformance/drive_harness.h"

#include <errno.h>

#include "train/host_update.h"

struct fault {
    struct place place;
    struct plain plain;
    struct shore_fleet_options options;
    struct shore_fleet *fleet;
    struct shore_diag diag;
};

static void must(struct fault *t, int rc) {
    if (rc) fail_msg("%d: %s", rc, t->diag.text);
}

static void start(struct fault *t, const char *kinds) {
    memset(t, 0, sizeof *t);
    place_open(&t->place, kinds);
    plain_open(&t->plain, SHORE_ADAMW, false);
    t->options = (struct shore_fleet_options){.size = sizeof(struct shore_fleet_options),
                                              .drives = t->place.paths,
                                              .ndrives = t->place.ndrives,
                                              .spill = true,
                                              .io = SHORE_IO_THREADS};
    must(t, shore_fleet_create(t->plain.layout, &t->options, &t->fleet, &t->diag));
    must(t, fleet_init(t->fleet, &t->plain, &t->diag));
}

static void finish(struct fault *t) {
    shore__io_set_shim(NULL, NULL);
    shore_fleet_close(t->fleet);
    plain_close(&t->plain);
    place_close(&t->place);
}

static void spill_all(struct fault *t) {
    for (uint32_t b = 0; b < BLOCKS; b++) {
        const struct shore_layout_block *block = &t->plain.layout->blocks[b];
        float *gradient = pages(block->padded_elems * 4);
        struct shore_wait wait;
        gradient_of_step(&t->plain, b, t->plain.step + 1, gradient);
        shore_wait_init(&wait);
        must(t, shore_fleet_spill(t->fleet, b, 0, block->segments, SHORE_GRADIENT_FP32, gradient,
                                  shore_wait_completion(&wait)));
        must(t, shore_wait(&wait, &t->diag));
        free(gradient);
    }
}

static int update(struct fault *t, uint32_t buffers, uint32_t chunk_segments) {
    struct shore_hyper groups[GROUPS];
    hypers(&t->plain, t->plain.step + 1, groups);
    struct shore__host_update how = {
        .base_step = t->plain.step,
        .attempt = shore_fleet_attempt(t->fleet),
        .coefficient = 1,
        .groups = groups,
        .ngroups = GROUPS,
        .buffers = buffers,
        .chunk_segments = chunk_segments,
        .memory = pages(shore__host_update_bytes(shore_fleet_state_bytes(t->fleet), buffers, chunk_segments)),
    };
    int rc = shore__host_update_run(t->fleet, &how, &t->diag);
    free(how.memory);
    return rc;
}

static void any_buffers_give_the_same_bits(void **state) {
    static const char *const kinds[] = {"r", "f", "ff", "frf", "fffff"};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        struct fault t;
        start(&t, kinds[k]);
        for (uint32_t buffers = 1; buffers <= SHORE__HOST_BUFFERS_MOST; buffers++) {
            spill_all(&t);
            must(&t, update(&t, buffers, buffers == 2 ? 1 : buffers == 3 ? 100 : 3));
            must(&t, fleet_commit(t.fleet, t.plain.step, false, &t.diag));
            plain_step(&t.plain, 1);
            assert_digest(t.fleet, &t.plain, true);
        }
        assert_int_equal(update(&t, 0, 1), -EINVAL);
        assert_int_equal(update(&t, SHORE__HOST_BUFFERS_MOST + 1, 1), -EINVAL);
        assert_int_equal(update(&t, 1, 0), -EINVAL);
        finish(&t);
    }
}

struct failing {
    enum shore__io_kind kind;
    int after, rc; /* of this kind, counted down; -1: never */
};

static int fail_one(void *ctx, const struct shore__file *file, const struct shore__io_op *op) {
    struct failing *f = ctx;
    if (op->kind != f->kind || f->after < 0 || f->after--) return SHORE__IO_PASS;
    if (f->rc == SHORE__IO_DONE) memset(op->buffer, 0x5a, op->bytes); /* read, but not what was written */
    return f->rc;
}

static void a_failure_ends_it_and_says_where(void **state) {
    static const struct {
        enum shore__io_kind kind;
        int rc, want;
    } faults[] = {
        {SHORE__IO_READ, -EIO, -EIO},
        {SHORE__IO_WRITE, -EIO, -EIO},
        {SHORE__IO_WRITE, -ENOSPC, -ENOSPC},
        {SHORE__IO_READ, SHORE__IO_DONE, SHORE_ECORRUPT},
    };
    struct failing failing = {.after = -1};
    struct fault t;
    shore__io_set_shim(fail_one, &failing);
    start(&t, "ff");
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        for (int after = 0; after < 20; after += 3) {
            spill_all(&t);
            failing = (struct failing){faults[i].kind, after, faults[i].rc};
            int rc = update(&t, 2 + (uint32_t)after % 2, 2);
            assert_int_equal(failing.after, -1); /* it happened */
            assert_int_equal(rc, faults[i].want);
            if (!strstr(t.diag.text, t.place.paths[0]) && !strstr(t.diag.text, t.place.paths[1]))
                fail_msg("\"%s\" names no drive", t.diag.text);
            shore_fleet_discard(t.fleet);
            assert_digest(t.fleet, &t.plain, true);
        }
    }
    spill_all(&t);
    must(&t, update(&t, 2, 2));
    must(&t, fleet_commit(t.fleet, t.plain.step, false, &t.diag));
    plain_step(&t.plain, 1);
    assert_digest(t.fleet, &t.plain, true);
    finish(&t);
}

/* Nothing was spilled, or the attempt is over. */
static void what_is_not_there_is_refused(void **state) {
    struct fault t;
    start(&t, "f");
    assert_int_equal(update(&t, 2, 2), -EINVAL);
    assert_true(t.diag.text[0]);
    shore_fleet_discard(t.fleet);
    assert_digest(t.fleet, &t.plain, true);
    finish(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_buffers_give_the_same_bits),
        cmocka_unit_test(a_failure_ends_it_and_says_where),
        cmocka_unit_test(what_is_not_there_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
