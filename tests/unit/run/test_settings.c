#include <math.h>

#include "unit/run/support.h"

static int from(const char *text, struct shore__settings *s, struct shore_diag *diag) {
    json_t *j = json_loads(text, 0, NULL);
    assert_non_null(j);
    int rc = shore__settings_from_json(j, "my.json", s, diag);
    json_decref(j);
    return rc;
}

static void survives_json(void **state) {
    struct shore_diag diag = {0};
    struct shore__settings a, b, c;
    shore__settings_defaults(&a);
    assert_ok(from("{\"init\": \"gpt2-tiny\", \"data\": [\"a.txt\", \"b.txt\"], \"drive\": [\"/mnt/x\", "
                   "\"ssh://far/y\"], \"memory\": "
                   "\"1.5GiB\", \"seed\": \"18446744073709551615\", \"lr\": 0.1234567890123, \"precision\": \"fp32\", "
                   "\"on-nonfinite\": \"skip\", \"shuffle\": false, \"optimizer\": \"adagrad\", \"io\": \"threads\", "
                   "\"schedule\": \"linear\", \"steps\": 77, \"chunk-size\": 1048576, \"quiet\": true, "
                   "\"compress\": \"top1%\", \"compress-after\": 5, \"residual\": \"saved\", "
                   "\"error-feedback\": false, \"grad-precision\": \"bf16\"}",
                   &a, &diag));
    assert_int_equal(a.memory_bytes, UINT64_C(3) << 29);
    assert_true(a.seed == UINT64_MAX && a.fp32 && a.skip_nonfinite && !a.shuffle && a.quiet);
    assert_true(a.compress == 0.01 && a.compress_after == 5 && a.residual_saved && !a.error_feedback &&
                a.gradient_bf16);
    assert_int_equal(a.data.count, 2);
    assert_int_equal(a.io, SHORE_IO_THREADS);
    json_t *first = shore__settings_to_json(&a);
    shore__settings_defaults(&b);
    assert_ok(shore__settings_from_json(first, "run.json", &b, &diag));
    assert_int_equal(shore__settings_copy(&b, &c), 0);
    json_t *second = shore__settings_to_json(&c);
    assert_true(json_equal(first, second));
    assert_true(c.drives.count == 2 && c.drives.item[0]->kind->has_file && c.drives.item[1]->kind->served);
    assert_string_equal(c.drives.text[1], "ssh://far/y");
    assert_true(c.lr == a.lr && isnan(c.min_lr) && c.warmup == SHORE__WARMUP_CHOSEN && c.seed == UINT64_MAX);
    json_decref(first);
    json_decref(second);
    shore__settings_free(&a);
    shore__settings_free(&b);
    shore__settings_free(&c);
}

/* Runs of earlier versions have 0, which is refused where people write. */
static void no_share_is_called_none(void **state) {
    struct shore_diag diag = {0};
    struct shore__settings s;
    shore__settings_defaults(&s);
    s.compress = 0.5;
    assert_ok(from("{\"compress\": 0.0}", &s, &diag));
    assert_true(s.compress == 0);
    json_t *json = shore__settings_to_json(&s);
    assert_string_equal(json_string_value(json_object_get(json, "compress")), "none");
    s.compress = 0.5;
    assert_ok(shore__settings_from_json(json, "run.json", &s, &diag));
    assert_true(s.compress == 0);
    json_decref(json);
    shore__settings_free(&s);
}

/* What is gone did nothing: runs that have it go on, and lose it when they are written. */
static void flags_that_are_gone_are_passed_over(void **state) {
    struct shore_diag diag = {0};
    struct shore__settings s;
    shore__settings_defaults(&s);
    assert_ok(from("{\"micro-batch\": 16, \"batch\": 3}", &s, &diag));
    assert_int_equal(s.batch, 3);
    json_t *json = shore__settings_to_json(&s);
    assert_null(json_object_get(json, "micro-batch"));
    json_decref(json);
    shore__settings_free(&s);
}

static void names_what_is_wrong(void **state) {
    static const struct {
        const char *json, *says;
    } cases[] = {
        {"{\"stepps\": 3}", "did you mean \"steps\"?"},
        {"{\"seq_len\": 3}", "did you mean \"seq-len\"?"},
        {"{\"nonsense\": 3}", "my.json: unknown key \"nonsense\""},
        {"{\"batch\": 0}", "\"batch\" takes a whole number from 1"},
        {"{\"batch\": -1}", "\"batch\""},
        {"{\"batch\": 4294967296}", "\"batch\""},
        {"{\"batch\": 1.5}", "\"batch\""},
        {"{\"batch\": \"eight\"}", "\"batch\""},
        {"{\"steps\": 0}", "\"steps\""},
        {"{\"beta2\": 1}", "\"beta2\" takes a number from 0 to below 1"},
        {"{\"beta1\": \"0x1p-1\"}", "\"beta1\""},
        {"{\"beta1\": \"nan\"}", "\"beta1\""},
        {"{\"lr\": -0.1}", "\"lr\""},
        {"{\"val-share\": 1}", "\"val-share\""},
        {"{\"memory\": \"2 Gib of it\"}", "\"memory\" takes a size such as 2GiB"},
        {"{\"optimizer\": \"adamW\"}", "adamw, adam, sgd or adagrad"},
        {"{\"shuffle\": \"yes\"}", "off or on"},
        {"{\"precision\": true}", "bf16 or fp32"},
        {"{\"compress\": \"top101%\"}", "\"compress\" takes a share above 0 such as top1%, or none"},
        {"{\"compress\": \"1 %\"}", "\"compress\""},
        {"{\"compress\": 1.5}", "\"compress\""},
        {"{\"residual\": \"drive\"}", "host or saved"},
        {"{\"data\": [3]}", "\"data\""},
        {"{\"data\": [\"\"]}", "\"data\""},
        {"{\"init\": {}}", "\"init\""},
        {"{\"drive\": [\"/mnt/x\", \"\"]}", "\"drive\" takes a text that is not empty"},
        {"{\"drive\": [\"/mnt/x\", \"ssh:far/x\"]}", "ssh:far/x: a drive on another host is ssh://"},
        {"[1]", "my.json: settings are a JSON object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct shore_diag diag = {0};
        struct shore__settings s;
        shore__settings_defaults(&s);
        assert_int_equal(from(cases[i].json, &s, &diag), SHORE_EUSAGE);
        assert_says(diag, cases[i].says);
        shore__settings_free(&s);
    }
}

static void checks_combinations(void **state) {
    static const struct {
        const char *json, *says;
    } cases[] = {
        {"{\"data\": \"x\"}", "Give --model (a directory) or --init"},
        {"{\"model\": \"m\", \"init\": \"gpt2-tiny\", \"data\": \"x\"}", "give --model or --init, not both"},
        {"{\"init\": \"t\", \"data\": \"x\", \"val-data\": \"y\", \"val-share\": 0.1}", "val-share"},
        {"{\"init\": \"t\", \"data\": \"x\", \"steps\": 2, \"epochs\": 1}", "epochs"},
        {"{\"init\": \"t\", \"data\": \"x\", \"precision\": \"fp32\", \"products\": \"bf16\"}", "products"},
        {"{\"init\": \"t\", \"data\": \"x\", \"lr\": 1e-4, \"min-lr\": 1e-3}", "min-lr"},
        {"{\"init\": \"t\", \"data\": \"x\", \"momentum\": 0.9}", "momentum"},
        {"{\"init\": \"t\", \"data\": \"x\", \"residual\": \"saved\"}", "--residual saved needs --compress"},
        {"{\"init\": \"t\", \"data\": \"x\", \"compress\": 0.1, \"error-feedback\": \"off\", \"residual\": \"saved\"}",
         "residual saved"},
        {"{\"init\": \"t\", \"data\": \"x\", \"compress-after\": 3}", "compress-after"},
        {"{\"init\": \"t\", \"data\": \"x\", \"compress\": \"top1%\", \"compress-variance\": \"frozen\"}",
         "the run uses compress-variance frozen, which this version no longer has"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct shore_diag diag = {0};
        struct shore__settings s;
        shore__settings_defaults(&s);
        assert_ok(from(cases[i].json, &s, &diag));
        assert_int_equal(shore__settings_check(&s, &diag), SHORE_EUSAGE);
        assert_says(diag, cases[i].says);
        shore__settings_free(&s);
    }
    struct shore_diag diag = {0};
    struct shore__settings s;
    shore__settings_defaults(&s);
    assert_ok(from("{\"init\": \"gpt2-tiny\", \"data\": \"x\"}", &s, &diag));
    assert_ok(shore__settings_check(&s, &diag));
    s.batch = 0; /* set past the parser */
    assert_int_equal(shore__settings_check(&s, &diag), SHORE_EUSAGE);
    assert_says(diag, "batch");
    s.batch = 1;
    assert_int_equal(shore__strings_add(&s.data, "\xff"), 0);
    assert_int_equal(shore__settings_check(&s, &diag), SHORE_EUSAGE);
    assert_says(diag, "UTF-8");
    shore__settings_free(&s);
}

static void rates_follow_the_schedule(void **state) {
    struct shore__settings s;
    shore__settings_defaults(&s);
    s.lr = 1;
    s.min_lr = 0.1;
    s.steps = 100;
    s.warmup = 10;
    assert_true(shore__learning_rate(&s, 1) == 0.1 && shore__learning_rate(&s, 10) == 1);
    assert_true(fabs(shore__learning_rate(&s, 55) - 0.55) < 1e-12 && fabs(shore__learning_rate(&s, 100) - 0.1) < 1e-12);
    assert_true(fabs(shore__learning_rate(&s, 1000) - 0.1) < 1e-12);
    s.schedule = SHORE__LINEAR;
    assert_true(fabs(shore__learning_rate(&s, 19) - 0.91) < 1e-12 && fabs(shore__learning_rate(&s, 100) - 0.1) < 1e-12);
    s.warmup = 0;
    assert_true(shore__learning_rate(&s, 1) == 1 && fabs(shore__learning_rate(&s, 100) - 0.1) < 1e-12);
    s.schedule = SHORE__CONSTANT;
    assert_true(shore__learning_rate(&s, 100) == 1);
    s.steps = 1;
    s.schedule = SHORE__COSINE;
    assert_true(shore__learning_rate(&s, 1) == 1);
    shore__settings_free(&s);
}

static void fits_what_was_not_given(void **state) {
    struct shore__model *m = model_of(small_models[0]);
    struct shore__settings s;
    shore__settings_defaults(&s);
    s.epochs = 2.5;
    s.batch = 2;
    shore__settings_fit(&s, m, 0);
    assert_true(s.seq_len == 64 && s.lr == 3e-4 && s.min_lr == 3e-4 / 10 && s.beta2 == 0.95 && s.steps == 0);
    struct shore__settings compressed = s;
    compressed.beta2 = NAN;
    compressed.compress = 0.01;
    shore__settings_fit(&compressed, m, 0);
    assert_true(compressed.beta2 == 0.999);
    shore__settings_fit(&s, m, 1000);
    assert_int_equal(s.steps, 20);               /* 2500 tokens, 128 a step */
    assert_true(s.warmup == 6 && s.epochs == 0); /* a third of few steps */
    const uint64_t warmups[][2] = {{1, 0}, {2, 0}, {60, 20}, {300, 100}, {1000, 100}, {10000, 200}};
    for (size_t i = 0; i < sizeof warmups / sizeof *warmups; i++)
        assert_int_equal(shore__warmup_for(&s, warmups[i][0]), warmups[i][1]);
    struct shore__settings tuned = s;
    tuned.model = (char *)"directory";
    assert_int_equal(shore__warmup_for(&tuned, 60), 1);
    s.steps = 0;
    s.epochs = 1e9;
    shore__settings_fit(&s, m, UINT64_MAX);
    assert_int_equal(s.steps, SHORE__STEPS_MOST); /* what is recorded can be read again */
    shore__model_free(m);
    shore__settings_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survives_json),
        cmocka_unit_test(no_share_is_called_none),
        cmocka_unit_test(flags_that_are_gone_are_passed_over),
        cmocka_unit_test(names_what_is_wrong),
        cmocka_unit_test(checks_combinations),
        cmocka_unit_test(rates_follow_the_schedule),
        cmocka_unit_test(fits_what_was_not_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
