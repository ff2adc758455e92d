/* Every kind of drive, alone and with others, gives the bits of the plain arrays. */
#include "conformance/drive_bench.h"

#include "base/arena.h"
#include "drive/fleet/fleet.h"
#include "drive/fleet/fleet_snapshot.h"
#include <pthread.h>

static void test_optimizers(void **state) {
    static const struct {
        enum shore_optimizer optimizer;
        bool momentum;
    } all[] = {
        {SHORE_ADAMW, false}, {SHORE_ADAM, false}, {SHORE_SGD, false}, {SHORE_SGD, true}, {SHORE_ADAGRAD, false}};
    for (size_t o = 0; o < sizeof all / sizeof all[0]; o++) {
        for (size_t c = 0; c < NCONFIGS; c++) {
            struct bench b;
            /* all kinds with AdamW; the others by turns, and all with 8-bit moments in memory */
            bool each = configs[c].moments == SHORE_MOMENTS_8BIT && configs[c].kinds[0] == 'r';
            if (o && !each && c % 4 != o % 4) continue;
            if (!bench_open(&b, &configs[c], all[o].optimizer, all[o].momentum)) continue;
            assert_digest(b.fleet, &b.plain, true);
            for (int i = 0; i < 3; i++) {
                step(&b);
                assert_digest(b.fleet, &b.plain, i == 1);
            }
            bench_close(&b);
        }
    }
}

static int fetch_wait(struct bench *b, uint64_t at_step, uint32_t block, uint32_t segment, uint32_t count,
                      enum shore_fetch_kind kind, void *dst) {
    struct shore_wait wait;
    shore_wait_init(&wait);
    int rc = shore_fleet_fetch(b->fleet, at_step, block, segment, count, kind, dst, shore_wait_completion(&wait));
    return rc ? rc : shore_wait(&wait, &b->diag);
}

static void check_fetches(struct bench *b, uint64_t at_step) {
    for (uint32_t block = 0; block < BLOCKS; block++) {
        const struct shore_layout_block *layout = &b->plain.layout->blocks[block];
        for (uint32_t first = 0; first < layout->segments; first++) {
            uint32_t count = layout->segments - first;
            size_t skip = (size_t)first * SHORE_SEGMENT_ELEMS, elems = (size_t)count * SHORE_SEGMENT_ELEMS;
            float *full = pages(elems * 4);
            uint16_t *half = pages(elems * 2);
            must(b, fetch_wait(b, at_step, block, first, count, SHORE_FETCH_MASTER, full));
            assert_memory_equal(full, b->plain.master[block] + skip, elems * 4);
            must(b, fetch_wait(b, at_step, block, first, count, SHORE_FETCH_M, full));
            assert_memory_equal(full, b->plain.m[block] + skip, elems * 4);
            must(b, fetch_wait(b, at_step, block, first, count, SHORE_FETCH_V, full));
            assert_memory_equal(full, b->plain.v[block] + skip, elems * 4);
            must(b, fetch_wait(b, at_step, block, first, count, SHORE_FETCH_BF16, half));
            for (size_t i = 0; i < elems; i++) {
                uint16_t hi, lo;
                shore__split_f32(b->plain.master[block][skip + i], &hi, &lo);
                assert_int_equal(half[i], hi);
            }
            free(full);
            free(half);
        }
    }
}

static void test_fetches(void **state) {
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b;
        if (!bench_open(&b, &configs[c], SHORE_ADAMW, false)) continue;
        step(&b);
        check_fetches(&b, 1);
        /* of the step being written, and what updates hand back */
        for (uint64_t base = 1; base <= 2; base++) {
            struct step_how how = {.coefficient = 1, .params = true, .images = base == 2};
            for (uint32_t i = 0; i < BLOCKS; i++) {
                how.params_out[i] = pages(b.plain.layout->blocks[i].padded_elems * 2);
            }
            must(&b, fleet_updates(b.fleet, &b.plain, base, &how, &b.diag));
            check_fetches(&b, base);
            plain_step(&b.plain, 1);
            check_fetches(&b, base + 1);
            for (uint32_t i = 0; i < BLOCKS; i++) {
                size_t bytes = b.plain.layout->blocks[i].padded_elems * 2;
                void *again = pages(bytes);
                must(&b, fetch_wait(&b, base + 1, i, 0, b.plain.layout->blocks[i].segments, SHORE_FETCH_BF16, again));
                assert_memory_equal(again, how.params_out[i], bytes);
                free(again);
                free(how.params_out[i]);
            }
            must(&b, fleet_commit(b.fleet, base, false, &b.diag));
            assert_digest(b.fleet, &b.plain, true);
        }
        assert_int_equal(fetch_wait(&b, 7, 0, 0, 1, SHORE_FETCH_BF16, b.plain.master[0]), -EINVAL);
        assert_int_equal(fetch_wait(&b, 2, 0, 0, 1, SHORE_FETCH_SPILLED_BF16 + 1, b.plain.master[0]), -EINVAL);
        bench_close(&b);
    }
}

/* Moments that are given at the start are quantised by the drive. */
static void test_initial_moments(void **state) {
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b = {.config = &configs[c]};
        if (configs[c].moments != SHORE_MOMENTS_8BIT) continue;
        place_open(&b.place, configs[c].kinds);
        plain_open(&b.plain, SHORE_ADAMW, false);
        plain_use_8bit(&b.plain);
        b.options = options_of(&configs[c], &b.place, &b.plain);
        int rc = shore_fleet_create(b.plain.layout, &b.options, &b.fleet, &b.diag);
        for (uint32_t i = 0; !rc && i < BLOCKS; i++) {
            const struct shore_layout_block *block = &b.plain.layout->blocks[i];
            fill(block, b.plain.m[i], 5, i);
            fill(block, b.plain.v[i], 6, i);
            must(&b, shore_fleet_init_block(b.fleet, i, 0, block->segments, b.plain.master[i], b.plain.m[i],
                                            b.plain.v[i], &b.diag));
            for (uint32_t t = 0; t < block->ntensors; t++)
                if (plain_is_coded(&b.plain, &block->tensors[t])) plain_convert(&b.plain, i, &block->tensors[t], true);
        }
        if (rc) {
            assert_true(refused_here(&configs[c], rc));
        } else {
            must(&b, shore_fleet_seal(b.fleet, 0, &b.diag));
            check_fetches(&b, 0);
            assert_digest(b.fleet, &b.plain, true);
        }
        bench_close(&b);
    }
}

static void test_spill_repeat_discard_skip(void **state) {
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b;
        if (!bench_open(&b, &configs[c], SHORE_ADAMW, false)) continue;
        struct step_how spilled = {.coefficient = 1, .spill = true};
        must(&b, fleet_updates(b.fleet, &b.plain, 0, &spilled, &b.diag));
        must(&b, fleet_commit(b.fleet, 0, false, &b.diag));
        plain_step(&b.plain, 1);
        assert_digest(b.fleet, &b.plain, true);

        struct step_how twice = {.coefficient = 1, .twice = true};
        must(&b, fleet_updates(b.fleet, &b.plain, 1, &twice, &b.diag));
        must(&b, fleet_commit(b.fleet, 1, false, &b.diag));
        plain_step(&b.plain, 1);
        assert_digest(b.fleet, &b.plain, true);

        /* speculated in vain: the step with another coefficient is as if nothing had been tried */
        struct step_how wrong = {.coefficient = 1}, right = {.coefficient = 0.25f};
        must(&b, fleet_updates(b.fleet, &b.plain, 2, &wrong, &b.diag));
        assert_digest(b.fleet, &b.plain, true);
        uint64_t before = shore_fleet_attempt(b.fleet);
        assert_true(shore_fleet_discard(b.fleet) > before);
        assert_digest(b.fleet, &b.plain, true);
        must(&b, fleet_updates(b.fleet, &b.plain, 2, &right, &b.diag));
        must(&b, fleet_commit(b.fleet, 2, false, &b.diag));
        plain_step(&b.plain, 0.25f);
        assert_digest(b.fleet, &b.plain, true);

        /* a refused step, with and without something to throw away */
        must(&b, fleet_updates(b.fleet, &b.plain, 3, &wrong, &b.diag));
        shore_fleet_discard(b.fleet);
        must(&b, fleet_commit(b.fleet, 3, true, &b.diag));
        b.plain.step++;
        assert_digest(b.fleet, &b.plain, true);
        must(&b, fleet_commit(b.fleet, 4, true, &b.diag));
        b.plain.step++;
        assert_digest(b.fleet, &b.plain, true);
        step(&b);
        assert_digest(b.fleet, &b.plain, true);
        bench_close(&b);
    }
}

static int spill_wait(struct bench *b, uint32_t block, uint32_t segment, uint32_t count, enum shore_gradient_form form,
                      const void *gradient) {
    struct shore_wait wait;
    shore_wait_init(&wait);
    int rc = shore_fleet_spill(b->fleet, block, segment, count, form, gradient, shore_wait_completion(&wait));
    return rc ? rc : shore_wait(&wait, &b->diag);
}

/* What was spilled comes back as it was, in its form only. */
static void test_spilled(void **state) {
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b;
        if (!bench_open(&b, &configs[c], SHORE_ADAMW, false)) continue;
        const struct shore_layout_block *block = &b.plain.layout->blocks[1];
        uint32_t n = block->segments;
        size_t bytes = block->padded_elems * 4;
        float *gradient = pages(bytes), *back = pages(bytes);
        assert_true(n > 2);
        gradient_of_step(&b.plain, 1, 1, gradient);
        assert_int_not_equal(fetch_wait(&b, 0, 1, 0, n, SHORE_FETCH_SPILLED, back), 0);
        must(&b, spill_wait(&b, 1, 0, n - 1, SHORE_GRADIENT_FP32, gradient));
        assert_int_not_equal(fetch_wait(&b, 0, 1, 0, n, SHORE_FETCH_SPILLED, back), 0);
        must(&b, fetch_wait(&b, 0, 1, 1, n - 2, SHORE_FETCH_SPILLED, back));
        assert_memory_equal(back, gradient + SHORE_SEGMENT_ELEMS, (size_t)(n - 2) * SHORE_SEGMENT_ELEMS * 4);
        assert_int_not_equal(fetch_wait(&b, 0, 1, 1, n - 2, SHORE_FETCH_SPILLED_BF16, back), 0);

        must(&b, spill_wait(&b, 1, 0, n, SHORE_GRADIENT_BF16, gradient));
        memset(back, 0, bytes);
        struct shore_ledger before = {.size = sizeof before}, after = before;
        shore_fleet_ledger(b.fleet, &before);
        must(&b, fetch_wait(&b, 0, 1, 0, n, SHORE_FETCH_SPILLED_BF16, back));
        shore_fleet_ledger(b.fleet, &after);
        assert_memory_equal(back, gradient, b.plain.layout->blocks[1].elems * 2);
        assert_int_equal(after.link_out_gradients - before.link_out_gradients, 2 * b.plain.layout->blocks[1].elems);
        assert_int_not_equal(fetch_wait(&b, 0, 1, 0, n, SHORE_FETCH_SPILLED, back), 0);
        free(gradient);
        free(back);
        bench_close(&b);
    }
}

struct counting {
    struct shore__gate gate;
    pthread_mutex_t lock;
    uint64_t amount[SHORE_LANES], last_ns;
    uint64_t in_a_row[2], most; /* bytes that a drive reads between writes */
};

static uint64_t count(struct shore__gate *gate, enum shore_lane lane, uint32_t drive, uint64_t amount) {
    struct counting *c = (struct counting *)gate;
    uint64_t instant = shore__now_ns() + (lane == SHORE_LANE_DRIVE_UPDATE ? 3000000 : 1000000);
    pthread_mutex_lock(&c->lock);
    c->amount[lane] += amount;
    if (lane == SHORE_LANE_DRIVE_READ) c->in_a_row[drive] += amount;
    if (lane == SHORE_LANE_DRIVE_WRITE) c->in_a_row[drive] = 0;
    if (c->in_a_row[drive] > c->most) c->most = c->in_a_row[drive];
    if (instant > c->last_ns) c->last_ns = instant;
    pthread_mutex_unlock(&c->lock);
    return instant;
}

/* A gate is asked about all that the ledger counts, nothing is over before it says so, and no bit changes. */
static void test_gate(void **state) {
    static const struct config config = {"gate", "ff", SHORE_IO_THREADS, 1, 0, SHORE_MOMENTS_FP32};
    struct counting c = {.gate.over_ns = count, .lock = PTHREAD_MUTEX_INITIALIZER};
    struct bench b;
    assert_true(bench_open(&b, &config, SHORE_ADAMW, false));
    shore_fleet_close(b.fleet);
    must(&b, shore_fleet_open(b.plain.layout, &b.options, &b.fleet, &b.diag));
    shore__fleet_set_gate(b.fleet, &c.gate);
    struct step_how plain = {.coefficient = 1, .params = true}, spilled = {.coefficient = 1, .spill = true};
    for (uint32_t i = 0; i < BLOCKS; i++)
        plain.params_out[i] = pages(b.plain.layout->blocks[i].padded_elems * 2);
    must(&b, fleet_updates(b.fleet, &b.plain, 0, &plain, &b.diag));
    assert_true(shore__now_ns() >= c.last_ns);
    must(&b, fleet_commit(b.fleet, 0, false, &b.diag));
    plain_step(&b.plain, 1);
    for (uint32_t i = 0; i < BLOCKS; i++)
        free(plain.params_out[i]);
    must(&b, fleet_updates(b.fleet, &b.plain, 1, &spilled, &b.diag));
    assert_true(shore__now_ns() >= c.last_ns);
    must(&b, fleet_commit(b.fleet, 1, false, &b.diag));
    plain_step(&b.plain, 1);
    struct shore_ledger ledger = {.size = sizeof ledger};
    shore_fleet_ledger(b.fleet, &ledger);
    assert_int_equal(ledger.link_in_gradients + ledger.link_out_params, crossing_elems(b.plain.layout) * (4 + 2 + 4));
    assert_int_equal(c.amount[SHORE_LANE_LINK_IN], ledger.link_in_gradients);
    assert_int_equal(c.amount[SHORE_LANE_LINK_OUT], ledger.link_out_params);
    assert_int_equal(c.amount[SHORE_LANE_DRIVE_READ], ledger.drive_read_state + ledger.drive_read_spill);
    assert_int_equal(c.amount[SHORE_LANE_DRIVE_WRITE], ledger.drive_write_state + ledger.drive_write_spill);
    assert_int_equal(c.amount[SHORE_LANE_DRIVE_UPDATE], 2 * b.plain.layout->segments * SHORE_SEGMENT_ELEMS);
    /* a later chunk is read before one is written */
    assert_true(c.most >= 2 * (uint64_t)SHORE_SEGMENT_ELEMS * 12);
    assert_digest(b.fleet, &b.plain, true);
    bench_close(&b);
}

static void test_reopen(void **state) {
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b;
        if (!is_durable(&configs[c]) || !bench_open(&b, &configs[c], SHORE_ADAMW, false)) continue;
        for (int i = 0; i < 3; i++) {
            reopen(&b);
            assert_digest(b.fleet, &b.plain, true);
            step(&b);
        }
        /* what is not committed is lost, by design */
        struct step_how how = {.coefficient = 1};
        must(&b, fleet_updates(b.fleet, &b.plain, 3, &how, &b.diag));
        reopen(&b);
        assert_digest(b.fleet, &b.plain, true);
        char metrics[SHORE__METRICS_BYTES];
        uint32_t bytes = sizeof metrics;
        assert_int_equal(shore_fleet_metrics(b.fleet, metrics, &bytes), 0);
        assert_int_equal(bytes, 6);
        assert_memory_equal(metrics, "step 3", 6);
        must(&b, fleet_commit(b.fleet, 3, true, &b.diag));
        b.plain.step++;
        reopen(&b);
        assert_digest(b.fleet, &b.plain, true);
        step(&b);
        /* drives in another order */
        const char *swap = b.place.paths[0];
        b.place.paths[0] = b.place.paths[b.place.ndrives - 1];
        b.place.paths[b.place.ndrives - 1] = swap;
        reopen(&b);
        assert_digest(b.fleet, &b.plain, true);
        bench_close(&b);
    }
}

static void test_scratch(void **state) {
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b;
        if (!bench_open(&b, &configs[c], SHORE_SGD, false)) continue;
        const uint64_t bytes = 3 << 20, offset = (1 << 20) + 8192;
        unsigned char *put = pages(bytes), *got = pages(bytes), seal[16], other[16] = {1};
        for (uint64_t i = 0; i < bytes; i++) {
            put[i] = (unsigned char)shore__random_u64(1, 2, i);
        }
        struct shore_wait wait;
        shore_wait_init(&wait);
        must(&b, shore_fleet_scratch_put(b.fleet, offset, bytes, put, seal, shore_wait_completion(&wait)));
        must(&b, shore_wait(&wait, &b.diag));
        shore_wait_init(&wait);
        must(&b, shore_fleet_scratch_get(b.fleet, offset, bytes, got, seal, shore_wait_completion(&wait)));
        must(&b, shore_wait(&wait, &b.diag));
        assert_memory_equal(got, put, bytes);
        shore_wait_init(&wait);
        must(&b, shore_fleet_scratch_get(b.fleet, offset, bytes, got, other, shore_wait_completion(&wait)));
        assert_int_equal(shore_wait(&wait, &b.diag), SHORE_ECORRUPT);
        assert_int_equal(shore_fleet_scratch_put(b.fleet, 5 << 20, 4 << 20, put, seal, shore_wait_completion(&wait)),
                         -EINVAL);
        free(put);
        free(got);
        bench_close(&b);
    }
}

static void count_note(void *ctx, const char *text) {
    unsigned *n = ctx;
    if (strstr(text, "of memory instead of")) ++*n;
}

/* What is promised to an arena is what is taken from it; that it is less than was planned is said. */
static void test_memory(void **state) {
    for (size_t c = 0; c < NCONFIGS; c++) {
        if (configs[c].kinds[0] == 'u') continue; /* its memory is the server's */
        for (int least = 0; least < 2; least++) {
            struct place place;
            struct plain plain;
            struct shore_fleet *fleet;
            struct shore_diag diag = {0};
            place_open(&place, configs[c].kinds);
            plain_open(&plain, SHORE_ADAMW, false);
            if (configs[c].moments == SHORE_MOMENTS_8BIT) plain_use_8bit(&plain);
            struct shore_fleet_options options = options_of(&configs[c], &place, &plain);
            unsigned notes = 0;
            options.io = SHORE_IO_THREADS;
            options.ring_bytes = UINT64_C(8) << 20;
            options.note = count_note;
            options.note_ctx = &notes;
            uint64_t most = shore_fleet_memory_bytes(plain.layout, &options);
            uint64_t bytes = least ? shore_fleet_memory_least_bytes(plain.layout, &options) : most;
            assert_int_equal(shore_arena_open(bytes, 0, &options.arena, &diag), 0);
            if (shore_fleet_create(plain.layout, &options, &fleet, &diag)) fail_msg("%s", diag.text);
            if (fleet_init(fleet, &plain, &diag)) fail_msg("%s", diag.text);
            if (fleet_step(fleet, &plain, 0, &diag)) fail_msg("%s", diag.text);
            plain_step(&plain, 1);
            assert_digest(fleet, &plain, true);
            assert_true(shore__arena_left(options.arena) < bytes / 3);
            assert_int_equal(notes, bytes < most);
            shore_fleet_close(fleet);
            shore_arena_close(options.arena);
            plain_close(&plain);
            place_close(&place);
        }
    }
}

static void test_null(void **state) {
    static const struct config null_config = {"null", "nn", SHORE_IO_AUTO, 0, 0, SHORE_MOMENTS_FP32};
    struct bench b;
    assert_true(bench_open(&b, &null_config, SHORE_ADAMW, false));
    must(&b, fleet_step(b.fleet, &b.plain, 0, &b.diag));
    shore_fleet_discard(b.fleet);
    must(&b, fleet_step(b.fleet, &b.plain, 1, &b.diag));
    float *got = pages(SHORE_SEGMENT_ELEMS * 4), *zeros = pages(SHORE_SEGMENT_ELEMS * 4);
    got[5] = 1;
    must(&b, fetch_wait(&b, 2, 1, 1, 1, SHORE_FETCH_MASTER, got));
    assert_memory_equal(got, zeros, SHORE_SEGMENT_ELEMS * 4);
    free(got);
    free(zeros);
    bench_close(&b);
}

/* AdamW reads 12 bytes an element and writes 12; with 8-bit moments 4, and 68 KiB for each moment of a segment:
 * two pages more where a small tensor lies. */
static void test_ledger(void **state) {
    static const struct config both[] = {{"threads", "f", SHORE_IO_THREADS, 0, 0, SHORE_MOMENTS_FP32},
                                         {"8 bits", "f", SHORE_IO_THREADS, 0, 0, SHORE_MOMENTS_8BIT}};
    for (size_t c = 0; c < 2; c++) {
        struct bench b;
        struct shore_ledger before = {.size = sizeof before}, after = before;
        assert_true(bench_open(&b, &both[c], SHORE_ADAMW, false));
        shore_fleet_ledger(b.fleet, &before);
        step(&b);
        shore_fleet_ledger(b.fleet, &after);
        uint64_t elems = b.plain.layout->segments * SHORE_SEGMENT_ELEMS;
        uint64_t state_bytes = c ? b.plain.layout->segments * (262144 + 2 * 69632) + 4 * 4096 : 12 * elems;
        assert_int_equal(after.drive_read_state - before.drive_read_state, state_bytes);
        assert_int_equal(after.drive_write_state - before.drive_write_state, state_bytes);
        assert_int_equal(after.link_in_gradients - before.link_in_gradients, 4 * crossing_elems(b.plain.layout));
        assert_true(after.drive_write_commit > before.drive_write_commit);
        bench_close(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizers),      cmocka_unit_test(test_fetches),
        cmocka_unit_test(test_initial_moments), cmocka_unit_test(test_spill_repeat_discard_skip),
        cmocka_unit_test(test_spilled),         cmocka_unit_test(test_gate),
        cmocka_unit_test(test_reopen),          cmocka_unit_test(test_scratch),
        cmocka_unit_test(test_memory),          cmocka_unit_test(test_null),
        cmocka_unit_test(test_ledger),
    };
    server_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    server_stop();
    return failed;
}
