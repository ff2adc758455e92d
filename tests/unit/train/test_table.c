/* A plan that no rule would choose is followed, layer by layer and unit by unit, with the same bits. */
#include "base/prng.h"
#include "seed.h"
#include "train/train.h"
#include "unit/train/book.h"

enum { LAYERS = 6, UNITS = 2, STEPS = 2 };

static uint64_t seed;

static const char model[] = "{\"model_type\": \"gpt2\", \"n_layer\": 6, \"n_embd\": 32, \"n_head\": 2, "
                            "\"n_positions\": 64, \"vocab_size\": 300}";

static int group_open(void **state) {
    int rc = book_open(state);
    if (!rc) write_text("model.json", model);
    return rc;
}

/* What becomes of the units of each layer, from layer 1 on, and of its input. */
struct table {
    enum shore_way inner[LAYERS][UNITS], input[LAYERS];
    bool full[LAYERS];
    uint64_t most_bytes, least_bytes; /* that a step then moves, one way: what is in memory still need not come back */
    uint64_t seen_bytes;              /* that the last step has moved, both ways */
    bool set;
};

static void set(struct shore__train_plan *plan, const struct shore__fate *at, enum shore_way way, bool full) {
    plan->plan->fate[at - plan->plan->fate] = (struct shore__fate){.way = way, .full = full, .count = 1};
}

static void set_table(void *ctx, const struct shore__facts *f, struct shore__train_plan *plan) {
    struct table *table = ctx;
    assert_int_equal(plan->units, UNITS);
    if (!table->set) return;
    uint64_t unit = shore__plan_offload_bytes(f), whole = 0;
    table->most_bytes = 0;
    for (uint32_t l = 1; l <= LAYERS; l++) {
        for (size_t u = 0; u < UNITS; u++) {
            enum shore_way way = table->inner[l - 1][u];
            set(plan, shore__plan_inner(f, plan, l, u), way, way == SHORE_WAY_KEEP && table->full[l - 1]);
            if (way != SHORE_WAY_MOVE) continue;
            table->most_bytes += unit;
            whole += u == 0;
        }
        set(plan, shore__plan_input(plan, l), table->input[l - 1], false);
        if (table->input[l - 1] == SHORE_WAY_MOVE) table->most_bytes += shore__plan_boundary_bytes(f);
    }
    shore__plan_lay_out(plan->plan);
    table->least_bytes = whole > SHORE__OFFLOAD_SLOTS ? (whole - SHORE__OFFLOAD_SLOTS) * unit : 0;
    for (uint32_t l = 1; l <= LAYERS; l++)
        for (size_t u = 0; u < UNITS; u++)
            assert_int_equal(shore__plan_inner(f, plan, l, u)->way, table->inner[l - 1][u]);
}

static void saw(void *ctx, const struct shore_step_report *report) {
    struct table *table = ctx;
    table->seen_bytes = report->ledger.link_activations;
}

static void train(const char *path, struct table *table, bool fp32, unsigned char digest[16]) {
    struct shore__settings s;
    struct shore_diag diag = {0};
    struct shore__tokenizer *tokenizer = NULL;
    struct shore__model *m = NULL;
    struct shore__run *run = NULL;
    struct shore__train_result result;
    const struct shore__train_events events = {.ctx = table, .planned = set_table, .step = saw};
    shore__settings_defaults(&s);
    s.init = strdup("model.json");
    assert_int_equal(shore__strings_add(&s.data, "book.txt"), 0);
    assert_int_equal(shore__addresses_parse(&s.drives, "drive", NULL), 0);
    s.steps = STEPS;
    s.lr = 1e-2;
    s.warmup = 0;
    s.seq_len = 16;
    s.batch = 66; /* two units, one of them short */
    s.fp32 = fp32;
    s.products = SHORE__PRODUCTS_F32;
    s.offload = SHORE__ON;
    s.seed = seed;
    s.memory_bytes = UINT64_C(1) << 30;
    assert_ok(shore__run_tokenizer_of(&s, &tokenizer, &diag));
    assert_ok(shore__run_model(&s, tokenizer, &m, &diag));
    assert_ok(shore__run_prepare(path, &s, m, tokenizer, true, NULL, NULL, &run, &diag));
    if (shore__train(run, true, true, NULL, &events, &result, &diag)) fail_msg("%s", diag.text);
    memcpy(digest, result.digest, 16);
    shore__run_close(run);
    shore__settings_free(&s);
}

static void followed(struct table *table, const char *what) {
    for (int fp32 = 0; fp32 < 2; fp32++) {
        unsigned char wanted[16], found[16];
        struct table rules = {.set = false};
        train("rules", &rules, fp32, wanted);
        assert_int_equal(rules.seen_bytes, 0); /* there is memory for all of it */
        table->set = true;
        train("table", table, fp32, found);
        if (memcmp(wanted, found, 16) != 0) fail_msg("%s: another digest", what);
        assert_in_range(table->seen_bytes, table->least_bytes, 2 * table->most_bytes);
    }
}

#define KEPT SHORE_WAY_KEEP
#define AGAIN SHORE_WAY_AGAIN
#define MOVED SHORE_WAY_MOVE

/* Layer 2 kept, 3 computed again, 5 moved, half of 6. */
static void as_it_was_made_by_hand(void **state) {
    struct table table = {
        .inner = {{AGAIN, MOVED}, {KEPT, KEPT}, {AGAIN, AGAIN}, {KEPT, AGAIN}, {MOVED, MOVED}, {MOVED, KEPT}},
        .full = {[1] = true},
        .input = {KEPT, MOVED, KEPT, KEPT, MOVED, MOVED},
    };
    followed(&table, "by hand");
}

static void as_it_was_drawn(void **state) {
    static const enum shore_way ways[] = {KEPT, AGAIN, MOVED};
    uint64_t drawn = 0;
    for (int i = 0; i < 2; i++) {
        struct table table = {.set = true};
        for (uint32_t l = 0; l < LAYERS; l++) {
            for (uint32_t u = 0; u < UNITS; u++)
                table.inner[l][u] = ways[shore__random_u64(seed, 2, drawn++) % 3];
            table.full[l] = shore__random_u64(seed, 2, drawn++) % 2;
            table.input[l] = shore__random_u64(seed, 2, drawn++) % 2 ? KEPT : MOVED;
        }
        followed(&table, "drawn");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_it_was_made_by_hand),
        cmocka_unit_test(as_it_was_drawn),
    };
    seed = test_seed();
    return cmocka_run_group_tests(tests, group_open, scratch_close);
}
