#include <sys/stat.h>

#include "cli/cli.h"
#include "drive/counters.h"
#include "files/hub.h"
#include "model/config_keys.h"
#include "plan/transfers.h"
#include "run/lifecycle/snapshots.h"

int shore__cli_open_fleet(struct shore__run *run, const uint64_t *accept_step, struct shore_fleet **out,
                          struct shore_diag *diag) {
    if (shore__settings_in_ram(&run->settings))
        return shore__fail(diag, SHORE_EMISSING,
                           "%s kept its state in memory (--drive ram:): it went with the process that trained it",
                           run->path);
    struct shore_fleet_options options;
    shore__run_fleet_options(&run->settings, 0, false, &options);
    shore__transfer_rings(&options);
    options.fleet_id[0] = run->fleet_id[0];
    options.fleet_id[1] = run->fleet_id[1];
    options.hint_step = run->hint_step;
    options.generation = run->generation;
    options.accept_step = accept_step;
    options.read_only = true;
    options.note = shore__cli_note;
    int rc = shore_fleet_open(run->layout, &options, out, diag);
    return rc == SHORE_EBUSY ? shore__run_in_use(run->path, diag) : rc;
}

int shore__cli_copy_budget(struct shore__run *run, uint64_t asked, uint32_t more, struct shore_diag *diag) {
    struct shore_fleet_options options;
    uint64_t now, peak;
    if (!asked) return 0;
    shore__run_fleet_options(&run->settings, 0, true, &options);
    shore__transfer_rings(&options);
    shore__resident_bytes(&now, &peak);
    run->copy_memory_bytes = asked;
    return shore__budget_measured(asked, shore__copy_bytes(run->layout, &options, more, peak), diag);
}

int shore__cli_open_run(const char *path, const struct shore__strings *moved, const char *snapshot, bool of_any_program,
                        struct shore__opened *out, struct shore_diag *diag) {
    *out = (struct shore__opened){0};
    int rc = shore__run_open(path, false, moved && moved->count ? moved : NULL, &out->run, diag);
    if (rc) return rc;
    if (out->run->note) shore__cli_say("%s", out->run->note);
    out->model = out->run->model;
    out->fp32 = out->run->settings.fp32;
    out->products = out->run->settings.products;
    out->threads = out->run->settings.threads;
    if (!of_any_program) rc = shore__run_refuse_contents(out->run, diag);
    if (out->model) rc = shore__run_tokenizer(out->run, diag);
    out->tokenizer = out->run->tokenizer;
    if (!rc)
        rc = snapshot ? shore__snapshot_open(out->run, snapshot, &out->fleet, diag)
                      : shore__cli_open_fleet(out->run, NULL, &out->fleet, diag);
    if (rc)
        shore__cli_close(out);
    else
        out->step = shore__fleet_info(out->fleet).step;
    return rc;
}

static int open_directory(const char *path, const struct shore__model_args *a, const struct shore__strings *data,
                          struct shore__opened *out, struct shore_diag *diag) {
    struct shore__settings settings = {.model = (char *)path, .tokenizer = a->tokenizer}; /* borrowed */
    if (data) settings.data = *data;
    int rc = shore__model_from_directory(path, &out->model, diag);
    if (!rc) rc = shore__run_tokenizer_of(&settings, &out->tokenizer, diag);
    if (!rc) rc = shore__source_directory(out->model, path, &out->source, diag);
    if (!rc && a->adapter) rc = shore__source_merge(out->source, a->adapter, diag);
    if (!rc) shore__cli_say_model(out->model, false);
    return rc;
}

int shore__cli_open(const char *path, const struct shore__model_args *a, const struct shore__strings *data,
                    struct shore__opened *out, struct shore_diag *diag) {
    *out = (struct shore__opened){0};
    struct stat st;
    const struct shore__shown escaped = shore__shown(path);
    bool there = stat(path, &st) == 0, is_run = there && (shore__is_run(path) || shore__run_is_half_replaced(path));
    int rc;
    if (!there) {
        rc = shore__hub_refuse("", path, SHORE__HUB_MODEL, diag);
        if (!rc) rc = shore__fail(diag, SHORE_EMISSING, "%s: no such run or model directory", escaped.text);
    } else if (is_run && a->tokenizer)
        rc = shore__fail(diag, SHORE_EUSAGE, "--tokenizer is for a model directory: the run %s has its own",
                         escaped.text);
    else if (is_run && a->adapter)
        rc = shore__fail(diag, SHORE_EUSAGE, "--adapter is for a model directory, and %s is a run: export it first",
                         escaped.text);
    else if (is_run)
        rc = shore__cli_open_run(path, &a->moved, a->snapshot, false, out, diag);
    else if (shore__run_is_unmade(path))
        rc = shore__not_a_run(path, diag);
    else if (a->moved.count)
        rc = shore__fail(diag, SHORE_EUSAGE, "--drive says where a run's drives are now: %s is no run", escaped.text);
    else if (a->snapshot)
        rc = shore__fail(diag, SHORE_EUSAGE, "--snapshot names one of a run: %s is no run", escaped.text);
    else
        rc = open_directory(path, a, data, out, diag);
    if (rc) shore__cli_close(out);
    return rc;
}

struct shore__compute_options shore__cli_compute(const struct shore__opened *o, const struct shore__model_args *a) {
    return (struct shore__compute_options){
        .fp32 = a->precision ? a->precision == 2 : o->fp32,
        .products = a->products ? a->products : o->products,
        .threads = (int)(a->threads ? a->threads : o->threads),
    };
}

void shore__cli_close(struct shore__opened *o) {
    shore_fleet_close(o->fleet);
    shore__source_close(o->source);
    if (o->run) {
        shore__run_close(o->run); /* also closes its model and tokenizer */
    } else {
        shore__model_free(o->model);
        shore__tokenizer_close(o->tokenizer);
    }
    *o = (struct shore__opened){0};
}

void shore__cli_say_model(const struct shore__model *model, bool trains) {
    const struct shore__arch *arch = &model->arch;
    char unknown[512];
    size_t n = model->kept ? shore__config_keys_unknown(model->kept, model->family, unknown, sizeof unknown) : 0;
    if (n)
        shore__cli_say("Longshore does not know %zu key%s of the configuration, computes without %s%s: %s", n,
                       n == 1 ? "" : "s", n == 1 ? "it" : "them",
                       trains ? ", and keeps what it says for an export" : "", unknown);
    if (arch->head_parted)
        shore__cli_say("the configuration ties the head to the embedding, but the files hold an lm_head.weight that "
                       "differs: both are used, so %s not tied",
                       trains ? "this run, and an export of it, is" : "the model is");
    if (arch->has_dropout && trains) shore__cli_say("the configuration asks for dropout, which is not applied");
}

int shore__cli_check_length(const struct shore__arch *arch, size_t seq_len, struct shore_diag *diag) {
    uint32_t most = shore__arch_most_positions(arch, seq_len);
    if (!most || seq_len <= most) return 0;
    return shore__fail(diag, SHORE_EUSAGE, "--seq-len %zu is longer than the %u positions that the model has%s",
                       seq_len, most,
                       arch->learned_positions ? ""
                       : arch->rope[0].kind == SHORE__ROPE_DYNAMIC
                           ? " (max_position_embeddings): beyond them, rotary positions of the kind "
                             "dynamic change with the length, which is not supported"
                           : " (original_max_position_embeddings): beyond them, queries are scaled "
                             "(llama_4_scaling_beta), which is not supported");
}

void shore__cli_say_tokenizer(const struct shore__settings *s, const struct shore__tokenizer *tokenizer,
                              const struct shore__model *model) {
    char text[160];
    if (s->quiet) return;
    bool few = shore__tokenizer_vocab(tokenizer) < model->arch.vocab / 2 && !s->tokenizer && s->init;
    shore__cli_say("tokenizer: %s%s", shore__tokenizer_text(s, tokenizer, model, text, sizeof text),
                   few && s->data.count ? "; --tokenizer DIR names another" : "");
}

void shore__cli_say_half_replaced(const char *path) {
    struct shore_diag diag = {0};
    if (!path || !shore__run_is_half_replaced(path)) return;
    shore__cli_fail(shore__not_a_run(path, &diag), &diag);
}

int shore__cli_fail_making(const struct shore__run *run, int rc, const struct shore_diag *diag) {
    struct shore_diag how = {0};
    if (run->making && !shore__run_is_half_replaced(run->path)) return shore__cli_fail(rc, diag);
    shore__cli_fail_running(rc, diag);
    if (shore__is_run(run->path))
        shore__cli_say("the run is made; go on with: longshore train --resume %s", run->word);
    else if (!shore__run_is_half_replaced(run->path) && (rc = shore__not_a_run(run->path, &how)))
        shore__cli_fail(rc, &how);
    return SHORE__EXIT_FAILED;
}
