/* A device that goes on as late as it may: how often the host waits for it. And one that stops going on, at any moment
 * of a training: an error in one sentence instead of a hang, and the run goes on from its committed step to the same
 * bits. */
#include "conformance/compute_away.h"
#include "seed.h"
#include "train/train.h"
#include "unit/train/book.h"

static uint64_t seed, drawn;

static const char *const untied =
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"intermediate_size\": 48, \"vocab_size\": 300, \"tie_word_embeddings\": false}";
static const char *const tied =
    "{\"model_type\": \"qwen2\", \"num_hidden_layers\": 2, \"hidden_size\": 64, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"intermediate_size\": 48, \"vocab_size\": 1100, \"tie_word_embeddings\": true}";
enum { STEPS = 3, LOSSES = 6 };

static struct shore__settings settings(const char *model) {
    struct shore__settings s;
    shore__settings_defaults(&s);
    s.init = strdup("model.json");
    write_text("model.json", model);
    assert_int_equal(shore__strings_add(&s.data, "book.txt"), 0);
    assert_int_equal(shore__addresses_parse(&s.drives, "drive", NULL), 0);
    s.steps = STEPS;
    s.batch = 2;
    s.seq_len = 16;
    s.lr = 1e-2;
    s.warmup = 0;
    s.val_share = 0.1;
    s.memory_bytes = UINT64_C(1) << 30;
    return s;
}

/* A new run, trained until it ends, or its device does. */
static int train(const char *path, struct shore__settings s, struct shore__train_result *result,
                 struct shore_diag *why) {
    struct shore_diag diag = {0};
    struct shore__tokenizer *tokenizer = NULL;
    struct shore__model *m = NULL;
    struct shore__run *run = NULL;
    const struct shore__train_events events = {.ctx = NULL};
    assert_ok(shore__run_tokenizer_of(&s, &tokenizer, &diag));
    assert_ok(shore__run_model(&s, tokenizer, &m, &diag));
    assert_ok(shore__run_prepare(path, &s, m, tokenizer, true, NULL, NULL, &run, &diag));
    run->settings.device = "away";
    int rc = shore__train(run, true, true, NULL, &events, result, why);
    shore__run_close(run);
    shore__settings_free(&s);
    return rc;
}

static void go_on(const char *path, struct shore__train_result *result) {
    struct shore_diag diag = {0};
    struct shore__run *run = NULL;
    const struct shore__train_events events = {.ctx = NULL};
    assert_ok(shore__run_open(path, true, NULL, &run, &diag));
    run->settings.device = "reference";
    assert_ok(shore__train(run, false, false, NULL, &events, result, &diag));
    shore__run_close(run);
}

static void a_lost_device_is_an_error_and_a_committed_state(void **state) {
    struct shore_diag diag = {0};
    struct shore__train_result whole, result;
    uint64_t steps_seen = 0;
    assert_ok(train("there", settings(untied), &whole, &diag));
    uint64_t calls = away_calls;
    assert_int_equal(whole.step, STEPS);
    for (uint32_t i = 0; i < LOSSES; i++) {
        /* one in each stretch; the last calls are of a validation whose end nothing waits for */
        uint64_t least = i * calls / LOSSES + 1, most = (i + 1) * calls / LOSSES - 20;
        away_lost_after = least + shore__random_u64(seed, 1, drawn++) % (most - least);
        print_message("lost after %" PRIu64 " of %" PRIu64 " calls\n", away_lost_after, calls);
        assert_int_equal(train("there", settings(untied), &result, &diag), -ETIMEDOUT);
        assert_says(diag, "the device is lost");
        assert_true(result.opened && result.step <= STEPS);
        steps_seen |= UINT64_C(1) << result.step;
        away_lost_after = 0;
        go_on("there", &result);
        assert_int_equal(result.step, STEPS);
        assert_memory_equal(result.digest, whole.digest, 16);
    }
    assert_true(steps_seen & (steps_seen - 1)); /* at more than one step */
}

/* Of more than 1,024 rows, which sanitizers take long for. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TWO_UNITS 3
#else
#define TWO_UNITS 66
#endif

/* With memory for everything: where the loss is asked for, and where the norm is. */
static void the_host_waits_for_decisions_alone(void **state) {
    struct shore_diag diag = {0};
    struct shore__train_result result;
    away_lazy = true;
    for (uint32_t i = 0; i < 3; i++) {
        struct shore__settings s = settings(i ? tied : untied);
        s.batch = i == 1 ? TWO_UNITS : 2;
        s.gradient_bf16 = i == 2;
        s.clip = i ? 1e-2 : 1;
        s.val_share = 0;
        away_moments = 0;
        assert_ok(train("there", s, &result, &diag));
        assert_int_equal(result.step, STEPS);
        assert_int_equal(away_moments, 2 * STEPS);
    }
    away_lazy = false;
}

int main(void) {
    seed = test_seed();
    away_seed = seed;
    shore__compute_register(&away_backend);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_waits_for_decisions_alone),
        cmocka_unit_test(a_lost_device_is_an_error_and_a_committed_state),
    };
    return cmocka_run_group_tests(tests, book_open, scratch_close);
}
