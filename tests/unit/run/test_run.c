#include <fcntl.h>

#include "run/lifecycle/volumes.h"
#include "unit/run/made_runs.h"

static void opens_what_was_made(void **state) {
    struct shore_diag diag = {0};
    struct shore__settings s;
    struct shore__run *run = NULL;
    char here[256], *config = NULL;
    settings_of(&s, "drive");
    s.val_share = 0.25;
    shore__run_close(make("runs/deep/a/", &s, false));
    assert_false(exists("runs/deep/a/making"));
    assert_ok(shore__run_open("runs/deep/a", true, NULL, &run, &diag));
    assert_non_null(getcwd(here, sizeof here - 8));
    char *name = shore__drive_name(run->settings.drives.text[0], run->generation);
    assert_string_equal(name, strcat(here, "/drive"));
    free(name);
    assert_string_equal(run->processor, "a processor, 2 threads");
    assert_true(run->settings.lr == 3e-4 && run->settings.warmup == 3 && run->settings.seq_len == 16);
    uint64_t train = shore__dataset_tokens(run->train), val = shore__dataset_tokens(run->val);
    assert_true(train > val && val >= 20 && train + val == shore__dataset_stats(run->train)->tokens);
    assert_ok(shore__run_tokenizer(run, &diag));
    assert_int_equal(shore__tokenizer_vocab(run->tokenizer), 257);
    assert_ok(shore__run_check_data(run, false, NULL, NULL, &diag));
    assert_ok(opens_fleet(run, &diag));
    assert_int_equal(run->hint_step, 0);
    config = read_text("runs/deep/a/config.json");
    assert_non_null(strstr(config, "GPT2LMHeadModel"));
    free(config);

    struct shore__run *second = NULL;
    assert_int_equal(shore__run_open("runs/deep/a", true, NULL, &second, &diag), SHORE_EBUSY);
    assert_says(diag, "another process");
    assert_ok(shore__run_open("runs/deep/a", false, NULL, &second, &diag));
    shore__run_close(second);

    run->settings.steps = 20;
    assert_ok(shore__metrics_append(run, 1, "{\"step\":1}", &diag));
    assert_ok(shore__run_record_change(run, 1, "steps 10 -> 20", &diag));
    shore__run_close(run);
    assert_ok(shore__run_open("runs/deep/a", false, NULL, &run, &diag));
    assert_int_equal(run->settings.steps, 20);
    assert_int_equal(run->hint_step, 1);
    assert_string_equal(json_string_value(json_object_get(json_array_get(run->changes, 0), "what")), "steps 10 -> 20");
    shore__run_close(run);
    removed("runs/deep/a");
    remove_tree("runs");
    shore__settings_free(&s);
}

static void never_replaces_without_leave(void **state) {
    struct shore_diag diag = {0};
    struct shore__settings s;
    struct shore__run *run = NULL, *old = NULL;
    settings_of(&s, "drive");
    shore__run_close(make("a", &s, false));
    assert_int_equal(prepare("a", &s, false, &run, &diag), SHORE_EEXISTS);
    assert_says(diag, "; open a to go on");

    /* the old run stays whole until the new one stands, and if that is given up */
    assert_ok(prepare("a", &s, true, &run, &diag));
    assert_true(exists("a/run.json") && exists("a/making/plan.json"));
    shore__run_close(run);
    assert_false(exists("a/making"));
    assert_ok(shore__run_open("a", true, NULL, &old, &diag));
    assert_ok(opens_fleet(old, &diag));
    uint64_t id = old->fleet_id[0];

    assert_int_equal(prepare("a", &s, true, &run, &diag), SHORE_EBUSY); /* it is open */
    shore__run_close(old);
    assert_int_equal(mkdir("b", 0755), 0);
    write_text("b/config.json", "{}");
    assert_int_equal(prepare("b", &s, false, &run, &diag), SHORE_EEXISTS);
    assert_says(diag, "b: holds config.json");
    remove_tree("b");

    run = make("a", &s, true);
    assert_true(run->fleet_id[0] != id);
    shore__run_close(run);
    removed("a");
    shore__settings_free(&s);
}

static void bad_input_leaves_nothing(void **state) {
    struct shore_diag diag = {0};
    struct shore__settings s;
    struct shore__run *run = NULL;
    settings_of(&s, "drive");
    write_text("empty.txt", "");
    free(s.data.item[0]);
    s.data.item[0] = strdup("empty.txt");
    assert_true(prepare("x/y/a", &s, false, &run, &diag) < 0);
    assert_false(exists("x"));
    free(s.data.item[0]);
    s.data.item[0] = strdup("missing.txt");
    assert_true(prepare("x/y/a", &s, false, &run, &diag) < 0);
    assert_says(diag, "missing.txt");
    assert_false(exists("x"));
    free(s.data.item[0]);
    s.data.item[0] = strdup("other.txt");
    s.val_share = 0.05;
    assert_int_equal(prepare("x/y/a", &s, false, &run, &diag), SHORE_EUSAGE);
    assert_says(diag, "val-share");
    s.val_share = 0;
    drive_becomes(&s, "nowhere/volume");
    assert_int_equal(prepare("x/y/a", &s, false, &run, &diag), SHORE_EUSAGE);
    assert_says(diag, "nowhere/volume: does not exist");
    assert_false(exists("x"));
    write_text("file", "");
    assert_true(prepare("file", &s, false, &run, &diag) < 0);
    assert_true(prepare("file/a", &s, false, &run, &diag) < 0);
    shore__settings_free(&s);
}

static void finds_moved_drives(void **state) {
    struct shore_diag diag = {0};
    struct shore__settings s;
    struct shore__run *run = NULL;
    struct shore__strings moved = {0};
    assert_int_equal(mkdir("a=b", 0755), 0);
    settings_of(&s, "a=b");
    shore__run_close(make("a", &s, false));
    assert_int_equal(rename("a=b", "c=d"), 0);
    char here[200], move[512];
    assert_non_null(getcwd(here, sizeof here));
    snprintf(move, sizeof move, "%s/a=b=c=d", here);
    assert_int_equal(shore__strings_add(&moved, move), 0);
    assert_ok(shore__run_open("a", true, &moved, &run, &diag));
    assert_ok(opens_fleet(run, &diag));
    assert_ok(shore__run_record_change(run, 0, "a drive moved", &diag));
    shore__run_close(run);
    assert_int_equal(shore__run_open("a", true, &moved, &run, &diag), SHORE_EUSAGE);
    assert_says(diag, "no such drive");
    shore__strings_free(&moved);
    assert_int_equal(shore__strings_add(&moved, "c=d=drive"), 0); /* relative, as it is typed */
    assert_int_equal(shore__run_open("a", false, &moved, &run, &diag), SHORE_EMISSING);
    assert_says(diag, "there is no volume in drive");
    write_text("drive/longshore.volume", ""); /* whose it is, opening the drives says */
    assert_ok(shore__run_open("a", false, &moved, &run, &diag));
    shore__run_close(run);
    unlink("drive/longshore.volume");
    shore__strings_free(&moved);
    assert_ok(shore__run_remove("a", &begun, NULL, NULL, &diag));
    shore__settings_free(&s);
}

static void notices_changed_files(void **state) {
    struct shore_diag diag = {0};
    struct shore__settings s;
    struct shore__run *run = NULL;
    settings_of(&s, "ram:");
    shore__run_close(make("a", &s, false));
    shore__run_close(make("b", &s, false));

    int fd = open("a/tokens.bin", O_RDWR);
    off_t end = lseek(fd, 0, SEEK_END);
    char byte = 0;
    assert_int_equal(pread(fd, &byte, 1, end - 3), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, end - 3), 1);
    close(fd);
    assert_ok(shore__run_open("a", false, NULL, &run, &diag));
    assert_true(shore__run_check_data(run, false, NULL, NULL, &diag) < 0);
    assert_says(diag, "a/tokens.bin");
    shore__run_close(run);
    assert_int_equal(truncate("a/tokens.bin", end - 2), 0);
    assert_ok(shore__run_open("a", false, NULL, &run, &diag)); /* the state is there all the same */
    assert_null(run->train);
    assert_non_null(strstr(run->no_data, "a/tokens.bin"));
    shore__run_close(run);

    struct shore__settings other;
    settings_of(&other, "ram:");
    free(other.data.item[0]);
    other.data.item[0] = strdup("other.txt");
    shore__run_close(make("c", &other, false));
    assert_int_equal(rename("c/tokens.bin", "a/tokens.bin"), 0);
    assert_ok(shore__run_open("a", false, NULL, &run, &diag));
    assert_non_null(strstr(run->no_data, "put the run's file back"));
    shore__run_close(run);

    write_text("b/committed", "12");
    assert_ok(shore__run_open("b", false, NULL, &run, &diag));
    assert_int_equal(run->hint_step, 0); /* not a whole line */
    shore__run_close(run);
    write_text("b/metrics.jsonl", "{\"step\":1}\n{\"step\": 2}\n{\"step\":3");
    assert_ok(shore__run_open("b", false, NULL, &run, &diag));
    assert_int_equal(run->hint_step, 2); /* the metrics' last whole line stands in for it */
    shore__run_close(run);
    assert_int_equal(unlink("b/committed"), 0);
    write_text("b/metrics.jsonl", "{\"step\":1}\n");
    assert_ok(shore__run_open("b", false, NULL, &run, &diag));
    assert_int_equal(run->hint_step, 1);
    shore__run_close(run);
    write_text("b/committed", "12\n");
    assert_ok(shore__run_open("b", false, NULL, &run, &diag));
    assert_int_equal(run->hint_step, 12);
    shore__run_close(run);
    char *text = read_text("b/run.json"), *version = strstr(text, "\"longshore\": 1");
    char *seed = strstr(text, "\"seed\": "), *sum = strstr(text, "\"checksum\": ");
    assert_true(seed && sum);
    seed[8] ^= 1;
    write_text("b/run.json", text);
    assert_int_equal(shore__run_open("b", false, NULL, &run, &diag), SHORE_ECORRUPT);
    assert_says(diag, "b/run.json: does not match its checksum");
    memcpy(sum, "\"nochange", 9); /* as a run has it that was made before there was one */
    write_text("b/run.json", text);
    assert_ok(shore__run_open("b", false, NULL, &run, &diag));
    shore__run_close(run);
    assert_non_null(version);
    version[13] = '3';
    write_text("b/run.json", text);
    assert_int_equal(shore__run_open("b", false, NULL, &run, &diag), SHORE_EFORMAT);
    write_text("b/run.json", "{\"longshore\": 1}");
    assert_int_equal(shore__run_open("b", false, NULL, &run, &diag), SHORE_EINPUT);
    assert_says(diag, "b/run.json");
    free(text);
    remove_tree("a");
    remove_tree("b");
    remove_tree("c");
    shore__settings_free(&s);
    shore__settings_free(&other);
}

static void chooses_models(void **state) {
    struct shore_diag diag = {0};
    struct shore__settings s;
    struct shore__model *m = NULL;
    struct shore__tokenizer *bytes = NULL;
    assert_int_equal(shore__tokenizer_bytes(&bytes), 0);
    shore__settings_defaults(&s);
    assert_int_equal(shore__run_model(&s, bytes, &m, &diag), SHORE_EUSAGE);
    s.init = strdup("gpt2-124m");
    assert_ok(shore__run_model(&s, bytes, &m, &diag));
    assert_int_equal(m->arch.vocab, 50257);
    shore__model_free(m);
    free(s.init);
    s.init = strdup("gpt2-124");
    assert_int_equal(shore__run_model(&s, bytes, &m, &diag), SHORE_EUSAGE);
    assert_says(diag, "did you mean gpt2-124m?");
    assert_says(diag, "llama-tiny");
    free(s.init);
    s.init = NULL;
    s.model = strdup("drive");
    assert_true(shore__run_model(&s, bytes, &m, &diag) < 0);
    assert_says(diag, "drive: is not a model's directory: it has no config.json");
    shore__tokenizer_close(bytes);
    shore__settings_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_what_was_made),      cmocka_unit_test(never_replaces_without_leave),
        cmocka_unit_test(bad_input_leaves_nothing), cmocka_unit_test(finds_moved_drives),
        cmocka_unit_test(notices_changed_files),    cmocka_unit_test(chooses_models),
    };
    return cmocka_run_group_tests(tests, group_open, scratch_close);
}
