/* Derives from settings the model, the tokenizer, and the defaults that depend on these. */
#include <dirent.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/suggest.h"
#include "files/atomic.h"
#include "files/json.h"
#include "run/exchange/tensors.h"
#include "run/internal.h"
#include "run/paths.h"
#include "text/data_files.h"

enum { CONFIG_BYTES_MOST = 1 << 20 };

static int read_config(const char *path, json_t **config, struct shore__arch *arch, struct shore_diag *diag) {
    int rc = shore__json_read(path, CONFIG_BYTES_MOST, config, diag);
    return rc < 0 ? rc : shore__arch_from_json(*config, path, arch, diag);
}

static int model_from_file(const char *path, struct shore__model **out, struct shore_diag *diag) {
    struct shore__arch arch;
    json_t *config = NULL;
    int rc = shore__refuse_gguf_file(path, diag);
    if (rc == 0) rc = read_config(path, &config, &arch, diag);
    if (rc == 0) rc = shore__model_of_config(&arch, config, out, diag);
    json_decref(config);
    return rc;
}

static int add_ends(const char *path, struct shore__arch *arch, struct shore_diag *diag) {
    json_t *generation = NULL;
    int rc = shore__json_read(path, CONFIG_BYTES_MOST, &generation, diag);
    if (rc == SHORE_EMISSING) return 0;
    if (rc == 0) rc = shore__arch_add_ends(generation, path, arch, diag);
    json_decref(generation);
    return rc;
}

/* Reads the weights to find out whether the model is tied. */
static int part_head(const char *directory, struct shore__arch *arch, struct shore_diag *diag) {
    struct shore__safetensors *files = NULL;
    if (!arch->tied) return 0;
    int rc = shore__tensors_open(directory, arch, &files, diag);
    if (rc == 0) rc = shore__tensors_untie(files, arch, diag);
    shore__safetensors_close(files);
    return rc;
}

static int model_from_directory(const char *directory, bool with_weights, struct shore__model **out,
                                struct shore_diag *diag) {
    struct shore__arch arch;
    int rc = shore__refuse_no_model(directory, diag);
    if (rc < 0) return rc;
    json_t *config = NULL;
    rc = read_config(shore__path_in(directory, "config.json").text, &config, &arch, diag);
    if (rc == 0) rc = add_ends(shore__path_in(directory, "generation_config.json").text, &arch, diag);
    if (rc == 0 && with_weights) rc = part_head(directory, &arch, diag);
    if (rc == 0) rc = shore__model_of_config(&arch, config, out, diag);
    json_decref(config);
    return rc;
}

int shore__model_from_directory(const char *directory, struct shore__model **out, struct shore_diag *diag) {
    return model_from_directory(directory, true, out, diag);
}

static bool is_preset(const char *name) {
    for (const char *const *p = shore__arch_presets(); *p; p++)
        if (strcmp(*p, name) == 0) return true;
    return false;
}

/* Presets keep their own vocabulary unless the tokenizer's is larger: gpt2-124m has 124 million parameters also when
 * it is trained on bytes. */
static int model_from_preset(const char *name, uint32_t vocab, struct shore__model **out, struct shore_diag *diag) {
    struct shore__arch arch;
    int rc = shore__arch_preset(name, 0, &arch, diag);
    if (rc == 0 && arch.vocab < vocab) rc = shore__arch_preset(name, vocab, &arch, diag);
    return rc < 0 ? rc : shore__model_make(&arch, out, diag);
}

static int no_such_model(const char *name, struct shore_diag *diag) {
    char list[256] = "";
    size_t count = 0;
    for (const char *const *p = shore__arch_presets(); *p; p++)
        shore__append(list, sizeof list, count++ ? ", %s" : "%s", *p);
    const char *near = shore__suggest(name, shore__arch_presets(), count);
    return shore__fail(diag, SHORE_EUSAGE, "--init %s: no such preset or file%s%s%s Presets are %s",
                       shore__shown(name).text, near ? ": did you mean " : "", near ? near : "", near ? "?" : ".",
                       list);
}

int shore__run_model(const struct shore__settings *s, struct shore__tokenizer *tokenizer, struct shore__model **out,
                     struct shore_diag *diag) {
    struct stat st;
    struct shore__model *m = NULL;
    uint32_t vocab = tokenizer ? shore__tokenizer_vocab(tokenizer) : 0,
             needed = tokenizer ? shore__tokenizer_needed(tokenizer) : 0;
    int rc = 0;
    if (s->model)
        rc = shore__model_from_directory(s->model, &m, diag);
    else if (!s->init)
        rc = shore__fail(diag, SHORE_EUSAGE,
                         "which model? Give --model (a directory) or --init (a preset or a config.json)");
    else if (is_preset(s->init))
        rc = model_from_preset(s->init, vocab, &m, diag);
    else if (stat(s->init, &st) == 0)
        rc = S_ISDIR(st.st_mode) ? model_from_directory(s->init, false, &m, diag) : model_from_file(s->init, &m, diag);
    else
        rc = no_such_model(s->init, diag);
    if (rc < 0) return rc;
    /* Tokens of .bin files are checked one by one. If there is no tokenizer, the byte-level one stands in. */
    if (needed > m->arch.vocab && strcmp(shore__tokenizer_name(tokenizer), "bytes") != 0) {
        rc = shore__fail(diag, SHORE_EINPUT,
                         "the tokenizer has %u tokens, but the model only %u (vocab_size): they do not belong together",
                         needed, m->arch.vocab);
        shore__model_free(m);
        return rc;
    }
    rc = shore__settings_shape_model(s, m, diag);
    if (rc < 0) {
        shore__model_free(m);
        return rc;
    }
    *out = m;
    return 0;
}

void shore__settings_fit(struct shore__settings *s, const struct shore__model *m, uint64_t tokens) {
    enum { LENGTH = 1024, STEPS = 1000 };
    if (s->seq_len == 0) s->seq_len = m->arch.max_positions < LENGTH ? m->arch.max_positions : LENGTH;
    const struct shore__optimizer *o = shore__optimizer(s->optimizer);
    if (isnan(s->lr)) s->lr = o->has_betas && s->model ? 5e-5 : o->usual_lr;
    if (isnan(s->min_lr)) s->min_lr = s->lr / 10;
    /* an element of a compressed gradient comes about every hundredth step: its variance needs a longer memory */
    if (isnan(s->beta2)) s->beta2 = s->compress > 0 ? 0.999 : 0.95;
    if (s->steps == 0 && s->epochs > 0) {
        if (tokens == 0) return;
        double steps = ceil(s->epochs * (double)tokens / ((double)s->batch * s->seq_len));
        s->steps = steps < 1 ? 1 : steps < SHORE__STEPS_MOST ? (uint64_t)steps : SHORE__STEPS_MOST;
        s->epochs = 0;
    }
    if (s->steps == 0) s->steps = STEPS;
    if (s->warmup == SHORE__WARMUP_CHOSEN) s->warmup = shore__warmup_for(s, s->steps);
}

/* ---- input files ------------------------------------------------------------------------------------------------- */

static bool same_file(const struct stat *a, const char *path) {
    struct stat b;
    return stat(path, &b) == 0 && a->st_dev == b.st_dev && a->st_ino == b.st_ino;
}

/* Whether the input is this file, or a Hugging Face directory in or below which this file is read. */
static bool reads(const char *input, const struct stat *file) {
    static const char *const patterns[] = {"*.safetensors", "*.json", "*.txt", "*.bpe", NULL};
    DIR *directory = opendir(input);
    const struct dirent *entry = NULL;
    bool found = !directory && same_file(file, input);
    while (directory && !found && (entry = readdir(directory))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        const struct shore__path path = shore__path_in(input, entry->d_name);
        struct stat st;
        if (lstat(path.text, &st) == 0 && S_ISDIR(st.st_mode)) /* an index may name shards there */
            found = reads(path.text, file);
        else
            found = shore__name_matches(entry->d_name, patterns) && same_file(file, path.text);
    }
    if (directory) closedir(directory);
    return found;
}

/* Whether the input is this file, or a directory or pattern of data that includes it. */
static bool reads_data(const char *input, const struct stat *file) {
    struct shore__data_files files;
    bool found = same_file(file, input);
    if (shore__data_files_find(&input, 1, NULL, NULL, &files, NULL) < 0) return found;
    for (size_t i = 0; !found && i < files.count; i++)
        found = same_file(file, files.file[i].path);
    shore__data_files_free(&files);
    return found;
}

/* The flag whose input includes this file, or NULL. */
static const char *read_as(const struct shore__settings *s, const struct stat *file, const char **input) {
    const struct {
        const char *flag;
        const char *const *items;
        size_t count;
        bool data;
    } inputs[] = {
        {"model", (const char *const *)&s->model, s->model != NULL, false},
        {"adapter", (const char *const *)&s->adapter, s->adapter != NULL, false},
        {"init", (const char *const *)&s->init, s->init && !is_preset(s->init), false},
        {"tokenizer", (const char *const *)&s->tokenizer, s->tokenizer && strcmp(s->tokenizer, "bytes") != 0, false},
        {"data", (const char *const *)s->data.item, s->data.count, true},
        {"val-data", (const char *const *)s->val_data.item, s->val_data.count, true},
        {"emulate", (const char *const *)&s->emulate, s->emulate != NULL, false},
    };
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        for (size_t k = 0; k < inputs[i].count; k++) {
            *input = inputs[i].items[k];
            bool read = S_ISDIR(file->st_mode) ? same_file(file, *input)
                        : inputs[i].data       ? reads_data(*input, file)
                                               : reads(*input, file);
            if (read) return inputs[i].flag;
        }
    return NULL;
}

int shore__settings_spare_inputs(const struct shore__settings *s, const char *out, struct shore_diag *diag) {
    struct stat st;
    const char *input;
    for (size_t i = 0; i < s->drives.count; i++) {
        const char *drive = s->drives.text[i];
        /* in a directory, the volume has a name of its own */
        bool file =
            s->drives.item[i]->kind->has_file && stat(s->drives.item[i]->path, &st) == 0 && !S_ISDIR(st.st_mode);
        const char *flag = file ? read_as(s, &st, &input) : NULL;
        if (flag)
            return shore__fail(diag, SHORE_EUSAGE, "the drive %s is what %s %s reads: name another path", drive, flag,
                               input);
    }
    const char *flag = stat(out, &st) == 0 && S_ISDIR(st.st_mode) ? read_as(s, &st, &input) : NULL;
    if (flag)
        return shore__fail(diag, SHORE_EUSAGE, "%s is what %s %s reads: choose another directory", out, flag, input);
    return 0;
}
