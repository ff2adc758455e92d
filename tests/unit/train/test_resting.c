/* What a step updates and what it carries: of any model, whatever rests in it, each segment is in one of both, once. */
#include "train/resting.h"

#include <stdlib.h>

#include "base/prng.h"
#include "model/adapters.h"
#include "pass/pieces.h"
#include "seed.h"
#include "unit/plan/random_models.h"

enum { CASES = 200 };

/* Lets a random choice of tensors rest. False: it would be all of them, or half a matrix. */
static bool freeze_some(struct shore__model *m, uint64_t *draw) {
    const char *patterns[64];
    size_t count = 0;
    uint32_t nth = pick(draw, 2, 5);
    for (uint32_t b = 0; b < m->nblocks; b++)
        for (uint32_t t = 0; t < m->blocks[b].ntensors && count + 3 < 64; t++)
            if (!pick(draw, 0, nth))
                for (uint32_t p = 0; p < m->blocks[b].tensors[t].nparts; p++)
                    patterns[count++] = m->blocks[b].tensors[t].parts[p].name;
    return count && !shore__model_freeze(m, patterns, count, NULL);
}

static void mark(unsigned char *times, const struct shore__model *m, uint32_t block, uint32_t segment, uint32_t count) {
    for (uint32_t b = 0; b < block; b++)
        segment += m->layout->blocks[b].segments;
    for (uint32_t i = 0; i < count; i++)
        times[segment + i]++;
}

static void check(const struct shore__model *m) {
    unsigned char *updated = calloc(m->layout->segments, 1), *carried = calloc(m->layout->segments, 1);
    uint32_t n = shore__resting_units(m, NULL), at = 0;
    struct shore_step_unit *units = calloc(n + 1, sizeof *units);
    assert_true(updated && carried && units);
    assert_int_equal(shore__resting_units(m, units), n);
    for (uint32_t i = 0; i < n; i++)
        mark(carried, m, units[i].block, units[i].segment, units[i].count);
    for (uint32_t i = 0; i < shore__pieces_count(m); i++) {
        struct shore__piece p = shore__piece_at(m, i);
        mark(updated, m, p.page.block, p.segment, p.count);
        uint32_t main = shore__model_main(m, p.page.block);
        if (p.count && main && main < shore__model_head(m)) assert_true(main >= m->lowest);
    }
    for (uint32_t b = 0; b < m->nblocks; b++)
        for (uint32_t s = 0; s < m->layout->blocks[b].segments; s++, at++) {
            assert_int_equal(updated[at], !shore__model_rests(m, b));
            assert_int_equal(carried[at], shore__model_rests(m, b));
        }
    for (uint32_t i = 0; i < shore__pages_count(m); i++)
        assert_int_equal(shore__page_number(m, shore__page_at(m, i)), i);
    free(updated);
    free(carried);
    free(units);
}

static void each_segment_is_updated_or_carried(void **state) {
    uint64_t draw = 0;
    uint32_t frozen = 0, adapted = 0;
    const struct shore__lora lora = {.rank = 2, .alpha = 1};
    for (uint32_t i = 0; i < CASES; i++) {
        struct shore__model *m = random_model(&draw);
        bool adapts = !pick(&draw, 0, 3);
        bool done = adapts ? !shore__model_adapt(m, &lora, NULL) : freeze_some(m, &draw);
        if (done) check(m), frozen += !adapts, adapted += adapts;
        shore__model_free(m);
    }
    assert_true(frozen > CASES / 4 && adapted > CASES / 10);
}

int main(void) {
    seed = test_seed();
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_segment_is_updated_or_carried)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
