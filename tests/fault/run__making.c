/* A run is made by a process that is killed at random instants; the same command must then make it, or go on with it,
 * and never lose a run that stood before. */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "base/diag.h"
#include "base/prng.h"
#include "fault/processes.h"
#include "unit/run/support.h"

/* A fork of what the thread sanitizer watches takes long, and is killed at the same instants. */
#if defined(__SANITIZE_THREAD__)
enum { KILLS = 8 };
#else
enum { KILLS = 40 };
#endif

static void settings_of(struct shore__settings *s) {
    shore__settings_defaults(s);
    s->init = strdup("model.json");
    s->seq_len = 16;
    s->io = SHORE_IO_THREADS;
    shore__strings_add(&s->data, "book.txt");
    shore__addresses_parse(&s->drives, "drive0", NULL);
    shore__addresses_parse(&s->drives, "drive1", NULL);
}

/* What `train` does until the first step. */
static int make(bool overwrite, struct shore_diag *diag) {
    struct shore__settings s;
    struct shore__tokenizer *tokenizer = NULL;
    struct shore__model *model = NULL;
    struct shore__run *run = NULL;
    struct shore__source *source = NULL;
    struct shore_fleet *fleet = NULL;
    struct shore_fleet_options options;
    settings_of(&s);
    int rc = shore__run_tokenizer_of(&s, &tokenizer, diag);
    if (rc == 0) rc = shore__run_model(&s, tokenizer, &model, diag);
    if (rc == 0) rc = shore__run_prepare("run", &s, model, tokenizer, overwrite, NULL, NULL, &run, diag);
    if (rc < 0) {
        shore__model_free(model);
        shore__tokenizer_close(tokenizer);
        shore__settings_free(&s);
        return rc;
    }
    shore__run_fleet_options(&run->settings, 0, false, &options);
    options.overwrite = overwrite;
    rc = shore__source_init(run->model, 1, &source);
    if (rc == 0) rc = shore__making_create(run, &options, NULL, NULL, &fleet, diag);
    if (rc == 0) rc = shore__import(fleet, run->model, source, NULL, NULL, NULL, diag);
    if (rc == 0) rc = shore_fleet_seal(fleet, 0, diag);
    if (rc == 0) rc = shore__run_finish(run, run->fleet_id, "a processor", NULL, NULL, diag);
    shore_fleet_close(fleet);
    shore__source_close(source);
    shore__run_close(run);
    shore__settings_free(&s);
    return rc;
}

static int go_on(struct shore_diag *diag) {
    struct shore__run *run = NULL;
    struct shore_fleet *fleet = NULL;
    struct shore_fleet_options options;
    int rc = shore__run_open("run", true, NULL, &run, diag);
    if (rc < 0) return rc;
    if (run->no_data) return shore__fail(diag, run->no_data_rc, "%s", run->no_data);
    shore__run_fleet_options(&run->settings, 0, false, &options);
    memcpy(options.fleet_id, run->fleet_id, sizeof options.fleet_id);
    rc = shore_fleet_open(run->model->layout, &options, &fleet, diag);
    unsigned char digest[16];
    if (rc == 0) rc = shore_fleet_digest(fleet, true, digest, diag);
    shore_fleet_close(fleet);
    shore__run_close(run);
    return rc;
}

/* Processes of their own throughout, since threads of OpenMP do not survive a fork. */
static pid_t start_making(bool overwrite) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct shore_diag diag = {0};
        int rc = make(overwrite, &diag);
        if (rc < 0) fprintf(stderr, "%s\n", diag.text);
        _exit(rc < 0 ? 1 : 0);
    }
    return pid;
}

static bool goes_on(void) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct shore_diag diag = {0};
        int rc = go_on(&diag);
        if (rc < 0) fprintf(stderr, "%s\n", diag.text);
        _exit(rc < 0 ? 1 : 0);
    }
    return finished(pid) == 0;
}

static void clean(void) {
    remove_tree("run");
    unlink(volume_in("drive0", ""));
    unlink(volume_in("drive1", ""));
}

static uint64_t time_of_making(void) {
    uint64_t begun = microseconds();
    clean();
    assert_int_equal(finished(start_making(false)), 0);
    uint64_t taken = microseconds() - begun;
    assert_true(goes_on());
    clean();
    return taken;
}

static void kill_at(uint64_t microsecond, bool overwrite) {
    pid_t pid = start_making(overwrite);
    usleep((useconds_t)microsecond);
    kill(pid, SIGKILL);
    finished(pid);
}

/* Also one that a kill kept from its place; whoever opens it finishes it. */
static bool is_whole(void) {
    return shore__is_run("run") || shore__run_is_half_replaced("run");
}

static void is_made_again_by_the_same_command(void **state) {
    uint64_t taken = time_of_making();
    for (uint64_t i = 0; i < KILLS; i++) {
        /* killed up to three times in a row */
        for (uint64_t k = 0; k <= i % 3; k++)
            if (!is_whole()) kill_at((uint64_t)(shore__random_unit(1, i, k) * 1.2 * (double)taken), false);
        if (!is_whole()) assert_int_equal(finished(start_making(false)), 0);
        assert_true(goes_on());
        assert_false(exists("run/making"));
        clean();
    }
}

static void an_overwritten_run_is_old_or_new(void **state) {
    uint64_t taken = time_of_making();
    for (uint64_t i = 0; i < KILLS / 2; i++) {
        assert_int_equal(finished(start_making(false)), 0);
        kill_at((uint64_t)(shore__random_unit(2, i, 0) * 1.2 * (double)taken), true);
        if (i % 2) assert_int_equal(finished(start_making(true)), 0);
        assert_true(goes_on());
        assert_false(exists("run/making"));
        clean();
    }
}

static int group_open(void **state) {
    if (scratch_open(state) < 0) return -1;
    write_text("model.json", small_models[0]);
    write_text("book.txt", "It was the best of times, it was the worst of times, it was the age of wisdom");
    return mkdir("drive0", 0755) || mkdir("drive1", 0755) ? -1 : 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_made_again_by_the_same_command),
        cmocka_unit_test(an_overwritten_run_is_old_or_new),
    };
    return cmocka_run_group_tests(tests, group_open, scratch_close);
}
