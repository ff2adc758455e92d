/* Runs that are made, filled and removed without a step of training. */
#ifndef SHORE_TESTS_RUN_MADE_RUNS_H
#define SHORE_TESTS_RUN_MADE_RUNS_H

#include "run/lifecycle/making.h"
#include "unit/run/support.h"

static inline void settings_of(struct shore__settings *s, const char *drive) {
    shore__settings_defaults(s);
    s->init = strdup("model.json");
    s->steps = 10;
    s->batch = 2;
    s->seq_len = 16;
    assert_int_equal(shore__strings_add(&s->data, "book.txt"), 0);
    assert_int_equal(shore__addresses_parse(&s->drives, drive, NULL), 0);
}

/* The first drive of settings is another one. */
static inline void drive_becomes(struct shore__settings *s, const char *drive) {
    shore__addresses_free(&s->drives);
    assert_int_equal(shore__addresses_parse(&s->drives, drive, NULL), 0);
}

static inline int group_open(void **state) {
    if (scratch_open(state) < 0) return -1;
    write_text("model.json", small_models[0]);
    write_text("book.txt", "It is a truth universally acknowledged, that a single man in possession of a good fortune, "
                           "must be in want of a wife.");
    write_text("other.txt", "Call me Ishmael.");
    return mkdir("drive", 0755);
}

static inline int prepare(const char *path, const struct shore__settings *s, bool overwrite, struct shore__run **out,
                          struct shore_diag *diag) {
    struct shore__tokenizer *tokenizer = NULL;
    struct shore__model *model = NULL;
    assert_ok_(shore__run_tokenizer_of(s, &tokenizer, diag), diag, "tokenizer");
    assert_ok_(shore__run_model(s, tokenizer, &model, diag), diag, "model");
    int rc = shore__run_prepare(path, s, model, tokenizer, overwrite, NULL, NULL, out, diag);
    if (rc < 0) {
        shore__model_free(model);
        shore__tokenizer_close(tokenizer);
    }
    return rc;
}

static inline void fill(struct shore__run *run, bool overwrite) {
    struct shore__source *source = NULL;
    assert_int_equal(shore__source_init(run->model, run->settings.seed, &source), 0);
    struct shore_fleet_options options;
    struct shore_fleet *fleet = NULL;
    shore__run_fleet_options(&run->settings, 0, false, &options);
    options.overwrite = overwrite;
    struct shore_diag diag = {0};
    assert_ok(shore__making_create(run, &options, NULL, NULL, &fleet, &diag));
    assert_ok(shore__import(fleet, run->model, source, NULL, NULL, NULL, &diag));
    assert_ok(shore_fleet_seal(fleet, 0, &diag));
    shore_fleet_close(fleet);
    shore__source_close(source);
}

/* A making that got so far and was killed: the lock and the descriptors go, the files stay. */
static inline void abandon(struct shore__run *run) {
    run->making = false;
    shore__strings_free(&run->private->created);
    shore__run_close(run);
}

static bool begun; /* of removals */

static inline struct shore__run *make(const char *path, const struct shore__settings *s, bool overwrite) {
    struct shore_diag diag = {0};
    struct shore__run *run = NULL;
    assert_ok(prepare(path, s, overwrite, &run, &diag));
    fill(run, overwrite);
    assert_ok(shore__run_finish(run, run->fleet_id, "a processor, 2 threads", NULL, NULL, &diag));
    return run;
}

static inline int opens_fleet(const struct shore__run *run, struct shore_diag *diag) {
    struct shore_fleet_options options;
    struct shore_fleet *fleet = NULL;
    shore__run_fleet_options(&run->settings, 0, false, &options);
    memcpy(options.fleet_id, run->fleet_id, sizeof options.fleet_id);
    int rc = shore_fleet_open(run->model->layout, &options, &fleet, diag);
    shore_fleet_close(fleet);
    return rc;
}

static inline void removed(const char *path) {
    struct shore_diag diag = {0};
    assert_ok(shore__run_remove(path, &begun, NULL, NULL, &diag));
    assert_false(exists(path) || has_volume("drive"));
}

#endif
