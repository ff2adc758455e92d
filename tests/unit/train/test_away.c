/* Training, evaluation and generation on a device whose memory is not the host's: the same bits as where it is. */
#include "conformance/compute_away.h"
#include "infer/infer.h"
#include "seed.h"
#include "train/train.h"
#include "unit/train/book.h"

static uint64_t seed, drawn;

static uint32_t pick(uint32_t first, uint32_t last) {
    return first + (uint32_t)(shore__random_u64(seed, 1, drawn++) % (last - first + 1));
}

static const char *const models[] = {
    "{\"model_type\": \"gpt2\", \"n_layer\": 3, \"n_embd\": 32, \"n_head\": 2, \"n_positions\": 64, \"vocab_size\": "
    "300}",
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"intermediate_size\": 48, \"vocab_size\": 300, \"pad_token_id\": 32, "
    "\"tie_word_embeddings\": false}",
    "{\"model_type\": \"qwen2\", \"num_hidden_layers\": 2, \"hidden_size\": 64, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"intermediate_size\": 48, \"vocab_size\": 3000, \"tie_word_embeddings\": true}",
    "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"intermediate_size\": 24, \"moe_intermediate_size\": 720, \"vocab_size\": 300, "
    "\"num_experts\": 9, \"num_experts_per_tok\": 2, " /* each of more than a segment */
    "\"head_dim\": 8, \"output_router_logits\": true}",
    "{\"model_type\": \"gemma3_text\", \"num_hidden_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"intermediate_size\": 48, \"vocab_size\": 300, \"head_dim\": 8, "
    "\"sliding_window\": 9, \"sliding_window_pattern\": 2, \"final_logit_softcapping\": 5.0}",
};
/* What is not trained of each: patterns, or adapters. NULL: all is trained. */
static const char *const partly[][5] = {
    {NULL, "*.mlp.*", "wte*", "transformer.h.[01].*", "lora r=4,alpha=8"},
    {NULL, "*_proj.weight", "lm_head*", "model.*", "lora r=3,target=k_proj,up_proj,down_proj"},
    {NULL, "*.bias", "lm_head*", "norm.*", "lora 2"},
    {NULL, "*.experts.*", "*.mlp.gate.*", "*self_attn*", "lora r=2,target=q_proj,o_proj"},
    {NULL, "*.mlp.*", "*norm.weight", "*_proj.weight", "lora r=3,target=q_proj,down_proj"},
};
enum { STEPS = 2, MODELS = sizeof models / sizeof *models };
_Static_assert(sizeof partly / sizeof *partly == MODELS, "each model has its row");

/* What came of a run. */
struct outcome {
    struct shore__train_result result;
    char sample[STEPS + 1][200]; /* of each step */
    double loss;
    uint32_t tokens[12], ntokens;
};

static void keep_sample(void *ctx, uint64_t step, const char *text, size_t bytes) {
    struct outcome *o = ctx;
    snprintf(o->sample[step], sizeof o->sample[step], ">%.*s", (int)bytes, text);
}

/* How long a sample becomes depends on the memory that is free, which differs. */
static void same_beginning(const char *a, const char *b) {
    size_t bytes = strlen(a) < strlen(b) ? strlen(a) : strlen(b);
    assert_int_equal(strlen(a) > 0, strlen(b) > 0);
    assert_memory_equal(a, b, bytes);
}

static int keep_token(void *ctx, uint32_t token) {
    struct outcome *o = ctx;
    o->tokens[o->ntokens++] = token;
    return 0;
}

static const struct shore__sampling sampling = {.temperature = 1, .top_p = 0.9, .seed = 3, .max_tokens = 12};

static void open_weights(const struct shore__run *run, const char *device, struct shore__weights_of *weights,
                         struct shore__infer_options *options) {
    struct shore_diag diag = {0};
    struct shore_fleet_options fleet_options;
    *weights = (struct shore__weights_of){.model = run->model};
    *options = (struct shore__infer_options){.memory_bytes = UINT64_C(1) << 30, .seq_len = 24};
    options->compute = shore__settings_compute(&run->settings);
    options->compute.device = device;
    shore__run_fleet_options(&run->settings, 0, false, &fleet_options);
    memcpy(fleet_options.fleet_id, run->fleet_id, sizeof fleet_options.fleet_id);
    assert_ok(shore_fleet_open(run->model->layout, &fleet_options, &weights->fleet, &diag));
}

static void infer(const struct shore__run *run, const char *device, struct outcome *o) {
    struct shore_diag diag = {0};
    struct shore__weights_of weights;
    struct shore__eval_result result;
    struct shore__infer_options options;
    const uint32_t prompt[] = {84, 104, 101, 32};
    open_weights(run, device, &weights, &options);
    assert_ok(shore__evaluate(&weights, &options, run->train, 700, NULL, NULL, &result, &diag));
    o->loss = result.loss;
    assert_ok(shore__generate(&weights, &options, prompt, 4, &sampling, keep_token, o, &diag));
    shore_fleet_close(weights.fleet);
}

static void train(const char *path, const struct shore__settings *s, const char *device, struct outcome *o) {
    struct shore_diag diag = {0};
    struct shore__tokenizer *tokenizer = NULL;
    struct shore__model *model = NULL;
    struct shore__run *run = NULL;
    const struct shore__train_events events = {.ctx = o, .sample = keep_sample};
    *o = (struct outcome){.loss = 0};
    assert_ok(shore__run_tokenizer_of(s, &tokenizer, &diag));
    assert_ok(shore__run_model(s, tokenizer, &model, &diag));
    assert_ok(shore__run_prepare(path, s, model, tokenizer, true, NULL, NULL, &run, &diag));
    run->settings.device = device;
    if (strcmp(device, "away") != 0) run->settings.gather = SHORE__OFF;
    assert_ok(shore__train(run, true, true, NULL, &events, &o->result, &diag));
    if (s->drives.item[0]->kind->keeps) infer(run, device, o);
    shore__run_close(run);
}

static void both_ways(const struct shore__settings *s, const char *what) {
    struct outcome here, there;
    train("here", s, "reference", &here);
    train("there", s, "away", &there);
    if (memcmp(here.result.digest, there.result.digest, 16) != 0) fail_msg("%s: another digest", what);
    assert_int_equal(there.result.step, s->steps);
    assert_memory_equal(&here.result.last_loss, &there.result.last_loss, sizeof(double));
    assert_memory_equal(&here.result.last_val_loss, &there.result.last_val_loss, sizeof(double));
    for (int i = 0; i <= STEPS; i++)
        same_beginning(here.sample[i], there.sample[i]);
    assert_memory_equal(&here.loss, &there.loss, sizeof(double));
    assert_int_equal(here.ntokens, there.ntokens);
    assert_memory_equal(here.tokens, there.tokens, sizeof here.tokens);
}

static struct shore__settings random_settings(uint32_t nth, char what[200]) {
    struct shore__settings s;
    uint32_t m = nth % MODELS, precision = pick(0, 2), way = nth / MODELS % 5, long_batch = m < 2 && pick(0, 3) == 0;
    shore__settings_defaults(&s);
    s.init = strdup("model.json");
    write_text("model.json", models[m]);
    assert_int_equal(shore__strings_add(&s.data, "book.txt"), 0);
    const char *drive = way != 4 && pick(0, 4) == 0 ? "ram:" : "drive";
    assert_int_equal(shore__addresses_parse(&s.drives, drive, NULL), 0);
    s.steps = STEPS;
    s.lr = 1e-2;
    s.min_lr = 1e-3;
    s.warmup = 0;
    s.seq_len = 16;
    s.batch = long_batch ? 66 : pick(1, 5); /* 66: two units, one of them short */
    s.fp32 = precision == 0;
    s.products = precision == 1 ? SHORE__PRODUCTS_BF16 : SHORE__PRODUCTS_F32;
    s.clip = pick(0, 1) ? 1e-2 : 0;
    s.sample_every = pick(0, 2);
    s.val_share = 0.1;
    s.offload = pick(0, 1) ? SHORE__ON : SHORE__OFF;
    s.gather = pick(0, 2) ? SHORE__ON : SHORE__AUTO;
    if (way == 1) s.compress = 0.05;
    if (way == 2) s.gradient_bf16 = true;
    if (way == 3) s.clip = 1e-2;
    if (way == 4) s.host_update = true;
    const char *part = partly[m][pick(0, 4)];
    if (part && strncmp(part, "lora ", 5) == 0)
        s.lora = strdup(part + 5);
    else if (part)
        assert_int_equal(shore__strings_add(&s.freeze, part), 0);
    s.device = "away";
    struct shore__tokenizer *tokenizer = NULL;
    struct shore__model *model = NULL;
    struct shore__needs needs;
    struct shore_diag diag = {0};
    assert_ok(shore__run_tokenizer_of(&s, &tokenizer, &diag));
    assert_ok(shore__run_model(&s, tokenizer, &model, &diag));
    assert_ok(shore__train_needs(&s, model, &needs, &diag));
    shore__model_free(model);
    shore__tokenizer_close(tokenizer);
    uint32_t share = pick(0, 3);
    s.memory_bytes = needs.minimum_bytes + (needs.comfortable_bytes - needs.minimum_bytes) * share / 3;
    s.device = NULL;
    snprintf(what, 200,
             "case %u: model %u, precision %u, way %u, batch %u, memory %u of 3, clip %g, drive %s, gather %d, %s", nth,
             m, precision, way, s.batch, share, s.clip, drive, s.gather, part ? part : "all");
    print_message("%s\n", what);
    return s;
}

/* Every way and every model are among every other case, too: protecting memory takes sanitizers long. */
#if defined(__SANITIZE_ADDRESS__)
#define EVERY 2u
#else
#define EVERY 1u
#endif

static void the_same_bits(void **state) {
    for (uint32_t i = 0; i < 5 * MODELS; i += EVERY) {
        char what[200];
        struct shore__settings s = random_settings(i, what);
        both_ways(&s, what);
        shore__settings_free(&s);
    }
}

/* Bytes that are fetched to continue one token by one. */
static uint64_t fetched(const struct shore__run *run, const char *device, struct outcome *o) {
    struct shore_diag diag = {0};
    struct shore__weights_of weights;
    struct shore__infer_options options;
    struct shore_ledger ledger = {.size = sizeof ledger};
    struct shore__sampling one = sampling;
    const uint32_t prompt[] = {84};
    one.max_tokens = 1;
    open_weights(run, device, &weights, &options);
    *o = (struct outcome){.loss = 0};
    assert_ok(shore__generate(&weights, &options, prompt, 1, &one, keep_token, o, &diag));
    shore_fleet_ledger(weights.fleet, &ledger);
    shore_fleet_close(weights.fleet);
    return ledger.link_out_params;
}

/* Two of a layer's nine experts, and the segments that they share with others. */
static void experts_that_no_row_goes_to_are_not_fetched(void **state) {
    char what[200];
    struct shore_diag diag = {0};
    struct shore__run *run = NULL;
    struct outcome here, there;
    struct shore__settings s = random_settings(3, what);
    shore__addresses_free(&s.drives);
    assert_int_equal(shore__addresses_parse(&s.drives, "drive", NULL), 0);
    train("experts", &s, "reference", &here);
    assert_ok(shore__run_open("experts", true, NULL, &run, &diag));
    uint64_t by_expert = fetched(run, "reference", &here), whole = fetched(run, "away", &there);
    print_message("%" PRIu64 " bytes instead of %" PRIu64 "\n", by_expert, whole);
    assert_true(by_expert * 4 < whole * 3);
    assert_int_equal(here.tokens[0], there.tokens[0]);
    shore__run_close(run);
    shore__settings_free(&s);
}

int main(void) {
    seed = test_seed();
    away_seed = seed;
    shore__compute_register(&away_backend);
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_bits),
                                       cmocka_unit_test(experts_that_no_row_goes_to_are_not_fetched)};
    return cmocka_run_group_tests(tests, book_open, scratch_close);
}
