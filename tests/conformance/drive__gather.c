/* Gradients that lie tensor by tensor give the bits of blocks that were copied together, on every kind of drive. */
#include "conformance/drive_bench.h"

#include "longshore/clip.h"
#include "number/fp16.h"
#include "seed.h"

#define ITEMS_MOST 64u

static uint64_t seed;

/* A block's gradient in memory of its own for each item, and as it is copied together. */
struct scattered {
    struct shore_gather item[ITEMS_MOST];
    void *memory[ITEMS_MOST];
    uint32_t count;
    float *dense;
};

static uint64_t draw(uint64_t *stream, uint64_t below) {
    return (uint64_t)(shore__random_unit(seed, 7, (*stream)++) * (double)below);
}

/* Elements [at, at + elems) of dense, in memory that begins where the dtype asks and nowhere better. */
static void add_item(struct scattered *s, uint64_t at, uint64_t elems, enum shore_dtype dtype) {
    size_t bytes = dtype == SHORE_DTYPE_FP32 ? 4 : 2;
    assert_true(s->count < ITEMS_MOST);
    unsigned char *memory = malloc((elems + 1) * bytes);
    assert_non_null(memory);
    void *from = memory + bytes;
    for (uint64_t i = 0; i < elems; i++) {
        float *x = &s->dense[at + i];
        if (dtype == SHORE_DTYPE_FP32) {
            ((float *)from)[i] = *x;
        } else if (dtype == SHORE_DTYPE_BF16) {
            ((uint16_t *)from)[i] = shore__f32_to_bf16(*x);
            *x = shore__bf16_to_f32(((uint16_t *)from)[i]);
        } else {
            ((uint16_t *)from)[i] = shore__f32_to_f16(*x);
            *x = shore__f16_to_f32(((uint16_t *)from)[i]);
        }
    }
    s->memory[s->count] = memory;
    s->item[s->count++] = (struct shore_gather){from, at, elems, dtype};
}

/* Cuts a gradient into items; leave_out: of some of it there is none, which becomes 0 in dense. */
static void scatter(struct scattered *s, const struct shore_layout_block *block, float *dense, unsigned dtypes,
                    bool leave_out, uint64_t *stream) {
    *s = (struct scattered){.dense = dense};
    for (uint32_t t = 0; t < block->ntensors; t++) {
        const struct shore_layout_tensor *tensor = &block->tensors[t];
        for (uint64_t at = 0, n; at < tensor->elems; at += n) {
            n = 1 + draw(stream, tensor->elems - at);
            if (n < tensor->elems / 8 && n < tensor->elems - at) n = tensor->elems - at;
            if (leave_out && draw(stream, 3) == 0)
                memset(dense + tensor->offset_elems + at, 0, n * sizeof *dense);
            else
                add_item(s, tensor->offset_elems + at, n, (enum shore_dtype)draw(stream, dtypes));
        }
    }
}

static void scattered_free(struct scattered *s) {
    for (uint32_t i = 0; i < s->count; i++)
        free(s->memory[i]);
    free(s->dense);
}

/* A block's gradient goes to the drives in two ranges, and is read from there. */
static void spill_first(struct shore_fleet *f, const struct shore_layout *layout, struct shore_update *u,
                        const struct scattered *s) {
    struct shore_wait wait;
    struct shore_diag diag = {0};
    uint32_t segments = layout->blocks[u->block].segments;
    shore_wait_init(&wait);
    for (uint32_t at = 0, count; at < segments; at += count) {
        count = at ? segments - at : 1;
        shore_wait_add(&wait);
        int rc = shore_fleet_spill_gathered(f, u->block, at, count, u->form, s->item, s->count,
                                            shore_wait_completion(&wait));
        if (rc) shore_wait_end(&wait, rc);
    }
    shore_wait_end(&wait, 0);
    if (shore_wait(&wait, &diag)) fail_msg("%s", diag.text);
}

/* Submits a block's update in two ranges with one list, of which nothing is left once that is done. */
static void submit(struct shore_fleet *f, const struct shore_layout *layout, struct shore_update u,
                   const struct scattered *s, struct shore_wait *wait) {
    struct shore_gather *list = malloc(sizeof s->item);
    assert_non_null(list);
    memcpy(list, s->item, sizeof s->item);
    u.gather = list;
    u.ngather = s->count;
    uint32_t segments = layout->blocks[u.block].segments, first = segments / 2;
    shore_wait_init(wait);
    for (uint32_t at = 0; at < segments; at += u.count) {
        u.segment = at;
        u.count = at == 0 && first ? first : segments - at;
        shore_wait_add(wait);
        int rc = shore_fleet_update(f, &u, shore_wait_completion(wait));
        if (rc) shore_wait_end(wait, rc);
    }
    shore_wait_end(wait, 0);
    memset(list, 0xFF, sizeof s->item);
    free(list);
}

/* A step whose gradient is the plain's, in the fleet's form `form`. */
static void gathered_step(struct bench *b, enum shore_gradient_form form, unsigned dtypes, bool spill,
                          uint64_t *stream) {
    struct shore_hyper groups[GROUPS];
    struct shore_wait wait[BLOCKS];
    struct scattered s[BLOCKS];
    uint64_t base = b->plain.step;
    hypers(&b->plain, base + 1, groups);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        const struct shore_layout_block *block = &b->plain.layout->blocks[i];
        float *dense = pages(block->padded_elems * 4);
        gradient_of_step(&b->plain, i, base + 1, dense);
        scatter(&s[i], block, dense, dtypes, false, stream);
        struct shore_update u = {.size = sizeof u,
                                 .base_step = base,
                                 .attempt = shore_fleet_attempt(b->fleet),
                                 .block = i,
                                 .form = form,
                                 .coefficient = 1,
                                 .groups = groups,
                                 .ngroups = GROUPS};
        if (spill) {
            spill_first(b->fleet, b->plain.layout, &u, &s[i]);
            u.count = block->segments;
            shore_wait_init(&wait[i]);
            must(b, shore_fleet_update(b->fleet, &u, shore_wait_completion(&wait[i])));
        } else {
            submit(b->fleet, b->plain.layout, u, &s[i], &wait[i]);
        }
    }
    for (uint32_t i = 0; i < BLOCKS; i++) {
        must(b, shore_wait(&wait[i], &b->diag));
        scattered_free(&s[i]);
    }
    plain_step(&b->plain, 1);
}

static void every_drive_gathers(void **state) {
    uint64_t stream = 0;
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b;
        struct shore_ledger ledger = {.size = sizeof ledger};
        if (!bench_open(&b, &configs[c], SHORE_ADAMW, false)) continue;
        gathered_step(&b, SHORE_GRADIENT_FP32, 1, false, &stream);
        must(&b, fleet_commit(b.fleet, 0, false, &b.diag));
        assert_digest(b.fleet, &b.plain, true);
        /* values that bf16 holds are the same in any dtype, and whichever form crosses the link */
        b.plain.form = SHORE_GRADIENT_BF16;
        gathered_step(&b, SHORE_GRADIENT_FP32, 2, false, &stream);
        must(&b, fleet_commit(b.fleet, 1, false, &b.diag));
        gathered_step(&b, SHORE_GRADIENT_BF16, 2, false, &stream);
        must(&b, fleet_commit(b.fleet, 2, false, &b.diag));
        assert_digest(b.fleet, &b.plain, true);
        assert_int_equal(shore_fleet_ledger(b.fleet, &ledger), 0);
        assert_int_equal(ledger.link_in_gradients, crossing_elems(b.plain.layout) * (4 + 4 + 2));
        gathered_step(&b, SHORE_GRADIENT_BF16, 2, true, &stream);
        must(&b, fleet_commit(b.fleet, 3, false, &b.diag));
        gathered_step(&b, SHORE_GRADIENT_FP32, 2, true, &stream);
        must(&b, fleet_commit(b.fleet, 4, false, &b.diag));
        assert_digest(b.fleet, &b.plain, true);
        bench_close(&b);
    }
}

/* Which keeps nothing, but takes what others take. */
static void null_takes_a_list(void **state) {
    static const struct config config = {"null", "n", SHORE_IO_AUTO, 0, 0, SHORE_MOMENTS_FP32};
    struct bench b;
    uint64_t stream = 3000;
    assert_true(bench_open(&b, &config, SHORE_ADAMW, false));
    gathered_step(&b, SHORE_GRADIENT_BF16, 3, false, &stream);
    must(&b, fleet_commit(b.fleet, 0, false, &b.diag));
    bench_close(&b);
}

/* Held back until the commit before is through, when the caller's list is long gone. */
static void updates_wait_for_a_commit(void **state) {
    uint64_t stream = 1000;
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b;
        struct shore_wait commit;
        if (!bench_open(&b, &configs[c], SHORE_ADAMW, false)) continue;
        gathered_step(&b, SHORE_GRADIENT_FP32, 1, false, &stream);
        shore_wait_init(&commit);
        must(&b, shore_fleet_commit(b.fleet, 0, false, NULL, 0, shore_wait_completion(&commit)));
        gathered_step(&b, SHORE_GRADIENT_FP32, 1, false, &stream);
        must(&b, shore_wait(&commit, &b.diag));
        must(&b, fleet_commit(b.fleet, 1, false, &b.diag));
        assert_digest(b.fleet, &b.plain, true);
        bench_close(&b);
    }
}

/* Two fleets in memory: one is given items of all dtypes, with parts missing, the other what that comes to. */
static void what_is_missing_is_zero(void **state) {
    static const struct config config = {"ram", "r", SHORE_IO_AUTO, 0, 0, SHORE_MOMENTS_8BIT};
    uint64_t stream = 2000;
    for (int round = 0; round < 6; round++) {
        enum shore_gradient_form form = round % 2 ? SHORE_GRADIENT_BF16 : SHORE_GRADIENT_FP32;
        struct bench a, b;
        struct shore_hyper groups[GROUPS];
        unsigned char digest[2][16];
        double sums[2][16];
        struct shore_clip clip[2];
        assert_true(bench_open(&a, &config, SHORE_ADAM, false) && bench_open(&b, &config, SHORE_ADAM, false));
        hypers(&a.plain, 1, groups);
        for (int k = 0; k < 2; k++)
            shore_clip_begin(&clip[k], a.plain.layout, 1, sums[k]);
        for (uint32_t i = 0; i < BLOCKS; i++) {
            const struct shore_layout_block *block = &a.plain.layout->blocks[i];
            struct shore_wait wait;
            struct scattered s;
            float *dense = pages(block->padded_elems * 4);
            gradient_of_step(&a.plain, i, 1, dense);
            scatter(&s, block, dense, 3, true, &stream);
            if (round == 5) { /* no item at all */
                memset(dense, 0, block->padded_elems * 4);
                while (s.count)
                    free(s.memory[--s.count]);
            }
            bool go = shore_clip_add(&clip[0], i, 0, block->segments, dense);
            assert_int_equal(shore_clip_add_gathered(&clip[1], i, 0, block->segments, s.item, s.count), go);
            struct shore_update u = {.size = sizeof u,
                                     .attempt = 1,
                                     .block = i,
                                     .form = form,
                                     .coefficient = 0.5f,
                                     .groups = groups,
                                     .ngroups = GROUPS};
            submit(a.fleet, a.plain.layout, u, &s, &wait);
            must(&a, shore_wait(&wait, &a.diag));
            uint16_t *narrow = pages(block->padded_elems * 2);
            shore__bf16_from_f32(narrow, dense, block->padded_elems);
            u.count = block->segments;
            u.gradient = form == SHORE_GRADIENT_BF16 ? (const void *)narrow : dense;
            shore_wait_init(&wait);
            must(&b, shore_fleet_update(b.fleet, &u, shore_wait_completion(&wait)));
            must(&b, shore_wait(&wait, &b.diag));
            free(narrow);
            scattered_free(&s);
        }
        assert_memory_equal(sums[0], sums[1], a.plain.layout->segments * sizeof(double));
        must(&a, fleet_commit(a.fleet, 0, false, &a.diag));
        must(&b, fleet_commit(b.fleet, 0, false, &b.diag));
        must(&a, shore_fleet_digest(a.fleet, true, digest[0], &a.diag));
        must(&b, shore_fleet_digest(b.fleet, true, digest[1], &b.diag));
        assert_memory_equal(digest[0], digest[1], 16);
        bench_close(&a);
        bench_close(&b);
    }
}

struct outcome {
    int rc;
    char text[160];
};

static void note_outcome(void *ctx, int rc, const struct shore_diag *diag) {
    struct outcome *o = ctx;
    o->rc = rc;
    snprintf(o->text, sizeof o->text, "%.127s", diag ? diag->text : "");
}

static void lists_that_are_none_are_refused(void **state) {
    static const struct config config = {"ram", "r", SHORE_IO_AUTO, 0, 0, SHORE_MOMENTS_FP32};
    static float memory[8];
    const void *odd = (const char *)memory + 2;
    /* tensors of the first block: 100 elements, 70,000 from 256 on, 300 from 70,400 on */
    const struct {
        struct shore_gather item[2];
        uint32_t count;
        const char *why;
    } wrong[] = {
        {{{memory, 0, 8, (enum shore_dtype)3}}, 1, "unknown dtype"},
        {{{NULL, 0, 8, SHORE_DTYPE_FP32}}, 1, "points to nothing"},
        {{{odd, 0, 1, SHORE_DTYPE_FP32}}, 1, "between two elements"},
        {{{memory, 0, 0, SHORE_DTYPE_FP32}}, 1, "empty item"},
        {{{memory, 8, 4, SHORE_DTYPE_FP32}, {memory, 0, 4, SHORE_DTYPE_FP32}}, 2, "not in block order"},
        {{{memory, 0, 4, SHORE_DTYPE_FP32}, {memory, 3, 4, SHORE_DTYPE_FP32}}, 2, "overlap"},
        {{{memory, 100, 1, SHORE_DTYPE_FP32}}, 1, "within one tensor"},
        {{{memory, 96, 5, SHORE_DTYPE_FP32}}, 1, "within one tensor"},
        {{{memory, 70699, 2, SHORE_DTYPE_FP32}}, 1, "within one tensor"},
        {{{memory, UINT64_MAX - 2, 8, SHORE_DTYPE_FP32}}, 1, "within one tensor"},
        {{{memory, 1, UINT64_MAX, SHORE_DTYPE_FP32}}, 1, "within one tensor"},
    };
    struct bench b;
    struct shore_hyper groups[GROUPS];
    struct outcome got;
    assert_true(bench_open(&b, &config, SHORE_ADAMW, false));
    hypers(&b.plain, 1, groups);
    struct shore_update u = {.size = sizeof u, .attempt = 1, .count = 1, .coefficient = 1, .groups = groups};
    u.ngroups = GROUPS;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        u.gather = wrong[i].item;
        u.ngather = wrong[i].count;
        got = (struct outcome){0};
        assert_int_equal(shore_fleet_update(b.fleet, &u, (struct shore_completion){note_outcome, &got}), 0);
        assert_int_equal(got.rc, -EINVAL);
        if (!strstr(got.text, wrong[i].why)) fail_msg("'%s' does not say '%s'", got.text, wrong[i].why);
        got = (struct outcome){0};
        assert_int_equal(shore_fleet_spill_gathered(b.fleet, 0, 0, 1, SHORE_GRADIENT_FP32, wrong[i].item,
                                                    wrong[i].count, (struct shore_completion){note_outcome, &got}),
                         0);
        if (!strstr(got.text, wrong[i].why)) fail_msg("'%s' does not say '%s'", got.text, wrong[i].why);
    }
    u.gradient = memory;
    assert_int_equal(shore_fleet_update(b.fleet, &u, (struct shore_completion){note_outcome, &got}), -EINVAL);
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_drive_gathers),
        cmocka_unit_test(null_takes_a_list),
        cmocka_unit_test(updates_wait_for_a_commit),
        cmocka_unit_test(what_is_missing_is_zero),
        cmocka_unit_test(lists_that_are_none_are_refused),
    };
    seed = test_seed();
    server_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    server_stop();
    return failed;
}
