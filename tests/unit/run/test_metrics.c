#include "unit/run/support.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

#include "run/internal.h"

static struct shore__run *open_at(const char *path) {
    struct shore_diag diag = {0};
    struct shore__run *run = NULL;
    assert_ok(shore__run_alloc(path, &run, &diag));
    return run;
}

/* What recovering to `step` with `record` makes of a file. */
static struct shore__run *recovered(const char *file, uint64_t step, const char *record) {
    struct shore_diag diag = {0};
    unlink("metrics.jsonl");
    unlink("metrics.jsonl.old");
    if (file) write_text("metrics.jsonl", file);
    struct shore__run *run = open_at(".");
    assert_ok(shore__metrics_recover(run, step, record, &diag));
    return run;
}

static void becomes(const char *file, uint64_t step, const char *record, const char *wanted, bool aside) {
    struct shore__run *run = recovered(file, step, record);
    char *text = read_text("metrics.jsonl"), *hint = read_text("committed"), number[24];
    snprintf(number, sizeof number, "%llu\n", (unsigned long long)step);
    assert_string_equal(text, wanted);
    assert_string_equal(hint, number);
    assert_int_equal(run->note != NULL, aside);
    if (aside) {
        char *old = read_text("metrics.jsonl.old");
        assert_string_equal(old, file);
        free(old);
    } else {
        assert_false(exists("metrics.jsonl.old"));
    }
    free(text);
    free(hint);
    shore__run_close(run);
}

#define L1 "{\"step\":1,\"loss\":5}\n"
#define L2 "{\"step\":2,\"loss\":4}\n"
#define L3 "{\"step\":3,\"loss\":3}\n"
#define LOST(n) "{\"step\": " #n ", \"loss\": null, \"lost\": true}\n"

static void mends_what_a_kill_leaves(void **state) {
    becomes(NULL, 0, "", "", false);
    becomes(L1 L2 L3, 3, "{\"step\":3,\"loss\":3}", L1 L2 L3, false);
    becomes(L1 L2 "{\"step\":3,\"lo", 3, "{\"step\":3,\"loss\":3}", L1 L2 L3, false);
    becomes(L1 L2 "{\"step\":3,\"loss\":3}", 3, "{\"step\":3,\"loss\":3}\n", L1 L2 L3, false);
    becomes(L1 L2, 3, "{\"step\":3,\"loss\":3}", L1 L2 L3, false);
    becomes(L1 L2 L3, 1, "{\"step\":1,\"loss\":5}", L1, false);
    becomes(L1 L2 L3 "{\"st", 2, "{\"step\":2,\"loss\":4}", L1 L2, false);
    becomes(L1 L2 L3, 0, "", "", false);
    becomes(NULL, 1, "{\"step\":1,\"loss\":5}", L1, false);
}

static void keeps_what_it_cannot_explain(void **state) {
    becomes(L1 L3, 3, "{\"step\":3,\"loss\":3}", L1 LOST(2) L3, true);
    becomes(L1 L1 L2 L3, 3, "{\"step\":3,\"loss\":3}", L1 LOST(2) L3, true);
    becomes(L1 "hello\n" L2 L3, 3, "", L1 LOST(2) LOST(3), true);
    becomes(L1, 3, "{\"step\":2,\"loss\":4}", L1 LOST(2) LOST(3), true);
    struct shore__run *run = recovered(NULL, 2, "{\"step\":2,\"loss\":4}");
    char *text = read_text("metrics.jsonl");
    assert_string_equal(text, LOST(1) L2);
    free(text);
    shore__run_close(run);
}

static void takes_lines_as_others_write_them(void **state) {
    becomes("{ \"loss\": 5, \"step\": 1 }\n{\"step\" : 2}\n", 2, "", "{ \"loss\": 5, \"step\": 1 }\n{\"step\" : 2}\n",
            false);
}

#define LOSS(n, loss) "{\"step\":" #n ",\"val_loss\":" loss ",\"lr\":1}\n"

static void counts_validation_losses(void **state) {
    struct shore_diag diag = {0};
    struct shore__run *run = recovered(LOSS(1, "3.5") L2 LOSS(3, "null") LOSS(4, "4") LOSS(5, "1"), 4, "");
    const struct shore__measured *m = &run->measured;
    assert_true(m->least == 3.5 && m->least_step == 1 && m->since == 2 && m->step == 4 && m->loss == 4);
    assert_ok(shore__metrics_append(run, 5, LOSS(5, "3.5"), &diag)); /* no lower one */
    assert_true(m->since == 3 && m->least_step == 1);
    assert_ok(shore__metrics_append(run, 6, LOSS(6, "null"), &diag));
    assert_true(m->since == 4 && m->step == 6 && isnan(m->loss));
    assert_ok(shore__metrics_append(run, 7, LOSS(7, "2e0"), &diag));
    assert_true(m->since == 0 && m->least == 2 && m->least_step == 7);
    shore__run_close(run);
    run = recovered(LOSS(1, "null") L2, 3, LOSS(3, "null")); /* of a resume, with the record's line */
    assert_true(isinf(run->measured.least) && !run->measured.least_step && run->measured.since == 2);
    shore__run_close(run);
}

static void appends_in_order_only(void **state) {
    struct shore_diag diag = {0};
    struct shore__run *run = recovered(L1, 1, "");
    assert_ok(shore__metrics_append(run, 2, "{\"step\":2,\"loss\":4}", &diag));
    assert_ok(shore__metrics_append(run, 3, "{\"step\":3,\"loss\":3}\n", &diag));
    assert_true(shore__metrics_append(run, 3, "{\"step\":3}", &diag) < 0);
    assert_true(shore__metrics_append(run, 5, "{\"step\":5}", &diag) < 0);
    char *text = read_text("metrics.jsonl"), *hint = read_text("committed");
    assert_string_equal(text, L1 L2 L3);
    assert_string_equal(hint, "3\n");
    assert_int_equal(run->hint_step, 3);
    free(text);
    free(hint);
    shore__run_close(run);
}

/* More than one buffer of lines, with a line that ends on its border. */
static void reads_long_files(void **state) {
    struct shore_diag diag = {0};
    struct shore__run *run = recovered(NULL, 0, "");
    for (uint64_t step = 1; step <= 5000; step++) {
        char line[128];
        snprintf(line, sizeof line, "{\"step\":%llu,\"loss\":1.5%.*s}", (unsigned long long)step, (int)(step % 7),
                 "5555555");
        assert_ok(shore__metrics_append(run, step, line, &diag));
    }
    shore__run_close(run);
    run = open_at(".");
    assert_int_equal(shore__metrics_last(run), 5000);
    assert_ok(shore__metrics_recover(run, 4999, "", &diag));
    assert_null(run->note);
    assert_int_equal(run->private->metrics_step, 4999);
    shore__run_close(run);
}

static void survives_lines_without_end(void **state) {
    struct shore_diag diag = {0};
    FILE *f = fopen("metrics.jsonl", "w");
    fputs(L1, f);
    for (int i = 0; i < (1 << 20) + 1; i++)
        fputc('x', f);
    fclose(f);
    struct shore__run *run = open_at(".");
    assert_int_equal(shore__metrics_last(run), 0);
    shore__run_remember(run, "what opening had found");
    assert_ok(shore__metrics_recover(run, 2, "{\"step\":2,\"loss\":4}", &diag));
    assert_non_null(strstr(run->note, "what opening had found; ./metrics.jsonl was changed"));
    char *text = read_text("metrics.jsonl");
    assert_string_equal(text, L1 L2);
    free(text);
    shore__run_close(run);
}

/* Who removes the directory of a run that is being trained is not to find out at its end. */
static void notices_that_its_file_is_gone(void **state) {
    struct shore_diag diag = {0};
    struct shore__run *run = recovered(L1, 1, "");
    assert_ok(unlink("metrics.jsonl"));
    assert_int_equal(shore__metrics_append(run, 2, "{\"step\":2,\"loss\":4}", &diag), -EIO);
    assert_non_null(strstr(diag.text, "metrics.jsonl: was deleted while it was in use"));
    shore__run_close(run);
}

/* The limit of file sizes cuts a write short, as a full disk or a quota does; only the next one says why. */
static void says_why_a_line_is_cut(void **state) {
    struct shore_diag diag = {0};
    struct rlimit before, limit;
    struct shore__run *run = recovered(L1, 1, "");
    assert_ok(getrlimit(RLIMIT_FSIZE, &before));
    limit = before;
    limit.rlim_cur = sizeof L1 + 4;
    signal(SIGXFSZ, SIG_IGN);
    assert_ok(setrlimit(RLIMIT_FSIZE, &limit));
    int rc = shore__metrics_append(run, 2, "{\"step\":2,\"loss\":4}", &diag);
    assert_ok(setrlimit(RLIMIT_FSIZE, &before));
    assert_int_equal(rc, -EFBIG);
    assert_non_null(strstr(diag.text, "metrics.jsonl: the line of step 2 cannot be written: File too large"));
    assert_ok(shore__metrics_append(run, 2, "{\"step\":2,\"loss\":4}", &diag));
    char *text = read_text("metrics.jsonl");
    assert_string_equal(text, L1 L2);
    free(text);
    shore__run_close(run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mends_what_a_kill_leaves),
        cmocka_unit_test(keeps_what_it_cannot_explain),
        cmocka_unit_test(takes_lines_as_others_write_them),
        cmocka_unit_test(counts_validation_losses),
        cmocka_unit_test(appends_in_order_only),
        cmocka_unit_test(notices_that_its_file_is_gone),
        cmocka_unit_test(says_why_a_line_is_cut),
        cmocka_unit_test(reads_long_files),
        cmocka_unit_test(survives_lines_without_end),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
