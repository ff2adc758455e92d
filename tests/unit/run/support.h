/* A scratch directory, small models and small files for the tests of runs. */
#ifndef SHORE_TESTS_RUN_SUPPORT_H
#define SHORE_TESTS_RUN_SUPPORT_H

#include <ftw.h>
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "run/run.h"

static char scratch[64]; /* the process works in it */

static inline int scratch_open(void **state) {
    strcpy(scratch, "/tmp/shore-run-XXXXXX");
    return mkdtemp(scratch) && chdir(scratch) == 0 ? 0 : -1;
}

static inline int remove_entry(const char *path, const struct stat *st, int type, struct FTW *walk) {
    return remove(path);
}

static inline void remove_tree(const char *path) {
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static inline int scratch_close(void **state) {
    if (chdir("/") == 0) remove_tree(scratch);
    return 0;
}

static inline void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static inline char *read_text(const char *path) {
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, f) < 1 << 20);
    fclose(f);
    return text;
}

static inline bool exists(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

/* The volume of the one run that has its drive in a directory, with this ending; what is not there, where there is none
 * or more than one. Valid until the fourth call after it. */
static inline const char *volume_in(const char *directory, const char *ending) {
    static char path[4][512];
    static unsigned calls;
    char *out = path[calls++ % 4];
    glob_t found;
    snprintf(out, sizeof path[0], "%s/longshore*.volume%s", directory, ending);
    if (glob(out, 0, NULL, &found) == 0) {
        if (found.gl_pathc == 1) snprintf(out, sizeof path[0], "%s", found.gl_pathv[0]);
        globfree(&found);
    }
    return out;
}

static inline bool has_volume(const char *directory) {
    char pattern[512];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/longshore*.volume", directory);
    bool has = glob(pattern, 0, NULL, &found) == 0;
    if (has) globfree(&found);
    return has;
}

#define assert_ok(call) assert_ok_(call, &diag, #call)
static inline void assert_ok_(int rc, const struct shore_diag *diag, const char *what) {
    if (rc < 0) fail_msg("%s: %d: %s", what, rc, diag->text);
}

#define assert_says(diag, words) assert_says_(&(diag), words)
static inline void assert_says_(const struct shore_diag *diag, const char *words) {
    char line[2048];
    shore_diag_say(diag, NULL, line, sizeof line);
    if (!strstr(line, words)) fail_msg("'%s' does not say '%s'", line, words);
}

static const char *const small_models[] = {
    "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 96, \"n_head\": 4, \"n_positions\": 64, \"vocab_size\": "
    "1031}",
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 96, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"intermediate_size\": 200, \"vocab_size\": 1031, \"tie_word_embeddings\": false}",
    "{\"model_type\": \"qwen2\", \"num_hidden_layers\": 1, \"hidden_size\": 768, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"intermediate_size\": 520, \"vocab_size\": 300, \"tie_word_embeddings\": true}",
};
enum { SMALL_MODELS = sizeof small_models / sizeof small_models[0] };

static inline struct shore__model *model_of(const char *config) {
    struct shore_diag diag = {0};
    struct shore__arch arch;
    struct shore__model *m = NULL;
    json_t *j = json_loads(config, 0, NULL);
    assert_non_null(j);
    assert_ok(shore__arch_from_json(j, "config.json", &arch, &diag));
    json_decref(j);
    assert_ok(shore__model_make(&arch, &m, &diag));
    return m;
}

static inline void fill_fleet(const struct shore__model *m, struct shore__source *source,
                              const struct shore_fleet_options *options, struct shore_fleet **out) {
    struct shore_diag diag = {0};
    assert_ok(shore_fleet_create(m->layout, options, out, &diag));
    assert_ok(shore__import(*out, m, source, NULL, NULL, NULL, &diag));
    assert_ok(shore_fleet_seal(*out, 0, &diag));
}

/* A created, filled and sealed fleet. */
static inline struct shore_fleet *fleet_of(const struct shore__settings *s, const struct shore__model *m,
                                           struct shore__source *source, const uint64_t id[2], bool overwrite) {
    struct shore_fleet_options options;
    struct shore_fleet *fleet = NULL;
    shore__run_fleet_options(s, 0, false, &options);
    options.overwrite = overwrite;
    if (id) memcpy(options.fleet_id, id, sizeof options.fleet_id);
    fill_fleet(m, source, &options, &fleet);
    return fleet;
}

static inline void ram_settings(struct shore__settings *s) {
    shore__settings_defaults(s);
    assert_int_equal(shore__addresses_parse(&s->drives, "ram:", NULL), 0);
}

#endif
