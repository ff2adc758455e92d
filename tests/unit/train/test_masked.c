/* Rows whose target is -1: a model that is trained, validated and evaluated on T of them of which the last does not
 * count is the same, bit by bit, as on the T - 1 before it, since rows do not see what follows them. */
#include <math.h>

#include "infer/infer.h"
#include "text/token_file.h"
#include "train/train.h"
#include "unit/train/book.h"

enum { T = 16 };

static const char *const models[] = {
    "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 32, \"n_head\": 2, \"n_positions\": 64, \"vocab_size\": "
    "300}",
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"intermediate_size\": 48, \"vocab_size\": 300, \"tie_word_embeddings\": false}",
};
enum { MODELS = sizeof models / sizeof *models };

/* `rows` tokens and targets; masked: the last target does not count. */
static struct shore__dataset *tokens_of(uint32_t rows, bool masked) {
    struct shore_diag diag = {0};
    struct shore__dataset *data = NULL;
    unsigned char header[SHORE__TOKEN_HEADER_BYTES], tokens[4 * (T + 1)];
    for (uint32_t i = 0; i <= rows; i++)
        shore__put_u32(tokens + (size_t)4 * i, masked && i == rows ? UINT32_MAX : i * 7919 % 256);
    const struct shore__token_header h = {
        .width = 4, .tokens = rows + 1, .documents = 1, .data_hash = XXH3_64bits(tokens, (size_t)4 * (rows + 1))};
    shore__token_header_put(header, &h);
    FILE *f = fopen("tokens", "w");
    assert_int_equal(fwrite(header, sizeof header, 1, f), 1);
    assert_int_equal(fwrite(tokens, 4, rows + 1, f), rows + 1);
    assert_int_equal(fclose(f), 0);
    assert_ok(shore__dataset_open("tokens", 0, 0, &data, &diag));
    return data;
}

struct outcome {
    struct shore__train_result trained;
    struct shore__eval_result evaluated;
    double grad_norm;
};

static void keep_norm(void *ctx, const struct shore_step_report *report) {
    ((struct outcome *)ctx)->grad_norm = report->grad_norm;
}

static void evaluate(const struct shore__run *run, struct outcome *o) {
    struct shore_diag diag = {0};
    struct shore_fleet_options fleet_options;
    struct shore__weights_of weights = {.model = run->model};
    struct shore__infer_options options = {
        .memory_bytes = UINT64_C(1) << 30, .seq_len = T, .compute = shore__settings_compute(&run->settings)};
    options.compute.device = "reference";
    shore__run_fleet_options(&run->settings, 0, false, &fleet_options);
    memcpy(fleet_options.fleet_id, run->fleet_id, sizeof fleet_options.fleet_id);
    assert_ok(shore_fleet_open(run->model->layout, &fleet_options, &weights.fleet, &diag));
    assert_ok(shore__evaluate(&weights, &options, run->train, 0, NULL, NULL, &o->evaluated, &diag));
    shore_fleet_close(weights.fleet);
}

/* One step. */
static void train(const char *config, uint32_t rows, bool masked, struct outcome *o) {
    struct shore_diag diag = {0};
    struct shore__tokenizer *tokenizer = NULL;
    struct shore__model *model = NULL;
    struct shore__run *run = NULL;
    struct shore__settings s;
    struct shore_fleet_options options;
    struct shore_fleet *fleet = NULL;
    const struct shore__train_events events = {.ctx = o, .step = keep_norm};
    *o = (struct outcome){.grad_norm = -1};
    write_text("model.json", config);
    shore__settings_defaults(&s);
    s.init = strdup("model.json");
    assert_int_equal(shore__strings_add(&s.data, "book.txt"), 0);
    assert_int_equal(shore__addresses_parse(&s.drives, "drive", NULL), 0);
    s.steps = s.batch = 1;
    s.seq_len = rows;
    s.lr = 1e-2;
    s.warmup = 0;
    s.fp32 = true;
    s.val_share = 0.1;
    s.memory_bytes = UINT64_C(1) << 30;
    assert_ok(shore__run_tokenizer_of(&s, &tokenizer, &diag));
    assert_ok(shore__run_model(&s, tokenizer, &model, &diag));
    assert_ok(shore__run_prepare("run", &s, model, tokenizer, true, NULL, NULL, &run, &diag));
    struct shore__facts facts = shore__train_facts_of(&run->settings, run->model);
    shore__plan_fleet_options(&facts, NULL, &options);
    options.overwrite = true;
    assert_ok(shore__train_initial_state(run, &options, "any", NULL, NULL, &fleet, &diag));
    shore_fleet_close(fleet);
    shore__dataset_close(run->train);
    shore__dataset_close(run->val);
    run->train = tokens_of(rows, masked);
    run->val = tokens_of(rows, masked);
    run->settings.device = "reference";
    assert_ok(shore__train(run, false, false, NULL, &events, &o->trained, &diag));
    evaluate(run, o);
    shore__run_close(run);
    shore__settings_free(&s);
}

static void as_without_the_row(void **state) {
    for (int i = 0; i < MODELS; i++) {
        struct outcome with, without;
        train(models[i], T, true, &with);
        train(models[i], T - 1, false, &without);
        assert_memory_equal(&with.trained.last_loss, &without.trained.last_loss, sizeof(double));
        assert_memory_equal(&with.trained.last_val_loss, &without.trained.last_val_loss, sizeof(double));
        assert_memory_equal(&with.grad_norm, &without.grad_norm, sizeof(double));
        assert_memory_equal(with.trained.digest, without.trained.digest, 16);
        assert_memory_equal(&with.evaluated, &without.evaluated, sizeof with.evaluated);
        assert_int_equal(with.evaluated.tokens, T - 1);
    }
}

static void where_no_row_counts_nothing_is_learnt(void **state) {
    for (int i = 0; i < MODELS; i++) {
        struct outcome o;
        train(models[i], 1, true, &o);
        assert_int_equal(o.trained.step, 1);
        assert_true(o.trained.last_loss == 0 && o.grad_norm == 0);
        assert_true(isinf(o.trained.last_val_loss)); /* measured, of nothing: that is said as what is not finite */
        assert_true(o.evaluated.loss == 0 && o.evaluated.tokens == 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_without_the_row),
        cmocka_unit_test(where_no_row_counts_nothing_is_learnt),
    };
    return cmocka_run_group_tests(tests, book_open, scratch_close);
}
